"""Training scripts: an optimizer, clipping, copies and states."""

import copy

import pytest
import torch
from samples import drawn
from torch import nn

from spgrad import support

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
