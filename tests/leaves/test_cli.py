"""The command line: help, the support table, and one line for each error."""

import os
import subprocess
import sys

import pytest

import spgrad
from spgrad import cli, kernels
from spgrad.io import files
from spgrad.support import ALL, OPS


def refused(capsys, *argv) -> str:
    """What main says when it refuses these words."""
    assert cli.main([str(word) for word in argv]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.endswith("\n")
    assert said.err.count("\n") == 1
    return said.err


@pytest.mark.parametrize("argv", [[], ["--help"], ["demo", "--help"], ["ops", "--help"]])
def test_help(argv, capsys):
    assert cli.main(argv) == 0
    assert capsys.readouterr().out.startswith("usage: spgrad")


def test_the_help_names_every_kind_of_file(capsys):
    assert cli.main(["info", "--help"]) == 0
    said = capsys.readouterr().out
    assert all(suffix in said for suffix in files.KINDS if not suffix.endswith(".gz"))


def test_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"spgrad {spgrad.__version__}\n"


def test_the_table_has_every_operation_and_signature(capsys):
    assert cli.main(["ops"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for row in OPS.values():
        if not row.layouts:
            assert any(line.startswith(f"{row.name} is refused: ") for line in lines)
            continue
        (line,) = (line for line in lines if line.split()[:2] in ([row.name, "x"], [row.name, "-"]))
        marks = line.split()[1 : 1 + len(ALL)]
        assert marks == ["x" if layout in row.layouts else "-" for layout in ALL]
        assert all(name in line for name in row.torch)
        assert all(f"    {signature}" in lines for signature in row.signatures)


def test_the_markdown_table_is_one_table(capsys):
    assert cli.main(["ops", "--markdown"]) == 0
    text = capsys.readouterr().out
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == len([row for row in OPS.values() if row.layouts]) + 2
    assert {row.replace(r"\|", "").count("|") for row in rows} == {len(ALL) + 5}
    assert all(f"| `{name}` |" in text for name, row in OPS.items() if row.layouts)
    assert all(f"`{name}`" in text for name in OPS)
    assert text == f"{cli.markdown_table()}\n"


def test_the_backend_of_each_kernel_is_that_of_the_dispatcher(capsys):
    assert cli.main(["ops", "--kernels"]) == 0
    lines = capsys.readouterr().out.splitlines()
    said = {line.split()[0]: line.split()[1:] for line in lines[1:] if len(line.split()) == 4}
    assert said.keys() == kernels.REFERENCES.keys()
    for name, (cpu, cuda, elsewhere) in said.items():
        assert cpu == ("compiled" if kernels.compiled() else cpu)
        assert (cuda == "triton") == (name in kernels.by_triton())
        assert (cuda == "native") == (name in kernels.NATIVE.keys() - set(kernels.by_triton()))
        assert elsewhere == "reference"
    assert cli.main(["ops", "--kernels", "--markdown"]) == 0
    assert capsys.readouterr().out == f"{cli.markdown_kernels()}\n"


@pytest.mark.parametrize(
    ("variables", "cpu", "cuda"),
    [
        ({"SPGRAD_NO_EXT": "1"}, "native", "triton"),
        ({"SPGRAD_NO_EXT": "1", "SPGRAD_NO_NATIVE": "1"}, "reference", "reference"),
    ],
)
def test_backends_that_are_switched_off_do_not_answer(variables, cpu, cuda):
    command = [sys.executable, "-c", "from spgrad.cli import main; main(['ops', '--kernels'])"]
    environment = {**os.environ, **variables}
    run = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    (line,) = (line for line in run.stdout.splitlines() if line.startswith("spmm "))
    if cuda == "triton" and not kernels.by_triton():
        cuda = "native"
    assert line.split()[1:] == [cpu, cuda, "reference"]


def test_missing_layouts_have_their_reason():
    assert "coalesce not for csr, csc, bsr, bsc: its indices are" in cli.plain_table()
    assert "* coalesce not for csr, csc, bsr, bsc: its indices are" in cli.markdown_table()


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["demo", "--epochs", "-3"], "`--epochs` is -3; a whole number of at least 1"),
        (["demo", "--epochs", "0"], "`--epochs` is 0; a whole number of at least 1"),
        (["demo", "--epochs", "1.5"], "`--epochs` is 1.5; a whole number"),
        (["demo", "--epochs"], "`--epochs` has no value; one value is accepted"),
        (["demo", "--seed", "x"], "`--seed` is x; a whole number of at least 0"),
        (["demo", "--seed", "9" * 30], "`--seed` is 999"),
        (["demo", "--seeds", "0"], "`--seeds` is 0; a whole number of at least 1"),
        (["demo", "--out", "picture.jpg"], "`--out` is picture.jpg; the path of a .png file"),
        (["demo", "--out", "no/folder/a.png"], "a folder that is there is accepted"),
        (["demo", "--what"], "unrecognized arguments: --what"),
        (["what"], "invalid choice: 'what' (choose from"),
    ],
)
def test_wrong_arguments(argv, says, capsys):
    assert says in refused(capsys, *argv)


@pytest.mark.parametrize("package", ["numpy", "matplotlib", "rich"])
def test_a_missing_package(package, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, package, None)
    assert cli.main(["demo"]) == 1
    said = capsys.readouterr().err
    assert said == (
        f"spgrad demo: {package} is not installed; this function needs numpy, matplotlib and rich. "
        "Install with: pip install 'spgrad[demo]'\n"
    )


def test_scipy_is_missing_where_it_is_needed(monkeypatch, capsys, tmp_path):
    path = tmp_path / "a.mtx"
    path.touch()
    monkeypatch.setitem(sys.modules, "scipy", None)
    assert cli.main(["demo", "--data", str(path)]) == 1
    assert capsys.readouterr().err.startswith("spgrad demo: scipy is not installed; this function")


def test_an_interrupt_is_no_traceback(monkeypatch, capsys):
    def interrupted(options):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_ops", interrupted)
    assert cli.main(["ops"]) == 1
    assert capsys.readouterr().err == "spgrad ops: interrupted.\n"


def test_a_reader_may_leave():
    """As in `python -m spgrad ops | head -1`."""
    process = subprocess.Popen(
        [sys.executable, "-m", "spgrad", "ops"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.close()
    assert b"Traceback" not in process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=120) == 1


def test_the_command_line_is_light():
    script = "import sys, spgrad.cli; print(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120
    )
    assert not {"scipy", "matplotlib", "rich", "spgrad.demo"} & set(run.stdout.split())
