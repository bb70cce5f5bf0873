"""Samples of the neighbours of nodes, hop by hop, as sparse blocks."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from spgrad import kernels
from spgrad.core import checks
from spgrad.core.pattern import Pattern, View
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import on_pattern, stored_values
from spgrad.data.arguments import (
    line_weights,
    random_key,
    require_count,
    require_distinct,
    require_graph,
    require_members,
    stored_entries,
)
from spgrad.errors import ArgumentValueError
from spgrad.lowering.gather import Gather
from spgrad.lowering.views import rows
from spgrad.public import public_as


@dataclasses.dataclass
class NeighborBatch:
    """Seeds, the nodes that they reach, and the sampled edges.

    Nodes have new numbers: the seeds first, then the others in the order in which they were found.

    Attributes:
        blocks: A matrix for each hop, the last hop first, as the layers of a network use them.
            Row i and column i of a block are the same node, ``n_id[i]``. CSR; with replacement
            COO that is not coalesced, with an element for each draw.
        n_id: The row of A that each new number stands for (nodes,), int64.
        e_id: Position in ``A.values()`` of the value of each sampled edge (edges,), int64. A block
            with e edges has the first e of these.
        batch_size: Number of seeds.
        num_sampled_nodes: The seeds, and the nodes that each hop added.
        num_sampled_edges: Edges that each hop added.
        x: Rows of the features for `n_id`, or None.
        input_id: From a loader: the place of each seed among its `input_nodes`, or the seed itself
            if they were a mask or None.
    """

    blocks: tuple[SparseTensor, ...]
    n_id: torch.Tensor
    e_id: torch.Tensor
    batch_size: int
    num_sampled_nodes: list[int]
    num_sampled_edges: list[int]
    x: torch.Tensor | None = None
    input_id: torch.Tensor | None = None

    def to(self, device: Any) -> NeighborBatch:
        """The same batch on another device."""
        moved = {"n_id": self.n_id.to(device), "e_id": self.e_id.to(device)}
        for name in ("x", "input_id"):
            if (held := getattr(self, name)) is not None:
                moved[name] = held.to(device)
        blocks = tuple(block.to(device) for block in self.blocks)
        return dataclasses.replace(self, blocks=blocks, **moved)

    def to_pyg(self) -> Any:
        """As a `torch_geometric.data.Data`, whose edges lead from columns of A to rows.

        Its fields are those of torch_geometric's NeighborLoader; `edge_weight` has the values, with
        their gradient.

        Raises:
            ImportError: torch_geometric is not installed.
        """
        checks.require_packages("pyg", "torch_geometric")
        Data = importlib.import_module("torch_geometric.data").Data
        last = self.blocks[0]
        # a COO block stays as it is, because to_sparse_coo would coalesce it
        found = last if last._pattern.is_coo else last.to_sparse_coo()
        return Data(
            x=self.x,
            edge_index=found._indices().flip(0).long(),
            edge_weight=stored_values(found),
            n_id=self.n_id,
            e_id=self.e_id,
            input_id=self.input_id,
            batch_size=self.batch_size,
            num_nodes=self.n_id.numel(),
            num_sampled_nodes=self.num_sampled_nodes,
            num_sampled_edges=self.num_sampled_edges,
        )


class Drawn(NamedTuple):
    """A sample as plain tensors, which a worker process can send."""

    ptr: torch.Tensor  # (rows + 1,)
    idx: torch.Tensor  # (edges,)
    n_id: torch.Tensor  # (nodes,), int64
    e_id: torch.Tensor  # (edges,), int64
    nodes: list[int]  # of the seeds and of each hop, all columns so far
    lines: list[int]  # rows of the block of each hop
    edges: list[int]  # of the block of each hop, all so far

    def added_nodes(self) -> list[int]:
        """The seeds, and the nodes that each hop added."""
        return _differences(self.nodes)

    def added_edges(self) -> list[int]:
        """Edges that each hop added."""
        return _differences(self.edges)


@public_as("data.sample_neighbors")
def sample_neighbors(
    A: SparseTensor,
    seeds: torch.Tensor | Sequence[int],
    fanout: int | Sequence[int],
    *,
    replace: bool = False,
    weights: bool | torch.Tensor = False,
    generator: torch.Generator | None = None,
) -> NeighborBatch:
    """Draws some of the entries of each row in `seeds`, then of the rows that they lead to.

    An entry (i, j) of A makes j a neighbour of i. A node is sampled once, in the hop after the one
    that found it, as torch_geometric's NeighborLoader does; so each block is the upper left part
    of the block of the next hop.

    Args:
        A: Sparse matrix (n, n) in COO, CSR or CSC; for one hop also (m, k), whose columns are then
            numbered by themselves.
        seeds: Distinct rows of A (s,), or a bool mask (n,).
        fanout: Entries to draw of each row, for one hop or for each of several; -1 takes all, those
            of weight 0 too.
        replace: Draw with replacement: `fanout` times in each row that has an entry.
        weights: True draws by the values of A, a tensor (nse,) by its numbers, in the order of
            ``A.values()``: each draw takes one of the entries that are left, with a probability in
            proportion to its weight. Weights are not negative; entries of weight 0 are never
            drawn.
        generator: Draws one number, which determines the sample, with any number of threads. None
            takes torch's default generator.

    Returns:
        A `NeighborBatch`: the sampled edges as one block for each hop, and the rows, columns and
        values of A that they come from.

    Gradient:
        The values of the blocks are values of A: the gradient lies on the pattern of A, with zeros
        at entries that were not drawn. Weights get no gradient.

    Cost:
        Without weights O(edges + nodes) of the sample; with weights O(entries of the rows that are
        sampled), and for CSC O(nse) in each call. The row view of COO and CSC is computed once.

    Raises:
        ValueError: A seed is out of range or repeats, a fanout is below -1, a weight is negative
            or not finite, or A is a batch.
        NotImplementedError: A has layout BSR or BSC.
        RuntimeError: A is not coalesced.

    Source:
        Hamilton, Ying and Leskovec, Inductive Representation Learning on Large Graphs (2017).
        Floyd's algorithm (Bentley 1987); with weights Efraimidis and Spirakis (2006).

    Example:
        >>> A = spgrad.from_dense(torch.ones(4, 4) - torch.eye(4)).to_sparse_csr()
        >>> batch = spgrad.data.sample_neighbors(A, [2], 2, generator=torch.manual_seed(0))
        >>> batch.blocks[0].shape, batch.n_id[0], len(batch.e_id)
        (torch.Size([1, 3]), tensor(2), 2)
    """
    fanouts = require_fanouts("fanout", fanout)
    pattern = require_graph(A, square=len(fanouts) > 1)
    nodes = require_members("seeds", seeds, pattern.matrix[0])
    square = pattern.matrix[0] == pattern.matrix[1]
    if not square:
        require_distinct("seeds", nodes)
    view = rows(pattern)
    weight = line_weights(A, weights, view)
    drawn = draw(view, weight, nodes, fanouts, replace, random_key(generator), square)
    if square and not torch.equal(drawn.n_id[: nodes.numel()], nodes):
        require_distinct("seeds", nodes)  # a seed that repeats has no number of its own
    return assembled(A, drawn, replace)


def require_fanouts(arg: str, fanout: Any) -> list[int]:
    """One fanout for each hop."""
    fanouts = list(fanout) if isinstance(fanout, Sequence) else [fanout]
    if not fanouts:
        raise ArgumentValueError(
            f"`{arg}` is empty; a fanout for each hop, one or more, is accepted. Pass [15, 10]."
        )
    return [require_count(arg, f, -1, "an int of -1 or more for each hop") for f in fanouts]


def draw(
    view: View,
    weight: torch.Tensor | None,
    seeds: torch.Tensor,
    fanouts: list[int],
    replace: bool,
    key: int,
    square: bool,
) -> Drawn:
    """The sample of `sample_neighbors`, without values; `square` numbers the seeds first."""
    dtype = view.ptr.dtype
    n_id = seeds.to(dtype) if square else seeds[:0].to(dtype)
    nodes, lines, edges, next_lines = [n_id.numel()], [0], [0], seeds
    ptr, idx, e_id = [], [], []
    for fanout in fanouts:
        if replace:
            _require_countable(fanout, next_lines.numel(), dtype)
        made, found, entry, bad = kernels.sample_lines(
            view.ptr, view.idx, weight, next_lines, lines[-1], fanout, replace, key
        )
        if weight is not None and int(bad) >= 0:
            _refuse_weight(weight, int(bad))
        n_id, local, entry = kernels.relabel_lines(n_id, made, found, entry, not replace)
        # the sum over hops may need 64 bits, to which torch.cat promotes the pointers of the first
        ptr.append(made[1:].long() + edges[-1] if ptr else made)
        edges.append(edges[-1] + found.numel())
        idx.append(local)
        e_id.append(stored_entries(view, entry))
        lines.append(lines[-1] + next_lines.numel())
        if len(ptr) < len(fanouts):
            next_lines = n_id[nodes[-1] :].long()
        nodes.append(n_id.numel())
    joined = (parts[0] if len(parts) == 1 else torch.cat(parts) for parts in (ptr, idx, e_id))
    starts, columns, entries = joined
    return Drawn(starts, columns, n_id.long(), entries, nodes, lines[1:], edges[1:])


def _require_countable(fanout: int, rows: int, dtype: torch.dtype) -> None:
    """Refuses more draws than pointers of a dtype count."""
    most = torch.iinfo(dtype).max
    if fanout * rows > most:
        raise ArgumentValueError(
            f"`fanout` is {fanout} draws with replacement in each of {rows} rows; at most {most} "
            "draws in all are accepted. Draw fewer, or pass fewer seeds at a time."
        )


def _refuse_weight(weight: torch.Tensor, at: int) -> None:
    raise ArgumentValueError(
        f"`weights` has {float(weight[at])} in a row that is sampled; finite weights of 0 or more "
        "are accepted. Use A.abs(), or pass other weights."
    )


def assembled(A: SparseTensor, drawn: Drawn, replace: bool) -> NeighborBatch:
    """The blocks of a sample, with the values of A and their gradient."""
    pattern = A._pattern
    vals = Gather(drawn.e_id, pattern.nse, repeats=replace)(stored_values(A))
    blocks, dtype = [], pattern.indices[0].dtype
    ptr, idx = drawn.ptr.to(dtype), drawn.idx.to(dtype)
    for lines, nodes, edges in zip(drawn.lines, drawn.nodes[1:], drawn.edges, strict=True):
        whole = edges == drawn.edges[-1] and lines == drawn.lines[-1]
        starts, columns = (ptr, idx) if whole else (ptr[: lines + 1], idx[:edges])
        shape = (lines, nodes, *pattern.dense_shape)
        if replace:
            indices = torch.stack([kernels.expand(starts, edges), columns])
            made = Pattern(
                torch.sparse_coo,
                shape,
                (indices,),
                dense_dim=pattern.dense_dim,
                coalesced=False,
                ordered=False,
            )
        else:
            made = Pattern(torch.sparse_csr, shape, (starts, columns), dense_dim=pattern.dense_dim)
        blocks.append(on_pattern(vals if whole else vals[:edges], made))
    return NeighborBatch(
        blocks=tuple(reversed(blocks)),
        n_id=drawn.n_id,
        e_id=drawn.e_id,
        batch_size=drawn.lines[0],
        num_sampled_nodes=drawn.added_nodes(),
        num_sampled_edges=drawn.added_edges(),
    )


def _differences(sums: list[int]) -> list[int]:
    return [sums[0], *(b - a for a, b in itertools.pairwise(sums))]
