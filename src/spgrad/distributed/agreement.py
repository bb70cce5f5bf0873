"""Makes all processes raise an error if the arguments of one of them are wrong.

A process that raised alone would leave the others waiting. So in each call that takes an argument,
each process tells the others whether its arguments are right, and what must be equal in all
processes. A call that sends rows waits for the answer before the first of them leaves; one that
sends nothing computes meanwhile. The text of an error names the process.

Processes that have different meshes can't tell each other in a group, because each would wait in
another one. They compare meshes in the store of `torch.distributed`, by which it started.
"""

from __future__ import annotations

import json
import threading
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import _get_default_store

from spgrad import errors
from spgrad.core import checks
from spgrad.errors import ArgumentKindError, ArgumentValueError, SpgradError, StateError
from spgrad.public import Call, named_error

T = TypeVar("T")


@dataclass
class Shared:
    """A call that all processes make.

    Attributes:
        call: The call in this process.
        compared: Whether this process has told the others of its arguments.
    """

    call: Call
    compared: bool = False


class _Running(threading.local):
    """The calls that run in this thread, the outermost first."""

    def __init__(self) -> None:
        self.calls: list[Shared] = []


RUNNING = _Running()


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
        self.error: SpgradError | None = None
        self._facts: dict[str, object] = {}
        try:
            self._facts = {name: _sendable(given) for name, given in check().items()}
        except Exception as found:  # noqa: BLE001  # the others are told before it is raised here
            self.error = _named(found)
        _told_of_all()
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
        dist.all_gather_object(
            told, self._facts if error is None else (type(error), str(error.args[0])), self._group
        )
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


def called(name: str, function: Callable[..., T], *given: object) -> T:
    """What a function of the user gives; an error that it raises is told as one of that argument.

    To be called by a check, so that all processes raise where the function of one fails.
    """
    try:
        return function(*given)
    except SpgradError:
        raise
    except Exception as error:  # a function of the user may raise anything
        raise ArgumentValueError(
            f"`{name}` raised {type(error).__name__}: {error}; a function that gives a result on "
            "every rank is accepted. Call it alone with what that rank has."
        ) from error


def _told_of_all() -> None:
    """Notes that this process has told the others of the arguments of the calls that run."""
    for shared in RUNNING.calls:
        shared.compared = True


def _named(error: Exception) -> SpgradError:
    """An error of the arguments as all processes raise it."""
    if isinstance(error, SpgradError):
        return error
    named = named_error(RUNNING.calls[-1].call, error) if RUNNING.calls else None
    if named is None:
        named = ArgumentKindError(f"an argument raised {type(error).__name__}: {error}")
    named.__cause__ = error
    return named


def _sendable(given: object) -> object:
    """An argument as the processes compare it: one of another kind is in words.

    Each process then can send it, which torch can't do with any object.
    """
    if isinstance(given, (tuple, list)):
        return tuple(map(_sendable, given))
    plain = given is None or isinstance(given, (str, int, float, complex))
    return given if plain else checks.describe_kind(given)


def _difference(told: list[dict[str, object]]) -> ArgumentValueError:
    for name, first in told[0].items():
        for rank, facts in enumerate(told):
            if repr(facts.get(name)) != repr(first):  # as NaN differs from itself
                return ArgumentValueError(_differs(name, (facts.get(name), rank), (first, 0)))
    names = [", ".join(facts) for facts in told]
    return ArgumentValueError(
        f"the ranks made different calls ({' | '.join(names)}); the same call is accepted on every "
        "rank. Let all of them run the same lines."
    )


def _differs(name: str, one: tuple[object, int], other: tuple[object, int]) -> str:
    """The text of an error where two ranks have unequal arguments; each is given with its rank."""
    return (
        f"`{name}` is {one[0]} on rank {one[1]} and {other[0]} on rank {other[1]}; the same is "
        "accepted on every rank. Make the call with equal arguments on all of them."
    )


def require_group() -> None:
    """Refuses a program in which `torch.distributed` was not started, or can't send objects."""
    if not dist.is_initialized():
        raise StateError(
            "`torch.distributed` has no process group; an initialised one is accepted. Start the "
            'program with torchrun and call torch.distributed.init_process_group("gloo") first.'
        )
    checks.require_packages("distributed", "numpy")  # torch needs it to send objects


def require_mesh(mesh: DeviceMesh | None) -> DeviceMesh:
    """The mesh, or one of all processes; raises if another process of it has another mesh.

    The processes of the mesh wait for one another.
    """
    if mesh is None:
        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        mesh = dist.init_device_mesh(device, (dist.get_world_size(),))
    calls, error = _calls(), _mesh_error(mesh)
    if error is not None:
        of_others = isinstance(mesh, DeviceMesh) and mesh.ndim == 1
        raise calls.refused(_in_words(mesh) if of_others else str(error.args[0]), error)
    calls.begin(mesh)
    return mesh


def _mesh_error(mesh: DeviceMesh) -> SpgradError | None:
    if not isinstance(mesh, DeviceMesh):
        return ArgumentKindError(
            f"`mesh` is {checks.describe_kind(mesh)}; a DeviceMesh, or None for all processes, is "
            'accepted. Make one with torch.distributed.init_device_mesh("cpu", (n,)).'
        )
    if mesh.ndim != 1:
        return ArgumentValueError(
            f"`mesh` has {mesh.ndim} dimensions; a mesh of one dimension is accepted. Take one of "
            'them, such as mesh["rows"].'
        )
    ranks = mesh.mesh.tolist()
    if ranks != sorted(ranks):
        return ArgumentValueError(
            f"`mesh` has the ranks {ranks}; ascending ranks, the order of its process group, are "
            "accepted. Sort them, and choose the rows of each rank by `partition`."
        )
    if mesh.get_coordinate() is None:
        return ArgumentValueError(
            f"`mesh` is {mesh}, without rank {dist.get_rank()}; a mesh with this process is "
            "accepted. Let only the processes of the mesh make the call."
        )
    return None


def _in_words(mesh: DeviceMesh) -> str:
    return f"{mesh.device_type} {mesh.mesh.tolist()}"


class _Calls:
    """The calls with a mesh, of which each process writes a list in the store of the group.

    An entry is the beginning of a call, with its mesh in words and the ranks of the mesh; or a call
    that was refused at once, because its mesh is wrong by itself; or the failure of the call that
    began last, because another process has another mesh. Each process reads the lists of the others
    from where it stopped.

    Entries stay in the store. A program may make one process group after another on one store, and
    a new group can't tell an entry that was deleted from one that is still to come.
    """

    def __init__(self) -> None:
        self._store, self._rank = _get_default_store(), dist.get_rank()
        self._written = 0
        self._read: Counter[int] = Counter()  # entries of each process
        self._refused: list[str] = []  # meshes of own calls that were refused
        self._paired: Counter[int] = Counter()  # how many of them each process has answered
        self._begun: list[str] = []  # meshes of the other own calls
        self._met: Counter[int] = Counter()  # how many of them were before the last with a process

    def refused(self, mesh: str, error: SpgradError) -> SpgradError:
        """Tells the others of a call with a mesh that is wrong by itself; the error for all."""
        _told_of_all()
        self._refused.append(mesh)
        told = f"on rank {self._rank} of {dist.get_world_size()}, {error.args[0]}"
        facts = type(error).__name__, told
        self._write("refused", mesh, *facts)
        return _error(*facts)

    def begin(self, mesh: DeviceMesh) -> None:
        """Waits for the other processes of the mesh; raises if one of them has another mesh."""
        words, ranks = _in_words(mesh), mesh.mesh.tolist()
        _told_of_all()
        self._begun.append(words)
        self._write("begins", words, ranks)
        raised: SpgradError | None = None
        for other in ranks:  # of all of them, so that the next call reads on from its beginning
            error = None if other == self._rank else self._compared(other, words)
            self._met[other] = len(self._begun)
            if error is not None and raised is None:
                raised = error
                self._write("failed", type(error).__name__, error.args[0])
        if raised is not None:
            # processes outside of the mesh that waited for this one answer the call by a failure
            self._refused.append(words)
            self._paired.update(dict.fromkeys(ranks, 1))
            raise raised

    def _compared(self, other: int, mesh: str) -> SpgradError | None:
        """Reads on to the call of another process that this process is in, or waits for it."""
        elsewhere, ended = None, Counter[str]()
        while True:
            try:
                what, *entry = self._next(other)
            except RuntimeError as error:  # of the store
                return self._alone(other, mesh, elsewhere, error)
            if what == "failed":
                if elsewhere is not None:
                    return _error(*entry)
            elif self._answers(other, what, entry):
                elsewhere = None
            elif what == "refused":
                ended[entry[0]] += 1  # one call each of this process, which was not refused here
                if ended[entry[0]] > self._begun[self._met[other] :].count(entry[0]):
                    return _error(*entry[1:])
            elif entry[0] == mesh:
                return None
            else:
                elsewhere = entry[0]
                if self._rank in entry[1]:
                    pairs = sorted([(self._rank, mesh), (other, elsewhere)], reverse=True)
                    return ArgumentValueError(_differs("mesh", *((m, rank) for rank, m in pairs)))

    def _answers(self, other: int, what: str, entry: list[Any]) -> bool:
        """Whether a call of another process is the one of which an own call was refused."""
        refused = self._refused[self._paired[other] :]
        if refused and (what == "refused" or self._rank in entry[1] or entry[0] == refused[0]):
            self._paired[other] += 1
            return True
        return False

    def _alone(
        self, other: int, mesh: str, elsewhere: str | None, error: Exception
    ) -> ArgumentValueError:
        found = "made no call" if elsewhere is None else f"made a call whose mesh is {elsewhere}"
        raised = ArgumentValueError(
            f"`mesh` is {mesh} on rank {self._rank}, and rank {other} {found}, until the timeout "
            "of the process group; the same call with the same mesh is accepted on every rank of "
            "the mesh. Pass it on all of them."
        )
        raised.__cause__ = error
        return raised

    def _write(self, *entry: object) -> None:
        if dist.get_world_size() > 1:  # a process alone has nobody to tell
            self._store.set(f"spgrad/{self._rank}/{self._written}", json.dumps(entry))
            self._written += 1

    def _next(self, other: int) -> list[Any]:
        entry = self._store.get(f"spgrad/{other}/{self._read[other]}")
        self._read[other] += 1
        return json.loads(entry)


def refused_at_once(error: Exception) -> SpgradError | None:
    """Tells the other processes of a call that failed before its mesh was known.

    Returns:
        The error for all; None if there is no group whose processes could be told.
    """
    if not dist.is_initialized():
        return None
    return _calls().refused("unknown", _named(error))


def _error(kind: str, text: str) -> SpgradError:
    """The error of another process, from the name of its class."""
    made: type[SpgradError] = getattr(errors, kind, ArgumentValueError)
    return made(text)


_ALL_CALLS: WeakKeyDictionary[Any, _Calls] = WeakKeyDictionary()
"""Group of all processes -> the calls of its processes."""


def _calls() -> _Calls:
    group = dist.group.WORLD
    if group not in _ALL_CALLS:
        _ALL_CALLS[group] = _Calls()
    return _ALL_CALLS[group]
