"""Files: what is saved comes back, and what is damaged is refused by name."""

import contextlib
import gzip
import io
import pickle
import sys
import zipfile

import numpy as np
import pytest
import scipy.io
import scipy.sparse
import torch

import spgrad
import spgrad.io
from spgrad import support, testing
from spgrad.core.pattern import LAYOUTS
from spgrad.io import stream

TEXT = [".csv", ".tsv", ".txt", ".csv.gz"]


def refused(path, **options):
    """What load says when it refuses a file; the file's name is in it."""
    with pytest.raises(spgrad.SpgradError) as caught:
        spgrad.io.load(path, **options)
    said = str(caught.value)
    assert said.startswith("spgrad.io.load: `path` is ")
    assert str(path) in said
    assert said.endswith(".")
    return said


def write(path, text):
    path.write_text(text)
    return path


# Round trips


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.int32])
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("name", ["coo", "csr", "csc", "bsr"])
def test_npz_round_trip(name, index_dtype, dtype, tmp_path):
    A = testing.random_sparse((4, 6), LAYOUTS[name], dtype=dtype, index_dtype=index_dtype)
    spgrad.io.save(A, tmp_path / "a.npz")
    B = spgrad.io.load(tmp_path / "a.npz")
    assert B.pattern.spec == A.pattern.spec
    assert B.pattern.same_as(A.pattern)
    assert B.pattern.indices[0].dtype == index_dtype
    assert B.dtype == dtype
    assert torch.equal(B._vals, A._vals)
    S = scipy.sparse.load_npz(tmp_path / "a.npz")
    assert S.format == name
    assert np.array_equal(S.toarray(), A.to_dense().numpy())


@pytest.mark.parametrize("form", ["coo", "csr", "csc", "bsr", "dia"])
@pytest.mark.parametrize("zoo", testing.ZOO)
def test_npz_of_scipy(form, zoo, tmp_path):
    x = testing.ZOO[zoo]()
    if form == "dia" and 0 in x.shape:
        pytest.skip("SciPy makes none")
    scipy.sparse.save_npz(tmp_path / "a.npz", scipy.sparse.coo_array(x.numpy()).asformat(form))
    B = spgrad.io.load(tmp_path / "a.npz")
    assert B.pattern.name == ("coo" if form == "dia" else form)
    assert B.pattern.coalesced
    assert torch.equal(B.to_dense(), x)


@pytest.mark.parametrize("shape", [(5,), (2, 3, 4)])
def test_npz_of_other_ranks(shape, tmp_path):
    A = testing.random_sparse(shape, torch.sparse_coo)
    spgrad.io.save(A, tmp_path / "a.npz")
    assert torch.equal(spgrad.io.load(tmp_path / "a.npz").to_dense(), A.to_dense())


@pytest.mark.parametrize("form", ["csr", "csc", "bsr"])
def test_unsorted_and_repeated_lines_are_mended(form, tmp_path):
    data = np.arange(1.0, 5).repeat(4).reshape(4, 2, 2) if form == "bsr" else np.arange(1.0, 5)
    shape = (4, 6) if form == "bsr" else (2, 3) if form == "csr" else (3, 2)
    make = getattr(scipy.sparse, f"{form}_array")
    S = make((data, np.array([2, 0, 0, 1]), np.array([0, 3, 4])), shape=shape)
    scipy.sparse.save_npz(tmp_path / "a.npz", S)
    assert np.array_equal(spgrad.io.load(tmp_path / "a.npz").to_dense().numpy(), S.toarray())


def test_other_byte_orders_and_narrow_indices(tmp_path):
    parts = {"row": np.array([0, 1], "u1"), "col": np.array([2, 0], ">i4")}
    parts |= {"data": np.array([1.5, 2.5], ">f8"), "shape": np.array([2, 3]), "format": "coo"}
    np.savez(tmp_path / "a.npz", **parts)
    assert spgrad.io.load(tmp_path / "a.npz").to_dense().tolist() == [[0, 0, 1.5], [2.5, 0, 0]]


@pytest.mark.parametrize("name", support.ALL)
@pytest.mark.parametrize("suffix", [".mtx", ".mtx.gz", ".MTX"])
def test_matrix_market_round_trip(suffix, name, tmp_path):
    A = testing.random_sparse((4, 6), LAYOUTS[name], coalesced=name != "coo")
    path = tmp_path / f"a{suffix}"
    spgrad.io.save(A, path)
    B = spgrad.io.load(path)
    assert B.pattern.name == "csr"
    testing.assert_close(B, A.to_dense())
    C = spgrad.io.load(path, layout=torch.sparse_coo, dtype=torch.float32)
    assert C.pattern.coalesced
    assert (C.layout, C.dtype) == (torch.sparse_coo, torch.float32)


@pytest.mark.parametrize(
    ("dtype", "back"),
    [
        (torch.float32, torch.float64),
        (torch.bfloat16, torch.float64),
        (torch.int32, torch.int64),
        (torch.bool, torch.int64),
        (torch.complex128, torch.complex128),
    ],
)
def test_matrix_market_values(dtype, back, tmp_path):
    A = testing.random_sparse((4, 6)).to(dtype)
    spgrad.io.save(A, tmp_path / "a.mtx")
    B = spgrad.io.load(tmp_path / "a.mtx")
    assert B.dtype == back
    assert torch.equal(B.to(dtype).to_dense(), A.to_dense())


MARKET = {
    "symmetric": ("coordinate real symmetric", "2 1 3\n2 2 4", [[0, 3], [3, 4]]),
    "skew": ("coordinate real skew-symmetric", "2 1 3", [[0, -3], [3, 0]]),
    "hermitian": ("coordinate complex hermitian", "2 1 3 1\n2 2 4 0", [[0, 3 - 1j], [3 + 1j, 4]]),
    "pattern": ("coordinate pattern general", "2 1\n1 2", [[0, 1], [1, 0]]),
    "pattern symmetric": ("coordinate pattern symmetric", "2 1", [[0, 1], [1, 0]]),
    "repeated": ("coordinate real general", "2 1 3\n2 1 4", [[0, 0], [7, 0]]),
    "integer": ("coordinate integer general", "2 1 3", [[0, 0], [3, 0]]),
    "array": ("array real general", "1\n0\n3\n4", [[1, 3], [0, 4]]),
    "array symmetric": ("array real symmetric", "1\n3\n4", [[1, 3], [3, 4]]),
}


@pytest.mark.parametrize("case", MARKET)
def test_matrix_market_kinds(case, tmp_path):
    header, body, dense = MARKET[case]
    entries = "" if header.startswith("array") else f" {body.count(chr(10)) + 1}"
    text = f"%%MatrixMarket matrix {header}\n% a comment\n\n2 2{entries}\n{body}"
    A = spgrad.io.load(write(tmp_path / "a.mtx", text))
    assert A.pattern.coalesced
    assert A.to_dense().tolist() == dense
    wanted = {"pattern": torch.float32, "integer": torch.int64, "complex": torch.complex128}
    assert A.dtype == wanted.get(header.split()[1], torch.float64)


@pytest.mark.parametrize("suffix", TEXT)
@pytest.mark.parametrize("name", support.ALL)
def test_edge_list_round_trip(name, suffix, tmp_path):
    A = testing.random_sparse((4, 6), LAYOUTS[name])
    path = tmp_path / f"a{suffix}"
    spgrad.io.save(A, path)
    B = spgrad.io.load(path, size=(4, 6))
    assert B.pattern.name == "csr"
    assert torch.equal(B.to_dense(), A.to_dense())


@pytest.mark.parametrize(
    ("name", "text", "dense"),
    [
        ("a.csv", "source,target\n0,1\n2,0\n", [[0, 1, 0], [0, 0, 0], [1, 0, 0]]),
        ("a.csv", '"source","target","w"\n0,1,2.5\n', [[0, 2.5], [0, 0]]),
        ("a.csv", "\ufeff0, 1\n", [[0, 1], [0, 0]]),
        ("a.tsv", "% bip weighted\n% 1 2 2\n0\t1\t1e3\n", [[0, 1000], [0, 0]]),
        ("a.txt", "# Nodes: 2\n\n0 1\n0   1\n1\t0\n", [[0, 2], [1, 0]]),
        ("a.txt", "0,1\n", [[0, 1], [0, 0]]),
        ("a.txt", "0 1", [[0, 1], [0, 0]]),
        ("a.txt", "", []),
        ("a.csv", "source,target\n", []),
    ],
)
def test_edge_lists(name, text, dense, tmp_path):
    A = spgrad.io.load(write(tmp_path / name, text))
    assert A.to_dense().tolist() == dense
    assert A.dtype == (torch.float64 if "e3" in text or "2.5" in text else torch.float32)


@pytest.mark.parametrize("name", support.ALL)
def test_torch_files(name, tmp_path):
    A = testing.random_sparse((2, 4, 6), LAYOUTS[name]).requires_grad_()
    spgrad.io.save(A, tmp_path / "a.pt")
    B = spgrad.io.load(tmp_path / "a.pt")
    assert B.pattern.spec == A.pattern.spec
    assert B.requires_grad
    assert torch.equal(B.to_dense(), A.to_dense())
    assert spgrad.io.load(tmp_path / "a.pt", layout=torch.sparse_coo).layout == torch.sparse_coo


def test_native_tensors(tmp_path):
    x = torch.eye(3)
    torch.save(x.to_sparse_csr(), tmp_path / "a.pt")
    assert torch.equal(spgrad.io.load(tmp_path / "a.pt").to_dense(), x)
    spgrad.io.save(x.to_sparse_coo(), tmp_path / "a.npz")
    assert torch.equal(spgrad.io.load(tmp_path / "a.npz").to_dense(), x)


def test_a_gradient_is_no_hindrance(tmp_path):
    A = testing.random_sparse((4, 6)).requires_grad_()
    for suffix in (".npz", ".mtx", ".csv"):
        spgrad.io.save(A, tmp_path / f"a{suffix}")
        assert not spgrad.io.load(tmp_path / f"a{suffix}").requires_grad


# Wrong arguments


def test_wrong_arguments_of_load(tmp_path):
    assert "`path` is" in refused(tmp_path / "none.npz")
    assert ".mtx.gz" in refused(tmp_path / "a.xlsx")
    assert "which is not there" in refused(tmp_path / "a.mtx")
    path = tmp_path / "a.npz"
    spgrad.io.save(spgrad.eye(2), path)
    with pytest.raises(TypeError, match="`path` is a int"):
        spgrad.io.load(3)
    with pytest.raises(TypeError, match=r"`layout` is torch\.strided"):
        spgrad.io.load(path, layout=torch.strided)
    with pytest.raises(TypeError, match="`dtype` is 'float'"):
        spgrad.io.load(path, dtype="float")
    with pytest.raises(ValueError, match=r"`size` is 3 for a \.npz file"):
        spgrad.io.load(path, size=3)


@pytest.mark.parametrize(
    ("A", "suffix", "says"),
    [
        (lambda: testing.random_sparse((2, 4, 6)), ".npz", "has shape (2, 4, 6); a matrix"),
        (lambda: testing.random_sparse((4, 6, 2), dense_dim=1), ".mtx", "1 dense dimension"),
        (lambda: testing.random_sparse((4, 6), torch.sparse_bsc), ".npz", "has layout bsc"),
        (lambda: testing.random_sparse((4, 6)).half(), ".npz", "has dtype float16"),
        (lambda: testing.random_sparse((4, 6), dtype=torch.complex64), ".csv", "complex64; real"),
    ],
)
def test_what_a_file_can_not_hold(A, suffix, says, tmp_path):
    with pytest.raises(NotImplementedError) as caught:
        spgrad.io.save(A(), tmp_path / f"a{suffix}")
    assert says in str(caught.value)
    assert not (tmp_path / f"a{suffix}").exists()


def test_dense_tensors_are_not_saved(tmp_path):
    with pytest.raises(TypeError, match=r"spgrad\.io\.save: `A` is a strided tensor"):
        spgrad.io.save(torch.eye(2), tmp_path / "a.npz")


@pytest.mark.parametrize(("package", "suffix"), [("scipy", ".mtx"), ("numpy", ".npz")])
def test_a_missing_package(package, suffix, monkeypatch, tmp_path):
    path = tmp_path / f"a{suffix}"
    spgrad.io.save(spgrad.eye(2), path)
    monkeypatch.setitem(sys.modules, package, None)
    for call in (lambda: spgrad.io.load(path), lambda: spgrad.io.save(spgrad.eye(2), path)):
        with pytest.raises(ImportError, match=f"{package} is not installed") as caught:
            call()
        assert isinstance(caught.value, spgrad.MissingPackageError)


# Damage


def parts(**changes):
    """The arrays of a good CSR file, but for the changes; None takes one out."""
    good = {
        "format": np.array(b"csr"),
        "shape": np.array([2, 3]),
        "indptr": np.array([0, 1, 2]),
        "indices": np.array([0, 2]),
        "data": np.array([1.0, 2.0]),
    }
    return {key: value for key, value in (good | changes).items() if value is not None}


BAD_ARRAYS = {
    "no format": (parts(format=None), "it has no array `format`"),
    "no data": (parts(data=None), "it has no array `data`"),
    "no pointers": (parts(indptr=None), "no array `indptr`, which csr has"),
    "other keys": ({"weights": np.ones(3)}, "no array `format` and no `shape` and no `data`"),
    "unknown format": (parts(format=np.array("lil")), "its format is 'lil'"),
    "format of numbers": (parts(format=np.array(3)), "`format` has dtype int64"),
    "formats": (parts(format=np.array(["csr"])), "its format is ''"),
    "pickled values": (parts(data=np.array([[1], None], dtype=object)), "holds pickled objects"),
    "text": (parts(data=np.array(["a", "b"])), "`data` has dtype <U1"),
    "dates": (parts(data=np.array([1, 2], "M8[s]")), "`data` has dtype datetime64"),
    "index floats": (parts(indices=np.array([0.0, 2.0])), "`indices` has dtype float64"),
    "index outside": (parts(indices=np.array([0, 9])), "has 9 at position 1"),
    "index below": (parts(indices=np.array([-1, 2])), "has -1 at position 0"),
    "index beyond int64": (parts(indices=np.array([0, 2**63], "u8")), "has -9223372036854775808"),
    "pointers fall": (parts(indptr=np.array([0, 3, 2])), "decreases after position 1"),
    "pointers start": (parts(indptr=np.array([1, 1, 2])), "starts with 1"),
    "pointers far": (parts(indptr=np.array([0, 1, 10**12])), "ends with 1000000000000"),
    "pointers below": (parts(indptr=np.array([0, 1, -2])), "decreases after position 1"),
    "pointers missing": (parts(indptr=np.array([0, 2])), "has 2 pointers for 2 lines"),
    "no pointer": (parts(indptr=np.array([], int)), "has 0 pointers for 2 lines"),
    "values missing": (parts(data=np.ones(1)), "`values` has shape (1,)"),
    "values flat": (parts(format=np.array("bsr")), "other dimensions than those of bsr"),
    "blocks": (
        parts(format=np.array("bsr"), data=np.ones((2, 2, 2))),
        "its blocks (2, 2) do not divide the shape (2, 3)",
    ),
    "empty blocks": (parts(format=np.array("bsr"), data=np.ones((2, 0, 1))), "its blocks (0, 1)"),
    "shape of three": (parts(shape=np.array([2, 3, 1])), "has not the two dimensions"),
    "shape below": (parts(shape=np.array([2, -3])), "a"),
    "shape huge": (parts(shape=np.array([2, 2**61])), "[0, "),
    "coordinates": (
        parts(format=np.array("coo"), row=np.array([0]), col=np.array([0, 1])),
        "stack expects each tensor to be equal size",
    ),
    "diagonals": (parts(format=np.array("dia"), offsets=np.array([0])), "don't fit"),
}


@pytest.mark.parametrize("case", BAD_ARRAYS)
def test_bad_arrays(case, tmp_path):
    arrays, says = BAD_ARRAYS[case]
    np.savez(tmp_path / "a.npz", **arrays)
    if case == "shape huge":  # as valid as any: few elements in a wide matrix
        assert spgrad.io.load(tmp_path / "a.npz").shape == (2, 2**61)
        assert "far more rows or columns" in refused(tmp_path / "a.npz", layout=torch.sparse_csc)
    else:
        assert says in refused(tmp_path / "a.npz")


def with_header(key, header, path):
    """A .npz file in which the array `key` has this header and a few bytes."""
    np.savez_compressed(path, **{k: v for k, v in parts().items() if k != key})
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        text = header.encode().ljust(117) + b"\n"
        prefix = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little")
        archive.writestr(f"{key}.npy", prefix + text + bytes(16))
    return path


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ("{'descr': '<f8', 'fortran_order': False, 'shape': (10**12,)}", ""),
        ("{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,)}", "claims shape"),
        ("{'descr': '<f8', 'fortran_order': False, 'shape': (-2,)}", "claims shape (-2,)"),
        ("{'descr': '|O', 'fortran_order': False, 'shape': (2,)}", "pickled objects"),
        ("{'descr': [('a', '|O')], 'fortran_order': False, 'shape': (2,)}", "pickled objects"),
        ("{'descr': '<f8', 'fortran_order': False, 'shape': (1,)}", "claims shape (1,)"),
        ("__import__('os').getpid()", ""),
    ],
)
def test_bad_headers(header, says, tmp_path):
    assert says in refused(with_header("data", header, tmp_path / "a.npz"))


def test_packed_emptiness(tmp_path):
    """What an array unpacks to is in proportion to the file: other packings have no such limit."""
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_LZMA) as archive:
        for key, value in parts().items():
            file = io.BytesIO()
            np.save(file, value)
            archive.writestr(f"{key}.npy", file.getvalue())
    assert "packed in another way" in refused(tmp_path / "a.npz")


MARKET_HEAD = "%%MatrixMarket matrix coordinate real general\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "its first line is not that of a Matrix Market matrix"),
        ("0 1 2\n", "its first line"),
        (MARKET_HEAD, "no line with the sizes"),
        (MARKET_HEAD + "2 2\n", "no line with the sizes"),
        (MARKET_HEAD + "2 2 -1\n", "no line with the sizes"),
        (MARKET_HEAD + "2 2 x\n", "no line with the sizes"),
        (MARKET_HEAD + "2 2 1000000000000\n1 1 1\n", "don't fit in its size"),
        (MARKET_HEAD.replace("coordinate", "array") + "1000000 1000000\n1\n", "don't fit"),
        (MARKET_HEAD.replace("coordinate", "tensor") + "2 2 1\n1 1 1\n", "of kind tensor"),
        (MARKET_HEAD.replace("real", "quaternion") + "2 2 1\n1 1 1\n", "quaternion"),
        (MARKET_HEAD + "2 2 2\n1 1 1\n", "Truncated"),
        (MARKET_HEAD + "2 2 1\n3 1 1\n", "out of bounds"),
        (MARKET_HEAD + "2 2 1\n0 1 1\n", "out of bounds"),
        (MARKET_HEAD + "2 2 1\n1 1 one\n", "b'o' in line 3"),
        (MARKET_HEAD + "2 2 1\n1 1", "Line 3"),
        (MARKET_HEAD + "3000000000 2 1\n1 1 1\n", "layout=torch.sparse_coo"),
        (MARKET_HEAD + "8000000000 8000000000 1\n1 1 1\n", "at most 2^63 - 1"),
    ],
)
def test_bad_matrix_market(text, says, tmp_path):
    assert says in refused(write(tmp_path / "a.mtx", text))


def test_wide_matrices_are_read_as_coo(tmp_path):
    path = write(tmp_path / "a.mtx", MARKET_HEAD + "3000000000 3000000000 1\n2999999999 1 5\n")
    A = spgrad.io.load(path, layout=torch.sparse_coo)
    assert A.indices().tolist() == [[2999999998], [0]]
    path = write(tmp_path / "a.txt", "0 999999999999\n")
    assert "(1000000000000, 1000000000000)" in refused(path)
    path = write(tmp_path / "a.txt", "0 2000000000\n")
    assert spgrad.io.load(path, layout=torch.sparse_coo).shape == (2000000001, 2000000001)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0\n1\n", "has 1 columns, not two or three"),
        ("0,1,2,3\n", "has 4 columns"),
        ("0,1\n2\n", "requires 2 columns but 1"),
        ("0,1\n2,3,4\n", "requires 2 columns but 3"),
        ("0,1.5\n", "'1.5'"),
        ("0,x\n", "'x'"),
        ("-1,0\n", "has -1 in row 0"),
        ("0,99999999999999999999\n", "99999999999999999999"),
        ("0,1,\n", "float64"),
    ],
)
def test_bad_edge_lists(text, says, tmp_path):
    assert says in refused(write(tmp_path / "a.csv", text))


def test_edges_outside_the_size(tmp_path):
    path = write(tmp_path / "a.csv", "0,5\n")
    assert "`indices` has 5 in row 1" in refused(path, size=3)
    assert "`size`" in refused(path, size=(1, 2, 3))


class Hostile:
    def __reduce__(self):
        return print, ("a file has run code",)


def test_code_in_files_is_not_run(tmp_path, capsys):
    path = tmp_path / "a.pt"
    torch.save(Hostile(), path)
    assert "print, and no code of a file is run" in refused(path)
    path.write_bytes(pickle.dumps(Hostile()))
    refused(path)
    np.savez(tmp_path / "a.npz", **parts(data=np.array([Hostile()], dtype=object)))
    assert "pickled objects" in refused(tmp_path / "a.npz")
    path = tmp_path / "b.npz"
    path.write_bytes(pickle.dumps(Hostile()))
    assert "File is not a zip file" in refused(path)
    assert capsys.readouterr().out == ""


def test_other_things_in_torch_files(tmp_path):
    path = tmp_path / "a.pt"
    torch.save({"weight": spgrad.eye(2)}, path)
    assert "it holds a dict, not a sparse tensor" in refused(path)
    torch.save(torch.eye(2), path)
    assert "it holds a strided tensor of shape (2, 2)" in refused(path)
    torch.save(spgrad.sparse_csr_tensor([0, 1], [9], [1.0], (1, 3), check_invariants=False), path)
    assert "has 9 at position 0" in refused(path)


@pytest.mark.parametrize("suffix", [".npz", ".mtx", ".mtx.gz", ".csv.gz", ".pt"])
def test_cut_files(suffix, tmp_path):
    """Cut anywhere but in the last line, a file is refused, and never ends the process."""
    path = tmp_path / f"a{suffix}"
    spgrad.io.save(testing.random_sparse((8, 9)), path)
    blob = path.read_bytes()
    for length in range(0, len(blob) - 24, max(1, len(blob) // 40)):
        path.write_bytes(blob[:length])
        if suffix == ".csv.gz" and length == 0:
            continue  # no bytes are no edges
        refused(path)


def test_numbers_cut_off_at_the_end(tmp_path):
    """SciPy's reader alone reads beyond its memory on some of these."""
    path = tmp_path / "a.mtx"
    whole = MARKET_HEAD + "2 2 1\n2 2 -7.25674859311343E-10"
    for cut in range(1, 30):
        path.write_text(whole[:-cut])
        with contextlib.suppress(spgrad.SpgradError):
            spgrad.io.load(path)


# Large files


@pytest.mark.parametrize("suffix", [".npz", ".mtx", ".mtx.gz", ".csv", ".csv.gz"])
@pytest.mark.parametrize("missing", [[], ["tqdm"], ["tqdm", "rich"]])
def test_progress(suffix, missing, monkeypatch, tmp_path, capsys):
    """Read through the counter of a progress bar, a file is the same."""
    monkeypatch.setattr(stream, "LARGE", 10)
    for package in missing:
        monkeypatch.setitem(sys.modules, package, None)
    A = testing.random_sparse((6, 6), density=1.1)
    spgrad.io.save(A, tmp_path / f"a{suffix}")
    assert torch.equal(spgrad.io.load(tmp_path / f"a{suffix}").to_dense(), A.to_dense())
    assert capsys.readouterr().out == ""


def test_progress_counts_every_byte(monkeypatch, tmp_path):
    counts = []

    @contextlib.contextmanager
    def counting(name, size):
        yield counts.append

    monkeypatch.setattr(stream, "LARGE", 10)
    monkeypatch.setattr(stream, "_progress", counting)
    path = write(tmp_path / "a.txt", "0 1\n" * 100)
    with stream.reading(path, stream.Limit(10**6)) as file:
        assert len(file.read()) == 400
    assert sum(counts) == 400
    packed = tmp_path / "b.txt.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert spgrad.io.load(packed)._vals.tolist() == [100.0]
