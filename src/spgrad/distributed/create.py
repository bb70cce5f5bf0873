"""Makes sharded matrices from matrices in memory."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from spgrad.core import checks
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import plain
from spgrad.distributed.agreement import agree, require_group, require_mesh
from spgrad.distributed.exchange import numbers_of
from spgrad.distributed.matrix import ShardedMatrix
from spgrad.distributed.plan import find_plan
from spgrad.distributed.sharded import collective
from spgrad.distributed.shares import (
    PARTITIONS,
    Shares,
    even_starts,
    parts_by_metis,
    parts_to_order,
    starts_by_entries,
    starts_of_sizes,
)
from spgrad.errors import ArgumentKindError, ArgumentValueError
from spgrad.lowering.coalesce import without_repeats
from spgrad.lowering.convert import convert
from spgrad.lowering.views import rows as row_view

Partition = str | Sequence[int] | torch.Tensor


@collective("distributed.distribute", of_mesh=True)
def distribute(
    A: torch.Tensor | None,
    mesh: DeviceMesh | None = None,
    partition: Partition = "nse",
    *,
    columns: Sequence[int] | None = None,
) -> ShardedMatrix:
    """Distributes the rows of a matrix over processes; a collective.

    Args:
        A: Sparse matrix (m, k) of any layout, the same in every process; or a matrix in the first
            process, which then sends each process its rows, and None in the others.
        mesh: The processes, in one dimension and ascending; None for all of them. The parts move to
            the kind of device of the mesh, as with torch's `distribute_tensor`.
        partition: "nse" for contiguous rows with about equal numbers of elements; "rows" for equal
            numbers of rows, as DTensor has them; "metis" for parts of a graph with few edges
            between them (square matrices); the numbers of rows of each process; or the process of
            each row (m,), int64.
        columns: Number of columns that each process owns, and so of rows of x. None gives each
            process the columns with the numbers of its rows if A is square, else equal numbers.

    Returns:
        The matrix, with a copy of the values of A, which is not part of the autograd graph of A.
        The copy requires a gradient if A does.

    Cost:
        O(nse / processes) memory and time besides A. With "metis", METIS partitions the whole graph
        in each process that has it.

    Raises:
        TypeError, ValueError: In all processes: A is not a sparse matrix, differs between the
            processes, as does `mesh`, or the partition does not fit.
        RuntimeError: `torch.distributed` has no process group.
        ImportError: NumPy is not installed; the extra is ``spgrad[distributed]``.
        ImportError: METIS is asked for, and pymetis is not installed; the extra is
            ``spgrad[order]``.

    Example:
        >>> import tempfile, torch.distributed as dist
        >>> start = f"file://{tempfile.mkdtemp()}/start"
        >>> dist.init_process_group("gloo", init_method=start, rank=0, world_size=1)
        >>> D = spgrad.distributed.distribute(spgrad.eye(3).to_sparse_csr())
        >>> D @ torch.ones(3, 2)  # on each process, its rows
        tensor([[1., 1.],
                [1., 1.],
                [1., 1.]])
        >>> dist.destroy_process_group()
    """
    require_group()
    mesh = require_mesh(mesh)
    group, device = mesh.get_group(), mesh.device_type
    world, rank = dist.get_world_size(group), dist.get_rank(group)

    def check() -> dict[str, object]:
        if A is None:
            return {"call": "distribute"}
        _require_partition(partition, _required_matrix("A", A), world)
        _column_starts(columns, A.shape[1], True, world)
        return {"call": "distribute"}

    agree(group, check, device)
    have: list[Any] = [None] * world
    facts = None if A is None else (tuple(A.shape), str(A.dtype), A._nnz())
    dist.all_gather_object(have, facts, group)
    alone = have[0] is not None and all(found is None for found in have[1:])
    if not alone:
        if have[0] is None or any(found != have[0] for found in have):
            raise ArgumentValueError(
                f"`A` is {have} on the ranks; the same matrix on all of them, or one on rank 0 and "
                "None on the others, is accepted. For rows that each rank made call from_local."
            )
        agree(group, lambda: _facts_of(A, partition, columns, world), device)
    found: list[Any] = []

    def divide() -> dict[str, object]:
        if A is not None:
            matrix = convert(without_repeats(_required_matrix("A", A)), torch.sparse_csr)
            found.extend((matrix, *_row_shares(matrix, partition, world)))
        return {"call": "distribute"}

    agree(group, divide, device)  # so that no process waits for rows if the first one fails
    if A is None or (alone and rank):
        return _received(mesh)
    matrix, order, starts = found
    column_starts = _column_starts(columns, A.shape[1], A.shape[0] == A.shape[1], world)

    def rows_of(process: int) -> _Rows:
        return _on_device(_rows_of(matrix, order, starts, process, column_starts), device)

    if not alone:
        return _build(mesh, rows_of(rank))
    for other in range(1, world):
        _send(rows_of(other), group, other)
    return _build(mesh, rows_of(0))


@collective("distributed.from_local", of_mesh=True)
def from_local(
    local: torch.Tensor,
    mesh: DeviceMesh | None = None,
    *,
    columns: Sequence[int] | None = None,
) -> ShardedMatrix:
    """The matrix of the rows of all processes, those of the first process first; a collective.

    Args:
        local: The rows of this process (rows, k), sparse, of any layout, whose columns are those of
            the whole matrix. The number of rows may differ between processes.
        mesh: The processes, in one dimension, and their kind of device, as in `distribute`.
        columns: Number of columns of each process, as in `distribute`.

    Returns:
        The matrix, whose values are not part of the autograd graph of `local`.

    Cost:
        O(nse / processes); no process ever has the whole matrix.

    Raises:
        TypeError, ValueError: In all processes: `local` is not a sparse matrix, or its columns, its
            dtype or `columns` differ between the processes.
        RuntimeError: `torch.distributed` has no process group.
        ImportError: NumPy is not installed; the extra is ``spgrad[distributed]``.

    Example:
        >>> import tempfile, torch.distributed as dist
        >>> start = f"file://{tempfile.mkdtemp()}/start"
        >>> dist.init_process_group("gloo", init_method=start, rank=0, world_size=1)
        >>> rows = spgrad.eye(4).to_sparse_csr()  # with two processes, the first two or the last
        >>> D = spgrad.distributed.from_local(rows)
        >>> D.shape, D.local_shape
        (torch.Size([4, 4]), torch.Size([4, 4]))
        >>> dist.destroy_process_group()
    """
    require_group()
    mesh = require_mesh(mesh)
    group, device = mesh.get_group(), mesh.device_type
    world, rank = dist.get_world_size(group), dist.get_rank(group)

    def check() -> dict[str, object]:
        _required_matrix("local", local)
        return {
            "local": f"{local.shape[1]} columns of {local.dtype}",
            "columns": _column_starts(columns, local.shape[1], True, world),
            "requires_grad": local.requires_grad,
        }

    agree(group, check, device)
    matrix = convert(without_repeats(_required_matrix("local", local)), torch.sparse_csr)
    sizes = torch.zeros(2, world, dtype=torch.int64, device=device)
    sizes[0, rank], sizes[1, rank] = matrix.shape[0], matrix._nnz()
    dist.all_reduce(sizes, group=group)
    ends = sizes.cumsum(1)
    starts = [0, *ends[0].tolist()]
    first = int(ends[1, rank] - sizes[1, rank])
    crow, col = row_view(matrix._pattern)[:2]
    square = starts[-1] == local.shape[1]
    column_starts = _column_starts(columns, local.shape[1], square, world)
    vals = plain(matrix._vals.detach())
    rest = None, starts, column_starts, local.requires_grad, None
    return _build(mesh, _on_device((crow, col, vals, crow[:-1].long() + first, *rest), device))


def _column_starts(
    columns: Sequence[int] | None, k: int, square: bool, world: int
) -> list[int] | None:
    """First column of each process; None if the columns are shared out like the rows."""
    if columns is not None:
        return starts_of_sizes("columns", columns, k, world)
    return None if square else even_starts(k, world)


def _facts_of(
    A: torch.Tensor | None, partition: Partition, columns: Sequence[int] | None, world: int
) -> dict[str, object]:
    """What must be equal where every process has the matrix.

    Sums, weighted by the positions of what they add up, tell its contents apart.
    """
    matrix = _required_matrix("A", A)
    ptr, col = row_view(matrix._pattern)[:2]
    vals = torch.view_as_real(plain(matrix._vals)) if matrix.is_complex() else plain(matrix._vals)
    vals = vals.double().reshape(-1)
    order = torch.arange(1, max(len(col), len(vals)) + 1, device=col.device)
    weighted = order[: len(col)] * (col + 1), order[: len(vals)] * vals
    sums = int(ptr.sum()), int(weighted[0].sum()), float(weighted[1].sum())
    if isinstance(partition, torch.Tensor):
        given = f"processes with the checksum {zlib.crc32(repr(partition.tolist()).encode())}"
    elif isinstance(partition, str):
        given = partition
    else:
        given = starts_of_sizes("partition", partition, matrix.shape[0], world)
    return {
        "A": f"a matrix of which ptr, columns and values sum to {sums}",
        "partition": given,
        "columns": _column_starts(columns, matrix.shape[1], True, world),
        "requires_grad": matrix.requires_grad,
    }


def _required_matrix(name: str, A: object) -> SparseTensor:
    """One sparse matrix."""
    if not isinstance(A, SparseTensor):
        raise ArgumentKindError(
            f"`{name}` is {checks.describe_kind(A)}; a SparseTensor is accepted. "
            f"{checks.sparse_hint(name, A)}"
        )
    if A.dim() != 2 or A.dense_dim():
        hint = "Make the block-diagonal matrix of a batch with torch.block_diag."
        raise checks.bad_shape(name, tuple(A.shape), "one matrix with numbers as values", hint)
    if A.is_meta:
        raise ArgumentValueError(
            f"`{name}` is on meta, where a tensor has a shape and no data; a matrix with data is "
            "accepted. Make it on the device of the computation."
        )
    return A


def _require_partition(partition: Partition, A: SparseTensor, world: int) -> None:
    m, k = A.shape
    if isinstance(partition, str):
        if partition not in PARTITIONS:
            raise ArgumentValueError(
                f"`partition` is {partition!r}; {', '.join(map(repr, PARTITIONS))}, numbers of "
                'rows or the process of each row are accepted. "nse" is the default.'
            )
        if partition == "metis":
            checks.require_packages("order", "pymetis", "scipy", "numpy")
            if m != k:
                raise checks.bad_shape("A", (m, k), "a square matrix for METIS", 'Take "nse".')
    elif isinstance(partition, DTensor):
        raise ArgumentKindError(
            "`partition` is a DTensor; a dense tensor that each process has is accepted. Pass "
            "partition.full_tensor()."
        )
    elif isinstance(partition, torch.Tensor):
        checks.require_index("partition", partition)
        if partition.shape != (m,):
            hint = "It has the process of each row."
            raise checks.bad_shape("partition", tuple(partition.shape), f"({m},)", hint)
        if m and not 0 <= int(partition.min()) <= int(partition.max()) < world:
            raise ArgumentValueError(
                f"`partition` has processes from {int(partition.min())} to "
                f"{int(partition.max())}; 0 to {world - 1} are accepted. Count from 0."
            )
    else:
        starts_of_sizes("partition", partition, m, world)


def _row_shares(
    A: SparseTensor, partition: Partition, world: int
) -> tuple[torch.Tensor | None, list[int]]:
    """The rows in order of processes (None: as they are), and where each process begins."""
    m = A.shape[0]
    if isinstance(partition, torch.Tensor):
        return parts_to_order(partition.to(A.device, torch.int64), world)
    if not isinstance(partition, str):
        return None, starts_of_sizes("partition", partition, m, world)
    if partition == "metis":
        return parts_to_order(parts_by_metis(A, world), world)
    if partition == "nse":
        return None, starts_by_entries(row_view(A._pattern).ptr, world)
    return None, even_starts(m, world)


_Rows = tuple[Any, ...]
"""crow, col, values, first entries, row numbers, starts, column starts, gradient, places."""


def _rows_of(
    A: SparseTensor,
    order: torch.Tensor | None,
    starts: list[int],
    rank: int,
    column_starts: list[int] | None,
) -> _Rows:
    """The part of a CSR matrix that one process gets."""
    ptr, col = row_view(A._pattern)[:2]
    vals, begin, end = plain(A._vals.detach()), starts[rank], starts[rank + 1]
    if order is None:
        low, high = int(ptr[begin]), int(ptr[end])
        crow = ptr[begin : end + 1] - ptr[begin]
        first = ptr[begin:end].long()
        rest = None, starts, column_starts, A.requires_grad, None
        return crow, col[low:high].clone(), vals[low:high].clone(), first, *rest
    ids = order[begin:end]
    counts = ptr.diff()[ids]
    crow = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    first = ptr[:-1][ids].long()
    at = torch.repeat_interleave(first - crow[:-1], counts) + torch.arange(
        int(crow[-1]), device=col.device
    )
    places = None
    if column_starts is None:
        places = torch.empty_like(order)
        places[order] = torch.arange(len(order), device=order.device)
    return crow, col[at], vals[at], first, ids, starts, column_starts, A.requires_grad, places


def _on_device(parts: _Rows, device: str) -> _Rows:
    """The tensors on devices of this kind, where the processes send and receive."""
    return tuple(
        t.to(device) if isinstance(t, torch.Tensor) and t.device.type != device else t
        for t in parts
    )


def _build(mesh: DeviceMesh, parts: _Rows) -> ShardedMatrix:
    crow, col, vals, first, ids, starts, column_starts, requires_grad, places = parts
    rank = dist.get_rank(mesh.get_group())
    rows = Shares(starts, rank, ids)
    columns = rows if column_starts is None else Shares(column_starts, rank)
    plan, order = find_plan(mesh, crow, col, rows, columns, first, places)
    return ShardedMatrix(vals[order].requires_grad_(requires_grad), plan)


def _send(parts: _Rows, group: Any, rank: int) -> None:
    """Sends one process its rows; each tensor is a message of its own, so it may be of any size."""
    tensors = [t if isinstance(t, torch.Tensor) else None for t in parts]
    facts = [None if t is None else (tuple(t.shape), t.dtype) for t in tensors]
    others = [None if isinstance(t, torch.Tensor) else t for t in parts]
    dist.send_object_list([facts, others], group=group, group_dst=rank)
    for t in tensors:
        if t is not None:
            dist.send(numbers_of(t.contiguous()), group=group, group_dst=rank)


def _received(mesh: DeviceMesh) -> ShardedMatrix:
    """Builds the matrix from the rows that the first process sends."""
    group = mesh.get_group()
    found: list[Any] = [None, None]
    dist.recv_object_list(found, group=group, group_src=0)
    parts = []
    for fact, other in zip(*found, strict=True):
        parts.append(other)
        if fact is not None:
            parts[-1] = torch.empty(fact[0], dtype=fact[1], device=mesh.device_type)
            dist.recv(numbers_of(parts[-1]), group=group, group_src=0)
    return _build(mesh, tuple(parts))
