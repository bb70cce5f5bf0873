"""Every claim of the support table, against the dense function that is its specification."""

import operator

import pytest
import torch

import spgrad
from spgrad import ops, support, testing
from spgrad.pattern import LAYOUTS
from spgrad.tensor import TORCH_FUNCTIONS

CELLS = list(testing.cells())
DIFFERENTIABLE = [cell for cell in CELLS if cell.op.order >= 2]


def variants(cell):
    """Keyword arguments for `sample` that make sense for a cell."""
    sparse = [o for o in support.parse(cell.signature)[0] if o.sparse]
    yield {}
    if cell.layout == "coo":
        yield {"coalesced": False}
    if len(sparse) > 1:
        yield {"mixed": True}


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_value_layout_and_gradient(cell, poisoned):
    for variant in variants(cell):
        operands = testing.sample(cell, **variant)
        dense = testing.dense_leaves(operands)
        y = testing.run(cell, operands)
        expected = testing.expected(cell, operands, dense)
        testing.assert_close(y, expected)
        check_layout(cell, operands, y)
        g = torch.randn(y.shape, dtype=y.dtype)
        if cell.op.order == 0:
            continue
        torch.autograd.backward(testing.dense_result(y), g)
        on_result = testing.mask_of(y.pattern) if isinstance(y, spgrad.SparseTensor) else 1
        torch.autograd.backward(expected, g * on_result)
        for operand, twin in zip(operands, dense, strict=True):
            check_gradient(operand, twin)


def check_layout(cell, operands, y):
    result = support.parse(cell.signature)[1]
    assert isinstance(y, spgrad.SparseTensor) == result.sparse
    if result.sparse:
        first = next(a for a in operands if isinstance(a, spgrad.SparseTensor))
        wanted = result.layout or first.pattern.name
        wanted = support.FLIPPED[first.pattern.name] if wanted == "flipped" else wanted
        assert y.pattern.name == wanted
        assert y.pattern.coalesced


def check_gradient(operand, twin):
    unused = torch.zeros_like(twin)
    wanted = unused if twin.grad is None else twin.grad
    if isinstance(operand, spgrad.SparseTensor):
        if operand.grad is None:
            assert wanted.abs().max() == 0
            return
        assert isinstance(operand.grad, spgrad.SparseTensor)
        assert operand.grad.pattern is operand.pattern
        # repeated indices each get the gradient of their element: compare one by one
        at = spgrad.from_values(torch.ones_like(operand._vals), operand.pattern)
        times = spgrad.to_dense(at)
        testing.assert_close(operand.grad, wanted * times)
    elif operand.grad is not None:
        testing.assert_close(operand.grad, wanted)
    else:
        assert wanted.abs().max() == 0


@pytest.mark.parametrize("cell", DIFFERENTIABLE, ids=str)
def test_first_and_second_derivative(cell):
    operands = testing.sample(cell, coalesced=cell.layout != "coo")
    leaves = testing.parameters(operands)

    def run(*leaves):
        return testing.dense_result(testing.run(cell, testing.with_parameters(operands, leaves)))

    assert torch.autograd.gradcheck(run, leaves, fast_mode=True)
    assert torch.autograd.gradgradcheck(run, leaves, fast_mode=True)


# what does not depend on the layout is tried in two: the plainest and the farthest from it
TWO_LAYOUTS = [c for c in CELLS if c.sample == 0 and (c.layout in ("csr", c.op.layouts[-1]))]


@pytest.mark.parametrize("cell", TWO_LAYOUTS, ids=str)
@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.bfloat16, torch.float16, torch.complex64, torch.complex128, torch.int64],
    ids=str,
)
def test_dtypes(cell, dtype, poisoned):
    operands = testing.sample(cell, dtype)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    dense = [testing.dense_result(a).detach().to(wide).requires_grad_() for a in operands]
    y = testing.run(cell, operands)
    assert y.dtype == dtype
    expected = testing.expected(cell, operands, dense)
    testing.assert_close(y, expected.to(y.dtype) if tolerance_free(dtype) else expected)
    if not operands[0].requires_grad:
        return
    g = torch.randn(y.shape, dtype=wide).to(dtype)
    torch.autograd.backward(testing.dense_result(y), g)
    on_result = testing.mask_of(y.pattern) if isinstance(y, spgrad.SparseTensor) else 1
    torch.autograd.backward(expected, g.to(wide) * on_result)
    for operand, twin in zip(operands, dense, strict=True):
        if isinstance(operand, spgrad.SparseTensor):
            twin.grad = twin.grad * testing.mask_of(operand.pattern)
        testing.assert_close(operand.grad, twin.grad)
        assert operand.grad.dtype == dtype


def tolerance_free(dtype):
    return not (dtype.is_floating_point or dtype.is_complex)


@pytest.mark.parametrize("name", list(testing.ZOO))
@pytest.mark.parametrize("layout", support.ALL)
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64], ids=str)
def test_matmul_on_the_zoo(name, layout, index_dtype, poisoned):
    made = testing.ZOO[name]().double()
    blocks = (2, 2) if layout in ("bsr", "bsc") else None
    source = spgrad.from_dense(made)
    m, k = made.shape
    A = spgrad.sparse_csr_tensor(
        source.crow_indices().to(index_dtype),
        source.col_indices().to(index_dtype),
        source.values(),
        (m, k),
    )
    A = spgrad.to_sparse(A, layout=LAYOUTS[layout], blocksize=blocks).requires_grad_()
    for n in (0, 1, 3, 16):
        x = torch.randn(k, n, dtype=torch.float64, requires_grad=True)
        strided = torch.randn(n, k, dtype=torch.float64).t().requires_grad_()
        for operand in (x, strided):
            A.grad = None
            y = A @ operand
            twin, other = (t.detach().clone().requires_grad_() for t in (made, operand))
            expected = twin @ other
            testing.assert_close(y, expected)
            g = torch.randn(m, n, dtype=torch.float64)
            y.backward(g)
            expected.backward(g)
            testing.assert_close(operand.grad, other.grad)
            assert A.grad.pattern is A.pattern
            testing.assert_close(A.grad, twin.grad * testing.mask_of(A.pattern))
    square = spgrad.matmul(A, spgrad.from_dense(made.t().contiguous()))
    testing.assert_close(square, made @ made.t())


REFUSED = [
    (row, layout)
    for row in support.OPS.values()
    for layout in support.ALL
    if layout not in row.layouts
]


@pytest.mark.parametrize(("row", "layout"), REFUSED, ids=lambda v: getattr(v, "name", v))
def test_unlisted_layouts_are_refused_by_name(row, layout):
    A = testing.random_sparse((4, 6), LAYOUTS[layout])
    with pytest.raises(spgrad.UnsupportedError, match=rf"spgrad\.{row.name}: .*layout {layout};"):
        getattr(spgrad, row.name)(A)


@pytest.mark.parametrize("row", support.OPS.values(), ids=lambda row: row.name)
def test_rows_are_complete(row):
    """A claim without a test, an export or a reason fails."""
    tested = {(c.signature, c.layout) for c in CELLS if c.op is row}
    assert tested == {(s, layout) for s in row.signatures for layout in row.layouts}
    assert set(row.layouts) <= set(support.ALL)
    assert set(row.absent) == set(support.ALL) - set(row.layouts)
    assert row.name in spgrad.__all__
    for name in row.torch:
        assert operator.attrgetter(name.removeprefix("torch."))(torch) in TORCH_FUNCTIONS


def test_every_operation_has_a_row():
    made_elsewhere = {"from_dense", "from_edges"}  # take no sparse operand
    assert set(ops.__all__) - made_elsewhere == set(support.OPS)


@pytest.mark.parametrize("cell", [c for c in CELLS if c.sample == 0 and c.op.torch], ids=str)
def test_torch_names(cell):
    operands = [a.detach() for a in testing.sample(cell)]
    wanted = testing.run(cell, operands)
    for name in cell.op.torch:
        func = operator.attrgetter(name.removeprefix("torch."))(torch)
        if name.startswith("torch.Tensor.") and not isinstance(operands[0], torch.Tensor):
            continue
        arguments = [a.clone() for a in operands]
        if name.endswith("_") and not name.endswith("__"):
            if arguments[0].shape != wanted.shape or isinstance(arguments[0], spgrad.SparseTensor):
                continue
            func(*arguments, **cell.options)
            testing.assert_close(arguments[0], testing.dense_result(wanted))
            continue
        y = func(*arguments, **cell.options)
        assert type(y) is type(wanted)
        testing.assert_close(y, testing.dense_result(wanted))


@pytest.mark.parametrize(
    "cell", [c for c in CELLS if c.sample == 0 and "[b" not in c.signature], ids=str
)
def test_native_operands_get_native_gradients(cell):
    operands = testing.sample(cell)
    natives = [
        spgrad.to_torch(a.detach()).requires_grad_() if isinstance(a, spgrad.SparseTensor) else a
        for a in operands
    ]
    y = testing.dense_result(testing.run(cell, natives))
    testing.assert_close(y, testing.dense_result(testing.run(cell, operands)))
    g = torch.randn(y.shape, dtype=y.dtype)
    grads = torch.autograd.grad(y, natives, g)
    wanted = torch.autograd.grad(testing.dense_result(testing.run(cell, operands)), operands, g)
    for operand, got, want in zip(operands, grads, wanted, strict=True):
        if isinstance(operand, spgrad.SparseTensor):
            assert type(got) is torch.Tensor
            assert got.layout == operand.layout
            assert spgrad.from_torch(got).pattern.same_as(operand.pattern)
            got = spgrad.from_torch(got)
        testing.assert_close(got, testing.dense_result(want))
