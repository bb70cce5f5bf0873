"""What autograd, modules and optimizers ask of a SparseTensor below Python: value-wise operations.

These run underneath autograd, on the values alone; operands must share one pattern.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._C._functorch import is_legacy_batchedtensor
from torch.autograd.graph import increment_version
from torch.utils._python_dispatch import return_and_correct_aliasing

from spgrad.core.pattern import LAYOUT_NAMES, Pattern
from spgrad.core.slots import ATEN_FUNCTIONS, above
from spgrad.core.tensor import SparseTensor, is_parameter, of_parts, requires_grad
from spgrad.errors import ArgumentValueError, StateError, UnsupportedError
from spgrad.public import public_as

_aten = torch.ops.aten

_UNARY = (
    _aten.clone.default,
    _aten.empty_like.default,
    _aten.neg.default,
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
_ALIASES = (_aten.alias.default, _aten.detach.default)
_STORAGE_OPTIONS = ("layout", "memory_format", "pin_memory")


def _finish(func: Any, first: SparseTensor, out: torch.Tensor) -> SparseTensor:
    return _changed(first) if func._schema.name.endswith("_") else of_parts(out, first._pattern)


def _changed(A: SparseTensor) -> SparseTensor:
    """Counts a change of A in place, so graphs that saved the values notice it; returns A."""
    if not A._vals.is_inference():
        increment_version(A._vals)
    return A


def _alias(func: Any) -> Callable[..., SparseTensor]:
    def run(A: SparseTensor) -> SparseTensor:
        if type(A._vals) is not torch.Tensor:  # while a compiler traces
            return of_parts(func(A._vals), A._pattern)
        return alias(A)

    return run


def alias(A: SparseTensor) -> SparseTensor:
    """`A` without its graph."""
    if torch.is_inference_mode_enabled() and not A.is_inference():
        with torch.inference_mode(False):  # so that the alias is not an inference tensor
            return _aliased(A)
    return _aliased(A)


def _aliased(A: SparseTensor) -> SparseTensor:
    """The alias of A. Both hold one tensor of values, and so one version counter."""
    vals = A._vals
    if vals.requires_grad:
        # this runs below autograd, where detach would make a separate version counter
        with torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.ADInplaceOrView, False):
            vals = vals.detach()
    out = of_parts(vals, A._pattern)
    out._is_alias = True
    if is_parameter(A) and requires_grad(A):
        out._is_trained = True
    return out


def _unary(func: Any) -> Callable[..., SparseTensor]:
    def run(A: SparseTensor, **options: Any) -> SparseTensor:
        kept = {k: v for k, v in options.items() if k not in _STORAGE_OPTIONS and v is not None}
        out = func(A._vals, **kept)
        if out.device != A._vals.device:
            return of_parts(out, A._pattern.moved(out.device))
        return _finish(func, A, out)

    return run


@public_as("ones_like")
def _ones_like(A: SparseTensor, **options: Any) -> SparseTensor:
    if not A._pattern.ordered:
        raise StateError(
            "`A` is not coalesced, and repeated ones would add up; a coalesced tensor is accepted. "
            "Call A.coalesce() first."
        )
    return _unary(_aten.ones_like.default)(A, **options)


@public_as("new_empty_strided")
def _new_empty(A: SparseTensor, size: Any, stride: Any, **options: Any) -> SparseTensor:
    """An empty tensor like `A`, into which autograd copies a gradient that it must not keep."""
    if tuple(size) != tuple(A._pattern.shape):
        raise UnsupportedError(
            f"`size` is {tuple(size)} for a SparseTensor of shape {tuple(A._pattern.shape)}; its "
            "own shape is accepted. Use spgrad.empty."
        )
    return _unary(_aten.empty_like.default)(A, **options)


def _same_pattern(func: Any) -> Callable[..., SparseTensor]:
    def run(A: torch.Tensor, B: torch.Tensor, **options: Any) -> SparseTensor:
        if not (isinstance(A, SparseTensor) and isinstance(B, SparseTensor)):
            raise UnsupportedError(
                f"`{func}` of a SparseTensor and a {_kind(A, B)} has no sparse result; two "
                "SparseTensors of one pattern are accepted. Use A.to_dense() or A.values()."
            )
        _require_same(f"{func}", A._pattern, B._pattern)
        if is_legacy_batchedtensor(A._vals) or is_legacy_batchedtensor(B._vals):
            # several cotangents at once, whose dimension torch has left out of this call
            with torch._C._RestorePythonTLSSnapshot():  # type: ignore[attr-defined]
                return _finish(func, A, func(A._vals, B._vals, **options))
        return _finish(func, A, func(A._vals, B._vals, **options))

    return run


def _by_scalar(func: Any) -> Callable[..., SparseTensor]:
    def run(A: torch.Tensor, b: Any) -> SparseTensor:
        if func is _aten.mul.Tensor and _is_number(A):
            A, b = b, A
        if not isinstance(A, SparseTensor) or not _is_number(b):
            raise UnsupportedError(
                f"`{func}` of a SparseTensor and a {_kind(A, b)} is not in the support table; a "
                "number or a 0-d tensor is accepted. Work on A.values()."
            )
        return _finish(func, A, func(A._vals, b))

    return run


def _is_number(x: Any) -> bool:
    """True for a number and for a dense 0-d tensor."""
    return not isinstance(x, torch.Tensor) or (x.dim() == 0 and not isinstance(x, SparseTensor))


def _kind(a: Any, b: Any) -> str:
    other = b if isinstance(a, SparseTensor) else a
    if not isinstance(other, torch.Tensor):
        return f"number ({other})"
    kind = "SparseTensor"
    if not isinstance(other, SparseTensor):
        native = other.layout != torch.strided
        kind = f"native {LAYOUT_NAMES[other.layout]} tensor" if native else "dense tensor"
    return f"{kind} of shape {tuple(other.shape)}"


def _require_same(name: str, a: Pattern, b: Pattern) -> None:
    if a is b:
        return
    text = (
        f"`{name}` got two SparseTensors of different patterns ({a.name}, {tuple(a.shape)}, nse "
        f"{a.nse}; {b.name}, {tuple(b.shape)}, nse {b.nse}); the same specified elements in the "
        "same layout are accepted. Build both on one pattern with spgrad.from_values."
    )
    if not a.agrees_with(b, text):
        raise ArgumentValueError(text)


def _to_copy(
    A: SparseTensor,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    non_blocking: bool = False,
    **options: Any,
) -> SparseTensor:
    if not A._pattern.coalesced and dtype is not None and _rounds(A.dtype, dtype):
        A = above.coalesce(A)
    vals = _aten._to_copy.default(A._vals, dtype=dtype, device=device, non_blocking=non_blocking)
    return of_parts(vals, A._pattern.moved(vals.device, non_blocking))


def _rounds(old: torch.dtype, new: torch.dtype) -> bool:
    """True if conversion before a sum gives another result than after it: 0.6 + 0.6 as int."""
    if torch.bool in (old, new):
        return old != new
    exact = (t.is_floating_point or t.is_complex for t in (old, new))
    return next(exact) and not next(exact)


@public_as("copy_")
def _copy_(A: SparseTensor, source: torch.Tensor, non_blocking: bool = False) -> SparseTensor:
    if not isinstance(source, SparseTensor) or not isinstance(A, SparseTensor):
        name = "source" if isinstance(A, SparseTensor) else "self"
        raise ArgumentValueError(
            f"`{name}` is a {_kind(A, source)}; a SparseTensor of the same pattern is accepted. "
            "Convert with spgrad.from_dense, spgrad.from_torch or .to_dense()."
        )
    pattern = source._pattern
    if A._pattern.device.type == "meta":  # nothing is copied there, as in torch
        if _as_far_as_known(A._pattern, pattern):
            return _changed(A)
    elif pattern.device.type == "meta":
        raise ArgumentValueError(
            "`source` is on meta and has no numbers; a SparseTensor on another device is accepted. "
            "Copy from the tensor that was moved to meta."
        )
    pattern = pattern.moved(A._pattern.device, non_blocking)  # equal patterns are on one device
    if torch.is_grad_enabled() or not alike(A._pattern, pattern):
        _require_same("copy_", A._pattern, pattern)
    if not A._pattern.same_as(pattern):
        return _replaced(A, source, pattern)
    if not pattern.ordered and _rounds(source._vals.dtype, A._vals.dtype):
        old, new = (str(T._vals.dtype).removeprefix("torch.") for T in (source, A))
        raise ArgumentValueError(
            f"`source` has repeated elements of dtype {old}, which {new} would round one by one, "
            "and not their sum; tensors without repeated elements are accepted. Call "
            "A.coalesce() and source.coalesce() first."
        )
    A._vals.copy_(source._vals, non_blocking)
    return _changed(A)


def _as_far_as_known(a: Pattern, b: Pattern) -> bool:
    """Tells whether two patterns can be equal if one of them is on meta and has no numbers."""
    return (a.spec, a.shape, a.nse) == (b.spec, b.shape, b.nse)


def alike(a: Pattern, b: Pattern) -> bool:
    """True for patterns that differ at most in their specified elements."""
    return a.form == b.form and a.indices[0].is_meta == b.indices[0].is_meta


def _replaced(A: SparseTensor, source: SparseTensor, pattern: Pattern) -> SparseTensor:
    """A with the elements of `source`, as `load_state_dict` needs for a pruned parameter.

    `pattern` is the pattern of `source` on the device of A.
    """
    if A._is_alias and not is_parameter(A):
        raise StateError(
            "`self` came from detach() or .data and shares its values with another tensor, which "
            "would keep its elements; `source` on its pattern is accepted. Copy to the other "
            "tensor itself under torch.no_grad(), or to a clone()."
        )
    require_no_gradient(A, pattern)
    vals = source._vals.detach().to(dtype=A.dtype, device=A.device, copy=True)
    return replace(A, vals, pattern)


def require_no_gradient(A: SparseTensor, other: Pattern) -> None:
    """Refuses other elements for a tensor that has a gradient on its present elements."""
    has_one = A.is_leaf or A.retains_grad  # torch warns where the gradient of a result is read
    if has_one and A.grad is not None:
        raise StateError(
            f"`self` has a gradient on its {A._pattern.nse} elements, which are not the "
            f"{other.nse} of `source`; a tensor without gradient is accepted. Call "
            "optimizer.zero_grad() first, and make a new optimizer afterwards."
        )


def replace(A: SparseTensor, vals: torch.Tensor, pattern: Pattern) -> SparseTensor:
    """Gives A other elements; earlier graphs that use the old elements raise in backward."""
    _changed(A)
    # a gradient of an older graph would lie on the old elements
    if A._outdated is not None and A.is_leaf:
        A._outdated.append(True)
        A._outdated = None
    A._vals, A._pattern = vals, pattern
    return A


_ANSWERS: dict[Any, Callable[..., Any]] = {
    **{func: _unary(func) for func in _UNARY},
    **{func: _alias(func) for func in _ALIASES},
    **{func: _same_pattern(func) for func in _SAME_PATTERN},
    **{func: _by_scalar(func) for func in _BY_SCALAR},
    _aten.isnan.default: lambda A: _aten.isnan.default(A._vals),  # for anomaly mode
    _aten.ones_like.default: _ones_like,
    _aten._to_copy.default: _to_copy,
    _aten.new_empty_strided.default: _new_empty,
    _aten.copy_.default: _copy_,
}


def _is_a_view(func: Any) -> bool:
    """True if the result shares memory with an operand without being that operand."""
    shared = [value.alias_info for value in func._schema.returns if value.alias_info is not None]
    return any(not alias.is_write for alias in shared)


def _with_its_aliases(func: Any, answer: Callable[..., Any]) -> Callable[..., Any]:
    """`answer` with a result that records which operands it aliases, as torch.compile requires.

    A function that works in place returns its operand, and there is nothing to record.
    """
    if not _is_a_view(func):
        return answer

    def run(*args: Any, **kwargs: Any) -> Any:
        return return_and_correct_aliasing(func, args, kwargs, answer(*args, **kwargs))

    return run


ATEN_FUNCTIONS.update({f: _with_its_aliases(f, answer) for f, answer in _ANSWERS.items()})
