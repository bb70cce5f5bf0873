"""Arguments that torchsparsegradutils refuses, and devices, steps and bounds of its helpers."""

import pytest
import torch

import spgrad.dropin.torchsparsegradutils as tsgu
from spgrad.dropin.torchsparsegradutils.distributions import SparseMultivariateNormal
from spgrad.dropin.torchsparsegradutils.encoders import PairwiseEncoder
from spgrad.dropin.torchsparsegradutils.encoders.pairwise_encoder import (
    calc_pairwise_coo_indices,
    calc_pairwise_coo_indices_nd,
)
from spgrad.dropin.torchsparsegradutils.utils import (
    minres,
    rand_sparse_tri,
    sparse_block_diag_split,
    sparse_eye,
    stack_csr,
)
from spgrad.dropin.torchsparsegradutils.utils.dist_stats_helpers import (
    cov_nagao_test,
    mean_hotelling_t2_test,
)
from spgrad.dropin.torchsparsegradutils.utils.random_sparse import make_spd_sparse
from spgrad.dropin.torchsparsegradutils.utils.utils import _compress_row_indices

D = torch.float64
A = torch.tensor([[4.0, 1, 0], [1, 3, 1], [0, 1, 2]], dtype=D).to_sparse_csr()


def encode(values):
    return PairwiseEncoder(1, (2, 3, 3))(values)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: stack_csr([A, A.to_sparse_coo()]), ValueError, "CSR matrices of one shape"),
        (lambda: stack_csr([A, A.to_dense()[:2].to_sparse_csr()]), ValueError, "of one shape"),
        (lambda: sparse_block_diag_split(A.to_dense(), (3, 3)), ValueError, "COO and CSR"),
        (lambda: sparse_block_diag_split([A], (3, 3)), TypeError, "a tensor is taken"),
        (lambda: sparse_block_diag_split(A, (3, 3, 1)), ValueError, "pairs of rows and columns"),
        (lambda: sparse_block_diag_split(A, (2, 3)), ValueError, r"add up to \(2, 3\)"),
        (lambda: _compress_row_indices([0, 1], 2), TypeError, "row_indices is list"),
        (lambda: _compress_row_indices(torch.ones(1, 2).long(), 2), ValueError, "2 dimensions"),
        (lambda: _compress_row_indices(torch.ones(2), 2), TypeError, "dtype torch.float32"),
        (lambda: _compress_row_indices(torch.tensor([2]), 2), ValueError, "outside of the 2"),
        (lambda: _compress_row_indices(torch.tensor([0]), 0), ValueError, "num_rows is 0"),
        (lambda: calc_pairwise_coo_indices(1, (1, 2, 2, 2, 2)), ValueError, "volume_shape"),
        (lambda: calc_pairwise_coo_indices(1, (1, 2, 2)), ValueError, "volume_shape"),
        (lambda: encode(torch.ones(3, 3)), ValueError, "2 dimensions; 4, or a batch"),
        (lambda: encode(torch.ones(1, 1, 4, 2, 3, 3)), ValueError, "6 dimensions"),
        (lambda: encode(torch.ones(4, 2, 3, 2)), ValueError, "must end in"),
        (lambda: encode(torch.ones(2, 2, 3, 3)), ValueError, "2 steps"),
        (lambda: encode(torch.ones(1, 2, 3, 3).int()), ValueError, "steps|dtype"),
        (
            lambda: tsgu.sparse_generic_solve(A, torch.ones(4, 1, dtype=D)),
            ValueError,
            r"B has shape \(4, 1\); \(3,\) or more",
        ),
        (lambda: tsgu.sparse_mm(A, torch.ones(4, 1, dtype=D)), ValueError, "3 columns and B has 4"),
        (lambda: calc_pairwise_coo_indices_nd(0.5, (1, 3)), ValueError, "radius is 0.5; 1 or"),
        (
            lambda: tsgu.sparse_generic_solve([A], torch.ones(3, 1, dtype=D)),
            ValueError,
            "A is list",
        ),
    ],
)
def test_refusals(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_a_solver_that_returns_columns_for_a_vector():
    b = torch.tensor([1.0, 2, 3], dtype=D)
    wanted = torch.linalg.solve(A.to_dense(), b)

    def solve(A, B):
        return torch.linalg.solve(A.to_dense(), B.reshape(3, -1))

    x = tsgu.sparse_generic_solve(A, b, solve=solve)
    assert x.shape == (3,)
    torch.testing.assert_close(x, wanted)
    torch.testing.assert_close(tsgu.sparse_generic_solve(A, b[:, None], solve=solve)[:, 0], wanted)


def test_an_encoder_takes_batches_and_moves():
    code = PairwiseEncoder(1, (1, 2, 3), upper=True, layout=torch.sparse_csr)
    values = torch.rand(2, len(code.offsets), 1, 2, 3)
    both = code(values)
    assert both.shape == (2, 6, 6)
    assert torch.equal(both.to_dense()[1], code(values[1]).to_dense())
    for layout in (torch.sparse_coo, torch.sparse_csr):
        code = PairwiseEncoder(1, (1, 2, 3), upper=True, layout=layout)
        assert code.device.type == "cpu"
        assert code.to("meta").device.type == "meta"


@pytest.mark.parametrize("relation", ["indep", "intra", "inter"])
def test_steps_are_ordered_by_distance_with_channels_ten_points_apart(relation):
    steps = PairwiseEncoder(11, (2, 13), channel_voxel_relation=relation).offsets
    distances = [100 * c + s * s for c, s in steps]
    assert distances == sorted(distances)
    others = {"indep": [], "intra": [0], "inter": range(-11, 12)}[relation]
    wanted = {(0, s) for s in range(-11, 12) if s} | {(1, s) for s in others}
    assert sorted(steps) == sorted(wanted)


def test_minres_stops_after_the_steps_that_are_asked_for():
    b = torch.tensor([1.0, 2, 3], dtype=D)
    whole = torch.linalg.solve(A.to_dense(), b)
    torch.testing.assert_close(minres(A, b), whole)
    assert (minres(A, b, max_iter=1) - whole).norm() > 0.01


def test_the_bound_of_the_mean():
    """p (n - 1) / (n - p) times the quantile of F, after Hotelling; of scipy.stats."""
    stats = pytest.importorskip("scipy.stats")
    mean = torch.tensor([[0.2, -0.1], [0.1, 0.4]], dtype=D)
    true, cov = torch.full((2, 2), 0.1, dtype=D), torch.eye(2, dtype=D).expand(2, 2, 2)
    passed, statistic, bound = mean_hotelling_t2_test(mean, true, cov, 60, 0.9)
    assert bound == pytest.approx(2 * 59 / 58 * stats.f.ppf(0.9, 2, 58))
    torch.testing.assert_close(statistic, torch.tensor([60 * 0.05, 60 * 0.09], dtype=D))
    assert passed.tolist() == [True, False]


def test_the_bound_of_the_covariance():
    """The quantile of chi^2 with p (p + 1) / 2 degrees of freedom, after Nagao; of scipy.stats."""
    stats = pytest.importorskip("scipy.stats")
    gap = torch.tensor([[0.1, 0.2], [0.2, -0.3]], dtype=D)
    L = torch.tensor([[2.0, 0], [1, 3]], dtype=D)
    drawn = L @ (torch.eye(2, dtype=D) + gap) @ L.mT
    passed, statistic, bound = cov_nagao_test(drawn[None], (L @ L.mT)[None], 50, 0.9)
    assert bound == pytest.approx(stats.chi2.ppf(0.9, 3))
    torch.testing.assert_close(statistic, torch.tensor([50 / 2 * 0.18], dtype=D))
    assert passed.tolist() == [True]


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
@pytest.mark.parametrize("size", [(3, 3), (2, 3, 3)])
def test_units_and_safe_diagonals_with_and_without_a_batch(layout, size):
    ones = sparse_eye(size, layout=layout)
    assert torch.equal(ones.to_dense(), torch.eye(3).expand(size))
    drawn = rand_sparse_tri(size, 5, layout=layout, well_conditioned=True, min_diag_value=9.0)
    assert drawn.to_dense().diagonal(0, -2, -1).ge(9).all()
    usual = rand_sparse_tri(size, 5, layout=layout, well_conditioned=True).to_dense()
    assert usual.diagonal(0, -2, -1).ge(1).all()
    assert usual.diagonal(0, -2, -1).lt(1.5).all()


@pytest.mark.parametrize(("nz", "zeros"), [(0, 0), (6, 6), (7, 6), (100, 20)])
def test_a_definite_matrix_with_so_many_zeros(nz, zeros):
    made, dense = make_spd_sparse(5, torch.sparse_csr, D, torch.int64, "cpu", nz=nz)
    assert (dense == 0).sum() == zeros
    assert torch.equal(made.to_dense(), dense)


def test_a_distribution_takes_one_batch_dimension_and_no_second():
    factor = torch.eye(3, dtype=D).to_sparse_coo()
    one = SparseMultivariateNormal(torch.zeros(2, 3, dtype=D), scale_tril=factor)
    assert one.rsample().shape == (2, 3)
    with pytest.raises(ValueError, match="loc has 3 dimensions; 1, or one more"):
        SparseMultivariateNormal(torch.zeros(1, 2, 3, dtype=D), scale_tril=factor)


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
@pytest.mark.parametrize("items", [(), (2,)])
@pytest.mark.parametrize("name", ["scale_tril", "precision_tril"])
def test_a_distribution_with_a_diagonal_beside_its_factor(name, items, layout):
    factor = torch.tensor([[1.0, 0, 0], [2, 1, 0], [0, -1, 1]], dtype=D)
    diagonal = torch.arange(1.0, 1 + 3 * 2 ** len(items), dtype=D).view(*items, 3)
    loc = diagonal.flip(-1)
    given = factor.to_sparse(layout=layout)
    made = SparseMultivariateNormal(loc, diagonal, **{name: given})
    whole = factor @ torch.diag_embed(diagonal) @ factor.T
    kind = {"scale_tril": "covariance_matrix", "precision_tril": "precision_matrix"}[name]
    dense = torch.distributions.MultivariateNormal(loc, **{kind: whole})
    x = torch.ones(3, dtype=D)
    torch.testing.assert_close(made.log_prob(x), dense.log_prob(x))
    assert made.is_ldlt_parameterization
    assert not SparseMultivariateNormal(loc, **{name: given}).is_ldlt_parameterization
    with pytest.raises(ValueError, match="diagonal has 3 dimensions; 1, or one more, are taken"):
        SparseMultivariateNormal(loc, torch.ones(1, 1, 3, dtype=D), **{name: given})


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_what_is_outside_of_the_blocks_is_left_out(layout):
    x = torch.arange(1.0, 26, dtype=D).view(5, 5)
    given = x.to_sparse(layout=layout)
    if layout == torch.sparse_coo:
        twice = given.indices().repeat(1, 2), given.values().repeat(2) / 2
        given = torch.sparse_coo_tensor(*twice, (5, 5))
    parts = sparse_block_diag_split(given, (2, 3), (3, 2))
    for part, wanted in zip(parts, (x[:2, :3], x[2:, 3:]), strict=True):
        assert (part.layout, part._nnz()) == (layout, 6)
        assert torch.equal(part.to_dense(), wanted)
        assert layout != torch.sparse_coo or part.is_coalesced()


def test_a_definite_matrix_is_a_square_with_more_on_its_diagonal():
    torch.manual_seed(0)
    made = make_spd_sparse(4, torch.sparse_coo, D, torch.int64, "cpu", 0.0)[1]
    torch.manual_seed(0)
    root = torch.randn(4, 4, dtype=D)
    square = root @ root.T
    beside = square - torch.diag(square.diagonal())
    torch.testing.assert_close(made, square + torch.diag(beside.abs().sum(1) + 4))
