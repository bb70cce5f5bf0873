"""Drop-in mode: unchanged torch.sparse code gets SparseTensors; torch is itself afterwards."""

import copy
import io
import pickle
import threading

import pytest
import torch
from torch.overrides import TorchFunctionMode

import spgrad
from spgrad import SparseTensor

LEGACY = ("FloatTensor", "DoubleTensor", "LongTensor")


def dense(m=4, n=5, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(m, n, generator=generator, dtype=torch.float64)
    return torch.where(x < 0.5, x, 0).to(dtype)


def constructors():
    x = dense(4, 4)
    i, v = torch.tensor([[0, 1], [1, 2]]), torch.tensor([1.0, 2.0])
    ptr, idx = torch.tensor([0, 1, 2]), torch.tensor([0, 1])
    return [
        lambda: torch.sparse_coo_tensor(i, v, (3, 3)),
        lambda: torch.sparse_coo_tensor(i.int(), v),
        lambda: torch.sparse_coo_tensor((2, 3)),
        lambda: torch.sparse_coo_tensor([[0]], 3.0, (2,)),
        lambda: torch.sparse_csr_tensor(ptr, idx, v),
        lambda: torch.sparse_csc_tensor(ptr, idx, v, (2, 2)),
        lambda: torch.sparse_bsr_tensor(ptr, idx, torch.ones(2, 2, 2)),
        lambda: torch.sparse_bsc_tensor(ptr, idx, torch.ones(2, 2, 2)),
        lambda: torch.sparse_compressed_tensor(ptr, idx, v, layout=torch.sparse_csr),
        lambda: torch.sparse.FloatTensor(i, v, torch.Size([3, 3])),
        lambda: torch.sparse.DoubleTensor(2, 3),
        x.to_sparse,
        lambda: x.to_sparse(1),
        lambda: x.to_sparse(layout=torch.sparse_bsr, blocksize=(2, 2)),
        x.to_sparse_coo,
        x.to_sparse_csr,
        x.to_sparse_csc,
        lambda: x.to_sparse_bsr((2, 2)),
        lambda: x.to_sparse_bsc((2, 1)),
        lambda: torch.tensor(3.0).to_sparse(),
        lambda: torch.sparse.spdiags(torch.ones(1, 3), torch.tensor([0]), (3, 3)),
        lambda: torch.zeros(2, 3, layout=torch.sparse_csr),
        lambda: torch.empty(2, 3, layout=torch.sparse_coo),
        lambda: torch.zeros_like(x, layout=torch.sparse_coo),
        lambda: x.sparse_mask(torch.eye(4).to_sparse()),
    ]


MADE_BY_TORCH = {3, 19, 23}  # one value without a dimension, no dimension, `like` a dense tensor


def native_of(x):
    return spgrad.to_torch(x) if isinstance(x, SparseTensor) else x


@pytest.mark.parametrize("fallback", ["torch", "refuse"])
@pytest.mark.parametrize("at", range(len(constructors())))
def test_what_torch_makes_sparse_is_a_sparse_tensor_with_the_same_contents(at, fallback):
    make = constructors()[at]
    expected = make()
    if fallback == "refuse" and at in MADE_BY_TORCH:
        with spgrad.dropin(fallback), pytest.raises(spgrad.SpgradError):
            make()
        return
    with spgrad.dropin(fallback):
        made = make()
    assert type(made) is SparseTensor
    assert type(expected) is torch.Tensor
    assert made.layout == expected.layout
    assert made.dtype == expected.dtype
    torch.testing.assert_close(native_of(made).to_dense(), expected.to_dense())
    if expected.layout == torch.sparse_coo:
        assert made._indices().dtype == torch.int64
        assert made.is_coalesced() >= expected.is_coalesced()


def test_outside_of_the_block_torch_is_as_it_was():
    before = {name: getattr(torch.sparse, name) for name in LEGACY}
    with spgrad.dropin():
        assert torch.sparse.FloatTensor is not before["FloatTensor"]
    assert {name: getattr(torch.sparse, name) for name in LEGACY} == before
    assert type(torch.eye(2).to_sparse()) is torch.Tensor
    with pytest.raises(ZeroDivisionError), spgrad.dropin():
        raise ZeroDivisionError
    assert type(torch.eye(2).to_sparse_csr()) is torch.Tensor
    assert torch.overrides._get_current_function_mode() is None


def test_blocks_nest_and_decorate_and_the_switch_stays_on():
    @spgrad.dropin()
    def make():
        return torch.eye(2).to_sparse()

    with spgrad.dropin():
        with spgrad.dropin(fallback="refuse"):
            A = torch.eye(2).to_sparse_csr()
            with pytest.raises(spgrad.UnsupportedError):
                A.sum_to_size(1)
            assert torch.zeros_like(A)._nnz() == 0  # means here what it means in torch
        assert type(make()) is SparseTensor
        with pytest.raises(RuntimeError, match="stride") as found:
            A.stride()
        assert not isinstance(found.value, spgrad.SpgradError)
    assert type(make()) is SparseTensor
    assert type(torch.eye(2).to_sparse()) is torch.Tensor
    switch = spgrad.dropin()
    switch.enable()
    assert type(torch.eye(2).to_sparse()) is SparseTensor
    switch.disable()
    assert type(torch.eye(2).to_sparse()) is torch.Tensor
    with pytest.raises(spgrad.StateError, match="not on"):
        switch.disable()
    with pytest.raises(spgrad.StateError, match="not on"):
        switch.__exit__(None, None, None)
    with pytest.raises(ValueError, match="`fallback` is 'maybe'"):
        spgrad.dropin(fallback="maybe")


def test_modes_are_left_in_the_opposite_order():
    switch, other = spgrad.dropin(), TorchFunctionMode()
    switch.enable()
    with other, pytest.raises(spgrad.StateError, match="opposite order"):
        switch.disable()
    switch.disable()


def test_the_mode_holds_in_its_own_thread():
    found = []

    def work():
        i, v = torch.tensor([[0], [0]]), torch.ones(1)
        found.extend([torch.eye(2).to_sparse(), torch.sparse.FloatTensor(i, v)])

    with spgrad.dropin():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert type(torch.eye(2).to_sparse()) is SparseTensor
    assert [type(x) for x in found] == [torch.Tensor, torch.Tensor]


def test_early_classes_of_torch_know_their_instances():
    with spgrad.dropin():
        A = torch.eye(2).to_sparse()
        assert isinstance(A, torch.sparse.FloatTensor)
        assert not isinstance(A, torch.sparse.DoubleTensor)
        assert not isinstance(A.to_sparse_csr(), torch.sparse.FloatTensor)
        assert not isinstance(torch.ones(2), torch.sparse.FloatTensor)
        assert A.type() == "torch.sparse.FloatTensor"


def train(steps=5):
    """Plain torch.sparse code: a graph layer with a sparse weight."""
    torch.manual_seed(0)
    A = dense(6, 6, seed=1, dtype=torch.float32).to_sparse_coo()
    x, y = torch.randn(6, 3), torch.randn(6, 2)
    weight = torch.randn(2, 3).relu().to_sparse_csr().requires_grad_()
    bias = torch.zeros(2, requires_grad=True)
    optimizer = torch.optim.SGD([weight, bias], lr=0.1)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = ((torch.sparse.mm(A, x) @ weight.t() + bias - y) ** 2).mean()
        loss.backward()
        losses.append(float(loss.detach()))
        optimizer.step()
    return losses, weight


def test_a_training_loop_of_plain_code_gets_sparse_gradients():
    with spgrad.dropin():
        losses, weight = train()
    assert losses[-1] < losses[0]
    assert type(weight) is SparseTensor
    assert weight.grad.pattern is weight.pattern


def test_native_operands_give_sparse_tensors_and_keep_their_attributes():
    A = dense().to_sparse_csr().requires_grad_()
    x = torch.ones(5, 2, dtype=torch.float64)
    with spgrad.dropin():
        assert A.layout == torch.sparse_csr
        assert type(A * 2) is SparseTensor
        assert type(torch.cat([A.detach(), A.detach()])) is SparseTensor
        (A @ x).sum().backward()
    assert type(A.grad) is torch.Tensor
    assert A.grad._nnz() == A._nnz()
    B = dense().to_sparse_coo()
    with spgrad.dropin():
        assert B.mul_(2) is B
        assert type(spgrad.to_torch(spgrad.from_torch(B))) is torch.Tensor
    torch.testing.assert_close(B.to_dense(), 2 * dense())


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
@pytest.mark.parametrize("name", ["zero_", "detach_", "requires_grad_"])
def test_native_tensors_that_change_in_place_stay_themselves(name, layout):
    A = dense().to_sparse(layout=layout)
    with spgrad.dropin():
        assert getattr(A, name)() is A


def test_what_spgrad_refuses_torch_answers_with_a_gradient_on_the_pattern():
    with spgrad.dropin():
        A = dense().to_sparse_coo().requires_grad_()
        y = torch.Tensor.new_empty(A, (2, 2))
        assert type(y) is SparseTensor
        (A.sum_to_size(1) * 3).sum().backward()
        assert A.grad.pattern is A.pattern
        torch.testing.assert_close(A.grad.values(), torch.full_like(A.grad.values(), 3))


def test_the_fallback_warns_where_asked():
    with spgrad.dropin(fallback="warn"):
        A = dense().to_sparse_coo()
        with pytest.warns(UserWarning, match="torch computes _sparse_broadcast_to") as told:
            torch._sparse_broadcast_to(A, (2, 4, 5))
    assert [warning.filename for warning in told] == [__file__]


def test_where_torch_refuses_too_its_exception_comes_from_ours():
    with spgrad.dropin():
        A = dense().to_sparse_csr()
        with pytest.raises(RuntimeError, match="cannot be multiplied") as found:
            A @ torch.ones(4, 2, dtype=torch.float64)
        assert type(found.value) is RuntimeError
        assert isinstance(found.value.__cause__, spgrad.SpgradError)
        with pytest.raises(IndexError, match="Dimension out of range"):
            torch.sparse.softmax(A.to_sparse_coo(), 7)
        uncoalesced = torch.sparse_coo_tensor([[0, 0]], [1.0, 2.0], (2,))
        with pytest.raises(RuntimeError, match="Cannot get indices on an uncoalesced tensor"):
            uncoalesced.indices()


def test_bad_indices_are_refused_in_the_words_of_both():
    with spgrad.dropin():
        with pytest.raises(RuntimeError, match="size is inconsistent with indices") as found:
            torch.sparse_coo_tensor([[0, 9], [0, 1]], [1.0, 2.0], (3, 3))
        assert isinstance(found.value, spgrad.ArgumentValueError)
        with pytest.raises(RuntimeError, match="col_indices < ncols"):
            torch.sparse_csr_tensor([0, 1, 2], [0, 9], [1.0, 2.0], (2, 2))
        bad = torch.sparse_csr_tensor([0, 1, 2], [0, 9], [1.0, 2.0], (2, 2), check_invariants=False)
        assert bad.col_indices().tolist() == [0, 9]
        with torch.sparse.check_sparse_tensor_invariants():
            assert torch.sparse.check_sparse_tensor_invariants.is_enabled()


def test_refusals_of_the_table_stay():
    with spgrad.dropin():
        A = dense().to_sparse_coo()
        with pytest.raises(spgrad.UnsupportedError, match=r"spgrad\.exp"):
            torch.exp(A)
        with pytest.raises(spgrad.UnsupportedError, match="every element would be specified"):
            torch.ones(2, 2, layout=torch.sparse_csr)


def test_in_place_and_out_forms_take_other_elements():
    with spgrad.dropin():
        A = torch.eye(3).to_sparse()
        kept = A
        A += torch.ones(3, 3).to_sparse()
        assert kept is A
        torch.testing.assert_close(A.to_dense(), torch.eye(3) + 1)
        out = torch.zeros_like(A)
        assert out._nnz() == 0
        assert torch.mul(A, 3, out=out) is out
        torch.testing.assert_close(out.to_dense(), 3 * (torch.eye(3) + 1))
        y = torch.empty(3, 2)
        torch.mm(A, torch.ones(3, 2), out=y)
        torch.testing.assert_close(y, A.to_dense() @ torch.ones(3, 2))
        with pytest.raises(RuntimeError, match="can't be cast"):
            torch.sin(A, out=torch.zeros(3, 3, dtype=torch.int64).to_sparse())
        A.resize_as_(torch.ones(4, 4).to_sparse())
        assert A.shape == (4, 4)


def test_it_prints_as_torch_prints_its_own():
    expected = repr(dense().to_sparse_csr())
    with spgrad.dropin():
        A = dense().to_sparse_csr()
        assert repr(A) == str(A) == expected
        assert repr(A.requires_grad_()).endswith("requires_grad=True)")
        assert "grad_fn=<" in repr(A * 2)
    assert repr(A).startswith("SparseTensor(")


def test_files_copies_and_comparisons():
    buffer = io.BytesIO()
    torch.save(dense().to_sparse_coo(), buffer)
    with spgrad.dropin():
        A = dense().to_sparse_coo()
        for B in (copy.deepcopy(A), pickle.loads(pickle.dumps(A))):
            assert type(B) is SparseTensor
            assert torch.equal(A, B)
        buffer.seek(0)
        loaded = torch.load(buffer)
        assert type(loaded) is SparseTensor
        torch.testing.assert_close(A, loaded)
        torch.testing.assert_close(A, dense().to_sparse_coo())
        with pytest.raises(AssertionError):
            torch.testing.assert_close(A, 2 * A)


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr], ids=["coo", "csr"])
def test_gradcheck_of_torch_on_sparse_tensors(layout):
    with spgrad.dropin():
        A = dense(3, 3).to_sparse(layout=layout).requires_grad_()
        x = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(torch.sparse.mm, (A, x), masked=True)
        assert torch.autograd.gradcheck(lambda a: (a * 2).to_dense(), (A,), masked=True)


def test_the_callers_tensors_may_change_shape_afterwards():
    i, v = torch.tensor([[0], [1]]), torch.tensor([[3.0, 4.0, 5.0]])
    with spgrad.dropin():
        A = torch.sparse_coo_tensor(i, v, (1, 2, 3))
        i.resize_(2, 3)
        v.transpose_(0, 1)
        assert A._indices().shape == (2, 1)
        assert A._values().shape == (1, 3)
        v[0, 0] = 7
        assert float(A._values()[0, 0]) == 7


def embed(make_optimizer):
    torch.manual_seed(0)
    layer = torch.nn.Embedding(10, 3, sparse=True)
    optimizer = make_optimizer(layer.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        layer(torch.tensor([1, 2, 2, 7])).pow(2).sum().backward()
        optimizer.step()
    return layer.weight.detach().clone()


@pytest.mark.parametrize("name", ["SGD", "SparseAdam", "Adagrad"])
def test_optimizers_take_the_native_gradients_of_an_embedding(name):
    expected = embed(getattr(torch.optim, name))
    with spgrad.dropin():
        torch.testing.assert_close(embed(getattr(torch.optim, name)), expected)


def test_derivatives_through_torch_reach_sparse_and_native_leaves():
    N = dense().to_sparse_coo().requires_grad_()
    with spgrad.dropin():
        A = dense().to_sparse_coo().requires_grad_()
        (g,) = torch.autograd.grad((A.sum_to_size(1) ** 2).sum(), A)
        assert g.pattern is A.pattern
        torch.autograd.backward([(N * 2).to_dense().sum()])
    assert type(N.grad) is torch.Tensor
    torch.testing.assert_close(N.grad.coalesce().values(), torch.full((N._nnz(),), 2.0).double())


def test_coordinates_are_int64_as_those_of_torch():
    with spgrad.dropin():
        A = spgrad.sparse_csr_tensor(*(torch.tensor(i).int() for i in ([0, 1], [0])), torch.ones(1))
        assert A.to_sparse()._indices().dtype == torch.int64
        assert A.to_sparse().to_sparse_csr().crow_indices().dtype == torch.int64
        assert A.to_sparse_csc().row_indices().dtype == torch.int32
