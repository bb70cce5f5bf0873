"""A graph network that learns the weights of the edges, one number for each citation.

The network is that of Kipf and Welling (2017), two layers of D^-1/2 (A + I) D^-1/2 x W^T, on the
Cora citations. Here A is learned with W. It is exp(theta) and its transpose, with a sparse theta
above the diagonal. theta starts at zero, so all citations start with the same weight. The gradient
of theta has an element for each citation and none elsewhere, and includes the degrees D. A citation
has one weight for both directions: the edge into a paper of known topic trains it, and the edge out
of that paper uses it too.

The same network with fixed weights is trained for comparison, in three cases: 20 papers of each
topic are known; half of all papers are known; and half of them are known in a graph with as many
false links as citations.

    python examples/learned_edges.py --plot edges.png
"""

import argparse
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

import spgrad
from spgrad.demo import data

CLASSES = 7
CASES = ("140 known", "half known", "false links")


@dataclass
class Case:
    """Links, each once above the diagonal, which of them are citations, and what is known."""

    links: spgrad.SparseTensor
    cited: torch.Tensor
    x: spgrad.SparseTensor
    labels: torch.Tensor
    half: bool

    def split(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Papers to train on, 400 to choose the epoch by, and 900 to test."""
        order = torch.randperm(len(self.labels))
        train = order[: len(order) // 2]
        if not self.half:
            of_class = self.labels[order]
            train = torch.cat([order[of_class == c][:20] for c in range(CLASSES)])
        rest = order[~torch.isin(order, train)]
        return train, rest[:400], rest[400:1300]


def cases() -> dict[str, Case]:
    """The three, on Cora."""
    torch.manual_seed(0)
    cora = data.load()
    n = len(cora.labels)
    i, j = cora.adjacency.coo_indices()
    true = torch.stack([i, j])[:, i < j]
    false = torch.randint(n, true.shape).sort(0).values
    false = false[:, false[0] < false[1]]
    is_true = torch.cat([torch.ones(true.shape[1]), torch.zeros(false.shape[1])])
    all_true = spgrad.from_edges(true, size=n)
    some_false = spgrad.from_edges(torch.cat([true, false], 1), is_true, size=n)
    kinds = ((all_true, False), (all_true, True), (some_false, True))
    return {
        name: Case(links, links.values() > 0, cora.features, cora.labels, half)
        for name, (links, half) in zip(CASES, kinds)
    }


class Network(nn.Module):
    """Two layers on one graph, whose weights are learned or not."""

    def __init__(self, case: Case, learned: bool) -> None:
        super().__init__()
        self.first = spgrad.nn.GraphConv(case.x.shape[1], 32)
        self.second = spgrad.nn.GraphConv(32, CLASSES)
        self.theta = nn.Parameter(spgrad.zeros_like(case.links), requires_grad=learned)

    def weights(self) -> torch.Tensor:
        """The weight of each link: positive, 1 at the start."""
        return spgrad.map(self.theta, torch.exp)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores of the topics, for each paper."""
        A = spgrad.graph.to_symmetric(self.weights())
        x = spgrad.dropout(x, 0.5, self.training)
        return self.second(F.dropout(F.relu(self.first(x, A)), 0.5, self.training), A)


@dataclass
class Trained:
    """The accuracy on the test papers in percent, the weights of links, and which are known."""

    accuracy: float
    weights: torch.Tensor
    known: torch.Tensor


def train(case: Case, learned: bool, seed: int, epochs: int) -> Trained:
    """The network at the epoch that is best on the validation papers."""
    torch.manual_seed(seed)
    known, validation, test = case.split()
    model = Network(case, learned)
    layers = [*model.first.parameters(), *model.second.parameters()]
    trained = [*layers, model.theta] if learned else layers
    optimizer = torch.optim.Adam(trained, lr=0.03, weight_decay=1e-4)  # draws weights to 1
    best, accuracy, weights = -1.0, 0.0, torch.empty(0)
    for _ in range(epochs):
        model.train()
        loss = F.cross_entropy(model(case.x)[known], case.labels[known])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            right = (model(case.x).argmax(1) == case.labels).double()
            if right[validation].mean() > best:
                best = right[validation].mean().item()
                accuracy = 100 * right[test].mean().item()
                weights = spgrad.values(model.weights()).clone()
    i, j = case.links.coo_indices()
    return Trained(accuracy, weights, torch.isin(i, known) & torch.isin(j, known))


def by_topic(case: Case, run: Trained) -> dict[str, torch.Tensor]:
    """The weights of links with an end of unknown topic: same topic, other topics, false links."""
    i, j = case.links.coo_indices()
    same, seen = case.labels[i] == case.labels[j], ~run.known
    kinds = {"same topic": same & case.cited, "others": ~same & case.cited, "false": ~case.cited}
    return {kind: run.weights[of & seen] for kind, of in kinds.items()}


def main(arguments: list[str] | None = None) -> None:
    """Trains with fixed and with learned weights, in each case on several splits."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one split, for tests")
    parser.add_argument("--plot", metavar="FILE", help="draws the result into a file")
    options = parser.parse_args(arguments)
    seeds, epochs = (1, 45) if options.quick else (4, 200)

    found: dict[str, torch.Tensor] = {}
    links: dict[str, torch.Tensor] = {}
    print(f"{'':<12} test accuracy, %              median weight of links not wholly known")
    print(f"{'case':<12} fixed        learned           same topic  others  false")
    for name, case in cases().items():
        runs = {
            kind: [train(case, kind, s, epochs) for s in range(seeds)] for kind in (False, True)
        }
        found[name] = torch.tensor([[run.accuracy for run in runs[kind]] for kind in runs])
        parts = [by_topic(case, run) for run in runs[True]]
        links = {kind: torch.cat([part[kind] for part in parts]) for kind in parts[0]}
        mean, deviation = found[name].mean(1), found[name].std(1, correction=0)
        row = "  ".join(f"{m:.1f} +- {d:.1f}" for m, d in zip(mean, deviation))
        shown = "  ".join(f"{w.median():7.2f}" if len(w) else "      -" for w in links.values())
        print(f"{name:<12} {row:<30}  {shown}")
    gains = {name: (a[1] - a[0]).mean().item() for name, a in found.items()}
    print("gain         " + ", ".join(f"{name} {gain:+.1f}" for name, gain in gains.items()))
    ratio = (links["false"].median() / links["same topic"].median()).item()
    good = ratio < 0.9 and gains["false links"] > (-3 if options.quick else 0)
    told = f"false links weigh {ratio:.2f} of those within a topic, and learning helps there"
    print(f"check        {told}: {'good' if good else 'BAD'}")
    if options.plot:
        draw(options.plot, found, links)


def draw(path: str, found: dict[str, torch.Tensor], links: dict[str, torch.Tensor]) -> None:
    """The accuracies of the cases, and the weights in the last."""
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    at = torch.arange(len(found))
    for k, (kind, color) in enumerate((("fixed", "C7"), ("learned", "C0"))):
        mean = [accuracy[k].mean().item() for accuracy in found.values()]
        spread = [accuracy[k].std(correction=0).item() for accuracy in found.values()]
        bars = left.bar(at + 0.4 * k - 0.2, mean, 0.38, yerr=spread, color=color, label=kind)
        left.bar_label(bars, fmt="%.1f", label_type="center", color="white")
    left.set_xticks(at, found)
    left.set(title="test accuracy, %", ylim=(0, 110))
    left.legend(loc="upper right", ncols=2)
    edges = torch.linspace(0, 3, 61).numpy()
    for kind, color in (("same topic", "C0"), ("others", "C1"), ("false", "C3")):
        right.hist(
            links[kind].numpy(), edges, density=True, histtype="step", color=color, label=kind
        )
    right.set(title="weights of links, with false ones", xlabel="weight", yticks=[])
    right.legend()
    figure.savefig(path, dpi=80)


if __name__ == "__main__":
    main()
