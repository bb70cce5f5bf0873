"""Products of several matrices in the order with the least work."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from spgrad.core import checks
from spgrad.core.pattern import Pattern
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import on_pattern, stored_values
from spgrad.errors import ArgumentKindError, ArgumentValueError, UnsupportedError
from spgrad.lowering.coalesce import without_repeats
from spgrad.lowering.convert import convert
from spgrad.lowering.operands import matrix_operand, require_int, require_rank, shape_of
from spgrad.ops.products.matmul import product
from spgrad.ops.products.named.einsum import require_operands
from spgrad.ops.reductions.reduce import sum
from spgrad.ops.shapes.shape import reshape
from spgrad.public import public_op
from spgrad.torch_protocol.autocast import lowered

SPARSE_COST = 8
"""Cost of one multiplication in a product of two sparse matrices; with a dense one it costs 1."""


class Factor(NamedTuple):
    """What the cost of products of a matrix depends on."""

    rows: int
    columns: int
    nse: float | None  # None: dense


@public_op
def multi_dot(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The product of two or more matrices, of which at least one is sparse.

    The order is that with the least estimated work, found by dynamic programming over all orders.
    A sparse (m, k) times a dense (k, n) counts nse n; two dense ones m k n; two sparse ones, whose
    product stays sparse, 8 times the nse_A nse_B / k multiplications that elements in random places
    would need. So A (B x) is preferred to (A B) x.

    Args:
        tensors: Sparse and dense matrices whose inner sizes agree; the first and the last may be
            vectors.

    Returns:
        The product, (m, n): sparse if all factors are, in the layout of the first; dense
        otherwise. A factor that is a vector contributes no dimension.

    Gradient:
        As `spgrad.matmul`; of each sparse factor on its own pattern.

    Cost:
        That of the products; no memory beyond results of products and gradients.

    Raises:
        TypeError: No factor is sparse, or one is not a tensor.
        ValueError: There are fewer than two, one has a wrong number of dimensions, or sizes, dtypes
            or devices don't fit.
        NotImplementedError: A sparse factor has dense dimensions.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[1.0, 0.0], [3.0, 2.0]]))
        >>> spgrad.multi_dot([A, A, torch.tensor([1.0, 10.0])])
        tensor([ 1., 49.])
    """
    given = _as_list(tensors)
    if len(given) < 2:
        raise ArgumentValueError(
            f"`tensors` has {len(given)} tensor(s); two or more are accepted. There is nothing to "
            "multiply."
        )
    factors = require_operands(_named(given))
    first_vector, last_vector = (len(shape_of(factors[i])) == 1 for i in (0, -1))
    if first_vector:
        factors[0] = _reshaped_or_summed(factors[0], (1, shape_of(factors[0])[0]))
    if last_vector:
        factors[-1] = _reshaped_or_summed(factors[-1], (shape_of(factors[-1])[0], 1))
    y = _multiplied(*factors)
    m, n = shape_of(y)
    shape = (*(() if first_vector else (m,)), *(() if last_vector else (n,)))
    return y if len(shape) == 2 else _reshaped_or_summed(y, shape)


@public_op
def chain_matmul(*matrices: torch.Tensor) -> torch.Tensor:
    """`spgrad.multi_dot` with the matrices as arguments; a single one is returned as it is."""
    factors = require_operands(_named(_as_list(matrices)))
    return _multiplied(*factors)


@public_op
def matrix_power(input: torch.Tensor, n: int) -> SparseTensor:
    """input input ... input with n factors, as `torch.matrix_power`; sparse.

    Args:
        input: Sparse (*b, m, m), of any layout. For bool values, the power says whether a path of
            n steps leads from one row to another.
        n: 0, which gives the identity, or more.

    Returns:
        SparseTensor (*b, m, m) in the layout of `input`.

    Gradient:
        On the pattern of `input`, as for repeated products.

    Cost:
        At most 2 log2(n) sparse products, whose nse grows with n.

    Raises:
        TypeError: `input` is not sparse, or `n` is not an int.
        ValueError: The matrices are not square.
        NotImplementedError: `n` is negative, or `input` has dense dimensions.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[1.0, 2.0], [0.0, 1.0]]))
        >>> spgrad.matrix_power(A, 10).to_dense()
        tensor([[ 1., 20.],
                [ 0.,  1.]])
    """
    A = matrix_operand("input", input, bools=True)
    rows, columns = A._pattern.matrix
    if rows != columns:
        hint = "Other matrices have no powers."
        raise checks.bad_shape("input", tuple(A._pattern.shape), "a square matrix or batch", hint)
    if require_int("n", n) < 0:
        raise UnsupportedError(
            f"`n` is {n}, a power of the inverse, which is dense in general; 0 and positive ints "
            f"are accepted. Use torch.matrix_power(A.to_dense(), {n})."
        )
    A = without_repeats(A)
    if n == 0:
        return _identity(A)
    if n == 1:
        return A.clone()  # type: ignore[return-value]
    y, square = None, A
    while n:
        if n % 2:
            y = square if y is None else product(("input", "input"), y, square)
        n //= 2
        if n:
            square = product(("input", "input"), square, square)  # type: ignore[assignment]
    return y  # type: ignore[return-value]


def _identity(A: SparseTensor) -> SparseTensor:
    """One for each diagonal element of the batch, with a gradient of 0."""
    pattern = A._pattern
    where = torch.ones((*pattern.batch, pattern.matrix[0]), device=pattern.device).nonzero().t()
    indices = torch.cat([where, where[-1:]])
    vals = torch.ones(indices.shape[1], dtype=A._vals.dtype, device=pattern.device)
    made = SparseTensor(vals, Pattern(torch.sparse_coo, pattern.shape, (indices,)))
    made = convert(made, pattern.layout, pattern.blocksize)
    nothing = stored_values(A).flatten()[:0].sum(dtype=A._vals.dtype)
    return on_pattern(made._vals + nothing, made._pattern)


def _as_list(tensors: Any) -> list[Any]:
    if not isinstance(tensors, (tuple, list)):
        raise ArgumentKindError(
            f"`tensors` is {checks.describe_kind(tensors)}; a list of sparse and dense matrices is "
            "accepted. Put them into one list."
        )
    return list(tensors)


def _named(given: list[Any]) -> list[tuple[str, Any]]:
    return [(f"tensors[{i}]", x) for i, x in enumerate(given)]


def _reshaped_or_summed(x: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    if not isinstance(x, SparseTensor):
        return x.reshape(shape)
    return reshape(x, shape) if shape else sum(x, dtype=x.dtype)  # one element, of two vectors


@lowered
def _multiplied(*factors: torch.Tensor) -> torch.Tensor:
    for i, x in enumerate(factors):
        require_rank(f"tensors[{i}]", x, 2, "The first and last of multi_dot may be vectors.")
    for i, (x, y) in enumerate(itertools.pairwise(factors)):
        if shape_of(x)[1] != shape_of(y)[0]:
            accepted = f"{shape_of(x)[1]} rows (from the shape {tuple(shape_of(x))} before it)"
            hint = "The inner sizes of neighbours agree."
            raise checks.bad_shape(f"tensors[{i + 1}]", shape_of(y), accepted, hint)
    splits = best_order(
        [
            Factor(
                shape_of(x)[0],
                shape_of(x)[1],
                x._pattern.elements if isinstance(x, SparseTensor) else None,
            )
            for x in factors
        ]
    )

    def between(first: int, last: int) -> torch.Tensor:
        if first == last:
            return factors[first]
        split = splits[first, last]
        left, right = between(first, split), between(split + 1, last)
        if isinstance(left, SparseTensor) or isinstance(right, SparseTensor):
            return product(("tensors", "tensors"), left, right)
        return left @ right

    return between(0, len(factors) - 1)


def best_order(factors: Sequence[Factor]) -> dict[tuple[int, int], int]:
    """The last factor of the left part of the product from one factor to another, for all pairs.

    The chain order of Cormen et al., Introduction to Algorithms, 15.2, with this file's costs.
    """
    count = len(factors)
    best: dict[tuple[int, int], tuple[float, Factor]] = {
        (i, i): (0.0, factor) for i, factor in enumerate(factors)
    }
    splits: dict[tuple[int, int], int] = {}
    for length in range(1, count):
        for first in range(count - length):
            last = first + length
            for split in range(first, last):
                left_work, left = best[first, split]
                right_work, right = best[split + 1, last]
                work, made = _estimate(left, right)
                work += left_work + right_work
                if (first, last) not in splits or work < best[first, last][0]:
                    best[first, last] = work, made
                    splits[first, last] = split
    return splits


def _estimate(a: Factor, b: Factor) -> tuple[float, Factor]:
    """The work of a product, and what it will be."""
    m, k, n = a.rows, a.columns, b.columns
    if a.nse is not None and b.nse is not None:
        terms = a.nse * b.nse / max(k, 1)
        size = max(m * n, 1)
        # the expected number of distinct places of so many random ones
        nse = size * -math.expm1(-terms / size)
        return SPARSE_COST * terms, Factor(m, n, nse)
    if a.nse is not None:
        return a.nse * n, Factor(m, n, None)
    if b.nse is not None:
        return b.nse * m, Factor(m, n, None)
    return float(m * k * n), Factor(m, n, None)
