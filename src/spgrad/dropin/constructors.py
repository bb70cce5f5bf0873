"""Constructors and conversions that give SparseTensors in drop-in mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from spgrad.core import compressed
from spgrad.core.construct import sparse_coo_tensor
from spgrad.core.interop import from_torch
from spgrad.core.pattern import LAYOUT_NAMES, LAYOUTS
from spgrad.dropin.state import state
from spgrad.errors import ArgumentValueError, SpgradError, UnsupportedError
from spgrad.ops.creation.create import spdiags
from spgrad.ops.layouts.dense import from_dense

CONSTRUCTORS: dict[Any, Callable[..., Any]] = {}
"""torch function -> (function, args, kwargs) -> SparseTensor, or NotImplemented."""


def _ask_torch(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception) -> Any:
    """The result of torch's own constructor, where spgrad's raised `error`.

    Where torch's raises too, the error has both texts.
    """
    if state.fallbacks[-1] == "refuse":
        raise error
    if kwargs.get("check_invariants") is None and func in _CHECKED:
        kwargs = {**kwargs, "check_invariants": True}
    try:
        made = func(*args, **kwargs)
    except (RuntimeError, TypeError, ValueError, IndexError) as theirs:
        raise _of_both_kinds(theirs, error) from error
    return from_torch(made) if made.layout in LAYOUT_NAMES else made


def _of_both_kinds(theirs: Exception, ours: Exception) -> Exception:
    """An exception of both types, so that code that expects either of them catches it."""
    bases = type(theirs), type(ours)
    if not isinstance(ours, SpgradError) or issubclass(*bases) or issubclass(*bases[::-1]):
        return theirs
    try:
        kind: Any = type(
            bases[1].__name__,
            bases[::-1],
            {"__module__": bases[1].__module__, "__str__": Exception.__str__},
        )
    except TypeError:
        return theirs
    return kind(f"{theirs} ({ours})", function=ours.function)


def _coo(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        return sparse_coo_tensor(*_with_int64_indices(args, kwargs), **kwargs)
    except (SpgradError, TypeError) as error:
        return _ask_torch(func, args, kwargs, error)


def _with_int64_indices(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """The arguments with the indices as int64, to which torch converts indices of any dtype."""
    if not args or not isinstance(args[0], torch.Tensor) or args[0].dtype == torch.int64:
        return args
    return (args[0].to(torch.int64), *args[1:])


def _compressed(make: Callable[..., Any]) -> Callable[..., Any]:
    def run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            _require_indices_of_torch(args[:2])
            return make(*args, **kwargs)
        except (SpgradError, TypeError) as error:
            return _ask_torch(func, args, kwargs, error)

    return run


def _require_indices_of_torch(indices: tuple[Any, ...]) -> None:
    """Refuses index tensors that spgrad takes and torch does not: strided ones, ragged batches."""
    given = [index for index in indices if isinstance(index, torch.Tensor)]
    if len({index.dim() for index in given}) > 1 or not all(map(_is_contiguous_by_item, given)):
        raise ArgumentValueError(
            "index tensors have other numbers of dimensions, or are not contiguous; "
            "as many, contiguous, are accepted, as torch has no ragged batches. Call the "
            "constructor of spgrad.",
            function="dropin",
        )


def _is_contiguous_by_item(index: torch.Tensor) -> bool:
    """True if the indices of a batch item follow one another in memory, as torch requires."""
    return index.dim() == 0 or index.shape[-1] < 2 or index.stride(-1) == 1


def _conversion(layout: torch.layout | None) -> Callable[..., Any]:
    """`x.to_sparse*` of a dense tensor."""

    def run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x = args[0]
        if type(x) not in (torch.Tensor, torch.nn.Parameter) or x.layout is not torch.strided:
            return NotImplemented
        try:
            return _converted(x, layout, *args[1:], **kwargs)
        except (SpgradError, TypeError) as error:
            return _ask_torch(func, args, kwargs, error)

    return run


def _converted(
    x: torch.Tensor,
    to: torch.layout | None,
    first: Any = None,
    *,
    sparse_dim: int | None = None,
    layout: torch.layout | None = None,
    blocksize: Any = None,
    dense_dim: int | None = None,
) -> Any:
    """`first` is sparse_dim for to_sparse, blocksize or dense_dim for the others."""
    if to is None:
        sparse_dim = sparse_dim if first is None else first
        to = layout or torch.sparse_coo
    elif to in (torch.sparse_bsr, torch.sparse_bsc):
        blocksize = blocksize if first is None else first
    else:
        dense_dim = dense_dim if first is None else first
    if to is torch.strided:
        return x
    if sparse_dim is not None:
        dense_dim = x.dim() - sparse_dim
    blocks = None if blocksize is None else tuple(blocksize)
    made = from_dense(x, to, blocksize=blocks, dense_dim=dense_dim or 0)  # type: ignore[arg-type]
    if 0 in made._pattern.batch and not made._pattern.is_coo:
        raise UnsupportedError(
            "`input` is a batch without items; a batch of one or more is accepted. "
            "Call spgrad.from_dense.",
            function="dropin",
        )
    return made


def _spdiags(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        offsets = args[1] if len(args) > 1 else kwargs["offsets"]
        if offsets.dtype != torch.int64:
            raise ArgumentValueError(
                f"`offsets` has dtype {offsets.dtype}; torch.int64 is accepted "
                "here. Convert it with .long().",
                function="spdiags",
            )
        return spdiags(*args, **kwargs)
    except (SpgradError, TypeError) as error:
        return _ask_torch(func, args, kwargs, error)


def _filled(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Refuses torch.ones, torch.full and the like in a sparse layout; torch gives zeros in CSR."""
    like = args[0].layout if args and isinstance(args[0], torch.Tensor) else None
    layout = kwargs.get("layout") or like
    if layout not in LAYOUT_NAMES:
        return NotImplemented
    raise UnsupportedError(
        f"`layout` is {layout}; torch.strided is accepted, as "
        "every element would be specified. Make it dense, and convert it with .to_sparse().",
        function=func.__name__,
    )


def _register() -> None:
    CONSTRUCTORS[torch.sparse_coo_tensor] = _coo
    for name in ("compressed", *LAYOUTS):
        if name != "coo":
            make = getattr(compressed, f"sparse_{name}_tensor")
            CONSTRUCTORS[getattr(torch, f"sparse_{name}_tensor")] = _compressed(make)
    _CHECKED.update(CONSTRUCTORS)
    CONSTRUCTORS[torch.Tensor.to_sparse] = _conversion(None)
    for name, layout in LAYOUTS.items():
        CONSTRUCTORS[getattr(torch.Tensor, f"to_sparse_{name}")] = _conversion(layout)
    CONSTRUCTORS[torch.sparse.spdiags] = _spdiags
    for function in (torch.ones, torch.full, torch.Tensor.new_ones, torch.Tensor.new_full):
        CONSTRUCTORS[function] = _filled


_CHECKED: set[Any] = set()
"""Constructors of torch that check their indices only if `check_invariants` says so."""
_register()
