"""Functions that do in drop-in mode what torch's functions do, where spgrad's functions differ."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch

from spgrad import linalg, ops  # noqa: F401  # linalg registers its names of torch
from spgrad.core import kept
from spgrad.core.pattern import LAYOUTS, Pattern
from spgrad.core.slots import TORCH_FUNCTIONS
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import on_pattern, stored_values
from spgrad.errors import UnsupportedError
from spgrad.ops.elementwise import dtypes
from spgrad.support import OPS, torch_named

TORCH_SEMANTICS: dict[Any, Callable[..., Any]] = {}
"""torch function -> the function that runs in drop-in mode."""


REFUSALS = {
    TORCH_FUNCTIONS[torch_named(name)]
    for row in OPS.values()
    if not row.layouts
    for name in row.torch
}
"""Functions that refuse a name of torch whose result would be dense, or silently wrong."""

LEFT_TO_TORCH = {
    getattr(torch.Tensor, name): name
    for name in (
        "_dimI",
        "_dimV",
        "is_contiguous",
        "new",
        "resize_as_",
        "resize_as_sparse_",
        "sparse_resize_",
        "sparse_resize_and_clear_",
        "storage",
        "stride",
        "untyped_storage",
    )
}
"""Methods that only torch can answer: in drop-in mode they get a native copy of the tensor.

A trace sees a strided wrapper, and gets torch's answers about the wrapper.
"""


def to_dense(
    A: Any, dtype: torch.dtype | None = None, *, masked_grad: bool | None = None
) -> torch.Tensor:
    """As `spgrad.to_dense`; `masked_grad` has no effect, as a gradient stays on its pattern."""
    return ops.to_dense(A, dtype)


def eq(input: Any, other: Any) -> torch.Tensor:
    """As `spgrad.eq`; equality with 0 holds at unspecified elements, so the result is dense."""
    if isinstance(other, torch.Tensor) or other != 0:
        return ops.eq(input, other)
    return ops.to_dense(input.detach()) == other


def sum_of(
    input: Any, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """As `spgrad.sum`, but sums along dimensions are sparse where torch's are."""
    layout = torch.sparse_csr if keepdim else torch.sparse_coo
    if dim is None or dim in ([], ()) or input.layout not in (torch.sparse_coo, layout):
        return ops.sum(input, dim, keepdim, dtype=dtype)
    whole = not (input.is_floating_point() or input.is_complex())
    made = ops.sparse_sum(input, dim, torch.int64 if dtype is None and whole else dtype)
    if keepdim:
        for at in sorted(d % input.dim() for d in ((dim,) if isinstance(dim, int) else dim)):
            made = made.unsqueeze(at)
    sparse = isinstance(made, SparseTensor) and input.layout != made.layout
    return ops.to_sparse(made, layout=input.layout) if sparse else made


def as_type(A: SparseTensor, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
    """As `Tensor.type`: `A` with another dtype, or the name of torch's class for it."""
    if isinstance(dtype, torch.dtype):
        return A.to(dtype)
    return _leave_to_torch("type")()


def to(A: SparseTensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """As `Tensor.to`; on the meta device, where torch keeps no elements, torch answers."""
    device = kwargs.get("device", args[0] if args else None)
    if isinstance(device, (str, torch.device)) and torch.device(device).type == "meta":
        return _leave_to_torch("to")()
    return dtypes.to(A, *args, **kwargs)


_BLOCKED = (torch.sparse_bsr, torch.sparse_bsc)


def _converted(name: str, to: torch.layout | None) -> Callable[..., Any]:
    """A conversion between sparse layouts that torch 2.13 has too; torch answers for the others."""

    def run(A: SparseTensor, *args: Any, layout: Any = None, blocksize: Any = None) -> Any:
        target = to or layout or torch.sparse_coo
        if args and to in _BLOCKED:
            blocksize, *args = args  # type: ignore[assignment]
        if args or _unknown_to_torch(A._pattern, target, blocksize):
            return _leave_to_torch(name)()
        if target == torch.strided:
            return ops.to_dense(A)
        if A.layout == target == torch.sparse_coo:
            return A
        made = ops.to_sparse(A, layout=target, blocksize=blocksize and tuple(blocksize))
        return _with_int64_indices(made) if made._pattern.is_coo else made

    return run


def _with_int64_indices(A: SparseTensor) -> SparseTensor:
    """A COO tensor with the int64 indices that torch's have."""
    if A._pattern.indices[0].dtype == torch.int64:
        return A
    pattern = A._pattern.derive(kept.INT64, _int64_pattern)
    return on_pattern(stored_values(A), pattern)


def _int64_pattern(pattern: Pattern) -> Pattern:
    indices = (pattern.indices[0].to(torch.int64),)
    return Pattern.from_spec(pattern.spec, tuple(pattern.shape), indices)


def _unknown_to_torch(pattern: Pattern, target: torch.layout, blocksize: Any) -> bool:
    if target in (torch.sparse_coo, torch.strided):
        return False
    if pattern.is_coo:
        return pattern.sparse_dim != 2
    if pattern.layout in _BLOCKED:
        return target not in _BLOCKED or tuple(blocksize or ()) != pattern.blocksize
    return target in _BLOCKED and bool(pattern.batch)


class LeftToTorchError(UnsupportedError):
    """Raised where drop-in mode leaves a call to torch by design; it causes no warning or error."""


def _leave_to_torch(name: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise LeftToTorchError(
            "`input` is a SparseTensor; a tensor of torch's own is accepted. "
            "Convert it with spgrad.to_torch.",
            function=name,
        )

    return refuse


def _register() -> None:
    for name, method in vars(SparseTensor).items():
        func = getattr(torch.Tensor, name, None)
        if isinstance(method, FunctionType) and func is not None and func not in TORCH_FUNCTIONS:
            TORCH_SEMANTICS[func] = method
    for func, name in LEFT_TO_TORCH.items():
        TORCH_SEMANTICS[func] = _leave_to_torch(name)
    for function in (torch.zeros_like, torch.empty_like):
        TORCH_SEMANTICS[function] = _leave_to_torch(function.__name__)
    TORCH_SEMANTICS[torch.Tensor.to_dense] = to_dense
    TORCH_SEMANTICS[torch.Tensor.to] = to
    TORCH_SEMANTICS[torch.Tensor.type] = as_type
    for name, layout in (("to_sparse", None), *((f"to_sparse_{n}", m) for n, m in LAYOUTS.items())):
        TORCH_SEMANTICS[getattr(torch.Tensor, name)] = _converted(name, layout)
    TORCH_SEMANTICS[torch.Tensor.sum] = TORCH_SEMANTICS[torch.sum] = sum_of
    TORCH_SEMANTICS[torch.Tensor.eq] = TORCH_SEMANTICS[torch.eq] = eq


_register()
