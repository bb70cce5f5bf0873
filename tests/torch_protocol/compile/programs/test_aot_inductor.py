"""AOTInductor, which makes a parameter of each inner tensor of a parameter."""

import pytest
import torch
from samples import made
from torch import nn

import spgrad

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the compiler are not ours


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.A = nn.Parameter(made("csr", (6, 6)).float().detach())

    def forward(self, x):
        return self.A @ x


def packaged(layer, x, path):
    program = torch.export.export(layer, (x,))
    path = torch._inductor.aoti_compile_and_package(program, package_path=str(path / "m.pt2"))
    return torch._inductor.aoti_load_package(path)


def test_a_parameter_that_requires_a_gradient(tmp_path):
    with pytest.raises(spgrad.StateError, match=r"Call module\.requires_grad_\(False\)"):
        packaged(Layer(), torch.randn(6, 3), tmp_path)


def test_a_sparse_parameter(tmp_path):
    layer, x = Layer().requires_grad_(False), torch.randn(6, 3)
    torch.testing.assert_close(packaged(layer, x, tmp_path)(x), layer(x))
