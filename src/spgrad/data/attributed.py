"""Graphs of torch_geometric: edges, with attributes of nodes and of edges."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch

from spgrad import kernels
from spgrad.core import checks
from spgrad.core.pattern import Pattern, View, index_dtype
from spgrad.data.neighbors import Drawn
from spgrad.errors import (
    ArgumentIndexError,
    ArgumentKindError,
    ArgumentValueError,
    UnsupportedError,
)
from spgrad.lowering.views import rows


def is_attributed(data: Any) -> bool:
    """True for what has edges as an attribute, whichever library made it."""
    if isinstance(data, torch.Tensor):
        return False
    return hasattr(data, "edge_index") or hasattr(data, "edge_types")


class Attributes:
    """Attributes of nodes and of edges, each with the dimension that counts them."""

    def __init__(self, of_nodes: dict[str, Any], of_edges: dict[str, Any]) -> None:
        self.of_nodes, self.of_edges = of_nodes, of_edges

    def of(self, drawn: Drawn) -> dict[str, Any]:
        """Their parts for the nodes and edges of a sample."""
        nodes = {k: _selected(v, drawn.n_id, dim) for k, (v, dim) in self.of_nodes.items()}
        edges = {k: _selected(v, drawn.e_id, dim) for k, (v, dim) in self.of_edges.items()}
        return nodes | edges

    def parted(self, in_worker: bool) -> tuple[Attributes, Attributes]:
        """Those that a worker process gathers, and those that the process that iterates gathers.

        A worker can't send what requires a gradient, nor reach another device.
        """
        if not in_worker:
            return Attributes({}, {}), self
        return self._some(True), self._some(False)

    def _some(self, by_worker: bool) -> Attributes:
        def some(held: dict[str, Any]) -> dict[str, Any]:
            return {k: v for k, v in held.items() if _can_be_sent(v[0]) == by_worker}

        return Attributes(some(self.of_nodes), some(self.of_edges))


def _can_be_sent(value: Any) -> bool:
    if not isinstance(value, torch.Tensor):
        return True
    return value.device.type == "cpu" and not value.requires_grad


class AttributedGraph:
    """A `torch_geometric.data.Data`, or what has its attributes; torch_geometric is not imported.

    The neighbours of a node are the sources of the edges that lead to it. Edges may repeat.
    """

    def __init__(self, data: Any) -> None:
        self.data, self.edges, self.num_nodes = data, _edges(data), _num_nodes(data)
        self.attributes = Attributes({}, {})
        numbers = {"node": self.num_nodes, "edge": self.edges.shape[1]}
        for key, value in _listed(data).items():
            if key in ("edge_index", "num_nodes"):
                continue
            if _belongs(data, "node", key, numbers):
                self.attributes.of_nodes[key] = value, _dim(data, key, value)
            elif _belongs(data, "edge", key, numbers):
                self.attributes.of_edges[key] = value, _dim(data, key, value)

    def view(self) -> View:
        """The edges by target, O(edges); entry p has the value of edge perm[p]."""
        edges, n = self.edges, self.num_nodes
        if edges.numel():
            low, high = (int(end) for end in torch.aminmax(edges))
            if low < 0 or high >= n:
                raise ArgumentIndexError(
                    f"`data.edge_index` has {low if low < 0 else high}; numbers in [0, {n}) are "
                    "accepted. Set data.num_nodes, or check the edges."
                )
        indices = edges.flip(0).to("cpu", index_dtype(torch.int32, (n, edges.shape[1])))
        made = Pattern(torch.sparse_coo, (n, n), (indices,), coalesced=False, ordered=False)
        return rows(made)

    def weights(self, name: Any) -> torch.Tensor:
        """The attribute with a weight for each edge, or the refusal."""
        found, _ = self.attributes.of_edges.get(name, (None, 0))
        if not isinstance(found, torch.Tensor):
            known = ", ".join(map(repr, self.attributes.of_edges)) or "None"
            raise ArgumentValueError(
                f"`weight_attr` is {name!r}; {known} is accepted. Name an attribute of the edges."
            )
        return found.detach().cpu()

    def batch(self, drawn: Drawn, parts: dict[str, Any], input_id: torch.Tensor) -> Any:
        """A copy of the graph with the nodes and edges of a sample alone."""
        out = copy.copy(self.data)
        target = kernels.expand(drawn.ptr, drawn.idx.numel()).long()
        made = {
            **parts,
            "edge_index": torch.stack([drawn.idx.long(), target]).to(self.edges.device),
            "n_id": drawn.n_id,
            "e_id": drawn.e_id,
            "input_id": input_id,
            "batch_size": drawn.lines[0],
            "num_sampled_nodes": drawn.added_nodes(),
            "num_sampled_edges": drawn.added_edges(),
        }
        if "num_nodes" in _listed(self.data) or not self.attributes.of_nodes:
            made["num_nodes"] = drawn.n_id.numel()
        for key, value in made.items():
            setattr(out, key, value)
        return out


def _edges(data: Any) -> torch.Tensor:
    """The edges (2, edges), or the refusal."""
    if hasattr(data, "edge_types"):
        raise UnsupportedError(
            "`data` has several types of nodes; one type is accepted. Pass "
            "data.to_homogeneous(), or the matrix of one type of edges."
        )
    edges = data.edge_index
    if not isinstance(edges, torch.Tensor) or edges.dim() != 2 or edges.shape[0] != 2:
        found = checks.describe_kind(edges)
        raise ArgumentKindError(
            f"`data.edge_index` is {found}; integers (2, edges) are accepted. "
            "torch_geometric.utils.to_edge_index makes them of `adj_t`."
        )
    checks.require_index("data.edge_index", edges)
    return edges.as_subclass(torch.Tensor)


def _num_nodes(data: Any) -> int:
    found = getattr(data, "num_nodes", None)
    if not isinstance(found, int):
        raise ArgumentValueError(
            f"`data.num_nodes` is {found!r}; an int is accepted. Set it to the number of nodes."
        )
    return found


def _listed(data: Any) -> Mapping[str, Any]:
    """Names and values: what PyG's `to_dict` lists, or the attributes of another object."""
    listed: Any = getattr(data, "to_dict", None)
    return vars(data) if listed is None else listed()


def _belongs(data: Any, kind: str, key: str, numbers: dict[str, int]) -> bool:
    """Whether an attribute has a part for each node, or each edge.

    If there are as many nodes as edges, those whose names have "edge" in them are of edges, as in
    torch_geometric.
    """
    asked = getattr(data, f"is_{kind}_attr", None)
    if callable(asked):
        return bool(asked(key))
    value = getattr(data, key)
    if not isinstance(value, torch.Tensor) or value.shape[:1] != (numbers[kind],):
        return False
    return numbers["node"] != numbers["edge"] or ("edge" in key) == (kind == "edge")


def _dim(data: Any, key: str, value: Any) -> int:
    """The dimension of an attribute that counts nodes or edges."""
    asked: Any = getattr(data, "__cat_dim__", None)
    return 0 if asked is None else asked(key, value)


def _selected(value: Any, index: torch.Tensor, dim: int) -> Any:
    """The parts of an attribute: a tensor, a NumPy array or a list."""
    if isinstance(value, torch.Tensor):
        return value.index_select(dim, index.to(value.device))
    if hasattr(value, "take"):
        return torch.from_numpy(value.take(index.cpu().numpy(), axis=dim))
    return [value[i] for i in index.tolist()]
