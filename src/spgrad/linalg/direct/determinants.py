"""Derivatives of determinants, through a factor of the matrix."""

from __future__ import annotations

from typing import Any, cast

import torch

from spgrad.core.tensor import SparseTensor
from spgrad.core.values import plain
from spgrad.errors import PivotError, in_gradient_of
from spgrad.linalg.direct.engines import Factored, SingularError, coordinates
from spgrad.linalg.direct.inverse import Wanted, inverse_values
from spgrad.linalg.direct.singular import adjugate_elements
from spgrad.linalg.solve import Kept
from spgrad.torch_protocol.func_transforms import Function


def signs(vals: torch.Tensor, kept: Kept) -> torch.Tensor:
    """The sign of the determinant of each item of a real matrix; without gradient."""
    return _Sign.apply(vals.detach(), kept)  # type: ignore[return-value]


def log_determinants(vals: torch.Tensor, kept: Kept) -> torch.Tensor:
    """The logarithm of the determinant of each item, of its absolute value for a real matrix."""
    return _LogDet.apply(vals, kept)  # type: ignore[return-value]


def determinants(vals: torch.Tensor, kept: Kept) -> torch.Tensor:
    """The determinant of each item."""
    return _Det.apply(vals, kept)  # type: ignore[return-value]


class _Sign(Function):
    """Signs of real determinants, which don't change nearby: of values without a gradient."""

    @staticmethod
    def forward(ctx: Any, vals: torch.Tensor, kept: Kept) -> torch.Tensor:  # type: ignore[override]
        with torch.no_grad():
            return _log_determinant(vals, kept)[0].to(vals.device, vals.dtype, copy=True)


class _LogDet(Function):
    """Logarithms of determinants: d log det A = tr(A^-1 dA), so that the gradient is A^-H.

    The logarithm is that of the absolute determinant where A is real.
    """

    @staticmethod
    def forward(ctx: Any, vals: torch.Tensor, kept: Kept) -> Any:  # type: ignore[override]
        with torch.no_grad():
            sign, size = _log_determinant(vals, kept)
            if sign.is_complex():
                size = torch.complex(size, sign.angle())
        ctx.save_for_backward(vals)
        ctx.kept, ctx.singular = kept, not bool(sign.all())
        return size.to(vals.device, vals.dtype, copy=True)

    @staticmethod
    @in_gradient_of("linalg.logdet")
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        (vals,) = ctx.saved_tensors
        if ctx.singular:
            if bool((g == 0).all()):
                return vals * 0, None
            raise PivotError(
                "`A` is singular, and the logarithm of its determinant, -inf, has no gradient; a "
                "matrix of full rank is accepted. The gradient of spgrad.linalg.det is finite."
            )
        row, inverse = _transposed_inverse(vals, ctx.kept)
        return g[row] * inverse.conj(), None


class _Det(Function):
    """Determinants: d det A = tr(adj(A) dA) with the adjugate adj(A) = det A times A^-1."""

    @staticmethod
    def forward(ctx: Any, vals: torch.Tensor, kept: Kept) -> torch.Tensor:  # type: ignore[override]
        with torch.no_grad():
            sign, size = _log_determinant(vals, kept)
            found = (sign * size.exp()).to(vals.device, vals.dtype)
        ctx.save_for_backward(vals, found)
        ctx.kept, ctx.singular = kept, not bool(sign.all())
        return found

    @staticmethod
    @in_gradient_of("linalg.det")
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        vals, found = ctx.saved_tensors
        if ctx.kept.pattern.matrix[0] == 1:  # the determinant is the one element
            return g[coordinates(ctx.kept.pattern)[0]] + vals * 0, None
        if ctx.singular:
            return g * _Adjugate.apply(vals, ctx.kept).conj(), None  # type: ignore[union-attr]
        row, inverse = _transposed_inverse(vals, ctx.kept)
        return (g * found.conj())[row] * inverse.conj(), None


class _Adjugate(Function):
    """Element (j, i) of the adjugate of one singular matrix for each value (i, j)."""

    @staticmethod
    def forward(ctx: Any, vals: torch.Tensor, kept: Kept) -> torch.Tensor:  # type: ignore[override]
        with torch.no_grad():
            A = SparseTensor(plain(vals).view(kept.pattern.values_shape), kept.pattern)
            row, column = coordinates(kept.pattern)
            return adjugate_elements(A, column, row)

    @staticmethod
    @in_gradient_of("linalg.det")
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        raise PivotError(
            "`A` is singular, where spgrad.linalg.det has no second derivative; a matrix of full "
            "rank is accepted. The first derivative is there: leave out create_graph=True."
        )


def _log_determinant(vals: torch.Tensor, kept: Kept) -> tuple[torch.Tensor, torch.Tensor]:
    """Sign and logarithm of the size of the determinant of each item; 0 and -inf if singular."""
    try:
        found = cast(Factored, kept.prepared(vals))
        if found.determinant is None:
            found.determinant = found.log_determinant()
        return found.determinant
    except SingularError:
        if kept.pattern.extent[0] > kept.pattern.matrix[0]:
            raise
        sign = vals.new_zeros(1)
        return sign, sign.real - torch.inf


def _transposed_inverse(vals: torch.Tensor, kept: Kept) -> tuple[torch.Tensor, torch.Tensor]:
    """The batch item of each value (i, j), and element (j, i) of the inverse of that item."""
    row, _ = coordinates(kept.pattern)
    inverse = inverse_values(vals, Wanted(kept, kept.pattern, True))
    return row // kept.pattern.matrix[0], inverse
