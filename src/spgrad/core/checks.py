"""Argument checks and their wording.

Every message reads: ```<arg>` <what it is>; <what is accepted>. <what to do>.`` `spgrad.public`
puts the name of the public function before it and the arguments of the call behind it.
"""

from __future__ import annotations

import importlib.util
import itertools
import math
import numbers
from collections.abc import Sequence
from typing import Any

import torch

from spgrad import kernels
from spgrad.core.pattern import LAYOUT_NAMES
from spgrad.errors import ArgumentKindError, ArgumentValueError, MissingPackageError
from spgrad.torch_protocol.compile import told_by_a_run

INDEX_DTYPES = (torch.int64, torch.int32)

INT = int, torch.SymInt
"""Kinds of an int; the second, in a trace, is one that varies from call to call."""

REAL: tuple[type[Any], ...] = *INT, float, torch.SymFloat
NUMBER: tuple[type[Any], ...] = *REAL, bool, complex


def broadcast_shapes(*shapes: Sequence[int]) -> tuple[int, ...]:
    """As `torch.broadcast_shapes`, without its import of sympy, which takes most of a second."""
    if torch.compiler.is_compiling():
        return tuple(torch.broadcast_shapes(*shapes))
    found = []
    for sizes in itertools.zip_longest(*map(reversed, shapes), fillvalue=1):
        other = {size for size in sizes if size != 1}
        if len(other) > 1:
            raise RuntimeError(f"shapes {shapes} do not broadcast")
        found.append(other.pop() if other else 1)
    return tuple(reversed(found))


def with_article(word: str) -> str:
    """A noun with "a" or "an" before it.

    Example:
        >>> with_article("str"), with_article("int"), with_article("ndarray")
        ('a str', 'an int', 'an ndarray')
    """
    vowel = word[:1] in set("aeiouAEIOU") or word.startswith("nd")  # n-dimensional
    return f"{'an' if vowel else 'a'} {word}"


def describe_kind(value: Any) -> str:
    """Describes a value for an error text: a tensor by layout and shape, others by their type."""
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if not isinstance(value, torch.Tensor):
        return with_article(type(value).__name__)
    if value.is_nested:  # which has no shape
        return "a nested tensor"
    layout = _KINDS_OF_TENSORS.get(value.layout, str(value.layout).removeprefix("torch."))
    return f"a {layout} tensor of shape {tuple(value.shape)}"


def describe_option(value: Any) -> str:
    """A value in the place of a word or a few numbers: itself if it is short, else its kind."""
    written = "\n" if isinstance(value, torch.Tensor) else repr(value)
    return describe_kind(value) if "\n" in written or len(written) > 60 else written


_KINDS_OF_TENSORS = {**LAYOUT_NAMES, torch.strided: "dense"}

_CONSTRUCTORS = {
    "networkx": "from_networkx",
    "pandas": "from_pandas",
    "torch_geometric": "from_pyg",
    "dgl": "from_dgl",
    "cupyx": "from_cupy",
    "jax": "from_jax",
}
"""The functions for objects of other libraries, by the module of their class."""


def constructor_of(x: Any) -> str | None:
    """The function that makes x sparse; two rows of ints are the edge_index of a graph in PyG."""
    library = type(x).__module__.partition(".")[0]
    if library in _CONSTRUCTORS:
        return _CONSTRUCTORS[library]
    if not isinstance(x, torch.Tensor):
        return "from_scipy" if hasattr(x, "tocsr") else None
    if x.layout in LAYOUT_NAMES:
        return "from_torch"
    return "from_edges" if x.dim() == 2 and len(x) == 2 and x.dtype == torch.int64 else "from_dense"


def sparse_hint(arg: str, x: Any) -> str:
    """What to do with an object that stands where a sparse tensor is needed."""
    made_by = constructor_of(x)
    if hasattr(x, "_pattern"):
        return "It is a SparseTensor already."
    if made_by is not None:
        return f"Convert it with spgrad.{made_by}."
    if isinstance(x, (tuple, list)) and any(isinstance(item, torch.Tensor) for item in x):
        return "Give the tensors one by one, not as a list."
    if _is_array(x):
        return f"Convert it with spgrad.from_dense(torch.as_tensor({arg}))."
    return "Make one with spgrad.from_edges, spgrad.from_dense or spgrad.from_scipy."


def dense_hint(arg: str, x: Any) -> str:
    """What to do with an object that stands where a dense tensor is needed."""
    if isinstance(x, torch.Tensor):
        return f"Convert it with {arg}.to_dense()."
    if hasattr(x, "toarray"):  # of SciPy
        return f"Convert it with torch.as_tensor({arg}.toarray())."
    if _is_array(x) or isinstance(x, numbers.Number):
        return f"Convert it with torch.as_tensor({arg})."
    return "Make one with torch.tensor."


def tensor_hint(x: Any) -> str:
    """What to do with an object that stands where a sparse or a dense tensor is needed."""
    made_by = constructor_of(x)
    return f"Convert it with {f'spgrad.{made_by}' if made_by else 'torch.as_tensor'}."


def _is_array(x: Any) -> bool:
    return isinstance(x, (tuple, list)) or type(x).__module__ == "numpy"


def require_number(
    arg: str,
    value: Any,
    hint: str,
    *,
    least: float = -math.inf,
    most: float = math.inf,
    whole: bool = False,
) -> None:
    """Refuses NaN, numbers out of range, and other objects than real numbers (`whole`: ints)."""
    word = "ints" if whole else "numbers"
    accepted = word
    if most < math.inf:
        accepted = f"{word} from {least} to {most}"
    elif least > -math.inf:
        accepted = f"{word} from {least}"
    kind, symbols = (numbers.Integral, INT) if whole else (numbers.Real, REAL)
    if isinstance(value, bool) or not isinstance(value, (kind, *symbols)):
        raise ArgumentKindError(
            f"`{arg}` is {describe_kind(value)}; {accepted} are accepted. {hint}"
        )
    if isinstance(value, int) and abs(int(value)) >= 2**63:
        raise ArgumentValueError(f"`{arg}` is {value}; {accepted} below 2^63 are accepted. {hint}")
    if not least <= value <= most:  # type: ignore[operator]
        raise ArgumentValueError(f"`{arg}` is {value}; {accepted} are accepted. {hint}")


def require_bool(arg: str, value: Any) -> None:
    """Refuses objects other than True and False."""
    if not isinstance(value, bool):
        short = isinstance(value, (int, float, str))
        raise ArgumentKindError(
            f"`{arg}` is {repr(value) if short else describe_kind(value)}; True and False are "
            f"accepted. Convert it with bool({arg})."
        )


def require_generator(generator: Any) -> None:
    """Refuses objects that are neither a source of random numbers nor None."""
    if generator is not None and not isinstance(generator, torch.Generator):
        raise ArgumentKindError(
            f"`generator` is {describe_kind(generator)}; a torch.Generator or None is accepted. "
            "Make one with torch.Generator().manual_seed(0)."
        )


def require_index(arg: str, t: Any) -> None:
    """Refuses objects that are not index tensors: strided, of int32 or int64."""
    if not isinstance(t, torch.Tensor) or t.layout != torch.strided:
        raise ArgumentKindError(
            f"`{arg}` is {describe_kind(t)}; a dense index tensor is accepted. Pass the indices "
            "themselves."
        )
    if t.dtype not in INDEX_DTYPES:
        raise ArgumentValueError(
            f"`{arg}` has dtype {short(t.dtype)}; int32 and int64 are accepted. Convert it with "
            f"{arg}.long()."
        )


def values_of(t: torch.Tensor) -> torch.Tensor:
    """The dense tensor that has the dtype and the device of `t`: the values of a SparseTensor.

    Each property of a SparseTensor itself is a call through the torch protocol.
    """
    if type(t) is torch.Tensor or torch.compiler.is_compiling():  # a trace reads no attributes
        return t
    return getattr(t, "_vals", t)


def require_same_device(**tensors: torch.Tensor) -> None:
    """Refuses operands on different devices."""
    (first, a), *rest = [(name, values_of(t)) for name, t in tensors.items()]
    for name, b in rest:
        if a.device != b.device:
            raise ArgumentValueError(
                f"`{name}` is on {b.device}; `{first}` is on {a.device}, and one device for all is "
                "accepted. Move one of them with .to()."
            )


def require_same_dtype(**tensors: torch.Tensor) -> None:
    """Refuses operands of different dtypes, as torch's products do."""
    (first, a), *rest = [(name, values_of(t)) for name, t in tensors.items()]
    for name, b in rest:
        if a.dtype != b.dtype:
            narrow, to = (first, b.dtype) if reaches(b.dtype, a.dtype) else (name, a.dtype)
            raise ArgumentValueError(
                f"`{name}` has dtype {short(b.dtype)}; `{first}` has {short(a.dtype)}, and one "
                f"dtype for all is accepted. Convert with {narrow}.to({to})."
            )


def reaches(wide: torch.dtype, narrow: torch.dtype) -> bool:
    """Whether torch promotes `narrow` to `wide`; it promotes no numbers of 8 bits or quantized."""
    try:
        return torch.promote_types(wide, narrow) == wide
    except RuntimeError:
        return False


def require_numeric(arg: str, t: torch.Tensor) -> None:
    """Refuses bool and other dtypes for which products are not defined."""
    if t.dtype not in PRODUCT_DTYPES:
        raise ArgumentValueError(
            f"`{arg}` has dtype {short(t.dtype)}; {', '.join(short(d) for d in PRODUCT_DTYPES)} "
            f"are accepted. Convert it with {arg}.to(torch.float32)."
        )


PRODUCT_DTYPES = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.complex64,
    torch.complex128,
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.int32,
    torch.int64,
)


def require_compressed(
    names: tuple[str, str], ptr: torch.Tensor, idx: torch.Tensor, bound: int, lines: int
) -> None:
    """Refuses flat compressed indices that a kernel cannot read.

    Args:
        names: Names of the compressed and the plain indices in the caller's signature.
        ptr: Pointers (items * lines + 1,) of all batch items as one.
        idx: Plain indices (nse,).
        bound: Exclusive upper bound of `idx`.
        lines: Lines of one batch item; the message names a position within the item.
    """
    compressed, plain = names
    found = kernels.check_compressed(ptr, idx, bound)
    if told_by_a_run(found):
        torch._assert_async(
            found[0] == 0,
            f"spgrad: `{compressed}` and `{plain}` do not fit, or are outside of the shape; "
            "outside of compiled code the error says where.",
        )
        return
    code, at = found.tolist()
    if code == 0:
        return
    where = f"position {at}"
    if code <= 3 and lines and ptr.numel() - 1 > lines:
        where = f"position {at % lines} of batch item {at // lines}"
    if code == 1:
        says = f"`{compressed}` starts with {int(ptr[0])}; 0 is accepted"
    elif code == 2:
        says = f"`{compressed}` decreases after {where}; non-decreasing pointers are accepted"
    elif code == 3:
        says = (
            f"`{compressed}` ends with {int(ptr[-1])}; the number of entries in `{plain}`, "
            f"{idx.numel()}, is accepted"
        )
    elif code == 4:
        says = f"`{plain}` has {int(idx[at])} at {where}; indices in [0, {bound}) are accepted"
    else:
        says = (
            f"`{plain}` has {int(idx[at])} after {int(idx[at - 1])} at {where}; sorted unique "
            "indices within a row or column are accepted"
        )
    if code <= 3:
        hint = (
            f"`{compressed}` says where each row or column begins in `{plain}`; if you have the "
            "row and the column of each element, use spgrad.sparse_coo_tensor."
        )
    elif code == 5:
        hint = "Sort and sum duplicates with spgrad.sparse_coo_tensor(...).coalesce() and convert."
    else:
        hint = "Check how the indices were made, and `size`."
    raise ArgumentValueError(f"{says}. {hint}")


def require_coordinates(
    indices: torch.Tensor,
    size: tuple[int, ...],
    arg: str = "indices",
    *,
    coalesced: bool | None = None,
) -> bool:
    """Refuses COO indices outside `size`; returns whether they are sorted and unique.

    A trace does not know. Its graph raises if indices that should be `coalesced` are not.
    """
    found = kernels.check_coo(indices, size)
    if told_by_a_run(found):
        fits, says = found[0] < 0, f"spgrad: `{arg}` has a number outside of the shape"
        if coalesced:
            fits = fits & (found[2] != 0)
            says += ", or is not sorted and unique as `is_coalesced` says"
        torch._assert_async(fits, f"{says}; outside of compiled code the error says where.")
        return bool(coalesced)
    dim, at, ordered = found.tolist()
    if dim >= 0:
        raise ArgumentValueError(
            f"`{arg}` has {int(indices[dim, at])} in row {dim} at position {at}; indices in [0, "
            f"{size[dim]}) are accepted. Check how the indices were made, and `size`."
        )
    return bool(ordered)


def bad_shape(arg: str, got: tuple[int, ...], accepted: str, hint: str) -> ArgumentValueError:
    """Makes the error for an argument of the wrong shape."""
    verb = "is" if arg == "size" else "has shape"
    are = "are" if accepted[:1].isdigit() else "is"  # "4 rows are", "(4, 2) is"
    return ArgumentValueError(f"`{arg}` {verb} {tuple(got)}; {accepted} {are} accepted. {hint}")


def require_addressable(shape: tuple[int, ...], arg: str | None = "size") -> None:
    """Refuses negative sizes, and more than 2^63 - 1 elements, where a size of 0 counts as 1."""
    elements = math.prod(max(s, 1) if s >= 0 else 2**63 for s in shape)
    if elements > 2**63 - 1:
        what = "the shape of the result" if arg is None else f"`{arg}`"
        raise ArgumentValueError(
            f"{what} is {tuple(shape)}; non-negative sizes with at most 2^63 - 1 elements in all "
            "are accepted. Split the tensor, or drop a dimension."
        )


def short(dtype: torch.dtype) -> str:
    """A dtype's name without the module."""
    return str(dtype).removeprefix("torch.")


def require_packages(extra: str | None, *names: str) -> None:
    """Raises if an optional package is missing; the error names the extra that installs it.

    None stands for packages that no extra installs, because pip has to build them.
    """
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        install = f"'spgrad[{extra}]'" if extra else " ".join(missing)
        raise MissingPackageError(
            f"{_in_words(missing)} {verb} not installed; this function needs {_in_words(names)}. "
            f"Install with: pip install {install}"
        )


def _in_words(names: Sequence[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def is_backwards(data: Any) -> bool:
    """Whether `data` is an array of NumPy with a negative stride, as x[::-1] has."""
    return any(stride < 0 for stride in getattr(data, "strides", None) or ())


def signed(values: Any) -> Any:
    """A NumPy array; unsigned numbers of more than 8 bits, which torch can't add, as int64."""
    if values.dtype.kind != "u" or values.dtype.itemsize == 1:
        return values
    if values.size and values.max() > 2**63 - 1:
        raise ValueError(f"it has the number {values.max()}, which is beyond int64")
    return values.astype("int64")
