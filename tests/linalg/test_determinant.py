"""Determinants and elements of the inverse against dense torch.linalg: values and gradients."""

import pytest
import torch

import spgrad
from spgrad import errors, linalg
from spgrad.core.pattern import LAYOUTS
from spgrad.linalg.direct import inverse, selected

D, C = torch.float64, torch.complex128


def matrix(m=8, dtype=D, seed=0, batch=(), diagonal=2.0):
    """Nonsymmetric; partial pivoting exchanges rows of it."""
    g = torch.Generator().manual_seed(seed)
    made = torch.randn(*batch, m, m, dtype=dtype, generator=g)
    made = made * (torch.rand(*batch, m, m, generator=g) < 0.35)
    return made + diagonal * torch.eye(m, dtype=dtype)


def sparse(M, layout="csr"):
    blocksize = (2, 2) if layout in ("bsr", "bsc") else None
    return spgrad.from_dense(M, LAYOUTS[layout], blocksize=blocksize)


@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("dtype", [D, C])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_slogdet_and_its_gradient(layout, dtype, batch):
    for seed in range(3):
        A = sparse(matrix(dtype=dtype, batch=batch, seed=seed), layout).requires_grad_()
        dense = A.detach().to_dense().requires_grad_()
        for (sign, size), (s, z) in [(linalg.slogdet(A), torch.linalg.slogdet(dense))]:
            torch.testing.assert_close(sign, s)
            torch.testing.assert_close(size, z)
            (size.sum() + (sign * (2 + 1j)).real.sum()).backward()
            (z.sum() + (s * (2 + 1j)).real.sum()).backward()
        mask = spgrad.ones_like(A.detach()).to_dense() != 0
        torch.testing.assert_close(A.grad.to_dense(), dense.grad.where(mask, 0))
        torch.testing.assert_close(linalg.det(A), torch.linalg.det(dense))


@pytest.mark.parametrize("m", [3, 0])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_the_results_of_slogdet_have_torchs_names(batch, m):
    M = torch.eye(m, dtype=D).expand(*batch, m, m).clone()
    A = sparse(M)
    functions = torch.linalg.slogdet, torch.slogdet, torch.Tensor.slogdet
    for found in (*(f(A) for f in functions), linalg.slogdet(A), linalg.factor(A).slogdet()):
        wanted = torch.linalg.slogdet(M)
        assert type(found) is type(wanted)
        torch.testing.assert_close(found.sign, wanted.sign)
        torch.testing.assert_close(found.logabsdet, wanted.logabsdet)
    with spgrad.dropin():
        found = torch.linalg.slogdet(M.to_sparse_coo())
    assert found.logabsdet.shape == batch


@pytest.mark.parametrize("dtype", [D, C])
@pytest.mark.parametrize("name", ["det", "slogdet", "inverse_diagonal", "inverse_at"])
def test_gradcheck(name, dtype):
    A = sparse(matrix(6, dtype=dtype, seed=1))
    vals = A.values().clone().requires_grad_()

    def function(v):
        M = spgrad.from_values(v, A.pattern)
        if name == "inverse_at":
            return linalg.inverse_at(M, A.pattern).values()
        found = getattr(linalg, name)(M)
        return found[1] if name == "slogdet" else found

    assert torch.autograd.gradcheck(function, vals)
    assert torch.autograd.gradgradcheck(function, vals)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, D, C])
def test_inverse_at_any_pattern(dtype):
    A = sparse(matrix(dtype=dtype))
    inverse = torch.linalg.inv(A.to_dense())
    for seed in range(3):
        at = sparse(matrix(seed=seed + 10, diagonal=0.0))
        found = linalg.inverse_at(A, at)
        assert found.pattern is at.pattern
        mask = spgrad.ones_like(at).to_dense() != 0
        torch.testing.assert_close(found.to_dense(), inverse.where(mask, 0), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(linalg.inverse_diagonal(A), inverse.diagonal(), rtol=1e-3, atol=1e-4)


def test_columns_of_an_inverse_are_solved_a_few_at_once(monkeypatch):
    monkeypatch.setattr(inverse, "_COLUMNS", 3)
    A, at = sparse(matrix()), sparse(matrix(seed=10, diagonal=0.0))
    mask = spgrad.ones_like(at).to_dense() != 0
    wanted = torch.linalg.inv(A.to_dense()).where(mask, 0)
    torch.testing.assert_close(linalg.inverse_at(A, at).to_dense(), wanted)


def test_a_diagonal_matrix_has_zeros_beside_the_diagonal():
    """Its supernodes have no rows below their blocks, so no list of rows to search."""
    A = sparse(torch.diag(torch.tensor([2.0, 4.0, 5.0], dtype=D)))
    at = sparse(torch.ones(3, 3, dtype=D))
    found = linalg.inverse_at(A, at).to_dense()
    torch.testing.assert_close(found, torch.diag(torch.tensor([0.5, 0.25, 0.2], dtype=D)))


def test_elements_that_cancel_are_found():
    """SuperLU leaves out elements of the factors that are 1 - 1, or 2 - 2."""
    for rows in (
        [[1.0, 1, 1, 0], [1, 2, 1, 3], [1, 1, 3, 1], [0, 2, 1, 5]],
        [[2.0, 1, 2, 2], [2, 5, 2, 0], [0, 1, 1, 1], [0, 0, 2, 2]],
    ):
        M = torch.tensor(rows, dtype=D)
        A = sparse(M).requires_grad_()
        linalg.slogdet(A)[1].backward()
        torch.testing.assert_close(A.grad.to_dense(), torch.linalg.inv(M).mT.where(M != 0, 0))


def test_a_grid_needs_no_solves():
    n = 12
    T = 2.1 * torch.eye(n, dtype=D) - torch.diag(torch.ones(n - 1, dtype=D), 1)
    T = T - torch.diag(torch.ones(n - 1, dtype=D), -1)
    eye = torch.eye(n, dtype=D)
    M = torch.kron(T, eye) + torch.kron(eye, T)
    A = sparse(M).requires_grad_()
    linalg.logdet(A, assume="positive definite").backward()
    torch.testing.assert_close(A.grad.to_dense(), torch.linalg.inv(M).where(M != 0, 0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, D, C])
@pytest.mark.parametrize("assume", ["symmetric", "hermitian", "positive definite"])
def test_the_inverse_of_mirrored_matrices(assume, dtype):
    M = matrix(30, dtype=dtype, batch=(2,), seed=3)
    M = M + (M.mT if assume == "symmetric" else M.mH)
    M = M + (40 if assume == "positive definite" else 9) * torch.eye(30, dtype=dtype)
    A, inverse = sparse(M), torch.linalg.inv(M)
    at = sparse(matrix(30, batch=(2,), seed=4, diagonal=1.0))
    found = linalg.inverse_at(A, at, assume=assume)
    mask = spgrad.ones_like(at).to_dense() != 0
    torch.testing.assert_close(found.to_dense(), inverse.where(mask, 0), rtol=1e-3, atol=1e-4)
    A.requires_grad_()
    linalg.slogdet(A, assume=assume)[1].sum().backward()
    wanted = inverse.mH.where(M != 0, 0)
    torch.testing.assert_close(A.grad.to_dense(), wanted, rtol=1e-3, atol=1e-4)


def test_factors_of_far_apart_patterns_go_by_elements(monkeypatch):
    found, lacking = selected._selected, []

    def noted(*factors):
        z, failed = found(*factors)
        lacking.append(failed >= 0)
        return z, failed

    monkeypatch.setattr(selected, "_MOST", 0)
    monkeypatch.setattr(selected, "_selected", noted)
    A = sparse(matrix(20)).requires_grad_()
    linalg.slogdet(A)[1].backward()
    M = A.detach().to_dense()
    torch.testing.assert_close(A.grad.to_dense(), torch.linalg.inv(M).mT.where(M != 0, 0))
    assert not any(lacking)
    test_elements_that_cancel_are_found()
    assert any(lacking)


def test_ends():
    assert linalg.det(sparse(torch.zeros(0, 0))) == 1
    assert linalg.logdet(sparse(torch.zeros(0, 0))) == 0
    with pytest.raises(ValueError, match="square"):
        linalg.logdet(sparse(torch.ones(2, 3)))
    with pytest.raises(ValueError, match="float16"):
        linalg.logdet(sparse(torch.eye(2).half()))
    with pytest.raises(ValueError, match="finite"):
        linalg.slogdet(sparse(torch.eye(2) * torch.nan))
    with pytest.raises(TypeError, match="pattern"):
        linalg.inverse_at(sparse(torch.eye(2)), 3)
    assert linalg.logdet(sparse(-torch.eye(3))).isnan()


def singular(rank, m=6, dtype=D, seed=0):
    """Of integers, so that elimination ends at zeros; with lines that are multiples of others."""
    g = torch.Generator().manual_seed(seed)
    made = torch.randint(-2, 3, (m, m), generator=g) * (torch.rand(m, m, generator=g) < 0.5)
    made = made + 3 * torch.eye(m, dtype=torch.int64)
    for i in range(m - rank):
        made[i] = made[m - 1 - i] * (i + 1)
    return made.to(dtype)


def adjugate(M):
    """By cofactors."""
    m = M.shape[0]
    out = torch.empty_like(M)
    for i in range(m):
        for j in range(m):
            rows, columns = ([k for k in range(m) if k != n] for n in (i, j))
            out[j, i] = (-1) ** (i + j) * torch.linalg.det(M[rows][:, columns])
    return out


@pytest.mark.parametrize("dtype", [D, C, torch.float32])
@pytest.mark.parametrize("rank", [5, 4, 2])
def test_the_determinant_of_a_singular_matrix_is_0(rank, dtype):
    for layout in LAYOUTS:
        M = singular(rank, dtype=dtype)
        A = sparse(M, layout).requires_grad_()
        linalg.det(A).real.backward()
        mask = spgrad.ones_like(A.detach()).to_dense() != 0
        close = (
            {"rtol": 1e-3, "atol": 1e-3} if dtype == torch.float32 else {"atol": 1e-9, "rtol": 1e-9}
        )
        torch.testing.assert_close(
            A.grad.to_dense(), adjugate(M).mT.where(mask, 0).to(dtype), **close
        )
        if linalg.det(A) == 0:  # elimination ended at a zero
            assert torch.equal(linalg.slogdet(A)[0], torch.zeros((), dtype=dtype))
            assert linalg.slogdet(A)[1] == -torch.inf
            assert linalg.logdet(A).real == -torch.inf
        assert linalg.det(A).abs() < 1e-3


@pytest.mark.parametrize("batch", [(), (2,)])
def test_gradients_of_inverses_of_more_columns_than_are_solved_at_once(batch):
    m = inverse._COLUMNS + 7
    M = matrix(m, batch=batch, diagonal=9.0)
    A, dense = sparse(M).requires_grad_(), M.clone().requires_grad_()
    mask = M != 0
    weight = torch.randn(M.shape, dtype=D)
    found = linalg.inverse_at(A, A.pattern).to_dense(), linalg.inverse_diagonal(A)
    full = torch.linalg.inv(dense)
    wanted = full.where(mask, 0), full.diagonal(dim1=-2, dim2=-1)
    for y, expected, w in zip(found, wanted, (weight, weight[..., 0]), strict=True):
        torch.testing.assert_close(y, expected)
        (of_A,) = torch.autograd.grad(y, A, w)
        (of_M,) = torch.autograd.grad(expected, dense, w, retain_graph=True)
        torch.testing.assert_close(of_A.to_dense(), of_M.where(mask, 0))


def test_gradients_of_singular_matrices():
    A = sparse(torch.tensor([[1.0, 2.0], [2.0, 4.0]], dtype=D))
    vals = A.values().clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda v: linalg.det(spgrad.from_values(v, A.pattern)), vals)
    (g,) = torch.autograd.grad(
        linalg.det(spgrad.from_values(vals, A.pattern)), vals, create_graph=True
    )
    with pytest.raises(errors.PivotError, match="has no second derivative"):
        g.sum().backward()
    with pytest.raises(errors.PivotError, match="has no gradient"):
        linalg.logdet(spgrad.from_values(vals, A.pattern)).backward()
    (g,) = torch.autograd.grad(linalg.slogdet(spgrad.from_values(vals, A.pattern))[1] * 0.0, vals)
    assert not g.any()


@pytest.mark.parametrize("dtype", [D, C])
def test_the_determinant_of_one_element_is_that_element(dtype):
    """Also of 0, where other determinants have no second derivative."""
    pattern = sparse(torch.tensor([[[2.0]], [[0.0]], [[-3.0]]]).to(dtype)).pattern
    for numbers in ([2.0, 0.0], [2.0, 1.0]):
        vals = torch.tensor(numbers, dtype=dtype, requires_grad=True)
        found = linalg.det(spgrad.from_values(vals, pattern))
        assert found.tolist() == [numbers[0], 0, numbers[1]]
        (g,) = torch.autograd.grad(found.real.sum(), vals, create_graph=True)
        assert torch.equal(g, torch.ones(2, dtype=dtype))
        (second,) = torch.autograd.grad(g.real.sum(), vals)
        assert torch.equal(second, torch.zeros(2, dtype=dtype))


@pytest.mark.parametrize("dtype", [D, C])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_batches_with_singular_items(layout, dtype):
    M = torch.stack([matrix(6, dtype, seed=1), torch.zeros(6, 6, dtype=dtype) + matrix(6, dtype)])
    M = torch.stack([M, M + 0])
    M[0, 1, 2] = 0
    A = sparse(M, layout).requires_grad_()
    found, wanted = linalg.det(A), torch.linalg.det(M)
    torch.testing.assert_close(found, wanted)
    found.sum().abs().backward()
    g = found.detach().sum().conj() / found.detach().sum().abs()
    dense = torch.stack([adjugate(item).mT for item in M.flatten(0, 1)]).view(M.shape).conj()
    mask = spgrad.ones_like(A.detach()).to_dense() != 0
    torch.testing.assert_close(A.grad.to_dense(), (g.conj() * dense).where(mask, 0))
    sign, size = linalg.slogdet(A)
    torch.testing.assert_close(sign, torch.linalg.slogdet(M)[0])
    torch.testing.assert_close(size, torch.linalg.slogdet(M)[1])
    A.grad = None
    (size[0, 0] + size[1].sum()).backward()
    kept = torch.linalg.inv(
        M.where(M.new_tensor([[1, 0], [1, 1]])[..., None, None] != 0, torch.eye(6, dtype=dtype))
    )
    kept[0, 1] = 0
    torch.testing.assert_close(A.grad.to_dense(), kept.mH.where(mask, 0))


def test_elements_of_an_inverse_of_another_shape():
    A = spgrad.from_dense(2 * torch.eye(3))
    for wanted in (spgrad.eye(4), spgrad.eye(4).pattern):
        with pytest.raises(ValueError, match=r"`pattern` has shape \(4, 4\); the shape of `A`"):
            spgrad.linalg.inverse_at(A, wanted)
        with pytest.raises(ValueError, match=r"`pattern` has shape \(4, 4\); the shape of `A`"):
            spgrad.linalg.factor(A).inverse_at(wanted)


def test_a_batch_with_a_singular_matrix_inside_a_transform():
    """Items can't be told apart there, so that the whole batch is refused; each works alone."""
    dense = torch.stack([2 * torch.eye(2), torch.ones(2, 2)]).double()
    A = spgrad.from_dense(dense)
    sign, size = spgrad.linalg.slogdet(A)
    assert sign.tolist() == [1, 0]
    torch.testing.assert_close(size, torch.linalg.slogdet(dense)[1])

    def last(vals):
        return spgrad.linalg.slogdet(spgrad.from_values(vals, A.pattern))[1].sum()

    with pytest.raises(errors.PivotError, match="`A` is singular"):
        torch.func.grad(last)(A.values())


@pytest.mark.parametrize("layout", ["csr", "coo"])
def test_elements_of_the_inverse_at_no_place(layout):
    """Nothing is asked for, so the gradient is 0 on the pattern; of first and second order."""
    A = sparse(matrix(), layout).requires_grad_()
    found = linalg.inverse_at(A, spgrad.zeros(8, 8))
    assert found.nse == 0
    first = torch.autograd.grad(found.sum(), A, create_graph=True)[0]
    second = torch.autograd.grad(first.sum(), A)[0]
    assert first.nse == second.nse == A.nse
    assert not first.values().any()
    assert not second.values().any()


def test_the_inverse_of_a_matrix_without_rows():
    A = spgrad.zeros(0, 0, dtype=D).requires_grad_()
    for found in (linalg.inverse_at(A, A), linalg.inverse_diagonal(A)):
        assert torch.autograd.grad(found.sum(), A)[0].shape == (0, 0)
    first = torch.autograd.grad(linalg.inverse_at(A, A).sum(), A, create_graph=True)[0]
    assert torch.autograd.grad(first.sum(), A)[0].shape == (0, 0)
