"""How solves end: convergence by column, warm starts, empty systems, and what is refused."""

import pytest
import torch
from samples import poisson
from torch.utils._python_dispatch import TorchDispatchMode

import spgrad
from spgrad import linalg, support, testing
from spgrad.core.pattern import LAYOUTS
from spgrad.linalg.solvers.progress import progress

D = torch.float64
ITERATIVE = [linalg.CG, linalg.MINRES, linalg.BiCGSTAB, linalg.GMRES, linalg.LSMR]


A = spgrad.from_dense(poisson())
B = torch.randn(30, 5, dtype=D, generator=torch.Generator().manual_seed(0))


def test_a_bound_that_no_solver_reaches():
    x = linalg.solve(A, B, linalg.CG(rtol=1e-10, max_iter=2**63 - 1))
    testing.assert_close(poisson() @ x, B)


@pytest.mark.parametrize("kind", ITERATIVE)
def test_columns_converge_by_themselves(kind):
    """A column of zeros, an eigenvector and random ones: each ends at its own tolerance."""
    b = B.clone()
    b[:, 1] = 0
    b[:, 2] = torch.linalg.eigh(poisson())[1][:, 3]
    x, info = linalg.solve(A, b, kind(rtol=1e-10, max_iter=2000), return_info=True)
    residual = (b - poisson() @ x).norm(dim=0)
    assert info.reason == "converged"
    assert info.converged.tolist() == [True] * 5
    assert x[:, 1].tolist() == [0.0] * 30
    assert bool((residual <= 1.1e-10 * b.norm(dim=0) + 1e-14).all())
    shown = info.residuals * b.norm(dim=0)
    torch.testing.assert_close(shown, residual, rtol=0.1, atol=1e-12)


@pytest.mark.parametrize("kind", ITERATIVE)
def test_columns_alone_and_together_agree(kind):
    together = linalg.solve(A, B, kind(rtol=1e-12, max_iter=2000))
    alone = torch.stack([linalg.solve(A, c, kind(rtol=1e-12, max_iter=2000)) for c in B.mT], 1)
    torch.testing.assert_close(together, alone, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("kind", ITERATIVE)
def test_warm_start(kind):
    solver = kind(rtol=1e-10, max_iter=2000)
    x, cold = linalg.solve(A, B, solver, return_info=True)
    again, warm = linalg.solve(A, B, solver, x0=x, return_info=True)
    assert warm.iterations < cold.iterations / 2
    torch.testing.assert_close(again, x, rtol=1e-7, atol=1e-8)
    start = (0.5 * x).requires_grad_()
    assert not linalg.solve(A, B, solver, x0=start).requires_grad
    torch.testing.assert_close(start, 0.5 * x, rtol=0, atol=0)
    pair = [torch.stack([t, t]) for t in (again, B, x)]
    both = linalg.solve(spgrad.stack([A, A]), pair[1], solver, x0=pair[2])
    torch.testing.assert_close(both, pair[0], rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("kind", ITERATIVE)
def test_a_start_that_is_not_finite_is_named(kind):
    for number in (torch.nan, torch.inf):
        start = torch.zeros_like(B)
        start[3, 1] = number
        with pytest.raises(ValueError, match="`x0` has an element that is not finite"):
            linalg.solve(A, B, kind(), x0=start)


def test_a_solver_may_end_without_an_x(monkeypatch):
    def lost(*_):
        raise spgrad.ConvergenceError("nothing was found")

    monkeypatch.setattr("spgrad.linalg.solvers.iterative.iterate", lost)
    with pytest.raises(spgrad.ConvergenceError, match="nothing was found"):
        linalg.solve(A, B, linalg.CG())


@pytest.mark.parametrize("kind", ITERATIVE)
def test_not_converged(kind):
    with pytest.raises(spgrad.ConvergenceError, match="max_iter=3 steps were taken") as caught:
        linalg.solve(A, B, kind(max_iter=3))
    assert caught.value.info.iterations == 3
    x, info = linalg.solve(A, B, kind(max_iter=3, strict=False), return_info=True)
    torch.testing.assert_close(x, caught.value.x)
    assert caught.value.info.converged.shape == info.converged.shape
    with pytest.raises(spgrad.ConvergenceError) as caught:
        linalg.solve(A, B[:, 0], kind(max_iter=3))
    torch.testing.assert_close(x[:, 0], caught.value.x)
    assert caught.value.info.residuals.shape == ()
    assert not info.converged.any()
    residual = (B - poisson() @ x).norm(dim=0) / B.norm(dim=0)
    torch.testing.assert_close(info.residuals, residual)


@pytest.mark.parametrize("kind", ITERATIVE)
def test_a_solved_column_is_no_breakdown(kind):
    """One of zeros, and one whose start is exact: the others ran out of steps."""
    b, start = B.clone(), torch.zeros_like(B)
    b[:, 1] = 0
    start[:, 2] = 1.0
    b[:, 2] = poisson() @ start[:, 2]
    x, info = linalg.solve(A, b, kind(max_iter=3, strict=False), x0=start, return_info=True)
    assert info.reason == "max_iter=3 steps were taken"
    assert info.converged.tolist() == [False, True, True, False, False]
    assert torch.equal(x[:, 1:3], start[:, 1:3])


@pytest.mark.parametrize("solver", [None, *(kind(max_iter=200) for kind in ITERATIVE)])
def test_singular(solver):
    M = spgrad.from_dense(torch.diag(torch.tensor([1.0, 2.0, 0.0, 3.0], dtype=D)) + 0)
    full = spgrad.sparse_coo_tensor([[0, 1, 1, 0], [0, 1, 0, 1]], [1.0, 1.0, 1.0, 1.0], (2, 2))
    for S in (M, full.double()):
        with pytest.raises((spgrad.PivotError, spgrad.ConvergenceError)):
            linalg.solve(S, torch.arange(1.0, S.shape[0] + 1, dtype=D), solver)


@pytest.mark.parametrize("solver", [None, *(kind() for kind in ITERATIVE)])
@pytest.mark.parametrize(("m", "n"), [(0, 3), (4, 0), (0, 0)])
def test_empty(solver, m, n):
    E = spgrad.from_dense(torch.eye(m, dtype=D)).requires_grad_()
    b = torch.zeros(m, n, dtype=D, requires_grad=True)
    x = linalg.solve(E, b, solver)
    assert x.shape == (m, n)
    x.sum().backward()
    assert b.grad.shape == (m, n)
    assert E.grad.nse == m
    nothing = spgrad.from_dense(torch.zeros(0, 3, 3, dtype=D))
    assert linalg.solve(nothing, torch.zeros(0, 3, dtype=D), solver).shape == (0, 3)


def test_no_elements():
    with pytest.raises(spgrad.PivotError):
        linalg.solve(spgrad.zeros(3, 3, dtype=D), torch.ones(3, dtype=D))
    for kind in ITERATIVE:
        with pytest.raises(spgrad.ConvergenceError):
            linalg.solve(spgrad.zeros(3, 3, dtype=D), torch.ones(3, dtype=D), kind())


def test_indefinite():
    M = spgrad.from_dense(torch.diag(torch.tensor([1.0, -2.0, 3.0], dtype=D)))
    b = torch.ones(3, dtype=D)
    with pytest.raises(spgrad.ConvergenceError, match="is not positive definite"):
        linalg.solve(M, b, linalg.CG())
    torch.testing.assert_close(linalg.solve(M, b, linalg.MINRES()), 1 / M.to_dense().diagonal())
    with pytest.raises(spgrad.PivotError, match=r"diagonal has -2 in row 1"):
        linalg.solve(M, b, assume="positive definite")
    M = spgrad.from_values(torch.tensor([1.0, 0.0, 3.0], dtype=D), M)
    with pytest.raises(spgrad.PivotError, match=r"diagonal has 0 in row 1"):
        linalg.solve(M, b, linalg.CG(), assume="positive definite")


def test_a_direction_that_is_mapped_to_zero_is_left_out():
    A = spgrad.from_dense(torch.tensor([[0.0, 1.0], [0.0, 0.0]], dtype=D))
    b = torch.tensor([1.0, 0.0], dtype=D)
    x, info = linalg.solve(A, b, linalg.GMRES(strict=False), return_info=True)
    assert x.tolist() == [0.0, 0.0]
    assert not bool(info.converged)


@pytest.mark.parametrize("shape", [(3,), (3, 2), (2, 3, 4)])
def test_what_a_direct_solver_tells(shape):
    b = torch.ones(shape, dtype=D)
    A = spgrad.eye(3, dtype=D)
    A = torch.stack([A, 2 * A]) if len(shape) == 3 else A
    _, info = linalg.solve(A, b, return_info=True)
    assert info.converged.shape == info.residuals.shape == b.sum(-2 if len(shape) > 1 else 0).shape
    assert bool(info.converged.all())
    assert info.reason == "direct"


@pytest.mark.parametrize("solver", [None, linalg.SuperLU(), linalg.CG()], ids=repr)
@pytest.mark.parametrize("batch", [(), (2,), (0,)])
@pytest.mark.parametrize("m", [0, 2])
def test_what_a_solver_tells_of_no_equations(solver, batch, m):
    A = spgrad.from_dense(torch.eye(m, dtype=D).expand(*batch, m, m).clone())
    x, info = linalg.solve(A, torch.ones(*batch, m, 3, dtype=D), solver, return_info=True)
    assert x.shape == (*batch, m, 3)
    assert info.converged.shape == info.residuals.shape == (*batch, 3)
    assert bool(info.converged.all())


SKEW = spgrad.from_dense(torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=D))
REFUSED = [
    ((SKEW, torch.ones(2, dtype=D), linalg.BiCGSTAB()), {}, RuntimeError, "GMRES does not"),
    (
        (SKEW, torch.ones(2, dtype=D), linalg.CG()),
        {},
        ValueError,
        "CG needs .*hermitian",
    ),
    (
        (SKEW, torch.ones(2, dtype=D)),
        {"assume": "symmetric"},
        ValueError,
        r"mirrored elements of `A` differ by .*\(A \+ A\.mH\) / 2, or take BiCGSTAB",
    ),
    (
        (spgrad.triu(A), B),
        {"assume": "symmetric"},
        ValueError,
        r"`A` has an element \(i, j\) without .*Give both triangles, or take BiCGSTAB",
    ),
    ((SKEW, torch.ones(2, dtype=D)), {"assume": "triangular"}, ValueError, "above and below"),
    ((SKEW, torch.ones(2, dtype=D)), {"assume": "spd"}, ValueError, "`assume` is 'spd'"),
    ((A[:20], B[:20]), {}, ValueError, "a square matrix"),
    ((A, B[:4]), {}, ValueError, "30 equations"),
    ((A, B.float()), {}, ValueError, "dtype float32"),
    ((A.half(), B.half()), {}, ValueError, "dtype float16.*float32"),
    ((A.bfloat16(), B.bfloat16()), {}, ValueError, "dtype bfloat16.*float32"),
    ((A.to(torch.int64), B), {}, ValueError, "dtype int64"),
    ((A * float("nan"), B), {}, ValueError, "`A` has an element that is not finite"),
    ((A, B * float("inf")), {}, ValueError, "`b` has an element that is not finite"),
    ((A, B, linalg.CG), {}, TypeError, "`solver` is"),
    ((A, B, "cg"), {}, TypeError, "`solver` is a str"),
    ((A, B, linalg.CG(rtol=-1)), {}, ValueError, "`rtol` is -1"),
    ((A, B, linalg.GMRES(restart=0)), {}, ValueError, "`restart` is 0"),
    ((A, B, linalg.CG(preconditioner=3)), {}, TypeError, "`preconditioner` is an int"),
    ((A, B, linalg.CG(preconditioner=lambda r: r[:1])), {}, TypeError, "`preconditioner` gave"),
    ((A, B, linalg.LSMR(preconditioner=linalg.Jacobi())), {}, ValueError, "LSMR, which has none"),
    ((A, B, linalg.CG(preconditioner=linalg.SSOR(2))), {}, ValueError, "`omega` is 2"),
    ((SKEW, B[:2], linalg.GMRES(preconditioner=linalg.Jacobi())), {}, RuntimeError, "in row 0"),
    ((A, B, linalg.CG()), {"x0": B[:3]}, ValueError, "`x0` has shape"),
    ((B, B), {}, TypeError, "`A` is"),
    ((A, A), {}, TypeError, "`b` is"),
    ((A, torch.tensor(1.0, dtype=D)), {}, ValueError, "`b` has shape"),
]


@pytest.mark.parametrize(("args", "options", "kind", "says"), REFUSED)
def test_refusals(args, options, kind, says):
    with pytest.raises(kind, match=rf"(?s)spgrad\.linalg\.solve: .*{says}"):
        linalg.solve(*args, **options)


def test_progress(capsys):
    linalg.solve(A, B, linalg.CG(progress=True))
    assert "CG" in capsys.readouterr().out
    shown = progress(True, "CG", 9)
    with shown as show:  # of the columns that are left, the largest relative residual
        show(3, torch.tensor([[4.0, 9]]), torch.tensor([[5.0, 100, 0]]), torch.tensor([0, 2]))
    (task,) = shown.bar.tasks
    assert (task.completed, task.total, task.fields["r"]) == (3, 9, "3.0e+00")


class Made(TorchDispatchMode):
    """Keeps the numbers that operations make with so many elements."""

    def __init__(self, elements):
        super().__init__()
        self.elements, self.kept = elements, {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        y = func(*args, **(kwargs or {}))
        if isinstance(y, torch.Tensor) and (y.numel(), y.dtype) == (self.elements, D):
            self.kept[y.untyped_storage().data_ptr()] = y
        return y


@pytest.mark.parametrize("solver", [None, linalg.CG()], ids=["substitution", "CG"])
def test_the_gradient_of_the_matrix_is_all_of_its_size_that_a_backward_makes(solver):
    M = (spgrad.tril(A) if solver is None else A).detach().requires_grad_()
    loss = linalg.solve(M, B[:, 0].clone().requires_grad_(), solver).sum()
    with Made(M.values().numel()) as made:
        loss.backward()
    assert len(made.kept) == 1


@pytest.mark.parametrize(
    "preconditioner",
    [linalg.Jacobi(), linalg.BlockJacobi(3), linalg.SSOR(1.3), linalg.ILU0(), linalg.IC0()],
    ids=lambda p: type(p).__name__,
)
def test_the_adjoint_of_a_preconditioner(preconditioner):
    drawn = torch.randn(3, 7, 7, dtype=torch.complex128)
    M = drawn[0] + 16 * torch.eye(7)
    M = M + M.mH if isinstance(preconditioner, linalg.IC0) else M + 2j * torch.eye(7)
    P = preconditioner.prepare(spgrad.from_dense(M))
    r, s = drawn[1:]
    testing.assert_close(P.apply(r).mH @ s, r.mH @ P.apply(s, adjoint=True))


def test_an_iteration_ends_when_all_columns_have_converged():
    A = spgrad.from_dense(torch.tensor([[4.0, 1.0], [1.0, 3.0]], dtype=torch.float64))
    b = torch.eye(2, dtype=torch.float64)
    _, info = linalg.solve(A, b, linalg.CG(max_iter=50), return_info=True)
    assert info.iterations == 2
    assert info.reason == "converged"


def test_jacobi_divides_by_the_diagonal():
    A = spgrad.from_dense(torch.tensor([[4.0, 1.0], [1.0, 2j]]))
    applied = linalg.Jacobi().prepare(A)
    r = torch.ones(1, 2, 1, dtype=A.dtype)
    testing.assert_close(applied.apply(r).flatten(), 1 / torch.tensor([4, 2j]))
    testing.assert_close(applied.apply(r, adjoint=True).flatten(), 1 / torch.tensor([4, -2j]))


@pytest.mark.parametrize("name", support.ALL)
def test_ssor_divides_by_two_triangles(name):
    M = torch.tensor([[4.0, 1, 0, 2], [1, 3, 1, 0], [0, 2, 5, 1], [1, 0, 1, 6]], dtype=D)
    A = spgrad.from_dense(M, LAYOUTS[name], blocksize=(2, 2) if name[0] == "b" else None)
    applied = linalg.SSOR(1.6).prepare(A)
    middle = torch.diag(M.diagonal())
    whole = (middle / 1.6 + M.tril(-1)) @ middle.inverse() @ (middle / 1.6 + M.triu(1)) * 4
    r = torch.ones(4, 1, dtype=D)
    testing.assert_close(applied.apply(r), torch.linalg.solve(whole, r))
    testing.assert_close(applied.apply(r, adjoint=True), torch.linalg.solve(whole.mT, r))


@pytest.mark.parametrize(("count", "widths"), [(3, {4, 3}), (4, {5})])
def test_columns_are_left_out_once_a_quarter_of_them_has_converged(count, widths):
    """Here one, an eigenvector, does in the first step; the others need the same number."""
    seen = set()
    b = torch.cat([torch.linalg.eigh(poisson())[1][:, :1], B[:, :1].expand(-1, count)], 1)
    solver = linalg.CG(preconditioner=lambda r: seen.add(r.shape[-1]) or r)
    x = linalg.solve(A, b, solver)
    torch.testing.assert_close(poisson() @ x, b, rtol=0, atol=1e-6)
    assert seen == widths


def test_bicgstab_ends_with_as_many_steps_as_equations():
    """It starts anew where a step of residuals has length 0, not where it has length 1."""
    A = spgrad.from_dense(torch.tensor([[-1.0, 2, 1], [0, 0, -1], [-1, 3, 3]], dtype=D))
    b = torch.tensor([2.0, 0, 2], dtype=D)
    x = linalg.solve(A, b, linalg.BiCGSTAB(max_iter=3))
    testing.assert_close(A.to_dense() @ x, b)


@pytest.mark.parametrize(("m", "converges"), [(30, True), (31, False)])
def test_gmres_restarts_after_30_steps(m, converges):
    """Of m vectors, only all together hold the solution for a matrix that shifts by one."""
    shift = spgrad.from_dense(torch.eye(m, dtype=D).roll(1, 0))
    b = torch.zeros(m, dtype=D)
    b[0] = 1
    solver = linalg.GMRES(strict=False)
    _, info = linalg.solve(shift, b, solver, return_info=True)
    assert bool(info.converged) == converges
