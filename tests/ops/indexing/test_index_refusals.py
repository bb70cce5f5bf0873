"""Index expressions that are refused, and the texts of the errors."""

import numpy as np
import pytest
import torch
from expressions import MASK, S

import spgrad
from spgrad import testing

A46 = testing.random_sparse((4, 6))
H463 = testing.random_sparse((4, 6, 3), dense_dim=1)
REFUSALS = {
    "row": (lambda: A46[4], ValueError, r"in A\[4\]: `index` has 4 for dimension 0 of size 4"),
    "column": (lambda: A46[:, -7], ValueError, "`index` has -7 for dimension 1 of size 6"),
    "listed": (lambda: A46[:, [0, 6]], ValueError, "`index` has 6 for dimension 1 of size 6"),
    "dense": (lambda: H463[..., 3], ValueError, "for dimension 2 of size 3"),
    "empty": (lambda: A46[0:0][0], ValueError, "no index is accepted"),
    "many": (lambda: A46[0, 0, 0], ValueError, "has 3 indices"),
    "ellipses": (lambda: A46[..., ...], ValueError, "2 ellipses"),
    "mask": (lambda: A46[:, MASK], ValueError, r"mask of shape \(4,\) for the dimensions from 1"),
    "shapes": (lambda: A46[[0, 1], [0, 1, 2]], ValueError, r"shapes \(2,\), \(3,\)"),
    "float": (lambda: A46[1.0], TypeError, "`index` has a float"),
    "floats": (lambda: A46[[0.5]], TypeError, "a tensor of dtype float32"),
    "uint8": (lambda: A46[torch.ones(4, dtype=torch.uint8)], TypeError, "dtype uint8"),
    "text": (lambda: A46["row"], TypeError, "`index` has a str"),
    "slices_listed": (lambda: A46[[S(1), 2]], TypeError, "`index` has a list"),
    "zero_step": (lambda: A46[::0], ValueError, "for dimension 0"),
    "dense_first": (
        lambda: testing.random_sparse((4, 6, 3, 2, 2), dense_dim=3)[..., [0], :, [1]],
        NotImplementedError,
        "in front of sparse ones",
    ),
    "dense_operand": (lambda: spgrad.getitem(torch.ones(3), 0), TypeError, "getitem: `input`"),
    "select": (lambda: A46.select(0, 4), ValueError, "select: `index` has 4 for dimension 0"),
    "dim": (lambda: A46.select(2, 0), ValueError, "select: `dim` is 2"),
    "narrow": (lambda: A46.narrow(1, 4, 3), ValueError, "narrow: `start` is 4 and `length` 3"),
    "negative": (
        lambda: A46.index_select(0, torch.tensor([-1])),
        ValueError,
        "index_select: `index` has -1",
    ),
    "no_vector": (
        lambda: A46.index_select(0, torch.zeros(1, 1, dtype=torch.int64)),
        ValueError,
        "index_select: `index`",
    ),
    "no_tensor": (lambda: spgrad.index_select(A46, 0, [1]), TypeError, "index_select: `index`"),
    "split": (lambda: A46.split(0), ValueError, "split: `split_size_or_sections` is 0"),
    "sections": (lambda: A46.split([1, 2]), ValueError, "add up to"),
    "chunk": (lambda: A46.chunk(0), ValueError, "chunk: `chunks` is 0"),
    "masked": (lambda: A46.masked_select(MASK), ValueError, "masked_select: `mask`"),
    "no_mask": (lambda: A46.masked_select(A46), TypeError, "masked_select: `mask`"),
    "rows on meta": (
        lambda: A46[torch.zeros(2, dtype=torch.int64, device="meta")],
        ValueError,
        "tensor on meta",
    ),
    "meta": (
        lambda: A46[torch.ones(4, 6, dtype=torch.bool, device="meta")],
        ValueError,
        "tensor on meta",
    ),
    "value": (lambda: spgrad.setitem(A46, 0, "x"), TypeError, "setitem: `value`"),
    "value_shape": (lambda: spgrad.setitem(A46, 0, torch.ones(5)), ValueError, "setitem: `value`"),
    "complex": (lambda: spgrad.setitem(A46, 0, 1j), ValueError, "setitem: `value` is complex"),
    "complex_of_numpy": (
        lambda: spgrad.setitem(A46, 0, np.complex128(1j)),
        ValueError,
        "setitem: `value` is complex",
    ),
    "added": (
        lambda: A46.index_add(0, torch.tensor([0]), A46),
        ValueError,
        r"index_add: `source` has shape \(4, 6\)",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals(case):
    function, error, says = REFUSALS[case]
    with pytest.raises(error, match=says) as caught:
        function()
    assert isinstance(caught.value, spgrad.SpgradError)
