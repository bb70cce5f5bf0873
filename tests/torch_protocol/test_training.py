"""Training scripts: an optimizer, clipping, copies and states, and several processes."""

import copy

import pytest
import torch
import torch.distributed as dist
from samples import drawn, made_by_spgrad
from torch import nn

import spgrad
from spgrad import support, testing

F64 = torch.float64


class Layer(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, x):
        return self.weight @ x


@pytest.mark.parametrize("name", support.ALL)
def test_what_a_training_script_does(sparse, name):
    """Adam, clipping, copies, a state with other elements; test_optimizers.py has the rest."""
    layer, x = Layer(sparse(drawn(4, 6), name)), torch.randn(6, 3, dtype=F64)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.01)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = (layer(x) - 1).square().sum()
        loss.backward()
        assert layer.weight.grad.pattern is layer.weight.pattern
        nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > losses[1] > losses[2]
    twin = copy.deepcopy(layer)
    assert isinstance(twin.weight, nn.Parameter)
    assert torch.equal(twin(x), layer(x))
    assert torch.equal(copy.deepcopy(layer.weight.detach()) @ x, layer(x))
    other = Layer(sparse(drawn(4, 6, seed=5), name))
    layer.zero_grad()
    layer.load_state_dict(other.state_dict())
    assert layer.weight._nnz() == other.weight._nnz()
    assert torch.equal(layer(x), other(x))


class ByValues(nn.Module):
    """The form of a sparse parameter that processes share."""

    def __init__(self, weight):
        super().__init__()
        self.pattern = weight.pattern
        self.values = nn.Parameter(weight.values().clone())

    def forward(self, x):
        return spgrad.from_values(self.values, self.pattern) @ x


@pytest.fixture
def gloo(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/gloo", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_several_processes(gloo):
    x = torch.randn(6, 3, dtype=F64)
    for name in support.ALL:
        A = made_by_spgrad(drawn(4, 6), name)
        for call in (lambda A=A: dist.all_reduce(A), lambda A=A: dist.broadcast(A, 0)):
            with pytest.raises(spgrad.UnsupportedError, match=r"all_reduce\(A\.values\(\)\)"):
                call()
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX):
            dist.all_reduce(A.values(), op)
        refused = Layer(A)
        with pytest.raises(spgrad.UnsupportedError, match=r"DistributedDataParallel .*from_values"):
            nn.parallel.DistributedDataParallel(refused)
        buffered = nn.Linear(2, 2)
        buffered.register_buffer("A", A)
        with pytest.raises(spgrad.UnsupportedError, match="DistributedDataParallel"):
            nn.parallel.DistributedDataParallel(buffered)
        model = nn.parallel.DistributedDataParallel(ByValues(A))
        model(x).sum().backward()
        wanted = spgrad.from_values(torch.ones_like(A.values()), A) * x.sum(1)
        testing.assert_close(model.module.values.grad, wanted.values())
