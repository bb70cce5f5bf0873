"""Attention over bool masks as on a device, where the host does not read whether all are True."""

import pytest
import torch

import spgrad
from spgrad import testing
from spgrad.lowering import align

M, N = 7, 9
attend = torch.nn.functional.scaled_dot_product_attention


@pytest.mark.parametrize("layout", ["csr", "csc", "bsr", "coo"])
@pytest.mark.parametrize("shape", [(M + 1, N + 1), (2, M + 1, N + 1)])
@pytest.mark.parametrize("kind", ["all", "some", "none", "no_entries"])
def test_elements_that_are_false_take_no_part(kind, shape, layout, monkeypatch):
    monkeypatch.setattr(align, "asks_device", lambda pattern: True)
    density = 0.0 if kind == "no_entries" else 0.5
    A = testing.random_sparse(shape, testing.LAYOUTS[layout], density=density)
    truth = {"all": torch.ones_like, "none": torch.zeros_like}.get(kind, lambda v: v > 0)(A._vals)
    mask = spgrad.from_values(truth.bool(), A)
    made = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(*shape[:-2], size, 4, generator=made, dtype=torch.float64).requires_grad_()
        for size in (shape[-2], shape[-1], shape[-1])
    )
    dense = mask.to_dense()
    there = dense.any(-1, keepdim=True)
    found = attend(q, k, v, attn_mask=mask)
    wanted = attend(q, k, v, attn_mask=dense | ~there) * there  # rows without elements give zeros
    testing.assert_close(found, wanted)
    g = torch.randn(wanted.shape, generator=made, dtype=torch.float64)
    pairs = zip(*(torch.autograd.grad(y, (q, k, v), g) for y in (found, wanted)), strict=True)
    for one, other in pairs:
        testing.assert_close(one, other)
