"""Edge lists: their order, the sizes that they know, and where elements are."""

import pytest
import scipy.sparse
import torch

import spgrad
from spgrad import support, testing
from spgrad.core.pattern import LAYOUTS

SORTED = [torch.sparse_csr, torch.sparse_csc, torch.sparse_coo]


class EdgeIndex(torch.Tensor):
    """As PyTorch Geometric's: a tensor that knows its size, or some of it."""

    def __new__(cls, data, size):
        self = torch.Tensor._make_subclass(cls, torch.as_tensor(data))
        self.size_that_it_knows = size
        return self

    def sparse_size(self):
        return self.size_that_it_knows

    def as_tensor(self):
        return self.as_subclass(torch.Tensor)


def edges(count, nodes, *, repeated):
    torch.manual_seed(0)
    every = torch.cartesian_prod(torch.arange(nodes), torch.arange(nodes))
    at = torch.randint(0, len(every), (count,)) if repeated else torch.randperm(len(every))[:count]
    return every[at].t()


@pytest.mark.parametrize("layout", SORTED)
@pytest.mark.parametrize("dense", [(), (3,)])
def test_order_puts_later_weights_into_place(layout, dense):
    index = edges(30, 9, repeated=False)
    w = torch.randn(30, *dense, dtype=torch.float64, requires_grad=True)
    A, order = spgrad.from_edges(index, size=9, layout=layout, return_order=True)
    assert order.dtype == torch.int64
    B = spgrad.from_values(w[order], spgrad.from_edges(index, w.detach(), 9, layout=layout))
    assert torch.equal(B.to_dense(), spgrad.from_edges(index, w, 9, layout=layout).to_dense())
    B.to_dense().square().sum().backward()
    assert torch.equal(w.grad, 2 * w)
    assert torch.equal(A.coo_indices(), index[:, order])


@pytest.mark.parametrize("layout", SORTED)
def test_repeated_edges_stand_side_by_side_in_the_order(layout):
    index = edges(40, 4, repeated=True)
    A, order = spgrad.from_edges(index, size=4, layout=layout, return_order=True)
    assert torch.equal(order.sort()[0], torch.arange(40))
    assert torch.equal(torch.unique_consecutive(index[:, order], dim=1), A.coo_indices())
    with pytest.raises(ValueError, match="`values` has shape"):
        spgrad.from_values(torch.ones(40)[order], A)


@pytest.mark.parametrize("layout", SORTED)
@pytest.mark.parametrize("index", [torch.zeros(2, 0, dtype=torch.int64), torch.tensor([[0], [1]])])
def test_order_of_no_edge_and_of_one(layout, index):
    A, order = spgrad.from_edges(index, size=2, layout=layout, return_order=True)
    assert A.nse == index.shape[1]
    assert torch.equal(order, torch.arange(A.nse))


@pytest.mark.parametrize("layout", SORTED)
@pytest.mark.parametrize(
    ("known", "size", "shape"),
    [
        ((4, 5), None, (4, 5)),
        ((None, 7), None, (2, 7)),
        ((9, None), None, (9, 3)),
        ((None, None), None, (3, 3)),
        ((4, 5), 6, (6, 6)),
        ((4, 5), (2, 3), (2, 3)),
    ],
)
def test_an_edge_index_that_knows_its_size(known, size, shape, layout):
    A = spgrad.from_edges(EdgeIndex([[0, 1, 1], [1, 0, 2]], known), size=size, layout=layout)
    assert A.shape == shape
    assert {type(index) for index in A.pattern.indices} == {torch.Tensor}
    assert A.coo_indices().shape == (2, 3)


def test_an_edge_index_without_edges():
    none = torch.zeros(2, 0, dtype=torch.int64)
    assert spgrad.from_edges(EdgeIndex(none, (3, None))).shape == (3, 0)
    assert spgrad.from_edges(EdgeIndex(none, (None, 3))).shape == (0, 3)
    assert spgrad.from_edges(EdgeIndex(none, (None, None))).shape == (0, 0)


def test_an_edge_index_that_knows_too_small_a_size():
    with pytest.raises(ValueError, match="`edge_index` has 2 in row 1"):
        spgrad.from_edges(EdgeIndex([[0, 1, 1], [1, 0, 2]], (2, 2)))


# Where elements are


@pytest.mark.parametrize("name", support.ALL)
@pytest.mark.parametrize("shape", [(4, 6), (2, 4, 6), (0, 4), (4, 0)])
def test_coo_indices_are_in_the_order_of_the_values(name, shape):
    A = testing.random_sparse(shape, LAYOUTS[name], coalesced=name != "coo")
    vals = A._values().reshape(-1)
    indices = A.coo_indices()
    assert indices.dtype == torch.int64
    assert indices.shape == (len(shape), vals.shape[0])
    out = torch.zeros(shape).double().index_put(tuple(indices), vals, accumulate=True)
    testing.assert_close(A.to_dense(), out)
    assert torch.equal(spgrad.coo_indices(spgrad.from_torch(A)), indices)


def test_coo_indices_leave_dense_dimensions_out():
    A = testing.random_sparse((4, 6, 2), dense_dim=1)
    out = torch.zeros(4, 6, 2).double().index_put(tuple(A.coo_indices()), A.values())
    testing.assert_close(A.to_dense(), out)


def test_row_indices_of_csr_say_where_to_find_them():
    with pytest.raises(TypeError, match=r"take A\.coo_indices\(\), the row and column of each"):
        spgrad.eye(3).row_indices()
    with pytest.raises(TypeError, match=r"`input` is a dense tensor"):
        spgrad.coo_indices(torch.eye(3))


@pytest.mark.parametrize("name", support.ALL)
def test_find_keeps_specified_zeros_when_asked(name):
    A = testing.random_sparse((4, 6), LAYOUTS[name])
    vals = A._vals.clone()
    vals.view(-1)[0] = 0
    A = spgrad.SparseTensor(vals, A.pattern)
    row, col, kept = spgrad.find(A, specified=True)
    coo = A.to_sparse_coo().coalesce()
    assert torch.equal(torch.stack([row, col]), coo.indices())
    assert torch.equal(kept, coo.values())
    found = spgrad.find(A)
    expected = scipy.sparse.find(scipy.sparse.csr_array(A.to_dense().numpy()))
    order = torch.argsort(torch.from_numpy(expected[0]).long() * 6 + torch.from_numpy(expected[1]))
    for ours, theirs in zip(found, expected, strict=True):
        testing.assert_close(ours, torch.from_numpy(theirs)[order].to(ours.dtype))
    assert (found[2] != 0).all()
    assert len(found[0]) < len(row)


def test_find_of_specified_zeros_has_a_gradient():
    A = spgrad.sparse_csr_tensor([0, 2, 3], [0, 2, 1], [1.0, 0.0, 3.0], (2, 3)).requires_grad_()
    spgrad.find(A, specified=True)[2].square().sum().backward()
    assert A.grad.values().tolist() == [2.0, 0.0, 6.0]


# PyTorch Geometric's Batch of matrices: it takes them apart, and torch joins the parts


def batched(tensors):
    """`torch_geometric.utils.sparse.cat_csr` along both dimensions."""
    crow, col, vals, rows, cols, nse = [torch.zeros(1, dtype=torch.int64)], [], [], 0, 0, 0
    for A in tensors:
        crow.append(A.crow_indices()[1:] + nse)
        col.append(A.col_indices() + cols)
        vals.append(A.values())
        rows, cols, nse = rows + A.size(0), cols + A.size(1), nse + A.col_indices().numel()
    return torch.sparse_csr_tensor(torch.cat(crow), torch.cat(col), torch.cat(vals), (rows, cols))


def test_batches_of_graphs():
    A = testing.random_sparse((4, 4)).requires_grad_()
    expected = torch.block_diag(A.detach().to_dense(), A.detach().to_dense())
    with spgrad.dropin():
        inside = batched([A, A])
    outside = spgrad.from_torch(batched([A, A]))
    for B in (inside, outside, spgrad.block_diag(A, A)):
        assert isinstance(B, spgrad.SparseTensor)
        testing.assert_close(B.to_dense().detach(), expected)
        A.grad = None
        (B @ torch.ones(8, 1).double()).sum().backward()
        assert A.grad.values().tolist() == [2.0] * A.nse


EDGES = torch.tensor([[0, 0, 2, 1, 0], [1, 2, 0, 1, 1]])  # one self-loop, one repeated edge


@pytest.mark.parametrize("layout", ["coo", "csr", "csc"])
def test_from_edges(layout):
    weights = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0], requires_grad=True)
    A = spgrad.from_edges(EDGES, weights, layout=LAYOUTS[layout])
    assert A.layout == LAYOUTS[layout]
    assert A.pattern.coalesced
    assert A.nse == 4
    wanted = torch.tensor([[0.0, 17.0, 2.0], [0.0, 8.0, 0.0], [4.0, 0.0, 0.0]])
    assert torch.equal(A.to_dense().detach(), wanted)
    g = torch.arange(9.0).view(3, 3)
    (A.to_dense() * g).sum().backward()
    assert torch.equal(weights.grad, g[EDGES[0], EDGES[1]])


def test_a_pair_of_sources_and_targets():
    source, target = torch.tensor([[0, 2, 1], [1, 0, 1]])
    wanted = spgrad.from_edges(torch.stack([source, target]))
    assert spgrad.equal(spgrad.from_edges((source, target)), wanted)
    assert spgrad.equal(spgrad.from_edges([source, target]), wanted)
    with pytest.raises(ValueError, match=r"`edge_index\[1\]` has shape \(2,\)"):
        spgrad.from_edges((source, target[:2]))


def test_from_edges_sizes():
    assert torch.equal(spgrad.from_edges(EDGES).to_dense().sum(), torch.tensor(5.0))
    assert spgrad.from_edges(EDGES).shape == (3, 3)
    assert spgrad.from_edges(EDGES, size=5).shape == (5, 5)
    assert spgrad.from_edges(EDGES, size=(3, 7)).shape == (3, 7)
    assert spgrad.from_edges(EDGES.tolist(), size=(3, 7)).shape == (3, 7)
    assert spgrad.from_edges(EDGES[:, :0]).shape == (0, 0)
    assert spgrad.from_edges(EDGES[:, :0], size=4).to_dense().sum() == 0
    assert spgrad.from_edges(EDGES.int()).col_indices().dtype == torch.int32


def test_from_edges_with_features():
    features = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    A = spgrad.from_edges(EDGES, features, size=(3, 4))
    assert A.shape == (3, 4, 3)
    assert A.dense_dim() == 1
    wanted = torch.zeros(3, 4, 3, dtype=torch.float64)
    wanted = wanted.index_put((EDGES[0], EDGES[1]), features.detach(), accumulate=True)
    testing.assert_close(A, wanted)
    assert torch.autograd.gradcheck(
        lambda w: spgrad.from_edges(EDGES, w, size=(3, 4)).to_dense(), (features,)
    )


def test_from_edges_aggregates():
    """A @ x adds up what out-neighbours hold; the flipped list what in-neighbours do."""
    x = torch.randn(3, 2)
    wanted = torch.zeros(3, 2).index_add(0, EDGES[0], x[EDGES[1]])
    testing.assert_close(spgrad.from_edges(EDGES) @ x, wanted)
    wanted = torch.zeros(3, 2).index_add(0, EDGES[1], x[EDGES[0]])
    testing.assert_close(spgrad.from_edges(EDGES.flip(0)) @ x, wanted)


BAD_EDGES = {
    "out_of_range": ((EDGES,), {"size": 2}, ValueError),
    "negative": ((-EDGES,), {}, ValueError),
    "transposed": ((EDGES.t(),), {}, ValueError),
    "float": ((EDGES.float(),), {}, ValueError),
    "words": ((["ab", "cd"],), {}, TypeError),
    "none": ((None,), {}, TypeError),
    "weights": ((EDGES, torch.ones(3)), {}, ValueError),
    "weights_list": ((EDGES, [1.0] * 4), {}, ValueError),
    "weights_object": ((EDGES, object()), {}, TypeError),
    "scalar_weight": ((EDGES, torch.tensor(1.0)), {}, ValueError),
    "size": ((EDGES,), {"size": (3, 3, 3)}, ValueError),
    "size_word": ((EDGES,), {"size": "33"}, TypeError),
    "layout": ((EDGES,), {"layout": torch.strided}, TypeError),
    "blocks": ((EDGES,), {"layout": torch.sparse_bsr}, ValueError),
}


@pytest.mark.parametrize("case", BAD_EDGES)
def test_from_edges_refuses(case):
    arguments, options, kind = BAD_EDGES[case]
    with pytest.raises(spgrad.SpgradError, match=r"^spgrad\.") as raised:
        spgrad.from_edges(*arguments, **options)
    assert isinstance(raised.value, kind)
