"""The attention kernels against their references; threads; long lines."""

import pytest
import torch
from torch.testing import assert_close

import spgrad
from spgrad import kernels, testing
from spgrad.kernels import REFERENCES
from spgrad.lowering.views import cols, rows

pytestmark = pytest.mark.usefixtures("poisoned")

# rows, columns, entries, features of queries and of values, heads
SHAPES = {
    "plain": (50, 40, 300, 8, 5, 2),
    "long rows": (3, 20_000, 18_000, 16, 16, 1),
    "long columns": (20_000, 3, 18_000, 4, 33, 1),
    "wide": (300, 300, 8000, 64, 130, 3),
    "no entries": (10, 10, 0, 4, 4, 1),
    "no features": (6, 7, 20, 0, 2, 2),
    "no values": (6, 7, 20, 3, 0, 2),
    "no heads": (6, 7, 20, 3, 2, 0),
    "no rows": (0, 7, 0, 3, 2, 1),
}
TOLERANCE = {torch.float32: 2e-4, torch.float64: 1e-10}


def both(name, *args):
    """The results on one thread and on two, equal to the reference's."""
    tolerance = TOLERANCE[args[-2].dtype]
    torch.set_num_threads(1)
    found = getattr(kernels, name)(*args)
    assert_close(found, REFERENCES[name](*args), rtol=tolerance, atol=tolerance)
    torch.set_num_threads(2)
    assert_close(getattr(kernels, name)(*args), found, rtol=0, atol=0)
    return found


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(
    ("dtype", "index_dtype"), [(torch.float32, torch.int32), (torch.float64, torch.int64)], ids=str
)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_forwards_and_backwards(shape, dtype, index_dtype, biased):
    m, n, entries, d, e, heads = shape
    keys = torch.randint(max(m * n, 1), (entries,)).unique()
    vals = torch.randn(len(keys), dtype=dtype)
    vals[:7] = -torch.inf
    A = spgrad.sparse_coo_tensor(torch.stack([keys // n, keys % n]), vals, (m, n))
    by_rows, by_cols = (
        [None if t is None else t.to(index_dtype) for t in view[:3]]
        for view in (rows(A.pattern), cols(A.pattern))
    )
    q, k, v, g = (
        torch.randn(heads, lines, features, dtype=dtype)
        for lines, features in ((m, d), (n, d), (n, e), (m, e))
    )
    bias = vals if biased else None
    out, lse = both("attention", *by_rows, bias, q, k, v, 0.7)
    delta = (g * out).sum(-1)
    both("attention_backward", *by_rows, *by_cols, bias, q, k, v, g, lse, delta, 0.7)


def test_a_row_of_minus_infinity_gives_nothing():
    ptr, idx = torch.tensor([0, 2, 2, 3]), torch.tensor([0, 1, 1])
    bias = torch.tensor([-torch.inf, -torch.inf, 0.0])
    q, k, v = torch.randn(1, 3, 4), torch.randn(1, 2, 4), torch.randn(1, 2, 4)
    out, lse = both("attention", ptr, idx, None, bias, q, k, v, 1.0)
    assert out[0, :2].eq(0).all()
    assert lse[0, :2].eq(-torch.inf).all()
    g, delta = torch.randn(1, 3, 4), torch.randn(1, 3)
    by_cols = kernels.transpose_plan(ptr, idx, 2)
    arrays = ptr, idx, None, *by_cols, bias, q, k, v, g, lse, delta
    dq, _, _, d_bias = both("attention_backward", *arrays, 1.0)
    assert dq[0, :2].eq(0).all()
    assert d_bias[:2].eq(0).all()


def test_opcheck():
    ptr, idx = torch.tensor([0, 2, 3]), torch.tensor([0, 1, 1])
    q, k, v = torch.randn(2, 2, 4), torch.randn(2, 3, 4), torch.randn(2, 3, 5)
    bias, lse = torch.randn(3), torch.randn(2, 2)
    torch.library.opcheck(torch.ops.spgrad.attention.default, (ptr, idx, None, bias, q, k, v, 0.5))
    g, by_cols = torch.randn(2, 2, 5), kernels.transpose_plan(ptr, idx, 3)
    arrays = ptr, idx, None, *by_cols, bias, q, k, v, g, lse, lse
    torch.library.opcheck(torch.ops.spgrad.attention_backward.default, (*arrays, 0.5))
    arrays = ptr, idx, None, *by_cols, None, q, k, v, g, lse, lse
    torch.library.opcheck(torch.ops.spgrad.attention_backward.default, (*arrays, 0.5))


def test_malformed_calls_are_refused():
    ptr, idx = torch.tensor([0, 2, 3]), torch.tensor([0, 1, 1])
    q, k, v = torch.randn(2, 2, 4), torch.randn(2, 3, 4), torch.randn(2, 3, 5)
    for wrong in (
        (ptr[:2], idx, None, None, q, k, v, 1.0),
        (ptr, idx, None, torch.randn(2), q, k, v, 1.0),
        (ptr, idx, None, None, q, k[..., :3], v, 1.0),
        (ptr, idx, None, None, q, k[:1], v, 1.0),
        (ptr, idx, None, None, q.half(), k.half(), v.half(), 1.0),
    ):
        if kernels.compiled():
            with pytest.raises(RuntimeError, match="spgrad: "):
                kernels.attention(*wrong)


@pytest.mark.parametrize("biased", [False, True])
def test_values_that_are_not_in_the_order_of_the_rows(biased):
    A = testing.random_sparse((6, 8), torch.sparse_csc)
    by_rows, by_cols = rows(A.pattern)[:3], cols(A.pattern)[:3]
    assert by_rows[2] is not None
    q, k, v = (torch.randn(2, n, 3, dtype=torch.float64) for n in (6, 8, 8))
    g = torch.randn(2, 6, 3, dtype=torch.float64)
    bias = A._vals if biased else None
    out, lse = both("attention", *by_rows, bias, q, k, v, 0.7)
    both("attention_backward", *by_rows, *by_cols, bias, q, k, v, g, lse, (g * out).sum(-1), 0.7)
