"""Random sparse tensors: any pattern, bands, and symmetric positive definite matrices."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from spgrad.core import checks
from spgrad.core.construct import Options, leaf
from spgrad.core.pattern import Pattern
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import on_pattern
from spgrad.errors import ArgumentKindError, ArgumentValueError
from spgrad.lowering.convert import convert
from spgrad.lowering.operands import require_int
from spgrad.lowering.views import unraveled
from spgrad.ops.creation.create import coo_in_layout, given_size
from spgrad.ops.layouts.convert import require_blocksize, require_layout
from spgrad.public import public_op


@public_op
def rand(
    *size: Any,
    density: float | None = None,
    nse: int | None = None,
    layout: torch.layout = torch.sparse_csr,
    blocksize: tuple[int, int] | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    generator: torch.Generator | None = None,
    requires_grad: bool = False,
) -> SparseTensor:
    """Elements at random places, with values between 0 and 1.

    Args:
        *size: A tuple of sizes, or the sizes one after the other.
        density: Share of the elements that are specified; of the blocks in BSR and BSC. 0.1 if
            neither this nor `nse` is given.
        nse: Number of specified elements, in place of `density`.
        layout: One of the five sparse layouts.
        blocksize: Rows and columns of a block, for BSR and BSC.
        dtype: Of the values; torch's default dtype if None.
        device: Of values and indices.
        generator: Of the random numbers, on `device`.
        requires_grad: Makes the result a leaf that collects a gradient.

    Returns:
        SparseTensor; every choice of places is as likely as any other.

    Gradient:
        None.

    Cost:
        O(nse log nse) time and O(nse) memory, whatever the shape.

    Raises:
        TypeError: An argument is of the wrong kind.
        ValueError: `density` or `nse` is out of range, both are given, or blocks do not fit.

    Example:
        >>> A = spgrad.rand(100, 100, nse=7, generator=torch.Generator().manual_seed(0))
        >>> A.nse, bool((A.values() < 1).all())
        (7, True)
    """
    options = Options(dtype, device, False, requires_grad, None)
    count = density, nse
    return _random(torch.rand, size, count, (layout, blocksize), generator, options)


@public_op
def randn(
    *size: Any,
    density: float | None = None,
    nse: int | None = None,
    layout: torch.layout = torch.sparse_csr,
    blocksize: tuple[int, int] | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    generator: torch.Generator | None = None,
    requires_grad: bool = False,
) -> SparseTensor:
    """`spgrad.rand` with normal random values."""
    options = Options(dtype, device, False, requires_grad, None)
    count = density, nse
    return _random(torch.randn, size, count, (layout, blocksize), generator, options)


@public_op
def banded(
    n: int,
    bandwidth: int,
    *,
    layout: torch.layout = torch.sparse_csr,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    generator: torch.Generator | None = None,
    requires_grad: bool = False,
) -> SparseTensor:
    """Normal random values where |i - j| <= bandwidth.

    Args:
        n: Rows and columns.
        bandwidth: Number of diagonals on either side of the main one.
        layout: torch.sparse_csr, sparse_csc or sparse_coo.
        dtype: Of the values; torch's default dtype if None.
        device: Of values and indices.
        generator: Of the random numbers, on `device`.
        requires_grad: Makes the result a leaf that collects a gradient.

    Returns:
        SparseTensor (n, n).

    Gradient:
        None.

    Cost:
        O(n bandwidth).

    Raises:
        TypeError: A number is not an int, or `layout` is not a sparse layout.
        ValueError: A number is negative.

    Example:
        >>> spgrad.banded(4, 1).nse
        10
    """
    for name, value in (("n", n), ("bandwidth", bandwidth)):
        if require_int(name, value) < 0:
            raise ArgumentValueError(
                f"`{name}` is {value}; numbers from 0 are accepted. Check the size."
            )
    require_layout(layout)
    reach = min(bandwidth, max(n - 1, 0))
    row = torch.arange(n, device=device)
    first, last = (row - reach).clamp(min=0), (row + reach).clamp(max=n - 1)
    ptr = torch.cat([row.new_zeros(1), (last - first + 1).cumsum(0)])
    total = int(ptr[-1])
    line = torch.repeat_interleave(ptr.diff(), output_size=total)
    col = torch.arange(total, device=device) + (first - ptr[:-1])[line]
    pattern = Pattern(torch.sparse_csr, (n, n), (ptr, col)).ascending()
    vals = torch.randn(total, dtype=dtype, device=device, generator=generator)
    blocks = require_blocksize(pattern, layout, None)
    made = convert(on_pattern(vals, pattern), layout, blocks)
    return leaf(made._vals, made._pattern, requires_grad)


@public_op
def random_spd(
    n: int,
    density: float = 0.1,
    *,
    layout: torch.layout = torch.sparse_csr,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    generator: torch.Generator | None = None,
    requires_grad: bool = False,
) -> SparseTensor:
    """A random symmetric positive definite matrix.

    Its diagonal is 1 plus the sum of the magnitudes beside it, so that no eigenvalue is below 1
    (Gershgorin).

    Args:
        n: Rows and columns.
        density: Share of the elements beside the diagonal that are specified.
        layout: torch.sparse_csr, sparse_csc or sparse_coo.
        dtype: Of the values, a real one; torch's default dtype if None.
        device: Of values and indices.
        generator: Of the random numbers, on `device`.
        requires_grad: Makes the result a leaf that collects a gradient.

    Returns:
        SparseTensor (n, n), its pattern symmetric with a full diagonal.

    Gradient:
        None.

    Cost:
        O(nse log nse) time and O(nse) memory.

    Raises:
        TypeError: An argument is of the wrong kind.
        ValueError: `n` is negative, or `density` out of range.

    Example:
        >>> A = spgrad.random_spd(5, 0.5).to_dense()
        >>> bool((torch.linalg.eigvalsh(A) > 0.99).all()), torch.equal(A, A.t())
        (True, True)
    """
    row, col = _below_diagonal(n, density, layout, device, generator)
    beside = torch.randn(row.numel(), dtype=dtype, device=device, generator=generator)
    step = torch.arange(n, device=device)
    size = beside.abs()
    diagonal = beside.new_ones(n).index_add_(0, row, size).index_add_(0, col, size)
    indices = torch.stack([torch.cat([row, col, step]), torch.cat([col, row, step])])
    vals = torch.cat([beside, beside, diagonal])
    return _square_matrix(n, indices, vals, layout, requires_grad)


@public_op
def random_triangular(
    n: int,
    density: float = 0.1,
    *,
    upper: bool = False,
    layout: torch.layout = torch.sparse_csr,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    generator: torch.Generator | None = None,
    requires_grad: bool = False,
) -> SparseTensor:
    """A random triangular matrix with a full diagonal, safe to solve with.

    Its diagonal is 1 plus the sum of the magnitudes beside it in the row.

    Args:
        n: Rows and columns.
        density: Share of the elements on one side of the diagonal that are specified.
        upper: True for elements above the diagonal.
        layout: torch.sparse_csr, sparse_csc or sparse_coo.
        dtype: Of the values, a floating-point one; torch's default dtype if None.
        device: Of values and indices.
        generator: Of the random numbers, on `device`.
        requires_grad: Makes the result a leaf that collects a gradient.

    Returns:
        SparseTensor (n, n).

    Gradient:
        None.

    Cost:
        O(nse log nse) time and O(nse) memory.

    Raises:
        TypeError: An argument is of the wrong kind.
        ValueError: `n` is negative, or `density` out of range.

    Example:
        >>> L = spgrad.random_triangular(4, 1.0)
        >>> L.nse, torch.equal(L.to_dense(), L.to_dense().tril())
        (10, True)
    """
    row, col = _below_diagonal(n, density, layout, device, generator)
    row, col = (col, row) if upper else (row, col)
    beside = torch.randn(row.numel(), dtype=dtype, device=device, generator=generator)
    step = torch.arange(n, device=device)
    diagonal = beside.new_ones(n).index_add_(0, row, beside.abs())
    indices = torch.stack([torch.cat([row, step]), torch.cat([col, step])])
    vals = torch.cat([beside, diagonal])
    return _square_matrix(n, indices, vals, layout, requires_grad)


def _below_diagonal(
    n: int, density: float, layout: torch.layout, device: Any, generator: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows and columns of random elements below the diagonal."""
    if require_int("n", n) < 0:
        raise ArgumentValueError(f"`n` is {n}; sizes from 0 are accepted. Check it.")
    require_layout(layout)
    pairs = n * (n - 1) // 2
    t = _distinct_numbers(pairs, _count(pairs, density, None), device, generator)
    row = ((1 + (1 + 8 * t.double()).sqrt()) / 2).long()  # t = row (row - 1) / 2 + col
    row -= (row * (row - 1) // 2 > t).long()  # corrects the rounding of the root
    row += ((row + 1) * row // 2 <= t).long()
    return row, t - row * (row - 1) // 2


def _square_matrix(
    n: int, indices: torch.Tensor, vals: torch.Tensor, layout: torch.layout, requires_grad: bool
) -> SparseTensor:
    """The matrix (n, n) whose elements are these, in any order."""
    order = torch.argsort(indices[0] * n + indices[1])
    pattern = Pattern(torch.sparse_coo, (n, n), (indices[:, order].contiguous(),))
    blocks = require_blocksize(pattern, layout, None)
    made = convert(on_pattern(vals[order], pattern), layout, blocks)
    return leaf(made._vals, made._pattern, requires_grad)


def _random(
    draw: Callable[..., torch.Tensor],
    size: tuple[Any, ...],
    count: tuple[float | None, int | None],
    like: tuple[torch.layout, tuple[int, int] | None],
    generator: torch.Generator | None,
    options: Options,
) -> SparseTensor:
    if any(isinstance(s, float) for s in size):
        raise ArgumentKindError(
            f"`size` is {size}; ints are accepted. Give a share of the elements as density=."
        )
    shape = given_size(size)
    layout, blocksize = like
    require_layout(layout)
    device = options.device
    whole = Pattern(
        torch.sparse_coo, shape, (torch.zeros(len(shape), 0, dtype=torch.int64, device=device),)
    )
    bm, bn = require_blocksize(whole, layout, blocksize) or (1, 1)
    coarse = (*shape[:-2], shape[-2] // bm, shape[-1] // bn) if len(shape) > 1 else shape
    places = math.prod(coarse)
    at = _distinct_numbers(places, _count(places, *count), device, generator)
    indices = torch.stack(unraveled(at, coarse)) if coarse else at.new_zeros(0, at.numel())
    pattern = Pattern(torch.sparse_coo, coarse, (indices,)).ascending()
    if (bm, bn) != (1, 1) or layout in (torch.sparse_bsr, torch.sparse_bsc):
        flat = torch.sparse_csr if layout == torch.sparse_bsr else torch.sparse_csc
        lines = coo_in_layout(pattern, flat, None)
        pattern = Pattern(layout, shape, lines.indices, blocksize=(bm, bn))
    else:
        pattern = coo_in_layout(pattern, layout, None)
    vals = draw(pattern.values_shape, dtype=options.dtype, device=device, generator=generator)
    return leaf(vals, pattern, options.requires_grad)


def _count(places: int, density: float | None, nse: int | None) -> int:
    """The number of elements that is asked for."""
    if density is not None and nse is not None:
        raise ArgumentValueError(
            "`density` and `nse` are both given; one of them is accepted. Leave out `density`."
        )
    if nse is not None:
        if not 0 <= require_int("nse", nse) <= places:
            raise ArgumentValueError(
                f"`nse` is {nse}; numbers from 0 to {places}, the size of the tensor, are "
                "accepted. Ask for fewer."
            )
        return nse
    share = 0.1 if density is None else density
    if not isinstance(share, (int, float)) or isinstance(share, bool):
        raise ArgumentKindError(
            f"`density` is {checks.describe_kind(share)}; a number from 0 to 1 is accepted. For "
            "example 0.1."
        )
    if not 0 <= share <= 1:
        raise ArgumentValueError(
            f"`density` is {share}; numbers from 0 to 1 are accepted. It is a share, not per cent."
        )
    return round(share * places)


def _distinct_numbers(
    size: int, count: int, device: Any, generator: torch.Generator | None
) -> torch.Tensor:
    """`count` different numbers below `size`, sorted, every set being equally likely; O(count)."""
    if size <= 4 * count + 16:
        order = torch.randperm(size, device=device, generator=generator)
        return order[:count].sort().values
    found = torch.zeros(0, dtype=torch.int64, device=device)
    while found.numel() < count:  # at most a quarter of the numbers are drawn for the second time
        more = torch.randint(size, (count,), device=device, generator=generator)
        found = torch.cat([found, more]).unique()
    order = torch.randperm(found.numel(), device=device, generator=generator)[:count]
    return found.index_select(0, order).sort().values
