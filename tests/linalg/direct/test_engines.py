"""Engines of factors, each against dense torch.linalg: solves, determinants, inverses, draws."""

import dataclasses
import importlib.util
import sys
import types
from importlib.machinery import ModuleSpec
from typing import Any

import pytest
import torch

import spgrad
from spgrad import errors, linalg
from spgrad.core.pattern import LAYOUTS
from spgrad.linalg.direct import engines, pardiso

D, C = torch.float64, torch.complex128
KINDS = ("general", "symmetric", "hermitian", "positive definite")
NEEDS = {"superlu": "scipy", "cholmod": "cvxopt", "pardiso": "pypardiso"}


def matrix(kind, m=9, dtype=D, batch=(), seed=0):
    """Sparse in dense form, of this kind; general and symmetric ones need pivots."""
    g = torch.Generator().manual_seed(seed)
    made = torch.randn(*batch, m, m, dtype=dtype, generator=g)
    made = made * (torch.rand(*batch, m, m, generator=g) < 0.3)
    made = made + 2 * torch.eye(m, dtype=dtype)
    if kind == "symmetric":
        return made + made.mT
    if kind == "hermitian":
        return made + made.mH
    return made @ made.mH + torch.eye(m, dtype=dtype) if kind == "positive definite" else made


@pytest.fixture(params=NEEDS)
def engine(request):
    pytest.importorskip(NEEDS[request.param])
    return request.param


@pytest.fixture(
    params=[("superlu", kind) for kind in KINDS]
    + [("pardiso", kind) for kind in KINDS]
    + [("cholmod", "positive definite")],
    ids=" ".join,
)
def both(request):
    """An engine, and a kind of matrices that it takes."""
    pytest.importorskip(NEEDS[request.param[0]])
    return request.param


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, D, C])
@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("adjoint", [False, True])
def test_solve_refactor_and_adjoint(both, adjoint, batch, dtype):
    engine, kind = both
    M = matrix(kind, batch=batch, dtype=dtype)
    A, b = spgrad.from_dense(M), torch.randn(*batch, 9, 2, dtype=dtype)
    if engine == "cholmod" and dtype in (torch.float32, torch.complex64):
        with pytest.raises(ValueError, match="CHOLMOD accepts float64"):
            linalg.factor(A, kind, engine)
        return
    F = linalg.factor(A, kind, engine)
    A2 = spgrad.from_values(A.values() * 1.5, A.pattern)
    close = {} if dtype in (D, C) else {"rtol": 1e-3, "atol": 1e-3}
    for _ in range(2):
        for G, N in ((F, M), (F.refactor(A2), 1.5 * M)):
            wanted = torch.linalg.solve(N.mH if adjoint else N, b)
            torch.testing.assert_close(G.solve(b, adjoint=adjoint), wanted, **close)


@pytest.mark.parametrize("dtype", [D, C])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_as_a_solver_with_gradients(both, layout, dtype):
    engine, kind = both
    solver = {"superlu": linalg.SuperLU, "cholmod": linalg.CHOLMOD, "pardiso": linalg.PARDISO}
    blocksize = (3, 3) if layout in ("bsr", "bsc") else None
    A = spgrad.from_dense(matrix(kind, dtype=dtype), LAYOUTS[layout], blocksize=blocksize)
    A, b = A.requires_grad_(), torch.randn(9, dtype=dtype, requires_grad=True)
    dense, right = A.detach().to_dense().requires_grad_(), b.detach().clone().requires_grad_()
    weights = torch.randn(9, dtype=dtype)
    x = linalg.solve(A, b, solver[engine](), assume=kind)
    y = torch.linalg.solve(dense, right)
    torch.testing.assert_close(x, y)
    for found in (x, y):
        (found * weights).sum().abs().backward()
    mask = spgrad.ones_like(A.detach()).to_dense() != 0
    torch.testing.assert_close(A.grad.to_dense(), dense.grad.where(mask, 0))
    torch.testing.assert_close(b.grad, right.grad)


@pytest.mark.parametrize("dtype", [D, C])
def test_second_order(engine, dtype):
    A = spgrad.from_dense(matrix("positive definite", 5, dtype))
    solver = {"superlu": linalg.SuperLU, "cholmod": linalg.CHOLMOD, "pardiso": linalg.PARDISO}

    def function(v, b):
        # the values of mirrored elements stay mirrored
        M = spgrad.from_values(v, A.pattern)
        return linalg.solve((M + M.mH) / 2, b, solver[engine](), assume="positive definite")

    operands = A.values().clone().requires_grad_(), torch.randn(5, dtype=dtype, requires_grad=True)
    assert torch.autograd.gradcheck(function, operands)
    assert torch.autograd.gradgradcheck(function, operands)


@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("dtype", [D, C])
def test_determinants_and_inverses(both, dtype, batch):
    engine, kind = both
    M = matrix(kind, dtype=dtype, batch=batch)
    A = spgrad.from_dense(M).requires_grad_()
    F = linalg.factor(A, kind, engine)
    mask = spgrad.ones_like(A.detach()).to_dense() != 0
    inverse = torch.linalg.inv(M)
    torch.testing.assert_close(F.inverse_at(A).to_dense(), inverse.where(mask, 0))
    if engine == "pardiso" and kind != "positive definite":
        with pytest.raises(NotImplementedError, match="positive definite matrices alone"):
            F.slogdet()
        return
    torch.testing.assert_close(F.slogdet(), tuple(torch.linalg.slogdet(M)))
    F.slogdet()[1].sum().backward()
    torch.testing.assert_close(A.grad.to_dense(), inverse.mH.where(mask, 0))


@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("dtype", [D, C, torch.float32])
def test_samples(engine, dtype, batch):
    if engine == "cholmod" and dtype == torch.float32:
        pytest.skip("CHOLMOD takes double precision")
    m = 4
    M = matrix("positive definite", m, dtype, batch, seed=3)
    A = spgrad.from_dense(M).requires_grad_()
    for F in (G := linalg.factor(A, "positive definite", engine), G.refactor(A)):
        x = F.sample((20000, 3), torch.Generator().manual_seed(0))
        assert x.shape == (20000, 3, *batch, m)
        assert not x.requires_grad
        again = F.sample([20000, 3], torch.Generator().manual_seed(0))
        assert torch.equal(x, again)
        flat = x.reshape(60000, *batch, m)
        covariance = torch.einsum("s...i,s...j->...ij", flat, flat.conj()) / 60000
        torch.testing.assert_close(covariance, torch.linalg.inv(M), rtol=0, atol=0.02)
    assert F.sample().shape == (*batch, m)
    assert F.sample(0).shape == (0, *batch, m)
    with pytest.raises(ValueError, match="non-negative sizes"):
        F.sample((-1,))


@pytest.mark.parametrize("dtype", [D, C])
@pytest.mark.parametrize("assume", ["general", "hermitian", "positive definite"])
def test_a_draw_is_a_root_of_the_inverse(engine, assume, dtype):
    if engine != "superlu" and assume != "positive definite":
        pytest.skip("the factors are no Cholesky factors")
    M = matrix("positive definite", dtype=dtype)
    M[0] *= 1e-5  # so that partial pivoting leaves the diagonal
    M[:, 0] *= 1e-5
    F = linalg.factor(spgrad.from_dense(M), assume, engine)
    for G in (F, F.refactor(spgrad.from_dense(M))):
        root = G._factored().inverse_root(torch.eye(9, dtype=dtype))
        torch.testing.assert_close(root @ root.mH, torch.linalg.inv(M))


def test_what_is_not_positive_definite(engine):
    M = torch.tensor([[1.0, 2.0], [2.0, 1.0]], dtype=D)
    A = spgrad.from_dense(M)
    if engine == "superlu":
        F = linalg.factor(A, "positive definite")
        for G in (F, linalg.factor(A)):
            with pytest.raises(errors.PivotError, match="A is the inverse of a covariance"):
                G.sample()
        with pytest.raises(ValueError, match="sample draws for matrices"):
            linalg.factor(spgrad.from_dense(torch.tensor([[1.0, 2.0], [0.0, 1.0]]))).sample()
    else:
        with pytest.raises(errors.PivotError, match="not positive definite"):
            linalg.factor(A, "positive definite", engine)
    if engine == "pardiso":
        with pytest.raises(NotImplementedError, match="draws samples for"):
            linalg.factor(spgrad.from_dense(torch.eye(2, dtype=D)), engine=engine).sample()
    if engine == "cholmod":
        B = spgrad.from_dense(M.triu())
        with pytest.raises(ValueError, match="CHOLMOD needs matrices that are"):
            linalg.factor(B, None, engine)


def test_singular_matrices_are_refused(engine):
    if engine == "cholmod":
        pytest.skip("it factors positive definite matrices")
    for M in (torch.ones(2, 2), torch.zeros(2, 2), torch.tensor([[1.0, 0.0], [1.0, 0.0]])):
        with pytest.raises(errors.PivotError, match="singular"):
            linalg.factor(spgrad.from_dense(M), engine=engine)


def test_a_second_factor_keeps_the_order(engine):
    M = matrix("positive definite")
    A = spgrad.from_dense(M)
    F = linalg.factor(A, "positive definite", engine)
    analysis = [v for k, v in A.pattern._derived.items() if "analysis" in str(k)]
    assert len(analysis) == 1
    G = F.refactor(A * 2)
    again = [v for k, v in A.pattern._derived.items() if "analysis" in str(k)]
    assert len(again) == 1
    assert again[0] is analysis[0]
    assert again[0].order is not None
    b = torch.randn(9, dtype=D)
    torch.testing.assert_close(F.solve(b), 2 * G.solve(b))  # the first one still solves


def test_a_factor_that_goes_inside_of_a_transform_is_released(monkeypatch):
    """By Python's collector of cycles, which runs at any time."""
    pytest.importorskip("pypardiso")
    unraised: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", unraised.append)
    left = [linalg.factor(spgrad.from_dense(matrix("general")), engine="pardiso")]

    def function(x):
        left.clear()
        return x * x

    torch.func.grad(function)(torch.tensor(1.0))
    assert not left
    assert not unraised


def test_options_of_cvxopt_stay_what_they_were():
    cholmod = pytest.importorskip("cvxopt.cholmod")

    cholmod.options["supernodal"] = 0
    try:
        F = linalg.factor(spgrad.from_dense(matrix("positive definite")), None, linalg.CHOLMOD())
        assert F.logdet().isfinite()
        assert cholmod.options == {"supernodal": 0}
    finally:
        cholmod.options.clear()


def test_arguments():
    A = spgrad.from_dense(torch.eye(2, dtype=D))
    with pytest.raises(ValueError, match='"superlu", "cholmod", "pardiso" or None'):
        linalg.factor(A, engine="umfpack")
    with pytest.raises(TypeError, match="Call the class"):
        linalg.factor(A, engine=linalg.SuperLU)
    with pytest.raises(TypeError, match="`engine` is"):
        linalg.factor(A, engine=linalg.CG())


@pytest.mark.parametrize("name", ["cholmod", "pardiso"])
def test_a_missing_package_names_the_extra(monkeypatch, name):
    find = importlib.util.find_spec
    hidden = NEEDS[name]
    monkeypatch.setattr(importlib.util, "find_spec", lambda n: None if n == hidden else find(n))
    monkeypatch.delitem(sys.modules, hidden, raising=False)
    if name == "pardiso":
        pardiso._library.cache_clear()
    A = spgrad.from_dense(torch.eye(2, dtype=D))
    with pytest.raises(ImportError, match=rf"spgrad\[{name}\]"):
        linalg.factor(A, "positive definite", name)


def test_pypardiso_without_the_library_of_mkl(monkeypatch):
    def absent():
        raise ImportError("Shared library mkl_rt not found")

    package: Any = types.ModuleType("pypardiso")
    package.__spec__ = ModuleSpec("pypardiso", None)
    package.PyPardisoSolver = absent
    monkeypatch.setitem(sys.modules, "pypardiso", package)
    pardiso._library.cache_clear()
    with pytest.raises(ImportError, match=r"mkl_rt not found; .*spgrad\[pardiso\]"):
        linalg.factor(spgrad.from_dense(torch.eye(2, dtype=D)), engine="pardiso")


@pytest.mark.parametrize(
    ("kind", "error", "kind_of_error", "says"),
    [
        (2, -4, torch.linalg.LinAlgError, "not positive definite"),
        (11, -4, torch.linalg.LinAlgError, r"`A` is singular.*error -4"),
        (2, -7, torch.linalg.LinAlgError, r"`A` is singular.*error -7"),
        (11, -2, RuntimeError, "PARDISO ends with error -2"),
    ],
)
def test_errors_of_pardiso(kind, error, kind_of_error, says):
    failed = pardiso._Call.__new__(pardiso._Call)
    failed.kind = kind
    with pytest.raises(kind_of_error, match=says):
        failed._refuse(error)


class Whole(engines.Factored):
    """A factor that gives solutions and determinants, and no triangles."""

    def __init__(self, A):
        super().__init__(A)
        self.M = A.to_dense()

    def solve(self, b, *, x0=None, adjoint=False):
        nothing = torch.full((1, b.shape[1]), torch.nan)
        info = linalg.Info(0, nothing, torch.ones_like(nothing).bool(), "direct")
        return torch.linalg.solve(self.M.mH if adjoint else self.M, b), info

    def log_determinant(self):
        return tuple(t.view(1) for t in torch.linalg.slogdet(self.M))

    def inverse_root(self, z):
        return torch.linalg.inv(torch.linalg.cholesky(self.M)).mH @ z


@dataclasses.dataclass(frozen=True)
class Dense(engines.Engine):
    """An engine outside of the package."""

    name = "dense"

    def prepare(self, A, assume="general"):
        return Whole(A)


@pytest.mark.parametrize("dtype", [D, C])
def test_an_engine_that_keeps_its_factors_to_itself(dtype):
    M = matrix("general", dtype=dtype)
    A = spgrad.from_dense(M).requires_grad_()
    F = linalg.factor(A, engine=Dense())
    b = torch.randn(9, 2, dtype=dtype)
    torch.testing.assert_close(F.solve(b), torch.linalg.solve(M, b))
    torch.testing.assert_close(F.slogdet()[1], torch.linalg.slogdet(M)[1])
    found = F.inverse_at(A.pattern)
    (g,) = torch.autograd.grad(found.values().real.sum(), A)
    dense = M.clone().requires_grad_()
    inverse = torch.linalg.inv(dense).where(M != 0, 0)
    torch.testing.assert_close(found.to_dense(), inverse)
    (wanted,) = torch.autograd.grad(inverse.real.sum(), dense)
    torch.testing.assert_close(g.to_dense(), wanted.where(M != 0, 0))
    torch.testing.assert_close(F.inverse_diagonal(), torch.linalg.inv(M).diagonal())


@pytest.mark.parametrize("by_rows", [False, True])
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_csc, torch.sparse_coo])
@pytest.mark.parametrize(
    "M", [[[0, 5, 0], [2, 7, 0], [3, 0, 0]], [[5, 0, 0], [2, 0, 0], [0, 7, 0]]]
)
def test_lines_have_a_whole_diagonal(M, layout, half, by_rows):
    """An element of the diagonal that A lacks stands in its place, with the value 0."""
    M = torch.tensor(M, dtype=D)
    A = spgrad.from_dense(M).to_sparse(layout=layout)
    lines = engines.lines_of(A.pattern, by_rows=by_rows, half=half)
    vals = engines.values_at(A, lines)
    assert lines.places.eq(A.nse).sum() == 2
    wanted = M if by_rows else M.T
    wanted = wanted.triu() if half else wanted
    found = torch.sparse_csr_tensor(lines.ptr, lines.idx, vals, (3, 3), check_invariants=True)
    assert torch.equal(found.to_dense(), wanted)
    row = torch.repeat_interleave(torch.arange(3), lines.ptr.diff())
    assert (row == lines.idx).sum() == 3


def test_a_first_element_of_the_diagonal_that_is_missing():
    pytest.importorskip("cvxopt")
    A = spgrad.from_dense(torch.tensor([[0.0, 1], [1, 3]], dtype=D))
    assert A.nse == 3
    with pytest.raises(errors.PivotError, match="positive definite"):
        linalg.factor(A, "positive definite", "cholmod")


def test_elements_that_the_integers_of_an_engine_cannot_count():
    engines.require_int32("SuperLU", types.SimpleNamespace(elements=2**31 - 1))
    with pytest.raises(errors.ArgumentValueError, match="2147483648 elements; SuperLU accepts at"):
        engines.require_int32("SuperLU", types.SimpleNamespace(elements=2**31))


@pytest.mark.parametrize("name", ["covariance_matrix", "precision_matrix"])
def test_distributions_count_in_the_integers_of_an_engine(monkeypatch, name):
    matrix, loc = spgrad.eye(4, dtype=D), torch.zeros(4, dtype=D)
    monkeypatch.setattr(engines, "LARGEST", 3)
    with pytest.raises(errors.ArgumentValueError, match=r"4 elements; SuperLU .* Give scale_tril"):
        spgrad.distributions.SparseMultivariateNormal(loc, **{name: matrix}).rsample()
