"""The constructors of the compressed layouts: CSR, CSC, BSR and BSC, batched and ragged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from spgrad.core import checks
from spgrad.core.construct import (
    Options,
    index_tensor,
    leaf,
    require_data,
    size_tuple,
    value_tensor,
    wants_check,
)
from spgrad.core.pattern import LAYOUT_NAMES, Pattern, reaching
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import as_dtype
from spgrad.errors import ArgumentKindError, ArgumentValueError
from spgrad.public import public_op
from spgrad.torch_protocol.compile import when_tracing


@public_op
def sparse_compressed_tensor(
    compressed_indices: Any,
    plain_indices: Any,
    values: Any,
    size: Sequence[int] | None = None,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | str | None = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
    check_invariants: bool | None = None,
) -> SparseTensor:
    """CSR, CSC, BSR or BSC tensor, as `torch.sparse_compressed_tensor`.

    A batch has leading dimensions in all three arguments. Where its items differ in their number
    of entries (a ragged batch), `plain_indices` and `values` are flat, one item after the other.

    Args:
        compressed_indices: int32 or int64 (*b, lines + 1) pointers, from 0 in each item; lines
            are rows (CSR), columns (CSC), block rows (BSR) or block columns (BSC). int32 becomes
            int64 where a size exceeds 2^31 - 1.
        plain_indices: Same dtype, (*b, nse), sorted and unique within a line.
        values: (*b, nse, *dense_shape); for BSR and BSC (*b, nse, rows, columns, *dense_shape).
        size: Size of all dimensions; by default the smallest that holds the indices.
        dtype: dtype of the result; by default that of `values`.
        layout: torch.sparse_csr, sparse_csc, sparse_bsr or sparse_bsc.
        device: Device of the result; by default that of `values`.
        pin_memory: Puts the values into page-locked memory.
        requires_grad: Makes the result a leaf that collects a gradient.
        check_invariants: False skips the validation of the indices; never pass it with indices
            from an untrusted source.

    Returns:
        SparseTensor that shares memory with the arguments where these are tensors.

    Gradient:
        Of `values`: the cotangent at the indices, dense, of the shape of `values`.

    Cost:
        One pass over the indices; no copy unless there is a batch.

    Raises:
        TypeError: An argument is no tensor or list, or `layout` is not a compressed one.
        ValueError: Indices are out of range, unsorted or repeated in a line, pointers decrease,
            or shapes, dtypes or devices don't fit.

    Example:
        >>> A = spgrad.sparse_compressed_tensor(
        ...     [0, 2, 4], [0, 1, 0, 1], [1.0, 2.0, 3.0, 4.0], layout=torch.sparse_csc
        ... )
        >>> A.to_dense()
        tensor([[1., 3.],
                [2., 4.]])
    """
    if layout not in LAYOUT_NAMES or layout == torch.sparse_coo:
        raise ArgumentKindError(
            f"`layout` is {layout}; torch.sparse_csr, sparse_csc, sparse_bsr and sparse_bsc are "
            "accepted. Use spgrad.sparse_coo_tensor for COO."
        )
    options = Options(dtype, device, pin_memory, requires_grad, check_invariants)
    names = ("compressed_indices", "plain_indices")
    return _build(layout, names, (compressed_indices, plain_indices), values, size, options)


@public_op
def sparse_csr_tensor(
    crow_indices: Any,
    col_indices: Any,
    values: Any,
    size: Sequence[int] | None = None,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
    check_invariants: bool | None = None,
) -> SparseTensor:
    """CSR tensor from row pointers, column indices and values, as `torch.sparse_csr_tensor`.

    Arguments, result, gradient, cost and errors are those of `spgrad.sparse_compressed_tensor`
    with ``layout=torch.sparse_csr``.

    Example:
        >>> spgrad.sparse_csr_tensor([0, 2, 3], [0, 2, 1], [1.0, 2.0, 3.0], (2, 3)).to_dense()
        tensor([[1., 0., 2.],
                [0., 3., 0.]])
    """
    options = Options(dtype, device, pin_memory, requires_grad, check_invariants)
    names = ("crow_indices", "col_indices")
    indices = (crow_indices, col_indices)
    return _build(torch.sparse_csr, names, indices, values, size, options)


@public_op
def sparse_csc_tensor(
    ccol_indices: Any,
    row_indices: Any,
    values: Any,
    size: Sequence[int] | None = None,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
    check_invariants: bool | None = None,
) -> SparseTensor:
    """CSC tensor from column pointers, row indices and values, as `torch.sparse_csc_tensor`.

    Arguments, result, gradient, cost and errors are those of `spgrad.sparse_compressed_tensor`
    with ``layout=torch.sparse_csc``.

    Example:
        >>> spgrad.sparse_csc_tensor([0, 2, 3], [0, 2, 1], [1.0, 2.0, 3.0], (3, 2)).to_dense()
        tensor([[1., 0.],
                [0., 3.],
                [2., 0.]])
    """
    options = Options(dtype, device, pin_memory, requires_grad, check_invariants)
    names = ("ccol_indices", "row_indices")
    indices = (ccol_indices, row_indices)
    return _build(torch.sparse_csc, names, indices, values, size, options)


@public_op
def sparse_bsr_tensor(
    crow_indices: Any,
    col_indices: Any,
    values: Any,
    size: Sequence[int] | None = None,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
    check_invariants: bool | None = None,
) -> SparseTensor:
    """BSR tensor from block row pointers, columns and blocks, as `torch.sparse_bsr_tensor`.

    Arguments, result, gradient, cost and errors are those of `spgrad.sparse_compressed_tensor`
    with ``layout=torch.sparse_bsr``.

    Example:
        >>> spgrad.sparse_bsr_tensor([0, 1], [1], [[[1.0, 2.0], [3.0, 4.0]]], (2, 4)).to_dense()
        tensor([[0., 0., 1., 2.],
                [0., 0., 3., 4.]])
    """
    options = Options(dtype, device, pin_memory, requires_grad, check_invariants)
    names = ("crow_indices", "col_indices")
    indices = (crow_indices, col_indices)
    return _build(torch.sparse_bsr, names, indices, values, size, options)


@public_op
def sparse_bsc_tensor(
    ccol_indices: Any,
    row_indices: Any,
    values: Any,
    size: Sequence[int] | None = None,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
    check_invariants: bool | None = None,
) -> SparseTensor:
    """BSC tensor from block column pointers, rows and blocks, as `torch.sparse_bsc_tensor`.

    Arguments, result, gradient, cost and errors are those of `spgrad.sparse_compressed_tensor`
    with ``layout=torch.sparse_bsc``.

    Example:
        >>> spgrad.sparse_bsc_tensor([0, 0, 1], [0], [[[1.0, 2.0], [3.0, 4.0]]], (2, 4)).to_dense()
        tensor([[0., 0., 1., 2.],
                [0., 0., 3., 4.]])
    """
    options = Options(dtype, device, pin_memory, requires_grad, check_invariants)
    names = ("ccol_indices", "row_indices")
    indices = (ccol_indices, row_indices)
    return _build(torch.sparse_bsc, names, indices, values, size, options)


for _constructor in (
    sparse_compressed_tensor,
    sparse_csr_tensor,
    sparse_csc_tensor,
    sparse_bsr_tensor,
    sparse_bsc_tensor,
):
    when_tracing(_constructor)


class _Parts(NamedTuple):
    """The three tensors of a compressed layout, with the sizes of its batch and its blocks."""

    ptr: torch.Tensor  # (*batch, lines + 1)
    idx: torch.Tensor  # (*batch, nse), or (nse,) if ragged
    vals: torch.Tensor  # idx.shape + block + dense
    batch: tuple[int, ...]
    block: tuple[int, ...]
    dense: tuple[int, ...]
    lines: int


def _build(
    layout: torch.layout,
    names: tuple[str, str],
    indices: tuple[Any, Any],
    values: Any,
    size: Sequence[int] | None,
    options: Options,
) -> SparseTensor:
    vals = value_tensor(values, options)
    ptr = index_tensor(names[0], indices[0], vals, options)
    idx = index_tensor(names[1], indices[1], vals, options)
    parts = _parts(layout, names, ptr, idx, vals)
    by_rows = layout in (torch.sparse_csr, torch.sparse_bsr)
    shape = _whole_shape(by_rows, parts, size)
    block = parts.block or (1, 1)
    start = len(parts.batch)
    bound = shape[start + 1] // block[1] if by_rows else shape[start] // block[0]
    check = wants_check(options, ptr, idx)
    flat_ptr, flat_idx = _flat_indices(names, parts, check)
    if check:
        checks.require_compressed(names, flat_ptr, flat_idx, bound, parts.lines)
    pattern = Pattern(
        layout,
        shape,
        reaching(shape, (flat_ptr, flat_idx), len(parts.dense)),
        dense_dim=len(parts.dense),
        blocksize=(block[0], block[1]) if parts.block else None,
    )
    if check:
        pattern.ascending()
    stored = vals.reshape(pattern.values_shape) if parts.batch else vals
    return leaf(stored, pattern, options.requires_grad)


def _parts(
    layout: torch.layout,
    names: tuple[str, str],
    ptr: torch.Tensor,
    idx: torch.Tensor,
    vals: torch.Tensor,
) -> _Parts:
    compressed, plain = names
    # tuples, because slicing one takes a tenth of the time of slicing a torch.Size
    ptr_shape, idx_shape, vals_shape = tuple(ptr.shape), tuple(idx.shape), tuple(vals.shape)
    if ptr.dtype != idx.dtype and ptr.numel() and idx.numel():
        raise ArgumentValueError(
            f"`{plain}` has dtype {checks.short(idx.dtype)}; `{compressed}` has "
            f"{checks.short(ptr.dtype)}, and one dtype for both is accepted. Convert one of them."
        )
    if not ptr_shape or ptr_shape[-1] == 0:
        raise checks.bad_shape(
            compressed, ptr_shape, "(*batch, lines + 1)", "It starts with 0 even when empty."
        )
    batch = ptr_shape[:-1]
    ndim = len(idx_shape)
    lead = () if batch and ndim == 1 else batch  # () for a ragged batch
    if ndim != len(lead) + 1 or idx_shape[:-1] != lead:
        accepted = f"{(*batch, 'nse')}, or (nse,) of a ragged batch," if batch else "(nse,)"
        raise checks.bad_shape(
            plain, idx_shape, accepted, f"Its batch dimensions are those of `{compressed}`."
        )
    blocked = layout in (torch.sparse_bsr, torch.sparse_bsc)
    depth = ndim + (2 if blocked else 0)
    block = vals_shape[ndim:depth]
    if len(vals_shape) < depth or vals_shape[:ndim] != idx_shape or 0 in block:
        accepted = f"{idx_shape} followed by " + (
            "block rows, block columns and dense sizes" if blocked else "dense sizes"
        )
        one = "block" if blocked else "value"
        hint = f"Give one {one} for each index in `{plain}`."
        raise checks.bad_shape("values", vals_shape, accepted, hint)
    idx, lines = as_dtype(idx, ptr.dtype), ptr_shape[-1] - 1
    return _Parts(ptr, idx, vals, batch, block, vals_shape[depth:], lines)


def _whole_shape(by_rows: bool, parts: _Parts, size: Sequence[int] | None) -> tuple[int, ...]:
    """The size of the whole tensor: inferred, or the given size if it fits the parts."""
    block_lines, block_width = parts.block or (1, 1)
    if not by_rows:
        block_lines, block_width = block_width, block_lines
    compressed = parts.lines * block_lines
    if size is None:
        require_data(parts.idx)
        plain = (int(parts.idx.max()) + 1) * block_width if parts.idx.numel() else 0
        matrix = (compressed, max(plain, 0)) if by_rows else (max(plain, 0), compressed)
        inferred = (*parts.batch, *matrix, *parts.dense)
        checks.require_addressable(inferred)
        return inferred
    shape = size_tuple(size)
    start = len(parts.batch)
    matrix = shape[start : start + 2]
    fits = (
        len(shape) == start + 2 + len(parts.dense)
        and shape[:start] == parts.batch
        and shape[start + 2 :] == parts.dense
        and matrix[0 if by_rows else 1] == compressed
        and matrix[1 if by_rows else 0] % block_width == 0
    )
    if not fits:
        wanted: list[Any] = [compressed, f"multiple of {block_width}" if block_width > 1 else "any"]
        if not by_rows:
            wanted.reverse()
        raise checks.bad_shape(
            "size",
            shape,
            f"({', '.join(map(str, (*parts.batch, *wanted, *parts.dense)))})",
            "It follows from the pointers, the block size and the dense sizes of `values`.",
        )
    return shape


def _flat_indices(
    names: tuple[str, str], parts: _Parts, check: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pointers and indices of all batch items as those of one matrix."""
    ptr, idx = parts.ptr, parts.idx
    if not parts.batch:
        ptr, idx = ptr.contiguous(), idx.contiguous()
        # a trace identifies tensors by object, so the two have to be different objects
        return ptr, idx.clone() if idx is ptr else idx
    items = math.prod(parts.batch)
    rows = ptr.reshape(items, parts.lines + 1).to(torch.int64)
    counts = rows[:, -1]
    uniform = idx.dim() > 1
    nse = idx.shape[-1]
    bad = rows[:, 0] != 0
    if uniform:
        bad = bad | (counts != nse)
    if check and items and bool(bad.any()):
        at = int(bad.to(torch.int8).argmax())
        raise ArgumentValueError(
            f"`{names[0]}` runs from {int(rows[at, 0])} to {int(counts[at])} in batch item {at}; "
            f"from 0 to {nse if uniform else 'its number of entries'} is accepted. Check how the "
            "indices were made."
        )
    base = counts.cumsum(0) - counts
    flat = torch.cat([(rows[:, :-1] + base[:, None]).reshape(-1), counts.sum()[None]])
    idx = idx.reshape(-1).contiguous()
    if idx.numel() > torch.iinfo(ptr.dtype).max:
        return flat, idx.to(torch.int64)
    return flat.to(ptr.dtype), idx
