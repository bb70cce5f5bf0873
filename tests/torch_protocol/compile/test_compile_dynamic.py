"""Compiled code over changing graphs: two compilations, the second with symbolic sizes."""

import pytest
import torch
from compiling import compare
from samples import made
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

import spgrad
from spgrad import support, testing

layouts = pytest.mark.parametrize("name", support.ALL)

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the compiler are not ours


def counted(function, backend="aot_eager", **options):
    counter = CompileCounterWithBackend(backend)
    return torch.compile(function, fullgraph=True, backend=counter, **options), counter


def graph(seed, shape=None, name="csr", **options):
    n = 10 + 4 * seed
    shape = shape or (n, n)
    return made(name, shape, seed=seed, **options).detach()


def degrees(A, x):
    scale = A.abs().sum(1).clamp(min=1).rsqrt()
    return (A * scale[:, None]) @ x


FUNCTIONS = {
    "product": lambda A, x: (A @ x).relu(),
    "both": lambda A, x: A.t() @ (A @ x),
    "attention": lambda A, x: torch.softmax(A, 1) @ x,
    "arithmetic": lambda A, x: (2 * A - A * A) @ x,
    "values": lambda A, x: spgrad.from_values(A.values().relu() + 1, A) @ x,
    "degrees": degrees,
    "messages": lambda A, x: spgrad.spmm(A, x, "amax"),
    "sampled": lambda A, x: spgrad.sampled_addmm(A, A @ x, x.t()) @ x,
    "dense": lambda A, x: A.to_dense() @ x,
    "returned": lambda A, x: A * x.sum(1),
}
PAIRS = [
    (case, name)
    for at, case in enumerate(FUNCTIONS)
    for name in {"csr", support.ALL[at % len(support.ALL)]}
]


@pytest.mark.parametrize(("case", "name"), sorted(PAIRS))
def test_graphs_of_many_sizes(case, name):
    function = FUNCTIONS[case]
    compiled, counter = counted(function)
    for seed in range(10 if case == "product" else 4):
        A = graph(seed, name=name)
        compare(compiled, function, A, torch.randn(A.shape[0], 4, dtype=A.dtype))
    assert counter.frame_count <= 2


@pytest.mark.parametrize("name", ["csr", "bsc"])
def test_sizes_known_to_vary_compile_once(name):
    function = FUNCTIONS["product"]
    compiled, counter = counted(function, dynamic=True)
    for seed in range(4):
        A = graph(seed, (20 + 2 * seed, 34 + 4 * seed), name)
        compare(compiled, function, A, torch.randn(A.shape[1], 3 + seed, dtype=A.dtype))
    assert counter.frame_count == 1


@pytest.mark.parametrize("ragged", [False, True])
def test_batches(ragged):
    """Items of equal nse or not: the shape of the values says, and a trace knows."""

    def function(A, x):
        return spgrad.from_values(A.values() * 2, A) @ x

    compiled, counter = counted(function)
    for seed in range(4):
        shape = (2, 8 + 2 * seed, 6 + 2 * seed)
        if ragged:
            A = graph(seed, shape)
            assert A.pattern.items == ()
        else:
            A = graph(seed, shape[1:]).expand(3, -1, -1)
            assert A.pattern.items == (3,)
        compare(compiled, function, A, torch.randn(A.shape[0], A.shape[2], 3, dtype=A.dtype))
    assert counter.frame_count <= 2


@pytest.mark.parametrize("name", ["csr", "csc"])
def test_an_expanded_pattern_in_a_trace(name):
    def function(A, x):
        B = A.unsqueeze(0).mT.mT
        return spgrad.from_values(B.values() * 2, B) @ x

    compiled, _ = counted(function)
    compare(compiled, function, graph(0, name=name), torch.randn(10, 3, dtype=torch.float64))


class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 8, dtype=torch.float64)
        self.second = nn.Linear(8, 3, dtype=torch.float64)

    def forward(self, A, x):
        return A @ self.second((A @ self.first(x)).relu())


def test_mini_batches_of_graphs():
    """A network trained by Adam, each step on another graph."""
    torch.manual_seed(0)
    model, twin = GCN(), GCN()
    twin.load_state_dict(model.state_dict())
    compiled, counter = counted(model, "inductor")
    for net, run in ((model, compiled), (twin, twin)):
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        for seed in range(10):
            A = graph(seed)
            x = A.to_dense()[:, :4].contiguous()
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(run(A, x), x[:, :3]).backward()
            optimizer.step()
    assert counter.frame_count <= 2
    for got, wanted in zip(model.parameters(), twin.parameters(), strict=True):
        testing.assert_close(got.detach(), wanted.detach())


def test_a_growing_matrix():
    """Rows and elements are added: also the first step, from which sizes begin to vary."""
    compiled, counter = counted(FUNCTIONS["both"])
    A = graph(0, (7, 40))
    for _ in range(8):
        compare(compiled, FUNCTIONS["both"], A, torch.randn(40, 3, dtype=A.dtype))
        A = torch.cat([A, A[:2]])
    assert counter.frame_count <= 2


@pytest.mark.parametrize("rows", [36, 38, 40])
def test_a_matrix_that_grows_past_a_square(rows):
    """Whether there are more rows than columns is no reason to compile again."""
    compiled, counter = counted(FUNCTIONS["both"])
    A = graph(0, (rows, 40))
    for _ in range(4):
        compare(compiled, FUNCTIONS["both"], A, torch.randn(40, 3, dtype=A.dtype))
        A = torch.cat([A, A[:2]])
    assert counter.frame_count <= 2


def test_sizes_that_are_equal_by_accident():
    """torch makes one symbol of sizes that are equal as they begin to vary, and compiles again."""
    compiled, counter = counted(FUNCTIONS["both"])
    for seed, shape in enumerate([(8, 6), (10, 10), (12, 15), (14, 14), (18, 16)]):
        A = graph(seed, shape)
        compare(compiled, FUNCTIONS["both"], A, torch.randn(shape[1], 3, dtype=A.dtype))
    assert counter.frame_count <= 3


@pytest.mark.parametrize("name", ["bsr", "bsc"])
def test_blocks_of_two_by_three(name):
    compiled, counter = counted(FUNCTIONS["both"])
    for seed, (m, k) in enumerate([(4, 5), (7, 6), (5, 9), (8, 11)]):
        blocks = torch.kron(graph(seed, (m, k)).to_dense(), torch.ones(2, 3, dtype=torch.float64))
        A = getattr(spgrad, f"to_sparse_{name}")(spgrad.from_dense(blocks), (2, 3))
        compare(compiled, FUNCTIONS["both"], A, torch.randn(3 * k, 4, dtype=A.dtype))
    assert counter.frame_count <= 2


def two_layouts(A):
    return A * A.to_sparse_csr().flip(0)


BREAKING = {
    "sparse_product": lambda A, x: (A @ A) @ x,
    "rows": lambda A, x: A[2:5] @ x,
    "row": lambda A, x: A[1].to_dense() @ x,
    "listed": lambda A, x: A[torch.tensor([0, 2])] @ x,
    "tril": lambda A, x: A.tril() @ x,
    "prune": lambda A, x: spgrad.prune(A, 0.5) @ x,
    "sum_of_two": lambda A, x: (A + A.t().to_sparse_csr()) @ x,
    "blocks": lambda A, x: A.to_sparse_bsr((2, 2)) @ x,
    "coalesce": lambda A, x: A.to_sparse_coo().coalesce() @ x,
    "join": lambda A, x: torch.cat([A, A]) @ x,
    # a sparse cotangent comes into the first graph, with more views than were foreseen; or two
    "rows_of_csr": lambda A, x: A.to_sparse_coo().sin().to_sparse_csr()[2:5] @ x,
    "tril_of_coo": lambda A, x: torch.softmax(A.to_sparse_coo(), 1).tril() @ x,
    "two_cotangents": lambda A, x: two_layouts((A.to_sparse_coo() * 1).tanh_()) @ x,
}


@pytest.mark.parametrize("case", BREAKING)
def test_new_patterns_are_found_between_graphs(case):
    """Where the size of a result depends on data, Python takes over for that operation."""
    function = BREAKING[case]
    compiled = torch.compile(function, backend="aot_eager")
    for n in (6, 8):
        A = graph(n, (n, n))
        compare(compiled, function, A, torch.randn(n, 3, dtype=A.dtype))


def test_clamp_in_one_graph():
    """Whether the limits keep 0 is known to a trace."""
    compiled, _ = counted(lambda A, x: A.clamp(-0.5, 0.5) @ x)
    A, x = graph(0), torch.randn(10, 3, dtype=torch.float64)
    compare(compiled, lambda A, x: A.clamp(-0.5, 0.5) @ x, A, x)
    compiled, _ = counted(lambda A: A.clamp(0.25, 0.5))
    with pytest.raises(Exception, match=r"make 0.25 of 0, so that the result would be dense"):
        compiled(A)


def test_the_library_is_not_compiled_on_its_own():
    """What a graph break leaves to Python runs there as a whole."""
    compiled = torch.compile(BREAKING["sparse_product"], backend="aot_eager")
    torch._dynamo.utils.counters.clear()
    A = graph(6, (6, 6))
    compiled(A, torch.randn(6, 3, dtype=A.dtype))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 1


@pytest.mark.parametrize("first", ["csr", "csc"])
@pytest.mark.parametrize("then", ["bsr", "bsc"])
def test_blocks_after_another_layout(first, then):
    """Sizes vary then, but not the lengths of arrays that blocks alone have."""

    def function(A, x):
        return A * 2, A @ x

    whole, _ = counted(function)
    for name, shape in ((first, (4, 8)), (then, (6, 4)), (then, (8, 6))):
        A = made(name, shape).detach()
        x = torch.randn(shape[1], 3, dtype=torch.float64, requires_grad=True)
        results = []
        for call in (whole, function):
            scaled, y = call(A, x)
            (g,) = torch.autograd.grad(y.sin().sum(), x)
            results.append((scaled.to_dense(), y, g))
        torch.testing.assert_close(*results)
