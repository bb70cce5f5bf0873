"""torch.export with strict=True: modules that make no pattern, and a refusal of the others."""

import pytest
import torch
from samples import made
from torch import nn

import spgrad
from spgrad import testing

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the compiler are not ours


class Module(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.A = nn.Parameter(made("csr", (6, 6)).detach())
        self.function = function

    def forward(self, x):
        return self.function(self.A, x)


def exported(function, *, strict):
    module, x = Module(function), torch.ones(6, 2, dtype=torch.float64)
    program = torch.export.export(module, (x,), strict=strict)
    testing.assert_close(program.module()(x), module(x).detach())


MAKES = {
    "product": lambda A, x: (A @ A) @ x,
    "part": lambda A, x: A[2:5] @ x,
    "sum": lambda A, x: (A + A.T) @ x,
    "pieces": lambda A, x: A.chunk(2)[1] @ x,
}


@pytest.mark.parametrize("case", MAKES)
def test_new_patterns(case):
    exported(MAKES[case], strict=False)
    with pytest.raises(Exception, match=r"strict=False, the default of torch\.export, is accepted"):
        exported(MAKES[case], strict=True)


def test_the_pattern_of_the_operand():
    exported(lambda A, x: torch.softmax(2 * A, 1) @ x, strict=True)


KEEPS = {
    "mean": lambda A, x: spgrad.mm(A, x, reduce="mean"),
    "joined": lambda A, x: torch.cat([A, A]) @ x,
    "converted": lambda A, x: A.to_sparse_csc() @ x,
    "normalized": lambda A, x: spgrad.normalize(A, dim=0) @ x,
}


@pytest.mark.parametrize("case", KEEPS)
def test_what_a_pattern_keeps_is_part_of_the_program(case):
    """Not a constant from the trace of Dynamo, which had no numbers."""
    exported(KEEPS[case], strict=True)


def test_layers():
    graph, x = made("csr", (6, 6)).abs().float().detach(), torch.randn(6, 4)
    for layer in (spgrad.nn.SAGEConv(4, 3), spgrad.nn.GraphConv(4, 3)):
        program = torch.export.export(layer, (x, graph), strict=True)
        torch.testing.assert_close(program.module()(x, graph), layer(x, graph))
