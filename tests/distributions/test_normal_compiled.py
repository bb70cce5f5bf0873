"""SparseMultivariateNormal and factors in functions that torch.compile compiles."""

import pytest
import torch
from torch.distributions import kl_divergence

import spgrad
from spgrad import linalg
from spgrad.distributions import SparseMultivariateNormal

# Dynamo reads .grad of the tensors that a graph after a break gets
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")

WHOLE = spgrad.from_dense(torch.eye(3, dtype=torch.float64) * 3 + 1).to_sparse_csr()
NARROW = spgrad.tril(WHOLE)
X = torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64)
WHOLE_KINDS, FACTORS = (
    ("covariance_matrix", "precision_matrix"),
    ("scale_tril", "precision_tril"),
)


def matrix(kind):
    return (NARROW if kind in FACTORS else WHOLE).detach().clone().requires_grad_()


def summed(kind, validate=None):
    other = SparseMultivariateNormal(X, precision_tril=NARROW)

    def call(A, x):
        p = SparseMultivariateNormal(x, **{kind: A}, validate_args=validate)
        return p.log_prob(X) + p.entropy() + p.variance.sum() + kl_divergence(p, other)

    return call


def with_gradients(call, kind):
    A, x = matrix(kind), (0.1 * X).requires_grad_()
    value = call(A, x)
    value.backward()
    return value, A.grad.values(), x.grad


@pytest.fixture(autouse=True)
def _forgotten():
    torch._dynamo.reset()


@pytest.mark.parametrize("validate", [None, True])
@pytest.mark.parametrize("kind", [*WHOLE_KINDS, *FACTORS])
def test_a_graph_breaks_where_a_matrix_is_factored(kind, validate):
    call = summed(kind, validate)
    found = with_gradients(torch.compile(call, backend="aot_eager"), kind)
    torch.testing.assert_close(found, with_gradients(call, kind))


@pytest.mark.parametrize("kind", WHOLE_KINDS)
def test_draws(kind):
    def call(A, x):
        return SparseMultivariateNormal(x, **{kind: A}).rsample((4,)).sin().sum()

    results = []
    for made in (call, torch.compile(call, backend="aot_eager")):
        torch.manual_seed(0)
        results.append(with_gradients(made, kind))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("validate", [False, True])
@pytest.mark.parametrize("method", ["log_prob", "entropy", "rsample", "variance"])
def test_one_graph_is_refused(method, validate):
    def call(A, x):
        p = SparseMultivariateNormal(x, precision_matrix=A, validate_args=validate)
        found = getattr(p, method)
        return found if method == "variance" else found(X) if method == "log_prob" else found()

    why = "a check reads the numbers" if validate else "SuperLU factors the covariance or precision"
    with pytest.raises(torch._dynamo.exc.Unsupported, match=f"{why}.*leave out fullgraph=True"):
        torch.compile(call, backend="aot_eager", fullgraph=True)(WHOLE, X)


METHODS = {
    "solve": lambda F: F.solve(X),
    "logdet": lambda F: F.logdet(),
    "slogdet": lambda F: F.slogdet()[1],
    "inverse_at": lambda F: F.inverse_at(WHOLE).values().sum(),
    "inverse_diagonal": lambda F: F.inverse_diagonal(),
    "refactor": lambda F: F.refactor(2 * WHOLE).solve(X),
}


@pytest.mark.parametrize("name", METHODS)
def test_methods_of_a_factor(name):
    F, method = linalg.factor(WHOLE), METHODS[name]

    def call(x):
        return method(F) * x.sum() + 1

    torch.testing.assert_close(torch.compile(call, backend="aot_eager")(X), call(X))
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="factors are outside of torch"):
        torch.compile(call, backend="aot_eager", fullgraph=True)(X)
