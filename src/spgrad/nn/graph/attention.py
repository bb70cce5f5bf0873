"""Attention over the neighbours in a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from spgrad.core import checks
from spgrad.core.refusals import refuse_script
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import from_values, values
from spgrad.errors import ArgumentValueError
from spgrad.nn.graph.features import two_products
from spgrad.nn.graph.loops import looped_pattern, plain_graph, refilled_loops, with_dense_dims
from spgrad.nn.graph.operands import (
    Features,
    both_ends,
    glorot,
    glorot_linear,
    graph_operand,
    pair_of,
    require_dtype_of,
    require_sizes,
    reset_linear,
    takes_a_graph,
)
from spgrad.nn.graph.pairs import added_scores, attended, joined_scores, times_features
from spgrad.ops.products.heads import spmm
from spgrad.ops.reductions.softmax import softmax
from spgrad.public import public_as
from spgrad.torch_protocol.compile import when_tracing

_FILLS = {"mean": "mean", "sum": "sum", "add": "sum"}


class GraphAttention(nn.Module):
    """y_i = sum_j softmax_j(s_ij) W x_j over the edges from j to i, for each of several heads.

    The scores are s_ij = leaky_relu(a_dst . W x_i + a_src . W x_j) in version 1, which
    torch_geometric calls `GATConv`, and a . leaky_relu(W_r x_i + W_l x_j) in version 2, which it
    calls `GATv2Conv`. Arguments, initial weights and `state_dict` are those of these layers.
    A[i, j] is an edge from j to i; without `edge_dim` the values of A are not read.

    Args:
        in_channels: Features of a node, or a pair: of sources (columns of A) and of targets (rows).
        out_channels: Features of a head in the result.
        heads: Number of heads.
        concat: False takes the mean of the heads instead of concatenating them.
        negative_slope: Slope of leaky_relu for negative numbers.
        dropout: Share of the attention weights that is set to zero in training.
        add_self_loops: Adds the edges (i, i); False leaves A as it is. The new pattern is found
            once for each graph.
        edge_dim: Number d of features of each edge, which enter the scores. They are the values of
            a hybrid A (m, k | d), or for d = 1 also of an A without dense dimensions.
        fill_value: With `edge_dim`, the features of all self-loops: a number, a tensor (d,), or the
            "mean" or "sum" of the features of the other edges to the node.
        bias: False leaves out the bias, in version 2 also those of W_l and W_r.
        residual: Adds a linear function of x_i.
        version: 1 or 2.
        share_weights: Takes W_l for W_r too, in version 2; both names are in `state_dict`, as in
            torch_geometric.
        device: Of the weights.
        dtype: Of the weights.

    Shapes:
        x (n, in_channels), dense or sparse, or a pair of (k, in_channels[0]) and (m,
        in_channels[1]); in version 1 the second may be None, which leaves a_dst out. A sparse
        (m, k) of any layout; result (m, heads out_channels), or (m, out_channels) without `concat`.

    Gradient:
        Of x, the weights, and with `edge_dim` of A on its own pattern.

    Cost:
        O(nse heads out_channels) time. Version 1 calls `spgrad.additive_attention`, which on CPUs
        stores nothing for each edge and head of graphs with at least 3 edges a node, for several
        heads, nor do Triton's kernels on GPUs. Elsewhere, with dropout in training, where the
        weights are asked for, and for a negative slope, it stores a few tensors of nse heads
        numbers, as version 2 does. Version 2 adds the features of pairs of nodes in chunks of 2^18
        numbers, and computes them again for the gradients. Only second derivatives and compiled
        code of version 2 store a tensor (nse, heads, out_channels). Compiled code adds self-loops
        in each call, as it keeps nothing for a graph: where all calls have the same graph, add them
        before with `spgrad.nn.add_self_loops`, and pass add_self_loops=False here.

    Raises:
        TypeError: A is not sparse, or x no tensor.
        ValueError: Sizes or dtypes don't fit, or an option has a value that is not listed above.

    Source:
        Velickovic, Cucurull, Casanova, Romero, Lio, Bengio 2018, "Graph Attention Networks";
        Brody, Alon, Yahav 2022, "How Attentive are Graph Attention Networks?".

    Example:
        >>> A = spgrad.from_edges(torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]))
        >>> layer = spgrad.nn.GraphAttention(4, 2, heads=3)
        >>> layer(torch.ones(3, 4), A).shape
        torch.Size([3, 6])
        >>> y, weights = layer(torch.ones(3, 4), A, return_attention_weights=True)
        >>> weights.shape, weights.to_dense().sum(1)[0].detach()
        (torch.Size([3, 3, 3]), tensor([1., 1., 1.]))
    """

    __prepare_scriptable__ = refuse_script

    @public_as("nn.GraphAttention")
    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        heads: int = 1,
        concat: bool = True,
        negative_slope: float = 0.2,
        dropout: float = 0.0,
        add_self_loops: bool = True,
        edge_dim: int | None = None,
        fill_value: float | torch.Tensor | str = "mean",
        bias: bool = True,
        residual: bool = False,
        version: int = 1,
        share_weights: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        require_sizes(out_channels=out_channels, heads=heads)
        self.channels = pair_of(in_channels)
        self.in_channels, self.out_channels, self.heads = in_channels, out_channels, heads
        self.concat, self.negative_slope, self.dropout = concat, negative_slope, dropout
        self.add_self_loops, self.edge_dim, self.version = add_self_loops, edge_dim, version
        self.share_weights = share_weights
        self.fill_value = _FILLS.get(fill_value, "") if isinstance(fill_value, str) else fill_value
        self._require_options(fill_value)
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self._make_weights(bias, made)
        width = out_channels * (heads if concat else 1)
        self.res = glorot_linear(self.channels[1], width, **made) if residual else None
        self.bias = nn.Parameter(torch.zeros(width, **made)) if bias else None
        self.reset_parameters()

    def _require_options(self, fill_value: Any) -> None:
        if self.version not in (1, 2):
            raise ArgumentValueError(
                f"`version` is {self.version!r}; 1 and 2 are accepted. 2 is GATv2."
            )
        if self.share_weights and (self.version == 1 or self.channels[0] != self.channels[1]):
            raise ArgumentValueError(
                f"`share_weights` is True for version {self.version} and {self.channels} channels; "
                "it is accepted for version 2 and as many channels of targets as of sources. Leave "
                "it out."
            )
        if not 0 <= self.dropout < 1:
            raise ArgumentValueError(
                f"`dropout` is {self.dropout!r}; numbers from 0 to 1 are accepted, 1 is not. Leave "
                "it out for none."
            )
        if not isinstance(self.fill_value, (int, float, str, torch.Tensor)) or (
            isinstance(self.fill_value, str) and not self.fill_value
        ):
            raise ArgumentValueError(
                f"`fill_value` is {fill_value!r}; a number, a tensor, 'mean' and 'sum' are "
                "accepted. Leave it out for the mean."
            )
        hint = "It is the slope of leaky_relu for negative numbers."
        checks.require_number("negative_slope", self.negative_slope, hint)
        if self.edge_dim is not None:
            require_sizes(edge_dim=self.edge_dim)
            fill = self.fill_value
            if isinstance(fill, torch.Tensor) and fill.shape not in ((), (1,), (self.edge_dim,)):
                hint = "It has one number for each feature of an edge."
                raise checks.bad_shape("fill_value", tuple(fill.shape), f"({self.edge_dim},)", hint)

    def _make_weights(self, bias: bool, made: dict[str, Any]) -> None:
        shape = 1, self.heads, self.out_channels
        width = self.heads * self.out_channels
        (src, dst), pair = self.channels, not isinstance(self.in_channels, int)
        if self.version == 2:
            self.lin_l = glorot_linear(src, width, bias=bias, **made)
            share = self.share_weights
            self.lin_r = self.lin_l if share else glorot_linear(dst, width, bias=bias, **made)
            self.att = nn.Parameter(torch.empty(shape, **made))
        else:
            self.lin = None if pair else glorot_linear(src, width, **made)
            self.lin_src = glorot_linear(src, width, **made) if pair else None
            self.lin_dst = glorot_linear(dst, width, **made) if pair else None
            self.att_src = nn.Parameter(torch.empty(shape, **made))
            self.att_dst = nn.Parameter(torch.empty(shape, **made))
        edges = self.edge_dim
        self.lin_edge = None if edges is None else glorot_linear(edges, width, **made)
        if self.version == 1:
            known = edges is not None
            self.att_edge = nn.Parameter(torch.empty(shape, **made)) if known else None

    def reset_parameters(self) -> None:
        """Draws the weights anew."""
        for layer in self.children():
            reset_linear(layer)  # type: ignore[arg-type]
        for name, weight in self.named_parameters(recurse=False):
            if name != "fill_value":  # a parameter that the caller made
                nn.init.zeros_(weight) if name == "bias" else glorot(weight)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        """Moves the layer; a tensor of features of loops follows, though it is no buffer.

        As a buffer it would lose its numbers in `to_empty`, and `state_dict` would have it.
        """
        super()._apply(fn, recurse)
        fill, like = vars(self).get("fill_value"), next(self.parameters())
        if isinstance(fill, torch.Tensor) and not (fill.requires_grad or like.is_meta):
            self.fill_value = fill.to(like if fill.is_floating_point() else like.device)
        return self

    @takes_a_graph
    def forward(
        self, x: Features, A: torch.Tensor, return_attention_weights: bool = False
    ) -> torch.Tensor | tuple[torch.Tensor, SparseTensor]:
        """The features of the targets in the next layer, (m, heads out_channels).

        With `return_attention_weights` also the weights, a hybrid tensor (m, k | heads).
        """
        y, weights = self._forward(x, A, return_attention_weights)
        return y if weights is None else (y, weights)

    @public_as("nn.GraphAttention")  # not on `forward`, where torch.compile starts tracing
    def _forward(
        self, x: Features, A: torch.Tensor, return_attention_weights: bool
    ) -> tuple[torch.Tensor, SparseTensor | None]:
        """The result, and the weights if they are asked for."""
        graph = plain_graph(graph_operand(A, x))
        src, dst = both_ends(x, graph, self.channels, sparse_too=True)
        graph = self._with_loops(graph)
        weighted, weights = return_attention_weights, None
        if self.version == 1:
            bias, left, right, sources = self._ends_1(graph, src, dst)
            if weighted or (self.dropout and self.training) or not self.negative_slope >= 0:
                y, weights = self._attend(self._scores_1(graph, bias, left, right), sources)
            else:
                y = attended(graph, bias, left, right, sources, self.negative_slope)
        else:
            y, weights = self._attend(*self._scores_2(graph, src, dst))
        y = y.flatten(1) if self.concat else y.mean(1)
        if self.res is not None and dst is not None:
            y = y + self.res(dst)
        return (y if self.bias is None else y + self.bias), weights if weighted else None

    def _attend(
        self, scores: SparseTensor, sources: torch.Tensor
    ) -> tuple[torch.Tensor, SparseTensor]:
        """The features of the sources summed with their weights, and the weights."""
        weights = softmax(scores, 1)
        if self.dropout and self.training:
            weights = from_values(F.dropout(values(weights), self.dropout), weights)
        return spmm(weights, sources), weights

    def _with_loops(self, A: SparseTensor) -> SparseTensor:
        """The graph with self-loops if they are asked for; its values are the edge features."""
        loops = self.add_self_loops and not A.is_meta  # on meta nobody knows which ones A lacks
        if self.edge_dim is None:
            return looped_pattern(A) if loops else A
        A = _featured(A, self.edge_dim)
        return refilled_loops(A, self.fill_value) if loops else A

    def _ends_1(
        self, A: SparseTensor, src: torch.Tensor, dst: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, torch.Tensor, torch.Tensor, torch.Tensor]:
        """What scores are the sum of, and the features W x (k, heads, c) that weights multiply.

        The numbers of the edges (nse, heads) or None, of the targets (m, heads) and of the sources
        (k, heads).
        """
        of_src = self.lin_src if self.lin is None else self.lin
        of_dst = self.lin_dst if self.lin is None else self.lin
        assert of_src is not None
        assert of_dst is not None
        shape = self.heads, self.out_channels
        require_dtype_of(of_src, x=src)
        # W^T a is computed first, so that the scores need no W x of all features
        to_right = _per_head(of_src.weight, self.att_src)
        if dst is src:
            to_left = _per_head(of_dst.weight, self.att_dst)
            mixed, ends = two_products(src, of_src, torch.cat([to_left, to_right], 1))
            left, right = ends.chunk(2, 1)
        else:
            mixed, right = two_products(src, of_src, to_right)
            if dst is None:
                left = right.new_zeros(A.shape[0], self.heads)
            else:
                left = dst @ _per_head(of_dst.weight, self.att_dst)
        bias = None
        if self.lin_edge is not None and self.att_edge is not None:
            require_dtype_of(self.lin_edge, A=values(A))
            bias = times_features(values(A), _per_head(self.lin_edge.weight, self.att_edge))
        return bias, left, right, mixed.unflatten(1, shape)

    def _scores_1(
        self,
        A: SparseTensor,
        bias: torch.Tensor | None,
        left: torch.Tensor,
        right: torch.Tensor,
    ) -> SparseTensor:
        """Scores (m, k | heads)."""
        found = added_scores(A, left, right)
        scores = values(found) if bias is None else values(found) + bias
        return from_values(F.leaky_relu(scores, self.negative_slope), found)

    def _scores_2(
        self, A: SparseTensor, src: torch.Tensor, dst: torch.Tensor | None
    ) -> tuple[SparseTensor, torch.Tensor]:
        if dst is None:
            raise ArgumentValueError(
                "`x[1]` is None; features of the targets are accepted in version 2. Give them, or "
                "use version=1."
            )
        require_dtype_of(self.lin_l, x=src)
        shape = self.heads, self.out_channels
        left, right = self.lin_r(dst).unflatten(1, shape), self.lin_l(src).unflatten(1, shape)
        edges = weight = None
        if self.lin_edge is not None:
            edges, weight = values(A), self.lin_edge.weight
        operands = left, right, self.att[0], edges, weight
        return joined_scores(A, operands, self.negative_slope), right

    def extra_repr(self) -> str:
        """What `repr` shows of the layer."""
        sizes = f"{self.in_channels}, {self.out_channels}, heads={self.heads}"
        return sizes if self.version == 1 else f"{sizes}, version=2"


def _featured(A: SparseTensor, features: int) -> SparseTensor:
    """The graph as a hybrid tensor with this number of features of each edge, or an error."""
    inner = A._pattern.dense_shape
    if inner != (features,) and (inner, features) != ((), 1):
        hint = "spgrad.from_edges makes it of edge weights (edges, features)."
        m, k = A._pattern.matrix
        accepted = f"a hybrid ({m}, {k} | {features})"
        raise checks.bad_shape("A", tuple(A._pattern.shape), accepted, hint)
    if inner:
        return A
    return from_values(values(A)[:, None], with_dense_dims(A._pattern, (1,)))


when_tracing(_featured)


def _per_head(weight: torch.Tensor, att: torch.Tensor) -> torch.Tensor:
    """W^T a for each head, (in, heads), of weight (heads c, in) and att (1, heads, c)."""
    by_head = weight.unflatten(0, att.shape[1:])
    return torch.linalg.vecdot(by_head, att[0, :, :, None], dim=1).mT
