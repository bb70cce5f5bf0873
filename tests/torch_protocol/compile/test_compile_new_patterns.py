"""Operations that make a pattern, with fullgraph=True: in the graph, or refused by name."""

import operator

import pytest
import torch
from compiling import compare, compiled
from samples import made
from torch._dynamo.testing import CompileCounterWithBackend

import spgrad
from spgrad import testing
from spgrad.nn import patterns
from spgrad.public import public_op
from spgrad.torch_protocol.compile import when_tracing

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the compiler are not ours

WHOLE = {
    "sum_of_two": lambda A: A + A.t().to_sparse_csr(),
    "product_of_two": lambda A: A * A.t().to_sparse_csr(),
    "columns": lambda A: A[:, 1:4],
    "blocks": lambda A: A.to_sparse_bsr((2, 2)),
    "prune": lambda A: spgrad.prune(A, 0.5),
    "from_dense": lambda A: spgrad.from_dense(A.to_dense()),
    "join": lambda A: torch.cat([A, A.flip(0)]),
    "set_diag": lambda A: spgrad.set_diag(A, 1.0),
    "tril": lambda A: A.tril(),
    "tril_of_bsr": lambda A: A.to_sparse_bsr((2, 2)).tril(),
    "triu_of_bsc": lambda A: A.to_sparse_bsc((2, 2)).triu(1),
    "prune_of_bsr": lambda A: spgrad.prune(A.to_sparse_bsr((2, 2)), 0.5),
    "where": lambda A: spgrad.where(A != 0, A, A.t().to_sparse_csr()),
    "product": lambda A: A @ A.t(),
    "products": lambda A: (A @ A) @ A,
    "product_of_bsr": lambda A: A.to_sparse_bsr((2, 2)) @ A.to_sparse_bsr((2, 2)),
    "pruned_product_of_csc": lambda A: spgrad.prune(A.to_sparse_csc(), 0.5) @ A,
    "sum_of_bsr": lambda A: A.to_sparse_bsr((2, 2)) + A.to_sparse_bsr((2, 2)).mT,
    "set_diag_of_bsc": lambda A: spgrad.set_diag(A.to_sparse_bsc((2, 2)), 1.0),
    "rows": lambda A: A[2:5],
    "rows_from_the_end": lambda A: A[-3:-1],
    "half_of_the_rows": lambda A: A[: A.shape[0] // 2],
    "rows_and_columns": lambda A: A[1:4, 2:],
    "rows_of_rows": lambda A: A[1:][:2],
    "row": lambda A: A[1],
    "last_column": lambda A: A[:, -1],
    "element": lambda A: A * A[1, -1],
    "listed_rows": lambda A: A[torch.tensor([0, 2, 2, -1])],
    "listed_columns": lambda A: A[:, torch.tensor([3, 0])],
    "index_select": lambda A: A.index_select(0, torch.tensor([0, 2])),
    "every_other_row": lambda A: A[::2],
    "rows_backwards": lambda A: A[::-1],
    "rows_of_coo": lambda A: A.to_sparse_coo()[1:4, ::2],
    "element_of_coo": lambda A: A * A.to_sparse_coo()[1, 2],
    "rows_of_csc": lambda A: A.to_sparse_csc()[1:4],
    "rows_of_bsr": lambda A: A.to_sparse_bsr((2, 2))[2:],
    "a_row_of_bsc": lambda A: A.to_sparse_bsc((2, 2))[1],
}


def graph(n):
    return made("csr", (n, n), seed=n).detach()


@pytest.mark.parametrize("case", WHOLE)
def test_a_new_pattern_in_one_graph(case):
    """Value and gradient of changing matrices, by at most two compilations."""

    def function(A):
        B = WHOLE[case](A)
        return B.to_dense().sin().sum() + B.sum()

    counter = CompileCounterWithBackend("aot_eager")
    whole = torch.compile(function, fullgraph=True, backend=counter)
    for n in (6, 8, 10):
        compare(whole, function, graph(n))
    assert counter.frame_count <= 2


def test_by_inductor():
    def function(A, x):
        B = A + A.t().to_sparse_csr()
        return (B @ A)[1:4].to_dense() @ x

    compare(compiled(function), function, graph(6), torch.randn(6, 3, dtype=torch.float64))


def test_compact_where_the_graph_knows_no_number_of_elements():
    def function(A):
        return spgrad.compact(spgrad.prune(A, 0.5)).A.sum()

    whole = torch.compile(function, fullgraph=True, backend="aot_eager")
    compare(whole, function, graph(6))


@pytest.mark.parametrize("first", [False, True])
def test_a_new_pattern_is_returned_beside_a_product(first):
    """The product derives views of the pattern, which are no results of the graph."""

    def function(x):
        A = patterns.band(len(x), 2)
        y = A.double() @ x
        return (A, y) if first else (y, A)

    x = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    found, wanted = torch.compile(function, backend="aot_eager")(x), function(x)
    for ours, eager in zip(found, wanted, strict=True):
        testing.assert_close(ours.detach(), testing.dense_result(eager.detach()))
        assert ours.requires_grad == eager.requires_grad
    (got,), (grad,) = (torch.autograd.grad(y[first].sin().sum(), x) for y in (found, wanted))
    torch.testing.assert_close(got, grad)


OF_TWO = {
    "sum": lambda A, B: A + B,
    "product": lambda A, B: A * B,
    "greatest": lambda A, B: spgrad.maximum(A, -B),
    "where": lambda A, B: spgrad.where(A > 0, A, B),
    "scaled_sum": lambda A, B: spgrad.addcmul(A, A, B),
}


@pytest.mark.parametrize("layout", ["coo", "csr", "bsc"])
@pytest.mark.parametrize("name", OF_TWO)
def test_operands_that_share_their_pattern(name, layout):
    """A sparse result has a pattern of its own, so other operands of that size may follow."""
    whole = torch.compile(OF_TWO[name], fullgraph=True, backend="aot_eager")
    A = made(layout, (6, 6), seed=1).detach()
    compare(whole, OF_TWO[name], A, spgrad.from_values(2 * A.values().sin(), A))
    compare(whole, OF_TWO[name], A, A.flip(1))


IN_PLACE = {
    "add_": lambda A, B: A.clone().add_(B),
    "isub": lambda A, B: operator.isub(A * 1.0, B),
    "mul_": lambda A, B: A.clone().mul_(B),
    "lerp_": lambda A, B: A.clone().lerp_(B, 0.25),
    "addcmul_": lambda A, B: A.clone().addcmul_(B, B),
    "subset": lambda A, B: A.clone().add_(spgrad.prune(B, 0.5)),
}


@pytest.mark.parametrize("layout", ["coo", "csr", "csc"])
@pytest.mark.parametrize("name", IN_PLACE)
def test_results_in_place(name, layout):
    """A run finds out whether the elements of the result are those of the tensor."""
    function = IN_PLACE[name]
    whole = torch.compile(function, fullgraph=True, backend="aot_eager")
    A = made(layout, (6, 6), seed=1).detach()
    compare(whole, function, A, spgrad.from_values(2 * A.values().sin(), A))
    with pytest.raises(spgrad.StateError, match="in place, a result with the elements of `input`"):
        function(A, A.flip(1))
    with pytest.raises(RuntimeError):
        whole(A, A.flip(1))


COUNTED = {
    "nse": lambda A: A.tril().nse,
    "nse_of_coo": lambda A: spgrad.prune(A.to_sparse_coo(), 0.5).nse,
    "nse_of_blocks": lambda A: A.to_sparse_bsr((2, 2)).triu().nse,
    "nse_by_length": lambda A: patterns.band(len(A), 2).nse,
    "_nnz": lambda A: A.tril()._nnz(),
    "nse_of_operand": lambda A: A.nse,
}


@pytest.mark.parametrize("case", COUNTED)
def test_the_number_of_elements_in_one_graph(case):
    """Of a pattern that the graph makes, it differs from call to call."""

    def function(A):
        return A.to_dense() * COUNTED[case](A)

    counter = CompileCounterWithBackend("aot_eager")
    whole = torch.compile(function, fullgraph=True, backend=counter)
    for n in (6, 8, 10):
        compare(whole, function, graph(n))
    assert counter.frame_count <= 2


def test_other_tensors_have_no_nse():
    with pytest.raises(AttributeError, match="no attribute 'nse'"):
        compiled(lambda x: (2 * x).nse, "aot_eager")(torch.ones(3))


REFUSED = {
    "stack": lambda A: torch.stack(A.unbind(0)[:3]),
    "smm": lambda A: spgrad.smm(A, A.to_dense()),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_in_no_graph_says_so(name):
    """The function is named, and without fullgraph the graph breaks there."""
    function = REFUSED[name]
    with pytest.raises(
        torch._dynamo.exc.Unsupported,
        match=rf"spgrad\.{name}: torch\.compile or torch\.export traces .* Leave out fullgraph",
    ):
        compiled(function, "aot_eager")(graph(6))
    broken = torch.compile(lambda A, x: function(2 * A) @ x, backend="aot_eager")
    x = torch.randn(6, 3, dtype=torch.float64)
    compare(broken, lambda A, x: function(2 * A) @ x, graph(6), x)


def test_the_outermost_function_is_named():
    """It is the one that the user called, whatever it calls itself."""

    @public_op
    def outer(A):
        return spgrad.smm(A, A.to_dense())

    when_tracing(outer)
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"spgrad\.outer: torch\.compile"):
        compiled(lambda A: outer(A) * 2, "aot_eager")(graph(6))


def test_a_number_outside_of_the_shape_in_a_run():
    """As in a dense tensor of a compiled function, the run finds it."""
    whole = compiled(lambda A, index: A[index] * 2, "aot_eager")
    index = torch.tensor([0, 2])
    compare(lambda A: whole(A, index), lambda A: A[index] * 2, graph(6))
    with pytest.raises(RuntimeError, match="an index tensor for dimension 0 has a number outside"):
        whole(graph(6), torch.tensor([0, 6]))
    chosen = compiled(lambda A, index: A.index_select(1, index), "aot_eager")
    with pytest.raises(RuntimeError, match="an index tensor for dimension 1 has a number outside"):
        chosen(graph(6), torch.tensor([0, -1]))
