"""Shapes, joins, diagonals and rearrangements: what the support table does not try."""

import gc
import math

import pytest
import torch
from samples import leaf

import spgrad
from spgrad import support, testing
from spgrad.core import kept
from spgrad.core.pattern import LAYOUTS
from spgrad.lowering.sorting import lexicographic
from spgrad.ops.shapes import join

layouts = pytest.mark.parametrize("name", support.ALL)
F64 = torch.float64


def compare(function, dense, *operands):
    """Asserts value and gradients of a sparse result against the same of dense tensors."""
    y = function(*operands)
    twins = testing.dense_leaves(operands)
    expected = dense(*twins)
    testing.assert_close(y.detach(), expected.detach())
    g = torch.randn(y.shape, dtype=F64)
    testing.dense_result(y).backward(g)
    on_result = testing.mask_of(y.pattern) if isinstance(y, spgrad.SparseTensor) else 1
    expected.backward(g * on_result)
    for A, twin in zip(operands, twins, strict=True):
        assert A.grad.pattern is A.pattern
        testing.assert_close(A.grad, torch.where(testing.mask_of(A.pattern), twin.grad, 0))
        A.grad = None
    return y


SHAPES = {
    "rows_of_a_batch": (lambda A: A.flatten(0, 1), (2, 4, 6)),
    "batch_of_rows": (lambda A: A.unflatten(0, (2, 2)), (4, 6)),
    "two_groups": (lambda A: A.reshape(3, 8), (4, 6)),
    "ones": (lambda A: A.reshape(1, 4, 1, 6, 1), (4, 6)),
    "vector": (lambda A: A.view(-1), (4, 6)),
    "behind": (lambda A: A.unsqueeze(-1), (4, 6)),
    "between": (lambda A: A.unsqueeze(1), (4, 6)),
    "reversed": (lambda A: A.permute(2, 1, 0), (2, 4, 6)),
    "rotated": (lambda A: A.permute(1, 2, 0), (2, 4, 6)),
    "turned": (lambda A: A.permute((1, 0)), (4, 6)),
    "turned_batch": (lambda A: A.movedim(-1, -2), (2, 4, 6)),
    "batches_exchanged": (lambda A: A.permute(1, 0, 3, 2), (3, 2, 4, 6)),
    "wide": (lambda A: A.repeat(2, 3), (4, 6)),
    "many": (lambda A: A.expand(3, 2, -1, -1), (2, 4, 6)),
    "rolled_flat": (lambda A: A.roll(5), (4, 6)),
    "rolled_twice": (lambda A: A.roll((1, 2, 1), (0, 1, 0)), (4, 6)),
    "half_turn": (lambda A: A.flip(0, 1), (4, 6)),
}


@layouts
@pytest.mark.parametrize("case", SHAPES)
def test_shapes(case, name, poisoned):
    function, shape = SHAPES[case]
    compare(function, function, leaf(name, shape))


HYBRID = {
    "dense_exchanged": lambda A: A.permute(0, 1, 3, 2),
    "both_exchanged": lambda A: A.permute(1, 0, 3, 2),
    "dense_behind": lambda A: A.unsqueeze(-1),
    "border": lambda A: A.unsqueeze(2),
    "dense_split": lambda A: A.unflatten(-1, (2, 1)),
    "dense_flat": lambda A: A.flatten(2),
    "dense_flipped": lambda A: A.flip(-1, 0),
    "dense_rolled": lambda A: A.roll((1, 1), (-2, 1)),
    "repeated": lambda A: A.repeat(1, 2, 1, 3),
    "reshaped": lambda A: A.reshape(24, 6),
}


@layouts
@pytest.mark.parametrize("case", HYBRID)
def test_shapes_with_dense_dimensions(case, name, poisoned):
    compare(HYBRID[case], HYBRID[case], leaf(name, (4, 6, 3, 2), dense_dim=2))


@layouts
def test_layouts_of_results(name):
    A, B = leaf(name), leaf(name, (2, 4, 6))
    flipped = LAYOUTS[support.FLIPPED[name]]
    by_rows = LAYOUTS[name] if name in ("csr", "bsr") else torch.sparse_coo
    assert A.permute(1, 0).layout == B.movedim(1, 2).layout == flipped
    assert A.unsqueeze(0).layout == B.unsqueeze(1).layout == A.layout
    assert B.flatten(0, 1).layout == by_rows
    assert A.reshape(3, 8).layout == torch.sparse_coo
    assert B.permute(1, 0, 2).layout == torch.sparse_coo
    C = leaf(name, (2, 3, 4, 6))
    assert C.permute(1, 0, 2, 3).layout == A.layout
    assert C.permute(1, 0, 3, 2).layout == flipped
    assert A.view(-1).layout == torch.sparse_coo
    assert A.expand(3, 4, 6).layout == A.roll(1, 0).layout == A.layout
    assert A.permute(0, 1) is A.reshape(4, 6) is A.squeeze() is A


WITHOUT_ELEMENTS = [
    (2, 0, 4),
    (0, 4),
    (3, 0, 4),
    (2, 4, 0),
    (4, 0),
    (6, 0),
    (0, 2, 4),
    (2, 2, 0, 4),
]


@pytest.mark.parametrize("shape", WITHOUT_ELEMENTS, ids=str)
@layouts
def test_shapes_without_elements(name, shape):
    """These differ in the number of their rows, columns or batch items, not of their elements."""
    for source in WITHOUT_ELEMENTS:
        A = leaf(name, source)
        testing.assert_close(A.sum(-1), torch.zeros(source[:-1]))  # finds and keeps its views
        testing.assert_close(A.sum(-2), torch.zeros(*source[:-2], source[-1]))
        B = A.reshape(shape)
        assert B.shape == shape
        x = torch.ones(shape[-1], 3, dtype=F64, requires_grad=True)
        y = B @ x
        assert y.shape == (*shape[:-1], 3)
        y.sum().backward()
        assert A.grad.pattern is A.pattern
        assert x.grad.eq(0).all()
        spgrad.from_torch(spgrad.to_torch(B.detach()))  # checks what it is given


def test_repeated_elements_are_added():
    A = spgrad.sparse_coo_tensor([[1, 1, 0], [0, 0, 2]], [1.0, 2.0, 3.0], (2, 3))
    for function in (lambda A: A.flip(0), lambda A: A.reshape(6), lambda A: torch.cat([A, A])):
        y = function(A)
        assert y.is_coalesced()
        testing.assert_close(y, function(A.to_dense()))


def test_index_work_is_kept_and_limited():
    A = leaf("coo")
    assert A.roll(1, 0).pattern is A.roll(1, 0).pattern
    first = A.roll(1, 0).pattern
    for shift in range(2, 30):
        A.roll((shift, shift), (1, 0))
    assert A.roll(1, 0).pattern is not first
    assert len(A.pattern.derived(kept.REBUILT)) <= 8


def test_joins_are_kept_while_their_operands_live():
    join._JOINED.clear()
    A, B = leaf(), leaf(seed=1)
    assert torch.cat([A, B]).pattern is torch.cat([A, B]).pattern
    assert torch.cat([A, B]).pattern is not torch.cat([B, A]).pattern
    assert torch.cat([A, A]).nse == 2 * A.nse
    del A
    gc.collect()
    assert not join._JOINED
    kept = [leaf(seed=seed) for seed in range(12)]
    for C in kept:
        torch.cat([B, C], 1)
    assert len(join._JOINED) == 8


@layouts
def test_joins_of_mixed_layouts_and_widths(name, poisoned):
    operands = [leaf(name), leaf("coo", seed=1), leaf("csc", seed=2)]
    for dim in (0, 1):
        y = compare(lambda *a, d=dim: torch.cat(a, d), lambda *a, d=dim: torch.cat(a, d), *operands)
        assert y.layout == operands[0].layout
    narrow = [leaf(name), leaf("csr", (4, 3), seed=1)]
    compare(lambda *a: spgrad.hstack(a), lambda *a: torch.hstack(a), *narrow)
    compare(lambda *a: spgrad.hstack(a), lambda *a: torch.hstack(a), leaf(name))
    y = compare(spgrad.block_diag, torch.block_diag, leaf(name), leaf("csr", (3, 3), seed=1))
    assert y.layout == (torch.sparse_coo if name[0] == "b" else operands[0].layout)


@layouts
def test_joins_of_batches_along_any_dimension(name, poisoned):
    operands = [leaf(name, (2, 4, 6), seed=seed) for seed in range(3)]
    for dim in range(3):
        y = compare(lambda *a, d=dim: torch.cat(a, d), lambda *a, d=dim: torch.cat(a, d), *operands)
        assert y.layout == operands[0].layout


def test_joins_of_vectors_and_of_int32():
    vectors = [leaf("coo", (5,)), leaf("coo", (5,), seed=1)]
    for fn in ("hstack", "vstack", "dstack", "stack", "cat"):
        compare(
            lambda *a, f=fn: getattr(spgrad, f)(a), lambda *a, f=fn: getattr(torch, f)(a), *vectors
        )
    A = testing.random_sparse((4, 6), torch.sparse_csr, index_dtype=torch.int32)
    B = testing.random_sparse((4, 6), torch.sparse_csr)
    assert torch.cat([A, A]).crow_indices().dtype == torch.int32
    assert torch.cat([A, B], 1).crow_indices().dtype == torch.int64
    assert torch.cat([A, A.float()]).dtype == F64


@layouts
def test_joins_along_a_dense_dimension(name):
    A, B = (leaf(name, (4, 6, 3), dense_dim=1, seed=seed) for seed in range(2))
    y = compare(lambda *a: torch.cat(a, 2), lambda *a: torch.cat(a, 2), A, B)
    assert (y.layout, y.dense_dim()) == (A.layout, 1)
    compare(lambda *a: torch.stack(a, -1), lambda *a: torch.stack(a, -1), A, B)


def test_indices_grow_where_they_have_to():
    size = 2**20
    A = spgrad.sparse_coo_tensor(
        torch.tensor([[5, 7], [3, size - 1]], dtype=torch.int32), torch.ones(2), (size, size)
    )
    flat = A.flatten()
    assert flat.indices().tolist() == [[5 * size + 3, 8 * size - 1]]
    assert spgrad.equal(flat.reshape(size, size), A)
    B = spgrad.sparse_coo_tensor(A._indices()[1:], torch.ones(2), (size,))
    wide = spgrad.kron(B, B)
    assert wide.indices()[0, -1] == size**2 - 1
    assert wide.indices().dtype == torch.int64


@layouts
def test_triangles_of_what_has_no_element_there(name):
    A = leaf(name, (6, 4))
    for k in (-7, 7):
        compare(lambda A, k=k: A.tril(k), lambda A, k=k: A.tril(k), A)
        compare(lambda A, k=k: A.triu(k), lambda A, k=k: A.triu(k), A)
    assert A.detach().tril(-7).nse == 0


def test_diag_of_vectors():
    v = leaf("coo", (5,))
    for k in (0, 2, -1):
        y = compare(lambda v, k=k: torch.diag(v, k), lambda v, k=k: torch.diag(v, k), v)
        assert y.layout == torch.sparse_coo
        x = torch.randn(4, dtype=F64)
        assert spgrad.diag(x, k).layout == torch.sparse_csr
        testing.assert_close(spgrad.diag(x, k), torch.diag(x, k))
    x = torch.randn(2, 3, dtype=F64)
    testing.assert_close(spgrad.diag_embed(x, 1), torch.diag_embed(x, 1))
    assert torch.autograd.gradcheck(lambda x: spgrad.diag(x, 1).to_dense(), x[0].requires_grad_())


@layouts
def test_find_gives_values_with_a_gradient(name):
    A = leaf(name)
    row, col, vals = spgrad.find(A)
    (vals * torch.arange(len(vals))).sum().backward()
    wanted = torch.zeros(4, 6, dtype=F64)
    wanted[row, col] = torch.arange(len(vals), dtype=F64)
    testing.assert_close(A.grad, wanted)


@layouts
def test_prune_takes_zeros_away(name):
    A = spgrad.from_values(leaf(name).detach().values().clone(), leaf(name))
    A.values()[::2] = 0
    B = spgrad.prune(A)
    testing.assert_close(B, A.to_dense())
    if A.pattern.blocksize is None:
        assert B.nse == int((A.values() != 0).sum())
    nan = spgrad.from_values(torch.full_like(A.values(), torch.nan), A)
    assert spgrad.prune(nan, 1).nse == A.nse


def test_orders():
    for sizes in ((5, 7), (3, 1, 4), (1 << 40, 9), (2**17, 3)):
        count = min(math.prod(sizes), 11)
        at = torch.randperm(min(math.prod(sizes), 10**6))[:count]
        indices = torch.stack(torch.unravel_index(at, sizes))
        order = lexicographic(indices, sizes)
        assert (at[order].diff() > 0).all()


@layouts
def test_in_place_changes_of_shape(name):
    A = leaf(name)
    B = A * 1
    assert B.t_() is B
    assert B.transpose_(0, 1).shape == (4, 6)
    B.t_().unsqueeze_(0)
    assert B.shape == (1, 6, 4)
    B.squeeze_(0).swapaxes_(0, 1)
    testing.assert_close(B.detach(), A.detach().to_dense())
    assert B.layout == A.layout
    B.to_dense().sum().backward()
    assert A.grad.pattern is A.pattern
    with pytest.raises(spgrad.StateError, match="leaf that requires"):
        A.t_()


@layouts
def test_resize(name):
    A = leaf(name).detach()
    dense = A.to_dense()
    B = A.clone().sparse_resize_((6, 10), 2, 0)
    wanted = torch.zeros(6, 10, dtype=F64)
    wanted[:4, :6] = dense
    testing.assert_close(B, wanted)
    assert B.layout == A.layout
    testing.assert_close(A.clone().resize_as_(B), wanted)
    with pytest.raises(ValueError, match="no smaller size"):
        A.clone().sparse_resize_((2, 6), 2, 0)
    assert A.clone().sparse_resize_and_clear_((2, 4), 2, 0).nse == 0
    C = A.clone().sparse_resize_and_clear_((3, 2, 5), 1, 2)
    assert (C.layout, C.dense_dim()) == (torch.sparse_coo, 2)


@layouts
def test_equality(name):
    A = leaf(name).detach()
    same = A.to_sparse_coo()
    zero = spgrad.sparse_coo_tensor(
        torch.cartesian_prod(torch.arange(4), torch.arange(6)).t(), A.to_dense().flatten(), (4, 6)
    )
    assert torch.equal(A, same)
    assert A.equal(zero)
    assert torch.equal(zero, A.to_dense())
    assert not torch.equal(A, A * 2)
    assert not torch.equal(A, A.t())
    assert torch.allclose(A, same + 1e-12 * same)
    assert not torch.allclose(A, 2 * A)
    assert torch.is_same_size(A, same)
    assert A.is_floating_point()
    assert (A.dim(), A.numel(), tuple(A.size())) == (2, 24, (4, 6))


def test_one_element():
    for A, value in ((spgrad.eye(1), 1.0), (spgrad.zeros(1, 1), 0.0)):
        assert A.item() == float(A) == value
        assert bool(A) is torch.is_nonzero(A) is (value != 0)
    with pytest.raises(ValueError, match="one element"):
        bool(spgrad.eye(2))


A46 = testing.random_sparse((4, 6))
H = testing.random_sparse((4, 6, 3), dense_dim=1)


def test_other_ways_to_ask():
    A = leaf(shape=(4, 6))
    assert A.to_sparse(2).layout == torch.sparse_coo
    assert A.to_sparse(dense_dim=0).layout == torch.sparse_coo
    testing.assert_close(A.H, A.to_dense().H)
    testing.assert_close(A.repeat_interleave(2), A.to_dense().repeat_interleave(2))
    hybrid = leaf("coo", (4, 3, 2), dense_dim=1)
    for dim in (0, 1, 2):
        wanted = hybrid.to_dense().repeat_interleave(3, dim)
        testing.assert_close(torch.repeat_interleave(hybrid, 3, dim), wanted)


REFUSALS = {
    "no_permutation": (lambda: A46.permute(0, 0), ValueError, "permute: `dims`"),
    "dense_first": (lambda: H.permute(2, 0, 1), NotImplementedError, "dense dimensions behind"),
    "joined_kinds": (lambda: H.reshape(4, 18), NotImplementedError, "keep the two apart"),
    "wrong_size": (lambda: A46.reshape(5, 5), ValueError, "reshape: `shape`"),
    "two_unknown": (lambda: A46.reshape(-1, -1), ValueError, "reshape: `shape`"),
    "dtype": (lambda: A46.view(torch.int64), TypeError, "view: `size`"),
    "no_dim": (lambda: A46.unsqueeze(4), ValueError, "unsqueeze: `dim` is 4"),
    "dim_twice": (lambda: A46.flip(0, 0), ValueError, "flip: `dims`"),
    "shifts": (lambda: A46.roll((1, 2), 0), ValueError, "roll: `shifts`"),
    "no_shifts": (lambda: A46.roll(()), ValueError, "roll: `shifts` is empty"),
    "expanded": (lambda: A46.expand(5, 6), ValueError, "expand: `size`"),
    "few_repeats": (lambda: A46.repeat(2), ValueError, "repeat: `repeats`"),
    "no_tensors": (lambda: spgrad.cat([]), ValueError, "cat: `tensors` is empty"),
    "no_list": (lambda: spgrad.cat(A46), TypeError, "cat: `tensors`"),
    "dense_operand": (lambda: torch.cat([A46, torch.ones(4, 6)]), TypeError, r"tensors\[1\]"),
    "other_shape": (lambda: torch.cat([A46, A46.t()]), ValueError, r"\(\*, 6\)"),
    "other_stacked": (lambda: torch.stack([A46, A46.t()]), ValueError, r"tensors\[1\]"),
    "blocks": (lambda: torch.block_diag(A46.unsqueeze(0)), ValueError, "block_diag"),
    "other_diagonal": (
        lambda: A46.unsqueeze(0).diagonal(0, 0, 1),
        NotImplementedError,
        "spgrad.movedim",
    ),
    "kron_dense": (lambda: torch.kron(A46, torch.ones(2, 2)), TypeError, "kron: `other`"),
    "kron_hybrid": (lambda: torch.kron(A46, H), NotImplementedError, "kron: `other` has 1 dense"),
    "threshold": (lambda: spgrad.prune(A46, "x"), TypeError, "prune: `threshold`"),
    "triangle": (H.tril, NotImplementedError, "tril: `input`"),
    "batch_adjoint": (lambda: A46.unsqueeze(0).H, ValueError, "H: `input`"),
    "no_other": (lambda: spgrad.view_as(A46, 24), TypeError, "view_as: `other`"),
    "as_other": (lambda: A46.reshape_as(torch.ones(5)), ValueError, "reshape_as: `other`"),
    "interleaved": (lambda: A46.repeat_interleave(-1, 0), ValueError, "`repeats`"),
    "interleaved_by": (
        lambda: A46.repeat_interleave(torch.tensor([1, 2]), 0),
        TypeError,
        "repeat_interleave: `repeats`",
    ),
    "sparse_dim": (lambda: A46.to_sparse(1), ValueError, "to_sparse: `sparse_dim` is 1"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals(case):
    function, error, says = REFUSALS[case]
    with pytest.raises(error, match=says):
        function()
