"""Least squares with a sparse matrix, and their derivative."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from spgrad.core import checks
from spgrad.core.pattern import Pattern
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import plain
from spgrad.errors import ArgumentKindError, ArgumentValueError, PivotError, in_gradient_of
from spgrad.linalg.direct.superlu import SuperLU
from spgrad.linalg.solve import COTANGENT, Kept, require_finite
from spgrad.linalg.solvers.iterative import Iteration
from spgrad.linalg.solvers.lsmr import LSMR
from spgrad.linalg.solvers.protocol import Assume, Info, Prepared, Solver, named_options
from spgrad.linalg.solvers.units import unit_of
from spgrad.lowering.coalesce import without_repeats
from spgrad.lowering.operands import dense_operand, matrix_operand
from spgrad.lowering.products.spmm import sddmm, spmm, wants_grad
from spgrad.ops import adjoint, cat, eye
from spgrad.ops.products.broadcast import flat, in_columns, sparse_sparse
from spgrad.ops.solves.triangular import SOLVE_DTYPES
from spgrad.public import public_as
from spgrad.torch_protocol.autocast import in_given_precision
from spgrad.torch_protocol.func_transforms import Function, is_mapped


@named_options
@dataclass(frozen=True)
class NormalEquations(Solver):
    """Least squares by A^H A x = A^H b, or for a wide A by x = A^H y with A A^H y = b.

    For matrices of full rank. The normal equations have the square of the condition number of A.

    Attributes:
        solver: Solver of the normal equations; None takes `SuperLU`.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[1.0], [1.0]]))
        >>> b = torch.tensor([1.0, 3.0])
        >>> spgrad.linalg.lstsq(A, b, solver=spgrad.linalg.NormalEquations())
        tensor([2.])
    """

    solver: Solver | None = None

    def prepare(self, A: SparseTensor, assume: Assume = "general") -> Prepared:
        """Multiplies A^H A, or A A^H, and prepares its solver."""
        solver = SuperLU() if self.solver is None else self.solver
        if not isinstance(solver, Solver):
            raise ArgumentKindError(
                f"`solver` is {checks.describe_kind(solver)}; a solver or None is accepted. For "
                "example spgrad.linalg.CG(); call the class if you passed one."
            )
        return _Normal(A, solver)


class _Normal(Prepared):
    """A^H A or A A^H with its solver, for A divided by `unit`, so that squares do not overflow."""

    def __init__(self, A: SparseTensor, solver: Solver) -> None:
        vals = A._vals
        self.unit = unit_of(vals.abs().amax()) if vals.numel() else None
        if self.unit is not None:
            A = SparseTensor(vals / self.unit, A._pattern)
        self.pattern, self.vals = A._pattern, plain(A._vals).reshape(-1)
        m, n = self.pattern.matrix
        self.tall = m >= n
        AH = adjoint(A)
        normal = sparse_sparse(AH, A) if self.tall else sparse_sparse(A, AH)
        try:
            self.inner = solver.prepare(without_repeats(normal), "positive definite")
        except PivotError as error:
            raise PivotError(
                "`A` does not have full rank, so that its normal equations are singular; a matrix "
                "of full rank is accepted. Take solver=spgrad.linalg.LSMR(), or a positive `damp`."
            ) from error

    def solve(
        self, b: torch.Tensor, *, x0: torch.Tensor | None = None, adjoint: bool = False
    ) -> tuple[torch.Tensor, Info]:
        first = self.tall != adjoint  # A^+ = N^-1 A^H, and its adjoint A N^-1, for a tall A
        if first:
            b = self._times(b, not adjoint)
        x, info = self.inner.solve(b)
        x = x if first else self._times(x, not adjoint)
        return (x if self.unit is None else x / self.unit), info

    def _times(self, x: torch.Tensor, conjugated: bool) -> torch.Tensor:
        vals = plain(self.vals.conj()) if conjugated else self.vals
        return spmm(vals, plain(x), self.pattern, conjugated)


class Least(NamedTuple):
    """The pattern of a matrix and a solver of its least squares; values are passed separately."""

    pattern: Pattern
    kept: Kept
    adjoint: bool = False  # the least squares of A^H
    cotangent: bool = False  # whether the right-hand sides are those of a gradient


@public_as("linalg.lstsq")
@in_given_precision
def lstsq(
    A: torch.Tensor,
    b: torch.Tensor,
    damp: float | torch.Tensor = 0.0,
    solver: LSMR | NormalEquations | None = None,
) -> torch.Tensor:
    """The x with the least ||A x - b||^2 + damp^2 ||x||^2, and of several, the one of least norm.

    Args:
        A: Sparse (*b, m, n) of any layout, tall or wide; float32, float64, complex64 or complex128.
        b: Dense (*b, m) or (*b, m, k); it is read as vectors in the cases in which
            `torch.linalg.solve` reads it so.
        damp: Weight of the norm of x, 0 or more: a number, or a real tensor of shape (), which
            gets a gradient.
        solver: ``spgrad.linalg.LSMR()``, the default, or ``spgrad.linalg.NormalEquations()``.

    Returns:
        Dense x (*b, n) or (*b, n, k).

    Gradient:
        By Golub and Pereyra (1973), one solve for each term that is not 0; it is valid if the rank
        of A does not change nearby. The gradient of A is on its own pattern. The gradient of damp
        comes from that of the matrix of A above damp times the identity. Of any order.

    Cost:
        That of the solver, and one to three times as much for the gradients.

    Raises:
        TypeError: `A` is not sparse, `b` not dense, or `solver` is not such a solver.
        ValueError: Sizes, dtypes or devices don't fit, `damp` is negative, complex or has
            dimensions, or A or b has an element that is not finite.
        NotImplementedError: `A` has dense dimensions.
        PivotError: The normal equations are singular.
        ConvergenceError: The iteration ended before its tolerance.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[1.0], [1.0]]))
        >>> spgrad.linalg.lstsq(A, torch.tensor([1.0, 3.0]))
        tensor([2.])
    """
    if solver is not None and not isinstance(solver, (LSMR, NormalEquations)):
        raise ArgumentKindError(
            f"`solver` is {checks.describe_kind(solver)}; spgrad.linalg.LSMR(), "
            "spgrad.linalg.NormalEquations() or None is accepted. Take one of them."
        )
    T, right, vectors = _operands(A, b, damp)
    n = T._pattern.matrix[1]
    if isinstance(damp, torch.Tensor) or damp:
        T, right = _damped(T, right, damp)
    pattern = T._pattern
    columns, unfold = in_columns(pattern, right, pattern.matrix[0])
    kept = Kept(_method(solver), "general", pattern)
    x = unfold(least_squares(flat(T), columns, Least(pattern, kept)), n)
    return x.squeeze(-1) if vectors else x


@dataclass(frozen=True)
class _ByLSMR(Solver):
    """LSMR for matrices of any shape; it stops where the gradient A^H (b - A x) is small."""

    options: LSMR

    def prepare(self, A: SparseTensor, assume: Assume = "general") -> Prepared:
        """Takes the matrix."""
        return Iteration(self.options, A, assume, least=True)


def _method(solver: LSMR | NormalEquations | None) -> Solver:
    return solver if isinstance(solver, NormalEquations) else _ByLSMR(solver or LSMR())


def _damped(
    A: SparseTensor, b: torch.Tensor, damp: float | torch.Tensor
) -> tuple[SparseTensor, torch.Tensor]:
    """A above damp times the identity, and b above zeros: ordinary least squares of full rank."""
    pattern = A._pattern
    n = pattern.matrix[1]
    identity = eye(n, dtype=A._vals.dtype, device=A._vals.device, layout=torch.sparse_coo) * damp
    if pattern.batch:
        identity = identity.expand(*pattern.batch, n, n)
    below = b.new_zeros(*b.shape[:-2], n, b.shape[-1])
    return without_repeats(cat([A, identity], -2)), torch.cat([b, below], -2)


def least_squares(vals: torch.Tensor, b: torch.Tensor, system: Least) -> torch.Tensor:
    """x = A^+ b, or (A^H)^+ b, for the matrix with these flat values; b is 2-D.

    Gradient: for matrices of one rank (Golub and Pereyra, 1973, theorem 4.3),

        d(A^+) = -A^+ dA A^+ + A^+ A^+H dA^H (1 - A A^+) + (1 - A^+ A) dA^H A^+H A^+.

    With p = A^+H g, the residual r = b - A x, l = A^+ p, y = A^+H x and q = g - A^H p,

        <g, dx> = <p, db> + <-p x^H + r l^H + y q^H, dA>.

    r is 0 for a matrix of full row rank, q for one of full column rank. For A^H in place of A the
    gradient of A is the conjugate transpose of what stands here.
    """
    if wants_grad(vals, b):
        return _LeastSquares.apply(vals, b, system)  # type: ignore[return-value]
    return _found(vals, b, system)


def _found(vals: torch.Tensor, b: torch.Tensor, system: Least) -> torch.Tensor:
    pattern = system.pattern
    out = pattern.extent[0 if system.adjoint else 1]
    if b.numel() == 0 or out == 0 or pattern.elements == 0:
        return b.new_zeros(out, b.shape[1])
    require_finite(COTANGENT if system.cotangent else "b", b)
    with torch.no_grad():
        x, info = system.kept.prepared(vals).solve(plain(b), adjoint=system.adjoint)
    system.kept.info = info
    return x


class _LeastSquares(Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, vals: torch.Tensor, b: torch.Tensor, system: Least
    ) -> torch.Tensor:
        x = _found(vals, b, system)
        ctx.save_for_backward(vals, b, x)
        ctx.system = system
        return x

    @staticmethod
    @in_gradient_of("linalg.lstsq")
    @in_given_precision
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        vals, b, x = ctx.saved_tensors
        pattern, _, flipped, _ = system = ctx.system
        other = system._replace(adjoint=not flipped, cotangent=True)
        p = least_squares(vals, g, other)
        if not ctx.needs_input_grad[0]:
            return None, p, None

        def times(v: torch.Tensor, conjugated: bool) -> torch.Tensor:
            return spmm(vals.conj() if conjugated else vals, v, pattern, conjugated)

        pairs = [(-p, x)]
        m, n = pattern.matrix[::-1] if flipped else pattern.matrix
        r, q = b - times(x, flipped), g - times(p, not flipped)
        if m > n or _counts(r, b, m):
            pairs.append((r, least_squares(vals, p, system)))
        if m < n or _counts(q, g, n):
            pairs.append((least_squares(vals, x, other), q))
        left = torch.cat([pair[0] for pair in pairs], 1)
        right = torch.cat([pair[1] for pair in pairs], 1)
        if flipped:
            left, right = right, left
        return sddmm(left, right.conj(), pattern), p, None


def _counts(small: torch.Tensor, like: torch.Tensor, size: int) -> bool:
    """Whether `small` is more than what rounding and a solver's tolerance leave of `like`.

    It is in one column of one item, each of `size` rows: columns may be of very different sizes.
    """
    if is_mapped(small):  # torch.func.vmap lets nobody read its numbers
        return True
    if small.numel() == 0:
        return False
    with torch.no_grad():
        left, of = (t.view(-1, size, t.shape[1]).norm(dim=1) for t in (small, like))
        return bool((left > torch.finfo(like.dtype).eps ** 0.4 * of).any())


def _require_weight(damp: Any) -> None:
    given = damp
    if isinstance(damp, torch.Tensor):
        if damp.dim() or damp.is_complex():
            raise ArgumentValueError(
                f"`damp` is a tensor of shape {tuple(damp.shape)} and dtype "
                f"{checks.short(damp.dtype)}; a number or a real tensor of shape () is accepted. "
                "For a weight of each unknown, stack the diagonal matrix of the weights below A, "
                "and zeros below b."
            )
        given = damp.item()
    if not isinstance(given, (int, float)) or not 0 <= given < float("inf"):
        raise ArgumentValueError(
            f"`damp` is {given!r}; a finite number from 0 is accepted. For example 0.1."
        )


def _operands(A: Any, b: Any, damp: Any) -> tuple[SparseTensor, torch.Tensor, bool]:
    T, right = without_repeats(matrix_operand("A", A)), dense_operand("b", b)
    if T._vals.dtype not in SOLVE_DTYPES:
        accepted = ", ".join(map(checks.short, SOLVE_DTYPES))
        raise ArgumentValueError(
            f"`A` has dtype {checks.short(T._vals.dtype)}; {accepted} are accepted. Convert it "
            "with A.to(torch.float32)."
        )
    checks.require_same_dtype(A=T._vals, b=right)
    checks.require_same_device(A=T._vals, b=right)
    _require_weight(damp)
    pattern, shape = T._pattern, tuple(right.shape)
    vectors = len(shape) == 1 or (bool(pattern.batch) and shape == tuple(pattern.shape[:-1]))
    right = right.unsqueeze(-1) if vectors else right
    m = pattern.matrix[0]
    if right.dim() < 2 or right.shape[-2] != m:
        accepted = f"{m} equations (from `A` of shape {tuple(pattern.shape)})"
        raise checks.bad_shape("b", shape, accepted, "The sizes of the two operands agree.")
    try:
        checks.broadcast_shapes(pattern.batch, right.shape[:-2])
    except RuntimeError:
        hint = "Batch sizes are equal, or one of them is 1 or missing."
        accepted = f"a batch that broadcasts with {pattern.batch}"
        raise checks.bad_shape("b", shape, accepted, hint) from None
    return T, right, vectors
