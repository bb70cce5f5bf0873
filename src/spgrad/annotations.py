"""What the signature of a public function says of its arguments, as errors that name them.

Flags are compared before the call, because Python takes any object for a flag. The other arguments
are looked at after an error of Python or torch: most of these come from an argument of another kind
than its annotation says, and do not name it.
"""

from __future__ import annotations

import inspect
import numbers
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, get_args, get_origin

import torch

from spgrad.core.checks import PRODUCT_DTYPES, describe_kind, require_bool, short
from spgrad.errors import (
    ArgumentKindError,
    ArgumentValueError,
    SpgradError,
    UnsupportedError,
)

_MOST = 2**63
"""Ints of this size and above fit no int64."""

_OR_NONE = " | None"


class _Kind(NamedTuple):
    takes: Callable[[Any], bool]
    accepted: str
    hint: str


def _is_number(x: Any, kind: type) -> bool:
    """Numbers, and tensors of one element, which Python converts to a number."""
    if isinstance(x, torch.Tensor):
        return x.dim() == 0 and not x.is_complex() and not x.is_meta and x.dtype != torch.bool
    return isinstance(x, (kind, torch.SymInt, torch.SymFloat))


def _names_a_device(x: Any) -> bool:
    if not isinstance(x, str):
        return isinstance(x, (torch.device, int)) and not isinstance(x, bool)
    try:
        torch.device(x)
    except (RuntimeError, ValueError):
        return False
    return True


def _instance(kind: Any, accepted: str, hint: str) -> _Kind:
    return _Kind(lambda x: isinstance(x, kind), accepted, hint)


_DEVICE = _Kind(_names_a_device, "a torch.device, its name", 'For example "cpu".')
_STR = _instance(str, "a str", "The documentation of the function lists them.")
_MAPPING = _instance(Mapping, "a dict", "It maps names to values.")
_CALLABLE = _Kind(callable, "a function", "A lambda is one.")
_ITERABLE = _Kind(
    lambda x: isinstance(x, Iterable) and not (isinstance(x, torch.Tensor) and x.dim() == 0),
    "a list or another iterable",
    "Put a single one into a list.",
)
_KINDS = {
    "bool": _instance((bool, torch.SymBool), "True or False", "Convert it with bool()."),
    "int": _Kind(lambda x: _is_number(x, numbers.Integral), "an int", "For example 1."),
    "float": _Kind(lambda x: _is_number(x, numbers.Real), "a number", "For example 1.0."),
    "str": _STR,
    "torch.dtype": _instance(torch.dtype, "a torch.dtype", "For example torch.float32."),
    "torch.layout": _instance(torch.layout, "a torch.layout", "For example torch.sparse_csr."),
    "torch.device | str": _DEVICE,
    "Device": _DEVICE,
    "torch.Generator": _instance(
        torch.Generator, "a torch.Generator", "Make one with torch.Generator().manual_seed(0)."
    ),
    "torch.Tensor": _instance(torch.Tensor, "a tensor", "Convert it with torch.as_tensor."),
}
_BEGINNINGS = {
    "Mapping[": _MAPPING,
    "Callable[": _CALLABLE,
    "Iterable[": _ITERABLE,
    "Sequence[": _ITERABLE,
    "tuple[": _ITERABLE,
}
_KEYWORDS = {
    "dtype": "torch.dtype | None",
    "device": "torch.device | str | None",
    "layout": "torch.layout | None",
    "generator": "torch.Generator | None",
}
"""What these arguments accept where a function takes them as ``**options``."""

Flag = tuple[int, str, bool]
"""The position of a flag among the arguments, its name, and whether None is accepted."""


def flags(op: Callable[..., Any]) -> tuple[Flag, ...]:
    """The arguments of `op` whose annotation is bool; without `inspect`, for a quick import."""
    while (inner := getattr(op, "__wrapped__", None)) is not None:
        op = inner  # the code of a decorator has other arguments
    code = getattr(op, "__code__", None)
    if code is None:
        return ()
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    by_keyword = len(names)  # no position of a keyword-only argument is ever given
    found = []
    for position, name in enumerate(names):
        said = op.__annotations__.get(name)
        if said in ("bool", f"bool{_OR_NONE}"):
            at = position if position < code.co_argcount else by_keyword + len(found)
            found.append((at, name, said != "bool"))
    return tuple(found)


def require_flags(wanted: tuple[Flag, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuses a flag that is neither True nor False, nor None where None is accepted."""
    given = len(args)
    for position, name, optional in wanted:
        flag = args[position] if position < given else kwargs.get(name, False)
        if flag is True or flag is False or (flag is None and optional):
            continue
        if not isinstance(flag, torch.SymBool):
            require_bool(name, flag)


def refusal(
    op: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], error: BaseException
) -> SpgradError | None:
    """The error for the first argument that explains `error`, which is not of the library."""
    try:
        given = inspect.signature(op).bind(*args, **kwargs).arguments
    except TypeError:  # Python's own error already says that they do not fit the signature
        return None
    for name, value, said in _annotated(op, given):
        kind, optional = _kind_of(op, said)
        if kind is not None and not (value is None and optional) and not kind.takes(value):
            what = repr(value) if isinstance(value, str) else describe_kind(value)
            accepted = f"{kind.accepted}{' or None' if optional else ''}"
            of_names = kind is _DEVICE or kind.accepted.startswith("one of")
            wrong_name = of_names and isinstance(value, str)
            made = ArgumentValueError if wrong_name else ArgumentKindError
            return made(f"`{name}` is {what}; {accepted} is accepted. {kind.hint}")
        if kind is _DEVICE and value is not None:
            found = _out_of_reach(name, value) or _without_data(name, value, error)
            if found is not None:
                return found
    for name, value in _flat(given):
        found = (
            _of_other_storage(name, value)
            or _out_of_range(name, value, error)
            or _beyond_dtype(name, value, error)
            or _without_data(name, value, error)
            or _of_a_rare_dtype(name, value, error)
            or _not_finite(name, value, error)
            or _beside_a_layer(name, value, given, error)
        )
        if found is not None:
            return found
    return None


def _annotated(op: Callable[..., Any], given: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Each argument with what its annotation says; those of *args and the options one by one."""
    parameters = inspect.signature(op).parameters
    for name, value in given.items():
        said = op.__annotations__.get(name)
        if parameters[name].kind is inspect.Parameter.VAR_POSITIONAL:
            yield from ((f"{name}[{i}]", one, said) for i, one in enumerate(value))
        else:
            yield name, value, said
    for parameter in parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            options = given.get(parameter.name, {})
            yield from (
                (name, options[name], _KEYWORDS[name]) for name in _KEYWORDS if name in options
            )


def _kind_of(op: Callable[..., Any], said: Any) -> tuple[_Kind | None, bool]:
    """What an annotation accepts, if it is one of those above, and whether None is accepted."""
    if not isinstance(said, str):
        return None, False
    optional = said.endswith(_OR_NONE)
    said = said.removesuffix(_OR_NONE)
    if said in _KINDS:
        return _KINDS[said], optional
    if " | " not in said:
        for beginning, kind in _BEGINNINGS.items():
            if said.startswith(beginning):
                return kind, optional
    alias = getattr(op, "__globals__", {}).get(said)
    if get_origin(alias) is Literal:
        names = ", ".join(repr(name) for name in get_args(alias))
        return _STR._replace(accepted=f"one of {names}", hint="Choose one of them."), optional
    return None, optional


def _flat(given: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The arguments; those of a list, and those by keyword, one by one."""
    for name, value in given.items():
        if isinstance(value, dict):
            yield from value.items()
        elif isinstance(value, (tuple, list)):
            yield from ((f"{name}[{i}]", item) for i, item in enumerate(value))
        else:
            yield name, value


def _out_of_reach(name: str, device: Any) -> SpgradError | None:
    """The error for a device that torch does not reach on this machine."""
    try:
        torch.empty(0, device=device)
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:
        first = str(error).partition("\n")[0].rstrip(".")
        return ArgumentValueError(
            f"`{name}` is {device}, which torch does not reach here ({first}); a device of this "
            'machine is accepted. For example "cpu".'
        )
    return None


def _out_of_range(name: str, value: Any, error: BaseException) -> SpgradError | None:
    if not isinstance(value, int) or -_MOST <= value < _MOST:
        return None
    if not isinstance(error, OverflowError) and "verflow" not in str(error):
        return None
    return ArgumentValueError(
        f"`{name}` is {value}; ints from -2^63 to 2^63 - 1 are accepted. Give a smaller one, or a "
        "float where fractions are accepted."
    )


_OF_C_TYPES = {
    "uint8_t": torch.uint8,
    "int8_t": torch.int8,
    "int16_t": torch.int16,
    "int": torch.int32,
    "int64_t": torch.int64,
    "c10::Half": torch.float16,
    "c10::BFloat16": torch.bfloat16,
    "float": torch.float32,
    "double": torch.float64,
    "c10::complex<float>": torch.complex64,
}
"""The dtypes, by the name that torch's errors have for each."""

BEYOND = "cannot be converted to type"
"""In torch's error for a number that a dtype does not hold; it does not say which number."""


def _beyond_dtype(name: str, value: Any, error: BaseException) -> SpgradError | None:
    """The error for a number that the dtype of the tensor does not hold, as 300 in int8."""
    if BEYOND not in str(error):
        return None
    plain = type(value) is torch.Tensor and not value.dim() and not value.is_meta
    number: Any = value.item() if plain else value
    if type(number) not in (int, float, complex):
        return None
    said = str(error).partition(f"{BEYOND} ")[2].partition(" without")[0]
    dtype = _OF_C_TYPES.get(said)
    if dtype is None or _holds(dtype, number):
        return None
    if type(number) is complex and not dtype.is_complex:
        return None  # the kind is wrong, not the size
    fractions = dtype.is_floating_point or dtype.is_complex
    limits = torch.finfo(dtype) if fractions else torch.iinfo(dtype)
    wider = torch.int64, torch.float32, torch.float64, torch.complex64, torch.complex128
    fits = [w for w in wider if (w != torch.int64 or type(number) is int) and _holds(w, number)]
    return ArgumentValueError(
        f"`{name}` is {number!r}, which {short(dtype)} does not hold; numbers from "
        f"{limits.min} to {limits.max} are accepted. Convert the tensor with .to({fits[0]})."
    )


def _holds(dtype: torch.dtype, value: complex) -> bool:
    """Whether torch converts the number to this dtype."""
    try:
        torch.full((2,), value, dtype=dtype)  # one alone, beyond float16, becomes inf
    except (RuntimeError, OverflowError):
        return False
    return True


def _of_a_rare_dtype(name: str, value: Any, error: BaseException) -> SpgradError | None:
    """The error for a dtype such as uint16 or float8, which has hardly any function."""
    if not isinstance(value, torch.Tensor) or value.dtype in (*PRODUCT_DTYPES, torch.bool):
        return None
    if "not implemented for" not in str(error) and "not supported" not in str(error):
        return None
    return ArgumentValueError(
        f"`{name}` has dtype {short(value.dtype)}, which torch stores and hardly computes with; "
        f"{', '.join(map(short, PRODUCT_DTYPES))} and, for some functions, bool are accepted. "
        f"Convert it with {name}.to(torch.float32)."
    )


def _of_other_storage(name: str, value: Any) -> SpgradError | None:
    if not isinstance(value, torch.Tensor):
        return None
    if value.is_nested:
        kind, hint = "nested", "torch.nested.to_padded_tensor(t, 0.0), or one tensor of t.unbind()"
    elif value.is_quantized:
        kind, hint = "quantized", "t.dequantize()"
    elif value.is_mkldnn:
        kind, hint = "mkldnn", "t.to_dense()"
    else:
        return None
    return ArgumentKindError(
        f"`{name}` is a {kind} tensor; a dense or sparse tensor is accepted. Use {hint}."
    )


def _without_data(name: str, value: Any, error: BaseException) -> SpgradError | None:
    is_tensor = isinstance(value, torch.Tensor)
    device = value.device if is_tensor else value
    meta = isinstance(device, (str, torch.device)) and str(device) == "meta"
    if not meta or "meta" not in str(error).lower():
        return None
    return UnsupportedError(
        f"`{name}` is {'on ' * is_tensor}meta, where a tensor has a shape and no data; a tensor "
        "with data is accepted. Make it on the device of the computation."
    )


def _not_finite(name: str, value: Any, error: BaseException) -> SpgradError | None:
    """The error for inf and NaN, of which a dense decomposition says that it did not converge."""
    if not isinstance(value, torch.Tensor) or not isinstance(error, torch.linalg.LinAlgError):
        return None
    numbers = getattr(value, "_vals", value).detach()
    if numbers.is_meta or bool(torch.isfinite(numbers).all()):
        return None
    where = f"{name}.values()" if hasattr(value, "_vals") else name
    return ArgumentValueError(
        f"`{name}` has an element that is not finite; finite numbers are accepted. Find it with "
        f"torch.isfinite({where})."
    )


def _beside_a_layer(
    name: str, value: Any, given: dict[str, Any], error: BaseException
) -> SpgradError | None:
    """The error for a tensor on another device than the layer that is called with it."""
    layer = given.get("self")
    if not isinstance(layer, torch.nn.Module) or not isinstance(value, torch.Tensor):
        return None
    weight = next(layer.parameters(), None)
    if weight is None or weight.device == value.device or "device" not in str(error):
        return None
    return ArgumentValueError(
        f"`{name}` is on {value.device.type}; the layer is on {weight.device.type}, and one device "
        "for both is accepted. Move one of them with .to()."
    )
