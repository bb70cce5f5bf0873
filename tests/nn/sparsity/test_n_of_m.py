"""Pruning to n of m elements in a row: which of them go, and that training goes on."""

import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import spgrad
from spgrad.nn import SparseLinear, convert
from spgrad.nn.sparsity import SET, GradualMagnitude, RigL, move

DOUBLE = {"dtype": torch.float64}


def mlp(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(16, 8, **DOUBLE), nn.ReLU(), nn.Linear(8, 4, **DOUBLE))


def groups(layer, m):
    """Which elements each group of m has, (groups, m)."""
    ones = torch.ones_like(layer.values.detach())
    return spgrad.from_values(ones, layer.pattern).to_dense().reshape(-1, m) != 0


def largest(dense, n, m):
    """A matrix with the n largest of each m elements in a row, as torch's sparsifiers keep them."""
    score = dense.abs().reshape(-1, m)
    kept = torch.zeros_like(score).scatter_(1, score.topk(n, 1).indices, 1)
    return dense * kept.reshape(dense.shape)


def trained(module, optimizer, features=16):
    optimizer.zero_grad()
    module(torch.randn(5, features, **DOUBLE)).square().sum().backward()
    optimizer.step()


@pytest.mark.parametrize("n_m", [(2, 4), (1, 4), (1, 8), (4, 4)])
def test_one_change_keeps_the_largest_of_each_group(n_m):
    dense = mlp()
    module = convert(copy.deepcopy(dense), 1.0)
    GradualMagnitude(module, n_m=n_m, end=1, begin=1).step()
    for at in (0, 2):
        assert_close(module[at].to_dense().weight, nn.Parameter(largest(dense[at].weight, *n_m)))
    assert module[0].density == n_m[0] / n_m[1]


@pytest.mark.parametrize("way", ["density", "n_m"])
def test_n_falls_in_whole_steps(way):
    layer = SparseLinear(16, 8, n_m=(8, 8))
    given = {"density": 0.25} if way == "density" else {"n_m": (2, 8)}
    prune = GradualMagnitude(layer, end=10, **given)
    for step in range(1, 11):
        before = layer.weight.to_dense().detach()
        prune.step()
        n = round(2 + 6 * (1 - step / 10) ** 3)
        assert layer.n_m == (n, 8)
        assert_close(layer.weight.to_dense().detach(), largest(before, n, 8))
    assert n == 2


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
def test_states_of_the_optimizer_move(name):
    module = convert(mlp(), 1.0)
    options = {"momentum": 0.9} if name == "SGD" else {"amsgrad": True}
    optimizer = getattr(torch.optim, name)(module.parameters(), lr=0.1, **options)
    prune = GradualMagnitude(module, optimizer, n_m=(2, 4), end=1, begin=1)
    trained(module, optimizer)
    parameter = module[0].values
    before = {
        key: spgrad.from_values(state, module[0].pattern).to_dense()
        for key, state in optimizer.state[parameter].items()
        if state.shape == parameter.shape
    }
    assert before
    prune.step()
    assert module[0].values is parameter
    there = groups(module[0], 4).reshape(8, 16)
    for key, old in before.items():
        new = spgrad.from_values(optimizer.state[parameter][key], module[0].pattern).to_dense()
        assert_close(new, old * there)
    trained(module, optimizer)


@pytest.mark.parametrize("made_before", [False, True])
def test_a_restart_in_the_middle_gives_the_same_numbers(made_before):
    def schedule(module, optimizer):
        return GradualMagnitude(module, optimizer, n_m=(1, 8), begin=0, end=20, every=2)

    def new():
        module = convert(mlp(5), 1.0)
        return module, torch.optim.AdamW(module.parameters(), lr=0.01)

    one = new()
    first = schedule(*one)
    for _ in range(9):
        trained(*one)
        first.step()
    two = new()
    second = schedule(*two) if made_before else None
    for a, b in zip(one, two, strict=True):
        b.load_state_dict(copy.deepcopy(a.state_dict()))
    second = second or schedule(*two)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for module, optimizer, prune in ((*one, first), (*two, second)):
        torch.manual_seed(9)
        for _ in range(11):
            assert module[0].n_m is None or module[0].n_m[0] >= 1
            trained(module, optimizer)
            prune.step()
    for at in (0, 2):
        assert bool((groups(one[0][at], 8).sum(1) == 1).all())
        assert torch.equal(one[0][at].col_indices, two[0][at].col_indices)
        assert_close(one[0][at].values, two[0][at].values)
        assert two[0][at].n_m == (1, 8)


@pytest.mark.parametrize("kind", [SET, RigL])
def test_elements_are_exchanged_while_n_falls(kind):
    layer = SparseLinear(16, 8, n_m=(4, 4), **DOUBLE)
    optimizer = torch.optim.Adam(layer.parameters())
    prune = GradualMagnitude(layer, optimizer, n_m=(1, 4), end=8)
    more = {"end": 100} if kind is RigL else {}
    change = kind(layer, optimizer, every=1, fraction=0.5, **more)
    seen = set()
    for _ in range(12):
        trained(layer, optimizer)
        prune.step()
        change.step()
        counts = groups(layer, 4).sum(1)
        assert bool((counts == layer.n_m[0]).all())
        seen.add(layer.n_m)
    assert seen >= {(1, 4), (2, 4), (3, 4)}


def test_n_is_that_of_the_elements():
    """Those of a state, or of `move`, may be others than the layer was made with."""
    layer, other = SparseLinear(8, 4, n_m=(4, 4)), SparseLinear(8, 4, n_m=(1, 4))
    layer.load_state_dict(other.state_dict())
    assert layer.n_m == (1, 4)
    assert "n_m=(1, 4)" in repr(layer)
    SET(layer, fraction=1.0).step()
    assert bool((groups(layer, 4).sum(1) == 1).all())
    move(layer, torch.eye(4, 8) > 0)
    assert layer.n_m is None
    assert copy.deepcopy(other).n_m == (1, 4)
    assert other.to("meta").n_m == (1, 4)
    assert SparseLinear(0, 4, n_m=(2, 4)).n_m == (2, 4)
    assert SparseLinear(8, 4, density=1.0).n_m is None


def test_torch_takes_what_is_left():
    """The structure is that of torch's semi-structured tensors: 2 of 4 along the inputs."""
    layer = SparseLinear.from_dense(nn.Linear(16, 8), density=1.0)
    GradualMagnitude(layer, n_m=(2, 4), end=3, begin=3, every=1)
    prune = GradualMagnitude(layer, n_m=(2, 4), end=3)
    for _ in range(3):
        prune.step()
    dense = layer.to_dense().weight.detach()
    sparsifier = torch.ao.pruning.WeightNormSparsifier(
        sparsity_level=1.0, sparse_block_shape=(1, 4), zeros_per_block=2
    )
    module = nn.Sequential(layer.to_dense())
    sparsifier.prepare(module, [{"tensor_fqn": "0.weight"}])
    sparsifier.step()
    assert_close(module[0].weight.detach(), dense)  # it finds the same two zeros in each group


def test_a_density_above_that_of_a_layer_changes_nothing():
    layer = SparseLinear(8, 4, n_m=(1, 4))
    before = layer.weight.to_dense()
    GradualMagnitude(layer, density=0.75, end=1, begin=1).step()
    assert_close(layer.weight.to_dense(), before)
    assert layer.n_m == (1, 4)


def two_layers():
    return nn.Sequential(SparseLinear(8, 4, density=1.0), SparseLinear(4, 4, n_m=(2, 4)))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ({}, "neither `density` nor `n_m` is given; one of the two is accepted"),
        ({"density": 0.5, "n_m": (2, 4)}, "`density` and `n_m` are given; one of"),
        ({"n_m": (2, 3)}, r"`n_m` is \(2, 3\) for 8 columns; n of m with 0 < n <= m"),
        ({"n_m": (0, 4)}, r"`n_m` is \(0, 4\) for 8 columns"),
        ({"n_m": "2:4"}, r"`n_m` is '2:4' for 8 columns"),
        ({"n_m": (3, 4)}, r"`n_m` is \(3, 4\) for `1`, in which a group of 4 columns has 2 elem"),
        ({"density": 0.3}, r"`density` is 0.3 for `1`, which has 2 of 4 .* a density of which 4 t"),
        ({"density": 0.0}, r"`density` is 0.0 for `1`, which has 2 of 4"),
    ],
)
def test_refusals(call, text):
    with pytest.raises(spgrad.SpgradError, match=text) as error:
        GradualMagnitude(two_layers(), end=2, **call)
    assert "spgrad.nn.sparsity." in str(error.value)


def test_layers_and_states_that_do_not_fit_are_refused():
    blocks = SparseLinear(8, 4, density=1.0, blocksize=(2, 2))
    with pytest.raises(spgrad.SpgradError, match=r"`n_m` is \(2, 4\) for it, which has blocks"):
        GradualMagnitude(blocks, n_m=(2, 4), end=2)
    prune = GradualMagnitude(two_layers(), n_m=(2, 4), end=2)
    other = GradualMagnitude(two_layers()[:1], n_m=(2, 4), end=2)
    with pytest.raises(spgrad.SpgradError, match="`state` is that of 1 layers for 2; the state"):
        prune.load_state_dict(other.state_dict())
