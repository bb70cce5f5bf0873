"""Batches and hybrid tensors whose sizes change from call to call, in one graph."""

import pytest
import torch
from compiling import compare_in_two_graphs
from samples import made

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the compiler are not ours


@pytest.mark.parametrize("name", ["sum", "amax", "mean"])
def test_a_reduction_over_the_batch(name):
    """Its result is sparse, and has the sizes of the matrices."""
    shape = lambda i: made("csr", (2, 6 + 2 * i, 6 + 2 * i), seed=i)  # noqa: E731
    compare_in_two_graphs(lambda A: getattr(A, name)(0), [shape(i) for i in range(3)])


def test_dense_dimensions():
    shape = lambda i: made("coo", (6 + 2 * i, 5 + i, 2 + i), seed=i, dense_dim=1)  # noqa: E731
    operands = [shape(i) for i in range(3)]
    compare_in_two_graphs(lambda A: A.sum(-1), operands)
    torch._dynamo.reset()
    compare_in_two_graphs(lambda A: torch.softmax(A, 1), operands)
    torch._dynamo.reset()
    compare_in_two_graphs(lambda A: torch.cat([A, A], -1).sum(0), operands)
