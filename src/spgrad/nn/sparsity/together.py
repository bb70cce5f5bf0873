"""What processes that train one module together do alike when patterns change."""

from __future__ import annotations

import warnings
import zlib
from typing import Any

import torch
from torch import nn

from spgrad.errors import ArgumentValueError
from spgrad.torch_protocol.processes.collectives import are_equal


def processes_of(module: nn.Module) -> Any:
    """The group of a DistributedDataParallel in a module; None without one, or with one process."""
    for part in module.modules():
        if isinstance(part, nn.parallel.DistributedDataParallel):
            group: Any = part.process_group
            return group if group.size() > 1 else None
    return None


def warn_of_others(name: str, argument: str) -> None:
    """Warns of a schedule that would change the patterns of one module differently in processes."""
    dist = torch.distributed
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        warnings.warn(
            f"spgrad.nn.sparsity.{name}: each of {dist.get_world_size()} processes chooses "
            "elements of its own. If they train one module, pass the DistributedDataParallel as "
            f"`module`, or {argument}.",
            stacklevel=4,
        )


def all_have(something: bool, group: Any, device: torch.device) -> bool:
    """Whether every process has something; a collective, unless `group` is None."""
    if group is None:
        return something
    least = torch.tensor([int(something)], device=device)
    torch.distributed.all_reduce(least, torch.distributed.ReduceOp.MIN, group)
    return bool(least)


def generator_of_all(
    generator: torch.Generator | None, group: Any, device: torch.device
) -> torch.Generator:
    """A generator that draws the same numbers in all processes; a collective.

    The first process draws its seed, or all have given generators in the same state.
    """
    if generator is None:
        seed = torch.randint(2**62, (1,), device=device)
        torch.distributed.broadcast(seed, group=group, group_src=0)
        return torch.Generator().manual_seed(int(seed))
    state = zlib.crc32(bytes(generator.get_state().tolist()))
    if not all(are_equal([state], group, device)):
        raise ArgumentValueError(
            "`generator` is in another state in other processes than in this one; the same state "
            "in all is accepted. Give all the same seed, or leave the generator out."
        )
    return generator
