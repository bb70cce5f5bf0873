"""Sparse parameters and buffers of modules: dtypes, states, copies, and steps of SGD."""

import copy

import pytest
import torch
from samples import made
from torch import nn
from torch.nn.utils import prune

import spgrad
from spgrad import support, testing
from spgrad.core.pattern import LAYOUTS

layouts = pytest.mark.parametrize("name", support.ALL)


class Layer(nn.Module):
    def __init__(self, A, *, parameter):
        super().__init__()
        if parameter:
            self.weight = nn.Parameter(A)
        else:
            self.register_buffer("weight", A)
        self.bias = nn.Parameter(torch.zeros(4, dtype=A.dtype))

    def forward(self, x):
        return self.weight @ x + self.bias[:, None]


@layouts
def test_parameter(name):
    A = made(name)
    weight = nn.Parameter(A)
    assert isinstance(weight, nn.Parameter)
    assert isinstance(weight, spgrad.SparseTensor)
    assert weight.requires_grad
    assert weight.is_leaf
    assert weight.pattern is A.pattern
    assert not nn.Parameter(A, requires_grad=False).requires_grad
    layer = Layer(A, parameter=True)
    assert [n for n, _ in layer.named_parameters()] == ["weight", "bias"]
    layer(torch.ones(6, 2, dtype=torch.float64)).sum().backward()
    assert layer.weight.grad.pattern is A.pattern


@layouts
def test_buffer(name):
    layer = Layer(made(name), parameter=False)
    assert [n for n, _ in layer.named_buffers()] == ["weight"]
    x = torch.ones(6, 2, dtype=torch.float64)
    testing.assert_close(layer(x), layer.weight.to_dense() @ x)


@layouts
@pytest.mark.parametrize("parameter", [True, False])
def test_module_to_another_dtype(name, parameter):
    layer = Layer(made(name), parameter=parameter)
    pattern, dense = layer.weight.pattern, layer.weight.detach().to_dense()
    layer.to(torch.float32)
    assert layer.weight.dtype == torch.float32
    assert layer.weight.pattern is pattern
    assert isinstance(layer.weight, nn.Parameter) == parameter
    assert torch.equal(layer.weight.detach().to_dense(), dense.float())
    assert layer(torch.ones(6, 1)).dtype == torch.float32
    layer.double()
    assert layer.weight.dtype == torch.float64
    assert layer.weight.requires_grad == parameter
    layer.requires_grad_(False)
    layer.to("meta")
    assert layer.weight.device.type == "meta"


@layouts
@pytest.mark.parametrize("parameter", [True, False])
def test_state_dict_round_trip(name, parameter):
    layer, twin = (Layer(made(name), parameter=parameter) for _ in range(2))
    with torch.no_grad():
        layer.weight.mul_(3)
    pattern = twin.weight.pattern
    state = layer.state_dict()
    assert state["weight"].pattern is layer.weight.pattern
    twin.load_state_dict(state)
    assert twin.weight.pattern is pattern
    assert torch.equal(twin.weight.to_dense(), layer.weight.to_dense())
    twin.load_state_dict(state, assign=True)
    assert twin.weight.pattern is layer.weight.pattern
    assert isinstance(twin.weight, nn.Parameter) == parameter


@layouts
def test_state_dict_of_another_pattern_is_taken(name):
    """With its elements, as after pruning. Another layout or shape is refused."""
    layer = Layer(made(name), parameter=True)
    weight = layer.weight
    other = Layer(testing.random_sparse((4, 6), LAYOUTS[name], seed=3), parameter=True)
    layer(torch.ones(6, 1, dtype=torch.float64)).sum().backward()
    with pytest.raises(RuntimeError, match=r"has a gradient on its .*zero_grad"):
        layer.load_state_dict(other.state_dict())
    layer.zero_grad()
    layer.load_state_dict(other.state_dict())
    assert layer.weight is weight
    assert weight.pattern is other.weight.pattern
    assert weight._vals.data_ptr() != other.weight._vals.data_ptr()
    layer(torch.ones(6, 1, dtype=torch.float64)).sum().backward()
    assert weight.grad.pattern is weight.pattern
    wrong = Layer(made("coo" if name == "csr" else "csr"), parameter=True)
    with pytest.raises(RuntimeError, match="of different patterns"):
        layer.load_state_dict(wrong.state_dict())


@layouts
def test_deepcopy_shares_the_pattern(name):
    layer = Layer(made(name), parameter=True)
    layer(torch.ones(6, 1, dtype=torch.float64)).sum().backward()
    twin = copy.deepcopy(layer)
    assert twin.weight.pattern is layer.weight.pattern
    assert twin.weight is not layer.weight
    assert twin.weight._vals.data_ptr() != layer.weight._vals.data_ptr()
    assert isinstance(twin.weight, nn.Parameter)
    assert twin.weight.requires_grad
    assert twin.weight.grad is not layer.weight.grad
    assert torch.equal(twin.weight.grad.to_dense(), layer.weight.grad.to_dense())
    assert [n for n, _ in twin.named_parameters()] == ["weight", "bias"]
    shared = {"a": layer.weight, "b": layer.weight}
    pair = copy.deepcopy(shared)
    assert pair["a"] is pair["b"]
    shallow = copy.copy(layer.weight)
    assert torch.equal(shallow.detach().to_dense(), layer.weight.detach().to_dense())
    with pytest.raises(RuntimeError, match="only leaves are copied"):
        copy.deepcopy(layer.weight * 2)


OPTIMIZERS = {
    "plain": {"lr": 0.1},
    "momentum": {"lr": 0.1, "momentum": 0.9},
    "nesterov": {"lr": 0.1, "momentum": 0.9, "nesterov": True},
    "weight_decay": {"lr": 0.1, "weight_decay": 0.05},
    "maximize": {"lr": 0.1, "maximize": True},
}


@layouts
@pytest.mark.parametrize("options", OPTIMIZERS.values(), ids=list(OPTIMIZERS))
@pytest.mark.parametrize("set_to_none", [True, False])
def test_sgd_keeps_the_pattern(name, options, set_to_none):
    """Three steps equal those on the dense matrix with its gradient masked."""
    layer = Layer(made(name), parameter=True)
    pattern = layer.weight.pattern
    mask = testing.mask_of(pattern)
    weight, bias = layer.weight.detach().to_dense().requires_grad_(), layer.bias.detach().clone()
    weight.register_hook(lambda g: g * mask)
    bias.requires_grad_()
    optimizer = torch.optim.SGD(layer.parameters(), **options)
    twin = torch.optim.SGD([weight, bias], **options)
    for step in range(3):
        x = torch.randn(6, 2, dtype=torch.float64)
        optimizer.zero_grad(set_to_none=set_to_none)
        twin.zero_grad(set_to_none=set_to_none)
        layer(x).sin().sum().backward()
        (weight @ x + bias[:, None]).sin().sum().backward()
        optimizer.step()
        twin.step()
        assert layer.weight.pattern is pattern, step
        assert layer.weight.grad.pattern is pattern
        testing.assert_close(layer.weight.detach(), weight)
        testing.assert_close(layer.bias.detach(), bias)
    for state in optimizer.state.values():
        for buffer in state.values():
            if isinstance(buffer, spgrad.SparseTensor):
                assert buffer.pattern is pattern


class Doubled(nn.Module):
    """Doubles sparse tensors, and negates dense ones."""

    def forward(self, A: torch.Tensor) -> torch.Tensor:
        return A * 2.0 if A.is_sparse else A * -1.0


@pytest.mark.filterwarnings("ignore:.torch.jit")
@pytest.mark.parametrize("name", ["coo", "csr"])
def test_modules_of_torchscript_refuse_sparse_tensors(name):
    """They took the branch for dense tensors."""
    A, script = made(name), torch.jit.script(Doubled())
    with pytest.raises(spgrad.UnsupportedError, match=r"`forward` of torch\.jit.*to_torch"):
        script(A)
    native = spgrad.to_torch(made("coo"))
    torch.testing.assert_close(script(native).to_dense(), 2 * native.to_dense())


TRACED = {
    "buffer": lambda A, x: A @ x,
    "values": lambda A, x: A.values() * x.sum(),
    "made": lambda A, x: spgrad.from_dense(x).sum(),
    "layer": lambda A, x: spgrad.nn.GraphConv(3, 2, dtype=x.dtype)(x, A),
    "linear": lambda A, x: spgrad.nn.SparseLinear(3, 2, density=1.0, dtype=x.dtype)(x),
}


@pytest.mark.filterwarnings("ignore:.torch.jit", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("name", TRACED)
def test_torch_jit_trace_is_refused(name, given):
    """It kept the elements of an operand as constants, or failed inside of torch."""
    A, x = made("csr", (4, 4)).detach(), torch.ones(4, 3, dtype=torch.float64)
    function = TRACED[name]
    traced, operands = (function, (A, x)) if given else (lambda x: function(A, x), (x,))
    with pytest.raises(spgrad.UnsupportedError, match=r"torch\.jit\.trace records the call"):
        torch.jit.trace(traced, operands)
    traced(*operands)


class Positive(nn.Module):
    def forward(self, A):
        return torch.relu(A)


@pytest.mark.parametrize("name", ["coo", "csr", "bsr"])
def test_a_parametrization_is_removed_after_a_step(name):
    """torch asks the parameter for its gradient edge there."""
    module = nn.Module()
    module.A = nn.Parameter(made(name))
    wanted = made(name).to_dense().relu()
    nn.utils.parametrize.register_parametrization(module, "A", Positive())
    loss = module.A.square().sum()  # keeps the node that accumulates the gradient
    loss.backward()
    parameter = module.parametrizations.A.original
    nn.utils.parametrize.remove_parametrizations(module, "A")
    assert module.A is parameter
    assert isinstance(module.A, nn.Parameter)
    torch.testing.assert_close(module.A.detach().to_dense(), wanted)


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_edge_of_a_leaf_leads_to_its_gradient(name):
    A = made(name).requires_grad_()
    edge = torch.autograd.graph.get_gradient_edge(A)
    x = torch.arange(12.0, dtype=A.dtype).view(6, 2)
    (found,) = torch.autograd.grad((A @ x).sum(), edge)
    (wanted,) = torch.autograd.grad((A @ x).sum(), A)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("name", ["coo", "csr"])
def test_pruning_counts_the_zeros_of_a_sparse_parameter(name):
    dense = torch.tensor([[0.0, 3.0, 0.0, -1.0], [2.0, 0.0, 0.0, 4.0]])
    modules = nn.Module(), nn.Module()
    modules[0].A = nn.Parameter(spgrad.from_dense(dense, layout=LAYOUTS[name]))
    modules[1].A = nn.Parameter(dense)
    for amount, wanted in ((4, dense), (5, dense.where(dense != -1, 0.0))):
        for module in modules:
            prune.l1_unstructured(module, "A", amount)
            torch.testing.assert_close(module.A.to_dense(), wanted)
            prune.remove(module, "A")
    assert isinstance(modules[0].A, spgrad.SparseTensor)


def test_the_values_of_a_sparse_layer_are_pruned():
    torch.manual_seed(0)
    layer = spgrad.nn.SparseLinear(6, 4, density=0.5)
    x, weight = torch.randn(3, 6), layer.weight.to_dense()
    smallest = layer.values.detach().abs().sort()[0][4]
    prune.l1_unstructured(layer, "values", 4)
    wanted = weight.where(weight.abs() >= smallest, 0.0)
    torch.testing.assert_close(layer(x), x @ wanted.t() + layer.bias)
    prune.remove(layer, "values")
    torch.testing.assert_close(layer.weight.to_dense(), wanted)
