"""Attention with additive scores: cases that the dense function of its row does not cover."""

import pytest
import torch
import torch.nn.functional as F
from samples import drawn

import spgrad
from spgrad import kernels, support, testing
from spgrad.core.pattern import LAYOUTS
from spgrad.lowering import align
from spgrad.ops.products.graphs import additive_attention as module

F64 = torch.float64
layouts = pytest.mark.parametrize("name", support.ALL)


def operands(m=12, k=8, heads=4, n=3, dtype=F64, grad=True):
    shapes = (m, heads), (k, heads), (k, heads, n)
    return [drawn(*shape).to(dtype).requires_grad_(grad) for shape in shapes]


def truth(m=12, k=8, layout=torch.sparse_csr):
    return testing.random_sparse((m, k), layout, dtype=torch.bool, density=0.4)


@layouts
def test_the_kernel_and_the_composed_operations_agree(name, monkeypatch):
    """In value, and in gradients of first and second order."""
    A = spgrad.zeros_like(truth(layout=LAYOUTS[name]), dtype=F64)
    A = spgrad.from_values(torch.randn_like(A.values()), A).requires_grad_()
    given = [*operands(), A]

    def results():
        y = spgrad.additive_attention(*given, negative_slope=0.3)
        first = torch.autograd.grad(y.sin().sum(), given, create_graph=True)
        second = torch.autograd.grad(sum(values_of(t).square().sum() for t in first), given)
        plain = torch.autograd.grad(spgrad.additive_attention(*given).sin().sum(), given)
        return [values_of(t) for t in (y, *first, *second, *plain)]

    fused = results()
    monkeypatch.setattr(module, "_fused", lambda *_: False)
    for got, want in zip(fused, results(), strict=True):
        testing.assert_close(got, want)


def values_of(t):
    return t.values() if isinstance(t, spgrad.SparseTensor) else t


def test_each_operand_alone_gets_its_gradient():
    A = testing.random_sparse((12, 8), dtype=F64, density=0.4)
    whole = [*operands(), A.detach().requires_grad_()]
    g = drawn(12, 4, 3)
    wanted = torch.autograd.grad(spgrad.additive_attention(*whole), whole, g)
    for i, want in enumerate(wanted):
        given = [t.detach().requires_grad_(i == j) for j, t in enumerate(whole)]
        (got,) = torch.autograd.grad(spgrad.additive_attention(*given), given[i], g)
        testing.assert_close(values_of(got), values_of(want))


@pytest.mark.parametrize("kind", ["bool", "bias"])
def test_rows_in_which_nothing_takes_part_give_zeros_in_every_way(kind, monkeypatch):
    there = torch.tensor([[True, True], [False, False], [True, False]])
    indices = torch.tensor([[0, 0, 1, 1, 2, 2], [0, 1, 0, 1, 0, 1]])
    some = torch.stack([there, ~there], -1).reshape(6, 2)
    if kind == "bias":
        some = torch.where(some, 0.5, -torch.inf).to(F64)
    A = spgrad.sparse_coo_tensor(indices, some, (3, 2, 2))
    given = operands(3, 2, heads=2)
    for slope in (0.0, 0.2):

        def attend(slope=slope):
            return spgrad.additive_attention(*given, A, negative_slope=slope)

        y = attend()
        assert not y[1, 0].any()
        assert not y[0, 1].any()
        assert y[1, 1].any()
        grads = torch.autograd.grad(y.sum(), given)
        again = torch.autograd.grad(attend().sum(), given, create_graph=True)
        with monkeypatch.context() as patch:
            patch.setattr(module, "_fused", lambda *_: False)
            testing.assert_close(attend(), y)
        for got, want in zip(again, grads, strict=True):
            assert want.isfinite().all()
            testing.assert_close(got, want)


def test_it_is_softmax_of_leaky_relu():
    """The formula of graph attention, written with the operations that store scores."""
    left, right, x = operands()
    A = spgrad.ones_like(truth())
    row, col = A.coo_indices()
    scores = F.leaky_relu(left[row] + right[col], 0.2)
    H = spgrad.sparse_coo_tensor(torch.stack([row, col]), scores, (12, 8, 4))
    y = spgrad.spmm(spgrad.softmax(H, 1), x)
    found = spgrad.additive_attention(left, right, x, A)
    testing.assert_close(found, y)
    g = torch.randn_like(y)
    ours = torch.autograd.grad(found, (left, right, x), g)
    for got, want in zip(ours, torch.autograd.grad(y, (left, right, x), g), strict=True):
        testing.assert_close(got, want)


def test_dropout_sets_weights_to_zero_and_scales_the_others():
    mask = testing.random_sparse((40, 40), dtype=torch.bool, density=0.5)
    left, right = torch.randn(2, 40)
    each = torch.eye(40)  # so that the result is the weights
    whole = spgrad.additive_attention(left, right, each, mask)
    some = spgrad.additive_attention(left, right, each, mask, dropout_p=0.25)
    kept = some != 0
    testing.assert_close(some[kept], whole[kept] / 0.75)
    assert 0.65 < kept.sum() / (whole != 0).sum() < 0.85


def test_numbers_of_16_bits_are_computed_with_in_float32():
    left, right, x = operands(dtype=torch.bfloat16)
    y = spgrad.additive_attention(left, right, x, truth())
    wide = [t.detach().float().requires_grad_() for t in (left, right, x)]
    wanted = spgrad.additive_attention(*wide, truth())
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y, wanted.bfloat16(), rtol=0, atol=0)
    g = torch.randn_like(y)
    ours = torch.autograd.grad(y, (left, right, x), g)
    for got, want in zip(ours, torch.autograd.grad(wanted, wide, g.float()), strict=True):
        torch.testing.assert_close(got, want.bfloat16(), rtol=0, atol=0)


def test_autocast():
    given = [t.detach().float().requires_grad_() for t in operands()]
    A = truth()
    wanted = spgrad.additive_attention(*given, A)
    with torch.autocast("cpu", torch.bfloat16):
        found = spgrad.additive_attention(*given, A)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), wanted, atol=0.05, rtol=0.05)
    found.sum().backward()
    assert given[0].grad.dtype == torch.float32


@pytest.mark.parametrize("biased", [False, True])
def test_one_graph_of_torch_compile(biased):
    given = operands()
    A = truth()
    if biased:
        A = spgrad.from_values(drawn(A.nse), A.pattern)

    def loss(left, right, x, A):
        return spgrad.additive_attention(left, right, x, A).sin().sum()

    torch._dynamo.reset()
    fast = torch.compile(loss, fullgraph=True, backend="aot_eager")
    wanted = torch.autograd.grad(loss(*given, A), given)
    for got, want in zip(torch.autograd.grad(fast(*given, A), given), wanted, strict=True):
        testing.assert_close(got, want)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_torch_func():
    left, right, x = operands(grad=False)
    A = truth()

    def loss(left, right, x):
        return spgrad.additive_attention(left, right, x, A).sin().sum()

    leaves = [t.clone().requires_grad_() for t in (left, right, x)]
    wanted = torch.autograd.grad(loss(*leaves), leaves)
    for got, want in zip(torch.func.grad(loss, (0, 1, 2))(left, right, x), wanted, strict=True):
        testing.assert_close(got, want)
    along = [torch.randn_like(t) for t in (left, right, x)]
    moved = torch.func.jvp(loss, (left, right, x), tuple(along))[1]
    testing.assert_close(moved, sum((a * b).sum() for a, b in zip(along, wanted, strict=True)))
    several = torch.randn(3, 8, 4, 3, dtype=F64)
    each = torch.func.vmap(lambda x: spgrad.additive_attention(left, right, x, A))(several)
    for item, one in zip(each, several, strict=True):
        testing.assert_close(item, spgrad.additive_attention(left, right, one, A))


@pytest.mark.skipif(
    not (kernels.compiled() or module._by_triton(torch.empty(0))),
    reason="the composed operations store scores",
)
@pytest.mark.parametrize("kind", ["read", "on a device"])
def test_no_tensor_has_a_number_for_each_element_and_head(kind, monkeypatch):
    """On a device the host does not read a mask, and its numbers are added to the scores."""
    if kind == "on a device":
        if not module._by_triton(torch.empty(0)):
            pytest.skip("the compiled library takes a bias for each head")
        monkeypatch.setattr(align, "asks_device", lambda pattern: True)
    m, heads = 24, 8
    given = operands(m, m, heads, n=2, dtype=torch.float32)
    A = spgrad.from_dense(torch.ones(m, m, dtype=torch.bool))
    largest = 0

    class Sizes(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            results = out if isinstance(out, (tuple, list)) else [out]
            sizes = [t.numel() for t in results if isinstance(t, torch.Tensor)]
            largest = max([largest, *sizes])
            return out

    spgrad.additive_attention(*given, A).sum().backward()  # finds the columns
    with Sizes():
        spgrad.additive_attention(*given, A).sum().backward()
    assert 0 < largest <= m * m  # the mask itself


@pytest.mark.skipif(not kernels.compiled(), reason="the composed operations store scores")
def test_large_calls_of_one_head_or_few_elements_a_row_are_composed(monkeypatch):
    monkeypatch.setattr(module, "_FEW_OF_ONE", 8)
    monkeypatch.setattr(module, "_FEW", 16)

    def fused(nse, heads, rows=4, device="cpu"):
        column = torch.arange(nse)
        A = spgrad.sparse_coo_tensor(
            torch.stack([column % rows, column]), torch.ones(nse), (rows, 32)
        )
        return module._fused(A.pattern, torch.empty(32, heads, 3, device=device))

    assert fused(8, 1)
    assert not fused(16, 1)
    assert fused(8, 2)
    assert not fused(11, 2)
    assert fused(12, 2)
    assert not fused(8, 1, device="meta")
    monkeypatch.setattr(kernels, "compiled", lambda: False)
    assert not fused(8, 1)
