"""Binsparse files in HDF5: there and back, the reference implementation, damaged ones."""

import json
import random

import numpy as np
import pytest
import torch

import spgrad
import spgrad.io
from spgrad import testing
from spgrad.core.pattern import LAYOUTS

h5py = pytest.importorskip("h5py")

CSR = {"pointers_to_1": [0, 2, 3], "indices_1": [0, 2, 1], "values": [1.0, 2.0, 3.0]}
DENSE = [[1, 0, 2], [0, 3, 0]]
TRIANGLE = {"pointers_to_1": [0, 1, 3], "indices_1": [0, 0, 1]}
ISO = {"pointers_to_1": "int64", "indices_1": "int64", "values": "iso[complex[float64]]"}


def made(path, arrays=None, userblock_size=0, **changes):
    """A file with these arrays and a descriptor that is changed."""
    with h5py.File(path, "w", userblock_size=userblock_size) as file:
        fill(file, arrays, **changes)
    return path


def fill(file, arrays=None, **changes):
    arrays = {name: np.asarray(x) for name, x in (arrays or CSR).items()}
    head = {
        "version": "0.1",
        "format": "CSR",
        "shape": [2, 3],
        "number_of_stored_values": 3,
        "data_types": {name: str(x.dtype) for name, x in arrays.items()},
    } | changes
    file.attrs["binsparse"] = json.dumps({"binsparse": head})
    for name, x in arrays.items():
        file[name] = x


@pytest.mark.parametrize("name", ["coo", "csr", "csc"])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.complex64, torch.int16, torch.bool, torch.uint8]
)
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_round_trip(name, dtype, index_dtype, tmp_path):
    A = testing.random_sparse((4, 6), LAYOUTS[name], dtype=dtype, index_dtype=index_dtype)
    spgrad.io.save(A, tmp_path / "a.h5")
    B = spgrad.io.load(tmp_path / "a.h5")
    assert B.pattern.spec == A.pattern.spec
    assert B.dtype == dtype
    assert {i.dtype for i in B.pattern.indices} == {index_dtype}
    assert torch.equal(B.to_dense(), A.to_dense())
    assert spgrad.io.load(tmp_path / "a.h5", layout=torch.sparse_csc).pattern.name == "csc"


@pytest.mark.parametrize("zoo", testing.ZOO)
def test_corner_cases(zoo, tmp_path):
    x = testing.ZOO[zoo]()
    spgrad.io.save(spgrad.from_dense(x), tmp_path / "a.hdf5")
    assert torch.equal(spgrad.io.load(tmp_path / "a.hdf5").to_dense(), x)


def test_a_vector_and_repeated_elements(tmp_path):
    v = spgrad.sparse_coo_tensor([[4, 1, 4]], [1.0, 2.0, 3.0], (6,))
    spgrad.io.save(v, tmp_path / "v.h5")
    assert spgrad.io.load(tmp_path / "v.h5").to_dense().tolist() == [0, 2, 0, 0, 4, 0]


@pytest.mark.parametrize("name", ["coo", "csr", "csc"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128, torch.bool])
def test_the_reference_implementation(name, dtype, tmp_path):
    binsparse = pytest.importorskip("binsparse")
    A = testing.random_sparse((4, 6), LAYOUTS[name], dtype=dtype)
    spgrad.io.save(A, tmp_path / "a.h5")
    read = binsparse.load_binsparse(tmp_path / "a.h5")
    binsparse.save_binsparse(read, tmp_path / "b.h5")
    assert torch.equal(spgrad.io.load(tmp_path / "b.h5").to_dense(), A.to_dense())


@pytest.mark.parametrize(
    ("form", "arrays"),
    [
        ("COOR", {"indices_0": [0, 0, 1], "indices_1": [0, 2, 1]}),
        ("COOC", {"indices_0": [0, 1, 2], "indices_1": [0, 1, 0], "values": [1.0, 3.0, 2.0]}),
        ("DCSR", {"indices_0": [0, 1], "pointers_to_1": [0, 2, 3], "indices_1": [0, 2, 1]}),
        (
            "DCSC",
            {
                "indices_0": [0, 1, 2],
                "pointers_to_1": [0, 1, 2, 3],
                "indices_1": [0, 1, 0],
                "values": [1.0, 3.0, 2.0],
            },
        ),
        ("CSR", CSR | {"pointers_to_1": np.array([0, 2, 3], "uint8")}),
    ],
)
def test_other_formats(form, arrays, tmp_path):
    path = made(tmp_path / "a.h5", {"values": CSR["values"]} | arrays, format=form)
    assert spgrad.io.load(path).to_dense().tolist() == DENSE


@pytest.mark.parametrize(
    ("structure", "wanted"),
    [
        ("symmetric_lower", [[1, 2], [2, 3]]),
        ("skew_symmetric_lower", [[1, -2], [2, 3]]),
    ],
)
def test_one_triangle_stands_for_both(structure, wanted, tmp_path):
    arrays = {"pointers_to_1": [0, 1, 3], "indices_1": [0, 0, 1], "values": [1.0, 2.0, 3.0]}
    path = made(tmp_path / "a.h5", arrays, shape=[2, 2], structure=structure)
    assert spgrad.io.load(path).to_dense().tolist() == wanted
    side = structure.replace("lower", "upper")
    path = made(tmp_path / "b.h5", arrays, shape=[2, 2], structure=side)
    with pytest.raises(spgrad.ArgumentValueError, match="in the other triangle"):
        spgrad.io.load(path)
    arrays = {"pointers_to_1": [0, 2, 3], "indices_1": [0, 1, 1], "values": [1.0, 2.0, 3.0]}
    path = made(tmp_path / "c.h5", arrays, shape=[2, 2], structure=side)
    assert spgrad.io.load(path).to_dense().T.tolist() == wanted


def test_a_hermitian_triangle_stands_for_its_conjugate(tmp_path):
    arrays = TRIANGLE | {"values": [1.0, 0.0, 2.0, 5.0, 3.0, 0.0]}
    types = ISO | {"values": "complex[float64]"}
    for structure, other in (("hermitian_lower", 2 - 5j), ("symmetric_lower", 2 + 5j)):
        path = made(tmp_path / "a.h5", arrays, shape=[2, 2], structure=structure, data_types=types)
        assert spgrad.io.load(path).to_dense().tolist() == [[1, other], [2 + 5j, 3]]


def test_modifiers_of_values(tmp_path):
    kinds = {"pointers_to_1": "int64", "indices_1": "int64", "values": "iso[float32]"}
    path = made(tmp_path / "a.h5", CSR | {"values": [7.0]}, data_types=kinds)
    A = spgrad.io.load(path)
    assert A.values().tolist() == [7] * 3
    assert A.values().is_contiguous()  # each element has a number of its own
    one_based = CSR | {"pointers_to_1": [1, 3, 4], "indices_1": [1, 3, 2]}
    path = made(tmp_path / "b.h5", one_based, index_base=1)
    assert spgrad.io.load(path).to_dense().tolist() == DENSE
    for number, filled in enumerate(([2.0], [1.0], [0.0, 0.0], [])):
        path = made(tmp_path / f"{number}.h5", CSR | {"fill_value": filled}, fill=True)
        with pytest.raises(spgrad.ArgumentValueError, match="another value than 0"):
            spgrad.io.load(path)
    path = made(tmp_path / "c.h5", CSR | {"fill_value": [0.0]}, fill=True)
    assert spgrad.io.load(path).to_dense().tolist() == DENSE


@pytest.mark.parametrize(
    ("arrays", "changes", "text"),
    [
        ({}, {"format": "DMAT"}, "its format is 'DMAT'"),
        ({}, {"format": ["CSR"]}, "its format is"),
        ({}, {"version": "1.0"}, "version '1.0'"),
        ({}, {"shape": [2]}, "its shape [2]"),
        ({}, {"shape": [2, -3]}, "its shape [2, -3]"),
        ({}, {"shape": [2, 2**70]}, "number of stored values"),
        ({}, {"shape": [2, True]}, "number of stored values"),
        ({}, {"number_of_stored_values": 4}, "3 values for 4"),
        ({}, {"data_types": {"values": "float64"}}, "has type None"),
        ({}, {"data_types": None}, "data_types"),
        ({}, {"index_base": 7}, "index_base"),
        ({}, {"structure": "x"}, "its structure is 'x'"),
        ({}, {"structure": "symmetric_lower"}, "has shape (2, 3)"),
        ({"indices_1": [0, 9, 1]}, {}, "9"),
        ({"indices_1": [0.0, 2.0, 1.0]}, {}, "has type"),
        ({"pointers_to_1": [0, 5, 3]}, {}, "pointers"),
        ({"pointers_to_1": [[0, 2, 3]]}, {}, "no vector `pointers_to_1`"),
        ({"values": ["a", "b", "c"]}, {}, "its array `values` has dtype |S1"),
    ],
)
def test_what_is_wrong_is_said(arrays, changes, text, tmp_path):
    given = CSR | arrays
    if arrays.get("values") == ["a", "b", "c"]:
        given["values"] = np.array([b"a", b"b", b"c"])
    path = made(tmp_path / "a.h5", given, **changes)
    with pytest.raises(spgrad.ArgumentValueError) as raised:
        spgrad.io.load(path)
    assert text in str(raised.value)
    assert "which can't be read" in str(raised.value)


@pytest.mark.parametrize(
    ("arrays", "changes", "nbytes"),
    [
        ({"values": np.ones(3, np.float32)}, {}, 3 * 8),
        ({"values": [1.0, 2.0]}, {"data_types": ISO}, 3 * 16),
        (TRIANGLE, {"shape": [2, 2], "structure": "symmetric_lower"}, 6 * 24),
    ],
)
def test_the_bytes_that_a_file_becomes_are_bounded(arrays, changes, nbytes, tmp_path):
    """The arrays, one value that stands for all, and both triangles of which one is stored."""
    path = made(tmp_path / "a.h5", CSR | arrays, **changes)
    assert spgrad.io.load(path, max_bytes=nbytes).nse >= 3
    with pytest.raises(spgrad.ArgumentValueError, match=f"more than max_bytes={nbytes - 1}"):
        spgrad.io.load(path, max_bytes=nbytes - 1)


def test_links_and_sizes_are_not_followed(tmp_path):
    path = made(tmp_path / "a.h5")
    with h5py.File(path, "a") as file:
        del file["values"]
        file["values"] = h5py.ExternalLink("other.h5", "values")
    with pytest.raises(spgrad.ArgumentValueError, match="no vector `values`"):
        spgrad.io.load(path)
    with h5py.File(path, "a") as file:
        del file["values"]
        file.create_dataset("values", shape=(10**12,), dtype="f8", chunks=(10**6,))
    with pytest.raises(spgrad.ArgumentValueError, match="more than max_bytes"):
        spgrad.io.load(path)
    with h5py.File(path, "a") as file:
        del file["values"]
        file.create_dataset("values", (3,), "f8", external=[("x.bin", 0, 24)])
    with pytest.raises(spgrad.ArgumentValueError, match="lies in another file"):
        spgrad.io.load(path)
    with h5py.File(path, "a") as file:
        del file.attrs["binsparse"]
    with pytest.raises(spgrad.ArgumentValueError, match="no attribute `binsparse`"):
        spgrad.io.load(path)


def test_scrambled_files(tmp_path):
    good, rng = made(tmp_path / "a.h5").read_bytes(), random.Random(0)
    path = tmp_path / "b.h5"
    for _ in range(150):
        blob = bytearray(good)
        for _ in range(rng.choice([1, 2, 8])):
            blob[rng.randrange(len(blob))] = rng.randrange(256)
        path.write_bytes(blob[: rng.randrange(len(blob))] if rng.random() < 0.1 else blob)
        try:
            A = spgrad.io.load(path)
        except spgrad.ArgumentValueError:
            continue
        assert A.to_dense().shape == A.shape


@pytest.mark.parametrize("length", [0, 8, 20])
@pytest.mark.parametrize("userblock", [0, 512])
def test_a_heap_that_the_library_of_hdf5_would_read_without_end(length, userblock, tmp_path):
    path = made(tmp_path / "a.h5", userblock_size=userblock)
    blob = bytearray(path.read_bytes())
    heap = blob.index(b"GCOL")
    text = int.from_bytes(blob[heap + 24 : heap + 32], "little")  # behind one object's header
    free = heap + 32 + -(-text // 8) * 8
    assert blob[free : free + 2] == b"\0\0"
    blob[free + 8 : free + 16] = length.to_bytes(8, "little")
    path.write_bytes(blob)
    with pytest.raises(
        spgrad.ArgumentValueError, match=f"{heap} is damaged: an object of {length}"
    ):
        spgrad.io.load(path)


def test_a_heap_that_the_file_cuts_off_is_followed_to_the_end_of_the_file(tmp_path):
    path = made(tmp_path / "a.h5")
    blob = path.read_bytes()
    blob += bytes(-len(blob) % 8)
    head = b"GCOL\1\0\0\0" + (4096).to_bytes(8, "little")
    text = (1).to_bytes(8, "little") + (8).to_bytes(8, "little") + b"8 bytes."
    path.write_bytes(blob + head + text)
    assert spgrad.io.load(path).to_dense().tolist() == DENSE


@pytest.mark.parametrize("length", [1, 7, 8, 4000, 5000])
@pytest.mark.parametrize("widths", [(8, 8), (4, 4)])
def test_heaps_of_every_kind(length, widths, tmp_path):
    """Descriptors of several lengths, and files that count in four bytes."""
    kind = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    kind.set_sizes(*widths)
    path = tmp_path / "a.h5"
    with h5py.File(h5py.h5f.create(str(path).encode(), fcpl=kind)) as file:
        file.attrs["before"] = "x" * length
        fill(file, more="y" * length)
    assert spgrad.io.load(path).to_dense().tolist() == DENSE


@pytest.mark.parametrize(
    "A", [spgrad.zeros(2, 2, 2), spgrad.eye(2, layout=torch.sparse_bsr, blocksize=(1, 1))]
)
def test_what_the_format_lacks_is_refused(A, tmp_path):
    with pytest.raises(spgrad.UnsupportedError, match=r"is accepted for \.h5|are accepted|csc is"):
        spgrad.io.save(A, tmp_path / "a.h5")


def described(path, head, **options):
    with h5py.File(path, "w") as file:
        file.attrs.create("binsparse", head, **options)
    return path


def test_descriptors_that_describe_nothing(tmp_path):
    text = h5py.string_dtype()
    long = json.dumps({"binsparse": {}, "more": "x" * 2**20})
    with h5py.File(tmp_path / "long.h5", "w", libver="latest") as file:
        file.attrs.create("binsparse", long, dtype=text)
    for path, says in (
        (described(tmp_path / "a.h5", ["{}", "{}"], dtype=text), "is no single text"),
        (tmp_path / "long.h5", "is longer than 1 MiB"),
        (described(tmp_path / "b.h5", "[1, 2]", dtype=text), "has no entry `binsparse`"),
        (described(tmp_path / "c.h5", '{"binsparse": 3}', dtype=text), "no entry `binsparse`"),
    ):
        with pytest.raises(spgrad.ArgumentValueError, match=says):
            spgrad.io.load(path)


DCSR = {
    "pointers_to_1": [0, 1, 3],
    "indices_0": [0, 1],
    "indices_1": [0, 0, 1],
    "values": [1.0] * 3,
}


@pytest.mark.parametrize(
    ("arrays", "kind", "form", "text"),
    [
        ({}, "float128", "CSR", "values have type 'float128', which Binsparse 0.1.0 does not"),
        ({}, "complex[uint8]", "CSR", r"type 'complex\[uint8\]'"),
        ({"values": [1.0] * 3}, "complex[float64]", "CSR", "its complex values are not pairs"),
        (DCSR | {"pointers_to_1": [0, 1]}, None, "DCSR", "`pointers_to_1` does not fit"),
        (DCSR | {"pointers_to_1": [0, 4, 3]}, None, "DCSR", "`pointers_to_1` does not fit"),
        (DCSR | {"pointers_to_1": [0, 1, 2]}, None, "DCSR", "`pointers_to_1` does not fit"),
        (DCSR | {"indices_1": [0, 0]}, None, "DCSR", "it has 3 and 2 indices"),
        ({"indices_0": [0], "indices_1": [0, 1, 2]}, None, "COO", "it has 1 and 3 indices"),
    ],
)
def test_arrays_that_do_not_fit(arrays, kind, form, text, tmp_path):
    given = arrays if form == "DCSR" else CSR | arrays
    types = {name: str(np.asarray(x).dtype) for name, x in given.items()}
    types |= {} if kind is None else {"values": kind}
    path = made(tmp_path / "a.h5", given, format=form, data_types=types)
    with pytest.raises(spgrad.ArgumentValueError, match=text):
        spgrad.io.load(path)
