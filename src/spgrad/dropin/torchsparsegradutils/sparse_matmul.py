"""Sparse times dense."""

from __future__ import annotations

import torch

from spgrad import ops
from spgrad.dropin.torchsparsegradutils.checked import require_product


def sparse_mm(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    """A B of a COO or CSR matrix A and a dense B, or of batches of both.

    Example:
        >>> A = torch.eye(2).to_sparse_csr().requires_grad_()
        >>> sparse_mm(A, torch.ones(2, 1)).sum().backward()
        >>> A.grad.layout
        torch.sparse_csr
    """
    require_product(A, B)
    return ops.matmul(A, B)
