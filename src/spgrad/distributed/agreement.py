"""Makes all processes raise an error if the arguments of one of them are wrong.

A process that raised alone would leave the others waiting. So in each call that takes an argument,
each process tells the others whether its arguments are right, and what must be equal in all
processes. A call that sends rows waits for the answer before the first of them leaves; one that
sends nothing computes meanwhile. The text of an error names the process.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

from spgrad.core import checks
from spgrad.errors import ArgumentKindError, ArgumentValueError, SpgradError, StateError

T = TypeVar("T")


class Agreement:
    """The arguments of one call in all processes, which are compared while this process works on.

    Every process begins the comparison, even if its own arguments are wrong, so no process waits
    in vain.

    Args:
        group: The process group.
        check: Checks the arguments of this process. An error that it raises is raised in all
            processes; what it returns, names of arguments with what was given, must be equal in
            all.
        device: The device of the tensors that the group sends.
    """

    def __init__(
        self, group: Any, check: Callable[[], dict[str, object]], device: torch.device | str
    ) -> None:
        self._group = group
        self.error: Exception | None = None
        self._facts: dict[str, object] = {}
        try:
            self._facts = check()
        except Exception as found:  # noqa: BLE001  # the others are told before it is raised here
            self.error = found
        word = 0 if self.error else zlib.crc32(repr(self._facts).encode()) + 1
        self._words = torch.tensor([word, -word], device=device)
        self._work: Any = dist.all_reduce(self._words, dist.ReduceOp.MAX, group, async_op=True)

    def settle(self) -> None:
        """Raises in every process if `check` raised or differed in one of them."""
        self._work.wait()
        most, least = self._words.tolist()
        if most == -least and self.error is None:
            return
        told: list[Any] = [None] * dist.get_world_size(self._group)
        error = self.error
        dist.all_gather_object(told, self._facts if error is None else _told(error), self._group)
        for rank, found in enumerate(told):
            if isinstance(found, tuple):
                raise found[0](f"on rank {rank} of {len(told)}, {found[1]}") from error
        raise _difference(told)


def agree(group: Any, check: Callable[[], dict[str, object]], device: torch.device | str) -> None:
    """Raises in every process if `check` raises or differs in one of them; a collective."""
    Agreement(group, check, device).settle()


def agreed(
    group: Any,
    check: Callable[[], dict[str, object]],
    device: torch.device | str,
    compute: Callable[[], T],
) -> T:
    """The result of a call that sends nothing, if it is right in all processes; a collective.

    The processes compare their arguments while they compute, so the comparison takes no time
    unless a process is late.
    """
    agreement = Agreement(group, check, device)
    try:
        result = None if agreement.error else compute()
    finally:
        agreement.settle()
    return cast(T, result)


def _told(error: Exception) -> tuple[type[SpgradError], str]:
    """An error as the other processes raise it."""
    if isinstance(error, SpgradError):
        return type(error), str(error.args[0])
    return ArgumentKindError, f"an argument raised {type(error).__name__}: {error}"


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
