"""The demo's picture: loss and accuracy of both networks, and the graph."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from spgrad.demo.data import Graph
from spgrad.demo.model import History

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GIVEN, LEARNED = "#64748b", "#c2410c"
LESS, NEUTRAL = "#1d4ed8", "#a8b3c2"
INK, RULE = "#1e293b", "#cbd5e1"
MOST_DOTS = 200_000


def draw(graph: Graph, given: Sequence[History], learned: Sequence[History], path: Path) -> None:
    """Writes the picture as a PNG.

    Args:
        graph: The graph that the networks were trained on.
        given: Runs with the given edge weights, one for each seed.
        learned: Runs with learned edge weights, of the same seeds.
        path: The file to write.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 4.9), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.1)  # type: ignore[union-attr]
    loss, accuracy, spy = figure.subplots(1, 3, width_ratios=(1, 1, 1.12))
    for runs, color, name in ((given, GIVEN, "given"), (learned, LEARNED, "learned")):
        _curve(loss, [run.loss for run in runs], color, name)
        _curve(accuracy, [[100 * a for a in run.validation] for run in runs], color, name)
    _dress(loss, "Training loss", "cross entropy, with dropout", len(given))
    _dress(accuracy, "Validation accuracy", "% of the validation nodes", len(given))
    loss.set_ylim(bottom=0)
    legend = loss.legend(title="edge weights", frameon=False, labelcolor=INK)
    legend.get_title().set_color(INK)
    _spy(figure, spy, graph, learned[0])
    figure.suptitle(
        f"{graph.name}: a two-layer graph network with given and with learned edge weights",
        color=INK,
        fontsize=13,
        fontweight="bold",
    )
    figure.savefig(path, dpi=150, facecolor="white", format="png")


def _curve(axes: Axes, runs: list[list[float]], color: str, name: str) -> None:
    """The mean over the seeds as a line, and their range as a band."""
    values = torch.tensor(runs)
    epochs = range(1, values.shape[1] + 1)
    low, high, mean = (v.tolist() for v in (values.amin(0), values.amax(0), values.mean(0)))
    axes.fill_between(epochs, low, high, color=color, alpha=0.15, linewidth=0)
    dot = "o" if len(epochs) == 1 else None
    axes.plot(epochs, mean, color=color, linewidth=1.8, label=name, marker=dot)


def _dress(axes: Axes, title: str, label: str, seeds: int) -> None:
    axes.set_title(title, loc="left", color=INK, fontsize=11)
    band = "" if seeds == 1 else f" (line: mean of {seeds} seeds; band: their range)"
    axes.set_xlabel(f"epoch{band}", color=INK)
    axes.set_ylabel(label, color=INK)
    axes.grid(color=RULE, linewidth=0.5, alpha=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(RULE)
    axes.tick_params(color=RULE, labelcolor=INK)
    axes.margins(x=0.02)


def _spy(figure: Figure, axes: Axes, graph: Graph, run: History) -> None:
    """A dot for each entry of A, nodes sorted by class, coloured by what was learned."""
    from matplotlib.colors import LinearSegmentedColormap, LogNorm

    A, scale = graph.adjacency, run.scale
    assert scale is not None
    n = graph.labels.numel()
    place = torch.empty(n, dtype=torch.int64)
    place[graph.labels.argsort(stable=True)] = torch.arange(n)
    row = place[torch.repeat_interleave(A.crow_indices().diff())]
    col = place[A.col_indices().long()]
    change = scale.log().abs()
    # The largest changes come last, so that they lie on top; a large graph shows a sample.
    shown = torch.randperm(A.nse, generator=torch.Generator().manual_seed(0))[:MOST_DOTS]
    shown = shown[change[shown].argsort()]
    limit = max(1.05, float(change[shown].quantile(0.98).exp())) if A.nse < 1 << 24 else 2.0
    dots = axes.scatter(
        col[shown],
        row[shown],
        c=scale[shown],
        s=min(6.0, max(0.4, 9000 / n)),
        cmap=LinearSegmentedColormap.from_list("change", (LESS, NEUTRAL, LEARNED)),
        norm=LogNorm(1 / limit, limit),
        linewidths=0,
        rasterized=True,
    )
    sizes = graph.labels.bincount()
    edges = sizes.cumsum(0)[:-1]
    for edge in edges.tolist():
        axes.axhline(edge - 0.5, color=RULE, linewidth=0.6, zorder=0)
        axes.axvline(edge - 0.5, color=RULE, linewidth=0.6, zorder=0)
    axes.set(xlim=(-0.5, n - 0.5), ylim=(n - 0.5, -0.5), aspect="equal", xticks=[])
    middles = (sizes.cumsum(0) - sizes / 2).tolist()
    names = [name.replace("_", " ") for name in graph.classes]
    axes.set_yticks(middles if len(names) <= 12 else [], names if len(names) <= 12 else [])
    axes.tick_params(length=0, labelcolor=INK, labelsize=8)
    axes.spines[:].set_color(RULE)
    axes.set_title("The graph, nodes sorted by class", loc="left", color=INK, fontsize=11)
    axes.set_xlabel(f"{A.nse} entries, a gradient for each", color=INK)
    bar = figure.colorbar(dots, ax=axes, shrink=0.85, aspect=30, pad=0.02)
    ticks = [1 / limit, limit**-0.5, 1, limit**0.5, limit]
    bar.set_ticks(ticks, labels=[f"{t:.2g}" for t in ticks])
    bar.minorticks_off()
    bar.set_label("learned weight / given weight", color=INK)
    bar.outline.set_visible(False)  # type: ignore[operator]
