"""Functions of torch.linalg, by their own signatures."""

from __future__ import annotations

from typing import Any

import torch

from spgrad.errors import ArgumentValueError
from spgrad.linalg.lstsq import lstsq
from spgrad.linalg.solve import solve
from spgrad.public import public_op


@public_op
def linalg_solve(A: torch.Tensor, B: torch.Tensor, *, left: bool = True) -> torch.Tensor:
    """`spgrad.linalg.solve`, as torch.linalg.solve and torch.sparse.spsolve call it.

    Args:
        A: Sparse (*b, m, m).
        B: Dense (*b, m) or (*b, m, n); (*b, n, m) with ``left=False``.
        left: False solves X A = B.

    Returns:
        Dense X.

    Gradient:
        As `spgrad.linalg.solve`.

    Cost:
        As `spgrad.linalg.solve`.

    Raises:
        TypeError: `A` is not sparse or `B` not dense.
        ValueError: Sizes, dtypes or devices don't fit, or an element is not finite.
        PivotError: `A` is singular.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[4.0, 1.0], [1.0, 3.0]]))
        >>> torch.linalg.solve(A, torch.tensor([5.0, 4.0]))
        tensor([1., 1.])
    """
    return solve(A, B, left=left)


@public_op
def linalg_lstsq(
    A: torch.Tensor, B: torch.Tensor, rcond: float | None = None, *, driver: str | None = None
) -> Any:
    """`spgrad.linalg.lstsq`, as torch.linalg.lstsq calls it.

    Args:
        A: Sparse (*b, m, n).
        B: Dense (*b, m, k), or vectors.
        rcond: Only None is accepted, because singular values are not computed.
        driver: Ignored; it names routines for dense matrices.

    Returns:
        torch.return_types.linalg_lstsq with the solution; residuals, rank and singular_values are
        empty, as torch gives them where its driver does not find them.

    Gradient:
        As `spgrad.linalg.lstsq`.

    Cost:
        As `spgrad.linalg.lstsq`.

    Raises:
        TypeError: `A` is not sparse or `B` not dense.
        ValueError: `rcond` is given, or sizes, dtypes or devices don't fit.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[1.0], [1.0]]))
        >>> torch.linalg.lstsq(A, torch.tensor([[1.0], [3.0]])).solution
        tensor([[2.]])
    """
    if rcond is not None:
        raise ArgumentValueError(
            f"`rcond` is {rcond!r}; None is accepted for a sparse matrix. Give a `damp` to "
            "spgrad.linalg.lstsq."
        )
    x = lstsq(A, B)
    rank = x.new_empty(0, dtype=torch.int64)
    residuals, singular_values = (x.new_empty(0, dtype=x.dtype.to_real()) for _ in range(2))
    return torch.return_types.linalg_lstsq(  # type: ignore[attr-defined]
        (x, residuals, rank, singular_values)
    )
