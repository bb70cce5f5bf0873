"""Functions of one element that keep zero, on the specified elements alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from spgrad import support
from spgrad.core import checks
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import from_values, on_pattern, stored_values, values
from spgrad.errors import ArgumentKindError, ArgumentValueError
from spgrad.lowering.coalesce import as_summands, without_repeats
from spgrad.lowering.operands import call, explained, sparse_operand
from spgrad.public import public_op
from spgrad.torch_protocol.compile import lasting
from spgrad.torch_protocol.inplace import store


@public_op
def map(
    input: torch.Tensor, fn: Callable[..., torch.Tensor], *args: Any, **kw: Any
) -> SparseTensor:
    """fn(a) for every specified element a; unspecified elements stay unspecified.

    Args:
        input: Sparse tensor of any layout and shape; repeated COO indices are added first.
        fn: Takes the dense tensor of values, (nse, *blocksize, *dense_shape), and returns a tensor
            of the same shape, perhaps of another dtype; any torch function of one element.
        *args: Passed to `fn` after the values.
        **kw: Passed to `fn`.

    Returns:
        SparseTensor on the pattern of `input`.

    Gradient:
        fn'(a) g at each element, by torch's own derivative of `fn`.

    Cost:
        That of `fn` on nse values.

    Raises:
        TypeError: `input` is not sparse, or `fn` can't be called with these arguments.
        ValueError: `fn` fails on the values, or gives another shape.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[0.0, 1.0], [2.0, 0.0]]))
        >>> spgrad.map(A, torch.exp).to_dense()
        tensor([[0.0000, 2.7183],
                [7.3891, 0.0000]])
    """
    if not callable(fn):
        raise ArgumentKindError(
            f"`fn` is {checks.describe_kind(fn)}; a function of the values is accepted. For "
            "example torch.exp."
        )
    if torch.compiler.is_compiling():  # a graph holds no functions, but what they do
        return from_values(fn(values(input), *args, **kw), input)  # type: ignore[arg-type]
    return _on_values(fn, input, args, kw, linear=False, given=True)


def _given(fn: Callable[..., Any], vals: torch.Tensor, *args: Any, **kw: Any) -> Any:
    def why(error: Exception) -> str:
        return (
            f"`fn` does not take values of dtype {checks.short(vals.dtype)} and shape "
            f"{tuple(vals.shape)} ({str(error).partition(chr(10))[0]}); a function that gives a "
            "result for each value is accepted. Try it on A.values()."
        )

    return explained(why, fn, vals, *args, **kw)


def _on_values(
    fn: Callable[..., torch.Tensor],
    A: torch.Tensor,
    args: tuple[Any, ...],
    kw: dict[str, Any],
    *,
    linear: bool,
    given: bool = False,
) -> SparseTensor:
    """fn of the values; of sums of repeated elements, unless `fn` is linear.

    With `given`, the caller gave `fn`, which is called once.
    """
    A = sparse_operand("input", A)
    A = as_summands(A) if linear else without_repeats(A)
    vals = stored_values(A)
    out = (_given if given else call)(fn, vals, *args, **kw)
    if not isinstance(out, torch.Tensor) or out.shape != vals.shape:
        raise ArgumentValueError(
            f"the function gives {checks.describe_kind(out)} for values of shape "
            f"{tuple(vals.shape)}; one result for each value is accepted. Work on A.values() for "
            "anything else."
        )
    return on_pattern(out.resolve_conj().resolve_neg().contiguous(), A._pattern)


_WORDS = {
    "abs": "Absolute value",
    "angle": "Argument (in radians)",
    "asin": "Inverse sine",
    "asinh": "Inverse hyperbolic sine",
    "atan": "Inverse tangent",
    "atanh": "Inverse hyperbolic tangent",
    "ceil": "Smallest integer not below the value",
    "clamp": "Value limited to [min, max] (a range that contains 0)",
    "conj": "Complex conjugate",
    "deg2rad": "Radians of the degrees",
    "erf": "Error function",
    "erfinv": "Inverse error function",
    "expm1": "exp(a) - 1",
    "floor": "Largest integer not above the value",
    "frac": "Fractional part",
    "imag": "Imaginary part",
    "isinf": "whether it is infinite",
    "isnan": "whether it is NaN",
    "isneginf": "whether it is minus infinity",
    "isposinf": "whether it is plus infinity",
    "log1p": "log(1 + a)",
    "nan_to_num": "Value with numbers in place of NaN and infinity",
    "neg": "Negative",
    "rad2deg": "Degrees of the radians",
    "real": "Real part",
    "round": "Nearest integer (the even one in the middle)",
    "sgn": "Sign (a / |a| for complex numbers)",
    "sign": "Sign",
    "signbit": "whether its sign bit is set",
    "sin": "Sine",
    "sinh": "Hyperbolic sine",
    "sqrt": "Square root",
    "square": "Square",
    "tan": "Tangent",
    "tanh": "Hyperbolic tangent",
    "trunc": "Integer part",
}
"""What a function gives, in words."""
_LINEAR = {"conj", "deg2rad", "imag", "neg", "rad2deg", "real"}
"""Functions that may come before the sum of repeated elements."""


def _declared(row: support.Op) -> Callable[..., SparseTensor]:
    """The function of a row of the support table: its dense specification, on the values."""
    dense: Any = row.dense
    linear, known = row.name in _LINEAR, row.torch[0]

    def run(input: torch.Tensor, *args: Any, **kw: Any) -> SparseTensor:
        out = _on_values(dense, input, args, kw, linear=linear)
        if args or kw:
            _require_arguments_keep_zero(known, dense, args, kw)
        return out

    run.__name__ = run.__qualname__ = row.name
    words = _WORDS.get(row.name, row.name)
    what = f"{words} of every specified element"
    if words.startswith("whether"):
        what = f"For every specified element, {words} (a bool tensor)"
    run.__doc__ = (
        f"{what}: `spgrad.map` with fn={known}.\n\nArguments after `input` are those of {known}."
    )
    if linear:
        run.__doc__ += " Repeated COO indices stay."
    return public_op(run)


def _require_arguments_keep_zero(
    known: str, dense: Any, args: tuple[Any, ...], kw: dict[str, Any]
) -> None:
    """Refuses arguments with which an unspecified element would not stay 0."""
    tensors = [a for a in (*args, *kw.values()) if isinstance(a, torch.Tensor)]
    with lasting(*tensors):  # numbers are known while a compiler traces
        at_zero = call(dense, torch.zeros((), device="cpu"), *args, **kw).tolist()
    if isinstance(at_zero, list) or at_zero != 0:
        given = ", ".join([*(repr(a) for a in args), *(f"{k}={v!r}" for k, v in kw.items())])
        raise ArgumentValueError(
            f"the arguments ({given}) make {at_zero} of 0, so that the result would be dense; "
            f"numbers that keep 0 are accepted. Use spgrad.map(A, {known}, {given}) for the "
            "specified elements alone, or A.to_dense()."
        )


@public_op
def relu(input: torch.Tensor, inplace: bool = False) -> SparseTensor:
    """max(a, 0) of every specified element: `spgrad.map` with fn=torch.relu.

    `inplace` stores the result in `input`.
    """
    out = _on_values(torch.relu, input, (), {}, linear=False)
    return store("relu", input, out) if inplace else out


@public_op
def leaky_relu(
    input: torch.Tensor, negative_slope: float = 0.01, inplace: bool = False
) -> SparseTensor:
    """max(a, 0) + negative_slope min(a, 0) of every specified element: `spgrad.map` with that fn.

    `inplace` stores the result in `input`.
    """
    out = _on_values(F.leaky_relu, input, (negative_slope,), {}, linear=False)
    return store("leaky_relu", input, out) if inplace else out


@public_op
def dropout(
    input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> SparseTensor:
    """Each specified element is 0 with probability p, or a / (1 - p): `spgrad.map` with F.dropout.

    Elements that become 0 stay specified. Without `training` nothing changes. `inplace` stores the
    result in `input`.
    """
    checks.require_number("p", p, "It is the share of elements that become 0.", least=0, most=1)
    out = _on_values(F.dropout, input, (p, training), {}, linear=not training)
    return store("dropout", input, out) if inplace else out


if TYPE_CHECKING:  # the other names of the module are rows

    def __getattr__(name: str) -> Callable[..., SparseTensor]: ...


for _row in support.OPS.values():
    if _row.layouts and _row.path == __name__ and _row.name not in globals():
        globals()[_row.name] = _declared(_row)
