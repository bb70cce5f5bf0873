"""Graphs: from edge lists as PyTorch Geometric keeps them."""

from __future__ import annotations

from typing import Any

import torch

from spgrad import checks
from spgrad.construct import sparse_coo_tensor
from spgrad.ops.convert import convert, require_blocksize, require_layout
from spgrad.tensor import SparseTensor


def from_edges(
    edge_index: Any,
    edge_weight: torch.Tensor | None = None,
    size: tuple[int, int] | int | None = None,
    *,
    layout: torch.layout = torch.sparse_csr,
) -> SparseTensor:
    """The adjacency matrix of a graph: element (i, j) is the weight of the edge from i to j.

    This is the orientation of PyG's `to_torch_csr_tensor`. ``A @ x`` then adds up, for each node,
    what its out-neighbours hold; pass ``edge_index.flip(0)`` to gather from in-neighbours.

    Args:
        edge_index: int (2, edges): sources and targets.
        edge_weight: (edges,) or (edges, features); ones by default. Weights of repeated edges add.
        size: Number of nodes, or (rows, columns) of a bipartite graph; by default the smallest
            square that holds the edges.
        layout: torch.sparse_csr, sparse_csc or sparse_coo.

    Returns:
        SparseTensor (nodes, nodes), coalesced.

    Gradient:
        Of `edge_weight`: the cotangent at each edge.

    Cost:
        O(edges) radix passes.

    Raises:
        TypeError: `edge_index` is no tensor or list, or `layout` no sparse layout.
        ValueError: `edge_index` is not (2, edges), a node is out of range, or weights don't fit.

    Example:
        >>> A = spgrad.from_edges(torch.tensor([[0, 0, 2], [1, 2, 0]]))
        >>> A.to_dense()
        tensor([[0., 1., 1.],
                [0., 0., 0.],
                [1., 0., 0.]])
    """
    fn = "from_edges"
    require_layout(fn, layout)
    edges = torch.as_tensor(edge_index)
    if edges.dim() != 2 or edges.shape[0] != 2:
        hint = "Sources in the first row, targets in the second."
        raise checks.bad_shape(fn, "edge_index", tuple(edges.shape), "(2, edges)", hint)
    checks.require_index(fn, "edge_index", edges)
    if edge_weight is None:
        edge_weight = torch.ones(edges.shape[1], device=edges.device)
    if size is None:
        nodes = int(edges.max()) + 1 if edges.numel() else 0
        size = (nodes, nodes)
    rows, columns = (size, size) if isinstance(size, int) else size
    shape = (rows, columns, *edge_weight.shape[1:])
    A = sparse_coo_tensor(edges, edge_weight, shape)
    return convert(A, layout, require_blocksize(fn, A._pattern, layout, None))
