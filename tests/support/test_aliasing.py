"""Which tensors share memory, and that results are contiguous."""

import pytest
import torch
from samples import made

import spgrad
from spgrad import kernels, support, testing
from spgrad.core.pattern import LAYOUTS
from spgrad.kernels import REFERENCES

layouts = pytest.mark.parametrize("name", support.ALL)
compressed = pytest.mark.parametrize("name", [n for n in support.ALL if n != "coo"])


def memory(A):
    """The addresses of all that a SparseTensor is made of."""
    parts = (A._vals, *A._pattern.indices)
    return {part.untyped_storage().data_ptr() for part in parts if part.numel()}


def apart(A, B):
    return not memory(A) & memory(B)


def in_order(A):
    return all(part.is_contiguous() for part in (A._vals, *A._pattern.indices))


OPS = {
    name: [cell for cell in testing.cells() if cell.op.name == name]
    for name, op in support.OPS.items()
    if op.compared
}


@pytest.mark.parametrize("op", OPS)
def test_values_and_indices_of_results_are_contiguous(op):
    """Kernels read arrays from one end to the other."""
    for cell in OPS[op]:
        operands = [
            a if isinstance(a, spgrad.SparseTensor) or a.dim() < 2 else a.mT.contiguous().mT
            for a in (t.detach() for t in testing.sample(cell))
        ]
        for y in testing.run_all(cell, operands):
            assert not isinstance(y, spgrad.SparseTensor) or in_order(y), str(cell)


@pytest.mark.parametrize("op", OPS)
def test_results_without_a_gradient_are_no_views(op):
    """Autograd refuses changes in place of such views, once a gradient is recorded."""
    for cell in OPS[op]:
        for coalesced in (True, False) if cell.layout == "coo" else (True,):
            operands = [a.detach() for a in testing.sample(cell, coalesced=coalesced)]
            dense = [testing.dense_result(a) for a in operands]
            with torch.no_grad():
                results = testing.run_all(cell, operands)
                wanted = testing.expected_all(cell, operands, dense)
            for y, expected in zip(results, wanted, strict=True):
                if not isinstance(y, spgrad.SparseTensor):
                    assert not y._is_view() or expected._is_view(), str(cell)


@pytest.mark.parametrize("op", [op for op in OPS if OPS[op][0].op.order])
def test_gradients_are_contiguous(op):
    """Also those that come from an expanded cotangent."""
    for cell in OPS[op]:
        operands = testing.sample(cell)
        y = testing.run(cell, operands)
        testing.dense_result(y).real.sum().backward()
        for a in operands:
            assert not isinstance(a.grad, spgrad.SparseTensor) or in_order(a.grad), str(cell)


# each leaves all elements where they are
COPIES = {
    "flip": lambda A: A.flip(()),
    "roll": lambda A: A.roll(2, 0),
    "repeat": lambda A: A.repeat(1, 1),
    "repeat in front": lambda A: A.repeat(1, 1, 1),
    "tile": lambda A: A.tile(1),
    "narrow_copy": lambda A: A.narrow_copy(0, 0, 2),
}


@layouts
@pytest.mark.parametrize("function", COPIES)
def test_what_torch_copies_has_memory_of_its_own(function, name):
    blocksize = (1, 2) if name in ("bsr", "bsc") else None
    A = spgrad.from_dense(torch.ones(2, 4), LAYOUTS[name], blocksize=blocksize)
    COPIES[function](A).mul_(10)
    assert torch.equal(A.to_dense(), torch.ones(2, 4))


def test_diagonals_have_memory_of_their_own():
    v = spgrad.from_dense(torch.ones(3), torch.sparse_coo)
    spgrad.diag_embed(v).mul_(10)
    spgrad.diag(v).mul_(10)
    assert torch.equal(v.to_dense(), torch.ones(3))


@compressed
@pytest.mark.parametrize("recorded", [False, True])
def test_items_of_a_batch_are_copies(name, recorded):
    A = made(name, (3, 4, 6))
    before = A.to_dense()
    items = A.requires_grad_(recorded).unbind()
    for item in items:
        item.detach()._vals.mul_(2)
        assert apart(item.detach(), A.detach())
        assert in_order(item.detach())
    testing.assert_close(A.detach(), before)
    testing.assert_close(torch.stack([i.detach().to_dense() for i in items]), 2 * before)


@layouts
def test_lines_of_a_matrix_are_copies(name):
    A = made(name)
    for dim in (0, 1):
        for item in A.unbind(dim):
            assert apart(item, A)
            assert in_order(item)


@layouts
def test_slices_of_dense_dimensions_are_contiguous_copies(name):
    A = made(name, (4, 6, 5, 3), dense_dim=2)
    dense = A.to_dense()
    for take in (
        (..., slice(0, 5, 2), slice(None)),
        (..., slice(None), slice(1, 3)),
        (..., slice(4, None, -2), slice(None, None, -1)),
        (slice(1, 3), slice(None), slice(1, 4)),
        (..., 1, slice(0, 3, 2)),
        (..., [2, 0]),
    ):
        part = A[take]
        assert in_order(part), take
        storage = part._vals.untyped_storage()
        assert storage.data_ptr() != A._vals.untyped_storage().data_ptr(), take
        assert storage.nbytes() == part._vals.nbytes, take
    testing.assert_close(A[..., ::2, :], dense[..., ::2, :])


@layouts
def test_a_gradient_of_values_can_be_written_to(name):
    """The cotangent of a sum is one number that stands for all: the gradient is not."""
    A = made(name).requires_grad_()
    A.values().sum().backward()
    assert in_order(A.grad)
    with torch.no_grad():
        A.grad.mul_(2)
        A.grad._vals.view(-1)[0] = 5
    assert A.grad._vals.sum() == 2 * A._vals.numel() + 3
    A.values().sum().backward()
    assert A.grad._vals.sum() == 3 * A._vals.numel() + 3


@layouts
def test_a_gradient_of_from_values_can_be_written_to(name):
    pattern = made(name).pattern
    vals = torch.ones(pattern.values_shape, requires_grad=True)
    for _ in range(2):
        (3 * spgrad.from_values(vals, pattern)).sum().backward()
    vals.grad.view(-1)[0] = 1
    assert vals.grad.sum() == 6 * vals.numel() - 5


@layouts
def test_values_share_memory_and_detached_tensors_too(name):
    A = made(name)
    for other in (A.values(), A.detach()._vals, spgrad.from_values(A._vals, A)._vals):
        assert other.data_ptr() == A._vals.data_ptr()
    for other in (A.clone(), A.to(torch.float32), A * 1, A + A, -A):
        assert other._vals.data_ptr() != A._vals.data_ptr()
        assert other.pattern is A.pattern


@layouts
def test_constructors_share_the_values_that_fit(name):
    """A leaf made of a tensor with a history has none of it."""
    A = made(name)
    parts = A.pattern.indices
    if name == "coo":
        again = spgrad.sparse_coo_tensor(parts[0], A._vals, A.shape, is_coalesced=True)
    else:
        again = spgrad.sparse_compressed_tensor(*parts, A._vals, A.shape, layout=A.layout)
    assert memory(again) == memory(A)
    assert again._vals.data_ptr() == A._vals.data_ptr()


@layouts
def test_a_native_leaf_taken_twice_adds_up_its_gradients(name):
    """Of CSC, BSR and BSC torch's own accumulation raises: it is done in its place, once."""
    A = made(name)
    x = torch.randn(6, 2, dtype=torch.float64)
    leaf = spgrad.to_torch(A).requires_grad_()
    first, second = spgrad.from_torch(leaf), spgrad.from_torch(leaf)
    (first @ x).sum().backward()
    once = spgrad.from_torch(leaf.grad).to_dense()
    (second @ x).sum().backward()
    assert leaf.grad.layout == A.layout
    testing.assert_close(spgrad.from_torch(leaf.grad), 2 * once)
    (second @ x + second @ x).sum().backward()
    testing.assert_close(spgrad.from_torch(leaf.grad), 4 * once)
    wanted = A.detach().requires_grad_()
    (wanted @ x).sum().backward()
    testing.assert_close(wanted.grad, once)


@layouts
def test_a_gradient_that_is_zero_can_be_written_to(name):
    """Autograd stands in for some zeros with a tensor that has no memory."""
    A = made(name).requires_grad_()
    A.values().backward(torch._efficientzerotensor(A._vals.shape, dtype=A.dtype))
    A.values().sum().backward()
    with torch.no_grad():
        A.grad.add_(A.grad)
    assert (A.grad._vals == 2).all()


@pytest.mark.parametrize("name", ["csr", "csc"])
def test_a_transpose_shares_all_that_it_is_made_of(name):
    A = made(name)
    for B in (A.t(), A.permute(1, 0), A.transpose(0, 1), A.mT, A.movedim(0, 1), A.swapaxes(0, -1)):
        assert memory(B) == memory(A)
        assert B._vals.data_ptr() == A._vals.data_ptr()
        testing.assert_close(B, A.to_dense().t())


@layouts
def test_other_shapes_of_elements_in_order_share_the_values(name):
    """As the views of dense tensors do; what torch copies has values of its own."""
    A = made(name, (4, 6, 6))
    for B in (A.reshape(2, 2, 6, 6), A.unsqueeze(0), A.view(4, 1, 6, 6), A.unflatten(0, (2, 2))):
        assert B._vals.data_ptr() == A._vals.data_ptr()
    for B in (A.roll(0, 0), A.flip(()), A.clone()):
        assert apart(B, A) or B._vals.data_ptr() != A._vals.data_ptr()


def test_results_do_not_keep_larger_tensors_alive():
    """Also those of the references, of which some are rows of a larger tensor."""
    ptr, idx = torch.tensor([0, 2, 3]), torch.tensor([0, 2, 1])
    for union in (kernels.union, REFERENCES["union"]):
        for part in union(ptr, idx, ptr, idx):
            assert part.untyped_storage().nbytes() <= 2 * part.nbytes


@layouts
def test_dense_operands_that_broadcast_along_all_sparse_dimensions(name):
    A = made(name, (4, 6, 3), dense_dim=1)
    for shape in ((1, 1, 3), (1, 1, 1), (3,)):
        x = torch.arange(2.0, 2 + torch.Size(shape).numel(), dtype=torch.float64).view(shape)
        testing.assert_close(A * x, A.to_dense() * x)
    B = made(name)
    for shape in ((1, 1), (1,)):
        testing.assert_close(B * torch.full(shape, 2.0, dtype=torch.float64), 2 * B.to_dense())
