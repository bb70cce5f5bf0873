"""SparseMultivariateNormal within torch.func: gradients and vmap of the values of its matrix."""

import pytest
import torch
from torch.distributions import kl_divergence

import spgrad
from spgrad.distributions import SparseMultivariateNormal

WHOLE = spgrad.from_dense(torch.eye(3, dtype=torch.float64) * 3 + 1)
MATRICES = {
    "covariance_matrix": WHOLE,
    "precision_matrix": WHOLE,
    "scale_tril": spgrad.tril(WHOLE),
    "precision_tril": spgrad.tril(WHOLE),
}
X = torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64)
FUNCTIONS = {
    "log_prob": lambda p: p.log_prob(X),
    "entropy": lambda p: p.entropy(),
    "variance": lambda p: p.variance.square().sum(),
    "divergence": lambda p: kl_divergence(p, SparseMultivariateNormal(X, scale_tril=WHOLE.tril())),
}


def of_values(kind, function):
    """A function of the values of the matrix, and the values."""
    A = MATRICES[kind]

    def call(values):
        made = spgrad.from_values(values, A)
        return function(SparseMultivariateNormal(torch.zeros_like(X), **{kind: made}))

    return call, A.values()


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("kind", MATRICES)
def test_derivatives(kind, name):
    f, values = of_values(kind, FUNCTIONS[name])
    func, two = torch.func, torch.stack([values, 2 * values])
    wanted = torch.autograd.functional.jacobian(f, values)
    torch.testing.assert_close(func.grad(f)(values), wanted)
    tangent = torch.linspace(-1, 1, len(values), dtype=values.dtype)
    torch.testing.assert_close(func.jvp(f, (values,), (tangent,))[1], wanted @ tangent)
    torch.testing.assert_close(func.vmap(f)(two), torch.stack([f(v) for v in two]))
    both = torch.stack([torch.autograd.functional.jacobian(f, v) for v in two])
    torch.testing.assert_close(func.vmap(func.grad(f))(two), both)
    wanted = torch.autograd.functional.hessian(f, values)
    torch.testing.assert_close(func.hessian(f)(values), wanted)


@pytest.mark.parametrize("kind", MATRICES)
def test_draws(kind):
    def drawn(p):
        torch.manual_seed(0)
        return p.rsample((2,)).sin().sum()

    f, values = of_values(kind, drawn)
    wanted = torch.autograd.functional.jacobian(f, values)
    torch.testing.assert_close(torch.func.grad(f)(values), wanted)
    _, found = torch.func.jvp(f, (values,), (torch.ones_like(values),))
    torch.testing.assert_close(found, wanted.sum())


@pytest.mark.parametrize("kind", MATRICES)
def test_values_that_are_mapped_over(kind):
    p = SparseMultivariateNormal(X, **{kind: MATRICES[kind]})
    given = torch.stack([X, 2 * X])
    torch.testing.assert_close(torch.func.vmap(p.log_prob)(given), p.log_prob(given))
    with pytest.raises(ValueError, match="`value` has an element that is NaN"):
        torch.func.vmap(p.log_prob)(given / 0 * 0)
