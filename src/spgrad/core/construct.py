"""The COO constructor, and the handling of arguments that all constructors share."""

from __future__ import annotations

import numbers
import operator
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from spgrad.core import checks
from spgrad.core.pattern import Pattern, reaching
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import on_pattern
from spgrad.errors import ArgumentKindError, ArgumentValueError
from spgrad.public import public_op
from spgrad.torch_protocol.compile import when_tracing
from spgrad.torch_protocol.func_transforms import transforming

_is_meta = operator.attrgetter("is_meta")


class Options(NamedTuple):
    """The keyword arguments that all constructors share."""

    dtype: torch.dtype | None
    device: torch.device | str | None
    pin_memory: bool
    requires_grad: bool
    check_invariants: bool | None


@public_op
def sparse_coo_tensor(
    indices: Any = None,
    values: Any = None,
    size: Sequence[int] | None = None,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
    check_invariants: bool | None = None,
    is_coalesced: bool | None = None,
) -> SparseTensor:
    """COO tensor from coordinates and values, as `torch.sparse_coo_tensor`.

    Args:
        indices: int (sparse_dim, nse), in any order; the values of repeated coordinates add.
            int64 and int32 are kept as given, but int32 becomes int64 where a size exceeds
            2^31 - 1. None for an empty tensor.
        values: (nse, *dense_shape).
        size: Size of all dimensions; by default the smallest that holds the indices.
        dtype: dtype of the result; by default that of `values`.
        device: Device of the result; by default that of `values`.
        pin_memory: Puts the values into page-locked memory.
        requires_grad: Makes the result a leaf that collects a gradient.
        check_invariants: False skips the validation of the indices; never pass it with indices
            from an untrusted source.
        is_coalesced: True states that indices are sorted and unique. This is checked unless
            `check_invariants` is False.

    Returns:
        SparseTensor that shares memory with `indices` and `values` where these are tensors.

    Gradient:
        Of `values`: the cotangent at the indices, dense (nse, *dense_shape).

    Cost:
        One pass over the indices; no copy.

    Raises:
        TypeError: An argument is no tensor, list or number where one is needed.
        ValueError: An index is out of range, or shapes, dtypes or devices don't fit.

    Example:
        >>> i, v = [[0, 1, 1], [2, 0, 2]], [3.0, 4.0, 5.0]
        >>> spgrad.sparse_coo_tensor(i, v, (2, 3)).to_dense()
        tensor([[0., 0., 3.],
                [4., 0., 5.]])
    """
    options = Options(dtype, device, pin_memory, requires_grad, check_invariants)
    if values is None and size is None and _is_size(indices):
        indices, size = None, indices
    if indices is None and values is None:
        if size is None:
            raise ArgumentValueError(
                "`size` is missing; indices and values, or a size, are accepted. Give one of them."
            )
        indices = torch.zeros(len(tuple(size)), 0, dtype=torch.int64, device=device)
        values = torch.zeros(0, dtype=dtype, device=device)
    if values is None:
        made_by = checks.constructor_of(indices) or "from_dense"
        raise ArgumentKindError(
            "`values` is None; a tensor or list of numbers is accepted with indices. To convert a "
            f"whole matrix, use spgrad.{made_by}."
        )
    vals = value_tensor(values, options)
    idx = index_tensor("indices", indices, vals, options)
    if idx.dim() != 2:
        hint = "It has a row for each dimension: join them with torch.stack([rows, columns])."
        raise checks.bad_shape("indices", tuple(idx.shape), "(sparse_dim, nse)", hint)
    if vals.dim() == 0 or vals.shape[0] != idx.shape[1]:
        raise checks.bad_shape(
            "values",
            vals.shape,
            f"(nse, *dense_shape) for indices (sparse_dim, nse), here {tuple(idx.shape)},",
            "Indices are one column per element: transpose a list of index tuples.",
        )
    return coo_leaf("indices", idx, vals, size, options, is_coalesced)


def coo_leaf(
    arg: str,
    idx: torch.Tensor,
    vals: torch.Tensor,
    size: Sequence[int] | None,
    options: Options,
    is_coalesced: bool | None = None,
) -> SparseTensor:
    """COO tensor of the indices (sparse_dim, nse) in the argument `arg`, which is checked."""
    idx = idx.contiguous()
    dense = tuple(vals.shape[1:])
    shape = _coo_shape(idx, dense, size)
    if is_coalesced is None:
        is_coalesced = idx.shape[1] < 2  # up to one element is always sorted
    ordered = is_coalesced
    check = wants_check(options, idx)
    if check:
        sparse = shape[: idx.shape[0]]
        ordered = checks.require_coordinates(idx, sparse, arg, coalesced=is_coalesced)
        if is_coalesced and not ordered:
            raise ArgumentValueError(
                "`is_coalesced` is True but `indices` are not sorted and unique; sorted unique "
                "indices are accepted with it. Leave it out and call .coalesce()."
            )
    pattern = Pattern(
        torch.sparse_coo,
        shape,
        reaching(shape, (idx,), len(dense)),
        dense_dim=len(dense),
        coalesced=is_coalesced,
        ordered=ordered,
    )
    if check and ordered:
        pattern.ascending()
    return leaf(vals, pattern, options.requires_grad)


when_tracing(sparse_coo_tensor)


def _coo_shape(
    idx: torch.Tensor, dense: tuple[int, ...], size: Sequence[int] | None
) -> tuple[int, ...]:
    """The size of the whole tensor: the smallest that holds the indices, or the given size."""
    if size is not None:
        shape = size_tuple(size)
        if len(shape) != idx.shape[0] + len(dense) or shape[idx.shape[0] :] != dense:
            raise checks.bad_shape(
                "size",
                shape,
                f"a size for each of the {idx.shape[0]} row(s) of the indices"
                + (f", followed by {dense}, those of a value," if dense else ""),
                "Leave it out for the smallest that holds the indices.",
            )
        return shape
    require_data(idx)
    if idx.numel() == 0:
        return (*[0] * idx.shape[0], *dense)
    if int(idx.min()) < 0:
        raise ArgumentValueError(
            f"`indices` has {int(idx.min())}; non-negative indices are accepted. Count from the "
            "front."
        )
    inferred = (*(i + 1 for i in idx.amax(1).tolist()), *dense)
    checks.require_addressable(inferred)
    return inferred


def wants_check(options: Options, *indices: torch.Tensor) -> bool:
    """True if indices have to be validated: they have data, and the caller did not decline."""
    return options.check_invariants is not False and not any(map(_is_meta, indices))


def require_data(*indices: torch.Tensor) -> None:
    """Refuses to infer a size from indices on the meta device."""
    if any(i.is_meta and i.numel() for i in indices):
        raise ArgumentValueError(
            "`size` is missing for indices on meta; a size is accepted there, as the indices have "
            "no data to infer it from. Give it."
        )


def value_tensor(values: Any, options: Options, arg: str = "values") -> torch.Tensor:
    """The values in the argument `arg` as a dense tensor of the requested dtype and device."""
    if options.dtype is not None and not isinstance(options.dtype, torch.dtype):
        raise ArgumentKindError(
            f"`dtype` is {options.dtype!r}; a torch dtype is accepted. For example torch.float64."
        )
    if options.device is not None:
        try:
            torch.device(options.device)
        except (TypeError, RuntimeError) as error:
            raise ArgumentKindError(
                f"`device` is {options.device!r}; a torch device or its name is accepted. For "
                "example 'cpu'."
            ) from error
    if isinstance(values, torch.Tensor):
        if isinstance(values, SparseTensor) or values.layout != torch.strided:
            raise ArgumentKindError(
                f"`{arg}` is {checks.describe_kind(values)}; a dense tensor is accepted. Pass its "
                f"values, {arg}.values()."
            )
        vals = values
        if options.dtype is not None or options.device is not None:
            vals = values.to(dtype=options.dtype, device=options.device)
    else:
        vals = _tensor(arg, values, options.dtype, options.device)
    if not options.pin_memory:
        return vals
    try:
        return vals.pin_memory()
    except RuntimeError as error:
        raise ArgumentValueError(
            f"`pin_memory` is True, and torch can't pin memory here ({error}); False is accepted. "
            "Memory is pinned for copies to a GPU."
        ) from error


def index_tensor(arg: str, indices: Any, values: torch.Tensor, options: Options) -> torch.Tensor:
    """An index argument as an int tensor on the device of the values."""
    if not isinstance(indices, torch.Tensor):
        made = _tensor(arg, indices, None, values.device)
        return made.to(torch.int64) if made.numel() == 0 else _checked_index(arg, made)
    index = _checked_index(arg, indices)
    if index.device == values.device:
        return index
    if options.device is not None:
        return index.to(values.device)
    raise ArgumentValueError(
        f"`{arg}` is on {index.device}; `values` is on {values.device}, and one device for all is "
        "accepted. Move one of them with .to()."
    )


def _checked_index(arg: str, index: torch.Tensor) -> torch.Tensor:
    checks.require_index(arg, index)
    return index.detach()


def _tensor(
    arg: str, data: Any, dtype: torch.dtype | None, device: torch.device | str | None
) -> torch.Tensor:
    try:
        if checks.is_backwards(data):
            data = data.copy()
        return torch.as_tensor(data, dtype=dtype, device=device)
    except (TypeError, ValueError, RuntimeError) as error:
        made_by = checks.constructor_of(data)
        hint = "Make one with torch.tensor."
        if made_by:
            hint = f"Use spgrad.{made_by} for the whole."
        elif isinstance(data, (tuple, list)):
            tensors = any(isinstance(x, torch.Tensor) for x in data)
            hint = f"Join tensors with torch.stack({arg})." if tensors else _of_list(data)
        elif type(data).__module__ == "numpy":
            hint = f"Its dtype is {data.dtype}: convert it with {arg}.astype(float)."
        raise ArgumentKindError(
            f"`{arg}` is {checks.describe_kind(data)}, which torch can't read; a tensor or nested "
            f"list of numbers is accepted. {hint}"
        ) from error


def _of_list(data: Sequence[Any]) -> str:
    """What is wrong with a nested list of which torch makes no tensor."""
    for item in _other_than_numbers(data):
        return f"It holds {checks.describe_kind(item)}."
    return "Give lists of the same length."


def _other_than_numbers(data: Sequence[Any], depth: int = 5) -> Iterator[Any]:
    for item in data:
        if isinstance(item, (tuple, list)):
            if depth:  # a list may contain itself
                yield from _other_than_numbers(item, depth - 1)
        elif not isinstance(item, numbers.Number):
            yield item


def size_tuple(size: Sequence[int], arg: str = "size") -> tuple[int, ...]:
    """The argument `arg` as a tuple of ints that can be addressed."""
    if isinstance(size, (tuple, list)):
        size = tuple(map(int_of, size))
    if not _is_size(size):
        raise ArgumentKindError(
            f"`{arg}` is {size!r}; a sequence of ints is accepted. For example (3, 4)."
        )
    shape = tuple(size) if torch.SymInt in map(type, size) else tuple(map(int, size))
    checks.require_addressable(shape, arg)
    return shape


def int_of(x: Any) -> Any:
    """The int that a tensor holds, as torch takes it for a size; any other object as it is."""
    if not isinstance(x, torch.Tensor) or x.dim() or x.dtype == torch.bool:
        return x
    return x if x.is_floating_point() or x.is_complex() else int(x)


def _is_size(size: Any) -> bool:
    if not isinstance(size, (tuple, list)):
        return False
    for s in size:
        if type(s) is not int and (not isinstance(s, checks.INT) or isinstance(s, bool)):
            return False
    return True


def leaf(vals: torch.Tensor, pattern: Pattern, requires_grad: bool) -> SparseTensor:
    """Joins values and pattern, as a leaf that collects a gradient if `requires_grad`."""
    if requires_grad and not (vals.is_floating_point() or vals.is_complex()):
        raise ArgumentValueError(
            f"`requires_grad` is set for values of dtype {checks.short(vals.dtype)}; floating and "
            "complex values are accepted with it. Convert them with `dtype`."
        )
    # another tensor on the same memory, because the caller may reshape `values` in place
    A = on_pattern(vals if vals.requires_grad or transforming() else vals.detach(), pattern)
    if requires_grad:
        A.requires_grad_()
    return A
