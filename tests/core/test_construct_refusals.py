"""What the constructors refuse; torch accepts some of it."""

import io

import pytest
import torch
from constructors import CONSTRUCTOR, NATIVE
from samples import drawn, made_by_torch

import spgrad
from spgrad import support

# Arguments of constructors that torch accepts, and then reads memory outside of the tensors.
BAD = {
    "coo_out_of_range": (
        "coo",
        ([[0, 10**9], [0, 1]], [1.0, 2.0], (3, 3)),
        r"`indices` has 1000000000 in row 0 at position 1; indices in \[0, 3\) are accepted\. ",
    ),
    "coo_negative": (
        "coo",
        ([[0, 1], [0, -1]], [1.0, 2.0], (3, 3)),
        r"`indices` has -1 in row 1 at position 1; indices in \[0, 3\) are accepted\. ",
    ),
    "coo_negative_without_size": (
        "coo",
        ([[0, -2]], [1.0, 2.0]),
        r"`indices` has -2; non-negative indices are accepted\. ",
    ),
    "csr_out_of_range": (
        "csr",
        ([0, 1, 2, 2], [0, 10**9], [1.0, 2.0], (3, 3)),
        r"`col_indices` has 1000000000 at position 1; indices in \[0, 3\) are accepted\. ",
    ),
    "csc_negative": (
        "csc",
        ([0, 1, 2, 2], [0, -4], [1.0, 2.0], (3, 3)),
        r"`row_indices` has -4 at position 1; indices in \[0, 3\) are accepted\. ",
    ),
    "bsr_out_of_range": (
        "bsr",
        ([0, 1], [2], [[[1.0, 2.0], [3.0, 4.0]]], (2, 4)),
        r"`col_indices` has 2 at position 0; indices in \[0, 2\) are accepted\. ",
    ),
    "bsc_out_of_range": (
        "bsc",
        ([0, 0, 1], [1], [[[1.0, 2.0], [3.0, 4.0]]], (2, 4)),
        r"`row_indices` has 1 at position 0; indices in \[0, 1\) are accepted\. ",
    ),
    "negative_without_size": (
        "csr",
        ([0, 1], [-1], [1.0]),
        r"`col_indices` has -1 at position 0; indices in \[0, 0\) are accepted\. ",
    ),
    "unsorted": (
        "csr",
        ([0, 1, 3], [0, 2, 1], [1.0, 2.0, 3.0], (2, 3)),
        (
            r"`col_indices` has 1 after 2 at position 2; sorted unique indices within a row or "
            r"column are accepted\. Sort and sum duplicates with spgrad\.sparse_coo_tensor"
        ),
    ),
    "duplicate": (
        "csc",
        ([0, 2, 3], [1, 1, 0], [1.0, 2.0, 3.0], (3, 2)),
        r"`row_indices` has 1 after 1 at position 1; sorted unique indices",
    ),
    "pointers_start": (
        "csr",
        ([1, 2], [0, 1], [1.0, 2.0], (1, 3)),
        r"`crow_indices` starts with 1; 0 is accepted\. ",
    ),
    "pointers_decrease": (
        "csr",
        ([0, 2, 1, 2], [0, 1], [1.0, 2.0], (3, 3)),
        r"`crow_indices` decreases after position 1; non-decreasing pointers are accepted\. ",
    ),
    "pointers_end": (
        "bsc",
        ([0, 3], [0], [[[1.0]]], (1, 1)),
        r"`ccol_indices` ends with 3; the number of entries in `row_indices`, 1, is accepted\. ",
    ),
    "pointers_end_early": (
        "csr",
        ([0, 1], [0, 1], [1.0, 2.0], (1, 3)),
        r"`crow_indices` ends with 1; the number of entries in `col_indices`, 2, is accepted\. ",
    ),
    "pointers_of_an_item": (
        "csr",
        ([[0, 1], [1, 2]], [[0], [0]], [[1.0], [2.0]], (2, 1, 3)),
        r"`crow_indices` runs from 1 to 2 in batch item 1; from 0 to 1 is accepted\. ",
    ),
    "too_few_in_an_item": (
        "csr",
        ([[0, 1], [0, 0]], [[0], [0]], [[1.0], [2.0]], (2, 1, 3)),
        r"`crow_indices` runs from 0 to 0 in batch item 1; from 0 to 1 is accepted\. ",
    ),
    "pointers_of_a_ragged_item": (
        "csr",
        ([[0, 0, 1], [0, 2, 1]], [0, 0], [1.0, 2.0], (2, 2, 3)),
        r"`crow_indices` decreases after position 1 of batch item 1; non-decreasing pointers",
    ),
    "pointers_of_a_ragged_batch": (
        "csr",
        ([[0, 1], [0, 1]], [0, 0, 0], [1.0, 2.0, 3.0], (2, 1, 3)),
        r"`crow_indices` ends with 2; the number of entries in `col_indices`, 3, is accepted\. ",
    ),
    "float_indices": (
        "coo",
        ([[0.5]], [1.0]),
        r"`indices` has dtype float32; int32 and int64 are accepted\. Convert it with indices\.lo",
    ),
    "indices_of_two_dtypes": (
        "csr",
        (torch.tensor([0, 1], dtype=torch.int32), torch.tensor([0]), [1.0]),
        r"`col_indices` has dtype int64; `crow_indices` has int32, and one dtype for both is",
    ),
    "no_pointers": (
        "csr",
        ([], [], []),
        r"`crow_indices` has shape \(0,\); \(\*batch, lines \+ 1\) is accepted\. ",
    ),
    "flat_coordinates": (
        "coo",
        ([0, 1], [1.0, 2.0]),
        r"`indices` has shape \(2,\); \(sparse_dim, nse\) is accepted",
    ),
    "values_of_another_length": (
        "coo",
        ([[0, 1]], [1.0, 2.0, 3.0]),
        r"`values` has shape \(3,\); \(nse, \*dense_shape\) for indices",
    ),
    "compressed_values_of_another_length": (
        "csr",
        ([0, 1], [0], [1.0, 2.0]),
        r"`values` has shape \(2,\); \(1,\) followed by dense sizes is accepted\. ",
    ),
    "values_without_blocks": (
        "bsr",
        ([0, 1], [0], [1.0]),
        r"`values` has shape \(1,\); \(1,\) followed by block rows, block columns and dense sizes",
    ),
    "blocks_of_no_size": (
        "bsr",
        ([0, 1], [0], torch.zeros(1, 2, 0)),
        r"`values` has shape \(1, 2, 0\); ",
    ),
    "plain_of_another_batch": (
        "csr",
        ([[0, 1], [0, 1]], [[0]], [[1.0]]),
        r"`col_indices` has shape \(1, 1\); \(2, 'nse'\), or \(nse,\) of a ragged batch, is",
    ),
    "size_of_another_length": (
        "coo",
        ([[0]], [1.0], (2, 2)),
        r"`size` is \(2, 2\); a size for each of the 1 row\(s\) of the indices is accepted\. ",
    ),
    "size_that_pointers_deny": (
        "csr",
        ([0, 1], [0], [1.0], (2, 3)),
        r"`size` is \(2, 3\); \(1, any\) is accepted\. ",
    ),
    "size_that_pointers_deny_csc": (
        "csc",
        ([0, 1], [0], [1.0], (3, 2)),
        r"`size` is \(3, 2\); \(any, 1\) is accepted\. ",
    ),
    "size_that_blocks_do_not_divide": (
        "bsr",
        ([0, 1], [0], [[[1.0, 2.0], [3.0, 4.0]]], (2, 5)),
        r"`size` is \(2, 5\); \(2, multiple of 2\) is accepted\. ",
    ),
    "negative_size": (
        "csr",
        ([0, 1], [0], [1.0], (1, -3)),
        r"`size` is \(1, -3\); non-negative sizes with at most 2\^63 - 1 elements in all are",
    ),
    "size_beyond_int64": (
        "coo",
        ([[0], [0]], [1.0], (2**40, 2**40)),
        r"`size` is \(1099511627776, 1099511627776\); non-negative sizes with at most 2\^63 - 1",
    ),
    "zero_beside_a_size_beyond_int64": (
        "coo",
        ([[], []], [], (0, 2**63)),
        r"`size` is \(0, 9223372036854775808\); ",
    ),
    "index_whose_size_is_beyond_int64": (
        "coo",
        ([[2**63 - 1]], [1.0]),
        r"`size` is \(9223372036854775808,\); ",
    ),
    "column_whose_size_is_beyond_int64": (
        "csr",
        ([0, 1, 1], [2**62], [1.0]),
        r"`size` is \(2, 4611686018427387905\); ",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named(case):
    name, arguments, says = BAD[case]
    fn = f"sparse_{name}_tensor"
    with pytest.raises(spgrad.ArgumentValueError, match=rf"^spgrad\.{fn}: {says}"):
        CONSTRUCTOR[name](*arguments)
    assert issubclass(spgrad.ArgumentValueError, ValueError)


@pytest.mark.parametrize("shape", [(1, 2**63 - 1), (2**31, 2**32 - 1), (0, 2**63 - 1)])
def test_as_many_elements_as_int64_can_count_are_accepted(shape):
    A = spgrad.sparse_coo_tensor([[], []], [], shape)
    assert A.shape == shape


WRONG_KIND = {
    "native_values": lambda: spgrad.sparse_coo_tensor([[0]], torch.eye(1).to_sparse()),
    "sparse_values": lambda: spgrad.sparse_coo_tensor([[0]], spgrad.from_dense(torch.eye(1))),
    "native_indices": lambda: spgrad.sparse_coo_tensor(torch.eye(1).to_sparse(), [1.0]),
    "words": lambda: spgrad.sparse_coo_tensor([["a"]], [1.0]),
    "word": lambda: spgrad.sparse_coo_tensor([[0]], "x"),
    "uneven_list": lambda: spgrad.sparse_coo_tensor([[0, 1], [0]], [1.0]),
    "huge_index": lambda: spgrad.sparse_coo_tensor([[2**70]], [1.0]),
    "object": lambda: spgrad.sparse_csr_tensor([0, 1], object(), [1.0]),
    "no_values": lambda: spgrad.sparse_coo_tensor([[0]]),
    "no_indices": lambda: spgrad.sparse_coo_tensor(values=[1.0]),
    "size_number": lambda: spgrad.sparse_coo_tensor([[0]], [1.0], 3),
    "size_float": lambda: spgrad.sparse_coo_tensor([[0]], [1.0], (3.0,)),
    "size_word": lambda: spgrad.sparse_csr_tensor([0, 1], [0], [1.0], "13"),
    "dtype": lambda: spgrad.sparse_coo_tensor([[0]], torch.ones(1), dtype="float32"),
    "device": lambda: spgrad.sparse_coo_tensor([[0]], torch.ones(1), device="nowhere"),
    "no_layout": lambda: spgrad.sparse_compressed_tensor([0, 1], [0], [1.0]),
    "layout_coo": lambda: spgrad.sparse_compressed_tensor(
        [0, 1], [0], [1.0], layout=torch.sparse_coo
    ),
    "layout_word": lambda: spgrad.sparse_compressed_tensor([0, 1], [0], [1.0], layout="csr"),
}


@pytest.mark.parametrize("case", WRONG_KIND)
def test_wrong_kinds_are_type_errors(case):
    with pytest.raises(spgrad.ArgumentKindError, match=r"^spgrad\.sparse_\w+_tensor: `\w+` .*; "):
        WRONG_KIND[case]()
    assert issubclass(spgrad.ArgumentKindError, TypeError)


def test_nothing_at_all_is_refused():
    with pytest.raises(spgrad.ArgumentValueError, match="`size` is missing; "):
        spgrad.sparse_coo_tensor()


def test_what_torch_takes_silently():
    """Regression: each of these makes a native tensor, of wrong numbers or worse later on."""
    cases = {
        "csr": ([0, 1, 2, 2], [0, 10**9], [1.0, 2.0], (3, 3)),
        "csc": ([0, 2, 2, 2], [1, 1], [1.0, 2.0], (3, 3)),
        "coo": ([[0, 10**9], [0, 1]], [1.0, 2.0], (3, 3)),
    }
    for name, arguments in cases.items():
        NATIVE[name](*arguments, check_invariants=False)
        with pytest.raises(spgrad.ArgumentValueError):
            CONSTRUCTOR[name](*arguments)


def test_indices_are_checked(sparse):
    make = torch if sparse is made_by_torch else spgrad
    with pytest.raises((ValueError, RuntimeError), match="1000000000"):
        make.sparse_csr_tensor([0, 1, 2, 2], [0, 10**9], [1.0, 2.0], (3, 3))
    with pytest.raises((ValueError, RuntimeError), match="1000000000"):
        make.sparse_coo_tensor([[0, 10**9], [0, 1]], [1.0, 2.0], (3, 3))
    for name in support.ALL:
        A = sparse(drawn(4, 6), name)
        A.pattern.indices[-1].view(-1)[0] = 10**9
        file = io.BytesIO()
        torch.save(A, file)
        file.seek(0)
        with pytest.raises((ValueError, RuntimeError), match="1000000000"):
            torch.load(file, weights_only=False)


@pytest.mark.parametrize("layout", support.ALL)
def test_the_class_gets_other_values_than_the_pattern_has(layout):
    A = spgrad.sparse_coo_tensor([[0, 1], [2, 0]], [1.0, 2.0], (4, 6))
    blocks = {"blocksize": (2, 2)} if layout in ("bsr", "bsc") else {}
    A = spgrad.from_dense(A.to_dense(), getattr(torch, f"sparse_{layout}"), **blocks)
    shape, size = tuple(A.values().shape), A.nse
    torch.testing.assert_close(spgrad.SparseTensor(A.values(), A.pattern), A)
    for wrong in [(size + 1, *shape[1:]), (size - 1, *shape[1:]), (*shape, 1), ()]:
        with pytest.raises(spgrad.ArgumentValueError) as refused:
            spgrad.SparseTensor(torch.ones(wrong), A.pattern)
        expected = f"SparseTensor: `values` has shape {wrong}; {shape} is accepted for this pattern"
        assert expected in str(refused.value)
