"""Rows of the algorithms on sparse matrices."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from spgrad.support.table import ALL, Op, as_tensor

_untraced = partial(
    Op,
    traced=False,
    outside="it computes outside of torch, or its number of steps depends on numbers",
)


def _row(
    name: str, module: str, names: tuple[str, ...], signature: str, order: int, why: str
) -> Op:
    absent = {"dense": why}
    module = f"linalg.{module}"
    return _untraced(name, module, names, (signature,), None, order=order, absent=absent)


def _spectral(name: str, module: str, names: tuple[str, ...], form: str, why: str) -> Op:
    absent, module = {"dense": why}, f"linalg.spectral.{module}"
    return _untraced(name, module, names, (form,), None, absent=absent, public=False)


def _exponential(A: torch.Tensor, x: torch.Tensor, t: float = 1.0) -> torch.Tensor:
    """exp(t A) x; in float32 for 16-bit dtypes, where torch's exponential of a batch is inf."""
    wide = torch.float32 if A.dtype in (torch.float16, torch.bfloat16) else A.dtype
    return (torch.linalg.matrix_exp(t * A.to(wide)) @ x.to(wide)).to(A.dtype)


def _symmetric(A: torch.Tensor) -> bool:
    return torch.equal(A, A.mT) if A.shape[-1] == A.shape[-2] else False


def _hermitian(A: torch.Tensor) -> bool:
    return torch.equal(A, A.mH) if A.shape[-1] == A.shape[-2] else False


def _asked(name: str, dense: Callable[..., Any]) -> Op:
    forms = ("A[m,m] -> y[]", "A[m,k] -> y[]", "A[b,m,m] -> y[]")
    return _untraced(name, "linalg.structure", (), forms, dense, order=0, call=as_tensor)


_RANDOM = "its result depends on a random matrix, and is unique only up to signs"

_SEVERAL = "its result is several tensors"

_NO_SUCH = "torch has no such function"

_TOLERANCE = "its result is that of an iteration, which stops at a tolerance"

_SYSTEMS = (
    "S[m,m] x[m,n] -> y[m,n]",
    "S[m,m] x[m] -> y[m]",
    "S[b,m,m] x[b,m,n] -> y[b,m,n]",
    "S[m,m] x[b,m,n] -> y[b,m,n]",
)


_DETERMINANTS = ("S[m,m] -> y[]", "S[b,m,m] -> y[b]")


def _logarithm(A: torch.Tensor) -> torch.Tensor:
    return torch.linalg.slogdet(A)[1]


def _inverse_diagonal(A: torch.Tensor) -> torch.Tensor:
    return torch.linalg.inv(A).diagonal(dim1=-2, dim2=-1)


def _inverse_at(A: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.linalg.inv(A).where(mask, 0)


def _at_itself(function: Callable[..., Any], A: torch.Tensor, **options: Any) -> torch.Tensor:
    """Calls a function with a sparse tensor and its pattern, or with a dense one."""
    return function(A, **options) if A.layout is torch.strided else function(A, A, **options)


def _by_factor(
    function: Callable[..., Any], A: torch.Tensor, b: torch.Tensor, **options: Any
) -> torch.Tensor:
    """Solves with the factor that `function` makes of a sparse A; a dense A goes to `function`."""
    strided = A.layout is torch.strided
    return function(A, b, **options) if strided else function(A, **options).solve(b)


def _size(function: Callable[..., Any], *operands: Any) -> torch.Tensor:
    found = function(*operands)
    return found if isinstance(found, torch.Tensor) else found[1]


def _determinant(name: str, names: tuple[str, ...], dense: Callable[..., Any], **more: Any) -> Op:
    module = "linalg.determinant"
    return _untraced(name, module, names, _DETERMINANTS, dense, public=False, **more)


ROWS = (
    _determinant("det", ("torch.det", "torch.linalg.det", "torch.Tensor.det"), torch.det),
    _determinant("logdet", ("torch.logdet", "torch.Tensor.logdet"), torch.logdet),
    _determinant(
        "slogdet",
        ("torch.slogdet", "torch.linalg.slogdet", "torch.Tensor.slogdet"),
        _logarithm,
        call=_size,
    ),
    _untraced(
        "inverse_diagonal",
        "linalg.determinant",
        (),
        ("S[m,m] -> y[m]", "S[b,m,m] -> y[b,m]"),
        _inverse_diagonal,
        public=False,
    ),
    _untraced(
        "inverse_at",
        "linalg.determinant",
        (),
        ("S[m,m] -> C[m,m]", "S[b,m,m] -> C[b,m,m]"),
        _inverse_at,
        call=_at_itself,
        public=False,
    ),
    _untraced(
        "factor",
        "linalg.direct.factor",
        (),
        _SYSTEMS,
        torch.linalg.solve,
        call=_by_factor,
        public=False,
    ),
    _untraced("solve", "linalg.solve", (), _SYSTEMS, torch.linalg.solve, public=False),
    _untraced(
        "lstsq",
        "linalg.lstsq",
        (),
        ("A[m,k] x[m,n] -> y[k,n]",),
        None,
        absent={"dense": _TOLERANCE},
        public=False,
    ),
    _untraced(
        "linalg_solve",
        "linalg.torch_names",
        ("torch.linalg.solve", "torch.sparse.spsolve"),
        _SYSTEMS,
        torch.linalg.solve,
        public=False,
    ),
    _untraced(
        "linalg_lstsq",
        "linalg.torch_names",
        ("torch.linalg.lstsq",),
        ("A[m,k] x[m,n] -> y[k,n]",),
        None,
        absent={"dense": _TOLERANCE},
        public=False,
    ),
    _untraced(
        "inv",
        "linalg.torch_names",
        ("torch.linalg.inv", "torch.inverse", "torch.Tensor.inverse"),
        (),
        None,
        (),
        order=0,
        absent={
            **dict.fromkeys(ALL, "the inverse of a sparse matrix is dense"),
            "instead": "Keep F = spgrad.linalg.factor(A) and take F.solve(b),",
        },
        public=False,
    ),
    _spectral("eigsh", "eigsh", (), "A[m,m] -> y[n]", _SEVERAL),
    _spectral("svds", "svds", (), "A[m,k] -> y[n]", _SEVERAL),
    _untraced(
        "cond",
        "linalg.spectral.condition",
        ("torch.linalg.cond",),
        _DETERMINANTS,
        torch.linalg.cond,
        samples=({}, {"p": -2}),
        public=False,
    ),
    _row("lobpcg", "spectral.lobpcg", ("torch.lobpcg",), "A[m,m] -> y[n]", 2, _RANDOM),
    _row("svd_lowrank", "spectral.lowrank", ("torch.svd_lowrank",), "A[m,k] -> y[m,n]", 2, _RANDOM),
    _row("pca_lowrank", "spectral.lowrank", ("torch.pca_lowrank",), "A[m,k] -> y[m,n]", 2, _RANDOM),
    _row("reverse_cuthill_mckee", "ordering", (), "A[m,m] -> y[m]", 0, _NO_SUCH),
    _row("locality_order", "ordering", (), "A[m,m] -> y[m]", 0, _NO_SUCH),
    _row("connected_components", "structure", (), "A[m,m] -> y[m]", 0, _NO_SUCH),
    _asked("is_symmetric", _symmetric),
    _asked("is_hermitian", _hermitian),
    _untraced(
        "expm_multiply",
        "linalg.exponential",
        (),
        ("S[m,m] p[m,n] -> y[m,n]", "S[m,m] p[m] -> y[m]", "S[b,m,m] p[b,m,n] -> y[b,m,n]"),
        _exponential,
        samples=({}, {"t": -0.5}),
    ),
    _row("reorder", "ordering", (), "A[m,m] -> C[m,m]", 2, _SEVERAL),
)
