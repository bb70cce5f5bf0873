"""The kernel that substitutes with triangles of a few diagonals."""

import pytest
import torch
from torch.testing import assert_close

from spgrad import kernels
from spgrad.kernels import REFERENCES

OFFSETS = [[], [1], [16], [1, 16], [1, 20, 300], [17, 4_200], [1, 29, 30, 31], [1, 10**6]]


def operands(m, distances, upper, dtype, scaled=True):
    """Values by diagonals, 0 outside of the matrix, their offsets, a scale and a vector."""
    at = torch.tensor(distances, dtype=torch.int64) if upper else -torch.tensor(distances[::-1])
    at = at.long()
    length = -(-m // 16) * 16 + 16
    row = torch.arange(length)
    there = (row < m) & (row + at[:, None] >= 0) & (row + at[:, None] < m)
    val = torch.where(there, 0.4 * torch.randn(len(at), length, dtype=dtype), 0)
    scale = torch.rand(m, dtype=dtype) + 0.5 if scaled else None
    return val, at, scale, torch.randn(1, m, 1, dtype=dtype)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("distances", OFFSETS, ids=str)
@pytest.mark.parametrize("m", [0, 1, 15, 16, 33, 400])
def test_x_solves_the_system_of_the_dense_triangle(m, distances, upper, transpose, dtype):
    val, at, scale, b = operands(m, distances, upper, dtype)
    T = torch.eye(m, dtype=dtype)
    for d, offset in enumerate(at.tolist()):
        if abs(offset) < m:
            T.diagonal(offset).copy_(val[d, max(-offset, 0) :][: m - abs(offset)])
    x = kernels.substitute_diagonals(val, at, scale, b, transpose)
    if transpose:
        wanted = scale * torch.linalg.solve(T.T, b[0, :, 0])
    else:
        wanted = torch.linalg.solve(T, scale * b[0, :, 0])
    assert x.shape == b.shape
    tolerance = 1e-4 if dtype == torch.float32 else 1e-11
    assert_close(x[0, :, 0], wanted, rtol=tolerance, atol=tolerance)
    reference = REFERENCES["substitute_diagonals"](val, at, scale, b, transpose)
    assert_close(x, reference, rtol=tolerance, atol=tolerance)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("distances", [[1], [1, 20, 300], [17, 4_200]], ids=str)
@pytest.mark.parametrize("m", [4_096, 20_001])
def test_the_product_with_x_is_the_right_hand_side(m, distances, upper, transpose, scaled):
    val, at, scale, b = operands(m, distances, upper, torch.float64, scaled)
    x = kernels.substitute_diagonals(val, at, scale, b, transpose)
    again = kernels.substitute_diagonals(val, at, scale, b, transpose)
    assert torch.equal(x, again)
    with_main = torch.cat([at.new_zeros(1), at] if upper else [at, at.new_zeros(1)])
    one = torch.ones_like(val[:1])
    T = torch.cat([one, val] if upper else [val, one])
    scale = torch.ones(m, dtype=torch.float64) if scale is None else scale
    x, b = x[0, :, 0], b[0, :, 0]
    row = torch.arange(m)[:, None] + with_main
    there = (row >= 0) & (row < m)
    if transpose:
        y = torch.zeros(m, dtype=torch.float64)
        y.index_add_(0, row[there], (T[:, :m].T * (x / scale)[:, None])[there])
        assert_close(y, b, rtol=1e-11, atol=1e-11)
    else:
        y, _ = kernels.spmv_diagonals(T, with_main, x.view(1, m, 1))
        assert_close(y[0, :, 0], scale * b, rtol=1e-11, atol=1e-11)


@pytest.mark.skipif(not kernels.compiled(), reason="the reference trusts its caller")
@pytest.mark.parametrize("at", [[-2], [-16, 1], [0], [1, 15], [1, -20]], ids=str)
def test_offsets_that_the_blocks_of_the_kernel_can_not_take_are_refused(at):
    val, b = torch.zeros(len(at), 48), torch.zeros(1, 32, 1)
    with pytest.raises(RuntimeError, match="1, and 16 or more, all of one sign, are accepted"):
        kernels.substitute_diagonals(val, torch.tensor(at), None, b, False)


@pytest.mark.skipif(not kernels.compiled(), reason="the reference substitutes complex numbers")
def test_complex_numbers_are_refused():
    val, b = (torch.zeros(*s, dtype=torch.complex64) for s in ((1, 48), (1, 32, 1)))
    with pytest.raises(RuntimeError, match="`b` is complex; float32 and float64 are accepted"):
        kernels.substitute_diagonals(val, torch.tensor([1]), None, b, False)
