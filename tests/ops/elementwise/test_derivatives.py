"""Derivatives at the places where a result or a formula depends on a value being 0."""

import pytest
import torch
from torch.autograd import forward_ad

import spgrad
from spgrad import support
from spgrad.core.pattern import LAYOUTS

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


def sparse(x, layout):
    blocksize = (2, 1) if layout in ("bsr", "bsc") else None
    return spgrad.from_dense(x, LAYOUTS[layout], blocksize=blocksize)


DEPENDING = [spgrad.add, spgrad.sub, spgrad.rsub, spgrad.maximum, spgrad.minimum]


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # by torch's dual numbers
@pytest.mark.parametrize("fn", DEPENDING, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("layout", support.ALL)
def test_a_number_that_keeps_zero_only_as_it_is_has_no_gradient(fn, layout):
    A = sparse(torch.eye(2), layout)
    zero = torch.tensor(0.0, requires_grad=True)
    for operands in ((A, zero), (zero, A)):
        with pytest.raises(
            spgrad.ArgumentValueError, match=rf"spgrad\.{fn.__name__}: `other` is 0 and has a grad"
        ):
            fn(*operands)
        with torch.no_grad():
            assert fn(*operands).pattern.same_as(A.pattern)
    assert fn(A, zero.detach()).pattern.same_as(A.pattern)
    with forward_ad.dual_level(), pytest.raises(ValueError, match="has a gradient"):
        fn(A, forward_ad.make_dual(torch.zeros(()), torch.ones(())))


def test_updates_with_a_zero_that_has_a_gradient():
    A, zero = spgrad.eye(2), torch.tensor(0.0, requires_grad=True)
    with pytest.raises(ValueError, match="has a gradient"):
        spgrad.addcmul(zero, A, A)
    with pytest.raises(ValueError, match="has a gradient"):
        spgrad.lerp(A, zero, 0.5)


@pytest.mark.parametrize("layout", support.ALL)
@pytest.mark.parametrize(
    ("fn", "number"),
    [
        (lambda a, s: a * s, 0.0),
        (lambda a, s: a * s, 2.0),
        (lambda a, s: s * a, 2.0),
        (lambda a, s: a / s, 2.0),
        (lambda a, s: a**s, 2.0),
        (torch.maximum, -0.5),
        (torch.minimum, 0.5),
        (lambda a, s: torch.clamp(a, max=s), 0.5),
        (lambda a, s: torch.clamp(a, max=s), 0.0),
        (lambda a, s: torch.lerp(a, a * 3, s), 0.25),
        (lambda a, s: a.remainder(s), 0.3),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_gradient_of_a_number(layout, fn, number, dtype):
    x = torch.tensor([[1.5, 0.0, 0.0, 2.0], [0.75, 0.0, 0.0, 0.2]], dtype=torch.float64)
    A = sparse(x, layout).requires_grad_()
    dense = x.clone().requires_grad_()
    s, twin = (torch.tensor(number, dtype=dtype, requires_grad=True) for _ in range(2))
    y, wanted = fn(A, s), fn(dense, twin)
    assert y.dtype == wanted.dtype
    torch.testing.assert_close(y.to_dense(), wanted)
    y.sum().backward()
    wanted.sum().backward()
    torch.testing.assert_close(s.grad, twin.grad)
    torch.testing.assert_close(A.grad.to_dense()[x != 0], dense.grad[x != 0])
