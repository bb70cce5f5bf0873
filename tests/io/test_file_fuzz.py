"""Mutated files give an error of the library or a valid tensor; regressions of earlier findings."""

import gzip
import io
import resource
import subprocess
import sys
import zipfile

import fuzz_files
import numpy as np
import pytest
import scipy.io
import scipy.sparse
import torch
from loading import refused, write

import spgrad
import spgrad.io
from spgrad import testing
from spgrad.core.pattern import LAYOUTS
from spgrad.io.numbers import Numbers
from spgrad.io.stream import FEWEST
from spgrad.torch_protocol import pickling

HEAD = "%%MatrixMarket matrix "


# One child for all formats: each file is a fixed seed


def test_mutated_files_are_refused_or_valid():
    found, loaded = fuzz_files.run(200, 0)
    assert not found
    assert all(count > 5 for count in loaded.values())


def test_the_fuzzer_sees_crashes_hangs_bombs_and_wrong_errors(tmp_path):
    """It runs over a load that misbehaves in each of these ways."""
    script = f"""
import os, sys
sys.path.insert(0, {str(tmp_path.parent)!r})
sys.path.insert(0, {fuzz_files.__file__.rpartition("/")[0]!r})
import fuzz_files
from pathlib import Path
def load_and_check(path, rng):
    at = fuzz_files.at = getattr(fuzz_files, "at", -1) + 1
    if at == 1: raise IndexError("index 7 is out of bounds")
    if at == 2: b"x" * 2**29
    while at == 3: pass
    if at == 4: os.abort()
    return True
fuzz_files.load_and_check, fuzz_files.SECONDS, fuzz_files.GROWTH = load_and_check, 1, 2**25
fuzz_files.run_here([(".csv", i) for i in range(9)])
"""
    child = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert child.returncode < 0
    text = child.stdout
    assert "IndexError: index 7 is out of bounds" in text
    assert "MB" in text
    assert "TimeoutError: more than 1 s" in text
    assert text.splitlines()[-1].startswith('["at", ".csv", 4')
    assert '["loaded", ".csv", 0' in text


# Matrix Market


@pytest.mark.parametrize("suffix", [".mtx", ".mtx.gz"])
@pytest.mark.parametrize(
    "odd", ["\0", "1\0", "\x7f", "\u0663", "0x10", "1-2", "1e5e5", "1.2.3", "1d5"]
)
def test_what_the_reader_of_scipy_trips_over_is_refused_before(odd, suffix, tmp_path):
    blob = f"{HEAD}coordinate real general\n2 2 2\n1 1 1{odd}\n2 2 3\n".encode()
    path = write(tmp_path / f"a{suffix}", gzip.compress(blob) if suffix == ".mtx.gz" else blob)
    assert "in line 3, out of place" in refused(path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("array real symmetric\n2 3\n1\n2\n3\n4\n5\n", "a symmetric matrix of 2 x 3"),
        ("array real symmetric\n3 2\n1\n2\n3\n4\n5\n6\n", "a symmetric matrix of 3 x 2"),
        ("coordinate real symmetric\n2 3 1\n2 1 5\n", "a symmetric matrix of 2 x 3"),
        ("coordinate real skew-symmetric\n2 2 2\n1 1 5\n2 1 3\n", "an element on its diagonal"),
        ("coordinate pattern skew-symmetric\n2 2 1\n1 1\n", "an element on its diagonal"),
        ("array real skew-symmetric\n2 2\n0\n3\n0\n", "3 numbers where 1 belong"),
        ("array real skew-symmetric\n1 1\n" + "1 1 1\n" * 9999, "numbers where 0 belong"),
        ("coordinate complex hermitian\n1 1 1\n1 1 1 2\n", "diagonal that is not real"),
        ("array complex hermitian\n1 1\n1 2\n", "diagonal that is not real"),
        ("coordinate real symmetric\n2 2 2\n1 2 1\n2 1 3\n", "on both sides of the diagonal"),
        ("coordinate integer general\n2 2 1\n2 1 5.5\n", "b'.' in line 3"),
        ("coordinate real general\n2 2 1\n2 1.5 5\n", "b'.' in line 3"),
        ("coordinate real general\n2 2 1\n2 1 5 7\n", "4 numbers where 3 belong"),
        ("array real general\n2 1\n1 7\n2\n", "3 numbers where 2 belong"),
        ("array real general\n0 5\n1\n", "1 numbers where 0 belong"),
        ("coordinate unsigned-integer general\n1 1 1\n1 1 18446744073709551615\n", "beyond int64"),
        ("array pattern general\n1 1\n1\n", "asks for a matrix array pattern"),
    ],
)
def test_wrong_matrix_market(text, says, tmp_path):
    assert says in refused(write(tmp_path / "a.mtx", HEAD + text))


def test_a_file_is_read_to_its_end(tmp_path):
    """The reader of SciPy has all numbers by then, and does not fail."""
    text = f"{HEAD}array real general\n1 1\n5\n" + "\n" * 2**21 + "x\n"
    assert "b'x' in line 2097156, out of place" in refused(write(tmp_path / "a.mtx", text))


def test_a_reader_that_stops_early_leaves_nothing_unread(monkeypatch, tmp_path):
    """Readers of other versions may stop at the last number that they need."""

    def stops(source, *, spmatrix):
        assert spmatrix is False
        assert b"1 1" in source.read(64)
        return np.array([[5.0]])

    monkeypatch.setattr(scipy.io, "mmread", stops)
    text = f"{HEAD}array real general\n1 1\n5\n" + "\n" * 2**21
    assert spgrad.io.load(write(tmp_path / "a.mtx", text)).to_dense() == 5
    assert "in line 2097156, out of place" in refused(write(tmp_path / "b.mtx", f"{text}x\n"))


@pytest.mark.parametrize(
    ("text", "dense"),
    [
        ("array real general\n0 5\n", torch.zeros(0, 5).double()),
        ("array integer general\n3 0\n", torch.zeros(3, 0).long()),
        ("array complex hermitian\n0 0\n", torch.zeros(0, 0).to(torch.complex128)),
        ("array real skew-symmetric\n2 2\n3\n", [[0.0, -3], [3, 0]]),
        ("array real skew-symmetric\n1 1\n", [[0.0]]),
        ("array complex hermitian\n2 2\n1 0\n3 4\n5 0\n", [[1 + 0j, 3 - 4j], [3 + 4j, 5 + 0j]]),
        ("coordinate real skew-symmetric\n2 2 2\n1 1 0\n2 1 3\n", [[0.0, -3], [3, 0]]),
        ("coordinate real symmetric\n2 2 2\n1 2 1\n1 2 3\n", [[0.0, 4], [4, 0]]),
        ("coordinate real symmetric\n3 3 2\n1 2 1\n3 1 2\n", [[0.0, 1, 2], [1, 0, 0], [2, 0, 0]]),
        ("coordinate pattern hermitian\n2 2 1\n2 1\n", [[0.0, 1], [1, 0]]),
        ("coordinate unsigned-integer symmetric\n1 1 1\n1 1 7\n", [[7]]),
        ("coordinate real general\n1 2 2\n1 1 NaN\n1 2 -Infinity\n", [[np.nan, -np.inf]]),
        ("coordinate real general\n%\n\n1 2 2\n1\t1 .5E+1\r\n\n 1 2 5. \n", [[5.0, 5]]),
    ],
)
def test_right_matrix_market(text, dense, tmp_path):
    A = spgrad.io.load(write(tmp_path / "a.mtx", HEAD + text))
    expected = torch.as_tensor(dense)
    torch.testing.assert_close(
        A.to_dense(), expected, equal_nan=True, check_dtype=isinstance(dense, torch.Tensor)
    )


@pytest.mark.parametrize("symmetry", ["symmetric", "skew-symmetric", "hermitian"])
@pytest.mark.parametrize("dtype", [np.float64, np.complex128, np.int64])
def test_symmetric_files_agree_with_scipy(symmetry, dtype, tmp_path):
    rng = np.random.default_rng(0)
    M = (rng.integers(-9, 9, (7, 7)) * (rng.random((7, 7)) < 0.5)).astype(dtype)
    if dtype is np.complex128:
        M = M + 1j * M[::-1]
    other = {"symmetric": M.T, "skew-symmetric": -M.T, "hermitian": M.conj().T}[symmetry]
    for S in (M + other, scipy.sparse.coo_array(M + other)):
        scipy.io.mmwrite(tmp_path / "a.mtx", S, symmetry=symmetry)
        loaded = spgrad.io.load(tmp_path / "a.mtx").to_dense()
        assert np.array_equal(loaded.numpy(), M + other)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 14, 1000])
def test_numbers_are_checked_across_pieces(size):
    text = b"12 3 -4.5e-7\n 1 2 .5\r\n\n3 4 nan\n" * 3
    numbers = Numbers(3, 2, 5)
    for at in range(0, len(text), size):
        numbers.check(text[at : at + size])
    assert numbers.count == 27
    wrong = [b"1 2 3\n1 2 1.5.5\n", b"1 2 3\n1 2.0 3\n", b"1 2 .3\n4 5 1.5.5\n", b"1 2 1e\n"]
    for bad, line in zip(wrong, (6, 6, 6, 5), strict=True):
        numbers = Numbers(3, 2, 5)
        pieces = [bad[at : at + size] for at in range(0, len(bad), size)]
        with pytest.raises(ValueError, match=f"in line {line}, out of place"):
            list(map(numbers.check, pieces))


# Edge lists


@pytest.mark.parametrize(
    ("text", "dense"),
    [
        ('"0","1"\n', [[0, 1], [0, 0]]),
        ('"0","1","2.5"\n1,0,3\n', [[0, 2.5], [3, 0]]),
        ('"from, to",b\n0,1\n', [[0, 1], [0, 0]]),
    ],
)
def test_quoted_edge_lists(text, dense, tmp_path):
    assert spgrad.io.load(write(tmp_path / "a.csv", text)).to_dense().tolist() == dense


@pytest.mark.parametrize("text", ['"0,1"\n', "'0','1'\n", '"0\n', '"0","x"\n'])
def test_a_quoted_line_is_never_taken_for_names_in_silence(text, tmp_path):
    refused(write(tmp_path / "a.csv", text))


# What a file may ask for


def dia(path, count, length):
    arrays = {"format": np.array(b"dia"), "shape": np.array([length, length])}
    arrays |= {"offsets": np.arange(count, dtype="i4"), "data": np.zeros((count, length))}
    np.savez_compressed(path, **arrays)
    return path


def test_a_small_npz_does_not_unpack_to_much(tmp_path):
    path = dia(tmp_path / "a.npz", 9, 1 << 20)  # 73 kB
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    said = refused(path)
    assert f"more than max_bytes={FEWEST}; trust it with max_bytes=" in said
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # kB
    asked = int(said.partition("trust it with max_bytes=")[2].partition(")")[0])
    assert spgrad.io.load(path, max_bytes=asked).shape == (1 << 20, 1 << 20)
    refused(path, max_bytes=asked - 1)


def test_diagonals_are_read_from_what_is_not_zero(tmp_path):
    S = scipy.sparse.diags_array(
        [[1, 2, 3, 4], [5, 6, 0]], offsets=[0, -1], shape=(4, 6), dtype=float
    )
    scipy.sparse.save_npz(tmp_path / "a.npz", S)
    assert np.array_equal(spgrad.io.load(tmp_path / "a.npz").to_dense().numpy(), S.toarray())


@pytest.mark.parametrize("suffix", [".csv.gz", ".mtx.gz"])
def test_a_small_text_does_not_unpack_to_much(suffix, tmp_path):
    lines = b"0,0\n" if suffix == ".csv.gz" else b"1 1\n"
    packed = {}
    for count in (9, 10**6):
        head = f"{HEAD}coordinate pattern general\n1 1 {count}\n" if suffix == ".mtx.gz" else ""
        packed[count] = gzip.compress(head.encode() + lines * count, 1)
    path = write(tmp_path / f"a{suffix}", packed[10**6])
    assert "more than max_bytes=1000000" in refused(path, max_bytes=10**6)
    write(path, packed[9])
    assert spgrad.io.load(path)._vals.tolist() == [9.0]


@pytest.mark.parametrize(
    ("head", "lines", "nbytes"),
    [
        ("coordinate real general\n2 2 2", "1 1 1\n2 1 1", 48),
        ("coordinate pattern general\n2 2 2", "1 1\n2 1", 48),
        ("coordinate complex general\n2 2 2", "1 1 1 0\n2 1 1 0", 64),
        ("coordinate real symmetric\n2 2 2", "1 1 1\n2 1 1", 96),
        ("array real general\n2 1", "1\n1", 16),
        ("array complex general\n2 1", "1 0\n1 0", 32),
    ],
)
def test_the_arrays_that_a_header_asks_for_are_bounded(head, lines, nbytes, tmp_path):
    path = write(tmp_path / "a.mtx", f"{HEAD}{head}\n{lines}\n")
    assert spgrad.io.load(path, max_bytes=nbytes).nse
    refused(path, max_bytes=nbytes - 1)


def test_pointers_of_a_small_file_are_bounded(tmp_path):
    path = write(tmp_path / "a.txt", "0 9999999\n")
    assert "max_bytes=80000000" in refused(path)
    assert spgrad.io.load(path, max_bytes=80_000_000).shape == (10**7, 10**7)


@pytest.mark.parametrize("bad", [-1, 1.5, "1", True])
def test_max_bytes_is_a_number(bad, tmp_path):
    with pytest.raises(TypeError, match="`max_bytes` is"):
        spgrad.io.load(dia(tmp_path / "a.npz", 1, 2), max_bytes=bad)


def test_no_byte_at_all_is_a_bound(tmp_path):
    assert "more than max_bytes=0" in refused(dia(tmp_path / "a.npz", 1, 2), max_bytes=0)


# What torch.save writes


def test_a_vector_has_no_compressed_layout(tmp_path):
    A = spgrad.sparse_coo_tensor([[0, 3, 3]], torch.ones(3, 2), (5, 2))
    spgrad.io.save(A, tmp_path / "a.pt")
    for layout in (torch.sparse_csr, torch.sparse_csc):
        with pytest.raises(spgrad.UnsupportedError, match="two or more sparse dimensions"):
            spgrad.io.load(tmp_path / "a.pt", layout=layout)
    assert spgrad.io.load(tmp_path / "a.pt", layout=torch.sparse_coo).shape == (5, 2)


def state(**changes):
    """What is saved of a CSR matrix, but for the changes."""
    good = {"values": torch.ones(2), "spec": ("csr", 0, None, True, True), "shape": (2, 3)}
    good |= {
        "indices": (torch.tensor([0, 1, 2]), torch.tensor([0, 2])),
        "grad": False,
        "par": False,
    }
    return list((good | changes).values())


nested: list = []
for _ in range(200):
    nested = [nested, nested]


@pytest.mark.parametrize(
    "parts",
    [
        state()[:5],
        [*state(), None],
        [],
        state(spec=("csr", 0, None, False, False)),
        state(spec=("csr", 0, None, True, 1)),
        state(spec=nested),
        state(shape=nested),
        state(grad="yes"),
        state(par=None),
        state(indices=(torch.tensor([0, 1, 2]), torch.tensor([0]).expand(10**12))),
        state(indices=torch.ones(2)),
        state(values=torch.ones(2).to_sparse()),
        state(values=torch.ones(2, device="meta")),
    ],
)
def test_malformed_states_are_refused(parts):
    with pytest.raises(spgrad.ArgumentValueError, match=r"^spgrad\.load: ") as caught:
        pickling.load(*parts)
    assert len(str(caught.value)) < 900


@pytest.mark.parametrize("name", ["coo", "csr"])
def test_the_old_format_is_refused_where_indices_could_not_be_checked(name, tmp_path):
    """torch fills the tensors of such a file after `load` is done: any index would pass."""
    A = testing.random_sparse((4, 6), LAYOUTS[name])
    torch.save(A, tmp_path / "a.pt", _use_new_zipfile_serialization=False)
    assert "in torch's old format" in refused(tmp_path / "a.pt")
    with pytest.raises(spgrad.ArgumentValueError, match="in torch's old format"):
        torch.load(tmp_path / "a.pt", weights_only=True)
    native = spgrad.to_torch(A)
    torch.save(native, tmp_path / "a.pt", _use_new_zipfile_serialization=False)
    assert torch.equal(spgrad.io.load(tmp_path / "a.pt").to_dense(), A.to_dense())


def test_expanded_values_and_packed_files_are_bounded(tmp_path):
    indices = torch.tensor([[0, 1]])
    A = spgrad.sparse_coo_tensor(indices, torch.ones(1, 1).expand(2, 10**9), (2, 10**9))
    torch.save(A, tmp_path / "a.pt")
    assert "more than max_bytes" in refused(tmp_path / "a.pt")
    A = spgrad.sparse_coo_tensor(indices, torch.ones(1, 1).expand(2, 10**5), (2, 10**5))
    torch.save(A, tmp_path / "b.pt")
    assert spgrad.io.load(tmp_path / "b.pt", max_bytes=8 * 10**5).nse == 2
    assert "would take 800000 bytes" in refused(tmp_path / "b.pt", max_bytes=8 * 10**5 - 1)
    A = spgrad.sparse_coo_tensor(indices, torch.zeros(2, 9 * 10**6), (2, 9 * 10**6))
    torch.save(A, tmp_path / "b.pt")
    with (
        zipfile.ZipFile(tmp_path / "b.pt") as plain,
        zipfile.ZipFile(tmp_path / "c.pt", "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for name in plain.namelist():
            packed.writestr(name, plain.read(name))
    assert "more than max_bytes" in refused(tmp_path / "c.pt")


def test_a_tensor_without_data_is_refused(tmp_path):
    torch.save(spgrad.eye(2).to("meta"), tmp_path / "a.pt")
    assert "without data" in refused(tmp_path / "a.pt")


@pytest.mark.parametrize("dtype", ["u2", "u4", "u8"])
def test_unsigned_values_are_int64(dtype, tmp_path):
    """torch has these dtypes, and neither adds nor pickles them."""
    S = scipy.sparse.csr_array(np.array([[0, 7], [2**16 - 1, 0]], dtype))
    scipy.sparse.save_npz(tmp_path / "a.npz", S)
    A = spgrad.io.load(tmp_path / "a.npz")
    assert A.dtype == torch.int64
    assert A.to_dense().tolist() == [[0, 7], [2**16 - 1, 0]]
    if dtype == "u8":
        scipy.sparse.save_npz(tmp_path / "a.npz", scipy.sparse.csr_array(S * 2**48))
        assert "which is beyond int64" in refused(tmp_path / "a.npz")


def test_a_shape_of_many_numbers_is_refused(tmp_path):
    out = io.BytesIO()
    np.savez(
        out,
        format=np.array("coo"),
        shape=np.ones(65, int),
        coords=np.zeros((65, 1), int),
        data=np.ones(1),
    )
    assert "has 65 sizes" in refused(write(tmp_path / "a.npz", out.getvalue()))
