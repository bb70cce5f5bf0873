"""The programs of the documents print the output that stands below them."""

import contextlib
import io
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ALL = [*sorted(DOCS.rglob("*.md")), *sorted(DOCS.parent.glob("*.md"))]
PAGES = [path for path in ALL if "migration" not in path.parts and "```python" in path.read_text()]
NEEDS = {"data.md": "scipy.sparse", "solving.md": "scipy.sparse"}


@pytest.mark.filterwarnings("ignore:.torch.jit.*is deprecated")
@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(DOCS.parent)))
def test_the_page_prints_what_it_says(path, tmp_path, monkeypatch):
    """The blocks of a page run in order, as one program; the block behind one is its output.

    They run in an empty folder, as a reader has no file of this repository.
    """
    if path.name in NEEDS:
        pytest.importorskip(NEEDS[path.name])
    monkeypatch.chdir(tmp_path)
    names, printed = {"__name__": "page"}, None
    for language, text in BLOCK.findall(path.read_text()):
        if language == "python":
            assert not printed, "the output of the block before stands nowhere"
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(text, names)
            printed = out.getvalue()
        elif language == "" and printed is not None:
            assert text == printed
            printed = None
    assert not printed, "the output of the last block stands nowhere"


@pytest.mark.parametrize("path", ALL, ids=lambda path: str(path.relative_to(DOCS.parent)))
def test_no_code_stands_in_a_block_that_does_not_run(path):
    """Python is marked as such, at the beginning of a line; and each page that has some runs."""
    text = path.read_text()
    run = sum(language == "python" for language, _ in BLOCK.findall(text))
    assert run == len(
        re.findall(r"^[ >]*(?:```|~~~|:::)+\{?[\w-]*\}? *(?:python|py|ipython)", text, re.MULTILINE)
    )
    assert (run > 0) == (path in PAGES or ("migration" in path.parts and path.stem != "index"))
    for language, block in BLOCK.findall(text):
        if language != "python":
            assert "import spgrad" not in block
