"""A network with 95 % of its weights missing, whose pattern changes in training.

RigL (Evci et al., 2020) exchanges the smallest weights of each layer for those whose gradient is
largest. Here it trains a network of three layers on the digits of scikit-learn. The same dense
network, and one with a fixed random pattern of as few weights, are trained for comparison.

    python examples/sparse_mlp.py --plot mlp.png
"""

import argparse
import itertools
import time

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

import spgrad

WIDTH, DENSITY, BATCH = 512, 0.05, 64


def network(sparse: bool) -> nn.Sequential:
    """64 pixels, two hidden layers, 10 digits. The last layer is dense, as it is small."""
    sizes = (64, WIDTH, WIDTH)
    layers: list[nn.Module] = []
    for size in itertools.pairwise(sizes):
        layers.append(
            spgrad.nn.SparseLinear(*size, density=DENSITY) if sparse else nn.Linear(*size)
        )
        layers.append(nn.ReLU())
    return nn.Sequential(*layers, nn.Linear(WIDTH, 10))


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Pixels (1797, 64) from 0 to 1 and digits, in random order."""
    pixels, target = load_digits(return_X_y=True)
    order = torch.randperm(len(target), generator=torch.Generator().manual_seed(0))
    return torch.as_tensor(pixels, dtype=torch.float32)[order] / 16, torch.as_tensor(target)[order]


def train(
    kind: str, images: torch.Tensor, label: torch.Tensor, trained_on: int, epochs: int
) -> tuple[list[float], int, float]:
    """Test accuracies in percent by epoch, the number of weights, seconds an epoch."""
    torch.manual_seed(0)
    model = network(kind != "dense")
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    steps = epochs * (trained_on // BATCH)
    changes = None
    if kind == "RigL":
        changes = spgrad.nn.sparsity.RigL(model, optimizer, end=steps * 3 // 4, every=10)
    curve, spent = [], 0.0
    for _ in range(epochs):
        start = time.perf_counter()
        for batch in torch.randperm(trained_on).split(BATCH)[: trained_on // BATCH]:
            loss = F.cross_entropy(model(images[batch]), label[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if changes is not None:
                changes.step()
        spent += time.perf_counter() - start
        with torch.no_grad():
            right = model(images[trained_on:]).argmax(1) == label[trained_on:]
        curve.append(100 * right.double().mean().item())
    weights = sum(p.numel() for p in model.parameters())
    return curve, weights, spent / epochs


def main(arguments: list[str] | None = None) -> None:
    """Trains the three, and compares."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few epochs, for tests")
    parser.add_argument("--plot", metavar="FILE", help="draws the result into a file")
    options = parser.parse_args(arguments)
    images, label = digits()
    print("data         1797 digits of 8 x 8 pixels, 1397 to train on")
    curves, last = {}, {}
    for kind in ("dense", "fixed pattern", "RigL"):
        curve, weights, spent = train(kind, images, label, 1397, 8 if options.quick else 40)
        curves[kind], last[kind] = curve, sum(curve[-3:]) / 3
        print(
            f"{kind:<12} {weights:7} weights, test accuracy {last[kind]:.1f} %, "
            f"{1e3 * spent:.0f} ms an epoch"
        )
    apart = 6 if options.quick else 2
    good = last["RigL"] > last["dense"] - apart
    print(f"check        RigL is within {apart} points of dense: {'good' if good else 'BAD'}")
    if options.plot:
        draw(options.plot, curves)


def draw(path: str, curves: dict[str, list[float]]) -> None:
    """The accuracy on the digits that are not trained on."""
    from matplotlib import pyplot as plt

    figure, ax = plt.subplots(figsize=(6, 3.4), layout="constrained")
    for kind, curve in curves.items():
        ax.plot(curve, label=kind)
    ax.set(title="test accuracy, %", xlabel="epochs", ylim=(80, 100))
    ax.legend()
    figure.savefig(path, dpi=80)


if __name__ == "__main__":
    main()
