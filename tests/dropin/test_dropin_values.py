"""What drop-in mode hands to torch and back: tensors in lists, tuples, named tuples and dicts."""

import weakref
from typing import NamedTuple

import pytest
import torch

import spgrad
from spgrad import SparseTensor, testing
from spgrad.dropin import native


class Pair(NamedTuple):
    first: object
    second: object


class Run(tuple):
    __slots__ = ()


def test_mapped_finds_tensors_in_containers_of_each_kind():
    a, b = torch.ones(1), torch.zeros(2)
    pair = Pair(a, [b, 3])
    found = native.mapped(lambda t: t.numel(), {"x": (a, pair), "y": Run((b, "w")), "z": None})
    assert found == {"x": (1, Pair(1, [2, 3])), "y": Run((2, "w")), "z": None}
    assert type(found["x"][1]) is Pair
    assert type(found["y"]) is Run
    assert type(found["x"]) is tuple


@pytest.mark.parametrize("x", [torch.Size([2, 3]), "word", 3, None, slice(1, 2), {4}, range(3)])
def test_mapped_leaves_what_holds_no_tensor(x):
    assert native.mapped(lambda t: None, x) is x


def test_mapped_keeps_the_named_results_of_torch():
    found = native.mapped(lambda t: t + 1, torch.max(torch.tensor([[1.0, 3.0]]), 1))
    assert type(found) is torch.return_types.max
    assert (found.values, found.indices) == (4, 2)


def test_natives_in_containers_become_ours():
    x = torch.eye(2).to_sparse_csr()
    found = native.sparsed(Pair([x], {"a": x}))
    assert type(found) is Pair
    assert isinstance(found.first[0], SparseTensor)
    assert isinstance(found.second["a"], SparseTensor)
    assert native.sparsed(torch.Size([1])) == torch.Size([1])


def test_a_call_that_torch_answers_gets_natives_from_containers():
    A = testing.random_sparse((4, 4), torch.sparse_coo)

    def asked(pairs, *, more):
        asked.seen = [type(pairs[0][0]), pairs[0][0].layout, type(pairs), type(more["b"])]
        return Pair(pairs[0][0], {"other": torch.eye(2).to_sparse()})

    result = native.fall_back(asked, ([(A, 1)],), {"more": {"b": A}}, ValueError(), warn=False)
    assert asked.seen == [torch.Tensor, torch.sparse_coo, list, torch.Tensor]
    assert result.first is A
    assert isinstance(result.second["other"], SparseTensor)
    assert spgrad.equal(result.second["other"], spgrad.from_dense(torch.eye(2)))


def test_one_tensor_given_twice_is_one_native():
    A = testing.random_sparse((4, 4), torch.sparse_coo)
    same = native.fall_back(lambda a, b: a is b, (A, A), {}, ValueError(), warn=False)
    assert same is True


def test_changed_names_what_a_call_writes_to():
    a, b = torch.ones(1), torch.ones(1)
    assert native.changed(torch.add, (a, b), {}) == []
    assert native.changed(torch.add, (a, b), {"out": b})[0] is b
    assert [id(t) for t in native.changed(torch.Tensor.add_, (a, b), {"out": [b]})] == [
        id(b),
        id(a),
    ]
    assert native.changed(torch.Tensor.add_, (), {}) == []
    assert native.changed(torch.Tensor.add_, (3,), {}) == []


@pytest.mark.parametrize("fallback", ["torch", "refuse"])
@pytest.mark.parametrize("convert", [lambda A: A.to(torch.complex128), lambda A: A.cdouble()])
def test_gradients_of_real_values_that_become_complex(convert, fallback):
    """Of repeated indices too, which torch's own tensors have no gradient for."""
    g = torch.tensor([[1 + 2j, 3j], [4, 5 - 1j]], dtype=torch.complex128)
    with spgrad.dropin(fallback):
        A = torch.sparse_coo_tensor([[0, 0, 1], [0, 0, 1]], [1.0, 2.0, 3.0], (2, 2))
        A.requires_grad_()
        convert(A).to_dense().backward(g)
    assert A.grad._values().tolist() == [1, 1, 5]


@pytest.mark.parametrize("dim", [None, (), []], ids=str)
@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_a_sum_over_all_dimensions_is_dense(layout, keepdim, dim):
    A = testing.random_sparse((4, 6), layout)
    with spgrad.dropin(fallback="refuse"):
        found = A.sum(dim, keepdim)
    torch.testing.assert_close(found, A.to_dense().sum(dim, keepdim))


SHAPES_IN_PLACE = {
    "t_": (),
    "transpose_": (0, 1),
    "swapaxes_": (0, 1),
    "swapdims_": (0, 1),
    "unsqueeze_": (0,),
    "squeeze_": (0,),
}


@pytest.mark.parametrize("name", SHAPES_IN_PLACE)
def test_changes_of_shape_in_place_are_for_tensors_without_a_leafs_gradient(name):
    A = testing.random_sparse((1, 4), torch.sparse_coo)
    twin, arguments = A.to_dense(), SHAPES_IN_PLACE[name]
    leaf = A.clone().requires_grad_()
    with spgrad.dropin(fallback="refuse"):
        with pytest.raises(spgrad.StateError, match="_: `input` is a leaf that requires"):
            getattr(leaf, name)(*arguments)
        assert leaf.shape == (1, 4)
        watched = weakref.ref(A)
        with pytest.raises(spgrad.StateError, match="weak reference"):
            getattr(A, name)(*arguments)
        assert watched() is A
        del watched
        assert getattr(A, name)(*arguments) is A
    assert torch.equal(A.to_dense(), getattr(twin, name)(*arguments))
