"""Checks of one claim of the support table against its dense specification, for several tests."""

import torch

import spgrad
from spgrad import support, testing

UNFIT = {"bsr": "csr", "bsc": "csc"}  # of parts whose sizes the blocks do not divide


def check_value_layout_and_gradient(cell, operands):
    """The operation on these operands does what the dense function does on their dense form."""
    dense = testing.dense_leaves(operands)
    results = testing.run_all(cell, operands)
    wanted = testing.expected_all(cell, operands, dense)
    for y, expected in zip(results, wanted, strict=True):  # several: with indices, or parts
        testing.assert_close(y, expected)
        if cell.op.name not in STRIDED:
            check_memory(y)
    if not results:  # the parts of nothing
        return
    y, expected = results[0], wanted[0]
    check_layout(cell, operands, y)
    if cell.op.order == 0:
        return
    g = torch.randn(y.shape, dtype=y.dtype, device=y.device)
    torch.autograd.backward(testing.dense_result(y), g)
    on_result = testing.mask_of(y.pattern) if isinstance(y, spgrad.SparseTensor) else 1
    torch.autograd.backward(expected, g * on_result)
    for operand, twin in zip(operands, dense, strict=True):
        check_gradient(operand, twin)


STRIDED = {"diagonal", "scaled_dot_product_attention", "tensordot", "topk"}
"""Operations whose dense results may have their dimensions in another order in memory."""


def check_memory(y):
    """The arrays of a result are contiguous, so that `view` and other libraries take them."""
    sparse = isinstance(y, spgrad.SparseTensor)
    arrays = (y._vals, *y.pattern.indices) if sparse else (y,)
    assert all(t.is_contiguous() for t in arrays)


def check_layout(cell, operands, y):
    result = support.parse(cell.signature)[1]
    assert isinstance(y, spgrad.SparseTensor) == result.sparse
    if result.sparse:
        first = next(a for a in operands if isinstance(a, spgrad.SparseTensor))
        wanted = result.layout or first.pattern.name
        if wanted == "second":
            wanted = operands[1].pattern.name
        wanted = support.FLIPPED[first.pattern.name] if wanted == "flipped" else wanted
        if y.pattern is first.pattern and cell.op.family == "shapes":  # a reshape that changes none
            wanted = first.pattern.name
        elif not result.layout and not fits(first.pattern, y.pattern):
            wanted = UNFIT.get(wanted, "coo") if cell.op.family == "indexing" else "coo"
        assert y.pattern.name == wanted
        if cell.op.module == "elementwise.unary":
            assert y.pattern is first.pattern or not first.pattern.coalesced
        assert y.pattern.coalesced or y.pattern is first.pattern


def fits(pattern, found):
    """Whether a result is a matrix or batch whose sizes the blocks of an operand divide."""
    bm, bn = pattern.blocksize or (1, 1)
    sparse = len(found.shape) - found.dense_dim
    return sparse >= 2 and found.matrix[0] % bm == found.matrix[1] % bn == 0


def check_gradient(operand, twin):
    wanted = torch.zeros_like(twin) if twin.grad is None else twin.grad
    if isinstance(operand, spgrad.SparseTensor):
        if operand.grad is None:
            assert not wanted.any()
            return
        assert isinstance(operand.grad, spgrad.SparseTensor)
        assert operand.grad.pattern is operand.pattern
        # repeated indices each get the gradient of their element: compare one by one
        at = spgrad.from_values(torch.ones_like(operand._vals), operand.pattern)
        times = spgrad.to_dense(at)
        testing.assert_close(operand.grad, torch.where(times == 0, times, wanted * times))
    elif operand.grad is not None:
        testing.assert_close(operand.grad, wanted)
    else:
        assert not wanted.any()


def check_second_derivative(cell, operands):
    """By finite differences of the first one, which is compared with that of the dense function.

    A gradient may be computed in another way when it records a graph: the numbers are the same.
    Leaves without elements, of which torch's gradgradcheck can say nothing, stay constant.
    """
    given = testing.parameters(operands)
    moved = [i for i, leaf in enumerate(given) if leaf.requires_grad and leaf.numel()]

    def run(*leaves):
        now = list(given)
        for i, leaf in zip(moved, leaves, strict=True):
            now[i] = leaf
        return testing.dense_result(testing.run(cell, testing.with_parameters(operands, now)))

    leaves = [given[i] for i in moved]
    if moved:
        y = run(*leaves)
        g = torch.rand_like(y)
        options = {"materialize_grads": True}  # an addend times 0 is not used
        recorded = torch.autograd.grad(y, leaves, g, create_graph=True, **options)
        plain = torch.autograd.grad(y, leaves, g, **options)
        for got, wanted in zip(recorded, plain, strict=True):
            testing.assert_close(got, wanted)
        assert torch.autograd.gradgradcheck(run, leaves, fast_mode=True)
