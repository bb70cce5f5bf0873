"""expm_multiply against the dense exponential: large and small norms, dtypes, memory, refusals.

The support table has its values and gradients on small matrices.
"""

import math

import pytest
import torch

import spgrad
from spgrad.linalg import exponential

D = torch.float64


def backward_error(terms, norm):
    """Of a series T: the sum of |c_k| norm^(k-1), where c_k is of the series of log(exp(-x) T(x)).

    The derivative of that is -x^terms / terms! / T(x).
    """
    inverse = []  # the coefficients of 1 / T
    for k in range(120):
        before = (inverse[k - j] / math.factorial(j) for j in range(1, min(k, terms) + 1))
        inverse.append((k == 0) - math.fsum(before))
    return math.fsum(
        abs(c) * norm ** (terms + k) / math.factorial(terms) / (terms + k + 1)
        for k, c in enumerate(inverse)
    )


@pytest.mark.parametrize(
    ("reach", "dtype"), [(exponential._REACH_32, torch.float32), (exponential._REACH_64, D)]
)
def test_the_reach_of_each_series_is_where_its_error_is_the_rounding(reach, dtype):
    for terms, norm in zip(exponential._TERMS, reach, strict=True):
        # the table has two digits
        least, most = (backward_error(terms, share * norm) for share in (0.95, 1.05))
        assert least < torch.finfo(dtype).eps / 2 < most


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
def test_any_norm(dtype, scale):
    wide = torch.complex128 if dtype.is_complex else torch.float64
    A = (torch.randn(16, 16, dtype=wide) * (torch.rand(16, 16) < 0.2)).to(dtype) * scale
    A = A - 4 * scale * torch.eye(16, dtype=dtype)  # it decays, as most that is solved so
    x = torch.randn(16, 3, dtype=dtype)
    expected = torch.linalg.matrix_exp(0.5 * A.to(wide)) @ x.to(wide)
    y = spgrad.expm_multiply(spgrad.from_dense(A), x, 0.5)
    assert y.dtype == dtype
    rtol = 1e4 * torch.finfo(dtype).eps * max(1, scale)
    error = (y - expected).abs().max() / expected.abs().max()
    assert error < rtol


def test_gradients_of_the_time_and_through_several_steps():
    dense = torch.randn(5, 5, dtype=torch.float64) * 9
    A = spgrad.from_dense(dense * (torch.rand(5, 5) < 0.6))
    vals = A.values().clone().requires_grad_()
    x = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)
    t = torch.tensor(-0.3, dtype=torch.float64, requires_grad=True)

    def product(vals, x, t):
        return spgrad.expm_multiply(spgrad.from_values(vals, A), x, t)

    assert torch.autograd.gradcheck(product, (vals, x, t), rtol=1e-4)
    assert torch.autograd.gradgradcheck(product, (vals, x, t), rtol=1e-4)


def test_the_gradient_keeps_one_tensor_for_each_step():
    n = 200
    A = (60 * spgrad.eye(n, dtype=torch.float64).roll(1, 0)).requires_grad_()
    x = torch.randn(n, dtype=torch.float64)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        spgrad.expm_multiply(A, x)
    assert len([t for t in kept if t.numel() == n]) < 60  # of some 300 products


def test_mass_stays_on_a_graph():
    edges = torch.tensor([[0, 1, 2, 3, 1, 2, 3, 4], [1, 2, 3, 4, 0, 1, 2, 3]])
    W = spgrad.from_edges(edges)
    L = W - spgrad.from_dense(torch.diag(W.sum(1).to_dense())).to_sparse_csr()
    x = torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0])
    y = spgrad.expm_multiply(L, x, 50.0)
    torch.testing.assert_close(y, torch.full((5,), 0.2), rtol=1e-3, atol=1e-3)


def test_the_bound_adds_what_is_on_the_diagonal_and_beside_it():
    """Each alone would ask for fewer terms than their sum."""
    A = 12 * torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    y = spgrad.expm_multiply(spgrad.from_dense(A), torch.eye(2, dtype=torch.float64))
    torch.testing.assert_close(y, torch.linalg.matrix_exp(A), rtol=1e-12, atol=0)


def test_batches_of_different_patterns_and_nothing():
    A = torch.randn(3, 4, 4) * (torch.rand(3, 4, 4) < 0.5)
    x = torch.randn(3, 4)
    expected = (torch.linalg.matrix_exp(A) @ x[..., None]).squeeze(-1)
    torch.testing.assert_close(spgrad.expm_multiply(spgrad.from_dense(A), x), expected)
    empty = spgrad.from_dense(torch.zeros(0, 0))
    assert spgrad.expm_multiply(empty, torch.zeros(0, 2)).shape == (0, 2)
    assert spgrad.expm_multiply(spgrad.eye(3), torch.zeros(3, 0)).shape == (3, 0)
    A = spgrad.eye(3).requires_grad_()
    (grad,) = torch.autograd.grad(spgrad.expm_multiply(A, torch.zeros(3, 0)).sum(), A)
    assert grad.to_dense().equal(torch.zeros(3, 3))
    y = spgrad.expm_multiply(spgrad.eye(3), torch.zeros(3))
    assert y.equal(torch.zeros(3))


def test_half_precision_is_multiplied_in_single():
    dense, x = torch.randn(4, 4), torch.randn(4, 2)
    for dtype in (torch.float16, torch.bfloat16):
        A = spgrad.from_dense(dense.to(dtype)).requires_grad_()
        y = spgrad.expm_multiply(A, x.to(dtype), 0.5)
        assert y.dtype == dtype
        expected = spgrad.expm_multiply(A.detach().float(), x.to(dtype).float(), 0.5)
        assert y.equal(expected.to(dtype))
        y.sum().backward()
        assert A.grad.dtype == dtype


def test_refusals():
    A, x = spgrad.eye(3), torch.ones(3)
    inf = spgrad.from_dense(torch.diag(torch.tensor([float("inf"), 1.0, 1.0])))
    batch = spgrad.from_dense(torch.eye(3).repeat(2, 1, 1))
    for wrong, kind, says in [
        ((torch.eye(3), x), TypeError, "`A`"),
        ((A, A), TypeError, "`x`"),
        ((spgrad.from_dense(torch.ones(2, 3)), x), ValueError, "square"),
        ((A.to(torch.int64), x.to(torch.int64)), ValueError, "dtype int64"),
        ((A, x.double()), (TypeError, ValueError), "dtype"),
        ((A, torch.ones(4)), ValueError, r"\(3,\) or \(3, n\)"),
        ((A, torch.ones(2, 3, 1)), ValueError, r"\(2, 3, 1\)"),
        ((batch, torch.ones(2, 4)), ValueError, r"\(2, 3\) or \(2, 3, n\)"),
        ((A, x, "1"), TypeError, "`t`"),
        ((A, x, 1j), TypeError, "`t`"),
        ((A, x, torch.ones(2)), ValueError, "`t`"),
        ((A, x, float("nan")), ValueError, "finite"),
        ((inf, x), ValueError, "finite"),
        ((A, x / 0), ValueError, "`x` has an element that is not finite"),
        ((A, x * torch.nan), ValueError, "`x` has an element that is not finite"),
        ((spgrad.eye(3).roll(1, 0), x, 1e9), ValueError, "products"),
    ]:
        with pytest.raises(kind, match=rf"spgrad\.expm_multiply: .*{says}"):
            spgrad.expm_multiply(*wrong)


def test_a_large_mean_of_the_diagonal_costs_no_products(monkeypatch):
    """The norm that counts is that of A without the mean of its diagonal."""
    products = []

    def counted(A, x):
        products.append(1)
        return spgrad.matmul(A, x)

    monkeypatch.setattr("spgrad.linalg.exponential.matmul", counted)
    small = torch.tensor([[0.1, 0.2], [0.0, -0.1]], dtype=torch.float64)
    A = spgrad.from_dense(small - 100 * torch.eye(2, dtype=torch.float64))
    x = torch.ones(2, dtype=torch.float64)
    y = spgrad.expm_multiply(A, x)
    assert len(products) < 30
    torch.testing.assert_close(y, torch.linalg.matrix_exp(A.to_dense()) @ x)


def test_a_series_ends_where_its_terms_vanish(monkeypatch):
    """Here A^3 = 0. Without a gradient, the series ends behind two terms that are 0."""
    products = []

    def counted(A, x):
        products.append(x)
        return spgrad.matmul(A, x)

    monkeypatch.setattr("spgrad.linalg.exponential.matmul", counted)
    M = torch.zeros(3, 3, dtype=D)
    M[0, 1] = M[1, 2] = 2.0
    y = spgrad.expm_multiply(spgrad.from_dense(M), torch.ones(3, dtype=D))
    torch.testing.assert_close(y, torch.tensor([5.0, 3.0, 1.0], dtype=D))
    assert len(products) == 4  # two terms in turn, the third and the fourth, are 0


@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_gradients_have_the_terms_that_vanish_for_the_given_x(scale):
    """A x is 0, but A y is not for other y."""
    L = scale * torch.tensor([[0.0, 0.0, 0.0], [0.0, 5.0, 0.0], [0.0, 0.0, -5.0]], dtype=D)
    A = spgrad.from_values(L.reshape(-1), spgrad.from_dense(torch.ones(3, 3)).pattern)
    A, x = A.requires_grad_(), torch.tensor([1.0, 0.0, 0.0], dtype=D, requires_grad=True)
    weight = torch.tensor([1.0, -2.0, 0.5], dtype=D)
    gradients = torch.autograd.grad(spgrad.expm_multiply(A, x, 0.6) @ weight, (A, x))
    M, y = L.clone().requires_grad_(), x.detach().clone().requires_grad_()
    wanted = torch.autograd.grad((torch.linalg.matrix_exp(0.6 * M) @ y) @ weight, (M, y))
    torch.testing.assert_close(gradients[0].to_dense(), wanted[0])
    torch.testing.assert_close(gradients[1], wanted[1])

    def spread(vals, v):
        return spgrad.expm_multiply(spgrad.from_values(vals, A.pattern), v, 0.6)

    vals = A.detach().values().clone().requires_grad_()
    assert torch.autograd.gradcheck(spread, (vals, x))
    assert torch.autograd.gradgradcheck(spread, (vals, x), atol=1e-4)
    by_func = torch.func.jacrev(spread, argnums=1)(vals.detach(), x.detach())
    torch.testing.assert_close(by_func, torch.linalg.matrix_exp(0.6 * L))


def test_second_derivatives_of_a_nilpotent_matrix_with_explicit_zeros():
    M = torch.tensor([[0.25, 0.0], [0.75, 0.25]], dtype=D)
    pattern = spgrad.from_dense(torch.ones(2, 2, dtype=D)).pattern
    vals = M.reshape(-1).clone().requires_grad_()
    x = torch.tensor([1.0, 2.0], dtype=D)
    assert torch.autograd.gradgradcheck(
        lambda v: spgrad.expm_multiply(spgrad.from_values(v, pattern), x, -2.0), (vals,)
    )
