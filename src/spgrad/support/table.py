"""What a row of the support table says, and how its signatures are read."""

from __future__ import annotations

import importlib
import inspect
import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch._C import _VariableFunctions  # pyright: ignore[reportAttributeAccessIssue]

ALL: tuple[str, ...] = ("coo", "csr", "csc", "bsr", "bsc")
ABOVE = ("linalg", "graph")
"""Packages that are made of operations and define more; each registers its own rows."""
OUTSIDE = ("core", *ABOVE)
"""Packages beside `ops` that define operations."""
FLIPPED = {"coo": "coo", "csr": "csc", "csc": "csr", "bsr": "bsc", "bsc": "bsr"}


def torch_named(name: str) -> Any:
    """Torch's own function, or attribute, under a name such as "torch.Tensor.abs".

    Other libraries replace functions of torch by their own, which call the original:
    torch_geometric does so with `torch.select` and `torch.index_select`.
    """
    rest = name.removeprefix("torch.")
    found = operator.attrgetter(rest)(torch)
    if isinstance(found, FunctionType) and found.__module__.partition(".")[0] != "torch":
        return getattr(_VariableFunctions, rest, found)
    return found


def plainly(function: Callable[..., Any], *operands: Any, **options: Any) -> Any:
    """Calls a function with its operands one after the other."""
    return function(*operands, **options)


def on_list(function: Callable[..., Any], *operands: Any, **options: Any) -> Any:
    """Calls a function that takes its operands as one list."""
    return function(list(operands), **options)


def on_copy(function: Callable[..., Any], A: Any, *operands: Any, **options: Any) -> Any:
    """Calls a function that changes its first operand with a copy of it."""
    return function(A.clone() if isinstance(A, torch.Tensor) else A, *operands, **options)


def as_tensor(function: Callable[..., Any], *operands: Any, **options: Any) -> torch.Tensor:
    """Calls a function that gives a number or a bool, and makes a tensor of it."""
    return torch.tensor(function(*operands, **options))


def filled(A: torch.Tensor, mask: torch.Tensor, value: float) -> torch.Tensor:
    """A with `value` where `mask` is False; for integers, the extreme number instead of inf."""
    if math.isinf(value) and not A.is_floating_point():
        A = A.to(torch.int8) if A.dtype == torch.bool else A  # with numbers beyond True and False
        limits = torch.iinfo(A.dtype)
        value = limits.max if value > 0 else limits.min
    return A.masked_fill(~mask, value)


@dataclass(frozen=True)
class Op:
    """One operation.

    Attributes:
        name: Of the function in `spgrad`; for a function of `spgrad.graph` with the package, such
            as "graph.normalize", since `spgrad.normalize` is another function.
        module: Where the function is defined: a file in `ops`, such as "products.matmul", or in
            one of the packages of `OUTSIDE`.
        torch: Names in torch that it answers to for a SparseTensor.
        signatures: Operand kinds and shapes, and those of the result.
        dense: The same in terms of dense tensors: its specification. If it takes `mask`, it gets
            the pattern of the first sparse operand as a dense bool tensor, and if it takes `heads`,
            whether that pattern has dense dimensions. None if there is no such function; then
            `absent` says why under "dense".
        layouts: Layouts that sparse operands, or the result of dense ones, may have; none for a
            name of torch whose result would not be sparse, and which is refused for that reason.
        order: Order of differentiation that is tested; 0 if there is no derivative.
        samples: Keyword arguments to try.
        absent: Why a layout, or `dense` (under "dense"), is missing; under "instead", for a refused
            name of torch, what to call.
        call: How a function, this one or the dense one, is called with operands and options.
        traced: True if a graph of torch.compile holds it as one operation.
        outside: Why no graph of torch.compile can hold it, so that it is called outside of graphs.
        public: True if `spgrad` has the function; False for names of torch that are refused, and
            for methods of tensors alone.
    """

    name: str
    module: str
    torch: tuple[str, ...]
    signatures: tuple[str, ...]
    dense: Callable[..., Any] | None
    layouts: tuple[str, ...] = ALL
    order: int = 2
    samples: tuple[Mapping[str, Any], ...] = ({},)
    absent: Mapping[str, str] = field(default_factory=dict)
    call: Callable[..., Any] = plainly
    traced: bool = True
    outside: str = ""
    public: bool = True

    @property
    def family(self) -> str:
        """The folder of its module, its kernels and its tests, and the file of its row."""
        return self.module.partition(".")[0]

    @property
    def path(self) -> str:
        """The whole name of its module."""
        return f"spgrad.{self.module}" if self.family in OUTSIDE else f"spgrad.ops.{self.module}"

    @property
    def function(self) -> Callable[..., Any]:
        """The function of its name in its module, which is imported for it."""
        return getattr(importlib.import_module(self.path), self.name.rpartition(".")[2])

    @property
    def in_place(self) -> bool:
        """True for an operation that changes its first operand."""
        return self.name.endswith("_")

    @property
    def creates(self) -> bool:
        """True for an operation that makes a sparse tensor without a sparse operand."""
        return bool(self.signatures) and not any(o.sparse for o in parse(self.signatures[0])[0])

    @property
    def compared(self) -> bool:
        """True if its results for sparse operands are compared with those of `dense`."""
        return self.dense is not None and bool(self.layouts) and not self.creates

    @property
    def told(self) -> set[str]:
        """What `dense` also takes of the first pattern: "mask", "heads"."""
        dense = self.dense
        takes = inspect.signature(dense).parameters if isinstance(dense, FunctionType) else ()
        return {"mask", "heads"}.intersection(takes)

    @property
    def takes_specified(self) -> bool:
        """True for a reduction that can leave out the unspecified zeros."""
        return any("specified" in options for options in self.samples)


class Operand(NamedTuple):
    """One operand, or the result, of a signature."""

    name: str
    dims: tuple[str, ...]  # all of them
    dense_dim: int
    layout: str | None  # of a result, where it is not that of the first sparse operand

    @property
    def sparse(self) -> bool:
        """True for upper-case names."""
        return self.name.isupper()

    @property
    def positive(self) -> bool:
        """True for an operand called P, F, M or p, whose values are greater than zero."""
        return self.name in "PFMp"

    @property
    def full(self) -> bool:
        """True for a sparse operand called F, whose elements are all specified."""
        return self.name == "F"

    @property
    def negative(self) -> bool:
        """True for a dense operand called n, whose values are less than zero."""
        return self.name == "n"

    @property
    def dominant(self) -> bool:
        """True for a sparse operand called S: a diagonal of 1.5 to 2.4, the rest small.

        Then systems with the matrix, or with one triangle of it, are well conditioned.
        """
        return self.name == "S"

    @property
    def constant(self) -> bool:
        """True for a sparse operand called M, of which the pattern alone counts."""
        return self.name == "M"

    @property
    def complex(self) -> bool:
        """True for a sparse operand called Z, whose values are complex."""
        return self.name == "Z"

    @property
    def integer(self) -> bool:
        """True for an operand called I, J or i, whose values are integers."""
        return self.name in "IJi"

    @property
    def truth(self) -> bool:
        """True for an operand called T or t, whose values are bools."""
        return self.name in "Tt"


def parse(signature: str) -> tuple[tuple[Operand, ...], Operand]:
    """Operands and result of a signature such as ``A[m,k|d] x[k] -> y[m,d]``.

    Dimensions after the bar are dense ones of a sparse tensor.

    Example:
        >>> operands, result = parse("A[m,k] x[k] -> y[m]")
        >>> [o.sparse for o in operands], result.dims
        ([True, False], ('m',))
    """
    pattern = re.compile(r"(\w)\[([\w,]*)(?:\|([\w,]*))?\](?::(\w+))?")
    found = []
    for name, sparse, dense, layout in pattern.findall(signature):
        parts = [d for d in sparse.split(",") if d], [d for d in dense.split(",") if d]
        found.append(Operand(name, (*parts[0], *parts[1]), len(parts[1]), layout or None))
    return tuple(found[:-1]), found[-1]


def names_in_torch(*names: str) -> tuple[str, ...]:
    """The functions, methods, in-place forms and operators of these names that torch has.

    Example:
        >>> names_in_torch("abs")
        ('torch.abs', 'torch.Tensor.abs', 'torch.Tensor.abs_', 'torch.Tensor.__abs__')
    """
    forms = ("torch.{}", "torch.Tensor.{}", "torch.Tensor.{}_", "torch.Tensor.__{}__")
    candidates = [form.format(name) for name in names for form in forms]
    found = {name: _found(name) for name in candidates}
    return tuple(
        name if callable(value) else f"{name}.__get__"  # a property
        for name, value in found.items()
        if value is not None
    )


def _found(name: str) -> Any:
    value: Any = torch
    for part in name.split(".")[1:]:
        value = getattr(value, part, None)
    return value
