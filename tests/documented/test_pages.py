"""The programs of the documents print the output that stands below them."""

import contextlib
import io
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = [
    path
    for path in sorted(DOCS.rglob("*.md"))
    if "migration" not in path.parts and "```python" in path.read_text()
]
NEEDS = {"data.md": "scipy.sparse", "solving.md": "scipy.sparse"}


@pytest.mark.filterwarnings("ignore:.torch.jit.*is deprecated")
@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(DOCS)))
def test_the_page_prints_what_it_says(path):
    """The blocks of a page run in order, as one program; a block without language is output."""
    if path.name in NEEDS:
        pytest.importorskip(NEEDS[path.name])
    names, printed = {"__name__": "page"}, ""
    for language, text in BLOCK.findall(path.read_text()):
        if language == "python":
            assert printed == "", "the output of the block before stands nowhere"
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(text, names)
            printed = out.getvalue()
        elif language == "" and printed:
            assert text == printed
            printed = ""
    assert printed == "", "the output of the last block stands nowhere"
