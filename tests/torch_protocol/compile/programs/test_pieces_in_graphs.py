"""Pieces and lists of indices in one graph."""

import pytest
import torch
from compiling import assert_same
from samples import made
from torch._dynamo.testing import CompileCounterWithBackend

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the compiler are not ours


def run(function, A):
    """Results, and the gradient of their sums."""
    A = A.clone().requires_grad_()
    found = function(A)
    found = found if isinstance(found, tuple) else (found,)
    sum((i + 1) * (x.to_dense() if hasattr(x, "pattern") else x).sin().sum()
        for i, x in enumerate(found)).backward()  # fmt: skip
    return (*found, A.grad)


def check(function, operands, most=2):
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(function, fullgraph=True, backend=counter)
    for A in operands:
        for one, other in zip(run(compiled, A), run(function, A), strict=True):
            assert_same(one, other)
    assert counter.frame_count <= most


PIECES = {
    "chunks": lambda A: A.chunk(2),
    "chunks_of_columns": lambda A: torch.chunk(A, 3, 1),
    "sections": lambda A: A.split([2, A.shape[0] - 2]),
    "narrow": lambda A: A.narrow(0, 1, A.shape[0] - 2),
    "rows": lambda A: A[[0, 2, 2]],
    "columns": lambda A: A[:, [2, 0]],
    "points": lambda A: A[[0, 2], [1, 1]],
    "rows_of_a_slice": lambda A: A[[0, 3], 1:4],
    "slices": lambda A: (A[-3:], A[:-2], A[1:1000:2], A[-1000:2], A[:, -2:-1]),
    "table": lambda A: A[[[0, 1], [2, 3]]],
}


@pytest.mark.parametrize("name", ["coo", "csr"])
@pytest.mark.parametrize("case", PIECES)
def test_of_matrices(case, name):
    """One compilation for the first shape, and one for every other."""
    check(PIECES[case], [made(name, (8 + 2 * i, 6 + 3 * i), seed=i) for i in range(3)])


@pytest.mark.parametrize(
    ("name", "shape"), [("coo", (3, 4)), ("csr", (3, 4)), ("csr", (2, 3, 4)), ("coo", (2, 3, 4))]
)
def test_unbind(name, shape):
    """The number of results is part of the graph, as for a dense tensor."""
    A = made(name, shape)
    for dim in range(len(shape)):
        check(lambda A, dim=dim: A.unbind(dim), [A, 2 * A], most=1)
        torch._dynamo.reset()


def test_split():
    check(lambda A: A.split(3), [made("csr", (8, 6 + i), seed=i) for i in range(3)])
