"""Scores of pairs of nodes that are joined by an edge: those of GAT and of GATv2."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F

from spgrad import kernels
from spgrad.core.pattern import Pattern
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import from_values
from spgrad.lowering.products.spmm import wants_grad
from spgrad.lowering.segments import segment_expand, segments_of
from spgrad.lowering.views import rows
from spgrad.nn.graph.loops import with_dense_dims
from spgrad.ops.products.graphs.additive_attention import attend
from spgrad.torch_protocol.compile import when_tracing
from spgrad.torch_protocol.func_transforms import Derived, transforming

_AT_ONCE = 2**18
"""A chunk of edges has this many numbers, so that its intermediate tensors stay in the cache."""


def added_scores(A: SparseTensor, dst: torch.Tensor, src: torch.Tensor) -> SparseTensor:
    """dst[i] + src[j] for each element (i, j) of A and each head, (m, k | h)."""
    pattern = A._pattern
    by_row, by_column = segments_of(pattern, (1,)), segments_of(pattern, (0,))
    found = segment_expand(dst, by_row) + segment_expand(src, by_column)
    return from_values(found, with_dense_dims(pattern, (found.shape[1],)))


when_tracing(added_scores)


def attended(
    A: SparseTensor,
    bias: torch.Tensor | None,
    dst: torch.Tensor,
    src: torch.Tensor,
    x: torch.Tensor,
    slope: float,
) -> torch.Tensor:
    """Sums (m, h, c) of x (k, h, c), with the softmax of leaky_relu(dst[i] + src[j]) as weights.

    `bias` (nse, h) is added to the sums. The values of A do not count.
    """
    return attend(A._pattern, bias, dst, src, x, slope)


when_tracing(attended)


Layers = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None]
"""dst (m, h, c), src (k, h, c), att (h, c), edges (nse, d), weight (h c, d) of `joined_scores`."""


def joined_scores(A: SparseTensor, layers: Layers, slope: float) -> SparseTensor:
    """(m, k | h): att . leaky_relu(dst[i] + src[j] + weight edge_ij) at the elements of A.

    The sums within leaky_relu are made for a few thousand edges at a time and not stored; the
    gradients compute them again. Only second derivatives and compiled code store (nse, h, c)
    numbers.
    """
    pattern = A._pattern
    given = [t for t in layers if t is not None]
    wide = functools.reduce(torch.promote_types, (t.dtype for t in given))  # autocast mixes them
    layers = tuple(None if t is None else t.to(wide) for t in layers)  # type: ignore[assignment]
    if torch.compiler.is_compiling() or transforming():
        found = _scores(*_ends(pattern), layers, slope)
    elif wants_grad(*given):
        found = _JoinedScores.apply(*layers, pattern, slope)
    else:
        found = _in_chunks(pattern, layers, slope)
    return from_values(found, with_dense_dims(pattern, (found.shape[1],)))  # type: ignore[arg-type]


when_tracing(joined_scores)


def _ends(pattern: Pattern) -> tuple[torch.Tensor, torch.Tensor]:
    """Row and column of each element, in the order of the values."""
    view = rows(pattern)
    row = kernels.expand(view.ptr, view.idx.numel()).to(torch.int64)
    col = view.idx.to(torch.int64)
    if view.perm is None:
        return row, col
    place = view.perm.to(torch.int64)
    return torch.empty_like(row).index_copy(0, place, row), col[torch.argsort(place)]


def times_features(edges: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The features of edges (nse, d) times a matrix (d, n).

    With d = 1, torch compares strides with nse for the gradient of `edges`, and torch.compile does
    not know the nse of a graph to which the code adds self-loops. A column of zeros keeps it from
    being asked.
    """
    if torch.compiler.is_compiling() and edges.shape[1] == 1:
        edges, weight = F.pad(edges, (0, 1)), F.pad(weight, (0, 0, 0, 1))
    return edges @ weight


def _scores(row: torch.Tensor, col: torch.Tensor, layers: Layers, slope: float) -> torch.Tensor:
    dst, src, att, edges, weight = layers
    joined = dst.index_select(0, row) + src.index_select(0, col)
    if edges is not None and weight is not None:
        joined = joined + times_features(edges, weight.mT).view(joined.shape)
    return (F.leaky_relu(joined, slope) * att).sum(-1)


def _chunks(edges: int, width: int) -> list[slice]:
    step = max(_AT_ONCE // max(width, 1), 1)
    return [slice(at, min(at + step, edges)) for at in range(0, edges, step)]


def _in_chunks(pattern: Pattern, layers: Layers, slope: float) -> torch.Tensor:
    dst, src, att, edges, weight = layers
    row, col = _ends(pattern)
    out = att.new_empty(row.shape[0], att.shape[0])
    for at in _chunks(row.shape[0], att.numel()):
        part = dst, src, att, None if edges is None else edges[at], weight
        out[at] = _scores(row[at], col[at], part, slope)
    return out


class _JoinedScores(Derived):
    @staticmethod
    def forward(ctx: Any, *given: Any) -> torch.Tensor:
        *layers, pattern, slope = given
        ctx.save_for_backward(*layers)
        ctx.pattern, ctx.slope = pattern, slope
        return _in_chunks(pattern, tuple(layers), slope)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        layers = ctx.saved_tensors
        wanted = [ctx.needs_input_grad[i] and t is not None for i, t in enumerate(layers)]
        row, col = _ends(ctx.pattern)
        if torch.is_grad_enabled():
            asked = [t for t, yes in zip(layers, wanted, strict=True) if yes]
            y = _scores(row, col, layers, ctx.slope)
            found = iter(torch.autograd.grad(y, asked, g, create_graph=True))
            return (*(next(found) if yes else None for yes in wanted), None, None)
        grads = [None if t is None else torch.zeros_like(t) for t in layers]
        for at in _chunks(row.shape[0], layers[2].numel()):
            _add_gradients(grads, layers, (row[at], col[at], at), g[at], ctx.slope)
        return (*(d if yes else None for d, yes in zip(grads, wanted, strict=True)), None, None)


def _add_gradients(grads: Any, layers: Any, chunk: Any, g: torch.Tensor, slope: float) -> None:
    """Adds the gradients of the scores of one chunk of edges to `grads`, in place."""
    dst, src, att, edges, weight = layers
    row, col, at = chunk
    joined = dst.index_select(0, row) + src.index_select(0, col)
    if edges is not None:
        joined += (edges[at] @ weight.mT).view(joined.shape)
    grads[2] += (F.leaky_relu(joined, slope) * g[..., None]).sum(0)
    one = g.new_ones(())  # from two Python numbers torch.where would make the default dtype
    of_joined = torch.where(joined > 0, one, slope).mul_(att).mul_(g[..., None])
    grads[0].index_add_(0, row, of_joined)
    grads[1].index_add_(0, col, of_joined)
    if edges is not None:
        flat = of_joined.flatten(1)
        grads[3][at] = flat @ weight
        grads[4].addmm_(flat.mT, edges[at])
