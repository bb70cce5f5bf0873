"""torch.compile with fullgraph=True: the same numbers, on the same pattern, without a break."""

import copy
import enum

import pytest
import torch
from compiling import assert_same, compare, compiled
from samples import drawn, made
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

import spgrad
from spgrad import support, testing

layouts = pytest.mark.parametrize("name", support.ALL)

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the compiler are not ours


def random(*shape):
    return torch.randn(*shape, dtype=torch.float64)


@layouts
def test_matmul_by_inductor(name):
    def function(A, x):
        return A @ (2 * x) + 1

    compare(function, compiled(function), made(name), random(6, 3))


@pytest.mark.parametrize("name", ["T", "mT", "H", "mH"])
def test_attributes_that_transpose(name):
    """Since torch 2.14, Dynamo calls an operation of aten in place of the attribute."""

    def function(A, x):
        return getattr(A, name) @ x

    A = made("csr")
    called = {"T": "numpy_T", "H": "matrix_H"}.get(name, name)
    assert_same(getattr(torch.ops.aten, called)(A), getattr(A, name))
    compare(function, compiled(function, "aot_eager"), A, random(A.shape[0], 3))


SPELLED = {
    "torch_mm": (torch.mm, "Ax"),
    "torch_sparse_mm": (torch.sparse.mm, "Ax"),
    "torch_matmul": (torch.matmul, "Ax"),
    "dense_first": (lambda x, A: x @ A, "yA"),
    "method": (lambda A, x: A.mm(x), "Ax"),
    "vector": (lambda A, x: A @ x[:, 0], "Ax"),
    "mv": (lambda A, x: torch.mv(A, x[:, 0]), "Ax"),
    "linear": (torch.nn.functional.linear, "zA"),
    "batch": (lambda A, x: A @ torch.stack([x, 2 * x]), "Ax"),
    "addmm": (lambda A, x: spgrad.addmm(x[:1], A, x, beta=0.5, alpha=2), "Ax"),
    "to_dense": (lambda A, x: A.to_dense() @ x, "Ax"),
    "elementwise": (lambda A, x: torch.sin(A).abs() @ x, "Ax"),
    "arithmetic": (lambda A, x: (2 * A - A * A / 3 + A**2) @ x, "Ax"),
    "map": (lambda A, x: spgrad.map(A, torch.exp) @ x, "Ax"),
    "vectors": (lambda A, x: (A * x[:, 0] / x[:, 1]) @ x, "Ax"),
    "dense_sum": (lambda A, x: A + x[:, 0], "Ax"),
    "in_place": (lambda A, x: (A * 1).relu_().mul_(2) @ x, "Ax"),
    "attention": (lambda A, x: torch.softmax(A, 1) @ x, "Ax"),
    "message_passing": (lambda A, x: spgrad.spmm(A, x, "amax"), "Ax"),
}


# Every spelling in CSR, and each in one layout more: all of them in all would take minutes.
PAIRS = [
    (case, name)
    for at, case in enumerate(SPELLED)
    for name in {"csr", support.ALL[at % len(support.ALL)]}
]


@pytest.mark.parametrize(("case", "name"), sorted(PAIRS))
def test_products_traced(case, name):
    """By the compiler's own passes, less the slow last one that makes machine code."""
    function, kinds = SPELLED[case]
    operands = {"A": made(name), "x": random(6, 3), "y": random(3, 4), "z": random(3, 6)}
    compare(function, compiled(function, "aot_eager"), *(operands[k] for k in kinds))


def test_products_by_inductor():
    """Spellings that lead to different kernels, in one graph."""

    def everything(A, x, y):
        return torch.sparse.mm(A, x).sum() * torch.mm(y, A)

    compare(everything, compiled(everything), made(), random(6, 3), random(3, 4))


RETURNED = {
    "to_sparse_csc": lambda A, x, y: A.to_sparse_csc(),
    "to_sparse_coo": lambda A, x, y: A.to_sparse_coo(),
    "sampled_addmm": lambda A, x, y: spgrad.sampled_addmm(A, x, y, alpha=2),
    "torch_sampled_addmm": lambda A, x, y: torch.sparse.sampled_addmm(A, x, y, beta=0.5),
    "from_values": lambda A, x, y: spgrad.from_values(A.values() * 2 + 1, A),
    "scaled": lambda A, x, y: A * 2 - A / 4,
    "clone": lambda A, x, y: A.clone(),
}


@pytest.mark.parametrize("name", ["csr", "bsc"])
@pytest.mark.parametrize("case", RETURNED)
def test_functions_that_return_a_sparse_tensor(case, name):
    A, x, y = made(name), random(4, 3), random(3, 6)
    function = RETURNED[case]
    wanted = function(A, x, y)
    got = compiled(function, "aot_eager")(A, x, y)
    assert isinstance(got, spgrad.SparseTensor)
    assert got.layout == wanted.layout
    assert got.pattern.same_as(wanted.pattern)
    testing.assert_close(got, wanted.to_dense())

    def used(A, x, y):
        return function(A, x, y).to_dense() + 0 * (x @ y)

    y = compare(used, compiled(used, "aot_eager"), A, x, y)
    testing.assert_close(y.detach(), wanted.to_dense())


def test_sparse_results_by_inductor():
    A, x, y = made(), random(4, 3), random(3, 6)
    got = compiled(lambda A, x, y: (A.to_sparse_csc(), spgrad.sampled_addmm(A, x, y)))(A, x, y)
    for a, w in zip(got, (A.to_sparse_csc(), spgrad.sampled_addmm(A, x, y)), strict=True):
        assert a.layout == w.layout
        testing.assert_close(a, w.to_dense())


class Layer(nn.Module):
    def __init__(self, A, *, parameter):
        super().__init__()
        if parameter:
            self.A = nn.Parameter(A)
        else:
            self.register_buffer("A", A)
        self.dense = nn.Linear(3, 2, dtype=A.dtype)

    def forward(self, x):
        return self.A @ self.dense(x).relu()


@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
@pytest.mark.parametrize("parameter", [True, False])
def test_module_trained_one_step(parameter, backend):
    layer = Layer(made(), parameter=parameter)
    twin = copy.deepcopy(layer)
    x = random(6, 3)
    for model, run in ((layer, compiled(layer, backend)), (twin, twin)):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(2):
            optimizer.zero_grad()
            run(x).sin().sum().backward()
            optimizer.step()
    assert layer.A.pattern is twin.A.pattern
    for a, b in zip(layer.parameters(), twin.parameters(), strict=True):
        testing.assert_close(a.detach(), testing.dense_result(b.detach()))
    testing.assert_close(layer.A.detach(), twin.A.detach().to_dense())


@layouts
def test_module_traced(name):
    layer = Layer(made(name), parameter=True)
    twin = copy.deepcopy(layer)
    x = random(6, 3)
    compiled(layer, "aot_eager")(x).sin().sum().backward()
    twin(x).sin().sum().backward()
    assert isinstance(layer.A.grad, spgrad.SparseTensor)
    assert layer.A.grad.pattern.same_as(layer.A.pattern)
    testing.assert_close(layer.A.grad, twin.A.grad.to_dense())


@layouts
def test_calls_do_not_recompile(name):
    """Neither the views that the first call derives nor other values are a reason."""
    counter = CompileCounterWithBackend("aot_eager")
    function = torch.compile(lambda A, x: A @ x, fullgraph=True, backend=counter)
    A, x = made(name), random(6, 3)
    function(A, x)
    A.pattern  # noqa: B018
    for factor in (1, 2, 3):
        B = A * factor
        testing.assert_close(function(B, factor * x), factor**2 * (A.to_dense() @ x))
    assert counter.frame_count == 1


@layouts
def test_training_does_not_recompile(name):
    counter = CompileCounterWithBackend("aot_eager")
    A, x = made(name).requires_grad_(), random(6, 3).requires_grad_()
    function = torch.compile(lambda A, x: A @ x, fullgraph=True, backend=counter)
    for _ in range(3):
        function(A, x).sum().backward()
        with torch.no_grad():
            A.sub_(A.grad, alpha=0.1)
        A.grad = x.grad = None
    assert counter.frame_count == 1


@pytest.mark.parametrize("dynamic", [None, True])
def test_other_sizes_of_the_dense_operand(dynamic):
    counter = CompileCounterWithBackend("aot_eager")
    function = torch.compile(lambda A, x: A @ x, fullgraph=True, backend=counter, dynamic=dynamic)
    A = made()
    for n in (3, 5, 2, 7):
        x = random(6, n)
        testing.assert_close(function(A, x), A.to_dense() @ x)
    assert counter.frame_count <= 2


def test_other_patterns_of_the_sparse_operand():
    function = compiled(lambda A, x: A @ x, "aot_eager")
    for name, shape, seed in (("csr", (4, 6), 0), ("csr", (8, 6), 1), ("csc", (4, 6), 2)):
        A, x = made(name, shape, seed=seed), random(shape[1], 2)
        testing.assert_close(function(A, x), A.to_dense() @ x)


def test_properties_inside_a_trace():
    """Inside, the wrapper looks strided to the compiler; what it is stays what it is outside."""
    A = made("coo")

    def function(A, x):
        return A @ x if len(A) == 4 and A.is_sparse and not x.is_sparse else x

    assert compiled(function, "aot_eager")(A, random(6, 2)).shape == (4, 2)
    assert A.layout == torch.sparse_coo
    assert A.is_sparse


def test_refusals_are_the_same_compiled():
    A = made()
    function = torch.compile(lambda A, x: A @ x, backend="aot_eager")
    with pytest.raises(Exception, match=r"spgrad\.matmul: `\w+` has shape \(5, 2\)"):
        function(A, random(5, 2))


def test_compiles_whole(sparse):
    """Also in drop-in mode: value, pattern and gradient."""
    A, x = (
        sparse(drawn(4, 6), "coo").coalesce().requires_grad_(),
        torch.randn(6, 3, dtype=torch.float64),
    )

    @torch.compile(fullgraph=True, backend="aot_eager")
    def f(A, x):
        return torch.sparse.mm(A, x).relu().sum()

    f(A, x).backward()
    twin = A.detach().to_dense().requires_grad_()
    (twin @ x).relu().sum().backward()
    assert A.grad.pattern.same_as(A.pattern)
    testing.assert_close(A.grad, twin.grad * testing.mask_of(A.pattern))


OTHER = made("csr").detach()
PATTERNS = {
    "of an input": lambda A, x: A.pattern,
    "of a result": lambda A, x: (A * 2).pattern,
    "of a closed-over tensor": lambda A, x: OTHER.pattern,
}


@layouts
@pytest.mark.parametrize("which", PATTERNS)
def test_values_on_the_pattern(which, name):
    def function(A, x):
        pattern = PATTERNS[which](A, x)
        assert pattern.nse > 0
        return spgrad.from_values(A.values() ** 2, pattern) @ x

    A = made("csr" if "closed" in which else name)
    compare(function, compiled(function, "aot_eager"), A, random(6, 3))


def test_patterns_of_several_sizes_share_a_graph():
    def function(A, x):
        return spgrad.from_values(A.values() * x[0, 0], A.pattern) @ x

    counter = CompileCounterWithBackend("aot_eager")
    whole = torch.compile(function, fullgraph=True, backend=counter)
    for m in (5, 7, 9, 4):
        A = spgrad.from_dense(drawn(m, m))
        compare(function, whole, A, random(m, 3))
    assert counter.frame_count <= 2


def test_a_pattern_of_no_tensor_in_the_graph():
    pattern = OTHER.pattern

    def function(v):
        return spgrad.from_values(2 * v, pattern).sum()

    v = OTHER.values().clone()
    with pytest.raises(Exception, match=r"Write spgrad.from_values\(values, A\) for a"):
        compiled(function, "aot_eager")(v)
    torch.compiler.reset()
    testing.assert_close(torch.compile(function, backend="aot_eager")(v), function(v))


class _Dim(enum.IntEnum):
    ROWS = 0


def test_objects_that_are_no_patterns():
    """torch takes its own kinds of them into a graph, and refuses others in its own words."""
    x = random(6, 2)
    found = compiled(lambda A, x: (A @ x).sum(_Dim.ROWS), "aot_eager")(OTHER, x)
    testing.assert_close(found, (OTHER @ x).sum(0))
    other = object()
    with pytest.raises(Exception, match=r"Missing `as_proxy\(\)`"):
        compiled(lambda x: torch.sin(x, other), "aot_eager")(torch.ones(2))


def test_a_graph_that_dynamo_did_not_make():
    """Inductor alone compiles it for the sizes given: the sizes of the trace are numbers."""
    graph = torch.fx.Graph()
    A, x = graph.placeholder("A"), graph.placeholder("x")
    graph.output((graph.call_function(spgrad.matmul, (graph.call_function(spgrad.sin, (A,)), x)),))
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    x = random(6, 3)
    (y,) = torch._inductor.compile(module, [OTHER, x])(OTHER, x)
    testing.assert_close(y, OTHER.to_dense().sin() @ x)
