"""Topics of papers from the citations between them: label propagation whose weights are learned.

Zhou et al. (2004) spread the labels Y of a few nodes over a graph with weights W by

    (I - alpha S) F = Y,   S = D^-1/2 W D^-1/2,

and give each node the class of the greatest element in its row of F. As published, alpha is 0.99
and every edge weighs 1. Here alpha and the weights are learned: an edge weighs exp(theta . what is
known of it). Half of the known labels are spread, the loss is that of the other half, and its
gradient goes through `spgrad.linalg.solve`, for one more solve by conjugate gradients.

    python examples/label_propagation.py --plot propagation.png
"""

import argparse

import torch
from torch.nn.functional import normalize, one_hot

import spgrad
from spgrad.demo import data
from spgrad.linalg import CG

FEATURES = ("words in common", "log(1 + common neighbours)", "log(product of degrees)")
PUBLISHED = 0.99  # alpha


class Citations:
    """The Cora graph. Weights become a matrix on its pattern, which is made once."""

    def __init__(self) -> None:
        cora = data.load()
        i, j = cora.adjacency.coo_indices()
        self.edges = i, j = i[i != j], j[i != j]  # without the loops
        self.labels, self.classes = cora.labels, len(cora.classes)
        self.I = spgrad.eye(len(self.labels), dtype=torch.float64)
        ones = torch.ones(len(i), dtype=torch.float64)
        self.A = spgrad.from_edges(torch.stack(self.edges), ones, size=len(self.labels))

        words = normalize(cora.features.to_dense().double(), dim=1)
        same = (words[i] * words[j]).sum(1)
        common = spgrad.sparse_mask(self.A @ self.A, self.A).values()
        degree = self.A.sum(1)
        about = torch.stack([same, common.log1p(), (degree[i] * degree[j]).log()], 1)
        self.about = (about - about.mean(0)) / about.std(0)  # (edges, features)

    def spread(self, nodes: torch.Tensor, theta: torch.Tensor, alpha: torch.Tensor) -> torch.Tensor:
        """F (nodes, classes), for the labels of some nodes.

        I - alpha S is positive definite with a condition of at most (1 + alpha) / (1 - alpha), so
        CG needs tens of steps, while the factor of a graph fills in.
        """
        i, j = self.edges
        W = spgrad.from_values((self.about @ theta).exp(), self.A)
        scale = W.sum(1).rsqrt()
        S = spgrad.from_values(W.values() * scale[i] * scale[j], self.A)
        Y = torch.zeros(len(self.labels), self.classes, dtype=torch.float64)
        Y[nodes] = one_hot(self.labels[nodes], self.classes).double()
        return spgrad.linalg.solve(self.I - S * alpha, Y, CG(rtol=1e-7), assume="positive definite")

    def accuracy(self, F: torch.Tensor, nodes: torch.Tensor) -> float:
        """The share of the nodes that get their class, in percent."""
        return 100 * (F.argmax(1) == self.labels)[nodes].double().mean().item()


def train(graph: Citations, known: torch.Tensor, steps: int) -> tuple[torch.Tensor, ...]:
    """theta, alpha and the losses; from the published propagation on."""
    theta = torch.zeros(len(FEATURES), dtype=torch.float64, requires_grad=True)
    logit = torch.tensor(PUBLISHED, dtype=torch.float64).logit().requires_grad_()
    optimizer = torch.optim.Adam([theta, logit], lr=0.1)
    losses = []
    for _ in range(steps):
        shuffled = known[torch.randperm(len(known))]
        seeds, held_out = shuffled.chunk(2)  # others in each step
        F = graph.spread(seeds, theta, logit.sigmoid())[held_out].clamp_min(0) + 1e-4
        chance = (F / F.sum(1, keepdim=True)).gather(1, graph.labels[held_out, None])
        loss = -chance.log().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return theta.detach(), logit.sigmoid().detach(), torch.stack(losses)


def main(arguments: list[str] | None = None) -> None:
    """Learns on several splits, and tests beside the published propagation."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few steps, for tests")
    parser.add_argument("--plot", metavar="FILE", help="draws the result into a file")
    options = parser.parse_args(arguments)
    splits, steps = (2, 30) if options.quick else (5, 100)

    graph = Citations()
    uniform, alpha = torch.zeros(len(FEATURES), dtype=torch.float64), torch.tensor(PUBLISHED)
    published, learned, curves = [], [], []
    for seed in range(splits):
        torch.manual_seed(seed)
        order = torch.randperm(len(graph.labels))
        known = torch.cat([order[graph.labels[order] == c][:20] for c in range(graph.classes)])
        test = order[~torch.isin(order, known)][:1000]
        published.append(graph.accuracy(graph.spread(known, uniform, alpha), test))
        theta, found, losses = train(graph, known, steps)
        learned.append(graph.accuracy(graph.spread(known, theta, found), test))
        curves.append(losses)
        print(f"split {seed}    published {published[-1]:.1f} %, learned {learned[-1]:.1f} %")
    print(f"learned    alpha {found:.3f}; theta, of the last split:")
    for name, value in zip(FEATURES, theta):
        print(f"           {value:+.2f}  {name}")
    gain = (sum(learned) - sum(published)) / splits
    verdict = "good" if gain > 0 else "BAD"
    print(f"check      the mean accuracy grows by {gain:.1f} points, above 0: {verdict}")


if __name__ == "__main__":
    main()
