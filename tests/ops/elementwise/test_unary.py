"""Functions of one element: special values, repeats, in place, chance, refusals."""

import pytest
import torch
import torch.nn.functional as F

import spgrad
from spgrad import support, testing
from spgrad.core.pattern import LAYOUTS

ROWS = [row for row in support.OPS.values() if row.module == "elementwise.unary" and row.layouts]
NAMED = [row for row in ROWS if row.name not in ("map", "dropout")]
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, float("inf"), -float("inf"), float("nan")]


@pytest.mark.parametrize("row", NAMED, ids=lambda row: row.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_special_values(row, dtype):
    """Explicit zeros, infinities and NaN go through as in a dense tensor."""
    vals = torch.tensor(SPECIAL, dtype=dtype)
    complex_only = "Z[" in row.signatures[0]
    vals = vals.to(torch.complex64) if complex_only else vals
    A = spgrad.sparse_csr_tensor([0, 8], list(range(0, 16, 2)), vals, (1, 16))
    for options in row.samples:
        y = getattr(spgrad, row.name)(A, **options)
        expected = row.dense(vals, **options)
        assert y.dtype == expected.dtype
        torch.testing.assert_close(y.values(), expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("row", NAMED, ids=lambda row: row.name)
@pytest.mark.parametrize("zoo", ["no_entries", "no_rows", "no_columns", "empty_rows"])
def test_empty_tensors(row, zoo):
    A = spgrad.from_dense(testing.ZOO[zoo]().abs().clamp(max=0.9))
    if "Z[" in row.signatures[0]:
        A = A.to(torch.complex64)
    y = getattr(spgrad, row.name)(A, **row.samples[0])
    assert y.pattern is A.pattern
    assert y.shape == A.shape


@pytest.mark.parametrize("name", ["sqrt", "abs", "relu", "square", "floor", "sin"])
def test_functions_that_are_not_linear_add_repeats_first(name):
    A = spgrad.sparse_coo_tensor([[1, 0, 1]], [3.0, -4.5, 1.0], (3,))
    y = getattr(A, name)()
    assert y.is_coalesced()
    torch.testing.assert_close(
        y.to_dense(), getattr(A.to_dense(), name)(), equal_nan=True, rtol=0, atol=0
    )


@pytest.mark.parametrize("name", ["neg", "deg2rad", "rad2deg"])
def test_linear_functions_keep_repeats(name):
    A = spgrad.sparse_coo_tensor([[1, 0, 1]], [3.0, -4.5, 1.0], (3,))
    y = getattr(A, name)()
    assert y.pattern is A.pattern
    testing.assert_close(y, getattr(A.to_dense(), name)())


def test_map_passes_arguments_on():
    A = spgrad.from_dense(torch.tensor([[0.0, 4.0], [9.0, 0.0]]))
    assert spgrad.map(A, torch.pow, 0.5).values().tolist() == [2, 3]
    assert spgrad.map(A, torch.clamp, min=5).values().tolist() == [5, 9]
    assert spgrad.map(A, lambda v: v > 4).dtype == torch.bool
    assert spgrad.map(A, torch.exp).pattern is A.pattern


def test_map_refuses_what_is_no_function_of_one_element():
    A = spgrad.from_dense(torch.eye(3))
    with pytest.raises(ValueError, match=r"spgrad\.map: the function gives .* shape \(\)"):
        spgrad.map(A, torch.sum)
    with pytest.raises(TypeError, match=r"spgrad\.map: `fn` is a float"):
        spgrad.map(A, 2.0)
    with pytest.raises(TypeError, match=r"spgrad\.map: `input` is a dense tensor"):
        spgrad.map(torch.eye(3), torch.exp)
    with pytest.raises(TypeError, match=r"spgrad\.map: `fn` does not take values of dtype float32"):
        spgrad.map(A, torch.pow)


@pytest.mark.parametrize(
    "options", [{"min": 0.5}, {"max": -0.5}, {"min": 0.1, "max": 0.2}, {"min": torch.tensor([0.5])}]
)
def test_clamp_keeps_zero(options):
    A = spgrad.from_dense(torch.eye(3))
    with pytest.raises(ValueError, match=r"spgrad\.clamp: .* of 0.*spgrad\.map"):
        A.clamp(**options)


def test_refusals_name_the_way_out():
    A = spgrad.from_dense(torch.eye(3))
    with pytest.raises(NotImplementedError, match=r"exp\(0\) is 1.*spgrad\.map\(A, torch\.exp\)"):
        torch.exp(A)
    with pytest.raises(NotImplementedError, match=r"cos\(0\) is 1"):
        A.cos_()
    with pytest.raises(ValueError, match=r"spgrad\.floor: `input` has dtype complex64; integer"):
        A.to(torch.complex64).floor()


@pytest.mark.parametrize("layout", support.ALL)
def test_in_place_forms_change_the_tensor(layout):
    A = testing.random_sparse((4, 6), LAYOUTS[layout])
    alias, vals = A.detach(), A.values().clone()
    assert A.abs_() is A
    torch.testing.assert_close(alias.values(), vals.abs())
    A.neg_().relu_().square_()
    assert not A.values().any()
    F.leaky_relu_(A.add_(alias))
    F.relu(A, inplace=True)


def test_in_place_derivatives():
    a = torch.tensor([[0.0, 0.3], [0.6, 0.0]], dtype=torch.float64)
    A, twin = spgrad.from_dense(a).requires_grad_(), a.clone().requires_grad_()
    y, expected = (A * 1), (twin * 1)
    for name in ("sin_", "tanh_", "square_", "sqrt_", "asin_"):
        getattr(y, name)()
    (((twin * 1).sin().tanh() ** 2 + (a == 0)).sqrt() * (a != 0)).asin().sum().backward()
    y.values().sum().backward()
    testing.assert_close(A.grad, twin.grad * (a != 0))
    assert expected.shape == y.shape


def test_in_place_on_a_leaf_that_needs_its_gradient_is_refused():
    A = spgrad.from_dense(torch.eye(3)).requires_grad_()
    with pytest.raises(RuntimeError, match="leaf"):
        A.abs_()


def test_dropout():
    A = spgrad.from_dense(torch.ones(200, 200)).requires_grad_()
    y = F.dropout(A, 0.3)
    kept = y.values() != 0
    assert 0.68 < kept.float().mean() < 0.72
    torch.testing.assert_close(y.values()[kept], torch.full((int(kept.sum()),), 1 / 0.7))
    y.values().sum().backward()
    torch.testing.assert_close(A.grad.values(), y.values().detach())
    layer = torch.nn.Dropout(0.3)
    assert layer.eval()(A).values().min() == 1
    assert layer.train()(A).values().min() == 0
    with pytest.raises(
        ValueError, match=r"spgrad\.dropout: `p` is 1.5; numbers from 0 to 1 are accepted"
    ):
        F.dropout(A, 1.5)


def test_dropout_drops_sums_of_repeats():
    A = spgrad.sparse_coo_tensor([[0] * 50 + [1]], torch.ones(51), (2,))
    values = {F.dropout(A, 0.5).to_dense()[0].item() for _ in range(20)}
    assert values == {0.0, 100.0}


def test_complex_parts():
    vals = torch.tensor([1 + 2j, -3j])
    A = spgrad.sparse_coo_tensor([[0, 1]], vals, (3,)).coalesce()
    assert A.real.values().tolist() == [1, 0]
    assert A.imag.values().tolist() == [2, -3]
    assert A.conj().values().tolist() == vals.conj().tolist()
    assert not A.conj().values().is_conj()  # so that NumPy and DLPack take them
    assert A.abs().dtype == torch.float32
    torch.testing.assert_close(A.angle().values(), vals.angle())
    with pytest.raises(ValueError, match=r"spgrad\.imag: .*float32; complex dtypes are accepted"):
        torch.imag(A.real)


def test_results_own_their_memory():
    A = spgrad.sparse_coo_tensor([[0, 1]], torch.tensor([1 + 2j, -3j]), (3,)).coalesce()
    A.real.zero_()
    assert A.values().tolist() == [1 + 2j, -3j]


@pytest.mark.parametrize(
    "convert",
    [
        lambda A: A.to(torch.complex128),
        lambda A: A.to("cpu", torch.complex128, copy=True),
        lambda A: A.type(torch.complex64),
        torch.Tensor.cfloat,
        torch.Tensor.cdouble,
    ],
)
def test_real_tensors_become_complex_and_get_real_gradients(convert):
    A = testing.random_sparse((4, 6)).requires_grad_()
    twin = A.detach().to_dense().requires_grad_()
    y, expected = convert(A), convert(twin)
    assert y.dtype == expected.dtype
    testing.assert_close(y.detach(), expected.detach())
    weight = torch.randn(expected.shape, dtype=expected.dtype)
    (y.to_dense() * weight).real.sum().backward()
    (expected * weight).real.sum().backward()
    assert A.grad.dtype == A.dtype
    testing.assert_close(A.grad, twin.grad * testing.mask_of(A.pattern))
