"""Layers that aggregate the neighbours of each node by one product."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from spgrad.core import checks
from spgrad.core.refusals import refuse_script
from spgrad.core.tensor import SparseTensor, requires_grad
from spgrad.errors import ArgumentKindError, ArgumentValueError
from spgrad.nn.graph.features import unit_rows
from spgrad.nn.graph.loops import gcn_factors, gcn_norm, gcn_summands, plain_graph
from spgrad.nn.graph.operands import (
    Features,
    both_ends,
    features_of_nodes,
    glorot_linear,
    graph_operand,
    pair_of,
    reduction_of,
    require_dtype_of,
    require_sizes,
    reset_linear,
    square_graph,
    takes_a_graph,
    weighted_graph,
    with_numbers,
)
from spgrad.ops.products.heads import spmm
from spgrad.public import public_as


class MessagePassing(nn.Module):
    """y_i = the sum, mean, maximum, minimum or product of A_ij x_j over the neighbours j of i.

    A layer without weights, and the base of others: a subclass calls `propagate`. A[i, j] is the
    weight of the edge from j to i. For torch_geometric's `edge_index` of (source, target) pass
    ``spgrad.from_edges(edge_index.flip(0))``: from_edges makes (source, target) row and column.

    Args:
        aggr: "sum", "mean", "amax", "amin" or "prod" over the specified elements of a row;
            "add" is another name for "sum", "max" for "amax", "min" for "amin" and "mul" for
            "prod". A node without neighbours gets 0.

    Shapes:
        x (k, c), A sparse (m, k), result (m, c); or the shapes of `spgrad.spmm` with a hybrid A.

    Gradient:
        Of x, and of A on its own pattern.

    Cost:
        O(nse c) time, and no memory for each edge and channel.

    Raises:
        TypeError: A is not sparse or x not dense.
        ValueError: `aggr` is none of these, or sizes, dtypes or devices don't fit.

    Source:
        Gilmer et al. 2017, "Neural Message Passing for Quantum Chemistry".

    Example:
        >>> edges = torch.tensor([[1, 2, 0], [0, 0, 1]])  # 1 -> 0, 2 -> 0, 0 -> 1
        >>> A = spgrad.from_edges(edges.flip(0), size=3)
        >>> spgrad.nn.MessagePassing("amax")(torch.tensor([[1.0], [5.0], [7.0]]), A).T
        tensor([[7., 1., 0.]])
    """

    __prepare_scriptable__ = refuse_script

    @public_as("nn.MessagePassing")
    def __init__(self, aggr: str = "sum") -> None:
        super().__init__()
        self.aggr = reduction_of(aggr)

    @public_as("nn.MessagePassing")
    def propagate(self, x: torch.Tensor, A: torch.Tensor) -> torch.Tensor:
        """Reduces A_ij x_j over the elements of each row of A: (m, c) of x (k, c)."""
        return spmm(graph_operand(A, x), x, self.aggr)

    @takes_a_graph
    def forward(self, x: torch.Tensor, A: torch.Tensor) -> torch.Tensor:
        """Aggregates: (m, c) of x (k, c) and A (m, k)."""
        return self.propagate(x, A)

    def extra_repr(self) -> str:
        """What `repr` shows of the layer."""
        return f"aggr={self.aggr!r}"


class GraphConv(MessagePassing):
    """y = D^-1/2 (A + I) D^-1/2 x W^T + b, where D are the sums of the rows of A + I.

    torch_geometric calls this layer `GCNConv`; arguments, initial weights and `state_dict` are the
    same. A[i, j] is the weight of the edge from j to i. Weights may be learned, and the gradient
    goes through D too. Self-loops that A has keep their weights.

    Args:
        in_channels: Features of a node.
        out_channels: Features of a node in the result.
        improved: Adds 2 I in place of I.
        cached: Keeps the normalised matrix of the first call and uses it in all later calls, which
            ignore their A: for one graph whose weights are fixed. It moves with the layer.
        add_self_loops: False adds nothing to A.
        normalize: False multiplies by A as it is, and adds no self-loops.
        bias: False leaves b out.
        device: Of the weights.
        dtype: Of the weights.

    Shapes:
        x (n, in_channels), dense or sparse, A sparse (n, n) of any layout, result
        (n, out_channels).

    Gradient:
        Of x, the weights, and of A on its own pattern.

    Cost:
        O(n in_channels out_channels + nse out_channels) time, O(n out_channels) memory. The
        normalised matrix is made only in float16, whose range the sums could leave otherwise, and
        with `cached` in the first call, of which torch.compile does not make one graph.

    Raises:
        TypeError: A is not sparse or x not dense.
        ValueError: Sizes or dtypes don't fit, or `cached` meets an A that requires a gradient.

    Source:
        Kipf, Welling 2017, "Semi-Supervised Classification with Graph Convolutional Networks".

    Example:
        >>> A = spgrad.from_edges(torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]))
        >>> layer = spgrad.nn.GraphConv(4, 2)
        >>> layer(torch.ones(3, 4), A).shape
        torch.Size([3, 2])
    """

    @public_as("nn.GraphConv")
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        improved: bool = False,
        cached: bool = False,
        add_self_loops: bool = True,
        normalize: bool = True,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        require_sizes(in_channels=in_channels, out_channels=out_channels)
        self.in_channels, self.out_channels = in_channels, out_channels
        self.improved, self.cached = improved, cached
        self.add_self_loops, self.normalize = add_self_loops, normalize
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.lin = glorot_linear(in_channels, out_channels, **made)
        self.bias = nn.Parameter(torch.zeros(out_channels, **made)) if bias else None
        self._normalised: SparseTensor | None = None

    def reset_parameters(self) -> None:
        """Draws the weights anew, and forgets what `cached` kept."""
        reset_linear(self.lin)
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        self._normalised = None

    @takes_a_graph
    def forward(self, x: torch.Tensor, A: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """The features of the next layer, (n, out_channels)."""
        return self._forward(x, A)

    @public_as("nn.GraphConv")  # not on `forward`, where torch.compile starts tracing
    def _forward(self, x: torch.Tensor, A: torch.Tensor) -> torch.Tensor:
        graph = plain_graph(square_graph(A, x))
        fits = {"nodes": graph.shape[1], "channels": self.in_channels}
        x = features_of_nodes("x", x, graph, **fits, sparse_too=True, dtype_too=True)
        require_dtype_of(self.lin, x=x)
        h = self.lin(x)
        if not self.normalize:
            y = self.propagate(h, graph)
        elif self.cached and not graph.is_meta:
            y = self.propagate(h, self._kept(graph))
        else:
            y = self._normalised_sums(h, graph)
        return y if self.bias is None else y + self.bias

    def _normalised_sums(self, h: torch.Tensor, A: SparseTensor) -> torch.Tensor:
        """gcn_norm(A) h."""
        if h.dtype == torch.float16:
            A, loops = gcn_summands(A, self.improved, self.add_self_loops)
            y = self.propagate(h, A)
        else:
            scale, loops = gcn_factors(A, self.improved, self.add_self_loops)
            y = self.propagate(h * scale, A) * scale
        return y if loops is None else torch.addcmul(y, h, loops)

    def _kept(self, A: SparseTensor) -> SparseTensor:
        if requires_grad(A) and torch.is_grad_enabled():
            raise ArgumentValueError(
                "`A` requires a gradient, and the layer keeps the matrix of the first call; "
                "weights that are fixed are accepted. Use cached=False to learn them."
            )
        if self._normalised is None:
            with torch.inference_mode(False), torch.no_grad():  # a later call may be in training
                self._normalised = gcn_norm(A, self.improved, self.add_self_loops)
        return self._normalised

    def _apply(self, fn: Any, recurse: bool = True) -> GraphConv:
        super()._apply(fn, recurse)
        if (old := self._normalised) is not None:
            new = with_numbers(fn(old), old)
            self._normalised = None if new.is_meta else new  # it has lost its numbers on meta
        return self

    def extra_repr(self) -> str:
        """What `repr` shows of the layer."""
        return f"{self.in_channels}, {self.out_channels}"


class SAGEConv(MessagePassing):
    """y_i = W_l mean_j(A_ij x_j) + W_r x_i + b, or with another reduction over the neighbours j.

    Arguments, initial weights and `state_dict` are those of torch_geometric's `SAGEConv`. A[i, j]
    is the weight of the edge from j to i; torch_geometric's layer has no edge weights, which is the
    same as weights of 1 here. A repeated edge is one edge here, of the sum of its weights, and the
    mean of torch_geometric counts it again; the product of no neighbours is 0 here, and 1 there.

    Args:
        in_channels: Features of a node, or a pair: of sources (columns of A) and of targets (rows).
        out_channels: Features of a target in the result.
        aggr: A reduction of `spgrad.nn.MessagePassing`.
        normalize: Divides each row of the result by its 2-norm; a row of zeros stays as it is.
        root_weight: False leaves W_r x_i out.
        project: Replaces the features x of the sources by relu(P x + p) first.
        bias: False leaves b out.
        device: Of the weights.
        dtype: Of the weights.

    Shapes:
        x (n, in_channels), or a pair of (k, in_channels[0]) and (m, in_channels[1]) or None; A
        sparse (m, k) of any layout; result (m, out_channels).

    Gradient:
        Of x, the weights, and of A on its own pattern.

    Cost:
        O(nse in_channels) and the dense products in time; O(m in_channels) memory.

    Raises:
        TypeError: A is not sparse or x not dense.
        ValueError: Sizes or dtypes don't fit, or `aggr` is no reduction.

    Source:
        Hamilton, Ying, Leskovec 2017, "Inductive Representation Learning on Large Graphs".

    Example:
        >>> A = spgrad.from_edges(torch.tensor([[0, 1, 1], [0, 1, 2]]))  # (3, 3)
        >>> layer = spgrad.nn.SAGEConv((4, 5), 2)
        >>> layer((torch.ones(3, 4), torch.ones(2, 5)), A[:2]).shape
        torch.Size([2, 2])
    """

    @public_as("nn.SAGEConv")
    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        aggr: str = "mean",
        normalize: bool = False,
        root_weight: bool = True,
        project: bool = False,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(aggr)
        require_sizes(out_channels=out_channels)
        src, dst = self.channels = pair_of(in_channels)
        self.in_channels, self.out_channels, self.normalize = in_channels, out_channels, normalize
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.lin = nn.Linear(src, src, **made) if project else None
        self.lin_l = nn.Linear(src, out_channels, bias=bias, **made)
        self.lin_r = nn.Linear(dst, out_channels, bias=False, **made) if root_weight else None

    def reset_parameters(self) -> None:
        """Draws the weights anew."""
        for layer in (self.lin, self.lin_l, self.lin_r):
            if layer is not None:
                layer.reset_parameters()

    @takes_a_graph
    def forward(self, x: Features, A: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """The features of the targets in the next layer, (m, out_channels)."""
        return self._forward(x, A)

    @public_as("nn.SAGEConv")  # not on `forward`, where torch.compile starts tracing
    def _forward(self, x: Features, A: torch.Tensor) -> torch.Tensor:
        graph = weighted_graph(A, x)
        src, dst = both_ends(x, graph, self.channels)
        require_dtype_of(self.lin_l, x=src)
        src = src if self.lin is None else self.lin(src).relu()
        y = self.lin_l(self.propagate(src, graph))
        if self.lin_r is not None and dst is not None:
            y = y + self.lin_r(dst)
        return unit_rows(y) if self.normalize else y

    def extra_repr(self) -> str:
        """What `repr` shows of the layer."""
        return f"{self.in_channels}, {self.out_channels}, aggr={self.aggr!r}"


class GINConv(MessagePassing):
    """y_i = f((1 + eps) x_i + sum_j A_ij x_j) for a network f: the graph isomorphism layer.

    Arguments, initial weights and `state_dict` are those of torch_geometric's `GINConv`. A[i, j]
    is the weight of the edge from j to i, which is always 1 in torch_geometric's layer.

    Args:
        nn: The network f, a module that takes (m, c).
        eps: The initial eps.
        train_eps: Makes eps a parameter.
        device: Of eps.
        dtype: Of eps.

    Shapes:
        x (n, c), or a pair of (k, c) and (m, c) or None; A sparse (m, k) of any layout; the
        result has the shape that f gives for an input (m, c).

    Gradient:
        Of x, eps, the weights of f, and of A on its own pattern.

    Cost:
        O(nse c) time and that of f; O(m c) memory.

    Raises:
        TypeError: A is not sparse, x not dense, or `nn` cannot be called.
        ValueError: Sizes or dtypes don't fit.

    Source:
        Xu, Hu, Leskovec, Jegelka 2019, "How Powerful are Graph Neural Networks?".

    Example:
        >>> A = spgrad.from_edges(torch.tensor([[0, 0], [1, 2]]), size=3)
        >>> layer = spgrad.nn.GINConv(torch.nn.Identity(), eps=1.0)
        >>> layer(torch.tensor([[1.0], [10.0], [100.0]]), A).T
        tensor([[112.,  20., 200.]])
    """

    eps: torch.Tensor

    @public_as("nn.GINConv")
    def __init__(
        self,
        nn: Any,
        eps: float = 0.0,
        train_eps: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if not callable(nn):
            raise ArgumentKindError(
                f"`nn` is {checks.describe_kind(nn)}; a module or function is accepted. For "
                "example torch.nn.Linear(16, 16)."
            )
        self.nn = nn
        self.initial_eps = eps
        start = torch.full((1,), float(eps), device=device, dtype=dtype)
        if train_eps:
            self.eps = torch.nn.Parameter(start)
        else:
            self.register_buffer("eps", start)

    def reset_parameters(self) -> None:
        """Sets eps back, and draws the weights of the network anew."""
        with torch.no_grad():
            self.eps.fill_(self.initial_eps)
        for layer in self.nn.modules() if isinstance(self.nn, torch.nn.Module) else ():
            if callable(reset := getattr(layer, "reset_parameters", None)):
                reset()

    @takes_a_graph
    def forward(self, x: Features, A: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """The features of the targets in the next layer."""
        return self._forward(x, A)

    @public_as("nn.GINConv")  # not on `forward`, where torch.compile starts tracing
    def _forward(self, x: Features, A: torch.Tensor) -> torch.Tensor:
        graph = weighted_graph(A, x)
        src, dst = both_ends(x, graph, (None, None))
        y = self.propagate(src, graph)
        if dst is not None:
            y = torch.addcmul(y, dst, 1 + self.eps)
        return self.nn(y)  # type: ignore[return-value]

    def extra_repr(self) -> str:
        """What `repr` shows of the layer beside its network."""
        trained = isinstance(self.eps, torch.nn.Parameter)
        return f"eps={self.initial_eps}, train_eps={trained}"
