"""Fake tensors of kernels whose results have sizes that depend on the data."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from spgrad import kernels

PTR, IDX = torch.tensor([0, 2, 3, 3, 5]), torch.tensor([0, 2, 1, 0, 3])
COO = torch.tensor([[1, 0, 1, 1], [2, 0, 2, 0]])
CALLS = {
    "sort_coo": (COO, [2, 3]),
    "coalesce": (COO, [2, 3]),
    "group_blocks": (PTR, IDX, 2, 2, False, torch.arange(5.0)),
    "group_blocks_without_values": (PTR, IDX, 2, 2, True, None),
    "expand_blocks": (PTR, IDX, 2, 3, False, torch.ones(30)),
    "expand_blocks_without_values": (PTR, IDX, 3, 2, True, None),
    "transpose_plan": (PTR, IDX, 4, None),
}


def faked(name, arguments):
    mode = FakeTensorMode(shape_env=ShapeEnv())
    fakes = [
        mode.from_tensor(a, static_shapes=True) if isinstance(a, torch.Tensor) else a
        for a in arguments
    ]
    with mode:
        return getattr(kernels, name)(*fakes)


@pytest.mark.parametrize("case", CALLS)
def test_fake_results_have_the_sizes_and_dtypes_of_real_ones(case):
    """The sizes that the data decide are one unknown each, in which the others are written."""
    name = case.removesuffix("_without_values")
    real, fake = getattr(kernels, name)(*CALLS[case]), faked(name, CALLS[case])
    unknown = {}
    for r, f in zip(real, fake, strict=True):
        assert (r.dtype, r.dim()) == (f.dtype, f.dim())
        for known, size in zip(r.shape, f.shape, strict=True):
            if isinstance(size, int):
                assert size == known
            elif size.node.expr.is_symbol:
                assert unknown.setdefault(size.node.expr, known) == known
    for r, f in zip(real, fake, strict=True):
        for known, size in zip(r.shape, f.shape, strict=True):
            if not isinstance(size, int):
                assert size.node.expr.subs(unknown) == known
