"""Adjacency matrices divided by degrees, and Laplacians."""

from __future__ import annotations

import torch

from spgrad.core.tensor import SparseTensor
from spgrad.errors import ArgumentValueError
from spgrad.graph.operands import weighted_graph
from spgrad.nn.graph.loops import as_narrow, inverse_roots, wide_sums
from spgrad.nn.graph.operands import square_graph
from spgrad.ops.elementwise.binary import mul
from spgrad.ops.elementwise.unary import neg
from spgrad.ops.shapes.set_diagonal import remove_diag, set_diag
from spgrad.public import public_as


@public_as("graph.normalize")
def normalize(A: torch.Tensor, how: str = "sym") -> SparseTensor:
    """Divides the rows or columns of A by their sums, or both by the square roots of their sums.

    Rows and columns with the sum 0 become zeros; a negative sum gives NaN with "sym".
    `spgrad.nn.gcn_norm` adds self-loops first.

    Args:
        A: Sparse (m, k) of any layout and a floating-point dtype, without batch and dense
            dimensions.
        how: "row": each row has the sum 1, as the steps of a random walk along the edges. "col":
            each column has the sum 1. "sym": a_ij / (r_i c_j)^1/2 with the sums r of rows and c of
            columns, which is D^-1/2 A D^-1/2 where A is symmetric.

    Returns:
        SparseTensor on the pattern of `A`.

    Gradient:
        On the pattern of `A`, through the sums too.

    Cost:
        O(nse + m + k).

    Raises:
        TypeError: `A` is not sparse.
        ValueError: `A` is not a matrix or has no floating-point dtype, or `how` is none of the
            three.

    Source:
        von Luxburg, A tutorial on spectral clustering (2007); for "sym" of bipartite graphs He et
        al., LightGCN (2020).

    Example:
        >>> A = spgrad.from_edges(torch.tensor([[0, 0, 1], [1, 2, 0]]))
        >>> spgrad.graph.normalize(A, "row").to_dense()
        tensor([[0.0000, 0.5000, 0.5000],
                [1.0000, 0.0000, 0.0000],
                [0.0000, 0.0000, 0.0000]])
    """
    M = weighted_graph(A)
    if how not in ("sym", "row", "col"):
        raise ArgumentValueError(
            f"`how` is {how!r}; 'sym', 'row' and 'col' are accepted. Choose one of them."
        )
    if how == "row":
        return as_narrow(mul(M, _inverses(wide_sums(M, 1))[:, None]), M)
    if how == "col":
        return as_narrow(mul(M, _inverses(wide_sums(M, 0))), M)
    by_row, by_col = inverse_roots(wide_sums(M, 1)), inverse_roots(wide_sums(M, 0))
    return as_narrow(mul(mul(M, by_row[:, None]), by_col), M)  # type: ignore[arg-type]


@public_as("graph.laplacian")
def laplacian(A: torch.Tensor, normalization: str | None = None) -> SparseTensor:
    """The Laplacian of a graph: D - A, with the sums of the rows of A on the diagonal of D.

    Self-loops are left out first, as in SciPy and torch_geometric.

    Args:
        A: Sparse (n, n) of any layout and a floating-point dtype.
        normalization: None for D - A; "sym" for I - D^-1/2 A D^-1/2; "rw" for I - D^-1 A. In these
            two, a row of A with the sum 0 is 0, on the diagonal too, as in networkx; a negative sum
            gives NaN with "sym".

    Returns:
        SparseTensor (n, n) of the layout of `A`, with the off-diagonal elements of A and all
        diagonal elements.

    Gradient:
        On the pattern of `A`, through the degrees too.

    Cost:
        O(nse + n); indices are computed once for each pattern.

    Raises:
        TypeError: `A` is not sparse.
        ValueError: `A` is not square or has no floating-point dtype, or `normalization` is none of
            the three.

    Source:
        Chung, Spectral Graph Theory (1997).

    Example:
        >>> A = spgrad.from_edges(torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]))
        >>> spgrad.graph.laplacian(A).to_dense()
        tensor([[ 1., -1.,  0.],
                [-1.,  2., -1.],
                [ 0., -1.,  1.]])
    """
    M = weighted_graph(square_graph(A, hint="Rows and columns stand for the same nodes."))
    if normalization not in (None, "sym", "rw"):
        raise ArgumentValueError(
            f"`normalization` is {normalization!r}; None, 'sym' and 'rw' are accepted. Choose one "
            "of them."
        )
    M = remove_diag(M)
    degrees = wide_sums(M, 1)
    if normalization is None:
        return set_diag(neg(M), as_narrow(degrees, M))
    if normalization == "rw":
        scaled = mul(M, _inverses(degrees)[:, None])
    else:
        scale = inverse_roots(degrees)
        scaled = mul(mul(M, scale[:, None]), scale)  # type: ignore[arg-type]
    connected = (degrees != 0).to(M._vals.dtype)
    return set_diag(neg(as_narrow(scaled, M)), connected)


def _inverses(sums: torch.Tensor) -> torch.Tensor:
    """1 / sums, and 0 with gradient 0 for sums of 0."""
    none = sums == 0
    return torch.where(none, 0, torch.where(none, 1, sums).reciprocal())
