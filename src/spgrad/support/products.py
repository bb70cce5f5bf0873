"""Rows of the matrix products."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from spgrad.support.table import Op

_PRODUCTS = ("A[m,k] x[k,n] -> y[m,n]", "x[m,k] A[k,n] -> y[m,n]", "A[m,k] B[k,n] -> C[m,n]")
_BATCHED = (
    "A[b,m,k] x[b,k,n] -> y[b,m,n]",
    "x[b,m,k] A[b,k,n] -> y[b,m,n]",
    "A[b,m,k] B[b,k,n] -> C[b,m,n]",
)
_BROADCAST = (
    "A[m,k] x[k] -> y[m]",
    "x[k] A[k,n] -> y[n]",
    "A[b,m,k] x[k] -> y[b,m]",
    "x[k] A[b,k,n] -> y[b,n]",
    "A[m,k] x[b,k,n] -> y[b,m,n]",
    "A[b,m,k] x[k,n] -> y[b,m,n]",
    "x[b,m,k] A[k,n] -> y[b,m,n]",
    "x[m,k] A[b,k,n] -> y[b,m,n]",
    "A[b,m,k] x[c,b,k,n] -> y[c,b,m,n]",
    "A[c,1,m,k] x[b,k,n] -> y[c,b,m,n]",
    "A[m,k] B[b,k,n] -> C[b,m,n]",
    "A[b,m,k] B[k,n] -> C[b,m,n]",
)
_ROWS_OF_PRODUCT = ("A[m,k] x[k,n] -> C[m,n]:coo",)
_SCALED = ({}, {"beta": 0.5, "alpha": 2.0}, {"beta": 0})


def _with_bools(product: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """`product`, and of bool tensors, which torch refuses, whether any product is True."""

    def dense(a: torch.Tensor, b: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        if a.dtype != torch.bool:
            return product(a, b, *more)
        return product(a.int(), b.int(), *(x.int() for x in more)) != 0

    return dense


def _sampled(
    A: torch.Tensor,
    x: torch.Tensor,
    y: torch.Tensor,
    *,
    mask: torch.Tensor,
    beta: float = 1,
    alpha: float = 1,
) -> torch.Tensor:
    found = alpha * (mask * (x @ y))
    return found if beta == 0 else found + beta * A


def _reduced(A: torch.Tensor, x: torch.Tensor, *, mask: torch.Tensor, reduce: str) -> torch.Tensor:
    count = mask.sum(1)[:, None]
    if reduce == "sum" or A.shape[1] == 0:
        return A @ x
    if reduce == "mean":
        return A @ x / count.clamp(min=1)
    terms = A[:, :, None] * x  # (m, k, n)
    far = 1e3 if reduce == "amin" else -1e3  # beyond any sample
    terms = terms.masked_fill(~mask[:, :, None], 1 if reduce == "prod" else far)
    if reduce == "prod":
        y = terms.prod(1, dtype=terms.dtype)
    else:  # of equal ones, the first
        y = (terms.max(1) if reduce == "amax" else terms.min(1)).values
    return y.masked_fill(count == 0, 0)


ROWS = (
    Op(
        "matmul",
        "matmul",
        ("torch.matmul", "torch.Tensor.matmul", "torch.Tensor.__matmul__"),
        (*_PRODUCTS, *_BATCHED, *_BROADCAST),
        _with_bools(torch.matmul),
    ),
    Op(
        "mm",
        "matmul",
        ("torch.mm", "torch.Tensor.mm", "torch.sparse.mm"),
        _PRODUCTS,
        _with_bools(torch.mm),
    ),
    Op(
        "spmm",
        "matmul",
        (),
        _PRODUCTS[:1],
        _reduced,
        masked=True,
        samples=tuple({"reduce": reduce} for reduce in ("sum", "mean", "amax", "amin", "prod")),
    ),
    Op("mv", "matmul", ("torch.mv", "torch.Tensor.mv"), _BROADCAST[:1], _with_bools(torch.mv)),
    Op("bmm", "matmul", ("torch.bmm", "torch.Tensor.bmm"), _BATCHED, _with_bools(torch.bmm)),
    Op(
        "linear",
        "matmul",
        ("torch.nn.functional.linear",),
        (
            "x[n,k] A[m,k] -> y[n,m]",
            "x[n,k] A[m,k] z[m] -> y[n,m]",
            "x[b,n,k] A[m,k] z[m] -> y[b,n,m]",
            "x[k] A[m,k] -> y[m]",
            "A[n,k] x[m,k] z[m] -> y[n,m]",
            "A[n,k] B[m,k] -> C[n,m]",
        ),
        _with_bools(F.linear),
    ),
    Op("sparse_mm", "matmul", (), (_PRODUCTS[0], _BATCHED[0]), _with_bools(torch.matmul)),
    Op(
        "addmm",
        "addmm",
        ("torch.addmm", "torch.Tensor.addmm", "torch.Tensor.addmm_", "torch.sparse.addmm"),
        (
            "z[m,n] A[m,k] x[k,n] -> y[m,n]",
            "z[n] A[m,k] x[k,n] -> y[m,n]",
            "z[m,n] x[m,k] A[k,n] -> y[m,n]",
            "z[m,n] A[m,k] B[k,n] -> y[m,n]",
            "D[m,n] A[m,k] B[k,n] -> C[m,n]",
        ),
        torch.addmm,
        samples=_SCALED,
    ),
    Op(
        "addmv",
        "addmm",
        ("torch.addmv", "torch.Tensor.addmv", "torch.Tensor.addmv_"),
        ("z[m] A[m,k] x[k] -> y[m]",),
        torch.addmv,
        samples=_SCALED,
    ),
    Op(
        "baddbmm",
        "addmm",
        ("torch.baddbmm", "torch.Tensor.baddbmm", "torch.Tensor.baddbmm_"),
        (
            "z[b,m,n] A[b,m,k] x[b,k,n] -> y[b,m,n]",
            "z[b,m,n] x[b,m,k] A[b,k,n] -> y[b,m,n]",
            "z[b,m,n] A[b,m,k] B[b,k,n] -> y[b,m,n]",
        ),
        torch.baddbmm,
        samples=_SCALED,
    ),
    Op("smm", "sampled", ("torch.smm", "torch.Tensor.smm"), _ROWS_OF_PRODUCT, torch.mm),
    Op("hspmm", "sampled", ("torch.hspmm",), _ROWS_OF_PRODUCT, torch.mm),
    Op(
        "sspaddmm",
        "sampled",
        ("torch.sspaddmm", "torch.Tensor.sspaddmm"),
        ("D[m,n] A[m,k] x[k,n] -> C[m,n]:coo",),
        torch.addmm,
        samples=_SCALED,
    ),
    Op(
        "sampled_addmm",
        "sampled",
        ("torch.sparse.sampled_addmm",),
        ("A[m,n] x[m,k] y[k,n] -> C[m,n]", "A[b,m,n] x[b,m,k] y[b,k,n] -> C[b,m,n]"),
        _sampled,
        masked=True,
        samples=_SCALED,
    ),
)
