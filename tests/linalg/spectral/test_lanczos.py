"""logdet by stochastic Lanczos quadrature against the dense determinant."""

import pytest
import torch

import spgrad
from spgrad import errors, linalg
from spgrad.core.pattern import LAYOUTS

D, C = torch.float64, torch.complex128


def definite(m, dtype=D, batch=(), seed=0, shift=0.05):
    g = torch.Generator().manual_seed(seed)
    S = torch.randn(*batch, m, m, dtype=dtype, generator=g)
    S = S * (torch.rand(*batch, m, m, generator=g) < 0.05)
    S = S + S.mH
    return S + torch.diag_embed(S.abs().sum(-1) + shift).to(dtype)


def sparse(S, layout="csr"):
    blocksize = (2, 2) if layout in ("bsr", "bsc") else None
    return spgrad.from_dense(S, LAYOUTS[layout], blocksize=blocksize)


def seeded(seed=1):
    return torch.Generator().manual_seed(seed)


def estimate(A, **options):
    options = {"generator": seeded(), "return_error": True} | options
    return linalg.logdet(A, method="lanczos", **options)


@pytest.mark.parametrize("batch", [(), (2,), (2, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, D, C])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_value_and_gradient(layout, dtype, batch):
    S = definite(60, dtype, batch)
    A = sparse(S, layout).requires_grad_()
    value, error = estimate(A, probes=64)
    assert value.dtype == dtype
    assert error.dtype == dtype.to_real()
    assert value.shape == error.shape == batch
    assert not error.requires_grad
    exact = torch.linalg.slogdet(S)[1]
    assert ((value.real - exact).abs() < 4 * error).all()
    assert (error < 0.02 * exact).all()
    (grad,) = torch.autograd.grad(value.real.sum(), A)
    assert grad.layout == LAYOUTS[layout]
    dense = grad.to_dense()
    torch.testing.assert_close(dense, dense.mH)
    specified = spgrad.ones_like(A.detach()).to_dense() != 0
    inverse = torch.linalg.inv(S).mH
    # element (i, j) of a probe's A^-1 z z^H has at most the squared norm of row i as its variance
    variance = ((inverse.abs() ** 2).sum(-1, keepdim=True) / 64 * specified).sum((-2, -1))
    off = ((dense - inverse.where(specified, 0)).abs() ** 2).sum((-2, -1))
    assert (off < 2 * variance).all()


@pytest.mark.parametrize("dtype", [D, C])
def test_the_gradient_has_no_bias(dtype):
    S = definite(12, dtype, shift=0.5)
    A = sparse(S).requires_grad_()
    found = [
        torch.autograd.grad(estimate(A, probes=256, generator=seeded(i))[0].real, A)[0].to_dense()
        for i in range(40)
    ]
    mean, spread = torch.stack(found).mean(0), torch.stack(found).std(0) / 40**0.5
    inverse = torch.linalg.inv(S).mH.where(S != 0, 0)
    assert ((mean - inverse).abs() < 4.5 * spread + 1e-12).all()


def test_second_order():
    A = sparse(definite(7, shift=0.5))
    vals = A.values().clone().requires_grad_()

    def slope(v):
        P = spgrad.from_values(v, A.pattern)
        P = (P + P.mT.to_sparse_csr()) * 0.5
        value = estimate(P, solver=linalg.SuperLU(), return_error=False)
        return torch.autograd.grad(value, v, create_graph=True)[0]

    assert torch.autograd.gradcheck(slope, vals)


def test_steps():
    S = definite(50)
    A, exact = sparse(S), torch.logdet(S)
    coarse = linalg.logdet(A, method="lanczos", steps=3, probes=200, generator=seeded())
    full = linalg.logdet(A, method="lanczos", steps=1000, probes=200, generator=seeded())
    chosen = linalg.logdet(A, method="lanczos", probes=200, generator=seeded())
    assert (full - exact).abs() < (coarse - exact).abs()
    torch.testing.assert_close(chosen, full, rtol=1e-3, atol=0)
    # each probe alone: z^T log(A) z by the dense logarithm
    e, U = torch.linalg.eigh(S)
    z = (2 * torch.randint(0, 2, (50, 200), generator=seeded()) - 1).to(D)
    torch.testing.assert_close(full, ((U.T @ z) ** 2 * e.log()[:, None]).sum() / 200)


def test_steps_double_until_the_estimate_settles():
    """The square of the second difference has eigenvalues too small for the first steps.

    So has a diagonal matrix, whose estimates have no error by which changes are measured.
    """
    S = torch.diag(torch.full((60,), 2.0, dtype=D))
    S = S - torch.diag(torch.ones(59, dtype=D), 1) - torch.diag(torch.ones(59, dtype=D), -1)
    for A in (sparse(S @ S), sparse(torch.diag(torch.logspace(-6, 3, 60, dtype=D)))):
        first, error = estimate(A, steps=16)
        full = estimate(A, steps=60)[0]
        assert (first - full).abs() > error
        torch.testing.assert_close(estimate(A)[0], full)


def test_vectors_that_span_little():
    for m in (1, 2, 9):
        value, error = estimate(spgrad.eye(m, dtype=D) * 3.0)
        torch.testing.assert_close(value, m * torch.tensor(3.0, dtype=D).log())
        assert error < 1e-12
    assert estimate(spgrad.eye(4), probes=1)[1].isnan()


def test_the_same_for_a_generator_and_over_threads():
    A = sparse(definite(300, shift=0.5)).requires_grad_()
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            value, error = estimate(A)
            grad = torch.autograd.grad(value, A)[0].values()
            found.append((value.detach(), error, grad))
    finally:
        torch.set_num_threads(before)
    assert all(a.equal(b) for a, b in zip(*found, strict=True))
    assert not estimate(A, generator=seeded(2))[0].equal(found[0][0])
    torch.manual_seed(3)
    first = estimate(A, generator=None)[0]
    torch.manual_seed(3)
    assert estimate(A, generator=None)[0].equal(first)


def test_factor_stays_what_it_was():
    S = definite(20)
    A = sparse(S)
    value, error = linalg.logdet(A, return_error=True)
    torch.testing.assert_close(value, torch.logdet(S))
    torch.testing.assert_close(torch.logdet(A), value)
    assert error.equal(torch.zeros((), dtype=D))


def test_nothing():
    A = spgrad.zeros(0, 0).requires_grad_()
    value, error = estimate(A)
    assert value == 0
    assert error == 0
    assert torch.autograd.grad(value, A)[0].values().numel() == 0


def test_refusals():
    S = definite(10)
    A, lopsided, bad = sparse(S), S.clone(), S.clone()
    lopsided[0, 1] += 3.0
    bad[0, 0] = float("nan")
    indefinite = torch.tensor([[1.0, 2.0], [2.0, 1.0]])
    value, kind = errors.ArgumentValueError, errors.ArgumentKindError
    cases = [
        ((S,), {}, kind, "`A`"),
        ((sparse(torch.ones(2, 4)),), {}, value, "square"),
        ((sparse(lopsided),), {}, value, "lanczos.* needs matrices"),
        ((sparse(bad),), {}, value, "not finite"),
        ((sparse(-S),), {}, errors.PivotError, "diagonal"),
        ((sparse(indefinite),), {}, errors.PivotError, "not positive definite"),
        ((A,), {"probes": 0}, value, "`probes`"),
        ((A,), {"steps": 1.5}, kind, "`steps`"),
        ((A,), {"generator": 1}, kind, "`generator`"),
        ((A,), {"solver": linalg.CG}, kind, "`solver`"),
        ((A,), {"method": "trace"}, value, "`method`"),
        ((A,), {"method": "factor", "probes": 3}, value, "`probes` is given"),
    ]
    for args, options, error, says in cases:
        with pytest.raises(error, match=rf"spgrad\.linalg\.logdet: .*{says}"):
            linalg.logdet(*args, **{"method": "lanczos"} | options)
    value = estimate(A.requires_grad_(), solver=linalg.CG(max_iter=1, rtol=1e-12))[0]
    with pytest.raises(errors.ConvergenceError):
        value.backward()
