"""Steps of `examples/two_processes.py` in two processes, beside other networks in two."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import distributed, multiprocessing, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import spgrad
from benchmarks.measure import growth
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


class _FromValues(nn.Module):
    """A linear layer whose weight is a CSR tensor of torch, made of a dense parameter in each step.

    DistributedDataParallel refuses sparse parameters.
    """

    def __init__(self, like: spgrad.nn.SparseLinear) -> None:
        super().__init__()
        W = spgrad.to_torch(like.weight.detach())
        self.values, self.size = nn.Parameter(W.values().clone()), W.shape
        self.register_buffer("crow", W.crow_indices())
        self.register_buffer("col", W.col_indices())
        self.bias = nn.Parameter(like.bias.detach().clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x W^T + b."""
        W = torch.sparse_csr_tensor(self.crow, self.col, self.values, self.size)
        return torch.sparse.mm(W, x.T).T + self.bias


def _of_torch() -> nn.Module:
    """The network of the example with CSR tensors of torch."""
    model = two_processes.network()
    for at, layer in enumerate(model):
        if isinstance(layer, spgrad.nn.SparseLinear):
            model[at] = _FromValues(layer)
    return model


def _work(rank: int, make: Any, folder: str, asked: Connection) -> None:
    """Trains for `STEPS` steps each time that it is asked to, and sends what its memory grew by."""
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2
    )
    model = DistributedDataParallel(make())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    x = torch.randn(two_processes.BATCH // 2, 64)
    label = torch.randint(10, (len(x),))

    def steps() -> None:
        for _ in range(STEPS):
            optimizer.zero_grad()
            F.cross_entropy(model(x), label).backward()
            optimizer.step()

    while True:
        try:
            measured = asked.recv()
        except EOFError:  # the benchmark is over
            return
        asked.send(growth(steps, calls=1) if measured else steps())


class Pair:
    """Two processes, which end with this one; a call trains both and waits for them."""

    def __init__(self, make: Any) -> None:
        folder = tempfile.mkdtemp()
        start = multiprocessing.get_context("spawn")
        self.ends = []
        for rank in range(2):
            ours, theirs = start.Pipe()
            start.Process(target=_work, args=(rank, make, folder, theirs), daemon=True).start()
            self.ends.append(ours)

    def __call__(self) -> None:
        self._asked(False)

    def growth(self) -> int | None:
        """Bytes by which the steps raise the peaks of both processes."""
        found = self._asked(True)
        return None if None in found else sum(found)

    def _asked(self, measured: bool) -> list[Any]:
        for end in self.ends:
            end.send(measured)
        return [end.recv() for end in self.ends]


PAIRS: dict[str, dict[str, Callable[[], Epoch]]] = {
    "two-processes": {
        OWN: partial(Pair, two_processes.network),
        "dense": partial(Pair, _dense),
        "torch CSR": partial(Pair, _of_torch),
    }
}
"""By program and contender."""
