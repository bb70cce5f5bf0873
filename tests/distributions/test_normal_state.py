"""Distributions whose matrix an optimizer changes in place, and copies of distributions."""

import copy
import pickle

import pytest
import torch

import spgrad
from spgrad.distributions import SparseMultivariateNormal

D = torch.float64
WHOLE = torch.tensor([[4.0, 1.0, 0.0], [1.0, 3.0, 1.0], [0.0, 1.0, 5.0]], dtype=D)
FACTOR = torch.tensor([[2.0, 0.0, 0.0], [1.0, 3.0, 0.0], [0.0, 1.0, 2.0]], dtype=D)
CASES = [
    ("covariance_matrix", WHOLE, False),
    ("precision_matrix", WHOLE, False),
    ("scale_tril", FACTOR, False),
    ("precision_tril", FACTOR, False),
    ("scale_tril", FACTOR, True),
    ("precision_tril", FACTOR, True),
]


def distribution(name, A, unit):
    more = {"diagonal": torch.tensor([2.0, 1.0, 3.0], dtype=D)} if unit else {}
    return SparseMultivariateNormal(torch.ones(3, dtype=D), **{name: A}, **more)


def results(p):
    torch.manual_seed(0)
    other = distribution("precision_matrix", spgrad.from_dense(WHOLE), False)
    return [
        p.log_prob(torch.tensor([1.0, 2.0, 3.0], dtype=D)),
        p.rsample((2,)),
        p.variance,
        p.entropy(),
        torch.distributions.kl_divergence(p, other),
    ]


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize(("name", "dense", "unit"), CASES)
def test_a_distribution_follows_its_matrix(name, dense, unit, blocks):
    A = spgrad.from_dense(dense)
    A = (A.to_sparse_bsr((3, 3)) if blocks else A).detach().requires_grad_()
    p = distribution(name, A, unit)
    results(p)
    with torch.no_grad():
        A.values().mul_(2)
    now, made = results(p), results(distribution(name, A, unit))
    for found, expected in zip(now, made, strict=True):
        torch.testing.assert_close(found, expected)
        if not found.requires_grad:  # entropy depends on `diagonal` alone
            continue
        ends = found.sum(), expected.sum()
        first, second = (torch.autograd.grad(end, A, retain_graph=True)[0] for end in ends)
        torch.testing.assert_close(first.to_dense(), second.to_dense())


def test_a_distribution_follows_a_matrix_of_inference_mode():
    with torch.inference_mode():
        A = spgrad.from_dense(WHOLE)
        p = distribution("covariance_matrix", A, False)
        results(p)
        A.values().mul_(2)
        found, expected = results(p), results(distribution("covariance_matrix", A, False))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))])
@pytest.mark.parametrize(("name", "dense", "unit"), CASES)
def test_copies_after_use(name, dense, unit, copied):
    p = distribution(name, spgrad.from_dense(dense).requires_grad_(), unit)
    torch.testing.assert_close(results(copied(p)), results(p))


@pytest.mark.parametrize(("name", "dense", "unit"), CASES)
def test_autocast_takes_no_digits(name, dense, unit):
    A = spgrad.from_dense(dense).float().detach().requires_grad_()

    def run():
        more = {"diagonal": torch.tensor([2.0, 1.0, 3.0])} if unit else {}
        p = SparseMultivariateNormal(torch.ones(3), **{name: A}, **more)
        q = SparseMultivariateNormal(
            torch.ones(3), precision_matrix=spgrad.from_dense(WHOLE).float()
        )
        torch.manual_seed(0)
        found = [p.log_prob(torch.tensor([1.0, 2.0, 3.0])), p.rsample((2,)), p.variance]
        found += [p.entropy(), torch.distributions.kl_divergence(p, q)]
        loss = sum(x.sum() for x in found)
        return [x.detach() for x in found] + [torch.autograd.grad(loss, A)[0].to_dense()]

    expected = run()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = run()
    torch.testing.assert_close(found, expected)
