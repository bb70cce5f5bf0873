"""Whether a sparse matrix is symmetric or Hermitian, and its connected components."""

from __future__ import annotations

from typing import Any

import torch

from spgrad.core import checks
from spgrad.core.tensor import SparseTensor
from spgrad.errors import ArgumentValueError
from spgrad.lowering.coalesce import without_repeats
from spgrad.lowering.operands import matrix_operand, require_rank
from spgrad.lowering.views import rows
from spgrad.ops import adjoint, allclose, transpose
from spgrad.public import public_op


@public_op
def is_symmetric(A: torch.Tensor, rtol: float = 0.0, atol: float = 0.0) -> bool:
    """Whether A equals its transpose; a specified zero counts as any other zero.

    Args:
        A: Sparse (*b, m, n) of any layout; of a batch, every matrix has to be symmetric.
        rtol: How far elements may differ, relative to their size, as in `torch.allclose`.
        atol: How far they may differ besides.

    Returns:
        False also for matrices that are not square, and for those with NaN.

    Cost:
        O(nse); the first call sorts the pattern by columns.

    Raises:
        TypeError: `A` is not sparse.
        NotImplementedError: `A` has dense dimensions.

    Example:
        >>> spgrad.is_symmetric(spgrad.from_dense(torch.tensor([[0.0, 2.0], [2.0, 1.0]])))
        True
    """
    return _equals(A, False, rtol, atol)


@public_op
def is_hermitian(A: torch.Tensor, rtol: float = 0.0, atol: float = 0.0) -> bool:
    """Whether A equals its conjugate transpose; `spgrad.is_symmetric` for real matrices.

    Args:
        A: Sparse (*b, m, n) of any layout; of a batch, every matrix has to be Hermitian.
        rtol: How far elements may differ, relative to their size, as in `torch.allclose`.
        atol: How far they may differ besides.

    Returns:
        False also for matrices that are not square, and for those with NaN.

    Cost:
        O(nse); the first call sorts the pattern by columns.

    Raises:
        TypeError: `A` is not sparse.
        NotImplementedError: `A` has dense dimensions.

    Example:
        >>> spgrad.is_hermitian(spgrad.from_dense(torch.tensor([[0, 2j], [-2j, 1]])))
        True
    """
    return _equals(A, True, rtol, atol)


def _equals(A: Any, conjugate: bool, rtol: float, atol: float) -> bool:
    M = matrix_operand("A", A, bools=True)
    m, n = M._pattern.matrix
    if m != n:
        return False
    if M.requires_grad:
        M = M.detach()
    other = adjoint(M) if conjugate else transpose(M, -2, -1)
    return allclose(M, other, rtol=rtol, atol=atol)


@public_op
def connected_components(A: torch.Tensor, connection: str = "weak") -> tuple[int, torch.Tensor]:
    """The connected components of the graph of a matrix; SciPy's code.

    Args:
        A: Sparse square matrix (n, n) of any layout: an edge from i to j for each specified element
            (i, j), explicit zeros too.
        connection: "weak" ignores the direction of edges. In a "strong" component, each node
            reaches every other along the edges.

    Returns:
        The number of components, and for each node (n,) the number of its component, int64.

    Cost:
        O(nse) on the CPU.

    Raises:
        TypeError: `A` is not sparse.
        ValueError: `A` is not a square matrix, or has more than 2^31 - 1 rows or elements;
            `connection` is neither of the two.
        NotImplementedError: `A` has dense dimensions.
        ImportError: SciPy is not installed.

    Example:
        >>> A = spgrad.from_edges(torch.tensor([[0, 2], [1, 3]]))
        >>> spgrad.connected_components(A)
        (2, tensor([0, 0, 1, 1]))
    """
    M = square_matrix(A)
    if connection not in ("weak", "strong"):
        raise ArgumentValueError(
            f'`connection` is {connection!r}; "weak" or "strong" is accepted. Choose "strong" '
            "where the directions of edges count."
        )
    checks.require_packages("scipy", "scipy", "numpy")
    import numpy as np
    from scipy.sparse.csgraph import connected_components as pieces

    count, label = pieces(graph_of(M), directed=True, connection=connection)
    return int(count), torch.from_numpy(label.astype(np.int64)).to(M.device)


def square_matrix(A: Any) -> SparseTensor:
    """A as a sparse square matrix without repeated elements."""
    M = without_repeats(matrix_operand("A", A, bools=True))
    require_square(M)
    return M


def require_square(M: SparseTensor) -> None:
    """Refuses batches, and matrices whose rows and columns cannot stand for the same nodes."""
    require_rank("A", M, 2, "Call it for each matrix of a batch.")
    m, n = M._pattern.matrix
    if m != n:
        hint = "Rows and columns stand for the same nodes."
        raise checks.bad_shape("A", tuple(M._pattern.shape), "a square matrix", hint)


LARGEST = 2**31 - 1
"""Of the 32-bit integers in which SciPy's functions of graphs, METIS, and engines count."""


def require_countable(n: int, elements: int, of: str = "`A`") -> None:
    """Refuses a graph with more rows or elements than 32-bit integers count."""
    if max(n, elements) > LARGEST:
        raise ArgumentValueError(
            f"{of} has {n} rows and {elements} elements; SciPy's functions of graphs accept at "
            "most 2^31 - 1 of each. Work on a part A[nodes][:, nodes], such as "
            "nodes = A.coo_indices().unique(), the nodes with edges."
        )


def graph_of(M: SparseTensor) -> Any:
    """The pattern of a square matrix, as a SciPy matrix of ones; refused beyond int32."""
    require_countable(M._pattern.matrix[0], M._pattern.elements)
    import numpy as np
    from scipy.sparse import csr_array

    view = rows(M._pattern)
    ptr, idx = (i.to("cpu", torch.int32).numpy() for i in (view.ptr, view.idx))
    return csr_array((np.ones(len(idx), np.int8), idx, ptr), shape=tuple(M._pattern.matrix))
