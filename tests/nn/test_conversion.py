"""convert and to_dense exchange the layers of a module."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from spgrad.nn import SparseLinear, convert, to_dense


def mlp():
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Sequential(nn.Linear(8, 4, bias=False)))


def densities(module):
    return {k: m.density for k, m in module.named_modules() if isinstance(m, SparseLinear)}


@pytest.mark.parametrize(
    ("rule", "found"),
    [
        (0.5, {"0": 0.5, "2.0": 0.5}),
        (None, {}),
        ({}, {}),
        ({"0": 0.25}, {"0": 0.25}),
        ({"2.*": {"n_m": (1, 4)}}, {"2.0": 0.25}),
        ({"0": None, "*": 0.5}, {"2.0": 0.5}),
        ({"density": 0.25, "blocksize": (2, 2)}, {"0": 0.25, "2.0": 0.25}),
        (lambda name, layer: 0.5 if layer.bias is None else None, {"2.0": 0.5}),
        (lambda name, layer: torch.ones(layer.weight.shape) > 0, {"0": 1.0, "2.0": 1.0}),
    ],
)
def test_rules(rule, found):
    module = mlp()
    assert convert(module, rule) is module
    assert densities(module) == found


def test_a_full_density_computes_the_same_and_the_way_back():
    module, x = mlp(), torch.randn(3, 8)
    expected = module(x)
    assert_close(convert(module, 1.0)(x), expected)
    assert_close(to_dense(module)(x), expected)
    assert type(module[0]) is nn.Linear


def test_a_layer_itself():
    assert isinstance(convert(nn.Linear(4, 4), 0.5), SparseLinear)
    assert type(to_dense(SparseLinear(4, 4, density=0.5))) is nn.Linear


def test_a_shared_layer_stays_shared():
    layer = nn.Linear(4, 4)
    module = convert(nn.Sequential(layer, nn.Sequential(layer)), 0.5)
    assert module[0] is module[1][0]
    assert isinstance(module[0], SparseLinear)


def test_a_shared_bias_stays_shared_and_a_single_one_stays_single():
    module = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    module[1].bias = module[0].bias
    shared = module[0].bias
    convert(module, 0.5)
    assert module[0].bias is module[1].bias is shared
    assert module[2].bias is not shared


def test_subclasses_stay():
    module = convert(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 0.5)
    assert densities(module) == {"linear1": 0.5, "linear2": 0.5}
    assert module.train()(torch.randn(1, 3, 8)).shape == (1, 3, 8)


def test_mode_and_frozen_parameters_stay():
    module = mlp().eval()
    module[0].weight.requires_grad_(False)
    convert(module, 0.5)
    assert not module[0].training
    assert not module[0].values.requires_grad
    assert module[0].bias.requires_grad


@pytest.mark.parametrize(
    ("module", "rule", "text"),
    [
        (3, 0.5, "`module` is an int; a torch.nn.Module is accepted"),
        (
            mlp(),
            {"1": 0.5},
            r"`rule` names '1', which fits none of the linear layers \['0', '2.0'\]",
        ),
        (mlp(), "half", "`rule` gives a str for a layer"),
        (mlp(), lambda name, layer: True, "`rule` gives a bool for a layer"),
        (mlp(), 2.0, "`density` is 2.0"),
    ],
)
def test_refusals(module, rule, text):
    with pytest.raises((TypeError, ValueError), match=text):
        convert(module, rule)


def test_the_way_back_refuses_what_is_no_module():
    with pytest.raises(TypeError, match="`module` is a list"):
        to_dense([])


def test_places_without_a_module_stay_empty():
    module = mlp()
    module.register_module("absent", None)
    x = torch.randn(3, 8)
    expected = module[2](module[1](module[0](x)))
    convert(module, {"0": 1.0, "2.0": 1.0})
    assert module.absent is None
    assert densities(module) == {"0": 1.0, "2.0": 1.0}
    assert_close(module[2](module[1](module[0](x))), expected)
    assert to_dense(module).absent is None
