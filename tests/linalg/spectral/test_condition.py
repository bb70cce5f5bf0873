"""Condition numbers and spectral norms against torch.linalg of the dense matrix."""

import pytest
import torch

import spgrad
from spgrad import errors, linalg
from spgrad.core.pattern import LAYOUTS

D, C = torch.float64, torch.complex128


def matrix(m, n, dtype=D, seed=0, batch=()):
    g = torch.Generator().manual_seed(seed)
    S = torch.randn(*batch, m, n, dtype=dtype, generator=g)
    S = S * (torch.rand(*batch, m, n, generator=g) < 0.15)
    return S + (torch.eye(m, n, dtype=D) * torch.linspace(2, 4, n, dtype=D)).to(dtype)


def sparse(S, layout="csr"):
    blocksize = (2, 2) if layout in ("bsr", "bsc") else None
    return spgrad.from_dense(S, LAYOUTS[layout], blocksize=blocksize)


FUNCTIONS = {
    "cond": torch.linalg.cond,
    "inverse": lambda A: torch.linalg.cond(A, -2),
    "norm": lambda A: torch.linalg.matrix_norm(A, 2),
    "least": lambda A: torch.linalg.matrix_norm(A, -2, dim=(-1, -2), keepdim=True),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, D, C])
@pytest.mark.parametrize("shape", [(6, 6), (40, 36), (36, 40), (40, 40)])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_value_and_gradient(name, shape, dtype, batch):
    S = matrix(*shape, dtype, batch=batch)
    A, leaf = sparse(S).requires_grad_(), S.clone().requires_grad_()
    close = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {}
    y, z = FUNCTIONS[name](A), FUNCTIONS[name](leaf)
    torch.testing.assert_close(y, z, **close)
    y.square().sum().backward()
    z.square().sum().backward()
    assert A.grad.pattern is A.pattern
    specified = spgrad.ones_like(A.detach()).to_dense() != 0
    largest = float(leaf.grad.abs().max())
    close = {"rtol": 0, "atol": (1e-4 if dtype == torch.float32 else 1e-11) * largest}
    torch.testing.assert_close(A.grad.to_dense(), leaf.grad.where(specified, 0), **close)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_and_names(layout):
    S = matrix(36, 36, seed=3)
    A = sparse(S, layout)
    torch.testing.assert_close(linalg.cond(A), torch.linalg.cond(S))
    for function in (spgrad.matrix_norm, torch.linalg.matrix_norm, torch.linalg.norm):
        torch.testing.assert_close(function(A, 2), torch.linalg.matrix_norm(S, 2))
        torch.testing.assert_close(function(A, -2), torch.linalg.matrix_norm(S, -2))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradcheck(name):
    A = sparse(matrix(5, 6, seed=1))
    vals = A.values().clone().requires_grad_()

    def function(v):
        return FUNCTIONS[name](spgrad.from_values(v, A.pattern))

    assert torch.autograd.gradcheck(function, vals)
    assert torch.autograd.gradgradcheck(function, vals)


@pytest.mark.parametrize("m", [5, 40])
def test_no_full_rank(m):
    S = torch.diag(torch.arange(m, dtype=D))
    A = spgrad.from_dense(S).requires_grad_()
    assert linalg.cond(A).isinf()
    assert linalg.cond(A, -2) == 0
    least = torch.linalg.matrix_norm(A, -2)
    assert least == 0
    assert torch.autograd.grad(least, A)[0].to_dense().equal(torch.zeros(m, m, dtype=D))
    Z = spgrad.zeros(m, m, dtype=D).requires_grad_()
    assert linalg.cond(Z).isnan()
    norm = torch.linalg.matrix_norm(Z, 2)
    assert norm == 0
    norm.backward()


def test_nothing():
    for shape in ((0, 0), (0, 3), (3, 0), (2, 0, 3), (0, 3, 3)):
        A = spgrad.zeros(*shape).requires_grad_()
        for function in (torch.linalg.cond, lambda A: torch.linalg.matrix_norm(A, 2)):
            y = function(A)
            torch.testing.assert_close(y, function(torch.zeros(shape)))
            y.sum().backward()
    with pytest.raises(errors.ArgumentValueError, match=r"matrix_norm: .*least of no"):
        torch.linalg.matrix_norm(spgrad.zeros(0, 3), -2)


def test_halves_and_other_dtypes():
    S = matrix(8, 8)
    for dtype in (torch.float16, torch.bfloat16):
        y = torch.linalg.matrix_norm(sparse(S.to(dtype)), 2)
        assert y.dtype == dtype
        wanted = torch.linalg.matrix_norm(S.to(dtype).float(), 2)
        torch.testing.assert_close(y.float(), wanted, rtol=1e-2, atol=0)
    y = torch.linalg.matrix_norm(sparse(S.float()), 2, dtype=D)
    torch.testing.assert_close(y, torch.linalg.matrix_norm(S.float(), 2, dtype=D))


def test_refusals():
    S = matrix(5, 5)
    A = sparse(S)
    for p in (1, -1, "fro", "nuc", float("inf"), 3):
        with pytest.raises(
            errors.UnsupportedError, match=r"spgrad\.linalg\.cond: `p` is .*onenormest"
        ):
            linalg.cond(A, p)
    for call, error, says in [
        (lambda: linalg.cond(S), errors.ArgumentKindError, "cond: `A`"),
        (lambda: linalg.cond(sparse(S.int())), errors.ArgumentValueError, "cond: .*dtype int32"),
        (lambda: spgrad.matrix_norm(A, "nuc"), errors.UnsupportedError, "matrix_norm: .*nuc"),
        (
            lambda: spgrad.matrix_norm(sparse(matrix(4, 4, batch=(2,))), 2, (0, 1)),
            errors.ArgumentValueError,
            r"matrix_norm: `dim` is \(0, 1\)",
        ),
    ]:
        with pytest.raises(error, match=says):
            call()
