"""Operands of an operation, as the support table accepts them and as the others work on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from spgrad import support
from spgrad.core import checks
from spgrad.core.interop import from_torch
from spgrad.core.pattern import LAYOUT_NAMES, LAYOUTS
from spgrad.core.tensor import SparseTensor
from spgrad.errors import (
    ArgumentIndexError,
    ArgumentKindError,
    ArgumentValueError,
    UnsupportedError,
)
from spgrad.public import public_as
from spgrad.torch_protocol.compile import of_data


def is_sparse(x: Any) -> bool:
    """True for a SparseTensor and for a native torch sparse tensor."""
    if type(x) is not torch.Tensor and isinstance(x, SparseTensor):
        return True
    return isinstance(x, torch.Tensor) and x.layout in LAYOUT_NAMES


def sparse_operand(arg: str, x: Any, *, layouts: tuple[str, ...] = support.ALL) -> SparseTensor:
    """`x` as a SparseTensor of one of these layouts; raises if it is not such a tensor."""
    if not isinstance(x, SparseTensor):
        if not is_sparse(x):
            raise ArgumentKindError(
                f"`{arg}` is {checks.describe_kind(x)}; a SparseTensor or a native torch sparse "
                f"tensor is accepted. {checks.sparse_hint(arg, x)}"
            )
        x = from_torch(x)
    if layouts is not support.ALL and (name := x._pattern.name) not in layouts:
        verb = "is" if len(layouts) == 1 else "are"
        raise UnsupportedError(
            f"`{arg}` has layout {name}; {', '.join(layouts)} {verb} accepted. Convert it with "
            f"{arg}.to_sparse(layout=torch.{_torch_name(layouts[0])})."
        )
    return x


def _torch_name(layout: str) -> str:
    return str(LAYOUTS[layout]).removeprefix("torch.")


def refusal(row: support.Op) -> Callable[..., Any]:
    """The function that answers for a name of torch that has no sparse result."""

    @public_as(row.name)
    def refuse(*args: Any, **kwargs: Any) -> Any:
        function = f"torch.{row.name}" if hasattr(torch, row.name) else "fn"
        alone = f"Use spgrad.map(A, {function}) for the specified elements alone,"
        raise UnsupportedError(
            f"`input` is sparse; {row.absent['coo']}. A dense tensor is accepted. "
            f"{row.absent.get('instead', alone)} or A.to_dense()."
        )

    return refuse


def matrix_operand(arg: str, x: Any, *, bools: bool = False) -> SparseTensor:
    """`x` as a SparseTensor that is a matrix or batch of matrices without dense dimensions.

    Its values are numbers, or, with `bools`, truth values as well.
    """
    A = sparse_operand(arg, x)
    pattern = A._pattern
    if pattern.dense_dim:
        raise UnsupportedError(
            f"`{arg}` has {pattern.dense_dim} dense dimension(s) (shape {tuple(pattern.shape)}); a "
            "matrix or batch of matrices with scalar elements is accepted. spgrad.spmm multiplies "
            "every slice of the dense dimensions by columns of its own; elsewhere take one slice "
            "at a time."
        )
    if len(pattern.shape) < 2:
        hint = "Take a row as a matrix, A[i : i + 1], or make the vector dense with to_dense()."
        raise checks.bad_shape(arg, pattern.shape, "a sparse matrix or batch of them", hint)
    if not (bools and A._vals.dtype == torch.bool):
        checks.require_numeric(arg, A._vals)
    return A


def dense_operand(arg: str, x: Any) -> torch.Tensor:
    """`x` if it is a dense tensor; raises otherwise."""
    dense = type(x) is torch.Tensor or (  # to ask a dense tensor for another class takes 0.3 us
        isinstance(x, torch.Tensor) and not isinstance(x, SparseTensor)
    )
    if not dense or x.layout != torch.strided:
        raise ArgumentKindError(
            f"`{arg}` is {checks.describe_kind(x)}; a dense tensor is accepted. "
            f"{checks.dense_hint(arg, x)}"
        )
    return x


def require_rank(
    arg: str, x: Any, ndim: int, hint: str = "Use spgrad.matmul for other numbers of dimensions."
) -> None:
    """Refuses objects that are not tensors, and tensors with another number of dimensions."""
    if not isinstance(x, torch.Tensor):
        raise ArgumentKindError(
            f"`{arg}` is {checks.describe_kind(x)}; a sparse or dense tensor is accepted. "
            f"{checks.tensor_hint(x)}"
        )
    shape = shape_of(x)
    if len(shape) != ndim:
        raise checks.bad_shape(arg, shape, f"a {ndim}-d tensor", hint)


def shape_of(x: torch.Tensor) -> torch.Size:
    """The shape of a tensor, sparse or dense, read without the torch protocol."""
    if type(x) is torch.Tensor or not isinstance(x, SparseTensor):
        return x.shape
    return x._pattern.shape


def shape_as(other: Any) -> tuple[int, ...]:
    """The shape of `other`, an argument of `reshape_as` and the like; raises if not a tensor."""
    if not isinstance(other, torch.Tensor):
        raise ArgumentKindError(
            f"`other` is {checks.describe_kind(other)}; a sparse or dense tensor is accepted. Give "
            "sizes to the function without `_as`."
        )
    return tuple(shape_of(other))


def require_factors(dtype: torch.dtype, **factors: Any) -> None:
    """Refuses factors that are not numbers, or by which tensors of this dtype can't be scaled."""
    if all(type(factor) is int for factor in factors.values()):  # such as 1, the default
        return
    kinds: tuple[type, ...] = checks.INT
    if dtype.is_floating_point or dtype.is_complex:
        kinds = checks.NUMBER if dtype.is_complex else checks.REAL
    for name, factor in factors.items():
        if not isinstance(factor, kinds):
            accepted = " or ".join(k.__name__ for k in (int, float, complex) if k in kinds)
            raise ArgumentKindError(
                f"`{name}` is {factor!r}; {accepted} is accepted for operands of dtype "
                f"{checks.short(dtype)}. Scale the operands themselves."
            )


def require_dim(arg: str, dim: Any, ndim: int) -> int:
    """`dim` counted from 0; raises if it is not a dimension."""
    dim = int(require_int(arg, dim))
    if not -ndim <= dim < ndim:
        raise ArgumentIndexError(
            f"`{arg}` is {dim} for {ndim} dimension(s); numbers from {-ndim} to {ndim - 1} are "
            "accepted. Count from the end with negative ones."
        )
    return dim % ndim


def require_int(arg: str, value: Any) -> Any:
    """`value` if it is an int; raises otherwise."""
    if not isinstance(value, checks.INT) or isinstance(value, bool):
        raise ArgumentKindError(f"`{arg}` is {value!r}; an int is accepted. For example 1.")
    return value


def require_ints(arg: str, first: Any, more: tuple[Any, ...] = ()) -> tuple[int, ...]:
    """Ints given as one tuple or list, or one after the other."""
    given = first if isinstance(first, (tuple, list)) and not more else (first, *more)
    return tuple(require_int(arg, value) for value in given)


def call(fn: Callable[..., Any], vals: torch.Tensor, *args: Any, **kw: Any) -> Any:
    """fn(vals, ...) for a function of torch; its errors become errors of spgrad."""
    return call_with("other", fn, vals, *args, **kw)


def call_with(arg: str, fn: Callable[..., Any], vals: torch.Tensor, *args: Any, **kw: Any) -> Any:
    """As `call`; `arg` is the name of the operand beside the values, for errors."""
    return explained(lambda error: _why(arg, fn, vals, args, kw, error), fn, vals, *args, **kw)


def explained(
    why: Callable[[Exception], str],
    fn: Callable[..., Any],
    vals: torch.Tensor,
    *args: Any,
    **kw: Any,
) -> Any:
    """fn(vals, ...); its errors become errors of spgrad, for which `why` gives the text."""
    try:
        return fn(vals, *args, **kw)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        if of_data(error):
            raise
        made = ArgumentKindError if isinstance(error, TypeError) else ArgumentValueError
        raise made(why(error)) from error


_OF_KINDS = {
    "bool": torch.bool,
    "integer": torch.int64,
    "floating-point": torch.float32,
    "complex": torch.complex64,
}
"""A dtype of each kind."""


def _why(
    arg: str,
    fn: Callable[..., Any],
    vals: torch.Tensor,
    args: tuple[Any, ...],
    kw: dict[str, Any],
    error: Exception,
) -> str:
    """What torch refuses; found by calls with one element of other dtypes, or another number."""
    if "ZeroDivision" in str(error):
        return (
            f"`{arg}` has a 0, by which torch does not divide integers; other numbers are "
            "accepted. Convert both to torch.float32."
        )
    if len(args) == 1 and isinstance(args[0], checks.NUMBER):
        others = {"a real number": 1.5, "an int": 1, "a tensor": torch.ones(1).to(vals.dtype)}
        for accepted, other in others.items():
            if _works(fn, vals.dtype, vals, (other,), kw):
                return f"`{arg}` is {args[0]!r}; {accepted} is accepted. Convert it."
    taken = [kind for kind, dtype in _OF_KINDS.items() if _works(fn, dtype, vals, args, kw)]
    kinds = " and ".join(", ".join(taken).rsplit(", ", 1))
    dtypes = {x.dtype for x in (vals, *args) if isinstance(x, torch.Tensor)}
    if taken and len(dtypes) == 1 and _kind(vals.dtype) not in taken:
        wanted = _OF_KINDS[next((k for k in reversed(taken) if k != "complex"), "complex")]
        return (
            f"`input` has dtype {checks.short(vals.dtype)}; {kinds} dtypes are accepted. "
            f"Convert it with input.to({wanted})."
        )
    if taken and len(dtypes) > 1:
        found = " and ".join(sorted(map(checks.short, dtypes)))
        return (
            f"`input` and the other operands have dtypes {found}; one dtype for all is accepted, "
            f"of the {kinds} ones. Convert one with .to(dtype)."
        )
    first = str(error).partition("\n")[0]
    return (
        f"`input` has values of dtype {checks.short(vals.dtype)} and shape {tuple(vals.shape)}; "
        f"what torch accepts for dense values is accepted. torch says: {first}"
    )


def _works(
    fn: Callable[..., Any],
    dtype: torch.dtype,
    vals: torch.Tensor,
    args: tuple[Any, ...],
    kw: dict[str, Any],
) -> bool:
    """Whether fn takes these arguments with tensors of one element, of this dtype."""
    made = [
        torch.ones((1,) if x.dim() else (), dtype=dtype) if isinstance(x, torch.Tensor) else x
        for x in (vals, *args)
    ]
    try:
        fn(*made, **kw)
    except (RuntimeError, ValueError, TypeError, IndexError):
        return False
    return True


def _kind(dtype: torch.dtype) -> str:
    if dtype.is_complex or dtype == torch.bool:
        return "complex" if dtype.is_complex else "bool"
    return "floating-point" if dtype.is_floating_point else "integer"
