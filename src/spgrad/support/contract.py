"""Rows of products over named dimensions, of vectors, and of several matrices."""

from __future__ import annotations

from typing import Any

import torch

from spgrad.support.table import ALL, Op, names_in_torch

_VECTORS_ONLY = dict.fromkeys(ALL[1:], "a vector has no compressed layout")
_DOTS = ("A[k] x[k] -> y[]", "x[k] A[k] -> y[]", "A[k] B[k] -> y[]")


def _multiplied(*operands: torch.Tensor) -> Any:
    return torch.linalg.multi_dot(list(operands))


def _power(A: torch.Tensor, n: int) -> torch.Tensor:
    """Of bool tensors, which torch refuses, whether any product is True."""
    power = torch.matrix_power(A.int() if A.dtype == torch.bool else A, n)
    return power != 0 if A.dtype == torch.bool else power


def _of_vectors(name: str, *aliases: str, signatures: tuple[str, ...] = _DOTS) -> Op:
    names = names_in_torch(name, *aliases)
    fn = getattr(torch, name)
    return Op(name, "contract", names, signatures, fn, layouts=ALL[:1], absent=_VECTORS_ONLY)


ROWS = (
    Op(
        "tensordot",
        "contract",
        ("torch.tensordot",),
        (
            "A[m,k] x[k,n] -> y[m,n]",
            "x[m,k] A[k,n] -> y[m,n]",
            "A[m,k] B[k,n] -> C[m,n]",
            "A[b,m,k] x[k,n] -> y[b,m,n]",
        ),
        torch.tensordot,
        samples=({"dims": 1},),
    ),
    Op(
        "inner",
        "contract",
        names_in_torch("inner"),
        ("A[m,k] x[n,k] -> y[m,n]", "A[m,k] B[n,k] -> C[m,n]", "A[b,m,k] x[k] -> y[b,m]"),
        torch.inner,
    ),
    _of_vectors("dot"),
    _of_vectors("vdot"),
    _of_vectors("outer", "ger", signatures=("A[m] B[k] -> C[m,k]:coo", "A[m] x[k] -> C[m|k]:coo")),
    Op(
        "multi_dot",
        "contract",
        ("torch.linalg.multi_dot",),
        (
            "(A[m,k] x[k,n] y[n,c]) -> z[m,c]",
            "(A[m,k] B[k,m] D[m,n]) -> C[m,n]",
            "(x[m] A[m,k] y[k]) -> z[]",
            "(x[n,m] A[m,k] B[k,m]) -> y[n,m]",
        ),
        _multiplied,
    ),
    Op(
        "chain_matmul",
        "contract",
        ("torch.chain_matmul",),
        ("A[m,k] x[k,n] -> y[m,n]", "A[m,k] B[k,m] x[m,n] -> y[m,n]"),
        _multiplied,
    ),
    Op(
        "matrix_power",
        "contract",
        (*names_in_torch("matrix_power"), "torch.linalg.matrix_power"),
        ("A[m,m] -> C[m,m]", "A[b,m,m] -> C[b,m,m]"),
        _power,
        samples=({"n": 3}, {"n": 1}),
    ),
)
