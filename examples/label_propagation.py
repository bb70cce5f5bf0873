"""Topics of papers by label propagation over a graph whose edge weights are learned.

Zhou et al. (2004) spread the labels Y of a few nodes over a graph with weights W by

    (I - alpha S) F = Y,   S = D^-1/2 W D^-1/2,

and give each node the class of the greatest element in its row of F. The graph here has an edge
where one paper cites another, and further edges between papers with similar words. The further
edges help only if their weights are lower. So the program learns alpha and the weights, exp(theta .
features of an edge): it spreads half of the known labels, and the loss is that of the other half.
The gradient goes through `spgrad.linalg.solve` and costs one more solve.

    python examples/label_propagation.py --plot propagation.png
"""

import argparse

import torch
from torch.nn.functional import normalize, one_hot

import spgrad
from spgrad.demo import data
from spgrad.linalg import CG

PUBLISHED = torch.tensor(0.99, dtype=torch.float64)  # alpha of Zhou et al.
KNOWN_OF_AN_EDGE = ("cited", "words in common, cited", "words in common, not cited")


class Papers:
    """The Cora graph, with an edge to the ten papers of most similar words. One pattern for all."""

    def __init__(self) -> None:
        cora = data.load()
        self.labels, self.classes = cora.labels, len(cora.classes)
        n = len(self.labels)
        words = normalize(cora.features.to_dense().double(), dim=1)
        similar = (words @ words.T).fill_diagonal_(0)
        i, j = cora.adjacency.coo_indices()
        cites = torch.stack([i, j])[:, i != j]
        alike = torch.stack([torch.arange(n).repeat_interleave(10), similar.topk(10)[1].flatten()])
        edges = torch.cat([cites, alike, alike.flip(0)], 1)
        which = torch.cat([torch.ones(cites.shape[1]), torch.zeros(2 * alike.shape[1])]).double()

        self.graph = spgrad.from_edges(edges, which, size=n)  # repeated edges become one
        self.edges = i, j = tuple(self.graph.coo_indices())
        self.cited = self.graph.values()
        same = similar[i, j]
        same = (same - same.mean()) / same.std()
        self.about = torch.stack([self.cited, same * self.cited, same * (1 - self.cited)], 1)
        self.eye = spgrad.eye(n, dtype=torch.float64)

    def spread(
        self, nodes: torch.Tensor, weights: torch.Tensor, alpha: torch.Tensor
    ) -> torch.Tensor:
        """F (nodes, classes), from the labels of some nodes.

        The condition of I - alpha S is at most (1 + alpha) / (1 - alpha): CG needs 15 steps with
        alpha 0.84, for all classes at once. A factor fills in, to a third of a full triangle, and
        takes 60 times as long.
        """
        i, j = self.edges
        scale = spgrad.from_values(weights, self.graph).sum(1).rsqrt()
        S = spgrad.from_values(weights * scale[i] * scale[j], self.graph)
        Y = torch.zeros(len(self.labels), self.classes, dtype=torch.float64)
        Y[nodes] = one_hot(self.labels[nodes], self.classes).double()
        return spgrad.linalg.solve(self.eye - S * alpha, Y, CG(rtol=1e-6))

    def accuracy(self, F: torch.Tensor, nodes: torch.Tensor) -> float:
        """The percentage of the nodes that get their class."""
        return 100 * (F.argmax(1) == self.labels)[nodes].double().mean().item()


def train(papers: Papers, known: torch.Tensor, steps: int) -> tuple[torch.Tensor, ...]:
    """theta, alpha and the losses; starts from equal weights and the alpha of the paper."""
    theta = torch.zeros(papers.about.shape[1], dtype=torch.float64, requires_grad=True)
    logit = PUBLISHED.logit().requires_grad_()
    optimizer = torch.optim.Adam([theta, logit], lr=0.1)
    losses = []
    for _ in range(steps):
        seeds, held_out = known[torch.randperm(len(known))].chunk(2)  # others in each step
        F = papers.spread(seeds, (papers.about @ theta).exp(), logit.sigmoid())[held_out]
        F = F.clamp_min(0) + 1e-4  # for the nodes that no label reaches
        loss = -(F / F.sum(1, keepdim=True)).gather(1, papers.labels[held_out, None]).log().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return theta.detach(), logit.detach().sigmoid(), torch.stack(losses)


def main(arguments: list[str] | None = None) -> None:
    """Learns on several splits, and tests beside propagation without learning."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="two splits, for tests")
    parser.add_argument("--plot", metavar="FILE", help="draws the result into a file")
    options = parser.parse_args(arguments)

    papers, rows, curves = Papers(), [], []
    theta = alpha = PUBLISHED
    print(f"{'':<10} {len(papers.labels)} papers, 140 of known class. Test accuracy, %:")
    print(f"{'split':<10} citations  all edges alike  learned")
    for seed in range(2 if options.quick else 5):
        torch.manual_seed(seed)
        order = torch.randperm(len(papers.labels))
        of_class = papers.labels[order]
        known = torch.cat([order[of_class == c][:20] for c in range(papers.classes)])
        test = order[~torch.isin(order, known)][:1000]
        theta, alpha, losses = train(papers, known, 60)
        curves.append(losses)
        ones, weights = torch.ones_like(papers.cited), (papers.about @ theta).exp()
        kinds = ((papers.cited, PUBLISHED), (ones, PUBLISHED), (weights, alpha))
        rows.append([papers.accuracy(papers.spread(known, w, a), test) for w, a in kinds])
        print(f"{seed:<10} {rows[-1][0]:9.1f}  {rows[-1][1]:15.1f}  {rows[-1][2]:7.1f}")
    means = torch.tensor(rows).mean(0)
    print(f"{'mean':<10} {means[0]:9.1f}  {means[1]:15.1f}  {means[2]:7.1f}")
    print(f"learned    alpha {alpha:.2f}, published {PUBLISHED:.2f}; theta, in the last split:")
    for name, value in zip(KNOWN_OF_AN_EDGE, theta):
        print(f"           {value:+.2f}  {name}")
    gain = (means[2] - means[:2].max()).item()
    verdict = "good" if gain > 0 else "BAD"
    print(f"check      learning gains {gain:.1f} points over the better of the others: {verdict}")
    if options.plot:
        draw(options.plot, torch.stack(curves), means)


def draw(path: str, curves: torch.Tensor, means: torch.Tensor) -> None:
    """The loss on the labels held out, of each split, and the accuracies."""
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    left.plot(curves.T.numpy(), color="C0", alpha=0.4)
    left.plot(curves.mean(0).numpy(), color="C0", linewidth=2.5)
    left.set(title="loss on the labels held out", xlabel="steps")
    names = ["citations", "all edges\nalike", "learned"]
    bars = right.bar(names, means.tolist(), color=["C7", "C7", "C0"])
    right.bar_label(bars, fmt="%.1f")
    right.set(title="test accuracy, %", ylim=(0, 100))
    figure.savefig(path, dpi=80)


if __name__ == "__main__":
    main()
