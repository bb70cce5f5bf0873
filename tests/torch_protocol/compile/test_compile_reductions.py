"""Reductions, softmax and reducing products under torch.compile with fullgraph=True."""

import pytest
import torch
from compiling import compare, compiled
from samples import made

import spgrad
from spgrad import testing

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the compiler are not ours


X = torch.linspace(-1, 1, 12, dtype=torch.float64).view(6, 2)
CASES = {
    "sum": lambda A: torch.sum(A, 0),
    "sum_method": lambda A: A.sum(1),
    "mean_of_specified": lambda A: A.mean(1, specified=True),
    "prod": lambda A: A.prod(1),
    "amax": lambda A: torch.amax(A, 0),
    "max": lambda A: A.max(1).values,
    "argmax": lambda A: A.argmax() + A.sum(),
    "any_and_all": lambda A: A.any(1) * A.sum(1) + A.all(),
    "count_nonzero": lambda A: torch.count_nonzero(A) * A.sum(),
    "norm": lambda A: A.norm(dim=1) + torch.norm(A),
    "vector_norm": lambda A: torch.linalg.vector_norm(A, 3, dim=0),
    "matrix_norm": lambda A: torch.linalg.matrix_norm(A, 1),
    "var": lambda A: A.var(1) + torch.std(A, 1),
    "logsumexp": lambda A: A.logsumexp(1),
    "trace": torch.trace,
    "sparse_sum": torch.sparse.sum,
    "softmax": lambda A: torch.softmax(A, 1),
    "log_softmax_method": lambda A: A.log_softmax(-2),
    "functional_softmax": lambda A: torch.nn.functional.softmax(A, dim=0),
    "mm_amax": lambda A: torch.sparse.mm(A, X, "amax"),
    "mm_mean": lambda A: spgrad.mm(A, X, reduce="mean"),
    "mm_prod": lambda A: spgrad.mm(A, X, "prod"),
}


@pytest.mark.parametrize("layout", ["csr", "bsc"])
@pytest.mark.parametrize("case", CASES)
def test_traced(case, layout):
    function = CASES[case]
    compare(function, compiled(function, "aot_eager"), made(layout))


def test_by_inductor():
    A = made().requires_grad_()

    def attention(A):
        weight = torch.softmax(A, 1)
        return weight @ X + A.mean(1, specified=True)[:, None] + A.amax(0).sum()

    y = compiled(attention)(A)
    testing.assert_close(y.detach(), attention(A).detach())
