"""Draws the picture of the landing page: a dense gradient beside the gradient on the pattern.

Run it by hand after a change: python docs/extensions/landing.py.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import torch

import spgrad

STATIC = Path(__file__).parents[1] / "static"
SIZE = 48


def gradients() -> tuple[torch.Tensor, spgrad.SparseTensor]:
    """Of sum((A x)^2) / 2 in a dense A, and in a sparse one with the same numbers."""
    torch.manual_seed(0)
    A = spgrad.random_spd(SIZE, 0.05, dtype=torch.float32).requires_grad_()
    x = torch.randn(SIZE, 8)
    (A @ x).square().sum().div(2).backward()
    dense = A.detach().to_dense().requires_grad_()
    (dense @ x).square().sum().div(2).backward()
    return dense.grad, A.grad  # type: ignore[return-value]


def in_bytes(count: int) -> str:
    """A size in words."""
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB"


def draw(style: str, name: str) -> None:
    """Writes one form of the picture."""
    dense, sparse = gradients()
    ink = "white" if style == "dark" else "black"
    colours = {"text.color": ink, "axes.edgecolor": ink, "figure.facecolor": "none"}
    with mpl.rc_context({"font.size": 13, "axes.facecolor": "none", **colours}):
        figure, axes = plt.subplots(1, 2, figsize=(7.2, 4.3), layout="constrained")
        numbers = torch.full((SIZE, SIZE), torch.nan)
        rows, columns = sparse.coo_indices()
        numbers[rows, columns] = sparse.values()
        limit = float(sparse.values().abs().max())
        size = dense.numel() * dense.element_size()
        values = sparse.values()
        pictures = (
            (dense, f"dense gradient:\n{dense.numel()} numbers, {in_bytes(size)}"),
            (numbers, f"gradient on the pattern:\n{sparse.nse} numbers, {in_bytes(values.nbytes)}"),
        )
        for ax, (shown, title) in zip(axes, pictures, strict=True):
            ax.imshow(shown, cmap="coolwarm", vmin=-limit, vmax=limit, interpolation="nearest")
            ax.set(xticks=[], yticks=[])
            ax.set_title(title, fontsize=13)
        figure.savefig(STATIC / name, dpi=160, transparent=True, bbox_inches="tight")
        plt.close(figure)


if __name__ == "__main__":
    draw("light", "gradients-light.png")
    draw("dark", "gradients-dark.png")
