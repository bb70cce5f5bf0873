"""Solvers of spgrad and of others, each with the options that its documentation recommends.

An operation's function gets a matrix and a right-hand side. `cg`, `cg_ic0` and `cg_amg` run to the
same residual; `cg_50` takes so many steps; `solve` is direct.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch

from benchmarks.contender import Contender, as_numpy, as_torch, in_numpy
from benchmarks.problems import Problem
from benchmarks.solves.formulas import RTOL, STEPS
from benchmarks.summary import ALONE, ENGINE, FACTOR, PLAIN

_MOST = 50_000_000  # elements of a dense matrix
_FOREVER = 1_000_000  # more steps than any takes
_MOVED = 7  # vectors that a step has to read or write besides A p: x, r and p both ways, and A p
_DEFINITE = "positive definite"


def _cg(A: Any, b: torch.Tensor, preconditioner: Any = None) -> torch.Tensor:
    from spgrad.linalg import CG, solve

    return solve(A, b, CG(rtol=RTOL, preconditioner=preconditioner))


def _cg_ic0(A: Any, b: torch.Tensor) -> torch.Tensor:
    from spgrad.linalg import IC0

    return _cg(A, b, IC0(relaxation=0.99))


def _cg_amg(A: Any, b: torch.Tensor) -> torch.Tensor:
    from spgrad.linalg import AMG

    return _cg(A, b, AMG())


def _steps(A: Any, b: torch.Tensor) -> torch.Tensor:
    from spgrad.linalg import CG, solve

    return solve(A, b, CG(rtol=0, max_iter=STEPS, strict=False))


def _triangular(A: Any, b: torch.Tensor) -> torch.Tensor:
    import spgrad

    return spgrad.solve_triangular(A, b, upper=False)


def _solve(A: Any, b: torch.Tensor) -> torch.Tensor:
    import spgrad

    return spgrad.linalg.solve(A, b, assume=_DEFINITE)


def _logdet(A: Any) -> torch.Tensor:
    import spgrad

    return spgrad.linalg.logdet(A, assume=_DEFINITE)


SPGRAD = {
    "cg": _cg,
    "cg_ic0": _cg_ic0,
    "cg_amg": _cg_amg,
    "cg_50": _steps,
    "triangular": _triangular,
    "solve": _solve,
    "logdet": _logdet,
}
"""And `refactor`, by `again`."""


def of_spgrad(own: Contender) -> tuple[Contender, ...]:
    """spgrad's parts, and spgrad without what an operation is about."""
    build, renew = own.build, own.renew

    def first(S: Any, p: Problem) -> Callable[[], Any]:
        from spgrad.linalg import factor

        A, b = build(S, p), as_torch(p.column, p)
        return lambda: factor(renew(A), _DEFINITE).solve(b)

    alone = dict.fromkeys(("cg_ic0", "cg_amg"), _cg)
    ops = ("cg_50_step", "solve_step", "logdet_step")
    return (
        replace(own, name=PLAIN, functions=alone),
        replace(own, name=FACTOR, functions={"refactor": first}),
        replace(own, name=ALONE, vjp=_forward, only=ops, limit=True),
        replace(
            own,
            name="step limit",
            build=lambda S, p: _Step(build(S, p), p),
            functions={"cg_50": _Step.run},
            only=("cg_50",),
            limit=True,
        ),
    )


def again(build: Callable[[Any, Problem], Any]) -> Callable[[Any, Problem], Callable[[], Any]]:
    """Factors a matrix of a pattern whose order is known, and solves."""

    def run(S: Any, p: Problem) -> Callable[[], Any]:
        from spgrad.linalg import factor

        A, b = build(S, p), as_torch(p.column, p)
        kept = factor(A * 2, _DEFINITE)
        return lambda: kept.refactor(A).solve(b)

    return run


def _forward(function: Callable[..., Any]) -> Callable[..., tuple[Any, ...]]:
    """The forward with all that it keeps for gradients; no gradient is computed."""

    def run(*operands: Any) -> tuple[Any, ...]:
        *given, _ = operands  # without the cotangent
        for a in given:
            a.requires_grad_()
        return (function(*given),)

    return run


class _Step:
    """The least work of a step of conjugate gradients: A p, and moving its vectors once."""

    def __init__(self, A: Any, p: Problem) -> None:
        self.A = A
        dtype = getattr(torch, p.dtype)
        self.pair = tuple(torch.ones(_MOVED * A.shape[0] // 2, dtype=dtype) for _ in range(2))

    def run(self, b: torch.Tensor) -> torch.Tensor:
        source, target = self.pair
        for _ in range(STEPS):
            _ = self.A @ b
            target.copy_(source)
        return target


def _scipy_cg(A: Any, b: np.ndarray, M: Any = None) -> np.ndarray:
    from scipy.sparse.linalg import cg

    x, info = cg(A, b, rtol=RTOL, M=M, maxiter=_FOREVER)
    if info:
        raise RuntimeError("cg has not converged")
    return x


def _scipy_steps(A: Any, b: np.ndarray) -> np.ndarray:
    from scipy.sparse.linalg import cg

    return cg(A, b, rtol=0, maxiter=STEPS)[0]


def _scipy_ilu(A: Any, b: np.ndarray) -> np.ndarray:
    """SuperLU's incomplete factors, SciPy's only ones; without fill CG does not converge."""
    from scipy.sparse.linalg import LinearOperator, spilu

    options = {"SymmetricMode": True}
    made = spilu(A.T, diag_pivot_thresh=0.0, permc_spec="MMD_AT_PLUS_A", options=options)
    return _scipy_cg(A, b, LinearOperator(A.shape, made.solve))


def _scipy_triangular(L: Any, b: np.ndarray) -> np.ndarray:
    from scipy.sparse.linalg import spsolve_triangular

    return spsolve_triangular(L, b, lower=True)


def _splu(A: Any) -> Any:
    """Factors of the transpose, which a matrix in CSR is in CSC, with spgrad's options."""
    from scipy.sparse.linalg import splu

    options = {"SymmetricMode": True}
    return splu(A.T, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.01, options=options)


def _engine_step(A: Any, b: np.ndarray, g: np.ndarray) -> tuple[Any, ...]:
    made = _splu(A)
    return made.solve(b, "T"), made.solve(g)


def _splu_step(A: Any, b: np.ndarray, g: np.ndarray) -> tuple[Any, ...]:
    x, found = _engine_step(A, b, g)
    return x, _outer(A, found, x), found


def _scipy_steps_and_gradients(A: Any, b: np.ndarray, g: np.ndarray) -> tuple[Any, ...]:
    x, found = _scipy_steps(A, b), _scipy_steps(A, g)
    return x, _outer(A, found, x), found


def _outer(A: Any, found: np.ndarray, x: np.ndarray) -> Any:
    """The gradient of A, as one composes it."""
    row = np.repeat(np.arange(A.shape[0]), np.diff(A.indptr))
    return sp.csr_array((-found[row] * x[A.indices], A.indices, A.indptr), A.shape)


def _scipy_refactor(S: Any, p: Problem) -> Callable[[], Any]:
    """SciPy keeps no order, so it begins anew."""
    b = as_numpy(p.column, p)
    return lambda: _splu(S).solve(b, "T")


SCIPY = {
    "cg": _scipy_cg,
    "cg_ic0": _scipy_ilu,
    "cg_50": _scipy_steps,
    "triangular": _scipy_triangular,
    "refactor": _scipy_refactor,
}


def composed(scipy: Contender) -> Contender:
    """Steps whose gradients are composed."""
    steps = {"solve": _splu_step, "cg_50": _scipy_steps_and_gradients}
    only = ("solve_step", "cg_50_step")
    return replace(scipy, name="SciPy composed", functions=steps, vjp=lambda f: f, only=only)


def engine(scipy: Contender) -> Contender:
    """The part of SuperLU in a direct step: a factor and two solves."""
    functions = {"solve": _engine_step}
    return replace(scipy, name=ENGINE, functions=functions, vjp=lambda f: f, limit=True)


TORCH_CSR = {"triangular": lambda A, b: torch.triangular_solve(b, A, upper=False)[0]}


def _dense(S: Any, p: Problem) -> torch.Tensor:
    if S.shape[0] * S.shape[1] > _MOST:
        raise MemoryError
    return torch.tensor(S.toarray())


def _dense_grad(A: torch.Tensor) -> torch.Tensor | None:
    return A.grad


def _dense_read(a: torch.Tensor) -> Any:
    """The gradient of a matrix has elements everywhere, of which those on the pattern count."""
    found = in_numpy(a.detach())
    return sp.csr_array(found) if found.ndim == 2 else found


DENSE = Contender(
    "torch dense matrix",
    "torch",
    build=_dense,
    dense=as_torch,
    functions={"logdet": torch.logdet},
    grad=_dense_grad,
    read=_dense_read,
)


def _linear_cg(A: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    from torchsparsegradutils.utils import linear_cg  # pyright: ignore[reportMissingImports]

    return linear_cg(A, b, tolerance=RTOL, max_iter=_FOREVER)


def _linear_cg_steps(A: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """With gradients too, which cost the forward nothing."""
    from torchsparsegradutils import sparse_generic_solve  # pyright: ignore[reportMissingImports]
    from torchsparsegradutils.utils import linear_cg  # pyright: ignore[reportMissingImports]

    return sparse_generic_solve(A, b, solve=linear_cg, tolerance=0.0, max_iter=STEPS)


def _tsgu_triangular(A: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    from torchsparsegradutils import (  # pyright: ignore[reportMissingImports]
        sparse_triangular_solve,
    )

    return sparse_triangular_solve(A, b, upper=False)


TSGU = {"cg": _linear_cg, "cg_50": _linear_cg_steps, "triangular": _tsgu_triangular}


class _Entries(NamedTuple):
    """A as torch-sla takes it."""

    val: torch.Tensor
    row: torch.Tensor
    col: torch.Tensor
    shape: tuple[int, int]


def _entries(S: Any, p: Problem) -> _Entries:
    row, col = (torch.tensor(i, dtype=torch.int64) for i in S.tocoo().coords)
    return _Entries(as_torch(S.data, p), row, col, S.shape)


def _entries_grad(A: _Entries) -> _Entries:
    assert A.val.grad is not None
    return A._replace(val=A.val.grad)


def _entries_read(a: Any) -> Any:
    if isinstance(a, torch.Tensor):
        return in_numpy(a.detach())
    val, row, col = (t.numpy() for t in a[:3])
    return sp.coo_array((val, (row, col)), a.shape).tocsr()


def _spsolve(**options: Any) -> Callable[[_Entries, torch.Tensor], torch.Tensor]:
    """Its relative tolerance is fixed at 1e-10; the larger of that and the absolute one counts."""

    def run(A: _Entries, b: torch.Tensor) -> torch.Tensor:
        from torch_sla import spsolve  # pyright: ignore[reportMissingImports]

        atol = RTOL * float(torch.linalg.vector_norm(b.detach()))
        return spsolve(A.val, A.row, A.col, A.shape, b, **{"atol": atol, **options})

    return run


def _sla_cg(preconditioner: str, **options: Any) -> Callable[[_Entries, torch.Tensor], Any]:
    definite = {"is_symmetric": True, "is_spd": True, "maxiter": _FOREVER}
    chosen = {"backend": "pytorch", "method": "cg", "preconditioner": preconditioner}
    return _spsolve(**{**definite, **chosen, **options})


TORCH_SLA = Contender(
    "torch-sla",
    "torch_sla",
    build=_entries,
    dense=as_torch,
    functions={
        "cg": _sla_cg("none"),
        "cg_ic0": _sla_cg("ic0"),
        "cg_amg": _sla_cg("pyamg"),
        "cg_50": _sla_cg("none", maxiter=STEPS, atol=0.0),
        "solve": _spsolve(backend="scipy", method="lu"),
    },
    grad=_entries_grad,
    leaf=lambda A: A.val,
    read=_entries_read,
    dtypes=("float64",),
)


def _pyamg(A: Any, b: np.ndarray) -> Any:
    from pyamg import smoothed_aggregation_solver  # pyright: ignore[reportMissingImports]

    return smoothed_aggregation_solver(A).solve(b, tol=RTOL, accel="cg")


PYAMG = Contender(
    "pyamg",
    "pyamg",
    build=lambda S, p: sp.csr_matrix(S),
    dense=as_numpy,
    functions={"cg_amg": _pyamg},
    dtypes=("float64",),
)
