"""Factors by PARDISO, of the oneMKL library that pypardiso finds.

pypardiso itself solves in float64 only, and at every solve it compares the matrix with that of the
solve before. So spgrad takes only the library from it, and calls PARDISO as MKL documents.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import weakref
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from spgrad.core import checks, kept
from spgrad.core.pattern import Pattern
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import plain
from spgrad.errors import MissingPackageError, PivotError, UnsupportedError
from spgrad.linalg.direct.engines import (
    Engine,
    Factored,
    indefinite,
    lines_of,
    require_int32,
    values_at,
)
from spgrad.linalg.solvers.protocol import Assume, Info, Prepared, direct_info, named_options

_ANALYSE, _FACTOR, _SOLVE, _BACKWARD, _RELEASE = 11, 22, 33, 333, -1
"""PARDISO's numbers for its phases."""

_TYPES = {
    (False, "general"): 11,
    (False, "symmetric"): -2,
    (False, "hermitian"): -2,
    (False, "positive definite"): 2,
    (True, "general"): 13,
    (True, "symmetric"): 6,
    (True, "hermitian"): -4,
    (True, "positive definite"): 4,
}
"""PARDISO's numbers for what is known of a matrix, by whether it is complex."""

_GENERAL, _DEFINITE, _COMPLEX_SYMMETRIC = (11, 13), (2, 4), 6


@named_options
@dataclass(frozen=True)
class PARDISO(Engine):
    """LU, L D L^H or Cholesky factors, by Intel's oneMKL (Schenk and Gaertner, 2004).

    Uses what `assume` says of A. PARDISO looks for pivots within blocks only. If a block has none,
    it raises PivotError; `SuperLU` may still solve the system. PARDISO does not give its factors.
    So elements of the inverse take a solve for each of their columns, and the determinant is
    available only for positive definite matrices. Needs ``pip install 'spgrad[pardiso]'``; for
    x86-64.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[4.0, 1.0], [2.0, 3.0]]))
        >>> F = spgrad.linalg.factor(A, engine=spgrad.linalg.PARDISO())  # doctest: +SKIP
        >>> F.solve(torch.tensor([5.0, 5.0]))  # doctest: +SKIP
        tensor([1., 1.])
    """

    name: ClassVar[str] = "pardiso"

    def prepare(self, A: SparseTensor, assume: Assume = "general") -> Prepared:
        """Factors the matrix."""
        known = "general" if assume == "triangular" else assume
        return _Pardiso(A, _TYPES[A._vals.is_complex(), known])


@functools.cache
def _library() -> Any:
    """The oneMKL library."""
    checks.require_packages("pardiso", "pypardiso", "numpy", "scipy")
    try:
        return importlib.import_module("pypardiso").PyPardisoSolver().libmkl
    except (ImportError, OSError) as error:
        raise MissingPackageError(
            f"oneMKL is not installed: {error}; PARDISO needs its library mkl_rt. Install with: "
            "pip install 'spgrad[pardiso]'"
        ) from error


class _Analysis:
    """The rows as PARDISO takes them, and the order that it has found."""

    def __init__(self, pattern: Pattern, kind: int) -> None:
        require_int32("PARDISO", pattern)
        self.lines = lines_of(pattern, by_rows=True, half=kind not in _GENERAL)
        self.ptr, self.idx = (t.to(torch.int32) for t in self.lines[:2])
        self.order: torch.Tensor | None = None


class _Pardiso(Factored):
    """What PARDISO holds of a matrix under a handle; it is released with this object."""

    def __init__(self, A: SparseTensor, kind: int) -> None:
        library = _library()
        super().__init__(A)
        pattern = A._pattern
        analysis = pattern.derive(kept.ANALYSIS.of("PARDISO", kind), lambda p: _Analysis(p, kind))
        self.vals = values_at(A, analysis.lines)
        self.kind = kind
        self.call = _Call(library, kind, analysis, self.vals)
        # the handle is released whether or not the factor succeeds
        weakref.finalize(self, self.call, _RELEASE).atexit = False
        self.call(_ANALYSE)
        if analysis.order is None:
            analysis.order = self.call.order
        self.call(_FACTOR)
        if self.call.changed_pivots:
            raise PivotError(
                f"`A` is singular, or nearly: PARDISO, which seeks pivots within blocks, has "
                f"changed {self.call.changed_pivots} of them; a matrix of full rank is accepted. "
                "Take spgrad.linalg.SuperLU(), which seeks pivots in whole columns."
            )

    def solve(
        self, b: torch.Tensor, *, x0: torch.Tensor | None = None, adjoint: bool = False
    ) -> tuple[torch.Tensor, Info]:
        """Solves by substitution; for a general A^H, with the factors conjugated and transposed."""
        right = plain(b).cpu()
        if self.kind == _COMPLEX_SYMMETRIC and adjoint:  # A^H is the conjugate of A
            x = self.call(_SOLVE, right.conj().resolve_conj()).conj().resolve_conj()
        else:
            x = self.call(_SOLVE, right, adjoint and self.kind in _GENERAL)
        return x.to(b.device), direct_info(b, self.items)

    def log_determinant(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Signs of 1, and the sums of the logarithms of the diagonal of the factor."""
        if self.kind not in _DEFINITE:
            raise UnsupportedError(
                "PARDISO gives the determinant of positive definite matrices alone. Declare "
                'assume="positive definite" if A is, or take engine=None, which is '
                "spgrad.linalg.SuperLU()."
            )
        diagonal = self.call.diagonal().real.log().view(self.items, -1)
        return torch.ones(self.items, dtype=self.dtype, device="cpu"), diagonal.sum(-1)

    def inverse_root(self, z: torch.Tensor) -> torch.Tensor:
        """The backward half of a solve."""
        if self.kind not in _DEFINITE:
            raise UnsupportedError(
                'PARDISO draws samples for assume="positive definite" alone. Declare it, or take '
                "engine=None, which is spgrad.linalg.SuperLU()."
            )
        return self.call(_BACKWARD, z.cpu()).to(z.device)


class _Call:
    """A handle of PARDISO, and calls with it; indices count from 0.

    The options are no tensor: Python may release the handle while a transform of torch.func runs,
    which refuses changes of tensors from outside of it.
    """

    def __init__(self, library: Any, kind: int, analysis: _Analysis, vals: torch.Tensor) -> None:
        self.library, self.kind, self.vals = library, kind, vals
        self.ptr, self.idx = analysis.ptr, analysis.idx
        size = self.ptr.shape[0] - 1
        given = analysis.order
        self.order = torch.zeros(size, dtype=torch.int32, device="cpu") if given is None else given
        self.handle = (ctypes.c_int64 * 64)()
        self.options = (ctypes.c_int32 * 64)()
        single = vals.dtype in (torch.float32, torch.complex64)
        definite = kind in _DEFINITE
        for number, value in {
            1: 1,  # these options, not the defaults
            2: 2,  # order by nested dissection
            5: 2 if given is None else 1,  # give the order that is found, or take this one
            10: 13 if kind in _GENERAL else 8,  # pivots of size 1e-13 are changed, or 1e-8
            11: 0 if definite else 1,  # scale, and
            13: 0 if definite else 1,  # match large elements with the diagonal
            21: 1,  # pivots of 1 x 1 and 2 x 2
            28: int(single),
            35: 1,  # count from 0
            56: int(definite),  # keep the diagonal
        }.items():
            self.options[number - 1] = value

    @property
    def changed_pivots(self) -> int:
        """Pivots that were replaced because they were nearly 0."""
        return 0 if self.kind in _DEFINITE else self.options[13]

    def __call__(
        self, phase: int, b: torch.Tensor | None = None, adjoint: bool = False
    ) -> torch.Tensor:
        """Runs a phase; gives x (size, n) for right-hand sides b (size, n), else an empty one."""
        self.options[11] = int(adjoint)
        right = None if b is None else b.mT.contiguous()
        x = torch.empty(0, device="cpu") if right is None else torch.empty_like(right)
        columns = 1 if right is None else right.shape[0]
        one, error = ctypes.c_int32(1), ctypes.c_int32(0)
        numbers = (ctypes.c_int32(n) for n in (self.kind, phase, self.ptr.shape[0] - 1))
        before = self.library.MKL_Set_Num_Threads_Local(torch.get_num_threads())
        self.library["pardiso"](
            self.handle,
            *(ctypes.byref(n) for n in (one, one, *numbers)),
            *(_at(t) for t in (self.vals, self.ptr, self.idx, self.order)),
            ctypes.byref(ctypes.c_int32(columns)),
            self.options,
            ctypes.byref(ctypes.c_int32(0)),  # print nothing
            None if right is None else _at(right),
            None if right is None else _at(x),
            ctypes.byref(error),
        )
        self.library.MKL_Set_Num_Threads_Local(before)
        if error.value:
            self._refuse(error.value)
        return x.mT.contiguous() if b is not None else x

    def _refuse(self, error: int) -> None:
        if error == -4 and self.kind in _DEFINITE:
            raise indefinite("PARDISO")
        if error in (-4, -7):
            raise PivotError(
                f"`A` is singular; a matrix of full rank is accepted. PARDISO ends with error "
                f"{error}. For a solution of least squares take spgrad.linalg.lstsq."
            )
        raise RuntimeError(f"PARDISO ends with error {error}, which MKL documents.")

    def diagonal(self) -> torch.Tensor:
        """The diagonal of the factor, in the order of the rows of A."""
        factor, matrix = (self.vals.new_empty(self.ptr.shape[0] - 1) for _ in range(2))
        error = ctypes.c_int32(0)
        number = ctypes.byref(ctypes.c_int32(1))
        call = self.library["pardiso_getdiag"]
        call(self.handle, _at(factor), _at(matrix), number, ctypes.byref(error))
        if error.value:
            self._refuse(error.value)
        return factor[torch.argsort(self.order)]


def _at(t: torch.Tensor) -> Any:
    return ctypes.c_void_p(t.data_ptr())
