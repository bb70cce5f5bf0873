"""A contender: what a library offers, and how each operation is prepared from that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from benchmarks.problems import Problem

Run = Callable[[], tuple[Any, ...]]


def _itself(a: Any) -> Any:
    return a


@dataclass(frozen=True)
class Contender:
    """One library, as a grid of what it offers; None where it offers nothing.

    Attributes:
        name: In tables.
        module: To import; the contender is absent without it.
        build: Its matrix from SciPy's CSR.
        dense: Its dense array from NumPy's.
        mm: Matrix times dense matrix.
        tmm: Transpose of its matrix times dense matrix; without it the transpose is a matrix of
            its own, made before the clock starts.
        mv: Matrix times vector.
        grad: The gradient of its matrix, as a matrix; None where it can't differentiate.
        leaf: What of its matrix collects the gradient.
        renew: The same matrix with nothing kept from earlier calls.
        sddmm: g x^T at the elements of the matrix, from (A, g, x).
        spgemm: Matrix times matrix.
        coalesce: From SciPy's COO, what coalesces the same entries.
        to_csc: Conversion of its matrix.
        read: NumPy or SciPy array from what the above give.
    """

    name: str
    module: str
    build: Callable[[Any, Problem], Any]
    dense: Callable[[np.ndarray], Any]
    mm: Callable[[Any, Any], Any] | None = None
    tmm: Callable[[Any, Any], Any] | None = None
    mv: Callable[[Any, Any], Any] | None = None
    grad: Callable[[Any], Any] | None = None
    leaf: Callable[[Any], torch.Tensor] = _itself
    renew: Callable[[Any], Any] = _itself
    sddmm: Callable[[Any, Any, Any], Any] | None = None
    spgemm: Callable[[Any, Any], Any] | None = None
    coalesce: Callable[[Any], Callable[[], Any]] | None = None
    to_csc: Callable[[Any], Any] | None = None
    read: Callable[[Any], Any] = _itself

    @property
    def installed(self) -> bool:
        return find_spec(self.module) is not None

    def offers(self, op: str) -> bool:
        return getattr(self, _PREPARE[op][0]) is not None

    def prepare(self, op: str, problem: Problem) -> Run:
        """What runs operation `op` once, its inputs made; it gives the results as they come."""
        return _PREPARE[op][1](self, problem)


def _spmm(lib: Any, p: Problem) -> Run:
    A, x = lib.build(p.S, p), lib.dense(p.x)
    return lambda: (lib.mm(A, x),)


def _spmv(lib: Any, p: Problem) -> Run:
    A, x = lib.build(p.S, p), lib.dense(np.ascontiguousarray(p.x[:, 0]))
    return lambda: (lib.mv(A, x),)


def _transposed(lib: Any, p: Problem) -> Run:
    of_itself = lib.tmm is not None
    A, g = lib.build(p.S if of_itself else p.S.T.tocsr(), p), lib.dense(p.g)
    multiply = lib.tmm if of_itself else lib.mm
    return lambda: (multiply(A, g),)


def _step(lib: Any, p: Problem) -> Run:
    A, x, g = lib.build(p.S, p), lib.dense(p.x).requires_grad_(), lib.dense(p.g)
    lib.leaf(A).requires_grad_()
    return lambda: _forward_backward(lib, A, x, g)


def _first(lib: Any, p: Problem) -> Run:
    given, x, g = lib.build(p.S, p), lib.dense(p.x).requires_grad_(), lib.dense(p.g)

    def run() -> tuple[Any, ...]:
        A = lib.renew(given)
        lib.leaf(A).requires_grad_()
        return _forward_backward(lib, A, x, g)

    return run


def _forward_backward(lib: Any, A: Any, x: torch.Tensor, g: torch.Tensor) -> tuple[Any, ...]:
    lib.leaf(A).grad = x.grad = None
    y = lib.mm(A, x)
    y.backward(g)
    return y.detach(), lib.grad(A), x.grad


def _sddmm(lib: Any, p: Problem) -> Run:
    A, g, x = lib.build(p.S, p), lib.dense(p.g), lib.dense(p.x)
    return lambda: (lib.sddmm(A, g, x),)


def _spgemm(lib: Any, p: Problem) -> Run:
    given = lib.build(p.S, p)

    def run() -> tuple[Any, ...]:
        A = lib.renew(given)
        return (lib.spgemm(A, A),)

    return run


def _coalesce(lib: Any, p: Problem) -> Run:
    run = lib.coalesce(p.shuffled)
    return lambda: (run(),)


def _to_csc(lib: Any, p: Problem) -> Run:
    A = lib.build(p.S, p)
    return lambda: (lib.to_csc(lib.renew(A)),)


# Operation -> what a contender has to have for it, and its preparation.
_PREPARE: dict[str, tuple[str, Callable[[Any, Problem], Run]]] = {
    "spmm": ("mm", _spmm),
    "spmv": ("mv", _spmv),
    "transposed": ("mm", _transposed),
    "step": ("grad", _step),
    "first": ("grad", _first),
    "sddmm": ("sddmm", _sddmm),
    "spgemm": ("spgemm", _spgemm),
    "coalesce": ("coalesce", _coalesce),
    "to_csc": ("to_csc", _to_csc),
}
