"""Reductions of the specified elements alone."""

import pytest
import torch
from samples import made

import spgrad
from spgrad import support, testing

layouts = pytest.mark.parametrize("layout", support.ALL)


def specified_alone(name, x, mask, dim):
    """A reduction of the specified elements of each row or column, one after the other."""
    found = []
    for line, at in zip(x.movedim(dim, -1), mask.movedim(dim, -1), strict=True):
        vals = line[at]
        if vals.numel():
            y = getattr(torch, name)(vals, dim=0)
        else:
            y = vals.new_tensor(WITHOUT_ELEMENTS[name])
        found.append(y if isinstance(y, torch.Tensor) else y[0])
    return torch.stack(found)


WITHOUT_ELEMENTS = {
    "sum": 0,
    "mean": 0,
    "prod": 1,
    "amax": 0,
    "amin": 0,
    "max": 0,
    "min": 0,
    "norm": 0,
    "logsumexp": -torch.inf,
    "var": torch.nan,
    "std": torch.nan,
}


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("name", WITHOUT_ELEMENTS)
@layouts
def test_specified_elements_alone(layout, name, poisoned):
    A = made(layout, (8, 6), density=0.25)
    for dim in (0, 1):
        y = getattr(spgrad, name)(A, dim=dim, specified=True)
        y = y if isinstance(y, torch.Tensor) else y[0]
        testing.assert_close(
            y, specified_alone(name, A.to_dense(), testing.mask_of(A.pattern), dim)
        )
        method = getattr(A, name)(dim=dim, specified=True)
        testing.assert_close(method if isinstance(method, torch.Tensor) else method[0], y)


@pytest.mark.parametrize("name", WITHOUT_ELEMENTS)
def test_the_methods_say_what_they_are(name):
    method = getattr(spgrad.SparseTensor, name)
    assert method.__name__ == method.__qualname__ == name
    assert method.__doc__ == f"As `spgrad.{name}`."


@layouts
def test_specified_elements_of_a_batch(layout):
    """What is reduced over the batch stays sparse."""
    A = made(layout, (3, 4, 6))
    mask, x = testing.mask_of(A.pattern), A.to_dense()
    filled = mask.any(0)
    mean = (x.sum(0) / mask.sum(0).clamp(min=1)).masked_fill(~filled, 0)
    assert A.mean(0, specified=True).layout == A.layout
    testing.assert_close(A.mean(0, specified=True), mean)
    largest, index = x.masked_fill(~mask, -torch.inf).max(0)
    y, at = A.max(0, specified=True)
    testing.assert_close(y, largest.masked_fill(~filled, 0))
    found = testing.mask_of(spgrad.to_sparse_coo(at).pattern) & filled
    testing.assert_close(at.to_dense()[found], index[found])


@pytest.mark.parametrize(("specified", "index"), [(True, -1), (False, 0)])
def test_the_index_in_a_vector_without_elements(specified, index):
    A = spgrad.sparse_coo_tensor(torch.zeros(0, 0, dtype=torch.int64), torch.zeros(0, 3), (3,))
    for name in ("max", "min"):
        y, at = getattr(spgrad, name)(A, 0, specified=specified)
        assert (y.tolist(), at.tolist()) == (0, index)
        assert getattr(spgrad, f"arg{name}")(A, 0, specified=specified).tolist() == index
