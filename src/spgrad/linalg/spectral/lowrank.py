"""Randomised singular value decompositions: svd_lowrank and pca_lowrank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from spgrad.core import checks
from spgrad.core.tensor import SparseTensor
from spgrad.errors import ArgumentKindError, ArgumentValueError
from spgrad.lowering.operands import dense_operand, is_sparse, matrix_operand, require_int
from spgrad.ops import adjoint, matmul, sum, to_sparse  # noqa: A004
from spgrad.public import public_op

DTYPES = (torch.float32, torch.float64, torch.complex64, torch.complex128)

Factors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class Operator(NamedTuple):
    """A matrix (*b, m, n) known by its products, each differentiable."""

    shape: tuple[int, int]
    dtype: torch.dtype
    device: torch.device
    times: Callable[[torch.Tensor], torch.Tensor]  # (n, q) -> (m, q)
    adjoint_times: Callable[[torch.Tensor], torch.Tensor]  # (m, q) -> (n, q)

    def adjoint(self) -> Operator:
        """The operator of the conjugate transpose."""
        shape = self.shape[1], self.shape[0]
        return Operator(shape, self.dtype, self.device, self.adjoint_times, self.times)


@public_op
def svd_lowrank(
    A: torch.Tensor,
    q: int | None = 6,
    niter: int | None = 2,
    M: torch.Tensor | None = None,
) -> Factors:
    """Singular values and vectors of a matrix of low rank: A - M is about U diag(S) V^H.

    Halko, Martinsson and Tropp, Finding structure with randomness (SIAM Review, 2011), algorithms
    4.4 and 5.1, as `torch.svd_lowrank`, with the random numbers that it draws.

    Args:
        A: Sparse (*b, m, n) of any layout.
        q: Number of singular values; choose somewhat more than the rank of A - M.
        niter: Number of subspace iterations, from 0.
        M: Dense, or sparse in any layout; it is subtracted from A, to whose shape it must broadcast
            (a sparse M in its batch alone). A row (1, n) or a column (m, 1) is never expanded.

    Returns:
        U (*b, m, q), S (*b, q), V (*b, n, q), dense.

    Gradient:
        That of the algorithm with its random matrix held fixed. Where A has a rank below q, the
        algorithm finds the whole range but has no derivative, and the gradient is that of the exact
        decomposition. That of A is on its own pattern. U and V have a gradient if the singular
        values are distinct and not zero; each of their columns is determined up to a factor of
        modulus 1.

    Cost:
        2 niter + 2 products with A or A^H, O(nse q) each, and O((m + n) q^2).

    Raises:
        TypeError: A is not sparse, or an argument is not an int or tensor.
        ValueError: A is not a matrix, or of an integer or 16-bit dtype, q or niter is negative, or
            M does not fit.
        NotImplementedError: A has dense dimensions.

    Example:
        >>> A = spgrad.from_dense(torch.diag(torch.tensor([3.0, 2.0, 0.0])))
        >>> U, S, V = spgrad.svd_lowrank(A, q=2)
        >>> torch.allclose(S, torch.tensor([3.0, 2.0]))
        True
    """
    P = _matrix(A)
    shift = None if M is None else _shift(P, M)
    q = 6 if q is None else _from_zero("q", q)
    return _factors(_operator(P, shift), q, 2 if niter is None else _from_zero("niter", niter))


@public_op
def pca_lowrank(
    A: torch.Tensor, q: int | None = None, center: bool = True, niter: int = 2
) -> Factors:
    """Principal components of the rows of a sparse matrix: `spgrad.svd_lowrank` with M their mean.

    The centred matrix, which would be dense, is never made.

    Args:
        A: Sparse (*b, m, n) of any layout: m samples of n features.
        q: Number of components; by default the least of 6, m and n.
        center: False takes A as it is.
        niter: Number of subspace iterations, from 0.

    Returns:
        U (*b, m, q), S (*b, q), V (*b, n, q), dense. The columns of V are the principal directions,
        S^2 / (m - 1) the variances along them.

    Gradient:
        As `spgrad.svd_lowrank`, through the mean too; on the pattern of A.

    Cost:
        As `spgrad.svd_lowrank`.

    Raises:
        TypeError: A is not sparse, or an argument is not an int.
        ValueError: A is not a matrix, or of an integer or 16-bit dtype, q is not between 0 and the
            least of m and n, or niter is negative.
        NotImplementedError: A has dense dimensions.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[1.0, 0.0], [3.0, 0.0], [5.0, 0.0]]))
        >>> U, S, V = spgrad.pca_lowrank(A, q=1)
        >>> torch.allclose(S, torch.tensor([8.0]).sqrt())
        True
    """
    P = _matrix(A)
    m, n = P._pattern.matrix
    q = min(6, m, n) if q is None else _from_zero("q", q)
    if q > min(m, n):
        raise ArgumentValueError(
            f"`q` is {q} for a matrix of size {(m, n)}; ints from 0 to {min(m, n)} are accepted. "
            "Ask for fewer components."
        )
    shift = sum(P, -2, keepdim=True) / m if center else None
    return _factors(_operator(P, shift), q, _from_zero("niter", niter))


def _matrix(A: Any) -> SparseTensor:
    """A in a layout whose transpose is free; COO would be sorted for it."""
    P = matrix_operand("A", A)
    if P._vals.dtype not in DTYPES:
        raise ArgumentValueError(
            f"`A` has dtype {checks.short(P._vals.dtype)}; float32, float64, complex64 and "
            "complex128 are accepted. Convert it with A.to(torch.float32)."
        )
    return to_sparse(P, layout=torch.sparse_csr) if P._pattern.is_coo else P


def _from_zero(arg: str, value: Any) -> int:
    if require_int(arg, value) < 0:
        raise ArgumentValueError(f"`{arg}` is {value}; ints from 0 are accepted. For example 2.")
    return value


def _shift(A: SparseTensor, M: Any) -> torch.Tensor:
    """M, sparse or dense, with at least two dimensions, and not expanded to the shape of A."""
    if not isinstance(M, torch.Tensor):
        raise ArgumentKindError(
            f"`M` is {checks.describe_kind(M)}; a sparse or dense tensor or None is accepted. "
            f"{checks.tensor_hint(M)}"
        )
    M = matrix_operand("M", M) if is_sparse(M) else torch.atleast_2d(dense_operand("M", M))
    shape = tuple(A._pattern.shape)
    own = tuple(M.shape)
    try:
        fits = tuple(checks.broadcast_shapes(own, shape)) == shape
    except RuntimeError:
        fits = False
    if not fits or (isinstance(M, SparseTensor) and own[-2:] != shape[-2:]):
        accepted = f"what broadcasts to {shape} (sparse: without repeating rows or columns)"
        raise checks.bad_shape("M", own, accepted, "Give the mean of the rows as (1, n).")
    checks.require_same_dtype(A=A._vals, M=M)
    checks.require_same_device(A=A._vals, M=M)
    return M


def _operator(A: SparseTensor, M: torch.Tensor | None) -> Operator:
    """A - M; the products of a row or column M broadcast to those of the expanded M."""
    AH = adjoint(A)
    m, n = A._pattern.matrix
    like = m, n, A._vals.dtype, A._vals.device
    if M is None:
        return Operator((m, n), *like[2:], lambda x: matmul(A, x), lambda y: matmul(AH, y))
    if isinstance(M, SparseTensor):
        P, PH = M, adjoint(M)
        return Operator(
            (m, n),
            *like[2:],
            lambda x: matmul(A, x) - matmul(P, x),
            lambda y: matmul(AH, y) - matmul(PH, y),
        )
    rows, columns = M.shape[-2:]

    def times(x: torch.Tensor) -> torch.Tensor:
        inner = x if columns == n else x.sum(-2, keepdim=True)
        return matmul(A, x) - M @ inner

    def adjoint_times(y: torch.Tensor) -> torch.Tensor:
        inner = y if rows == m else y.sum(-2, keepdim=True)
        return matmul(AH, y) - M.mH @ inner

    return Operator((m, n), *like[2:], times, adjoint_times)


def _factors(A: Operator, q: int, niter: int) -> Factors:
    if A.shape[0] < A.shape[1]:
        V, S, U = _of_tall(A.adjoint(), q, niter)
        return U, S, V
    return _of_tall(A, q, niter)


def _of_tall(A: Operator, q: int, niter: int) -> Factors:
    Q = _basis(A, q, niter)
    U, S, V = _projected(A, Q)
    if not S.requires_grad or not S.numel():
        return Q @ U, S, V
    missing = S[..., -1] <= torch.finfo(S.dtype).eps * max(A.shape) * S[..., 0]
    if not bool(missing.any()):
        return Q @ U, S, V
    # Q spans the whole range, and some of its columns are noise without a derivative. The exact
    # factors need no derivative of Q: V follows from Q^H A, and U from A V / S.
    fixed = Q.detach()
    if not bool(missing.all()):
        fixed = torch.where(missing[..., None, None], fixed, Q)
    U, S, V = _projected(A, fixed)
    product = A.times(V)
    outside = product - fixed @ (fixed.mH @ product)
    # in other items of a batch Q spans a part of the range, to which U belongs
    nonzero = missing[..., None] & (S > torch.finfo(S.dtype).eps * max(A.shape) * S[..., :1])
    inverse = torch.where(nonzero, 1 / torch.where(nonzero, S, 1), 0)
    return fixed @ U + outside * inverse[..., None, :], S, V


def _basis(A: Operator, q: int, niter: int) -> torch.Tensor:
    """Orthonormal columns (*b, m, q) that about span the range of A (algorithm 4.4)."""
    X = torch.randn(A.shape[1], q, dtype=A.dtype, device=A.device)
    Q = torch.linalg.qr(A.times(X)).Q
    for _ in range(niter):
        Q = torch.linalg.qr(A.adjoint_times(Q)).Q
        Q = torch.linalg.qr(A.times(Q)).Q
    return Q


def _projected(A: Operator, Q: torch.Tensor) -> Factors:
    """The decomposition of Q^H A (algorithm 5.1)."""
    U, S, Vh = torch.linalg.svd(A.adjoint_times(Q).mH, full_matrices=False)
    return U, S, Vh.mH
