"""Runs the benchmarks of several processes: ``python -m benchmarks.sharded --help``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.machine import describe, in_words
from benchmarks.sharded import volumes
from benchmarks.sharded.steps import COLUMNS, Case, measure

MATRICES = "poisson-1000", "social", "power-law-2m"


def _over(memory: dict[str, float], what: str) -> float:
    return (memory[f"{what} peak"] - memory["left"]) / memory[what]


def _steps(options: argparse.Namespace) -> list[dict[str, Any]]:
    print("step: one process with all threads over the group")
    print("memory: peak over what it has to have, of a product and of a step (see steps._memory),")
    print("  without what is left of the process when the matrix is deleted")
    print("late: step over max(step, exchange) where rows arrive late, and over what the delays of")
    print("  each pass leave possible; model: of the forward")
    found = []
    for matrix in options.matrices:
        for world in options.worlds or [2, 4]:
            for partition in options.partitions:
                row = measure(Case(matrix, COLUMNS, partition, world), options.rounds)
                memory = "/".join(
                    f"{max(_over(m, what) for m in row['memory'][1:]):.2f}"
                    for what in ("product", "step")
                )
                late = "  ".join(f"{d['ratio']:.2f}/{d['bound']:.2f}" for d in row["delays"])
                low, *_, high = sorted(row["ratios"])
                print(
                    f"{matrix:14s} {world} processes {partition:6s} "
                    f"step {row['one'] * 1e3:6.1f} / {row['sharded'] * 1e3:6.1f} ms = "
                    f"{row['ratio']:.2f} ({low:.2f} to {high:.2f})  memory {memory}  "
                    f"late {late}  model {row['model'] / row['forward'] - 1:+.0%}  "
                    f"rows {row['arriving']}",
                    flush=True,
                )
                found.append(row)
    return found


def _volumes(worlds: list[int], entry: float | None) -> list[dict[str, Any]]:
    rates = volumes.measured_rates(COLUMNS) if entry is None else volumes.on_network(entry * 1e-12)
    print(f"{rates.entry * 1e12:.0f} ps an entry and column, {rates.sent / 1e9:.0f} GB/s")
    found = []
    for row in volumes.table(worlds, COLUMNS, rates):
        print(
            f"{row['family']:17s} {row['world']:5d} {row['way']:11s} {row['rows']:9d} rows  "
            f"arriving {row['arriving']:11d}, most {row['most']:8d}  balance "
            f"{row['balance']:.2f}  {row['seconds'] * 1e3:8.3f} ms",
            flush=True,
        )
        found.append(row)
    return found


def _draw(rows: list[dict[str, Any]], path: Path) -> None:
    from matplotlib import pyplot as plt

    families = list(dict.fromkeys(row["family"] for row in rows))
    figure, axes = plt.subplots(1, len(families), figsize=(11, 3.5), layout="constrained")
    for ax, family in zip(axes, families, strict=True):
        for way in ("all-gather", "contiguous", "METIS"):
            own = [r for r in rows if r["family"] == family and r["way"] == way]
            ax.loglog(
                [r["world"] for r in own], [r["arriving"] / r["rows"] for r in own], "o-", label=way
            )
        ax.set(title=family, xlabel="processes")
    axes[0].set_ylabel("rows of x that travel, over all rows")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    figure.savefig(path, dpi=90)


def main() -> None:
    """Measures, prints a line a case, and keeps all numbers in a file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sharded", description=__doc__)
    parser.add_argument("what", choices=("steps", "volumes"))
    parser.add_argument("--worlds", type=int, nargs="+", help="numbers of processes")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--entry", type=float, help="ps for an entry and column; measured if not")
    parser.add_argument("--matrices", nargs="+", default=MATRICES, help="of steps")
    parser.add_argument("--partitions", nargs="+", default=("nse", "metis"), help="of steps")
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks"))
    options = parser.parse_args()
    print(in_words(describe()))
    options.out.mkdir(parents=True, exist_ok=True)
    if options.what == "steps":
        rows = _steps(options)
    else:
        rows = _volumes(options.worlds or [2, 4, 16, 64, 256, 1024], options.entry)
        _draw(rows, options.out / "scaling.png")
    (options.out / f"sharded-{options.what}.json").write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
