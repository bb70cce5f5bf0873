"""Graphs: from edge lists as PyTorch Geometric keeps them."""

from __future__ import annotations

from typing import Any, Literal, overload

import torch

from spgrad import kernels
from spgrad.core import checks
from spgrad.core.construct import (
    Options,
    coo_leaf,
    index_tensor,
    int_of,
    size_tuple,
    value_tensor,
)
from spgrad.core.tensor import SparseTensor
from spgrad.errors import ArgumentKindError, ArgumentValueError
from spgrad.lowering.convert import convert
from spgrad.ops.layouts.convert import require_layout
from spgrad.public import public_op


@overload
def from_edges(
    edge_index: Any,
    edge_weight: Any = ...,
    size: tuple[int, int] | int | None = ...,
    *,
    layout: torch.layout = ...,
    return_order: Literal[False] = ...,
) -> SparseTensor: ...
@overload
def from_edges(
    edge_index: Any,
    edge_weight: Any = ...,
    size: tuple[int, int] | int | None = ...,
    *,
    layout: torch.layout = ...,
    return_order: Literal[True],
) -> tuple[SparseTensor, torch.Tensor]: ...
@public_op
def from_edges(
    edge_index: Any,
    edge_weight: Any = None,
    size: tuple[int, int] | int | None = None,
    *,
    layout: torch.layout = torch.sparse_csr,
    return_order: bool = False,
) -> SparseTensor | tuple[SparseTensor, torch.Tensor]:
    """The adjacency matrix of a graph: element (i, j) is the weight of the edge from i to j.

    This is the orientation of PyG's `to_torch_csr_tensor`. ``A @ x`` then adds up, for each node,
    the rows of x of its out-neighbours; pass ``edge_index.flip(0)`` to sum over in-neighbours.

    The values of A are sorted by row (by column in CSC), whatever the order of the edges. To bring
    later weights, in the order of the edges, into this order, use ``return_order=True``, or call
    `from_edges` again with these weights; the second call sorts again, but adds up the weights of
    repeated edges.

    PyG's `Batch` takes a SparseTensor apart and has torch join the parts: the result is a native
    tensor, unless the batch is made inside of ``with spgrad.dropin()``. `from_torch` makes a
    SparseTensor of it without a copy, and `spgrad.block_diag` joins SparseTensors as `Batch` does.

    Args:
        edge_index: int (2, edges): sources and targets; or the pair of them; or PyG's `EdgeIndex`.
        edge_weight: (edges,) or (edges, features); ones by default. Weights of repeated edges add.
            If the edges are sorted and distinct, A shares their memory; pass a clone if A will be
            changed in place and the weights are needed later.
        size: Number of nodes, or (rows, columns) of a bipartite graph; by default the
            `sparse_size()` of an `EdgeIndex` that knows it, else the smallest square that holds
            the edges.
        layout: torch.sparse_csr, sparse_csc or sparse_coo.
        return_order: Also gives the order in which the edges are stored.

    Returns:
        SparseTensor (nodes, nodes), coalesced. With `return_order` also int64 (edges,): the edges
        ``edge_index[:, order]`` are in the order of ``A.values()``. So ``w[order]`` are the values
        for other weights w (edges,), where no edge repeats. Repeated edges share one value and are
        next to one another in `order`; then `from_values` refuses ``w[order]``, which is too long.

    Gradient:
        Of `edge_weight`: the cotangent at each edge.

    Cost:
        O(edges) radix passes.

    Raises:
        TypeError: `edge_index` is not a tensor or list, or `layout` is not a sparse layout.
        ValueError: `edge_index` is not (2, edges), a node is out of range, weights don't fit, or
            `layout` is one of blocks.

    Example:
        >>> A = spgrad.from_edges(torch.tensor([[0, 0, 2], [1, 2, 0]]))
        >>> A.to_dense()
        tensor([[0., 1., 1.],
                [0., 0., 0.],
                [1., 0., 0.]])
        >>> A, order = spgrad.from_edges([[2, 0], [0, 1]], return_order=True)
        >>> spgrad.from_values(torch.tensor([5.0, 7.0])[order], A).to_dense()
        tensor([[0., 7., 0.],
                [0., 0., 0.],
                [5., 0., 0.]])
    """
    require_no_blocks(layout)
    if callable(known := getattr(edge_index, "sparse_size", None)):  # PyG's EdgeIndex
        size = _known_size(edge_index, known()) if size is None else size
        edge_index = edge_index.as_tensor()
    if _is_pair(edge_index):
        source, target = edge_index
        if source.shape != target.shape:
            hint = "Give one target for each source."
            accepted = f"{tuple(source.shape)}, the shape of edge_index[0],"
            raise checks.bad_shape("edge_index[1]", tuple(target.shape), accepted, hint)
        edge_index = torch.stack((source, target))
    options = Options(None, None, False, False, None)
    weights = None
    if edge_weight is not None:
        weights = value_tensor(edge_weight, options, "edge_weight")
    here = edge_index.device if isinstance(edge_index, torch.Tensor) else None
    anchor = torch.empty(0, device=here) if weights is None else weights
    if here is not None:
        checks.require_same_device(edge_index=edge_index, edge_weight=anchor)
    edges = index_tensor("edge_index", edge_index, anchor, options)
    if edges.dim() != 2 or edges.shape[0] != 2:
        hint = "Sources in the first row, targets in the second; transpose a list of pairs."
        if edges.dim() == 1:
            hint = "Give sources and targets as a pair: from_edges((sources, targets), weights)."
        raise checks.bad_shape("edge_index", tuple(edges.shape), "(2, edges)", hint)
    if weights is None:
        weights = torch.ones(edges.shape[1], device=edges.device)
    if weights.dim() == 0 or weights.shape[0] != edges.shape[1]:
        accepted = f"({edges.shape[1]},) or ({edges.shape[1]}, features)"
        hint = "Give one weight for each edge, and the number of nodes as size=."
        raise checks.bad_shape("edge_weight", tuple(weights.shape), accepted, hint)
    nodes = _nodes(edges, size)
    listed = coo_leaf("edge_index", edges, weights, (*nodes, *weights.shape[1:]), options)
    A = convert(listed, layout)
    return (A, _order(edges, nodes, layout)) if return_order else A


def require_no_blocks(layout: torch.layout) -> None:
    """Refuses what is not COO, CSR or CSC."""
    require_layout(layout)
    if layout in (torch.sparse_bsr, torch.sparse_bsc):
        raise ArgumentValueError(
            f"`layout` is {layout}; torch.sparse_csr, sparse_csc and sparse_coo are accepted. "
            "Convert the result to blocks with to_sparse_bsr(blocksize) or to_sparse_bsc."
        )


def _order(edges: torch.Tensor, nodes: tuple[int, int], layout: torch.layout) -> torch.Tensor:
    """The order that sorts edges by row, or by column for CSC."""
    by_columns = layout == torch.sparse_csc
    indices = edges.flip(0) if by_columns else edges
    sizes = [nodes[1], nodes[0]] if by_columns else list(nodes)
    return kernels.sort_coo(indices.contiguous(), sizes)[2].to(torch.int64)


def _known_size(edge_index: Any, known: Any) -> Any:
    """The size that an `EdgeIndex` knows; of one that is None, the smallest that fits."""
    if known == (None, None):
        return None
    most = edge_index.as_tensor().amax(1).tolist() if edge_index.numel() else (-1, -1)
    rows, cols = (most[i] + 1 if known[i] is None else known[i] for i in range(2))
    return rows, cols


def _is_pair(edges: Any) -> bool:
    """Whether these are two vectors, the sources and the targets."""
    pair = isinstance(edges, (tuple, list)) and len(edges) == 2
    return pair and all(isinstance(end, torch.Tensor) and end.dim() == 1 for end in edges)


def _nodes(edges: torch.Tensor, size: Any) -> tuple[int, int]:
    """Rows and columns of the adjacency matrix."""
    if size is None:
        nodes = max(int(edges.max()) + 1, 0) if edges.numel() else 0
        return nodes, nodes
    accepted, hint = (
        "a number of nodes, or (rows, columns),",
        "Leave it out for the smallest square.",
    )
    size = int_of(size)
    if not isinstance(size, (*checks.INT, tuple, list)) or isinstance(size, bool):
        raise ArgumentKindError(f"`size` is {size!r}; {accepted} is accepted. {hint}")
    square: Any = (size, size)
    shape = size_tuple(square if isinstance(size, checks.INT) else size)
    if len(shape) != 2:
        raise checks.bad_shape("size", shape, accepted, hint)
    return shape[0], shape[1]
