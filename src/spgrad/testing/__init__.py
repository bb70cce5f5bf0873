"""Helps to test sparse operations: samples for rows of the support table, a zoo, comparisons.

The dense function in the table is the specification: `expected` runs it, and gradients are
compared on the pattern of the *input*.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from spgrad import support
from spgrad.core import checks
from spgrad.core.construct import size_tuple, sparse_coo_tensor
from spgrad.core.pattern import LAYOUTS, Pattern
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import from_values
from spgrad.ops.layouts.convert import to_sparse
from spgrad.ops.layouts.dense import to_dense
from spgrad.ops.layouts.structure import coalesce
from spgrad.public import public_as
from spgrad.testing.zoo import ZOO, dominant

__all__ = [
    "SIZES",
    "ZOO",
    "Cell",
    "assert_close",
    "cells",
    "random_sparse",
    "sample",
    "tolerance",
]

SIZES = {"m": 4, "k": 6, "n": 2, "b": 2, "c": 3, "d": 3, "1": 1, "2": 2, "3": 3, "5": 5, "nse": 10}
"""Sizes of the letters in a signature; even for matrices, so that 2 x 2 blocks fit."""

_TOLERANCE = {
    torch.float64: 1e-10,
    torch.complex128: 1e-10,
    torch.float32: 2e-5,
    torch.complex64: 2e-5,
    torch.float16: 4e-3,
    torch.bfloat16: 3e-2,
}


def tolerance(dtype: torch.dtype) -> float:
    """Largest relative and absolute error that a result of this dtype may have.

    Args:
        dtype: Of the result.

    Returns:
        The error; 0 for integers.

    Raises:
        Nothing.

    Example:
        >>> tolerance(torch.int64)
        0.0
    """
    return _TOLERANCE.get(dtype, 0.0)


def assert_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Asserts that two tensors, sparse or dense, are equal up to the tolerance of `actual`.

    Args:
        actual: Sparse or dense tensor.
        expected: Dense tensor of the same shape; of a wider dtype for low precision.

    Raises:
        AssertionError: Shapes or values differ.

    Example:
        >>> assert_close(torch.ones(2), torch.ones(2, dtype=torch.float64))
    """
    dense = to_dense(actual) if isinstance(actual, SparseTensor) else actual
    bound = tolerance(dense.dtype)
    torch.testing.assert_close(
        dense, expected, rtol=bound, atol=bound, check_dtype=False, equal_nan=True
    )


@public_as("testing.random_sparse")
def random_sparse(
    shape: tuple[int, ...],
    layout: torch.layout = torch.sparse_csr,
    *,
    dtype: torch.dtype = torch.float64,
    density: float | torch.Tensor = 0.4,
    blocksize: tuple[int, int] = (2, 2),
    coalesced: bool = True,
    index_dtype: torch.dtype = torch.int64,
    dense_dim: int = 0,
    positive: bool = False,
    seed: int = 0,
) -> SparseTensor:
    """A random SparseTensor; the items of a batch differ in nse.

    Args:
        shape: Size of all dimensions.
        layout: One of the five sparse layouts.
        dtype: Of the values; integers are drawn from -4 to 4.
        density: Share of elements that are specified; or a tensor with the probability of each.
        blocksize: For BSR and BSC.
        coalesced: False gives a COO tensor with repeated, unsorted indices.
        index_dtype: torch.int64 or torch.int32.
        dense_dim: Number of trailing dense dimensions.
        positive: True makes all values greater than zero.
        seed: Of the generator.

    Returns:
        SparseTensor, a leaf without gradient.

    Raises:
        ValueError: `blocksize` does not divide the matrix.
        NotImplementedError: `layout` is a compressed one, and `shape` has fewer than two sparse
            dimensions.

    Example:
        >>> random_sparse((4, 6), density=0.5).shape
        torch.Size([4, 6])
    """
    generator = torch.Generator().manual_seed(seed)
    shape = size_tuple(shape, "shape")
    if not isinstance(density, torch.Tensor):
        checks.require_number("density", density, "For example 0.4.", least=0)
    sparse_dim = len(shape) - dense_dim
    specified = torch.rand(shape[:sparse_dim], generator=generator) < density
    indices = specified.nonzero().t()
    times = None
    if not coalesced and indices.shape[1]:
        count = indices.shape[1]
        twice = torch.arange(2 * count) % count  # every one at least once
        twice[count:] = torch.randint(count, (count,), generator=generator)
        order = twice[torch.randperm(2 * count, generator=generator)]
        times = order.bincount()[order]
        indices = indices[:, order]
    vals = random_dense(
        (indices.shape[1], *shape[sparse_dim:]), dtype=dtype, generator=generator, positive=positive
    )
    if times is not None and dtype.is_floating_point:  # sums stay in the range of single values
        vals = (vals / times.view(-1, *[1] * dense_dim)).to(dtype)
    A = sparse_coo_tensor(indices.to(index_dtype).contiguous(), vals, shape)
    if layout == torch.sparse_coo:
        return coalesce(A) if coalesced else A
    if layout not in (torch.sparse_bsr, torch.sparse_bsc):
        return to_sparse(A, layout=layout)
    pattern = to_sparse(
        A, layout=layout, blocksize=blocksize
    )._pattern  # blocks are filled up with values, not zeros
    return from_values(
        random_dense(pattern.values_shape, dtype=dtype, generator=generator, positive=positive),
        pattern,
    )


def random_dense(
    shape: tuple[int, ...],
    *,
    dtype: torch.dtype = torch.float64,
    generator: torch.Generator,
    positive: bool = False,
) -> torch.Tensor:
    """A random dense tensor: magnitudes from 0.1 to 0.9, or integers from -4 to 4.

    These are inside the domain of functions such as asin, and away from the kink of others at 0.
    """
    if dtype.is_floating_point or dtype.is_complex:
        size = 0.1 + 0.8 * torch.rand(shape, dtype=torch.float64, generator=generator)
        turn = torch.rand(shape, dtype=torch.float64, generator=generator)
        if dtype.is_complex:
            return torch.polar(size, (0 if positive else 2 * torch.pi) * turn).to(dtype)
        return (size if positive else torch.where(turn < 0.5, -size, size)).to(dtype)
    low = 1 if positive else 0 if dtype in (torch.uint8, torch.bool) else -4
    return torch.randint(low, 5, shape, generator=generator).to(dtype)


class Cell(NamedTuple):
    """One claim of the support table: an operation, a signature, a layout, keyword arguments."""

    op: support.Op
    signature: str
    layout: str
    sample: int

    def __str__(self) -> str:
        options = ",".join(f"{k}={_text(v)}" for k, v in self.options.items()).replace(" ", "")
        signature = self.signature.replace(" -> ", ">").replace(" ", "_")
        return f"{self.op.name}-{signature}-{self.layout}" + (f"-{options}" if options else "")

    @property
    def options(self) -> dict[str, Any]:
        """The keyword arguments."""
        return dict(self.op.samples[self.sample])


def _text(value: Any) -> str:
    """A value in the name of a test, which must not change from run to run."""
    return getattr(value, "__name__", None) or str(value)


def cells() -> Iterator[Cell]:
    """Every claim of the support table that a dense function specifies."""
    for op in support.OPS.values():
        for signature in op.signatures if op.compared else ():
            for layout in op.layouts:
                for sample in range(len(op.samples)):
                    yield Cell(op, signature, layout, sample)


def sample(
    cell: Cell,
    dtype: torch.dtype = torch.float64,
    *,
    coalesced: bool = True,
    mixed: bool = False,
    seed: int = 0,
    matrix: torch.Tensor | None = None,
    index_dtype: torch.dtype = torch.int64,
) -> list[torch.Tensor]:
    """Operands for a cell, as leaves that collect gradients where the dtype allows.

    Args:
        cell: A claim.
        dtype: Of all operands.
        coalesced: False makes COO operands repeat and shuffle their indices.
        mixed: True gives the second sparse operand the next layout of the table.
        seed: Of the generator.
        matrix: Dense matrix, such as one of ZOO: the first sparse operand is specified where it is
            not 0, and the other operands take matching sizes. The other items of a batch have
            random parts of its pattern, a vector has its rows one after the other, and zeros pad it
            if the operand is square.
        index_dtype: torch.int64 or torch.int32.

    Returns:
        The operands in order.

    Raises:
        KeyError: The signature has a letter that is not in SIZES.

    Example:
        >>> cell = next(cells())
        >>> [type(a).__name__ for a in sample(cell)]
        ['SparseTensor', 'Tensor']
    """
    generator = torch.Generator().manual_seed(seed + 1000)  # other numbers than the operands'
    operands = []
    seen = 0
    parsed = support.parse(cell.signature)[0]
    sizes = SIZES
    if matrix is not None:
        matrix, sizes = _fitted(matrix, next(o for o in parsed if o.sparse))
    for position, operand in enumerate(parsed):
        shape = tuple(sizes[d] for d in operand.dims)
        own = torch.promote_types(dtype, torch.complex64) if operand.complex else dtype
        if operand.integer and (own.is_floating_point or own.is_complex):
            own = torch.int64
        own = torch.bool if operand.truth else own
        if operand.sparse:
            names = cell.op.layouts
            shift = seen if mixed else 0
            name = names[(names.index(cell.layout) + shift) % len(names)]
            density: float | torch.Tensor = 1.1 if operand.full else 0.4
            if matrix is not None and seen == 0:
                density = _density_like(matrix, shape[: len(shape) - operand.dense_dim])
            if operand.dominant:
                density = (torch.zeros(shape) + density).maximum(1.1 * torch.eye(shape[-1]))
            seen += 1
            made: torch.Tensor = random_sparse(
                shape,
                LAYOUTS[name],
                dtype=own,
                coalesced=coalesced or name != "coo",
                density=density,
                index_dtype=index_dtype,
                dense_dim=operand.dense_dim,
                positive=operand.positive,
                seed=seed + position,
            )
        else:
            signed = operand.positive or operand.negative
            made = random_dense(shape, dtype=own, generator=generator, positive=signed)
            made = -made if operand.negative else made
        if operand.dominant:
            made = dominant(made)
        differentiable = (own.is_floating_point or own.is_complex) and not operand.constant
        operands.append(made.requires_grad_() if differentiable else made)
    return operands


def _fitted(matrix: torch.Tensor, operand: support.Operand) -> tuple[torch.Tensor, dict[str, int]]:
    """The matrix, padded if the operand is square, and the sizes of letters that fit it."""
    dims = operand.dims[: len(operand.dims) - operand.dense_dim][-2:]
    if len(set(dims)) < len(dims):
        missing = [max(matrix.shape) - size for size in matrix.shape]
        matrix = torch.nn.functional.pad(matrix, (0, missing[1], 0, missing[0]))
    own = matrix.shape if len(dims) > 1 else (matrix.numel(),)
    return matrix, SIZES | dict(zip(dims, own, strict=True))


def _density_like(matrix: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Probability of each element of a batch whose first item is the matrix, or of its vector."""
    chance = 0.5 * (matrix != 0).expand(*shape[:-2], *matrix.shape)
    chance[(0,) * (chance.dim() - 2)] *= 2
    return chance.reshape(shape)


def run_all(cell: Cell, operands: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Calls the operation of a cell; gives a tuple of its results, also of a single one."""
    return _tuple(call(cell, cell.op.function, operands, cell.options))


def call(
    cell: Cell, function: Callable[..., Any], operands: list[Any], options: dict[str, Any]
) -> Any:
    """Calls a function with the operands of a cell, in the way that its row of the table says."""
    if isinstance(function, types.WrapperDescriptorType):  # it takes no keyword arguments
        return function(*operands, *options.values())
    return cell.op.call(function, *operands, **options)


def run(cell: Cell, operands: list[torch.Tensor]) -> torch.Tensor:
    """The (first) result of the operation of a cell."""
    return run_all(cell, operands)[0]


def _tuple(result: Any) -> tuple[torch.Tensor, ...]:
    return (result,) if isinstance(result, torch.Tensor) else tuple(result)


def expected(cell: Cell, operands: list[torch.Tensor], dense: list[torch.Tensor]) -> torch.Tensor:
    """The (first) result that the specification gives for the dense form of these operands."""
    return expected_all(cell, operands, dense)[0]


def told(op: support.Op, pattern: Pattern) -> dict[str, Any]:
    """What the specification of an operation takes of the first pattern, by name."""
    known = {"mask": mask_of(pattern), "heads": pattern.dense_dim > 0}
    return {name: known[name] for name in op.told}


def expected_all(
    cell: Cell, operands: list[torch.Tensor], dense: list[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """All results that the specification gives."""
    options = {k: v for k, v in cell.options.items() if k not in ("blocksize", "layout")}
    if cell.op.told:
        options |= told(cell.op, next(a for a in operands if isinstance(a, SparseTensor))._pattern)
    return _tuple(cell.op.call(cell.op.dense, *dense, **options))


def dense_leaves(operands: list[torch.Tensor]) -> list[torch.Tensor]:
    """Dense copies of operands, as leaves."""
    return [
        (to_dense(a) if isinstance(a, SparseTensor) else a)
        .detach()
        .clone()
        .requires_grad_(a.requires_grad)
        for a in operands
    ]


def mask_of(pattern: Pattern) -> torch.Tensor:
    """Dense bool tensor that is True at the elements of a pattern."""
    ones = torch.ones(pattern.values_shape, device=pattern.indices[0].device)
    return to_dense(from_values(ones, pattern)) != 0


def parameters(operands: list[torch.Tensor]) -> list[torch.Tensor]:
    """Dense leaves with the differentiable parts of operands: stored values and dense tensors."""
    return [
        (a._vals if isinstance(a, SparseTensor) else a)
        .detach()
        .clone()
        .requires_grad_(a.requires_grad)
        for a in operands
    ]


def with_parameters(
    operands: list[torch.Tensor], leaves: tuple[torch.Tensor, ...]
) -> list[torch.Tensor]:
    """The operands rebuilt from what `parameters` gave, differentiably."""
    return [
        from_values(leaf, a) if isinstance(a, SparseTensor) else leaf
        for a, leaf in zip(operands, leaves, strict=True)
    ]


def dense_result(y: torch.Tensor) -> torch.Tensor:
    """A result as a dense tensor, differentiably."""
    return to_dense(y) if isinstance(y, SparseTensor) else y
