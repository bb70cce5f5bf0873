"""What a caller declares of a matrix, checked where a check is cheap."""

from __future__ import annotations

from typing import Any, get_args

import torch

from spgrad import kernels
from spgrad.core import kept
from spgrad.core.pattern import Pattern
from spgrad.core.tensor import SparseTensor
from spgrad.errors import ArgumentValueError, PivotError
from spgrad.linalg.solvers.protocol import Assume
from spgrad.lowering.views import cols, rows

_ROUNDING = 1000
"""Rounding errors of the largest element by which mirrored elements may differ."""


def require_declared(assume: Any) -> Assume:
    """`assume` if it is a word that is accepted; None is "general"."""
    known = get_args(Assume)
    if assume is not None and assume not in known:
        accepted = ", ".join(f'"{word}"' for word in known)
        raise ArgumentValueError(
            f"`assume` is {assume!r}; {accepted} or None is accepted. Leave it out for a matrix "
            "of which nothing is known."
        )
    return assume or "general"


def triangle_of(pattern: Pattern) -> str | None:
    """Which triangle, "lower" or "upper", has all elements, or None; kept."""

    def find(pattern: Pattern) -> str | None:
        view = rows(pattern)
        row = kernels.expand(view.ptr, view.idx.shape[0])
        if bool((view.idx <= row).all()):
            return "lower"
        return "upper" if bool((view.idx >= row).all()) else None

    return pattern.derive(kept.SIDE, find)


def require_true(
    A: SparseTensor, assume: Assume, says: str = "`assume` is", arg: str = "A"
) -> None:
    """Refuses a matrix that is not what was declared of it, or what a method needs."""
    if assume == "triangular" and triangle_of(A._pattern) is None:
        raise ArgumentValueError(
            '`assume` is "triangular", and `A` has elements above and below the diagonal; one '
            "triangle is accepted. Take spgrad.tril(A), spgrad.triu(A) or solve_triangular."
        )
    if assume in ("symmetric", "hermitian", "positive definite"):
        _require_mirrored(A, assume, says, arg)
    if assume == "positive definite":
        _require_positive_diagonal(A, arg)


def _mirrored(pattern: Pattern) -> bool:
    """Whether (j, i) is an element where (i, j) is one; kept on the pattern."""

    def find(pattern: Pattern) -> bool:
        by_rows, by_cols = rows(pattern), cols(pattern)
        return all(torch.equal(a, b) for a, b in zip(by_rows[:2], by_cols[:2], strict=True))

    return pattern.derive(kept.MIRRORED, find)


def in_view(vals: torch.Tensor, perm: torch.Tensor | None) -> torch.Tensor:
    """Values in the order of a view."""
    return vals if perm is None else vals[perm]


def _require_mirrored(A: SparseTensor, assume: Assume, says: str, arg: str) -> None:
    pattern, vals = A._pattern, A._vals.reshape(-1)
    if not _mirrored(pattern):
        raise ArgumentValueError(
            f'{says} "{assume}", and `{arg}` has an element (i, j) without (j, i); both, or '
            "neither, is accepted. Give both triangles, or take BiCGSTAB, GMRES or a direct solver."
        )
    other = in_view(vals, cols(pattern).perm)
    if assume != "symmetric":
        other = other.conj()
    gap = (in_view(vals, rows(pattern).perm) - other).abs()
    if gap.numel() == 0:
        return
    most = float(gap.max())
    if most > _ROUNDING * torch.finfo(vals.dtype).eps * float(vals.abs().max()):
        raise ArgumentValueError(
            f'{says} "{assume}", and mirrored elements of `{arg}` differ by up to {most:.1e}; '
            f"differences of rounding are accepted. Take ({arg} + {arg}.mH) / 2, or BiCGSTAB, "
            "GMRES or a direct solver without `assume`."
        )


def _require_positive_diagonal(A: SparseTensor, arg: str) -> None:
    diagonal = flat_diagonal(A).real
    wrong = torch.nonzero(~(diagonal > 0))
    if wrong.numel():
        m = A._pattern.matrix[0]
        row = int(wrong[0])
        item = f" of batch item {row // m}" if A._pattern.batch else ""
        raise PivotError(
            f"`{arg}` is not positive definite: its diagonal has {float(diagonal[row]):.3g} in row "
            f"{row % m}{item}; positive numbers are accepted. Leave `assume` out."
        )


def diagonal_places(pattern: Pattern) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows (of the block-diagonal matrix) that have a diagonal element, and where its value is.

    The second counts the flat values, with those of blocks one by one.
    """
    view = rows(pattern)
    row = kernels.expand(view.ptr, view.idx.shape[0])
    at = torch.nonzero(row == view.idx).squeeze(-1)
    places = at if view.perm is None else view.perm[at].to(torch.int64)
    return row[at].to(torch.int64), places


def flat_diagonal(A: SparseTensor) -> torch.Tensor:
    """The diagonal (items m,), 0 where there is no element; without gradient."""
    row, places = diagonal_places(A._pattern)
    vals = A._vals.reshape(-1)
    return vals.new_zeros(A._pattern.extent[0]).index_copy_(0, row, vals[places])
