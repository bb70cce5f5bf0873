"""Derivatives where a result depends on a number being 0, and with respect to numbers."""

import pytest
import torch
from torch.autograd import forward_ad

import spgrad
from spgrad import support
from spgrad.core.pattern import LAYOUTS


def sparse(x, layout):
    blocksize = (2, 1) if layout in ("bsr", "bsc") else None
    return spgrad.from_dense(x, LAYOUTS[layout], blocksize=blocksize)


@pytest.mark.parametrize("shape", [(3,), (4, 1)], ids=["columns", "rows"])
@pytest.mark.parametrize("layout", ["coo", "csr", "csc"])
def test_gradients_of_complex_factors_of_rows_and_columns(layout, shape):
    a = torch.randn(4, 3, dtype=torch.complex128) * torch.tensor([[1], [0], [1], [1]])
    x = torch.randn(shape, dtype=a.dtype, requires_grad=True)
    A = sparse(a, layout).requires_grad_()
    g = torch.randn(4, 3, dtype=a.dtype)
    of_A, of_x = torch.autograd.grad((A * x).to_dense(), (A, x), g)
    want = torch.autograd.grad(a.requires_grad_() * x, (a, x), g)
    torch.testing.assert_close(of_A.to_dense(), want[0] * (a != 0))
    torch.testing.assert_close(of_x, want[1])


DEPENDING = [spgrad.add, spgrad.sub, spgrad.rsub, spgrad.maximum, spgrad.minimum]


@pytest.mark.parametrize("fn", DEPENDING, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("layout", support.ALL)
def test_a_number_that_keeps_zero_only_as_it_is_has_no_gradient(fn, layout):
    A = sparse(torch.eye(2), layout)
    zero = torch.tensor(0.0, requires_grad=True)
    for name, operands in (("other", (A, zero)), ("input", (zero, A))):
        with pytest.raises(
            spgrad.ArgumentValueError, match=rf"spgrad\.{fn.__name__}: `{name}` is 0 and has a grad"
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
