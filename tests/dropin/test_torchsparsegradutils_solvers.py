"""Solvers, distributions, encoders and helpers of torchsparsegradutils against dense torch."""

import pytest
import torch

import spgrad.dropin.torchsparsegradutils as tsgu
from spgrad.dropin.torchsparsegradutils import encoders
from spgrad.dropin.torchsparsegradutils._compat import linalg_solve_triangular_compat
from spgrad.dropin.torchsparsegradutils.distributions import (
    SparseMultivariateNormal,
    SparseMultivariateNormalNative,
)
from spgrad.dropin.torchsparsegradutils.distributions.sparse_multivariate_normal import (
    _batch_sparse_mv,
)
from spgrad.dropin.torchsparsegradutils.encoders import pairwise_encoder
from spgrad.dropin.torchsparsegradutils.utils import (
    BICGSTABSettings,
    LinearCGSettings,
    bicgstab,
    convert_coo_to_csr,
    convert_coo_to_csr_indices_values,
    linear_cg,
    minres,
    random_sparse,
    sparse_block_diag,
    sparse_block_diag_split,
)
from spgrad.dropin.torchsparsegradutils.utils.utils import _demcompress_crow_indices

D = torch.float64
LAYOUTS = [torch.sparse_coo, torch.sparse_csr]
A = torch.tensor([[4.0, 1, 0], [1, 3, 1], [0, 1, 2]], dtype=D)
TRIANGLE = torch.tensor([[2.0, 0, 0], [1, 3, 0], [0, -1, 0.5]], dtype=D)
b = torch.tensor([[1.0, 0], [2, 1], [3, -1]], dtype=D)
close = torch.testing.assert_close


# Iterations


def graded(size=40):
    """A matrix of which a diagonal preconditioner saves nearly all steps."""
    M = torch.diag(torch.logspace(0, 4, size, dtype=D))
    return M + 0.01 * torch.ones(size, size, dtype=D)


@pytest.mark.parametrize("columns", [None, 2])
@pytest.mark.parametrize("name", ["linear_cg", "minres", "bicgstab"])
def test_preconditioners(name, columns):
    M, calls = graded(), []
    right = torch.ones(40, *([] if columns is None else [columns]), dtype=D)

    def times(x):
        calls.append(x.shape)
        return M @ x

    def inverse(r):
        calls.append("inverse")
        return r / (M.diagonal() if r.dim() == 1 else M.diagonal()[:, None])

    def solved(given):
        if name == "bicgstab":
            return bicgstab(times, right, settings=BICGSTABSettings(precon=given))
        solve = {"linear_cg": linear_cg, "minres": minres}[name]
        return solve(times, right, preconditioner=given)

    close(solved(inverse), torch.linalg.solve(M, right), rtol=1e-5, atol=1e-7)
    assert "inverse" in calls
    steps = len([c for c in calls if c != "inverse"])
    calls.clear()
    solved(None)
    assert steps < len(calls) / 2


@pytest.mark.parametrize("start", [None, torch.tensor([[1.0, 0], [0, 1], [1, 1]], dtype=D)])
def test_functions_of_one_vector(start):
    """A function gets vectors, (m,); so does one for the preconditioner of a tensor."""
    M, shapes = A + TRIANGLE, []

    def times(x):
        shapes.append(tuple(x.shape))
        return M @ x

    wanted = torch.linalg.solve(M, b)
    close(bicgstab(times, b, start), wanted, rtol=1e-5, atol=1e-6)
    assert set(shapes) == {(3,)}
    shapes.clear()

    def inverse(r):
        shapes.append(tuple(r.shape))
        return r / M.diagonal()

    settings = BICGSTABSettings(precon=inverse)
    close(bicgstab(M, b, start, settings), wanted, rtol=1e-5, atol=1e-6)
    assert set(shapes) == {(3,)}
    exact = BICGSTABSettings(matvec_max=2, precon=torch.linalg.inv(M))
    close(bicgstab(M, b, start, exact), wanted, rtol=1e-5, atol=1e-6)


def test_tridiagonal_matrices_of_lanczos():
    """T of k steps has e_1^T T^p e_1 = q^T A^p q for p < 2 k, for the unit vector q of rhs."""
    M = torch.diag(torch.tensor([1.0, 2, 4, 8, 16], dtype=D)) + 0.1
    right = torch.randn(5, 3, dtype=D)
    x, T = linear_cg(M, right, n_tridiag=2, max_tridiag_iter=3)
    close(x, torch.linalg.solve(M, right), rtol=1e-6, atol=1e-7)
    assert T.shape == (2, 3, 3)
    assert torch.equal(T, T.mT)
    assert T[:, 0, 2].eq(0).all()
    q = right / right.norm(dim=0)
    for column in range(2):
        for p in range(6):
            moment = q[:, column] @ torch.linalg.matrix_power(M, p) @ q[:, column]
            close(torch.linalg.matrix_power(T[column], p)[0, 0], moment)
    x, T = linear_cg(M, right[:, 0], n_tridiag=1)
    assert x.shape == (5,)
    close(torch.linalg.eigvalsh(T[0]), torch.linalg.eigvalsh(M))
    both = torch.stack([M, 2 * M])
    _, T = linear_cg(both, right.expand(2, 5, 3), n_tridiag=2, max_tridiag_iter=4)
    assert T.shape == (2, 2, 4, 4)
    assert T.is_contiguous()
    close(T[:, 1], 2 * T[:, 0])


def test_tridiagonal_matrices_end_where_the_space_ends():
    M = torch.diag(torch.tensor([1.0, 2, 3, 4], dtype=D))
    _, T = linear_cg(M, torch.tensor([1.0, 1, 0, 0], dtype=D), n_tridiag=1)
    close(T, torch.tensor([[[1.5, 0.5], [0.5, 1.5]]], dtype=D))


def test_bounds_of_conjugate_gradients():
    M = torch.diag(torch.logspace(0, 6, 6, dtype=D))
    right = torch.ones(6, dtype=D)
    by_size = LinearCGSettings(terminate_cg_by_size=True)
    text = "CG ended after 1 iterations .*; 1e-06 was asked for"
    with pytest.warns(UserWarning, match=text) as told:
        linear_cg(M, right, tolerance=1e-6, max_iter=1)
    assert [warning.filename for warning in told] == [__file__]
    counts = []
    for settings in (by_size, LinearCGSettings()):
        counted = []
        x = linear_cg(lambda x: counted.append(x) or M @ x, right, tolerance=100, settings=settings)  # noqa: B023
        counts.append(len(counted))
    close(x, right / M.diagonal(), rtol=1e-5, atol=0)
    assert counts[0] <= 8 < counts[1]  # six steps, and the products before and after
    with pytest.raises(RuntimeError, match="max_tridiag_iter is 20, more than the 6 iterations"):
        linear_cg(M, right, n_tridiag=1, settings=by_size)
    with pytest.raises(RuntimeError, match="a product with the matrix has NaN"):
        linear_cg(M * torch.nan, right)


# Solves with gradients


def test_triangular_solves_of_dense_and_sparse_matrices():
    for transpose in (False, True):
        for unit in (False, True):
            M = TRIANGLE.tril(-1) + torch.eye(3, dtype=D) if unit else TRIANGLE
            wanted = torch.linalg.solve(M.T if transpose else M, b)
            options = {"upper": False, "unitriangular": unit, "transpose": transpose}
            for given in (TRIANGLE, TRIANGLE.to_sparse_csr(), TRIANGLE.to_sparse()):
                close(linalg_solve_triangular_compat(given, b, **options), wanted)


@pytest.mark.parametrize("given", [TRIANGLE, TRIANGLE.to_sparse_csr()], ids=["dense", "csr"])
def test_triangular_solves_read_the_diagonal_unless_told(given):
    x = linalg_solve_triangular_compat(given, b, upper=False)
    close(x, torch.linalg.solve(TRIANGLE, b))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_least_squares_of_a_vector(layout):
    M = torch.tensor([[2.0, 0], [1, 3], [0, 1], [1, 0]], dtype=D)
    right = torch.tensor([1.0, 2, -1, 3], dtype=D)
    S, dense = M.to_sparse(layout=layout).requires_grad_(), M.clone().requires_grad_()
    x = tsgu.sparse_generic_lstsq(S, right.requires_grad_())
    other = right.detach().clone().requires_grad_()
    wanted = torch.linalg.pinv(dense) @ other
    close(x, wanted, rtol=1e-6, atol=1e-7)
    weight = torch.tensor([1.0, -2], dtype=D)
    x.backward(weight)
    wanted.backward(weight)
    close(right.grad, other.grad, rtol=1e-5, atol=1e-6)
    close(S.grad.to_dense(), dense.grad.where(M != 0, 0), rtol=1e-5, atol=1e-6)


def test_least_squares_with_a_gradient_of_the_right_side_alone():
    M = torch.tensor([[2.0, 0], [1, 3], [0, 1]], dtype=D)
    right = b.clone().requires_grad_()
    calls = []

    def lstsq(S, B):
        calls.append("solve")
        return torch.linalg.lstsq(S.to_dense(), B).solution

    def transposed(S, g):
        calls.append("transposed")
        return torch.linalg.pinv(S.to_dense()).T @ g

    x = tsgu.sparse_generic_lstsq(M.to_sparse_csr(), right, lstsq, transposed)
    x.square().sum().backward()
    inverse = torch.linalg.pinv(M)
    close(x, inverse @ b)
    close(right.grad, 2 * inverse.T @ inverse @ b)
    assert calls == ["solve", "transposed"]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_logarithms_in_one_tensor():
    dense = torch.tensor([[1.0, 0, 2], [0, 0, -1]], dtype=D)
    for include_zeros in (True, False):
        shown = dense if include_zeros else dense.where(dense != 0, -torch.inf)
        S = dense.to_sparse_csr().requires_grad_()
        found = tsgu.sparse_bidir_logsumexp(S, False, include_zeros, "padded")
        infinite = torch.tensor([-torch.inf], dtype=D)
        wanted = torch.stack([shown.logsumexp(0), torch.cat((shown.logsumexp(1), infinite))])
        close(found, wanted)
        column, row = tsgu.sparse_bidir_logsumexp(S, False, include_zeros, "nested").unbind()
        close(column, shown.logsumexp(0))
        close(row, shown.logsumexp(1))
        (column.where(column > -torch.inf, 0).sum() + row.sum()).backward()
        leaf = dense.clone().requires_grad_()
        shown = leaf if include_zeros else leaf.where(dense != 0, -torch.inf)
        (shown[:, [0, 2]].logsumexp(0).sum() + shown.logsumexp(1).sum()).backward()
        close(S.grad.to_dense(), leaf.grad.where(dense != 0, 0))


# Distributions and encoders


def test_a_factor_is_given_back_coalesced():
    twice = torch.sparse_coo_tensor([[0, 1, 1], [0, 1, 1]], torch.ones(3), (2, 2))
    p = SparseMultivariateNormal(torch.zeros(2), scale_tril=twice)
    assert p.scale_tril.is_coalesced()
    assert torch.equal(p.scale_tril.to_dense(), torch.diag(torch.tensor([1.0, 2])))
    torch.testing.assert_close(p.variance, torch.tensor([1.0, 4]))


def test_a_gaussian_with_a_native_factor():
    loc = torch.tensor([1.0, -1, 2], dtype=D)
    L = TRIANGLE.to_sparse_csr().requires_grad_()
    p = SparseMultivariateNormalNative(loc, L)
    q = torch.distributions.MultivariateNormal(loc, scale_tril=TRIANGLE)
    assert p.mean is loc
    assert p.mode is loc
    with pytest.warns(UserWarning, match="covariance_matrix is dense") as told:
        close(p.covariance_matrix, q.covariance_matrix)
    assert [warning.filename for warning in told] == [__file__]
    close(p.log_prob(b.T), q.log_prob(b.T))
    torch.manual_seed(0)
    samples = p.rsample((20_000,))
    assert samples.shape == (20_000, 3)
    close(samples.mean(0), loc, rtol=0, atol=0.1)
    close(torch.cov(samples.T), q.covariance_matrix, rtol=0, atol=0.3)
    samples.mean(0).sum().backward()
    assert L.grad.layout == torch.sparse_csr
    noise = torch.linalg.solve(TRIANGLE, (samples.detach() - loc).T).mean(1)
    close(L.grad.to_dense(), noise.expand(3, 3).where(TRIANGLE != 0, 0))


@pytest.mark.parametrize("samples", [(), (4,)])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_products_with_vectors_of_a_batch(batch, samples):
    M = torch.randn(*batch, 3, 3, dtype=D)
    v = torch.randn(*samples, *batch, 3, dtype=D)
    seen = []

    def times(A, B, **options):
        seen.append(options)
        assert B.shape == (*batch, 3, *(samples or (1,)))
        return A @ B

    close(_batch_sparse_mv(times, M, v, upper=True), torch.einsum("...ij,...j->...i", M, v))
    assert seen == [{"upper": True}]


def test_a_batch_of_codes_in_coo():
    code = encoders.PairwiseEncoder(1, (2, 2, 3), channel_voxel_relation="inter")
    values = torch.rand(3, len(code.offsets), 2, 2, 3, requires_grad=True)
    both = code(values)
    assert both.layout == torch.sparse_coo
    for item in range(3):
        assert torch.equal(both[item].to_dense(), code(values[item].detach()).to_dense())
    (both.to_dense() ** 2).sum().backward()
    csr = encoders.PairwiseEncoder(
        1, (2, 2, 3), channel_voxel_relation="inter", layout=torch.sparse_csr
    )
    assert torch.equal(csr(values.detach()).to_dense(), both.detach().to_dense())
    used = values.grad != 0
    assert int(used.sum()) == both._nnz()
    assert torch.equal(values.grad[used], 2 * values.detach()[used])


def test_names_of_three_dimensions():
    steps = pairwise_encoder._gen_coords(1)
    assert steps == pairwise_encoder._gen_coords_nd(1, 3)
    assert {sum(map(abs, s)) for s in steps} == {1}
    assert pairwise_encoder._gen_offsets(1, True) == pairwise_encoder._gen_offsets_nd(1, 3, True)
    grid = torch.arange(6).view(2, 3)
    assert pairwise_encoder._trim_nd(grid, (0, 1)).tolist() == [[1, 2], [4, 5]]
    assert pairwise_encoder._trim_nd(grid, (-1, 0)).tolist() == [[0, 1, 2]]
    wanted = encoders.calc_pairwise_coo_indices_nd(1, (1, 2, 1, 3), True, False)
    for name in ("calc_pairwise_coo_indices", "calc_pariwise_coo_indices"):
        with pytest.warns(DeprecationWarning, match=f"{name} is deprecated") as told:
            old = getattr(encoders, name)
        assert [warning.filename for warning in told] == [__file__]
        found = old(1, (1, 2, 1, 3), True, False)
        assert list(found) == list(wanted)
        assert all(torch.equal(found[step], wanted[step]) for step in wanted)
    with pytest.warns(DeprecationWarning, match="PairwiseVoxelEncoder is deprecated") as told:
        code = encoders.PairwiseVoxelEncoder(1, (1, 2, 1, 3), upper=True)
    assert [warning.filename for warning in told] == [__file__]
    assert code.offsets == encoders.PairwiseEncoder(1, (1, 2, 1, 3), upper=True).offsets
    assert code.spatial_dims == 3
    deprecated = pytest.warns(DeprecationWarning, match="has its place")
    with deprecated, pytest.raises(ValueError, match="volume_shape must be"):
        encoders.PairwiseVoxelEncoder(1, (1, 2, 3))
    deprecated = pytest.warns(DeprecationWarning, match="has its place")
    with deprecated, pytest.raises(ValueError, match="volume_shape"):
        encoders.PairwiseVoxelEncoder(1, (1, 2, 3, 2, 2))
    for name in ("other", "_trim_nd"):
        with pytest.raises(AttributeError, match=f"has no attribute '{name}'"):
            getattr(encoders, name)


# Random and block-diagonal matrices


@pytest.mark.parametrize("name", ["coo", "csr"])
@pytest.mark.parametrize("size", [(4, 4), (2, 4, 4)])
def test_random_matrices_by_their_long_names(name, size):
    layout = {"coo": torch.sparse_coo, "csr": torch.sparse_csr}[name]
    for kind, least in (("", None), ("triangular_", 0), ("strictly_triangular_", 1)):
        make = getattr(random_sparse, f"generate_random_sparse_{kind}{name}_matrix")
        found = make(size, 5, values_dtype=D, value_range=(1.0, 2.0))
        assert found.layout == layout
        assert found.shape == size
        dense = found.to_dense()
        assert dense[dense != 0].ge(1).all()
        assert (dense != 0).sum((-2, -1)).eq(5).all()
        if least is not None:
            assert torch.equal(dense, dense.triu(least))
            lower = make(size, 5, upper=False).to_dense()
            assert torch.equal(lower, lower.tril(-least))
        if least == 0:
            assert dense.diagonal(0, -2, -1).ne(0).all()


def test_batches_become_csr():
    dense = torch.tensor([[[0.0, 1], [2, 0]], [[3, 4], [0, 0]], [[0, 0], [5, 6]]])
    found = convert_coo_to_csr(dense.to_sparse())
    assert found.layout == torch.sparse_csr
    assert torch.equal(found.to_dense(), dense)
    shuffled = torch.tensor([5, 0, 3, 1, 4, 2])
    S = dense.to_sparse().coalesce()
    crow, col, at = convert_coo_to_csr_indices_values(S.indices()[:, shuffled], 2)
    assert torch.equal(crow, found.crow_indices())
    assert torch.equal(col, found.col_indices())
    assert (crow.shape, col.shape, at.shape) == ((3, 3), (3, 2), (3, 2))
    assert torch.equal(S.values()[shuffled][at], found.values())
    rows = _demcompress_crow_indices(crow[1].int(), 2)
    assert rows.tolist() == [0, 0]
    assert rows.dtype == torch.int32


def test_many_elements_become_csr_in_the_order_of_columns():
    """So many that torch's sort is stable only where it is asked to be."""
    shuffled = torch.randperm(64, generator=torch.Generator().manual_seed(0))
    indices = torch.stack([shuffled // 8, shuffled % 8])
    crow, col, vals = convert_coo_to_csr_indices_values(indices, 8, shuffled + 1.0)
    assert crow.tolist() == list(range(0, 65, 8))
    assert col.tolist() == list(range(8)) * 8
    assert vals.tolist() == list(range(1, 65))


def test_block_diagonal_coo_matrices():
    parts = [A[:2], TRIANGLE, b]
    sparse = [x.to_sparse() for x in parts]
    uncoalesced = torch.sparse_coo_tensor(
        sparse[0].indices().repeat(1, 2), sparse[0].values().repeat(2), (2, 3)
    )
    whole = sparse_block_diag(uncoalesced, *sparse[1:])
    assert whole.layout == torch.sparse_coo
    assert whole.is_coalesced()
    assert torch.equal(whole.to_dense(), torch.block_diag(2 * parts[0], *parts[1:]))
    for given in (whole, whole.to_sparse_csr()):
        found = sparse_block_diag_split(given, (2, 3), (3, 3), (3, 2))
        for x, wanted in zip(found, [2 * parts[0], *parts[1:]], strict=True):
            assert x.layout == given.layout
            assert torch.equal(x.to_dense(), wanted)
    assert sparse_block_diag(whole) is whole


def test_items_of_an_encoded_batch_have_columns_of_their_own():
    encode = encoders.PairwiseEncoder(1, (1, 2, 2), layout=torch.sparse_csr)
    A = encode(torch.randn(3, len(encode.offsets), 1, 2, 2))
    assert A.col_indices().is_contiguous()
    assert A.crow_indices().is_contiguous()
