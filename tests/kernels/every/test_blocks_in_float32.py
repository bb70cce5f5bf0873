"""Triton's products of blocks in float32: what launches them answers float64 elsewhere."""

import pytest
import torch
from calls import interpreted
from test_every_kernel import CALLS, NAN, VIEWS, ZOO, view

from spgrad.kernels import LAUNCHED, REFERENCES

pytestmark = [pytest.mark.usefixtures("poisoned"), NAN]
CALLED = [(name, i) for name in ("block_sddmm", "block_spmm") for i in range(len(CALLS[name]))]


@pytest.mark.parametrize(("lines", "index_dtype"), VIEWS, ids=str)
@pytest.mark.parametrize(("name", "number"), CALLED)
def test_equals_its_reference(name, number, lines, index_dtype):
    if name == "block_sddmm" and "huge" in lines:
        pytest.skip("a program for each block, and no line is cut")
    launch = pytest.importorskip("triton") and LAUNCHED[name]
    args = CALLS[name][number](view(*(ZOO | interpreted(name))[lines], index_dtype))
    args = [x.float() if torch.is_tensor(x) and x.is_floating_point() else x for x in args]
    found = launch(*args)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, REFERENCES[name](*args), rtol=1e-4, atol=1e-4)
