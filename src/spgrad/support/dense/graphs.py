"""The functions of graphs for dense matrices."""

from __future__ import annotations

import torch


def _require_real(A: torch.Tensor) -> None:
    if not A.is_floating_point():
        raise TypeError(f"A has dtype {A.dtype}; floating-point dtypes are accepted")


def _inverse(sums: torch.Tensor, power: float) -> torch.Tensor:
    """sums^power, and 0 where a sum is 0."""
    return torch.where(sums == 0, 0, torch.where(sums == 0, 1, sums) ** power)


def degree(
    A: torch.Tensor, dim: int = 1, weighted: bool = False, *, mask: torch.Tensor
) -> torch.Tensor:
    """The sums of lines, or their numbers of elements."""
    return A.sum(dim) if weighted else mask.sum(dim)


def normalized(A: torch.Tensor, how: str = "sym") -> torch.Tensor:
    """A divided by the sums of its lines."""
    _require_real(A)
    row, col = A.sum(1, keepdim=True), A.sum(0)
    if how == "row":
        return A * _inverse(row, -1)
    if how == "col":
        return A * _inverse(col, -1)
    return A * _inverse(row, -0.5) * _inverse(col, -0.5)


def laplacian(A: torch.Tensor, normalization: str | None = None) -> torch.Tensor:
    """D - A, or one of its two forms that are divided by degrees."""
    _require_real(A)
    A = A - A.diagonal().diag()
    sums = A.sum(1)
    if normalization is None:
        return sums.diag() - A
    connected = (sums != 0).to(A.dtype).diag()
    if normalization == "rw":
        return connected - A * _inverse(sums, -1)[:, None]
    return connected - A * _inverse(sums, -0.5)[:, None] * _inverse(sums, -0.5)


def symmetric(A: torch.Tensor, reduce: str = "sum", *, mask: torch.Tensor) -> torch.Tensor:
    """A with what its transpose has, reduced where both have an element."""
    if reduce == "sum":
        return A + A.T
    of_two = {"mean": lambda a, b: (a + b) / 2, "amax": torch.maximum, "amin": torch.minimum}
    return torch.where(mask & mask.T, of_two[reduce](A, A.T), A + A.T)


def lengths(A: torch.Tensor, sources: list[int], *, mask: torch.Tensor) -> torch.Tensor:
    """The lengths of the shortest paths from the sources."""
    _require_real(A)
    edges = A.where(mask, torch.inf)
    found = torch.full_like(A, torch.inf).fill_diagonal_(0)[sources]
    for _ in range(len(A)):
        longer = (found[:, :, None] + edges).amin(1)
        found = torch.where(longer < found, longer, found)
    return found


def between(A: torch.Tensor, nodes: list[int]) -> torch.Tensor:
    """The rows and columns of these nodes."""
    return A[nodes][:, nodes]
