"""Rows of products: of matrices, over named dimensions, of vectors, of several, attention."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from spgrad.support.dense.attention import additive_attention, dot_product_attention
from spgrad.support.table import ALL, Op, filled, names_in_torch, on_list

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
    """`product`; for bool tensors, which torch refuses, whether any term of a sum is True."""

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
    if A.dim() == 2:
        return _reduced_by_head(A[..., None], x[:, None], mask[..., None], reduce).squeeze(1)
    return _reduced_by_head(A, x[:, None] if x.dim() == 2 else x, mask, reduce)


def _reduced_by_head(
    A: torch.Tensor, x: torch.Tensor, mask: torch.Tensor, reduce: str
) -> torch.Tensor:
    """`_reduced` for A (*b, m, k, h) and x (*b, k, h or 1, n)."""
    count = mask.sum(-2)[..., None]
    if reduce in ("min_plus", "max_plus"):
        return _extremal_sums(A, x, mask, count, 1 if reduce == "max_plus" else -1)
    if reduce in ("sum", "mean") or A.shape[-2] == 0:
        y = torch.einsum("...mkh,...khn->...mhn", A, x)
        return y / count.clamp(min=1) if reduce == "mean" else y
    nothing = {"prod": 1, "amin": math.inf, "amax": -math.inf}[reduce]
    terms = filled(A[..., None] * x.unsqueeze(-4), mask[..., None], nothing)  # (*b, m, k, h, n)
    if reduce == "prod":
        y = terms.prod(-3, dtype=terms.dtype)
    else:  # max and min, unlike amax, give the gradient to the first of equal terms
        y = (terms.max(-3) if reduce == "amax" else terms.min(-3)).values
    return y.masked_fill(count == 0, 0)


def _extremal_sums(
    A: torch.Tensor, x: torch.Tensor, mask: torch.Tensor, count: torch.Tensor, sign: int
) -> torch.Tensor:
    if not A.is_floating_point():
        raise TypeError("there is no infinity of this dtype")
    if A.shape[-2] == 0:
        nothing = torch.einsum("...mkh,...khn->...mhn", A, x)
    else:
        sums = filled(A[..., None] + x.unsqueeze(-4), mask[..., None], -sign * math.inf)
        nothing = (sums.max(-3) if sign > 0 else sums.min(-3)).values
    return nothing.masked_fill(count == 0, -sign * math.inf)


def _dots(A: torch.Tensor, x: torch.Tensor, y: torch.Tensor, *, mask: torch.Tensor) -> torch.Tensor:
    if x.dim() == mask.dim():
        return (x @ y.mT) * mask
    return torch.einsum("...mhn,...khn->...mkh", x, y) * mask[..., None]


_REDUCTIONS = ("sum", "mean", "amax", "amin", "prod", "min_plus", "max_plus")

_VECTORS_ONLY = dict.fromkeys(ALL[1:], "a vector has no compressed layout")
_DOTS = ("A[k] x[k] -> y[]", "x[k] A[k] -> y[]", "A[k] B[k] -> y[]")


def _power(A: torch.Tensor, n: int) -> torch.Tensor:
    """torch.matrix_power; for bool tensors, which torch refuses, whether any term is True."""
    power = torch.matrix_power(A.int() if A.dtype == torch.bool else A, n)
    return power != 0 if A.dtype == torch.bool else power


def _of_vectors(name: str, *aliases: str, signatures: tuple[str, ...] = _DOTS) -> Op:
    names = names_in_torch(name, *aliases)
    fn = getattr(torch, name)
    return Op(
        name,
        "products.named.contract",
        names,
        signatures,
        fn,
        layouts=ALL[:1],
        absent=_VECTORS_ONLY,
    )


def _by_equation(function: Callable[..., Any], A: Any, *others: Any, equation: Any) -> Any:
    """Calls a function with the equation for two operands, for a hybrid one, or for three."""
    hybrid = isinstance(A, torch.Tensor) and A.dim() == 3
    return function(equation[2 if len(others) > 1 else int(hybrid)], A, *others)


def _embedding(input: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    # torch looks up complex rows, and gives them no gradient
    return weight[input] if weight.is_complex() else F.embedding(input, weight)


def _looked_up(function: Callable[..., Any], weight: Any, *, input: Any, **options: Any) -> Any:
    """Calls a function with `input` modulo the number of rows of the table."""
    rows = weight.shape[:1].numel() if isinstance(weight, torch.Tensor) else 0
    return function(input % rows if rows else input[:0], weight, **options)


_NUMBERS = torch.tensor([[1, 0, 2], [3, 3, 1]])


def _table(name: str, shape: str, dense: Callable[..., Any], *samples: Any) -> Op:
    return Op(
        name,
        "products.embedding",
        (f"torch.nn.functional.{name}",),
        (f"A[m,k] -> y[{shape}]",),
        dense,
        samples=tuple({"input": _NUMBERS, **sample} for sample in samples),
        call=_looked_up,
    )


def _grouped(name: str) -> Op:
    return Op(
        name,
        "products.grouped",
        (),
        (),
        None,
        absent={"dense": "its operands are all dense, and it has tests of its own"},
        traced=False,
    )


ROWS = (
    Op(
        "matmul",
        "products.matmul",
        ("torch.matmul", "torch.Tensor.matmul", "torch.Tensor.__matmul__"),
        (*_PRODUCTS, *_BATCHED, *_BROADCAST),
        _with_bools(torch.matmul),
    ),
    Op(
        "mm",
        "products.matmul",
        ("torch.mm", "torch.Tensor.mm", "torch.sparse.mm"),
        _PRODUCTS,
        _with_bools(torch.mm),
    ),
    Op(
        "spmm",
        "products.heads",
        (),
        (
            *_PRODUCTS[:1],
            "A[m,k|c] x[k,c,n] -> y[m,c,n]",
            "A[m,k|c] x[k,n] -> y[m,c,n]",
            "A[b,m,k|c] x[b,k,c,n] -> y[b,m,c,n]",
        ),
        _reduced,
        samples=tuple({"reduce": reduce} for reduce in _REDUCTIONS),
    ),
    Op(
        "mv",
        "products.matmul",
        ("torch.mv", "torch.Tensor.mv"),
        _BROADCAST[:1],
        _with_bools(torch.mv),
    ),
    Op(
        "bmm",
        "products.matmul",
        ("torch.bmm", "torch.Tensor.bmm"),
        _BATCHED,
        _with_bools(torch.bmm),
    ),
    Op(
        "linear",
        "products.matmul",
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
    Op("sparse_mm", "products.matmul", (), (_PRODUCTS[0], _BATCHED[0]), _with_bools(torch.matmul)),
    Op(
        "addmm",
        "products.addmm",
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
        "products.addmm",
        ("torch.addmv", "torch.Tensor.addmv", "torch.Tensor.addmv_"),
        ("z[m] A[m,k] x[k] -> y[m]",),
        torch.addmv,
        samples=_SCALED,
    ),
    Op(
        "baddbmm",
        "products.addmm",
        ("torch.baddbmm", "torch.Tensor.baddbmm", "torch.Tensor.baddbmm_"),
        (
            "z[b,m,n] A[b,m,k] x[b,k,n] -> y[b,m,n]",
            "z[b,m,n] x[b,m,k] A[b,k,n] -> y[b,m,n]",
            "z[b,m,n] A[b,m,k] B[b,k,n] -> y[b,m,n]",
        ),
        torch.baddbmm,
        samples=_SCALED,
    ),
    Op("smm", "products.sampled", ("torch.smm", "torch.Tensor.smm"), _ROWS_OF_PRODUCT, torch.mm),
    Op("hspmm", "products.sampled", ("torch.hspmm",), _ROWS_OF_PRODUCT, torch.mm),
    Op(
        "sspaddmm",
        "products.sampled",
        ("torch.sspaddmm", "torch.Tensor.sspaddmm"),
        ("D[m,n] A[m,k] x[k,n] -> C[m,n]:coo",),
        torch.addmm,
        samples=_SCALED,
    ),
    Op(
        "sampled_addmm",
        "products.sampled",
        ("torch.sparse.sampled_addmm",),
        ("A[m,n] x[m,k] y[k,n] -> C[m,n]", "A[b,m,n] x[b,m,k] y[b,k,n] -> C[b,m,n]"),
        _sampled,
        samples=_SCALED,
    ),
    Op(
        "sddmm",
        "products.heads",
        (),
        (
            "M[m,k] x[m,n] y[k,n] -> C[m,k]",
            "M[m,k] x[m,c,n] y[k,c,n] -> C[m,k|c]",
            "M[b,m,k] x[b,m,c,n] y[b,k,c,n] -> C[b,m,k|c]",
        ),
        _dots,
    ),
    Op(
        "tensordot",
        "products.named.contract",
        ("torch.tensordot",),
        (*_PRODUCTS, "A[b,m,k] x[k,n] -> y[b,m,n]"),
        torch.tensordot,
        samples=({"dims": 1},),
    ),
    Op(
        "inner",
        "products.named.contract",
        names_in_torch("inner"),
        ("A[m,k] x[n,k] -> y[m,n]", "A[m,k] B[n,k] -> C[m,n]", "A[b,m,k] x[k] -> y[b,m]"),
        torch.inner,
    ),
    Op(
        "einsum",
        "products.named.einsum",
        ("torch.einsum",),
        (
            _BROADCAST[0],
            *_PRODUCTS[::2],
            "A[m,k] x[k,b,n] -> y[m,b,n]",
            "A[m,k|c] x[k,c,n] -> y[m,c,n]",
            "A[m,k|c] x[m,c,n] y[k,c,n] -> C[m,k|c]",
            "A[b,m,k|c] x[b,m,c,n] y[b,k,c,n] -> C[b,m,k|c]",
        ),
        torch.einsum,
        samples=({"equation": ("ij,j...->i...", "ijh,jhn->ihn", "...ijh,...ihn,...jhn->...ijh")},),
        call=_by_equation,
    ),
    _of_vectors("dot"),
    _of_vectors("vdot"),
    _of_vectors("outer", "ger", signatures=("A[m] B[k] -> C[m,k]:coo", "A[m] x[k] -> C[m|k]:coo")),
    Op(
        "multi_dot",
        "products.chain",
        ("torch.linalg.multi_dot",),
        (
            "(A[m,k] x[k,n] y[n,c]) -> z[m,c]",
            "(A[m,k] B[k,m] D[m,n]) -> C[m,n]",
            "(x[m] A[m,k] y[k]) -> z[]",
            "(x[n,m] A[m,k] B[k,m]) -> y[n,m]",
        ),
        torch.linalg.multi_dot,
        call=on_list,
    ),
    Op(
        "chain_matmul",
        "products.chain",
        ("torch.chain_matmul",),
        ("A[m,k] x[k,n] -> y[m,n]", "A[m,k] B[k,m] x[m,n] -> y[m,n]"),
        lambda *operands: torch.linalg.multi_dot(operands),  # torch's own is deprecated
    ),
    Op(
        "matrix_power",
        "products.chain",
        (*names_in_torch("matrix_power"), "torch.linalg.matrix_power"),
        ("A[m,m] -> C[m,m]", "A[b,m,m] -> C[b,m,m]"),
        _power,
        samples=({"n": 3}, {"n": 1}),
    ),
    Op(
        "scaled_dot_product_attention",
        "products.attention",
        ("torch.nn.functional.scaled_dot_product_attention",),
        (
            "q[m,d] k[k,d] v[k,c] A[m,k] -> y[m,c]",
            "q[2,3,m,d] k[2,3,k,d] v[2,3,k,c] A[m,k] -> y[2,3,m,c]",
            "q[b,3,m,d] k[b,3,k,d] v[1,3,k,c] A[b,1,m,k] -> y[b,3,m,c]",
            "q[m,d] k[k,d] v[b,k,c] A[b,m,k] -> y[b,m,c]",
            "q[5,m,d] k[5,k,d] v[5,k,c] A[m,k|5] -> y[5,m,c]",
            "q[b,5,m,d] k[b,1,k,d] v[5,k,c] A[b,m,k|5] -> y[b,5,m,c]",
        ),
        dot_product_attention,
        samples=({}, {"scale": 2.0}),
    ),
    Op(
        "additive_attention",
        "products.graphs.additive_attention",
        (),
        (
            "l[m] r[k] x[k,n] A[m,k] -> y[m,n]",
            "l[m,5] r[k,5] x[k,5,n] A[m,k] -> y[m,5,n]",
            "l[m,5] r[k,5] x[k,5,n] A[m,k|5] -> y[m,5,n]",
            "l[b,m] r[b,k] x[b,k,n] A[b,m,k] -> y[b,m,n]",
            "l[b,m,5] r[b,k,5] x[b,k,5,n] A[b,m,k|5] -> y[b,m,5,n]",
        ),
        additive_attention,
        samples=({}, {"negative_slope": 0.5}),
    ),
    _table("embedding", "2,3,k", _embedding, {}),
    _table("embedding_bag", "2,k", F.embedding_bag, {}, {"mode": "sum"}, {"mode": "max"}),
    *(_grouped(name) for name in ("segment_mm", "gather_mm")),
)
