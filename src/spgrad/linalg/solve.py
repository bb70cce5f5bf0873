"""Linear systems with a sparse matrix, by any solver, and the one derivative of all solvers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, overload

import torch
from torch._C._functorch import is_legacy_batchedtensor

from spgrad.core import checks
from spgrad.core.pattern import Pattern
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import as_result, plain
from spgrad.errors import (
    ArgumentKindError,
    ArgumentValueError,
    ConvergenceError,
    UnsupportedError,
    in_gradient_of,
)
from spgrad.linalg.assume import (
    require_declared,
    require_true,
    triangle_of,
    triangle_of_values,
)
from spgrad.linalg.direct.superlu import SuperLU
from spgrad.linalg.solvers.protocol import (
    Applied,
    Assume,
    Info,
    Preconditioner,
    Prepared,
    Solver,
    direct_info,
)
from spgrad.lowering.operands import dense_operand
from spgrad.lowering.products.spmm import sddmm, wants_grad
from spgrad.ops.products.broadcast import flat, in_columns
from spgrad.ops.solves.triangular import KeptTriangle, Triangle, square_operand, substitute
from spgrad.public import public_as
from spgrad.torch_protocol.autocast import in_given_precision
from spgrad.torch_protocol.func_transforms import Function, transforming


class Kept:
    """A solver, and what it prepared for each set of values, which the backward uses again.

    There is more than one set of values only where torch.func.vmap runs over them.
    """

    def __init__(self, solver: Solver, assume: Assume, pattern: Pattern) -> None:
        self.solver, self.pattern = solver, pattern
        self.assume: Assume = assume
        self.met: list[tuple[torch.Tensor, int, Prepared]] = []
        self.info: Info | None = None  # of the last solve

    def prepared(self, vals: torch.Tensor) -> Prepared:
        """The solver with a matrix of these values."""
        version = 0 if vals.is_inference() else vals._version
        for known, at, prepared in self.met:
            if at == version and same_numbers(known, vals):
                return prepared
        A = SparseTensor(plain(vals).view(self.pattern.values_shape), self.pattern)
        if self.solver.reads_matrix:
            require_finite("A", A._vals)
            require_true(A, self.assume)
        prepared = self.solver.prepare(A, self.assume)
        self.met.append((vals, version, prepared))
        return prepared


def same_numbers(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors view the same memory with the same shape, strides, dtype and conj bit."""
    return a is b or (
        a.data_ptr() == b.data_ptr()
        and (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)
        and a.is_conj() == b.is_conj()
    )


class System(NamedTuple):
    """The pattern of a matrix and its solver; the values are passed separately."""

    pattern: Pattern
    kept: Kept
    adjoint: bool = False  # solve with A^H
    x0: torch.Tensor | None = None
    cotangent: bool = False  # whether the right-hand sides are those of a gradient


@overload
def solve(
    A: torch.Tensor,
    b: torch.Tensor,
    solver: Solver | None = None,
    *,
    assume: Assume | None = None,
    x0: torch.Tensor | None = None,
    left: bool = True,
    return_info: Literal[False] = False,
) -> torch.Tensor: ...
@overload
def solve(
    A: torch.Tensor,
    b: torch.Tensor,
    solver: Solver | None = None,
    *,
    assume: Assume | None = None,
    x0: torch.Tensor | None = None,
    left: bool = True,
    return_info: Literal[True],
) -> tuple[torch.Tensor, Info]: ...
@public_as("linalg.solve")
@in_given_precision
def solve(
    A: torch.Tensor,
    b: torch.Tensor,
    solver: Solver | None = None,
    *,
    assume: Assume | None = None,
    x0: torch.Tensor | None = None,
    left: bool = True,
    return_info: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, Info]:
    """x with A x = b for a sparse A, by a direct or an iterative solver.

    A direct solver is exact and fails on no well-posed system, but its factor has more elements
    than A: many more for meshes in three dimensions and for graphs. Take an iterative solver where
    the factor would not fit in memory, where A is well conditioned or has a good preconditioner,
    or where a few digits suffice: `CG` if A is positive definite, `MINRES` if it is hermitian,
    `BiCGSTAB` or `GMRES` if it is not.

    Args:
        A: Sparse (*b, m, m) of any layout; float32, float64, complex64 or complex128.
        b: Dense (*b, m) or (*b, m, n); as `torch.linalg.solve` does, b is read as vectors if it
            has one dimension, or the shape of A without its last dimension. Batch dimensions
            broadcast.
        solver: Such as ``spgrad.linalg.CG(rtol=1e-8)``. None takes substitution if all elements of
            A are in one triangle, and else `SuperLU`, for which SciPy must be installed.
        assume: What is known of A: "general", "symmetric", "hermitian", "positive definite" or
            "triangular". Symmetry, signs of the diagonal and zeros of a triangle are checked.
        x0: Where an iteration starts, of the shape of the result; it gets no gradient.
        left: False solves x A = b.
        return_info: True returns (x, info) with a `spgrad.linalg.Info`, whose residuals have the
            shape of b without m.

    Returns:
        Dense x, of the shape of b with the batch dimensions of both.

    Gradient:
        Of b: the solution l of A^H l = g, by the same solver with what it has prepared. Of A:
        -l x^H at its own pattern. The formulas assume that x is exact: the gradient of an
        iterative solver is as accurate as its tolerance. Of any order; forward mode and torch.func
        work too.

    Cost:
        That of the solver; both gradients together take as much again, and O(nse n) for the
        gradient of A.

    Raises:
        TypeError: `A` is not sparse, `b` not dense, or `solver` is not a solver.
        ValueError: `A` is not square, sizes, dtypes or devices don't fit, A is not what `assume`
            says, or A or b has an element that is not finite.
        NotImplementedError: `A` has dense dimensions.
        PivotError: `A` is singular, or it was declared definite and its diagonal is not positive.
        ConvergenceError: The iteration ended before its tolerance.
        ImportError: SciPy is not installed, and a direct solver is asked for.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[4.0, 1.0], [1.0, 3.0]])).requires_grad_()
        >>> x = spgrad.linalg.solve(A, torch.tensor([5.0, 4.0]), spgrad.linalg.CG())
        >>> x.detach().round(decimals=4)
        tensor([1., 1.])
        >>> x.sum().backward()
        >>> A.grad.layout
        torch.sparse_csr
    """
    assume = require_declared(assume)
    if solver is not None and not isinstance(solver, Solver):
        hint = "Call the class if you passed one."
        if isinstance(solver, Preconditioner):
            hint = "A solver takes it: spgrad.linalg.CG(preconditioner=...)."
        elif isinstance(solver, Applied):
            hint = "Solve with the factor itself: F.solve(b)."
        raise ArgumentKindError(
            f"`solver` is {checks.describe_kind(solver)}; a solver such as spgrad.linalg.CG() or "
            f"None is accepted. {hint}"
        )
    T, right, start, vectors = system_operands(A, b, x0, left)
    columns, unfold = in_columns(T._pattern, right, T._pattern.matrix[0])
    if start is not None:
        start = in_columns(T._pattern, start.detach(), T._pattern.matrix[0])[0]

    def shaped(y: torch.Tensor) -> torch.Tensor:
        x = unfold(y, T._pattern.matrix[0])
        return as_result(x.squeeze(-1)) if vectors else x if left else as_result(x.mT)

    try:
        y, info = _solved(flat(T), columns, T._pattern, solver, assume, start, not left)
    except ConvergenceError as error:
        if error.x is not None and error.x.dim() == 3:  # (items, m, n), as a solver has it
            error.x = shaped(error.x.reshape(columns.shape))
            error.info = _unfolded(error.info, unfold, vectors)
        raise
    return (shaped(y), _unfolded(info, unfold, vectors)) if return_info else shaped(y)


def _solved(
    vals: torch.Tensor,
    b: torch.Tensor,
    pattern: Pattern,
    solver: Solver | None,
    assume: Assume,
    x0: torch.Tensor | None,
    transpose: bool,
) -> tuple[torch.Tensor, Info]:
    if solver is None and assume in ("general", "triangular"):
        triangle = triangle_of(pattern)
        if triangle is not None:
            if not transforming():
                require_finite("A", vals)
                require_finite("b", b)
            x = substitute(vals, b, Triangle(pattern, triangle == "upper", False), transpose)
            return x, direct_info(b, math.prod(pattern.batch))
        if assume == "triangular":
            solver = _Substitution()
    kept = Kept(solver or SuperLU(), assume, pattern)
    system = System(pattern, kept, transpose, x0)
    if transpose:  # A^T x = b is conj(A)^H x = b
        vals = vals.conj()
    x = solve_with(vals, b, system)
    return x, kept.info or direct_info(b, math.prod(pattern.batch))


class _Substitution(Solver):
    """Substitution with a matrix of which one triangle has zeros, so that its pattern has both."""

    def prepare(self, A: SparseTensor, assume: Assume) -> Prepared:
        """Finds the triangle."""
        return _Triangle(A, triangle_of_values(A) == "upper")


class _Triangle(Prepared):
    def __init__(self, A: SparseTensor, upper: bool) -> None:
        self.items = math.prod(A._pattern.batch)
        self.kept = KeptTriangle(A._vals.reshape(-1), Triangle(A._pattern, upper, False))

    def solve(
        self, b: torch.Tensor, *, x0: torch.Tensor | None = None, adjoint: bool = False
    ) -> tuple[torch.Tensor, Info]:
        return self.kept.solve(b, adjoint), direct_info(b, self.items)


def solve_with(vals: torch.Tensor, b: torch.Tensor, system: System) -> torch.Tensor:
    """x = A^-1 b, or A^-H b, for the matrix with these flat values; b is (items m, n).

    Gradient: A x = b gives dA x + A dx = db, so with <u, v> the real part of u^H v,

        <g, dx> = <A^-H g, db - dA x> = <l, db> - <l x^H, dA>    where A^H l = g.

    The gradient of b is l, and that of A is -l x^H, of which the elements of A are computed
    (SDDMM). For A^H x = b the same derivation has A^H in place of A: A l = g, the gradient of b is
    l, that of A^H is -l x^H, so that of A is -x l^H. Each solve in a derivative is one of the two,
    so one node of autograd has the derivatives of every order.
    """
    if wants_grad(vals, b):
        return _Solve.apply(vals, b, system)  # type: ignore[return-value]
    return _found(vals, b, system)


def _found(vals: torch.Tensor, b: torch.Tensor, system: System) -> torch.Tensor:
    if b.numel() == 0:
        return torch.empty_like(b)
    require_finite(COTANGENT if system.cotangent else "b", b)
    if system.x0 is not None:
        require_finite("x0", system.x0)
    with torch.no_grad():
        prepared = system.kept.prepared(vals)
        x, info = prepared.solve(plain(b), x0=system.x0, adjoint=system.adjoint)
    system.kept.info = info
    return x


class _Solve(Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, vals: torch.Tensor, b: torch.Tensor, system: System
    ) -> torch.Tensor:
        x = _found(vals, b, system)
        ctx.save_for_backward(vals, x)
        ctx.system = system
        return x

    @staticmethod
    @in_gradient_of("linalg.solve")
    @in_given_precision
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        vals, x = ctx.saved_tensors
        adjoint = ctx.system.adjoint
        system = ctx.system._replace(adjoint=not adjoint, x0=None, cotangent=True)
        solution = solve_with(vals, g, system)
        if not ctx.needs_input_grad[0]:
            return None, solution, None
        left, right = (x, solution) if adjoint else (solution, x)
        # negated in place, because a copy of `left` would live beside it
        grad_vals = sddmm(left, right.conj(), ctx.system.pattern).neg_()
        return grad_vals, solution if ctx.needs_input_grad[1] else None, None


def system_operands(
    A: Any, b: Any, x0: Any, left: bool
) -> tuple[SparseTensor, torch.Tensor, torch.Tensor | None, bool]:
    """A, the right-hand sides (*b, m, n), the start likewise, and whether b had vectors."""
    T, right = square_operand("A", A), dense_operand("b", b)
    checks.require_same_dtype(A=T._vals, b=right)
    checks.require_same_device(A=T._vals, b=right)
    pattern = T._pattern
    m = pattern.matrix[0]
    shape = tuple(right.shape)
    if not shape:
        hint = "Divide by a number with b / number."
        raise checks.bad_shape("b", (), "a vector, matrix or batch of matrices", hint)
    vectors = len(shape) == 1 or (bool(pattern.batch) and shape == tuple(pattern.shape[:-1]))
    if not left and not vectors:
        right = right.mT
    right = right.unsqueeze(-1) if vectors else right
    if right.shape[-2] != m:
        accepted = f"{m} equations (from `A` of shape {tuple(pattern.shape)})"
        raise checks.bad_shape("b", shape, accepted, "The sizes of the two operands agree.")
    try:
        batch = checks.broadcast_shapes(pattern.batch, right.shape[:-2])
    except RuntimeError:
        hint = "Batch sizes are equal, or one of them is 1 or missing."
        accepted = f"a batch that broadcasts with {pattern.batch}"
        raise checks.bad_shape("b", shape, accepted, hint) from None
    if x0 is None:
        return T, right, None, vectors
    start = dense_operand("x0", x0)
    checks.require_same_dtype(A=T._vals, x0=start)
    checks.require_same_device(A=T._vals, x0=start)
    given = tuple(start.shape)
    start = start.unsqueeze(-1) if vectors else start if left else start.mT
    n = right.shape[-1]
    if tuple(start.shape) != (*batch, m, n):
        shape = (*batch, m) if vectors else (*batch, m, n) if left else (*batch, n, m)
        raise checks.bad_shape(
            "x0", given, f"{shape}, the shape of the result,", "Or leave it out."
        )
    return T, right, start, vectors


COTANGENT = "the gradient of the result"
"""What `require_finite` is told instead of the name of an argument."""


def require_finite(arg: str, t: torch.Tensor) -> None:
    """Refuses inf and NaN, which spread over the whole result or keep an iteration from ending."""
    given = arg if arg is COTANGENT else f"`{arg}`"
    if not torch.compiler.is_compiling() and is_legacy_batchedtensor(t):
        raise UnsupportedError(
            f"{given} stands for several tensors, as torch.autograd.grad has with "
            "is_grads_batched=True and jacobians with vectorize=True; one tensor is accepted. Take "
            "torch.func.jacrev, or torch.func.vmap of a vjp."
        )
    if not bool(torch.isfinite(t.sum())) and not bool(torch.isfinite(t).all()):
        find = f"Find it with torch.isfinite({'A.values()' if arg == 'A' else arg})."
        if arg is COTANGENT:
            find = "Look at the loss; torch.autograd.set_detect_anomaly(True) finds the operation."
        raise ArgumentValueError(
            f"{given} has an element that is not finite; finite numbers are accepted. {find}"
        )


def _unfolded(
    info: Info, unfold: Callable[[torch.Tensor, int], torch.Tensor], vectors: bool
) -> Info:
    """The Info with its columns in the shape of b."""

    def shaped(t: torch.Tensor) -> torch.Tensor:
        found = unfold(t, 1).squeeze(-2)
        return found.squeeze(-1) if vectors else found

    return Info(info.iterations, shaped(info.residuals), shaped(info.converged), info.reason)
