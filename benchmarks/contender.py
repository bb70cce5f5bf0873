"""A contender: what a library offers, and how each operation is prepared from that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from benchmarks.problems import OPS, Problem

Run = Callable[[], tuple[Any, ...]]


def _itself(a: Any) -> Any:
    return a


@dataclass(frozen=True)
class Contender:
    """One library and what it offers.

    Attributes:
        name: In tables.
        module: To import; the contender is absent without it.
        build: Its matrix from SciPy's CSR.
        dense: Its dense array from NumPy's.
        functions: The operations that it offers, by name: functions of its operands. Of
            "coalesce", from SciPy's COO, what coalesces the same entries. "transposed" only where
            a matrix can be multiplied as its transpose; elsewhere that is a matrix of its own,
            made before the clock starts.
        grad: The gradient of its matrix, as a matrix; None where it can't differentiate.
        leaf: What of its matrix collects the gradient.
        renew: The same matrix with nothing kept from earlier calls.
        read: NumPy or SciPy array from what the above give, a vector as a dense one.
    """

    name: str
    module: str
    build: Callable[[Any, Problem], Any]
    dense: Callable[[np.ndarray], Any]
    functions: Mapping[str, Callable[..., Any]]
    grad: Callable[[Any], Any] | None = None
    leaf: Callable[[Any], torch.Tensor] = _itself
    renew: Callable[[Any], Any] = _itself
    read: Callable[[Any], Any] = _itself

    @property
    def installed(self) -> bool:
        return find_spec(self.module) is not None

    def offers(self, op: str) -> bool:
        differentiates = self.grad is not None or not OPS[op].cotangent
        return OPS[op].asks_for in self.functions and differentiates

    def prepare(self, op: str, problem: Problem) -> Run:
        """What runs operation `op` once, its inputs made; it gives the results as they come."""
        return _PREPARE.get(op, _prepared)(self, op, problem)


def _prepared(lib: Contender, op: str, p: Problem) -> Run:
    how = OPS[op]
    function = lib.functions[how.asks_for]
    given = {name: getattr(p, name) for name in how.operands}
    sparse = {name for name, a in given.items() if sp.issparse(a)}
    made = {name: lib.build(a, p) if name in sparse else lib.dense(a) for name, a in given.items()}

    def operands() -> list[Any]:
        """Those of one call; one that is there twice is the same."""
        new = {name: lib.renew(made[name]) for name in sparse} if how.new else {}
        return [new.get(name, made[name]) for name in how.operands]

    if how.cotangent:
        g = None if how.cotangent == "y" else lib.dense(getattr(p, how.cotangent))
        is_sparse = [name in sparse for name in how.operands]
        return lambda: _forward_backward(lib, function, operands(), is_sparse, g)
    if how.new:
        return lambda: (function(*operands()),)
    same = operands()
    return lambda: (function(*same),)


def _forward_backward(
    lib: Any, function: Callable[..., Any], operands: list[Any], sparse: list[bool], g: Any
) -> tuple[Any, ...]:
    """The result and the gradients of the operands for the cotangent g; if None, the result."""
    for a, is_sparse in zip(operands, sparse, strict=True):
        leaf = lib.leaf(a) if is_sparse else a
        leaf.requires_grad_()
        leaf.grad = None
    y = function(*operands)
    if g is None:
        lib.leaf(y).backward(lib.leaf(y).detach())
    else:
        y.backward(g)
    grads = (lib.grad(a) if s else a.grad for a, s in zip(operands, sparse, strict=True))
    return (y, *grads)


def _transposed(lib: Contender, op: str, p: Problem) -> Run:
    multiply = lib.functions.get(op)
    A = lib.build(p.S.T.tocsr() if multiply is None else p.S, p)
    multiply, g = multiply or lib.functions["spmm"], lib.dense(p.g)
    return lambda: (multiply(A, g),)


def _coalesce(lib: Contender, op: str, p: Problem) -> Run:
    run = lib.functions[op](p.shuffled)
    return lambda: (run(),)


_PREPARE = {"transposed": _transposed, "coalesce": _coalesce}
