"""Checks of operands, with the classes of errors that the package raises."""

from __future__ import annotations

from typing import Any

import torch

NAMES = {torch.sparse_coo: "COO", torch.sparse_csr: "CSR", torch.sparse_csc: "CSC"}


def require_product(A: Any, B: Any) -> None:
    """Refuses operands other than a COO or CSR matrix and a dense one, or equal batches of both."""
    if not isinstance(A, torch.Tensor) or not isinstance(B, torch.Tensor):
        raise ValueError(f"A is {type(A).__name__} and B is {type(B).__name__}; tensors are taken")
    if A.dim() != B.dim() or A.dim() not in (2, 3):
        raise ValueError(
            f"A has {A.dim()} dimensions and B has {B.dim()}; both need 2, or both 3 with a batch"
        )
    if A.layout not in (torch.sparse_coo, torch.sparse_csr):
        raise ValueError(f"A has layout {A.layout}; COO and CSR are taken")
    if B.layout != torch.strided:
        raise ValueError(f"B has layout {B.layout}; a dense tensor is taken")
    if A.dim() == 3 and A.shape[0] != B.shape[0]:
        raise ValueError(f"A is a batch of {A.shape[0]} and B of {B.shape[0]}; they must be equal")
    if A.shape[-1] != B.shape[-2]:
        raise ValueError(f"A has {A.shape[-1]} columns and B has {B.shape[-2]} rows")
