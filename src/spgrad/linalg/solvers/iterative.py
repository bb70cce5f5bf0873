"""What the iterative solvers share: options, the loop over steps, and when it ends.

Vectors are (items, m, n): n right-hand sides for each matrix of a batch. Scalars are (items, n),
in float64 or complex128, so that float32 loses nothing in sums and quotients. Each column of each
item converges by itself: a step multiplies its update by a scalar, which is 0 for a column that
has converged. As soon as a quarter of the columns have converged in all items, these columns leave
the iteration and its products.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace

import torch

from spgrad import kernels
from spgrad.core import checks
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import plain
from spgrad.errors import ArgumentValueError, ConvergenceError
from spgrad.linalg.assume import require_true
from spgrad.linalg.preconditioners.protocol import Apply, Given, application
from spgrad.linalg.solvers.operators import Matrix, Operator
from spgrad.linalg.solvers.progress import Show, progress
from spgrad.linalg.solvers.protocol import Assume, Info, Prepared, Solver
from spgrad.linalg.solvers.units import AS_GIVEN, Units, unit_of
from spgrad.linalg.solvers.vectors import dot
from spgrad.lowering import align

CHECK_EVERY = 16
"""Steps between two checks of the residuals on a GPU, because each check waits for the device."""

ROUNDING = 16
"""A residual of this many rounding errors of b - A x counts as converged: x is as good as that of a
direct solver, and no other x of the dtype has a residual that is much smaller."""

LARGEST = 0.01
"""But no residual counts that is larger, relative to b: there A is singular for the dtype."""


class Run:
    """One iteration: vectors and scalars as attributes, whose last dimension is the columns."""

    x: torch.Tensor  # (items, m, n)
    squares: torch.Tensor  # (items, n) float64: squared norms of the residuals
    broken: torch.Tensor  # (items, n): where the method can't go on
    why = "the method broke down"  # the reason to give where `broken` is True
    norms: torch.Tensor | None = None  # residuals are relative to these; None takes those of b

    @abstractmethod
    def step(self, active: torch.Tensor) -> None:
        """One step for the active (items, n) columns; it leaves x of the others as it is."""

    def finish(self) -> None:
        """Brings x up to date with the residuals."""

    def keep(self, columns: torch.Tensor) -> None:
        """Drops the other columns."""
        for name, value in vars(self).items():
            if isinstance(value, torch.Tensor):
                setattr(self, name, value.index_select(-1, columns))


class Found:
    """The results of the columns that have left an iteration."""

    def __init__(self, run: Run, shape: torch.Size) -> None:
        self.x = run.x
        self.squares = run.squares.new_empty(shape)
        self.broken, self.broke = torch.zeros_like(self.squares, dtype=torch.bool), run.why
        self.drifted = False  # whether rounding errors keep a residual above its tolerance

    def take(self, run: Run, columns: torch.Tensor) -> None:
        """Stores the results of all columns of the run, also of those that stay in it."""
        run.finish()
        self.squares[:, columns] = run.squares
        if columns.numel() == self.x.shape[2]:
            self.x = run.x
        else:
            self.x[:, :, columns] = run.x
        self.broken[:, columns] = run.broken

    def put(self, part: Found, squares: torch.Tensor, columns: torch.Tensor) -> None:
        """Stores what was found later for some columns, with these squares, where it is better."""
        better = squares < self.squares[:, columns]
        self.squares[:, columns] = torch.where(better, squares, self.squares[:, columns])
        self.x[:, :, columns] = torch.where(better[:, None], part.x, self.x[:, :, columns])
        self.broken[:, columns] |= part.broken

    def why(self, steps: int, most: int) -> str:
        """Why the iteration ended before its tolerance."""
        if not bool(torch.isfinite(self.squares).all()):
            return "the residual is not finite"
        if self.drifted:
            return "rounding errors keep the residual of x above the tolerance"
        if bool(self.broken.any()):
            return self.broke
        return f"max_iter={most} steps were taken" if steps >= most else "it stagnated"


@dataclass(frozen=True)
class Iterative(Solver):
    """Options of an iterative solver.

    Attributes:
        rtol: Residual to stop at, relative to the norm of b; None for 1e-8, or 1e-5 for float32
            and complex64. A residual of a few rounding errors of A x and b is small enough too.
        atol: Absolute residual to stop at; the larger of the two bounds counts.
        max_iter: Most steps; None for ten times the number of equations, and at least 100.
        preconditioner: Such as ``spgrad.linalg.Jacobi()``: an approximate inverse, a solver, whose
            factor is kept, or a callable that takes residuals (m, n).
        strict: False returns the x that was found if the iteration ends before its tolerance,
            instead of raising a `ConvergenceError`.
        progress: True shows steps and residuals by rich.
    """

    rtol: float | None = None
    atol: float = 0.0
    max_iter: int | None = None
    preconditioner: Given | None = None
    strict: bool = True
    progress: bool = False

    def prepare(self, A: SparseTensor, assume: Assume = "general") -> Prepared:
        """Prepares the preconditioner."""
        return Iteration(self, A, assume)

    @property
    def hermitian(self) -> bool:
        """Whether the method is one for hermitian matrices."""
        return False

    @abstractmethod
    def start(self, problem: Problem) -> Run:
        """The iteration before its first step."""

    def require_ranges(self) -> None:
        """Refuses tolerances and numbers of steps that are not valid."""
        for name in ("rtol", "atol"):
            value = getattr(self, name)
            if value is not None or name == "atol":
                checks.require_number(name, value, "For example 1e-8.", least=0)
        if self.max_iter is not None:
            checks.require_number("max_iter", self.max_iter, "Such as 100.", least=0, whole=True)

    def tolerance(self, dtype: torch.dtype) -> float:
        """The relative residual to stop at."""
        if self.rtol is not None:
            return self.rtol
        return 1e-5 if dtype in (torch.float32, torch.complex64) else 1e-8


@dataclass(frozen=True)
class Problem:
    """The system that an iteration solves, with its start and its preconditioner."""

    A: Operator
    b: torch.Tensor  # (items, m, n)
    x0: torch.Tensor | None
    adjoint: bool
    apply: Apply | None
    least: bool = False  # whether to stop at the gradient of least squares
    units: Units = AS_GIVEN  # what A and b were divided by

    def times(self, x: torch.Tensor) -> torch.Tensor:
        """A x, or A^H x."""
        return self.A.times(x, self.adjoint)

    def times_and_dot(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """A x, or A^H x, and the scalar product of x with it, of each column."""
        return self.A.times_and_dot(x, self.adjoint)

    def adjoint_times(self, x: torch.Tensor) -> torch.Tensor:
        """A^H x, or A x."""
        return self.A.times(x, not self.adjoint)

    def dot(self, u: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """u^H v of each column, in float64 or complex128."""
        return self.A.total(dot(u, v))

    def atol(self, given: float, like: torch.Tensor) -> torch.Tensor:
        """The absolute tolerance of each column, of residuals or of A^H times them."""
        bound = torch.full_like(like, given)
        return self.units.residual(bound, self.least) if given else bound

    def size(self) -> int:
        """The number of equations."""
        return self.A.size(self.b)

    def precondition(self, r: torch.Tensor) -> torch.Tensor:
        """M^-1 r; r itself without a preconditioner."""
        if self.apply is None:
            return r
        return plain(self.apply(r.flatten(0, 1), self.adjoint)).view(r.shape)

    def first(self) -> tuple[torch.Tensor, torch.Tensor]:
        """x to start from and its residual, both to be changed in place."""
        if self.x0 is None:
            return torch.zeros_like(self.b), self.b.clone()
        return self.x0.clone(), self.b - self.times(self.x0)

    def squares(self, x: torch.Tensor) -> torch.Tensor:
        """The squared norms (items, n) of b - A x, or with `least` of A^H (b - A x)."""
        r = self.times(x)
        r = torch.sub(self.b, r, out=r)
        r = self.adjoint_times(r) if self.least else r
        return self.dot(r, r).real

    def rounding(self, x: torch.Tensor) -> torch.Tensor:
        """The square of what rounding may leave of a residual, by the sizes of all its terms."""
        size = self.b.abs() + self.A.magnitudes(x.abs(), self.adjoint)
        size = self.A.magnitudes(size, not self.adjoint) if self.least else size
        return self.dot(size, size) * (ROUNDING * torch.finfo(x.dtype).eps) ** 2

    def part(self, x: torch.Tensor, columns: torch.Tensor) -> Problem:
        """The problem of these right-hand sides alone, which starts from x."""
        b, x = (t.index_select(2, columns) for t in (self.b, x))
        return replace(self, b=b, x0=x)


class Iteration(Prepared):
    """An iterative solver with its matrix; with `least`, one of any shape, for least squares."""

    def __init__(
        self, options: Iterative, A: SparseTensor, assume: Assume, *, least: bool = False
    ) -> None:
        options.require_ranges()
        hermitian = ["hermitian", "positive definite"]
        if not A._vals.is_complex():
            hermitian.append("symmetric")
        if options.hermitian and assume not in hermitian:
            require_true(A, "hermitian", f"{type(options).__name__} needs matrices that are")
        self.options, self.least = options, least
        vals, self.unit = A._vals, None
        if vals.numel():
            self.unit = unit_of(vals.abs().amax())
        if self.unit is not None:
            A = SparseTensor(vals / self.unit, A._pattern)
        self.A = Matrix(A, options.hermitian or assume in hermitian)
        self.apply = application(options.preconditioner, A, assume, self.unit)

    def solve(
        self, b: torch.Tensor, *, x0: torch.Tensor | None = None, adjoint: bool = False
    ) -> tuple[torch.Tensor, Info]:
        """x with A x = b, or A^H x = b."""
        shape = self.A.items, -1, b.shape[1]
        start = None if x0 is None else plain(x0).view(shape)
        right = b.view(shape)
        units = Units(self.unit, unit_of(right.abs().amax(1)) if b.numel() else None)
        start = None if start is None else units.inside(start)
        right = right if units.b is None else right / units.b[:, None]
        problem = Problem(self.A, right, start, adjoint, self.apply, self.least, units)
        x, info = iterate(self.options, problem)
        self.A.forget()
        return x.reshape(-1, b.shape[1]), info


def iterate(options: Iterative, problem: Problem) -> tuple[torch.Tensor, Info]:
    """Runs the method until all columns have converged, and says how it ended."""
    b = problem.b
    norms = problem.dot(b, b).real.sqrt()
    most = options.max_iter if options.max_iter is not None else max(10 * problem.size(), 100)
    run = options.start(problem)
    norms = norms if run.norms is None else run.norms
    _require_squares(problem, norms)
    bounds = (norms * options.tolerance(b.dtype)).maximum(problem.atol(options.atol, norms)) ** 2
    with progress(options.progress, type(options).__name__, most) as show:
        steps = _Steps(norms, most, show)
        found = steps.until(run, bounds)
        del run
        converged = found.squares <= bounds
        if problem.A.has_elements:
            converged = _confirm(options, problem, found, bounds, steps)
    reason = "converged" if bool(converged.all()) else found.why(steps.taken, most)
    residuals = found.squares.sqrt() / torch.where(norms == 0, 1, norms)
    info = Info(steps.taken, residuals, converged, reason)
    x = problem.units.outside(found.x)
    if options.strict and reason != "converged":
        raise _not_converged(options, info, x)
    return x, info


class _Steps:
    """Counts and shows the steps of an iteration, and runs them."""

    def __init__(self, norms: torch.Tensor, most: int, show: Show) -> None:
        self.norms, self.most, self.show = norms, most, show
        self.taken = 0

    def until(self, run: Run, bounds: torch.Tensor, columns: torch.Tensor | None = None) -> Found:
        """Runs until the squared residuals are within the bounds; `columns` names those of run."""
        found = Found(run, bounds.shape)
        active = torch.zeros_like(bounds, dtype=torch.bool)
        at = torch.arange(bounds.shape[1], device=bounds.device)
        norms = self.norms if columns is None else self.norms[:, columns]
        every = CHECK_EVERY if align.asks_device(bounds) else 1
        before = self.taken
        while True:
            ends = run.squares, bounds, run.broken
            if (self.taken - before) % every and self.taken != self.most:
                kernels.krylov_active(active, *ends)
            else:
                left = kernels.krylov_left(active, *ends)
                self.show(self.taken, run.squares, norms, at)
                if left == 0 or self.taken == self.most:
                    break
                if 4 * left <= 3 * at.numel():
                    kept = torch.nonzero(active.any(0)).squeeze(-1)
                    found.take(run, at)
                    run.keep(kept)
                    at = at[kept]
                    active, bounds = (t.index_select(1, kept) for t in (active, bounds))
            run.step(active)
            self.taken += 1
        found.take(run, at)
        return found


def _confirm(
    options: Iterative, problem: Problem, found: Found, bounds: torch.Tensor, steps: _Steps
) -> torch.Tensor:
    """Which columns have converged, by the residuals of the x that was found; corrects `found`.

    A method updates its residuals step by step, so that rounding errors let them drift from
    b - A x (Sleijpen and van der Vorst, 1996). A column that has not converged starts again from
    its x, as long as that halves the residual.
    """
    claimed, found.squares, wrong = _checked(problem, found, bounds, steps.norms)
    if not bool(wrong.any()):
        return claimed
    converged, squares, here = claimed > wrong, found.squares, found
    last = torch.full_like(bounds, torch.inf)
    columns = torch.arange(bounds.shape[1], device=bounds.device)
    while True:
        again = wrong & (4 * squares < last)
        found.drifted = found.drifted or bool((wrong > again).any())
        at = torch.nonzero(again.any(0)).squeeze(-1)
        if at.numel() == 0 or steps.taken == steps.most:
            return converged
        columns, last = columns[at], squares[:, at]
        limits = torch.where(again[:, at], bounds[:, columns], torch.inf)
        part = problem.part(found.x, columns)
        here = steps.until(options.start(part), limits, columns)
        claimed, squares, wrong = _checked(part, here, limits, steps.norms[:, columns])
        mine = limits < torch.inf  # the columns that ran
        found.put(here, torch.where(mine, squares, torch.inf), columns)
        converged[:, columns] |= mine & (claimed > wrong)


def _checked(
    problem: Problem, found: Found, bounds: torch.Tensor, norms: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Columns that seem to have converged, squared residuals, and which are too large.

    A column that ended near its tolerance, without the digits to reach it, may have converged too.
    """
    claimed = found.squares <= bounds
    near = found.squares <= torch.finfo(found.x.dtype).eps * norms**2
    checked = claimed | near
    if not bool(checked.any()):
        return claimed, found.squares, claimed
    squares = torch.where(checked, problem.squares(found.x), found.squares)
    wrong = checked & ~(squares <= bounds)  # NaN is wrong too
    if bool(wrong.any()):
        wrong &= ~(squares <= problem.rounding(found.x).minimum((LARGEST * norms) ** 2))
    return claimed | (near & ~wrong), squares, claimed & wrong


def _require_squares(problem: Problem, norms: torch.Tensor) -> None:
    """Refuses numbers whose squares overflow, or are all 0: they would seem to be solved."""
    b, total = problem.b, problem.A.total
    if bool((norms == 0).any()):
        # least squares of a b to which all columns of A are orthogonal have the solution 0
        of = problem.adjoint_times(b) if problem.least else b
        lost = (norms == 0) & (total((of != 0).sum(1).double()) > 0)
    elif not bool(norms.isfinite().all()):
        lost = ~norms.isfinite() & (total((~b.isfinite()).sum(1).double()) == 0)
    else:
        return
    if bool(lost.any()):
        raise ArgumentValueError(
            "`b` has numbers whose squares are larger or smaller than any float64; others are "
            "accepted. Divide b by its largest element, and multiply the result by it."
        )


def _not_converged(options: Iterative, info: Info, x: torch.Tensor) -> ConvergenceError:
    name = type(options).__name__
    left = int((~info.converged).sum())
    worst = float(info.residuals.nan_to_num(nan=float("inf")).max())
    return ConvergenceError(
        f"{name} has {left} of {info.converged.numel()} columns unsolved after {info.iterations} "
        f"steps, because {info.reason}; the largest relative residual is {worst:.1e}, and "
        f"{options.tolerance(x.dtype):.1e} is accepted. Take a preconditioner, a larger `max_iter` "
        "or `rtol`, another solver, or strict=False for what was found.",
        info=info,
        x=x,
    )
