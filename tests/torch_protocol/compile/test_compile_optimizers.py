"""A compiled step of an optimizer: one graph, with the same result as for dense values.

torch's compiled steps differ from its eager ones by the rounding of float32 corrections; that of
the values as a dense parameter is the reference.
"""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import spgrad
from spgrad import testing

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the compiler are not ours


class Layer(nn.Module):
    def __init__(self, *, sparse=True):
        super().__init__()
        A = testing.random_sparse((6, 5), torch.sparse_csr, seed=0).detach()
        self.pattern = A.pattern
        self.A = nn.Parameter(A if sparse else A.values().clone())
        self.bias = nn.Parameter(torch.ones(6, 1, dtype=self.A.dtype))

    def forward(self, x):
        dense = not isinstance(self.A, spgrad.SparseTensor)
        A = spgrad.from_values(self.A, self.pattern) if dense else self.A
        return (A @ x + self.bias).sin().sum()


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
}


def compare(made, backend="aot_eager", whole=False):
    torch.manual_seed(0)
    x = torch.randn(5, 3, dtype=torch.float64)
    found = []
    for sparse in (False, True):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        layer = Layer(sparse=sparse)
        optimizer = made(layer.parameters())
        step = optimizer.step if whole else torch.compile(optimizer.step, backend=backend)

        def train(layer=layer, optimizer=optimizer, step=step):
            optimizer.zero_grad()
            loss = layer(x)
            loss.backward()
            step()
            return loss

        run = torch.compile(train, backend=backend) if whole and sparse else train
        found.append(([run().detach() for _ in range(3)], layer))
    (wanted, theirs), (losses, ours) = found
    testing.assert_close(torch.stack(losses), torch.stack(wanted))
    assert ours.A.pattern is ours.pattern
    testing.assert_close(ours.A.detach().values(), theirs.A.detach())
    testing.assert_close(ours.bias.detach(), theirs.bias.detach())


@pytest.mark.parametrize("case", OPTIMIZERS)
def test_a_step_is_one_graph(case):
    """And one more for SGD, whose first step has no momentum yet."""
    compare(OPTIMIZERS[case])
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2


def test_a_whole_train_step():
    """Forward, backward and the update, with the breaks that the compiler makes at `backward`."""
    compare(OPTIMIZERS["sgd"], whole=True)


HELD = SimpleNamespace()


def step_of_what_is_held():
    HELD.optimizer.zero_grad()
    loss = (HELD.A @ HELD.x).sin().sum()
    loss.backward()
    HELD.optimizer.step()
    return loss


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_a_train_step_that_finds_its_tensors_in_a_module(layout):
    """Dynamo leaves such a forward to Python; Python alone then runs the backward too."""
    found = []
    for compiled in (False, True):
        torch._dynamo.reset()
        A = testing.random_sparse((6, 5), layout, seed=0).detach()
        HELD.A, HELD.x = nn.Parameter(A), torch.ones(5, 3, dtype=A.dtype)
        HELD.optimizer = torch.optim.SGD([HELD.A], lr=0.1)
        run = step_of_what_is_held
        run = torch.compile(run, backend="aot_eager") if compiled else run
        losses = [run().detach() for _ in range(3)]
        found.append((torch.stack(losses), HELD.A.detach().values()))
        assert HELD.A.pattern is A.pattern
    vars(HELD).clear()
    for got, wanted in zip(*reversed(found), strict=True):
        testing.assert_close(got, wanted)


class GCN(nn.Module):
    """Two layers; the weights of the edges are a parameter, sparse or the dense tensor of them."""

    def __init__(self, *, sparse):
        super().__init__()
        torch.manual_seed(0)
        A = testing.random_sparse((10, 10), torch.sparse_csr, seed=0).detach()
        self.pattern = A.pattern
        self.A = nn.Parameter(A.clone() if sparse else A.values().clone())
        self.first = nn.Linear(4, 8, dtype=A.dtype)
        self.second = nn.Linear(8, 3, dtype=A.dtype)

    def forward(self, x):
        sparse = isinstance(self.A, spgrad.SparseTensor)
        A = self.A if sparse else spgrad.from_values(self.A, self.pattern)
        A = torch.softmax(A, 1)
        return A @ self.second((A @ self.first(x)).relu())


def trained(*, sparse, compile):
    """Losses and parameters of three steps."""
    torch._dynamo.reset()
    net = GCN(sparse=sparse)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    x = torch.linspace(-1, 1, 40, dtype=torch.float64).view(10, 4)

    def step():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(x), x[:, :3])
        loss.backward()
        optimizer.step()
        return loss

    run = torch.compile(step, backend="aot_eager") if compile else step
    losses = [run().detach() for _ in range(3)]
    parameters = [p.detach() for p in net.parameters()]
    if sparse:
        assert parameters[0].pattern is net.pattern
        parameters[0] = parameters[0].values()
    return [torch.stack(losses), *parameters]


def test_a_network_trained_by_adam():
    """Compiled as a whole, the sparse parameter ends where a dense one of its values does.

    The compiled step of Adam rounds its corrections of the moments to float32, also for dense
    parameters: equality in float64 is between those that are both compiled, or both are not.
    """
    compiled = trained(sparse=True, compile=True)
    eager = trained(sparse=True, compile=False)
    for got, wanted in zip(compiled, trained(sparse=False, compile=True), strict=True):
        testing.assert_close(got, wanted)
    for got, wanted in zip(eager, trained(sparse=False, compile=False), strict=True):
        testing.assert_close(got, wanted)
    for got, wanted in zip(compiled, eager, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)  # of float32


def test_a_gradient_on_another_pattern_is_refused():
    layer = Layer()
    optimizer = OPTIMIZERS["sgd"]([layer.A])
    step = torch.compile(optimizer.step, backend="aot_eager")
    p = layer.A.pattern
    layer.A.grad = spgrad.from_values(layer.A.values().detach(), layer.A)
    step()
    moved = spgrad.sparse_csr_tensor(
        p.indices[0], p.indices[1].flip(0), layer.A.grad.values(), p.shape, check_invariants=False
    )
    with torch._C.DisableTorchFunctionSubclass():  # `A.grad = moved` is refused itself
        layer.A.grad = moved
    with pytest.raises(Exception, match="two SparseTensors of different patterns"):
        step()


@pytest.mark.parametrize(
    ("layout", "said"), [("csr", "csr, nse 13; csr, nse 12"), ("csc", r"csr, nse 13; csc, nse \w+")]
)
def test_a_gradient_of_another_form_is_refused(layout, said):
    """Its number of elements or its layout differs, which the graph would show before any run."""
    layer = Layer()
    A = layer.A.detach()
    i, j = A.to_sparse_coo().indices()
    fewer = spgrad.sparse_coo_tensor(torch.stack([i, j])[:, 1:], A.values()[1:], A.shape)
    given = A.to_sparse_csc() if layout == "csc" else fewer.to_sparse_csr()
    with torch._C.DisableTorchFunctionSubclass():  # `A.grad = given` is refused itself
        layer.A.grad = given
    step = torch.compile(OPTIMIZERS["sgd"]([layer.A]).step, backend="aot_eager")
    with pytest.raises(Exception, match=rf"different patterns \({said}\)"):
        step()
