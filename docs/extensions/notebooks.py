"""Makes the notebooks of the gallery from the example programs.

A notebook has the docstring of a program, what `docs/examples.md` says of its data and its time,
its code, and a run with `--quick` and the picture.
`python docs/extensions/notebooks.py` writes the notebooks; a test compares them with the programs.
"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
GALLERY = ROOT / "docs" / "gallery"
EXAMPLES = ROOT / "docs" / "examples.md"
COLAB = "https://colab.research.google.com/github/spgrad/spgrad/blob/main/docs/gallery"
STARTING_PROCESSES = ("train_sharded", "two_processes")
"""Programs that a notebook can't run: the processes that they start import the program."""
INSTALL = """import importlib.util

if importlib.util.find_spec("spgrad") is None:  # as in Colab
    %pip install -q "spgrad[plot,scipy]"{more}
"""
RUN = 'main(["--quick", "--plot", "{name}.png"])'
"""The figure stays open, so that a notebook shows it."""
TAGS = {1: ["hide-input"], 3: ["remove-cell"]}
"""The site shows the code of the program on demand, and not what installs spgrad in Colab."""
WHERE = "an Intel Xeon with one thread"
ROW = re.compile(
    r"^\| `examples/(\w+)\.py` \| (.+) \| (.+) \| (\d+) s \| (\d+) s \|$", re.MULTILINE
)
"""A program in the table of `docs/examples.md`: data, source, and the time of both forms."""


def facts() -> dict[str, str]:
    """What the table says of the data and the time of each program, by its name."""
    return {
        name: f"**Data:** {data}; {source}.\n\n"
        f"**Time:** {whole} s, and {quick} s with `--quick`, on {WHERE}."
        for name, data, source, whole, quick in ROW.findall(EXAMPLES.read_text())
    }


def programs() -> list[Path]:
    """The programs that have a notebook."""
    found = sorted((ROOT / "examples").glob("*.py"))
    return [path for path in found if path.stem not in STARTING_PROCESSES]


def notebook(path: Path) -> str:
    """The notebook of a program, without outputs, as the text of its file."""
    source = path.read_text()
    tree = ast.parse(source)
    words = ast.get_docstring(tree) or ""
    title, _, rest = words.partition("\n")
    text = rest.partition(f"    python examples/{path.name}")[0].strip()
    start = tree.body[0].end_lineno or 0
    code = "\n".join(source.splitlines()[start:]).partition('if __name__ == "__main__":')[0]
    lead = (
        f"{facts()[path.stem]} The last cell takes `--quick`, a smaller problem.\n\n"
        f"[Open in Colab]({COLAB}/{path.stem}.ipynb) · the program is `examples/{path.name}`"
    )
    more = " torch_geometric" if "torch_geometric" in code else ""
    cells = [
        _cell(0, "markdown", f"# {title.rstrip('.')}\n\n{text}\n\n{lead}"),
        _cell(3, "code", INSTALL.format(more=more).strip()),
        _cell(1, "code", code.strip()),
        _cell(2, "code", RUN.format(name=path.stem)),
    ]
    made = {
        "cells": cells,
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


def _cell(number: int, kind: str, text: str) -> dict[str, Any]:
    of_code = {"execution_count": None, "outputs": []} if kind == "code" else {}
    lines = text.splitlines(keepends=True)
    return {
        "cell_type": kind,
        "id": f"cell-{number}",
        "metadata": {"tags": TAGS[number]} if number in TAGS else {},
        "source": lines,
        **of_code,
    }


if __name__ == "__main__":
    GALLERY.mkdir(exist_ok=True)
    for program in programs():
        (GALLERY / f"{program.stem}.ipynb").write_text(notebook(program))
