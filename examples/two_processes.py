"""DistributedDataParallel over a network with sparse layers, in two processes.

The program starts both processes itself, on gloo. Each trains on its half of every batch. They send
one number for each stored weight, here a fourteenth of what a dense network sends. The result is
that of one process with the whole batches.

    python examples/two_processes.py --plot processes.png
"""

import argparse
import tempfile
from pathlib import Path

import torch
from torch import distributed, multiprocessing, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import spgrad

BATCH, WIDTH = 128, 512


def network() -> nn.Module:
    """Two sparse layers and a dense one, the same in every process."""
    torch.manual_seed(0)
    return nn.Sequential(
        spgrad.nn.SparseLinear(64, WIDTH, density=0.05),
        nn.ReLU(),
        spgrad.nn.SparseLinear(WIDTH, WIDTH, density=0.05),
        nn.ReLU(),
        nn.Linear(WIDTH, 10),
    )


def train(model: nn.Module, steps: int, rank: int = 0, world: int = 1) -> list[float]:
    """The losses on drawn data: ten classes, 64 features."""
    torch.manual_seed(1)
    centres = torch.randn(10, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for _ in range(steps):
        label = torch.randint(10, (BATCH,))
        x = centres[label] + 2 * torch.randn(BATCH, 64)
        mine = slice(rank * BATCH // world, (rank + 1) * BATCH // world)
        loss = F.cross_entropy(model(x[mine]), label[mine])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def work(rank: int, folder: str, steps: int) -> None:
    """One of the two processes; the first saves what came out."""
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2
    )
    model = DistributedDataParallel(network())
    losses = train(model, steps, rank, 2)
    if rank == 0:
        torch.save((model.module.state_dict(), losses), Path(folder) / "result.pt")
    distributed.barrier()
    distributed.destroy_process_group()


def main(arguments: list[str] | None = None) -> None:
    """Trains in two processes, and in one, and compares."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer steps, for tests")
    parser.add_argument("--plot", metavar="FILE", help="draws the result into a file")
    options = parser.parse_args(arguments)
    steps = 20 if options.quick else 200
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(work, (folder, steps), nprocs=2)
        state, halves = torch.load(Path(folder) / "result.pt")
    alone = network()
    losses = train(alone, steps)
    sent = sum(p.numel() for p in alone.parameters())
    dense = 64 * WIDTH + WIDTH + WIDTH * WIDTH + WIDTH + WIDTH * 10 + 10
    print(f"sent       {sent} numbers a step and process, where a dense network sends {dense}")
    print(f"loss       {losses[0]:.2f} -> {sum(losses[-5:]) / 5:.2f} in {steps} steps")
    apart = max(
        (state[name] - value).abs().max().item()
        for name, value in alone.state_dict().items()
        if isinstance(value, torch.Tensor) and value.is_floating_point()
    )
    verdict = "good" if apart < 1e-3 else "BAD"
    print(f"check      two processes and one differ by {apart:.1e}: {verdict}")
    if options.plot:
        draw(options.plot, halves, losses)


def draw(path: str, halves: list[float], losses: list[float]) -> None:
    """The loss of one process on its halves of the batches, and that on the whole ones."""
    from matplotlib import pyplot as plt

    figure, ax = plt.subplots(figsize=(6, 3.4), layout="constrained")
    ax.plot(halves, alpha=0.5, label="the first of two processes, its half")
    ax.plot(losses, label="one process, the whole batch")
    ax.set(title="loss", xlabel="steps")
    ax.legend()
    figure.savefig(path, dpi=80)


if __name__ == "__main__":
    main()
