"""Collectives of `torch.distributed` on SparseTensors: they send the values.

The values of one process belong to the elements that its pattern has, so all processes must have
one pattern. Before the values, processes therefore exchange the number and a checksum of their
indices; where these differ, all of them raise.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.graph import increment_version

from spgrad.core import kept
from spgrad.core.pattern import Pattern
from spgrad.core.slots import ATEN_FUNCTIONS
from spgrad.core.tensor import SparseTensor
from spgrad.errors import ArgumentValueError, StateError

_NAMES = ("allreduce_", "allreduce_coalesced_", "broadcast_", "reduce_")
_MIX = 0x2545F4914F6CDD1D


def collective(func: Any) -> Callable[..., Any]:
    """An in-place collective on a list of tensors that sends the values of SparseTensors."""
    name = func._schema.name.partition("::")[2].strip("_")

    def run(tensors: list[torch.Tensor], group: Any, *args: Any, **options: Any) -> Any:
        sparse = [A for A in tensors if isinstance(A, SparseTensor)]
        if name != "broadcast" and not all(A._pattern.ordered for A in sparse):
            raise StateError(
                f"`A` is not coalesced; a coalesced tensor is accepted by {name}, as the maximum "
                "of sums is not that of their parts. Call A.coalesce() first, or send A._values()."
            )
        require_agreement(name, group, [A._pattern for A in sparse], tensors[0].device)
        sent = [A._vals if isinstance(A, SparseTensor) else A for A in tensors]
        out = func(sent, group, *args, **options)
        for A in sparse:
            if not A._vals.is_inference():
                increment_version(A._vals)
        return (tensors, out[1]) if isinstance(out, (list, tuple)) else out

    return run


def require_agreement(
    name: str, group: Any, patterns: Sequence[Pattern], device: torch.device
) -> None:
    """Raises in every process of the group if their patterns differ."""
    ours = [word for p in patterns for word in (p.nse, p.derive(kept.CHECKSUM, _checksum))]
    most = torch.tensor([*ours, *(-word for word in ours)], device=device)
    options: Any = torch.distributed.AllreduceOptions()
    options.reduceOp = torch.distributed.ReduceOp.MAX
    torch.distributed.ProcessGroup.unbox(group).allreduce([most], options).wait()
    largest, smallest = most.view(2, -1, 2)
    same = (largest == -smallest).all(1).tolist()
    if not all(same):
        p = patterns[same.index(False)]
        raise ArgumentValueError(
            f"`A` has other elements in other processes than the nse {p.nse} of this one "
            f"({p.name}, {tuple(p.shape)}); for {name}, the same elements in all are accepted. "
            "Send the index tensors too and build A from them, or send A.to_dense()."
        )


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
