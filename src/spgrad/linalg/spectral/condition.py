"""Condition numbers and norms of sparse matrices, by their extreme singular values."""

from __future__ import annotations

from typing import Any

import torch

from spgrad.core import checks
from spgrad.core.tensor import SparseTensor
from spgrad.errors import PivotError, UnsupportedError
from spgrad.linalg.spectral.svds import singular_operand, singular_value
from spgrad.lowering.operands import matrix_operand
from spgrad.ops import select
from spgrad.ops.products.broadcast import flat
from spgrad.public import public_as
from spgrad.torch_protocol.autocast import in_given_precision


@public_as("linalg.cond")
def cond(A: torch.Tensor, p: float | str | None = None) -> torch.Tensor:
    """Condition number: the largest singular value over the smallest, as `torch.linalg.cond`.

    Args:
        A: Sparse (*b, m, n) of any layout; float32, float64, complex64 or complex128.
        p: None or 2; -2 for the smallest singular value over the largest.

    Returns:
        (*b,), real; inf for singular matrices, NaN for matrices of zeros, 0 for matrices without
        rows or columns.

    Gradient:
        Of the two singular values, at the elements of A, where they are not repeated. Of any order.

    Cost:
        Twice that of `spgrad.linalg.svds` with k=1; the smallest singular value takes a factor of
        A. The items of a batch are done one after the other.

    Raises:
        TypeError: `A` is not sparse.
        ValueError: `A` has another dtype, or an element that is not finite.
        NotImplementedError: `p` is another norm, which would take all columns of the inverse; or
            `A` has dense dimensions.
        ConvergenceError: ARPACK ended before its tolerance.
        ImportError: SciPy is not installed.

    Example:
        >>> spgrad.linalg.cond(spgrad.from_dense(torch.diag(torch.tensor([4.0, 2.0, 1.0]))))
        tensor(4.)
    """
    T = matrix_operand("A", A)
    if p is not None and not (isinstance(p, (int, float)) and abs(p) == 2):
        raise UnsupportedError(
            f"`p` is {p!r}, which takes a norm of the inverse, a dense matrix; None, 2 and -2 are "
            "accepted. For 1 multiply spgrad.matrix_norm(A, 1) with the estimate of "
            "scipy.sparse.linalg.onenormest, or use torch.linalg.cond(A.to_dense(), p)."
        )
    most = spectral_norm(T, True)
    if 0 in T._pattern.matrix:
        return most
    least = spectral_norm(T, False)
    return least / most if p == -2 else most / least


@in_given_precision
def spectral_norm(A: Any, largest: bool) -> torch.Tensor:
    """The largest or smallest singular value of each matrix (*b,)."""
    T = matrix_operand("A", A)
    if T._pattern.batch:
        count = T._pattern.batch[0]
        if count == 0:
            return (flat(T).sum() * 0).real + T._vals.real.new_zeros(T._pattern.batch)
        return torch.stack([spectral_norm(select(T, 0, i), largest) for i in range(count)])
    T = singular_operand(T)
    if 0 in T._pattern.matrix:
        return _zero(T, largest)
    if largest:
        return singular_value(T, True)
    try:
        return singular_value(T, False)
    except PivotError:  # T does not have full rank
        return _zero(T, True)


def _zero(T: SparseTensor, allowed: bool) -> torch.Tensor:
    """0, with a gradient of zeros."""
    if not allowed:
        hint = "The least of no numbers is not defined."
        raise checks.bad_shape("A", tuple(T._pattern.shape), "a matrix with elements", hint)
    return (flat(T).sum() * 0).real
