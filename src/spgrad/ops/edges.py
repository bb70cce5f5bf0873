"""Graphs: from edge lists as PyTorch Geometric keeps them."""

from __future__ import annotations

from typing import Any

import torch

from spgrad import checks
from spgrad.construct import (
    Options,
    index_tensor,
    size_tuple,
    sparse_coo_tensor,
    value_tensor,
)
from spgrad.ops.convert import convert, require_blocksize, require_layout
from spgrad.tensor import SparseTensor


def from_edges(
    edge_index: Any,
    edge_weight: Any = None,
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
    options = Options(None, None, False, False, None)
    weights = None if edge_weight is None else value_tensor(fn, edge_weight, options)
    here = edge_index.device if isinstance(edge_index, torch.Tensor) else None
    anchor = torch.empty(0, device=here) if weights is None else weights
    if here is not None:
        checks.require_same_device(fn, edge_index=edge_index, edge_weight=anchor)
    edges = index_tensor(fn, "edge_index", edge_index, anchor, options)
    if edges.dim() != 2 or edges.shape[0] != 2:
        hint = "Sources in the first row, targets in the second."
        raise checks.bad_shape(fn, "edge_index", tuple(edges.shape), "(2, edges)", hint)
    if weights is None:
        weights = torch.ones(edges.shape[1], device=edges.device)
    if weights.dim() == 0 or weights.shape[0] != edges.shape[1]:
        accepted = f"({edges.shape[1]},) or ({edges.shape[1]}, features)"
        hint = "Give one weight for each edge."
        raise checks.bad_shape(fn, "edge_weight", tuple(weights.shape), accepted, hint)
    nodes = _nodes(fn, edges, size)
    A = sparse_coo_tensor(edges, weights, (*nodes, *weights.shape[1:]))
    return convert(A, layout, require_blocksize(fn, A._pattern, layout, None))


def _nodes(fn: str, edges: torch.Tensor, size: Any) -> tuple[int, int]:
    """Rows and columns of the adjacency matrix."""
    if size is None:
        nodes = max(int(edges.max()) + 1, 0) if edges.numel() else 0
        return nodes, nodes
    shape = size_tuple(fn, (size, size) if isinstance(size, int) else size)
    if len(shape) != 2:
        hint = "Leave it out for the smallest square."
        accepted = "a number of nodes, or (rows, columns),"
        raise checks.bad_shape(fn, "size", shape, accepted, hint)
    return shape[0], shape[1]
