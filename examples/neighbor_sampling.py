"""Inductive training on a large graph, by samples of the neighbours of each mini-batch.

GraphSAGE (Hamilton et al., 2017) has two layers here. A step reads 512 nodes, 10 neighbours of
each, and 10 neighbours of each of these. The graph is random: 100 000 nodes in ten groups, with 12
links each, most of them within the group. The features carry little information about the group.
The test nodes are not in the graph during training; they are added at the end.

    python examples/neighbor_sampling.py --plot sampling.png
"""

import argparse
import time

import torch
from torch import nn
from torch.nn import functional as F

import spgrad

GROUPS, FEATURES = 10, 32


class Data:
    """Nodes with a group and features, and their links."""

    def __init__(self, nodes: int) -> None:
        torch.manual_seed(0)
        self.group = torch.randint(GROUPS, (nodes,))
        by_group = self.group.argsort()
        start = F.pad(self.group.bincount(minlength=GROUPS).cumsum(0), (1, 0))
        source = torch.arange(nodes).repeat_interleave(6)
        own = self.group[source]
        size = (start[own + 1] - start[own]).double()
        near = by_group[start[own] + (torch.rand(len(source)) * size).long()]
        target = torch.where(torch.rand(len(source)) < 0.6, near, torch.randint(nodes, near.shape))
        edges = torch.stack([source, target])
        self.graph = spgrad.from_edges(torch.cat([edges, edges.flip(0)], 1), size=nodes)
        self.x = 0.5 * torch.randn(GROUPS, FEATURES)[self.group] + torch.randn(nodes, FEATURES)
        self.known = torch.arange(nodes) < nodes // 2


class Sage(nn.Module):
    """Two layers; each takes a matrix of its own, the graph or a block of a sample."""

    def __init__(self) -> None:
        super().__init__()
        self.first = spgrad.nn.SAGEConv(FEATURES, 64)
        self.second = spgrad.nn.SAGEConv(64, GROUPS)

    def forward(self, x: torch.Tensor, A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
        """Scores of the groups, for the rows of B."""
        h = F.relu(self.first((x, x[: A.shape[0]]), A))
        return self.second((h, h[: B.shape[0]]), B)


def train(data: Data, epochs: int) -> tuple[Sage, list[float], float]:
    """The network, the losses of the epochs, and seconds an epoch."""
    nodes = data.known.nonzero()[:, 0]
    part = spgrad.data.subgraph(data.graph, nodes).A
    x, group = data.x[nodes], data.group[nodes]
    loader = spgrad.data.NeighborLoader(part, [10, 10], x=x, batch_size=512, shuffle=True)
    torch.manual_seed(1)
    model = Sage()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses, start = [], time.perf_counter()
    for _ in range(epochs):
        total = 0.0
        for batch in loader:
            loss = F.cross_entropy(
                model(batch.x, *batch.blocks), group[batch.n_id[: batch.batch_size]]
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        losses.append(total / len(loader))
    return model, losses, (time.perf_counter() - start) / epochs


def without_graph(data: Data) -> torch.nn.Module:
    """A linear layer of the features alone."""
    torch.manual_seed(1)
    model = nn.Linear(FEATURES, GROUPS)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(100):
        loss = F.cross_entropy(model(data.x[data.known]), data.group[data.known])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def main(arguments: list[str] | None = None) -> None:
    """Trains on half of the nodes, and tests on the others."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a smaller graph, for tests")
    parser.add_argument("--plot", metavar="FILE", help="draws the result into a file")
    options = parser.parse_args(arguments)
    data = Data(20_000 if options.quick else 100_000)
    print(f"graph       {len(data.x)} nodes, {data.graph.nse} entries, half of the nodes known")
    model, losses, spent = train(data, 3 if options.quick else 5)
    print(f"training    loss {losses[0]:.2f} -> {losses[-1]:.2f}, {spent:.2f} s an epoch")
    linear = without_graph(data)
    with torch.no_grad():
        found = {
            "features alone": linear(data.x),
            "with the graph": model(data.x, data.graph, data.graph),
        }
    right = {}
    for name, scores in found.items():
        hit = (scores.argmax(1) == data.group)[~data.known]
        right[name] = 100 * hit.double().mean().item()
        print(f"{name:<14} {right[name]:.1f} % of the nodes that were not there in training")
    good = right["with the graph"] > right["features alone"] + 5
    print(f"check       the graph helps: {'good' if good else 'BAD'}")
    if options.plot:
        draw(options.plot, losses, right)


def draw(path: str, losses: list[float], right: dict[str, float]) -> None:
    """The loss by epoch, and the accuracies."""
    from matplotlib import pyplot as plt

    figure, (left, bars) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    left.plot(range(1, len(losses) + 1), losses, "o-")
    left.set(title="loss", xlabel="epochs")
    bars.bar_label(bars.bar(list(right), list(right.values()), color=["C7", "C0"]), fmt="%.1f")
    bars.set(title="accuracy on new nodes, %", ylim=(0, 115))
    figure.savefig(path, dpi=80)


if __name__ == "__main__":
    main()
