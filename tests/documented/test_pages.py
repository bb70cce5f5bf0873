"""The programs of the documents print the output that stands below them."""

import codeop
import contextlib
import io
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ALL = [*sorted(DOCS.rglob("*.md")), *sorted(DOCS.parent.glob("*.md"))]
PAGES = [path for path in ALL if "migration" not in path.parts and "```python" in path.read_text()]
NEEDS = {"data.md": "scipy.sparse", "interop.md": "numpy", "solving.md": "scipy.sparse"}


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


PYTHON = [path for path in ALL if "```python" in path.read_text()]


@pytest.mark.parametrize("path", PYTHON, ids=lambda path: str(path.relative_to(DOCS.parent)))
def test_blocks_can_be_pasted_into_the_interpreter(path):
    """Before Python 3.13 it ends a loop or a function at the first empty line, and only there.

    It can't take a class whose methods have empty lines between them.
    """
    for language, text in BLOCK.findall(path.read_text()):
        if language != "python" or re.search(r"^class ", text, re.MULTILINE):
            continue
        pending = []
        for line in [*text.splitlines(), ""]:
            pending.append(line)
            if codeop.compile_command("\n".join(pending), symbol="single") is not None:
                pending = []
        assert pending in ([], [""])


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
