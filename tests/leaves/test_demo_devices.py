"""The demo with `--device`: what moves, a step of training there, and a device that is missing.

A torch without CUDA records no gradients of fake tensors on CUDA: that ends the process. It neither
indexes nor overwrites them in Python. It moves tensors to `cuda:0`, but not to `cuda`. So the whole
training runs on meta, and what a step computes runs part by part on fake tensors on CUDA.
"""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses import FakeTensorMode

from spgrad import cli
from spgrad.core.pattern import Pattern
from spgrad.core.values import on_pattern
from spgrad.demo import data, model
from spgrad.lowering.products.spmm import spmm_gradients

LEARNED = pytest.mark.parametrize("learn_edges", [False, True])
CUDA = torch.device("cuda", 0)


@pytest.fixture(scope="module")
def cora():
    return data.load()


@pytest.fixture
def _without_numbers(monkeypatch):
    """What the host reads of a tensor on meta is zero."""
    item, cpu = torch.Tensor.item, torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "item", lambda t: 0.0 if t.is_meta else item(t))
    monkeypatch.setattr(
        torch.Tensor, "cpu", lambda t: torch.zeros_like(t, device="cpu") if t.is_meta else cpu(t)
    )


def states(optimizer):
    """The moments that Adam keeps; it counts its steps on the CPU."""
    return [s[name] for s in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]


@LEARNED
@pytest.mark.usefixtures("_without_numbers")
def test_a_training_run_stays_on_its_device(cora, learn_edges, monkeypatch):
    """The graph, the split, all parameters, their gradients and the states of the optimizer."""
    made, graphs, make = [], [], model._optimizer

    def optimizer(network):
        graphs.extend((network.adjacency, network.features))
        made.append(make(network))
        return made[-1]

    monkeypatch.setattr(model, "_optimizer", optimizer)
    options = {"learn_edges": learn_edges, "epochs": 2, "seed": 0, "device": "meta"}
    run = model.train(cora, data.split(cora, 0), advance=lambda: None, **options)
    assert len(run.loss) == len(run.validation) == 2
    assert (run.scale is not None) == learn_edges
    assert run.scale is None or run.scale.device.type == "cpu"  # which the picture is made of
    (adam,) = made
    parameters = [p for group in adam.param_groups for p in group["params"]]
    assert len(parameters) == 3 + learn_edges
    there = [*graphs, *parameters, *(p.grad for p in parameters), *states(adam)]
    assert {t.device.type for t in there} == {"meta"}
    assert cora.adjacency.device.type == "cpu"


def faked(A, mode):
    """A sparse tensor of fake tensors."""
    indices = tuple(map(mode.from_tensor, A.pattern.indices))
    pattern = Pattern.from_spec(A.pattern.spec, A.pattern.shape, indices)
    return on_pattern(mode.from_tensor(A.values()), pattern)


def faked_data(graph, mode):
    """The graph and a split of it, of fake tensors on the CPU."""
    parts = data.split(graph, 0)
    fake = {name: faked(getattr(graph, name), mode) for name in ("adjacency", "features")}
    graph = dataclasses.replace(graph, **fake, labels=mode.from_tensor(graph.labels))
    return graph, data.Split(*map(mode.from_tensor, (parts.train, parts.validation, parts.test)))


def network_on_cuda(graph, learn_edges):
    """Its parameters move one by one, because torch's `Module.to` does not move fake tensors."""
    network = model.GraphNetwork(graph, learn_edges=learn_edges)
    for name, p in list(network.named_parameters()):
        setattr(network, name, torch.nn.Parameter(p.to(CUDA)))
    return network


@LEARNED
def test_a_step_on_cuda(cora, learn_edges):
    """Forward, loss, both gradients of the product, and Adam, with nothing left on the CPU."""
    mode = FakeTensorMode()
    graph, parts = faked_data(cora, mode)
    with mode, torch.no_grad():
        graph, parts = graph.to(CUDA), parts.to(CUDA)
        matrices = graph.adjacency, graph.features
        moved = [t for A in matrices for t in (A.values(), *A.pattern.indices)]
        moved += [graph.labels, parts.train, parts.validation, parts.test]
        network = network_on_cuda(graph, learn_edges)
        optimizer = model._optimizer(network)
        scores = [network.train(mode=training)() for training in (True, False)]
        loss = F.cross_entropy(*(t.index_select(0, parts.train) for t in (scores[0], graph.labels)))
        A, x = network.weights(), graph.features @ network.first
        grads = spmm_gradients(A.values(), x, x, A.pattern, False, (True, True))
        for p in network.parameters():
            p.grad = torch.ones_like(p)
        optimizer.step()
        found = [*moved, *scores, loss, *grads, *network.parameters(), *states(optimizer)]
    assert {t.device for t in found} == {CUDA}
    assert [tuple(t.shape) for t in scores] == [(2708, 7)] * 2
    assert [tuple(t.shape) for t in (loss, *grads)] == [(), (cora.adjacency.nse,), (2708, 16)]
    assert len(states(optimizer)) == 2 * (3 + learn_edges)


@pytest.mark.skipif(torch.cuda.is_available(), reason="it is there")
@pytest.mark.parametrize("device", ["cuda", "cuda:0"])
def test_cuda_that_is_missing_is_refused_before_anything_runs(device, tmp_path, capsys):
    """One line: the option, what is there, and what to do."""
    out = tmp_path / "picture.png"
    assert cli.main(["demo", "--device", device, "--out", str(out)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == (
        f"spgrad demo: `--device` is {device}; cpu is accepted, as torch finds no other device "
        "here. Choose one, or leave it out for the CPU.\n"
    )
    assert not out.exists()
