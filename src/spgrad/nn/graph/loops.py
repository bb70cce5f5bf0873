"""Self-loops, and the normalisation of graph convolutions."""

from __future__ import annotations

from typing import Any

import torch

from spgrad.core import kept
from spgrad.core.pattern import Pattern
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import from_values, stored_values
from spgrad.lowering.coalesce import without_repeats
from spgrad.lowering.convert import convert
from spgrad.lowering.rebuild import coordinates, remembered
from spgrad.nn.graph.operands import graph_operand, square_graph
from spgrad.ops.elementwise.binary import add, mul
from spgrad.ops.reductions.reduce import sum as sum_of
from spgrad.ops.shapes.diagonal import diagonal
from spgrad.ops.shapes.shape import same_elements
from spgrad.public import public_as
from spgrad.torch_protocol.compile import when_tracing


@public_as("nn.add_self_loops")
def add_self_loops(A: torch.Tensor, fill_value: float = 1.0) -> SparseTensor:
    """The graph with an edge from each node to itself; existing self-loops keep their weights.

    Args:
        A: Sparse (m, k) of any layout, or hybrid (m, k | d) with d weights for each edge.
        fill_value: The weight of a new self-loop.

    Returns:
        SparseTensor of the layout of `A`, CSR for BSR and BSC, with all elements (i, i).

    Gradient:
        That of `A` is the cotangent at its elements.

    Cost:
        O(nse); the pattern is found once and kept.

    Raises:
        TypeError: `A` is not sparse.
        ValueError: `A` is not a matrix.

    Source:
        `add_remaining_self_loops` of torch_geometric.

    Example:
        >>> A = spgrad.from_edges(torch.tensor([[0, 0], [0, 1]]), torch.tensor([5.0, 7.0]))
        >>> spgrad.nn.add_self_loops(A).to_dense()
        tensor([[5., 7.],
                [0., 1.]])
    """
    found = plain_graph(graph_operand(A))
    loops = with_dense_dims(all_loops(found._pattern), found._pattern.dense_shape)
    missing = missing_loops(found).view(-1, *[1] * found._pattern.dense_dim)
    new = torch.where(missing != 0, fill_value, 0).to(missing.dtype)
    new = new.expand(loops.values_shape).contiguous()
    return add(found, from_values(new, loops))  # type: ignore[return-value]


@public_as("nn.gcn_norm")
def gcn_norm(A: torch.Tensor, improved: bool = False, add_self_loops: bool = True) -> SparseTensor:
    """D^-1/2 (A + I) D^-1/2, where D has the sums of the rows of A + I on its diagonal.

    Nodes whose weights have the sum 0 get rows and columns of zeros.

    Args:
        A: Sparse (n, n) of any layout; A[i, j] is the weight of the edge from j to i.
        improved: Adds 2 I in place of I.
        add_self_loops: False adds nothing. Existing self-loops keep their weights.

    Returns:
        SparseTensor (n, n) of the layout of `A`, CSR for BSR and BSC.

    Gradient:
        Of `A` on its own pattern, through the degrees too.

    Cost:
        O(nse + n).

    Raises:
        TypeError: `A` is not sparse.
        ValueError: `A` is not square.

    Source:
        Kipf, Welling 2017, "Semi-Supervised Classification with Graph Convolutional Networks".

    Example:
        >>> A = spgrad.from_edges(torch.tensor([[0, 1], [1, 0]]))
        >>> spgrad.nn.gcn_norm(A).to_dense()
        tensor([[0.5000, 0.5000],
                [0.5000, 0.5000]])
    """
    found = plain_graph(square_graph(A))
    if add_self_loops:
        found = _looped(found, 2.0 if improved else 1.0)
    return _scaled(found, inverse_roots(wide_sums(found, 1)))


def _scaled(A: SparseTensor, scale: torch.Tensor) -> SparseTensor:
    """A with its rows and its columns multiplied by `scale` (n,)."""
    return as_narrow(mul(mul(A, scale[:, None]), scale), A)  # type: ignore[arg-type]


_looped = add_self_loops

# steps of a graph, which read patterns, as Dynamo can't
when_tracing(add_self_loops)
when_tracing(gcn_norm)


def gcn_factors(
    A: SparseTensor, improved: bool, loops: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """s and t, both (n, 1), for which gcn_norm(A) x is s (A (s x)) + t x.

    With them, the product needs no memory for each edge. t is None if `loops` is False.
    """
    scale, of_loops = _wide_factors(A, improved, loops)
    of_loops = None if of_loops is None else as_narrow(of_loops[:, None], A)
    return as_narrow(scale[:, None], A), of_loops


def gcn_summands(
    A: SparseTensor, improved: bool, loops: bool
) -> tuple[SparseTensor, torch.Tensor | None]:
    """B and t (n, 1), for which gcn_norm(A) x is B x + t x; B has the pattern of A.

    Sums of B x are in the range of float16 where sums of A (s x), with the s of `gcn_factors`, are
    not: those of a node with tens of thousands of neighbours.
    """
    scale, of_loops = _wide_factors(A, improved, loops)
    return _scaled(A, scale), None if of_loops is None else as_narrow(of_loops[:, None], A)


def _wide_factors(
    A: SparseTensor, improved: bool, loops: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """s and t of `gcn_factors`, (n,), in the dtype of `wide_sums`."""
    degrees = wide_sums(A, 1)
    if not loops:
        return inverse_roots(degrees), None
    missing = missing_loops(A)
    new = missing * 2 if improved else missing
    scale = inverse_roots(degrees + new)
    return scale, new * scale * scale


def wide_sums(A: SparseTensor, dim: int) -> torch.Tensor:
    """The sums of rows or columns; those of 16-bit values in float32.

    float16 ends at 65504, but a node may have more neighbours, and the inverse of its degree fits.
    """
    return sum_of(A, dim, dtype=torch.float32 if _is_narrow(A) else None)


def as_narrow(x: Any, A: SparseTensor) -> Any:
    """What was computed from `wide_sums` in the dtype of A, if that has 16 bits."""
    return x.to(A.dtype) if _is_narrow(A) else x


def _is_narrow(A: SparseTensor) -> bool:
    return A.dtype in (torch.float16, torch.bfloat16)


def inverse_roots(degrees: torch.Tensor) -> torch.Tensor:
    """degrees^-1/2, and 0 with gradient 0 for degrees of 0."""
    none = degrees == 0
    return torch.where(none, 0, torch.where(none, 1, degrees).rsqrt())


def plain_graph(A: SparseTensor) -> SparseTensor:
    """A without repeated elements and in a layout without blocks, as self-loops fill no block."""
    A = without_repeats(A)
    return A if A._pattern.blocksize is None else convert(A, torch.sparse_csr)


when_tracing(plain_graph)


def all_loops(pattern: Pattern) -> Pattern:
    """A self-loop for each node, in the layout of the pattern of a graph, and kept on it."""

    def find() -> Pattern:
        at = torch.arange(min(pattern.matrix), device=pattern.device)
        at = at.to(pattern.indices[0].dtype)
        found = Pattern(torch.sparse_coo, pattern.matrix, (torch.stack([at, at]),))
        return _in_layout(found, pattern.layout)

    return remembered(pattern, kept.LOOPS, "all", find)


def _in_layout(pattern: Pattern, layout: torch.layout) -> Pattern:
    none = torch.zeros(pattern.elements, dtype=torch.bool, device=pattern.device)
    return convert(SparseTensor(none, pattern), layout)._pattern


def missing_loops(A: SparseTensor) -> torch.Tensor:
    """(min(m, k),) of the dtype of A: 1 where a node has no self-loop, 0 elsewhere."""
    return A._pattern.derive(kept.LOOPS.of("places"), _missing_places).to(A._vals.dtype)


when_tracing(missing_loops)  # a step of a graph: it reads the pattern, which is no operand


def _missing_places(pattern: Pattern) -> torch.Tensor:
    flat = with_dense_dims(pattern, ())
    ones = torch.ones(flat.values_shape, dtype=torch.int8, device=pattern.device)
    return 1 - diagonal(SparseTensor(ones, flat))


def with_dense_dims(pattern: Pattern, inner: tuple[int, ...]) -> Pattern:
    """A pattern of the same elements with these dense dimensions; both patterns share views."""
    if inner == pattern.dense_shape:
        return pattern
    shape = (*pattern.shape[: pattern.sparse_dim], *inner)
    key = kept.INNER.of(inner)
    return pattern.derive(key, lambda p: same_elements(p, shape, len(inner)))


def looped_pattern(A: SparseTensor) -> SparseTensor:
    """The pattern of the graph with all self-loops; its values (nse,) have no meaning."""

    def find() -> Pattern:
        loops = all_loops(flat)
        ones = (torch.ones(p.elements, dtype=torch.int8, device=p.device) for p in (flat, loops))
        both = [SparseTensor(vals, p) for vals, p in zip(ones, (flat, loops), strict=True)]
        return add(*both)._pattern  # type: ignore[attr-defined]

    flat = with_dense_dims(A._pattern, ())
    pattern = remembered(flat, kept.LOOPS, "looped", find)
    none = torch.zeros(pattern.elements, dtype=torch.int8, device=pattern.device)
    return SparseTensor(none, pattern)


when_tracing(looped_pattern)


def refilled_loops(A: SparseTensor, fill: float | torch.Tensor | str) -> SparseTensor:
    """A (m, k | d) with all self-loops, whose values are set to `fill`.

    `fill` is a number, a tensor (d,), or the "mean" or "sum" of the other edges of a row.
    """
    pattern, vals = A._pattern, stored_values(A)
    off = pattern.derive(kept.LOOPS.of("off"), _off_diagonal)
    others = torch.where(off[:, None], vals, 0)
    loops = with_dense_dims(all_loops(pattern), pattern.dense_shape)
    count = loops.elements
    if isinstance(fill, str):
        new = sum_of(from_values(others, pattern), 1)[:count]
        if fill == "mean":
            ones = SparseTensor(off.to(vals.dtype), with_dense_dims(pattern, ()))
            new = new / sum_of(ones, 1)[:count, None].clamp(min=1)
    else:
        new = torch.as_tensor(fill, dtype=vals.dtype, device=vals.device)
        new = new.expand(loops.values_shape).contiguous()
    return add(from_values(others, pattern), from_values(new, loops))  # type: ignore[return-value]


when_tracing(refilled_loops)


def _off_diagonal(pattern: Pattern) -> torch.Tensor:
    """(nse,): whether an edge joins two nodes."""
    coo, entry = coordinates(pattern)
    found = coo.indices[0][0] != coo.indices[0][1]
    return found if entry is None else torch.empty_like(found).index_copy_(0, entry, found)
