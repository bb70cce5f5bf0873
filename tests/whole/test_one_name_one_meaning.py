"""A name means one thing in `core`, `lowering` and `ops`: no two files define functions of one."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2] / "src" / "spgrad"
FOLDERS = ("core", "lowering", "ops")

# Names that two files may define, and why.
SHARED = {
    "sddmm": "Dot products at the elements of a pattern: the public function, and that of values.",
    "spmm": "The product of a sparse and a dense matrix: the public function, and that of values.",
}


def defined(source: str) -> set[str]:
    """The functions and classes at the top of a module, without an underscore before them.

    A definition of typing.overload is one form of the function that follows.
    """
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return {node.name.lstrip("_") for node in ast.parse(source).body if isinstance(node, kinds)}


def homonyms(files: list[Path]) -> dict[str, list[Path]]:
    """The names that more than one of the files defines."""
    where: dict[str, list[Path]] = {}
    for path in files:
        for name in defined(path.read_text()):
            where.setdefault(name, []).append(path)
    return {name: paths for name, paths in where.items() if len(paths) > 1}


def test_no_name_has_two_meanings():
    files = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    found = homonyms(files)
    assert {name: paths for name, paths in found.items() if name not in SHARED} == {}
    assert SHARED.keys() - found.keys() == set()  # an exception that is not needed any more


def test_a_name_with_two_meanings_is_found(tmp_path):
    files = [tmp_path / name for name in ("one.py", "two.py", "three.py")]
    files[0].write_text("def _spread(x): pass\n\ndef own(x): pass\n\nclass Taken: pass")
    files[1].write_text(
        "def spread(x):\n    def own(y): pass\n\nclass Other:\n    def own(self): pass"
    )
    files[2].write_text("import typing\n\n@typing.overload\ndef sum(x): ...\n\ndef sum(x): pass")
    assert homonyms(files) == {"spread": files[:2]}
    files[2].write_text("class _Taken: pass")
    assert homonyms(files) == {"spread": files[:2], "Taken": [files[0], files[2]]}
