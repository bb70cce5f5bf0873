"""Products of two tensors whose dimensions have labels: what an Einstein sum consists of."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from spgrad import kernels
from spgrad.core import kept
from spgrad.core.pattern import Pattern
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import on_pattern, stored_values
from spgrad.lowering.align import align
from spgrad.lowering.convert import convert
from spgrad.lowering.segments import for_each, one_segment, segment_sum
from spgrad.lowering.views import positions_among
from spgrad.ops.elementwise.binary import mul
from spgrad.ops.products.heads import product_by_head, sddmm
from spgrad.ops.products.matmul import matmul
from spgrad.ops.products.named.subscripts import Labels
from spgrad.ops.products.sampled import sampled_addmm
from spgrad.ops.shapes.kron import kron
from spgrad.ops.shapes.shape import permute, reshape, same_elements


class Term(NamedTuple):
    """A tensor, and a label for each of its dimensions."""

    tensor: torch.Tensor
    labels: Labels

    def sizes(self, labels: Labels) -> tuple[int, ...]:
        """The sizes of these of its dimensions."""
        at = dict(zip(self.labels, self.shape, strict=True))
        return tuple(at[label] for label in labels)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape, without a call through the torch protocol."""
        x = self.tensor
        return tuple(x._pattern.shape if isinstance(x, SparseTensor) else x.shape)

    def ordered(self, labels: Labels) -> torch.Tensor:
        """The tensor with its dimensions in this order."""
        if labels == self.labels:
            return self.tensor
        order = tuple(self.labels.index(label) for label in labels)
        if not isinstance(self.tensor, SparseTensor):
            return self.tensor.permute(order)
        return permute(self.tensor, order)

    def grouped(self, batch: Labels, *groups: Labels) -> torch.Tensor:
        """The tensor with a dimension for each of `batch` and one for each group of labels."""
        x = self.ordered((*batch, *(label for group in groups for label in group)))
        if all(len(group) == 1 for group in groups):
            return x
        shape = (*self.sizes(batch), *(math.prod(self.sizes(group)) for group in groups))
        return _with_shape(x, shape)


def _with_shape(x: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    return reshape(x, shape) if isinstance(x, SparseTensor) else x.reshape(shape)


def matrix_product(a: Term, b: Term, summed: Labels) -> Term:
    """The product summed over these labels; others that the two share are those of a batch."""
    batch = tuple(s for s in a.labels if s in b.labels and s not in summed)
    rows = tuple(s for s in a.labels if s not in b.labels)
    cols = tuple(s for s in b.labels if s not in a.labels)
    left, right = a.grouped(batch, rows, summed), b.grouped(batch, summed, cols)
    y = matmul(left, right)
    if len(rows) == len(cols) == 1:
        return Term(y, (*batch, *rows, *cols))
    shape = (*a.sizes(batch), *a.sizes(rows), *b.sizes(cols))
    return Term(_with_shape(y, shape), (*batch, *rows, *cols))


def outer_product(a: Term, b: Term) -> Term:
    """All products of an element of one sparse tensor and one of the other."""
    left, right = (reshape(t.tensor, (math.prod(t.shape),)) for t in (a, b))
    column, row = reshape(left, (-1, 1)), reshape(right, (1, -1))
    return Term(_with_shape(kron(column, row), a.shape + b.shape), a.labels + b.labels)


def elementwise(a: Term, b: Term) -> Term:
    """a times b at the elements of a sparse a, which has all the labels of b."""
    A = a.tensor
    assert isinstance(A, SparseTensor)
    shared = tuple(s for s in a.labels if s in b.labels)
    x = b.ordered(shared)
    if isinstance(x, SparseTensor):
        y = mul(A, x) if shared == a.labels else _at_shared(A, a, x, shared)
        return Term(y, a.labels)
    sizes = dict(zip(shared, x.shape, strict=True))
    return Term(mul(A, x.reshape([sizes.get(s, 1) for s in a.labels])), a.labels)


def _at_shared(A: SparseTensor, a: Term, B: SparseTensor, shared: Labels) -> SparseTensor:
    """A times a sparse B that has some of its dimensions alone; 0 where B has no element."""
    layout, blocksize = A._pattern.layout, A._pattern.blocksize
    A = convert(A, torch.sparse_coo)
    dims = [a.labels.index(s) for s in shared]
    if not dims:
        number = segment_sum(stored_values(B)[:, None], one_segment(B._pattern)).view(())
        return on_pattern(stored_values(A) * for_each(number, A._pattern), A._pattern)
    wanted, group = A._pattern.derive(kept.PROJECTED.of(*dims), lambda p: _projected(p, dims))
    empty = SparseTensor(B._vals.new_zeros(wanted.nse), wanted)
    found = align(empty, B, "first").b.index_select(0, group)
    return convert(on_pattern(stored_values(A) * found, A._pattern), layout, blocksize)


def _projected(pattern: Pattern, dims: list[int]) -> tuple[Pattern, torch.Tensor]:
    """The distinct indices in some dimensions, and which of them each element has."""
    indices = pattern.indices[0][dims].contiguous()
    shape = tuple(pattern.shape[d] for d in dims)
    unique, group = kernels.coalesce(indices, list(shape))
    return Pattern(torch.sparse_coo, shape, (unique,)), group


def hybrid(a: Term, b: Term) -> Term:
    """Each element of a sparse a times the part of a dense b that it meets: dense dimensions."""
    A = a.tensor
    assert isinstance(A, SparseTensor)
    A = convert(A, torch.sparse_coo)
    shared = tuple(s for s in a.labels if s in b.labels)
    own = tuple(s for s in b.labels if s not in a.labels)
    inner = b.sizes(own)
    x = b.ordered((*shared, *own)).reshape(math.prod(b.sizes(shared)), *inner)
    pattern = A._pattern
    if shared:
        dims = tuple(a.labels.index(s) for s in shared)
        x = x.index_select(0, positions_among(pattern, dims))
    shape = (*pattern.shape, *inner)
    found = pattern.derive(kept.INNER.of(inner), lambda p: same_elements(p, shape, len(inner)))
    vals = stored_values(A).reshape(-1, *[1] * len(inner)) * x
    return Term(on_pattern(vals, found), a.labels + own)


def sampled(a: Term, x: Term, y: Term) -> Term:
    """A sparse a times the product of two dense terms at its elements (SDDMM)."""
    batch = tuple(s for s in a.labels if s in x.labels and s in y.labels)
    rows = tuple(s for s in a.labels if s not in y.labels)
    cols = tuple(s for s in a.labels if s not in x.labels)
    inner = tuple(s for s in x.labels if s not in a.labels)
    A = a.grouped(batch, rows, cols)
    found = sampled_addmm(A, x.grouped(batch, rows, inner), y.grouped(batch, inner, cols), beta=0)
    order = (*batch, *rows, *cols)
    return Term(_with_shape(mul(A, found), a.sizes(order)), order)


def sampled_by_head(a: Term, x: Term, y: Term, heads: Labels) -> Term:
    """`sampled` for each value of labels that the dense two share: dense dimensions."""
    batch = tuple(s for s in a.labels if s in x.labels and s in y.labels)
    rows = tuple(s for s in a.labels if s not in y.labels)
    cols = tuple(s for s in a.labels if s not in x.labels)
    inner = tuple(s for s in x.labels if s not in a.labels and s not in heads)
    flat = a.grouped(batch, rows, cols)
    assert isinstance(flat, SparseTensor)
    A = convert(flat, torch.sparse_coo)
    outer = x.sizes(heads)
    found = sddmm(A, x.grouped(batch, rows, heads, inner), y.grouped(batch, cols, heads, inner))
    nse = A._pattern.nse
    vals = stored_values(A)[:, None] * stored_values(found)
    order = (*batch, *rows, *cols)
    pattern = reshape(A, a.sizes(order))._pattern
    made = pattern.derive(
        kept.INNER.of(outer), lambda p: same_elements(p, (*p.shape, *outer), len(outer))
    )
    return Term(on_pattern(vals.reshape(nse, *outer), made), order + heads)


def product_of_hybrid(a: Term, b: Term, result: Labels) -> torch.Tensor | None:
    """A hybrid a times a dense b as `spgrad.spmm` multiplies them; None if it is no such product.

    One matrix dimension of a is summed over, its dense ones and its batch stay.
    """
    A, x = a.tensor, b.tensor
    if not isinstance(A, SparseTensor) or isinstance(x, SparseTensor):
        return None
    r = A._pattern.dense_dim
    batch, (row, col), heads = a.labels[: -r - 2], a.labels[-r - 2 : -r], a.labels[-r:]
    summed, kept_one = (row, col) if row in b.labels else (col, row)
    own = tuple(s for s in b.labels if s not in a.labels)
    given = tuple(s for s in heads if s in b.labels)
    items = tuple(s for s in batch if s in b.labels)
    if {*b.labels} != {*items, summed, *given, *own} or items not in ((), batch):
        return None
    if {*result} != {*batch, kept_one, *heads, *own}:
        return None
    distinct = len({*a.labels}) == len(a.labels) and len({*b.labels}) == len(b.labels)
    if not distinct or any(a.sizes((s,)) != b.sizes((s,)) for s in b.labels if s not in own):
        return None
    full = b.ordered((*items, summed, *given, *own))
    assert not isinstance(full, SparseTensor)
    lead = b.sizes((*items, summed))
    wide = tuple(b.sizes((s,))[0] if s in given else 1 for s in heads)
    columns = full.reshape(*lead, *wide, math.prod(b.sizes(own)))
    columns = columns.expand(*lead, *a.sizes(heads), columns.shape[-1])
    y = product_by_head(A, columns, transpose=summed == row)
    y = y.view(*y.shape[:-1], *b.sizes(own))
    order = (*batch, kept_one, *heads, *own)
    return y.permute(tuple(order.index(s) for s in result))
