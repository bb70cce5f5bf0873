"""networkx: graphs of Python objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from spgrad.core import checks
from spgrad.core.tensor import SparseTensor
from spgrad.errors import ArgumentKindError, ArgumentValueError
from spgrad.interop.edges import listed, names_in, positions_of, require_names
from spgrad.linalg.structure import is_symmetric
from spgrad.ops.creation.graph import from_edges
from spgrad.public import public_op

if TYPE_CHECKING:
    import networkx as nx


class Network(NamedTuple):
    """What `spgrad.from_networkx` returns: a matrix, and the nodes of its rows."""

    A: SparseTensor
    """Element (i, j) is the weight of the edge from node i to node j."""
    nodes: list[Any]
    """The node of each row and column."""


@public_op
def from_networkx(
    graph: nx.Graph,
    nodes: Sequence[Any] | None = None,
    *,
    weight: str | None = "weight",
    dtype: torch.dtype | None = None,
    layout: torch.layout = torch.sparse_csr,
) -> Network:
    """The adjacency matrix of a graph of networkx, and the order of its nodes.

    An edge of an undirected graph becomes two elements, a self-loop one. Weights of edges of a
    multigraph that join the same nodes add.

    Args:
        graph: Graph, DiGraph, MultiGraph or MultiDiGraph.
        nodes: The nodes of the rows and columns, in their order; edges to others are left out. By
            default all, in the order of `graph`.
        weight: The attribute of edges that is their weight, 1 where an edge lacks it; None for
            ones.
        dtype: Of the values; by default torch's default dtype.
        layout: torch.sparse_csr, sparse_csc or sparse_coo.

    Returns:
        A `Network`: the matrix (nodes, nodes), and its nodes.

    Cost:
        O(nodes + edges), in Python.

    Raises:
        TypeError: `graph` is no graph of networkx, or a weight is no number, or none of `dtype`.
        ValueError: A node repeats, or is not in the graph.

    Example:
        >>> import networkx
        >>> G = networkx.DiGraph()
        >>> G.add_edge("a", "b", weight=2.0)
        >>> A, nodes = spgrad.from_networkx(G)
        >>> A.to_dense(), nodes
        (tensor([[0., 2.],
                [0., 0.]]), ['a', 'b'])
    """
    if not (callable(getattr(graph, "edges", None)) and hasattr(graph, "is_directed")):
        raise ArgumentKindError(
            f"`graph` is {checks.describe_kind(graph)}; a graph of networkx is accepted. Use "
            "spgrad.from_edges for tensors of edges."
        )
    names = list(graph.nodes) if nodes is None else names_in(nodes)
    at = positions_of("nodes", names)
    strange = [name for name in names if name not in graph]
    if strange:
        raise ArgumentValueError(
            f"`nodes` has {strange[0]!r}, which is not in the graph; nodes of the graph are "
            "accepted. Add it with graph.add_node."
        )
    ends, weights = [], []
    for source, target, data in graph.edges(data=True):
        if source in at and target in at:
            number = 1 if weight is None else data.get(weight, 1)
            i, j = at[source], at[target]
            both_ways = not graph.is_directed() and i != j
            pairs = [(i, j), (j, i)] if both_ways else [(i, j)]
            ends += pairs
            weights += [number] * len(pairs)
    dtype = dtype or torch.get_default_dtype()
    try:
        vals = torch.tensor(weights, dtype=dtype)
        if vals.dim() != 1:
            raise ValueError(f"each has the shape {tuple(vals.shape[1:])}")
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentKindError(
            f"`weight` is {weight!r}, which is no number of {checks.short(dtype)} for some edge "
            f"({error}); numbers of the dtype are accepted. Pass weight=None for ones."
        ) from error
    edges = torch.tensor(ends, dtype=torch.int64).reshape(-1, 2).t()
    return Network(from_edges(edges, vals, len(names), layout=layout), names)


@public_op
def to_networkx(
    A: torch.Tensor,
    nodes: Sequence[Any] | None = None,
    *,
    weight: str = "weight",
    directed: bool = True,
) -> nx.Graph:
    """A graph of networkx with an edge from i to j for each specified element (i, j).

    Args:
        A: Sparse (n, n) of any layout.
        nodes: The node of each row; by default numbers.
        weight: The attribute of edges that gets the values.
        directed: False makes a Graph of a symmetric matrix.

    Returns:
        networkx.DiGraph, or networkx.Graph.

    Cost:
        O(n + nse), in Python.

    Raises:
        TypeError: `A` is not sparse.
        ValueError: `A` is not square, or not symmetric for an undirected graph; `nodes` has
            repeats, None, or another number of nodes.
        ImportError: networkx is not installed.

    Example:
        >>> G = spgrad.to_networkx(spgrad.from_edges(torch.tensor([[0], [1]])), "ab")
        >>> list(G.edges(data=True))
        [('a', 'b', {'weight': 1.0})]
    """
    checks.require_packages("networkx", "networkx")
    import networkx as nx

    M, edges, vals = listed(A, square=True)
    names = require_names("nodes", nodes, M._pattern.matrix[0])
    if None in positions_of("nodes", names):
        raise ArgumentValueError(
            "`nodes` has None, which networkx takes for no node; other objects are accepted. Give "
            "it a name."
        )
    if not directed and not is_symmetric(M):
        raise ArgumentValueError(
            "`A` is not symmetric; for directed=False a symmetric matrix is accepted. Make it one "
            "with spgrad.graph.to_symmetric(A)."
        )
    made: Any = nx.DiGraph() if directed else nx.Graph()
    made.add_nodes_from(names)
    ends = (names[i] for i in edges[0].tolist()), (names[j] for j in edges[1].tolist())
    weighted = zip(*ends, vals.detach().tolist(), strict=True)
    made.add_weighted_edges_from(weighted, weight=weight)
    return made
