"""What torch can't do with a SparseTensor: which function was called, and what to do instead."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import torch

from spgrad.errors import ArgumentKindError, UnsupportedError

_TRANSFORMS = ("torch._functorch.apis", "torch._functorch.eager_transforms")


def no_sparse_form(operation: Any) -> UnsupportedError:
    """The error for an operation of torch's dispatcher that SparseTensor does not answer."""
    called, transformed = _called(sys._getframe(1))
    name = torch.overrides.resolve_name(called) if called is not None else None
    name = (name or "").removesuffix(".__get__")
    what = f"`{name}` (which calls `{operation}`)" if name else f"torch operation `{operation}`"
    return UnsupportedError(
        f"{what} has no form for a SparseTensor; the operations that `python -m spgrad ops` lists "
        f"are accepted. {_way_out(operation, name, transformed)}"
    )


def _called(frame: FrameType | None) -> tuple[Any | None, bool]:
    """The function of torch that the caller named, and whether torch.func transforms it.

    Both stand in the frames above alone: torch lowers its stack of transforms before it dispatches.
    """
    called, transformed = None, False
    while frame is not None:
        if called is None and frame.f_code.co_name == "__torch_function__":
            called = frame.f_locals.get("func")
        transformed = transformed or frame.f_globals.get("__name__") in _TRANSFORMS
        frame = frame.f_back
    return called, transformed


def _way_out(operation: Any, name: str, transformed: bool) -> str:
    """What to do instead."""
    aten = operation._schema.name.partition("::")[2]
    if operation.namespace == "c10d":
        return (
            "Where all processes have the same pattern, let them exchange the values: "
            "all_reduce(A.values())."
        )
    if transformed:
        return (
            "In torch.func, transform a function of the values, which makes the tensor inside: "
            "spgrad.from_values(values, A)."
        )
    if aten == "view":  # DistributedDataParallel flattens what it sends
        return (
            "Where parameters or buffers are flattened, as DistributedDataParallel does, hold "
            "A.values() as a Parameter, and call spgrad.from_values(values, pattern) in forward."
        )
    if aten.startswith(("as_strided", "set_", "is_pinned", "unfold")):
        return (
            "A SparseTensor has no memory but that of its parts: take A.values() and "
            "A.pattern.indices."
        )
    if torch.Tag.nondeterministic_seeded in operation.tags:
        return (
            "Draw random values, and join them with the pattern: "
            "spgrad.from_values(torch.rand_like(A.values()), A)."
        )
    if torch.Tag.pointwise in operation.tags:
        function = name if name.startswith("torch.") and "Tensor" not in name else "fn"
        return (
            f"Apply it to the specified elements alone with spgrad.map(A, {function}), or to all "
            "of A.to_dense()."
        )
    return "Work on A.values(), or on A.to_dense() if the dense tensor fits in memory."


def no_dense_form(name: str) -> ArgumentKindError:
    """The error where a dense array is asked for."""
    return ArgumentKindError(
        "`A` is a SparseTensor; a dense tensor is accepted. Use A.to_dense(), A.values() or "
        "spgrad.to_scipy(A).",
        function=name,
    )


def no_array() -> Any:
    """The refusal where NumPy asks for an array; but SciPy's product gets what is none.

    `S @ A` of a sparse array S asks for one of A, and leaves A to `A.__rmatmul__` if it gets an
    object without dimensions, which is NumPy's way to say that there is none.
    """
    caller = sys._getframe(2)
    module = caller.f_globals.get("__name__", "")
    if caller.f_code.co_name == "_matmul_dispatch" and module.startswith("scipy.sparse"):
        return sys.modules["numpy"].empty((), dtype=object)
    raise no_dense_form("numpy")


def no_memory(name: str) -> UnsupportedError:
    """The error where the memory of a tensor is asked for, of which a SparseTensor has none."""
    return UnsupportedError(
        "`A` is a SparseTensor, whose elements are not one block of memory; a dense tensor is "
        "accepted. Pass its parts, A.values() and A.pattern.indices, or A.to_dense().",
        function=name,
    )
