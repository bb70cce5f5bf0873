"""Programs for torch.sparse that rely on more of torch than its sparse functions."""

import threading

import pytest
import torch
from torch import nn

import spgrad


class Smoothed(nn.Module):
    def __init__(self, A, kind):
        super().__init__()
        if kind == "buffer":
            self.register_buffer("A", A)
        else:
            self.A = nn.Parameter(A, requires_grad=kind == "trained")
        self.linear = nn.Linear(4, 2)

    def forward(self, x):
        return self.A @ self.linear(x).relu()


@pytest.mark.parametrize("kind", ["buffer", "frozen", "trained"])
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr], ids=str)
def test_modules_are_exported(layout, kind):
    dense, x, other = torch.eye(3) + torch.eye(3).roll(1, 0), torch.randn(3, 4), torch.randn(3, 4)
    with spgrad.dropin():
        module = Smoothed(dense.to_sparse(layout=layout), kind)
        exported = torch.export.export(module, (x,)).module()
        assert isinstance(module.A, spgrad.SparseTensor)
        torch.testing.assert_close(exported(other), module(other))
    torch.testing.assert_close(exported(other), dense @ module.linear(other).relu())


class SumOfRows(torch.autograd.Function):
    """The sums of rows of a hybrid tensor, as graph attention of relations adds up its edges."""

    @staticmethod
    def forward(ctx, indices, weights, size):
        A = torch.sparse_coo_tensor(indices, weights, size)
        ctx.rows = A._indices()[0]
        return torch.sparse.sum(A, 1).to_dense()

    @staticmethod
    def backward(ctx, g):
        return None, g[ctx.rows], None


def test_results_of_functions_of_the_program_change_in_place():
    indices = torch.tensor([[0, 0, 2], [1, 1, 0]])
    weights = torch.randn(3, 2, requires_grad=True)
    with spgrad.dropin():
        sums = SumOfRows.apply(indices, weights, (3, 3, 2))
        sums[sums == 0.0] = 1e-12
        sums.square().sum().backward()
    wanted = 2 * torch.stack([weights[:2].sum(0)] * 2 + [weights[2]])
    torch.testing.assert_close(weights.grad, wanted)


DENSE = torch.tensor([[0.0, 2.0], [3.0, 0.0]])


def doubled(A: torch.Tensor) -> torch.Tensor:
    """Doubles sparse tensors, and negates dense ones."""
    if A.is_sparse or A.layout == torch.sparse_csr:
        return A * 2.0
    return A * -1.0


class Doubled(nn.Module):
    def forward(self, A: torch.Tensor) -> torch.Tensor:
        return doubled(A)


def product(A: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.mm(A, x)


@pytest.mark.filterwarnings("ignore:.torch.jit")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr], ids=str)
def test_scripts_get_native_tensors(layout):
    script, branches = torch.jit.script(Doubled()), torch.jit.script(doubled)
    call = torch._C.ScriptFunction.__call__
    with spgrad.dropin(fallback="refuse"):
        A = DENSE.to_sparse(layout=layout)
        for found in (script(A), branches(A), script(A=A), branches(A=A)):
            assert isinstance(found, spgrad.SparseTensor)
            torch.testing.assert_close(found.to_dense(), 2 * DENSE)
        torch.testing.assert_close(branches(DENSE), -DENSE)
    assert torch._C.ScriptFunction.__call__ == call
    torch.testing.assert_close(branches(DENSE.to_sparse(layout=layout)).to_dense(), 2 * DENSE)


@pytest.mark.filterwarnings("ignore:.torch.jit")
def test_scripts_are_torchs_own_in_a_thread_without_the_block():
    """The call of scripts is replaced in all threads."""
    found = []

    def work():
        native = torch.eye(2).to_sparse()
        found.extend([native, torch.jit.script(product)(native, torch.ones(2, 1).to_sparse())])

    with spgrad.dropin():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert [type(x) for x in found] == [torch.Tensor, torch.Tensor]
    assert found[1].is_sparse
    assert found[1].to_dense().tolist() == [[1.0], [1.0]]


@pytest.mark.filterwarnings("ignore:.torch.jit")
def test_gradients_of_scripts_stay_on_the_pattern():
    x = torch.tensor([[1.0, 5.0], [2.0, 7.0]])
    multiply, trace = torch.jit.script(product), torch.jit.trace(product, (DENSE, x))
    with spgrad.dropin():
        for function in (multiply, trace):
            A = DENSE.to_sparse_csr().requires_grad_()
            y = function(A, x)
            y[:, 1].sum().backward()
            torch.testing.assert_close(y, DENSE @ x)
            torch.testing.assert_close(A.grad.values(), torch.tensor([7.0, 5.0]))


def test_programs_compile_in_one_graph():
    x = torch.tensor([[1.0, 5.0], [2.0, 7.0]])
    whole = torch.compile(
        lambda A, x: torch.sparse.mm(A, x) + A.to_dense(), fullgraph=True, backend="aot_eager"
    )
    with spgrad.dropin():
        torch.testing.assert_close(whole(DENSE.to_sparse_csr(), x), DENSE @ x + DENSE)


@pytest.mark.filterwarnings("ignore:.torch.jit", "ignore::torch.jit.TracerWarning")
def test_a_trace_follows_native_tensors():
    """Conversions inside of the traced function gave SparseTensors, whose values were constants."""
    x, A = torch.tensor([[1.0, 5.0], [2.0, 7.0]]), DENSE.to_sparse()
    with spgrad.dropin():
        trace = torch.jit.trace(lambda D, x: torch.mm(D.to_sparse(), x), (DENSE, x))
        torch.testing.assert_close(trace(x, DENSE), x @ DENSE)
        with pytest.raises(spgrad.UnsupportedError, match=r"torch\.jit\.trace records the call"):
            torch.jit.trace(product, (A, x))


@pytest.mark.filterwarnings("ignore:.torch.jit")
def test_errors_of_scripts_stay_torchs():
    with spgrad.dropin(), pytest.raises(RuntimeError, match="mat1 and mat2"):
        torch.jit.script(product)(DENSE.to_sparse_csr(), torch.ones(3, 1))


@pytest.mark.parametrize("values", [[2.0, -1.0, 4.0], [2, -1, 4], [True, True, True]], ids=str)
@pytest.mark.parametrize(
    "options",
    [{"dim": 1}, {"axis": 0}, {"dim": -1, "keepdim": True}, {"dim": 0, "dtype": torch.float64}],
    ids=str,
)
def test_sums_along_a_dimension_are_sparse_as_those_of_torch(options, values):
    """Programs take the values of the sums: degrees, for example."""
    native = torch.sparse_coo_tensor([[0, 0, 2], [1, 2, 0]], values, (4, 3))
    wanted = native.sum(**options)
    with spgrad.dropin(fallback="refuse"):
        A = torch.sparse_coo_tensor([[0, 0, 2], [1, 2, 0]], values, (4, 3))
        sums = [A.sum(**options), torch.sum(A, **options), torch.sum(native, **options)]
        assert [A.sum(**options).coalesce().values().tolist() for A in (A, native)] == [
            wanted.coalesce().values().tolist()
        ] * 2
    for found in sums:
        assert isinstance(found, spgrad.SparseTensor)
        torch.testing.assert_close(spgrad.to_torch(found), wanted)


def test_sums_of_csr_are_sparse_where_their_dimension_is_kept():
    dense = torch.tensor([[0.0, 2.0, 1.0], [0.0, 0.0, 0.0]])
    wanted = dense.to_sparse_csr().sum(1, keepdim=True)
    with spgrad.dropin():
        A = dense.to_sparse_csr().requires_grad_()
        kept = A.sum(1, keepdim=True)
        kept.values().square().sum().backward()
        assert A.grad.values().tolist() == [6, 6]
        assert A.sum().item() == 3
        assert A.sum(1, specified=True).tolist() == [3, 0]
    assert kept.layout == torch.sparse_csr
    torch.testing.assert_close(spgrad.to_torch(kept.detach()), wanted)


def test_functions_of_graphs_do_not_see_the_mode():
    torch.manual_seed(0)
    A = spgrad.from_edges(torch.tensor([[0, 1, 2, 2], [1, 2, 0, 1]]), torch.rand(4)).to_sparse_coo()
    x = torch.randn(3, 2)
    layer = spgrad.nn.GraphConv(2, 2)
    functions = (
        lambda: spgrad.graph.degree(A, weighted=True),
        lambda: spgrad.graph.normalize(A, "sym").to_dense(),
        lambda: spgrad.graph.laplacian(A).to_dense(),
        lambda: spgrad.sum(A, 1),
        lambda: layer(x, A),
    )
    for function in functions:
        wanted = function()
        with spgrad.dropin():
            found = function()
        assert type(found) is torch.Tensor
        torch.testing.assert_close(found, wanted)
