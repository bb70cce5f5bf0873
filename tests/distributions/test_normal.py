"""SparseMultivariateNormal against torch's dense MultivariateNormal: values and gradients."""

import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence

import spgrad
from spgrad.core.pattern import LAYOUTS
from spgrad.distributions import SparseMultivariateNormal

M = 6
KINDS = ("covariance_matrix", "precision_matrix", "scale_tril", "precision_tril")
UNIT = ("unit scale_tril", "unit precision_tril")


def lower(batch=(), dtype=torch.float64, seed=0):
    g = torch.Generator().manual_seed(seed)
    made = torch.randn(*batch, M, M, dtype=dtype, generator=g)
    made = made * (torch.rand(*batch, M, M, generator=g) < 0.5)
    made = made.tril(-1)
    return made + torch.diag_embed(1 + torch.rand(*batch, M, dtype=dtype, generator=g))


def sparse(A, layout="csr"):
    blocksize = (2, 2) if layout in ("bsr", "bsc") else None
    return spgrad.from_dense(A, LAYOUTS[layout], blocksize=blocksize).detach().requires_grad_()


def parameters(kind, batch=(), layout="csr", dtype=torch.float64, seed=0):
    """Arguments of the sparse distribution, and of the dense one with its dense matrix."""
    L = lower(batch, dtype, seed)
    g = torch.Generator().manual_seed(seed + 1)
    loc = torch.randn(*batch, M, dtype=dtype, generator=g)
    name = kind.split()[-1]
    dense = L if "tril" in kind else L @ L.mT
    A = sparse(dense, layout)
    ours = {"loc": loc.clone().requires_grad_(), name: A}
    theirs = {"loc": loc.clone().requires_grad_(), name: A.detach().to_dense().requires_grad_()}
    if "unit" in kind:
        D = 0.5 + torch.rand(*batch, M, dtype=dtype, generator=g)
        ours["diagonal"], theirs["diagonal"] = D.clone().requires_grad_(), D.requires_grad_()
    return ours, theirs


def reference(loc, diagonal=None, **matrix):
    ((name, A),) = matrix.items()
    A = A.tril() if "tril" in name else A
    if diagonal is not None:
        unit = A.tril(-1) + torch.eye(M, dtype=A.dtype)
        A = unit * diagonal.sqrt().unsqueeze(-2)
    if name == "precision_tril":
        return MultivariateNormal(loc, precision_matrix=A @ A.mT)
    return MultivariateNormal(loc, **{name: A})


def compare(ours, theirs, function, draws=False):
    """Values of `function` of both distributions, and gradients of all parameters."""
    found, known = function(SparseMultivariateNormal(**ours)), function(reference(**theirs))
    rtol = 1e-9 if found.dtype == torch.float64 else 2e-3
    torch.testing.assert_close(found, known, rtol=rtol, atol=rtol)
    weight = torch.randn(known.shape, dtype=known.dtype, generator=torch.Generator().manual_seed(9))
    got = torch.autograd.grad((found * weight).sum(), list(ours.values()), allow_unused=True)
    expected = torch.autograd.grad((known * weight).sum(), list(theirs.values()), allow_unused=True)
    for name, a, b in zip(ours, got, expected, strict=True):
        if a is None or b is None:
            assert all(t is None or t.to_dense().abs().max() < rtol for t in (a, b)), name
            continue
        if isinstance(a, spgrad.SparseTensor):
            assert a.pattern.same_as(ours[name].pattern)
            mask = spgrad.ones_like(a.detach()).to_dense() != 0
            a, b = a.to_dense(), b.where(mask, 0)
        torch.testing.assert_close(a, b, rtol=rtol, atol=rtol, msg=lambda m, n=name: f"{n}: {m}")


def value(batch=(), dtype=torch.float64):
    return torch.randn(3, *batch, M, dtype=dtype, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS + UNIT)
def test_density(kind, layout, batch):
    x = value(batch)
    compare(*parameters(kind, batch, layout), lambda p: p.log_prob(x))


@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("name", ["entropy", "variance", "mean", "mode"])
@pytest.mark.parametrize("kind", KINDS + UNIT)
def test_moments(kind, name, batch):
    def function(p):
        return p.entropy() if name == "entropy" else getattr(p, name)

    compare(*parameters(kind, batch, seed=3), function)


@pytest.mark.parametrize("kind", KINDS + UNIT)
def test_float32(kind):
    x = value(dtype=torch.float32)
    ours, theirs = parameters(kind, dtype=torch.float32)
    compare(ours, theirs, lambda p: p.log_prob(x))
    p = SparseMultivariateNormal(**ours)
    assert p.rsample((2,)).dtype == p.variance.dtype == p.entropy().dtype == torch.float32


@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("kind", ["scale_tril", *UNIT[:1]])
def test_draws_of_a_factor_of_the_covariance(kind, batch):
    """They are torch's: the same random numbers times the same factor."""
    ours, theirs = parameters(kind, batch)
    if "unit" in kind:
        A = theirs["scale_tril"]
        unit = A.tril(-1) + torch.eye(M, dtype=A.dtype)
        theirs = {
            "loc": theirs["loc"],
            "scale_tril": unit * theirs["diagonal"].sqrt()[..., None, :],
        }

    def function(p):
        torch.manual_seed(0)
        return p.rsample((4,))

    found = function(SparseMultivariateNormal(**ours))
    torch.testing.assert_close(found, function(MultivariateNormal(**theirs)))


@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("kind", KINDS + UNIT)
def test_the_law_of_draws_and_its_gradient(kind, batch, monkeypatch):
    """Over z = sqrt(m) e_i the mean of z z^T is the identity, and that of a draw the covariance."""
    ours, theirs = parameters(kind, batch)
    unit = (M**0.5) * torch.eye(M, dtype=torch.float64)
    z = torch.cat((unit, -unit)).view(2 * M, *(1 for _ in batch), M).expand(2 * M, *batch, M)
    weight = torch.randn(M, M, dtype=torch.float64)
    weight = weight + weight.mT

    def function(p):
        if isinstance(p, MultivariateNormal):
            second = p.covariance_matrix + p.loc.unsqueeze(-1) * p.loc.unsqueeze(-2)
        else:
            x = p.rsample((2 * M,))
            second = (x.unsqueeze(-1) * x.unsqueeze(-2)).mean(0)
        return (second * weight).sum((-2, -1))

    monkeypatch.setattr("spgrad.distributions.normal._standard_normal", lambda *a, **k: z)
    compare(ours, theirs, function)


@pytest.mark.parametrize("kind", KINDS)
def test_the_second_derivative_of_the_law(kind, monkeypatch):
    """Of E[(x^T W x)^2], exactly: by a product rule for moments of up to five numbers."""
    ours, _ = parameters(kind)
    A = next(v for v in ours.values() if isinstance(v, spgrad.SparseTensor))
    node = torch.tensor([0.0, 3**0.5, -(3**0.5)], dtype=torch.float64)
    z = torch.cartesian_prod(*[node] * M)
    weight = torch.where(z == 0, 4.0, 1.0).double().div(6).prod(-1)
    W = torch.randn(M, M, dtype=torch.float64)
    W = W + W.mT
    monkeypatch.setattr("spgrad.distributions.normal._standard_normal", lambda *a, **k: z)
    loc = torch.zeros(M, dtype=torch.float64)

    def ours_of(vals):
        p = SparseMultivariateNormal(loc, **{kind: spgrad.from_values(vals, A.pattern)})
        x = p.rsample((z.shape[0],))
        return (weight * ((x @ W) * x).sum(-1).square()).sum()

    def theirs_of(vals):
        full = spgrad.from_values(vals, A.pattern).to_dense()
        if "matrix" in kind:
            full = (full + full.mT) / 2
        product = W @ reference(loc, **{kind: full}).covariance_matrix
        return product.trace() ** 2 + 2 * (product @ product).trace()

    vals = A.detach().values().clone().requires_grad_()
    step = torch.randn(vals.shape, dtype=torch.float64)
    hessians = []
    for function in (ours_of, theirs_of):
        (g,) = torch.autograd.grad(function(vals), vals, create_graph=True)
        hessians.append(torch.autograd.grad((g * step).sum(), vals)[0])
    torch.testing.assert_close(*hessians, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["log_prob", "entropy", "variance", "divergence"])
@pytest.mark.parametrize("kind", KINDS[:2])
def test_second_derivatives_are_symmetric(kind, name, layout, batch):
    """As those of torch are, also along a step that is not symmetric."""
    ours, theirs = parameters(kind, batch, layout)
    of_q, dense_q = parameters(kind, batch, layout, seed=7)
    sides = (ours, SparseMultivariateNormal, of_q), (theirs, reference, dense_q)
    step = torch.randn(*batch, M, M, dtype=torch.float64)
    mask = ours[kind].detach().to_dense() != 0
    hessians = []
    for given, distribution, other in sides:
        p, A = distribution(**given), given[kind]
        if name == "divergence":
            q = distribution(**other)
            y = kl_divergence(p, q) + kl_divergence(q, p)
        else:
            y = p.log_prob(value(batch)) if name == "log_prob" else getattr(p, name)
            y = y() if name == "entropy" else y.exp()
        (g,) = torch.autograd.grad(y.sum(), A, create_graph=True)
        (h,) = torch.autograd.grad((g.to_dense() * (step * mask)).sum(), A)
        hessians.append(h.to_dense().where(mask, 0))
    assert torch.equal(hessians[0], hessians[0].mT)
    torch.testing.assert_close(*hessians, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("of_q", KINDS + UNIT)
@pytest.mark.parametrize("of_p", KINDS + UNIT)
def test_divergence(of_p, of_q):
    for batches in [((), ()), ((2,), (2,)), ((2,), ())]:
        a, b = parameters(of_p, batches[0]), parameters(of_q, batches[1], seed=7)
        q, dense_q = SparseMultivariateNormal(**b[0]), reference(**b[1])
        compare(*a, lambda p, q=q, d=dense_q: kl_divergence(p, d if type(p) is type(d) else q))
        p, dense_p = SparseMultivariateNormal(**a[0]), reference(**a[1])
        compare(*b, lambda q, p=p, d=dense_p: kl_divergence(d if type(q) is type(d) else p, q))


@pytest.mark.parametrize("kind", KINDS + UNIT)
def test_gradcheck(kind):
    ours, _ = parameters(kind)
    x, name = value(), kind.split()[-1]
    pattern = ours[name].pattern

    def function(vals, loc, *diagonal):
        A = spgrad.from_values(vals, pattern)
        if "matrix" in kind:  # symmetric in the numbers that are varied
            A = (A + A.mT) / 2
        more = {"diagonal": diagonal[0]} if diagonal else {}
        p = SparseMultivariateNormal(loc, **{name: A}, **more, validate_args=False)
        return p.log_prob(x), p.entropy()

    vals = ours.pop(name).detach().values().clone().requires_grad_()
    given = (vals, *ours.values())
    assert torch.autograd.gradcheck(function, given)
    assert torch.autograd.gradgradcheck(function, given)


def test_expand_does_not_repeat_the_matrix():
    ours, theirs = parameters("precision_tril")
    p, dense = SparseMultivariateNormal(**ours), reference(**theirs)
    p, dense = p.expand((4, 2)), dense.expand((4, 2))
    assert p.batch_shape == (4, 2)
    assert p.event_shape == (M,)
    assert p.precision_tril is ours["precision_tril"]
    x = value((4, 2))
    torch.testing.assert_close(p.log_prob(x), dense.log_prob(x))
    torch.testing.assert_close(p.entropy(), dense.entropy())
    torch.testing.assert_close(p.variance, dense.variance)
    assert p.rsample((3,)).shape == (3, 4, 2, M)
    assert not p.sample().requires_grad


@pytest.mark.parametrize("kind", KINDS + UNIT)
def test_batches_broadcast(kind):
    ours, theirs = parameters(kind)
    ours["loc"] = theirs["loc"] = torch.randn(3, M, dtype=torch.float64)
    p, dense = SparseMultivariateNormal(**ours), reference(**theirs)
    assert p.batch_shape == (3,)
    x = value((3,))
    torch.testing.assert_close(p.log_prob(x), dense.log_prob(x))
    torch.testing.assert_close(p.variance, dense.variance)
    assert p.entropy().shape == (3,)
    assert p.rsample((2,)).shape == (2, 3, M)


@pytest.mark.parametrize("kind", KINDS + UNIT)
def test_vectors_of_no_elements(kind):
    name = kind.split()[-1]
    A = spgrad.zeros((0, 0), dtype=torch.float64).requires_grad_()
    more = {"diagonal": torch.zeros(0, dtype=torch.float64)} if "unit" in kind else {}
    p = SparseMultivariateNormal(torch.zeros(0, dtype=torch.float64), **{name: A}, **more)
    assert p.rsample((2,)).shape == (2, 0)
    assert p.variance.shape == (0,)
    density = p.log_prob(torch.zeros(2, 0, dtype=torch.float64))
    assert torch.equal(density, torch.zeros(2, dtype=torch.float64))
    assert p.entropy() == 0


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("kind", KINDS + UNIT)
def test_batches_without_items(kind, checked):
    ours, _ = parameters(kind)
    ours["loc"] = ours["loc"].detach().expand(0, M)
    p = SparseMultivariateNormal(**ours, validate_args=checked)
    assert p.log_prob(torch.zeros(3, 0, M, dtype=torch.float64)).shape == (3, 0)
    assert p.rsample((2,)).shape == (2, 0, M)
    assert p.entropy().shape == (0,)
    assert kl_divergence(p, p).shape == (0,)


@pytest.mark.parametrize("of_q", KINDS)
@pytest.mark.parametrize("of_p", KINDS)
def test_divergence_of_two_dtypes(of_p, of_q):
    wide, _ = parameters(of_p)
    narrow = {name: x.detach().float() for name, x in wide.items()}
    q = SparseMultivariateNormal(**parameters(of_q, seed=3)[0])
    found = kl_divergence(SparseMultivariateNormal(**narrow), q)
    assert found.dtype == torch.float64
    known = kl_divergence(SparseMultivariateNormal(**wide), q)
    torch.testing.assert_close(found, known, rtol=1e-4, atol=1e-4)


def test_native_tensors_and_what_is_not_sparse():
    L = lower()
    native = L.to_sparse_csr().requires_grad_()
    p = SparseMultivariateNormal(torch.zeros(M, dtype=torch.float64), scale_tril=native)
    p.log_prob(value()).sum().backward()
    assert native.grad.layout == torch.sparse_csr
    assert p.precision_tril is None
    assert p.scale_tril.shape == (M, M)
    torch.testing.assert_close(p.covariance_matrix.to_dense(), L @ L.mT)
    with pytest.raises(NotImplementedError, match=r"`precision_matrix` is the inverse"):
        _ = p.precision_matrix
    q = SparseMultivariateNormal(torch.zeros(M, dtype=torch.float64), precision_tril=native)
    assert q.scale_tril is None
    with pytest.raises(NotImplementedError, match=r"`covariance_matrix` is the inverse"):
        _ = q.covariance_matrix
