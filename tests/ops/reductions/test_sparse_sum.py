"""torch.sparse.sum: what its documentation says, against torch's own."""

import pytest
import torch
from samples import made

import spgrad
from spgrad import support, testing
from spgrad.core.pattern import LAYOUTS

layouts = pytest.mark.parametrize("layout", support.ALL)


SUMMED = [None, 0, -1, 1, [1, 3], [0, 1, 3], (0,), (0, 1), 2, [2, 3], (0, 1, 2, 3), (-4, -2)]


@pytest.mark.parametrize("dim", SUMMED)
@pytest.mark.parametrize("coalesced", [True, False])
def test_sparse_sum_is_that_of_torch(dim, coalesced):
    """The example of its documentation, and others: layout, pattern, values, gradient."""
    A = made("coo", (5, 5, 2, 3), dense_dim=2, coalesced=coalesced).requires_grad_()
    native = spgrad.to_torch(A.detach()).requires_grad_()
    options = {} if dim is None else {"dim": dim}
    y, wanted = torch.sparse.sum(A, **options), torch.sparse.sum(native, **options)
    assert y.layout == wanted.layout
    assert y.shape == wanted.shape
    assert y.dense_dim() == wanted.dense_dim()
    testing.assert_close(y, wanted.to_dense())
    if y.layout != torch.strided:
        assert torch.equal(y.coalesce().indices(), wanted.coalesce().indices())
    testing.dense_result(y).sin().sum().backward()
    wanted.to_dense().sin().sum().backward()
    testing.assert_close(
        A.grad.to_dense(), native.grad.to_dense() if coalesced else A.grad.to_dense()
    )


@layouts
def test_sparse_sum_of_other_layouts(layout):
    """In the layout of the operand where that is possible, dense without a sparse dimension."""
    A = made(layout, (2, 4, 6))
    for dim in (None, 0, 1, 2, (0, 1), (0, 2), (1, 2), (0, 1, 2)):
        y = torch.sparse.sum(A) if dim is None else torch.sparse.sum(A, dim)
        testing.assert_close(y, torch.sum(A.to_dense(), dim))
        if dim in (None, (0, 1, 2)):
            assert type(y) is torch.Tensor
        else:
            assert y.pattern.name == (layout if dim == 0 else "coo")


def test_sparse_sum_of_integers():
    A = made("coo", (4, 6), dtype=torch.int32)
    assert torch.sparse.sum(A, 1).dtype == torch.int32
    assert torch.sparse.sum(A, 1, dtype=torch.float64).dtype == torch.float64


@pytest.mark.parametrize("name", ["coo", "csr", "csc"])
def test_specified_elements_alone_over_a_batch(name):
    """Where none is specified, the sparse result has no element; a dense one has 1 or True."""
    x = torch.tensor([[[2.0, 3.0], [0.0, 0.0]], [[5.0, 0.0], [0.0, 7.0]]])
    A = spgrad.from_dense(x, LAYOUTS[name])
    found = (x != 0).any(0)
    for fn, wanted in ((spgrad.prod, [[10.0, 3.0], [0.0, 7.0]]), (spgrad.all, found.tolist())):
        y = fn(A, 0, specified=True)
        assert y.nse == 3
        assert torch.equal(testing.mask_of(y.pattern), found)
        assert y.to_dense().tolist() == wanted
        rows = fn(A[0], 1, specified=True)
        assert rows.tolist() == [6.0 if fn is spgrad.prod else True, 1.0]
