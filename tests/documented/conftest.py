"""Documented code runs twice: with the constructors of spgrad, and unchanged in drop-in mode."""

import contextlib
from types import SimpleNamespace

import pytest
import torch

import spgrad

SPGRAD = SimpleNamespace(
    sparse_coo_tensor=spgrad.sparse_coo_tensor,
    sparse_csr_tensor=spgrad.sparse_csr_tensor,
    FloatTensor=lambda *a: (
        spgrad.sparse_coo_tensor(size=a) if isinstance(a[0], int) else spgrad.sparse_coo_tensor(*a)
    ),
    to_sparse=lambda x: spgrad.from_dense(x, torch.sparse_coo),
    to_sparse_csr=spgrad.from_dense,
    mode=contextlib.nullcontext,
)
"""What makes a SparseTensor where the documents write torch's name."""


def in_torch():
    """The same of torch, to be asked for inside of the mode."""
    return SimpleNamespace(
        sparse_coo_tensor=torch.sparse_coo_tensor,
        sparse_csr_tensor=torch.sparse_csr_tensor,
        FloatTensor=torch.sparse.FloatTensor,
        to_sparse=torch.Tensor.to_sparse,
        to_sparse_csr=torch.Tensor.to_sparse_csr,
        mode=spgrad.dropin,
    )


@pytest.fixture(params=["spgrad", "dropin"])
def make(request):
    """Names of constructors; in drop-in mode they are torch's own."""
    if request.param == "spgrad":
        yield SPGRAD
    else:
        with spgrad.dropin():
            yield in_torch()
