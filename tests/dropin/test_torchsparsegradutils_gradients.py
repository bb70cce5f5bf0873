"""Gradients of solves by a function that the caller passes: nonsymmetric, complex, second order."""

import pytest
import torch

import spgrad
import spgrad.dropin.torchsparsegradutils as tsgu
from spgrad.dropin.torchsparsegradutils.utils import bicgstab

D, C = torch.float64, torch.complex128
LAYOUTS = [torch.sparse_coo, torch.sparse_csr]


def dense_solve(A, B):
    return torch.linalg.solve(A.to_dense(), B)


def transposed_solve(A, B):
    return torch.linalg.solve(A.to_dense().mT, B)


def given(dtype, m=5, n=5):
    g = torch.Generator().manual_seed(0)
    M = torch.randn(m, n, dtype=dtype, generator=g)
    M = M * (torch.rand(m, n, generator=g) < 0.6) + 4 * torch.eye(m, n, dtype=dtype)
    return (
        M,
        torch.randn(m, 2, dtype=dtype, generator=g),
        torch.randn(n, 2, dtype=dtype, generator=g),
    )


def same_gradients(function, expected, M, b, weight, layout):
    A = M.to_sparse(layout=layout).requires_grad_()
    right = b.clone().requires_grad_()
    dense, other = M.clone().requires_grad_(), b.clone().requires_grad_()
    x, y = function(A, right), expected(dense, other)
    torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-6)
    (x * weight).sum().abs().square().backward()
    (y * weight).sum().abs().square().backward()
    torch.testing.assert_close(right.grad, other.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(A.grad.to_dense(), dense.grad * (M != 0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [D, C])
@pytest.mark.parametrize(
    "functions",
    [
        {"solve": dense_solve, "transpose_solve": transposed_solve},
        {"solve": dense_solve},
        {"transpose_solve": transposed_solve},
        {"solve": bicgstab},
        {},
    ],
)
def test_solves_with_nonsymmetric_and_complex_matrices(functions, dtype, layout):
    M, b, weight = given(dtype)
    same_gradients(
        lambda A, B: tsgu.sparse_generic_solve(A, B, **functions),
        torch.linalg.solve,
        *(M, b, weight, layout),
    )


@pytest.mark.parametrize("dtype", [D, C])
def test_second_derivatives_of_a_solve(dtype):
    M, b, _ = given(dtype, 3, 3)
    pattern = spgrad.from_dense(M).pattern

    def solved(vals, B):
        A = spgrad.from_values(vals, pattern)
        return tsgu.sparse_generic_solve(A, B, dense_solve, transposed_solve)

    vals = spgrad.from_dense(M).values().clone().requires_grad_()
    assert torch.autograd.gradcheck(solved, (vals, b.requires_grad_()))
    assert torch.autograd.gradgradcheck(solved, (vals, b))


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("dtype", [D, C])
def test_least_squares_with_complex_matrices(dtype, own):
    M, b, weight = given(dtype, 7, 4)
    functions = ()
    if own:
        functions = (
            lambda A, B: torch.linalg.lstsq(A.to_dense(), B).solution,
            lambda A, B: torch.linalg.pinv(A.to_dense().mT) @ B,
        )
    same_gradients(
        lambda A, B: tsgu.sparse_generic_lstsq(A, B, *functions),
        lambda dense, right: torch.linalg.pinv(dense) @ right,
        *(M, b, weight, torch.sparse_csr),
    )
