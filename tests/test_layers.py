"""Imports only point down, and files and functions stay small."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "src" / "spgrad"

# From the bottom: a module imports from the levels below its own, never from its own.
LEVELS = [
    {"callers", "support", "errors", "tracing", "transforms"},
    {"pattern", "arguments", "refusals", "requirement"},
    {"kernels"},
    {"checks", "memory"},
    {"tensor"},
    {"values", "protocol", "stepping", "describe", "serialize"},
    {"construct", "gradients"},
    {"compressed"},
    {"interop"},
    {"ops"},
    {"linalg"},
    {"dropin", "nn", "optim", "distributed", "io", "plot"},
    {"demo", "info", "testing"},
    {"cli", "__init__"},
    {"__main__"},
]
LEVEL = {module: i for i, modules in enumerate(LEVELS) for module in modules}
# Neighbours that are not one above the other: indices know no kernel, kernels no pattern.
STRANGERS = {("kernels", "pattern")}

MAX_FILE = 400
MAX_FUNCTION = 60

PYTHON_FILES = sorted(ROOT.rglob("*.py"))
CPP_FILES = sorted([*ROOT.rglob("*.cpp"), *ROOT.rglob("*.h")])


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def owner(parts: tuple[str, ...]) -> str:
    """The module of LEVELS that the dotted path after `spgrad` belongs to."""
    return parts[0] if parts else "__init__"


def is_module(name: str) -> bool:
    return (ROOT / f"{name}.py").is_file() or (ROOT / name).is_dir()


def imported(tree: ast.AST, package: tuple[str, ...]) -> list[tuple[int, str]]:
    """The line and the module of each import from spgrad, wherever in the file it stands."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                root, *rest = alias.name.split(".")
                if root == "spgrad":
                    found.append((node.lineno, owner(tuple(rest))))
        elif isinstance(node, ast.ImportFrom):
            above = ("spgrad", *package)[: len(package) + 2 - node.level] if node.level else ()
            root, *rest = (part for part in (*above, *(node.module or "").split(".")) if part)
            if root != "spgrad":
                continue
            parts = tuple(rest)
            for alias in node.names:
                # `from spgrad import x` names a module, or what __init__ gathers.
                named = alias.name in LEVEL or is_module(alias.name)
                found.append((node.lineno, owner(parts or ((alias.name,) if named else ()))))
    return found


def violations(path: Path) -> list[str]:
    parts = path.relative_to(ROOT).with_suffix("").parts
    package = parts[:-1]
    here = parts[0]
    out = []
    for line, there in imported(ast.parse(path.read_text()), package):
        where = f"{name_of(path)}:{line}"
        if not {here, there} <= LEVEL.keys():
            continue  # test_every_module_has_a_level says so
        if there != here and (LEVEL[there] >= LEVEL[here] or (here, there) in STRANGERS):
            out.append(f"{where}: {here} imports {there}, which is not below it")
    return out


def functions(tree: ast.AST) -> list[tuple[ast.FunctionDef | ast.AsyncFunctionDef, int]]:
    """Each function with its length in lines, less those of its docstring."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = node.end_lineno - node.lineno + 1
            if ast.get_docstring(node, clean=False) is not None:
                doc = node.body[0]
                length -= doc.end_lineno - doc.lineno + 1
            found.append((node, length))
    return found


def test_the_source_is_found():
    assert PYTHON_FILES


def test_every_module_has_a_level():
    modules = {path.relative_to(ROOT).with_suffix("").parts[0] for path in PYTHON_FILES}
    assert modules - LEVEL.keys() == set()


@pytest.mark.parametrize("path", PYTHON_FILES, ids=name_of)
def test_imports_point_down(path):
    assert not violations(path)


@pytest.mark.parametrize("path", PYTHON_FILES + CPP_FILES, ids=name_of)
def test_files_are_short(path):
    lines = path.read_text().count("\n")
    assert lines <= MAX_FILE


@pytest.mark.parametrize("path", PYTHON_FILES, ids=name_of)
def test_functions_are_short(path):
    long = [
        f"{name_of(path)}:{node.lineno} {node.name}: {length} lines"
        for node, length in functions(ast.parse(path.read_text()))
        if length > MAX_FUNCTION
    ]
    assert not long


@pytest.mark.parametrize(
    ("package", "statement", "module"),
    [
        ((), "import spgrad", "__init__"),
        ((), "import spgrad.ops.matmul as mm", "ops"),
        ((), "from spgrad import pattern", "pattern"),
        ((), "from spgrad import SparseTensor", "__init__"),
        ((), "from spgrad.errors import SpgradError", "errors"),
        ((), "def f():\n    from spgrad.tensor import SparseTensor", "tensor"),
        ((), "from . import pattern", "pattern"),
        ((), "from .pattern import Pattern", "pattern"),
        (("ops",), "from . import matmul", "ops"),
        (("ops",), "from ..kernels import reference", "kernels"),
        (("kernels", "reference"), "from ...pattern import Pattern", "pattern"),
    ],
)
def test_the_reading_of_imports(package, statement, module, tmp_path, monkeypatch):
    (tmp_path / "pattern.py").touch()
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    assert [there for _, there in imported(ast.parse(statement), package)] == [module]


@pytest.mark.parametrize("name", ["os", "torch", "spgradient.ops"])
def test_imports_from_elsewhere_are_not_ours(name):
    tree = ast.parse(f"import {name}\nfrom {name} import x")
    assert imported(tree, ()) == []


@pytest.mark.parametrize(
    ("path", "statement"),
    [
        ("errors.py", "from spgrad.pattern import Pattern"),
        ("pattern.py", "from spgrad import kernels"),
        ("kernels/reference/matmul.py", "from spgrad.pattern import Pattern"),
        ("ops/matmul.py", "from spgrad import linalg"),
        ("nn/conv.py", "from spgrad.io import load"),
        ("tensor.py", "def f():\n    import spgrad"),
        ("testing.py", "from spgrad.cli import main"),
    ],
)
def test_an_import_that_points_up_is_found(path, statement, tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    file = tmp_path / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(statement)
    assert len(violations(file)) == 1
    file.write_text("import torch\nfrom spgrad import errors" if path != "errors.py" else "")
    assert violations(file) == []
