"""Linear systems on shards, by the iterative solvers of `spgrad.linalg`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, overload

import torch
import torch.distributed as dist

from spgrad.core import checks
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import plain
from spgrad.distributed import dtensors
from spgrad.distributed.agreement import agree, called, require_group
from spgrad.distributed.matrix import ShardedMatrix, agree_on_sharded
from spgrad.distributed.plan import Plan
from spgrad.distributed.products import product, sampled
from spgrad.distributed.sharded import collective
from spgrad.errors import ArgumentKindError, in_gradient_of
from spgrad.linalg.preconditioners.protocol import Apply, application
from spgrad.linalg.solve import require_finite
from spgrad.linalg.solvers.iterative import Iterative, Problem, iterate
from spgrad.linalg.solvers.operators import Operator
from spgrad.linalg.solvers.protocol import Info
from spgrad.lowering.products.spmm import wants_grad
from spgrad.torch_protocol.autocast import in_given_precision
from spgrad.torch_protocol.func_transforms import Function


class _Shards(Operator):
    """A sharded matrix for solvers: vectors have the own rows, and dot products are all-reduced."""

    has_elements = True

    def __init__(self, values: torch.Tensor, plan: Plan) -> None:
        self.values, self.plan = values, plan
        self._apply: Apply | None = None
        self._error: Exception | None = None

    def times(self, x: torch.Tensor, adjoint: bool = False) -> torch.Tensor:
        values = plain(self.values.conj()) if adjoint else self.values
        return product(values, x[0].contiguous(), self.plan, adjoint)[None]

    def magnitudes(self, x: torch.Tensor, adjoint: bool = False) -> torch.Tensor:
        return product(self.values.abs(), x[0].abs().contiguous(), self.plan, adjoint)[None]

    def total(self, part: torch.Tensor) -> torch.Tensor:
        if self._apply is None:
            part = part.contiguous()
            dist.all_reduce(part, group=self.plan.group)
            return part
        failed = part.new_full((1,), float(self._error is not None))
        sums = torch.cat([part.reshape(-1), failed])
        dist.all_reduce(sums, group=self.plan.group)
        if sums[-1] != 0:
            self.settle()
        return sums[:-1].view_as(part)

    def preconditioned_by(self, apply: Apply) -> Apply:
        """The same preconditioner; where it fails in one process, all raise at the next `total`."""
        self._apply = apply

        def guarded(r: torch.Tensor, adjoint: bool) -> torch.Tensor:
            try:
                return called("preconditioner", apply, r, adjoint)
            except Exception as error:  # noqa: BLE001  # the others are told before it is raised
                self._error = error
                return torch.zeros_like(r)

        return guarded

    def settle(self) -> None:
        """Raises in every process if the preconditioner of one failed; a collective."""

        def check() -> dict[str, object]:
            if self._error is not None:
                raise self._error
            return {}

        if self._apply is not None:
            agree(self.plan.group, check, self.values.device)

    def size(self, v: torch.Tensor) -> int:
        return self.plan.rows.total


@dataclass(frozen=True)
class _System:
    plan: Plan
    options: Iterative
    adjoint: bool
    x0: torch.Tensor | None
    infos: list[Info]

    def found(self, values: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """The solution for own rows b (m, n)."""
        with torch.no_grad():
            start = None if self.x0 is None else self.x0[None]
            apply = self._preconditioner(values)
            operator = _Shards(plain(values), self.plan)
            guarded = None if apply is None else operator.preconditioned_by(apply)
            problem = Problem(operator, plain(b)[None], start, self.adjoint, guarded)
            x, info = iterate(self.options, problem)
            operator.settle()
        self.infos[:] = [replace(info, residuals=info.residuals[0], converged=info.converged[0])]
        return x[0]

    def _preconditioner(self, values: torch.Tensor) -> Apply | None:
        """The preconditioner of the diagonal block of this process, prepared without the others."""
        found: list[Apply | None] = []

        def check() -> dict[str, object]:
            block = SparseTensor(plain(self.plan.split(values)[0]), self.plan.own)
            hermitian = self.options.hermitian
            assume = "positive definite" if hermitian else "general"
            found.append(application(self.options.preconditioner, block, assume))
            return {}

        if self.options.preconditioner is None:
            return None
        agree(self.plan.group, check, values.device)
        return found[0]


@overload
def solve(
    D: ShardedMatrix,
    b: torch.Tensor,
    solver: Iterative,
    *,
    x0: torch.Tensor | None = None,
    return_info: Literal[False] = False,
) -> torch.Tensor: ...
@overload
def solve(
    D: ShardedMatrix,
    b: torch.Tensor,
    solver: Iterative,
    *,
    x0: torch.Tensor | None = None,
    return_info: Literal[True],
) -> tuple[torch.Tensor, Info]: ...
@collective("distributed.solve")
@in_given_precision
def solve(
    D: ShardedMatrix,
    b: torch.Tensor,
    solver: Iterative,
    *,
    x0: torch.Tensor | None = None,
    return_info: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, Info]:
    """x with D x = b, by an iterative solver whose dot products are all-reduced; a collective.

    Args:
        D: Square, (m, m), with equal shares of rows and columns.
        b: The own rows (own rows, n), or (own rows,); or a DTensor as ``D @ x`` takes it.
        solver: An iterative solver such as ``spgrad.linalg.CG(rtol=1e-8)``. Whether D is
            hermitian, which CG and MINRES need, is not checked. Each process prepares the
            preconditioner of its own rows and columns; together they are a block-diagonal
            preconditioner. A callable gets the own rows; if it fails in one process, all raise.
        x0: Where the iteration starts, of the kind of `b`; None for zeros.
        return_info: True to return ``(x, info)``, an Info as of `spgrad.linalg.solve`.

    Returns:
        The own rows of x; for a DTensor b, a DTensor.

    Gradient:
        The gradient of b takes one solve with the adjoint. The gradient of the values of D is
        computed from the solution of this solve and x, at the pattern.

    Cost:
        That of the solver, and one or two all-reduces of scalars in each step.

    Raises:
        TypeError, ValueError: In all processes, if an operand of one does not fit.
        ConvergenceError: In all processes, if the iteration ended before its tolerance.

    Example:
        >>> import tempfile, torch.distributed as dist
        >>> start = f"file://{tempfile.mkdtemp()}/start"
        >>> dist.init_process_group("gloo", init_method=start, rank=0, world_size=1)
        >>> A = spgrad.from_dense(torch.tensor([[4.0, 1.0], [1.0, 3.0]]))
        >>> D = spgrad.distributed.distribute(A)
        >>> x = spgrad.distributed.solve(D, torch.tensor([5.0, 4.0]), spgrad.linalg.CG())
        >>> torch.allclose(x, torch.ones(2))
        True
        >>> dist.destroy_process_group()
    """

    def check() -> dict[str, object]:
        if not isinstance(solver, Iterative):
            raise ArgumentKindError(
                f"`solver` is {checks.describe_kind(solver)}; an iterative solver such as "
                "spgrad.linalg.CG() is accepted. A factor needs the whole matrix: solve with "
                "D.full()."
            )
        checks.require_bool("return_info", return_info)
        if D.plan.rows is not D.plan.columns:
            hint = "spgrad.linalg.lstsq takes D.full(), the whole matrix."
            raise checks.bad_shape("D", tuple(D.shape), "a square matrix with equal shares", hint)
        if not isinstance(dtensors.require_dense("b", b, D), dtensors.DTensor):
            require_finite("b", b)
        if x0 is not None:
            start = dtensors.require_dense("x0", x0, D)
            if start.shape[1:] != b.shape[1:]:
                columns = f"rows and the {tuple(b.shape[1:])} columns of `b`"
                raise checks.bad_shape("x0", tuple(x0.shape), columns, "It is of the kind of `b`.")
            if not isinstance(start, dtensors.DTensor):
                require_finite("x0", start)
        return {"call": "solve", "solver": _options(solver), "x0": x0 is None}

    require_group()
    agree_on_sharded(D, check, "spgrad.linalg.solve takes a matrix that is in one process.")
    plan = D.plan
    dtensors.agree_on(D, "b", b, "solve")
    if x0 is not None:
        dtensors.agree_on(D, "x0", x0, "solve")
    infos: list[Info] = []

    def run(own: torch.Tensor) -> torch.Tensor:
        columns = own.unsqueeze(1) if own.dim() == 1 else own
        start = None if x0 is None else dtensors.own_rows(x0, D).detach().reshape(columns.shape)
        options = solver if plan.rows.rank == 0 else replace(solver, progress=False)
        x = _solved(D.local_values(), columns, _System(plan, options, D.transposed, start, infos))
        return x.squeeze(1) if own.dim() == 1 else x

    if D.transposed and D.dtype.is_complex:  # A^T x = b is conj(A)^H x = b
        D = D._with(D.local_values().conj())
    x = dtensors.on_rows(run, b, D)
    return (x, infos[0]) if return_info else x


def _options(solver: Iterative) -> str:
    """The options by which a process decides when to stop; the residuals are equal in all."""
    given = solver.preconditioner
    named = replace(solver, progress=False, preconditioner=None)
    return f"{named!r} with {getattr(given, '__name__', None) or type(given).__name__}"


def _solved(values: torch.Tensor, b: torch.Tensor, system: _System) -> torch.Tensor:
    """x = A^-1 b, or A^-H b; the derivation of the gradient is in `spgrad.linalg.solve`."""
    if wants_grad(values, b):
        return _Solve.apply(values, b, system)  # type: ignore[return-value]
    return system.found(values, b)


class _Solve(Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, values: torch.Tensor, b: torch.Tensor, system: _System
    ) -> torch.Tensor:
        x = system.found(values, b)
        ctx.save_for_backward(values, x)
        ctx.system = system
        return x

    @staticmethod
    @in_gradient_of("distributed.solve")
    @in_given_precision
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        values, x = ctx.saved_tensors
        system: _System = ctx.system
        adjoint = replace(system, adjoint=not system.adjoint, x0=None, infos=[])
        solution = _solved(values, g, adjoint)
        if not ctx.needs_input_grad[0]:
            return None, solution, None
        left, right = (x, solution) if system.adjoint else (solution, x)
        grad = sampled(-left, right.conj(), system.plan)
        return grad, solution if ctx.needs_input_grad[1] else None, None
