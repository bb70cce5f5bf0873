"""SparseTensor as a torch.Tensor: its properties, and operations that keep its pattern."""

import copy

import pytest
import torch
from samples import made

import spgrad
from spgrad import support, testing

layouts = pytest.mark.parametrize("name", support.ALL)


@layouts
def test_answers_to_what_torch_documents(name):
    A = made(name)
    x = spgrad.to_torch(A)
    assert isinstance(A, torch.Tensor)
    assert torch.is_tensor(A)
    for attribute in ("shape", "dtype", "device", "layout", "is_sparse", "is_sparse_csr", "ndim"):
        assert getattr(A, attribute) == getattr(x, attribute), attribute
    for method in ("dim", "size", "numel", "sparse_dim", "dense_dim", "_nnz", "is_floating_point"):
        assert getattr(A, method)() == getattr(x, method)(), method
    assert A.size(1) == 6
    assert len(A) == 4
    assert A.nse == x._nnz()
    assert torch.equal(A.values(), x.values())
    asked = {
        "indices": "coo",
        "crow_indices": "csr bsr",
        "col_indices": "csr bsr",
        "ccol_indices": "csc bsc",
        "row_indices": "csc bsc",
    }
    for method, where in asked.items():
        if name in where.split():
            assert torch.equal(getattr(A, method)(), getattr(x, method)())
        else:
            accepted = where.replace(" ", " and ")
            with pytest.raises(
                spgrad.ArgumentKindError,
                match=rf"^spgrad\.{method}: `A` has layout {name}; {accepted} ha(s|ve) {method}\.",
            ):
                getattr(A, method)()
    if name == "coo":
        assert A.is_coalesced()
    else:
        with pytest.raises(spgrad.ArgumentKindError, match="coo has is_coalesced"):
            A.is_coalesced()


def test_shape_of_batches_and_hybrids():
    A = testing.random_sparse((2, 4, 6))
    assert (A.sparse_dim(), A.dense_dim(), A.dim()) == (2, 0, 3)
    assert A._nnz() == A.nse  # ragged: there is no number per item
    B = spgrad.sparse_coo_tensor([[0, 1], [1, 0]], torch.ones(2, 5), (2, 2, 5))
    assert (B.sparse_dim(), B.dense_dim(), B.dim()) == (2, 1, 3)
    assert B.numel() == 20


@layouts
def test_detach_clone_and_casts_share_the_pattern(name):
    A = made(name).requires_grad_()
    for same in (A.detach(), A.data):
        assert same.pattern is A.pattern
        assert not same.requires_grad
        assert same._vals.data_ptr() == A._vals.data_ptr()
    for clone in (A.clone(), torch.clone(input=A, memory_format=torch.preserve_format)):
        assert clone.pattern is A.pattern
        assert clone.grad_fn is not None
        assert clone._vals.data_ptr() != A._vals.data_ptr()
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.complex128, torch.int64):
        cast = A.detach().to(dtype)
        assert cast.dtype == cast._vals.dtype == dtype
        assert cast.pattern is A.pattern
        assert torch.equal(cast.to_dense(), A.detach().to_dense().to(dtype))
    assert A.float().dtype == torch.float32
    assert A.half().dtype == torch.float16
    assert A.double() is A
    assert A.cpu() is A
    assert A.to("cpu") is A
    meta = A.detach().to("meta")
    assert {meta.device.type, *(i.device.type for i in meta.pattern.indices)} == {"meta"}
    for like in (torch.zeros_like, torch.ones_like, torch.empty_like):
        assert like(A).pattern is A.pattern
        assert like(A, dtype=torch.int32).dtype == torch.int32
        other = like(A, device="meta")
        assert {other.device.type, other.pattern.device.type} == {"meta"}
    assert torch.equal(torch.ones_like(A.detach()).values(), torch.ones_like(A.detach().values()))


@layouts
def test_cast_is_differentiable(name):
    A = made(name).requires_grad_()
    A.float().to_dense().pow(2).sum().backward()
    assert A.grad.dtype == torch.float64
    assert A.grad.pattern is A.pattern
    testing.assert_close(A.grad.float(), 2 * A.detach().to_dense())


@layouts
def test_gradients_accumulate_on_the_pattern(name):
    A = made(name).requires_grad_()
    x = torch.randn(6, 3, dtype=torch.float64)
    for times in (1, 2, 3):
        (A @ x).sum().backward()
        assert A.grad.pattern is A.pattern
        wanted = times * torch.ones(4, 3, dtype=torch.float64) @ x.t()
        testing.assert_close(A.grad, wanted * testing.mask_of(A.pattern))
    A.grad = None
    (A @ x + A @ x).sum().backward()  # two paths to one leaf
    assert A.grad.pattern is A.pattern
    testing.assert_close(A.grad, wanted / 3 * 2 * testing.mask_of(A.pattern))


def test_gradient_of_an_intermediate_tensor():
    A = made().requires_grad_()
    B = A * 3
    B.retain_grad()
    B.to_dense().sum().backward()
    assert B.grad.pattern is A.pattern
    assert torch.equal(A.grad.values(), torch.full_like(A.detach().values(), 3))
    hooked = []
    C = A.detach().requires_grad_()
    C.register_hook(lambda g: hooked.append(g) or g * 2)
    C.to_dense().sum().backward()
    assert isinstance(hooked[0], spgrad.SparseTensor)
    assert torch.equal(C.grad.values(), torch.full_like(A.detach().values(), 2))


@layouts
def test_value_wise_arithmetic(name):
    A, B = made(name), made(name) * -0.5
    a, b = A.to_dense(), B.to_dense()
    two = torch.tensor(2.0, dtype=torch.float64)
    cases = {
        "neg": (-A, -a),
        "add": (A + B, a + b),
        "sub": (A - B, a - b),
        "add_alpha": (torch.add(A, B, alpha=3), a + 3 * b),
        "sub_alpha": (torch.sub(A, B, alpha=3), a - 3 * b),
        "mul": (A * 2, a * 2),
        "mul_left": (2 * A, a * 2),
        "mul_0d": (A * two, a * 2),
        "mul_0d_left": (two * A, a * 2),
        "mul_function": (torch.mul(2, A), a * 2),
        "div": (A / 2, a / 2),
        "div_0d": (A / two, a / 2),
    }
    for case, (got, want) in cases.items():
        assert isinstance(got, spgrad.SparseTensor), case
        assert got.pattern is A.pattern, case
        testing.assert_close(got, want)


@layouts
def test_arithmetic_is_differentiable(name):
    A, B = (made(name).requires_grad_() for _ in range(2))
    B = spgrad.from_values(B.detach()._vals * 2, A.pattern).requires_grad_()
    (3 * A - B / 4 - torch.add(A, B, alpha=5)).to_dense().sum().backward()
    for leaf, factor in ((A, 2.0), (B, -5.25)):
        assert leaf.grad.pattern is A.pattern
        assert torch.equal(leaf.grad._vals, torch.full_like(leaf._vals, factor))


@layouts
def test_in_place_operations_of_optimizers(name):
    A = made(name)
    a, g, pattern, memory = A.to_dense(), made(name).to_dense(), A.pattern, A._vals.data_ptr()
    G = spgrad.from_values(made(name)._vals, pattern)
    steps = [
        (lambda: A.add_(G, alpha=-0.5), lambda: a.add_(g, alpha=-0.5)),
        (lambda: A.sub_(G), lambda: a.sub_(g)),
        (lambda: A.mul_(0.5), lambda: a.mul_(0.5)),
        (lambda: A.div_(4), lambda: a.div_(4)),
        (lambda: A.mul_(torch.tensor(3.0)), lambda: a.mul_(3)),
        (lambda: A.copy_(G), lambda: a.copy_(g)),
        (A.zero_, a.zero_),
    ]
    for step, twin in steps:
        assert step() is A
        twin()
        assert A.pattern is pattern
        assert A._vals.data_ptr() == memory
        assert torch.equal(A.to_dense(), a)
    A += G
    A *= 2
    assert torch.equal(A.to_dense(), 2 * g)


def test_in_place_on_a_leaf_is_refused_as_in_torch():
    A = made().requires_grad_()
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        A.mul_(2)
    with torch.no_grad():
        A.mul_(2)
    assert A.requires_grad


def test_version_counter_catches_changes_of_saved_values():
    A = made().requires_grad_()
    x = torch.randn(6, 2, dtype=torch.float64, requires_grad=True)
    B = A * 1
    y = B @ x
    with torch.no_grad():
        B.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_equal_patterns_need_not_be_one_object():
    A, B = made(), made(index_dtype=torch.int32)
    assert A.pattern is not B.pattern
    assert (A + B).pattern is A.pattern
    A.copy_(B * 2)
    assert torch.equal(A.to_dense(), 2 * B.to_dense())


def test_shared_memory():
    """torch.nn.Module.share_memory and multiprocessing with shared parameters."""
    A = made()
    # torch's own looks for a storage that the wrapper does not have, and the process dies
    assert spgrad.SparseTensor.share_memory_ is not torch.Tensor.share_memory_
    assert not A.is_shared()
    assert A.share_memory_() is A
    assert A.is_shared()
    assert A._vals.is_shared()


def test_values_and_from_values_are_inverse():
    A = made("bsr").requires_grad_()
    vals = spgrad.values(A)
    assert vals.shape == (A.nse, 2, 2)
    assert vals.data_ptr() == A._vals.data_ptr()
    B = spgrad.from_values(vals * 2, A)
    assert B.pattern is A.pattern
    assert B.grad_fn is not None
    B.to_dense().sum().backward()
    assert A.grad.pattern is A.pattern
    assert torch.equal(A.grad._vals, torch.full_like(A._vals, 2))
    batch = spgrad.from_dense(torch.ones(2, 3, 4))
    assert batch.values().shape == (2, 12)
    again = spgrad.from_values(batch.values(), batch.pattern)
    assert torch.equal(again.to_dense(), batch.to_dense())


def test_inference_and_no_grad():
    A = made().requires_grad_()
    x = torch.ones(6, 1, dtype=torch.float64)
    with torch.no_grad():
        y = A @ x
        assert not y.requires_grad
        assert not spgrad.values(A).requires_grad
    with torch.inference_mode():
        assert torch.equal(A @ x, y)
        assert torch.equal((A * 2).to_dense(), 2 * A.detach().to_dense())


def test_tensors_are_freed():
    """No cycle between tensor, pattern and graph: reference counts alone collect them."""
    import gc
    import weakref

    gc.collect()
    gc.disable()
    try:
        A = made().requires_grad_()
        (A @ torch.ones(6, 1, dtype=torch.float64)).sum().backward()
        alive = weakref.ref(A.pattern), weakref.ref(A._vals)
        del A
        assert [r() for r in alive] == [None, None]
    finally:
        gc.enable()


@pytest.mark.parametrize("name", ["to_sparse", "to_sparse_csr", "to_sparse_csc"])
def test_tensors_that_are_made_in_inference_mode(name):
    dense = torch.eye(4)
    dense[0, 2] = 3
    with torch.inference_mode():
        native = getattr(dense, name)()
        assert torch.equal(spgrad.mm(native, dense), dense @ dense)
        native.values().mul_(2) if name != "to_sparse" else native._values().mul_(2)
        A = spgrad.from_torch(native)
        assert torch.equal(A @ dense, 2 * dense @ dense)
        for converted in (A.to(torch.float64), A.double(), A.to(dense.double())):
            assert converted.dtype == torch.float64
            assert torch.equal(converted.to_dense(), 2 * dense.double())
        assert torch.equal(A.cpu().to_dense(), 2 * dense)
        with pytest.raises(spgrad.UnsupportedError, match="cholesky"):
            torch.linalg.cholesky(A)


def test_training_after_inference():
    """What is kept on a pattern in inference mode serves autograd afterwards."""
    A = spgrad.from_dense(torch.eye(4), torch.sparse_bsr, blocksize=(2, 2)).requires_grad_()
    x = torch.ones(4, 2, requires_grad=True)

    def run():
        return (A.to_sparse_csc() @ x).sum() + spgrad.to_dense(A @ A).sum() + A.mT.to_dense().sum()

    with torch.inference_mode():
        run()
    run().backward()
    assert A.grad.pattern is A.pattern
    assert torch.equal(x.grad, torch.ones(4, 2))


def test_ones_like_below_autograd_refuses_repeated_elements():
    """Two ones at one place would be a two."""
    A = spgrad.sparse_coo_tensor([[0, 0]], [1.0, 2.0], (2,))
    with pytest.raises(spgrad.StateError, match=r"^spgrad\.ones_like: `A` is not coalesced"):
        torch.ops.aten.ones_like.default(A)
    assert torch.ones_like(A).to_dense().tolist() == [1.0, 0.0]


@pytest.mark.parametrize("dense", [(), (2,), (2, 2)], ids=str)
def test_any_number_of_repeated_truths_is_true(dense):
    """256 of them are 0 in eight bits."""
    indices = torch.zeros(1, 257, dtype=torch.int64)
    indices[0, -1] = 1
    vals = torch.ones(257, *dense, dtype=torch.bool)
    vals[-1] = False
    A = spgrad.sparse_coo_tensor(indices, vals, (3, *dense))
    at = A.coalesce().values()
    assert at.shape == (2, *dense)
    assert at[0].all()
    assert not at[1].any()
    assert A.to_dense()[0].all()
    assert torch.equal(A.any(0), torch.ones(dense, dtype=torch.bool))


def test_a_deep_copy_has_values_and_a_gradient_of_its_own():
    A = spgrad.eye(3).requires_grad_()
    A.sum().backward()
    B = copy.deepcopy(A)
    with torch.no_grad():
        B.mul_(2)
        B.grad.mul_(3)
    assert (A.values().tolist(), A.grad.values().tolist()) == ([1, 1, 1], [1, 1, 1])
    assert (B.values().tolist(), B.grad.values().tolist()) == ([2, 2, 2], [3, 3, 3])
    assert B.pattern is A.pattern
