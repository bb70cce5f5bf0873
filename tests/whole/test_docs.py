"""The tables of the documents, and the stub of `spgrad.ops`, match the code.

Update them with: python tests/whole/test_docs.py.
"""

import contextlib
import io
import re
from pathlib import Path

import pytest

from spgrad.cli import markdown_kernels, markdown_table
from spgrad.kernels import by_triton, compiled
from spgrad.support import OPS, OUTSIDE

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
SUPPORT = ROOT / "docs" / "support.md"


def block(text, name="support"):
    return re.search(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", text, re.DOTALL)[1].strip()


@pytest.mark.parametrize("name", ["support", "kernels"])
def test_support_tables_are_those_of_the_code(name):
    if name == "kernels" and not (compiled() and by_triton()):
        pytest.skip("the document has the table of a machine with every backend")
    same = block(SUPPORT.read_text(), name) == TABLES[name]()
    assert same, (
        f"{SUPPORT.name} is behind the table: run .venv/bin/python tests/whole/test_docs.py"
    )


def test_readme_example_prints_what_it_says():
    code, output = re.search(r"```python\n(.*?)```\n\n```\n(.*?)```", README, re.DOTALL).groups()
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {})
    assert printed.getvalue() == output


def test_the_readme_is_short():
    lines = README.splitlines()
    assert len(lines) <= 150
    assert [line for line in lines if len(line) > 100] == []


def test_the_lines_of_the_changelog_are_short():
    lines = (ROOT / "CHANGELOG.md").read_text().splitlines()
    assert [line for line in lines if len(line) > 100] == []


def anchors(path):
    """The names that Sphinx and GitHub give to the headings of a page."""
    for title in re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE):
        yield re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-")


def test_linked_files_exist():
    made = ROOT / "docs" / "api"
    pages = [p for p in (ROOT / "docs").rglob("*.md") if not p.is_relative_to(made)]
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *pages]:
        for target in re.findall(r"\]\(([^):\s]+)\)", path.read_text()):
            file, _, anchor = target.partition("#")
            if re.match(r"(\.\./)*api/", file):  # which the build of the site writes
                continue
            found = path.parent / file if file else path
            assert found.exists(), f"{path.name} links to {target}"
            assert not anchor or anchor in anchors(found), f"{path.name} links to {target}"


def stub():
    """The static face of `spgrad.ops`, whose functions are found by the rows."""
    rows = [row for row in OPS.values() if row.public and row.family not in OUTSIDE]
    lines = [exported(row) for row in sorted(rows, key=lambda row: (row.path, row.name))]
    names = [f'    "{row.name}",' for row in sorted(rows, key=lambda row: row.name)]
    return "\n".join([*lines, *STUB_REST, "", "__all__ = [", *names, "]", ""])


def exported(row):
    name = f"{row.name} as {row.name}"
    line = f"from {row.path} import {name}"
    return line if len(line) <= 100 else f"from {row.path} import (\n    {name},\n)"


def test_the_stub_lists_every_operation():
    there, wanted = set(STUB.read_text().splitlines()), stub().splitlines()
    assert [line for line in wanted if line not in there] == []
    assert STUB.read_text() == stub()


STUB = ROOT / "src" / "spgrad" / "ops" / "__init__.pyi"
STUB_REST = ["", "def register_family(family: str) -> None: ..."]
TABLES = {"support": markdown_table, "kernels": markdown_kernels}

if __name__ == "__main__":
    text = SUPPORT.read_text()
    for name, table in TABLES.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        head, rest = text.split(begin)
        text = f"{head}{begin}{table()}\n{end}{rest.split(end)[1]}"
    SUPPORT.write_text(text)
    STUB.write_text(stub())
