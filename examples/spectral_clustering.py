"""Spectral clustering of digits, with scales of the pixels that are learned from a few digits.

Two digits are neighbours if one is among the 15 most similar ones of the other. The eigenvectors of
the smallest eigenvalues of the graph's Laplacian L change little along its edges. So k-means finds
groups of any shape in them, without any label (Ng, Jordan and Weiss, 2001). `spgrad.linalg.eigsh`
computes the eigenvectors by a factor of L + 0.01 I.

The weight of an edge is exp(-sum of s_p (difference in pixel p)^2), with a scale s_p for each
pixel. The scales are learned from ten known digits of each class. The loss asks that the rows of
the eigenvectors of two digits have the same direction if they are of one class, and are orthogonal
if they are not (after Bach and Jordan, 2003). Its gradient goes through the eigenvectors and the
Laplacian to the 64 scales, and costs a few solves with the factor.

    python examples/spectral_clustering.py --plot clusters.png
"""

import argparse

import torch
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from sklearn.metrics import adjusted_rand_score
from torch.nn.functional import normalize

import spgrad

CLASSES, NEIGHBOURS, KNOWN = 10, 15, 10


class Digits:
    """Pictures of 8 x 8 pixels, what they show, and the differences along the edges of a graph."""

    def __init__(self, count: int) -> None:
        pixels, shown = load_digits(return_X_y=True)
        self.x = torch.from_numpy(pixels[:count]) / 16
        self.digit = torch.from_numpy(shown[:count])
        distances = torch.cdist(self.x, self.x).fill_diagonal_(torch.inf)
        nearest = distances.topk(NEIGHBOURS, largest=False).indices
        rows = torch.arange(count).repeat_interleave(NEIGHBOURS)
        edges = torch.stack([rows, nearest.flatten()])
        self.graph = spgrad.graph.to_symmetric(spgrad.from_edges(edges, size=count))
        i, j = self.graph.coo_indices()
        self.differences = (self.x[i] - self.x[j]).square()  # (edges, pixels)

    def equal_scales(self) -> torch.Tensor:
        """The logarithm of s, alike for all pixels: exp(-1) is the weight of an average edge."""
        return (-self.differences.sum(1).mean().log()).repeat(self.x.shape[1])

    def vectors(self, log_scales: torch.Tensor) -> torch.Tensor:
        """Those of the ten smallest eigenvalues of the Laplacian, with rows of length 1."""
        weights = (-self.differences @ log_scales.exp()).exp()
        W = spgrad.from_values(weights, self.graph)
        L = spgrad.graph.laplacian(W, "sym")
        _, vectors = spgrad.linalg.eigsh(L, k=CLASSES, sigma=-0.01)
        return normalize(vectors, dim=1)

    def sample(self, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Digits that are known, and all others."""
        order = torch.randperm(len(self.x), generator=torch.Generator().manual_seed(seed))
        of_class = self.digit[order]
        known = torch.cat([order[of_class == c][:KNOWN] for c in range(CLASSES)])
        return known, order[~torch.isin(order, known)]


def learn(digits: Digits, known: torch.Tensor, steps: int) -> tuple[torch.Tensor, list[float]]:
    """Learns the logarithm of s, starting from equal scales; also the losses."""
    log_scales = digits.equal_scales().requires_grad_()
    optimizer = torch.optim.Adam([log_scales], lr=0.1)
    alike = (digits.digit[known][:, None] == digits.digit[known]).double()
    losses = []
    for _ in range(steps):
        rows = digits.vectors(log_scales)[known]
        loss = ((rows @ rows.T).square() - alike).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return log_scales.detach(), losses


def clusters(points: torch.Tensor) -> torch.Tensor:
    """Ten groups by k-means, the best of ten starts."""
    means = KMeans(CLASSES, n_init=10, random_state=0)  # type: ignore[arg-type]
    return torch.from_numpy(means.fit_predict(points.numpy()))


def main(arguments: list[str] | None = None) -> None:
    """Clusters the pictures, the eigenvectors, and those of learned scales."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer digits, for tests")
    parser.add_argument("--plot", metavar="FILE", help="draws the result into a file")
    options = parser.parse_args(arguments)
    digits = Digits(900 if options.quick else 1797)
    seeds, steps = (1, 10) if options.quick else (3, 40)
    edges = digits.graph.nse // 2
    print(f"graph       {len(digits.x)} digits, {edges} edges, {KNOWN} of each class known")
    print("            adjusted Rand index of the digits that are not known")
    print("known       k-means  spectral  learned")
    equal = digits.equal_scales()
    found = {"k-means": clusters(digits.x), "spectral": clusters(digits.vectors(equal))}
    rows, scales, descent, rest = [], [], [], torch.empty(0)
    for seed in range(seeds):
        known, rest = digits.sample(seed)
        log_scales, losses = learn(digits, known, steps)
        scales.append(log_scales)
        found["learned"] = clusters(digits.vectors(log_scales))
        rows.append([adjusted_rand_score(digits.digit[rest], g[rest]) for g in found.values()])
        descent.append(f"{losses[0]:.3f} -> {losses[-1]:.3f}")
        print(f"sample {seed}    {rows[-1][0]:7.3f}  {rows[-1][1]:8.3f}  {rows[-1][2]:7.3f}")
    means = torch.tensor(rows).mean(0).tolist()
    print(f"mean        {means[0]:7.3f}  {means[1]:8.3f}  {means[2]:7.3f}")
    print(f"loss        of the known digits {', '.join(descent)}")
    good = means[2] > means[1] > means[0]
    print(f"check       the graph helps, and learned scales more: {'good' if good else 'BAD'}")
    if options.plot:
        draw(options.plot, digits, rest, torch.stack(scales), dict(zip(found, means)))


def draw(
    path: str, digits: Digits, rest: torch.Tensor, scales: torch.Tensor, means: dict[str, float]
) -> None:
    """The similarity of unknown digits before and after, the scales of the pixels, Rand indices."""
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 4, figsize=(14, 3.4), layout="constrained")
    of_class = digits.digit[rest]
    shown = torch.cat([rest[of_class == c][:20] for c in range(CLASSES)])
    for axis, name, s in zip(axes, ("equal", "learned"), (digits.equal_scales(), scales[-1])):
        rows = digits.vectors(s)[shown]
        axis.imshow((rows @ rows.T).square().numpy(), cmap="Blues", interpolation="none")
        axis.set(title=f"alike, with {name} scales", xlabel="digits", ylabel="digits")
        axis.set_xticks(range(10, 20 * CLASSES, 20), range(CLASSES))
        axis.set_yticks(range(10, 20 * CLASSES, 20), range(CLASSES))
    powers = (scales.mean(0) - digits.equal_scales()) / torch.tensor(10.0).log()
    image = axes[2].imshow(powers.view(8, 8).numpy(), cmap="RdBu_r", vmin=-1.5, vmax=1.5)
    axes[2].set(title="learned scales, powers of 10", xticks=[], yticks=[])
    figure.colorbar(image, ax=axes[2])
    bars = axes[3].bar(list(means), list(means.values()), color=["C7", "C7", "C0"])
    axes[3].bar_label(bars, fmt="%.2f")
    axes[3].set(title="adjusted Rand index", ylim=(0, 1))
    figure.savefig(path, dpi=80)


if __name__ == "__main__":
    main()
