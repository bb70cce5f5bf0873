"""Parts of a graph: on given nodes, on random nodes, and the parts of a partition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from spgrad import kernels
from spgrad.core import checks
from spgrad.core.pattern import Pattern
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import on_pattern, stored_values
from spgrad.data.arguments import (
    require_count,
    require_distinct,
    require_graph,
    require_members,
    stored_entries,
)
from spgrad.data.walks import random_walk
from spgrad.errors import ArgumentValueError
from spgrad.linalg.ordering import clusters, neighbour_graph
from spgrad.lowering.coalesce import without_repeats
from spgrad.lowering.gather import Gather
from spgrad.lowering.operands import sparse_operand
from spgrad.lowering.views import rows
from spgrad.public import public_as


class Subgraph(NamedTuple):
    """The entries of a matrix (n, n) between s of its n nodes."""

    A: SparseTensor
    """CSR (s, s), rows and columns in the order of `n_id`."""
    n_id: torch.Tensor
    """For each row its row in the whole matrix (s,), int64."""
    e_id: torch.Tensor
    """For each entry the position of its value among those of the whole matrix (nse,), int64."""


@public_as("data.subgraph")
def subgraph(A: torch.Tensor, nodes: torch.Tensor | Sequence[int]) -> Subgraph:
    """The entries of A whose row and column are among `nodes`.

    Args:
        A: Sparse matrix (n, n) in COO, CSR or CSC; repeated elements count as their sum.
        nodes: Distinct rows of A (s,), in the order that the result has, or a bool mask (n,).

    Returns:
        A `Subgraph`: the matrix in CSR, its nodes and the positions of its values in A, or in
        ``A.coalesce()`` where A has repeated elements.

    Gradient:
        On the pattern of A, zero outside of the subgraph.

    Cost:
        O(entries of the rows `nodes`) time and memory.

    Raises:
        TypeError: `A` is not sparse.
        NotImplementedError: `A` is in BSR or BSC.
        ValueError: A node is out of range or repeats, or A is not square.

    Example:
        >>> A = spgrad.from_dense(torch.arange(9.0).view(3, 3)).to_sparse_csr()
        >>> spgrad.data.subgraph(A, [2, 0]).A.to_dense()
        tensor([[8., 6.],
                [2., 0.]])
    """
    A = without_repeats(sparse_operand("A", A))
    pattern = require_graph(A, square=True)
    n_id = require_members("nodes", nodes, pattern.matrix[0])
    require_distinct("nodes", n_id)
    view, s = rows(pattern), n_id.numel()
    made, found, entry, _ = kernels.sample_lines(view.ptr, view.idx, None, n_id, 0, -1, False, 0)
    _, local, entry = kernels.relabel_lines(n_id.to(found.dtype), made, found, entry, True)
    inside = local < s  # nodes were numbered first
    before = torch.cat([made.new_zeros(1), inside.cumsum(0, dtype=made.dtype)])
    e_id = stored_entries(view, entry[inside])
    dtype = pattern.indices[0].dtype
    indices = before[made].to(dtype), local[inside].to(dtype)
    shape = (s, s, *pattern.dense_shape)
    part = Pattern(torch.sparse_csr, shape, indices, dense_dim=pattern.dense_dim)
    vals = Gather(e_id, pattern.nse)(stored_values(A))
    return Subgraph(on_pattern(vals, part), n_id, e_id)


@public_as("data.saint_sample")
def saint_sample(
    A: SparseTensor,
    num: int,
    *,
    method: str = "walk",
    length: int = 2,
    generator: torch.Generator | None = None,
) -> Subgraph:
    """The subgraph on random nodes, which are drawn by one of GraphSAINT's three methods.

    Args:
        A: Sparse matrix (n, n) in COO, CSR or CSC, coalesced.
        num: Draws, with replacement: of nodes, of edges, or of nodes where walks start.
        method: ``"node"``: in proportion to the number of entries in a node's column; ``"edge"``:
            entry (i, j) in proportion to 1 / (entries of row i) + 1 / (entries of row j);
            ``"walk"``: random walks from nodes that are drawn uniformly.
        length: Steps of a walk.
        generator: Source of the random numbers; None takes torch's default generator.

    Returns:
        A `Subgraph`, its nodes in ascending order. GraphSAINT normalises a loss by how often each
        node and edge is in a sample; ``n_id`` and ``e_id`` say which nodes and edges these are.

    Cost:
        O(nse) for nodes and edges, O(num * length) for walks, and that of `subgraph`.

    Raises:
        ValueError: `method` is unknown, or `num` is below 1.

    Source:
        Zeng, Zhou, Srivastava, Kannan and Prasanna, GraphSAINT (2020).

    Example:
        >>> A = spgrad.from_dense(torch.ones(5, 5)).to_sparse_csr()
        >>> part = spgrad.data.saint_sample(A, 2, length=1)
        >>> part.A.shape[0] == len(part.n_id) <= 4
        True
    """
    pattern = require_graph(A, square=True)
    require_count("num", num, 1, "a number of draws of 1 or more")
    require_count("length", length, 0, "a number of steps")
    checks.require_generator(generator)
    view, n = rows(pattern), pattern.matrix[0]
    if method not in ("node", "edge", "walk"):
        raise ArgumentValueError(
            f"`method` is {method!r}; 'node', 'edge' and 'walk' are accepted. Choose one of them."
        )
    if method == "walk":
        starts = torch.randint(max(n, 1), (num if n else 0,), generator=generator, device="cpu")
        return subgraph(A, random_walk(A, starts, length, generator=generator).unique())
    if view.idx.numel() == 0:
        return subgraph(A, [])
    if method == "node":
        drawn = torch.randint(view.idx.numel(), (num,), generator=generator, device="cpu")
        return subgraph(A, view.idx[drawn].long().unique())
    row = kernels.expand(view.ptr, view.idx.numel()).long()
    inverse = 1 / view.ptr.diff().double()
    degree = torch.where(view.ptr.diff() > 0, inverse, 0.0)
    sums = (degree[row] + degree[view.idx.long()]).cumsum(0)
    part = torch.rand(num, dtype=torch.float64, generator=generator, device="cpu") * sums[-1]
    edge = torch.searchsorted(sums, part, right=True).clamp(max=len(sums) - 1)
    return subgraph(A, torch.cat([row[edge], view.idx[edge].long()]).unique())


@public_as("data.partition")
def partition(A: SparseTensor, parts: int, *, weights: torch.Tensor | None = None) -> torch.Tensor:
    """Puts the nodes of a graph into parts of about equal size with few edges between them.

    Args:
        A: Sparse matrix (n, n) in COO, CSR or CSC, coalesced; edges count in both directions.
        parts: Number of parts.
        weights: Weight of each node (n,), int64 or int32, not negative, such as its number of
            edges; None counts nodes. The parts have about equal sums of weights.

    Returns:
        The part of each node (n,), int64. ``subgraph(A, (found == i))`` is part i. Of `parts`
        beyond the number of nodes, some are empty.

    Cost:
        O(nse) on average, by METIS.

    Raises:
        ValueError: `A` is not square, or has more than 2^31 - 1 rows or elements; `parts` is below
            1, or `weights` are not as above.
        ImportError: pymetis or SciPy is not installed; the extra is ``spgrad[order]``.

    Source:
        Karypis and Kumar, A fast and high quality multilevel scheme for partitioning irregular
        graphs (1998); Chiang et al., Cluster-GCN (2019).

    Example:
        >>> pair = torch.ones(2, 2)
        >>> A = spgrad.from_dense(torch.block_diag(pair, pair)).to_sparse_csr()
        >>> part = spgrad.data.partition(A, 2)
        >>> bool(part[0] == part[1]), bool(part[0] == part[2])
        (True, False)
    """
    pattern = require_graph(A, square=True)
    require_count("parts", parts, 1, "a number of parts of 1 or more")
    n = pattern.matrix[0]
    if weights is not None:
        checks.require_index("weights", weights)
        if weights.shape != (n,) or (n and int(weights.min()) < 0):
            hint = "Each node has one weight, of 0 or more."
            raise checks.bad_shape("weights", tuple(weights.shape), f"({n},)", hint)
        if int(weights.double().sum()) >= 2**62:
            raise ArgumentValueError(
                "`weights` has a sum of 2^62 or more; smaller sums are accepted. Divide the "
                "weights by a common number."
            )
    if parts == 1:
        return torch.zeros(n, dtype=torch.int64, device=pattern.device)
    if parts >= n:
        return torch.arange(n, device=pattern.device)
    checks.require_packages("order", "pymetis", "scipy", "numpy")
    counted = None if weights is None else weights.cpu().numpy()
    found = clusters(neighbour_graph(A), parts, counted)
    return torch.from_numpy(found).to(pattern.device, torch.int64)
