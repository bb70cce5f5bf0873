"""The stand-in for torchsparsegradutils against dense torch: values, gradients, refusals."""

import pytest
import torch

import spgrad.dropin.torchsparsegradutils as tsgu
from spgrad.dropin.torchsparsegradutils.distributions import SparseMultivariateNormal
from spgrad.dropin.torchsparsegradutils.encoders import PairwiseEncoder
from spgrad.dropin.torchsparsegradutils.utils import (
    bicgstab,
    linear_cg,
    lsmr,
    minres,
    rand_sparse,
    rand_sparse_tri,
    sparse_block_diag,
    sparse_block_diag_split,
    sparse_eye,
    stack_csr,
)

D = torch.float64
LAYOUTS = [torch.sparse_coo, torch.sparse_csr]


def pair(layout, kind="general"):
    """A native leaf, and the same dense."""
    g = torch.Generator().manual_seed(0)
    M = torch.randn(5, 5, dtype=D, generator=g) * (torch.rand(5, 5, generator=g) < 0.5)
    M = M + 6 * torch.eye(5, dtype=D)
    M = {"general": M, "upper": M.triu(), "symmetric": M + M.T, "tall": M[:, :3]}[kind]
    return M.to_sparse(layout=layout).requires_grad_(), M.clone().requires_grad_()


def same_gradients(y, expected, A, dense):
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-6)
    weight = torch.randn(y.shape, dtype=D)
    (y * weight).sum().backward()
    (expected * weight).sum().backward()
    assert A.grad.layout == A.layout
    mask = A.detach().to_dense() != 0
    found, wanted = A.grad.to_dense(), dense.grad.where(mask, 0)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_products_and_solves(layout):
    b = torch.randn(5, 2, dtype=D)
    A, M = pair(layout)
    same_gradients(tsgu.sparse_mm(A, b), M @ b, A, M)
    A, M = pair(layout, "upper")
    expected = torch.linalg.solve_triangular(M.T, b, upper=False)
    same_gradients(tsgu.sparse_triangular_solve(A, b, transpose=True), expected, A, M)
    A, M = pair(layout, "symmetric")
    for solve in (None, minres, linear_cg, bicgstab):
        A.grad = M.grad = None
        found = tsgu.sparse_generic_solve(A, b, solve=solve)
        same_gradients(found, torch.linalg.solve(M, b), A, M)
    A, M = pair(layout, "tall")
    same_gradients(tsgu.sparse_generic_lstsq(A, b), torch.linalg.pinv(M) @ b, A, M)


@pytest.mark.parametrize("layout", [*LAYOUTS, torch.sparse_csc])
def test_logarithms_of_sums(layout):
    A, M = pair(layout)
    same_gradients(tsgu.sparse_logsumexp(A, 1), torch.logsumexp(M, 1), A, M)
    column, row = tsgu.sparse_bidir_logsumexp(A, keepdim=True)
    torch.testing.assert_close(column, torch.logsumexp(M, 0, keepdim=True))
    torch.testing.assert_close(row, torch.logsumexp(M, 1, keepdim=True))


def test_functions_for_matrices():
    _, M = pair(torch.sparse_csr, "symmetric")
    M, b = M.detach(), torch.randn(5, dtype=D)
    x = torch.linalg.solve(M, b)
    for solve in (linear_cg, minres, bicgstab):
        torch.testing.assert_close(solve(M.matmul, b), x, rtol=1e-4, atol=1e-5)
    found, _ = lsmr(M.matmul, b, M.T.matmul, 5)
    torch.testing.assert_close(found, x, rtol=1e-4, atol=1e-5)
    M = M[:, :3]
    torch.testing.assert_close(
        lsmr(M, b, damp=1.0)[0], torch.linalg.solve(M.T @ M + torch.eye(3, dtype=D), M.T @ b)
    )
    with pytest.raises(RuntimeError, match="callable"):
        linear_cg(3, b)
    with pytest.raises(RuntimeError, match="n is missing"):
        lsmr(M.matmul, b)


def test_distribution_and_encoder():
    L = rand_sparse_tri((4, 4), 8, torch.sparse_csr, upper=False, well_conditioned=True)
    p = SparseMultivariateNormal(torch.zeros(4), precision_tril=L.requires_grad_())
    p.rsample((3,)).sum().backward()
    assert L.grad.layout == torch.sparse_csr
    assert p.precision_tril is L
    assert not p.is_ldlt_parameterization
    encode = PairwiseEncoder(1, (2, 3, 3), diag=True, upper=False, channel_voxel_relation="intra")
    A = encode(torch.ones(len(encode.offsets), 2, 3, 3))
    assert torch.equal(A.to_dense(), A.to_dense().tril())
    assert A.to_dense().diagonal().eq(1).all()


def test_helpers():
    A = rand_sparse((3, 4), 5, torch.sparse_csr)
    both = sparse_block_diag(A, A)
    assert torch.equal(both.to_dense(), torch.block_diag(A.to_dense(), A.to_dense()))
    assert torch.equal(sparse_block_diag_split(both, (3, 4), (3, 4))[1].to_dense(), A.to_dense())
    assert stack_csr([A, A]).shape == (2, 3, 4)
    assert torch.equal(sparse_eye((2, 3, 3)).to_dense(), torch.eye(3, dtype=D).expand(2, 3, 3))


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda A: tsgu.sparse_mm(A, [1]), ValueError),
        (lambda A: tsgu.sparse_mm(A.to_dense(), A.to_dense()), ValueError),
        (lambda A: tsgu.sparse_mm(A, torch.ones(4, 1, dtype=D)), ValueError),
        (lambda A: tsgu.sparse_triangular_solve(A, torch.ones(5, dtype=D)), ValueError),
        (lambda A: tsgu.sparse_generic_solve(A.to_dense(), torch.ones(5, dtype=D)), TypeError),
        (lambda A: tsgu.sparse_generic_solve(A, torch.ones(4, dtype=D)), ValueError),
        (lambda A: tsgu.sparse_logsumexp(A, 2), IndexError),
        (lambda A: tsgu.sparse_logsumexp(A, (0, 0)), RuntimeError),
        (lambda A: tsgu.sparse_logsumexp(A.to_dense(), 0), NotImplementedError),
        (lambda A: tsgu.sparse_bidir_logsumexp(A, output_layout="x"), ValueError),
        (lambda A: stack_csr([]), ValueError),
        (lambda A: PairwiseEncoder(0.5, (1, 3)), ValueError),
    ],
)
def test_errors_are_those_of_the_package(call, error):
    with pytest.raises(error):
        call(pair(torch.sparse_csr)[0].detach())
