"""Layers beside those of torch: operands, and the comparison of results and gradients."""

import torch

DOUBLE = {"dtype": torch.float64}


def tokens(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, **DOUBLE).requires_grad_()


def same(ours, theirs, found, wanted, *leaves):
    torch.testing.assert_close(found, wanted)
    g = torch.randn_like(wanted)
    ours_grads = torch.autograd.grad(found, [*ours.parameters(), *leaves], g)
    their_grads = torch.autograd.grad(wanted, [*theirs.parameters(), *leaves], g)
    torch.testing.assert_close(ours_grads, their_grads)
