"""Optimizers, clipping and scaling act on the specified elements of a sparse parameter."""

import copy
import inspect
import io

import pytest
import torch
from torch import nn, optim

import spgrad
from spgrad import support, testing
from spgrad.core.pattern import LAYOUTS
from spgrad.torch_protocol import callers

F64 = torch.float64

PLAIN = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    "Adam": {"lr": 0.1, "amsgrad": True, "weight_decay": 0.01},
    "AdamW": {"lr": 0.1},
    "Adagrad": {"lr": 0.1, "lr_decay": 0.1, "initial_accumulator_value": 0.1},
    "Adadelta": {"lr": 0.5},
    "Adamax": {"lr": 0.1},
    "NAdam": {"lr": 0.1},
    "RAdam": {"lr": 0.1},
    "RMSprop": {"lr": 0.1, "centered": True, "momentum": 0.5},
    "Rprop": {"lr": 0.1},
    "ASGD": {"lr": 0.1},
    "Adafactor": {"lr": 0.1},
    "LBFGS": {"lr": 0.5, "max_iter": 4, "line_search_fn": "strong_wolfe"},
}
ONE_BY_ONE = ("Adafactor", "LBFGS")  # have no form for lists of parameters
FUSED = ("SGD", "Adam", "AdamW", "Adagrad")
CASES = [
    *((name, {}) for name in PLAIN),
    *((name, {"foreach": True}) for name in PLAIN if name not in ONE_BY_ONE),
    *((name, {"fused": True}) for name in FUSED),
]


def case_id(value):
    return value if isinstance(value, str) else "-".join(value) or "plain"


def parameter(name, seed=0, **options):
    options = {"coalesced": name != "coo", **options}
    return testing.random_sparse((4, 6), LAYOUTS[name], seed=seed, **options).requires_grad_()


def step(optimizer, loss):
    def closure():
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    if isinstance(optimizer, optim.LBFGS):
        return optimizer.step(closure)
    value = closure()
    optimizer.step()
    return value


@pytest.mark.parametrize("name", support.ALL)
@pytest.mark.parametrize(("kind", "form"), CASES, ids=case_id)
def test_a_step_is_that_of_the_values(kind, form, name):
    """Two parameters of different patterns, one of them with repeated indices in COO."""
    A, B = parameter(name), parameter(name, 1, coalesced=True)
    patterns = A.pattern, B.pattern
    values = [t._vals.detach().clone().requires_grad_() for t in (A, B)]
    x = torch.randn(6, 3, dtype=F64)

    def loss(a, b):
        return (a @ x).square().sum() + ((b @ x) - 1).abs().sum()

    options = {**PLAIN[kind], **form}
    sparse = getattr(optim, kind)([A, B], **options)
    dense = getattr(optim, kind)(values, **options)
    for _ in range(3):
        ours = step(sparse, lambda: loss(A, B))
        theirs = step(dense, lambda: loss(*map(spgrad.from_values, values, patterns)))
        assert torch.equal(ours.detach(), theirs.detach())
    assert torch.equal(A._vals, values[0])
    assert torch.equal(B._vals, values[1])
    assert (A.pattern, B.pattern) == patterns
    for state in sparse.state[A].values():
        if isinstance(state, torch.Tensor) and state.shape == values[0].shape:
            assert kind == "LBFGS"  # which has one vector for all parameters
        elif isinstance(state, spgrad.SparseTensor):
            assert state.pattern is patterns[0]


@pytest.mark.parametrize("form", [{}, {"foreach": True}, {"fused": True}], ids=case_id)
def test_hybrid_and_batched_parameters_beside_dense_ones(form):
    A = testing.random_sparse((4, 6, 3), LAYOUTS["coo"], dense_dim=1).requires_grad_()
    B = testing.random_sparse((2, 4, 6), LAYOUTS["bsc"]).requires_grad_()
    bias = torch.randn(3, dtype=F64, requires_grad=True)
    ours = [A, B, bias]
    theirs = [t.detach().clone().requires_grad_() for t in (A._vals, B._vals, bias)]
    sparse, dense = (
        optim.AdamW([{"params": p[:1], "lr": 0.1}, {"params": p[1:], "lr": 0.2}], **form)
        for p in (ours, theirs)
    )
    for _ in range(2):
        step(sparse, lambda: sum((t * t).sum() for t in ours))
        step(dense, lambda: sum((t * t).sum() for t in theirs))
    for t, twin in zip((A._vals, B._vals, bias), theirs, strict=True):
        testing.assert_close(t.detach(), twin.detach())


@pytest.mark.parametrize("name", support.ALL)
@pytest.mark.parametrize(("kind", "form"), CASES, ids=case_id)
def test_gradients_that_are_kept_become_zero(kind, form, name):
    A, bias = parameter(name), torch.randn(3, dtype=F64, requires_grad=True)
    optimizer = getattr(optim, kind)([A] if kind == "LBFGS" else [A, bias], **PLAIN[kind], **form)
    (A.sum() + bias.sum()).backward()
    kept, version = A.grad, A.grad._vals._version
    optimizer.zero_grad(set_to_none=False)
    assert A.grad is kept
    assert kept._vals._version > version
    assert kept.pattern is A.pattern
    assert not kept._vals.any()
    assert kind == "LBFGS" or not bias.grad.any()


def test_unchanged_code_in_drop_in_mode():
    a, x = parameter("csr").detach().to_dense(), torch.randn(6, 3, dtype=F64)
    for kind, options in PLAIN.items():
        with spgrad.dropin():
            A = a.to_sparse().requires_grad_()
            pattern = A.pattern
            values = A.detach()._values().clone().requires_grad_()
            sparse = getattr(optim, kind)([A], **options)
            for _ in range(2):
                step(sparse, lambda A=A: torch.sparse.mm(A, x).square().sum())
            assert A.pattern is pattern
        dense = getattr(optim, kind)([values], **options)
        for _ in range(2):
            step(dense, lambda v=values, p=pattern: (spgrad.from_values(v, p) @ x).square().sum())
        testing.assert_close(A._vals, values.detach())


def test_the_memory_of_a_step_is_that_of_the_elements():
    """2^40 elements, of which two are specified."""
    n = 2**20
    for kind, options in PLAIN.items():
        A = spgrad.sparse_coo_tensor([[0, 5], [n - 1, 7]], [1.0, 2.0], (n, n)).requires_grad_()
        step(getattr(optim, kind)([A], **options), lambda A=A: A.coalesce().values().sum())
        assert A._vals.max() < 2


def test_numbers_are_added_to_parameters_by_optimizers_alone():
    """The same call means every element elsewhere, also where no gradient is recorded."""
    A = parameter("csr")

    class Signs(optim.Optimizer):
        """Not torch's own."""

        @torch.no_grad()
        def step(self):
            for p in self.param_groups[0]["params"]:
                p.sub_(p.grad.abs().add_(1e-8).reciprocal().mul_(p.grad))

    with torch.no_grad(), pytest.raises(ValueError, match="would be dense"):
        A.add_(1e-8)
    values = A._vals.detach().clone().requires_grad_()
    A.square().sum().backward()
    values.square().sum().backward()
    Signs([A], {}).step()
    Signs([values], {}).step()
    assert torch.equal(A._vals, values)

    def closure():  # runs inside a step, and is not the optimizer's code
        with torch.no_grad(), pytest.raises(ValueError, match="would be dense"):
            A.add_(1e-8)
        assert testing.random_sparse((2, 2), torch.sparse_coo).is_sparse
        loss = A.sum()
        loss.backward()
        return loss

    optim.Adam([A]).step(closure)
    optim.LBFGS([A]).step(closure)


def test_what_is_refused():
    A = parameter("csr")
    A.sum().backward()
    with pytest.raises(ValueError, match="would be dense"):  # gradients of the step itself
        optim.Adam([A], differentiable=True).step()
    dense = spgrad.sparse_coo_tensor([[1, 0]], [3.0, 4.0], (2,)).requires_grad_()
    numbers = torch.tensor([1.0, 2.0])  # not in the order of the elements
    with pytest.raises(ValueError, match=r"spgrad\.grad: `grad` is a dense tensor of shape"):
        dense.grad = numbers
    with torch._C.DisableTorchFunctionSubclass():  # what a hook of the graph's node can leave
        dense.grad = numbers
    for kind, options in PLAIN.items():
        with pytest.raises(ValueError, match="is a dense tensor of shape"):
            getattr(optim, kind)([dense], **options).step(lambda: 0.0)
    with pytest.raises(RuntimeError, match="does not support dense gradients"):
        optim.SparseAdam([A]).step()
    with pytest.raises(NotImplementedError, match=r"Muon got a SparseTensor.* torch\.optim\.AdamW"):
        optim.Muon([A]).step()
    optimizer = optim.Adam([A])
    optimizer.step()
    A.grad = None
    with torch.no_grad():
        A.copy_(parameter("csr", 3).detach())
    A.sum().backward()
    with pytest.raises(ValueError, match=r"different patterns .* Make a new optimizer"):
        optimizer.step()
    optim.Adam([A]).step()


@pytest.mark.parametrize("name", support.ALL)
def test_clipping_and_scaling_of_gradients(name):
    A, B = parameter(name), parameter(name, 1)
    a, b = (t._vals.detach().clone().requires_grad_() for t in (A, B))

    def fill():
        for t, twin in ((A, a), (B, b)):
            t.grad = twin.grad = None
            torch.manual_seed(3)
            g = torch.randn(t._vals.shape, dtype=F64)
            twin.grad, t.grad = g, spgrad.from_values(g.clone(), t)

    utils = nn.utils
    for form in ({}, {"foreach": True}):
        for norm_type in (1.0, 2.0, torch.inf):
            fill()
            ours = utils.clip_grad_norm_([A, B], 0.1, norm_type, **form)
            assert torch.equal(ours, utils.clip_grad_norm_([a, b], 0.1, norm_type, **form))
            testing.assert_close(A.grad._vals, a.grad)
            assert A.grad.pattern is A.pattern
        fill()
        utils.clip_grad_value_([A, B], 0.05, **form)
        assert A.grad._vals.abs().max() == 0.05
    fill()
    before = A._vals.clone()
    optimizer, scaler = optim.SGD([A, B], lr=1.0), torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(torch.ones(()))  # starts it
    scaler.step(optimizer)
    testing.assert_close(A._vals, before - a.grad / 4)
    A.grad._vals[0] = torch.nan
    before = A._vals.clone()
    scaler.update()
    scaler.step(optimizer)
    assert torch.equal(A._vals, before)


@pytest.mark.parametrize("name", ["coo", "csr", "bsc"])
def test_state_of_an_optimizer_is_saved_and_loaded(name):
    A = parameter(name, coalesced=True)
    x = torch.randn(6, 3, dtype=F64)
    optimizer = optim.Adam([A], lr=0.1)
    step(optimizer, lambda: (A @ x).square().sum())
    file = io.BytesIO()
    torch.save((A, optimizer.state_dict()), file)
    file.seek(0)
    B, state = torch.load(file, weights_only=False)
    other = optim.Adam([B], lr=0.1)
    other.load_state_dict(state)
    twin = copy.deepcopy((A, optimizer))
    for tensor, its in ((A, optimizer), (B, other), twin):
        step(its, lambda tensor=tensor: (tensor @ x).square().sum())
    assert torch.equal(A._vals, B._vals)
    assert torch.equal(A._vals, twin[0]._vals)


def test_averages_of_models():
    class Layer(nn.Module):
        def __init__(self, seed):
            super().__init__()
            self.weight = nn.Parameter(parameter("coo", coalesced=True).detach() * (seed + 1))

    layers = [Layer(seed) for seed in range(3)]
    mean, moving = (
        optim.swa_utils.AveragedModel(layers[0]),
        optim.swa_utils.AveragedModel(
            layers[0], multi_avg_fn=optim.swa_utils.get_ema_multi_avg_fn(0.5)
        ),
    )
    for layer in layers:
        mean.update_parameters(layer)
        moving.update_parameters(layer)
    first = layers[0].weight._vals
    testing.assert_close(mean.module.weight._vals, first * 2)
    testing.assert_close(moving.module.weight._vals, first * 2.25)
    assert mean.module.weight.pattern is layers[0].weight.pattern


def test_no_optimizer_on_the_stack(monkeypatch):
    assert callers.optimizer_file() == ""
    with torch.no_grad():
        assert not callers.optimizing()
        names = {frame.frame.f_globals.get("__name__", "") for frame in inspect.stack(0)}
        monkeypatch.setattr(callers, "_BETWEEN", names)  # as if each frame were one of torch's
        assert not callers.optimizing()
