"""Arguments that products, queries, joins, assignments and torch's own calls refuse."""

import pytest
import torch
from refused import assert_refused

import spgrad
from spgrad import testing

F32 = torch.float32
A = testing.random_sparse((4, 6), dtype=F32)
HYBRID = testing.random_sparse((4, 6, 3), dense_dim=1, dtype=F32)
TWICE = spgrad.sparse_coo_tensor([[1, 1]], [3.0, 4.0], (3,))
MASK = spgrad.ones_like(A, dtype=torch.bool)
Q, K, V = torch.ones(4, 3), torch.ones(6, 3), torch.ones(6, 2)
attend = spgrad.scaled_dot_product_attention
LEFT, RIGHT, X = torch.ones(4, 2), torch.ones(6, 2), torch.ones(6, 2, 3)
attend_by_sums = spgrad.additive_attention
aten = torch.ops.aten


def diagonals(*, offsets=(0, 1), rows=2, size=(3, 3), **options):
    return spgrad.spdiags(torch.ones(rows, 3), torch.tensor(offsets), size, **options)


def assigned(value):
    B = A.clone()
    B[0:2] = value
    return B


REFUSED = {
    # attention
    "few_queries": (lambda: attend(Q[:3], K, V, MASK), "`query` has shape (3, 3)"),
    "few_values": (lambda: attend(Q, K, V[:5], MASK), "`value` has shape (5, 2)"),
    "vector_of_keys": (lambda: attend(Q, K[0], V, MASK), "`key` has shape (3,)"),
    "other_features": (lambda: attend(Q, K[:, :2], V, MASK), "`key` has shape (6, 2)"),
    "all_dropped": (lambda: attend(Q, K, V, MASK, 1.0), "`dropout_p` is 1.0"),
    "less_than_none_dropped": (lambda: attend(Q, K, V, MASK, -0.1), "`dropout_p` is -0.1"),
    "dropped_or_not": (lambda: attend(Q, K, V, MASK, False), "`dropout_p` is a bool; numbers are"),
    "a_tensor_dropped": (
        lambda: attend(Q, K, V, MASK, torch.tensor(0.5)),
        "`dropout_p` is a dense tensor of shape (); numbers are",
    ),
    "causal": (lambda: attend(Q, K, V, MASK, is_causal=True), "`is_causal` is True"),
    "groups": (lambda: attend(Q, K, V, MASK, enable_gqa=True), "`enable_gqa` is True"),
    "other_heads": (
        lambda: attend(Q.expand(2, 4, 3), K.expand(3, 6, 3), V, MASK),
        "`attn_mask`, `query`, `key` and `value` have shapes",
    ),
    "double_mask": (lambda: attend(Q, K, V, A.double()), "`attn_mask` has dtype float64"),
    "whole_queries": (
        lambda: attend(Q.long(), K.long(), V.long(), MASK),
        "`query` has dtype int64",
    ),
    # attention with additive scores
    "few_rows": (lambda: attend_by_sums(LEFT[:3], RIGHT, X, MASK), "`left` has shape (3, 2)"),
    "heads_of_the_mask": (
        lambda: attend_by_sums(LEFT, RIGHT, X, HYBRID),
        "`left` has shape (4, 2); (4, 3) is accepted",
    ),
    "heads_of_columns": (
        lambda: attend_by_sums(LEFT, RIGHT[:, :1], X, MASK),
        "`right` has shape (6, 1); (6, 2) is accepted",
    ),
    "no_heads_of_x": (
        lambda: attend_by_sums(LEFT, RIGHT, X[:, 0], MASK),
        "`x` has shape (6, 3); (6, 2, n) is accepted",
    ),
    "double_bias": (
        lambda: attend_by_sums(LEFT, RIGHT, X, A.double()),
        "`attn_mask` has dtype float64",
    ),
    "whole_numbers": (
        lambda: attend_by_sums(LEFT.long(), RIGHT.long(), X.long(), MASK),
        "`x` has dtype int64",
    ),
    "falling": (
        lambda: attend_by_sums(LEFT, RIGHT, X, MASK, negative_slope=-0.1),
        "`negative_slope` is -0.1; finite numbers from 0 on are accepted",
    ),
    "all_of_them_dropped": (
        lambda: attend_by_sums(LEFT, RIGHT, X, MASK, dropout_p=1.0),
        "`dropout_p` is 1.0",
    ),
    # diagonals
    "blocks": (lambda: diagonals(layout=torch.sparse_bsr), "spgrad.spdiags: `layout` has blocks"),
    "cube": (lambda: diagonals(size=(3, 3, 3)), "spgrad.spdiags: `shape` has shape (3, 3, 3)"),
    "three_rows": (lambda: diagonals(rows=3), "spgrad.spdiags: `offsets` has shape (2,)"),
    "offsets_in_a_square": (
        lambda: diagonals(offsets=((0, 1), (2, 3))),
        "spgrad.spdiags: `offsets` has shape (2, 2)",
    ),
    "hybrid_diagonal": (
        lambda: spgrad.diag_embed(HYBRID),
        "spgrad.diag_embed: `input` has shape (4, 6, 3)",
    ),
    "one_diagonal": (
        lambda: spgrad.diag_embed(A, 0, 1, -2),
        "spgrad.diag_embed: `input` has shape (4, 6)",
    ),
    # parts
    "added_to_dense": (
        lambda: spgrad.index_add(HYBRID, 2, torch.tensor([0]), HYBRID[..., :1]),
        "spgrad.index_add: `input` has shape (4, 6, 3)",
    ),
    "no_chunks": (lambda: A.chunk(0), "spgrad.chunk: `chunks` is 0"),
    "no_size": (lambda: A.split(0), "spgrad.split: `split_size_or_sections` is 0"),
    "sizes_that_miss": (
        lambda: A.split([1, 2]),
        "spgrad.split: `split_size_or_sections` is (1, 2)",
    ),
    "size_below_zero": (
        lambda: A.split([5, -1]),
        "spgrad.split: `split_size_or_sections` is (5, -1)",
    ),
    "outside": (lambda: A.narrow(0, 3, 2), "spgrad.narrow: `start` is 3 and `length` 2"),
    "before_the_start": (lambda: A.narrow(0, -5, 1), "spgrad.narrow: `start` is -5"),
    "less_than_none": (lambda: A.narrow(0, 1, -1), "spgrad.narrow: `start` is 1 and `length` -1"),
    "mask_of_floats": (lambda: A.masked_select(A), "spgrad.masked_select: `mask` is"),
    "other_mask": (
        lambda: spgrad.masked_select(A, torch.ones(6, 4, dtype=torch.bool)),
        "spgrad.masked_select: `mask` has shape (6, 4)",
    ),
    "word": (lambda: assigned("a"), "spgrad, in A[0:2] = 'a': `value` is"),
    "sparse_of_another_shape": (
        lambda: assigned(testing.random_sparse((3, 6), dtype=F32)),
        "spgrad, in A[0:2] = SparseTensor: `value` has shape (3, 6)",
    ),
    # joins, comparisons
    "vectors_side_by_side": (
        lambda: spgrad.hstack([HYBRID, A]),
        "spgrad.hstack: `tensors[1]` has shape (4, 6)",
    ),
    "other_shape": (
        lambda: spgrad.allclose(A, A[:3]),
        "spgrad.allclose: `other` has shape (3, 6)",
    ),
    "no_tensor": (lambda: spgrad.equal(A, 3), "spgrad.equal: `other` is an int"),
    "both_dense": (lambda: spgrad.equal(Q, Q), "spgrad.equal: `input` is a dense tensor"),
    # products
    "sparse_factor": (lambda: spgrad.sparse_mm(A, A), "spgrad.sparse_mm: `B` is"),
    "dense_factor": (lambda: spgrad.sparse_mm(Q, Q), "spgrad.sparse_mm: `A` is"),
    "many_dimensions": (
        lambda: spgrad.sparse_mm(testing.random_sparse((2, 2, 4, 6)), K),
        "spgrad.sparse_mm: `A` has shape (2, 2, 4, 6)",
    ),
    "no_function": (lambda: spgrad.map("exp", A), "spgrad.map: `fn` is"),
    # what torch calls underneath
    "ones_of_repeats": (lambda: aten.ones_like.default(TWICE), "spgrad.ones_like: `A` is not"),
    "another_size": (
        lambda: aten.new_empty_strided.default(A, (2, 2), (2, 1)),
        "spgrad.new_empty_strided: `size` is (2, 2)",
    ),
    "dense_summand": (
        lambda: aten.add.Tensor(A, torch.ones(4, 6)),
        "of a SparseTensor and a dense tensor of shape (4, 6)",
    ),
    "dense_divisor": (
        lambda: aten.div.Tensor(A, torch.ones(4, 6)),
        "of a SparseTensor and a dense tensor of shape (4, 6)",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    assert_refused(*REFUSED[case])


@pytest.mark.parametrize("other", [1j, 2 + 1j])
def test_a_complex_number_has_no_order(other):
    for compare in (spgrad.gt, spgrad.maximum):
        with pytest.raises(spgrad.SpgradError, match=f"spgrad.{compare.__name__}: "):
            compare(A, other)


@pytest.mark.parametrize("power", [-1, -0.5, 0, torch.tensor(-1)])
def test_a_power_that_leaves_no_zero(power):
    with pytest.raises(spgrad.ArgumentValueError, match=r"`exponent` is .*, with which 0"):
        spgrad.pow(A, power)


def test_deep_copies_of_one_tensor_are_one():
    import copy

    pair = copy.deepcopy([A, A])
    assert pair[0] is pair[1]
    assert pair[0]._vals.data_ptr() != A._vals.data_ptr()


def test_values_on_another_device_keep_the_pattern():
    B = aten.empty_like.default(A, device="meta")
    assert (B.device.type, B.pattern.indices[0].device.type) == ("meta", "meta")
    assert B.shape == A.shape


def test_a_number_times_a_tensor():
    number = torch.tensor(2.0)
    assert torch.equal(aten.mul.Tensor(number, A)._vals, 2 * A._vals)
    assert torch.equal(aten.mul.Tensor(A, number)._vals, 2 * A._vals)
    assert torch.equal(aten.div.Tensor(A, number)._vals, A._vals / 2)


SPARSE_MATRIX = testing.random_sparse((4, 6), torch.sparse_csr)
NO_MATRICES = {
    "a dense vector": torch.ones(6, dtype=torch.float64),
    "a dense batch": torch.ones(2, 5, 6, dtype=torch.float64),
    "a sparse vector": testing.random_sparse((6,), torch.sparse_coo),
    "a sparse batch": testing.random_sparse((2, 5, 6), torch.sparse_csr),
    "a list": [[1.0] * 6],
    "a number": 2.0,
    "nothing": None,
}


@pytest.mark.parametrize("name", NO_MATRICES)
def test_the_weight_of_a_linear_map_is_a_matrix(name):
    weight, says = NO_MATRICES[name], r"spgrad\.linear: `weight` is .*; a sparse or dense matrix"
    with pytest.raises(spgrad.ArgumentKindError, match=says):
        spgrad.linear(SPARSE_MATRIX, weight)
    if isinstance(weight, spgrad.SparseTensor):
        with pytest.raises(spgrad.ArgumentKindError, match=says):
            spgrad.linear(SPARSE_MATRIX.to_dense(), weight)
