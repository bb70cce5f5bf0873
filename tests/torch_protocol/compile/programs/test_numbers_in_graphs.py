"""Numbers and sizes that vary from call to call: Dynamo gives them to an operation as symbols."""

import pytest
import torch
from compiling import assert_same, compare, compare_in_two_graphs
from samples import made
from torch._dynamo.testing import CompileCounterWithBackend

import spgrad

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the compiler are not ours


def ones(A, *shape):
    return torch.ones(*shape, dtype=A.dtype)


SIZES = {
    "times": lambda A: A * A.shape[0],
    "divided": lambda A: A / A.shape[0],
    "reflected": lambda A: A.shape[1] * A,
    "in_place": lambda A: (A * 1).div_(A.shape[0]),
    "numel": lambda A: A * A.numel(),
    "nse": lambda A: A / A.nse,
    "set_diag": lambda A: spgrad.set_diag(A, A.shape[0]).to_dense(),
    "remainder": lambda A: torch.remainder(A, A.shape[1]),
    "alpha": lambda A: torch.add(A, A, alpha=A.shape[0]),
    "addmm": lambda A: spgrad.addmm(
        ones(A, A.shape[0], 2), A, ones(A, A.shape[1], 2), alpha=A.nse, beta=A.shape[0]
    ),
}


@pytest.mark.parametrize("case", SIZES)
def test_sizes_as_numbers(case):
    shapes = [made("csr", (6 + 2 * seed, 5 + seed), seed=seed) for seed in range(3)]
    compare_in_two_graphs(SIZES[case], shapes)


FACTORS = {
    "times": lambda A, a: A * a,
    "divided": lambda A, a: A / a,
    "reflected": lambda A, a: a * A,
    "in_place": lambda A, a: (A * 1).mul_(a),
    "greater": lambda A, a: A * (A > a).to(A.dtype),
    "power": lambda A, a: A.abs() ** a,
    "threshold": lambda A, a: spgrad.prune(A, a / 10).to_dense(),
    "where": lambda A, a: torch.where(A > 0.1, A, 0 * a),
    "norm": torch.linalg.vector_norm,
    "clamped": lambda A, a: A.clamp(-a, a),
}
MANY = {"power", "where", "norm", "clamped"}
"""For these, torch compiles once for each number, as with dense operands."""


INTS = sorted(FACTORS.keys() - {"power"})
"""torch itself does not compile a power whose exponent is a symbol."""


@pytest.mark.parametrize(
    ("case", "kind"), [*((c, float) for c in FACTORS), *((c, int) for c in INTS)]
)
def test_numbers_that_vary(case, kind):
    counter = CompileCounterWithBackend("aot_eager")
    function = FACTORS[case]
    compiled = torch.compile(function, fullgraph=True, backend=counter)
    A = made()
    for number in (2, 3, 4):
        factor = kind(number) + (0.5 if kind is float else 0)
        compare(lambda A, a=factor: compiled(A, a), lambda A, a=factor: function(A, a), A)
    assert counter.frame_count <= (4 if case in MANY else 2)


def test_an_exponent_that_is_a_symbol():
    """As far as torch compiles it: without a gradient."""
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda A, n: A**n, fullgraph=True, dynamic=True, backend=counter)
    A = made().detach()
    for n in (2, 3, 4):
        assert_same(compiled(A, n), A**n)
    with pytest.raises(Exception, match="`exponent` is 0, with which 0 becomes"):
        compiled(A, 0)


@pytest.mark.parametrize("function", [torch.equal, torch.allclose])
def test_a_question_about_numbers_breaks_the_graph(function):
    """With a refusal of our own; the call runs eagerly."""

    def asks(A):
        return A * (2 if function(A, A) else 3)

    A = made()
    with pytest.raises(Exception, match=f"spgrad.{function.__name__}: torch.compile or"):
        torch.compile(asks, fullgraph=True, backend="aot_eager")(A)
    torch._dynamo.reset()
    assert_same(torch.compile(asks, backend="aot_eager")(A), 2 * A)


ALONG = {
    "sort": lambda A: spgrad.sort(A, 1)[0],
    "argsort": lambda A: A * spgrad.argsort(A, 1),
    "topk": lambda A: torch.topk(A, 2, 1).values,
    "specified": lambda A: spgrad.topk(A, 2, specified=True).values,
}


@pytest.mark.parametrize("case", ALONG)
def test_orders_of_rows(case):
    shapes = [made("csr", (6 + 2 * seed, 5 + seed), seed=seed) for seed in range(3)]
    compare_in_two_graphs(ALONG[case], shapes)
