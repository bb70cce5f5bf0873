"""What a caller declares about a matrix; checked if the check is cheap."""

from __future__ import annotations

from typing import Any, get_args

import torch

from spgrad import kernels
from spgrad.core import kept
from spgrad.core.pattern import Pattern
from spgrad.core.tensor import SparseTensor
from spgrad.errors import ArgumentKindError, ArgumentValueError, PivotError
from spgrad.linalg.solvers.protocol import Assume
from spgrad.lowering.products.spmm import wants_grad
from spgrad.lowering.views import cols, rows
from spgrad.torch_protocol.func_transforms import Function

_ROUNDING = 1000
"""Mirrored elements may differ by this many times eps times the largest absolute value."""

_PART = 1 << 15
"""Values that are compared at once, in the cache."""


def require_declared(assume: Any) -> Assume:
    """`assume` if it is a word that is accepted; None is "general"."""
    if assume is None:
        return "general"
    known = get_args(Assume)
    if not isinstance(assume, str) or assume not in known:
        accepted = ", ".join(f'"{word}"' for word in known)
        made = ArgumentValueError if isinstance(assume, str) else ArgumentKindError
        raise made(
            f"`assume` is {assume!r}; {accepted} or None is accepted. Leave it out for a matrix "
            "of which nothing is known."
        )
    found: Any = assume
    return found


def triangle_of(pattern: Pattern) -> str | None:
    """The triangle, "lower" or "upper", that has all elements, else None. Kept on the pattern."""

    def find(pattern: Pattern) -> str | None:
        view = rows(pattern)
        return _side(kernels.expand(view.ptr, view.idx.shape[0]), view.idx)

    return pattern.derive(kept.SIDE, find)


def triangle_of_values(A: SparseTensor) -> str | None:
    """The triangle, "lower" or "upper", that has all elements but zeros, else None.

    Blocks on the diagonal have elements on both sides of it, of which one side may be zeros.
    """
    found = triangle_of(A._pattern)
    if found is not None:
        return found
    view = rows(A._pattern)
    some = torch.nonzero(in_view(A._vals.reshape(-1), view.perm)).squeeze(-1)
    row = kernels.expand(view.ptr, view.idx.shape[0])
    return _side(row[some], view.idx[some])


def _side(row: torch.Tensor, column: torch.Tensor) -> str | None:
    if bool((column <= row).all()):
        return "lower"
    return "upper" if bool((column >= row).all()) else None


_SOLVERS = "take BiCGSTAB, GMRES or a direct solver without `assume`"
"""What to do with a system whose matrix is not hermitian."""


_OF_CALLER = "`assume` is"
"""How the error of a matrix begins that is not what its caller has declared."""


def require_true(
    A: SparseTensor,
    assume: Assume,
    says: str = _OF_CALLER,
    arg: str = "A",
    instead: str = _SOLVERS,
) -> None:
    """Refuses a matrix that is not what was declared, or not what a method needs."""
    if assume == "triangular" and triangle_of_values(A) is None:
        raise ArgumentValueError(
            '`assume` is "triangular", and `A` has elements above and below the diagonal; one '
            "triangle is accepted. Take spgrad.tril(A), spgrad.triu(A) or solve_triangular."
        )
    if assume in ("symmetric", "hermitian", "positive definite"):
        _require_mirrored(A, assume, says, arg, instead)
    if assume == "positive definite":
        declared = says == _OF_CALLER
        hint = "Leave `assume` out" if declared else instead[0].upper() + instead[1:]
        _require_positive_diagonal(A, arg, hint)


def _mirrored(pattern: Pattern) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Where the values of (i, j) and of (j, i) are, for i < j; None if some (j, i) is missing.

    Kept on the pattern.
    """

    def find(pattern: Pattern) -> tuple[torch.Tensor, torch.Tensor] | None:
        by_rows, by_cols = rows(pattern), cols(pattern)
        if not all(torch.equal(a, b) for a, b in zip(by_rows[:2], by_cols[:2], strict=True)):
            return None
        row = kernels.expand(by_rows.ptr, by_rows.idx.shape[0])
        above = torch.nonzero(by_rows.idx > row).squeeze(-1).to(by_rows.idx.dtype)
        upper, lower = (
            above if view.perm is None else view.perm.index_select(0, above)
            for view in (by_rows, by_cols)
        )
        return upper, lower

    return pattern.derive(kept.MIRRORED, find)


def has_symmetric_pattern(pattern: Pattern) -> bool:
    """Whether each element (i, j) comes with an element (j, i)."""
    return _mirrored(pattern) is not None


def with_symmetric_derivatives(vals: torch.Tensor, pattern: Pattern) -> torch.Tensor:
    """The flat values of a symmetric matrix; mirrored elements have equal derivatives.

    As for a function of (A + A^T) / 2, derivatives of every order are the means of those of the
    elements (i, j) and (j, i). A matrix whose pattern is not symmetric is left as it is.
    """
    if not wants_grad(vals) or not has_symmetric_pattern(pattern):
        return vals
    return _Symmetric.apply(vals, pattern)  # type: ignore[return-value]


class _Symmetric(Function):
    """Returns the same memory, so that solvers know the values for which they have factors."""

    @staticmethod
    def forward(ctx: Any, vals: torch.Tensor, pattern: Pattern) -> torch.Tensor:  # type: ignore[override]
        ctx.pattern = pattern
        return vals.detach()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        pairs = _mirrored(ctx.pattern)
        assert pairs is not None
        upper, lower = pairs
        mean = (g.index_select(0, upper) + g.index_select(0, lower)) / 2
        at = torch.cat(pairs).to(torch.int64)
        return g.index_copy(0, at, torch.cat((mean, mean))), None


def in_view(vals: torch.Tensor, perm: torch.Tensor | None) -> torch.Tensor:
    """Values in the order of a view."""
    return vals if perm is None else vals[perm]


def _require_mirrored(A: SparseTensor, assume: Assume, says: str, arg: str, instead: str) -> None:
    vals = A._vals.reshape(-1)
    pairs = _mirrored(A._pattern)
    if pairs is None:
        raise ArgumentValueError(
            f'{says} "{assume}", and `{arg}` has an element (i, j) without (j, i); both, or '
            f"neither, is accepted. Give both triangles, or {instead}."
        )
    conjugate = assume != "symmetric" and vals.is_complex()
    gap = _largest_gap(vals, pairs, conjugate)
    if conjugate and vals.numel():
        gap = max(gap, 2 * float(flat_diagonal(A).imag.abs().max()))
    if gap and gap > _ROUNDING * torch.finfo(vals.dtype).eps * float(vals.abs().max()):
        raise ArgumentValueError(
            f'{says} "{assume}", and mirrored elements of `{arg}` differ by up to {gap:.1e}; '
            f"differences of rounding are accepted. Take ({arg} + {arg}.mH) / 2, or {instead}."
        )


def _largest_gap(
    vals: torch.Tensor, pairs: tuple[torch.Tensor, torch.Tensor], conjugate: bool
) -> float:
    """The largest |value of (i, j) - value of (j, i)|; with `conjugate`, the latter conjugated."""
    most = vals.new_zeros(()).real
    for upper, lower in zip(*(t.split(_PART) for t in pairs), strict=True):
        if upper.numel():  # an empty tensor has one empty part
            other = vals.index_select(0, lower)
            gap = vals.index_select(0, upper).sub_(other.conj() if conjugate else other)
            most = torch.maximum(most, gap.abs().amax())
    return float(most)


def _require_positive_diagonal(A: SparseTensor, arg: str, hint: str) -> None:
    _, places = diagonal_places(A._pattern)
    if places.shape[0] == A._pattern.extent[0] and _all_positive(A._vals.reshape(-1), places):
        return
    diagonal = flat_diagonal(A).real
    wrong = torch.nonzero(~(diagonal > 0))
    m = A._pattern.matrix[0]
    row = int(wrong[0])
    item = f" of batch item {row // m}" if A._pattern.batch else ""
    raise PivotError(
        f"`{arg}` is not positive definite: its diagonal has {float(diagonal[row]):.3g} in row "
        f"{row % m}{item}; positive numbers are accepted. {hint}."
    )


def _all_positive(vals: torch.Tensor, places: torch.Tensor) -> bool:
    least = vals.new_ones(()).real
    for part in places.split(_PART):
        if part.numel():  # an empty tensor has one empty part
            least = torch.minimum(least, vals.index_select(0, part).real.amin())
    return bool(least > 0)


def diagonal_places(pattern: Pattern) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows (of the block-diagonal matrix) that have a diagonal element, and where its value is.

    The second tensor has positions among the flat values, in which elements of blocks count one by
    one. Kept on the pattern.
    """

    def find(pattern: Pattern) -> tuple[torch.Tensor, torch.Tensor]:
        view = rows(pattern)
        row = kernels.expand(view.ptr, view.idx.shape[0])
        at = torch.nonzero(row == view.idx).squeeze(-1)
        places = at if view.perm is None else view.perm[at]
        return row[at].to(torch.int64), places.to(view.idx.dtype)

    return pattern.derive(kept.DIAGONAL_PLACES, find)


def flat_diagonal(A: SparseTensor) -> torch.Tensor:
    """The diagonal (items m,), 0 where there is no element; without gradient."""
    row, places = diagonal_places(A._pattern)
    vals = A._vals.reshape(-1)
    return vals.new_zeros(A._pattern.extent[0]).index_copy_(0, row, vals[places])
