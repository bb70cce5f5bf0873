"""Einstein sums with sparse operands, lowered to products of two operands at a time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import torch

from spgrad.core import checks
from spgrad.core.pattern import Pattern
from spgrad.core.tensor import SparseTensor
from spgrad.errors import ArgumentKindError, ArgumentValueError, UnsupportedError
from spgrad.lowering.coalesce import without_repeats
from spgrad.lowering.operands import dense_operand, is_sparse, shape_of, sparse_operand
from spgrad.lowering.rebuild import COO, Found, Placed, placed, rebuild
from spgrad.lowering.views import index_rows
from spgrad.ops.products.named.hybrids import (
    dense_dimensions,
    product_with_hybrid,
    same_sparse_labels,
    sampled_by_head,
)
from spgrad.ops.products.named.subscripts import Labels, as_equation, parse
from spgrad.ops.products.named.terms import (
    Term,
    elementwise,
    matrix_product,
    outer_product,
    sampled,
)
from spgrad.ops.reductions.reduce import sparse_sum, sum
from spgrad.ops.shapes.shape import permute, reshape
from spgrad.public import public_op


@public_op
def einsum(*args: Any) -> torch.Tensor:
    """Sum of products of elements, in the notation of `torch.einsum`, with sparse operands.

    spgrad multiplies two operands at a time, those with the least work first. A pair becomes a
    matrix product, an element-wise product or an outer product. A product of two dense operands
    summed over a shared label, as "ik,jk" in "ij,ik,jk->ij", is taken at the elements of the
    sparse one alone, also for each of several heads h, "ij,ihk,jhk->ijh". The dense dimensions of
    a hybrid operand are heads: "ijh,jhn->ihn" is `spgrad.spmm`, and "ijh,ihn,jhn->ijh" is A times
    `spgrad.sddmm`.

    Args:
        *args: An equation such as "ij,jk->ik", "bij,j->bi", "ii->i" or "...ij,ij->...", and its
            operands; or each operand followed by its list of subscripts, and at the end,
            optionally, the list of the result, as in A, [0, 1], x, [1, 2], [0, 2]. Sparse operands
            of any layout, and dense ones. Sizes of 1 broadcast.

    Returns:
        With sparse operands alone, a SparseTensor; a sum that is left at the end, as in "ij->i",
        gives what `spgrad.sum` gives. With a dense operand, a dense tensor if a matrix product sums
        over a label, as in "ij,jk->ik". If none does, a SparseTensor: on the elements of the sparse
        operand if the dense one has no other labels, as in "ij,j->ij"; otherwise in COO, with the
        labels of the dense operand as dense dimensions, as in "ij,jk->ijk".

    Gradient:
        Of every operand; of sparse ones on their own patterns.

    Cost:
        That of the products it lowers to. No dense tensor is made of a sparse one.

    Raises:
        TypeError: No operand is sparse, or one is not a tensor.
        ValueError: The equation is wrong, or sizes, dtypes or devices don't fit.
        NotImplementedError: Two sparse operands, one of them with dense dimensions, are multiplied
            otherwise than element by element; or such dimensions are summed over together with
            sparse dimensions of the same operand, or would not be last in the result.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[1.0, 0.0], [3.0, 2.0]]))
        >>> x = torch.tensor([1.0, 10.0])
        >>> spgrad.einsum("i,ij,j->", x, A, x)
        tensor(231.)
        >>> spgrad.einsum("ij,j->ij", A, x).to_dense()
        tensor([[ 1.,  0.],
                [ 3., 20.]])
    """
    equation, given = as_equation(args)
    named = [(f"operands[{i}]", x) for i, x in enumerate(given)]
    operands = require_operands(named, hybrid=True)
    labels, result = parse(equation, tuple(len(shape_of(x)) for x in operands))
    terms = [Term(x, s) for x, s in zip(operands, labels, strict=True)]
    return contract(terms, result)


def _require_no_hybrid(named: Sequence[tuple[str, Any]]) -> None:
    for name, x in named:
        if is_sparse(x) and (dense_dim := x.dense_dim()):
            raise UnsupportedError(
                f"`{name}` has {dense_dim} dense dimension(s); sparse dimensions alone are "
                "accepted. Use spgrad.einsum, whose equations name them."
            )


def require_operands(
    named: Sequence[tuple[str, Any]], *, hybrid: bool = False
) -> list[torch.Tensor]:
    """Sparse and dense tensors of one dtype and device, one of them sparse, or the refusal.

    Sparse ones have dense dimensions only if `hybrid`.
    """
    if not any(is_sparse(x) for _, x in named):
        for name, x in named:
            if not isinstance(x, torch.Tensor):
                dense_operand(name, x)
        kinds = ", ".join(checks.describe_kind(x) for _, x in named)
        raise ArgumentKindError(
            f"no operand is sparse ({kinds}); at least one sparse operand is accepted. Use the "
            "function of torch, or convert one with spgrad.from_dense."
        )
    operands = [
        sparse_operand(name, x) if is_sparse(x) else dense_operand(name, x) for name, x in named
    ]
    parts = {}
    for (name, _), x in zip(named, operands, strict=True):
        parts[name] = x._vals if isinstance(x, SparseTensor) else x
        checks.require_numeric(name, parts[name])
    if not hybrid:
        _require_no_hybrid([(name, x) for (name, _), x in zip(named, operands, strict=True)])
    checks.require_same_dtype(**parts)
    checks.require_same_device(**parts)
    return operands


def contract(terms: list[Term], result: Labels) -> torch.Tensor:
    """The sum of products of terms over all labels that the result does not have."""
    sizes = _sizes(terms)
    terms = [_distinct(term, sizes) for term in terms]
    while len(terms) > 1:
        terms = [
            _summed(term, _needed(terms[:i] + terms[i + 1 :], result))
            for i, term in enumerate(terms)
        ]
        terms = _with_sampled(terms, result) or _with_best_pair(terms, result, sizes)
    return _in_result_order(terms[0], result)


def _sizes(terms: list[Term]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for i, term in enumerate(terms):
        own: dict[str, int] = {}
        for label, size in zip(term.labels, shape_of(term.tensor), strict=True):
            known = sizes.get(label, 1)
            if own.get(label, size) != size or (size != known and 1 not in (size, known)):
                wanted = own.get(label, known)
                raise ArgumentValueError(
                    f"`operands[{i}]` has size {size} in a dimension that is {wanted} elsewhere; "
                    "equal sizes, or 1 in another operand, are accepted for one label. Check which "
                    "dimensions are paired."
                )
            own[label] = size
            if label not in sizes or known == 1:
                sizes[label] = size
    return sizes


def _distinct(term: Term, sizes: dict[str, int]) -> Term:
    """A term with each label once, without those of size 1 that broadcast."""
    tensor, labels = term
    kept, heads = tuple(dict.fromkeys(labels)), term.heads
    if len(kept) < len(labels):
        if heads:
            raise UnsupportedError(
                f"`equation` has a label twice in {''.join(labels)!r}, of which "
                f"{''.join(heads)!r} is dense; each label once is accepted. Take one slice of the "
                "dense dimensions at a time."
            )
        if isinstance(tensor, SparseTensor):
            tensor = _equal_labels(tensor, labels)
        else:
            at = {label: i for i, label in enumerate(kept)}
            tensor = torch.einsum(tensor, [at[s] for s in labels], list(range(len(kept))))
    own = dict(zip(kept, shape_of(tensor), strict=True))
    if all(own[s] == sizes[s] for s in kept):
        return Term(tensor, kept)
    left = tuple(s for s in kept if own[s] == sizes[s])
    if heads:
        return _summed(term, left)
    shape = tuple(own[s] for s in left)
    if isinstance(tensor, SparseTensor):
        return Term(reshape(tensor, shape), left)
    return Term(tensor.reshape(shape), left)


def _equal_labels(A: SparseTensor, labels: Labels) -> SparseTensor:
    """The elements of A whose indices agree wherever labels do."""
    first = tuple(labels.index(s) for s in labels)
    kept = [d for d, at in enumerate(first) if d == at]

    def build(pattern: Pattern) -> Found:
        def by(indices: torch.Tensor) -> Placed:
            same = index_rows(indices, list(first))
            agree = (indices == same).all(0).nonzero().squeeze(1)
            return Placed(index_rows(indices, kept).index_select(1, agree), agree, 0)

        return placed(pattern, tuple(pattern.shape[d] for d in kept), by, like=COO)

    return rebuild(A, ("diagonal", first), build)


def _needed(others: list[Term], result: Labels) -> set[str]:
    """Labels that the result or another term has."""
    return {*result, *(label for term in others for label in term.labels)}


def _summed(term: Term, needed: Collection[str]) -> Term:
    """A term summed over the labels that nothing else has; a sparse one stays sparse."""
    dims = tuple(d for d, label in enumerate(term.labels) if label not in needed)
    if not dims:
        return term
    tensor = term.tensor
    left = tuple(label for label in term.labels if label in needed)
    if isinstance(tensor, SparseTensor):
        return Term(sparse_sum(tensor, dims, dtype=tensor.dtype), left)
    return Term(tensor.sum(dims, dtype=tensor.dtype), left)


class Sampled(NamedTuple):
    """A sparse term, and two dense ones whose product is needed at its elements alone."""

    at: int
    x: int
    y: int


def _with_sampled(terms: list[Term], result: Labels) -> list[Term] | None:
    """The terms with one product of two dense ones taken at the elements of a sparse one."""
    found = next((s for s in _triples(terms) if _is_sampled(terms, s, result)), None)
    if found is None:
        return None
    left = [term for i, term in enumerate(terms) if i not in found]
    a, x, y = (terms[i] for i in found)
    needed = _needed(left, result)
    shared = tuple(s for s in x.labels if s in needed and s not in a.labels)
    by_head = shared or a.heads
    return [*left, sampled_by_head(a, x, y, shared) if by_head else sampled(a, x, y)]


def _triples(terms: list[Term]) -> list[Sampled]:
    sparse = [i for i, term in enumerate(terms) if isinstance(term.tensor, SparseTensor)]
    dense = [i for i in range(len(terms)) if i not in sparse]
    return [Sampled(s, x, y) for s in sparse for x, y in itertools.combinations(dense, 2)]


def _is_sampled(terms: list[Term], triple: Sampled, result: Labels) -> bool:
    A, x, y = ({*terms[i].labels} for i in triple)
    heads = {*terms[triple.at].heads}
    A, x, y = A - heads, x - heads, y - heads
    inner = (x | y) - A
    # labels of the dense two that the result has become dense dimensions, which must come last
    shared = bool(inner) and inner <= (x & y) and (len(terms) == 3 or not inner & {*result})
    left = _needed([term for i, term in enumerate(terms) if i not in triple], ())
    return shared and not inner & left and bool(x - y and y - x) and A == (x | y) - inner


def _with_best_pair(terms: list[Term], result: Labels, sizes: dict[str, int]) -> list[Term]:
    """The terms with the product of the two of them that is the least work."""
    best: tuple[float, int, int] | None = None
    for i, j in itertools.combinations(range(len(terms)), 2):
        others = [term for at, term in enumerate(terms) if at not in (i, j)]
        work = _work(terms[i], terms[j], _needed(others, result), sizes)
        if best is None or work < best[0]:
            best = work, i, j
    assert best is not None
    _, i, j = best  # of three terms, two are of one kind, so that infinite work is left to the last
    left = [term for at, term in enumerate(terms) if at not in (i, j)]
    needed = _needed(left, result)
    return [*left, _product_of_terms(terms[i], terms[j], needed, result)]


def _work(a: Term, b: Term, needed: Collection[str], sizes: dict[str, int]) -> float:
    """About how many multiplications a product is; infinite if it has other dense dimensions."""
    mine, other = {*a.labels}, {*b.labels}
    nse = [
        t.tensor._pattern.elements * math.prod(t.sizes(t.heads))
        if isinstance(t.tensor, SparseTensor)
        else None
        for t in (a, b)
    ]
    dense_size = math.prod(sizes[s] for s in mine | other)
    if nse == [None, None]:
        return dense_size
    if nse[0] is not None and nse[1] is not None:
        if (a.heads or b.heads) and not (same_sparse_labels(a, b) or same_sparse_labels(b, a)):
            return math.inf
        return nse[0] * nse[1] / max(math.prod(sizes[s] for s in mine & other), 1)
    if nse[0] is None:
        mine, other, nse = other, mine, nse[::-1]
    assert nse[0] is not None
    own = other - mine
    summed = {s for s in mine & other if s not in needed}
    if own and not summed - {*a.heads, *b.heads}:
        return math.inf
    size = math.prod(sizes[s] for s in (mine | other) - summed) if own or mine - other else 0
    return nse[0] * math.prod(sizes[s] for s in own) + size


def _product_of_terms(a: Term, b: Term, needed: Collection[str], result: Labels) -> Term:
    """The product of two terms, summed over the labels that only the two have."""
    sparse_a, sparse_b = (isinstance(t.tensor, SparseTensor) for t in (a, b))
    if not (sparse_a or sparse_b):
        return _of_dense(a, b, needed)
    if not sparse_a:
        a, b = b, a
    summed = tuple(s for s in a.labels if s in b.labels and s not in needed)
    own_a = tuple(s for s in a.labels if s not in b.labels)
    own_b = tuple(s for s in b.labels if s not in a.labels)
    both = sparse_a and sparse_b
    if a.heads or b.heads:
        a, b = (b, a) if len(b.heads) > len(a.heads) else (a, b)
        return product_with_hybrid(a, b, summed)
    if both and _first_place(own_b, result) < _first_place(own_a, result):
        a, b, own_a, own_b = b, a, own_b, own_a
    if summed and (own_a or own_b):
        return matrix_product(a, b, summed)
    if not own_b:
        return elementwise(a, b)
    if not both:
        return dense_dimensions(a, b, ())
    if not own_a:
        return elementwise(b, a)
    if len(own_a) < len(a.labels):
        return matrix_product(a, b, ())
    return outer_product(a, b)


def _first_place(labels: Labels, result: Labels) -> int:
    """The place in the result of the first of these labels."""
    return min((result.index(s) for s in labels if s in result), default=len(result))


def _of_dense(a: Term, b: Term, needed: Collection[str]) -> Term:
    labels = tuple(dict.fromkeys((*a.labels, *b.labels)))
    at = {label: i for i, label in enumerate(labels)}
    left = tuple(s for s in labels if s in needed)
    given = (a.tensor, [at[s] for s in a.labels], b.tensor, [at[s] for s in b.labels])
    return Term(torch.einsum(*given, [at[s] for s in left]), left)


def _in_result_order(term: Term, result: Labels) -> torch.Tensor:
    """The last term, summed over what the result lacks, its dimensions in order."""
    y, labels = term
    dims = tuple(d for d, label in enumerate(labels) if label not in result)
    if dims:
        y = (
            sum(y, dims, dtype=y.dtype)
            if isinstance(y, SparseTensor)
            else y.sum(dims, dtype=y.dtype)
        )
        labels = tuple(label for label in labels if label in result)
    order = tuple(labels.index(label) for label in result)
    if not isinstance(y, SparseTensor):
        return y if order == tuple(range(len(order))) else y.permute(order)
    y = without_repeats(y)
    split = len(labels) - y._pattern.dense_dim
    if any(d >= split for d in order[:split]):
        raise UnsupportedError(
            f"dimensions {''.join(labels[split:])} of the result are dense, as those of an operand "
            f"are, and would not stand behind {''.join(labels[:split])}; dense dimensions that "
            "stand last are accepted. Let the result have them last."
        )
    return y if order == tuple(range(len(order))) else permute(y, order)
