"""Cholesky factors by CHOLMOD, which CVXOPT contains.

Of the packages with CHOLMOD, CVXOPT is the one that comes as a wheel for every platform and gives
what an engine has to give: an analysis that is separate from the values, solves with L and with
its permutation, the diagonal of L and L itself, for real and for complex matrices. cholespy solves
and does no more, scikit-sparse has to be compiled against a CHOLMOD of the system, and sparsax
needs jax. CVXOPT, like the part of CHOLMOD that it calls, is under the GNU GPL.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from spgrad.core import checks, kept
from spgrad.core.pattern import Pattern
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import plain
from spgrad.errors import ArgumentValueError
from spgrad.linalg.assume import require_true
from spgrad.linalg.direct.engines import (
    Engine,
    Factored,
    Triangles,
    indefinite,
    lines_of,
    values_at,
)
from spgrad.linalg.solvers.protocol import Assume, Info, Prepared, direct_info, named_options

_A, _LT, _P, _PT = 0, 5, 7, 8
"""What CVXOPT calls the systems A x = b, L^H x = b, P^T x = b and P x = b."""

_LOCK = threading.Lock()
"""Held while CVXOPT's options, which are global, and the matrix that factors share are used."""


@named_options
@dataclass(frozen=True)
class CHOLMOD(Engine):
    """Supernodal Cholesky factors, by CVXOPT (Chen, Davis, Hager and Rajamanickam, 2008).

    For hermitian positive definite matrices of float64 or complex128; choosing CHOLMOD declares
    that A is such a matrix. Needs ``pip install 'spgrad[cholmod]'``, which installs CVXOPT, under
    the GNU GPL.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[4.0, 1.0], [1.0, 3.0]], dtype=torch.float64))
        >>> b = torch.tensor([5.0, 4.0], dtype=torch.float64)
        >>> spgrad.linalg.solve(A, b, spgrad.linalg.CHOLMOD())
        tensor([1., 1.], dtype=torch.float64)
    """

    name: ClassVar[str] = "cholmod"

    def prepare(self, A: SparseTensor, assume: Assume = "positive definite") -> Prepared:
        """Factors the matrix."""
        checks.require_packages("cholmod", "cvxopt", "numpy", "scipy")
        if A._vals.dtype not in (torch.float64, torch.complex128):
            wide = "complex128" if A._vals.is_complex() else "float64"
            raise ArgumentValueError(
                f"`A` has dtype {checks.short(A._vals.dtype)}; CHOLMOD accepts float64 and "
                f"complex128. Convert both operands with .to(torch.{wide}), or take "
                "spgrad.linalg.SuperLU()."
            )
        if assume != "positive definite":
            says, instead = "CHOLMOD needs matrices that are", "take spgrad.linalg.SuperLU()"
            require_true(A, "positive definite", says, instead=instead)
        return _Cholesky(A)


class _Analysis:
    """The lower triangle as CVXOPT takes it, and the order of the rows that CHOLMOD has found."""

    def __init__(self, pattern: Pattern) -> None:
        self.lines = lines_of(pattern, by_rows=False, half=True)
        self.matrices: dict[str, Any] = {}  # by the code of the type
        self.order: torch.Tensor | None = None

    def factored(self, vals: torch.Tensor) -> Any:
        """CVXOPT's factor of the matrix with these values."""
        from cvxopt import matrix

        cholmod = _cholmod()
        with _LOCK, _options(self.order is not None):
            filled = self._matrix(vals)
            order = {} if self.order is None else {"p": matrix(self.order.numpy(), tc="i")}
            factor = cholmod.symbolic(filled, uplo="L", **order)
            try:
                cholmod.numeric(filled, factor)
            except ArithmeticError as error:
                raise indefinite("CHOLMOD") from error
        if self.order is None:
            size = self.lines.ptr.shape[0] - 1
            places = torch.arange(size, device="cpu").to(vals.dtype)[:, None]
            self.order = _solution(factor, places, _P).real.squeeze(1).to(torch.int64)
        return factor

    def _matrix(self, vals: torch.Tensor) -> Any:
        from cvxopt import matrix, spmatrix

        code = "z" if vals.is_complex() else "d"
        numbers = matrix(vals.numpy(), tc=code)
        known = self.matrices.get(code)
        if known is None:
            ptr, row, _ = self.lines
            column = torch.repeat_interleave(ptr.diff())
            size = ptr.shape[0] - 1
            places = (matrix(t.numpy(), tc="i") for t in (row, column))
            known = self.matrices[code] = spmatrix(numbers, *places, (size, size))
        known.V = numbers
        return known


class _Cholesky(Factored):
    """L with P A P^T = L L^H."""

    def __init__(self, A: SparseTensor) -> None:
        super().__init__(A)
        self.analysis = A._pattern.derive(kept.ANALYSIS.of("CHOLMOD"), _Analysis)
        self.vals = values_at(A, self.analysis.lines)
        self.factor = self.analysis.factored(self.vals)

    def solve(
        self, b: torch.Tensor, *, x0: torch.Tensor | None = None, adjoint: bool = False
    ) -> tuple[torch.Tensor, Info]:
        """Solves by substitution; A^H is A."""
        x = _solution(self.factor, plain(b).cpu(), _A)
        return x.to(b.device), direct_info(b, self.items)

    def log_determinant(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Signs of 1, and for each item twice the sum of the logarithms of the diagonal of L."""
        diagonal, to_row = self._diagonal()
        at_row = diagonal[to_row].log().view(self.items, -1)  # in the order of the rows of A
        return torch.ones(self.items, dtype=self.dtype, device="cpu"), 2 * at_row.sum(-1)

    def _diagonal(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The diagonal of L, and the position in it of each row of A."""
        import numpy as np

        places = torch.arange(self.size, device="cpu").to(self.dtype)[:, None]
        to_row = _solution(self.factor, places, _PT).real.squeeze(1).to(torch.int64)
        diagonal = torch.from_numpy(np.array(_cholmod().diag(self.factor))).reshape(-1).real
        return diagonal, to_row

    def inverse_root(self, z: torch.Tensor) -> torch.Tensor:
        """P^T L^-H z."""
        return _solution(self.factor, _solution(self.factor, z.cpu(), _LT), _PT).to(z.device)

    def triangles(self) -> Triangles:
        """L D^-1 and D L^H with the diagonal D of L.

        They come from a second factor, because CVXOPT can't solve with a factor that it gave away.
        """
        import numpy as np

        diagonal, to_row = self._diagonal()
        arrays = _cholmod().getfactor(self.analysis.factored(self.vals)).CCS
        ptr, row, val = (torch.from_numpy(np.array(a)).reshape(-1) for a in arrays)
        column = torch.repeat_interleave(ptr.diff())
        below = row > column
        pivots = diagonal.to(val.dtype)[column]
        return Triangles(
            torch.cat((row[below], column)),
            torch.cat((column[below], row)),
            torch.cat((val[below] / pivots[below], val.conj() * pivots)),
            to_row,
            to_row,
        )


def _solution(factor: Any, b: torch.Tensor, system: int) -> torch.Tensor:
    """x of one of the systems of a factor, for right-hand sides (size, n)."""
    import numpy as np
    from cvxopt import matrix

    x = matrix(b.contiguous().numpy())
    _cholmod().solve(factor, x, sys=system)
    return torch.from_numpy(np.array(x)).reshape(b.shape).contiguous()


@contextmanager
def _options(ordered: bool) -> Iterator[None]:
    """CVXOPT's options for supernodal factors, in a given order or in one that CHOLMOD finds."""
    options = _cholmod().options
    before = dict(options)
    options.clear()
    options.update({"supernodal": 2, "nmethods": 1} if ordered else {"supernodal": 2})
    try:
        yield
    finally:
        options.clear()
        options.update(before)


def _cholmod() -> Any:
    return importlib.import_module("cvxopt.cholmod")
