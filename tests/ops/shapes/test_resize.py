"""Shapes that change in place: batches, blocks, dense dimensions."""

import weakref

import pytest
import torch
from samples import made

import spgrad
from spgrad import support, testing
from spgrad.core.pattern import LAYOUTS

compressed = pytest.mark.parametrize("name", [n for n in support.ALL if n != "coo"])


@compressed
def test_a_cleared_batch_keeps_its_layout(name):
    for old, size, dense_dim in (
        ((2, 4, 6), (3, 4, 8), 0),
        ((2, 4, 6), (2, 8), 0),
        ((4, 6), (5, 2, 3, 4, 2), 0),
        ((4, 6), (2, 4, 6, 3, 5), 2),
        ((2, 4, 6, 3), (4, 2, 7), 1),
    ):
        A = made(name, old, dense_dim=len(old) - 3 if len(old) > 3 else 0)
        if name[0] == "b" and size == (5, 2, 3, 4, 2):
            size = (5, 2, 4, 4, 2)
        same = A.sparse_resize_and_clear_(size, 2, dense_dim)
        assert same is A
        assert (A.layout, tuple(A.shape), A.nse, A.dense_dim()) == (
            LAYOUTS[name],
            size,
            0,
            dense_dim,
        )
        assert A.pattern.blocksize == ((2, 2) if name[0] == "b" else None)
        testing.assert_close(A, torch.zeros(size))
        if not dense_dim:
            assert (A @ torch.ones(size[-1], 2, dtype=A.dtype)).eq(0).all()


@pytest.mark.parametrize("name", ["bsr", "bsc"])
@pytest.mark.parametrize("size", [(3, 8), (8, 3), (2, 5, 4), (2, 4, 5)])
def test_sizes_that_blocks_do_not_fit_become_coo(name, size):
    A = made(name, (4, 6))
    A.sparse_resize_and_clear_(size, 2, 0)
    assert (A.layout, tuple(A.shape), A.nse) == (torch.sparse_coo, size, 0)


@compressed
def test_a_batch_that_grows(name):
    A = made(name, (2, 4, 6))
    dense = A.to_dense()
    A.sparse_resize_((3, 6, 8), 2, 0)
    assert A.layout == LAYOUTS[name]
    wanted = torch.zeros(3, 6, 8, dtype=torch.float64)
    wanted[:2, :4, :6] = dense
    testing.assert_close(A, wanted)


@pytest.mark.parametrize("name", support.ALL)
def test_dense_dimensions_that_grow(name):
    A = made(name, (4, 6, 2, 3), dense_dim=2).requires_grad_()
    dense = A.detach().to_dense()
    B = (A * 1).sparse_resize_((4, 8, 3, 5), 2, 2)
    wanted = torch.zeros(4, 8, 3, 5, dtype=torch.float64)
    wanted[:, :6, :2, :3] = dense
    testing.assert_close(B.detach(), wanted)
    B.values().sum().backward()
    assert (A.grad.values() == 1).all()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (((4, 6), -1, 3), "`sparse_dim` is -1"),
        (((4, 6), 3, -1), "`dense_dim` is -1"),
        (((4, 6), 1, 0), "`sparse_dim` is 1 and `dense_dim` 0 for `size`"),
        (((4, 6, 2), 2, 2), "`sparse_dim` is 2 and `dense_dim` 2 for `size`"),
        (((4, 6), 1, 1), "no smaller size"),
        (((4, 5), 2, 0), "no smaller size"),
        (((3, 6), 2, 0), "no smaller size"),
        (((2, 4, 6), 2, 0), "no smaller size"),
    ],
)
def test_sizes_that_do_not_fit(arguments, says):
    A = made("csr", (4, 6))
    before = A.to_dense()
    with pytest.raises(spgrad.ArgumentValueError, match=f"spgrad.sparse_resize_: .*{says}"):
        A.sparse_resize_(*arguments)
    testing.assert_close(A, before)


def test_what_is_no_tensor_of_ours_is_not_resized():
    native = torch.eye(2).to_sparse_coo()
    with pytest.raises(TypeError, match=r"spgrad\.sparse_resize_: `input` is"):
        spgrad.sparse_resize_(native, (3, 3), 2, 0)
    with pytest.raises(TypeError, match=r"spgrad\.resize_as_: `other` is"):
        spgrad.resize_as_(made("csr", (4, 6)), torch.ones(2, 2))


def test_a_tensor_that_something_holds_on_to_stays():
    A = spgrad.from_dense(torch.eye(3)).to_sparse_coo()
    held = weakref.ref(A)
    with pytest.raises(
        spgrad.StateError, match=r"a graph or a weak reference holds it \(.*weakref"
    ):
        spgrad.sparse_resize_(A, (4, 4), 2, 0)
    assert held() is A
    assert torch.equal(A.to_dense(), torch.eye(3))
    assert spgrad.sparse_resize_(A, (3, 3), 2, 0) is A  # nothing to change


def test_a_tensor_without_elements_takes_any_shape():
    """As torch's own: other numbers of dimensions, and smaller sizes."""
    for size, sparse_dim, dense_dim in (((4, 1), 1, 1), ((1, 2), 2, 0), ((2, 3, 4), 3, 0)):
        A = spgrad.from_dense(torch.zeros(2, 3)).to_sparse_coo()
        native = torch.sparse_coo_tensor(size=(2, 3)).sparse_resize_(size, sparse_dim, dense_dim)
        assert spgrad.sparse_resize_(A, size, sparse_dim, dense_dim) is A
        assert A.shape == native.shape
        assert (A.sparse_dim(), A.dense_dim()) == (native.sparse_dim(), native.dense_dim())
        assert A.nse == 0
        assert torch.equal(A.to_dense(), torch.zeros(size))


WIDE = spgrad.zeros(2**31, 2**31 - 1, layout=torch.sparse_coo)
LARGER = {
    "repeat_interleave": lambda A, n: A.repeat_interleave(n, 0),
    "repeat": lambda A, n: A.repeat(n, 1),
    "cat": lambda A, n: torch.cat([A] * n),
    "block_diag": lambda A, n: spgrad.block_diag(*[A] * (n // 2)),
    "kron": lambda A, n: torch.kron(spgrad.eye(1, n, layout=torch.sparse_coo), A),
}


@pytest.mark.parametrize("name", LARGER)
def test_results_have_at_most_as_many_elements_as_int64_counts(name):
    assert LARGER[name](WIDE, 2).nse == 0
    with pytest.raises(spgrad.ArgumentValueError) as found:
        LARGER[name](WIDE, 4)
    said = str(found.value)
    assert said.startswith(f"spgrad.{name}: the shape of the result is (")
    assert " with at most 2^63 - 1 elements in all are accepted. " in said
