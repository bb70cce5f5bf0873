"""Mini-batches of nodes with samples of their neighbours, on torch's DataLoader."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from spgrad.core import checks
from spgrad.core.pattern import Pattern, View
from spgrad.core.tensor import SparseTensor
from spgrad.data.arguments import (
    line_weights,
    random_key,
    require_count,
    require_distinct,
    require_graph,
    require_members,
)
from spgrad.data.attributed import AttributedGraph, Attributes, is_attributed
from spgrad.data.neighbors import Drawn, NeighborBatch, assembled, draw, require_fanouts
from spgrad.errors import ArgumentKindError, ArgumentValueError, UnsupportedError
from spgrad.lowering.views import rows
from spgrad.public import public_as

_PYG_ONLY = {
    "input_time": None,
    "subgraph_type": "directional",
    "disjoint": False,
    "temporal_strategy": "uniform",
    "time_attr": None,
    "transform_sampler_output": None,
    "neighbor_sampler": None,
    "directed": True,
    "sampler": None,
    "batch_sampler": None,
    "collate_fn": None,
    "dataset": None,
}
"""Arguments of torch_geometric's loader that are accepted with these values alone."""

_INSTEAD = {
    "collate_fn": "`transform` is called with each batch.",
    "dataset": "Pass the graph as `data`.",
}
"""What to pass in place of some of them."""


class _Asked(NamedTuple):
    """The request for one batch: its random key, its seeds, and what PyG calls their input_id."""

    key: int
    seeds: torch.Tensor
    input_id: torch.Tensor


class _Seeds(Sampler[Any]):
    """Yields the seeds of each batch with a key that does not depend on which worker draws."""

    def __init__(
        self,
        nodes: tuple[torch.Tensor, torch.Tensor],
        batch_size: int,
        shuffle: bool,
        drop_last: bool,
        generator: torch.Generator | None,
    ) -> None:
        self.nodes, self.batch_size = nodes, batch_size
        self.shuffle, self.drop_last, self.generator = shuffle, drop_last, generator

    def __len__(self) -> int:
        n = self.nodes[0].numel()
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)

    def __iter__(self) -> Iterator[_Asked]:
        key, (nodes, input_id) = random_key(self.generator), self.nodes
        if self.shuffle:
            order = torch.randperm(nodes.numel(), generator=self.generator, device="cpu")
            nodes, input_id = nodes[order], input_id[order]
        parts = zip(nodes.split(self.batch_size), input_id.split(self.batch_size), strict=True)
        for i, (seeds, places) in zip(range(len(self)), parts, strict=False):
            # cloned, so that a worker gets these seeds only, and not the memory of all `nodes`
            asked = (key + i + 2**63) % 2**64 - 2**63, seeds.clone(), places.clone()
            yield _Asked(*asked)


class _Matrix:
    """A matrix with features of its nodes: what `AttributedGraph` is for torch_geometric's."""

    def __init__(self, A: SparseTensor, x: torch.Tensor | None, replace: bool) -> None:
        self.A, self.replace = A, replace
        self.attributes = Attributes({} if x is None else {"x": (x, 0)}, {})

    def batch(self, drawn: Drawn, parts: dict[str, Any], input_id: torch.Tensor) -> NeighborBatch:
        """The blocks of a sample, and its features."""
        batch = assembled(self.A, drawn, self.replace)
        batch.x, batch.input_id = parts.get("x"), input_id
        return batch


class _Samples(Dataset[Any]):
    """Draws a batch, as tensors only, which a worker process can send."""

    def __init__(
        self,
        view: View,
        weight: torch.Tensor | None,
        fanouts: list[int],
        replace: bool,
        early: Attributes,
    ) -> None:
        self.view, self.weight, self.early = view, weight, early
        self.fanouts, self.replace = fanouts, replace

    def __getitem__(self, asked: _Asked) -> tuple[Drawn, Any, torch.Tensor]:
        drawn = draw(
            self.view, self.weight, asked.seeds, self.fanouts, self.replace, asked.key, square=True
        )
        return drawn, self.early.of(drawn), asked.input_id


def _as_it_is(drawn: Any) -> Any:
    return drawn


class NeighborLoader(DataLoader[Any]):
    """Mini-batches of nodes, each with a sample of their neighbours: torch_geometric's loader.

    It takes a matrix, or a graph of torch_geometric, and does not need torch_geometric for either.
    A batch depends on the generator and on its number in the epoch, not on `num_workers`. Worker
    processes draw, and gather features. The process that iterates makes the blocks, so the values
    of a matrix have their gradient. Features that require a gradient are gathered in that process
    too.

    Args:
        data: Sparse matrix (n, n) in COO, CSR or CSC, coalesced, whose entry (i, j) makes j a
            neighbour of i; or a `torch_geometric.data.Data`, whose edges lead from a neighbour to
            a node, or another object with its `edge_index`, `num_nodes` and attributes.
        num_neighbors: Neighbours to draw in each hop; -1 takes all.
        input_nodes: Distinct nodes to make batches of, or a bool mask (n,); None for all.
        x: Features of the nodes of a matrix (n, ...), a dense tensor, or None.
        batch_size: Seeds of one batch.
        replace: Draw with replacement.
        shuffle: Take the nodes in a new random order in each epoch.
        weights: As in `sample_neighbors`; for a `Data`, one for each edge.
        weight_attr: The attribute of a `Data` with these weights.
        transform: Called with each batch; the loader yields what it returns.
        filter_per_worker: False gathers the attributes of a `Data` in the process that iterates
            over the loader.
        is_sorted: Not used; sorted edges are found in one pass.
        drop_last: Leave out a last batch that is smaller.
        generator: Draws the order and the samples; None takes torch's default generator.
        **options: Other options of `torch.utils.data.DataLoader`, such as `num_workers`.

    Yields:
        For each `batch_size` nodes a `NeighborBatch`. For a `Data`, a copy of it with the nodes
        and edges of the sample alone: `edge_index` in new numbers, seeds first; of each attribute
        of nodes or edges, the part of the sample; and also `n_id`, `e_id`, `input_id`,
        `batch_size`, `num_sampled_nodes` and `num_sampled_edges`.

    Cost:
        For each batch that of `sample_neighbors`; O(n) in each epoch, and O(nse) once.

    Raises:
        ValueError: An argument is out of range; the text names it.
        TypeError: `data` is neither, or `x` is not a dense tensor.
        NotImplementedError: `data` has several types of nodes, or an option of torch_geometric's
            loader is given that this loader does not have, such as `disjoint`.

    Source:
        Hamilton, Ying and Leskovec (2017); torch_geometric.loader.NeighborLoader.

    Example:
        >>> A = spgrad.from_dense(torch.ones(4, 4) - torch.eye(4)).to_sparse_csr()
        >>> loader = spgrad.data.NeighborLoader(A, num_neighbors=[2], batch_size=3)
        >>> [batch.batch_size for batch in loader]
        [3, 1]
    """

    @public_as("data.NeighborLoader")
    def __init__(
        self,
        data: Any,
        num_neighbors: int | Sequence[int] = (15, 10),
        input_nodes: torch.Tensor | Sequence[int] | None = None,
        *,
        x: torch.Tensor | None = None,
        batch_size: int = 1,
        replace: bool = False,
        shuffle: bool = False,
        weights: bool | torch.Tensor = False,
        weight_attr: str | None = None,
        transform: Callable[[Any], Any] | None = None,
        filter_per_worker: bool | None = None,
        is_sorted: bool = False,
        drop_last: bool = False,
        generator: torch.Generator | None = None,
        **options: Any,
    ) -> None:
        options = _require_options(options)
        fanouts = require_fanouts("num_neighbors", num_neighbors)
        require_count("batch_size", batch_size, 1, "an int of 1 or more")
        checks.require_generator(generator)
        if is_attributed(data):
            if x is not None:
                raise ArgumentValueError(
                    "`x` is given beside a graph with attributes; None is accepted. Set `data.x`."
                )
            source: Any = AttributedGraph(data)
            view, n = source.view(), source.num_nodes
            weights = weights if weight_attr is None else source.weights(weight_attr)
            weight = line_weights(None, weights, view)
        elif not isinstance(data, SparseTensor):
            raise ArgumentKindError(
                f"`data` is {checks.describe_kind(data)}; a SparseTensor, or an object with "
                "edge_index and num_nodes such as torch_geometric's Data, is accepted. Use "
                "spgrad.from_edges for a tensor of edges."
            )
        else:
            if weight_attr is not None:
                raise ArgumentValueError(
                    f"`weight_attr` is {weight_attr!r} for a matrix; None is accepted. Use "
                    "`weights=True` for its values."
                )
            pattern = _graph_with_data(data)
            view, n = rows(pattern), pattern.matrix[0]
            if x is not None:
                _require_features(x, n)
            source, weight = _Matrix(data, x, replace), line_weights(data, weights, view)
        if transform is not None and not callable(transform):
            raise ArgumentKindError(
                f"`transform` is {checks.describe_kind(transform)}; a function of a batch or None "
                "is accepted. It is called with each batch."
            )
        self.data, self.transform, self._source = data, transform, source
        early, self._late = source.attributes.parted(filter_per_worker is not False)
        drawing = _Samples(view, weight, fanouts, replace, early)
        seeds = _Seeds(_nodes(input_nodes, n), batch_size, shuffle, drop_last, generator)
        super().__init__(drawing, batch_size=None, sampler=seeds, collate_fn=_as_it_is, **options)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        for found, early, input_id in super().__iter__():
            drawn = Drawn(*found)
            batch = self._source.batch(drawn, early | self._late.of(drawn), input_id)
            yield batch if self.transform is None else self.transform(batch)


def _graph_with_data(data: SparseTensor) -> Pattern:
    """The pattern of a graph that can be sampled; the first batch would meet one without data."""
    pattern = require_graph(data, square=True, arg="data")
    if pattern.indices[0].is_meta:
        raise UnsupportedError(
            "`data` is on meta, where a tensor has a shape and no data; a matrix with data is "
            "accepted. Make it on the CPU."
        )
    return pattern


def _require_options(options: dict[str, Any]) -> dict[str, Any]:
    """What torch's DataLoader gets, or the refusal of what only torch_geometric's loader has."""
    for name, accepted in _PYG_ONLY.items():
        value = options.pop(name, accepted)
        if value is not accepted and value != accepted:
            other = "spgrad.data.sample_neighbors and spgrad.data.subgraph make other samples."
            raise UnsupportedError(
                f"`{name}` is {value!r}; {accepted!r} is accepted. {_INSTEAD.get(name, other)}"
            )
    own, of_torch = (inspect.signature(c.__init__).parameters for c in (NeighborLoader, DataLoader))
    for name in sorted(options.keys() - of_torch.keys()):
        accepted = ", ".join(n for n in own if n not in ("self", "options"))
        raise ArgumentKindError(
            f"`{name}` is no argument of NeighborLoader or of torch's DataLoader; {accepted} and "
            "the options of DataLoader are accepted. Check the names."
        )
    return options


def _nodes(given: Any, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The nodes to make batches of, and what torch_geometric calls their input_id."""
    if given is None:
        return torch.arange(n, device="cpu"), torch.arange(n, device="cpu")
    nodes = require_members("input_nodes", given, n).cpu()
    require_distinct("input_nodes", nodes)
    masked = isinstance(given, torch.Tensor) and given.dtype == torch.bool
    return nodes, nodes if masked else torch.arange(nodes.numel(), device="cpu")


def _require_features(x: Any, n: int) -> None:
    dense = isinstance(x, torch.Tensor) and not isinstance(x, SparseTensor)
    if not dense or x.layout != torch.strided:
        raise ArgumentKindError(
            f"`x` is {checks.describe_kind(x)}; a dense tensor or None is accepted. Convert it "
            "with torch.as_tensor, or index it by `batch.n_id`."
        )
    if x.dim() == 0 or x.shape[0] != n:
        hint = "Give one row for each node."
        raise checks.bad_shape("x", tuple(x.shape), f"({n}, ...)", hint)
