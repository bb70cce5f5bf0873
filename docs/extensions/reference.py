"""Writes the pages of the API reference, and puts badges into them.

The pages come from `__all__` of the public modules; operations are grouped as the support table
groups them, and their badges say what its rows say. The badges of other functions show the layouts
that `spgrad.support.WITHOUT_ROW` lists. Docstrings are written in Google's style with
plain text, so stars and bars in them are escaped before Sphinx reads them.
"""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import spgrad
from spgrad.support import ALL, OPS, WITHOUT_ROW, Op

if TYPE_CHECKING:
    from sphinx.application import Sphinx

FIRST = "0.1.0"
SINCE: dict[str, str] = {}
"""Versions of the functions that came after the first, by their public names: spgrad.mm."""

FAMILIES = {
    "creation": "Making sparse tensors",
    "layouts": "Layouts and conversions",
    "core": "Values and native torch tensors",
    "products": "Products",
    "elementwise": "Element by element",
    "reductions": "Reductions, norms, softmax, sorting",
    "shapes": "Shapes, joins, diagonals",
    "indexing": "Indexing",
    "solves": "Substitution and incomplete factors",
}
"""The groups of the support table, in the order of the pages."""

MODULES = {
    "linalg": "Linear systems, factorisations, eigenvalues",
    "graph": "Graphs",
    "data": "Mini-batches",
    "nn": "Modules",
    "nn.sparsity": "Sparsity that changes in training",
    "nn.patterns": "Patterns of attention",
    "distributed": "Several processes",
    "distributions": "Distributions",
    "io": "Files",
    "interop": "Other libraries",
    "plot": "Pictures",
    "testing": "Tests of your own operations",
}

INTRO = """# API reference

The pages list every public name with its docstring. The badges of a function show the layouts of
the sparse tensor that it takes or, if it takes none, of the one that it returns; the order of its
derivatives; and the version that added it. A function that is not in the
[support table](../support.md), such as one that reads a file, has the badge "gradient" if gradients
pass through it.

```{{toctree}}
:maxdepth: 1

{pages}
```
"""


def pages() -> dict[str, str]:
    """The text of each page of the reference, by its name."""
    made = {"tensor": _tensor()}
    for family, title in FAMILIES.items():
        names = sorted(
            row.name
            for row in OPS.values()
            if row.family == family and row.public and row.name in spgrad.__all__
        )
        made[family] = _page(title, "spgrad", names)
    for module, title in MODULES.items():
        found = importlib.import_module(f"spgrad.{module}")
        names = list(found.__all__)
        made[module.replace(".", "-")] = _page(f"{title}: spgrad.{module}", found.__name__, names)
    made["index"] = INTRO.format(pages="\n".join(name for name in made))
    return made


def _tensor() -> str:
    names = [n for n in spgrad.__all__ if n not in OPS]
    classes = [n for n in names if inspect.isclass(getattr(spgrad, n))]
    errors = [n for n in classes if issubclass(getattr(spgrad, n), Exception)]
    others = [n for n in classes if n not in (*errors, "SparseTensor", "Pattern")]
    elsewhere = [n for n in spgrad.__all__ if _home(getattr(spgrad, n)) is not None]
    rest = [n for n in names if n not in (*classes, *elsewhere)]
    text = _page("The tensor", "spgrad", ["SparseTensor", "Pattern"])
    text += _page("Constructors and conversions", "spgrad", rest, level="##")
    text += _page("Drop-in mode", "spgrad", others, level="##")
    text += _page("Errors", "spgrad", errors, level="##")
    return text + _page("Short names", "spgrad", sorted(elsewhere), level="##")


def _page(title: str, module: str, names: list[str], level: str = "#") -> str:
    lines = [f"{level} {title}", ""]
    for name in names:
        value = getattr(importlib.import_module(module), name)
        home = _home(value)
        if home not in (None, module):
            lines += ["```{eval-rst}", *_same_as(f"{home}.{name}", module, name, value), "```", ""]
            continue
        lines += ["```{eval-rst}", *_directive(module, name, value), "```", ""]
    return "\n".join(lines) + "\n"


def _same_as(full: str, module: str, name: str, value: Any) -> list[str]:
    """An entry for a short name, which leads to that of the full name."""
    if inspect.isclass(value):
        kind, arguments = "class", ""
    else:
        kind, arguments = "function", _arguments(value)
    return [f".. py:{kind}:: {module}.{name}{arguments}", "", f"   The same as :py:obj:`{full}`."]


def _arguments(function: Any) -> str:
    """The arguments of a function, with their defaults and without types."""
    found = inspect.signature(function)
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in found.parameters.values()]
    return str(found.replace(parameters=plain, return_annotation=inspect.Signature.empty))


def _home(value: Any) -> str | None:
    """The public module whose page has a function or class that several modules export."""
    parts = (getattr(value, "__module__", None) or "").split(".")
    for end in range(len(parts), 1, -1):
        if ".".join(parts[1:end]) in MODULES:
            return ".".join(parts[:end])
    return None


def _directive(module: str, name: str, value: Any) -> list[str]:
    if inspect.ismodule(value):
        return [f".. automodule:: {module}.{name}"]
    if inspect.isclass(value):
        return [f".. autoclass:: {module}.{name}", "   :members:"]
    if callable(value):
        return [f".. autofunction:: {module}.{name}"]
    return [f".. py:data:: {module}.{name}", f"   :type: {type(value).__name__}"]


def badges(name: str, obj: Any) -> list[str]:
    """What the support table says of a public function, as lines of reStructuredText."""
    row = OPS.get(name.removeprefix("spgrad.")) or OPS.get(name.rpartition(".")[2])
    row = row if row is not None and row.function is obj else None  # spgrad.linalg.solve is `solve`
    said = [f":bdg-light:`since {SINCE.get(name, FIRST)}`"]
    found = layouts_without_row(name) if row is None else row.layouts
    layouts = [f":bdg-success:`{layout}`" for layout in ALL if layout in found]
    if row is None:
        documented = "Gradient:" in (inspect.getdoc(obj) or "")
        gradient = [":bdg-primary:`gradient`"] if documented else []
        return [" ".join([*layouts, *gradient, *said]), ""]
    orders = ("no gradient", "gradient, 1st order", "gradient, 1st and 2nd order")
    order = f":bdg-primary:`{orders[row.order]}`"
    batch = [":bdg-info:`batches`"] if _takes_batches(row) else []
    lines = [" ".join([*layouts, order, *batch, *said]), ""]
    if row.torch:
        lines += ["Answers ``" + "``, ``".join(row.torch) + "``.", ""]
    return lines


def layouts_without_row(name: str) -> tuple[str, ...]:
    """The layouts of a function that is not in the support table; none if it takes no tensor."""
    return WITHOUT_ROW.get(name.removeprefix("spgrad.").removeprefix("interop."), ())


def _takes_batches(row: Op) -> bool:
    return any("A[b" in signature for signature in row.signatures)


def _escaped(line: str) -> str:
    """A line of a docstring whose stars, bars and last underscores mean themselves."""
    if line.lstrip().startswith(">>>"):
        return line
    parts = re.split(r"(``.*?``|`[^`]*`)", line)
    return "".join(
        part if part.startswith("`") else re.sub(r"([*|]|(?<=\w)_(?!\w))", r"\\\1", part)
        for part in parts
    )


def _write(app: Sphinx) -> None:
    folder = Path(app.srcdir) / "api"
    folder.mkdir(exist_ok=True)
    made = pages()
    for old in folder.glob("*.md"):
        if old.stem not in made:
            old.unlink()
    for name, text in made.items():
        path = folder / f"{name}.md"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def _prepare(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Escapes a docstring, before napoleon reads it."""
    example = False
    for i, line in enumerate(lines):
        if re.match(r"\s*(Examples?|Source):", line):
            example = line.lstrip().startswith("Example")
        elif re.match(r"\s*[A-Z]\w+:$", line):
            example = False
        if not example:
            lines[i] = _escaped(line)


def _add_badges(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Puts the badges below the first paragraph, after napoleon."""
    if what in ("function", "class") and name.count(".") <= 3:
        end = next((i for i, line in enumerate(lines) if not line.strip()), len(lines))
        lines[end:end] = ["", *badges(name, obj)]


def _keep_returns(self: Any, preprocess_types: bool = False) -> list[tuple[str, str, list[str]]]:
    """A section on results as it is; napoleon takes the words before a colon for a type."""
    lines = self._dedent(self._consume_to_next_section())
    return [("", "", self.__class__(lines, self._config).lines())] if lines else []


def _keep_property(self: Any) -> tuple[str, list[str]]:
    """The docstring of a property as it is, likewise."""
    return "", self.__class__(self._dedent(self._consume_to_end()), self._config).lines()


def setup(app: Sphinx) -> dict[str, Any]:
    """Sphinx calls it."""
    from sphinx.ext.napoleon.docstring import GoogleDocstring  # the suite runs without Sphinx

    GoogleDocstring._consume_returns_section = _keep_returns
    GoogleDocstring._consume_inline_attribute = _keep_property
    app.connect("builder-inited", _write, priority=100)
    app.connect("autodoc-process-docstring", _prepare, priority=400)
    app.connect("autodoc-process-docstring", _add_badges, priority=600)
    return {"parallel_read_safe": True}
