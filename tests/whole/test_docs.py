"""The documents say what the code does."""

import contextlib
import io
import re
from pathlib import Path

from spgrad.cli import markdown_table, summary_table

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def block(text):
    return re.search(r"<!-- support -->\n(.*?)<!-- /support -->", text, re.DOTALL)[1].strip()


def test_support_tables_are_those_of_the_code():
    """Mend with: python tests/whole/test_docs.py."""
    for path, table in TABLES.items():
        assert block(path.read_text()) == table()


def test_readme_example_prints_what_it_says():
    code, output = re.search(r"```python\n(.*?)```\n\n```\n(.*?)```", README, re.DOTALL).groups()
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {})
    assert printed.getvalue() == output


def test_linked_files_exist():
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"


TABLES = {ROOT / "README.md": summary_table, ROOT / "docs" / "support.md": markdown_table}

if __name__ == "__main__":
    for document, table in TABLES.items():
        text = document.read_text()
        start, end = text.index("<!-- support -->\n") + 17, text.index("<!-- /support -->")
        document.write_text(f"{text[:start]}{table()}\n{text[end:]}")
