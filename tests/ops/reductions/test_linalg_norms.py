"""torch.linalg.norm, F.normalize and matrix_power, and norms of explicit zeros."""

import pytest
import torch
import torch.nn.functional as F

import spgrad
from spgrad import support, testing
from spgrad.core.pattern import LAYOUTS

INF = float("inf")


@pytest.mark.parametrize("layout", support.ALL)
@pytest.mark.parametrize("ord", [None, "fro", 1, -1, INF, -INF])
@pytest.mark.parametrize("dim", [None, (1, 0)])
def test_norm_of_a_matrix(layout, ord, dim):
    A = testing.random_sparse((4, 6), LAYOUTS[layout])
    testing.assert_close(torch.linalg.norm(A, ord, dim), torch.linalg.norm(A.to_dense(), ord, dim))


@pytest.mark.parametrize("ord", [None, 0, 1, 2, 0.5, -1, INF])
@pytest.mark.parametrize("dim", [0, (1,), -1])
def test_norm_of_vectors(ord, dim):
    A = testing.random_sparse((4, 6))
    wanted = torch.linalg.norm(A.to_dense(), ord, dim, keepdim=True)
    testing.assert_close(torch.linalg.norm(A, ord, dim, keepdim=True), wanted)


def test_norm_of_a_vector_and_of_all_of_a_batch():
    v = testing.random_sparse((6,), torch.sparse_coo)
    testing.assert_close(torch.linalg.norm(v, 3), torch.linalg.norm(v.to_dense(), 3))
    B = testing.random_sparse((2, 4, 6))
    testing.assert_close(torch.linalg.norm(B), torch.linalg.norm(B.to_dense()))
    half = torch.linalg.norm(B, dtype=torch.float32)
    assert half.dtype == torch.float32


@pytest.mark.parametrize(
    ("ord", "dim", "error", "text"),
    [
        ("nuc", None, spgrad.UnsupportedError, "'nuc'"),
        (3, None, spgrad.ArgumentValueError, "`ord` is 3"),
        ("fro", 1, spgrad.ArgumentKindError, "`ord` is 'fro'"),
        (None, (0, 1, 2), spgrad.ArgumentValueError, "`dim` is"),
        (None, 5, spgrad.ArgumentIndexError, "`dim` is"),
    ],
)
def test_norms_that_are_refused(ord, dim, error, text):
    A = testing.random_sparse((4, 6))
    with pytest.raises(error, match=rf"spgrad\.linalg_norm: .*{text}"):
        torch.linalg.norm(A, ord, dim)


def test_a_dimension_is_an_int():
    with pytest.raises(spgrad.ArgumentKindError, match=r"linalg_norm: `dim` is 1\.5; an int"):
        spgrad.linalg_norm(testing.random_sparse((4, 6)), dim=1.5)


def test_an_order_of_a_batch_asks_for_dimensions():
    with pytest.raises(spgrad.ArgumentValueError, match=r"spgrad\.linalg_norm: `dim` is None of"):
        torch.linalg.norm(testing.random_sparse((2, 4, 6)), 1)


@pytest.mark.parametrize("layout", support.ALL)
def test_normalize_of_a_hybrid_tensor_along_any_dimension(layout):
    A = testing.random_sparse((4, 6, 2, 3), LAYOUTS[layout], dense_dim=2)
    for dim in (0, 1, 2, 3, (0, 3), (2, 3), (0, 1, 2, 3)):
        y = F.normalize(A, dim=dim)
        assert y.pattern is A.pattern
        testing.assert_close(y, F.normalize(A.to_dense(), dim=dim))


def test_normalize_leaves_rows_of_zeros_and_their_gradient_finite():
    A = spgrad.sparse_csr_tensor([0, 2, 3, 3], [0, 1, 0], [3.0, 4.0, 0.0], (3, 2))
    A.requires_grad_()
    y = F.normalize(A)
    testing.assert_close(y, torch.tensor([[0.6, 0.8], [0.0, 0.0], [0.0, 0.0]]))
    dense = A.to_dense().detach().requires_grad_()
    y.to_dense()[:, 0].sum().backward()
    F.normalize(dense)[:, 0].sum().backward()
    assert A.grad.pattern is A.pattern
    testing.assert_close(A.grad, dense.grad * testing.mask_of(A.pattern))


def test_normalize_refuses_what_is_no_number():
    A = testing.random_sparse((4, 6))
    for options in ({"p": "fro"}, {"eps": None}):
        with pytest.raises(spgrad.ArgumentKindError, match=r"spgrad\.normalize: .*a number"):
            F.normalize(A, **options)
    with pytest.raises(spgrad.ArgumentValueError, match=r"spgrad\.normalize: .*int64"):
        F.normalize(A.to(torch.int64))


@pytest.mark.parametrize("layout", support.ALL)
@pytest.mark.parametrize("n", [0, 1, 2, 5])
def test_powers_of_a_matrix_and_of_a_batch(layout, n):
    for shape in ((4, 4), (2, 4, 4)):
        A = testing.random_sparse(shape, LAYOUTS[layout]).requires_grad_()
        dense = A.to_dense().detach().requires_grad_()
        y = torch.linalg.matrix_power(A, n)
        wanted = torch.linalg.matrix_power(dense, n)
        assert y.layout == A.layout
        testing.assert_close(y, wanted)
        weights = torch.arange(wanted.numel(), dtype=wanted.dtype).view(wanted.shape)
        (y.to_dense() * weights).sum().backward()
        (wanted * weights).sum().backward()
        assert A.grad.pattern is A.pattern
        testing.assert_close(A.grad, dense.grad * testing.mask_of(A.pattern))


def test_powers_of_bools_are_paths():
    A = spgrad.from_edges(torch.tensor([[0, 1, 2], [1, 2, 3]]), size=4).bool()
    assert torch.matrix_power(A, 2).to_dense().nonzero().tolist() == [[0, 2], [1, 3]]
    assert torch.equal(torch.matrix_power(A, 0).to_dense(), torch.eye(4, dtype=torch.bool))


def test_a_first_power_is_a_copy():
    A = testing.random_sparse((4, 4))
    y = torch.matrix_power(A, 1)
    assert y.values().data_ptr() != A.values().data_ptr()


@pytest.mark.parametrize(
    ("shape", "n", "error", "text"),
    [
        ((4, 4), -1, spgrad.UnsupportedError, "`n` is -1"),
        ((4, 6), 2, spgrad.ArgumentValueError, "square"),
        ((4, 4), 2.0, spgrad.ArgumentKindError, "`n` is 2.0"),
    ],
)
def test_powers_that_are_refused(shape, n, error, text):
    with pytest.raises(error, match=rf"spgrad\.matrix_power: .*{text}"):
        spgrad.matrix_power(testing.random_sparse(shape), n)


@pytest.mark.parametrize("ord", [1, torch.inf, "fro"])
@pytest.mark.parametrize("shape", [(4, 0), (0, 4), (2, 4, 0), (0, 0)], ids=str)
@pytest.mark.parametrize("layout", support.ALL)
def test_matrix_norms_of_no_elements_are_0(layout, shape, ord):
    A = testing.random_sparse(shape, LAYOUTS[layout]).requires_grad_()
    y = spgrad.matrix_norm(A, ord)
    testing.assert_close(y, torch.linalg.matrix_norm(torch.zeros(shape), ord))
    y.sum().backward()
    assert A.grad.pattern is A.pattern


NORMS = {
    "vector_norm": (spgrad.vector_norm, {}),
    "norm": (spgrad.norm, {}),
    "native_norm": (spgrad.native_norm, {}),
    "matrix_norm": (spgrad.matrix_norm, {}),
    "rows": (spgrad.vector_norm, {"dim": 1}),
    "columns": (spgrad.vector_norm, {"dim": 0}),
    "fourth": (spgrad.vector_norm, {"ord": 4}),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("name", NORMS)
def test_second_derivative_of_norms_at_explicit_zeros(name, dtype):
    norm, options = NORMS[name]
    vals = torch.tensor([3.0, 0.0, 0.0, 4.0, 1.0], dtype=dtype)
    pattern = spgrad.sparse_csr_tensor([0, 2, 5], [0, 1, 0, 1, 2], vals, (2, 3)).pattern
    numbers = torch.view_as_real(vals) if dtype.is_complex else vals

    def tensor(numbers):
        own = torch.view_as_complex(numbers) if dtype.is_complex else numbers
        return spgrad.from_values(own, pattern)

    def dense(numbers):
        return torch.linalg.vector_norm(tensor(numbers).to_dense(), **options).sum()

    hessian = torch.autograd.functional.hessian
    found = hessian(lambda v: norm(tensor(v), **options).sum(), numbers)
    torch.testing.assert_close(found, hessian(dense, numbers))
    assert found.abs().max() > 0.1


@pytest.mark.parametrize("ord", [-1, -2.5, -torch.inf, 0])
@pytest.mark.parametrize("dim", [None, 1])
def test_norms_of_nan_beside_zeros(ord, dim):
    """Of negative order NaN; of order 0, NaN counts as an element that is not zero."""
    x = torch.tensor([[torch.nan, 0.0, 2.0], [1.0, 0.0, 0.0]])
    missing = spgrad.from_dense(x)
    stored = spgrad.sparse_coo_tensor(torch.ones(2, 3).nonzero().t(), x.reshape(-1), (2, 3))
    for A in (missing, stored):
        testing.assert_close(spgrad.vector_norm(A, ord, dim), torch.linalg.vector_norm(x, ord, dim))


@pytest.mark.parametrize("size", [1e-140, 1e140])
@pytest.mark.parametrize("name", ["vector_norm", "norm", "rows", "columns", "normalize"])
def test_second_derivatives_of_tiny_and_huge_values(name, size):
    """They follow from those of ordinary values; powers of y^-2 in them would underflow."""
    norm, options = NORMS.get(name, (spgrad.normalize, {"eps": 0.0}))
    vals = torch.tensor([3.0, 2.0, 4.0, 1.0], dtype=torch.float64)
    pattern = spgrad.sparse_csr_tensor([0, 2, 4], [0, 1, 0, 2], vals, (2, 3)).pattern
    weights = torch.arange(1.0, 5.0, dtype=torch.float64)

    def derivatives(scale):
        v = (vals * scale).requires_grad_()
        y = norm(spgrad.from_values(v, pattern), **options)
        y = y.values() * weights if name == "normalize" else y
        (first,) = torch.autograd.grad(y.sum(), v, create_graph=True)
        (second,) = torch.autograd.grad((first * weights).sum(), v)
        return first.detach(), second

    power = 1 if name == "normalize" else 0
    (first, second), (first_1, second_1) = derivatives(size), derivatives(1)
    testing.assert_close(first * size**power, first_1)
    testing.assert_close(second * size * size**power, second_1)


@pytest.mark.parametrize("size", [1e-243, 1e243])
@pytest.mark.parametrize("ord", [-1, 0.5, 2, 3])
def test_powers_along_a_dimension_of_size_1_do_not_overflow(ord, size):
    A = spgrad.from_dense(torch.tensor([[[0.0, -size, 2.0]]], dtype=torch.float64))
    A.requires_grad_()
    y = spgrad.vector_norm(A, ord, dim=1)
    assert torch.equal(y.to_dense(), A.detach().to_dense().abs().squeeze(1))
    (g,) = torch.autograd.grad(y.to_dense().sum(), A)
    assert g.values().flatten().tolist() == [-1, 1]


@pytest.mark.parametrize("ord", [-1, -2, -0.5])
@pytest.mark.parametrize("rows", [[[INF, -INF], [INF, 2.0]], [[INF, 0.0], [1e200, 1e200]]])
def test_negative_orders_of_infinite_elements(rows, ord):
    x = torch.tensor(rows, dtype=torch.float64)
    A = spgrad.from_dense(x).requires_grad_()
    for dim in (None, 0, 1):
        y, wanted = (torch.linalg.vector_norm(a, ord, dim) for a in (A, x))
        torch.testing.assert_close(y.detach(), wanted)
    assert spgrad.vector_norm(spgrad.zeros(2, 2), ord, 1, specified=True).tolist() == [0, 0]
