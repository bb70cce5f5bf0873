"""Every path, module and make target that a document names in `code` is there."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "spgrad"
# The changelog is left out, because it has names of earlier versions.
TOP = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
PAGES = [*ROOT.glob("docs/*.md"), *ROOT.glob("docs/performance/*.md")]
DOCUMENTS = sorted([*TOP, *PAGES, *ROOT.glob("*/README.md")])

# Where a path may begin: documents shorten src/spgrad/kernels/cpu/common/sort.h to common/sort.h.
KERNELS = PACKAGE / "kernels"
ROOTS = (ROOT, PACKAGE, KERNELS, KERNELS / "cpu", ROOT / "docs", ROOT / "benchmarks")
# Files that a command makes, and files of torch, are not in the tree.
ELSEWHERE = ("build/", "dist/", "torch/", "test/")
OTHERS = {"results.md", "results.json", "test_sparse.py", "test_sparse_csr_xpu.py"}

FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`]+)`")
ENDING = r"(?:py|md|cpp|h|toml|ini|txt|csv|json|npz|mtx)"
PATH = re.compile(rf"(?<![\w./:<*-])[\w.<>*-]+(?:/[\w.<>*-]+)*(?:/|\.{ENDING})(?![\w(])")
NAME = re.compile(r"(?<![\w.])spgrad(?:\.[A-Za-z_]\w*)+")
MAKE = re.compile(r"^make ([a-z][a-z-]*)", re.MULTILINE)


def spans(text: str) -> list[str]:
    """The code of a document: what is in backticks, and blocks of code as they are."""
    return [*SPAN.findall(FENCED.sub("", text)), *FENCED.findall(text)]


def is_there(path: str) -> bool:
    """A path below one of ROOTS, `<family>` standing for any name; a file name, anywhere."""
    pattern = re.sub(r"<\w+>", "*", path).rstrip("/")
    if any(True for root in ROOTS for _ in root.glob(pattern)):
        return True
    return "/" not in path and any(
        True for top in ("src", "tests") for _ in (ROOT / top).rglob(path)
    )


def is_importable(name: str) -> bool:
    """A module of spgrad, or what a module or a class of it has."""
    parts = name.split(".")
    found = importlib.import_module(parts[0])
    for i, part in enumerate(parts[1:], 2):
        if not hasattr(found, part):
            try:
                importlib.import_module(".".join(parts[:i]))
            except ImportError:
                return False
        found = getattr(found, part)
    return True


def targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def missing(text: str) -> list[str]:
    """The names in the code of a document that nothing has."""
    found = []
    for span in spans(text):
        if not span.startswith("```"):
            paths = [
                p for p in PATH.findall(span) if not p.startswith(ELSEWHERE) and p not in OTHERS
            ]
            found += [path for path in paths if not is_there(path)]
            found += [f"make {name}" for name in MAKE.findall(span) if name not in targets()]
        found += [name for name in NAME.findall(span) if not is_importable(name)]
    return found


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_document_names_is_there(path):
    assert missing(path.read_text()) == []


def test_the_design_lists_every_folder():
    text = (ROOT / "docs" / "design.md").read_text()
    listed = re.findall(r"^\| `([a-z_/]+)/` \|", text, re.MULTILINE)
    packages = {
        path.parent.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("__init__.py")
    }
    below = {name for name in packages if name.startswith("kernels/") or name == "."}
    assert set(listed) == packages - below


@pytest.mark.parametrize(
    "name",
    [
        "tests/whole/test_layers.py",
        "lowering/gather.py",
        "products/spmm.h",
        "kernels/reference/<family>/",
        "docs/",
        "test_layers.py",
        "spgrad.lowering.gather.Gather",
        "spgrad.SparseTensor.values",
        "make test",
        "make fuzz N=3",
        "a/b",
        "A @ x",
        "torch/csrc/stable/",
    ],
)
def test_a_name_that_is_there_is_not_missed(name):
    assert missing(f"See `{name}` for that.") == []


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("`tests/whole/test_storeys.py`", "tests/whole/test_storeys.py"),
        ("`lowering/carry.py`", "lowering/carry.py"),
        ("as `ops/<family>/nothing.py` has it", "ops/<family>/nothing.py"),
        ("`carry.py`", "carry.py"),
        ("`lowering/rooms/`", "lowering/rooms/"),
        ("`spgrad.lowering.carry`", "spgrad.lowering.carry"),
        ("`spgrad.lowering.gather.Carried`", "spgrad.lowering.gather.Carried"),
        ("`make nothing N=3`", "make nothing"),
        ("```python\nspgrad.no_such_thing(A)\n```", "spgrad.no_such_thing"),
    ],
)
def test_a_name_that_is_not_there_is_found(text, name):
    assert missing(f"Begin.\n\n{text}\n\nEnd.") == [name]
