"""Steps of `examples/two_processes.py` in two processes, beside a dense network in two."""

from __future__ import annotations

import tempfile
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import distributed, multiprocessing, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from benchmarks.training.programs import OWN, Epoch
from examples import two_processes

STEPS = 20


def _dense() -> nn.Module:
    """The network of the example with every weight."""
    torch.manual_seed(0)
    wide = two_processes.WIDTH
    return nn.Sequential(
        nn.Linear(64, wide), nn.ReLU(), nn.Linear(wide, wide), nn.ReLU(), nn.Linear(wide, 10)
    )


def _work(rank: int, make: Any, folder: str, asked: Connection) -> None:
    """Trains for `STEPS` steps each time that a number arrives, and sends it back."""
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2
    )
    model = DistributedDataParallel(make())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    x = torch.randn(two_processes.BATCH // 2, 64)
    label = torch.randint(10, (len(x),))
    while True:
        try:
            number = asked.recv()
        except EOFError:  # the benchmark is over
            return
        for _ in range(STEPS):
            optimizer.zero_grad()
            F.cross_entropy(model(x), label).backward()
            optimizer.step()
        asked.send(number)


def _pair(make: Any) -> Epoch:
    """Starts two processes, which end with this one; a call trains both and waits for them."""
    folder = tempfile.mkdtemp()
    start = multiprocessing.get_context("spawn")
    ends = []
    for rank in range(2):
        ours, theirs = start.Pipe()
        start.Process(target=_work, args=(rank, make, folder, theirs), daemon=True).start()
        ends.append(ours)

    def epoch() -> None:
        for end in ends:
            end.send(STEPS)
        for end in ends:
            end.recv()

    return epoch


PAIRS = {
    "two-processes": {OWN: partial(_pair, two_processes.network), "dense": partial(_pair, _dense)}
}
"""By program and contender. What they hold lies in processes of their own, and is not measured."""
