"""Bool tensors: and, or, exclusive or, not; transposes and products of truth values."""

import operator

import pytest
import torch

import spgrad
from spgrad import support, testing
from spgrad.core.pattern import LAYOUTS

OPERATORS = {
    "and": (operator.and_, operator.iand),
    "or": (operator.or_, operator.ior),
    "xor": (operator.xor, operator.ixor),
}


def bools(layout, seed=0, shape=(4, 6)):
    return testing.random_sparse(shape, LAYOUTS[layout], dtype=torch.bool, seed=seed)


@pytest.mark.parametrize("layout", support.ALL)
@pytest.mark.parametrize("name", OPERATORS)
def test_operators_of_bools_are_those_of_dense_tensors(name, layout):
    op, _ = OPERATORS[name]
    A, B = bools(layout), bools("coo", seed=1)
    for y in (op(A, B), op(A, B.to_dense()), op(A.to_dense(), B)):
        assert y.dtype == torch.bool
        testing.assert_close(y, op(A.to_dense(), B.to_dense()))
    assert isinstance(op(A, B), spgrad.SparseTensor)
    assert isinstance(op(A, B.to_dense()), spgrad.SparseTensor) == (name == "and")


@pytest.mark.parametrize("name", OPERATORS)
def test_numbers_stand_on_either_side_where_zero_is_kept(name):
    op, _ = OPERATORS[name]
    A = testing.random_sparse((4, 6), dtype=torch.int64)
    for number in (0, 3) if name == "and" else (0,):
        testing.assert_close(op(A, number), op(A.to_dense(), number))
        testing.assert_close(op(number, A), op(number, A.to_dense()))
        assert op(number, A).pattern is A.pattern
    if name != "and":
        with pytest.raises(spgrad.ArgumentValueError, match=rf"spgrad\.bitwise_{name}: .*is 3,"):
            op(A, 3)
        with pytest.raises(spgrad.ArgumentValueError, match=rf"spgrad\.bitwise_{name}: .*is 3,"):
            op(3, A)


@pytest.mark.parametrize("name", OPERATORS)
def test_in_place_on_one_pattern(name):
    op, in_place = OPERATORS[name]
    A = bools("csr")
    B = spgrad.from_values(~A.values(), A)
    wanted = op(A.to_dense(), B.to_dense())
    kept = A
    A = in_place(A, B)
    assert A is kept
    testing.assert_close(A, wanted)
    if name != "and":
        with pytest.raises(spgrad.StateError, match=rf"spgrad\.bitwise_{name}_: "):
            in_place(A, bools("csr", seed=5))


def test_comparisons_are_combined():
    A = testing.random_sparse((4, 6))
    dense = A.to_dense()
    testing.assert_close((A > 0.2) & (A * A < 0.6 * A), (dense > 0.2) & (dense < 0.6))
    testing.assert_close((A > 0.6) | (A < -0.6), (dense > 0.6) | (dense < -0.6))
    testing.assert_close(torch.logical_xor(A, A.t().t() > 0), dense.logical_xor(dense > 0))


@pytest.mark.parametrize("not_", [operator.invert, torch.bitwise_not, torch.logical_not])
def test_not_is_refused_with_the_way_out(not_):
    with pytest.raises(spgrad.UnsupportedError, match=r"spgrad\.(bitwise|logical)_not: .*map\("):
        not_(bools("csr"))


def test_floats_have_no_bits():
    A = testing.random_sparse((4, 6))
    with pytest.raises(spgrad.ArgumentValueError, match=r"spgrad\.bitwise_and: .*float64"):
        A & A


@pytest.mark.parametrize("layout", support.ALL)
def test_the_transpose_of_a_bool_matrix(layout):
    A = bools(layout)
    testing.assert_close(A.t(), A.to_dense().t())
    testing.assert_close(A.T, A.to_dense().T)
    testing.assert_close(A.mH, A.to_dense().mH)


@pytest.mark.parametrize("layout", support.ALL)
def test_products_of_bools_say_whether_a_term_is_true(layout):
    A, B = bools(layout), bools("csr", seed=3, shape=(6, 4))
    x = torch.rand(6, 3) < 0.4
    wanted = (A.to_dense().int() @ x.int()) != 0
    for y in (A @ x, torch.mm(A, x), torch.sparse.mm(A, x), (x.t() @ A.t()).t()):
        assert y.dtype == torch.bool
        testing.assert_close(y, wanted)
    testing.assert_close(A @ x[:, 0], wanted[:, 0])
    testing.assert_close(torch.mv(A, x[:, 0]), wanted[:, 0])
    C = A @ B
    assert C.dtype == torch.bool
    assert C.layout == A.layout
    testing.assert_close(C, (A.to_dense().int() @ B.to_dense().int()) != 0)


def test_a_bool_product_counts_past_the_range_of_a_byte():
    A = spgrad.from_dense(torch.ones(1, 256, dtype=torch.bool))
    assert bool((A @ torch.ones(256, dtype=torch.bool)).all())


def test_bools_and_numbers_do_not_mix_in_a_product():
    with pytest.raises(spgrad.ArgumentValueError, match=r"spgrad\.matmul: .*dtype"):
        bools("csr") @ torch.ones(6, 2)
    x = torch.ones(4, 2, dtype=torch.bool)
    with pytest.raises(spgrad.ArgumentValueError, match=r"spgrad\.addmm: .*dtype bool"):
        torch.addmm(x, bools("csr"), torch.ones(6, 2, dtype=torch.bool))


@pytest.mark.parametrize("layout", support.ALL)
def test_elements_of_one_and_not_of_the_other_are_a_comparison(layout):
    A, B = bools(layout), bools("csr", seed=4)
    testing.assert_close(A > B, A.to_dense() & ~B.to_dense())


@pytest.mark.parametrize("number", [1.0, 2e-8, -3.0, float("inf"), float("-inf"), float("nan")])
def test_elements_are_close_to_a_number(number):
    A = spgrad.from_dense(torch.tensor([[0.0, 1.0, 2e-8], [-3.0, float("inf"), float("nan")]]))
    for equal_nan in (True, False):
        found = spgrad.isclose(A, torch.tensor(number), equal_nan=equal_nan)
        wanted = torch.isclose(A.to_dense(), torch.tensor(number), equal_nan=equal_nan)
        testing.assert_close(found.to_dense(), wanted)


@pytest.mark.parametrize("number", [0.0, 1e-9, -1e-8])
def test_a_number_close_to_0_is_refused(number):
    A = spgrad.from_dense(torch.eye(2))
    with pytest.raises(ValueError, match=r"isclose: `other` is .* the result would be dense"):
        spgrad.isclose(A, torch.tensor(number))


@pytest.mark.parametrize("shape", [(4, 1), (1, 5), (5,)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_bools_times_a_vector_of_bools(layout, shape):
    dense = torch.arange(20).view(4, 5) % 3 == 0
    vector = torch.arange(max(shape)).view(shape) % 2 == 0
    blocksize = (2, 5) if layout in ("bsr", "bsc") else None
    A = spgrad.from_dense(dense, LAYOUTS[layout], blocksize=blocksize)
    for found in (A * vector, vector * A):
        assert found.dtype == torch.bool
        assert torch.equal(found.to_dense(), dense * vector)
