"""The pages of the API reference: every public name has an entry there."""

import importlib
import importlib.util
import re
import sys
from operator import attrgetter
from pathlib import Path

import pytest

import spgrad
from spgrad import support

PATH = Path(__file__).parents[2] / "docs" / "extensions" / "reference.py"
KIND = "(?:auto|py:)(?:function|class|module|data)"
ENTRY = re.compile(rf"^\.\. {KIND}:: (spgrad[\w.]*)", re.MULTILINE)


def loaded():
    spec = importlib.util.spec_from_file_location("reference", PATH)
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


@pytest.fixture(scope="module")
def tool():
    return loaded()


@pytest.fixture(scope="module")
def pages(tool):
    return tool.pages()


def entries(pages):
    return [name for text in pages.values() for name in ENTRY.findall(text)]


def test_the_pages_are_made_where_sphinx_is_not_installed(monkeypatch, pages):
    """So the suite runs on Python 3.10, where the site is not built."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "sphinx"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sphinx", None)
    assert loaded().pages() == pages


def test_every_public_name_has_one_entry(tool, pages):
    names = [f"spgrad.{name}" for name in spgrad.__all__]
    for module in tool.MODULES:
        found = importlib.import_module(f"spgrad.{module}")
        names += [f"spgrad.{module}.{name}" for name in found.__all__]
    found = entries(pages)
    assert sorted(found) == sorted(set(found))
    assert set(names) - set(found) == set()


def test_every_public_module_has_a_page(tool, pages):
    modules = {name for name in dir(spgrad) if hasattr(getattr(spgrad, name), "__path__")}
    assert modules <= set(tool.MODULES)
    assert {name.replace(".", "-") for name in tool.MODULES} <= set(pages)


def test_a_short_name_leads_to_an_entry(pages):
    """For example, spgrad.reorder leads to spgrad.linalg.reorder."""
    text = "\n".join(pages.values())
    found = entries(pages)
    led = re.findall(r"The same as :py:obj:`(.*?)`", text)
    assert "spgrad.linalg.reorder" in led
    assert set(led) <= set(found)


def test_the_pages_are_in_the_list(pages):
    listed = re.search(r":maxdepth: 1\n\n(.*?)\n```", pages["index"], re.DOTALL)[1].split()
    assert set(listed) == set(pages) - {"index"}


def test_badges_come_from_the_support_table(tool):
    """Also where the name has the package before it, as spgrad.graph.normalize."""
    for name in ("spgrad.linalg.solve", "spgrad.graph.normalize", "spgrad.graph.degree"):
        function = attrgetter(name.removeprefix("spgrad."))(spgrad)
        assert "1st and 2nd order" in tool.badges(name, function)[0]
    assert tool.badges("spgrad.graph.subgraph", spgrad.graph.subgraph)[1:] == [""]


def test_badges_outside_of_the_support_table(tool):
    """A gradient is said where the docstring says one."""
    gradient = ":bdg-primary:`gradient`"
    assert gradient in tool.badges("spgrad.from_pyg", spgrad.from_pyg)[0]
    assert gradient not in tool.badges("spgrad.io.load", spgrad.io.load)[0]


def test_badges_of_layouts_outside_of_the_support_table(tool):
    """tests/documented/test_layout_badges.py runs the functions."""
    coo, csr, csc, bsr, bsc = (f":bdg-success:`{layout}`" for layout in support.ALL)
    since = ":bdg-light:`since 0.1.0`"
    for name, shown in {
        "sparse_csr_tensor": [csr, since],
        "io.save": [coo, csr, csc, bsr, bsc, since],
        "interop.from_pandas": [coo, csr, csc, since],
        "compiled": [since],
    }.items():
        assert tool.badges(f"spgrad.{name}", attrgetter(name)(spgrad))[0] == " ".join(shown)
