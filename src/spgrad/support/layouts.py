"""Rows of the conversions of layout, of coalesce and of the transpose."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from spgrad.support.table import ALL, Op

_COO_ONLY: Mapping[str, str] = dict.fromkeys(ALL[1:], "its indices are always sorted and unique")


def _identity(A: torch.Tensor, **options: Any) -> torch.Tensor:
    return A.clone()


def _conversion(layout: str) -> Op:
    blocked = layout in ("bsr", "bsc")
    return Op(
        f"to_sparse_{layout}",
        "layouts.convert",
        (f"torch.Tensor.to_sparse_{layout}",),
        (f"A[m,k] -> C[m,k]:{layout}", f"A[b,m,k] -> C[b,m,k]:{layout}"),
        _identity,
        samples=({"blocksize": (2, 2)}, {"blocksize": (1, 2)}) if blocked else ({},),
    )


ROWS = (
    Op(
        "from_dense",
        "layouts.dense",
        (),
        ("x[m,k] -> C[m,k]:asked", "x[b,m,k] -> C[b,m,k]:asked"),
        _identity,
    ),
    Op(
        "to_dense",
        "layouts.dense",
        ("torch.Tensor.to_dense",),
        ("A[m,k] -> y[m,k]", "A[b,m,k] -> y[b,m,k]"),
        _identity,
    ),
    Op(
        "to_sparse",
        "layouts.convert",
        ("torch.Tensor.to_sparse",),
        ("A[m,k] -> C[m,k]:coo", "A[b,m,k] -> C[b,m,k]:coo"),
        _identity,
    ),
    *(_conversion(layout) for layout in ALL),
    Op(
        "coalesce",
        "layouts.structure",
        ("torch.Tensor.coalesce",),
        ("A[m] -> C[m]:coo", "A[m,k] -> C[m,k]:coo", "A[b,m,k] -> C[b,m,k]:coo"),
        _identity,
        layouts=("coo",),
        absent=_COO_ONLY,
    ),
    Op(
        "t",
        "layouts.structure",
        ("torch.t", "torch.Tensor.t", "torch.Tensor.T.__get__"),
        ("A[m,k] -> C[k,m]:flipped",),
        torch.t,
    ),
)
