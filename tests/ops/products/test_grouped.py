"""Products of groups of rows, and the pattern of a grid's neighbours."""

import pytest
import torch

import spgrad

D = torch.float64


@pytest.mark.parametrize("lengths", [[3, 0, 7, 3], [2, 2, 2, 2], [0, 0, 0, 0], [9, 0, 0, 0]])
def test_segments_and_their_gradients(lengths):
    a = torch.randn(sum(lengths), 3, dtype=D, requires_grad=True)
    b = torch.randn(4, 3, 2, dtype=D, requires_grad=True)
    parts = [x @ m for x, m in zip(a.split(lengths), b, strict=True)]
    given = torch.tensor(lengths)
    torch.testing.assert_close(spgrad.segment_mm(a, b, given), torch.cat(parts))
    assert torch.autograd.gradcheck(lambda a, b: spgrad.segment_mm(a, b, given), (a, b))
    if sum(lengths):
        assert torch.autograd.gradgradcheck(lambda a, b: spgrad.segment_mm(a, b, given), (a, b))


def test_gathered_matrices():
    a = torch.randn(7, 3, dtype=D, requires_grad=True)
    b = torch.randn(4, 3, 2, dtype=D, requires_grad=True)
    index = torch.tensor([3, 0, 0, 1, 3, 3, 0], dtype=torch.int32)
    expected = torch.einsum("ik,ikn->in", a, b[index.long()])
    torch.testing.assert_close(spgrad.gather_mm(a, b, index), expected)
    assert torch.autograd.gradgradcheck(lambda a, b: spgrad.gather_mm(a, b, index), (a, b))


def test_refusals():
    a, b = torch.ones(3, 2), torch.ones(2, 2, 1)
    for lengths, text in (([1, 1], "add up to 2"), ([1, 1, 1], "`seglen_a` has shape")):
        with pytest.raises(ValueError, match=text):
            spgrad.segment_mm(a, b, torch.tensor(lengths))
    with pytest.raises(IndexError, match="`idx_b` has 2 at position 1"):
        spgrad.gather_mm(a, b, torch.tensor([0, 2, 0]))
    with pytest.raises(TypeError, match="integers are accepted"):
        spgrad.gather_mm(a, b, torch.ones(3))


@pytest.mark.parametrize("upper", [None, True, False])
@pytest.mark.parametrize("radius", [0, 1, 1.5, 2])
def test_neighbours_on_a_grid(radius, upper):
    pattern = spgrad.neighbourhood_pattern((3, 4), radius, upper=upper)
    points = torch.cartesian_prod(torch.arange(3.0), torch.arange(4.0))
    near = torch.cdist(points, points) <= radius
    near = near if upper is None else near.triu() if upper else near.tril()
    found = spgrad.from_values(torch.ones(pattern.nse), pattern).to_dense()
    assert torch.equal(found, near.float())


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
def test_neighbours_on_a_grid_in_each_layout(layout):
    pattern = spgrad.neighbourhood_pattern((3, 4), 1.5, layout=layout)
    A = spgrad.from_values(torch.arange(1.0, pattern.nse + 1), pattern)
    assert A.layout == layout
    usual = spgrad.from_values(torch.ones(pattern.nse), spgrad.neighbourhood_pattern((3, 4), 1.5))
    assert torch.equal(A.to_dense() != 0, usual.to_dense() != 0)
    if layout == torch.sparse_coo:
        assert A.is_coalesced()
        assert torch.equal(A.indices(), A.to_dense().nonzero().t())


def test_numbers_of_groups_are_vectors():
    a, b = torch.ones(4, 2), torch.ones(2, 2, 1)
    with pytest.raises(ValueError, match=r"`idx_b` has shape \(2, 2\); a vector"):
        spgrad.gather_mm(a, b, torch.zeros(2, 2, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"`seglen_a` has shape \(1, 2\); a vector"):
        spgrad.segment_mm(a, b, torch.tensor([[2, 2]]))


def test_sizes_of_rows_and_matrices():
    a, b, index = torch.ones(3, 2), torch.ones(2, 2, 1), torch.tensor([0, 1, 0])
    for call, text in (
        (lambda: spgrad.gather_mm(a, b, index[:2]), r"`idx_b` has shape \(2,\); \(3,\), as `a`"),
        (lambda: spgrad.gather_mm(a[0], b, index), r"`a` has shape \(2,\); a 2-d tensor"),
        (lambda: spgrad.segment_mm(a, b[0], index), r"`b` has shape \(2, 1\); a 3-d tensor"),
        (lambda: spgrad.gather_mm(a, torch.ones(2, 3, 1), index), r"`b` has .*; 2 rows \(from `a`"),
    ):
        with pytest.raises(spgrad.ArgumentValueError, match=text):
            call()
