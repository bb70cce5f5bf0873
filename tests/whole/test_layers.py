"""Modules import only from lower floors, and folders, files and functions stay small."""

import ast
from pathlib import Path

import cpp_functions
import pytest

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent / "src" / "spgrad"

# The lowest floor comes first; a module imports from the floors below its own. Of the names that a
# module's dotted path begins with, the longest one gives its floor. Modules under one name may
# import one another without a circle; modules under two names of one floor may not.
FLOORS = [
    ["torch_protocol.dynamo.frames"],
    ["torch_protocol.callers", "torch_protocol.func_transforms"],
    ["torch_protocol.dynamo"],
    ["errors", "machine", "support", "torch_protocol.compile"],
    [
        "torch_protocol.arguments",
        "torch_protocol.autocast",
        "torch_protocol.requirement",
    ],
    ["core.kept"],
    ["core.pattern", "core.refusals"],
    ["kernels", "core.slots"],
    ["core.checks", "core.inner_tensors", "core.memory"],
    ["annotations"],
    ["public"],
    ["core.tensor"],
    ["torch_protocol.aten", "torch_protocol.optimizers"],
    ["core.values", "torch_protocol"],
    ["core.construct", "torch_protocol.gradients"],
    ["core.compressed"],
    ["core.interop"],
    ["lowering.sorting", "lowering.operands"],
    ["lowering.views"],
    ["lowering.products"],
    ["lowering.gather", "lowering.segments"],
    ["lowering.coalesce", "lowering.dense_at"],
    ["lowering.convert"],
    ["lowering.rebuild"],
    ["lowering.ranges"],
    ["lowering.align"],
    ["ops.layouts"],
    ["ops.elementwise"],
    ["ops.creation"],
    ["ops.reductions", "ops.shapes"],
    ["ops.indexing"],
    ["ops.products"],
    ["ops.solves"],
    ["ops"],
    ["linalg"],
    ["distributions"],
    ["nn"],
    ["dropin", "interop", "io", "plot", "serialize"],
    ["data"],
    ["graph", "distributed"],
    ["demo", "info", "testing", "versions"],
    ["cli", "__init__"],
    ["__main__"],
]
FLOOR = {name: i for i, names in enumerate(FLOORS) for name in names}
# Neither of these imports the other: kernels use no pattern, and patterns no kernel.
STRANGERS = {("kernels", "core.pattern")}

MAX_FILE = 400
MAX_FUNCTION = 60
MAX_MODULES = 12

PYTHON_FILES = sorted(ROOT.rglob("*.py"))
CPP_FILES = sorted([*ROOT.rglob("*.cpp"), *ROOT.rglob("*.h")])
TEST_FILES = sorted(TESTS.rglob("*.py"))
FILES = PYTHON_FILES + CPP_FILES + TEST_FILES
FOLDERS = sorted({path.parent for path in FILES})


def name_of(path: Path) -> str:
    """Within the library, or from `tests` on."""
    return str(path.relative_to(ROOT if path.is_relative_to(ROOT) else TESTS.parent))


def dotted(path: Path) -> str:
    """The dotted path of a file after `spgrad`; of a package that of its folder."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def owner(module: str) -> str | None:
    """The name in FLOORS that the dotted path after `spgrad` belongs to, if there is one."""
    parts = module.split(".") if module else ["__init__"]
    names = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
    return next((name for name in names if name in FLOOR), None)


def is_module(parts: tuple[str, ...]) -> bool:
    path = ROOT.joinpath(*parts)
    return path.is_dir() or path.with_suffix(".py").is_file()


def imported(tree: ast.AST, package: tuple[str, ...]) -> list[tuple[int, str]]:
    """The line and the dotted path of each module imported from spgrad, wherever it stands."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                root, *rest = alias.name.split(".")
                if root == "spgrad":
                    found.append((node.lineno, ".".join(rest)))
        elif isinstance(node, ast.ImportFrom):
            above = ("spgrad", *package)[: len(package) + 2 - node.level] if node.level else ()
            root, *rest = (part for part in (*above, *(node.module or "").split(".")) if part)
            if root != "spgrad":
                continue
            for alias in node.names:
                # `from spgrad import x` names a module, or what __init__ gathers.
                parts = (*rest, alias.name)
                found.append((node.lineno, ".".join(parts if is_module(parts) else rest)))
    return found


def violations(path: Path) -> list[str]:
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    here = owner(dotted(path))
    out = []
    for line, module in imported(ast.parse(path.read_text()), package):
        there = owner(module)
        if here is None or there is None:
            continue  # test_every_module_has_a_floor says so
        if there != here and (FLOOR[there] >= FLOOR[here] or (here, there) in STRANGERS):
            out.append(f"{name_of(path)}:{line}: {here} imports {module}, which is not below it")
    return out


def circles(files: list[Path]) -> list[str]:
    """Modules that import themselves, by way of others."""
    graph = {}
    for path in files:
        package = path.relative_to(ROOT).with_suffix("").parts[:-1]
        graph[dotted(path)] = {m for _, m in imported(ast.parse(path.read_text()), package)}
    done: set[str] = set()

    def reaches(module: str, above: tuple[str, ...]) -> str | None:
        if module in above:
            return " -> ".join([*above[above.index(module) :], module])
        if module in done:
            return None
        found = [reaches(m, (*above, module)) for m in sorted(graph[module]) if m in graph]
        done.add(module)
        return next((circle for circle in found if circle), None)

    return [circle for module in graph if (circle := reaches(module, ()))]


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


def test_every_module_has_a_floor():
    """A package whose modules are on several floors only describes itself."""
    lost = [path for path in PYTHON_FILES if owner(dotted(path)) is None]
    assert [p for p in lost if len(ast.parse(p.read_text()).body) > 1] == []


def test_every_floor_has_modules():
    found = {owner(dotted(path)) for path in PYTHON_FILES}
    assert FLOOR.keys() - found == set()


def test_no_module_imports_itself_by_way_of_others():
    assert circles(PYTHON_FILES) == []


def modules_of(folder: Path, files: list[Path]) -> list[str]:
    """The files there are to look through; what a folder says of itself aside."""
    own = ("__init__.py", "conftest.py")
    return [path.name for path in files if path.parent == folder and path.name not in own]


def too_long(path: Path) -> bool:
    return path.read_text().count("\n") > MAX_FILE


@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_folders_are_short(folder):
    assert len(modules_of(folder, FILES)) <= MAX_MODULES


@pytest.mark.parametrize("path", PYTHON_FILES, ids=name_of)
def test_imports_point_down(path):
    assert not violations(path)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_files_are_short(path):
    assert not too_long(path)


@pytest.mark.parametrize("path", PYTHON_FILES + TEST_FILES, ids=name_of)
def test_functions_are_short(path):
    long = [
        f"{name_of(path)}:{node.lineno} {node.name}: {length} lines"
        for node, length in functions(ast.parse(path.read_text()))
        if length > MAX_FUNCTION
    ]
    assert not long


@pytest.mark.parametrize("path", CPP_FILES, ids=name_of)
def test_cpp_functions_are_short(path):
    found = cpp_functions.functions(path)
    assert not [f for f in found if f[2] > MAX_FUNCTION]


@pytest.mark.parametrize(
    ("package", "statement", "module"),
    [
        ((), "import spgrad", ""),
        ((), "import spgrad.ops.products.matmul as mm", "ops.products.matmul"),
        ((), "from spgrad import testing", "testing"),
        ((), "from spgrad import SparseTensor", ""),
        ((), "from spgrad.errors import SpgradError", "errors"),
        ((), "def f():\n    from spgrad.core.tensor import SparseTensor", "core.tensor"),
        ((), "from . import testing", "testing"),
        ((), "from .core.pattern import Pattern", "core.pattern"),
        (("core",), "from spgrad.core import pattern", "core.pattern"),
        (("core",), "from . import pattern", "core.pattern"),
        (("core",), "from ..kernels import reference", "kernels.reference"),
        (("kernels", "reference"), "from ...core.pattern import Pattern", "core.pattern"),
    ],
)
def test_the_reading_of_imports(package, statement, module, tmp_path, monkeypatch):
    (tmp_path / "core").mkdir()
    (tmp_path / "kernels" / "reference").mkdir(parents=True)
    (tmp_path / "testing.py").touch()
    (tmp_path / "core" / "pattern.py").touch()
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    assert [there for _, there in imported(ast.parse(statement), package)] == [module]


@pytest.mark.parametrize("name", ["os", "torch", "spgradient.ops"])
def test_imports_from_elsewhere_are_not_ours(name):
    tree = ast.parse(f"import {name}\nfrom {name} import x")
    assert imported(tree, ()) == []


@pytest.mark.parametrize(
    ("path", "statement"),
    [
        ("errors.py", "from spgrad.core.pattern import Pattern"),
        ("core/pattern.py", "from spgrad import kernels"),
        ("kernels/reference/matmul.py", "from spgrad.core.pattern import Pattern"),
        ("lowering/views.py", "from spgrad.lowering.products import spmm"),
        ("ops/layouts/convert.py", "from spgrad.ops.products.matmul import mm"),
        ("ops/shapes/join.py", "from spgrad.ops.reductions.reduce import sum"),
        ("ops/products/matmul.py", "from spgrad import linalg"),
        ("linalg/solve.py", "from spgrad.io import load"),
        ("core/tensor.py", "def f():\n    import spgrad"),
        ("testing.py", "from spgrad.cli import main"),
    ],
)
def test_an_import_that_points_up_is_found(path, statement, tmp_path, monkeypatch):
    for folder in ("kernels", "linalg", "lowering"):
        (tmp_path / folder).mkdir()
    (tmp_path / "lowering" / "spmm.py").touch()
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    file = tmp_path / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(statement)
    assert len(violations(file)) == 1
    file.write_text(
        "import torch\nfrom spgrad.errors import SpgradError" if path != "errors.py" else ""
    )
    assert violations(file) == []


def test_a_circle_is_found(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    (tmp_path / "ops").mkdir()
    files = [tmp_path / "ops" / name for name in ("one.py", "two.py", "three.py")]
    for file, other in zip(files, ("two", "three", "one"), strict=True):
        file.write_text(f"from spgrad.ops.{other} import x")
    assert circles(files) == ["ops.one -> ops.two -> ops.three -> ops.one"]
    files[2].write_text("")
    assert circles(files) == []


def test_a_function_that_is_too_long_is_found():
    body = "\n".join(["    pass"] * MAX_FUNCTION)
    ((_, length),) = functions(ast.parse(f"def f():\n{body}"))
    assert length == MAX_FUNCTION + 1


def test_a_file_that_is_too_long_is_found(tmp_path):
    file = tmp_path / "test_one.py"
    file.write_text("pass\n" * MAX_FILE)
    assert not too_long(file)
    file.write_text("pass\n" * (MAX_FILE + 1))
    assert too_long(file)


def test_a_folder_that_is_too_full_is_found(tmp_path):
    own = [tmp_path / "__init__.py", tmp_path / "conftest.py", tmp_path / "ops" / "test_one.py"]
    modules = [tmp_path / f"test_{i}.py" for i in range(MAX_MODULES + 1)]
    assert len(modules_of(tmp_path, own + modules[1:])) == MAX_MODULES
    assert len(modules_of(tmp_path, own + modules)) > MAX_MODULES
