"""Products of many values on one pattern: a hybrid tensor (m, k | h) is h matrices, or heads."""

from __future__ import annotations

import math
from typing import Any

import torch

from spgrad.core import checks, kept
from spgrad.core.pattern import Pattern
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import as_result, on_pattern
from spgrad.lowering.coalesce import without_repeats
from spgrad.lowering.operands import dense_operand, require_rank, sparse_operand
from spgrad.lowering.products import spmm as lowered_products
from spgrad.ops.products import broadcast
from spgrad.ops.products.matmul import reducing
from spgrad.ops.products.spmm_reduce import reduced_product
from spgrad.ops.shapes.shape import same_elements
from spgrad.public import public_op
from spgrad.torch_protocol.autocast import lowered


@public_op
@lowered
def spmm(A: torch.Tensor, x: torch.Tensor, reduce: str = "sum") -> torch.Tensor:
    """The sum, mean, maximum, minimum or product of a_ij x_jc over the elements of each row of A.

    A step of message passing: each node aggregates the features of its neighbours. A hybrid A
    (m, k | h) is h matrices on one pattern, and each is multiplied by columns of its own: y_ihc
    from a_ijh x_jhc, as in attention with h heads. The indices are read once for all matrices.

    Args:
        A: Sparse (m, k), or hybrid (*b, m, k | *h) of any layout.
        x: Dense (k, n); of a hybrid A (*b, k, *h, n), or (k, n) for all of its matrices.
        reduce: "sum", the matrix product, "mean", "amax", "amin" or "prod", over the specified
            elements of the row alone. A row without elements gives 0. "min_plus" and "max_plus"
            are the smallest and the largest a_ij + x_jc, a step of shortest and of longest paths;
            a row without elements gives inf and -inf.

    Returns:
        Dense (m, n), or (*b, m, *h, n) of a hybrid A.

    Gradient:
        Of `A` on its own pattern, of `x` dense. The gradient of an extremum goes to the first
        product, or sum, that attains it.

    Cost:
        O(nse h n) time. Memory for the result and the gradients alone; reductions other than "sum"
        take O(m h n) more, and an x that all matrices share is copied h times.

    Raises:
        TypeError: `A` is not sparse or `x` not dense.
        ValueError: An operand is not a matrix, sizes, dtypes or devices don't fit, or `reduce` is
            none of these.

    Example:
        >>> A = spgrad.from_edges(torch.tensor([[0, 0, 1], [1, 2, 0]]), size=3)
        >>> x = torch.tensor([[1.0], [5.0], [7.0]])
        >>> spgrad.spmm(A, x, "mean").T, spgrad.spmm(A, x, "amax").T
        (tensor([[6., 1., 0.]]), tensor([[7., 1., 0.]]))
        >>> H = spgrad.einsum("ij,h->ijh", A, torch.tensor([1.0, 10.0]))  # (3, 3 | 2), two heads
        >>> spgrad.spmm(H, x).squeeze(2).T
        tensor([[ 12.,   1.,   0.],
                [120.,  10.,   0.]])
    """
    given = sparse_operand("A", A)
    if not given._pattern.dense_dim:
        require_rank("A", A, 2)
        require_rank("x", x, 2)
        return reducing(("A", "x"), A, x, reduce)
    checks.require_numeric("A", given._vals)
    x = dense_operand("x", x)
    checks.require_same_dtype(A=given._vals, x=x)
    checks.require_same_device(A=given._vals, x=x)
    return product_by_head(given, _for_each_head(given._pattern, x), reduce)


def _for_each_head(pattern: Pattern, x: torch.Tensor) -> torch.Tensor:
    """x as (*b, k, *heads, n), or the refusal of what does not broadcast to that."""
    heads, k = pattern.dense_shape, pattern.matrix[1]
    r = len(heads)
    if x.dim() == 2:
        x = x.view(x.shape[0], *[1] * r, x.shape[1])
    hint = f"It follows from A of shape {tuple(pattern.shape)} with {r} dense dimension(s)."
    accepted = ", ".join(map(str, ("*b", k, *heads, "n")))
    own = x.shape[x.dim() - r - 2 : -1]
    given = x.shape[: max(x.dim() - r - 2, 0)]
    fits = x.dim() >= r + 2 and own[0] == k
    fits = fits and all(s in (1, h) for s, h in zip(own[1:], heads, strict=True))
    if not fits:
        raise checks.bad_shape("x", tuple(x.shape), f"({accepted}) or ({k}, n)", hint)
    try:
        checks.broadcast_shapes(pattern.batch, given)
    except RuntimeError:
        accepted = f"a batch that broadcasts with {pattern.batch}"
        raise checks.bad_shape("x", tuple(x.shape), accepted, hint) from None
    return x.expand(*given, k, *heads, x.shape[-1])


def product_by_head(
    A: SparseTensor, x: torch.Tensor, reduce: str = "sum", *, transpose: bool = False
) -> torch.Tensor:
    """A_c x_c, or A_c^T x_c, for each index c of the dense dimensions; x is (*b, k, *heads, n)."""
    heads = A._pattern.dense_shape
    r = len(heads)
    m, k = reversed(A._pattern.matrix) if transpose else A._pattern.matrix
    h = math.prod(heads)
    x = x.reshape(*x.shape[: x.dim() - r - 1], h, x.shape[-1])
    columns, unfold = broadcast.in_columns(A._pattern, x, k, (h,))
    if reduce == "sum":
        y = lowered_products.spmm(broadcast.by_head(A), columns, A._pattern, transpose)
    else:
        y = reduced_product(A, columns, reduce)
    y = unfold(y, m)
    return as_result(y, (*y.shape[:-2], *heads, y.shape[-1]))


@public_op
@lowered
def sddmm(pattern: Pattern | torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> SparseTensor:
    """x y^T at the elements of a pattern, and only there; with heads, x_h y_h^T for each of them.

    Element (i, j) is the dot product of row i of x and row j of y, as for the scores of attention.
    Together with `spgrad.softmax` over dimension 1 and `spgrad.spmm`, it makes attention with any
    function of the scores.

    Args:
        pattern: A Pattern, or a sparse tensor whose pattern is taken: (*b, m, k) of any layout.
            Its values and its dense dimensions are ignored.
        x: Dense (*b, m, n), or (*b, m, *h, n).
        y: Dense (*b, k, n), or (*b, k, *h, n).

    Returns:
        SparseTensor (*b, m, k) on the pattern (coalesced first if it is not), or a hybrid one
        (*b, m, k | *h).

    Gradient:
        Of x and of y, by `spgrad.spmm`.

    Cost:
        O(nse h n) time, O(nse h) memory. The first gradient of y also sorts the pattern by columns,
        once.

    Raises:
        TypeError: `pattern` has no pattern, or x or y is not dense.
        ValueError: Sizes, dtypes or devices don't fit.

    Example:
        >>> A = spgrad.from_edges(torch.tensor([[0, 0, 1], [0, 1, 1]]))
        >>> x = torch.tensor([[[1.0], [2.0]], [[3.0], [4.0]]])  # two nodes, two heads
        >>> spgrad.sddmm(A, x, x).values()
        tensor([[ 1.,  4.],
                [ 3.,  8.],
                [ 9., 16.]])
    """
    P = _coalesced_pattern(pattern)
    x, y = dense_operand("x", x), dense_operand("y", y)
    checks.require_same_dtype(x=x, y=y)
    checks.require_same_device(pattern=P.indices[0], x=x, y=y)
    checks.require_numeric("x", x)
    batch, (m, k) = P.batch, P.matrix
    lead = len(batch) + 1
    hint = f"It follows from a pattern of shape {(*batch, m, k)}."
    if x.dim() <= lead or tuple(x.shape[:lead]) != (*batch, m):
        accepted = ", ".join(map(str, (*batch, m, "*h", "n")))
        raise checks.bad_shape("x", tuple(x.shape), f"({accepted})", hint)
    heads, n = tuple(x.shape[lead:-1]), x.shape[-1]
    wanted = (*batch, k, *heads, n)
    if tuple(y.shape) != wanted:
        hint = f"It follows from x of shape {tuple(x.shape)} and the pattern."
        raise checks.bad_shape("y", tuple(y.shape), f"{wanted}", hint)
    found = P
    if heads != P.dense_shape:
        shape = (*batch, m, k, *heads)
        found = P.derive(kept.INNER.of(heads), lambda p: same_elements(p, shape, len(heads)))
    items = math.prod(batch)
    inner = (math.prod(heads), n) if heads else (n,)
    left, right = x.reshape(items * m, *inner), y.reshape(items * k, *inner)
    vals = lowered_products.sddmm(left, right, found)
    return on_pattern(vals.reshape(found.values_shape), found)


def _coalesced_pattern(given: Any) -> Pattern:
    """The first argument of `sddmm`, or the refusal."""
    pattern = given if isinstance(given, Pattern) else sparse_operand("pattern", given)._pattern
    if len(pattern.shape) - pattern.dense_dim < 2:
        hint = "Use a pattern of rows and columns."
        raise checks.bad_shape("pattern", tuple(pattern.shape), "a matrix or batch of them", hint)
    if not pattern.coalesced:
        none = torch.empty(pattern.values_shape, device=pattern.device)
        pattern = without_repeats(SparseTensor(none, pattern))._pattern
    return pattern
