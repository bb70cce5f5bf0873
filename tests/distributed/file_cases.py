"""Sharded matrices in files and checkpoints, also damaged ones and those of one rank."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from group import F64, case, close, definite, matrix, raises, shared_folder

import spgrad
from spgrad.distributed import distribute, load, save


@case
def files(rank, world):
    import scipy.sparse

    A = matrix(29, 31, 0.2)
    folder = shared_folder()
    for partition in ("nse", torch.arange(29) * 5 % world):
        D = distribute(A, partition=partition)
        save(D, folder / f"{type(partition).__name__}")
        E = load(folder / f"{type(partition).__name__}")
        assert torch.equal(E.full().to_dense(), A.to_dense())
        assert E._values.dtype == A.dtype
    symmetric = definite()
    if rank == 0:
        S = scipy.sparse.csr_array(A.to_dense().numpy())
        scipy.sparse.save_npz(folder / "a.npz", S, compressed=False)
        spgrad.io.save(A, folder / "a.mtx")
        scipy.io.mmwrite(folder / "s.mtx", scipy.sparse.coo_array(symmetric.to_dense().numpy()))
        scipy.io.mmwrite(
            folder / "c.mtx",
            scipy.sparse.coo_array(matrix(dtype=torch.complex128).to_dense().numpy()),
        )
        text = (folder / "a.mtx").read_text().splitlines()
        (folder / "short.mtx").write_text("\n".join(text[:-3]) + "\n")
        (folder / "long.mtx").write_text("\n".join([*text, text[-1]]) + "\n")
        (folder / "bad.mtx").write_text("\n".join([*text[:-1], "1 99 3.0"]) + "\n")
        (folder / "none.mtx").write_text("hello\n")
        head = "%%MatrixMarket matrix coordinate real general\n"
        (folder / "head.mtx").write_text(f"{head}%\n")
        (folder / "entries.mtx").write_text(f"{head}2 2 {2**63}\n1 1 1\n")
        (folder / "rows.mtx").write_text(f"{head}99999999999 2 1\n1 1 1\n")
        (folder / "b.MTX").write_text(f"{head}2 3 0\n")
    dist.barrier()
    close(load(folder / "a.npz").full().to_dense(), A.to_dense())
    close(load(folder / "a.mtx").full().to_dense(), A.to_dense())
    close(load(folder / "s.mtx").full().to_dense(), symmetric.to_dense())
    close(load(folder / "c.mtx").full().to_dense(), matrix(dtype=torch.complex128).to_dense())
    raises(ValueError, "lacks some of the entries", lambda: load(folder / "short.mtx"))
    raises(ValueError, "announces (by 3)", lambda: load(folder / "short.mtx"))
    raises(ValueError, "has more than the entries", lambda: load(folder / "long.mtx"))
    raises(ValueError, "bad.mtx", lambda: load(folder / "bad.mtx"))
    raises(ValueError, "none.mtx", lambda: load(folder / "none.mtx"))
    raises(ValueError, "no line with sizes", lambda: load(folder / "head.mtx"))
    raises(ValueError, "absent", lambda: load(folder / "absent.npz"))
    raises(ValueError, "2 rows with 9223372036854775808", lambda: load(folder / "entries.mtx"))
    raises(ValueError, "announces 99999999999 rows", lambda: load(folder / "rows.mtx"))
    raises(ValueError, "call distribute", lambda: load(folder / "a.csv"))
    close(load(folder / "b.MTX").full().to_dense(), torch.zeros(2, 3, dtype=F64))
    dcp.save({"weight": torch.ones(3)}, checkpoint_id=folder / "other")
    raises(ValueError, "a checkpoint of weight", lambda: load(folder / "other"))
    raises(TypeError, "`path` is", lambda: load(3))


@case
def files_of_one_rank(rank, world):
    """A relative path names a file on a disk of each rank, which may be absent or another one."""
    if world == 1:
        return
    own = shared_folder() / str(rank)
    own.mkdir()
    before = Path.cwd()
    os.chdir(own)
    try:
        if rank != world - 1:
            spgrad.io.save(matrix(), "a.mtx")
        raises(ValueError, f"on rank {world - 1} of {world}, `path` is a", lambda: load("a.mtx"))
        for name in ("a.mtx", "a.npz"):
            save_uncompressed(matrix(share=0.5 if rank == world - 1 else 0.2), name)
            raises(ValueError, f"on rank {world - 1} and", lambda name=name: load(name))
        save_uncompressed(matrix(), "a.npz")
        close(load("a.npz").full().to_dense(), matrix().to_dense())
    finally:
        os.chdir(before)


def save_uncompressed(A, name):
    import scipy.sparse

    if name.endswith(".mtx"):
        spgrad.io.save(A, name)
    else:
        S = scipy.sparse.csr_array(A.to_dense().numpy())
        scipy.sparse.save_npz(name, S, compressed=False)


@case
def damaged_checkpoints(rank, world):
    """Every rank raises, whichever of them can't read or write its part."""
    folder = shared_folder()
    D = distribute(matrix())
    save(D, folder / "whole")
    if rank == 0:
        (folder / "file").touch()
        next((folder / "whole").glob("*.distcp")).unlink()
        (folder / "empty").mkdir()
        (folder / "empty" / ".metadata").touch()
    dist.barrier()
    raises(ValueError, "which can't be written on rank", lambda: save(D, folder / "file" / "below"))
    raises(ValueError, "which can't be read on rank", lambda: load(folder / "whole"))
    raises(ValueError, "whose .metadata can't be read", lambda: load(folder / "empty"))
    one = torch.ones(2, dtype=torch.int64)
    good = {"counts": one, "columns": one, "values": torch.ones(2), "shape": 2 * one}
    for i, (name, bad) in enumerate(
        (("counts", one * torch.tensor([3, -1])), ("counts", 2 * one), ("shape", 3 * one))
    ):
        dcp.save({**good, name: bad}, checkpoint_id=folder / f"{i}")
        raises(ValueError, "whose counts are not those of 2", lambda i=i: load(folder / f"{i}"))
    dcp.save(good, checkpoint_id=folder / "good")
    assert load(folder / "good").full().to_dense().tolist() == [[0, 1], [0, 1]]
