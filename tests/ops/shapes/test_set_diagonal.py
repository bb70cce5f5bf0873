"""set_diag, remove_diag and block_array beyond their dense specification."""

import numpy as np
import pytest
import scipy.sparse
import torch

import spgrad
from spgrad import support
from spgrad.core import kept
from spgrad.core.pattern import LAYOUTS
from spgrad.ops.shapes import set_diagonal


@pytest.mark.parametrize("layout", support.ALL)
def test_values_of_a_batch_and_their_gradient(layout):
    x = torch.randn(2, 4, 6, dtype=torch.float64)
    blocks = (2, 2) if layout.startswith("b") else None
    A = spgrad.from_dense(x).to_sparse(layout=LAYOUTS[layout], blocksize=blocks)
    value = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    y = spgrad.set_diag(A, value, 1)
    assert y.pattern.name == layout
    assert torch.equal(y.to_dense(), torch.diagonal_scatter(x, value, 1, -2, -1))
    g = torch.randn(2, 4, 6, dtype=torch.float64)
    y.to_dense().backward(g)
    assert torch.equal(value.grad, g.diagonal(1, -2, -1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.complex64])
def test_the_old_diagonal_leaves_no_trace(dtype):
    x = torch.tensor([[3, 1], [1, 1]]).to(dtype)
    if dtype.is_floating_point:
        x[0, 0] = torch.inf
    y = spgrad.set_diag(spgrad.from_dense(x), torch.zeros(2, dtype=dtype))
    assert y.dtype == dtype
    assert torch.equal(y.to_dense(), torch.tensor([[0, 1], [1, 0]]).to(dtype))


def test_a_negative_zero_keeps_its_sign():
    for A in (spgrad.eye(3), spgrad.eye(3).to_sparse_bsr((1, 1))):
        assert spgrad.set_diag(A, -0.0).values().signbit().all()


def test_the_whole_diagonal_is_specified_and_no_more():
    A = spgrad.from_edges(torch.tensor([[0, 1], [1, 1]]), size=3)
    assert spgrad.set_diag(A, 0.0).nse == 4
    assert spgrad.remove_diag(A).nse == 1
    assert spgrad.set_diag(A, 5.0, 7).nse == 2


@pytest.mark.parametrize("offset", [0, 3, -2, 599, -499, 700])
@pytest.mark.parametrize("layout", ["coo", "csr", "csc", "batch"])
def test_diagonals_of_large_matrices(layout, offset):
    """Long lines are searched for their diagonal; the elements between two move at a time."""
    shape = (2, 300, 600) if layout == "batch" else (500, 600)
    g = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=g)
    x[..., :5, :].zero_()
    x[..., -5:].zero_()
    x.diagonal(offset, -2, -1)[..., ::3] = 1
    A = spgrad.from_dense(x).to_sparse(layout=LAYOUTS[layout if layout != "batch" else "csr"])
    assert A.nse > set_diagonal._LARGE
    A.requires_grad_()
    value = torch.randn(x.diagonal(offset, -2, -1).shape, generator=g)
    off = torch.diagonal_scatter(torch.ones_like(x), torch.zeros_like(value), offset, -2, -1)
    cotangent = torch.randn(shape, generator=g)
    for y, expected, specified in (
        (spgrad.remove_diag(A, offset), x * off, (x != 0) & (off != 0)),
        (
            spgrad.set_diag(A, value, offset),
            torch.diagonal_scatter(x, value, offset, -2, -1),
            (x != 0) | (off == 0),
        ),
    ):
        assert y.layout == A.layout
        assert torch.equal(y.to_dense(), expected)
        wanted = spgrad.from_dense(specified.float()).to_sparse(layout=A.layout)
        assert y.pattern.same_as(wanted.pattern)
        (found,) = torch.autograd.grad((y.to_dense() * cotangent).sum(), A)
        assert torch.equal(found.to_dense(), cotangent * (x != 0) * off)


def test_work_on_indices_is_kept_for_a_few_diagonals():
    A = spgrad.from_dense(torch.ones(20, 20))
    again = [spgrad.set_diag(A, 2.0, 3), spgrad.set_diag(A, 4.0, 3)]
    assert again[0].pattern is again[1].pattern
    before = len(A.pattern._derived)
    for offset in range(-19, 20):
        spgrad.set_diag(A, 2.0, offset)
    assert len(A.pattern._derived) == before
    assert 2 <= len(A.pattern.derived(kept.REBUILT)) <= 8


def test_a_large_matrix_without_a_diagonal_keeps_its_pattern():
    x = torch.ones(400, 400).fill_diagonal_(0)
    A = spgrad.from_dense(x)
    y = spgrad.remove_diag(A)
    assert y.pattern is A.pattern
    y.values().zero_()
    assert A.values().all()


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda A: spgrad.set_diag(A, torch.ones(5)), "`value` has shape (5,); what broadcasts"),
        (lambda A: spgrad.set_diag(A, "x"), "`value` is a str; a number or a dense tensor"),
        (lambda A: spgrad.remove_diag(A, 1.0), "`offset` is 1.0"),
        (lambda A: spgrad.set_diag(A[0], 1.0), "`input` has shape (3,); a sparse matrix or batch"),
        (lambda A: spgrad.remove_diag(A[0]), "`input` has shape (3,); a sparse matrix or batch"),
        (lambda A: spgrad.block_array([]), "`blocks` has rows of no blocks"),
        (spgrad.block_array, "a list of lists"),
        (lambda A: spgrad.block_array([[A, A], [A]]), "`blocks` has rows of"),
        (lambda A: spgrad.block_array([[A, None], [A, None]]), "a column 1 that is None"),
        (lambda A: spgrad.block_array([[A, spgrad.eye(2)]]), "a row 0 of 2 and 3 rows"),
    ],
)
def test_refusals(call, text):
    with pytest.raises(spgrad.SpgradError) as raised:
        call(spgrad.eye(3))
    assert text in str(raised.value)


@pytest.mark.parametrize("layout", support.ALL)
def test_block_array_is_that_of_scipy(layout):
    blocks = (2, 2) if layout.startswith("b") else None
    A, B, C = (
        spgrad.rand(m, k, density=0.5, dtype=torch.float64).to_sparse(
            layout=LAYOUTS[layout], blocksize=blocks
        )
        for m, k in ((4, 6), (2, 4), (2, 6))
    )
    S = [None if M is None else scipy.sparse.coo_array(M.to_dense().numpy()) for M in (A, B, C)]
    y = spgrad.block_array([[None, A], [B, C]])
    wanted = scipy.sparse.block_array([[None, S[0]], [S[1], S[2]]]).toarray()
    assert y.pattern.name == layout
    np.testing.assert_array_equal(y.to_dense().numpy(), wanted)


def test_block_array_without_fitting_blocks_is_coo():
    A = spgrad.eye(4, layout=torch.sparse_bsr, blocksize=(2, 2))
    y = spgrad.block_array([[A, None], [None, spgrad.eye(3)]])
    assert y.pattern.name == "coo"
    assert torch.equal(y.to_dense(), torch.eye(7))
