"""Every claim of the support table, against the dense function that is its specification."""

import re

import pytest
import torch
from claims import check_second_derivative, check_value_layout_and_gradient

import spgrad
from spgrad import support, testing
from spgrad.core.pattern import LAYOUTS
from spgrad.torch_protocol.inplace import is_in_place

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
        check_value_layout_and_gradient(cell, operands)


@pytest.mark.parametrize("cell", DIFFERENTIABLE, ids=str)
def test_second_derivative(cell):
    check_second_derivative(cell, testing.sample(cell, coalesced=cell.layout != "coo"))


DTYPES = (
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.complex64,
    torch.complex128,
    torch.int64,
    torch.bool,
)
# Dtypes do not depend on the layout: they alternate between the plainest and the farthest from it.
TYPED = [
    (cell, dtype)
    for cell in CELLS
    if cell.sample == 0 and cell.signature in cell.op.signatures[:4]
    for turn, dtype in enumerate(DTYPES)
    if cell.layout == ("csr" if turn % 2 and "csr" in cell.op.layouts else cell.op.layouts[-1])
]


@pytest.mark.parametrize(("cell", "dtype"), TYPED, ids=str)
def test_dtypes(cell, dtype, poisoned):
    operands = testing.sample(cell, dtype)
    try:
        wanted = testing.expected(cell, operands, testing.dense_leaves(operands)).dtype
    except (RuntimeError, TypeError, ValueError):
        wanted = None
    if wanted is None:  # the dense function refuses this dtype; ours has to as well
        with pytest.raises(spgrad.SpgradError, match=rf"spgrad\.(linalg\.)?{cell.op.name}: "):
            testing.run(cell, operands)
        return
    kinds = support.parse(cell.signature)[0]
    dense = [
        widened(cell, kind, testing.dense_result(a))
        for kind, a in zip(kinds, operands, strict=True)
    ]
    y = testing.run(cell, operands)
    assert y.dtype == wanted
    expected = testing.expected(cell, operands, dense)
    testing.assert_close(y, expected.to(y.dtype) if tolerance_free(wanted) else expected)
    if cell.op.order == 0 or not y.requires_grad:
        assert cell.op.order == 0 or tolerance_free(dtype)
        return
    wide = wider(wanted)
    g = torch.randn(y.shape, dtype=wide).to(wanted)
    torch.autograd.backward(testing.dense_result(y), g)
    on_result = testing.mask_of(y.pattern) if isinstance(y, spgrad.SparseTensor) else 1
    torch.autograd.backward(expected, g.to(wide) * on_result)
    for operand, twin in zip(operands, dense, strict=True):
        if not operand.requires_grad:
            continue
        if isinstance(operand, spgrad.SparseTensor):
            twin.grad = twin.grad.where(testing.mask_of(operand.pattern), 0)
        testing.assert_close(operand.grad, twin.grad)
        assert operand.grad.dtype == operand.dtype


def widened(cell, kind, a):
    """A leaf of a wider dtype; integers as they are where no derivative is asked for."""
    if kind.truth or (cell.op.order == 0 and tolerance_free(a.dtype)):
        return a
    return a.to(wider(a.dtype)).detach().requires_grad_()


def wider(dtype):
    return torch.complex128 if dtype.is_complex else torch.float64


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


OFFERED = [row for row in support.OPS.values() if row.layouts]
NOT_SPARSE = [row for row in support.OPS.values() if not row.layouts]
REFUSED = [
    (row, name)
    for row in OFFERED
    for name in support.ALL
    if name not in row.layouts and not row.creates
]


@pytest.mark.parametrize(("row", "layout"), REFUSED, ids=lambda v: getattr(v, "name", v))
def test_unlisted_layouts_are_refused_by_name(row, layout):
    A = testing.random_sparse((4, 6), LAYOUTS[layout])
    with pytest.raises(spgrad.UnsupportedError, match=rf"spgrad\.{row.name}: .*layout {layout};"):
        row.function(*[A for _ in support.parse(row.signatures[0])[0]], **row.samples[0])


@pytest.mark.parametrize("layout", support.ALL)
@pytest.mark.parametrize("row", NOT_SPARSE, ids=lambda row: row.name)
def test_names_without_a_sparse_result_are_refused(row, layout):
    """With the reason of the table, in every layout; and none of them keeps zero."""
    A = testing.random_sparse((4, 6), LAYOUTS[layout])
    reason = re.escape(row.absent[layout])
    assert row.torch
    for name in row.torch:
        with pytest.raises(spgrad.UnsupportedError, match=rf"spgrad\.{row.name}: .*{reason}"):
            support.torch_named(name)(A)
    assert not hasattr(spgrad, row.name)
    assert not row.public


@pytest.mark.parametrize("row", OFFERED, ids=lambda row: row.name)
def test_rows_are_complete(row):
    """A claim without a test, or a reason for having none, fails."""
    tested = {(c.signature, c.layout) for c in CELLS if c.op is row}
    claimed = {(s, layout) for s in row.signatures for layout in row.layouts}
    assert tested == (claimed if row.compared else set())
    assert set(row.layouts) <= set(support.ALL)
    missing = set(support.ALL) - set(row.layouts) | ({"dense"} if row.dense is None else set())
    assert set(row.absent) == missing
    assert (row.call is support.on_list) == any(s.startswith("(") for s in row.signatures)


@pytest.mark.parametrize("cell", [c for c in CELLS if c.sample == 0 and c.op.torch], ids=str)
def test_torch_names(cell):
    operands = [a.detach() for a in testing.sample(cell)]
    wanted = testing.run(cell, operands)
    for name in cell.op.torch:
        func = support.torch_named(name)
        if name.startswith("torch.Tensor.") and not isinstance(operands[0], torch.Tensor):
            continue
        arguments = [a.clone() for a in operands]
        if is_in_place(name) and not cell.op.in_place:
            if not fits_in_place(arguments[0], wanted):
                with pytest.raises(spgrad.SpgradError, match=rf"spgrad\.{cell.op.name}_: "):
                    testing.call(cell, func, arguments, cell.options)
                continue
            testing.call(cell, func, arguments, cell.options)
            testing.assert_close(arguments[0], testing.dense_result(wanted))
            continue
        y = testing.call(cell, func, arguments, cell.options)
        y = y if isinstance(y, torch.Tensor) else y[0]
        assert type(y) is type(wanted)
        testing.assert_close(y, testing.dense_result(wanted))


def fits_in_place(operand, result):
    if not torch.can_cast(result.dtype, operand.dtype):
        return False
    if isinstance(operand, spgrad.SparseTensor) and isinstance(result, spgrad.SparseTensor):
        return operand.pattern.same_as(result.pattern)
    return type(operand) is type(result) and operand.shape == result.shape


@pytest.mark.parametrize(
    "cell",
    [
        c
        for c in DIFFERENTIABLE
        if c.sample == 0 and "[b" not in c.signature and c.op.public and not c.op.in_place
    ],
    ids=str,
)
def test_native_operands_get_native_gradients(cell):
    operands = testing.sample(cell)
    natives = [
        spgrad.to_torch(a.detach()).requires_grad_(a.requires_grad)
        if isinstance(a, spgrad.SparseTensor)
        else a
        for a in operands
    ]
    y = testing.dense_result(testing.run(cell, natives))
    testing.assert_close(y, testing.dense_result(testing.run(cell, operands)))
    g = torch.randn(y.shape, dtype=y.dtype)
    asked = [i for i, a in enumerate(operands) if a.requires_grad]
    grads = torch.autograd.grad(y, [natives[i] for i in asked], g)
    again = testing.dense_result(testing.run(cell, operands))
    wanted = torch.autograd.grad(again, [operands[i] for i in asked], g)
    for i, got, want in zip(asked, grads, wanted, strict=True):
        operand = operands[i]
        if isinstance(operand, spgrad.SparseTensor):
            assert type(got) is torch.Tensor
            assert got.layout == operand.layout
            assert spgrad.from_torch(got).pattern.same_as(operand.pattern)
            got = spgrad.from_torch(got)
        testing.assert_close(got, testing.dense_result(want))
