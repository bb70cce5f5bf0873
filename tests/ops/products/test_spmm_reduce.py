"""mm with another reduction than the sum, in every layout."""

import pytest
import torch
from samples import made

import spgrad
from spgrad import support, testing

layouts = pytest.mark.parametrize("layout", support.ALL)


REDUCE = ("sum", "mean", "amax", "amin", "prod")


def dense_reduced_product(A, x, mask, reduce):
    """All products (m, k, n), with unspecified ones left out."""
    terms = A[:, :, None] * x
    left_out = ~mask[:, :, None]
    count = mask.sum(1)[:, None]
    if reduce in ("sum", "mean"):
        y = terms.sum(1)
        return y / count.clamp(min=1) if reduce == "mean" else y
    fill = {"amax": -torch.inf, "amin": torch.inf, "prod": 1}[reduce]
    terms = terms.masked_fill(left_out, fill)
    y = terms.prod(1) if reduce == "prod" else getattr(terms, reduce)(1)
    return y.masked_fill(count == 0, 0)


@pytest.mark.parametrize("reduce", REDUCE)
@pytest.mark.parametrize("density", [0.0, 0.4, 1.0])
@layouts
def test_mm_reduce(layout, density, reduce, poisoned):
    for coalesced in (True, False) if layout == "coo" else (True,):
        A = made(layout, (6, 4), density=density, coalesced=coalesced).requires_grad_()
        x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
        y = torch.sparse.mm(A, x, reduce)
        twins = [t.detach().clone().requires_grad_() for t in (A.to_dense(), x)]
        wanted = dense_reduced_product(*twins, testing.mask_of(A.pattern), reduce)
        testing.assert_close(y, wanted)
        g = torch.randn_like(wanted)
        want = torch.autograd.grad(wanted, twins, g)
        got = torch.autograd.grad(y, (A, x), g)
        assert got[0].pattern is A.pattern
        at = spgrad.to_dense(spgrad.from_values(torch.ones_like(A._vals), A.pattern))
        testing.assert_close(got[0], torch.where(at == 0, at, want[0] * at))
        testing.assert_close(got[1], want[1])


@pytest.mark.parametrize(
    ("reduce", "zeros"), [*((reduce, 0) for reduce in REDUCE), ("mean", 0.3), ("prod", 0.3)]
)
def test_derivatives_of_mm_reduce(reduce, zeros):
    A = made("csr", (5, 4), density=0.6)
    vals, x = A.values().clone(), torch.randn(4, 3, dtype=torch.float64)
    for t in (vals, x):
        t[torch.rand_like(t) < zeros] = 0
        t.requires_grad_()

    def run(vals, x):
        return spgrad.mm(spgrad.from_values(vals, A), x, reduce)

    assert torch.autograd.gradcheck(run, (vals, x))
    y = run(vals, x)
    g = torch.rand_like(y)
    recorded = torch.autograd.grad(y, (vals, x), g, create_graph=True)
    for got, wanted in zip(recorded, torch.autograd.grad(y, (vals, x), g), strict=True):
        testing.assert_close(got, wanted)
    assert torch.autograd.gradgradcheck(run, (vals, x))


def test_gradients_of_a_product_of_complex_numbers():
    A = made("csr", (5, 4), dtype=torch.complex128, density=0.6).requires_grad_()
    x = torch.randn(4, 3, dtype=A.dtype)
    x[1, 1] = 0
    x.requires_grad_()
    mask = testing.mask_of(A.pattern)
    twins = [t.detach().clone().requires_grad_() for t in (A.to_dense(), x)]
    wanted = dense_reduced_product(*twins, mask, "prod")
    y = spgrad.spmm(A, x, "prod")
    testing.assert_close(y, wanted)
    g = torch.randn_like(wanted)
    (of_A, of_x), want = torch.autograd.grad(y, (A, x), g), torch.autograd.grad(wanted, twins, g)
    testing.assert_close(of_A.to_dense(), want[0] * mask)
    testing.assert_close(of_x, want[1])


def test_second_derivatives_of_a_product_of_complex_numbers():
    """With one zero among the factors, and with two."""
    A = spgrad.from_dense(torch.tensor([[1 + 2j, 2 - 1j, 0], [1j, 3.0, 1 - 1j]]).cdouble())
    x = torch.tensor([[0, 1 + 1j], [2 - 1j, 0], [0, 1j]]).cdouble().requires_grad_()
    assert torch.autograd.gradgradcheck(lambda x: spgrad.spmm(A, x, "prod"), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64])
@pytest.mark.parametrize("reduce", REDUCE)
def test_mm_reduce_of_other_dtypes(reduce, dtype):
    A = made("csc", (6, 4), dtype=dtype)
    x = testing.random_dense((4, 3), dtype=dtype, generator=torch.Generator())
    if dtype == torch.int64 and reduce == "mean":
        with pytest.raises(spgrad.ArgumentValueError, match=r"spgrad\.mm: `input` has dtype int64"):
            spgrad.mm(A, x, reduce)
        return
    y = spgrad.mm(A, x, reduce)
    assert y.dtype == dtype
    wide = torch.float64 if dtype.is_floating_point else dtype
    dense = A.to_dense().to(wide).double(), x.double()
    wanted = dense_reduced_product(*dense, testing.mask_of(A.pattern), reduce)
    testing.assert_close(y, wanted.to(wide))


@pytest.mark.parametrize("reduce", ["amax", "amin"])
def test_second_derivatives_of_a_matrix_without_elements(reduce):
    """They have the graph that they have where there are elements."""
    A = spgrad.zeros(3, 4, layout=torch.sparse_csr).requires_grad_()
    x = torch.randn(4, 2).requires_grad_()
    g = torch.randn(3, 2).requires_grad_()
    of_A, of_x = torch.autograd.grad(spgrad.mm(A, x, reduce), (A, x), g, create_graph=True)
    assert of_A.nse == 0
    assert torch.equal(of_x, torch.zeros(4, 2))
    for first, operands in ((of_A.sum(), (x, g)), (of_x.sum(), (A, g))):
        for second in torch.autograd.grad(first, operands):
            assert not second.to_dense().any()


@pytest.mark.parametrize("zeros", [0, 1, 2, 3])
def test_second_derivatives_of_a_product_with_zeros_in_a_row(zeros):
    """Zeros in x, in the values and in both at one place, against dense torch to the sign."""
    A = spgrad.from_dense(torch.tensor([[2.0, 3.0, 5.0], [0.0, 7.0, 0.0]], dtype=torch.float64))
    mask = A.to_dense() != 0
    x = torch.tensor([[1.5], [-2.5], [3.5]], dtype=torch.float64)
    x[:zeros] = 0

    def sparse(x, vals):
        return (
            spgrad.mm(spgrad.from_values(vals, A), x, "prod").square().sum()
            + spgrad.mm(spgrad.from_values(vals, A), x, "prod").sum()
        )

    def dense(x, vals):
        full = torch.ones(2, 3, dtype=torch.float64).masked_scatter(mask, vals)
        y = torch.where(mask, full * x[:, 0], 1).prod(1)
        return y.square().sum() + y.sum()

    for vals in (A.values().clone(), torch.tensor([2.0, 0, 0, 7], dtype=torch.float64)):
        got = torch.autograd.functional.hessian(sparse, (x, vals))
        wanted = torch.autograd.functional.hessian(dense, (x, vals))
        for row, expected in zip(got, wanted, strict=True):
            for a, b in zip(row, expected, strict=True):
                testing.assert_close(a, b)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_means_of_more_elements_than_16_bits_count(dtype):
    nse = 70_000
    A = spgrad.sparse_csr_tensor([0, nse], torch.arange(nse), torch.full((nse,), 0.5), (1, nse))
    x = torch.ones(nse, 2, dtype=dtype)
    A, x = A.to(dtype).requires_grad_(), x.requires_grad_()
    y = spgrad.spmm(A, x, "mean")
    assert torch.equal(y, torch.full((1, 2), 0.5, dtype=dtype))
    y.float().sum().backward()
    expected = torch.full((nse,), 2 / nse)
    torch.testing.assert_close(A.grad.values().float(), expected, rtol=0.01, atol=0)


@pytest.mark.parametrize("heads", [(), (2,)])
def test_gradients_of_means_of_float16_whose_sums_are_out_of_range(heads):
    A = spgrad.from_dense(torch.ones(2, 3000, *heads, dtype=torch.float16), dense_dim=len(heads))
    A, x = A.requires_grad_(), torch.full((3000, *heads, 2), 100.0, dtype=torch.float16)
    y = spgrad.spmm(A, x.requires_grad_(), "mean")
    assert torch.equal(y, torch.full_like(y, 100))
    y.float().sum().backward()
    assert A.grad.dtype == x.grad.dtype == torch.float16
    torch.testing.assert_close(x.grad, torch.full_like(x, 2 / 3000))
    torch.testing.assert_close(A.grad.values(), torch.full_like(A.values(), 200 / 3000))


@pytest.mark.parametrize("value", [1.0, 3.0])
@pytest.mark.parametrize("heads", [None, 2])
def test_means_of_float16_whose_sums_are_out_of_range(heads, value):
    nse, half = 70_000, {"dtype": torch.float16}
    vals = torch.full((nse, *([] if heads is None else [heads])), value, **half)
    A = spgrad.sparse_csr_tensor([0, nse], torch.arange(nse), vals, (1, nse, *vals.shape[1:]))
    A = A.requires_grad_()
    x = torch.full((nse, 2), 4.0, **half, requires_grad=True)
    y = spgrad.spmm(A, x, "mean")
    assert torch.equal(y, torch.full_like(y, 4 * value))
    y.sum().backward()
    of_vals, of_x = torch.full_like(vals, 8 / nse), torch.full_like(x, value * (heads or 1) / nse)
    torch.testing.assert_close(A.grad.values(), of_vals, rtol=0.01, atol=0)
    torch.testing.assert_close(x.grad, of_x, rtol=0.01, atol=0)


def test_means_of_float16_of_blocks():
    A = made("bsr", (6, 4), dtype=torch.float16)
    x = testing.random_dense((4, 3), dtype=torch.float16, generator=torch.Generator())
    wanted = spgrad.spmm(A.double(), x.double(), "mean")
    testing.assert_close(spgrad.spmm(A, x, "mean"), wanted)
