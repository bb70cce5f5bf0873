"""Some singular values and vectors of a sparse matrix, by ARPACK."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, overload

import torch

from spgrad.core import checks
from spgrad.core.tensor import SparseTensor
from spgrad.errors import ArgumentValueError, UnsupportedError
from spgrad.linalg.solve import require_finite
from spgrad.linalg.solvers.units import unit_in_graph
from spgrad.linalg.spectral.arpack import Problem
from spgrad.linalg.spectral.derivative import eigenpairs
from spgrad.linalg.spectral.eigsh import iteration, require_one, start_vector
from spgrad.linalg.spectral.pencil import Gram
from spgrad.linalg.spectral.repeated import Told
from spgrad.lowering.coalesce import without_repeats
from spgrad.lowering.operands import matrix_operand
from spgrad.lowering.products.spmm import spmm
from spgrad.ops import adjoint
from spgrad.ops.products.broadcast import flat
from spgrad.ops.solves.triangular import SOLVE_DTYPES
from spgrad.public import public_as
from spgrad.torch_protocol.autocast import in_given_precision
from spgrad.torch_protocol.func_transforms import is_mapped, mapped_over


class SingularTriplets(NamedTuple):
    """Left vectors as columns, singular values, descending, and right vectors as rows."""

    U: torch.Tensor
    S: torch.Tensor
    Vh: torch.Tensor


@overload
def svds(
    A: torch.Tensor,
    k: int = 6,
    ncv: int | None = None,
    tol: float = 0.0,
    which: str = "LM",
    v0: torch.Tensor | None = None,
    maxiter: int | None = None,
    return_singular_vectors: Literal[True] = True,
    *,
    generator: torch.Generator | None = None,
) -> SingularTriplets: ...
@overload
def svds(
    A: torch.Tensor,
    k: int = 6,
    ncv: int | None = None,
    tol: float = 0.0,
    which: str = "LM",
    v0: torch.Tensor | None = None,
    maxiter: int | None = None,
    *,
    return_singular_vectors: Literal[False],
    generator: torch.Generator | None = None,
) -> torch.Tensor: ...
@public_as("linalg.svds")
@in_given_precision
def svds(
    A: torch.Tensor,
    k: int = 6,
    ncv: int | None = None,
    tol: float = 0.0,
    which: str = "LM",
    v0: torch.Tensor | None = None,
    maxiter: int | None = None,
    return_singular_vectors: bool = True,
    *,
    generator: torch.Generator | None = None,
) -> SingularTriplets | torch.Tensor:
    """k singular values of a sparse matrix with their vectors: A V = U diag(S).

    Runs SciPy's ARPACK on A^H A, or A A^H if A has more columns than rows, with the names of
    `scipy.sparse.linalg.svds`. The singular values are then computed from A V, so they are as
    accurate as those of A itself. `spgrad.svd_lowrank` is faster for a few digits of a matrix of
    low rank.

    Args:
        A: Sparse (m, n) of any layout; float32, float64, complex64 or complex128.
        k: Number of singular values, from 1 to the least of m and n.
        ncv: Number of vectors of the iteration, between k and the least of m and n.
        tol: Relative accuracy of the squares of the singular values; 0 for that of the dtype.
        which: "LM" for the largest, "SM" for the smallest, by a factor of A, or of the matrix of
            its normal equations if it is not square.
        v0: Dense (min(m, n),), where the iteration starts; by default the same random vector in
            each call, as for `spgrad.linalg.eigsh`.
        maxiter: Most restarts; by default SciPy's.
        return_singular_vectors: False returns the singular values alone.
        generator: Draws the vector to start from if `v0` is None.

    Returns:
        (U, S, Vh): (m, k), (k,), real and descending as those of `torch.linalg.svd`, and (k, n).
        The first element of each row of Vh (of each column of U if A has more columns than rows)
        that has at least 0.9 of its largest absolute value is real and positive.

    Gradient:
        For singular values: u v^H at the elements of A, for each triplet. For vectors: that of the
        eigenvectors of A^H A, as in `spgrad.linalg.eigsh`, so singular values must be distinct, or
        the loss must be the same for every basis. If a singular value is zero up to rounding, its
        u has no gradient. Of any order.

    Cost:
        "LM" takes two products with A for each step, "SM" one factor and two solves for each step;
        O((m + n) k + n ncv) memory. If min(m, n) is at most 32, or k at least min(m, n) - 1, the
        dense matrix is used instead.

    Raises:
        TypeError: `A` is not sparse, or an argument of another kind.
        ValueError: The dtype does not fit, an element is not finite, or `k`, `which`, `v0`, `ncv`,
            `maxiter` or `tol` is out of its range.
        NotImplementedError: `A` is a batch, or has dense dimensions.
        PivotError: `A` does not have full rank, and `which` is "SM".
        ConvergenceError: ARPACK ended before its tolerance.
        RuntimeError: In the backward: the vectors of repeated singular values are differentiated.
        ImportError: SciPy is not installed.

    Example:
        >>> A = spgrad.from_dense(
        ...     torch.tensor([[3.0, 0.0], [0.0, 4.0], [0.0, 0.0]])
        ... ).requires_grad_()
        >>> U, S, Vh = spgrad.linalg.svds(A, k=1)
        >>> S.detach()
        tensor([4.])
        >>> S.sum().backward()
        >>> A.grad.values()
        tensor([0., 1.])
    """
    T = singular_operand(A)
    if which not in ("LM", "SM"):
        raise ArgumentValueError(
            f'`which` is {which!r}; "LM" and "SM" are accepted. They ask for the largest and the '
            "smallest singular values."
        )
    n = min(T._pattern.matrix)
    start = start_vector(T, n, v0, generator)
    found = _found(
        T, iteration(n, k, ncv, maxiter, tol, start, "LM", 0.0 if which == "SM" else None)
    )
    if not return_singular_vectors:
        return found.singular()
    U, S, Vh = found.left(), found.singular(), found.V.mH
    return SingularTriplets(Vh.mH, S, U.mH) if found.wide else SingularTriplets(U, S, Vh)


def singular_operand(A: Any) -> SparseTensor:
    """A sparse matrix whose singular values can be found."""
    T = without_repeats(matrix_operand("A", A))
    require_one("A", T)
    dtype = T._vals.dtype
    if dtype not in SOLVE_DTYPES:
        accepted = ", ".join(map(checks.short, SOLVE_DTYPES))
        raise ArgumentValueError(
            f"`A` has dtype {checks.short(dtype)}; {accepted} are accepted. Convert it with "
            "A.to(torch.float32)."
        )
    return T


def singular_value(T: SparseTensor, largest: bool) -> torch.Tensor:
    """The largest or smallest singular value of a matrix with rows and columns, differentiable."""
    n = min(T._pattern.matrix)
    options = iteration(n, 1, None, None, 0.0, None, "LM", None if largest else 0.0)
    return _found(T, options).singular()[0]


class _Found(NamedTuple):
    """Singular values and right vectors of A, or of A^H where A has more columns than rows.

    A was divided by `unit`, unless that is None.
    """

    vals: torch.Tensor
    gram: Gram
    values: torch.Tensor  # descending
    V: torch.Tensor
    wide: bool
    unit: torch.Tensor | None

    def singular(self) -> torch.Tensor:
        """Singular values of the matrix as it was."""
        return self.values if self.unit is None else self.values * self.unit

    def left(self) -> torch.Tensor:
        """U = A V / S; any orthonormal columns where S is zero but for rounding."""
        S, product = self.values, spmm(self.vals, self.V, self.gram.A)
        none = S <= torch.finfo(S.dtype).eps * max(self.gram.A.matrix) * S[:1]
        U = product / torch.where(none, 1, S)
        if not bool(mapped_over(none).any()):
            return U
        if is_mapped(none):
            raise UnsupportedError(
                "`A` has an item without full rank among those that torch.func.vmap maps over; "
                "matrices of full rank are accepted. Call it once for each item."
            )
        rank = int((~none).sum())
        source = torch.Generator().manual_seed(0)
        random = torch.randn(
            U.shape[0], U.shape[1] - rank, generator=source, dtype=torch.float64, device="cpu"
        )
        both = torch.cat([U[:, :rank].detach(), random.to(U.device, U.dtype)], 1)
        return torch.cat([U[:, :rank], torch.linalg.qr(both).Q[:, rank:]], 1)


_TOLD = Told("linalg.svds", "singular vector", "singular value", "(U * S) @ Vh", roots=True)


def _found(T: SparseTensor, options: Any) -> _Found:
    m, n = T._pattern.matrix
    wide = m < n
    T = adjoint(T) if wide else T
    vals = flat(T)
    unit = unit_in_graph(vals)
    gram = Gram(_TOLD if unit is None else _TOLD._replace(unit=float(unit)), T._pattern)

    def check(a: torch.Tensor, _: torch.Tensor | None) -> None:
        require_finite("A", a)

    vals = vals if unit is None else vals / unit
    E, V = eigenpairs(vals, None, Problem(gram, options, check))
    E, V = E.flip(0), V.flip(1)
    zero = E <= 0
    S = torch.where(zero, 0, torch.where(zero, 1, E).sqrt())
    return _Found(vals, gram, S, V, wide, unit)
