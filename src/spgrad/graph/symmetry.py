"""Degrees, and graphs whose edges go both ways."""

from __future__ import annotations

import torch

from spgrad.core.tensor import SparseTensor
from spgrad.core.values import on_pattern
from spgrad.errors import ArgumentValueError
from spgrad.graph.operands import matrix_of_graph
from spgrad.linalg.structure import require_square
from spgrad.lowering.align import align
from spgrad.lowering.operands import require_dim
from spgrad.lowering.views import cols, rows
from spgrad.ops.reductions.reduce import sum as sum_of
from spgrad.ops.shapes.shape import transpose
from spgrad.public import public_as


@public_as("graph.degree")
def degree(A: torch.Tensor, dim: int = 1, weighted: bool = False) -> torch.Tensor:
    """The number of edges of each node, or the sum of their weights.

    Args:
        A: Sparse (m, k) of any layout; an edge for each specified element, explicit zeros too.
        dim: The dimension that is summed: 1 for the edges in each row, 0 for those in each column.
        weighted: Whether to add up the values.

    Returns:
        Dense (m,) or (k,): int64, or with `weighted` what ``A.sum(dim)`` gives.

    Gradient:
        With `weighted`, the cotangent of each node at its edges.

    Cost:
        Without weights O(m) or O(k), once the row or column view of the pattern is there; with
        weights O(nse).

    Raises:
        TypeError: `A` is not sparse.
        ValueError: `A` is not a matrix.
        IndexError: `dim` is out of range.

    Example:
        >>> A = spgrad.from_edges(torch.tensor([[0, 0, 1], [1, 2, 0]]), torch.tensor([2.0, 3, 4]))
        >>> spgrad.graph.degree(A), spgrad.graph.degree(A, 0, weighted=True)
        (tensor([2, 1, 0]), tensor([4., 2., 3.]))
    """
    M = matrix_of_graph(A)
    dim = require_dim("dim", dim, 2)
    if weighted:
        return sum_of(M, dim)
    view = rows(M._pattern) if dim else cols(M._pattern)
    return view.ptr.diff().to(torch.int64)


@public_as("graph.to_symmetric")
def to_symmetric(A: torch.Tensor, reduce: str = "sum") -> SparseTensor:
    """The graph with an edge from j to i for each edge from i to j.

    If both edges exist, their two weights are reduced to one number, which both get. A self-loop
    counts as both edges.

    Args:
        A: Sparse (n, n) of any layout.
        reduce: "sum", which gives A + Aᵀ, "mean", "amax" or "amin", of those of a_ij and a_ji that
            are specified.

    Returns:
        SparseTensor (n, n) of the layout of `A`, with the elements of A and of its transpose. The
        mean of bools and integers has torch's default dtype.

    Gradient:
        On the pattern of `A`; with "amax" and "amin", two equal weights get half of the cotangent
        each.

    Cost:
        O(nse); the union of the elements is found once for each pattern.

    Raises:
        TypeError: `A` is not sparse.
        ValueError: `A` is not square, or `reduce` is none of the four, or one of order for complex
            weights.

    Source:
        `to_undirected` of torch_geometric.

    Example:
        >>> A = spgrad.from_edges(torch.tensor([[0, 1, 1], [1, 0, 2]]), torch.tensor([2.0, 4, 6]))
        >>> spgrad.graph.to_symmetric(A, "mean").to_dense()
        tensor([[0., 3., 0.],
                [3., 0., 6.],
                [0., 6., 0.]])
    """
    M = matrix_of_graph(A)
    require_square(M)
    if reduce not in ("sum", "mean", "amax", "amin"):
        raise ArgumentValueError(
            f"`reduce` is {reduce!r}; 'sum', 'mean', 'amax' and 'amin' are accepted. Choose one of "
            "them."
        )
    if reduce in ("amax", "amin") and M._vals.is_complex():
        raise ArgumentValueError(
            f"`reduce` is {reduce!r} for complex weights, which have no order; 'sum' and 'mean' "
            "are accepted. Or take the magnitudes, A.abs()."
        )
    turned = transpose(M, 0, 1)
    both = align(M, turned, "either")
    if reduce == "sum":
        return on_pattern(both.a + both.b, both.pattern)
    there = align(_marked(M), _marked(turned), "either")
    a, b = there.a.to(torch.bool), there.b.to(torch.bool)
    if reduce == "mean":
        one = torch.where(a & b, _means(both.a, both.b), torch.where(a, both.a, both.b))
    else:
        of_two = torch.maximum if reduce == "amax" else torch.minimum
        one = torch.where(a & b, of_two(both.a, both.b), torch.where(a, both.a, both.b))
    return on_pattern(one, both.pattern)


def _means(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(a + b) / 2, whose sum bools, small integers and float16 do not hold."""
    dtype = torch.result_type(a, 0.5)
    wide = torch.promote_types(dtype, torch.float32)
    return ((a.to(wide) + b.to(wide)) / 2).to(dtype)


def _marked(A: SparseTensor) -> SparseTensor:
    """A tensor of ones at the specified elements of A."""
    ones = torch.ones(A._pattern.values_shape, dtype=torch.int8, device=A._pattern.device)
    return SparseTensor(ones, A._pattern)
