"""PyTorch Geometric and DGL: graphs made of tensors."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from spgrad.core import checks
from spgrad.core.pattern import LAYOUT_NAMES
from spgrad.core.tensor import SparseTensor
from spgrad.errors import ArgumentKindError, ArgumentValueError
from spgrad.interop.edges import listed
from spgrad.lowering.coalesce import without_repeats
from spgrad.lowering.operands import sparse_operand
from spgrad.ops.creation.graph import from_edges, require_no_blocks
from spgrad.ops.layouts.convert import to_sparse
from spgrad.public import public_op


@public_op
def from_pyg(
    data: Any, *, weight: str | None = None, layout: torch.layout = torch.sparse_csr
) -> SparseTensor:
    """The adjacency matrix of a graph of PyTorch Geometric: element (i, j) for an edge i to j.

    The layers of `spgrad.nn` sum over the edges that lead to a node, as those of PyTorch Geometric
    do: give them the transpose, ``from_pyg(data).t()``, or a matrix made of `adj_t`.

    Args:
        data: `Data` or a part of `HeteroData` with `edge_index` (or `adj_t`), `EdgeIndex`, or a
            matrix as `adj_t` holds one: a `SparseTensor` of torch_sparse, a native sparse tensor,
            or a SparseTensor.
        weight: The attribute of `data` with a weight for each edge; by default `edge_weight` if
            there is one, else ones. Only for graphs with `edge_index`.
        layout: torch.sparse_csr, sparse_csc or sparse_coo.

    Returns:
        SparseTensor (nodes, nodes), for a part of HeteroData (source nodes, target nodes),
        coalesced: weights of repeated edges add. `adj_t` and other matrices keep their
        orientation: element (i, j) is that of the matrix.

    Gradient:
        Of the weights: the cotangent at each edge.

    Cost:
        O(edges) radix passes.

    Raises:
        TypeError: `data` is none of these.
        ValueError: `data` has no attribute `weight`, or weights don't fit.

    Example:
        >>> class Data:
        ...     edge_index = torch.tensor([[0, 1], [1, 2]])
        ...     num_nodes = 4
        >>> spgrad.from_pyg(Data()).shape
        torch.Size([4, 4])
    """
    edges = getattr(data, "edge_index", None)
    matrix = data if _is_matrix(data) else getattr(data, "adj_t", None) if edges is None else None
    if matrix is not None:
        _require_no_weight(weight, "a matrix, which has its own values", "Leave it out.")
        return _from_matrix(matrix, layout)
    if isinstance(data, torch.Tensor):
        _require_no_weight(weight, "edges alone", "Call spgrad.from_edges with the weights.")
        return from_edges(data, layout=layout)
    if not isinstance(edges, torch.Tensor):
        raise ArgumentKindError(
            f"`data` is {checks.describe_kind(data)} without edge_index and adj_t; a graph of "
            "torch_geometric is accepted. Use spgrad.from_edges for tensors of edges, and one kind "
            "of edges of HeteroData, such as data['user', 'rates', 'item']."
        )
    weights = getattr(data, weight or "edge_weight", None)
    if weight is not None and weights is None:
        raise ArgumentValueError(
            f"`weight` is {weight!r}, which `data` lacks; an attribute with one weight for each "
            "edge is accepted. Leave it out for ones."
        )
    return from_edges(edges, weights, _size(data), layout=layout)


def _size(data: Any) -> Any:
    """The number of nodes, or those at both ends of the edges of a part of HeteroData, if known."""
    nodes = getattr(data, "num_nodes", None)
    if nodes is not None or not callable(getattr(data, "size", None)):
        return nodes
    ends = tuple(data.size())
    return None if None in ends else ends


def _is_matrix(data: Any) -> bool:
    """Whether this is a SparseTensor of torch_sparse, or a sparse tensor."""
    return callable(getattr(data, "sparse_sizes", None)) or (
        isinstance(data, torch.Tensor) and data.layout in LAYOUT_NAMES
    )


def _require_no_weight(weight: str | None, what: str, hint: str) -> None:
    if weight is not None:
        raise ArgumentValueError(f"`weight` is {weight!r} for {what}; None is accepted. {hint}")


def _from_matrix(data: Any, layout: torch.layout) -> SparseTensor:
    if not _is_matrix(data):
        raise ArgumentKindError(
            f"`data` has {checks.describe_kind(data)} as `adj_t`; a sparse matrix is accepted. Use "
            "spgrad.from_edges for tensors of edges."
        )
    if isinstance(data, torch.Tensor):
        require_no_blocks(layout)
        return to_sparse(without_repeats(sparse_operand("data", data)), layout=layout)
    row, col, vals = data.coo()
    return from_edges(torch.stack([row, col]), vals, tuple(data.sparse_sizes()), layout=layout)


@public_op
def to_pyg(A: torch.Tensor, kind: str = "data") -> Any:
    """A graph of PyTorch Geometric with an edge i to j for each specified element (i, j).

    Args:
        A: Sparse (n, n) of any layout; (m, k) for the kinds "edge_index" and "sparse_tensor".
        kind: "data" for `Data` with `edge_index`, `edge_weight` and `num_nodes`; "edge_index" for
            the pair (`EdgeIndex`, weights), sorted by row; "sparse_tensor" for the `SparseTensor`
            of torch_sparse.

    Returns:
        The object that `kind` names. Its weights are differentiable.

    Gradient:
        Of `A` on its pattern.

    Cost:
        O(nse).

    Raises:
        TypeError: `A` is not sparse.
        ValueError: `A` is no matrix, or not square for "data", or `kind` none of the three.
        ImportError: torch_geometric, or torch_sparse, is not installed.

    Example:
        >>> import importlib.util, pytest
        >>> if importlib.util.find_spec("torch_geometric") is None:
        ...     pytest.skip("torch_geometric is not installed")
        >>> import warnings
        >>> warnings.simplefilter("ignore")  # its import warns of its own code
        >>> spgrad.to_pyg(spgrad.eye(3)).num_nodes
        3
    """
    if kind not in ("data", "edge_index", "sparse_tensor"):
        raise ArgumentValueError(
            f"`kind` is {kind!r}; 'data', 'edge_index' and 'sparse_tensor' are accepted. Choose "
            "one of them."
        )
    M, edges, vals = listed(A, square=kind == "data")
    size = tuple(M._pattern.matrix)
    if kind == "sparse_tensor":
        checks.require_packages(None, "torch_sparse")
        make: Any = importlib.import_module("torch_sparse").SparseTensor
        return make(row=edges[0], col=edges[1], value=vals, sparse_sizes=size)
    checks.require_packages("pyg", "torch_geometric")
    if kind == "data":
        make = importlib.import_module("torch_geometric.data").Data
        return make(edge_index=edges, edge_weight=vals, num_nodes=size[0])
    make = importlib.import_module("torch_geometric").EdgeIndex
    return make(edges, sparse_size=size, sort_order="row"), vals


@public_op
def from_dgl(
    graph: Any, *, weight: str | None = None, layout: torch.layout = torch.sparse_csr
) -> SparseTensor:
    """The adjacency matrix of a DGL graph with one kind of edges: element (i, j) for i to j.

    ``dgl.graph(tuple(A.coo_indices()), num_nodes=n)`` converts back. The layers of `spgrad.nn` sum
    over the edges that lead to a node: give them the transpose, ``from_dgl(graph).t()``.

    Args:
        graph: A graph of DGL, or anything with its `edges`, `num_nodes` and `edata`; or a pair of
            tensors (sources, targets).
        weight: The name of a weight for each edge in `graph.edata`; None for ones, and for a pair.
        layout: torch.sparse_csr, sparse_csc or sparse_coo.

    Returns:
        SparseTensor (nodes, nodes), or (source nodes, target nodes) where the edges join nodes of
        two types. Coalesced: weights of repeated edges add.

    Gradient:
        Of the weights: the cotangent at each edge.

    Cost:
        O(edges) radix passes.

    Raises:
        TypeError: `graph` is none of these.
        ValueError: `weight` is not in `graph.edata`, or is given for a pair.

    Example:
        >>> spgrad.from_dgl((torch.tensor([0, 1]), torch.tensor([1, 2]))).shape
        torch.Size([3, 3])
    """
    pair: Any = graph if isinstance(graph, (tuple, list)) else ()
    if len(pair) == 2:
        hint = "Call spgrad.from_edges with the weights."
        _require_no_weight(weight, "a pair of tensors", hint)
        return from_edges(tuple(torch.as_tensor(ends) for ends in pair), layout=layout)
    return _from_dgl_graph(graph, weight, layout)


def _from_dgl_graph(graph: Any, weight: str | None, layout: torch.layout) -> SparseTensor:
    if not (callable(getattr(graph, "edges", None)) and hasattr(graph, "num_nodes")):
        raise ArgumentKindError(
            f"`graph` is {checks.describe_kind(graph)}; a graph of DGL or a pair of tensors is "
            "accepted. Use spgrad.from_edges for a tensor of edges."
        )
    if weight is not None and weight not in graph.edata:
        raise ArgumentValueError(
            f"`weight` is {weight!r}; {', '.join(map(repr, graph.edata)) or 'None'} is accepted. "
            "Name what graph.edata has."
        )
    weights = None if weight is None else graph.edata[weight]
    kinds = getattr(graph, "canonical_etypes", ())
    size = graph.num_nodes()
    if len(kinds) == 1:  # num_nodes() alone counts the nodes of all types
        size = (graph.num_nodes(kinds[0][0]), graph.num_nodes(kinds[0][2]))
    return from_edges(torch.stack(graph.edges()), weights, size, layout=layout)
