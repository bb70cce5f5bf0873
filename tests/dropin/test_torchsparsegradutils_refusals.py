"""What the stand-in for torchsparsegradutils refuses, with the class and the text of the error."""

import re

import pytest
import torch

import spgrad.dropin.torchsparsegradutils as tsgu
from spgrad.dropin.torchsparsegradutils.distributions import (
    SparseMultivariateNormal,
    SparseMultivariateNormalNative,
)
from spgrad.dropin.torchsparsegradutils.distributions.sparse_multivariate_normal import (
    _batch_sparse_mv,
)
from spgrad.dropin.torchsparsegradutils.encoders import (
    PairwiseEncoder,
    calc_pairwise_coo_indices_nd,
)
from spgrad.dropin.torchsparsegradutils.encoders.pairwise_encoder import _gen_coords_nd, _trim_nd
from spgrad.dropin.torchsparsegradutils.utils import (
    convert_coo_to_csr,
    convert_coo_to_csr_indices_values,
    rand_sparse,
    rand_sparse_tri,
    sparse_block_diag,
    sparse_block_diag_split,
    sparse_eye,
    stack_csr,
)
from spgrad.dropin.torchsparsegradutils.utils.random_sparse import make_spd_sparse

D = torch.float64
A = torch.tensor([[4.0, 1, 0], [1, 3, 1], [0, 1, 2]], dtype=D).to_sparse_csr()
B = torch.stack([A.to_dense(), A.to_dense()]).to_sparse_csr()
HYBRID = torch.ones(3, 2, 2).to_sparse(2)
ZERO = torch.zeros(3)


def columns(n, dtype=D):
    return torch.ones(n, 1, dtype=dtype)


def solve(A, B):
    return torch.linalg.lstsq(A.to_dense(), B).solution


PRODUCTS_AND_SOLVES = [
    (lambda: tsgu.sparse_mm(A, A), ValueError, "B has layout torch.sparse_csr; a dense"),
    (
        lambda: tsgu.sparse_mm(B, torch.ones(3, 3, 1, dtype=D)),
        ValueError,
        "A is a batch of 2 and B of 3",
    ),
    (lambda: tsgu.gather_mm(torch.ones(2, 1), torch.ones(1, 1, 1), [0, 0]), ValueError, "list is"),
    (
        lambda: tsgu.sparse_triangular_solve(rand_sparse((2, 3), 2), columns(3)),
        ValueError,
        r"A has shape \(2, 3\); a square",
    ),
    (
        lambda: tsgu.sparse_generic_solve(rand_sparse((2, 3), 2), columns(2)),
        ValueError,
        r"A has shape \(2, 3\); a square matrix is",
    ),
    (lambda: tsgu.sparse_generic_solve(B, columns(2)), ValueError, "a square matrix is"),
    (lambda: tsgu.sparse_generic_solve(A, A), TypeError, "B has layout torch.sparse_csr; a dense"),
    (lambda: tsgu.sparse_logsumexp(A, ()), RuntimeError, "dim is empty"),
    (lambda: tsgu.sparse_logsumexp(B, (0, 1)), NotImplementedError, "dimension of the batch, 0"),
    (lambda: tsgu.sparse_logsumexp(B, -3), NotImplementedError, "dimension of the batch, 0"),
    (
        lambda: tsgu.sparse_logsumexp(torch.ones(2).to_sparse(), 0),
        NotImplementedError,
        "sparse_logsumexp of 1 dimensions",
    ),
    (lambda: tsgu.sparse_bidir_logsumexp(HYBRID), ValueError, "bidir_logsumexp of a tensor with"),
    (
        lambda: tsgu.sparse_bidir_logsumexp(A, keepdim=True, output_layout="padded"),
        ValueError,
        "keepdim is only supported with the output_layout 'tuple'",
    ),
]

DISTRIBUTIONS = [
    (lambda: SparseMultivariateNormal(ZERO), ValueError, "one of scale_tril and precision_tril"),
    (
        lambda: SparseMultivariateNormal(ZERO, scale_tril=A, precision_tril=A),
        ValueError,
        "and not both",
    ),
    (
        lambda: SparseMultivariateNormal(ZERO, scale_tril=A.to_sparse_csc()),
        ValueError,
        "scale_tril has layout torch.sparse_csc",
    ),
    (
        lambda: SparseMultivariateNormal(torch.zeros(1, 1, 3), precision_tril=A),
        ValueError,
        "loc has 3 dimensions; 1, or one more",
    ),
    (
        lambda: SparseMultivariateNormal(ZERO.double(), precision_tril=A).scale_tril,
        AttributeError,
        "given by its precision_tril, not its scale_tril",
    ),
    (
        lambda: SparseMultivariateNormal(ZERO.double(), scale_tril=A).precision_tril,
        AttributeError,
        "given by its scale_tril, not its precision_tril",
    ),
    (
        lambda: SparseMultivariateNormalNative(torch.zeros(1, 3), A),
        ValueError,
        r"one-dimensional; it has shape \(1, 3\)",
    ),
    (
        lambda: SparseMultivariateNormalNative(ZERO, A.to_sparse_coo()),
        ValueError,
        "must be sparse CSR; it has layout torch.sparse_coo",
    ),
    (lambda: SparseMultivariateNormalNative(ZERO, B), ValueError, "two-dimensional, not 3-d"),
    (
        lambda: SparseMultivariateNormalNative(torch.zeros(2), A),
        ValueError,
        r"scale_tril has shape \(3, 3\) for torch.Size\(\[2\]\)",
    ),
    (
        lambda: SparseMultivariateNormalNative(ZERO.double(), A, True).log_prob(torch.zeros(2)),
        ValueError,
        "event_shape",
    ),
    (lambda: _batch_sparse_mv(torch.mm, A, torch.ones(1, 1, 3)), ValueError, r"\(1, 1, 3\) do not"),
]

ENCODERS = [
    (lambda: _trim_nd(torch.ones(2, 2), (1,)), ValueError, "1 numbers for 2 dimensions"),
    (lambda: _gen_coords_nd(1, 0), ValueError, "must be a positive integer, not 0"),
    (
        lambda: calc_pairwise_coo_indices_nd(1, (2, 3), channel_voxel_relation="other"),
        ValueError,
        "channel_voxel_relation is 'other'",
    ),
    (
        lambda: calc_pairwise_coo_indices_nd(1, (1, 3), channel_voxel_relation="intra"),
        ValueError,
        "must be 'indep' for one channel",
    ),
    (lambda: calc_pairwise_coo_indices_nd(1, (3,)), ValueError, "volume_shape must be a tuple"),
    (lambda: calc_pairwise_coo_indices_nd(1, (1, 0)), ValueError, "volume_shape must be a tuple"),
    (lambda: PairwiseEncoder(1, (1, "3")), ValueError, "volume_shape must be a tuple"),
    (lambda: PairwiseEncoder(1, (3,)), ValueError, "volume_shape must be a tuple"),
    (lambda: PairwiseEncoder(1, (1, 0)), ValueError, "volume_shape must be a tuple"),
    (
        lambda: PairwiseEncoder(1, (1, 3), indices_dtype=torch.int16),
        ValueError,
        "indices_dtype is torch.int16",
    ),
    (
        lambda: PairwiseEncoder(1, (1, 3), layout=torch.sparse_csc),
        ValueError,
        "layout is torch.sparse_csc",
    ),
    (
        lambda: PairwiseEncoder(1, (1, 3))(torch.ones(2, 1, 3, dtype=torch.float16)),
        ValueError,
        "values has dtype torch.float16",
    ),
]

HELPERS = [
    (lambda: stack_csr(A), TypeError, "tensors is Tensor; a list"),
    (
        lambda: convert_coo_to_csr_indices_values(torch.zeros(1, 2).long(), 2),
        ValueError,
        "coo_indices has 1 rows; 2, or 3",
    ),
    (
        lambda: convert_coo_to_csr_indices_values(torch.tensor([[2], [0]]), 2),
        ValueError,
        "coo_indices has an index outside of the 2 rows",
    ),
    (
        lambda: convert_coo_to_csr_indices_values(torch.zeros(2, 1).long(), 2, torch.ones(3)),
        ValueError,
        "values has 3 numbers for 1 indices",
    ),
    (lambda: convert_coo_to_csr(A), ValueError, "has layout torch.sparse_csr; COO is taken"),
    (lambda: sparse_block_diag(A, 3), TypeError, "int is given"),
    (lambda: sparse_block_diag(A, A.to_sparse_coo()), ValueError, "all COO, or all CSR"),
    (lambda: sparse_block_diag(HYBRID), ValueError, "no sparse matrix; matrices are taken"),
    (lambda: sparse_eye((2, 3)), ValueError, r"size is \(2, 3\); \(n, n\) or"),
    (lambda: sparse_eye((2, 2), values_dtype=torch.int64), ValueError, "values_dtype is torch.int"),
    (lambda: sparse_eye((2, 2), indices_dtype=torch.int8), ValueError, "indices_dtype is torch.in"),
    (lambda: sparse_eye((2, 2), layout=torch.sparse_csc), ValueError, "layout is torch.sparse_csc"),
    (lambda: rand_sparse((2, 2), 1, torch.sparse_csc), ValueError, "layout is torch.sparse_csc"),
    (
        lambda: rand_sparse((2, 2), 1, indices_dtype=torch.int8),
        ValueError,
        "indices_dtype is torch.int8",
    ),
    (lambda: rand_sparse((2, 2), 5), ValueError, "nnz is 5; from 0 to 4"),
    (lambda: rand_sparse_tri((3, 3), 2), ValueError, "nnz is 2; from 3 to 6"),
    (lambda: rand_sparse_tri((3, 3), 4, strict=True), ValueError, "nnz is 4; from 0 to 3"),
    (lambda: rand_sparse((2,), 1), ValueError, r"size is \(2,\); \(m, k\) or"),
    (lambda: rand_sparse_tri((2, 3), 2), ValueError, r"size is \(2, 3\); a square"),
    (
        lambda: make_spd_sparse(2, torch.strided, torch.float32, torch.int64, "cpu"),
        ValueError,
        "Unsupported layout torch.strided",
    ),
]


@pytest.mark.parametrize(
    ("call", "error", "text"), [*PRODUCTS_AND_SOLVES, *DISTRIBUTIONS, *ENCODERS, *HELPERS]
)
def test_what_is_refused(call, error, text):
    with pytest.raises(error, match=text):
        call()


SQUARE = torch.eye(4, dtype=D) + torch.eye(4, dtype=D).roll(1, 1)
OTHER_LAYOUTS = {
    torch.strided: SQUARE,
    torch.sparse_csc: SQUARE.to_sparse_csc(),
    torch.sparse_bsr: SQUARE.to_sparse_bsr((2, 2)),
    torch.sparse_bsc: SQUARE.to_sparse_bsc((2, 2)),
}


@pytest.mark.parametrize("layout", OTHER_LAYOUTS, ids=str)
@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (tsgu.sparse_mm, ValueError, "A has layout {}; COO and CSR are taken"),
        (tsgu.sparse_triangular_solve, ValueError, "A has layout {}; COO and CSR are taken"),
        (tsgu.sparse_generic_solve, TypeError, "A has layout {}; COO and CSR are taken"),
        (
            lambda A, b: SparseMultivariateNormal(b[:, 0], scale_tril=A),
            ValueError,
            "scale_tril has layout {}; COO and CSR are taken",
        ),
        (
            lambda A, b: SparseMultivariateNormal(b[:, 0], precision_tril=A),
            ValueError,
            "precision_tril has layout {}; COO and CSR are taken",
        ),
        (
            lambda A, b: SparseMultivariateNormalNative(b[:, 0], A),
            ValueError,
            "scale_tril must be sparse CSR; it has layout {}",
        ),
        (lambda A, b: sparse_block_diag(A, A), ValueError, "layouts {{{}}} are given; all COO"),
        (
            lambda A, b: sparse_block_diag_split(A, (4, 4)),
            ValueError,
            "layout {} is given; COO and CSR are taken",
        ),
        (lambda A, b: convert_coo_to_csr(A), ValueError, "has layout {}; COO is taken"),
        (lambda A, b: stack_csr([A]), ValueError, r"shape (4, 4) and layout {}; CSR matrices of"),
    ],
)
def test_other_layouts_are_refused(call, error, text, layout):
    with pytest.raises(error, match=re.escape(text.format(layout))):
        call(OTHER_LAYOUTS[layout], columns(4))


def test_a_diagonal_that_is_taken_as_ones_gets_no_gradient():
    """An element that has no gradient, by `unitriangular`, is refused only where one is asked."""
    b = columns(3)
    wanted = torch.linalg.solve_triangular(A.to_dense(), b, upper=True, unitriangular=True)
    found = tsgu.sparse_triangular_solve(A, b, unitriangular=True)
    torch.testing.assert_close(found, wanted)
    for layout in (torch.sparse_coo, torch.sparse_csr):
        leaf = A.to_dense().to_sparse(layout=layout).requires_grad_()
        with pytest.raises(ValueError, match="A has elements on its diagonal"):
            tsgu.sparse_triangular_solve(leaf, b, unitriangular=True)
        second = torch.stack([torch.ones(3, 3).triu(1), torch.ones(3, 3).triu()])
        both = second.double().to_sparse().requires_grad_()
        with pytest.raises(ValueError, match="A has elements on its diagonal"):
            tsgu.sparse_triangular_solve(both, torch.ones(2, 3, 1, dtype=D), unitriangular=True)
        above = A.to_dense().triu(1).to_sparse(layout=layout).requires_grad_()
        tsgu.sparse_triangular_solve(above, b, unitriangular=True).sum().backward()
        dense = A.to_dense().requires_grad_()
        torch.linalg.solve_triangular(dense, b, upper=True, unitriangular=True).sum().backward()
        mask = above.detach().to_dense() != 0
        torch.testing.assert_close(above.grad.to_dense(), dense.grad.where(mask, 0))


def test_least_squares_of_a_wide_matrix_have_no_gradient():
    wide = torch.tensor([[1.0, 0, 2], [0, 1, 1]], dtype=D).to_sparse_csr().requires_grad_()
    x = tsgu.sparse_generic_lstsq(wide, columns(2), lstsq=solve, transpose_lstsq=solve)
    torch.testing.assert_close(wide.detach() @ x, columns(2))
    with pytest.raises(ValueError, match=r"A has shape \(2, 3\); a tall matrix is taken"):
        x.sum().backward()


def test_dtypes_that_differ_are_warned_of():
    def dense_solve(A, B):
        return torch.linalg.solve(A.to_dense().to(B.dtype), B)

    single = columns(3, torch.float32).requires_grad_()
    text = r"A has dtype torch\.float64 and B has torch\.float32"
    with pytest.warns(UserWarning, match=text) as told:
        x = tsgu.sparse_generic_solve(A, single, solve=dense_solve)
    assert [warning.filename for warning in told] == [__file__]
    assert x.dtype == D
    torch.testing.assert_close(x, torch.linalg.solve(A.to_dense(), columns(3)), rtol=1e-6, atol=0)
    x.sum().backward()
    assert single.grad.dtype == torch.float32
    torch.testing.assert_close(single.grad.double(), x.detach(), rtol=1e-6, atol=1e-7)
