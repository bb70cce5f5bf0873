"""Files that are damaged, or hold something else, are refused by name."""

import contextlib
import io
import pickle
import zipfile

import numpy as np
import pytest
import torch
from loading import refused, write

import spgrad
import spgrad.io
from spgrad import testing


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
    "flat diagonals": (parts(format=np.array("dia"), offsets=np.array([0, 1])), "don't fit"),
    "offsets in two dimensions": (
        parts(format=np.array("dia"), offsets=np.array([[0]]), data=np.ones((1, 3))),
        "don't fit",
    ),
    "more diagonals": (
        parts(format=np.array("dia"), offsets=np.array([0]), data=np.ones((2, 3))),
        "don't fit",
    ),
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


@pytest.mark.parametrize("shape", [(2, 3000), (3000, 2), (3, 1000, 7)])
def test_pointers_take_what_max_bytes_allows(shape, tmp_path):
    indices = torch.zeros(len(shape), 1, dtype=torch.int64)
    A, path = spgrad.sparse_coo_tensor(indices, [1.0], shape), tmp_path / "a.pt"
    spgrad.io.save(A, path)
    assert spgrad.io.load(path, max_bytes=23_999).shape == shape
    said = refused(path, layout=torch.sparse_csr, max_bytes=23_999)
    assert "a matrix whose pointers take at most 23999 bytes is accepted" in said
    assert "max_bytes=24000." in said
    assert spgrad.io.load(path, layout=torch.sparse_csr, max_bytes=24_000).shape == shape


UNREADABLE = {
    "a.npz": (b"PK", "(BadZipFile File is not a zip file)"),
    "a.pt": (b"", "(EOFError)"),
    "a.mtx": (b"", "(its first line is not that of a Matrix Market matrix)"),
    "a.mtx.gz": (b"abc", "(BadGzipFile Not a gzipped file (b'ab'))"),
    "a.csv": (b"\xff\n", "('utf-8' codec can't decode byte 0xff in position 0: "),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_the_kind_of_an_error_is_named_where_its_text_says_too_little(name, tmp_path):
    content, says = UNREADABLE[name]
    assert f"which can't be read {says}" in refused(write(tmp_path / name, content))


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
        (MARKET_HEAD + "99999999999999999999 1 0\n", "no line with the sizes"),
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
        ("a,b,0.5\n0,1,2\n", "could not convert string 'a' to int64"),
        (
            "a,b\nc,d\n",
            "Read a table with names, or with more columns, with pandas, for spgrad.from",
        ),
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
    assert "`edge_index` has 5 in row 1" in refused(path, size=3)
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
    assert "it holds a dense tensor of shape (2, 2)" in refused(path)
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


def test_arrays_that_claim_more_than_their_bytes_unpack_to(tmp_path):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, **parts())
    content = bytearray(path.read_bytes())
    at = content.rfind(b"data.npy") - 46  # its entry in the directory at the end of the file
    assert content[at : at + 4] == b"PK\x01\x02"
    content[at + 24 : at + 28] = (2**31).to_bytes(4, "little")
    path.write_bytes(content)
    with pytest.raises(
        spgrad.ArgumentValueError, match="`data` claims 2147483648 bytes, which don"
    ):
        spgrad.io.load(path, max_bytes=2**40)


@pytest.mark.skipif(np.dtype(np.longdouble) == np.float64, reason="the platform has no longer one")
def test_numbers_that_torch_lacks(tmp_path):
    np.savez(tmp_path / "a.npz", **parts(data=np.ones(2, np.longdouble)))
    says = f"`data` has dtype {np.dtype(np.longdouble)}, which torch lacks"
    assert says in refused(tmp_path / "a.npz")


def test_arrays_may_be_longer_than_the_number_of_elements(tmp_path):
    for pointers, wanted in (([0, 0, 0], [[0, 0, 0]] * 2), ([0, 1, 1], [[1, 0, 0], [0, 0, 0]])):
        np.savez(tmp_path / "a.npz", **parts(indptr=np.array(pointers)))
        assert spgrad.io.load(tmp_path / "a.npz").to_dense().tolist() == wanted
