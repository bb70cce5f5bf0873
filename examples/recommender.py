"""LightGCN on a bipartite graph of users and items.

He et al. (2020) recommend by embeddings that are averaged over the graph of users and the items
that they took. With the embeddings E of users and items and the normalised graph A, the average is
(E + A E + A A E + ...) / layers. The only parameters are E. Three layers are compared with no
layer, which is matrix factorisation, and with the most popular items. The data are random: users
and items have hidden interests, and users take items of their own interests more often.

    python examples/recommender.py --plot recommender.png
"""

import argparse
import time
from typing import Any

import torch
from torch.nn import functional as F

import spgrad

USERS, ITEMS, TAKEN, TOP = 3000, 1500, 24, 20


class Log:
    """Who took what: the part to train on as a sparse matrix, and the items held out."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        interest, topic = torch.randn(USERS, 8), torch.randn(ITEMS, 8)
        popular = torch.randn(ITEMS) * 0.7
        taken = (interest @ topic.T + popular).softmax(1).multinomial(TAKEN)  # (users, taken)
        self.held_out, kept = taken[:, :4], taken[:, 4:]
        users = torch.arange(USERS).repeat_interleave(TAKEN - 4)
        self.pairs = torch.stack([users, kept.flatten()])
        self.matrix = spgrad.from_edges(self.pairs, size=(USERS, ITEMS))

    def graph(self) -> spgrad.SparseTensor:
        """The normalised graph of users and items, (users + items, users + items)."""
        both = spgrad.block_array([[None, self.matrix], [self.matrix.t(), None]])
        return spgrad.graph.normalize(both.to_sparse_csr(), "sym")


def averaged(E: torch.Tensor, A: Any, layers: int) -> torch.Tensor:
    """The mean of E, A E, A A E and so on."""
    total, H = E, E
    for _ in range(layers):
        H = A @ H
        total = total + H
    return total / (layers + 1)


def ranking_loss(E: torch.Tensor, A: Any, log: Log, layers: int) -> torch.Tensor:
    """The loss of BPR: an item that was taken should have a higher score than another item."""
    users, items = log.pairs
    others = torch.randint(ITEMS, items.shape)
    final = averaged(E, A, layers)
    user, item, other = final[users], final[USERS + items], final[USERS + others]
    loss = F.softplus((user * (other - item)).sum(1)).mean()
    return loss + 1e-4 * (E[users].square().sum(1) + E[USERS + items].square().sum(1)).mean()


def train(log: Log, layers: int, epochs: int) -> tuple[torch.Tensor, list[float], float]:
    """Scores (users, items), the losses, and seconds an epoch."""
    torch.manual_seed(1)
    A = log.graph()
    E = torch.nn.Parameter(0.1 * torch.randn(USERS + ITEMS, 32))
    optimizer = torch.optim.Adam([E], lr=0.02)
    losses, start = [], time.perf_counter()
    for _ in range(epochs):
        loss = ranking_loss(E, A, log, layers)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    spent = (time.perf_counter() - start) / epochs
    with torch.no_grad():
        final = averaged(E, A, layers)
    return final[:USERS] @ final[USERS:].T, losses, spent


def quality(scores: torch.Tensor, log: Log) -> tuple[float, float]:
    """Recall and NDCG of the 20 items of highest score that a user has not taken yet."""
    rows, columns = log.matrix.coo_indices()
    best = scores.index_put((rows, columns), torch.tensor(-torch.inf)).topk(TOP).indices
    hit = (best[:, :, None] == log.held_out[:, None]).any(2).double()
    discount = (torch.arange(TOP) + 2.0).log2().reciprocal().double()
    ideal = discount[: log.held_out.shape[1]].sum()
    recall = hit.sum(1) / log.held_out.shape[1]
    return recall.mean().item(), (hit @ discount / ideal).mean().item()


def main(arguments: list[str] | None = None) -> None:
    """Trains with and without the graph, and compares."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer epochs, for tests")
    parser.add_argument("--plot", metavar="FILE", help="draws the result into a file")
    options = parser.parse_args(arguments)
    log, curves, found = Log(), {}, {}
    pairs = f"{log.matrix.nse} pairs, 4 held out of each user"
    print(f"data        {USERS} users, {ITEMS} items, {pairs}")
    print("            recall@20  ndcg@20")
    popularity = log.matrix.sum(0).expand(USERS, ITEMS)
    kinds = {"popular": 0, "no layer": 0, "3 layers": 3}
    for name, layers in kinds.items():
        if name == "popular":
            scores, spent = popularity, 0.0
        else:
            scores, curves[name], spent = train(log, layers, 60 if options.quick else 200)
        found[name] = quality(scores, log)
        recall, ndcg = found[name]
        print(f"{name:<11} {recall:9.3f}  {ndcg:7.3f}  {1e3 * spent:4.0f} ms an epoch")
    good = found["3 layers"][0] > max(found["popular"][0], found["no layer"][0])
    print(f"check       the graph helps: {'good' if good else 'BAD'}")
    if options.plot:
        draw(options.plot, curves, found)


def draw(path: str, curves: dict[str, list[float]], found: dict[str, tuple[float, float]]) -> None:
    """Losses, and the two measures."""
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for name, curve in curves.items():
        left.plot(curve, label=name)
    left.set(title="loss", xlabel="epochs")
    left.legend()
    for at, (recall, ndcg) in enumerate(found.values()):
        right.bar([at - 0.2, at + 0.2], [recall, ndcg], width=0.38, color=["C0", "C1"])
    right.set_xticks(range(len(found)), found)
    right.set(title="recall@20 (blue), ndcg@20 (orange)")
    figure.savefig(path, dpi=80)


if __name__ == "__main__":
    main()
