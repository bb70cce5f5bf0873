"""Rows of matrices on disk, and batches that a thread makes ahead."""

import os
import pickle
import subprocess
import sys
import threading
import time

import pytest
import torch
from torch.testing import assert_close

import spgrad
from spgrad import data

np = pytest.importorskip("numpy")
scipy_sparse = pytest.importorskip("scipy.sparse")


def matrix(m=23, k=11, dtype=np.float32):
    dense = np.random.default_rng(0).random((m, k))
    return (dense * (dense > 0.6)).astype(dtype)


def written(tmp_path, dense, kind):
    A = scipy_sparse.csr_array(dense)
    if kind == "npz":
        scipy_sparse.save_npz(tmp_path / "a.npz", A, compressed=False)
        return data.RowDataset(tmp_path / "a.npz")
    for name in ("indptr", "indices", "data"):
        np.save(tmp_path / f"{name}.npy", getattr(A, name))
    return data.RowDataset(str(tmp_path), A.shape)


def test_arrays_that_memory_does_not_hold(tmp_path):
    """Files with holes: each has more bytes than most machines have memory."""
    nse = 2**40
    np.save(tmp_path / "indptr.npy", np.array([0, 3, nse]))
    for name, dtype in (("indices", np.int64), ("data", np.float32)):
        with (tmp_path / f"{name}.npy").open("wb") as file:
            header = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": (nse,)}
            np.lib.format.write_array_header_1_0(file, header)
            np.arange(1, 4, dtype=dtype).tofile(file)
            try:
                file.truncate(file.tell() + (nse - 3) * np.dtype(dtype).itemsize)
            except OSError:
                pytest.skip("the file system has no files of this size")
    rows = data.RowDataset(tmp_path, (2, 9))
    assert rows[0].to_dense().tolist() == [[0, 1, 2, 3, 0, 0, 0, 0, 0]]


@pytest.mark.parametrize("kind", ["npz", "folder"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.bool_])
def test_rows(tmp_path, kind, dtype):
    dense = matrix(dtype=dtype)
    rows, wanted = written(tmp_path, dense, kind), torch.from_numpy(dense)
    assert len(rows) == 23
    for asked in ([3, 3, 0], torch.tensor([22, 1]), slice(4, 20, 3), []):
        listed = torch.tensor(asked).long() if isinstance(asked, list) else asked
        assert_close(rows[asked].to_dense(), wanted[listed])
        assert rows[asked].layout == torch.sparse_csr
    assert_close(rows[5].to_dense(), wanted[5:6])
    assert_close(pickle.loads(pickle.dumps(rows))[5].to_dense(), wanted[5:6])
    changed = rows[:]
    changed.values().zero_()
    assert_close(rows[:].to_dense(), wanted)


def test_masks_and_what_are_no_numbers_of_rows(tmp_path):
    """A list of bools is a mask, as in torch, and not the rows 0 and 1."""
    dense = matrix()
    rows, mask = written(tmp_path, dense, "npz"), [i % 3 == 0 for i in range(23)]
    for asked in (mask, np.array(mask), torch.tensor(mask)):
        assert_close(rows[asked].to_dense(), torch.from_numpy(dense)[mask])
    for asked in (np.int64(3), torch.tensor(3)):
        assert_close(rows[asked].to_dense(), torch.from_numpy(dense)[3:4])
    for asked in ([0.5, 1.7], True, [True, False]):
        with pytest.raises(ValueError, match="`rows` has "):
            rows[asked]
    for asked in (None, ..., "ab", [0, None]):
        with pytest.raises(TypeError, match="`rows` is "):
            rows[asked]


@pytest.mark.parametrize("dtype", [np.float32, np.bool_])
def test_unsorted_and_repeated_indices(tmp_path, dtype):
    """SciPy writes both; they mean what they mean there."""
    vals = np.array([1, 1, 1, 0, 1]).astype(dtype)
    parts = vals, np.array([2, 0, 2, 1, 0]), np.array([0, 3, 3, 5])
    A = scipy_sparse.csr_array(parts, shape=(3, 4))
    scipy_sparse.save_npz(tmp_path / "a.npz", A, compressed=False)
    rows = data.RowDataset(tmp_path / "a.npz")
    assert_close(rows[[2, 0, 1]].to_dense(), torch.from_numpy(A.toarray()[[2, 0, 1]]))
    assert rows[0].col_indices().tolist() == [0, 2]


@pytest.mark.parametrize("workers", [0, 2])
def test_loader(tmp_path, workers):
    dense = matrix()
    rows = written(tmp_path, dense, "npz")
    generator = torch.Generator().manual_seed(0)
    loader = rows.loader(5, shuffle=True, generator=generator, num_workers=workers)
    order = torch.randperm(23, generator=torch.Generator().manual_seed(0))
    batches = list(loader)
    assert [len(b) for b in batches] == [5, 5, 5, 5, 3]
    whole = torch.cat([b.to_dense() for b in batches])
    assert_close(whole, torch.from_numpy(dense)[order])
    assert len(list(rows.loader(5, drop_last=True))) == 4


def test_no_rows_in_a_random_order(tmp_path):
    rows = written(tmp_path, matrix()[:0], "npz")
    assert list(rows.loader(5, shuffle=True)) == list(rows.loader(5)) == []


def test_options_that_the_loader_sets(tmp_path):
    rows = written(tmp_path, matrix(), "npz")
    for name in ("sampler", "batch_sampler", "collate_fn", "dataset"):
        with pytest.raises(
            spgrad.UnsupportedError, match=rf"loader: `{name}` is a list; it cannot"
        ):
            rows.loader(5, **{name: [1]})
    with pytest.raises(TypeError, match="`generator` is an int"):
        rows.loader(5, generator=3)


@pytest.mark.parametrize("kind", ["npz", "folder"])
def test_files_that_change_while_they_are_open(tmp_path, kind):
    """A kernel would read outside of the arrays that the old pointers fitted."""
    rows = written(tmp_path, matrix(), kind)
    name = "a.npz" if kind == "npz" else "indices.npy"
    (tmp_path / name).rename(tmp_path / "kept")
    wanted = torch.from_numpy(matrix()[3:5])
    assert_close(rows[3:5].to_dense(), wanted)
    written(tmp_path, np.ones((23, 11)), kind)
    os.utime(tmp_path / ("a.npz" if kind == "npz" else "indptr.npy"), (0, 0))
    if kind == "npz":  # another file, which the open one does not see
        assert_close(rows[3:5].to_dense(), wanted)
        (tmp_path / "kept").replace(tmp_path / "a.npz")
        os.truncate(tmp_path / "a.npz", 100)
    with pytest.raises(ValueError, match=r"changed since it was opened; .* Open it again"):
        rows[3:5]


def test_pointers_that_change_within_the_resolution_of_times(tmp_path):
    rows = written(tmp_path, matrix(), "folder")
    file = tmp_path / "indptr.npy"
    before = file.stat()
    pointers = np.load(file)
    pointers[4] = 10**8
    np.save(file, pointers)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    for part in ([3], [4]):
        with pytest.raises(ValueError, match="which has changed since it was opened"):
            rows[part]
    assert rows[[0]].shape == (1, 11)


def test_an_ordinary_data_loader(tmp_path):
    rows = written(tmp_path, matrix(), "npz")
    loader = torch.utils.data.DataLoader(rows, batch_size=10, collate_fn=lambda batch: batch)
    assert [tuple(b.shape) for b in loader] == [(10, 11), (10, 11), (3, 11)]


def test_a_matrix_without_entries(tmp_path):
    rows = written(tmp_path, matrix() * 0, "npz")
    assert rows[[2, 3]].to_dense().eq(0).all()


def damaged(change):
    arrays = {
        "format": b"csr",
        "shape": (2, 3),
        "indptr": np.array([0, 1, 2]),
        "indices": np.array([0, 2]),
        "data": np.ones(2),
    }
    arrays.update(change)
    return {name: array for name, array in arrays.items() if array is not None}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"format": b"csc"}, "its format is b'csc'"),
        ({"data": None}, "it has no array data"),
        ({"data": np.ones(3)}, "do not fit one another"),
        ({"indptr": np.array([0, 2, 1])}, "indptr does not ascend"),
        ({"indptr": np.array([0, 3, 2])}, "indptr does not ascend"),
        ({"indptr": np.array([0, 2])}, "do not fit one another"),
        ({"indptr": np.array([0, 1, 2], "int32")}, "not both int32 or both int64"),
        ({"data": np.array(["a", "b"])}, "an array has dtype"),
        ({"shape": (2,)}, "`shape` is"),
    ],
)
def test_damaged_files(tmp_path, change, text):
    np.savez(tmp_path / "a.npz", **damaged(change))
    with pytest.raises(ValueError, match=text):
        data.RowDataset(tmp_path / "a.npz")


def test_bad_indices_are_found_when_they_are_read(tmp_path):
    np.savez(tmp_path / "a.npz", **damaged({"indices": np.array([0, 3])}))
    rows = data.RowDataset(tmp_path / "a.npz")
    assert rows[0].shape == (1, 3)
    with pytest.raises(ValueError, match=r"`indices` has 3 at position 0; indices in \[0, 3\)"):
        rows[1]


def test_refusals(tmp_path):
    scipy_sparse.save_npz(tmp_path / "a.npz", scipy_sparse.csr_array(matrix()))
    with pytest.raises(ValueError, match="its arrays are compressed"):
        data.RowDataset(tmp_path / "a.npz")
    (tmp_path / "b.npz").write_bytes(b"PK")
    with pytest.raises(ValueError, match="not a zip file"):
        data.RowDataset(tmp_path / "b.npz")
    with pytest.raises(ValueError, match=r"no \.npz file and no folder"):
        data.RowDataset(tmp_path / "c.npz")
    with pytest.raises(ValueError, match="No such file"):
        data.RowDataset(tmp_path, (2, 3))
    with pytest.raises(TypeError, match="`path` is an int"):
        data.RowDataset(3)
    rows = written(tmp_path, matrix(), "folder")
    with pytest.raises(ValueError, match="`shape` is None"):
        data.RowDataset(tmp_path)
    with pytest.raises(IndexError, match="`rows` has 23 at position 0"):
        rows[23]
    with pytest.raises(ValueError, match="`batch_size` is 0"):
        rows.loader(0)


def test_batches_ahead(tmp_path):
    rows = written(tmp_path, matrix(), "npz")
    found = [b.to_dense() for b in data.prefetched(rows.loader(5))]
    assert_close(torch.cat(found), torch.from_numpy(matrix()))


def test_an_error_in_the_thread_is_raised():
    def broken():
        yield 1
        raise KeyError("broken")

    found = data.prefetched(broken())
    assert next(found) == 1
    with pytest.raises(KeyError, match="broken"):
        next(found)


def test_a_caller_who_stops_ends_the_thread():
    before = threading.active_count()
    found = data.prefetched(iter(range(10**9)))
    assert next(found) == 0
    found.close()
    assert threading.active_count() == before
    with pytest.raises(spgrad.SpgradError, match="`ahead` is 0"):
        data.prefetched([1], 0)


def test_a_program_ends_while_batches_are_made():
    """The thread is in code of torch when the program ends, which aborts a process otherwise."""
    program = """
import torch, spgrad
x = torch.ones(1000, 1000)
found = spgrad.data.prefetched(x @ x for _ in range(10**6))
next(found)
"""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, timeout=100, check=False
    )
    assert run.returncode == 0, run.stderr


def test_arrays_that_torch_has_no_tensors_for(tmp_path):
    np.savez(tmp_path / "a.npz", **damaged({"data": np.ones((2, 1))}))
    with pytest.raises(ValueError, match="its arrays are not vectors"):
        data.RowDataset(tmp_path / "a.npz")
    if np.dtype(np.longdouble) == np.float64:
        pytest.skip("long numbers are no longer than others on this platform")
    np.savez(tmp_path / "a.npz", **damaged({"data": np.ones(2, np.longdouble)}))
    with pytest.raises(ValueError, match=f"torch has no dtype for {np.dtype(np.longdouble)}"):
        data.RowDataset(tmp_path / "a.npz")


def test_a_slow_caller_gets_every_batch_in_its_order():
    """The thread waits while the queue is full: it makes no more than it was asked to."""
    made = []

    def batches():
        for i in range(6):
            made.append(i)
            yield i

    found = data.prefetched(batches(), 2)
    assert next(found) == 0
    time.sleep(0.35)  # longer than the thread waits for a place at a time
    assert len(made) <= 4  # the one given, two in the queue, one in hand
    assert list(found) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_batches_made_ahead_are_made_in_the_mode_of_the_caller(mode):
    """Grad mode and inference mode are those of a thread."""
    x = torch.ones(2, requires_grad=True)
    with mode():
        batches = list(data.prefetched(x * i for i in range(3)))
    assert [b.requires_grad for b in batches] == [mode is torch.enable_grad] * 3
    assert [b.is_inference() for b in batches] == [mode is torch.inference_mode] * 3
