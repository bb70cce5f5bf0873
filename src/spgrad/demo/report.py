"""Runs the demo and prints its results."""

from __future__ import annotations

import contextlib
import os
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from spgrad.core import checks
from spgrad.demo.compare import ROUNDS, Result, compare
from spgrad.demo.data import Graph, load, split
from spgrad.demo.model import HIDDEN, History, train
from spgrad.errors import ArgumentValueError
from spgrad.kernels import backend, compiled

_KERNELS = {
    "compiled": "compiled",
    "native": "torch's own sparse kernels; no compiled ones are loaded",
    "reference": "references in plain torch; no compiled ones are loaded",
}
SMALL = 1 << 24  # products below this many multiplications a layer are quickest on one thread


def run(
    data: Path | None,
    out: Path,
    *,
    epochs: int,
    seed: int,
    seeds: int | None,
    device: str = "cpu",
) -> None:
    """Trains both networks, compares the libraries, writes the picture, and prints a transcript.

    Args:
        data: A graph file, or None for the Cora graph of the package.
        out: The PNG to write.
        epochs: Steps of each training run.
        seed: The first seed.
        seeds: Number of seeds; by default 5, or 2 where the kernels are not compiled.
        device: Where the networks are trained; the libraries are compared on the CPU.

    Raises:
        MissingPackageError: A package of `spgrad[demo]` is not installed.
        ValueError: `data`, `out` or `device` is not usable.
    """
    checks.require_packages("demo", "numpy", "matplotlib", "rich")
    _require_writable(out)
    _require_device(device)
    from rich.console import Console

    seeds = seeds or (5 if compiled() else 2)
    console = Console(highlight=False)
    graph = load(data)
    split(graph, seed)  # refuses a graph that is too small before anything is printed
    with _threads(graph) as threads:
        _introduce(console, graph, range(seed, seed + seeds), epochs, device)
        with _progress() as (begin, advance):
            begin("training", 2 * seeds * epochs)
            given, learned = [], []
            for s in range(seed, seed + seeds):
                parts = split(graph, s)
                options = {"epochs": epochs, "seed": s, "advance": advance, "device": device}
                given.append(train(graph, parts, learn_edges=False, **options))
                learned.append(train(graph, parts, learn_edges=True, **options))
            begin("measuring", ROUNDS + 1)
            results = compare(graph.adjacency, HIDDEN, advance)
            begin("drawing", 1)
            from spgrad.demo.figure import draw

            draw(graph, given, learned, out)
        _tell_accuracy(console, graph, given, learned)
        _tell_cost(console, graph, results, threads)
    console.print(f"picture   {out}", soft_wrap=True)


def _require_writable(out: Path) -> None:
    accepted = "the path of a .png file in a folder that is there is accepted"
    if out.suffix.lower() != ".png" or not out.parent.is_dir() or out.is_dir():
        raise ArgumentValueError(f"`--out` is {out}; {accepted}. Try --out spgrad-demo.png.")
    if not os.access(out if out.exists() else out.parent, os.W_OK):
        raise ArgumentValueError(
            f"`--out` is {out}, which may not be written; {accepted}. Choose another folder."
        )


def _require_device(device: str) -> None:
    """Refuses what torch cannot train on here."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    found = ["cpu", *(["cuda"] if count else []), *(f"cuda:{i}" for i in range(count))]
    if device not in found:
        raise ArgumentValueError(
            f"`--device` is {device}; {', '.join(found)} {'are' if count else 'is'} accepted, as "
            "torch finds no other device here. Choose one, or leave it out for the CPU."
        )


@contextlib.contextmanager
def _threads(graph: Graph) -> Iterator[int]:
    """Sets one thread for a small graph while the block runs; yields the number of threads."""
    before = torch.get_num_threads()
    if HIDDEN * max(graph.adjacency.nse, graph.features.nse) < SMALL:
        torch.set_num_threads(1)
    try:
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def _progress() -> Iterator[tuple[Any, Any]]:
    """A progress bar on stderr: a function that begins a task, and one that advances it."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description:10}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:

        def begin(name: str, total: int) -> None:
            for task in progress.task_ids:
                progress.remove_task(task)
            progress.add_task(name, total=total)

        yield begin, lambda: progress.advance(progress.task_ids[-1])


def _introduce(console: Any, graph: Graph, seeds: Sequence[int], epochs: int, device: str) -> None:
    from rich.table import Table

    parts = split(graph, seeds[0])
    n, nse = graph.labels.numel(), graph.adjacency.nse
    drawn = graph.labels[parts.train].bincount()
    few, many = int(drawn.min()), int(drawn.max())
    share = f"{many}" if few == many else f"{few} to {many}"
    largest = int(graph.labels.bincount().max()) / n
    table = Table.grid(padding=(0, 2))
    lines = {
        "network": "relu(A X W1) W2, where A is D^-1/2 (A + I) D^-1/2: once as given, once with a "
        "learned weight for each of its entries, which starts as given. A and X are sparse.",
        "data": f"{graph.name}: {n} nodes, {graph.links} links. {graph.task}.",
        "graph": "All of it, not its largest component alone; undirected, with self loops: A is "
        f"{n} x {n} with {nse} entries. {100 * largest:.1f} % of the nodes are of the largest "
        "class.",
        "split": f"{parts.train.numel()} nodes to train ({share} of each class), "
        f"{parts.validation.numel()} for validation, {parts.test.numel()} to test, drawn at random "
        "with each seed (not the fixed Planetoid split).",
        "training": f"{epochs} epochs of Adam with seed {', '.join(map(str, seeds))}. Tested as it "
        "was after the epoch of highest validation accuracy.",
        "kernels": _KERNELS[backend()],
    }
    if device != "cpu":
        lines["device"] = f"{device} for the training, the CPU for the comparison of libraries."
    for name, text in lines.items():
        table.add_row(name, text)
    console.print(table)


def _tell_accuracy(
    console: Any, graph: Graph, given: Sequence[History], learned: Sequence[History]
) -> None:
    from rich.box import SIMPLE
    from rich.table import Table

    table = Table("edge weights", box=SIMPLE, title="Test accuracy, %", title_justify="left")
    for name in ("mean", "spread", "lowest", "highest"):
        table.add_column(name, justify="right")
    figures = [[100 * run.test for run in runs] for runs in (given, learned)]
    figures.append([b - a for a, b in zip(*figures, strict=True)])
    for name, values in zip(("given", "learned", "learned - given"), figures, strict=True):
        spread = f"{statistics.stdev(values):.1f}" if len(values) > 1 else "-"
        sign = "+" if name == "learned - given" else ""
        numbers = (f"{v:{sign}.1f}" for v in (min(values), max(values)))
        table.add_row(name, f"{statistics.mean(values):{sign}.1f}", spread, *numbers)
    scale = learned[0].scale
    console.print()
    console.print(table)
    if scale is not None:
        low, high = (float(scale.kthvalue(k).values) for k in _tails(scale.numel()))
        console.print(
            f"Spread: standard deviation over the seeds. What was learned: 90 % of the weights are "
            f"{low:.2f} to {high:.2f} times the given ones.\n"
        )


def _tails(count: int) -> tuple[int, int]:
    return max(1, round(0.05 * count)), max(1, round(0.95 * count))


def _tell_cost(console: Any, graph: Graph, results: Sequence[Result], threads: int) -> None:
    from rich.box import SIMPLE
    from rich.table import Table

    n = graph.labels.numel()
    title = (
        f"One training step of A @ H, H {n} x {HIDDEN}: the product, both gradients, the update "
        f"({threads} thread{'s' * (threads > 1)})"
    )
    table = Table(box=SIMPLE, title=title, title_justify="left")
    for name in ("library", "call"):
        table.add_column(name, no_wrap=True)
    for name in ("time", "ratio", "memory", "ratio", "A.grad"):
        table.add_column(name, justify="right", no_wrap=True)
    ours = results[0]
    for result in results:
        library, layout, call, _ = result.competitor
        row = [f"{library} {layout}", call]
        if result.seconds is None:
            table.add_row(*row, "-", "-", "-", "-", result.failure)
            continue
        row += [_time(result.seconds), _ratio(result.seconds, ours.seconds)]
        row += [_size(result.memory), _ratio(result.memory, ours.memory)]
        table.add_row(*row, str(result.gradient))
    console.print(table)
    console.print(
        "Time: the median step; each library in a process of its own, in turns. Memory: the peak "
        "that a step adds. A.grad: the number of values in it.\n"
    )


def _time(seconds: float) -> str:
    """A time in milliseconds, of three digits."""
    return f"{1e3 * seconds:.{2 if seconds < 0.01 else 1 if seconds < 0.1 else 0}f} ms"


def _ratio(theirs: float, ours: float | None) -> str:
    """theirs / ours in words; "-" if `ours` is 0, as a small step may not raise the peak."""
    if not ours:
        return "-"
    return f"{theirs / ours:.{1 if theirs < 100 * ours else 0}f}"


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count < 1e9 else f"{count / 1e9:.1f} GB"
