"""Files: what is saved comes back, and arguments that do not fit are refused."""

import contextlib
import gzip
import sys

import numpy as np
import pytest
import scipy.io
import scipy.sparse
import torch
from loading import refused, write

import spgrad
import spgrad.io
from spgrad import support, testing
from spgrad.core.pattern import LAYOUTS
from spgrad.io import stream

TEXT = [".csv", ".tsv", ".txt", ".csv.gz"]


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


@pytest.mark.parametrize("suffix", [".npz", ".mtx", ".csv", ".h5", ".safetensors", ".pt"])
def test_views_that_torch_computes_later_are_saved(suffix, tmp_path):
    if suffix == ".h5":
        pytest.importorskip("h5py")
    z = torch.randn(3, dtype=torch.complex128)
    late = [torch._neg_view(z.real.clone())] + ([z.conj()] if suffix != ".csv" else [])
    for vals in late:
        assert vals.is_conj() or vals.is_neg()
        A = spgrad.from_values(vals, spgrad.eye(3, layout=torch.sparse_coo))
        spgrad.io.save(A, tmp_path / f"a{suffix}")
        assert torch.equal(spgrad.io.load(tmp_path / f"a{suffix}").to_dense(), A.to_dense())


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


@pytest.mark.parametrize("block", [(2, 3), (4, 1), (1, 6)])
def test_npz_of_blocks_that_are_not_square(block, tmp_path):
    x = torch.arange(24.0).reshape(4, 6)
    scipy.sparse.save_npz(tmp_path / "a.npz", scipy.sparse.bsr_array(x.numpy(), blocksize=block))
    B = spgrad.io.load(tmp_path / "a.npz")
    assert B.pattern.blocksize == block
    assert torch.equal(B.to_dense(), x)


def test_diagonals_that_are_longer_than_the_matrix_is_wide(tmp_path):
    x = torch.arange(1.0, 13).reshape(4, 3)
    S = scipy.sparse.dia_array(x.numpy())
    padded = scipy.sparse.dia_array(
        (np.pad(S.data, ((0, 0), (0, 2)), constant_values=9), S.offsets), S.shape
    )
    scipy.sparse.save_npz(tmp_path / "a.npz", padded)
    assert torch.equal(spgrad.io.load(tmp_path / "a.npz").to_dense(), x)


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
    spgrad.io.save(spgrad.zeros(2, 3, dtype=dtype), tmp_path / "zeros.mtx")
    B = spgrad.io.load(tmp_path / "zeros.mtx")
    assert (B.dtype, B.shape, B.nse) == (back, (2, 3), 0)
    assert scipy.io.mmread(tmp_path / "zeros.mtx", spmatrix=False).shape == (2, 3)


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


@pytest.mark.parametrize(
    ("text", "header", "dense"),
    [
        ("0,1\n1,0\n", None, [[0, 1], [1, 0]]),
        ("0,1\n1,0\n", True, [[0, 0], [1, 0]]),
        ("0,1\n1,0\n", False, [[0, 1], [1, 0]]),
        ("# edges\nfrom,to\n1,0\n", True, [[0, 0], [1, 0]]),
        ("0,1\n", True, []),
    ],
)
def test_a_first_line_of_numbers_may_name_the_columns(text, header, dense, tmp_path):
    """As pandas writes it for columns without names."""
    A = spgrad.io.load(write(tmp_path / "a.csv", text), header=header)
    assert A.to_dense().tolist() == dense


def test_headers_that_are_refused(tmp_path):
    path = write(tmp_path / "a.csv", "from,to\n1,0\n")
    with pytest.raises(ValueError, match="could not convert string 'from'"):
        spgrad.io.load(path, header=False)
    with pytest.raises(TypeError, match="`header` is 1; True and False are accepted"):
        spgrad.io.load(path, header=1)
    spgrad.io.save(spgrad.eye(2), tmp_path / "a.npz")
    with pytest.raises(ValueError, match=r"`header` is True for a \.npz file"):
        spgrad.io.load(tmp_path / "a.npz", header=True)


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


def test_a_file_that_is_not_there(tmp_path):
    """FileNotFoundError, as open() raises it, and ValueError, as for other arguments."""
    with pytest.raises(spgrad.MissingFileError, match="which is not there") as caught:
        spgrad.io.load(tmp_path / "a.npz")
    assert isinstance(caught.value, FileNotFoundError)
    assert isinstance(caught.value, ValueError)
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(FileNotFoundError, match="which is a folder; a"):
        spgrad.io.load(tmp_path / "folder.npz")
    with pytest.raises(FileNotFoundError, match="whose folder"):
        spgrad.io.save(spgrad.eye(2), tmp_path / "none" / "a.npz")


def test_wrong_arguments_of_load(tmp_path):
    assert "`path` is" in refused(tmp_path / "none.npz")
    assert ".mtx.gz" in refused(tmp_path / "a.xlsx")
    assert "which is not there" in refused(tmp_path / "a.mtx")
    path = tmp_path / "a.npz"
    spgrad.io.save(spgrad.eye(2), path)
    with pytest.raises(TypeError, match="`path` is an int"):
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
        (lambda: testing.random_sparse((6,), torch.sparse_coo), ".csv", "has shape (6,); a matrix"),
        (lambda: testing.random_sparse((6,), torch.sparse_coo), ".mtx", "has shape (6,); a matrix"),
        (lambda: testing.random_sparse((4, 6, 2), dense_dim=1), ".mtx", "1 dense dimension"),
        (lambda: testing.random_sparse((4, 6), torch.sparse_bsc), ".npz", "has layout bsc"),
        (lambda: testing.random_sparse((4, 6)).half(), ".npz", "has dtype float16"),
        (lambda: testing.random_sparse((4, 6), dtype=torch.complex64), ".csv", "complex64; a real"),
        *(
            (lambda: spgrad.eye(2, dtype=torch.float8_e4m3fn), suffix, "has dtype float8_e4m3fn")
            for suffix in (".npz", ".h5", ".mtx", ".csv")
        ),
    ],
)
def test_what_a_file_can_not_hold(A, suffix, says, tmp_path):
    with pytest.raises(NotImplementedError) as caught:
        spgrad.io.save(A(), tmp_path / f"a{suffix}")
    assert says in str(caught.value)
    assert not (tmp_path / f"a{suffix}").exists()


def test_dense_tensors_are_not_saved(tmp_path):
    with pytest.raises(TypeError, match=r"spgrad\.io\.save: `A` is a dense tensor"):
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


@pytest.mark.parametrize(
    ("dtype", "text"),
    [
        (torch.bfloat16, "0,1,1.5\n1,0,-3.0\n"),
        (torch.float16, "0,1,1.5\n1,0,-3.0\n"),
        (torch.bool, "0,1,1\n1,0,1\n"),
    ],
)
def test_edges_of_short_numbers(dtype, text, tmp_path):
    """They have no dtype of numpy, or no number as text, and are written as numbers that have."""
    A = spgrad.from_dense(torch.tensor([[0, 1.5], [-3, 0]]).to(dtype))
    spgrad.io.save(A, tmp_path / "a.csv")
    assert (tmp_path / "a.csv").read_text() == text
    assert torch.equal(spgrad.io.load(tmp_path / "a.csv").to_dense().to(dtype), A.to_dense())


@pytest.mark.parametrize("dtype", [None, torch.float64, torch.float32, torch.complex128])
def test_weights_of_edges_that_are_no_whole_numbers(dtype, tmp_path):
    (tmp_path / "a.csv").write_text("0,1,1e30\n1,0,0.5\n")
    A = spgrad.io.load(tmp_path / "a.csv", dtype=dtype)
    assert torch.equal(A.values(), torch.tensor([1e30, 0.5], dtype=dtype or torch.float64))


@pytest.mark.parametrize("suffix", [*TEXT, ".mtx", ".mtx.gz"])
def test_whole_numbers_beyond_those_of_float64(suffix, tmp_path):
    numbers = torch.tensor([2**63 - 1, -(2**63), 2**53 + 1, 7])
    A = spgrad.sparse_coo_tensor([[0, 1, 2, 2], [2, 0, 1, 2]], numbers, (3, 3)).to_sparse_csr()
    path = tmp_path / f"a{suffix}"
    spgrad.io.save(A, path)
    assert torch.equal(spgrad.io.load(path, dtype=torch.int64).values(), A.values())
