"""Rows of triangular substitution and of incomplete factorisations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from spgrad.support.table import Op, names_in_torch

_SYSTEMS = (
    "S[m,m] x[m,n] -> y[m,n]",
    "S[m,m] x[m] -> y[m]",
    "S[b,m,m] x[b,m,n] -> y[b,m,n]",
    "S[m,m] x[b,m,n] -> y[b,m,n]",
    "S[b,m,m] x[m,n] -> y[b,m,n]",
)
_SIDES = (
    {"upper": False},
    {"upper": True},
    {"upper": False, "unitriangular": True},
)


def _substituted(A: torch.Tensor, b: torch.Tensor, **options: bool) -> torch.Tensor:
    """torch.linalg.solve_triangular, also for a vector b."""
    x = torch.linalg.solve_triangular(A, b[:, None] if b.dim() == 1 else b, **options)
    return x.squeeze(-1) if b.dim() == 1 else x


def _solution(function: Callable[..., Any], *operands: Any, **options: Any) -> torch.Tensor:
    found = function(*operands, **options)
    return found if isinstance(found, torch.Tensor) else found.solution


def _transposed_too(
    b: torch.Tensor, A: torch.Tensor, *, transpose: bool = False, **options: bool
) -> torch.Tensor:
    """As torch.triangular_solve, which torch has deprecated."""
    options.setdefault("upper", True)
    if transpose:
        A, options["upper"] = A.mT, not options["upper"]
    return torch.linalg.solve_triangular(A, b, **options)


ROWS = (
    Op(
        "solve_triangular",
        "solves.triangular",
        ("torch.linalg.solve_triangular",),
        _SYSTEMS,
        _substituted,
        samples=_SIDES,
    ),
    Op(
        "triangular_solve",
        "solves.triangular",
        names_in_torch("triangular_solve"),
        ("x[m,n] S[m,m] -> y[m,n]", "x[b,m,n] S[b,m,m] -> y[b,m,n]"),
        _transposed_too,
        samples=({}, {"upper": False, "transpose": True}),
        call=_solution,
        public=False,
    ),
    *(
        Op(
            name,
            "solves.incomplete",
            (),
            ("S[m,m] -> C[m,m]:csr",),
            None,
            order=0,
            absent={"dense": "torch has no such function"},
            traced=False,
        )
        for name in ("incomplete_cholesky", "incomplete_lu")
    ),
)
