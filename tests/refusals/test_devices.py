"""Operands on different devices are refused by name; meta stands for the other device."""

import re

import pytest
import torch

import spgrad
from spgrad import nn, testing

SAYS = re.compile(
    r"spgrad(?:\.[\w.]+|, in A\[0\] = Tensor): `(\S+)` is on (\w+); `(\S+)` is on (\w+), "
    r"and one device for all is accepted\."
)
SIZES_ALONE = {"expand_as", "is_same_size", "reshape_as", "view_as"}
"""Operations that look at the shape of an operand, which may lie anywhere."""
NUMBERS_FIRST = {"factor"}
"""Operations that read the first operand before there is a second one."""

CELLS = {}
for _cell in testing.cells():
    if len(testing.sample(_cell)) > 1 and _cell.op.name not in SIZES_ALONE:
        CELLS.setdefault((_cell.op.name, _cell.signature), _cell)


def refused(call):
    with pytest.raises(spgrad.ArgumentValueError) as raised:
        call()
    said = SAYS.match(str(raised.value))
    assert said, raised.value
    assert said[1] != said[3]
    assert {said[2], said[4]} == {"cpu", "meta"}
    return said


@pytest.mark.parametrize("name", sorted({name for name, _ in CELLS}))
def test_an_operand_elsewhere_is_refused(name):
    for cell in (cell for (op, _), cell in CELLS.items() if op == name):
        operands = testing.sample(cell)
        for at, operand in enumerate(operands):
            others = operands[:at] + operands[at + 1 :]
            if (at == 0 and name in NUMBERS_FIRST) or not any(map(is_fixed, others)):
                continue
            moved = [*operands[:at], operand.detach().to("meta"), *operands[at + 1 :]]
            refused(lambda cell=cell, moved=moved: testing.run_all(cell, moved))


def is_fixed(operand):
    """Whether an operand has to be on the device of the others: 0-d tensors may be on the CPU."""
    return isinstance(operand, spgrad.SparseTensor) or operand.dim() > 0


A = testing.random_sparse((4, 4), dtype=torch.float32, density=0.9)
X = torch.ones(4, 3)
THERE, X_THERE = A.to("meta"), X.to("meta")
LAYERS = {
    "GraphConv": lambda: nn.GraphConv(3, 2),
    "GraphConv_cached": lambda: nn.GraphConv(3, 2, cached=True),
    "GraphAttention": lambda: nn.GraphAttention(3, 2),
    "GraphAttention_2": lambda: nn.GraphAttention(3, 2, version=2),
    "SAGEConv": lambda: nn.SAGEConv(3, 2),
    "GINConv": lambda: nn.GINConv(torch.nn.Linear(3, 2)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_refuse_features_elsewhere(name):
    layer = LAYERS[name]()
    for x, graph in ((X, THERE), (X_THERE, A)):
        said = refused(lambda x=x, graph=graph: layer(x, graph))
        assert {said[1], said[3]} == {"A", "x"}


def test_layers_name_the_end_that_is_elsewhere():
    said = refused(lambda: nn.SAGEConv((3, 3), 2)((X, X_THERE), A))
    assert {said[1], said[3]} == {"A", "x[1]"}


def test_a_sparse_layer_refuses_inputs_elsewhere():
    refused(lambda: nn.SparseLinear(3, 2, density=0.5)(X_THERE))


OTHERS = {
    "from_values": lambda: spgrad.from_values(A.values().to("meta"), A),
    "matmul": lambda: A @ X_THERE,
    "matmul_of_sparse": lambda: A @ THERE,
    "matmul_from_left": lambda: X_THERE.T @ A,
    "in_place": lambda: A.clone().add_(THERE),
    "assignment": lambda: A.clone().__setitem__(0, torch.ones(4, device="meta")),
    "gradient": lambda: setattr(A.clone().requires_grad_(), "grad", THERE),
    "inverse_at": lambda: spgrad.linalg.inverse_at(A, THERE),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_operation_of_the_table_is_refused_too(name):
    refused(OTHERS[name])


def test_a_number_may_stay_on_the_cpu():
    assert (THERE * torch.tensor(2.0)).device.type == "meta"
    assert torch.lerp(THERE, THERE, torch.tensor(0.5)).device.type == "meta"


WHERE_LAYERS_ARE = {
    **{name: lambda make=make: make().to("meta")(X, A) for name, make in LAYERS.items()},
    "attention of version 2": lambda: nn.GraphAttention(3, 2, version=2, device="meta")(X, A),
    "SparseAttention": lambda: nn.SparseAttention(3, 1, pattern=A, device="meta")(X, X, X),
    "SparseEmbeddingBag": lambda: nn.SparseEmbeddingBag(3, 2, device="meta")(
        torch.tensor([[0, 1]])
    ),
}


@pytest.mark.parametrize("name", [name for name in WHERE_LAYERS_ARE if "cached" not in name])
def test_a_layer_elsewhere_is_named(name):
    with pytest.raises(
        spgrad.ArgumentValueError, match=r"is on cpu; the layer is on meta|is on meta; .* is on cpu"
    ):
        WHERE_LAYERS_ARE[name]()


SAMPLED = {
    "saint_sample": lambda: spgrad.data.saint_sample(THERE, 2),
    "sample_neighbors": lambda: spgrad.data.sample_neighbors(THERE, [0], 2),
    "NeighborLoader": lambda: spgrad.data.NeighborLoader(THERE),
}


@pytest.mark.parametrize("name", SAMPLED)
def test_graphs_without_data_are_not_sampled(name):
    with pytest.raises(
        spgrad.UnsupportedError, match=rf"^spgrad\.data\.{name}: `(A|data)` is on meta, where a"
    ):
        SAMPLED[name]()
