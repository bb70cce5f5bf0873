"""Tensors without dimensions: torch lets them be squeezed, exchanged and flattened."""

import pytest
import torch

import spgrad

POINT = spgrad.sparse_coo_tensor(torch.zeros(0, 1, dtype=torch.int64), torch.tensor([3.0]), ())


@pytest.mark.parametrize("dim", [0, -1])
def test_dimensions_that_a_point_may_be_asked_for(dim):
    assert POINT.squeeze(dim) is POINT
    assert POINT.squeeze() is POINT
    assert POINT.transpose(dim, dim) is POINT
    assert torch.swapaxes(POINT, 0, -1) is POINT


@pytest.mark.parametrize("dim", [1, -2])
def test_others_are_refused(dim):
    for call in (
        lambda: POINT.squeeze(dim),
        lambda: POINT.transpose(dim, 0),
        lambda: POINT.transpose(0, dim),
        lambda: POINT.flatten(dim),
    ):
        with pytest.raises(spgrad.ArgumentValueError, match=r"`\w+` is -?\d for [01] dimension"):
            call()


def test_parts_of_a_tensor_whose_dimensions_are_all_dense():
    A = spgrad.sparse_coo_tensor(torch.zeros(0, 1, dtype=torch.int64), torch.ones(1, 5), (5,))
    for part in (*A.split(2), *A.chunk(2), A.narrow(0, 1, 2)):
        assert isinstance(part, spgrad.SparseTensor)
        assert part.pattern.dense_dim == 1


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("name", ["max", "min"])
def test_extrema_where_all_dimensions_are_dense_and_nothing_is_specified(name, keepdim):
    A = spgrad.sparse_coo_tensor(torch.zeros(0, 0, dtype=torch.int64), torch.ones(0, 5, 2), (5, 2))
    found = getattr(spgrad, name)(A, 0, keepdim=keepdim)
    expected = getattr(torch, name)(A.to_dense(), 0, keepdim=keepdim)
    assert torch.equal(found.values, expected.values)
    assert found.indices.shape == expected.indices.shape


def test_a_flat_point_is_a_vector():
    assert POINT.flatten().shape == (1,)
    assert POINT.flatten().to_dense().tolist() == [3.0]
    assert POINT.reshape(1, 1).shape == (1, 1)
    assert POINT.unsqueeze(0).shape == POINT.unsqueeze(-1).shape == (1,)


@pytest.mark.parametrize("number", [3.0, 0.0])
def test_where_a_point_is_not_zero(number):
    (found,) = spgrad.nonzero(POINT * number, as_tuple=True)
    (wanted,) = torch.nonzero(torch.tensor(number), as_tuple=True)
    assert found.tolist() == wanted.tolist()
    assert spgrad.nonzero(POINT * number).shape == (len(wanted), 0)


@pytest.mark.parametrize("fn", [spgrad.max, spgrad.min], ids=["max", "min"])
def test_extremum_of_no_entry_has_a_gradient(fn):
    A = spgrad.sparse_coo_tensor(torch.zeros(0, 0, dtype=torch.int64), torch.zeros(0, 2), (2,))
    fn(A.requires_grad_(), 0).values.backward()
    assert A.grad.pattern is A.pattern


@pytest.mark.parametrize("fn", [torch.hstack, torch.vstack, torch.dstack])
def test_points_are_stacked_as_dense_ones(fn):
    A = POINT.detach().requires_grad_()
    whole = A.detach().to_dense()
    y = fn([A, 2 * A, A])
    wanted = fn([whole, 2 * whole, whole])
    assert torch.equal(y.detach().to_dense(), wanted)
    (y.to_dense() * torch.arange(1.0, 4).reshape(wanted.shape)).sum().backward()
    assert A.grad.to_dense().tolist() == 8.0
    with pytest.raises(ValueError, match=r"`tensors\[1\]` has shape"):
        fn([A, spgrad.eye(2)])


def test_flips_of_no_dimension_keep_the_pattern():
    A = spgrad.eye(3)
    assert torch.flip(A, ()).pattern is A.pattern
