"""The logarithm of sums of exponentials over rows, columns or both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch

from spgrad import ops
from spgrad.core.interop import from_torch
from spgrad.dropin.torchsparsegradutils.checked import NAMES

__all__ = ["sparse_bidir_logsumexp", "sparse_logsumexp"]


def sparse_logsumexp(
    input: torch.Tensor,
    dim: int | Sequence[int],
    keepdim: bool = False,
    include_zeros: bool = True,
) -> torch.Tensor:
    """log(sum of exp) over rows, columns or both, of a matrix or of each item of a batch.

    With `include_zeros`, elements that are not stored count as exp(0).

    Example:
        >>> sparse_logsumexp(torch.zeros(2, 2).to_sparse_csr(), 1)
        tensor([0.6931, 0.6931])
    """
    _require_matrix("sparse_logsumexp", input)
    dims = [dim] if isinstance(dim, int) else list(dim)
    if not dims:
        raise RuntimeError("dim is empty; one dimension or more is taken")
    for d in dims:
        if not -input.ndim <= d < input.ndim:
            raise IndexError(f"dim is {d}, for {input.ndim} dimensions")
    counted = sorted(d % input.ndim for d in dims)
    if len(set(counted)) < len(counted):
        raise RuntimeError(f"dim is {dims}; each dimension is taken once")
    if input.ndim == 3 and 0 in counted:
        raise NotImplementedError("dim has the dimension of the batch, 0; 1 and 2 are taken")
    return ops.logsumexp(input, tuple(counted), keepdim, specified=not include_zeros)


def sparse_bidir_logsumexp(
    input: torch.Tensor,
    keepdim: bool = False,
    include_zeros: bool = True,
    output_layout: str = "tuple",
) -> Any:
    """log(sum of exp) over the rows and over the columns: one for each column, one for each row.

    `output_layout` is "tuple", or "padded": one tensor (2, *b, max(rows, columns)) with -inf at the
    end of the shorter, or "nested".

    Example:
        >>> sparse_bidir_logsumexp(torch.zeros(2, 3).to_sparse_csr())
        (tensor([0.6931, 0.6931, 0.6931]), tensor([1.0986, 1.0986]))
    """
    _require_matrix("sparse_bidir_logsumexp", input)
    if output_layout not in ("tuple", "padded", "nested"):
        raise ValueError(
            f"unknown output_layout {output_layout!r}; 'tuple', 'padded' and 'nested' are taken"
        )
    if keepdim and output_layout != "tuple":
        raise ValueError("keepdim is only supported with the output_layout 'tuple'")
    column, row, padded = _both(input, include_zeros)
    if output_layout == "padded":
        return padded
    if output_layout == "nested":
        return torch.nested.as_nested_tensor([column, row])
    return (column.unsqueeze(-2), row.unsqueeze(-1)) if keepdim else (column, row)


def _both(
    input: torch.Tensor, include_zeros: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The results of columns and of rows, which are views of the third: both, padded."""
    rows, columns = input.shape[-2:]
    width = max(rows, columns)
    A = ops.coalesce(from_torch(input)) if input.layout == torch.sparse_coo else input
    found = []
    for dim, size in ((-2, columns), (-1, rows)):
        one = cast(Any, ops.logsumexp(A, dim, specified=not include_zeros))
        found.append(torch.nn.functional.pad(one, (0, width - size), value=float("-inf")))
    padded = torch.stack(found)
    return padded[0, ..., :columns], padded[1, ..., :rows], padded


_bidir_2d = _bidir_batched = _both


def _require_matrix(name: str, input: torch.Tensor) -> None:
    if input.ndim not in (2, 3):
        raise NotImplementedError(f"{name} of {input.ndim} dimensions; 2, or 3 with a batch, works")
    if input.layout not in NAMES:
        raise NotImplementedError(f"{name} of layout {input.layout}; {NAMES.values()} work")
    if input.dense_dim():
        raise ValueError(f"{name} of a tensor with dense dimensions; one without is taken")
