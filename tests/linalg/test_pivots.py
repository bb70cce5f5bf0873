"""Which pivots SuperLU takes for a matrix of which nothing is declared."""

from typing import Any

import pytest
import torch

import spgrad
from spgrad import linalg

pytest.importorskip("scipy")
D = torch.float64


def factored(A, ordering=None):
    """SciPy's factors."""
    prepared: Any = linalg.SuperLU(ordering).prepare(A)
    return prepared.factor


def upwind(side):
    """Convection and diffusion on a grid: a symmetric pattern, and values that are not."""
    m = side * side
    one = torch.ones(m, dtype=D)
    near = one * (torch.arange(m) % side != 0)
    parts = torch.stack([-1.5 * one, -1.9 * near.roll(-1), 6 * one, -0.1 * near, -0.5 * one])
    return spgrad.spdiags(parts, torch.tensor([-side, -1, 0, 1, side]), (m, m)).to_sparse_csr()


def test_a_symmetric_pattern_gets_the_order_of_least_degree():
    A = upwind(40)
    found, columns = factored(A), factored(A, "COLAMD")
    assert torch.equal(torch.tensor(found.perm_r), torch.tensor(found.perm_c))
    assert found.L.nnz + found.U.nnz < 0.8 * (columns.L.nnz + columns.U.nnz)
    x = torch.randn(1600, dtype=D)
    torch.testing.assert_close(linalg.solve(A, A @ x), x)


@pytest.mark.parametrize("dtype", [torch.float32, D, torch.complex64, torch.complex128])
def test_pivots_on_the_diagonal_are_dropped_where_they_lose_digits(dtype):
    """Each pivot is so small that the elements below it grow 500 times, again and again."""
    M = torch.ones(8, 8, dtype=dtype) + torch.randn(8, 8, dtype=dtype) / 10
    M.diagonal().copy_(0.002 * torch.arange(1, 9))
    b = torch.randn(8, dtype=dtype)
    x = linalg.solve(spgrad.from_dense(M), b)
    size = M.abs().sum(1) * x.abs().max() + b.abs()
    assert float(((M @ x - b).abs() / size).max()) < 8 * torch.finfo(dtype).eps


def test_a_zero_on_the_diagonal_or_another_pattern_keeps_partial_pivoting():
    A = upwind(12)
    alone = spgrad.from_dense(torch.tensor([[0.0, 1.0], [1.0, 1.0]], dtype=D))
    torch.testing.assert_close(
        linalg.solve(alone, torch.ones(2, dtype=D)), torch.tensor([0.0, 1.0], dtype=D)
    )
    kept = A.to_dense()
    kept[0, 143] = 1e-3
    found, wanted = (factored(spgrad.from_dense(kept), o) for o in (None, "COLAMD"))
    assert found.L.nnz == wanted.L.nnz
    assert torch.equal(torch.tensor(found.perm_c), torch.tensor(wanted.perm_c))
