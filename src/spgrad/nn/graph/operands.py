"""Checks the operands of graph layers, and draws their initial weights."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn

from spgrad.core import checks
from spgrad.core.refusals import refuse_tracers
from spgrad.core.tensor import SparseTensor
from spgrad.errors import ArgumentKindError, ArgumentValueError
from spgrad.lowering.operands import (
    dense_operand,
    is_sparse,
    matrix_operand,
    require_rank,
    sparse_operand,
)
from spgrad.ops.products.spmm_reduce import OTHER_NAMES, REDUCTIONS
from spgrad.torch_protocol.autocast import converts
from spgrad.torch_protocol.compile import when_tracing

T = TypeVar("T")

Features = torch.Tensor | tuple[torch.Tensor, torch.Tensor | None]
"""Features of all nodes, or a pair: those of the sources, and those of the targets or None."""


def takes_a_graph(forward: Callable[..., T]) -> Callable[..., T]:
    """Refuses other arguments, such as those of PyG's layers, and says what to pass instead."""
    code = forward.__code__  # type: ignore[attr-defined]
    accepted = code.co_varnames[1 : code.co_argcount]

    @functools.wraps(forward)
    def run(self: nn.Module, *args: Any, **kwargs: Any) -> T:
        given = len(args) + len(kwargs)
        if not 2 <= given <= len(accepted) or any(name not in accepted for name in kwargs):
            names = f" ({', '.join(kwargs)} by name)" if kwargs else ""
            raise ArgumentKindError(
                f"the layer is called with {given} argument{'s' * (given != 1)}{names}; "
                f"({', '.join(accepted)}) are accepted, where A has the edges and their weights. "
                "For PyG's edge_index and edge_weight, pass "
                "A = spgrad.from_edges(edge_index.flip(0), edge_weight, num_nodes).",
                function=f"nn.{type(self).__name__}",
            )
        return forward(self, *args, **kwargs)

    return run


def reduction_of(aggr: str) -> str:
    """The name that `spgrad.spmm` has for a reduction, or the refusal."""
    named = isinstance(aggr, str)
    found = OTHER_NAMES.get(aggr, aggr) if named else ""
    if found not in REDUCTIONS:
        raise (ArgumentValueError if named else ArgumentKindError)(
            f"`aggr` is {aggr!r}; {', '.join(REDUCTIONS)} are accepted. Leave it out for the "
            "layer's default."
        )
    return found


def graph_operand(A: Any, x: Any = None) -> SparseTensor:
    """`A` as a SparseTensor that is one adjacency matrix, or the refusal; x are the features."""
    refuse_tracers()
    if not is_sparse(A) and checks.constructor_of(A) == "from_edges":
        raise ArgumentKindError(
            f"`A` is {checks.describe_kind(A)}, like PyG's edge_index; a SparseTensor or a native "
            "torch sparse tensor is accepted. Make one, whose row i has the edges that lead to "
            "node i, with spgrad.from_edges(edge_index.flip(0), edge_weight, num_nodes)."
        )
    if isinstance(x, SparseTensor) and not is_sparse(A):
        raise ArgumentKindError(
            f"`A` is {checks.describe_kind(A)}, and `x` is sparse; a sparse `A` is accepted. The "
            "features come first: layer(x, A)."
        )
    found = sparse_operand("A", A)
    pattern = found._pattern
    if len(pattern.shape) - pattern.dense_dim != 2:
        hint = "Join a batch of graphs with spgrad.block_diag."
        raise checks.bad_shape("A", tuple(pattern.shape), "one adjacency matrix", hint)
    return found


def weighted_graph(A: Any, x: Any = None) -> SparseTensor:
    """`A` as an adjacency matrix with one weight for each edge."""
    found = graph_operand(A, x)
    if found._pattern.dense_dim:
        hint = "GraphAttention takes more numbers of an edge."
        raise checks.bad_shape("A", tuple(found._pattern.shape), "one weight for each edge", hint)
    return found


_BIPARTITE = "SAGEConv, GINConv and GraphAttention take bipartite graphs."


def square_graph(A: Any, x: Any = None, hint: str = _BIPARTITE) -> SparseTensor:
    """`A` as the adjacency matrix of one kind of nodes, with one weight for each edge."""
    found = graph_operand(A, x)
    shape = tuple(found._pattern.shape)
    if len(shape) != 2 or shape[0] != shape[1]:
        raise checks.bad_shape("A", shape, "a square matrix", hint)
    return found


def both_ends(
    x: Any,
    A: SparseTensor,
    channels: tuple[int | None, int | None],
    sparse_too: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Features of sources (k, channels) and of targets (m, channels) or None, or the refusal.

    Both have one dtype, unless autocast converts them.
    """
    m, k = A.shape[:2]
    ends = functools.partial(features_of_nodes, A=A, sparse_too=sparse_too)
    if not isinstance(x, (tuple, list)):
        if m != k:
            raise ArgumentKindError(
                f"`x` is one tensor; a pair (x_src, x_dst) is accepted for A of shape {(m, k)}. "
                "Give the features of columns and of rows of A."
            )
        found = ends("x", x, nodes=k, channels=channels[0])
        return found, ends("x", x, nodes=m, channels=channels[1])
    if len(x) != 2:
        raise ArgumentValueError(
            f"`x` has {len(x)} items; a pair (x_src, x_dst) is accepted. Give None for x_dst where "
            "targets have no features."
        )
    src = ends("x[0]", x[0], nodes=k, channels=channels[0])
    dst = None if x[1] is None else ends("x[1]", x[1], nodes=m, channels=channels[1])
    if dst is not None and not converts(src):
        checks.require_same_dtype(**{"x[0]": src, "x[1]": dst})
    return src, dst


def features_of_nodes(
    arg: str,
    x: Any,
    A: SparseTensor,
    *,
    nodes: int,
    channels: int | None,
    sparse_too: bool = False,
    dtype_too: bool = False,
) -> torch.Tensor:
    """`x` if it is (nodes, channels), dense or with `sparse_too` sparse; None: any channels.

    It must be on the device of A, and with `dtype_too` have the dtype of A. Autocast converts both.
    """
    x = matrix_operand(arg, x) if sparse_too and is_sparse(x) else dense_operand(arg, x)
    require_rank(arg, x, 2, "Flatten the features of a node.")
    if x.shape[0] != nodes or channels not in (None, x.shape[1]):
        accepted = f"({nodes}, {'channels' if channels is None else channels})"
        hint = "Rows follow from A, columns from the layer."
        raise checks.bad_shape(arg, tuple(x.shape), accepted, hint)
    checks.require_same_device(**{arg: x, "A": A._vals})
    if dtype_too and not converts(x):
        checks.require_same_dtype(x=x, A=A._vals)
    return x


def require_dtype_of(linear: nn.Module, **multiplied: torch.Tensor) -> None:
    """Refuses what a layer multiplies by weights of another dtype.

    Autocast converts both. A quantized layer has no weights of a floating-point dtype, and a module
    that a caller put in place of a linear layer perhaps none.
    """
    ((arg, x),) = multiplied.items()
    weight = getattr(linear, "weight", None)
    if isinstance(weight, torch.Tensor) and weight.is_floating_point() and not converts(x):
        checks.require_same_dtype(**{arg: x}, weight=weight)


# torch.compile traces layers, but can't read the pattern of an operation's result
for _function in (graph_operand, weighted_graph, square_graph, features_of_nodes):
    when_tracing(_function)


def with_numbers(found: SparseTensor, old: SparseTensor) -> SparseTensor:
    """What `torch.nn.Module._apply` made of a matrix that no `state_dict` has, with its numbers.

    `to_empty` makes memory without numbers, and no state could bring these back.
    """
    if found is old or found.is_meta:
        return found
    return old.to(device=found.device, dtype=found.dtype)  # type: ignore[return-value]


def require_sizes(**sizes: Any) -> None:
    """Refuses numbers of channels and of heads that are no positive ints."""
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ArgumentValueError(
                f"`{name}` is {size!r}; an int of at least 1 is accepted. Give the number: "
                "the layer does not find it in the first call."
            )


def pair_of(in_channels: Any) -> tuple[int, int]:
    """Channels of sources and of targets."""
    pair = in_channels if isinstance(in_channels, (tuple, list)) else (in_channels, in_channels)
    if len(pair) != 2:
        raise ArgumentValueError(
            f"`in_channels` is {in_channels!r}; an int or a pair of ints is accepted. Give those "
            "of sources and of targets."
        )
    require_sizes(in_channels=pair[0])
    require_sizes(in_channels=pair[1])
    return pair[0], pair[1]


@torch.no_grad()
def glorot(weight: torch.Tensor) -> None:
    """Draws from [-a, a], a = (6 / (sum of the last two sizes))^1/2 (Glorot and Bengio, 2010)."""
    bound = math.sqrt(6 / max(weight.shape[-2] + weight.shape[-1], 1))
    weight.uniform_(-bound, bound)


def glorot_linear(inputs: int, outputs: int, *, bias: bool = False, **made: Any) -> nn.Linear:
    """A linear layer with weights by `glorot` and zeros for its bias."""
    layer = nn.Linear(inputs, outputs, bias=bias, **made)
    reset_linear(layer)
    return layer


def reset_linear(layer: nn.Linear) -> None:
    """Draws the weights of a `glorot_linear` anew."""
    glorot(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
