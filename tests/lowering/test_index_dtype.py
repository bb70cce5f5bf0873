"""int32 indices and sizes that int32 does not hold: the same elements as with int64 indices."""

from types import SimpleNamespace

import pytest
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import spgrad
from spgrad.core.pattern import LAYOUTS, index_dtype

LARGE = 2**31 + 8
HALF = 2**30


def corners(shape):
    """Coordinates in every corner of a shape, and on either side of 2^30 and 2^31."""
    each = [sorted({0, 1, s // 2, HALF - 1, HALF, 2**31 - 2, s - 2, s - 1}) for s in shape]
    return torch.cartesian_prod(
        *(torch.tensor([i for i in e if 0 <= i < s]) for e, s in zip(each, shape, strict=True))
    ).t()


def operand(name, shape, blocks, dtype):
    """A tensor of a layout, whose indices are of a dtype where it holds them."""
    indices = corners(shape)
    val = torch.arange(1.0, indices.shape[1] + 1, dtype=torch.float64)
    A = spgrad.sparse_coo_tensor(indices, val, shape, is_coalesced=True)
    A = A.to_sparse(layout=LAYOUTS[name], blocksize=blocks)
    parts = A.pattern.indices
    if any(int(part.max()) > torch.iinfo(dtype).max for part in parts):
        return A
    parts = tuple(part.to(dtype) for part in parts)
    if name == "coo":
        return spgrad.sparse_coo_tensor(parts[0], A.values(), shape, is_coalesced=True)
    if blocks is None and len(shape) == 3:
        parts = A.pattern.compressed_by_item().to(dtype), A.pattern.plain_by_item().to(dtype)
    vals = A.values()
    return getattr(spgrad, f"sparse_{name}_tensor")(*parts, vals, shape)


def entries(A):
    C = A.detach().to_sparse_coo().coalesce()
    sizes = torch.tensor(C.shape)[:, None]
    assert bool(((C.indices() >= 0) & (C.indices() < sizes)).all())
    places = map(tuple, C.indices().t().tolist())
    return {p: v for p, v in zip(places, C.values().tolist(), strict=True) if v}


def test_columns_of_blocks_past_2_to_the_31():
    ptr, idx = torch.tensor([0, 1]).int(), torch.tensor([HALF]).int()
    A = spgrad.sparse_bsr_tensor(ptr, idx, torch.ones(1, 1, 2), (1, LARGE))
    assert A.to_sparse_coo().indices().tolist() == [[0, 0], [2**31, 2**31 + 1]]
    assert A.col_indices().dtype == torch.int64
    B = spgrad.sparse_bsc_tensor(ptr, idx, torch.ones(1, 2, 1), (LARGE, 1))
    assert B.to_sparse_csc().row_indices().tolist() == [2**31, 2**31 + 1]
    native = torch.sparse_bsr_tensor(ptr, idx, torch.ones(1, 1, 2), (1, LARGE))
    assert spgrad.from_torch(native)[0].indices().tolist() == [[2**31, 2**31 + 1]]


SHAPES = {
    "csr": [((2, LARGE), None), ((3, 2, HALF), None)],
    "coo": [((2, LARGE), None), ((3, 2, HALF), None)],
    "bsr": [((2, LARGE), (1, 2)), ((2, LARGE), (2, 4)), ((2, 2**31 - 2), (1, 2))],
}

MOVES = {
    "to_sparse_coo": lambda A: A.to_sparse_coo(),
    "flip": lambda A: A.flip(0, -1),
    "roll": lambda A: A.roll((1, 3), (-2, -1)),
    "flatten": lambda A: A.flatten(),
    "reshape": lambda A: A.reshape(2, -1),
    "cat": lambda A: torch.cat([A, A], -1),
    "stack": lambda A: torch.stack([A, A], -1),
    "repeat": lambda A: A.repeat(*[1] * (A.dim() - 1), 3),
    "repeat_interleave": lambda A: A.repeat_interleave(3, -2),
    "kron": lambda A: spgrad.kron(A, spgrad.from_dense(torch.ones(2, 3))),
    "tril": lambda A: A.tril(),
    "triu": lambda A: A.triu(HALF),
    "two patterns": lambda A: A + A.roll(1, -1),
    "sparse_mask": lambda A: A.sparse_mask(A.roll(1, -2)),
    "last": lambda A: A[..., -1],
    "listed": lambda A: A[..., [0, -1, 1], :] if A.shape[-2] < 9 else A[..., ::-1],
    "sliced": lambda A: A[..., 1::2],
    "prune": lambda A: spgrad.prune(A, 3),
    "resize": lambda A: spgrad.sparse_resize_(
        A.clone(), tuple(2 * s for s in A.shape), A.sparse_dim(), 0
    ),
}


@pytest.mark.parametrize(("name", "shape", "blocks"), [(n, *s) for n in SHAPES for s in SHAPES[n]])
def test_every_move_gives_the_same_elements(name, shape, blocks):
    wide, narrow = (operand(name, shape, blocks, t) for t in (torch.int64, torch.int32))
    assert entries(narrow) == entries(wide)
    for label, move in MOVES.items():
        assert entries(move(narrow)) == entries(move(wide)), label
    assert torch.equal(narrow.argmax(), wide.argmax())
    assert torch.equal(torch.nonzero(narrow), torch.nonzero(wide))


def test_offsets_of_the_items_of_a_batch():
    ptr, idx = torch.tensor([[0, 1]] * 5).int(), torch.full((5, 1), HALF - 1).int()
    A = spgrad.sparse_csr_tensor(ptr, idx, torch.arange(1.0, 6)[:, None], (5, 1, HALF))
    assert A.pattern.indices[1].dtype == torch.int32
    C = A.to_sparse_coo()
    assert C.indices()[2].tolist() == [HALF - 1] * 5
    moved = A.roll(-1, -1)
    assert moved.to_sparse_coo().indices()[2].tolist() == [HALF - 2] * 5
    assert (A + moved).to_sparse_coo().indices()[2].tolist() == [HALF - 2, HALF - 1] * 5


def test_a_size_that_a_trace_does_not_know_may_be_the_largest_of_the_dtype():
    """The graph of the trace raises in a run with a larger one."""
    env = ShapeEnv()
    size = env.create_unbacked_symint()
    assert index_dtype(torch.int32, (3, size)) == torch.int32
    assert env.var_to_range[size.node.expr].upper == 2**31 - 1
    assert index_dtype(torch.int32, (2**31 - 1,)) == torch.int32
    assert index_dtype(torch.int32, (2**31,)) == torch.int64


@pytest.mark.parametrize("name", ["bsr", "bsc", "coo"])
@pytest.mark.parametrize("target", ["to_sparse_csr", "to_sparse_csc"])
@pytest.mark.parametrize("most", [8, 7])
def test_elements_that_int32_does_not_count(name, target, most, monkeypatch):
    """Pointers to them are int64. Here int32 counts to `most`, for lack of memory."""
    x = torch.zeros(4, 6)
    x[:2, :2], x[2:, 4:] = torch.arange(1.0, 5.0).view(2, 2), torch.arange(5.0, 9.0).view(2, 2)
    blocksize = None if name == "coo" else (2, 2)
    A = spgrad.from_dense(x, LAYOUTS[name], blocksize=blocksize)
    parts = [part.to(torch.int32) for part in A.pattern.indices]
    make = getattr(spgrad, f"sparse_{name}_tensor")
    A = make(*parts, A.values(), A.shape)
    A = A.coalesce() if name == "coo" else A
    limits = {torch.int32: SimpleNamespace(max=most), torch.int64: torch.iinfo(torch.int64)}
    monkeypatch.setattr(torch, "iinfo", limits.__getitem__)
    found = getattr(A, target)()
    monkeypatch.undo()
    wanted = torch.int32 if most == 8 else torch.int64
    assert {t.dtype for t in found.pattern.indices} == {wanted}
    assert torch.equal(found.to_dense(), x)


@pytest.mark.parametrize("most", [8, 7])
def test_products_that_int32_does_not_count(most, monkeypatch):
    """A B has int64 indices where its products are more, of which there may be as many elements."""
    x = torch.arange(1.0, 5.0).view(2, 2)
    A = spgrad.from_dense(x, torch.sparse_csr)
    A = spgrad.sparse_csr_tensor(*(i.int() for i in A.pattern.indices), A.values(), A.shape)
    limits = {torch.int32: SimpleNamespace(max=most), torch.int64: torch.iinfo(torch.int64)}
    monkeypatch.setattr(torch, "iinfo", limits.__getitem__)
    C = A @ A
    monkeypatch.undo()
    wanted = torch.int32 if most == 8 else torch.int64
    assert {t.dtype for t in C.pattern.indices} == {wanted}
    assert torch.equal(C.to_dense(), x @ x)
