"""The common subscripts of a CSR, CSC or COO matrix, in as few calls as they need.

`plan.part` computes every subscript. The functions here compute whole lines (rows of CSR, columns
of CSC) and a slice of every line, and take a half to a fifth of its time in a small call. Of COO
they compute listed rows.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from spgrad import kernels
from spgrad.core import kept
from spgrad.core.pattern import Pattern
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import on_pattern, plain, stored_values
from spgrad.lowering.coalesce import without_repeats
from spgrad.lowering.gather import Gather, Move, Ranges, Run, moves_along
from spgrad.lowering.products.spmm import wants_grad
from spgrad.lowering.ranges import by_rows, lines_of, of_lines
from spgrad.lowering.rebuild import remembered
from spgrad.ops.indexing.compressed import run_of_lines, searches_rows
from spgrad.ops.indexing.parse import in_range, slice_of
from spgrad.torch_protocol.compile import is_real, lasting

_ALL = slice(None)
_INT32 = torch.iinfo(torch.int32).max


def subscripted(A: SparseTensor, index: Any) -> SparseTensor | None:
    """`A[index]` for an int, slice or list of lines, or a slice of each; None for anything else."""
    pattern = A._pattern
    dim = line_dim(pattern)
    if dim is None:
        return None
    row, col = index if type(index) is tuple and len(index) == 2 else (index, _ALL)
    line, within = (row, col) if dim == 0 else (col, row)
    if type(within) is not slice:
        return None
    if type(line) is torch.Tensor and within == _ALL and _is_list(line, A):
        return listed(A, in_range(line, dim, pattern.shape[dim]))
    if pattern.is_coo:
        return None
    if within != _ALL:
        return _slice_of_lines(A, within) if type(line) is slice and line == _ALL else None
    if type(line) is int or type(line) is slice:
        return _run(A, line, dim)
    return None


def _is_list(line: torch.Tensor, A: SparseTensor) -> bool:
    strided = line.layout == torch.strided and line.device == A._vals.device
    return strided and line.dtype == torch.int64 and line.dim() == 1


def line_dim(pattern: Pattern) -> int | None:
    """The dimension of the lines of a CSR, CSC or COO matrix; None for anything else."""
    if len(pattern.shape) != 2 or pattern.dense_dim or pattern.blocksize is not None:
        return None
    return 0 if by_rows(pattern) else 1


def listed(A: SparseTensor, lines: torch.Tensor) -> SparseTensor | None:
    """The lines of these numbers, int64, from 0 on and in range; None where only `part` can."""
    if A._pattern.is_coo:
        A = without_repeats(A)
        searched = not is_real(lines) or searches_rows(A._pattern, lines.shape[0])
        found = None if searched else lines_of(A._pattern)
        if found is None:
            return None
        ptr, idx = found.ptr, found.idx
    else:
        ptr, idx = A._pattern.indices
    pattern, vals = A._pattern, stored_values(A)
    longest = pattern.shape[1 if by_rows(pattern) else 0]
    if not moves_along(vals, idx):
        return None
    # no minimum of two sizes, on which compiled code would depend
    most = (lines.shape[0] * size for size in (pattern.nse, longest))
    if ptr.dtype == torch.int32 and all(n > _INT32 for n in most):
        return None
    recorded = wants_grad(vals)
    with lasting(ptr, idx, lines):
        numbers = plain(vals.detach() if recorded else vals)
        own_ptr, own, ready = kernels.list_lines(ptr, idx, numbers, lines.contiguous())
    made = _with_lines(pattern, own_ptr, own, lines.shape[0])
    if not recorded:
        return on_pattern(ready, made)
    lines = lines.clone()  # the caller may change them before backward asks which these were

    def entries() -> Ranges:
        begin, end = ptr.index_select(0, lines), ptr[1:].index_select(0, lines)
        return Ranges(own_ptr, begin, end, own.shape[0], False)

    return on_pattern(Gather(entries, pattern.nse, repeats=True)(vals, ready), made)


def _with_lines(pattern: Pattern, ptr: torch.Tensor, idx: torch.Tensor, count: int) -> Pattern:
    """Other lines of the same length."""
    m, k = pattern.shape
    shape = (count, k) if by_rows(pattern) else (m, count)
    return of_lines(pattern, shape, ptr, idx).ascending(pattern)


def _run(A: SparseTensor, take: int | slice, dim: int) -> SparseTensor | None:
    """One line, or consecutive lines; differentiable. The last results are kept."""
    pattern = A._pattern
    size = pattern.shape[dim]
    if isinstance(take, int):
        if not -size <= take < size:
            return None
        first, count = take % size, 1
    else:
        try:
            first, step, count = slice_of(take, size)
        except (TypeError, ValueError):
            return None
        if step != 1 or count in (0, size):
            return None
    one = isinstance(take, int)

    def make() -> Move:
        ptr, idx = pattern.indices
        if one and is_real(ptr):
            begin, end = ptr[first : first + 2].tolist()  # read once
            entry, own = Run(begin, end - begin), idx[None, begin:end].clone()
            made = Pattern(torch.sparse_coo, (pattern.shape[1 - dim],), (own,))
            return Move(made, Gather(entry, pattern.nse))
        own_ptr, part, found = run_of_lines(ptr, idx, Run(first, count))
        if one:
            made = Pattern(torch.sparse_coo, (pattern.shape[1 - dim],), (part.clone()[None],))
        else:
            made = _with_lines(pattern, own_ptr, part.clone(), count)
        return Move(made, Gather(found, pattern.nse))

    part = remembered(pattern, kept.PART, ("lines", first, count, one), make)
    return on_pattern(part.gather(stored_values(A)), part.pattern)


def _slice_of_lines(A: SparseTensor, within: slice) -> SparseTensor | None:
    """The same slice of every line; differentiable. The last results are kept."""
    pattern, vals = A._pattern, stored_values(A)
    m, k = pattern.shape
    size = k if pattern.compressed_by_rows else m
    try:
        start, step, count = slice_of(within, size)
    except (TypeError, ValueError):
        return None
    if count in (0, size):
        return None
    ready: list[torch.Tensor] = []  # the values, if this call finds the pattern

    def make() -> Move:
        take = start, step, count
        moves = moves_along(vals, pattern.indices[0])
        own = (plain(vals.detach()),) if moves else ()
        ptr, idx, found = kernels.select_range(*pattern.indices, *take, *own)
        old = weakref.ref(pattern)  # the pattern keeps the result, which must not keep it

        def entries() -> torch.Tensor:
            alive = old()
            assert alive is not None
            with lasting(*alive.indices):
                return kernels.select_range(*alive.indices, *take)[2]

        if moves:
            ready.append(found)
        shape = (m, count) if pattern.compressed_by_rows else (count, k)
        made = Pattern(pattern.layout, shape, (ptr, idx)).ascending(pattern)
        return Move(made, Gather(entries if moves else found, pattern.nse))

    part = remembered(pattern, kept.PART, ("slice", start, step, count), make)
    return on_pattern(part.gather(vals, *ready), part.pattern)
