"""Transforms of torch.func of what is built on operations, against autograd and a loop of items."""

import pytest
import torch
from torch.autograd import forward_ad

import spgrad
from spgrad import graph, linalg, nn, support, testing
from spgrad.core.pattern import LAYOUTS

F64 = torch.float64
N = 4
X, Q, K = torch.randn(3, N, 2, dtype=F64, generator=torch.Generator().manual_seed(0))


def near_diagonal(A):
    """A regular matrix with the pattern of A and the diagonal."""
    return spgrad.set_diag(A * 0.1, 5.0)


def lengths(A):
    found = graph.shortest_paths(abs(A), [0, 2])
    return torch.where(found.isfinite(), found, 0)


FUNCTIONS = {
    "mean": lambda A: spgrad.spmm(A, X, "mean"),
    "amax": lambda A: spgrad.spmm(A, X, "amax"),
    "softmax": lambda A: spgrad.softmax(A, 1),
    "cumsum": lambda A: spgrad.cumsum(A, 0),
    "sort": lambda A: spgrad.sort(A, 1)[0],
    "topk": lambda A: spgrad.topk(A, 2, specified=True).values,
    "attention": lambda A: spgrad.scaled_dot_product_attention(Q, K, X, A),
    "set_diag": near_diagonal,
    "remove_diag": spgrad.remove_diag,
    "where": lambda A: spgrad.where(A > 0, A, A * 2),
    "embedding": lambda A: spgrad.embedding(torch.tensor([0, 3, 0]), A),
    "embedding_bag": lambda A: spgrad.embedding_bag(torch.tensor([[0, 3], [1, 1]]), A),
    "index_add": lambda A: spgrad.index_add(A, 0, torch.tensor([2, 2, 0, 3]), A),
    "sspaddmm": lambda A: spgrad.sspaddmm(A, A, torch.ones(N, N, dtype=F64)),
    "cat of rows": lambda A: spgrad.cat([A, A * 2], 0),
    "cat of columns": lambda A: spgrad.cat([A, A * 2], 1),
    "block_diag": lambda A: spgrad.block_diag(A, A * 2),
    "block_array": lambda A: spgrad.block_array([[A, None], [None, A]]),
    "expm_multiply": lambda A: linalg.expm_multiply(A, X),
    "solve": lambda A: linalg.solve(near_diagonal(A), X),
    "lstsq": lambda A: linalg.lstsq(A, X, 0.5, linalg.NormalEquations()),
    "det": lambda A: linalg.det(near_diagonal(A)),
    "logdet": lambda A: linalg.logdet(near_diagonal(A)),
    "slogdet": lambda A: torch.stack(linalg.slogdet(near_diagonal(A))),
    "inverse_at": lambda A: linalg.inverse_at(near_diagonal(A), spgrad.eye(N).pattern),
    "inverse_diagonal": lambda A: linalg.inverse_diagonal(near_diagonal(A)),
    "normalize": lambda A: graph.normalize(abs(A), "row"),
    "laplacian": lambda A: graph.laplacian(abs(A), "sym"),
    "to_symmetric": lambda A: graph.to_symmetric(A, "mean"),
    "shortest_paths": lengths,
    "gcn_norm": lambda A: nn.gcn_norm(abs(A)),
}


def dense(y):
    return y.to_dense() if isinstance(y, spgrad.SparseTensor) else y


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("layout", support.ALL)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_transforms_agree_with_autograd(name, layout):
    A = testing.random_sparse((N, N), LAYOUTS[layout], dtype=F64, density=0.6, seed=3)
    vals = A._vals

    def value(v):
        return dense(FUNCTIONS[name](spgrad.from_values(v, A.pattern)))

    leaf = vals.clone().requires_grad_()
    y = value(leaf)
    c, t = torch.randn_like(y), torch.randn_like(vals)
    (g,) = torch.autograd.grad(y, leaf, c, create_graph=True)
    gradient = torch.func.grad(lambda v: (value(v) * c).sum())
    testing.assert_close(gradient(vals), g.detach())
    moved = torch.func.jvp(value, (vals,), (t,))[1]
    testing.assert_close((moved * c).sum(), (g.detach() * t).sum())
    several = torch.stack([vals, vals * 1.5 + 0.1])
    testing.assert_close(torch.func.vmap(value)(several), torch.stack([*map(value, several)]))
    each = torch.stack([*map(gradient, several)])
    testing.assert_close(torch.func.vmap(gradient)(several), each)


@pytest.mark.parametrize("join", ["cat of rows", "cat of columns", "block_diag"])
@pytest.mark.parametrize("layout", support.ALL)
def test_a_first_join_in_forward_mode(layout, join):
    """The kernel that finds the joined pattern moves values too, which would lose the tangents."""
    A = testing.random_sparse((N, N), LAYOUTS[layout], dtype=F64)
    vals, t = A._vals, torch.randn_like(A._vals)
    with forward_ad.dual_level():
        joined = FUNCTIONS[join](spgrad.from_values(forward_ad.make_dual(vals, t), A.pattern))
        tangent = forward_ad.unpack_dual(joined.to_dense()).tangent
    testing.assert_close(tangent, FUNCTIONS[join](spgrad.from_values(t, A.pattern)).to_dense())


@pytest.mark.parametrize("name", ["prune", "topk"])
@pytest.mark.parametrize("layout", support.ALL)
def test_elements_that_differ_from_item_to_item_are_refused(name, layout):
    A = testing.random_sparse((N, N), LAYOUTS[layout], dtype=F64)

    def value(v):
        B = spgrad.from_values(v, A.pattern)
        return dense(spgrad.prune(B, 0.5)) if name == "prune" else spgrad.topk(B, 2).values

    several = torch.stack([A._vals, -A._vals])
    for function in (value, torch.func.grad(lambda v: value(v).sum())):
        with pytest.raises(spgrad.UnsupportedError, match=r"torch\.func\.vmap maps over"):
            torch.func.vmap(function)(several)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", ["logsumexp", "softmax"])
def test_second_derivatives_of_one_segment(name):
    # a result that is one number for all elements, without memory for each
    A = spgrad.from_dense(torch.tensor([[0.3, -0.5, 0.9]], dtype=F64))

    def total(v):
        return (dense(getattr(spgrad, name)(spgrad.from_values(v, A), 1)) ** 2).sum()

    def expected(v):
        return (getattr(torch, name)(v[None], 1) ** 2).sum()

    testing.assert_close(torch.func.hessian(total)(A._vals), torch.func.hessian(expected)(A._vals))


def test_numbers_that_vmap_maps_over():
    A = spgrad.from_dense(torch.tensor([[4.0, 0.0], [0.0, 9.0]], dtype=F64))
    exponents = torch.tensor([0.5, 2.0], dtype=F64)
    found = torch.func.vmap(lambda p: (A**p).to_dense())(exponents)
    testing.assert_close(found, torch.stack([(A**p).to_dense() for p in exponents]))
    each = torch.stack([torch.full((2, 2), 2.0, dtype=F64), torch.ones(2, 2, dtype=F64)])
    found = torch.func.vmap(lambda p: (A**p).to_dense())(each)
    testing.assert_close(found, torch.stack([(A**p).to_dense() for p in each]))
    with pytest.raises(ValueError, match=r"`exponent` is 0\.0, with which 0 becomes 1"):
        torch.func.vmap(lambda p: (A**p).to_dense())(exponents * 0)
    slopes = torch.func.vmap(torch.func.grad(lambda p: (A**p).sum()))(exponents)
    wanted = torch.stack([sum(x**p * x.log() for x in (A._vals)) for p in exponents])
    testing.assert_close(slopes, wanted)


@pytest.mark.parametrize("layout", support.ALL)
@pytest.mark.parametrize("function", [spgrad.add, spgrad.mul, spgrad.maximum])
def test_two_patterns_that_meet_first_under_vmap(function, layout):
    A, B = (
        testing.random_sparse((N, N), LAYOUTS[layout], dtype=F64, density=0.6, seed=seed)
        for seed in (3, 4)
    )
    several = torch.stack([A._vals, A._vals * 2])
    found = torch.func.vmap(lambda v: dense(function(spgrad.from_values(v, A), B)))(several)
    wanted = torch.stack([function(A, B).to_dense(), function(A * 2, B).to_dense()])
    testing.assert_close(found, wanted)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("layout", support.ALL)
@pytest.mark.parametrize("name", ["row means", "column means", "used twice", "set", "triangle"])
def test_several_cotangents_at_once(name, layout):
    """torch.autograd.grad with is_grads_batched, and the vectorized jacobian and hessian."""
    value = {
        "row means": lambda A: A.mean(1),
        "column means": lambda A: A.mean(0),
        "used twice": lambda A: (A + A) @ X,  # so autograd adds two gradients of A
        "set": lambda A: near_diagonal(A) @ X,
        "triangle": lambda A: spgrad.solve_triangular(near_diagonal(A), X, upper=False),
    }[name]
    A = testing.random_sparse((N, N), LAYOUTS[layout], dtype=F64, density=0.6, seed=3)
    leaf = A._vals.clone().requires_grad_()
    y = value(spgrad.from_values(leaf, A.pattern)).sin()
    (g,) = torch.autograd.grad(y.square().sum(), leaf, create_graph=True)
    for result in (y, g):
        several = torch.randn(3, *result.shape, dtype=F64)
        each = [torch.autograd.grad(result, leaf, c, retain_graph=True)[0] for c in several]
        (found,) = torch.autograd.grad(
            result, leaf, several, retain_graph=True, is_grads_batched=True
        )
        testing.assert_close(found, torch.stack(each))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", ["solve", "lstsq", "inverse_diagonal"])
def test_several_cotangents_of_a_solver_are_refused_clearly(name):
    A = testing.random_sparse((N, N), dtype=F64, density=0.6, seed=3)
    leaf = A._vals.clone().requires_grad_()
    y = FUNCTIONS[name](spgrad.from_values(leaf, A.pattern))
    several = torch.randn(3, *y.shape, dtype=F64)
    with pytest.raises(spgrad.UnsupportedError, match=r"is_grads_batched=True .* Take torch\.func"):
        torch.autograd.grad(y, leaf, several, is_grads_batched=True)
