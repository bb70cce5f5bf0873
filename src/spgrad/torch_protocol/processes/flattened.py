"""SparseTensors among tensors that are flattened and joined to be sent in one piece.

`DistributedDataParallel` sends all buffers of a module in this way, and its parameters once: C++
flattens each tensor, joins them, broadcasts the result, and takes it apart by sizes. C++ counts the
elements of the dense tensors that SparseTensors stand for; what is sent are the values.
"""

from __future__ import annotations

import sys
from itertools import accumulate
from types import FrameType
from typing import Any, NamedTuple

import torch

from spgrad.core.pattern import Pattern
from spgrad.core.refusals import called_from, no_sparse_form
from spgrad.core.slots import ATEN_FUNCTIONS
from spgrad.core.tensor import SparseTensor
from spgrad.errors import UnsupportedError
from spgrad.torch_protocol.dynamo.frames import when_called
from spgrad.torch_protocol.processes.collectives import require_agreement, write_values

_aten = torch.ops.aten
_PARALLEL = "torch.nn.parallel.distributed"


class Piece(NamedTuple):
    """One tensor of several: its number of elements, and how many numbers are sent for it."""

    counted: int
    sent: int
    pattern: Pattern | None  # None for a dense tensor


class Flat(torch.Tensor):
    """Flattened tensors, one after the other. `numbers` is dense, without gaps, and is sent."""

    numbers: torch.Tensor
    pieces: list[Piece]

    __torch_function__: Any = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls: type[Flat], numbers: torch.Tensor, pieces: list[Piece]) -> Flat:
        """Counts the elements of all pieces."""
        counted = sum(piece.counted for piece in pieces)
        flat = torch.Tensor._make_wrapper_subclass(
            cls, (counted,), dtype=numbers.dtype, device=numbers.device
        )
        flat.numbers, flat.pieces = numbers, pieces
        return flat

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Answers the calls of C++ between flattening tensors and splitting them again."""
        if func not in _ANSWERS:
            raise no_sparse_form(func)
        return _ANSWERS[func](*args, **(kwargs or {}))


class Received(SparseTensor):
    """Values that came from another process, to be copied into the tensor to which they belong."""

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Copies the values. As for a dense buffer, the change is not counted."""
        if func is not _aten.copy_.default:
            raise no_sparse_form(func)
        A, source = args[:2]
        write_values(A, source._vals)
        return A


def _flatten(A: SparseTensor, size: Any) -> Flat:
    if tuple(size) != (-1,) or called_from(sys._getframe(1)) or type(A._vals) is not torch.Tensor:
        raise no_sparse_form(_aten.view.default)
    if A._is_trained:
        raise _parameter(A)
    numbers = A._vals.reshape(-1)
    return Flat(numbers, [Piece(A.numel(), numbers.numel(), A._pattern)])


def _parameter(A: SparseTensor) -> UnsupportedError:
    return UnsupportedError(
        f"a parameter of the module is a SparseTensor of shape {tuple(A.shape)}; dense "
        "parameters are accepted where parameters are flattened, as DistributedDataParallel does. "
        "Call spgrad.nn.parametrize_values(module) first: it makes the values the parameters."
    )


def _into_bucket(g: SparseTensor, *args: Any, **options: Any) -> torch.Tensor:
    """Refuses to write a gradient into a bucket; only C++ calls this overload.

    With init_sync=False, DistributedDataParallel flattens parameters in the backward alone.
    """
    raise _parameter(g)


def _cat(tensors: list[torch.Tensor], dim: int = 0) -> Flat:
    pieces: list[Piece] = []
    for t in tensors:
        pieces += t.pieces if isinstance(t, Flat) else [Piece(t.numel(), t.numel(), None)]
    return Flat(torch.cat([getattr(t, "numbers", t) for t in tensors]), pieces)


def _slice(flat: Flat, dim: int = 0, start: int = 0, end: int = 0, step: int = 1) -> torch.Tensor:
    """The piece that begins at `start`."""
    counted = [0, *accumulate(piece.counted for piece in flat.pieces)]
    sent = [0, *accumulate(piece.sent for piece in flat.pieces)]
    found = (i for i, piece in enumerate(flat.pieces) if counted[i] == start and piece.counted)
    i = next(found)
    numbers = flat.numbers[sent[i] : sent[i + 1]]
    return Flat(numbers, [flat.pieces[i]])


def _shaped(flat: Flat, size: Any) -> torch.Tensor:
    """The tensor from which the one piece was flattened."""
    (piece,) = flat.pieces
    if piece.pattern is None:
        return flat.numbers.view(size)
    return Received(flat.numbers.view(piece.pattern.values_shape), piece.pattern)


def _broadcast(tensors: list[Flat], group: Any, *args: Any, **options: Any) -> Any:
    """Sends the numbers if all processes have the same elements."""
    (flat,) = tensors
    sent = [(piece.pattern, flat.dtype) for piece in flat.pieces if piece.pattern is not None]
    unboxed = torch.distributed.ProcessGroup.unbox(group)
    require_agreement("broadcast", unboxed, sent, flat.device)
    _, work = torch.ops.c10d.broadcast_.default([flat.numbers], group, *args, **options)
    return tensors, work


def parallel_being_made(frame: FrameType | None) -> Any | None:
    """The DistributedDataParallel whose `__init__` asks for names of parameters that it has sent.

    By then torch has compared the numbers of parameters and their shapes.
    """
    asks = False
    while frame is not None and frame.f_globals.get("__name__") == _PARALLEL:
        asks = asks or frame.f_code.co_name == "_build_debug_param_to_name_mapping"
        if asks and frame.f_code.co_name == "__init__":
            made = frame.f_locals
            return made["self"] if made.get("init_sync", True) else None
        frame = frame.f_back
    return None


_ANSWERS = {
    _aten.cat.default: _cat,
    _aten.slice.Tensor: _slice,
    _aten.view.default: _shaped,
}
ATEN_FUNCTIONS[_aten.view.default] = _flatten
ATEN_FUNCTIONS[_aten.mul.out] = _into_bucket
for _cls in (Flat, Received):  # a compiled DistributedDataParallel still sends by C++
    when_called(_cls.__torch_dispatch__.__func__)  # type: ignore[attr-defined]
if torch.distributed.is_available():
    _ANSWERS[torch.ops.c10d.broadcast_.default] = _broadcast
