"""A contender: the functions of a library, and how the call of an operation is prepared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from benchmarks.operations import OPS
from benchmarks.problems import Problem

Run = Callable[[], tuple[Any, ...]]

DTYPES = ("float32", "float64", "bfloat16")


def _itself(a: Any) -> Any:
    return a


def as_torch(a: np.ndarray, p: Problem) -> torch.Tensor:
    """In the dtype of the problem; indices and masks as they are."""
    return torch.tensor(a, dtype=getattr(torch, p.dtype) if a.dtype.kind == "f" else None)


def as_numpy(a: np.ndarray, p: Problem) -> np.ndarray:
    """In memory that torch has aligned to 64 bytes: NumPy's 16 halve the speed of vector loads."""
    return torch.tensor(a).numpy()


def in_numpy(a: torch.Tensor) -> np.ndarray:
    """In float32 where NumPy lacks the dtype."""
    return (a.float() if a.dtype == torch.bfloat16 else a).numpy()


@dataclass(frozen=True)
class Contender:
    """One library and what it offers.

    Attributes:
        name: In tables.
        module: To import; the contender is absent without it.
        build: Its matrix from SciPy's, for a problem, which tells the dtype of values.
        dense: Its dense array from NumPy's, the same.
        functions: The operations that it offers, by name: functions of its operands. For
            "coalesce" and "refactor", functions that make the call from SciPy's matrix and a
            problem. "transposed" is here only if the library multiplies by the transpose of a
            matrix; elsewhere the transpose is a separate matrix, made before the clock starts.
        grad: Gives the gradient of its matrix, as a matrix; None if it has no gradients.
        leaf: Gives the tensor of its matrix that collects the gradient.
        renew: The same matrix with nothing kept from earlier calls.
        read: Gives a NumPy or SciPy array of a result; a vector becomes a dense array.
        vjp: For libraries whose tensors have no gradients: takes one of `functions`, and gives a
            function from the operands and the cotangent to the result and the gradients.
        dtypes: The dtypes that it takes.
        only: The operations that it is measured for, if these are not all of `functions`.
        limit: True if it is no peer, but does a part of the work, to show how fast that can be.
        available: Whether it can run, if its module is there.
    """

    name: str
    module: str
    build: Callable[[Any, Problem], Any]
    dense: Callable[[np.ndarray, Problem], Any]
    functions: Mapping[str, Callable[..., Any]]
    grad: Callable[[Any], Any] | None = None
    leaf: Callable[[Any], torch.Tensor] = _itself
    renew: Callable[[Any], Any] = _itself
    read: Callable[[Any], Any] = _itself
    vjp: Callable[[Callable[..., Any]], Callable[..., tuple[Any, ...]]] | None = None
    dtypes: tuple[str, ...] = ("float32", "float64")
    only: tuple[str, ...] = ()
    limit: bool = False
    available: Callable[[], bool] = lambda: True

    @property
    def installed(self) -> bool:
        return find_spec(self.module) is not None and self.available()

    def offers(self, op: str, dtype: str = "float32") -> bool:
        differentiates = self.grad is not None or self.vjp is not None or not OPS[op].cotangent
        offered = OPS[op].asks_for in self.functions
        meant = op in self.only or not self.only
        return meant and offered and differentiates and dtype in self.dtypes

    def prepare(self, op: str, problem: Problem) -> Run:
        """A function that runs operation `op` once on inputs that are made before."""
        return _PREPARE.get(op, _prepared)(self, op, problem)


def _prepared(lib: Contender, op: str, p: Problem) -> Run:
    how = OPS[op]
    function = lib.functions[how.asks_for]
    given = {name: getattr(p, name) for name in how.operands}
    sparse = {name for name, a in given.items() if sp.issparse(a)}
    made = {n: lib.build(a, p) if n in sparse else lib.dense(a, p) for n, a in given.items()}

    def operands() -> list[Any]:
        """The operands of one call; an operand that occurs twice is one object."""
        new = {name: lib.renew(made[name]) for name in sparse} if how.new else {}
        return [new.get(name, made[name]) for name in how.operands]

    if how.cotangent:
        g = None if how.cotangent == "y" else lib.dense(getattr(p, how.cotangent), p)
        if lib.vjp is not None:
            step = lib.vjp(function)
            return lambda: step(*operands(), g)
        kinds = [None if name in how.fixed else name in sparse for name in how.operands]
        return lambda: _forward_backward(lib, function, operands(), kinds, g)
    if how.new:
        return lambda: (function(*operands()),)
    same = operands()
    return lambda: (function(*same),)


def _forward_backward(
    lib: Contender,
    function: Callable[..., Any],
    operands: list[Any],
    sparse: list[bool | None],
    g: Any,
) -> tuple[Any, ...]:
    """The result and the gradients for the cotangent g; if None, the result.

    `sparse` says of each operand what it is, and None of those without a gradient.
    """
    assert lib.grad is not None
    wanted = [(a, kind) for a, kind in zip(operands, sparse, strict=True) if kind is not None]
    for a, is_sparse in wanted:
        leaf = lib.leaf(a) if is_sparse else a
        leaf.requires_grad_()
        leaf.grad = None
    y = function(*operands)
    if g is None:
        lib.leaf(y).backward(lib.leaf(y).detach())
    else:
        y.backward(g)
    return (y, *(lib.grad(a) if is_sparse else a.grad for a, is_sparse in wanted))


def _transposed(lib: Contender, op: str, p: Problem) -> Run:
    multiply = lib.functions.get(op)
    A = lib.build(p.S.T.tocsr() if multiply is None else p.S, p)
    multiply, g = multiply or lib.functions["spmm"], lib.dense(p.g, p)
    return lambda: (multiply(A, g),)


def _made(lib: Contender, op: str, p: Problem) -> Run:
    run = lib.functions[op](getattr(p, OPS[op].operands[0]), p)
    return lambda: (run(),)


_PREPARE = {"transposed": _transposed, "coalesce": _made, "refactor": _made}
