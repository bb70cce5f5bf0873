"""Products with a sparse tensor that has dense dimensions, or gets some: one for each head."""

from __future__ import annotations

import math

import torch

from spgrad.core import kept
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import on_pattern, stored_values
from spgrad.errors import UnsupportedError
from spgrad.lowering.coalesce import without_repeats
from spgrad.lowering.convert import convert
from spgrad.lowering.views import positions_among
from spgrad.ops.products.heads import product_by_head, sddmm
from spgrad.ops.products.named.subscripts import Labels
from spgrad.ops.products.named.terms import Term, elementwise, with_shape
from spgrad.ops.shapes.shape import same_elements


def product_with_hybrid(a: Term, b: Term, summed: Labels) -> Term:
    """The product, summed over these labels, of a sparse a with dense dimensions and another term.

    Each of its heads is a factor in a matrix product, or at the elements.
    """
    own = tuple(s for s in b.labels if s not in a.labels)
    sparse = tuple(s for s in a.labels if s not in a.heads)
    inner = tuple(s for s in summed if s in sparse)
    if isinstance(b.tensor, SparseTensor):
        if not same_sparse_labels(a, b):
            raise _not_mapped(a, b)
        wider = tuple(s for s in a.heads if s not in b.heads)
        return elementwise(a, _repeated_by_head(b, wider, a.sizes(wider)))
    if inner and (own or not {*sparse} <= {*b.labels}):
        return _product_by_rows(a, b, inner)
    if not own:
        return elementwise(a, b)
    if summed and not {*sparse}.isdisjoint(b.labels):
        raise _not_mapped(a, b)
    return dense_dimensions(a, b, summed)


def same_sparse_labels(a: Term, b: Term) -> bool:
    """True if two sparse terms have the same sparse dimensions, and a all dense ones of b."""
    of_a, of_b = ({*t.labels} - {*t.heads} for t in (a, b))
    return of_a == of_b and {*b.heads} <= {*a.heads}


def _not_mapped(a: Term, b: Term) -> UnsupportedError:
    first, dense, second = ("".join(labels) for labels in (a.labels, a.heads, b.labels))
    return UnsupportedError(
        f"`equation` multiplies '{first}', of which '{dense}' is dense, and '{second}'; a product "
        'with a dense operand over rows or columns, as "ijh,jhn->ihn", and products at the '
        'elements, as "ijh,ih->ijh" and "ijh,ihn,jhn->ijh", are accepted. Take one slice of the '
        "dense dimensions at a time."
    )


def _repeated_by_head(b: Term, wider: Labels, sizes: tuple[int, ...]) -> Term:
    """A sparse term with these dense dimensions too, along which it does not change."""
    if not wider:
        return b
    assert isinstance(b.tensor, SparseTensor)
    return dense_dimensions(b, Term(b.tensor._vals.new_ones(sizes), wider), ())


def _product_by_rows(a: Term, b: Term, summed: Labels) -> Term:
    """The product with a dense b for each head (SpMM), summed over sparse dimensions of a."""
    A, heads = a.tensor, a.heads
    sparse = a.labels[: len(a.labels) - len(heads)]
    batch = tuple(s for s in sparse if s in b.labels and s not in summed)
    rows = tuple(s for s in sparse if s not in b.labels)
    own = tuple(s for s in b.labels if s not in a.labels)
    A = a.grouped(batch, rows, summed)
    assert isinstance(A, SparseTensor)
    y = product_by_head(A, _in_heads(b, batch, summed, heads, a.sizes(heads), own))
    order = (*batch, *rows, *heads, *own)
    return Term(y.reshape(*a.sizes((*batch, *rows, *heads)), *b.sizes(own)), order)


def _in_heads(
    t: Term, batch: Labels, lines: Labels, heads: Labels, sizes: tuple[int, ...], last: Labels
) -> torch.Tensor:
    """A dense term (*batch, lines, *heads, last); those of these heads that it lacks repeat it."""
    lead = (*t.sizes(batch), math.prod(t.sizes(lines)))
    x = _with_sizes_of_one(t, (*batch, *lines), heads, last)
    wide = x.shape[len(batch) + len(lines) : x.dim() - len(last)]
    columns = math.prod(t.sizes(last))
    return x.reshape(*lead, *wide, columns).expand(*lead, *sizes, columns)


def _with_sizes_of_one(t: Term, first: Labels, heads: Labels, last: Labels) -> torch.Tensor:
    """A dense term in this order, of size 1 in heads that it lacks."""
    given = tuple(s for s in heads if s in t.labels)
    x = t.ordered((*first, *given, *last))
    wide = (t.sizes((s,))[0] if s in given else 1 for s in heads)
    return x.reshape(*t.sizes(first), *wide, *t.sizes(last))


def dense_dimensions(a: Term, b: Term, summed: Labels) -> Term:
    """Each element of a sparse a times the part of a dense b that it meets: dense dimensions.

    The labels summed over are dense dimensions of a; b then has no sparse one.
    """
    A, heads = a.tensor, a.heads
    assert isinstance(A, SparseTensor)
    A = convert(A, torch.sparse_coo)
    met = tuple(s for s in a.labels if s in b.labels and s not in heads)
    own = tuple(s for s in b.labels if s not in a.labels)
    x = _with_sizes_of_one(b, met, heads, own)
    x = x.reshape(math.prod(b.sizes(met)), *x.shape[len(met) :])
    pattern = A._pattern
    if met:
        dims = tuple(a.labels.index(s) for s in met)
        x = x.index_select(0, positions_among(pattern, dims))
    vals = stored_values(A)
    left = tuple(s for s in heads if s not in summed)
    if summed:
        at = {s: i for i, s in enumerate((*heads, *own), start=1)}
        size = tuple(vals.shape[1:])
        given = x.squeeze(0).expand(*size, *b.sizes(own))
        of_vals, of_result = ([0, *(at[s] for s in labels)] for labels in (heads, (*left, *own)))
        vals = torch.einsum(vals, of_vals, given, list(at.values()), of_result)
    else:
        vals = vals.reshape(*vals.shape, *[1] * len(own)) * x
    inner = (*a.sizes(left), *b.sizes(own))
    sparse = a.labels[: len(a.labels) - len(heads)]
    shape = (*a.sizes(sparse), *inner)
    found = pattern.derive(kept.INNER.of(inner), lambda p: same_elements(p, shape, len(inner)))
    return Term(on_pattern(vals, found), (*sparse, *left, *own))


def sampled_by_head(a: Term, x: Term, y: Term, shared: Labels) -> Term:
    """A sparse a times the products of two dense terms at its elements, for each head (SDDMM).

    Heads are the dense dimensions of a, and labels that the dense two share with the result, which
    become dense dimensions.
    """
    sparse = a.labels[: len(a.labels) - len(a.heads)]
    batch = tuple(s for s in sparse if s in x.labels and s in y.labels)
    rows = tuple(s for s in sparse if s not in y.labels)
    cols = tuple(s for s in sparse if s not in x.labels)
    met = tuple(s for s in a.heads if s in x.labels or s in y.labels)
    inner = tuple(s for s in x.labels if s not in (*a.labels, *shared))
    flat = a.grouped(batch, rows, cols)
    assert isinstance(flat, SparseTensor)
    A = without_repeats(convert(flat, torch.sparse_coo) if shared else flat)
    heads, sizes = (*met, *shared), (*a.sizes(met), *x.sizes(shared))
    left = _in_heads(x, batch, rows, heads, sizes, inner)
    found = stored_values(sddmm(A, left, _in_heads(y, batch, cols, heads, sizes, inner)))
    vals = stored_values(A)
    elements = tuple(vals.shape[: vals.dim() - len(a.heads)])
    wide = (size if s in met else 1 for s, size in zip(a.heads, a.sizes(a.heads), strict=True))
    vals = vals.reshape(*vals.shape, *[1] * len(shared))
    vals = vals * found.reshape(*elements, *wide, *x.sizes(shared))
    order = (*batch, *rows, *cols, *a.heads)
    made = with_shape(A, a.sizes(order))._pattern
    if shared:
        dense = (*a.sizes(a.heads), *x.sizes(shared))
        shape = (*made.shape, *x.sizes(shared))
        made = made.derive(kept.INNER.of(dense), lambda p: same_elements(p, shape, len(dense)))
    return Term(on_pattern(vals, made), (*order, *shared))
