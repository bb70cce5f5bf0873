"""The example programs: the quality that each reaches, and its picture."""

import importlib.util
import json
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from matplotlib import pyplot as plt

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def program(name):
    """An example as a module."""
    path = ROOT / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"example_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(name, capsys, tmp_path):
    """What an example prints in its small form; it draws its picture too."""
    module = program(name)
    picture = tmp_path / "plot.png"
    plt.close("all")
    module.main(["--quick", "--plot", str(picture)])
    assert picture.read_bytes().startswith(b"\x89PNG")
    (figure,) = map(plt.figure, plt.get_fignums())  # a notebook shows the figure that is open
    assert all(axes.has_data() for axes in figure.axes)
    plt.close(figure)
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


def test_the_elements_of_the_mesh():
    """Finite elements integrate 1 and the squared gradient of a linear function without error."""
    mesh = program("gaussian_field").Mesh(8)
    area = 64 * torch.ones((), dtype=torch.float64)
    torch.testing.assert_close(mesh.mass.sum(), area)
    torch.testing.assert_close(mesh.G @ torch.ones_like(mesh.mass), torch.zeros_like(mesh.mass))
    slopes = torch.tensor([2.0, -3.0], dtype=torch.float64)
    linear = mesh.points @ slopes
    torch.testing.assert_close(linear @ (mesh.G @ linear), 13 * area)
    # Away from the sides, the Laplacian of a linear function is 0.
    inside = ((mesh.points > 2) & (mesh.points < 6)).all(1)
    torch.testing.assert_close((mesh.G @ linear)[inside], torch.zeros(int(inside.sum())).double())


def test_label_propagation(capsys, tmp_path):
    text = run("label_propagation", capsys, tmp_path)
    citations, alike, learned = map(float, re.search(r"^mean (.*)$", text, re.MULTILINE)[1].split())
    assert learned > max(citations, alike)
    assert learned > 70
    assert text.endswith("good\n")


def test_spectral_clustering(capsys, tmp_path):
    pytest.importorskip("sklearn")
    text = run("spectral_clustering", capsys, tmp_path)
    alone, spectral, learned = map(float, re.search(r"^mean (.*)$", text, re.MULTILINE)[1].split())
    assert learned > spectral > alone
    before, after = map(float, re.search(r"known digits (\S+) -> (\S+)", text).groups())
    assert after < before
    assert text.endswith("good\n")


def test_tomography(capsys, tmp_path):
    text = run("tomography", capsys, tmp_path)
    assert number(text, "lsmr differs by") < 1e-4
    assert number(text, "relative error") < 0.6 * number(text, "of back projection")
    before, after = map(float, re.search(r"kept apart (\S+) -> (\S+)", text).groups())
    assert after < before
    assert text.endswith("good\n")


def test_graph_attention(capsys, tmp_path):
    pytest.importorskip("torch_geometric")
    text = run("graph_attention", capsys, tmp_path)
    assert number(text, "spgrad           test accuracy") > 70
    assert text.endswith("good\n")


def test_learned_edges(capsys, tmp_path):
    text = run("learned_edges", capsys, tmp_path)
    fixed, learned = re.search(
        r"^false links\s+(\S+) \+- \S+\s+(\S+) ", text, re.MULTILINE
    ).groups()
    assert float(learned) > float(fixed) - 3 > 40
    assert number(text, "false links weigh") < 0.9
    assert text.endswith("good\n")


def test_sparse_mlp(capsys, tmp_path):
    pytest.importorskip("sklearn")
    text = run("sparse_mlp", capsys, tmp_path)
    assert number(text, "RigL           20899 weights, test accuracy") > 90
    assert text.endswith("good\n")


def test_recommender(capsys, tmp_path):
    text = run("recommender", capsys, tmp_path)
    assert number(text, "3 layers") > number(text, "no layer") > number(text, "popular")
    assert text.endswith("good\n")


def test_text_classification(capsys, tmp_path):
    pytest.importorskip("sklearn")
    text = run("text_classification", capsys, tmp_path)
    assert number(text, "spgrad") > 80 > number(text, "to test\n")
    assert "integral" in re.search(r"^ +integrate (.*)$", text, re.MULTILINE)[1]  # tells most
    assert text.endswith("good\n")


def test_block_attention(capsys, tmp_path):
    text = run("block_attention", capsys, tmp_path)
    assert number(text, "near and global blocks:") > 95
    assert text.endswith("good\n")


def test_neighbor_sampling(capsys, tmp_path):
    text = run("neighbor_sampling", capsys, tmp_path)
    assert number(text, "with the graph") > number(text, "features alone") + 5
    assert text.endswith("good\n")


def test_two_processes(tmp_path):
    """In a process of its own, as it starts others."""
    picture = tmp_path / "plot.png"
    program = str(ROOT / "examples" / "two_processes.py")
    command = [sys.executable, "-W", "ignore", program, "--quick", "--plot", str(picture)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240)
    assert number(done.stdout, "differ by") < 1e-5
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_train_sharded(tmp_path):
    """In a process of its own, as it starts others."""
    picture = tmp_path / "plot.png"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    program = str(ROOT / "examples" / "train_sharded.py")
    arguments = "--quick", "--plot", str(picture), "--port", port
    command = [sys.executable, "-W", "ignore", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240)
    assert number(done.stdout, "groups ") > 95
    assert done.stdout.endswith("good\n")
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_page_shows_each_with_its_picture(path):
    page = (ROOT / "docs" / "examples.md").read_text()
    assert f"`examples/{path.name}`" in page
    assert f"](examples/{path.stem}.png)" in page
    assert (ROOT / "docs" / "examples" / f"{path.stem}.png").is_file()


@pytest.fixture(scope="module")
def tool():
    """What makes the notebooks."""
    spec = importlib.util.spec_from_file_location(
        "notebooks", ROOT / "docs" / "extensions" / "notebooks.py"
    )
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


def test_the_table_has_the_data_and_the_time_of_each(tool):
    assert set(tool.facts()) == {path.stem for path in EXAMPLES}
    for text in tool.facts().values():
        assert re.search("made by the program|licence|BSD", text)


def test_each_notebook_states_its_data_and_its_time_and_draws(tool):
    """The last cell draws; docs/extensions/figures.py checks in the build that a picture came."""
    for path in tool.programs():
        first, *_, last = json.loads(tool.notebook(path))["cells"]
        text = "".join(first["source"])
        assert re.search(r"\*\*Data:\*\* .*\d.*; .*\.\n", text)
        assert re.search(r"\*\*Time:\*\* \d+ s, and \d+ s with `--quick`, on an Intel Xeon", text)
        assert last["source"] == [f'main(["--quick", "--plot", "{path.stem}.png"])']
        assert "tags" not in last["metadata"]  # none hides the output


def test_notebooks_are_those_of_the_programs(tool):
    assert {p.stem for p in tool.GALLERY.glob("*.ipynb")} == {p.stem for p in tool.programs()}
    for path in tool.programs():
        written = (tool.GALLERY / f"{path.stem}.ipynb").read_text()
        assert written == tool.notebook(path), "run python docs/extensions/notebooks.py"
