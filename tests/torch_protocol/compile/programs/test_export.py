"""torch.export of what torch itself executes for a SparseTensor: copies, conversions of dtype."""

import pytest
import torch
from samples import made
from torch import nn

import spgrad

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the compiler are not ours

OF_VALUES = {
    "float": lambda A, x: A.float() @ x.float(),
    "of_a_result": lambda A, x: (A * 2).half() @ x.half(),
    "to": lambda A, x: A.to(torch.complex64) @ x.to(torch.complex64),
    "to_its_own": lambda A, x: A.to(torch.float64) @ x,
    "to_a_device": lambda A, x: A.to("cpu") @ x,
    "type": lambda A, x: A.type(torch.float32) @ x.float(),
    "clone": lambda A, x: A.clone() @ x,
    "detach": lambda A, x: A.detach() @ x,
    "in_place": lambda A, x: (A * 1).mul_(2).div_(4) @ x,
    "lerp": lambda A, x: spgrad.lerp(A, 2 * A, 0.5) @ x,
}


class Module(nn.Module):
    def __init__(self, function, A):
        super().__init__()
        self.register_buffer("A", A)
        self.function = function

    def forward(self, x):
        return self.function(self.A, x)


@pytest.mark.parametrize(("case", "name"), [*((c, "csr") for c in OF_VALUES), ("float", "coo")])
def test_calls_that_torch_executes(case, name):
    module = Module(OF_VALUES[case], made(name, (6, 6)).detach())
    x = torch.randn(6, 2, dtype=torch.float64)
    program = torch.export.export(module, (torch.ones_like(x),))
    torch.testing.assert_close(program.module()(x), module(x))


def test_copy_of_another_pattern():
    other = made("csr", (6, 6), seed=1).detach()
    module = Module(lambda A, x: (A * 1).copy_(other) @ x, made("csr", (6, 6)).detach())
    with pytest.raises(spgrad.UnsupportedError, match=r"copy_ whose `source` is no SparseTensor"):
        torch.export.export(module, (torch.ones(6, 2, dtype=torch.float64),))
