"""What `torch.compile` and `torch.export` have to know of the library, without importing Dynamo.

Functions are made atoms of the compiler's first pass: Dynamo, which reads Python bytecode, puts
such a function into its graph as it is; the second pass then runs it on fake tensors and finds the
kernels. Importing Dynamo doubles the time that ``import torch`` takes, so functions are handed to
it only once something else has imported it.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import ModuleType
from typing import Any

import torch
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._guards import TracingContext
from torch.autograd import forward_ad

from spgrad.torch_protocol.dynamo.attributes import teach_dynamo
from spgrad.torch_protocol.dynamo.frames import DYNAMO, leave_all_alone, when_called
from spgrad.torch_protocol.func_transforms import untransformed

_WAITING: list[Callable[..., Any]] = []


def when_tracing(function: Callable[..., Any]) -> None:
    """Lets Dynamo call `function` as one operation of its graph, once Dynamo is imported."""
    if DYNAMO in sys.modules:
        _hand_over(function)
    else:
        _WAITING.append(function)


def keep_outside(function: Callable[..., Any], why: str) -> None:
    """Lets a graph end before a call of `function`, which runs as it does without the compiler.

    With ``fullgraph=True``, the error gives the reason.
    """
    advice = "Call it outside of the compiled function, or leave out fullgraph=True"
    when_called(function)
    # Dynamo asks once for each code object, which all functions of one decorator share, so that
    # the function inside of the decorators has to refuse as well
    inner: Any = function
    while inner is not None:
        # what torch.compiler.disable would set, which imports Dynamo
        vars(inner)["_torchdynamo_disable"] = True
        vars(inner)["_torchdynamo_disable_msg"] = f"{why}. {advice}"
        inner = getattr(inner, "__wrapped__", None)


def _hand_over(function: Callable[..., Any]) -> None:
    sys.modules[DYNAMO].allow_in_graph(function)
    when_called(function)


class _AfterDynamo(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Hands the waiting functions over right after the import of Dynamo, then steps aside."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != DYNAMO:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return None
        self._loader = spec.loader
        spec.loader = self
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        if spec is not None:
            spec.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        teach_dynamo()
        for function in _WAITING:
            _hand_over(function)
        _WAITING.clear()
        leave_all_alone()


if DYNAMO in sys.modules:
    teach_dynamo()
else:
    sys.meta_path.insert(0, _AfterDynamo())


_ORDINARY = nullcontext()
_TRACING = (
    torch._C._TorchDispatchModeKey.FAKE,
    torch._C._TorchDispatchModeKey.PROXY,
    torch._C._TorchDispatchModeKey.FUNCTIONAL,
)
"""Modes in which an operation on a real tensor gives a fake one, or a step of a graph."""


def lasting(*made_of: torch.Tensor) -> AbstractContextManager[Any]:
    """A context in which to make tensors that are kept for later calls.

    These tensors are not inference tensors, because a backward may save them. If they are made from
    real tensors, they are real as well, even while torch.export, torch.compile or FakeTensorMode
    traces, torch.func transforms or forward mode is on: the next caller may be outside of all of
    these modes.
    """
    if torch.compiler.is_dynamo_compiling():  # everything is part of one graph
        return torch.inference_mode(False)
    transformed = torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
    if transformed or (
        torch._C._len_torch_dispatch_stack()
        and any(torch._C._get_dispatch_mode(key) is not None for key in _TRACING)
    ):
        return _undisturbed() if all(map(is_real, made_of)) else torch.inference_mode(False)
    return torch.inference_mode(False) if torch.is_inference_mode_enabled() else _ORDINARY


def told_by_a_run(t: torch.Tensor) -> bool:
    """True if a trace made `t`, so that only its graph can check the numbers, in a run."""
    return type(t) is not torch.Tensor and in_trace()


def is_real(t: torch.Tensor) -> bool:
    """True for a tensor that belongs to neither a trace nor a transform."""
    return type(t) is torch.Tensor and not is_functorch_wrapped_tensor(t)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """A context without the modes and transforms of torch.func that are active around it."""
    from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
    from torch.utils._python_dispatch import _disable_current_modes

    # torch._C._DisableFuncTorch would leave the transforms on torch's stack; operations that are
    # called in this context would find them there, and call torch.func
    with (
        _disable_current_modes(),
        temporarily_clear_interpreter_stack(),
        untransformed(),
        torch.inference_mode(False),
    ):
        yield


_READERS = ("specialize", "run_node")
"""Functions of Dynamo that read an attribute for the code that it compiles."""


def traced(*, shown: bool = False) -> bool:
    """True if torch.compile or torch.export reads the property that asks.

    Both accept a wrapper only if it looks strided. The module that makes fake tensors also counts
    before a trace begins. With `shown`, Dynamo does not count if it reads the property for the code
    that it compiles; this code then sees the same as in Python.
    """
    caller = sys._getframe(2)
    module = caller.f_globals.get("__name__", "")
    if TracingContext.try_get() is None:
        return module == "torch._subclasses.meta_utils"
    return not (shown and module.startswith(DYNAMO) and caller.f_code.co_name in _READERS)


def of_trace(t: torch.Tensor) -> bool:
    """True for tensors that the running trace made; fake tensors given to it are its inputs."""
    if type(t) is torch.Tensor:
        return False
    running = TracingContext.try_get()
    mode = getattr(t, "fake_mode", None)
    return mode is None or running is None or running.fake_mode in (None, mode)


def in_trace() -> bool:
    """Whether torch.compile or torch.export is tracing; fake tensors alone do not count."""
    return TracingContext.try_get() is not None


_OF_DATA = {
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "GuardOnDataDependentSymNode",
}


def of_data(error: Exception) -> bool:
    """Whether torch says that code that it traces depends on numbers that only a run tells."""
    return type(error).__name__ in _OF_DATA and in_trace()


def has_its_sizes(out: Any) -> bool:
    """False if the running trace can't find a size in `out` that depends on numbers.

    Dynamo looks for such a size in the results of the operation that made it. It need not look for
    sizes of which `out` has nothing: the second pass finds these inside of the operation.
    """
    running = TracingContext.try_get()
    if running is None or running.fake_mode is None or running.fake_mode.shape_env is None:
        return True
    pending = running.fake_mode.shape_env.pending_fresh_unbacked_symbols
    if not pending:
        return True
    sizes = [size for tensor in _parts(out) for size in tensor.shape]
    found = [size.node.expr for size in sizes if isinstance(size, torch.SymInt)]
    used = {symbol for expression in found for symbol in expression.free_symbols}
    pending[:] = [symbol for symbol in pending if symbol in used]
    return set(pending) <= set(found)


def _in_dynamo_for_export() -> bool:
    """Whether Dynamo traces for torch.export(strict=True), which traces once more behind it."""
    if not torch.compiler.is_exporting():
        return False
    dynamo = sys.modules.get("torch._dynamo.symbolic_convert")
    return getattr(getattr(dynamo, "tls", None), "current_tx", None) is not None


def lost_by_strict_export(out: Any) -> bool:
    """Whether torch.export(strict=True) traces, and `out` has a pattern whose nse no trace knows.

    The second trace finds neither that number nor the tensors in results that are wrappers.
    """
    results = out if isinstance(out, (tuple, list)) else (out,)
    return _in_dynamo_for_export() and any(
        not known(x._pattern.nse) for x in results if hasattr(x, "_pattern")
    )


def may_keep(*made_of: torch.Tensor) -> bool:
    """False if what is made of these tensors is no part of the next trace, which gets them too."""
    return not _in_dynamo_for_export() or all(map(is_real, made_of))


def _parts(out: Any) -> Iterator[torch.Tensor]:
    """The dense tensors of a result, also in tuples; for sparse tensors, the indices and values."""
    if isinstance(out, (tuple, list)):
        for item in out:
            yield from _parts(item)
    elif hasattr(out, "_vals"):
        yield from (out._vals, *out._pattern.indices)
    elif isinstance(out, torch.Tensor):
        yield out


def known(size: Any) -> bool:
    """False for a size that a trace can't compare, because it depends on numbers."""
    return not isinstance(size, torch.SymInt) or size.node.has_hint()


def by_symbols(x: Any) -> Any:
    """`x`, a size or a tuple of sizes and more, with the symbols of a trace in place of sizes."""
    if isinstance(x, tuple):
        return tuple(map(by_symbols, x))
    return x.node.expr if isinstance(x, torch.SymInt) else x


def equate(size: int, other: int) -> None:
    """Tells a trace that has symbols for two sizes, or for one of them, that these are equal.

    A result with the one size may be all that a graph for the backward takes, which would then not
    find the symbol of the other. And a number that only the trace of the backward finds for a
    symbol comes too late for the results of the forward that have this size.
    """
    sizes = size, other
    if any(isinstance(s, torch.SymInt) for s in sizes) and all(map(known, sizes)):
        torch._check(size == other)


def equate_lines(pointers: int, size: int, block: int) -> None:
    """Tells a trace that as many pointers belong to lines of blocks that add up to this size.

    Of a known number of pointers, the size follows only where it is not divided.
    """
    if isinstance(pointers, torch.SymInt):
        equate(pointers, size // block + 1)
    else:
        equate(size, (pointers - 1) * block)


def compiled_for(t: torch.Tensor) -> tuple[Any, ...]:
    """Properties of an inner tensor on which compiled code depends; varying sizes are symbols."""
    flags = (t.requires_grad, t.is_inference(), t.is_conj(), t.is_neg())
    return (type(t).__name__, t.dtype, t.device, tuple(t.shape), t.stride(), *flags)


def same_inputs() -> tuple[int, ...]:
    """For each tensor that Dynamo notes as given to the graph, the first that is the same object.

    It notes the inner tensors of operands too. A graph takes a tensor that two operands share from
    one of them, such as the indices of a common pattern, so it is wrong for operands whose tensors
    differ.
    """
    running = TracingContext.try_get()
    env = getattr(running and running.fake_mode, "shape_env", None)
    first: dict[int, int] = {}
    given = getattr(env, "tracked_fakes", None) or ()
    return tuple(first.setdefault(id(found.fake), i) for i, found in enumerate(given))


def packed(t: torch.Tensor) -> torch.Tensor:
    """`t` with the strides of a new contiguous tensor, also if it is empty."""
    if is_real(t) and t.stride() == torch.empty(t.shape, device="meta").stride():
        return t
    return t.clone(memory_format=torch.contiguous_format)
