"""What SparseMultivariateNormal refuses, and the texts of the errors."""

import pytest
import torch

import spgrad
from spgrad.distributions import (
    SparseMultivariateNormal,
    sparse_lower_cholesky,
    sparse_lower_triangular,
    sparse_positive_definite,
)

EYE = spgrad.eye(3)
LOC = torch.zeros(3)
UPPER = spgrad.from_dense(torch.tensor([[1.0, 2, 0], [0, 1, 0], [0, 0, 1]]))
HOLE = spgrad.from_dense(torch.tensor([[1.0, 0, 0], [2, 0, 0], [0, 0, 1]]))
INDEFINITE = spgrad.from_dense(torch.tensor([[1.0, 2, 0], [2, 1, 0], [0, 0, 1]]))
NAN = spgrad.from_values(torch.tensor([1.0, float("nan"), 1.0]), EYE.pattern)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({}, ValueError, "no matrix is given; exactly one"),
        (
            {"scale_tril": EYE, "precision_tril": EYE},
            ValueError,
            "`scale_tril` and `precision_tril` is given; exactly one",
        ),
        ({"scale_tril": torch.eye(3)}, TypeError, "`scale_tril` is"),
        ({"loc": EYE, "scale_tril": EYE}, TypeError, "`loc` is"),
        ({"scale_tril": spgrad.eye(3, 4)}, ValueError, "`scale_tril` has shape"),
        ({"precision_matrix": spgrad.eye(4)}, ValueError, "`loc` has shape"),
        ({"loc": torch.tensor(0.0), "scale_tril": EYE}, ValueError, "`loc` has shape"),
        ({"loc": LOC.double(), "scale_tril": EYE}, ValueError, "dtype"),
        ({"scale_tril": EYE.to(torch.complex64)}, ValueError, "float32 and float64 are accepted"),
        ({"scale_tril": EYE.to(torch.int64)}, ValueError, "`scale_tril` has dtype"),
        ({"covariance_matrix": EYE, "diagonal": LOC}, ValueError, "`diagonal` is given with"),
        ({"scale_tril": EYE, "diagonal": torch.ones(4)}, ValueError, "`diagonal` has shape"),
        (
            {"scale_tril": EYE, "diagonal": LOC},
            ValueError,
            "`diagonal` has an element that is not positive",
        ),
        (
            {"loc": LOC / 0, "scale_tril": EYE},
            ValueError,
            "`loc` has an element that is not finite",
        ),
        ({"scale_tril": UPPER}, ValueError, "above the diagonal"),
        ({"precision_tril": UPPER, "diagonal": torch.ones(3)}, ValueError, "above the diagonal"),
        ({"precision_tril": HOLE}, ValueError, "missing or not positive"),
        ({"precision_tril": -EYE}, ValueError, "missing or not positive"),
        ({"scale_tril": NAN}, ValueError, "`scale_tril` has an element that is not finite"),
        ({"covariance_matrix": INDEFINITE}, ValueError, "is not symmetric positive definite"),
        ({"covariance_matrix": UPPER}, ValueError, "is not symmetric positive definite"),
        ({"precision_matrix": HOLE}, ValueError, "is not symmetric positive definite"),
        (
            {"loc": torch.zeros(2, 3), "scale_tril": spgrad.stack([EYE] * 3)},
            ValueError,
            "a batch that broadcasts with",
        ),
    ],
)
def test_refusals(arguments, error, text):
    with pytest.raises(error, match=text) as caught:
        SparseMultivariateNormal(**({"loc": LOC} | arguments))
    assert "spgrad.distributions.SparseMultivariateNormal" in str(caught.value)


def test_without_validation_the_factor_refuses():
    p = SparseMultivariateNormal(LOC, covariance_matrix=INDEFINITE, validate_args=False)
    with pytest.raises(torch.linalg.LinAlgError, match="not positive definite"):
        p.sample()
    singular = spgrad.from_dense(torch.tensor([[0.0, 0, 0], [0, 1, 0], [0, 0, 1]]))
    p = SparseMultivariateNormal(LOC, covariance_matrix=singular, validate_args=False)
    with pytest.raises(torch.linalg.LinAlgError, match="not positive definite"):
        p.sample()


def test_values_that_are_no_vectors():
    p = SparseMultivariateNormal(LOC, scale_tril=EYE)
    with pytest.raises(ValueError):
        p.log_prob(torch.zeros(4))
    with pytest.raises(ValueError, match="event shape"):
        torch.distributions.kl_divergence(
            p, SparseMultivariateNormal(torch.zeros(2), scale_tril=spgrad.eye(2))
        )


@pytest.mark.parametrize("shape", [3, (-1,), (2.0,), torch.ones(2, 2)])
def test_shapes_of_samples_that_are_no_tuples_of_sizes(shape):
    p = SparseMultivariateNormal(LOC, scale_tril=EYE)
    with pytest.raises(TypeError, match=r"rsample: `sample_shape` is .*; a tuple of sizes is"):
        p.rsample(shape)
    with pytest.raises(TypeError, match=r"Normal\.sample: `sample_shape` is .*; a tuple of sizes"):
        p.sample(shape)
    assert p.rsample((0,)).shape == p.sample((0,)).shape == (0, 3)


def test_constraints():
    pair = spgrad.stack([EYE, UPPER])
    assert sparse_lower_triangular.check(pair).tolist() == [True, False]
    assert sparse_lower_cholesky.check(spgrad.stack([EYE, HOLE])).tolist() == [True, False]
    assert sparse_lower_triangular.check(HOLE)
    assert not sparse_lower_triangular.check(NAN)
    assert sparse_positive_definite.check(EYE.clone().requires_grad_())
    assert not sparse_positive_definite.check(INDEFINITE)
    assert not sparse_positive_definite.check(UPPER)


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("shape", [(), (1,), (4,), (3, 1)])
def test_a_value_of_another_size_does_not_broadcast(shape, checked):
    p = SparseMultivariateNormal(LOC, precision_matrix=EYE, validate_args=checked)
    with pytest.raises(
        ValueError, match=r"log_prob: `value` has shape .*; \(\*sample, \*b, 3\) is"
    ):
        p.log_prob(torch.zeros(shape))


@pytest.mark.parametrize("checked", [True, False])
def test_a_value_that_is_not_a_number(checked):
    p = SparseMultivariateNormal(LOC, precision_matrix=EYE, validate_args=checked)
    value = torch.full((3,), float("nan"), dtype=LOC.dtype)
    if checked:
        with pytest.raises(spgrad.ArgumentValueError, match=r"log_prob: `value` .* within the sup"):
            p.log_prob(value)
    else:
        assert p.log_prob(value).isnan()


@pytest.mark.parametrize("checked", [True, False])
def test_a_value_whose_batch_does_not_broadcast(checked):
    p = SparseMultivariateNormal(torch.zeros(4, 3), precision_matrix=EYE, validate_args=checked)
    with pytest.raises(
        spgrad.ArgumentValueError, match=r"`value` has shape \(2, 3\); .* batch \(4,"
    ):
        p.log_prob(torch.zeros(2, 3))
    assert p.log_prob(torch.zeros(2, 1, 3)).shape == (2, 4)


def test_a_value_elsewhere():
    p = SparseMultivariateNormal(LOC, precision_matrix=EYE)
    with pytest.raises(spgrad.ArgumentValueError, match="log_prob: `value` is on meta; cpu"):
        p.log_prob(LOC.to("meta"))


def test_divergences_of_batches_that_do_not_broadcast():
    p, q = (SparseMultivariateNormal(torch.zeros(b, 3), precision_matrix=EYE) for b in (4, 2))
    with pytest.raises(
        spgrad.ArgumentValueError, match=r"`q` has batch shape \(2,\); a batch that"
    ):
        torch.distributions.kl_divergence(p, q)


CONSTRAINTS = {
    "sparse_lower_cholesky": sparse_lower_cholesky,
    "sparse_lower_triangular": sparse_lower_triangular,
    "sparse_positive_definite": sparse_positive_definite,
}


@pytest.mark.parametrize("name", CONSTRAINTS)
@pytest.mark.parametrize("value", [None, torch.eye(3), HOLE.to("meta"), spgrad.eye(2, 3)])
def test_what_a_constraint_does_not_take(value, name):
    with pytest.raises(
        spgrad.SpgradError, match=rf"^spgrad\.distributions\.{name}\.check: `value`"
    ):
        CONSTRAINTS[name].check(value)


def test_constraints_of_complex_matrices():
    assert sparse_lower_cholesky.check(EYE.to(torch.complex64))
    assert not sparse_lower_cholesky.check(EYE * (1 + 1j))
    assert not sparse_lower_cholesky.check(EYE * -1j)
    assert sparse_positive_definite.check(EYE.to(torch.complex64))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_value():
    p = SparseMultivariateNormal(LOC, scale_tril=EYE)
    with pytest.raises(spgrad.ArgumentKindError, match="log_prob: `value` is a nested tensor"):
        p.log_prob(torch.nested.nested_tensor([LOC]))


def test_the_divergence_of_distributions_on_two_devices():
    p = SparseMultivariateNormal(LOC, scale_tril=EYE)
    elsewhere = (t.to("meta") for t in (LOC, EYE))
    q = SparseMultivariateNormal(next(elsewhere), scale_tril=next(elsewhere), validate_args=False)
    with pytest.raises(ValueError, match="`q` is on meta; cpu, where `p` is, is accepted"):
        torch.distributions.kl_divergence(p, q)
