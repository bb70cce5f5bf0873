"""Orders of rows and columns that put what is multiplied together side by side."""

from __future__ import annotations

import torch

from spgrad.core import checks
from spgrad.lowering.coalesce import without_repeats
from spgrad.lowering.operands import matrix_operand, require_rank
from spgrad.lowering.views import rows
from spgrad.public import public_op


@public_op
def reverse_cuthill_mckee(A: torch.Tensor) -> torch.Tensor:
    """An order of the rows and columns in which the elements lie near the diagonal.

    ``A[perm][:, perm]`` is A in that order, a product with it takes ``x[perm]`` and gives
    ``(A @ x)[perm]``. Rows of x that are read one after the other then lie side by side: worth it
    for meshes, whose given order is often arbitrary, and seldom for graphs with hubs. Cuthill and
    McKee, Reducing the bandwidth of sparse symmetric matrices (1969), reversed as by George
    (1971); SciPy's code.

    Args:
        A: Sparse square matrix (n, n) of any layout. Only its pattern counts, explicit zeros too,
            and both of (i, j) and (j, i) if one of them is there.

    Returns:
        perm (n,), int64: row perm[i] of A becomes row i. It has no gradient.

    Cost:
        O(nse log(longest row)) on the CPU, one thread; O(nse) memory.

    Raises:
        TypeError: `A` is not sparse.
        ValueError: `A` is not square, or no matrix.
        NotImplementedError: `A` has dense dimensions.
        ImportError: SciPy is not installed.

    Example:
        >>> A = spgrad.from_edges(torch.tensor([[0, 3, 1], [3, 1, 2]]))
        >>> perm = spgrad.reverse_cuthill_mckee(A)
        >>> A[perm][:, perm].to_dense().nonzero().diff().abs().max().item()
        1
    """
    M = without_repeats(matrix_operand("A", A, bools=True))
    require_rank("A", M, 2, "Call it for each matrix of a batch.")
    pattern = M._pattern
    m, n = pattern.matrix
    if m != n:
        hint = "Rows and columns are put in the same order."
        raise checks.bad_shape("A", tuple(pattern.shape), "a square matrix", hint)
    checks.require_packages("scipy", "scipy", "numpy")
    import numpy as np
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import reverse_cuthill_mckee as order

    if n == 0:
        return torch.zeros(0, dtype=torch.int64, device=pattern.device)
    view = rows(pattern)
    ptr, idx = (i.to("cpu", torch.int32).numpy() for i in (view.ptr, view.idx))
    graph = csr_array((np.ones(len(idx), np.int8), idx, ptr), shape=(n, n))
    perm = order(graph, symmetric_mode=False)
    return torch.from_numpy(perm.astype(np.int64)).to(pattern.device)
