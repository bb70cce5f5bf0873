"""IC(0) and ILU(0) in every layout, as preconditioners, and where they break down."""

import pytest
import torch

import spgrad
from spgrad import testing
from spgrad.core.pattern import LAYOUTS

CASES = [
    (layout, dtype)
    for layout in LAYOUTS
    for dtype in (torch.float32, torch.float64, torch.complex64, torch.complex128)
]


def drawn(shape, layout, dtype):
    size = torch.eye(shape[-1]).expand(shape)
    A = testing.random_sparse(
        shape, LAYOUTS[layout], dtype=dtype, density=torch.full(shape, 0.4).maximum(2 * size)
    )
    return testing.dominant(A)


def in_layout(dense, layout):
    blocks = {"blocksize": (2, 2)} if layout.startswith("b") else {}
    return spgrad.from_dense(dense, LAYOUTS[layout], **blocks)


def hermitian(A):
    dense = A.to_dense()
    lower = dense.tril(-1)
    diagonal = torch.diag_embed(dense.diagonal(dim1=-2, dim2=-1).real)
    return in_layout(lower + lower.mH + diagonal, A.pattern.name)


def grid(n):
    """The five-point matrix of an n x n grid."""
    line = torch.diag(torch.full((n,), 2.0)) - torch.diag(torch.ones(n - 1), 1)
    line = (line - torch.diag(torch.ones(n - 1), -1)).double()
    eye = torch.eye(n, dtype=torch.float64)
    return spgrad.from_dense(torch.kron(line, eye) + torch.kron(eye, line))


@pytest.mark.parametrize(("layout", "dtype"), CASES, ids=str)
@pytest.mark.parametrize("shape", [(6, 6), (3, 4, 4), (0, 0), (2, 0, 0)])
def test_factors_agree_with_the_matrix_at_its_elements(layout, dtype, shape):
    A = drawn(shape, layout, dtype)
    mask = testing.mask_of(A.pattern)
    L, U = spgrad.incomplete_lu(A)
    testing.assert_close((L @ U).to_dense() * mask, A.to_dense())
    assert torch.equal(L.to_dense().diagonal(dim1=-2, dim2=-1).real, torch.ones(shape[:-1]))
    B = hermitian(A)
    C = spgrad.incomplete_cholesky(B)
    at = testing.mask_of(B.pattern)
    testing.assert_close((C @ C.mH).to_dense() * at, B.to_dense())
    for found in (L, U, C):
        assert found.layout == torch.sparse_csr
        assert not found.requires_grad
        ones = torch.ones(*shape[:-1], 1, dtype=dtype)
        x = spgrad.solve_triangular(found, found @ ones, upper=found is U)
        testing.assert_close(x, ones)


@pytest.mark.parametrize(("layout", "dtype"), CASES, ids=str)
@pytest.mark.parametrize("shape", [(7, 7), (3, 5, 5), (0, 0)])
def test_the_diagonal_takes_what_the_factors_have_elsewhere(layout, dtype, shape):
    def expected(product, mask, part=lambda t: t):
        outside = part(product.where(~mask, 0)).sum(-1)
        return product * mask + 0.7 * torch.diag_embed(outside).to(dtype)

    if layout.startswith("b"):
        shape = tuple(n + n % 2 for n in shape)  # of blocks of 2 x 2
    A = drawn(shape, layout, dtype)
    L, U = spgrad.incomplete_lu(A, relaxation=0.7)
    testing.assert_close(expected((L @ U).to_dense(), testing.mask_of(A.pattern)), A.to_dense())
    B = hermitian(A)
    C = spgrad.incomplete_cholesky(B, relaxation=0.7)
    product, mask = (C @ C.mH).to_dense(), testing.mask_of(B.pattern)
    if shape[-1]:
        assert not product[~mask].eq(0).all()
    testing.assert_close(expected(product, mask, torch.real), B.to_dense())
    assert C.pattern is spgrad.incomplete_cholesky(B).pattern


def test_a_relaxation_of_1_keeps_the_row_sums():
    A = grid(9)
    L, U = spgrad.incomplete_lu(A, relaxation=1)
    C = spgrad.incomplete_cholesky(A, shift=0.01, relaxation=1)
    testing.assert_close((L @ U).sum(1), A.sum(1))
    testing.assert_close((C @ C.mH).sum(1), A.sum(1) + 0.04)


def test_a_relaxation_takes_fewer_steps():
    A = grid(40)
    b = torch.randn(1600, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    linalg, steps = spgrad.linalg, []
    for relaxation in (0, 0.99):
        for solver in (
            linalg.CG(preconditioner=linalg.IC0(relaxation=relaxation)),
            linalg.BiCGSTAB(preconditioner=linalg.ILU0(relaxation=relaxation)),
        ):
            x, info = linalg.solve(A, b, solver, return_info=True)
            torch.testing.assert_close(A @ x, b, rtol=1e-4, atol=1e-4)
            steps.append(info.iterations)
    assert steps[2] < 0.75 * steps[0]
    assert steps[3] < 0.75 * steps[1]


def test_a_matrix_without_fill_is_factored_exactly():
    band = torch.diag(torch.full((9,), 4.0)) + torch.diag(torch.ones(8), -1)
    A = spgrad.from_dense(band.double())
    B = hermitian(A)
    testing.assert_close(spgrad.incomplete_cholesky(B), torch.linalg.cholesky(B.to_dense()))
    L, U = spgrad.incomplete_lu(B)
    testing.assert_close(L.to_dense() @ U.to_dense(), B.to_dense())


def test_new_values_give_factors_on_the_same_pattern():
    A = grid(4)
    B = spgrad.from_values(A.values() * 2, A.pattern)
    assert spgrad.incomplete_cholesky(A).pattern is spgrad.incomplete_cholesky(B).pattern
    for first, second in zip(spgrad.incomplete_lu(A), spgrad.incomplete_lu(B), strict=True):
        assert first.pattern is second.pattern


def test_they_precondition():
    """The condition of a grid's matrix falls by more than half."""
    A = grid(12)
    before = torch.linalg.cond(A.to_dense())
    L = spgrad.incomplete_cholesky(A)
    half = spgrad.solve_triangular(L, A.to_dense(), upper=False)
    both = spgrad.solve_triangular(L.mH, half.mH.contiguous(), upper=True, left=False)
    values = torch.linalg.eigvals(both).real
    assert values.max() / values.min() < before / 2


def test_breakdowns_are_named():
    wide = spgrad.from_dense(torch.tensor([[1.0, 2.0], [2.0, 1.0]]))
    with pytest.raises(spgrad.PivotError, match="no positive pivot in row 1; "):
        spgrad.incomplete_cholesky(wide)
    shifted = spgrad.incomplete_cholesky(wide, shift=2.0)
    matrix = wide.to_dense() + 2 * torch.eye(2)
    testing.assert_close(shifted, torch.linalg.cholesky(matrix))
    batch = spgrad.from_dense(torch.stack([torch.eye(3), torch.ones(3, 3)]))
    with pytest.raises(spgrad.PivotError, match="missing pivot in row 1 of batch item 1; "):
        spgrad.incomplete_lu(batch)
    without = spgrad.from_dense(torch.tensor([[1.0, 2.0], [2.0, 0.0]]))
    for factor in (spgrad.incomplete_lu, spgrad.incomplete_cholesky):
        if factor is spgrad.incomplete_cholesky:
            with pytest.raises(torch.linalg.LinAlgError, match="row 1"):
                factor(without)
        else:
            assert factor(spgrad.from_dense(torch.eye(2)))[1].pattern.nse == 2
    with pytest.raises(spgrad.PivotError, match="row 0"):
        spgrad.incomplete_lu(spgrad.from_dense(torch.tensor([[0.0, 1.0], [1.0, 1.0]])))
    arrow = 4 * torch.eye(5)
    arrow[0, 1:] = arrow[1:, 0] = 3
    spgrad.incomplete_cholesky(spgrad.from_dense(arrow))
    with pytest.raises(spgrad.PivotError, match=r"row 1; .* smaller `relaxation`, or"):
        spgrad.incomplete_cholesky(spgrad.from_dense(arrow), relaxation=1.0)


def test_refusals():
    A = spgrad.from_dense(torch.eye(2))
    for factor in (spgrad.incomplete_lu, spgrad.incomplete_cholesky):
        for bad in (A.half(), A.long(), spgrad.from_dense(torch.ones(2, 3)), torch.eye(2)):
            with pytest.raises(spgrad.SpgradError, match=rf"{factor.__name__}: `A` "):
                factor(bad)
    for shift in ("a", float("nan"), None):
        with pytest.raises(spgrad.SpgradError, match="`shift` is "):
            spgrad.incomplete_cholesky(A, shift=shift)
    for factor in (spgrad.incomplete_lu, spgrad.incomplete_cholesky):
        for relaxation in ("a", float("nan"), None, -0.1, 1.5):
            with pytest.raises(spgrad.SpgradError, match="`relaxation` is "):
                factor(A, relaxation=relaxation)
