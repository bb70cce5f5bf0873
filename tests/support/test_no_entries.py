"""Operands without elements: results keep their shape and their place in the graph."""

import itertools
import math

import pytest
import torch

import spgrad
from spgrad import support, testing
from spgrad.core.pattern import LAYOUTS
from spgrad.lowering.views import cols, rows
from spgrad.support import parse

layouts = pytest.mark.parametrize("layout", support.ALL)
FAMILIES = sorted({op.family for op in support.OPS.values() if op.order and op.compared})


def empty(shape, layout, dtype=torch.float64, dense_dim=0, blocksize=None):
    blocksize = blocksize or ((1, 1) if layout in ("bsr", "bsc") else None)
    zeros = torch.zeros(shape, dtype=dtype)
    return spgrad.from_dense(zeros, LAYOUTS[layout], blocksize=blocksize, dense_dim=dense_dim)


def without_elements(a):
    if not isinstance(a, spgrad.SparseTensor):
        return a
    pattern = a.pattern
    made = empty(pattern.shape, pattern.name, a.dtype, pattern.dense_dim, pattern.blocksize)
    return made.requires_grad_(a.requires_grad)


DEFINED = ("expm_multiply", "eigsh", "cond")
"""Functions that a matrix with a zero diagonal has."""
DETERMINANTS = ("det", "slogdet", "logdet")


def compare(cell, operands):
    """Values, shapes and gradients against the dense specification.

    A matrix without elements has no diagonal to solve with.
    """
    has_rows = any(isinstance(a, spgrad.SparseTensor) and a.numel() for a in operands)
    system = any(operand.dominant for operand in parse(cell.signature)[0])
    divides = cell.op.name not in DEFINED and not cell.options.get("unitriangular")
    if system and has_rows and cell.op.name in DETERMINANTS:  # 0; the gradients have their tests
        dense = testing.dense_leaves(operands)
        wanted = testing.expected_all(cell, operands, dense)
        for y, want in zip(testing.run_all(cell, operands), wanted, strict=True):
            testing.assert_close(y, want)
        return
    if system and has_rows and cell.op.name == "inverse_at":  # at no elements
        assert all(y._nnz() == 0 for y in testing.run_all(cell, operands))
        return
    if system and has_rows and divides:
        with pytest.raises(spgrad.PivotError, match=r"in row 0|is singular"):
            testing.run_all(cell, operands)
        return
    dense = testing.dense_leaves(operands)
    wanted = testing.expected_all(cell, operands, dense)
    leaves, twins = ([t for t in of if t.requires_grad] for of in (operands, dense))
    for y, want in zip(testing.run_all(cell, operands), wanted, strict=True):
        testing.assert_close(y, want)
        if not want.requires_grad:
            continue
        assert y.requires_grad
        d = testing.dense_result(y)
        g = torch.ones_like(d)
        grads = torch.autograd.grad(d, leaves, g, allow_unused=True)
        others = torch.autograd.grad(want, twins, g, allow_unused=True)
        for leaf, grad, other in zip(leaves, grads, others, strict=True):
            if grad is None:
                assert other is None or not other.any()
            elif isinstance(leaf, spgrad.SparseTensor):
                assert grad.pattern is leaf.pattern
            else:
                testing.assert_close(grad, torch.zeros_like(leaf) if other is None else other)


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_specified(family):
    for cell in testing.cells():
        if cell.op.family == family and cell.op.order:
            compare(cell, [without_elements(a) for a in testing.sample(cell)])


@pytest.mark.filterwarnings(r"ignore:.*degrees of freedom")
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("letter", ["b", "m", "k", "d"])
def test_a_size_of_zero(family, letter, monkeypatch):
    monkeypatch.setitem(testing.SIZES, letter, 0)
    of_family = [c for c in testing.cells() if c.op.family == family and c.op.order]
    for cell in of_family:
        arguments = cell.signature.split("->")[0]
        if letter not in arguments or cell.layout not in cell.op.layouts[:3:2]:
            continue
        operands = [without_elements(a) for a in testing.sample(cell)]
        try:
            testing.expected(cell, operands, testing.dense_leaves(operands))
        except (RuntimeError, IndexError, ValueError, ArithmeticError):  # torch has no result
            continue
        compare(cell, operands)


def require_whole(A):
    """Components of the lengths that the shape asks for, in both views."""
    pattern = A.pattern
    assert A._vals.shape == pattern.values_shape
    if pattern.is_coo:
        assert pattern.indices[0].shape == (pattern.sparse_dim, pattern.nse)
        return
    items, (m, k) = math.prod(pattern.batch), pattern.matrix
    bm, bk = pattern.blocksize or (1, 1)
    lines = m // bm if pattern.compressed_by_rows else k // bk
    assert pattern.indices[0].numel() == lines * items + 1
    for view, size in ((rows(pattern), m), (cols(pattern), k)):
        assert view.ptr.numel() == size * items + 1


@layouts
@pytest.mark.parametrize("ndim", [2, 3])
def test_shapes_with_a_size_of_zero(layout, ndim):
    """Also where the views of the operand are known, which fit no other number of items."""
    for shape in itertools.product((0, 1, 2, 3), repeat=ndim):
        if 0 not in shape:
            continue
        dense, A = torch.zeros(shape), empty(shape, layout)
        if not A.pattern.is_coo:
            require_whole(A)
        for start, end in itertools.combinations_with_replacement(range(ndim), 2):
            flat = A.flatten(start, end)
            assert flat.shape == dense.flatten(start, end).shape
            require_whole(flat)
        for offset in (-1, 0, 2):
            found = A.diagonal(offset, ndim - 2, ndim - 1)
            assert found.shape == dense.diagonal(offset, ndim - 2, ndim - 1).shape


@layouts
def test_flattened_batch_times_dense(layout):
    A = empty((2, 0, 3), layout).requires_grad_()
    (A.mT.transpose(-1, -2) @ torch.ones(2, 3, 1, dtype=A.dtype)).sum().backward()
    x = torch.ones(3, 2, dtype=A.dtype, requires_grad=True)
    y = A.flatten(0, 1) @ x
    y.sum().backward()
    assert y.shape == (0, 2)
    assert torch.equal(x.grad, torch.zeros(3, 2, dtype=A.dtype))


@layouts
@pytest.mark.parametrize("shape", [(1, 1), (1, 1, 1)])
def test_sparse_mask_with_all_sizes_one_and_no_element(layout, shape):
    mask = empty(shape, layout)
    for x in (torch.ones(shape), torch.ones(shape, requires_grad=True)):
        found = x.sparse_mask(mask)
        require_whole(found)
        assert not found.to_dense().any()
        assert found.requires_grad == x.requires_grad


@layouts
@pytest.mark.parametrize(
    "fn",
    [
        lambda A: A.repeat(2, 1, 2),
        lambda A: A.tile(2, 3),
        lambda A: A.repeat_interleave(2, 1),
        lambda A: A.expand(3, 4, 6),
        lambda A: A.expand_as(torch.ones(3, 4, 6)),
        lambda A: torch.broadcast_to(A, (3, 4, 6)),
    ],
    ids=["repeat", "tile", "repeat_interleave", "expand", "expand_as", "broadcast_to"],
)
def test_repeated_elements_stay_in_the_graph(layout, fn):
    A = empty((4, 6), layout).requires_grad_()
    y = fn(A)
    assert y.requires_grad
    y.sum().backward()
    assert A.grad.pattern is A.pattern


@layouts
@pytest.mark.parametrize("order", [1, math.inf])
@pytest.mark.parametrize("shape", [(4, 0), (0, 4), (0, 0)])
def test_largest_sum_of_no_rows_or_columns(layout, order, shape):
    assert spgrad.matrix_norm(empty(shape, layout), order) == 0
