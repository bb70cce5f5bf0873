"""Reads and writes sharded matrices; each process reads or writes its own part of the file."""

from __future__ import annotations

import os
import tempfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from spgrad.core import checks
from spgrad.core.construct import sparse_coo_tensor
from spgrad.core.pattern import Pattern, index_dtype
from spgrad.core.tensor import SparseTensor
from spgrad.data.on_disk import RowDataset
from spgrad.distributed import dtensors
from spgrad.distributed.agreement import agree, require_group, require_mesh
from spgrad.distributed.create import from_local
from spgrad.distributed.exchange import collect, find_exchange, numbers_of
from spgrad.distributed.matrix import ShardedMatrix, agree_on_sharded
from spgrad.distributed.sharded import collective
from spgrad.distributed.shares import even_starts, starts_by_entries
from spgrad.errors import ArgumentKindError, ArgumentValueError, SpgradError
from spgrad.io import files

if TYPE_CHECKING:
    from torch.distributed.checkpoint import CheckpointException

_NAMES = "counts", "columns", "values"


@collective("distributed.save")
def save(D: ShardedMatrix, path: str | Path) -> None:
    """Writes a matrix into a folder; each process writes its part. A collective.

    It is a checkpoint of `torch.distributed.checkpoint` with the number of elements of each row,
    the column and the value of each element, in the order of the whole matrix as CSR, so that any
    number of processes can `load` it.

    Args:
        D: The matrix. For a transpose ``D.T``, D itself is written.
        path: A folder.

    Raises:
        TypeError: In all processes: `D` or `path` is of another kind.
        ValueError: In all processes: one of them can't write into the folder.

    Example:
        >>> import tempfile, torch.distributed as dist
        >>> start = f"file://{tempfile.mkdtemp()}/start"
        >>> dist.init_process_group("gloo", init_method=start, rank=0, world_size=1)
        >>> D = spgrad.distributed.distribute(spgrad.eye(3))
        >>> folder = tempfile.mkdtemp()
        >>> spgrad.distributed.save(D, folder)
        >>> spgrad.distributed.load(folder).full().values()
        tensor([1., 1., 1.])
        >>> dist.destroy_process_group()
    """
    import torch.distributed.checkpoint as dcp

    def check() -> dict[str, object]:
        _require_path(path)
        return {"call": "save", "path": str(path)}

    require_group()
    agree_on_sharded(D, check, "spgrad.io.save writes a matrix that is in one process.")
    D = (D.T if D.transposed else D).detach()
    plan, local = D.plan, D.to_local()
    counts = local._pattern.indices[0].diff().long()
    move = dtensors.entries(plan)
    state = {
        "counts": dtensors.from_rows(counts, dtensors.rows(plan.rows, plan), plan),
        "columns": dtensors.from_rows(plan.entry_columns, move, plan),
        "values": dtensors.from_rows(D.local_values(), move, plan),
        "shape": torch.tensor(plan.shape, device="cpu"),
    }
    try:
        dcp.save(state, checkpoint_id=os.fspath(path), process_group=plan.group)
    except dcp.CheckpointException as error:  # in all processes
        raise ArgumentValueError(
            f"`path` is {path}, {_failed(error, 'written')}; a folder that can be written on every "
            "rank is accepted. Check its permissions, and the space on its disk."
        ) from error


@collective("distributed.load", of_mesh=True)
def load(path: str | Path, mesh: DeviceMesh | None = None) -> ShardedMatrix:
    """Reads a matrix; each process reads its part and never has the whole matrix. A collective.

    Args:
        path: A folder that `save` wrote; an uncompressed Matrix Market file of coordinates (.mtx);
            or what `spgrad.data.RowDataset` reads: an uncompressed .npz file of a CSR matrix.
        mesh: The processes, in one dimension; None for all of them.

    Returns:
        The matrix, with contiguous rows and about equal numbers of elements in each process.

    Cost:
        O(nse / processes) memory, and one number for each row. Entries of a Matrix Market file are
        sent to the owners of their rows.

    Raises:
        ValueError: In all processes: the file is missing, or not of the kind that its name says.
        RuntimeError: `torch.distributed` has no process group.
        ImportError: NumPy is not installed; the extra is ``spgrad[distributed]``.

    Example:
        >>> import tempfile, torch.distributed as dist
        >>> start = f"file://{tempfile.mkdtemp()}/start"
        >>> dist.init_process_group("gloo", init_method=start, rank=0, world_size=1)
        >>> file = tempfile.mkdtemp() + "/a.mtx"
        >>> spgrad.io.save(spgrad.eye(3), file)
        >>> spgrad.distributed.load(file).nse
        3
        >>> dist.destroy_process_group()
    """
    require_group()
    mesh = require_mesh(mesh)
    found: list[Any] = []

    def check() -> dict[str, object]:
        _require_path(path)
        content = ""
        if (Path(path) / ".metadata").is_file():
            known = _metadata_of(Path(path))
            found.append(known)
            content = ", ".join(f"{name} {known[name].size}" for name in _NAMES)
        elif Path(path).suffix.lower() == ".mtx":
            part, lacking, content = _lines_of(Path(path), mesh)
            found.append((part, lacking))
        else:
            part, content = _rows_of(Path(path), mesh)
            found.append(part)
        return {"path": str(path), "content of path": content}

    agree(mesh.get_group(), check, mesh.device_type)
    if isinstance(found[0], dict):
        return from_local(_from_checkpoint(Path(path), found[0], mesh), mesh)
    if Path(path).suffix.lower() == ".mtx":
        part, lacking = found[0]
        total = torch.tensor(lacking, device=mesh.device_type)
        dist.all_reduce(total, group=mesh.get_group())
        if total:
            wrong = "lacks some of" if total > 0 else "has more than"
            raise ArgumentValueError(
                f"`path` is {path}, which {wrong} the entries that its header announces (by "
                f"{abs(int(total))}); as many are accepted. Write it with spgrad.io.save."
            )
        return from_local(_sent_to_owners(part, mesh), mesh)
    return from_local(found[0], mesh)


def _require_path(path: object) -> None:
    if not isinstance(path, str | Path):
        raise ArgumentKindError(
            f"`path` is {checks.describe_kind(path)}; a path is accepted. Name a file or a folder, "
            "as a str or pathlib.Path."
        )
    if path == "":
        raise ArgumentValueError(
            "`path` is an empty str; a path is accepted. Name a file or a folder."
        )


def _rows_of(path: Path, mesh: DeviceMesh) -> tuple[SparseTensor, str]:
    """Contiguous rows of a CSR matrix in a file that is mapped into memory.

    The second result describes the file, which may be another one on the disk of another rank.
    """
    if not path.is_dir() and path.suffix != ".npz":
        raise ArgumentValueError(
            f"`path` is {path}; a folder of spgrad.distributed.save, an uncompressed .npz file of "
            "a CSR matrix and a .mtx file are accepted. Read another file with spgrad.io.load on "
            "the first rank, and call distribute."
        )
    rows = RowDataset(path)
    checksum = zlib.crc32(rows._ptr.numpy().data)
    content = f"{tuple(rows.shape)} of {rows._val.dtype}, row pointers with checksum {checksum}"
    starts = starts_by_entries(rows._ptr, mesh.size())
    rank = mesh.get_local_rank()
    return rows[torch.arange(starts[rank], starts[rank + 1], device="cpu")], content


def _lines_of(path: Path, mesh: DeviceMesh) -> tuple[SparseTensor, int, str]:
    """The entries in this process's part of the lines of a Matrix Market file, as COO.

    The second result is a number whose sum over the processes is 0 if the file has as many entries
    as its header says. The third one describes the file.
    """
    try:
        with path.open("rb") as file:
            header = [file.readline()]
            while header[-1].startswith(b"%") or not header[-1].strip():
                header.append(file.readline())
                if not header[-1]:
                    raise ValueError("its header has no line with sizes")
            sizes = header[-1].split()
            if len(sizes) != 3 or not all(word.isdigit() for word in sizes):
                raise ValueError("it has no line with rows, columns and entries")
            m, _, nse = map(int, sizes)
            if nse >= 2**63 or 8 * m > max(files.Limit.of(path, None).nbytes, 512 * nse):
                raise ValueError(f"its header announces {m} rows with {nse} entries")
            size = path.stat().st_size
            lines = _part(file, size, mesh.get_local_rank(), mesh.size())
            content = f"{header[0].strip().decode()} with {m} rows and {nse} entries, {size} bytes"
    except (OSError, ValueError) as error:
        raise ArgumentValueError(
            f"`path` is {path}: {error}; a Matrix Market file of coordinates is accepted. Write "
            "one with spgrad.io.save."
        ) from error
    count = sum(1 for line in lines.splitlines() if line.strip())
    lacking = nse if mesh.get_local_rank() == 0 else 0
    with tempfile.TemporaryDirectory() as folder:
        part = Path(folder) / "part.mtx"
        sizes[2] = str(count).encode()
        part.write_bytes(header[0].rstrip() + b"\n" + b" ".join(sizes) + b"\n" + lines)
        try:
            return files.load(part, layout=torch.sparse_coo), lacking - count, content
        except SpgradError as error:
            text = str(error.args[0]).replace(str(part), f"{path}, a part of it")
            raise type(error)(text) from error


def _part(file: Any, size: int, rank: int, world: int) -> bytes:
    """The lines that begin in this process's share of the rest of a file."""
    first = file.tell()
    step = -(-(size - first) // world)
    start, stop = (_next_line(file, min(first + i * step, size), first) for i in (rank, rank + 1))
    file.seek(start)
    return file.read(stop - start)


def _next_line(file: Any, at: int, first: int) -> int:
    """The position of the first line that begins at `at` or later."""
    if at <= first:
        return first
    file.seek(at - 1)
    file.readline()
    return file.tell()


def _sent_to_owners(part: SparseTensor, mesh: DeviceMesh) -> SparseTensor:
    """The own rows as COO, from entries of any rows in any process; a collective."""
    group, world, rank = mesh.get_group(), mesh.size(), mesh.get_local_rank()
    m, k = part.shape
    device = mesh.device_type  # where processes send and receive
    (row, col), vals = part._pattern.indices[0].to(device), part._vals.to(device)
    counts = torch.bincount(row, minlength=m)
    dist.all_reduce(counts, group=group)
    crow = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    starts = torch.tensor(starts_by_entries(crow, world), device=crow.device)
    # entries of a coalesced tensor stand by rows, so those for one process stand together
    sent = torch.searchsorted(row.contiguous(), starts).diff()
    arriving = torch.empty_like(sent)
    dist.all_to_all_single(arriving, sent, group=group)
    taken = []
    for t in (row, col, vals):
        out = t.new_empty(int(arriving.sum()))
        sizes = arriving.tolist(), sent.tolist()
        dist.all_to_all_single(numbers_of(out), numbers_of(t.contiguous()), *sizes, group=group)
        taken.append(out)
    begin, end = int(starts[rank]), int(starts[rank + 1])
    indices = torch.stack([taken[0] - begin, taken[1]])
    return sparse_coo_tensor(indices, taken[2], (end - begin, k))


def _failed(error: CheckpointException, done: str) -> str:
    """Why a checkpoint could not be written or read, on the first rank where it failed."""
    rank, (why, _) = min(error.failures.items())
    return f"which can't be {done} on rank {rank} ({type(why).__name__}: {why})"


def _metadata_of(path: Path) -> dict[str, Any]:
    """What the arrays of a matrix that `save` wrote are like."""
    import torch.distributed.checkpoint as dcp

    try:
        known: dict[str, Any] = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
        sizes = {name: known[name].size for name in (*_NAMES, "shape") if name in known}
    except Exception as error:  # a damaged file can raise anything in its parser
        raise ArgumentValueError(
            f"`path` is {path}, whose .metadata can't be read ({type(error).__name__}: {error}); a "
            "checkpoint of a ShardedMatrix is accepted. Write it with spgrad.distributed.save."
        ) from error
    if set(known) != {*_NAMES, "shape"} or any(len(size) != 1 for size in sizes.values()):
        raise ArgumentValueError(
            f"`path` is {path}, a checkpoint of {', '.join(known)}; one of a ShardedMatrix is "
            "accepted. Write it with spgrad.distributed.save."
        )
    return known


def _from_checkpoint(path: Path, known: dict[str, Any], mesh: DeviceMesh) -> SparseTensor:
    """The own rows of a matrix that `save` wrote."""
    import torch.distributed.checkpoint as dcp

    group, world, rank = mesh.get_group(), mesh.size(), mesh.get_local_rank()
    chunks = {}
    for name in _NAMES:
        size, dtype = known[name].size, known[name].properties.dtype
        starts = even_starts(size[0], world)
        count = starts[rank + 1] - starts[rank]
        local = torch.empty(count, dtype=dtype, device=mesh.device_type)
        chunks[name] = DTensor.from_local(
            local, mesh, [Shard(0)], run_check=False, shape=size, stride=(1,)
        )
    state: dict[str, Any] = {**chunks, "shape": torch.zeros(2, dtype=torch.int64, device="cpu")}
    try:
        dcp.load(state, checkpoint_id=os.fspath(path), process_group=group)
    except dcp.CheckpointException as error:  # in all processes
        raise ArgumentValueError(
            f"`path` is {path}, {_failed(error, 'read')}; a folder with all files that "
            "spgrad.distributed.save wrote is accepted. Write it again, or copy all of its files."
        ) from error
    counts, columns, values = (chunks[name].to_local() for name in _NAMES)
    (m, k), nse = state["shape"].tolist(), known["values"].size[0]
    everyone = counts.new_zeros(known["counts"].size)
    begin = even_starts(len(everyone), world)[rank]
    everyone[begin : begin + len(counts)] = counts
    dist.all_reduce(everyone, group=group)
    crow = torch.cat([everyone.new_zeros(1), everyone.cumsum(0)])
    if len(everyone) != m or int(crow[-1]) != nse or bool((everyone < 0).any()):
        raise ArgumentValueError(
            f"`path` is {path}, whose counts are not those of {nse} elements; a checkpoint of a "
            "ShardedMatrix is accepted. Write it with spgrad.distributed.save."
        )
    starts = starts_by_entries(crow, world)
    crow = crow[starts[rank] : starts[rank + 1] + 1]
    needed = torch.arange(int(crow[0]), int(crow[-1]), device=crow.device)
    exchange = find_exchange(needed, even_starts(nse, world), group)
    columns, values = collect(columns, exchange), collect(values, exchange)
    dtype = index_dtype(torch.int32, (len(crow), k, len(columns)))
    shape = len(crow) - 1, k
    indices = (crow - crow[0]).to(dtype), columns.to(dtype)

    def check() -> dict[str, object]:
        checks.require_compressed(("counts", "columns"), *indices, k, 0)
        return {}

    agree(group, check, mesh.device_type)
    return SparseTensor(values, Pattern(torch.sparse_csr, shape, indices))
