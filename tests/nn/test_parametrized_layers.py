"""torch.nn.utils.parametrize on the values of a layer with a sparse weight."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import weight_norm

import spgrad


def held_by(layer):
    """What `values` is made of."""
    held = layer.get_submodule("parametrizations.values")
    assert isinstance(held, parametrize.ParametrizationList)
    return held


class Positive(nn.Module):
    """Values that are positive whatever the parameter is."""

    def forward(self, free):
        return nn.functional.softplus(free)

    def right_inverse(self, values):
        return values.abs().add(1e-3).expm1().log()


def positive_layer(**kwargs):
    torch.manual_seed(0)
    layer = spgrad.nn.SparseLinear(6, 4, dtype=torch.float64, **(kwargs or {"density": 0.4}))
    parametrize.register_parametrization(layer, "values", Positive())
    return layer


@pytest.mark.parametrize("kwargs", [{"density": 0.4}, {"density": 0.5, "blocksize": (2, 3)}])
def test_the_gradient_arrives_at_what_the_values_are_made_of(kwargs):
    layer = positive_layer(**kwargs)
    x = torch.randn(3, 6, dtype=torch.float64)
    names = [name for name, _ in layer.named_parameters()]
    assert sorted(names) == ["bias", "parametrizations.values.original"]
    free = held_by(layer).original
    assert (layer.values > 0).all()
    torch.testing.assert_close(
        layer(x), nn.functional.linear(x, layer.weight.to_dense(), layer.bias)
    )
    (got,) = torch.autograd.grad(layer(x).square().sum(), free)
    dense = spgrad.from_values(nn.functional.softplus(free), layer.weight).to_dense()
    loss = nn.functional.linear(x, dense, layer.bias).square().sum()
    torch.testing.assert_close(got, torch.autograd.grad(loss, free)[0])


def test_a_step_of_an_optimizer_changes_the_output_and_keeps_the_values_positive():
    layer = positive_layer()
    x = torch.randn(3, 6, dtype=torch.float64)
    optimizer = torch.optim.SGD(layer.parameters(), lr=10)
    before = layer(x).square().sum()
    before.backward()
    optimizer.step()
    assert (layer.values > 0).all()
    assert layer(x).square().sum() != before


def test_a_copy_and_a_state_keep_the_parametrization():
    layer = positive_layer()
    x = torch.randn(3, 6, dtype=torch.float64)
    torch.testing.assert_close(copy.deepcopy(layer)(x), layer(x), rtol=0, atol=0)
    other = positive_layer(pattern=layer.weight)
    other.load_state_dict(layer.state_dict())
    torch.testing.assert_close(other(x), layer(x), rtol=0, atol=0)


def test_functional_call_and_compile_see_it():
    layer = positive_layer()
    x = torch.randn(3, 6, dtype=torch.float64)
    state = {name: p.detach() + 1 for name, p in layer.named_parameters()}
    got = torch.func.functional_call(layer, state, x)
    other = positive_layer(pattern=layer.weight)
    other.load_state_dict(state, strict=False)
    torch.testing.assert_close(got, other(x))
    torch.testing.assert_close(torch.compile(layer, backend="aot_eager")(x), layer(x))


def test_removing_it_leaves_the_values_as_they_are_and_the_layer_as_it_was():
    layer = positive_layer()
    values = layer.values.detach().clone()
    parametrize.remove_parametrizations(layer, "values")
    assert isinstance(layer.values, nn.Parameter)
    torch.testing.assert_close(layer.values.detach(), values, rtol=0, atol=0)
    layer.set_weight(spgrad.eye(4, 6, dtype=torch.float64, layout=torch.sparse_csr))
    assert layer.values.numel() == 4


def test_weight_norm_has_a_direction_and_a_length_of_each_value():
    layer = weight_norm(spgrad.nn.SparseLinear(6, 4, density=0.4), "values")
    assert held_by(layer).original0.shape == layer.values.shape
    layer(torch.ones(6)).sum().backward()
    for parameter in held_by(layer).parameters():
        assert parameter.grad is not None
        assert parameter.grad.shape == layer.values.shape


def test_other_parameters_can_be_parametrized_too():
    layer = spgrad.nn.SparseLinear(6, 4, density=0.4)
    parametrize.register_parametrization(layer, "bias", nn.ReLU())
    assert (layer.bias >= 0).all()


def test_other_elements_are_refused_before_anything_changes():
    layer = positive_layer()
    x = torch.randn(3, 6, dtype=torch.float64)
    before, state = layer(x), copy.deepcopy(layer.state_dict())
    with pytest.raises(spgrad.SpgradError, match="remove_parametrizations"):
        layer.set_weight(spgrad.eye(4, 6, dtype=torch.float64, layout=torch.sparse_csr))
    with pytest.raises(spgrad.SpgradError, match="remove_parametrizations"):
        spgrad.nn.sparsity.move(layer, torch.ones(4, 6) > 0)
    state["col_indices"] = state["col_indices"].flip(0)
    with pytest.raises(RuntimeError, match="remove_parametrizations"):
        layer.load_state_dict(state)
    torch.testing.assert_close(layer(x), before, rtol=0, atol=0)
