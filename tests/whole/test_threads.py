"""Results and gradients do not depend on the number of threads, to the last bit."""

import pytest
import torch

import spgrad

N = 100_000


@pytest.fixture(scope="module")
def operands():
    generator = torch.Generator().manual_seed(0)
    at = torch.randint(0, N, (2, 3 * N), generator=generator)
    indices = torch.cat([at, torch.arange(N).repeat(2, 1)], 1)
    coo = spgrad.sparse_coo_tensor(indices, torch.ones(4 * N), (N, N)).coalesce()
    A = spgrad.from_values(torch.randn(coo.nse, generator=generator), coo).to_sparse_csr()
    return A, spgrad.from_values(torch.randn(A.nse, generator=generator), A)


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


PROGRAMS = {
    "trace": lambda A, B, s: A.trace(),
    "sum": lambda A, B, s: A.sum(),
    "mean": lambda A, B, s: A.mean(),
    "std": lambda A, B, s: A.std(),
    "std of the specified": lambda A, B, s: A.std(specified=True),
    "norm": lambda A, B, s: spgrad.norm(A),
    "logsumexp": lambda A, B, s: spgrad.logsumexp(A, (0, 1)),
    "rows": lambda A, B, s: A.std(1).cumsum(0)[-1],
    "columns": lambda A, B, s: A.std(0).cumsum(0)[-1],
    "times a number": lambda A, B, s: (A * s).sum(),
    "times one number": lambda A, B, s: (A * s.view(1, 1)).sum(),
    "divided by a number": lambda A, B, s: (A / s).sum(),
    "lerp": lambda A, B, s: spgrad.lerp(A, B, s).sum(),
    "addcmul": lambda A, B, s: spgrad.addcmul(A, B, s).sum(),
    "a product of sums": lambda A, B, s: spgrad.einsum("ij,kl->ij", A, B).sum(),
    "dot": lambda A, B, s: spgrad.tensordot(A, B, 2),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name, operands, threads):
    found = []
    for number in (1, 2, 4):
        threads(number)
        A, B = (t.detach().clone().requires_grad_() for t in operands)
        s = torch.tensor(1.5, requires_grad=True)
        y = PROGRAMS[name](A, B, s)
        grads = torch.autograd.grad(y, (A, B, s), allow_unused=True)
        found.append([y, *(g for g in grads if g is not None)])
    first = [t._vals if isinstance(t, spgrad.SparseTensor) else t for t in found[0]]
    assert len(first) > 1
    for others in found[1:]:
        for one, other in zip(first, others, strict=True):
            vals = other._vals if isinstance(other, spgrad.SparseTensor) else other
            assert torch.equal(one, vals)
