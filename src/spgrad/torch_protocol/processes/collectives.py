"""Collectives of `torch.distributed` on SparseTensors: they send the values.

The values of one process belong to the elements that its pattern has, so all processes must have
one pattern. Before the values, processes therefore exchange the number and a checksum of their
indices; where these differ, all of them raise.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import torch
from torch.autograd.graph import increment_version

from spgrad.core import checks, kept
from spgrad.core.pattern import Pattern
from spgrad.core.slots import ATEN_FUNCTIONS
from spgrad.core.tensor import SparseTensor
from spgrad.errors import ArgumentValueError, StateError, UnsupportedError

_NAMES = ("allreduce_", "allreduce_coalesced_", "broadcast_", "reduce_")
_MIX = 0x2545F4914F6CDD1D
_STATES = "torch.distributed._state_dict_utils"


def collective(func: Any) -> Callable[..., Any]:
    """An in-place collective on a list of tensors that sends the values of SparseTensors."""
    name = func._schema.name.partition("::")[2].strip("_")

    def run(tensors: list[torch.Tensor], group: Any, *args: Any, **options: Any) -> Any:
        sparse = [A for A in tensors if isinstance(A, SparseTensor)]
        if name == "broadcast":
            _refuse_state(sparse[0])
        patterns = [(A._pattern, A.dtype) for A in sparse]
        unboxed = torch.distributed.ProcessGroup.unbox(group)
        require_agreement(name, unboxed, patterns, tensors[0].device)
        if name != "broadcast" and not all(A._pattern.ordered for A in sparse):
            raise StateError(  # in every process, as their patterns agree in this too
                f"`A` is not coalesced; a coalesced tensor is accepted by {name}, as the maximum "
                "of sums is not that of their parts. Call A.coalesce() first, or send A._values()."
            )
        sent = [A._vals.contiguous() if isinstance(A, SparseTensor) else A for A in tensors]
        out = func(sent, group, *args, **options)
        # C++ reads and writes as many numbers as there are, one after the other in memory
        copies = [
            (A, numbers)
            for A, numbers in zip(tensors, sent, strict=True)
            if isinstance(A, SparseTensor) and numbers is not A._vals
        ]
        if copies:
            torch.distributed.Work.unbox(out[1] if isinstance(out, (list, tuple)) else out).wait()
        for A, numbers in copies:
            write_values(A, numbers)
        for A in sparse:
            if not A._vals.is_inference():
                increment_version(A._vals)
        return (tensors, out[1]) if isinstance(out, (list, tuple)) else out

    return run


def _refuse_state(A: SparseTensor) -> None:
    """Refuses to send A to processes that wait for a dense tensor of its shape."""
    frame: FrameType | None = sys._getframe(1)
    module = __name__
    while frame is not None and module.startswith(("torch.", "spgrad.")):
        if module == _STATES:
            raise UnsupportedError(
                f"the state that rank 0 broadcasts has a SparseTensor of shape {tuple(A.shape)}, "
                "for which torch lets the other ranks expect a dense tensor; a state that each "
                "rank has is accepted. Leave out broadcast_from_rank0, and pass the state on every "
                "rank, or load it with torch.distributed.checkpoint.load."
            )
        frame = frame.f_back
        module = "" if frame is None else frame.f_globals.get("__name__", "")


def write_values(A: SparseTensor, numbers: torch.Tensor) -> None:
    """Writes values that arrived; values that are one number in memory get memory for each."""
    if 0 in A._vals.stride() and A._vals.numel() > 1:
        A._vals.data = numbers.clone()  # in the tensor that A shares with what it was detached from
    else:
        A._vals.copy_(numbers)


def require_agreement(
    name: str,
    group: Any,
    sent: Sequence[tuple[Pattern, torch.dtype]],
    device: torch.device,
) -> None:
    """Raises in every process of the group if they send other patterns, dtypes or numbers of them.

    The message has one length in all processes, however many tensors each of them sends.
    """
    ours = [_checksum_with(dtype, p.derive(kept.CHECKSUM, _checksum)) for p, dtype in sent]
    same = are_equal([len(ours), zlib.crc32(repr(ours).encode())], group, device)
    if all(same):
        return
    if not same[0]:
        raise ArgumentValueError(
            f"{name} got {len(ours)} sparse tensors in this process, and another number in others; "
            "equal numbers in all are accepted. Let all processes make the call with the same "
            "tensors, or the same buffers of a module."
        )
    p, dtype = sent[are_equal(ours, group, device).index(False)]
    raise ArgumentValueError(
        f"`A` has other elements or another dtype in other processes than the nse {p.nse} of "
        f"{checks.short(dtype)} of this one ({p.name}, {tuple(p.shape)}); for {name}, the same "
        "elements and dtype in all are accepted. Make A of the same index tensors in all "
        "processes, or send A.to_dense()."
    )


def are_equal(numbers: list[int], group: Any, device: torch.device) -> list[bool]:
    """Whether each number is the same in all processes."""
    most = torch.tensor([*numbers, *(-number for number in numbers)], device=device)
    options: Any = torch.distributed.AllreduceOptions()
    options.reduceOp = torch.distributed.ReduceOp.MAX
    group.allreduce([most], options).wait()
    largest, smallest = most.view(2, -1)
    return (largest == -smallest).tolist()


def _checksum_with(dtype: torch.dtype, checksum: int) -> int:
    return checksum ^ zlib.crc32(repr(dtype).encode())


def _checksum(pattern: Pattern) -> int:
    """A checksum of 62 bits of layout, shape and indices, the same in every process."""
    total = zlib.crc32(repr((tuple(pattern.spec), tuple(pattern.shape))).encode())
    for index in pattern.indices:
        words = index.reshape(-1).to(torch.int64)
        at = torch.arange(words.numel(), device=words.device)
        words = (words + at * _MIX) * _MIX
        words = (words ^ (words >> 29)) * _MIX
        total = total * _MIX + int((words ^ (words >> 32)).sum())
    return total % 2**62


if torch.distributed.is_available():
    for _name in _NAMES:
        _func: Any = getattr(torch.ops.c10d, _name).default
        ATEN_FUNCTIONS[_func] = collective(_func)
