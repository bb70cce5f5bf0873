"""What autograd, modules and optimizers ask of a SparseTensor below Python: value-wise operations.

These run underneath autograd, on the values alone; operands must share one pattern.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from spgrad.errors import ArgumentValueError, UnsupportedError
from spgrad.pattern import Pattern
from spgrad.tensor import ATEN_FUNCTIONS, SparseTensor

_aten = torch.ops.aten

_UNARY = (
    _aten.alias.default,
    _aten.clone.default,
    _aten.detach.default,
    _aten.empty_like.default,
    _aten.neg.default,
    _aten.ones_like.default,
    _aten.zero_.default,
    _aten.zeros_like.default,
)
_SAME_PATTERN = (
    _aten.add.Tensor,
    _aten.add_.Tensor,
    _aten.sub.Tensor,
    _aten.sub_.Tensor,
)
_BY_SCALAR = (
    _aten.div.Scalar,
    _aten.div.Tensor,
    _aten.div_.Scalar,
    _aten.div_.Tensor,
    _aten.mul.Scalar,
    _aten.mul.Tensor,
    _aten.mul_.Scalar,
    _aten.mul_.Tensor,
)
_STORAGE_OPTIONS = ("layout", "memory_format", "pin_memory")


def _finish(func: Any, first: SparseTensor, out: torch.Tensor) -> SparseTensor:
    in_place = func._schema.name.endswith("_")
    return first if in_place else SparseTensor(out, first._pattern)


def _unary(func: Any) -> Callable[..., SparseTensor]:
    def run(A: SparseTensor, **options: Any) -> SparseTensor:
        kept = {k: v for k, v in options.items() if k not in _STORAGE_OPTIONS and v is not None}
        return _finish(func, A, func(A._vals, **kept))

    return run


def _same_pattern(func: Any) -> Callable[..., SparseTensor]:
    def run(A: torch.Tensor, B: torch.Tensor, **options: Any) -> SparseTensor:
        if not (isinstance(A, SparseTensor) and isinstance(B, SparseTensor)):
            raise UnsupportedError(
                f"spgrad: `{func}` of a SparseTensor and a {_kind(A, B)} has no sparse result; two "
                "SparseTensors of one pattern are accepted. Use A.to_dense() or A.values()."
            )
        _require_same(f"{func}", A._pattern, B._pattern)
        return _finish(func, A, func(A._vals, B._vals, **options))

    return run


def _by_scalar(func: Any) -> Callable[..., SparseTensor]:
    def run(A: torch.Tensor, b: Any) -> SparseTensor:
        if isinstance(b, SparseTensor) and not isinstance(A, SparseTensor) and A.dim() == 0:
            A, b = b, A  # a 0-d tensor times a SparseTensor
        if not isinstance(A, SparseTensor) or (isinstance(b, torch.Tensor) and b.dim() != 0):
            raise UnsupportedError(
                f"spgrad: `{func}` of a SparseTensor and a {_kind(A, b)} is not in the support "
                "table; a number or a 0-d tensor is accepted. Work on A.values()."
            )
        return _finish(func, A, func(A._vals, b))

    return run


def _kind(a: Any, b: Any) -> str:
    other = b if isinstance(a, SparseTensor) else a
    if not isinstance(other, torch.Tensor):
        return f"number ({other})"
    return f"{type(other).__name__} of shape {tuple(other.shape)}"


def _require_same(name: str, a: Pattern, b: Pattern) -> None:
    if not a.same_as(b):
        raise ArgumentValueError(
            f"spgrad: `{name}` got two SparseTensors of different patterns ({a.name}, "
            f"{tuple(a.shape)}, nse {a.nse}; {b.name}, {tuple(b.shape)}, nse {b.nse}); the same "
            "specified elements in the same layout are accepted. Build both on one pattern with "
            "spgrad.from_values."
        )


def _to_copy(
    A: SparseTensor,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    non_blocking: bool = False,
    **options: Any,
) -> SparseTensor:
    vals = _aten._to_copy.default(A._vals, dtype=dtype, device=device, non_blocking=non_blocking)
    return SparseTensor(vals, A._pattern.moved(vals.device, non_blocking))


def _copy_(A: SparseTensor, source: torch.Tensor, non_blocking: bool = False) -> SparseTensor:
    if not isinstance(source, SparseTensor):
        raise ArgumentValueError(
            f"spgrad.copy_: `source` is a {_kind(A, source)}; a SparseTensor of the same pattern "
            "is accepted. Convert it with spgrad.from_dense or spgrad.from_torch."
        )
    _require_same("copy_", A._pattern, source._pattern)
    A._vals.copy_(source._vals, non_blocking)
    return A


ATEN_FUNCTIONS.update({func: _unary(func) for func in _UNARY})
ATEN_FUNCTIONS.update({func: _same_pattern(func) for func in _SAME_PATTERN})
ATEN_FUNCTIONS.update({func: _by_scalar(func) for func in _BY_SCALAR})
ATEN_FUNCTIONS[_aten._to_copy.default] = _to_copy
ATEN_FUNCTIONS[_aten.copy_.default] = _copy_
