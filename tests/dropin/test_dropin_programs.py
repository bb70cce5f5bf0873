"""Programs for torch.sparse that rely on more of torch than its sparse functions."""

import pytest
import torch
from torch import nn

import spgrad


class Smoothed(nn.Module):
    def __init__(self, A, kind):
        super().__init__()
        if kind == "buffer":
            self.register_buffer("A", A)
        else:
            self.A = nn.Parameter(A, requires_grad=kind == "trained")
        self.linear = nn.Linear(4, 2)

    def forward(self, x):
        return self.A @ self.linear(x).relu()


@pytest.mark.parametrize("kind", ["buffer", "frozen", "trained"])
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr], ids=str)
def test_modules_are_exported(layout, kind):
    dense, x, other = torch.eye(3) + torch.eye(3).roll(1, 0), torch.randn(3, 4), torch.randn(3, 4)
    with spgrad.dropin():
        module = Smoothed(dense.to_sparse(layout=layout), kind)
        exported = torch.export.export(module, (x,)).module()
        assert isinstance(module.A, spgrad.SparseTensor)
        torch.testing.assert_close(exported(other), module(other))
    torch.testing.assert_close(exported(other), dense @ module.linear(other).relu())
