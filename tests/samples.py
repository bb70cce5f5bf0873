"""Sparse tensors for tests of many kinds: by layout, of a drawn matrix, by spgrad or by torch."""

import torch

import spgrad
from spgrad import testing
from spgrad.core.pattern import LAYOUTS


def made(layout="csr", shape=(4, 6), **options):
    """A random tensor in a layout given by its name."""
    return testing.random_sparse(shape, LAYOUTS[layout], **options)


def leaf(layout="csr", shape=(4, 6), **options):
    """The same with a gradient to come."""
    return made(layout, shape, **options).requires_grad_()


def drawn(*shape, dtype=torch.float64, seed=0, density=0.4):
    """A dense tensor with zeros."""
    generator = torch.Generator().manual_seed(seed)
    keep = torch.rand(shape, generator=generator) < density
    return testing.random_dense(shape, dtype=dtype, generator=generator) * keep


def poisson(m=30):
    """The dense matrix (m, m) of Poisson's equation on a line, positive definite."""
    main, side = torch.full((m,), 2.0).double(), -torch.ones(m - 1).double()
    return torch.diag(main) + torch.diag(side, 1) + torch.diag(side, -1)


def made_by_spgrad(dense, layout="csr"):
    """The elements of a dense tensor that are not zero; blocks are of 2 x 2."""
    blocks = {"blocksize": (2, 2)} if layout.startswith("b") else {}
    return spgrad.from_dense(dense).to_sparse(layout=LAYOUTS[layout], **blocks).detach()


def made_by_torch(dense, layout="csr"):
    """The same by torch's own method: in drop-in mode a SparseTensor."""
    blocks = {"blocksize": (2, 2)} if layout.startswith("b") else {}
    return dense.to_sparse(layout=LAYOUTS[layout], **blocks)
