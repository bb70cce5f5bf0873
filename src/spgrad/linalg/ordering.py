"""Orders of rows and columns for which a product reads nearby rows of x one after the other."""

from __future__ import annotations

from typing import Any

import torch

from spgrad.core import checks
from spgrad.core.tensor import SparseTensor
from spgrad.errors import ArgumentIndexError, ArgumentValueError
from spgrad.linalg.structure import (
    graph_of,
    require_countable,
    require_square,
    square_matrix,
)
from spgrad.lowering.operands import dense_operand, matrix_operand, require_int
from spgrad.ops.indexing.getitem import index_select
from spgrad.public import public_op


@public_op
def reverse_cuthill_mckee(A: torch.Tensor) -> torch.Tensor:
    """An order of the rows and columns in which the elements lie near the diagonal.

    ``A[perm][:, perm]`` is A in that order, a product with it takes ``x[perm]`` and gives
    ``(A @ x)[perm]``. Rows of x that are read one after the other are then near each other in
    memory. This pays for meshes, whose given order is often arbitrary, and seldom for graphs with
    hubs. Cuthill and McKee, Reducing the bandwidth of sparse symmetric matrices (1969), reversed
    as by George (1971); SciPy's code.

    Args:
        A: Sparse square matrix (n, n) of any layout. Only its pattern counts, explicit zeros too;
            an element (i, j) counts as (j, i) as well.

    Returns:
        perm (n,), int64: row perm[i] of A becomes row i. It has no gradient.

    Cost:
        O(nse log(longest row)) on the CPU, one thread; O(nse) memory.

    Raises:
        TypeError: `A` is not sparse.
        ValueError: `A` is not square, no matrix, or has more than 2^31 - 1 rows or elements.
        NotImplementedError: `A` has dense dimensions.
        ImportError: SciPy is not installed.

    Example:
        >>> A = spgrad.from_edges(torch.tensor([[0, 3, 1], [3, 1, 2]]))
        >>> perm = spgrad.reverse_cuthill_mckee(A)
        >>> A[perm][:, perm].to_dense().nonzero().diff().abs().max().item()
        1
    """
    M = square_matrix(A)
    checks.require_packages("scipy", "scipy", "numpy")
    if M._pattern.matrix[0] == 0:
        return torch.zeros(0, dtype=torch.int64, device=M.device)
    import numpy as np
    from scipy.sparse.csgraph import reverse_cuthill_mckee as order

    found = order(graph_of(M), symmetric_mode=False)
    forwards = found.astype(np.int64)  # it has a negative stride
    return torch.from_numpy(forwards).to(M.device)


@public_op
def locality_order(A: torch.Tensor, size: int = 1024) -> torch.Tensor:
    """An order of the rows and columns in which clusters of the graph of A lie side by side.

    METIS cuts the graph into clusters of about `size` rows with few edges between them, and each
    cluster is in the order of Cuthill and McKee. Rows that an edge joins then lie near each other,
    also in graphs with hubs, of which the method of Cuthill and McKee puts most rows into one
    level. Karypis and Kumar, A fast and high quality multilevel scheme for partitioning irregular
    graphs (1998). In a graph without clusters, such as most friendship networks, no order helps.
    Time a product with `spgrad.reorder(A, order)` to see whether the order helps.

    Args:
        A: Sparse square matrix (n, n) of any layout. Only its pattern counts, explicit zeros too;
            an element (i, j) counts as (j, i) as well.
        size: Rows of a cluster, 1 or more.

    Returns:
        order (n,), int64: row order[i] of A becomes row i. It has no gradient.

    Cost:
        About 1 to 5 microseconds for each element on the CPU, one thread: as long as hundreds of
        products with a few columns. O(nse) memory.

    Raises:
        TypeError: `A` is not sparse, or `size` is not an int.
        ValueError: `A` is not square, no matrix, or A + A^T has more than 2^31 - 1 rows or
            elements; `size` is less than 1.
        NotImplementedError: `A` has dense dimensions.
        ImportError: SciPy or pymetis is not installed.

    Example:
        >>> path = torch.tensor([[0, 3, 1, 6, 4, 5], [3, 1, 6, 4, 2, 5]])
        >>> A = spgrad.from_edges(path)
        >>> order = spgrad.locality_order(A, size=4)
        >>> order.sort().values
        tensor([0, 1, 2, 3, 4, 5, 6])
    """
    M = square_matrix(A)
    if require_int("size", size) < 1:
        raise ArgumentValueError(
            f"`size` is {size}; an int of 1 or more is accepted. It is the number of rows in a "
            "cluster."
        )
    checks.require_packages("order", "pymetis", "scipy", "numpy")
    import numpy as np
    from scipy.sparse.csgraph import reverse_cuthill_mckee as order

    n = M._pattern.matrix[0]
    if n == 0:
        return torch.zeros(0, dtype=torch.int64, device=M.device)
    graph = neighbour_graph(M)
    rank = np.empty(n, np.int64)
    rank[order(graph, symmetric_mode=True)] = np.arange(n)
    found = np.lexsort((rank, clusters(graph, -(-n // size))))
    return torch.from_numpy(found).to(M.device, torch.int64)


def neighbour_graph(M: SparseTensor) -> Any:
    """The pattern of M + M^T without a diagonal, as a SciPy matrix."""
    graph = graph_of(M)
    graph = (graph + graph.T).tocsr()  # int8: a sum may not become 0
    graph.setdiag(0)
    graph.eliminate_zeros()
    require_countable(graph.shape[0], graph.nnz, "`A` + `A`^T")
    return graph


_FEW_ROWS = 8
"""Clusters of fewer rows are found by METIS's recursive bisection."""


def clusters(graph: Any, count: int, weights: Any = None) -> Any:
    """The number of the cluster of each row of a symmetric SciPy matrix without a diagonal.

    The sum of `weights`, a NumPy vector (n,), is about equal for all clusters; None counts rows.
    """
    import numpy as np
    import pymetis

    if count == 1:
        return np.zeros(graph.shape[0], np.int64)
    adjacency = pymetis.CSRAdjacency(graph.indptr, graph.indices)
    # the direct method leaves parts of few rows empty, and may put all rows into one
    bisects = True if graph.shape[0] < _FEW_ROWS * count else None
    found = pymetis.part_graph(count, adjacency=adjacency, vweights=weights, recursive=bisects)
    return np.asarray(found.vertex_part)


@public_op
def reorder(
    A: torch.Tensor, order: torch.Tensor, *operands: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Puts the rows and columns of A and the rows of operands in another order.

    ``B, y, back = spgrad.reorder(A, order, x)`` gives ``B = A[order][:, order]`` and
    ``y = x[order]``, so that ``(B @ y)[back]`` is ``A @ x``: repeated products run in the new
    order, and only their result is brought back to the old one.

    Args:
        A: Sparse square matrix (n, n) of any layout.
        order: A permutation of 0 ... n - 1, such as `spgrad.locality_order(A)`; int64 or int32.
        operands: Dense tensors (n, ...).

    Returns:
        B (n, n), in the layout of A, or CSR or CSC if it is BSR or BSC; the operands in the new
        order; and `back` (n,), int64, the inverse of `order`.

    Gradient:
        Of A on its own pattern, and of the operands.

    Cost:
        O(nse), and one pass over each operand.

    Raises:
        TypeError: `A` is not sparse, or `order` or an operand no dense tensor.
        ValueError: `A` is not square or no matrix, `order` is no permutation of its rows, or an
            operand has another number of rows.
        NotImplementedError: `A` has dense dimensions.

    Example:
        >>> A = spgrad.from_edges(torch.tensor([[0, 3, 1], [3, 1, 2]]))
        >>> x = torch.arange(4.0)
        >>> B, y, back = spgrad.reorder(A, spgrad.reverse_cuthill_mckee(A), x)
        >>> torch.equal((B @ y)[back], A @ x)
        True
    """
    matrix = matrix_operand("A", A, bools=True)
    require_square(matrix)
    n = matrix._pattern.matrix[0]
    order = dense_operand("order", order)
    if order.shape != (n,) or order.dtype not in (torch.int64, torch.int32):
        raise ArgumentValueError(
            f"`order` has shape {tuple(order.shape)} and dtype {order.dtype}; ({n},) and int64 or "
            "int32 are accepted. spgrad.locality_order(A) gives one."
        )
    back = torch.full((n,), -1, dtype=torch.int64, device=order.device)
    order = order.to(torch.int64)
    if n > 0 and not (0 <= int(order.min()) and int(order.max()) < n):
        raise ArgumentIndexError(
            f"`order` has indices from {int(order.min())} to {int(order.max())}; 0 to {n - 1} are "
            "accepted. spgrad.locality_order(A) gives such an order."
        )
    back[order] = torch.arange(n, device=order.device)
    if n > 0 and int(back.min()) < 0:
        raise ArgumentValueError(
            f"`order` lacks row {int((back < 0).nonzero()[0])}, and has another twice; a "
            f"permutation of 0 to {n - 1} is accepted. Compare it with torch.arange({n})."
        )
    for i, operand in enumerate(operands):
        x = dense_operand(f"operands[{i}]", operand)
        if x.dim() == 0 or x.shape[0] != n:
            raise ArgumentValueError(
                f"`operands[{i}]` has shape {tuple(x.shape)}; ({n}, ...) is accepted, because A "
                f"has {n} rows."
            )
    B = index_select(index_select(matrix, 0, order), 1, order)
    return (B, *(x.index_select(0, order) for x in operands), back)
