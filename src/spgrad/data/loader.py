"""Mini-batches of nodes with samples of their neighbours, on torch's DataLoader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from spgrad.core import checks
from spgrad.core.pattern import View
from spgrad.core.tensor import SparseTensor
from spgrad.data.arguments import (
    line_weights,
    random_key,
    require_count,
    require_distinct,
    require_graph,
    require_members,
)
from spgrad.data.neighbors import Drawn, NeighborBatch, assembled, draw, require_fanouts
from spgrad.errors import ArgumentKindError
from spgrad.lowering.views import rows
from spgrad.public import public_as


class _Asked(NamedTuple):
    """The request for one batch: its random key and its seeds."""

    key: int
    seeds: torch.Tensor


class _Seeds(Sampler[Any]):
    """Yields the seeds of each batch with a key that does not depend on which worker draws."""

    def __init__(
        self,
        nodes: torch.Tensor,
        batch_size: int,
        shuffle: bool,
        drop_last: bool,
        generator: torch.Generator | None,
    ) -> None:
        self.nodes, self.batch_size = nodes, batch_size
        self.shuffle, self.drop_last, self.generator = shuffle, drop_last, generator

    def __len__(self) -> int:
        n = self.nodes.numel()
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)

    def __iter__(self) -> Iterator[_Asked]:
        key, nodes = random_key(self.generator), self.nodes
        if self.shuffle:
            nodes = nodes[torch.randperm(nodes.numel(), generator=self.generator)]
        for i, seeds in enumerate(nodes.split(self.batch_size)[: len(self)]):
            # cloned, so that a worker gets these seeds only, and not the memory of all `nodes`
            yield _Asked((key + i + 2**63) % 2**64 - 2**63, seeds.clone())


class _Samples(Dataset[Any]):
    """Draws a batch, as tensors only, which a worker process can send."""

    def __init__(
        self, view: View, weight: torch.Tensor | None, fanouts: list[int], replace: bool, x: Any
    ) -> None:
        self.view, self.weight, self.x = view, weight, x
        self.fanouts, self.replace = fanouts, replace

    def __getitem__(self, asked: _Asked) -> tuple[Drawn, torch.Tensor | None]:
        drawn = draw(
            self.view, self.weight, asked.seeds, self.fanouts, self.replace, asked.key, square=True
        )
        return drawn, None if self.x is None else self.x[drawn.n_id]


def _as_it_is(drawn: Any) -> Any:
    return drawn


class NeighborLoader(DataLoader[Any]):
    """Mini-batches of nodes, each with a sample of their neighbours; arguments are named as in PyG.

    A batch depends on the generator and on its number in the epoch, not on `num_workers`. Workers
    draw, and gather the rows of `x`; the process that iterates makes the blocks, so that the
    values of A have their gradient. Features that require a gradient are gathered there too.

    Args:
        A: Sparse matrix (n, n) in COO, CSR or CSC, coalesced; entry (i, j) makes j a neighbour
            of i.
        x: Features of the nodes (n, ...), a dense tensor, or None.
        input_nodes: Distinct nodes to make batches of, or a bool mask (n,); None for all.
        num_neighbors: Neighbours to draw in each hop; -1 takes all.
        batch_size: Seeds of one batch.
        replace: Draw with replacement.
        shuffle: Take the nodes in a new random order in each epoch.
        weights: As in `sample_neighbors`.
        drop_last: Leave out a last batch that is smaller.
        generator: Draws the order and the samples; None takes torch's default generator.
        **options: Other options of `torch.utils.data.DataLoader`, such as `num_workers`.

    Yields:
        A `NeighborBatch` for each `batch_size` nodes.

    Cost:
        For each batch that of `sample_neighbors`; O(n) in each epoch, and O(nse) once.

    Raises:
        ValueError: An argument is out of range; the text names it.
        TypeError: `x` is no dense tensor.

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
        A: SparseTensor,
        x: torch.Tensor | None = None,
        input_nodes: torch.Tensor | Sequence[int] | None = None,
        num_neighbors: int | Sequence[int] = (15, 10),
        batch_size: int = 1,
        replace: bool = False,
        shuffle: bool = False,
        weights: bool | torch.Tensor = False,
        drop_last: bool = False,
        generator: torch.Generator | None = None,
        **options: Any,
    ) -> None:
        pattern = require_graph(A, square=True)
        n = pattern.matrix[0]
        fanouts = require_fanouts("num_neighbors", num_neighbors)
        require_count("batch_size", batch_size, 1, "an int of 1 or more")
        nodes = torch.arange(n)
        if input_nodes is not None:
            nodes = require_members("input_nodes", input_nodes, n)
            require_distinct("input_nodes", nodes)
        if x is not None:
            _require_features(x, n)
        view = rows(pattern)
        self.A, self.replace = A, replace
        self._late = x if x is not None and x.requires_grad else None
        early = None if self._late is not None else x
        drawing = _Samples(view, line_weights(A, weights, view), fanouts, replace, early)
        seeds = _Seeds(nodes, batch_size, shuffle, drop_last, generator)
        super().__init__(drawing, batch_size=None, sampler=seeds, collate_fn=_as_it_is, **options)

    def __iter__(self) -> Iterator[NeighborBatch]:  # type: ignore[override]
        for drawn, x in super().__iter__():
            batch = assembled(self.A, Drawn(*drawn), self.replace)
            batch.x = x if self._late is None else self._late[batch.n_id]
            yield batch


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
