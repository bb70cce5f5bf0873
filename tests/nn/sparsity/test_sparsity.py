"""Patterns that change in training: which elements go and come, and that the optimizer goes on."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import spgrad
from spgrad.nn import SparseLinear, convert
from spgrad.nn.sparsity import SET, GradualMagnitude, RigL, move
from spgrad.nn.sparsity.scores import gradient_scores

OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.1),
}
KINDS = {
    "elements": {"density": 0.25},
    "blocks": {"density": 0.25, "blocksize": (2, 4)},
    "n of m": {"n_m": (1, 4)},
}


def made(kind="elements", seed=0):
    torch.manual_seed(seed)
    return SparseLinear(16, 8, dtype=torch.float64, **KINDS[kind])


def trained(layer, optimizer, steps=1):
    for _ in range(steps):
        optimizer.zero_grad()
        x = torch.randn(5, 16, dtype=torch.float64)
        layer(x).square().sum().backward()
        optimizer.step()
    return x


def dense(layer, t):
    return spgrad.from_values(t.detach(), layer.pattern).to_dense()


def groups_are_kept(layer):
    if layer.n_m is None:
        return True
    n, m = layer.n_m
    counts = dense(layer, torch.ones_like(layer.values)).reshape(-1, m).sum(1)
    return bool((counts == n).all())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_values_gradient_and_states_move(name, kind):
    layer = made(kind)
    optimizer = OPTIMIZERS[name](layer.parameters())
    trained(layer, optimizer, 3)
    parameter = layer.values
    loss = layer(torch.ones(1, 16, dtype=torch.float64)).sum()  # a graph of the old elements
    states = {k: s for k, s in optimizer.state[parameter].items() if s.shape == parameter.shape}
    before = {
        k: dense(layer, s) for k, s in {**states, "v": parameter, "g": parameter.grad}.items()
    }
    mask = torch.rand(8, 16) < 0.4
    move(layer, mask, optimizer)
    assert layer.values is parameter
    after = optimizer.state[parameter]
    there = dense(layer, torch.ones_like(parameter)) != 0
    assert there[mask].all()
    for k, old in before.items():
        new = {"v": parameter, "g": parameter.grad}.get(k)
        assert_close(dense(layer, after[k] if new is None else new), old * there)
    trained(layer, optimizer, 2)
    assert loss.shape == ()


def test_a_restart_gives_the_same_numbers():
    """Module, optimizer and schedule, saved after some changes and loaded into new ones."""

    def new():
        layer = made(seed=5)
        optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1)
        generator = torch.Generator().manual_seed(2)
        return layer, optimizer, SET(layer, optimizer, every=2, generator=generator)

    one, two = new(), new()
    for _ in range(5):
        trained(*one[:2])
        one[2].step()
    for a, b in zip(one, two, strict=True):
        b.load_state_dict(copy.deepcopy(a.state_dict()))
    for layer, optimizer, change in (one, two):
        torch.manual_seed(9)
        for _ in range(5):
            trained(layer, optimizer)
            change.step()
    assert torch.equal(one[0].col_indices, two[0].col_indices)
    assert_close(one[0].values, two[0].values)


def test_a_restart_with_a_generator_in_one_of_two_schedules_alone():
    drawn = torch.Generator().manual_seed(2)
    named, unnamed = SET(made(), generator=drawn), SET(made())
    before = drawn.get_state()
    state = copy.deepcopy(named.state_dict())
    named.load_state_dict({**unnamed.state_dict(), "steps": 3})
    unnamed.load_state_dict({**state, "steps": 4})
    assert (named.steps, unnamed.steps) == (3, 4)
    assert torch.equal(drawn.get_state(), before)


def test_pruning_goes_on_after_a_restart():
    """The densities at first are part of the state: a new schedule would begin at those of now."""

    def new():
        layer = made(seed=5)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        return (
            layer,
            optimizer,
            GradualMagnitude(layer, optimizer, density=0.05, begin=0, end=20, every=2),
        )

    one, two = new(), new()
    for _ in range(9):
        trained(*one[:2])
        one[2].step()
    two[0].load_state_dict(one[0].state_dict())
    two = *two[:2], GradualMagnitude(*two[:2], density=0.05, begin=0, end=20, every=2)
    two[2].load_state_dict(copy.deepcopy(one[2].state_dict()))
    for layer, optimizer, prune in (one, two):
        torch.manual_seed(9)
        for _ in range(4):
            trained(layer, optimizer)
            prune.step()
    assert one[0].values.numel() > 0.06 * 8 * 16
    assert torch.equal(one[0].col_indices, two[0].col_indices)
    assert_close(one[0].values, two[0].values)


def test_the_densities_of_gradual_pruning():
    module = convert(nn.Sequential(nn.Linear(20, 10), nn.ReLU(), nn.Linear(10, 10)), 1.0)
    optimizer = torch.optim.Adam(module.parameters())
    prune = GradualMagnitude(module, optimizer, density=0.1, begin=2, end=12, every=4)
    loss = None
    for step in range(1, 15):
        optimizer.zero_grad()
        loss = module(torch.randn(3, 20)).square().sum()  # the last graph stays alive
        loss.backward()
        optimizer.step()
        assert prune.step() == (step in (2, 6, 10, 12))
        done = max(t for t in (2, 6, 10, 12) if t <= step) if step > 1 else 2
        density = 0.1 + 0.9 * (1 - (done - 2) / 10) ** 3
        assert module[0].values.numel() == round(density * 200)
        assert module[2].values.numel() == round(density * 100)


def test_the_smallest_are_pruned():
    layer = SparseLinear(8, 8, density=0.5)
    old = layer.weight.to_dense().detach()
    prune = GradualMagnitude(layer, density=0.25, begin=1, end=1)
    prune.step()
    least = old.abs().flatten().sort().values[-16]
    assert_close(layer.weight.to_dense().detach(), old * (old.abs() >= least))


@pytest.mark.parametrize("kind", KINDS)
def test_set_exchanges_the_smallest(kind):
    layer = made(kind)
    old = layer.weight.to_dense().detach()
    nse = layer.values.shape[0]
    change = SET(layer, fraction=0.5, generator=torch.Generator().manual_seed(1))
    change.step()
    assert layer.values.shape[0] == nse
    assert groups_are_kept(layer)
    size = layer.values.detach().abs().reshape(nse, -1).amax(1)
    assert (size > 0).sum() >= nse - nse // 2
    stayed = layer.weight.to_dense().detach()
    assert_close(stayed, old * (stayed != 0))
    other = made(kind)
    SET(other, fraction=0.5, generator=torch.Generator().manual_seed(1)).step()
    assert torch.equal(other.col_indices, layer.col_indices)


def wanted(layer, score, fraction):
    """The elements that RigL leaves, from the dense gradient."""
    height, width = layer.blocksize or (1, 1)
    if layer.blocksize:
        score = score.reshape(8 // height, height, 16 // width, width).norm(dim=(1, 3))
        size = layer.values.detach().flatten(1).norm(dim=1)
    else:
        size = layer.values.detach().abs()
    ptr, idx = layer.pattern.indices
    nse = idx.numel()
    n = int(fraction * nse)
    line = torch.repeat_interleave(ptr.diff())
    stay = size.topk(nse - n).indices
    score = score.abs().clone()
    score[line[stay], idx[stay]] = math.inf
    if layer.n_m:
        chosen = score.reshape(-1, 4).topk(1, dim=1).indices
        found = torch.zeros(score.numel() // 4, 4).scatter_(1, chosen, 1).reshape(score.shape)
    else:
        found = torch.zeros(score.numel())
        found[score.flatten().topk(nse).indices] = 1
        found = found.reshape(score.shape)
    return found.repeat_interleave(height, 0).repeat_interleave(width, 1) != 0


@pytest.mark.parametrize("memory", [1, 3000, 1 << 20])
@pytest.mark.parametrize("kind", KINDS)
def test_rigl_takes_the_largest_gradients(kind, memory):
    layer = made(kind)
    change = RigL(layer, end=10, fraction=0.6, every=1, memory=memory)
    twin = layer.to_dense()
    for _ in range(2):  # two batches, whose gradients are summed
        x = torch.randn(3, 2, 16, dtype=torch.float64)
        layer(x).square().sum().backward()
        twin(x).square().sum().backward()
    expected = wanted(layer, twin.weight.grad, 0.3 * (1 + math.cos(math.pi / 10)))
    assert change.step()
    assert torch.equal(dense(layer, torch.ones_like(layer.values)) != 0, expected)
    assert groups_are_kept(layer)


def test_gradients_of_complex_weights_are_scored():
    layer = SparseLinear(6, 4, density=0.5, dtype=torch.complex128)
    x, g = torch.randn(5, 6, dtype=torch.complex128), torch.randn(5, 4, dtype=torch.complex128)
    twin = layer.to_dense()
    twin(x).backward(g)
    found = gradient_scores(layer, [(x, g)], None)(0, 4)
    torch.testing.assert_close(found, twin.weight.grad.abs())


def test_rigl_goes_on_with_its_optimizer():
    layer = made()
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
    change = RigL(layer, optimizer, end=30, every=3)
    target = torch.randn(8, 16, dtype=torch.float64) * (torch.rand(8, 16) < 0.2)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        x = torch.randn(50, 16, dtype=torch.float64)
        loss = (layer(x) - x @ target.T).square().mean()
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        change.step()
    assert losses[-1] < 0.5 * losses[0]
    assert layer.values.numel() == 32


def test_rigl_notes_only_the_step_before_a_change():
    layer = made()
    change = RigL(layer, end=10, every=2)
    x = torch.randn(3, 16, dtype=torch.float64)
    layer(x).sum().backward()
    assert not change._seen[layer]
    assert not change.step()
    before = layer.pattern
    assert change.step()  # without a backward: nothing is known of the gradient
    assert layer.pattern is before
    change.step()
    layer(x).sum().backward()
    assert len(change._seen[layer]) == 1
    change.step()
    assert not change._seen[layer]
    change.remove()
    assert not layer._forward_hooks
    change.step()
    layer(x).sum().backward()
    assert not change._seen[layer]


def test_rigl_sums_over_processes():
    one, two, tiles = made(), made(), []
    x, other = torch.randn(2, 4, 16, dtype=torch.float64)

    def reduce(tile):
        tiles.append(tile.shape)
        tile += two(other).detach().T @ other * 0 + (2 * two(other).detach()).T @ other

    change = RigL(one, end=10, every=1, reduce=reduce)
    twin = one.to_dense()
    one(x).square().sum().backward()
    (twin(x).square().sum() + twin(other).square().sum()).backward()
    expected = wanted(one, twin.weight.grad, 0.15 * (1 + math.cos(math.pi / 10)))
    change.step()
    assert tiles == [(8, 16)]
    assert torch.equal(dense(one, torch.ones_like(one.values)) != 0, expected)


@pytest.mark.parametrize("density", [0.0, 1.0])
@pytest.mark.parametrize("kind", [SET, RigL])
def test_no_elements_and_all_of_them(kind, density):
    layer = SparseLinear(4, 4, density=density)
    change = kind(layer, fraction=1.0, **({"end": 9, "every": 1} if kind is RigL else {}))
    for _ in range(2):
        layer(torch.randn(2, 4)).square().sum().backward()
        change.step()
    assert layer.density == density


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: SET(nn.Linear(2, 2)), "`module` is a Linear without a SparseLinear"),
        (lambda: SET(made(), every=0), "`every` is 0; ints from 1 are accepted"),
        (lambda: SET(made(), begin=3, end=2), "`begin` is 3 and `end` 2"),
        (lambda: SET(made(), fraction=2), "`fraction` is 2; numbers from 0 to 1"),
        (lambda: RigL(made(), end=3, fraction=-1), "`fraction` is -1"),
        (lambda: GradualMagnitude(made(), density=3, end=2), "`density` is 3"),
        (lambda: SET(3), "`module` is an int without a SparseLinear"),
        (lambda: SET(made()).load_state_dict({"steps": 1}), r"`state` is \['steps'\]; a dict with"),
        (lambda: RigL(made(), end=2).load_state_dict({}), r"`state` is \[\]; a dict with steps is"),
        (lambda: RigL(made(), end=2).load_state_dict({"steps": "9"}), "`state` has '9' steps; a"),
        (
            lambda: GradualMagnitude(made(), density=0.1, end=2).load_state_dict({"steps": 1}),
            r"GradualMagnitude.load_state_dict: `state` is \['steps'\]; .* steps, first is",
        ),
        (lambda: move(nn.Linear(2, 2), torch.ones(2, 2) > 0), "`layer` is a Linear"),
        (lambda: move(made(), torch.ones(2, 2) > 0), r"`pattern` has shape \(2, 2\)"),
        (lambda: move(made(), torch.ones(8, 16)), "`pattern` is a .* of float32"),
    ],
)
def test_refusals(call, text):
    with pytest.raises(spgrad.SpgradError, match=text) as error:
        call()
    assert "spgrad.nn.sparsity." in str(error.value)


def test_an_average_of_the_model_gets_each_new_pattern_first():
    """As an average of the dense weights does, of which removed elements are set to 0."""
    layer = made()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    change = SET(layer, optimizer, fraction=0.5, every=2)
    average = torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    averaged = torch.optim.swa_utils.AveragedModel(layer, multi_avg_fn=average)
    wanted = dense(layer, layer.values)
    for step in range(8):
        x = trained(layer, optimizer)
        if change.step():
            move(averaged.module, layer.weight)
        averaged.update_parameters(layer)
        there = dense(layer, torch.ones_like(layer.values)) != 0
        now = dense(layer, layer.values)
        wanted = torch.where(there, torch.lerp(wanted, now, 0.1) if step else now, 0)
    assert_close(averaged.module.weight.to_dense(), wanted)
    assert_close(averaged(x), x @ wanted.T + averaged.module.bias)
