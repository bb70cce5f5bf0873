"""Makes all processes raise an error if the arguments of one of them are wrong.

A process that raised alone would leave the others waiting. So before the first rows travel, each
process tells the others whether its arguments are right, and what must be equal in all processes.
The text of an error names the process.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from spgrad.core import checks
from spgrad.errors import ArgumentValueError, SpgradError, StateError


def agree(group: Any, check: Callable[[], dict[str, object]], device: torch.device | str) -> None:
    """Raises in every process if `check` raises or differs in one of them; a collective.

    Args:
        group: The process group.
        check: Checks the arguments of this process. An error that it raises is raised in all
            processes; what it returns, names of arguments with what was given, must be equal in
            all.
        device: The device of the tensors that the group sends.
    """
    error: SpgradError | None = None
    facts: dict[str, object] = {}
    try:
        facts = check()
    except SpgradError as found:
        error = found
    word = zlib.crc32(repr(facts).encode()) + 1 if error is None else 0
    words = torch.tensor([word, -word], device=device)
    dist.all_reduce(words, dist.ReduceOp.MAX, group)
    most, least = words.tolist()
    if most == -least and error is None:
        return
    told: list[Any] = [None] * dist.get_world_size(group)
    ours = facts if error is None else (type(error), str(error.args[0]))
    dist.all_gather_object(told, ours, group)
    for rank, found in enumerate(told):
        if isinstance(found, tuple):
            raise found[0](f"on rank {rank} of {len(told)}, {found[1]}") from error
    raise _difference(told)


def _difference(told: list[dict[str, object]]) -> ArgumentValueError:
    for name, first in told[0].items():
        for rank, facts in enumerate(told):
            if facts.get(name) != first:
                return ArgumentValueError(
                    f"`{name}` is {facts.get(name)} on rank {rank} and {first} on rank 0; the same "
                    "is accepted on every rank. Make the call with equal arguments on all of them."
                )
    names = [", ".join(facts) for facts in told]
    return ArgumentValueError(
        f"the ranks made different calls ({' | '.join(names)}); the same call is accepted on every "
        "rank. Let all of them run the same lines."
    )


def require_group() -> None:
    """Refuses a program in which `torch.distributed` was not started, or can't send objects."""
    if not dist.is_available():
        raise StateError(
            "this torch was built without torch.distributed; a build with it is accepted. "
            "Install one from pytorch.org."
        )
    if not dist.is_initialized():
        raise StateError(
            "`torch.distributed` has no process group; an initialised one is accepted. Start the "
            'program with torchrun and call torch.distributed.init_process_group("gloo") first.'
        )
    checks.require_packages("distributed", "numpy")  # torch needs it to send objects
