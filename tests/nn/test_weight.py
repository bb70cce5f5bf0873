"""The state of a layer with a sparse weight: saved, loaded with other elements, moved, damaged."""

import io

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import spgrad
from spgrad.nn import SparseLinear

X = torch.randn(3, 8, generator=torch.Generator().manual_seed(1))
BLOCKS = {"blocksize": (2, 4)}


def made(density, **more):
    return SparseLinear(8, 6, density=density, **more)


@pytest.mark.parametrize("more", [{}, BLOCKS], ids=["elements", "blocks"])
@pytest.mark.parametrize("density", [0.0, 0.25, 0.5, 1.0])
def test_a_state_with_other_elements(density, more):
    layer, other = made(0.5, **more), made(density, **more)
    parameter = layer.values
    old = layer(X).sum()  # its graph lives on while the elements change
    old.backward()
    file = io.BytesIO()
    torch.save(other.state_dict(), file)
    file.seek(0)
    layer.load_state_dict(torch.load(file))
    assert layer.values is parameter
    assert_close(layer(X), other(X))
    layer.values.grad = None
    layer(X).sum().backward()
    other(X).sum().backward()
    assert_close(layer.values.grad, other.values.grad)


def test_the_tensors_of_the_state_can_become_those_of_the_layer():
    layer, other = made(0.5), made(0.25)
    layer.load_state_dict(other.state_dict(), assign=True)
    assert_close(layer(X), other(X))


def test_values_alone_are_loaded_where_the_state_is_not_strict():
    layer = made(0.5)
    layer.load_state_dict({"values": torch.zeros(24)}, strict=False)
    assert not layer.values.any()
    with pytest.raises(RuntimeError, match="size mismatch"):
        layer.load_state_dict({"values": torch.zeros(5)}, strict=False)


def damaged(**changes):
    state = made(0.5).state_dict()
    for name, change in changes.items():
        state[name] = change(state[name].clone())
    return {k: v for k, v in state.items() if v is not None}


def put(at, value):
    def change(t):
        t[at] = value
        return t

    return change


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (damaged(col_indices=put(0, 8)), r"`col_indices` has 8 at position 0; indices in \[0, 8\)"),
        (damaged(col_indices=put(3, -1)), "`col_indices` has -1"),
        (damaged(crow_indices=put(-1, 23)), "`crow_indices` ends with 23"),
        (damaged(crow_indices=put(2, 10**12)), "`crow_indices` decreases"),
        (damaged(crow_indices=lambda t: t[:-1]), "`size` is"),
        (damaged(col_indices=lambda t: t[:-1]), "24 is accepted|has shape|ends with"),
        (damaged(col_indices=lambda t: t.float()), "`col_indices` has dtype float32"),
        (damaged(values=lambda t: t[:-1]), r"`values` has shape \(23,\)"),
        (damaged(col_indices=lambda t: None), "the state has some of"),
        (damaged(values=lambda t: None), "the state has some of"),
    ],
)
def test_bad_indices_never_reach_a_kernel(state, text):
    layer = made(0.5)
    before = layer(X)
    with pytest.raises(RuntimeError, match=text):
        nn.ModuleList([layer]).load_state_dict({f"0.{k}": v for k, v in state.items()})
    assert_close(layer(X), before)


def test_indices_that_change_in_place_are_checked():
    layer = made(0.5)
    layer.col_indices[0] = 100
    with pytest.raises(ValueError, match="`col_indices` has 100 at position 0"):
        layer(X)


def test_indices_of_which_some_are_cut_off_are_checked():
    layer = SparseLinear(4, 3, pattern=torch.eye(3, 4) > 0)
    layer.col_indices.resize_(2)
    with pytest.raises(ValueError, match=r"`crow_indices` ends with 3; the number of .* 2, is"):
        layer(torch.ones(4))


def test_memory_without_indices_is_refused_until_a_state_fills_it(poisoned):
    layer = made(0.25)
    state = {name: t.clone() for name, t in layer.state_dict().items()}
    expected = layer(X)
    layer.to_empty(device="cpu")
    for _ in range(2):
        with pytest.raises(ValueError, match="`crow_indices` starts with 9223372036854775807; 0"):
            layer(X)
    layer.load_state_dict(state)
    assert_close(layer(X), expected)


def test_a_buffer_that_is_exchanged_is_seen():
    layer = SparseLinear(8, 6, pattern=torch.eye(6, 8) > 0, bias=False)
    layer.col_indices = layer.col_indices + 2
    assert_close(layer.weight.to_dense().sum(1), layer.values)
    assert torch.equal(layer.weight.to_dense() != 0, torch.eye(6, 8).roll(2, 1) != 0)


def test_a_layer_without_memory_is_filled_by_a_state():
    other = made(0.25)
    layer = made(0.25, device="meta")
    assert layer.values.is_meta
    assert layer.crow_indices.is_meta
    layer.to_empty(device="cpu")
    layer.load_state_dict(other.state_dict())
    assert_close(layer(X), other(X))
    layer = made(0.5, device="meta")
    layer.load_state_dict(other.state_dict(), assign=True)
    assert_close(layer(X), other(X))


def test_dtype_and_memory_change():
    layer = made(0.25)
    expected = layer(X)
    assert_close(layer.double()(X.double()).float(), expected)
    assert layer.crow_indices.dtype == torch.int64
    assert layer.half()(X.half()).dtype == torch.float16


def test_averages_of_parameters():
    layer = made(0.25)
    averaged = torch.optim.swa_utils.AveragedModel(layer, use_buffers=True)
    averaged.update_parameters(layer)
    assert_close(averaged(X), layer(X))


@pytest.mark.parametrize("decay", [0.9, 0.9999])
def test_averages_of_indices_that_torch_truncates_are_refused(decay):
    """11 x 0.9999 + 11 x 0.0001 is less than 11 in float32, and torch cuts off the fraction."""
    layer = SparseLinear(64, 48, density=0.5)
    average = torch.optim.swa_utils.get_ema_multi_avg_fn(decay)
    averaged = torch.optim.swa_utils.AveragedModel(layer, multi_avg_fn=average, use_buffers=True)
    for _ in range(3):
        averaged.update_parameters(layer)
    assert not torch.equal(averaged.module.col_indices, layer.col_indices)
    with pytest.raises(ValueError, match=r"are averages.*Leave out use_buffers=True"):
        averaged(torch.ones(2, 64))
    with torch.no_grad():  # what a program that goes on copies is taken
        for mine, theirs in zip(averaged.module.buffers(), layer.buffers(), strict=True):
            mine.copy_(theirs)
    assert_close(averaged(torch.ones(2, 64)), layer(torch.ones(2, 64)))


def test_indices_of_another_layer_may_be_copied():
    for _ in range(20):
        layer, other = made(0.5), made(0.5)
        pairs = zip(layer.state_dict().values(), other.state_dict().values(), strict=True)
        for mine, theirs in pairs:
            mine.copy_(theirs)
        assert_close(layer(X), other(X))


def test_indices_of_another_number_of_elements_are_no_averages():
    layer, other = made(0.5), made(0.25)
    before = layer(X)
    for name, buffer in other.named_buffers():
        setattr(layer, name, buffer)
    layer.values.data, layer.bias.data = other.values.data, other.bias.data
    assert_close(layer(X), other(X))
    assert not torch.equal(layer(X), before)


def test_a_single_element_may_move_to_the_left():
    layer, other = (SparseLinear(9, 1, pattern=torch.arange(9)[None] == at) for at in (7, 6))
    layer.load_state_dict(other.state_dict())
    assert layer.col_indices.tolist() == [6]


def test_a_weight_of_another_kind_is_refused():
    layer = made(0.5)
    with pytest.raises(ValueError, match=r"`weight` has shape \(8, 6\)"):
        layer.set_weight(made(0.5).weight.mT.detach())
    with pytest.raises(ValueError, match="`weight` has shape"):
        layer.set_weight(spgrad.from_dense(torch.ones(6, 8), torch.sparse_coo))


def test_the_pattern_is_made_once_in_inference_mode_too():
    layer = SparseLinear(6, 4, density=0.5)
    assert layer.pattern is layer.pattern
    with torch.inference_mode():
        layer = SparseLinear(6, 4, density=0.5)
        x = torch.ones(2, 6)
        assert torch.equal(layer(x), layer(x))
        assert layer.pattern is layer.pattern


@pytest.mark.parametrize("more", [{}, BLOCKS], ids=["elements", "blocks"])
def test_indices_that_a_layer_is_given_stay_as_they_are(more):
    """Loading a state writes to the buffers in place, which no other tensor may notice."""
    torch.manual_seed(0)
    layer, source, other = (made(0.5, **more) for _ in range(3))
    arrays = source.crow_indices.clone(), source.col_indices.clone(), source.values.detach().clone()
    make = spgrad.sparse_bsr_tensor if more else spgrad.sparse_csr_tensor
    given, wanted = make(*arrays, (6, 8)), [t.clone() for t in arrays]
    layer.set_weight(given)
    assert_close(layer(X), X @ given.to_dense().T + layer.bias)
    for name in ("crow_indices", "col_indices"):
        getattr(layer, name).copy_(getattr(other, name))
    with torch.no_grad():
        layer.values.zero_()
    found = given.crow_indices(), given.col_indices(), given.values()
    for ours, before in zip(found, wanted, strict=True):
        assert torch.equal(ours, before)
    assert torch.equal(layer.pattern.indices[1].long(), other.col_indices)


@pytest.mark.parametrize("name", ["values", "crow_indices", "col_indices"])
@pytest.mark.parametrize("stranger", ["abc", 3, [1.0], torch.eye(3).to_sparse()])
def test_a_state_of_other_objects_is_refused_by_name(stranger, name):
    layer = SparseLinear(6, 4, density=0.5)
    state = {**layer.state_dict(), name: stranger}
    with pytest.raises(RuntimeError, match=rf"`the layer`: .*`{name}` is .* a dense tensor is acc"):
        layer.load_state_dict(state)
