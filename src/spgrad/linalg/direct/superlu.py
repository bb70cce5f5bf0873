"""LU factors by SciPy's SuperLU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import torch

from spgrad import kernels
from spgrad.core import checks, kept
from spgrad.core.pattern import Pattern
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import plain
from spgrad.errors import ArgumentValueError
from spgrad.linalg.assume import flat_diagonal, has_symmetric_pattern
from spgrad.linalg.direct.engines import (
    Columns,
    Engine,
    Factored,
    SingularError,
    Triangles,
    indefinite,
    require_int32,
)
from spgrad.linalg.solvers.protocol import Assume, Info, Prepared, direct_info, named_options
from spgrad.lowering.views import cols

_Ordering = Literal["COLAMD", "MMD_AT_PLUS_A", "MMD_ATA", "NATURAL"]
_ORDERINGS: tuple[str, ...] = get_args(_Ordering)

_MIRROR = {"symmetric": 1, "hermitian": 2, "positive definite": 2}
"""`Columns.mirror` for each word of `assume`; 0 for the words that are not here."""

_DECLARED = 0.01
"""The threshold of pivots for a matrix that is declared symmetric; see `_factored`."""

_PREFERRED = 0.001
"""The same, UMFPACK's, for one whose pattern is symmetric."""

_EXACT, _ACCEPTED = 4, 64
"""Backward errors, in units of rounding, up to which factors with that threshold are used as they
are, and up to which they are used with a refinement of each solution."""


@named_options
@dataclass(frozen=True)
class SuperLU(Engine):
    """LU factors with partial pivoting, by SciPy (Li, 2005); what `solve` takes by default.

    Attributes:
        ordering: Order of the columns, as `scipy.sparse.linalg.splu` names it. None takes
            "MMD_AT_PLUS_A" if `assume` declares the matrix symmetric, hermitian or positive
            definite, or if its pattern is symmetric, its diagonal has no zero, and the factors are
            accurate. Pivots are then on the diagonal where these are not much smaller than the
            rest of their column. For other matrices, None takes "COLAMD".

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[4.0, 1.0], [2.0, 3.0]]))
        >>> spgrad.linalg.solve(A, torch.tensor([5.0, 5.0]), spgrad.linalg.SuperLU())
        tensor([1., 1.])
    """

    name: ClassVar[str] = "superlu"
    ordering: _Ordering | None = None

    def prepare(self, A: SparseTensor, assume: Assume = "general") -> Prepared:
        """Factors the matrix."""
        named = isinstance(self.ordering, str) and self.ordering in _ORDERINGS
        if self.ordering is not None and not named:
            names = ", ".join(repr(name) for name in _ORDERINGS)
            raise ArgumentValueError(
                f"`ordering` is {checks.describe_option(self.ordering)}; {names} and None are "
                "accepted. None chooses by `assume`."
            )
        return _LU(A, self.ordering, assume)


class _Ordered(NamedTuple):
    """The pattern by columns as SuperLU takes it, in the order of A or in one found before."""

    ptr: torch.Tensor
    idx: torch.Tensor
    perm: torch.Tensor | None  # the place among the values of each element; None: as they are
    order: torch.Tensor | None = None  # where each row and column went; None: where it was
    back: torch.Tensor | None = None


class _Analysis:
    """What the factors of one pattern share; from the second one on, they use the first's order.

    Attributes:
        order: The order of the columns that the first factor has found; None before.

    Rows and columns are permuted alike, so that the diagonal, from which SuperLU prefers to take
    pivots, keeps its elements. Threads that factor at the same time each hold an `_Ordered` of
    their own, which never changes.
    """

    def __init__(self, pattern: Pattern) -> None:
        require_int32("SuperLU", pattern)
        view = cols(pattern)
        perm = None if view.perm is None else view.perm.cpu()
        self._first = _Ordered(view.ptr.cpu(), view.idx.cpu(), perm)
        self._later: _Ordered | None = None
        self.order: torch.Tensor | None = None

    def ordered(self) -> _Ordered:
        """The arrays for the next factor."""
        if self._later is None and self.order is not None:
            self._later = _in_order(self._first, self.order)
        return self._first if self._later is None else self._later

    def set_order(self, order: Any) -> None:
        """Keeps the order of columns that the first factor has found, for the next one."""
        if self.order is None:
            self.order = torch.from_numpy(order).to(torch.int64)


def _in_order(first: _Ordered, order: torch.Tensor) -> _Ordered:
    m = order.shape[0]
    column = torch.repeat_interleave(order, first.ptr.diff().to(torch.int64))
    row = order[first.idx]
    moved = torch.argsort(column * m + row)
    ptr = torch.zeros(m + 1, dtype=torch.int32, device="cpu")
    ptr[1:] = torch.bincount(column, minlength=m).cumsum(0)
    perm = moved if first.perm is None else first.perm[moved]
    return _Ordered(ptr, row[moved].to(torch.int32), perm, order, torch.argsort(order))


class _LU(Factored):
    """L and U of P A Q."""

    def __init__(self, A: SparseTensor, ordering: str | None, assume: Assume) -> None:
        checks.require_packages("scipy", "scipy", "numpy")
        super().__init__(A)
        self.mirror = _MIRROR.get(assume, 0)
        declared = self.mirror != 0
        self.refined = False  # whether a solve corrects its result once
        if declared or ordering is not None:
            self._make(A, ordering or "MMD_AT_PLUS_A", _DECLARED if declared else None)
            return
        if _prefers_diagonal(A):
            self._make(A, "MMD_AT_PLUS_A", _PREFERRED)
            error = _backward_error(self.matrix, self.factor)
            if error <= _ACCEPTED:
                self.refined = error > _EXACT
                return
        self._make(A, "COLAMD", None)

    def _make(self, A: SparseTensor, ordering: str, threshold: float | None) -> None:
        """Factors the matrix; a `threshold` prefers pivots on the diagonal."""
        self.on_diagonal = threshold is not None
        analysis = A._pattern.derive(kept.ANALYSIS.of(ordering, threshold), _Analysis)
        ordered = analysis.ordered()
        self.order, self.back = ordered.order, ordered.back
        self.matrix = _by_columns(A, ordered)
        spec = ordering if self.order is None else "NATURAL"
        self.factor = _factored(self.matrix, spec, threshold)
        if self.order is None:
            analysis.set_order(self.factor.perm_c)

    def solve(
        self, b: torch.Tensor, *, x0: torch.Tensor | None = None, adjoint: bool = False
    ) -> tuple[torch.Tensor, Info]:
        """Solves by substitution with both factors."""
        right = plain(b).cpu()
        if self.back is not None:
            right = right[self.back]
        x = torch.from_numpy(self._solved(right.numpy(), adjoint))
        x = x.contiguous() if self.order is None else x[self.order]
        return x.to(b.device), direct_info(b, self.items)

    def _solved(self, b: Any, adjoint: bool) -> Any:
        """x in the order of the analysis, as NumPy arrays; refined as Skeel (1980) analyses."""
        kind = "H" if adjoint else "N"
        x = self.factor.solve(b, kind)
        if self.refined:
            matrix = self.matrix.conj().T if adjoint else self.matrix
            x += self.factor.solve(b - matrix @ x, kind)
        return x

    def log_determinant(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Found from the diagonal of U and the parities of both permutations."""
        diagonal = torch.from_numpy(self.factor.U.diagonal())
        row, column = self._permutations(self.factor)
        m = diagonal.shape[0] // self.items
        at_column = diagonal[column].view(self.items, m)  # of the factor that has this column of A
        sign = (at_column / at_column.abs()).prod(-1) * _parity(row, column, self.items)
        return sign, at_column.abs().log().sum(-1)

    def columns(self) -> Columns:
        """L and U as SciPy holds them."""
        row, column = self._permutations(self.factor)
        mirror = self.mirror if torch.equal(row, column) else 0
        return Columns(_arrays(self.factor.L), _arrays(self.factor.U), row, column, mirror)

    def triangles(self) -> Triangles:
        """L and U as SciPy gives them."""
        import numpy as np

        lower, upper = self.factor.L.tocoo(), self.factor.U.tocoo()
        below = lower.row > lower.col
        parts = (
            (lower.row[below], upper.row),
            (lower.col[below], upper.col),
            (lower.data[below], upper.data),
        )
        row, column, val = (torch.from_numpy(np.concatenate(pair)) for pair in parts)
        return Triangles(row, column, val, *self._permutations(self.factor))

    def inverse_root(self, z: torch.Tensor) -> torch.Tensor:
        """P^T L^-H D^-1/2 z: where all pivots are on the diagonal, L U is L D L^H."""
        found = self.factor
        if not self.on_diagonal or (found.perm_r != found.perm_c).any():
            found = _factored(self.matrix, "MMD_AT_PLUS_A", 0.0)
        row, column = self._permutations(found)
        pivots = torch.from_numpy(found.U.diagonal())
        if not torch.equal(row, column) or not bool((pivots.real > 0).all()):
            raise indefinite("SuperLU", "A is the inverse of a covariance: check its signs.")
        lower = found.L  # its columns are the rows of L^T
        ptr, idx, val = (torch.from_numpy(a) for a in (lower.indptr, lower.indices, lower.data))
        scaled = z.cpu() / pivots.real.sqrt().to(z.dtype)[:, None]
        x, _ = kernels.solve_triangular(
            ptr, idx, None, val.conj().resolve_conj(), scaled, True, True
        )
        return x[row].to(z.device)

    def _permutations(self, factor: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Where each row, and each column, of A stands in L U."""
        found = (factor.perm_r, factor.perm_c)
        row, column = (torch.from_numpy(p).to(torch.int64) for p in found)
        return (row, column) if self.order is None else (row[self.order], column[self.order])


def _arrays(factor: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    ptr, idx, val = (torch.from_numpy(a) for a in (factor.indptr, factor.indices, factor.data))
    return ptr, idx, val


def _by_columns(A: SparseTensor, ordered: _Ordered) -> Any:
    """The matrix for SciPy, with values of its own: a factor outlives changes of A in place."""
    from scipy.sparse import csc_array

    vals = plain(A._vals).reshape(-1).cpu()
    vals = vals.clone() if ordered.perm is None else vals[ordered.perm]
    arrays = (t.numpy() for t in (vals, ordered.idx, ordered.ptr))
    return csc_array(tuple(arrays), shape=A._pattern.extent)


def _prefers_diagonal(A: SparseTensor) -> bool:
    """Whether the pattern is symmetric and no diagonal element is 0.

    The symmetric strategy of UMFPACK (Davis, 2004) is for such matrices: an order for A + A^T and
    pivots on the diagonal give far fewer elements than COLAMD's order for any choice of pivots.
    """
    diagonal = flat_diagonal(A)
    return has_symmetric_pattern(A._pattern) and bool((diagonal != 0).all())


def _backward_error(matrix: Any, factor: Any) -> float:
    """That of one solve, the largest of all rows, in units of rounding.

    The right-hand side has elements of one size, of both signs in no regular order.
    """
    import numpy as np

    at = np.arange(matrix.shape[0], dtype=np.uint32)
    b = (1.0 - 2.0 * (at * np.uint32(2654435761) >> np.uint32(31))).astype(matrix.dtype)
    with np.errstate(all="ignore"):
        x = factor.solve(b)
        size = abs(matrix).sum(axis=1) * abs(x).max() + abs(b)
        error = (abs(b - matrix @ x) / size).max() / np.finfo(matrix.dtype).eps
    return float(error)


def _factored(matrix: Any, ordering: str, threshold: float | None) -> Any:
    """SciPy's factor.

    With a `threshold`, a pivot is taken off the diagonal only where the element there is smaller
    than that many times the largest of its column.
    """
    from scipy.sparse.linalg import splu

    options: dict[str, Any] = {}
    if threshold is not None:
        options = {"options": {"SymmetricMode": True}, "diag_pivot_thresh": threshold}
    try:
        return splu(matrix, permc_spec=ordering, **options)
    except RuntimeError as error:
        raise SingularError(
            f"`A` is singular; a matrix of full rank is accepted. SuperLU says: {error}. For "
            "a solution of least squares take spgrad.linalg.lstsq."
        ) from error


def _parity(row: torch.Tensor, column: torch.Tensor, items: int) -> torch.Tensor:
    """1 or -1 for every item: (-1)^(m - cycles) of the permutation from rows to columns."""
    import numpy as np
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    size = row.shape[0]
    number = torch.arange(size, device="cpu")
    to = torch.empty_like(column).scatter_(0, column, number)[row].numpy()
    graph = csr_array((np.ones(size, np.int8), to, np.arange(size + 1)), shape=(size, size))
    _, label = connected_components(graph, directed=True, connection="weak")
    first = torch.from_numpy(np.unique(label, return_index=True)[1])
    m = size // items
    cycles = torch.bincount(first // m, minlength=items)
    return 1 - 2 * ((m - cycles) % 2)
