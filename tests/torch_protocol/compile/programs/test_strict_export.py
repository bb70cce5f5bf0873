"""torch.export with strict=True: modules that make no pattern, and a refusal of the others."""

import pytest
import torch
from samples import made
from torch import nn

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
