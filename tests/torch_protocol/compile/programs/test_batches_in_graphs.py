"""Batches and hybrid tensors whose sizes change from call to call, in one graph."""

import pytest
import torch
from compiling import compare
from samples import made
from torch._dynamo.testing import CompileCounterWithBackend

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the compiler are not ours


def check(function, operands):
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(function, fullgraph=True, backend=counter)
    for A in operands:
        compare(compiled, function, A)
    assert counter.frame_count <= 2


@pytest.mark.parametrize("name", ["sum", "amax", "mean"])
def test_a_reduction_over_the_batch(name):
    """Its result is sparse, and has the sizes of the matrices."""
    shape = lambda i: made("csr", (2, 6 + 2 * i, 6 + 2 * i), seed=i)  # noqa: E731
    check(lambda A: getattr(A, name)(0), [shape(i) for i in range(3)])


def test_dense_dimensions():
    shape = lambda i: made("coo", (6 + 2 * i, 5 + i, 2 + i), seed=i, dense_dim=1)  # noqa: E731
    operands = [shape(i) for i in range(3)]
    check(lambda A: A.sum(-1), operands)
    torch._dynamo.reset()
    check(lambda A: torch.softmax(A, 1), operands)
    torch._dynamo.reset()
    check(lambda A: torch.cat([A, A], -1).sum(0), operands)
