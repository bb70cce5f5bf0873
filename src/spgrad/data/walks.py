"""Random walks on a graph, of first and second order."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from spgrad import kernels
from spgrad.core import checks
from spgrad.core.tensor import SparseTensor
from spgrad.data.arguments import random_key, require_count, require_graph, require_members
from spgrad.errors import ArgumentValueError
from spgrad.lowering.views import rows
from spgrad.public import public_as


@public_as("data.random_walk")
def random_walk(
    A: SparseTensor,
    starts: torch.Tensor | Sequence[int],
    length: int,
    *,
    p: float = 1.0,
    q: float = 1.0,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    """Walks from each start: every step goes to a random neighbour, a column of the node's row.

    With p or q other than 1 a step depends on the one before, as in node2vec: from v, reached from
    t, the weight of a neighbour x is 1/p if x is t, 1 if A has an entry (t, x), and 1/q otherwise.
    Steps are proposed and accepted or rejected. After 8 rejections, all weights of the row are
    computed, so a step ends for every p and q. The values of A are not read.

    Args:
        A: Sparse matrix (n, n) in COO, CSR or CSC, coalesced.
        starts: Rows of A (s,); they may repeat.
        length: Number of steps.
        p: With a large p, a walk seldom returns to the node that it came from.
        q: With a large q, a walk stays near its start.
        generator: Source of the random numbers; None takes torch's default generator.

    Returns:
        The nodes of each walk (s, length + 1), int64. A walk stays in a node without neighbours.

    Cost:
        O(s * length) for p = q = 1; with others O(log(longest row)) for each proposal. The result
        does not depend on the number of threads.

    Raises:
        ValueError: A start is out of range, or p or q is not positive and finite.

    Source:
        Grover and Leskovec, node2vec: Scalable Feature Learning for Networks (2016).

    Example:
        >>> ring = torch.eye(4).roll(1, 1)
        >>> A = spgrad.from_dense(ring).to_sparse_csr()
        >>> spgrad.data.random_walk(A, [0, 2], 3)
        tensor([[0, 1, 2, 3],
                [2, 3, 0, 1]])
    """
    pattern = require_graph(A, square=True)
    now = require_members("starts", starts, pattern.matrix[0])
    require_count("length", length, 0, "a number of steps")
    for name, number in (("p", p), ("q", q)):
        checks.require_number(name, number, "1.0 is neutral.")
        if not 0 < number < float("inf"):
            raise ArgumentValueError(
                f"`{name}` is {number}; a positive finite number is accepted. 1.0 is neutral."
            )
    ptr, idx = rows(pattern)[:2]
    key = random_key(generator)
    return kernels.random_walks(ptr, idx, now.to(idx.device), length, float(p), float(q), key)
