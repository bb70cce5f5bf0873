"""Cases of sort, cumsum and topk that no dense function covers: ties, NaN, empty rows, refusals."""

import math

import pytest
import torch

import spgrad

NAN = math.nan


def matrix(layout="csr"):
    A = spgrad.sparse_csr_tensor(
        [0, 4, 4, 6], [0, 2, 3, 5, 1, 4], [2.0, -1.0, 2.0, 0.0, NAN, -3.0], (3, 6)
    )
    return A.to_sparse(layout=getattr(torch, f"sparse_{layout}"))


@pytest.mark.parametrize("layout", ["coo", "csr", "csc"])
def test_equal_elements_stay_in_order_and_nan_is_the_largest(layout):
    values, places = spgrad.sort(matrix(layout))
    found = places.to_sparse_csr().values()
    assert found.tolist() == [2, 5, 0, 3, 4, 1]
    assert values.pattern is places.pattern
    down = spgrad.argsort(matrix(layout), descending=True).to_sparse_csr().values()
    assert down.tolist() == [0, 3, 5, 2, 1, 4]


def test_topk_counts_unspecified_zeros_where_they_are():
    values, indices = torch.topk(matrix(), 4)
    assert indices.tolist() == [[0, 3, 1, 4], [0, 1, 2, 3], [1, 0, 2, 3]]
    assert values[0].tolist() == [2, 2, 0, 0]
    low = spgrad.topk(matrix(), 2, largest=False).indices
    assert low.tolist() == [[2, 1], [0, 1], [4, 0]]


def test_topk_of_specified_elements_is_filled_up():
    values, indices = spgrad.topk(matrix(), 3, specified=True)
    assert indices.tolist() == [[0, 3, 5], [-1, -1, -1], [1, 4, -1]]
    assert values[1].tolist() == [0, 0, 0]


def test_a_specified_zero_that_topk_takes_has_a_gradient():
    A = spgrad.sparse_csr_tensor([0, 2], [0, 1], [0.0, -1.0], (1, 3)).requires_grad_()
    spgrad.topk(A, 2).values.sum().backward()
    assert A.grad.values().tolist() == [1, 0]


def test_running_sums_do_not_cross_lines():
    A = spgrad.sparse_csr_tensor([0, 2, 5], [0, 1, 0, 1, 2], [1.0, math.inf, 1.0, 2.0, 3.0], (2, 3))
    assert spgrad.cumsum(A).values().tolist() == [1, math.inf, 1, 3, 6]
    wide = spgrad.cumsum(A.to(torch.bfloat16), dtype=torch.float64)
    assert wide.dtype == torch.float64


def test_running_sums_of_one_long_row_are_as_exact_as_of_many():
    A = spgrad.from_dense(torch.full((1, 5000), 0.1))
    assert spgrad.cumsum(A).values()[-1].item() == pytest.approx(500, rel=1e-6)


def test_a_vector_and_a_batch_dimension():
    v = spgrad.sparse_coo_tensor([[0, 2, 4]], [3.0, 1.0, 2.0], (5,))
    assert spgrad.sort(v)[0].values().tolist() == [1, 2, 3]
    assert spgrad.topk(v, 2).indices.tolist() == [0, 4]
    A = spgrad.from_dense(torch.tensor([[[2.0]], [[1.0]], [[0.0]]]))
    assert spgrad.sort(A, 0)[0].to_dense().flatten().tolist() == [1, 2, 0]
    assert spgrad.cumsum(A, 0).to_dense().flatten().tolist() == [2, 3, 0]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda A: spgrad.topk(A, 7), "`k` is 7 for 6 elements along `dim`"),
        (lambda A: spgrad.topk(A, 1.0), "`k` is 1.0; an int"),
        (lambda A: spgrad.topk(A, 1, 2), "`dim` is 2 for a tensor of 2"),
        (lambda A: spgrad.sort(A.to(torch.complex64)), "dtype complex64"),
        (
            lambda A: spgrad.topk(A.unsqueeze(0).to_sparse_coo(), 1, 0),
            "`dim` is 0; scalar elements",
        ),
        (torch.sort, "Use spgrad.sort"),
        (lambda A: A.cumsum(0), "Use spgrad.cumsum"),
    ],
)
def test_refusals(call, text):
    with pytest.raises(spgrad.SpgradError, match=text):
        call(matrix())
