"""The example programs: the quality that each reaches, and its picture."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def run(name, capsys, tmp_path):
    """What an example prints in its small form; it draws its picture too."""
    path = ROOT / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"example_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    picture = tmp_path / "plot.png"
    module.main(["--quick", "--plot", str(picture)])
    assert picture.read_bytes().startswith(b"\x89PNG")
    return capsys.readouterr().out


def number(text, before):
    """The number that follows some words."""
    return float(re.search(re.escape(before) + r"\s*([-+.\de]+)", text)[1])


def test_conductivity(capsys, tmp_path):
    text = run("conductivity", capsys, tmp_path)
    assert number(text, "differs from central differences by") < 1e-5
    assert 0.5 < number(text, "misfit") < 1.5
    assert number(text, "relative error of the log-conductivity") < 0.2
    assert text.endswith("good\n")


def test_gaussian_field(capsys, tmp_path):
    text = run("gaussian_field", capsys, tmp_path)
    for name, true in (("kappa", 0.3), ("tau", 1.0), ("sigma", 0.4)):
        assert abs(number(text, f"{name} ") - true) < 0.5 * true
    assert abs(number(text, "check") - 95) < 3
    assert number(text, "error") < 0.7 * number(text, "and")  # of the deviation of the field
    assert text.endswith("good\n")


def test_label_propagation(capsys, tmp_path):
    text = run("label_propagation", capsys, tmp_path)
    citations, alike, learned = map(float, re.search(r"^mean (.*)$", text, re.MULTILINE)[1].split())
    assert learned > max(citations, alike)
    assert learned > 70
    assert text.endswith("good\n")


def test_tomography(capsys, tmp_path):
    text = run("tomography", capsys, tmp_path)
    assert number(text, "lsmr differs by") < 1e-4
    assert number(text, "relative error") < 0.6 * number(text, "of back projection")
    before, after = map(float, re.search(r"kept apart (\S+) -> (\S+)", text).groups())
    assert after < before
    assert text.endswith("good\n")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_page_shows_each_with_its_picture(path):
    page = (ROOT / "docs" / "examples.md").read_text()
    assert f"`examples/{path.name}`" in page
    assert f"](examples/{path.stem}.png)" in page
    assert (ROOT / "docs" / "examples" / f"{path.stem}.png").is_file()
