"""Products of two tensors whose dimensions have labels: what an Einstein sum consists of."""

from __future__ import annotations

import math
from typing import NamedTuple, TypeVar

import torch

from spgrad import kernels
from spgrad.core import kept
from spgrad.core.pattern import Pattern
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import on_pattern, stored_values
from spgrad.lowering.align import align
from spgrad.lowering.convert import convert
from spgrad.lowering.segments import for_each, one_segment, segment_sum
from spgrad.ops.elementwise.binary import mul
from spgrad.ops.products.matmul import matmul
from spgrad.ops.products.named.subscripts import Labels
from spgrad.ops.products.sampled import sampled_addmm
from spgrad.ops.shapes.kron import kron
from spgrad.ops.shapes.shape import permute, reshape

T = TypeVar("T", bound=torch.Tensor)


class Term(NamedTuple):
    """A tensor, and a label for each of its dimensions."""

    tensor: torch.Tensor
    labels: Labels

    def sizes(self, labels: Labels) -> tuple[int, ...]:
        """The sizes of these of its dimensions."""
        at = dict(zip(self.labels, self.shape, strict=True))
        return tuple(at[label] for label in labels)

    @property
    def heads(self) -> Labels:
        """The labels of the dense dimensions of a sparse tensor."""
        x = self.tensor
        r = x._pattern.dense_dim if isinstance(x, SparseTensor) else 0
        return self.labels[len(self.labels) - r :]

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
        """The tensor with a dimension for each of `batch` and one for each group of labels.

        The dense dimensions of a sparse tensor stay behind them.
        """
        x = self.ordered((*batch, *(s for group in groups for s in group), *self.heads))
        if all(len(group) == 1 for group in groups):
            return x
        groups_of = (math.prod(self.sizes(group)) for group in groups)
        return with_shape(x, (*self.sizes(batch), *groups_of, *self.sizes(self.heads)))


def with_shape(x: T, shape: tuple[int, ...]) -> T:
    """A sparse or dense tensor in another shape."""
    return reshape(x, shape) if isinstance(x, SparseTensor) else x.reshape(shape)  # type: ignore[return-value]


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
    return Term(with_shape(y, shape), (*batch, *rows, *cols))


def outer_product(a: Term, b: Term) -> Term:
    """All products of an element of one sparse tensor and one of the other."""
    left, right = (reshape(t.tensor, (math.prod(t.shape),)) for t in (a, b))
    column, row = reshape(left, (-1, 1)), reshape(right, (1, -1))
    return Term(with_shape(kron(column, row), a.shape + b.shape), a.labels + b.labels)


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


def sampled(a: Term, x: Term, y: Term) -> Term:
    """A sparse a times the product of two dense terms at its elements (SDDMM)."""
    batch = tuple(s for s in a.labels if s in x.labels and s in y.labels)
    rows = tuple(s for s in a.labels if s not in y.labels)
    cols = tuple(s for s in a.labels if s not in x.labels)
    inner = tuple(s for s in x.labels if s not in a.labels)
    A = a.grouped(batch, rows, cols)
    found = sampled_addmm(A, x.grouped(batch, rows, inner), y.grouped(batch, inner, cols), beta=0)
    order = (*batch, *rows, *cols)
    return Term(with_shape(mul(A, found), a.sizes(order)), order)
