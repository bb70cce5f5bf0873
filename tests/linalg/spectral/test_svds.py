"""svds against torch.linalg.svd of the dense matrix: values, gradients, second order."""

import re

import pytest
import torch

import spgrad
from spgrad import errors, linalg
from spgrad.core.pattern import LAYOUTS
from spgrad.linalg.spectral.arpack import phase

D, C = torch.float64, torch.complex128


def matrix(m, n, dtype=D, seed=0):
    g = torch.Generator().manual_seed(seed)
    S = torch.randn(m, n, dtype=dtype, generator=g) * (torch.rand(m, n, generator=g) < 0.15)
    return S + (torch.eye(m, n, dtype=D) * torch.linspace(2, 4, n, dtype=D)).to(dtype)


def sparse(S, layout="csr"):
    blocksize = (2, 2) if layout in ("bsr", "bsc") else None
    return spgrad.from_dense(S, LAYOUTS[layout], blocksize=blocksize)


def dense_svds(S, k, which="LM"):
    U, s, Vh = torch.linalg.svd(S, full_matrices=False)
    at = slice(0, k) if which == "LM" else slice(len(s) - k, None)
    U, s, Vh = U[:, at], s[at], Vh[at]
    turn = phase(U if S.shape[0] < S.shape[1] else Vh.mH)
    return U * turn, s, (Vh.mH * turn).mH


def weighed(U, S, Vh):
    """A loss that depends on all three, and on the phases."""
    g = torch.Generator().manual_seed(5)
    parts = [(t * torch.randn(t.shape, dtype=t.dtype, generator=g)).sum().real for t in (U, S, Vh)]
    return sum(parts) + (U.abs() ** 4).sum()


@pytest.mark.parametrize("which", ["LM", "SM"])
@pytest.mark.parametrize("dtype", [D, C])
@pytest.mark.parametrize("shape", [(8, 6), (6, 8), (60, 40), (40, 60), (50, 50)])
def test_triplets_and_gradients(shape, dtype, which):
    S = matrix(*shape, dtype)
    A, leaf = sparse(S).requires_grad_(), S.clone().requires_grad_()
    got, wanted = linalg.svds(A, 3, which=which), dense_svds(leaf, 3, which)
    with torch.no_grad():
        unrecorded = linalg.svds(A, 3, which=which)
    for found in (got, unrecorded):
        for a, b in zip(found, wanted, strict=True):
            assert a.shape == b.shape
            torch.testing.assert_close(a, b, rtol=0, atol=1e-10)
    alone = linalg.svds(A, 3, which=which, return_singular_vectors=False)
    torch.testing.assert_close(alone, got.S)
    weighed(*got).backward()
    weighed(*wanted).backward()
    assert A.grad.pattern is A.pattern
    expected = leaf.grad.where(S != 0, 0)
    torch.testing.assert_close(A.grad.to_dense(), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, D, C])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_and_dtypes(layout, dtype):
    S = matrix(44, 40, dtype, seed=3)
    A, leaf = sparse(S, layout).requires_grad_(), S.clone().requires_grad_()
    close = {"rtol": 1e-3, "atol": 1e-3} if dtype.to_real() == torch.float32 else {}
    got, wanted = linalg.svds(A, 2), dense_svds(leaf, 2)
    assert [t.dtype for t in got] == [dtype, dtype.to_real(), dtype]
    (a,) = torch.autograd.grad(weighed(*got), A)
    (b,) = torch.autograd.grad(weighed(*wanted), leaf)
    assert a.layout == LAYOUTS[layout]
    specified = spgrad.ones_like(A.detach()).to_dense() != 0
    torch.testing.assert_close(a.to_dense(), b.where(specified, 0), **close)


@pytest.mark.parametrize("dtype", [D, C])
@pytest.mark.parametrize("shape", [(6, 5), (35, 36)])
def test_gradcheck(shape, dtype):
    A = sparse(matrix(*shape, dtype, seed=2))
    vals = A.values().clone().requires_grad_()
    for i in range(3):

        def function(v, i=i):
            found = linalg.svds(spgrad.from_values(v, A.pattern), 2)[i]
            return found if i == 1 else found[:2, :2]

        assert torch.autograd.gradcheck(function, vals, fast_mode=True)
        assert torch.autograd.gradgradcheck(function, vals, fast_mode=True)


@pytest.mark.parametrize("k", [1, 38, 39, 40])
def test_as_many_as_there_are(k):
    S = matrix(45, 40)
    U, s, Vh = linalg.svds(sparse(S), k)
    torch.testing.assert_close(s, torch.linalg.svdvals(S)[:k])
    torch.testing.assert_close(U.mH @ S @ Vh.mH, torch.diag(s))


@pytest.mark.parametrize("m", [6, 40])
def test_low_rank_and_zero(m):
    g = torch.Generator().manual_seed(0)
    S = torch.randn(m, 2, dtype=D, generator=g) @ torch.randn(2, m - 1, dtype=D, generator=g)
    A = sparse(S).requires_grad_()
    for k in (3, 4):
        U, s, Vh = linalg.svds(A, k)
        assert s[2:].abs().max() < 1e-12 * s[0]
        torch.testing.assert_close(U.mH @ U, torch.eye(k, dtype=D))
        torch.testing.assert_close((U * s) @ Vh, S)
    (grad,) = torch.autograd.grad(s[:2].sum(), A)
    u, _, vh = torch.linalg.svd(S)
    torch.testing.assert_close(grad.to_dense(), u[:, :2] @ vh[:2])
    Z = spgrad.zeros(m, m, dtype=D).requires_grad_()
    U, s, _ = linalg.svds(Z, 2)
    assert s.equal(torch.zeros(2, dtype=D))
    s.sum().backward()
    torch.testing.assert_close(U.mH @ U, torch.eye(2, dtype=D))


def test_left_vectors_of_zero_have_no_gradient():
    A = sparse(torch.tensor([[1, 2], [2, 4], [3, 6]], dtype=D)).requires_grad_()
    U, S, _ = linalg.svds(A, 2)
    assert S[1] < 1e-14
    (U[:, 1] * torch.arange(3)).sum().backward()
    assert A.grad.values().tolist() == [0] * 6


def test_second_calls():
    A = sparse(matrix(150, 120))
    first, second = linalg.svds(A, 3), linalg.svds(A, 3)
    assert all(a.equal(b) for a, b in zip(first, second, strict=True))
    drawn = linalg.svds(A, 3, generator=torch.Generator().manual_seed(1), ncv=30, maxiter=900)
    torch.testing.assert_close(drawn.S, first.S)
    given = linalg.svds(A, 3, v0=torch.ones(120, dtype=D), tol=1e-2)
    torch.testing.assert_close(given.S, first.S, rtol=1e-1, atol=0)


def test_refusals():
    S = matrix(40, 36)
    A = sparse(S)
    bad = S.clone()
    bad[0, 0] = float("inf")
    value, kind = errors.ArgumentValueError, errors.ArgumentKindError
    cases = [
        ((S,), {}, kind, "`A`"),
        ((sparse(bad),), {}, value, "not finite"),
        ((sparse(S.int()),), {}, value, "dtype int32"),
        ((sparse(torch.stack([S, S])),), {}, errors.UnsupportedError, "batch"),
        ((spgrad.zeros(0, 3),), {}, value, "`k` is 6 for 0"),
        ((A, 37), {}, value, "`k` is 37"),
        ((A,), {"which": "LA"}, value, "`which`"),
        ((A,), {"ncv": 2}, value, "`ncv`"),
        ((A,), {"v0": torch.ones(40, dtype=D)}, value, "`v0`"),
        ((sparse(torch.diag(torch.arange(40.0))),), {"which": "SM"}, errors.PivotError, "singular"),
        ((A,), {"maxiter": 1, "tol": 1e-15}, errors.ConvergenceError, "ARPACK says"),
    ]
    for args, options, error, says in cases:
        with pytest.raises(error, match=rf"spgrad\.linalg\.svds: .*{says}"):
            linalg.svds(*args, **options)
    twins = sparse(torch.diag(torch.tensor([3.0, 3.0, 1.0], dtype=D))).requires_grad_()
    with pytest.raises(errors.StateError, match="basis"):
        linalg.svds(twins, 2).Vh[:, :1].sum().backward()


def test_singular_vectors_of_values_that_are_mapped_over():
    A = sparse(matrix(6, 4))

    def left(v):
        return linalg.svds(spgrad.from_values(v, A), 2).U

    two = torch.stack([A.values(), 2 * A.values() + 1])
    torch.testing.assert_close(torch.func.vmap(left)(two), torch.stack([left(v) for v in two]))
    with pytest.raises(errors.UnsupportedError, match="`A` has an item without full rank"):
        torch.func.vmap(lambda v: linalg.svds(spgrad.from_values(v, A), 4).U)(two * 0)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("size", [1.0, 1e200])
def test_errors_of_gradients_name_the_singular_values_that_were_found(size, wide):
    dense = torch.diag(torch.tensor([2.0, 3.0, 3.0, 5.0, 2.0], dtype=D) * size)
    dense = torch.cat([dense, torch.zeros(1, 5, dtype=D)])
    A = spgrad.from_dense(dense.T.contiguous() if wide else dense).requires_grad_()
    U, _, Vh = linalg.svds(A, k=3)
    weight = torch.arange(15.0, dtype=D).view(3, 5).square()
    shown = f"{3 * size:.8g}"
    says = (
        rf"^spgrad\.linalg\.svds: singular values 1 and 2, {re.escape(f'{shown} and {shown}')}, "
        r"differ by .*, such as one of \(U \* S\) @ Vh, is accepted"
    )
    with pytest.raises(errors.StateError, match=says):
        ((U.T if wide else Vh) * weight).sum().backward()
    U, _, Vh = linalg.svds(A, k=2)
    says = (
        r"^spgrad\.linalg\.svds: the gradient of singular vector 1 did not converge .*: its "
        rf"singular value {re.escape(shown)} is nearly equal to one that was not asked for"
    )
    with pytest.raises(errors.StateError, match=says):
        ((U.T if wide else Vh) * weight[:2]).sum().backward()
