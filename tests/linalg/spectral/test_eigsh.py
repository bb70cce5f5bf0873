"""eigsh against torch.linalg.eigh of the dense matrix: values, gradients, second order."""

import pytest
import torch

import spgrad
from spgrad import errors, linalg
from spgrad.core.pattern import LAYOUTS
from spgrad.linalg.spectral.arpack import Options, chosen, phase

D, C = torch.float64, torch.complex128
EIGSH = r"^spgrad\.linalg\.eigsh: "


def hermitian(m, dtype=D, seed=0, density=0.1):
    g = torch.Generator().manual_seed(seed)
    S = torch.randn(m, m, dtype=dtype, generator=g) * (torch.rand(m, m, generator=g) < density)
    return S + S.mH + torch.diag(torch.arange(m) * 0.3).to(dtype)


def definite(m, dtype=D, seed=1):
    S = hermitian(m, dtype, seed) * 0.1
    S = S - torch.diag(S.diagonal())
    g = torch.Generator().manual_seed(seed)
    diagonal = S.abs().sum(0) + 1 + torch.rand(m, dtype=S.real.dtype, generator=g)
    return S + torch.diag(diagonal).to(dtype)


def sparse(S, layout="csr"):
    blocksize = (2, 2) if layout in ("bsr", "bsc") else None
    return spgrad.from_dense(S, LAYOUTS[layout], blocksize=blocksize)


def dense_eigsh(S, k, B=None, sigma=None, which="LM"):
    """The same by torch.linalg.eigh, with the same phases."""
    S = (S + S.mH) / 2
    if B is None:
        E, X = torch.linalg.eigh(S)
    else:
        L = torch.linalg.cholesky((B + B.mH) / 2)
        half = torch.linalg.solve_triangular(L, S, upper=False).mH
        E, U = torch.linalg.eigh(torch.linalg.solve_triangular(L, half, upper=False))
        X = torch.linalg.solve_triangular(L.mH, U, upper=True)
    options = Options(k, sigma, which, None, None, None, 0.0)
    at = chosen(E.detach(), options).sort()[0]
    return E[at], X[:, at] * phase(X[:, at])


def at_pattern(grad, A):
    return grad.where(spgrad.ones_like(A.detach()).to_dense() != 0, 0)


def test_the_anchor_of_a_phase_is_the_first_large_element():
    """An element of exactly 0.9 of the largest is large."""
    X = torch.tensor([[-0.9, -0.8, 1j], [1.0, 1.0, 0.0]], dtype=C)
    torch.testing.assert_close(phase(X), torch.tensor([-1, 1, -1j], dtype=C))


def weighed(E, X):
    """A loss that depends on all of both, and on the phases."""
    g = torch.Generator().manual_seed(5)
    w = torch.randn(X.shape, dtype=X.dtype, generator=g)
    h = torch.randn(E.shape, dtype=E.dtype, generator=g)
    return (E * h).sum() + (X * w).sum().real + (X.abs() ** 4).sum()


@pytest.mark.parametrize(("sigma", "which"), [(None, "LM"), (None, "SA"), (3.0, "LM")])
@pytest.mark.parametrize("general", [False, True])
@pytest.mark.parametrize("dtype", [D, C])
@pytest.mark.parametrize("m", [12, 60])
def test_pairs_and_gradients(m, dtype, general, sigma, which):
    S, k = hermitian(m, dtype), 4
    B = definite(m, dtype) if general else None
    A = sparse(S).requires_grad_()
    M = sparse(B).requires_grad_() if general else None
    E, X = linalg.eigsh(A, k, M, sigma=sigma, which=which)
    leaves = [t.clone().requires_grad_() for t in (S, B) if t is not None]
    e, x = dense_eigsh(leaves[0], k, leaves[1] if general else None, sigma, which)
    torch.testing.assert_close(E, e, rtol=0, atol=1e-10)
    torch.testing.assert_close(X, x, rtol=0, atol=1e-10)
    with torch.no_grad():
        unrecorded = linalg.eigsh(A, k, M, sigma=sigma, which=which)
    for found, wanted in zip(unrecorded, (e, x), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-10)
    weighed(E, X).backward()
    weighed(e, x).backward()
    for P, leaf in zip((A, M), leaves, strict=False):
        assert P.grad.pattern is P.pattern
        torch.testing.assert_close(
            P.grad.to_dense(), at_pattern(leaf.grad, P), rtol=1e-9, atol=1e-9
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, D, C])
@pytest.mark.parametrize("m", [6, 40])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_and_dtypes(layout, m, dtype):
    S = hermitian(m, dtype, seed=3)
    A = sparse(S, layout).requires_grad_()
    leaf = S.clone().requires_grad_()
    close = {"rtol": 2e-3, "atol": 2e-3} if dtype.to_real() == torch.float32 else {}
    for sigma in (None, 1.7):
        E, X = linalg.eigsh(A, 2, sigma=sigma, which="LM")
        e, x = dense_eigsh(leaf, 2, sigma=sigma)
        assert (E.dtype, X.dtype) == (dtype.to_real(), dtype)
        torch.testing.assert_close(E, e, **close)
        got, wanted = (
            torch.autograd.grad(weighed(E, X), A),
            torch.autograd.grad(weighed(e, x), leaf),
        )
        assert got[0].layout == LAYOUTS[layout]
        torch.testing.assert_close(got[0].to_dense(), at_pattern(wanted[0], A), **close)


@pytest.mark.parametrize("which", ["LM", "SM", "LA", "SA", "BE"])
@pytest.mark.parametrize("sigma", [None, 2.0])
def test_which(which, sigma):
    for m, k in ((40, 5), (9, 5)):
        S = hermitian(m, seed=2) - torch.eye(m, dtype=D)
        E = linalg.eigsh(sparse(S), k, sigma=sigma, which=which, return_eigenvectors=False)
        torch.testing.assert_close(E, dense_eigsh(S, k, None, sigma, which)[0])


@pytest.mark.parametrize("k", [1, 38, 39, 40])
def test_as_many_as_there_are(k):
    S = hermitian(40)
    E, X = linalg.eigsh(sparse(S), k, which="LA")
    e, x = dense_eigsh(S, k, which="LA")
    torch.testing.assert_close(E, e)
    torch.testing.assert_close(X, x)


@pytest.mark.parametrize("general", [False, True])
@pytest.mark.parametrize("dtype", [D, C])
@pytest.mark.parametrize(("m", "sigma"), [(6, None), (36, 1.0)])
def test_gradcheck(m, sigma, dtype, general):
    S, B = hermitian(m, dtype, density=0.3 if m == 6 else 0.05), definite(m, dtype, 5)
    A, M = sparse(S), sparse(B)

    def mirrored(v, pattern):
        P = spgrad.from_values(v, pattern)
        return (P + P.mH.to_sparse_csr()) * 0.5

    def values(a, *b):
        return pairs(a, *b)[0]

    def vectors(a, *b):
        return pairs(a, *b)[1][:3]

    def pairs(a, *b):
        weight = mirrored(b[0], M.pattern) if b else None
        return linalg.eigsh(mirrored(a, A.pattern), 3, weight, sigma=sigma)

    leaves = [P.values().clone().requires_grad_() for P in ((A, M) if general else (A,))]
    for function in (values, vectors):
        assert torch.autograd.gradcheck(function, leaves, fast_mode=True)
        assert torch.autograd.gradgradcheck(function, leaves, fast_mode=True)


def test_forward_mode_and_torch_func():
    S = hermitian(7, density=0.4)
    A = sparse(S)
    tangent = sparse(S * hermitian(7, seed=9, density=1.0)).values()

    def function(v):
        E, X = linalg.eigsh(spgrad.from_values(v, A.pattern), 3)
        return E.sum() + X[0].square().sum()

    v = A.values()
    slope = torch.func.grad(function)(v)
    _, pushed = torch.func.jvp(function, (v,), (tangent,))
    torch.testing.assert_close(pushed, slope @ tangent)
    both = torch.func.vmap(torch.func.grad(function))(torch.stack([v, 2 * v]))
    torch.testing.assert_close(both[0], slope)


def test_repeated_eigenvalues():
    m = 36
    line = torch.diag(torch.full((m - 1,), -1.0, dtype=D), 1)
    S = line + line.T + 2 * torch.eye(m, dtype=D)
    S[0, -1] = S[-1, 0] = -1  # a ring: all eigenvalues but two come in pairs
    A, leaf = sparse(S).requires_grad_(), S.clone().requires_grad_()
    for sigma in (None, -0.01):
        which = "SA" if sigma is None else "LM"
        E, X = linalg.eigsh(A, 3, sigma=sigma, which=which)
        e = torch.linalg.eigvalsh(leaf)
        torch.testing.assert_close(E, e[:3])
        assert E[2] - E[1] < 1e-12
        got = torch.autograd.grad(E.square().sum(), A, retain_graph=True)[0]
        wanted = torch.autograd.grad(e[:3].square().sum(), leaf)[0]
        torch.testing.assert_close(got.to_dense(), at_pattern(wanted, A))
        # of the projection on the space of all three, finite differences
        w = hermitian(m, seed=4, density=1.0)
        got = torch.autograd.grad((X @ X.mT * w).sum(), A, retain_graph=True)[0]
        change = at_pattern(hermitian(m, seed=6, density=1.0), A)

        def projected(t, change=change, w=w):
            x = torch.linalg.eigh(S + t * change)[1][:, :3]
            return (x @ x.mT * w).sum()

        slope = (projected(1e-5) - projected(-1e-5)) / 2e-5
        torch.testing.assert_close((got.to_dense() * change).sum(), slope, rtol=1e-6, atol=1e-6)
        with pytest.raises(errors.StateError, match=rf"{EIGSH}eigenvalues 1 and 2.*differ by"):
            X[:3].sum().backward()
        E, X = linalg.eigsh(A, 2, sigma=sigma, which=which)
        with pytest.raises(errors.StateError, match=rf"{EIGSH}the gradient .* not asked for"):
            X[:3].sum().backward()


def test_second_calls_and_starts():
    A = sparse(hermitian(200, density=0.02))
    first, second = linalg.eigsh(A, 3), linalg.eigsh(A, 3)
    assert all(a.equal(b) for a, b in zip(first, second, strict=True))
    assert first.eigenvalues is first[0]
    for _ in range(2):
        drawn = linalg.eigsh(A, 3, generator=torch.Generator().manual_seed(7))
        torch.testing.assert_close(drawn[1], first[1])
    assert not drawn[1].equal(first[1])
    given = linalg.eigsh(A, 3, v0=torch.ones(200, dtype=D), ncv=30, maxiter=10**30, tol=1e-3)
    torch.testing.assert_close(given[0], first[0], rtol=1e-2, atol=1e-2)
    anchors = [int((x.abs() >= 0.9 * x.abs().max()).to(torch.uint8).argmax()) for x in first[1].T]
    assert all(first[1][i, p] > 0 for p, i in enumerate(anchors))


def test_a_start_may_require_a_gradient():
    A = sparse(hermitian(40))
    start = torch.ones(40, dtype=D, requires_grad=True)
    assert linalg.eigsh(A, 2, v0=start)[0].equal(linalg.eigsh(A, 2, v0=start.detach())[0])


def test_threads_do_not_change_a_bit():
    A = sparse(hermitian(300, density=0.02)).requires_grad_()
    before, found = torch.get_num_threads(), []
    linalg.eigsh(A, 3, sigma=1.0)  # the first factor at a pattern finds an order
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            E, _ = linalg.eigsh(A, 3, sigma=1.0)
            found.append((E.detach(), torch.autograd.grad(E.sum(), A)[0].values()))
    finally:
        torch.set_num_threads(before)
    assert all(a.equal(b) for a, b in zip(*found, strict=True))


def test_uncoalesced_and_no_gradient():
    S = hermitian(5)
    A = sparse(S, "coo")
    twice = spgrad.sparse_coo_tensor(
        torch.cat([A.indices(), A.indices()], 1), torch.cat([A.values(), A.values()]), (5, 5)
    )
    torch.testing.assert_close(linalg.eigsh(twice, 2)[0], 2 * linalg.eigsh(A, 2)[0])
    with torch.no_grad():
        assert not linalg.eigsh(A.requires_grad_(), 2)[1].requires_grad


@pytest.mark.parametrize("sigma", [None, 0.0])
@pytest.mark.parametrize("seed", range(20))
def test_gradients_of_vectors_with_one_element(seed, sigma):
    # the cotangent is a multiple of the vector, so that nothing is left of it on the complement
    g = torch.Generator().manual_seed(seed)
    m = 2 + seed % 5
    values = torch.rand(m, generator=g, dtype=D) + torch.arange(1, m + 1)
    values.requires_grad_()
    weights = (torch.rand(m, generator=g, dtype=D) + 0.5).requires_grad_()
    places = torch.arange(m).expand(2, m)
    A, M = (spgrad.sparse_coo_tensor(places, v, (m, m)) for v in (values, weights))
    _, X = linalg.eigsh(A, 1, M, sigma)
    grad_a, grad_m = torch.autograd.grad((X**2).sum(), (values, weights))  # 1 / weight of one
    place = int(X.detach().abs().argmax())
    expected = torch.zeros(m, dtype=D)
    torch.testing.assert_close(grad_a, expected)
    expected[place] = -1 / float(weights.detach()[place]) ** 2
    torch.testing.assert_close(grad_m, expected)


@pytest.mark.parametrize("m", [5, 40])
def test_one_pair_of_both_ends_is_the_largest(m):
    A = sparse(hermitian(m))
    torch.testing.assert_close(linalg.eigsh(A, 1, which="BE"), linalg.eigsh(A, 1, which="LA"))


def test_refusals():
    S = hermitian(40)
    A, one = sparse(S), spgrad.eye(40, dtype=D)
    lopsided = S.clone()
    lopsided[0, 1] = 3.0
    bad = S.clone()
    bad[0, 0] = float("nan")
    value, kind = errors.ArgumentValueError, errors.ArgumentKindError
    cases = [
        ((S,), {}, kind, "`A`"),
        ((sparse(torch.ones(2, 4)),), {}, value, "square"),
        ((sparse(lopsided),), {}, value, 'needs `A` to be "hermitian"'),
        ((sparse(bad),), {}, value, "not finite"),
        ((sparse(S.int()),), {}, value, "dtype int32"),
        ((sparse(torch.stack([S, S])),), {}, errors.UnsupportedError, "batch"),
        ((spgrad.zeros(0, 0),), {}, value, "`k` is 6 for 0"),
        ((A, 0), {}, value, "`k` is 0"),
        ((A, 41), {}, value, "`k` is 41"),
        ((A, 2.0), {}, kind, "`k`"),
        ((A, 2, S), {}, kind, "`M`"),
        ((A, 2, one.float()), {}, value, "dtype"),
        ((A, 2, spgrad.eye(39, dtype=D)), {}, value, "the shape of `A`"),
        ((A, 2, one * -1.0), {}, errors.PivotError, "`M` is not positive definite"),
        ((A, 2, sparse(lopsided)), {}, value, "`M`"),
        ((A,), {"which": "XX"}, value, "`which`"),
        ((sparse(S.to(C)),), {"which": "BE"}, value, "`which`"),
        ((A,), {"sigma": "0"}, kind, "`sigma`"),
        ((A,), {"sigma": float("inf")}, kind, "`sigma`"),
        ((spgrad.zeros(40, 40, dtype=D),), {"sigma": 0.0}, errors.PivotError, "`sigma` is 0.0"),
        ((A,), {"v0": torch.ones(3, dtype=D)}, value, "`v0`"),
        ((A,), {"v0": torch.zeros(40, dtype=D)}, value, "`v0` is zero"),
        ((A, 3), {"ncv": 3}, value, "`ncv`"),
        ((A, 3), {"ncv": 41}, value, "`ncv`"),
        ((A,), {"maxiter": 0}, value, "`maxiter`"),
        ((A,), {"tol": -1.0}, value, "`tol`"),
        ((A,), {"generator": 3}, kind, "`generator`"),
        ((A,), {"maxiter": 1, "which": "SM"}, errors.ConvergenceError, "ARPACK says"),
    ]
    for args, options, error, says in cases:
        with pytest.raises(error, match=rf"spgrad\.linalg\.eigsh: .*{says}"):
            linalg.eigsh(*args, **options)
    small = torch.tensor([[1.0, 2.0], [2.0, 1.0]], dtype=D)
    with pytest.raises(errors.PivotError, match="`M` is not positive definite"):
        linalg.eigsh(spgrad.eye(2, dtype=D), 1, sparse(small))


@pytest.mark.parametrize("gap", [1e-2, 1e-3, 1e-4])
@pytest.mark.parametrize("seed", range(3))
def test_gradients_beside_an_eigenvalue_that_is_not_asked_for(seed, gap):
    """MINRES can't solve to the last digit there, and must not go on until it solves nothing."""
    source = torch.Generator().manual_seed(seed)
    Q = torch.linalg.qr(torch.randn(12, 12, dtype=D, generator=source)).Q
    E = torch.arange(1.0, 13, dtype=D)
    E[:3] = torch.tensor([0.3, 0.5, 0.5 + gap])
    M = (Q * E) @ Q.T
    M = (M + M.T) / 2
    A, twin = spgrad.from_dense(M).requires_grad_(), M.clone().requires_grad_()
    w = torch.randn(12, 2, dtype=D, generator=source)
    (linalg.eigsh(A, 2, which="SA")[1].square() * w).sum().backward()
    (torch.linalg.eigh(twin)[1][:, :2].square() * w).sum().backward()
    wanted = (twin.grad + twin.grad.T) / 2
    torch.testing.assert_close(A.grad.to_dense(), wanted, rtol=1e-6, atol=1e-6 / gap)


def test_eigenvalues_that_are_not_finite_are_refused(monkeypatch):
    """A stand-in for SciPy's function, which gives them where rounding hides a singular matrix."""
    scipys = pytest.importorskip("scipy.sparse.linalg")

    def infinite(operator, k, **options):
        vector = options["v0"]
        return vector[:k] * torch.inf, vector[:, None].repeat(k, 1)

    monkeypatch.setattr(scipys, "eigsh", infinite)
    with pytest.raises(errors.PivotError, match="are not finite"):
        linalg.eigsh(sparse(definite(50)), 2, sigma=0.5)


def test_the_phase_of_eigenvectors_without_elements():
    assert phase(torch.zeros(0, 2, dtype=C)).tolist() == [1, 1]
