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


def test_rows_with_fewer_elements_than_asked_for_under_vmap():
    A, many = matrix(), torch.arange(12.0).reshape(2, 6) - 4

    def largest(v):
        return spgrad.topk(spgrad.from_values(v, A), 4, specified=True)

    of = torch.func.vmap(lambda v: largest(v).values)(many)
    each = [largest(v).values for v in many]
    assert torch.equal(of, torch.stack(each))


def test_topk_counts_unspecified_zeros_where_they_are():
    values, indices = torch.topk(matrix(), 4)
    assert indices.tolist() == [[0, 3, 1, 4], [0, 1, 2, 3], [1, 0, 2, 3]]
    assert values[0].tolist() == [2, 2, 0, 0]
    low = spgrad.topk(matrix(), 2, largest=False).indices
    assert low.tolist() == [[2, 1], [0, 1], [4, 0]]


@pytest.mark.parametrize("layout", ["coo", "csr", "csc", "bsr", "bsc"])
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("largest", [True, False])
def test_topk_of_torch_is_that_of_the_dense_matrix(layout, dim, largest):
    x = torch.zeros(4, 6, dtype=torch.float64)
    x[0, 1], x[0, 4], x[1, 0], x[1, 1], x[3, 5] = 2.0, -3.0, -1.0, 4.0, 0.5
    x.requires_grad_()
    blocks = {"blocksize": (2, 2)} if layout.startswith("bs") else {}
    A = spgrad.from_dense(x.detach()).to_sparse(layout=getattr(torch, f"sparse_{layout}"), **blocks)
    A = A.detach().requires_grad_()
    k = 4
    found, wanted = (torch.topk(t, k, dim, largest).values for t in (A, x))
    assert torch.equal(found, wanted)
    g = torch.randn_like(wanted)
    found.backward(g)
    order = x.sort(dim=dim, descending=largest, stable=True).values.narrow(dim, 0, k)
    order.backward(g)
    assert torch.equal(A.grad.to_dense(), x.grad.where(spgrad.testing.mask_of(A.pattern), 0))


@pytest.mark.parametrize("value", [-1.0, 0.0, 1.0])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_topk_of_one_element_among_zeros(at, value):
    A = spgrad.sparse_csr_tensor([0, 1], [at], [value], (1, 3))
    for largest in (True, False):
        wanted = A.to_dense().sort(dim=1, descending=largest, stable=True)
        values, indices = spgrad.topk(A, 3, largest=largest)
        assert torch.equal(values, wanted.values)
        assert torch.equal(indices, wanted.indices)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dim", [0, 1])
def test_topk_sorts_stably_with_zeros_of_both_kinds(dim, largest):
    """Small numbers, of which many are equal; explicit zeros, NaN and infinities among them."""
    for seed in range(20):
        made = torch.Generator().manual_seed(seed)
        rows, columns = (int(torch.randint(0, 7, (), generator=made)) for _ in range(2))
        x = torch.randint(-2, 3, (rows, columns), generator=made).float()
        x[torch.rand(x.shape, generator=made) < 0.2] = [torch.nan, torch.inf, -torch.inf][seed % 3]
        A = spgrad.from_dense(x)
        vals = A.values().clone()
        vals[torch.rand(vals.shape, generator=made) < 0.3] = 0
        A = spgrad.from_values(vals, A)
        wanted = A.to_dense().sort(dim=dim, descending=largest, stable=True)
        for k in range(x.shape[dim] + 1):
            values, indices = spgrad.topk(A, k, dim, largest)
            assert torch.equal(indices, wanted.indices.narrow(dim, 0, k))
            torch.testing.assert_close(
                values, wanted.values.narrow(dim, 0, k), equal_nan=True, rtol=0, atol=0
            )


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
        (torch.sort, r"Use spgrad.sort\(A\) for its specified elements alone, or torch.topk"),
        (
            torch.sort,
            "has no form for a SparseTensor, because the zeros count and the result would",
        ),
        (lambda A: A.cumsum_(0), r"the result would be dense; .* Use spgrad.cumsum\(A\)"),
        (lambda A: A.sort(0), r"Use spgrad.sort\(A\) for its specified"),
        (torch.argsort, r"Use spgrad.argsort\(A\) for its specified"),
        (lambda A: A.argsort(), r"Use spgrad.argsort\(A\) for its specified"),
        (torch.msort, r"Use spgrad.sort\(A, 0\) for its specified"),
        (lambda A: torch.cumsum(A, 1), r"Use spgrad.cumsum\(A\) for its specified"),
        (lambda A: A.cumsum(0), r"Use spgrad.cumsum\(A\).* call it with A.to_dense\(\)"),
    ],
)
def test_refusals(call, text):
    with pytest.raises(spgrad.SpgradError, match=text):
        call(matrix())
