"""The functions that the core calls but may not import, as they are above it: one slot for each.

The methods of `SparseTensor`, its repr and its optimizer steps call functions of modules above
`core`. `spgrad.ops` puts these functions into their slots once, at the end of its import;
`spgrad.linalg` fills the slots of functions that operations may not import either.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, TypeVar

import torch

from spgrad.core.refusals import ABSENT, SCRIPTED, Absent, scripted, two_products
from spgrad.errors import SpgradError
from spgrad.support import OPS, Op
from spgrad.torch_protocol.arguments import as_ours, of_arguments
from spgrad.torch_protocol.callers import optimizing

TORCH_FUNCTIONS: dict[Any, Callable[..., Any]] = {}
"""torch function -> spgrad function that answers for it when an argument is a SparseTensor."""

ATEN_FUNCTIONS: dict[Any, Callable[..., Any]] = {}
"""aten overload -> function that answers it for a SparseTensor: autograd, modules, optimizers."""


def _refused(func: Any, args: tuple[Any, ...], error: SpgradError) -> NoReturn:
    raise error


def _none(name: str, operands: tuple[Any, ...]) -> str | None:
    return None


class Slots:
    """The functions of the modules above `core`, by name.

    Attributes:
        alias: The same values and pattern without the graph, as `detach` gives them.
        coalesce: `spgrad.coalesce`.
        coo_indices: `spgrad.coo_indices`.
        describe: What `repr` says of a SparseTensor.
        elsewhere: For a public function and its operands, the error text that names the function to
            call in its place; None if there is none.
        facts: The same without the elements, as pairs of a name and a value.
        find_views: Finds and keeps the views of a pattern that compiled code takes.
        getitem: `spgrad.getitem`, whose errors name the index expression.
        inside_transform: What torch's own function gives inside of a transform of torch.func, or
            in a program that torch.export traces.
        load: Rebuilds a pickled SparseTensor.
        matmul: `spgrad.matmul`.
        on_values: Applies a torch function to the values, for an optimizer's step.
        picture: HTML for notebooks.
        reduced: Runs a method that takes `specified`; by default `answer`.
        refused: Called with the error that a method raised; by default raises it.
        sparse_mask: `spgrad.sparse_mask`.
        spectral_norm: The largest or smallest singular value of each matrix, for `matrix_norm`.
        transpose: `spgrad.transpose`.
        values: `spgrad.values`.
    """

    alias: Callable[[Any], torch.Tensor]
    coalesce: Callable[[torch.Tensor], Any]
    coo_indices: Callable[[torch.Tensor], torch.Tensor]
    describe: Callable[[Any], str]
    elsewhere: Callable[[str, tuple[Any, ...]], str | None] = staticmethod(_none)
    facts: Callable[[Any], Iterable[tuple[str, Any]]]
    find_views: Callable[[Any], None]
    getitem: Callable[[torch.Tensor, Any], torch.Tensor]
    inside_transform: Callable[[Any, tuple[Any, ...], dict[str, Any] | None], Any]
    load: Callable[..., Any]
    matmul: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    on_values: Callable[[Any, tuple[Any, ...], dict[str, Any] | None], Any]
    picture: Callable[[Any], str]
    reduced: Callable[[Any, tuple[Any, ...], dict[str, Any] | None], Any]
    refused: Callable[[Any, tuple[Any, ...], SpgradError], Any] = staticmethod(_refused)
    sparse_mask: Callable[[torch.Tensor, torch.Tensor], Any]
    spectral_norm: Callable[[torch.Tensor, bool], torch.Tensor]
    transpose: Callable[[torch.Tensor, int, int], torch.Tensor]
    values: Callable[[Any], torch.Tensor]

    def fill(self, **functions: Callable[..., Any]) -> None:
        """Puts functions into slots; a name that is no slot is an error."""
        unknown = functions.keys() - Slots.__annotations__.keys()
        if unknown:
            raise AttributeError(f"no slots: {', '.join(sorted(unknown))}")
        for name, function in functions.items():
            self.__dict__[name] = function


above = Slots()


def answer(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
    """The result of a torch function that has a SparseTensor among its arguments."""
    if optimizing(func):
        return above.on_values(func, args, kwargs)
    op = TORCH_FUNCTIONS.get(func)
    if op is not None:
        return op(*args, **as_ours(func, kwargs)) if kwargs else op(*args)
    if torch._C._are_functorch_transforms_active() or torch.compiler.is_exporting():
        return above.inside_transform(func, args, kwargs)
    if type(func) is SCRIPTED:
        raise scripted(func)
    with torch._C.DisableTorchFunctionSubclass():
        return func(*args, **(kwargs or {}))


above.fill(reduced=answer)

Accessor = TypeVar("Accessor", bound=Callable[..., Any])


def refusable(method: Accessor) -> Accessor:
    """A method without arguments whose error goes through the slot `refused`."""
    func = getattr(torch.Tensor, method.__name__)

    @functools.wraps(method)
    def run(self: torch.Tensor) -> Any:
        try:
            return method(self)
        except SpgradError as error:
            return above.refused(func, (self,), error)

    return run  # type: ignore[return-value]


def _method(func: Any) -> Callable[..., Any]:
    def run(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return above.reduced(func, (self, *args), kwargs)

    run.__name__ = run.__qualname__ = func.__name__
    run.__doc__ = f"As `spgrad.{func.__name__}`."
    return run


def _parsed(name: str, row: Op) -> Callable[..., Any]:
    """The method `name` of torch.Tensor, whose refusals are those of the function of `row`.

    Torch reads the arguments before it asks a SparseTensor, and raises a TypeError of its own for a
    list in the place of a tensor. Then the function of spgrad gets the arguments: it raises an
    error that names the argument, or takes what torch does not take, such as an array.
    """
    func = getattr(torch.Tensor, name)

    def run(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        try:
            return func(self, *args, **kwargs)
        except Exception as error:
            if not of_arguments(error):
                raise
        return TORCH_FUNCTIONS[func](self, *args, **as_ours(func, kwargs))

    run.__name__ = run.__qualname__ = name
    run.__doc__ = f"As `spgrad.{row.name}`." if row.public else f"As `torch.Tensor.{name}`."
    return run


_NO_OPERANDS = (list, tuple, str, dict, type(None))
"""Kinds of objects that no operator takes, though Python asks both operands for the result."""


def _operator(name: str, func: Any) -> Callable[[torch.Tensor, Any], Any]:
    """The method of an operator that takes arrays of NumPy and SciPy, as `func` does.

    `func` says what it takes of a list, too. Python would say something else: torch's operators
    leave these operands to it. As in torch, a tensor is unequal to a list.
    """
    refused = () if name == "__ne__" else _NO_OPERANDS
    plain = getattr(torch.Tensor, name)

    def run(self: torch.Tensor, other: Any) -> Any:
        # the most frequent kinds first
        if isinstance(other, (torch.Tensor, int, float)):
            return plain(self, other)
        if not _is_of_numpy_or_scipy(other) and not isinstance(other, refused):
            return plain(self, other)
        if "mul" in name and type(other).__name__.endswith("_matrix"):
            raise two_products(other)
        return TORCH_FUNCTIONS[func](self, other)

    run.__name__ = run.__qualname__ = name
    return run


def _refusing(name: str, func: Any) -> Callable[[torch.Tensor, Any], Any]:
    """The method of an operator, of which `func` says what it takes of a list."""
    plain = getattr(torch.Tensor, name)

    def run(self: torch.Tensor, other: Any) -> Any:
        if isinstance(other, _NO_OPERANDS):
            return TORCH_FUNCTIONS[func](self, other)
        return plain(self, other)

    run.__name__ = run.__qualname__ = name
    return run


def _is_of_numpy_or_scipy(x: object) -> bool:
    return type(x).__module__.partition(".")[0] in ("numpy", "scipy")


_OPERATORS = {
    "__add__": torch.add,
    "__radd__": torch.Tensor.__radd__,
    "__sub__": torch.sub,
    "__mul__": torch.mul,
    "__rmul__": torch.Tensor.__rmul__,
    "__truediv__": torch.div,
    "__floordiv__": torch.floor_divide,
    "__mod__": torch.remainder,
    "__pow__": torch.pow,
    "__ne__": torch.ne,
    "__lt__": torch.lt,
    "__le__": torch.le,
    "__gt__": torch.gt,
    "__ge__": torch.ge,
}
"""Operators -> the function that takes arrays, and says that it takes no list. torch leaves most of
them to arrays, which refuse them."""

_REFUSING = {
    "__rsub__": torch.sub,
    "__rtruediv__": torch.div,
    "__rfloordiv__": torch.floor_divide,
    "__rmod__": torch.remainder,
    "__rpow__": torch.pow,
    **{
        f"__{side}{kind}__": getattr(torch, f"bitwise_{kind}")
        for side in ("", "r")
        for kind in ("and", "or", "xor")
    },
}
"""The other operators -> the function that says that it takes no list."""


class Shown:
    """A base class with the methods by which notebooks and rich show a tensor."""

    def _repr_html_(self) -> str:
        return above.picture(self)

    def __rich_repr__(self) -> Iterable[tuple[str, Any]]:
        return above.facts(self)


Spelled: Any = type(
    "Spelled", (), {name: Absent() for name in ABSENT if not hasattr(torch.Tensor, name)}
)
"""A base class that says how spgrad writes the attributes that other libraries have.

It comes before torch.Tensor, so a method that torch has, or a later one gets, is left out.
"""

_CONVERSIONS = ("to_sparse", *(f"to_sparse_{kind}" for kind in ("coo", "csr", "csc", "bsr", "bsc")))

Methods: Any = type(
    "Methods",
    (),
    {"__hash__": torch.Tensor.__hash__}
    | {name: _operator(name, func) for name, func in _OPERATORS.items()}
    | {name: _refusing(name, func) for name, func in _REFUSING.items()}
    | {
        method: _parsed(method, row)
        for row in OPS.values()
        for method in (name.removeprefix("torch.Tensor.") for name in row.torch)
        if method.isidentifier() and not method.startswith("__")
    }
    | {
        row.name: _method(getattr(torch.Tensor, row.name))
        for row in OPS.values()
        if hasattr(torch.Tensor, row.name) and (row.takes_specified or row.name in _CONVERSIONS)
    },
)
"""A base class with operators that take arrays, and with the methods that the support table names.

The last of them run without torch's method: those that take `specified`, an argument that torch's
methods refuse, and those that convert: for the name of a layout, torch's methods list their own
overloads.
"""
