"""Running sums of segments, against the reference and torch."""

import pytest
import torch
from operands import COMPLEX, FLOATS, INTEGERS, LINES, both_threads, values, view

from spgrad import kernels
from spgrad.kernels import REFERENCES

pytestmark = pytest.mark.usefixtures("poisoned")

INDEX_DTYPES = [torch.int32, torch.int64]
LENGTHS = {
    **LINES,
    "several blocks": [20_000, 1, 0, 4096, 4097],
    "around a limit": [4095, 4096, 2, 8192],
}


def summed(ptr, perm, val, backward):
    """The same by torch, segment by segment, in the widest dtype."""
    wide = val if val.dtype in INTEGERS else val.to(torch.promote_types(val.dtype, torch.float64))
    out = torch.empty_like(wide)
    place = torch.arange(len(val)) if perm is None else perm.long()
    for begin, end in zip(ptr[:-1].tolist(), ptr[1:].tolist(), strict=True):
        line = wide[place[begin:end]]
        turned = line.flip(0) if backward else line
        total = turned.cumsum(0, dtype=wide.dtype)
        out[place[begin:end]] = total.flip(0) if backward else total
    return out


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("width", [None, 3, 70])
@pytest.mark.parametrize("dtype", FLOATS + COMPLEX + INTEGERS, ids=str)
def test_running_sums(dtype, width, backward):
    for turn, counts in enumerate(LENGTHS.values()):
        for permuted in (False, True):
            ptr, perm = view(counts, INDEX_DTYPES[turn % 2], permuted=permuted)
            val = values(int(ptr[-1]), width, dtype)
            found = both_threads("segment_scan", ptr, perm, val, backward)
            wanted = summed(ptr, perm, val, backward)
            if dtype in INTEGERS:
                assert torch.equal(found, wanted)
                assert torch.equal(found, REFERENCES["segment_scan"](ptr, perm, val, backward))
            else:  # one rounding error of the result, and those of the wide sums
                size = summed(ptr, perm, val.abs(), backward)
                slack = 1e-12 * size + torch.finfo(dtype).eps * wanted.abs()
                assert ((found - wanted).abs() <= slack).all()


def test_sums_of_ones_count_further_than_the_dtype():
    ptr, val = torch.tensor([0, 100_000]), torch.ones(100_000, dtype=torch.bfloat16)
    found = kernels.segment_scan(ptr, None, val, False)
    assert found[-1] == torch.tensor(100_000, dtype=torch.bfloat16)
    assert kernels.segment_scan(ptr, None, val, True)[0] == found[-1]


def test_integers_wrap():
    for dtype in INTEGERS:
        val = torch.full((3,), torch.iinfo(dtype).max, dtype=dtype)
        found = kernels.segment_scan(torch.tensor([0, 3]), None, val, False)
        assert torch.equal(found, val.cumsum(0, dtype=dtype))


def test_nan_and_infinity_stay_in_their_segments():
    nan, inf = torch.nan, torch.inf
    val = torch.tensor([1.0, nan, 2.0, 3.0, inf, 1.0, 4.0])
    found = kernels.segment_scan(torch.tensor([0, 3, 6, 7]), None, val, False)
    assert torch.equal(
        found.nan_to_num(-1), torch.tensor([1.0, -1, -1, 3, inf, inf, 4]).nan_to_num(-1)
    )


@pytest.mark.skipif(not kernels.compiled(), reason="the reference leaves checks to torch")
def test_mismatched_arguments_are_refused():
    ptr, perm = view([2, 3], torch.int64, permuted=True)
    val = torch.randn(5)
    for args in (
        (ptr, None, val[1:].clone(), True),
        (ptr, perm[1:].clone(), val, True),
        (ptr, perm.int(), val, True),
        (ptr, None, torch.randn(3, 5).T, True),
        (ptr, None, val[:, None, None], True),
        (ptr, None, val > 0, True),
    ):
        with pytest.raises(RuntimeError, match="spgrad"):
            kernels.segment_scan(*args)
