"""is_symmetric, is_hermitian and connected_components."""

import functools

import pytest
import scipy.sparse.csgraph
import torch

import spgrad
from spgrad.core.pattern import LAYOUTS
from spgrad.linalg import structure

HERMITIAN = torch.tensor([[1.0, 2j, 0.0], [-2j, 0.0, 3.0], [0.0, 3.0, 4.0]])


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
def test_symmetric_and_hermitian_matrices(layout):
    A = spgrad.from_dense(HERMITIAN, layout).requires_grad_()
    assert spgrad.is_hermitian(A)
    assert not spgrad.is_symmetric(A)
    B = spgrad.from_dense(HERMITIAN.abs(), layout)
    assert spgrad.is_hermitian(B)
    assert spgrad.is_symmetric(B)
    assert spgrad.is_symmetric(spgrad.from_dense(torch.stack([HERMITIAN.abs()] * 2), layout))


def test_a_specified_zero_is_a_zero_and_nan_equals_nothing():
    zero = spgrad.sparse_coo_tensor([[0, 1], [1, 2]], [0.0, 0.0], (3, 3))
    assert spgrad.is_symmetric(zero)
    nan = spgrad.sparse_coo_tensor([[0], [0]], [float("nan")], (3, 3))
    assert not spgrad.is_symmetric(nan)
    assert spgrad.is_symmetric(spgrad.from_dense(torch.zeros(0, 0)))
    assert not spgrad.is_symmetric(spgrad.from_dense(torch.ones(2, 3)))


def test_tolerances():
    A = spgrad.from_dense(torch.tensor([[0.0, 1.0], [1.1, 0.0]]))
    assert not spgrad.is_symmetric(A)
    assert spgrad.is_symmetric(A, atol=0.2)
    assert spgrad.is_symmetric(A, rtol=0.2)
    assert not spgrad.is_hermitian(A, rtol=0.05)
    B = A * 100  # what rtol allows grows with the elements
    assert spgrad.is_hermitian(B, rtol=0.2)
    assert not spgrad.is_hermitian(B, atol=0.2)
    with pytest.raises(TypeError, match=r"spgrad\.is_symmetric: .*sparse"):
        spgrad.is_symmetric(torch.eye(2))


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("connection", ["weak", "strong"])
def test_connected_components_are_those_of_scipy(layout, connection):
    blocks = {"blocksize": (2, 2)} if layout in (torch.sparse_bsr, torch.sparse_bsc) else {}
    A = spgrad.from_dense((torch.rand(20, 20) < 0.06).float(), layout, **blocks)
    count, label = spgrad.connected_components(A, connection)
    graph = spgrad.to_scipy(A.to_sparse_csr())
    graph.data[:] = 1
    expected = scipy.sparse.csgraph.connected_components(graph, True, connection)
    assert count == expected[0]
    assert label.tolist() == expected[1].tolist()
    assert label.dtype == torch.int64


def test_connected_components_of_little_and_of_others():
    assert spgrad.connected_components(spgrad.from_dense(torch.zeros(0, 0)))[0] == 0
    assert spgrad.connected_components(spgrad.from_dense(torch.zeros(3, 3)))[1].tolist() == [
        0,
        1,
        2,
    ]
    for wrong, kind, says in [
        ((spgrad.eye(3), "firm"), ValueError, "`connection` is 'firm'.*Choose"),
        ((spgrad.from_dense(torch.ones(2, 3)),), ValueError, "square"),
        ((torch.eye(3),), TypeError, "sparse"),
        ((spgrad.from_dense(torch.ones(2, 3, 3)),), ValueError, "each matrix of a batch"),
    ]:
        with pytest.raises(kind, match=rf"spgrad\.connected_components: .*{says}"):
            spgrad.connected_components(*wrong)


def test_graphs_beyond_int32_are_refused():
    """SciPy's functions of graphs have 32-bit indices, in which larger numbers would wrap."""
    n = 2**31
    A = spgrad.sparse_coo_tensor([[0, n - 1], [n - 1, 0]], [1.0, 1.0], (n, n), is_coalesced=True)
    partition = functools.partial(spgrad.data.partition, parts=2)
    orders = (spgrad.reverse_cuthill_mckee, spgrad.locality_order)
    for function in (spgrad.connected_components, *orders, partition):
        with pytest.raises(ValueError, match=rf"has {n} rows and 2 elements.*nodes = "):
            function(A)
    nodes = A.coo_indices().unique()
    assert spgrad.connected_components(A[nodes][:, nodes])[0] == 1


def test_a_sum_with_the_transpose_beyond_int32_is_refused(monkeypatch):
    """It has up to twice the elements of A."""
    pytest.importorskip("pymetis")
    A = spgrad.from_edges(torch.tensor([[0, 1, 2], [1, 2, 0]]))
    assert spgrad.locality_order(A, 1).sort().values.tolist() == [0, 1, 2]
    monkeypatch.setattr(structure, "LARGEST", 5)
    for function in (spgrad.locality_order, functools.partial(spgrad.data.partition, parts=2)):
        with pytest.raises(ValueError, match=r"`A` \+ `A`\^T has 3 rows and 6 elements; SciPy's"):
            function(A)
    assert spgrad.connected_components(A)[0] == 1
