"""Every row of the support table in one graph of torch.compile, or outside of graphs by name."""

import pytest
import torch

import spgrad
from spgrad import SparseTensor, support, testing

UNKNOWN = {"smm"}
"""Rows whose result has sizes that only a run tells."""

CELLS = {}
for cell in testing.cells():  # the first in CSR, if the row has it
    if cell.op.name not in CELLS or (cell.layout == "csr" != CELLS[cell.op.name].layout):
        CELLS[cell.op.name] = cell
TRACED = [name for name, cell in CELLS.items() if cell.op.traced]
OUTSIDE = [row for row in support.OPS.values() if row.outside and row.layouts]


def compiled(cell, fullgraph):
    """Operands of a cell, a call of its function, and the call compiled."""
    torch.manual_seed(0)
    operands, function = [a.detach() for a in testing.sample(cell)], cell.op.function

    def call(*operands):
        return testing.call(cell, function, list(operands), cell.options)

    return operands, call, torch.compile(call, backend="aot_eager", fullgraph=fullgraph)


def same(found, wanted):
    if isinstance(wanted, tuple | list):
        return all(same(*pair) for pair in zip(found, wanted, strict=True))
    if not isinstance(wanted, torch.Tensor):
        return found == wanted
    if type(found) is not type(wanted) or found.layout != wanted.layout:
        return False
    dense = [t.to_dense() if isinstance(t, SparseTensor) else t for t in (found, wanted)]
    return torch.allclose(*dense, equal_nan=True)


@pytest.mark.parametrize("name", TRACED)
def test_in_one_graph(name):
    operands, call, fast = compiled(CELLS[name], True)
    if name in UNKNOWN:
        with pytest.raises(torch._dynamo.exc.Unsupported, match="numbers that the trace does not"):
            fast(*operands)
    else:
        assert same(fast(*operands), call(*operands))


@pytest.mark.parametrize("row", OUTSIDE, ids=lambda row: row.name)
def test_outside_of_graphs(row):
    function = row.function

    def call():  # ends before Dynamo looks for operands
        return function()

    with pytest.raises(torch._dynamo.exc.Unsupported, match=row.outside):
        torch.compile(call, backend="eager", fullgraph=True)()


@pytest.mark.parametrize("name", ["logdet", "solve", "factor"])
def test_outside_of_graphs_after_a_function_inside(name):
    """Dynamo compiles the options of a solver, which the same decorator made."""

    def call():
        spgrad.linalg.CG(rtol=1e-6)
        return getattr(spgrad.linalg, name)()

    with pytest.raises(torch._dynamo.exc.Unsupported, match="Call it outside of the compiled"):
        torch.compile(call, backend="eager", fullgraph=True)()


@pytest.mark.parametrize("name", ["solve", "equal", "squeeze_"])
def test_a_graph_ends_before_the_call_and_goes_on_after_it(name, capfd):
    operands, call, fast = compiled(CELLS[name], False)
    assert same(fast(*operands), call(*operands))
    assert "Graph break" not in capfd.readouterr().err
