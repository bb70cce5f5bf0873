"""Drop-in mode where torch and spgrad disagree: whose error is raised, and what `out` accepts."""

import threading

import pytest
import torch

import spgrad
from spgrad import SparseTensor, testing
from spgrad.dropin import constructors, outputs, torch_semantics

F64 = torch.float64


def made(layout=torch.sparse_csr, shape=(4, 6), **options):
    return testing.random_sparse(shape, layout, **options)


# Constructors


def test_refuse_leaves_our_refusal_alone():
    with spgrad.dropin(fallback="refuse"), pytest.raises(spgrad.ArgumentValueError) as raised:
        torch.sparse_csr_tensor([0, 2, 1], [0, 1], [1.0, 2.0])
    assert type(raised.value) is spgrad.ArgumentValueError


def test_a_refusal_of_both_is_an_exception_of_both():
    with spgrad.dropin(), pytest.raises(spgrad.ArgumentValueError) as raised:
        torch.sparse_csr_tensor([0, 2, 1], [0, 1], [1.0, 2.0])
    assert isinstance(raised.value, RuntimeError)
    assert raised.value.function == "sparse_csr_tensor"
    assert "spgrad.sparse_csr_tensor: " in str(raised.value)
    assert "crow_indices" in str(raised.value)


def test_exceptions_that_cannot_be_joined_are_torchs():
    theirs = RuntimeError("theirs")
    assert constructors._of_both_kinds(theirs, TypeError("ours")) is theirs
    error = spgrad.ArgumentValueError("ours")
    assert constructors._of_both_kinds(error, error) is error
    assert constructors._of_both_kinds(ValueError("theirs"), error).args == ("theirs",)

    class FixedError(Exception):
        __slots__ = ("a",)

    other = type("Other", (spgrad.SpgradError,), {"__slots__": ("b",)})
    fixed = FixedError()
    assert constructors._of_both_kinds(fixed, other("ours")) is fixed


def test_checks_that_are_off_stay_off():
    with spgrad.dropin():
        A = torch.sparse_csr_tensor(
            torch.tensor([0, 1]), torch.tensor([7]), torch.ones(1), (1, 2), check_invariants=False
        )
    assert A.col_indices().tolist() == [7]


def test_ragged_batches_are_not_torchs():
    ptr, idx = torch.tensor([[0, 1], [0, 2]]), torch.tensor([0, 0, 1])
    with spgrad.dropin(fallback="refuse"), pytest.raises(ValueError, match="no ragged batches"):
        torch.sparse_csr_tensor(ptr, idx, torch.ones(3), (2, 1, 2))
    with spgrad.dropin(fallback="refuse"), pytest.raises(ValueError, match="not contiguous"):
        torch.sparse_csr_tensor(
            torch.tensor([0, 9, 1, 9, 2])[::2], torch.tensor([0, 1]), torch.ones(2)
        )
    with spgrad.dropin(fallback="refuse"):  # the others are not left to torch
        ptr = torch.tensor([[0, 1, 2]] * 2)
        A = torch.sparse_csr_tensor(ptr, torch.eye(2).long(), torch.ones(2, 2))
    assert A.shape == (2, 2, 2)


@pytest.mark.parametrize("function", [torch.ones, torch.full])
def test_tensors_of_ones_have_no_sparse_layout(function):
    more = () if function is torch.ones else (2.0,)
    with (
        spgrad.dropin(),
        pytest.raises(spgrad.UnsupportedError, match=r"`layout` is torch\.sparse"),
    ):
        function((2, 3), *more, layout=torch.sparse_csr)
    with spgrad.dropin():
        assert function((2, 3), *more).layout == torch.strided


def test_diagonals_need_long_offsets():
    diagonals = torch.ones(1, 3)
    with spgrad.dropin(), pytest.raises(ValueError, match=r"`offsets` has dtype torch\.int32"):
        torch.sparse.spdiags(diagonals, torch.tensor([0], dtype=torch.int32), (3, 3))
    with spgrad.dropin():
        A = torch.sparse.spdiags(diagonals, offsets=torch.tensor([0]), shape=(3, 3))
    assert torch.equal(A.to_dense(), torch.eye(3))


def test_conversions_of_dense_tensors():
    x = torch.eye(4)
    with spgrad.dropin():
        assert x.to_sparse(layout=torch.strided) is x
        assert x.to_sparse_csr(dense_dim=0).layout == torch.sparse_csr
        assert x.reshape(4, 2, 2).to_sparse_csr(1).dense_dim() == 1
        assert x.to_sparse(1).dense_dim() == 1
        with pytest.raises(RuntimeError):
            torch.zeros(0, 2, 2).to_sparse_csr()
        assert type(made().to_sparse_coo()) is SparseTensor
    refused = pytest.raises(spgrad.UnsupportedError, match="batch without items")
    with spgrad.dropin(fallback="refuse"), refused:
        torch.zeros(0, 2, 2).to_sparse_csr()


# Results that go into `out`


def test_out_takes_what_fits():
    A, x = made(dtype=F64), torch.randn(6, 2, dtype=F64)
    out = torch.empty(0, dtype=F64)
    with spgrad.dropin():
        assert torch.mm(A, x, out=out) is out
    testing.assert_close(out, A.to_dense() @ x)
    sparse = made(seed=1)
    with spgrad.dropin():
        assert torch.add(A, A, out=sparse) is sparse
    testing.assert_close(sparse, 2 * A.to_dense())
    low = made(seed=1).to(torch.float32)
    with spgrad.dropin():
        torch.add(A, A, out=low)
    assert low.dtype == torch.float32


@pytest.mark.parametrize(
    ("result", "out", "says"),
    [
        (torch.ones(2, requires_grad=True), torch.ones(2), "where a gradient is recorded"),
        ((torch.ones(2),) * 2, torch.ones(2), "for several results"),
        (torch.ones(2), torch.ones(2, dtype=torch.int64), "can't be cast to torch.int64"),
        (made(), made(torch.sparse_coo), "`out` has layout torch.sparse_coo"),
        (made(), torch.ones(4, 6), "`out` has layout torch.strided"),
        (torch.ones(4, 6), made(dtype=torch.float32), "`out` has layout torch.sparse_csr"),
    ],
)
def test_out_refuses_what_does_not_fit(result, out, says):
    with pytest.raises(spgrad.UnsupportedError, match=f"spgrad.dropin: .*{says}"):
        outputs.store(result, out)


def test_a_tensor_becomes_another_of_its_kind():
    A, B = made(), made(seed=1)
    assert outputs.become(A, A) is A
    assert outputs.become(A, B) is A
    assert A.pattern is B.pattern
    grown = made(shape=(6, 8))
    wanted = grown.to_dense()
    assert outputs.become(A, grown) is A
    testing.assert_close(A, wanted)
    for pair in ((A, torch.ones(4, 6)), (torch.ones(4, 6), A)):
        with pytest.raises(spgrad.UnsupportedError, match="can't be stored in a sparse tensor"):
            outputs.become(*pair)


def test_in_place_forms_get_other_elements():
    A, B = made(), made(seed=1)
    dense = A.to_dense() + B.to_dense()
    with spgrad.dropin():
        assert A.add_(B) is A
    testing.assert_close(A, dense)
    leaf = made().requires_grad_()
    with spgrad.dropin(fallback="refuse"), pytest.raises((spgrad.StateError, RuntimeError)):
        leaf.add_(B)
    whole = made(dtype=torch.int64)
    with spgrad.dropin(fallback="refuse"), pytest.raises(spgrad.SpgradError):
        whole.add_(made(seed=1))


# Meanings that torch gives


def test_comparison_with_zero_is_dense():
    A = made()
    with spgrad.dropin():
        zero, one = A.eq(0), A.eq(1)
    assert torch.equal(zero, A.to_dense() == 0)
    assert isinstance(one, SparseTensor)
    zeros = torch.zeros(4, 6, dtype=F64)
    assert torch.equal(testing.dense_result(torch_semantics.eq(A, zeros)), A.to_dense() == 0)


def test_types_and_devices():
    A = made(torch.sparse_coo)
    with spgrad.dropin():
        assert A.type(torch.float32).dtype == torch.float32
        assert A.type() == "torch.sparse.DoubleTensor"
        assert A.to(torch.float32).dtype == torch.float32
        assert A.to("cpu") is A
        assert A.to("meta")._nnz() == 0
        assert A.to(device="meta").shape == A.shape


@pytest.mark.parametrize("fallback", ["torch", "refuse"])
def test_conversions_between_layouts(fallback):
    short = made(index_dtype=torch.int32)
    with spgrad.dropin(fallback):
        coo = short.to_sparse_coo()
        assert coo.indices().dtype == torch.int64
        assert coo.to_sparse() is coo
        assert short.to_sparse(layout=torch.sparse_csc).row_indices().dtype == torch.int32
        assert torch.equal(short.to_sparse(layout=torch.strided), short.to_dense())
        blocks = short.to_sparse_bsr((2, 2))
        assert blocks.to_sparse_bsc((2, 2)).layout == torch.sparse_bsc
        assert coo.to_sparse_coo() is coo
    testing.assert_close(coo, short.to_dense())
    testing.assert_close(blocks, short.to_dense())


def test_claims_of_order_are_checked():
    A = spgrad.sparse_coo_tensor([[1, 0]], [1.0, 2.0], (3,))
    with spgrad.dropin(fallback="refuse"):
        with pytest.raises(RuntimeError, match="not sorted and unique"):
            A._coalesced_(True)
        assert not A.is_coalesced()
        B = spgrad.sparse_coo_tensor([[0, 1]], [1.0, 2.0], (3,))
        assert B._coalesced_(True) is B
        assert B.is_coalesced()
        assert not B._coalesced_(False).is_coalesced()
        assert B._coalesced_(True).is_coalesced()


def test_two_threads_share_the_stand_ins():
    native = torch.sparse.FloatTensor
    inside = []

    def other():
        with spgrad.dropin():
            inside.append(torch.sparse.FloatTensor)

    with spgrad.dropin():
        mine = torch.sparse.FloatTensor
        assert mine is not native
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert torch.sparse.FloatTensor is mine
        assert mine.dtype == torch.float32
        assert mine.__module__
        assert mine.layout == native.layout == torch.sparse_coo
    assert inside == [mine]
    assert torch.sparse.FloatTensor is native


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("no memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("spgrad: out of memory: the system has no 8 bytes"),
    ],
)
def test_out_of_memory_is_not_asked_of_torch(monkeypatch, error):
    def fail(*args, **kwargs):
        raise error

    from spgrad.core.slots import TORCH_FUNCTIONS

    monkeypatch.setitem(TORCH_FUNCTIONS, torch.Tensor.relu, fail)
    with spgrad.dropin(), pytest.raises(RuntimeError) as caught:
        made().relu()
    assert caught.value is error


def test_natives_in_lists_are_found():
    A = torch.eye(2).to_sparse_coo()
    with spgrad.dropin():
        both = torch.cat([A, A])
        assert isinstance(both, SparseTensor)
    assert torch.equal(both.to_dense(), torch.eye(2).repeat(2, 1))


@pytest.mark.parametrize("batch", [(), (2,)], ids=["matrix", "batch"])
@pytest.mark.parametrize("target", [torch.sparse_csr, torch.sparse_bsr, torch.sparse_bsc])
@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_bsr, torch.sparse_coo])
def test_conversions_are_those_that_torch_has(layout, target, batch):
    dense = torch.ones(*batch, 4, 6)
    blocksize = (2, 3) if target != torch.sparse_csr else None

    def convert():
        own = (2, 3) if layout == torch.sparse_bsr else None
        try:
            A = dense.to_sparse(layout=layout, blocksize=own)
            return A.to_sparse(layout=target, blocksize=blocksize).layout
        except (RuntimeError, NotImplementedError) as error:
            return RuntimeError if isinstance(error, RuntimeError) else type(error)

    native = convert()
    with spgrad.dropin():
        assert convert() == native


# Methods, texts and changes in place


def ragged():
    ptr, idx = torch.tensor([[0, 1], [0, 2]]), torch.tensor([0, 0, 1])
    return spgrad.sparse_csr_tensor(ptr, idx, torch.arange(1.0, 4), (2, 1, 2))


def test_a_method_that_is_refused():
    A = made()
    with spgrad.dropin(fallback="refuse"), pytest.raises(spgrad.ArgumentKindError, match="csc and"):
        A.row_indices()
    with spgrad.dropin(), pytest.raises(RuntimeError, match="got SparseCsr"):
        A.row_indices()


def test_ragged_batches_are_printed_and_refused_as_ours():
    A = ragged()
    ours = repr(A)
    assert "SparseTensor(shape=(2, 1, 2), nse=3" in ours
    with spgrad.dropin():
        assert repr(A) == ours
        assert repr(made()).startswith("tensor(crow_indices=")
        for method, text in (("exp", r"exp\(0\) is 1"), ("argsort", r"Use spgrad\.argsort")):
            with pytest.raises(spgrad.UnsupportedError, match=text):
                getattr(A, method)()


def test_another_thread_prints_as_ever():
    A, found = made(), []
    ours = repr(A)
    with spgrad.dropin():
        thread = threading.Thread(target=lambda: found.append(repr(A)))
        thread.start()
        thread.join()
        assert repr(A) != ours
    assert found == [ours]


def test_another_thread_refuses_as_ever():
    A, raised = made(), []

    def other():
        with pytest.raises(spgrad.ArgumentKindError, match="csc and bsc have row_indices") as error:
            A.row_indices()
        raised.append(error.value)

    with spgrad.dropin():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert len(raised) == 1


def test_stand_ins_have_the_attributes_of_torchs_classes():
    native = torch.sparse.DoubleTensor
    with spgrad.dropin():
        assert torch.sparse.DoubleTensor is not native
        assert torch.sparse.DoubleTensor.is_sparse is native.is_sparse
        with pytest.raises(AttributeError, match="no_such_thing"):
            _ = torch.sparse.DoubleTensor.no_such_thing


@pytest.mark.parametrize("name", ["add_", "mul_"])
def test_leaves_are_not_changed_in_place(name):
    leaf, B = made().requires_grad_(), made(seed=1)
    before = leaf.detach().to_dense()
    with spgrad.dropin():
        with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
            getattr(leaf, name)(B)
        with torch.no_grad():
            assert getattr(leaf, name)(B) is leaf
    wanted = getattr(before, name)(B.to_dense())
    testing.assert_close(leaf.detach(), wanted)
    assert leaf.is_leaf
    assert leaf.requires_grad


def test_changes_in_place_that_have_no_place():
    A, B = made(), made(seed=1)
    x = torch.full((4, 6), 2.0, dtype=F64)
    before = A.to_dense()
    with spgrad.dropin(fallback="refuse"):
        with pytest.raises(spgrad.StateError, match=r"mul_: the result is csr .* `input` dense"):
            x.mul_(B)
        with pytest.raises(spgrad.StateError, match=r"add_: the result is dense .* `input` csr"):
            A.add_(x)
    assert x.eq(2).all()
    assert torch.equal(A.to_dense(), before)


def test_a_sparse_operand_on_the_left_of_a_dense_one():
    A, x = made(), torch.randn(6, 2, dtype=F64)
    with spgrad.dropin(fallback="refuse"):
        found = x.__rmatmul__(A)
    assert type(found) is torch.Tensor
    testing.assert_close(found, A.to_dense() @ x)
