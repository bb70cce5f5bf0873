"""The order in which einsum takes its products: the one with the least work first."""

import pytest
import torch
from samples import leaf

import spgrad
from spgrad import testing
from spgrad.ops.products.named import einsum
from spgrad.ops.products.named.terms import Term

SIZES = {"i": 20, "j": 30, "k": 40, "l": 10}


def sparse(labels, nse_share, seed=0):
    shape = tuple(SIZES[s] for s in labels)
    return Term(testing.random_sparse(shape, density=nse_share, seed=seed), tuple(labels))


def dense(labels):
    return Term(torch.ones([SIZES[s] for s in labels], dtype=torch.float64), tuple(labels))


@pytest.mark.parametrize(
    ("terms", "result", "left", "made"),
    [
        ([sparse("ij", 0.5), dense("jk"), dense("k")], "i", ["ij"], "j"),
        ([dense("i"), sparse("ij", 0.1), dense("jk")], "k", ["jk"], "j"),
        ([dense("ik"), sparse("ij", 0.01), dense("jl")], "kl", ["ik"], "il"),
        ([sparse("ij", 1.1), sparse("jk", 0.05, 1), dense("kl")], "il", ["ij"], "jl"),
        ([sparse("ij", 0.02), sparse("jk", 0.02, 1), dense("kl")], "il", ["kl"], "ik"),
        ([dense("ij"), dense("jk"), dense("kl")], "il", ["ij"], "jl"),
    ],
)
def test_the_first_product(terms, result, left, made):
    found = einsum._with_best_pair(terms, tuple(result), SIZES)
    assert ["".join(term.labels) for term in found[:-1]] == left
    assert sorted(found[-1].labels) == sorted(made)


def test_work_counts_multiplications():
    A, B, x = sparse("ij", 0.5), sparse("jk", 0.1, 1), dense("jl")
    nse_a, nse_b = A.tensor.nse, B.tensor.nse

    def work(a, b, needed):
        return einsum._work(a, b, needed, SIZES)

    assert work(dense("ij"), x, ()) == 20 * 30 * 10
    assert work(A, B, ()) == nse_a * nse_b / 30
    assert work(A, x, ("i", "l")) == work(x, A, ("i", "l")) == nse_a * 10 + 20 * 10
    assert work(A, dense("j"), ("i",)) == nse_a + 20
    assert work(A, dense("ij"), ()) == nse_a
    for needed in ("ijk", "ij"):
        assert work(A, dense("k"), needed) == float("inf")
    assert work(sparse("ij", 0.5), sparse("kl", 0.1), ()) == nse_a * sparse("kl", 0.1).tensor.nse


@pytest.mark.parametrize(
    "equation",
    [
        "i,ij->ij",
        "ij,i->ij",
        "ij,kl->ij",
        "kl,ij->ij",
        "ij,kl,i->j",
        "ij,->ij",
        ",ij->ji",
        "i,ij,jk->ik",
    ],
)
def test_sparse_operands_that_share_some_dimensions_or_none(equation):
    """The second of two matrices that share none is summed to one number."""
    names = equation.split("->")[0].split(",")
    sizes = {"i": 4, "j": 6, "k": 3, "l": 5}
    sparse = [leaf("coo", tuple(sizes[d] for d in n), seed=i) for i, n in enumerate(names)]
    dense = [A.detach().to_dense().requires_grad_() for A in sparse]
    y, wanted = torch.einsum(equation, *sparse), torch.einsum(equation, *dense)
    found = y.to_dense() if isinstance(y, spgrad.SparseTensor) else y
    testing.assert_close(found, wanted)
    g = torch.randn(wanted.shape, dtype=wanted.dtype)
    (found * g).sum().backward()
    (wanted * g).sum().backward()
    for A, x in zip(sparse, dense, strict=True):
        there = A.detach().to_dense() != 0
        testing.assert_close(A.grad.to_dense()[there], x.grad[there])
