"""Layers that share a weight: converted, changed in training, and refused where that can't be."""

import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import spgrad
from spgrad.nn import SparseLinear, convert, to_dense
from spgrad.nn.sparsity import SET, GradualMagnitude, RigL, move

DOUBLE = {"dtype": torch.float64}


def tied(**more):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 8, **DOUBLE), nn.ReLU(), nn.Linear(8, 8, **DOUBLE))
    module[2].weight = module[0].weight
    if more.get("bias"):
        module[2].bias = module[0].bias
    return module


def x():
    return torch.randn(5, 8, generator=torch.Generator().manual_seed(3), **DOUBLE)


@pytest.mark.parametrize("bias", [False, True])
def test_layers_share_the_new_weight(bias):
    module = convert(tied(bias=bias), 0.5)
    assert module[0].values is module[2].values
    assert (module[0].bias is module[2].bias) == bias
    dense = to_dense(convert(tied(bias=bias), 0.5))
    assert dense[0].weight is dense[2].weight
    assert_close(dense(x()), module(x()))
    dense(x()).square().sum().backward()
    module(x()).square().sum().backward()
    wanted = spgrad.sparse_mask(dense[0].weight.grad, module[0].weight).values().detach()
    assert_close(module[0].values.grad, wanted)


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(8, 4)
        self.between = nn.Linear(4, 4)
        self.head = nn.Linear(4, 8)
        self.head.weight = self.embed.weight


@pytest.mark.parametrize(
    ("make", "rule", "text"),
    [
        (Tokens, 0.5, "`head` shares its weight with `embed`, which stays as it is"),
        (tied, {"0": 0.5, "2": 0.25}, "`2` shares its weight with `0`, which differs"),
        (tied, {"0": 0.5}, "`0` shares its weight with `2`, which stays as it is"),
    ],
)
def test_what_can_not_be_shared_is_refused_and_the_module_stays(make, rule, text):
    module = make()
    before = dict(module.named_parameters())
    with pytest.raises(spgrad.SpgradError, match=text):
        convert(module, rule)
    after = dict(module.named_parameters())
    assert before.keys() == after.keys()
    assert all(before[name] is after[name] for name in before)


def test_a_rule_leaves_out_what_is_shared():
    module = convert(Tokens(), {"head": None, "*": 0.5})
    assert module.head.weight is module.embed.weight
    assert isinstance(module.between, SparseLinear)


CHANGES = {
    "SET": lambda m, o: SET(m, o, fraction=0.5),
    "RigL": lambda m, o: RigL(m, o, fraction=0.5, end=10, every=1),
    "density": lambda m, o: GradualMagnitude(m, o, density=0.25, end=1, begin=1),
    "n of m": lambda m, o: GradualMagnitude(m, o, n_m=(1, 4), end=1, begin=1),
}


@pytest.mark.parametrize("name", CHANGES)
def test_shared_values_change_once_and_stay_on_the_same_elements(name):
    module = convert(tied(), 1.0 if name == "n of m" else 0.5)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.0)
    change = CHANGES[name](module, optimizer)
    module(x()).square().sum().backward()
    optimizer.step()
    old = module[0].weight.to_dense().detach()
    change.step()
    new = module[0].weight.to_dense().detach()
    assert_close(module[2].weight.to_dense().detach(), new)
    assert module[0].values is module[2].values
    assert_close(new, old * (new != 0))
    assert bool((new != old).any())


def test_rigl_sums_the_gradients_of_layers_that_share_values():
    module = convert(tied(), 0.5)
    twin = to_dense(convert(tied(), 0.5))
    change = RigL(module, fraction=1.0, end=10, every=1)
    for each in (module, twin):
        each(x()).square().sum().backward()
    n = int((1 + math.cos(math.pi / 10)) / 2 * 32)
    kept = module[0].values.detach().abs().topk(32 - n).indices
    held = torch.zeros(32, dtype=torch.bool).index_fill_(0, kept, True)
    held = spgrad.from_values(held, module[0].pattern).to_dense()
    score = twin[0].weight.grad.abs().masked_fill(held, torch.inf)
    wanted = torch.zeros(64, dtype=torch.bool)
    wanted[score.flatten().topk(32).indices] = True
    change.step()
    ones = torch.ones(32, dtype=torch.bool)
    found = spgrad.from_values(ones, module[2].pattern).to_dense()
    assert torch.equal(found.flatten(), wanted)


def test_values_that_are_shared_on_other_elements_are_refused():
    module = nn.Sequential(*(SparseLinear(8, 8, pattern=torch.eye(8).roll(i) > 0) for i in (0, 1)))
    module[1].values = module[0].values
    with pytest.raises(spgrad.SpgradError, match=r"spgrad\.nn\.sparsity\.SET: `module` has layers"):
        SET(module)


@pytest.mark.parametrize("blocks", [None, (2, 4)])
def test_states_with_sums_of_blocks_move(blocks):
    """Adafactor keeps sums over rows and over columns of a block."""
    layer = SparseLinear(8, 8, density=0.75, blocksize=blocks, **DOUBLE)
    optimizer = torch.optim.Adafactor(layer.parameters())
    layer(x()).square().sum().backward()
    optimizer.step()
    pattern, states = layer.pattern, optimizer.state[layer.values]
    names = ("row_var", "col_var") if blocks else ("variance",)

    def dense(pattern):
        shape = layer.values.shape
        return [
            spgrad.from_values(states[name].expand(shape).clone(), pattern).to_dense()
            for name in names
        ]

    before = dense(pattern)
    move(layer, torch.eye(8) > 0, optimizer)
    assert len(layer.values) != pattern.nse
    there = spgrad.from_values(torch.ones_like(layer.values.detach()), layer.pattern).to_dense()
    for found, old in zip(dense(layer.pattern), before, strict=True):
        assert_close(found, old * there)
    layer.values.grad = None
    layer(x()).square().sum().backward()
    optimizer.step()


def test_rigl_takes_inputs_by_name_and_refuses_sparse_ones():
    layer = SparseLinear(8, 8, density=0.5, bias=False, **DOUBLE)
    change = RigL(layer, fraction=0.5, end=10, every=1)
    layer(input=x()).square().sum().backward()
    before = layer.pattern
    change.step()
    assert layer.pattern is not before
    with pytest.raises(spgrad.SpgradError, match=r"RigL: `module` .* whose input is sparse"):
        layer(spgrad.from_dense(x()))


def test_states_that_join_all_parameters_are_refused():
    layer = SparseLinear(8, 8, density=0.5)
    optimizer = torch.optim.LBFGS(layer.parameters())
    for call in (lambda: SET(layer, optimizer), lambda: move(layer, torch.eye(8) > 0, optimizer)):
        with pytest.raises(spgrad.SpgradError, match="`optimizer` is LBFGS"):
            call()
