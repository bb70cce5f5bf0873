"""What a tensor says of itself is the same in compiled code, without a graph break."""

import pytest
import torch
from compiling import compare_in_two_graphs
from samples import made

import spgrad
from spgrad import support, testing

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the compiler are not ours

ASKED = {
    "dense_dim": lambda A: A.dense_dim(),
    "sparse_dim": lambda A: A.sparse_dim(),
    "_nnz": lambda A: A._nnz(),
    "is_sparse": lambda A: 2 if A.is_sparse else 3,
    "is_sparse_csr": lambda A: 2 if A.is_sparse_csr else 3,
    "layout": lambda A: 2 if A.layout == torch.sparse_csc else 3,
}


def results(asked, shape):
    def function(A):
        return A * (1 + asked(A)) * (2 + asked(A * 2))  # of an operand, and of a result

    return function, [shape(seed) for seed in range(3)]


PAIRS = [
    (case, name)
    for at, case in enumerate(ASKED)
    for name in {"coo", support.ALL[at % len(support.ALL)]}
]


@pytest.mark.parametrize(("case", "name"), sorted(PAIRS))
def test_of_matrices(case, name):
    compare_in_two_graphs(
        *results(ASKED[case], lambda i: made(name, (4 + 2 * i, 6 + 4 * i), seed=i))
    )


@pytest.mark.parametrize("case", ["dense_dim", "_nnz"])
def test_of_hybrid_tensors(case):
    shape = lambda i: made("coo", (4 + i, 5, 2), seed=i, dense_dim=1)  # noqa: E731
    compare_in_two_graphs(*results(ASKED[case], shape))


@pytest.mark.parametrize("uniform", [False, True])
def test_nnz_of_batches(uniform):
    """Of one item where all have as many elements."""

    def batch(i):
        A = made("csr", (2, 4 + 2 * i, 6), seed=i)
        return A[0].expand(3, -1, -1) if uniform else A

    compare_in_two_graphs(*results(ASKED["_nnz"], batch))


def test_nnz_of_a_dense_tensor_is_refused_by_torch():
    """The compiler's error is the one that it has without the library: torch has no kernel."""
    count = torch.compile(lambda x: x._nnz(), backend="eager", fullgraph=True)
    with pytest.raises(RuntimeError, match=r"kernel for aten\W+_nnz"):
        count(torch.ones(3, 3))


@pytest.mark.parametrize("coalesced", [False, True])
def test_is_coalesced(coalesced):
    compare_in_two_graphs(
        *results(
            lambda A: 2 if A.is_coalesced() else 3,
            lambda i: made("coo", (4 + i, 6), seed=i, coalesced=coalesced),
        )
    )


@pytest.mark.parametrize("method", ["dense_dim", "sparse_dim"])
def test_methods_of_a_dense_tensor_are_torchs(method):
    """They break the graph, as without the library."""

    def function(x):
        return x + getattr(x, method)()

    x = torch.ones(3, 4)
    assert torch.equal(torch.compile(function, backend="eager")(x), function(x))


def test_a_dense_tensor_has_no_pattern():
    def function(x):
        return x * (2 if hasattr(x, "pattern") else 3) * (5 if hasattr(x, "nse") else 7)

    found = torch.compile(function, backend="eager", fullgraph=True)(torch.ones(3, 4))
    assert torch.equal(found, 21 * torch.ones(3, 4))


def test_the_kind_of_a_pattern():
    def function(A):
        B = A * 2
        return B * (2 if isinstance(B.pattern, spgrad.Pattern) else 3)

    A = made("csr", (4, 6))
    found = torch.compile(function, backend="eager", fullgraph=True)(A)
    testing.assert_close(found, 4 * A.to_dense())
