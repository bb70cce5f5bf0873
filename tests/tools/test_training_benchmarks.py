"""The contenders of the benchmark of training: they compute what spgrad's model computes."""

import pytest
import torch

import spgrad
from benchmarks.training import processes
from examples import two_processes


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_two_processes_train_the_same_network_with_torchs_tensors():
    ours, theirs = two_processes.network(), processes._of_torch()
    x = torch.randn(8, 64)
    y, other = ours(x), theirs(x)
    torch.testing.assert_close(y, other)
    g = torch.randn_like(y)
    y.backward(g)
    other.backward(g)
    for layer, twin in zip(ours, theirs, strict=True):
        if isinstance(layer, spgrad.nn.SparseLinear):
            torch.testing.assert_close(layer.values.grad, twin.values.grad)
            torch.testing.assert_close(layer.bias.grad, twin.bias.grad)


def test_the_dense_network_has_the_same_layers():
    sizes = [tuple(layer.weight.shape) for layer in processes._dense() if hasattr(layer, "weight")]
    wanted = [
        tuple(layer.weight.shape) for layer in two_processes.network() if hasattr(layer, "weight")
    ]
    assert sizes == wanted
