"""Lets the derivatives of operations take part in torch.func and in forward mode.

An operation is a `Function` whose backward is itself made of differentiable operations. Outside of
transforms nothing else is needed. Inside of `torch.func` (grad, vjp, jvp, jacrev, jacfwd, hessian,
vmap) and of `torch.autograd.forward_ad`, each call makes a form of the operation that also has a
jvp: backward is u -> J^H u, linear in u, so that the vjp of backward with respect to u takes a
tangent t to J t.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._C._functorch import (
    get_unwrapped,
    is_batchedtensor,
    is_functorch_wrapped_tensor,
    maybe_current_level,
    unwrap_if_dead,
)
from torch.autograd import forward_ad

from spgrad.torch_protocol.dynamo.frames import when_called

_inside = threading.local()

in_torch_func: Callable[[], bool] = torch._C._are_functorch_transforms_active
"""True inside of a transform of torch.func."""


def transforming() -> bool:
    """True while torch.func or forward mode is active, but not in the kernels of an operation."""
    active = forward_ad._current_level >= 0 or in_torch_func()
    return active and not getattr(_inside, "operation", False)


@contextmanager
def untransformed() -> Iterator[None]:
    """A context in which operations are called as if there were no transforms."""
    before = getattr(_inside, "operation", False)
    _inside.operation = True
    try:
        yield
    finally:
        _inside.operation = before


def has_tangent(x: torch.Tensor) -> bool:
    """True if forward mode takes a derivative along `x`."""
    return forward_ad._current_level >= 0 and forward_ad.unpack_dual(x).tangent is not None


def mapped_over(t: torch.Tensor) -> torch.Tensor:
    """The numbers of all items that torch.func.vmap maps over, to decide once for all of them.

    Also unwraps tensors that other transforms of torch.func have wrapped.
    """
    while is_functorch_wrapped_tensor(t):
        t = get_unwrapped(t)
    return t


def is_transformed(t: torch.Tensor) -> bool:
    """Whether a transform of torch.func has wrapped `t`, so its memory can't be read."""
    return is_functorch_wrapped_tensor(t)


def is_mapped(t: torch.Tensor) -> bool:
    """Whether torch.func.vmap maps over `t`, so its numbers must not be read."""
    while is_functorch_wrapped_tensor(t):
        if is_batchedtensor(t):
            return True
        t = get_unwrapped(t)
    return False


def differentiated(x: torch.Tensor) -> bool:
    """True if a derivative with respect to `x` is requested."""
    return has_tangent(x) or (torch.is_grad_enabled() and x.requires_grad)


class Derived(torch.autograd.Function):
    """A function with a derivative of its own, which Dynamo compiles only as a part of a graph.

    Autograd calls `backward` from C++. Where a graph break leaves that to Python, Dynamo would
    compile it in pieces, each time it meets something that is in no graph.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in ("backward", "jvp"):
            if name in vars(cls):
                when_called(vars(cls)[name].__func__)


class Recorded(Derived):
    """A function that autograd records as one node, outside of the transforms of torch.func.

    `apply` is the method of C++, because the preparations of `torch.autograd.Function.apply` for
    torch.func take a third of the time of a small call. The caller has to unwrap a tensor that may
    have outlived a transform.
    """

    apply: Any = vars(torch._C._FunctionBase)["apply"]


class Function(Recorded):
    """An operation with one result, `forward(ctx, ...)` and `backward(ctx, g)`."""

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Calls the operation and records it."""
        if not transforming():
            alive = [unwrap_if_dead(a) if isinstance(a, torch.Tensor) else a for a in args]
            return super().apply(*alive)
        call = _Call(cls, args)
        out = _transformed(call).apply(*(args[i] for i in call.at))
        return out[0] if isinstance(out, tuple) else out


class _Notes:
    """The `ctx` of one call: forward writes to it, and backward reads from it."""

    def __init__(self) -> None:
        self.saved_tensors: tuple[Any, ...] = ()
        self.needs_input_grad: tuple[bool, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Does nothing, because a transform always gives the one cotangent."""


class _Call:
    """One call of an operation: its arguments by position, with gaps for the tensors."""

    def __init__(self, cls: type[Function], args: tuple[Any, ...]) -> None:
        self.cls = cls
        self.at = [i for i, a in enumerate(args) if isinstance(a, torch.Tensor)]
        self.others = [None if isinstance(a, torch.Tensor) else a for a in args]
        self.notes = _Notes()
        self.saved: list[int | None] = []  # indices among the tensors and then the results

    def filled(self, tensors: Sequence[Any], others: list[Any]) -> list[Any]:
        full = list(others)
        for i, t in zip(self.at, tensors, strict=True):
            full[i] = t
        return full

    def forward(self, tensors: tuple[torch.Tensor, ...]) -> Any:
        """The result, or a tuple of the result and further tensors that the backward needs."""
        tensors = tuple(map(_in_memory, tensors))
        with untransformed():
            y = self.cls.forward(self.notes, *self.filled(tensors, self.others))
        if any(step == 0 and size > 1 for step, size in zip(y.stride(), y.shape, strict=True)):
            y = y.contiguous()  # forward mode writes a tangent into memory of the same strides
        known = [*tensors, y]
        for t in self.notes.saved_tensors:
            if t is not None and not any(t is other for other in known):
                known.append(t)
        self.saved = [
            None if t is None else next(i for i, other in enumerate(known) if other is t)
            for t in self.notes.saved_tensors
        ]
        more = known[len(tensors) + 1 :]
        return (y, *more) if more else y

    def backward(
        self, saved: Sequence[Any], needs: Sequence[bool], g: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        """Gradients of the tensors."""
        ctx = _Notes()
        vars(ctx).update(vars(self.notes))
        ctx.saved_tensors = tuple(saved)
        ctx.needs_input_grad = tuple(self.filled(needs, [False] * len(self.others)))
        grads = self.cls.backward(ctx, g)
        return tuple(grads[i] for i in self.at)


def _in_memory(t: torch.Tensor) -> torch.Tensor:
    """`t`; forward mode has zeros that take no memory, which kernels can't read."""
    if not t._is_zerotensor():
        return t
    return torch.zeros(t.shape, dtype=t.dtype, device=t.device)


def _primal(t: Any) -> Any:
    """`t` without its tangent; with the tangent, the derivative would be taken twice."""
    if not isinstance(t, torch.Tensor):
        return t
    return forward_ad.unpack_dual(t, level=0).primal  # torch.compile tells Python of no level


def _transformed(call: _Call) -> type[Derived]:
    """The operation for one call, as a function of the tensors among its arguments."""

    class Transformed(Derived):
        @staticmethod
        def forward(*tensors: torch.Tensor) -> Any:  # type: ignore[override]
            return call.forward(tensors)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            results = output if isinstance(output, tuple) else (output,)
            if results[1:]:
                ctx.mark_non_differentiable(*results[1:])
            ctx.more = len(results) - 1
            known = (*inputs, *results)
            saved = [None if i is None else known[i] for i in call.saved]
            ctx.save_for_backward(*saved)
            ctx.save_for_forward(*saved, results[0])

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor, *_: Any) -> Any:  # type: ignore[override]
            return call.backward(ctx.saved_tensors, ctx.needs_input_grad, g)

        @staticmethod
        def jvp(ctx: Any, *tangents: torch.Tensor | None) -> Any:
            asked = [t is not None for t in tangents]
            *saved, y = map(_primal, ctx.saved_tensors)
            moving: list[torch.Tensor] = []  # tangents of the tensors on which the result depends

            def pull(u: torch.Tensor) -> tuple[Any, ...]:
                pairs = zip(call.backward(saved, asked, u), tangents, strict=True)
                found = [(g, t) for g, t in pairs if g is not None and t is not None]
                moving[:] = [t for _, t in found]
                return tuple(g for g, _ in found)

            # torch switches forward mode off here, also that of the transforms around this one
            with forward_ad._set_fwd_grad_enabled(maybe_current_level() is not None):
                push = torch.func.vjp(pull, torch.zeros_like(y))[1]
                (out,) = push(tuple(moving))
            return (out, *[None] * ctx.more) if ctx.more else out

        @staticmethod
        def vmap(info: Any, in_dims: tuple[int | None, ...], *tensors: torch.Tensor) -> Any:
            # one item at a time: kernels do not accept a further dimension
            found = []
            for i in range(info.batch_size):
                pairs = zip(tensors, in_dims, strict=True)
                item = [t if d is None else t.select(d, i) for t, d in pairs]
                one = _Call(call.cls, tuple(call.filled(item, call.others)))
                out = _transformed(one).apply(*item)
                found.append(out if isinstance(out, tuple) else (out,))
                # the forward that ran was the forward of `one`
                call.notes, call.saved = one.notes, one.saved
            y, *more = [torch.stack(parts) for parts in zip(*found, strict=True)]
            return ((y, *more), (0,) * (1 + len(more))) if more else (y, 0)

    return Transformed
