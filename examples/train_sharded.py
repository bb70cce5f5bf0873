"""A graph network over several processes, each with its rows of the graph, and a Poisson solve.

    torchrun --nproc-per-node 2 examples/train_sharded.py --plot sharded.png

Without torchrun the program starts two processes itself. Each makes its own rows of a graph with
planted groups, so no process ever has the whole graph. Features, labels and the output of the
network are shared out in the same way. Dense weights are equal in all processes, and their
gradients are added up.
"""

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import multiprocessing, nn
from torch.nn import functional as F

import spgrad
from spgrad.distributed import ShardedMatrix, from_local, solve

GROUPS, FEATURES, HIDDEN, PORT = 8, 32, 64, 29411


def rows_of_graph(begin: int, end: int, nodes: int, degree: int) -> torch.Tensor:
    """Rows of a graph, over degrees: most edges are short, and 7 of 10 lead to the same group."""
    draw = torch.Generator().manual_seed(begin)
    row = torch.arange(end - begin).repeat_interleave(degree)
    short = row + begin + torch.randint(-500, 501, (len(row),), generator=draw)
    far = torch.randint(nodes, (len(row),), generator=draw)
    is_short = torch.rand(len(row), generator=draw) < 0.95
    other = torch.where(is_short, short.clamp(0, nodes - 1), far)
    inside = torch.rand(len(row), generator=draw) < 0.7
    same = other - other % GROUPS + (row + begin) % GROUPS  # node i is in group i % GROUPS
    col = torch.where(inside & (same < nodes), same, other)
    weight = torch.full((len(row),), 1 / degree)
    A = spgrad.sparse_coo_tensor(torch.stack([row, col]), weight, (end - begin, nodes))
    return A.coalesce().to_sparse_csr()


class Network(nn.Module):
    """Two layers, each a product with the graph; the weights are equal in all processes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(FEATURES, HIDDEN)
        self.second = nn.Linear(HIDDEN, GROUPS)

    def forward(self, A: ShardedMatrix, x: torch.Tensor) -> torch.Tensor:
        """Scores of the own nodes."""
        return A @ self.second(F.relu(A @ self.first(x)))


def train(A: ShardedMatrix, epochs: int) -> tuple[list[float], float, float]:
    """Losses, the share of right answers at nodes whose group was not shown, and seconds."""
    nodes = A.shape[0]
    own = A.row_ids
    label = own % GROUPS
    draw = torch.Generator().manual_seed(int(own[0]) if len(own) else 0)
    x = torch.randn(len(own), FEATURES, generator=draw)
    x[:, :GROUPS] += F.one_hot(label, GROUPS)  # a weak hint
    shown = own // GROUPS % 10 == 0
    count = torch.tensor([int(shown.sum())])
    dist.all_reduce(count)
    model = Network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    losses: list[float] = []
    out, begin = x, time.perf_counter()
    for _ in range(epochs):
        optimizer.zero_grad()
        out = model(A, x)
        loss = F.cross_entropy(out[shown], label[shown], reduction="sum") / count
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(total.item())
    seconds = time.perf_counter() - begin
    right = (out.argmax(1) == label)[~shown].sum().reshape(1)
    dist.all_reduce(right)
    return losses, right.item() / (nodes - count.item()), seconds


def poisson(side: int) -> tuple[float, int, float]:
    """Solves for the potential on a grid; the error against a known one, steps and seconds."""
    world, rank = dist.get_world_size(), dist.get_rank()
    n = side * side
    begin, end = n * rank // world, n * (rank + 1) // world
    i = torch.arange(begin, end)
    up, left = i // side, i % side
    cols = torch.stack([i, i - side, i + side, i - 1, i + 1], 1)
    there = torch.stack([up >= 0, up > 0, up < side - 1, left > 0, left < side - 1], 1)
    vals = torch.tensor([4.0, -1, -1, -1, -1], dtype=torch.float64).expand(len(i), 5)
    rows = (i - begin)[:, None].expand(-1, 5)
    indices = torch.stack([rows[there], cols[there]])
    A = from_local(spgrad.sparse_coo_tensor(indices, vals[there], (len(i), n)).coalesce())
    wanted = torch.sin(3.0 * up.double() / side) * torch.cos(5.0 * left.double() / side)
    b = A @ wanted
    start = time.perf_counter()
    solver = spgrad.linalg.CG(rtol=1e-10, preconditioner=spgrad.linalg.IC0())
    x, info = solve(A, b, solver, return_info=True)
    seconds = time.perf_counter() - start
    error = (x - wanted).abs().max().reshape(1)
    dist.all_reduce(error, dist.ReduceOp.MAX)
    return error.item(), info.iterations, seconds


def work(rank: int, options: argparse.Namespace) -> None:
    """What each process does; the first one prints."""
    if "RANK" not in os.environ:  # started by this program
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(options.port)}
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2"}
        torch.set_num_threads(max((os.cpu_count() or 2) // 2, 1))
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    nodes, degree = (4_000, 20) if options.quick else (200_000, 20)
    A = from_local(rows_of_graph(nodes * rank // world, nodes * (rank + 1) // world, nodes, degree))
    losses, right, seconds = train(A, 15 if options.quick else 30)
    error, steps, solving = poisson(40 if options.quick else 400)
    if rank == 0:
        share = A.plan.exchange.arriving / (nodes - A.local_shape[1])
        print(f"graph      {A.shape[0]} nodes, {A.nse} edges in {world} processes")
        print(f"exchange   {share:.0%} of the rows of the other processes travel in a product")
        print(f"training   {seconds / len(losses) * 1e3:.0f} ms an epoch")
        print(f"loss       {losses[0]:.3f} -> {losses[-1]:.3f}")
        print(
            f"groups     {right:.1%} of the nodes that were not shown, by chance {1 / GROUPS:.1%}"
        )
        print(f"poisson    {steps} steps of CG, {solving:.1f} s, error {error:.1e}")
        good = right > 0.8 and error < 1e-6
        print(f"check      groups found and error below 1e-6: {'good' if good else 'BAD'}")
        if options.plot:
            draw(options.plot, losses, A.plan.entries)
    dist.barrier()
    dist.destroy_process_group()


def draw(path: Path, losses: list[float], entries: list[int]) -> None:
    """The loss, and the edges of each process."""
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
    left.plot(losses)
    left.set(title="loss", xlabel="epochs")
    right.bar([str(rank) for rank in range(len(entries))], entries)
    right.set(title="edges of each process", xlabel="rank")
    figure.savefig(path, dpi=80)


def main(arguments: list[str] | None = None) -> None:
    """Runs in the processes of torchrun, or starts two."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a small graph, for tests")
    parser.add_argument("--plot", metavar="FILE", type=Path, help="draws the result into a file")
    parser.add_argument("--port", type=int, default=PORT, help="of loopback, without torchrun")
    options = parser.parse_args(arguments)
    if "RANK" in os.environ:
        work(0, options)
    else:
        multiprocessing.spawn(work, (options,), nprocs=2)


if __name__ == "__main__":
    main()
