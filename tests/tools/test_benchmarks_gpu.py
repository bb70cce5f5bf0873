"""The benchmark of the Triton kernels where there is no GPU: all but the clock of a device."""

import argparse
import contextlib
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from benchmarks.expected import WrongResultError
from benchmarks.gpu import __main__ as command
from benchmarks.gpu import clock, contenders, measure, paper, report, traffic
from benchmarks.gpu.cases import COLUMNS, DTYPES, KERNELS, MATRIX_NAMES, Case, Cell, cells
from benchmarks.gpu.traffic import Sizes

EVERYONE = [(kernel, name) for kernel in KERNELS for name in contenders.contenders(kernel)]
# Importing flex_attention takes seconds, and on CPUs it has no gradients.
LEFT_OUT = {(kernel, "flex_attention") for kernel in ("attention", "attention_step")}


def checked(kernel, name, dtype="float32", matrix="tiny"):
    columns = 16 if KERNELS[kernel].least else 1
    case = Case(Cell(kernel, matrix, columns, dtype), "cpu")
    run = contenders.contenders(kernel)[name](case)
    measure._check(run(), case.expected())
    measure._check(run(), case.expected())  # gradients are not added to those of the first call


@pytest.mark.parametrize(("kernel", "name"), sorted(set(EVERYONE) - LEFT_OUT))
def test_every_contender_is_right(kernel, name):
    if name.startswith("torch_geometric"):
        pytest.importorskip("torch_geometric")
    checked(kernel, name)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_spgrad_in_sixteen_bits(kernel, dtype):
    checked(kernel, contenders.OWN, dtype)
    checked(kernel, contenders.BELOW, dtype)


def test_what_is_wrong_is_said_and_not_timed(monkeypatch):
    def twice(case):
        run = contenders._own(case)
        return lambda: tuple(2 * t for t in run())

    def refused(case):
        raise NotImplementedError("not here\nnor there")

    offered = {contenders.OWN: contenders._own, "double": twice, "none": refused}
    monkeypatch.setattr(measure, "contenders", lambda kernel: offered)
    row = measure.measure(Cell("spmm", "tiny", 4, "float32"), "cpu", 1)
    assert row["found"]["none"] == {"absent": "NotImplementedError: not here"}
    assert list(row["found"]["double"]) == ["wrong"]
    assert row["found"][contenders.OWN]["seconds"]["n"] == 1
    text = report.markdown("a machine", 1e9, [row])
    assert "* spmm, tiny, 4, float32, double: result 0: off by up to" in text
    assert "* none, NotImplementedError: not here: spmm, tiny, 4, float32" in text


def test_a_missing_entry_is_found_in_every_dtype():
    for dtype in DTYPES:
        case = Case(Cell("spmm", "tiny", 32, dtype), "cpu")
        val = case.val.clone()
        val[val.abs().argmax()] = 0
        wrong = contenders._own_matrix(case, val) @ case.dense("x")
        with pytest.raises(WrongResultError):
            measure._check((wrong,), case.expected())


def test_a_broken_device_ends_the_process(monkeypatch):
    def broken(device):
        raise RuntimeError("CUDA error: an illegal memory access")

    def fails(case):
        raise RuntimeError("launch failed")

    monkeypatch.setattr(measure, "contenders", lambda kernel: {"bad": fails})
    monkeypatch.setattr(clock, "wait", broken)
    with pytest.raises(measure.DeviceBrokenError, match="bad: CUDA error: an illegal memory"):
        measure.measure(Cell("spmm", "tiny", 4, "float32"), "cpu", 1)


def test_without_a_device_it_says_what_it_needs(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert command.main([]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == command.NEEDS + "\n"
    assert said.err.count(". ") == 0


def test_one_command_measures_and_prints(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(clock, "copy_rate", lambda device: 1e10)
    given = "--device cpu --kernel spmm --matrix tiny --columns 1 8 --dtype float32"
    assert command.main([*given.split(), "--rounds", "3", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert out.count("\n| ") == 3  # a head, and a line for each cell
    kept = json.loads((tmp_path / "gpu.json").read_text())
    assert [row["kernel"] for row in kept["rows"]] == ["spmm", "spmm"]
    assert kept["rows"][0]["found"][contenders.OWN]["peak"] is None


def test_another_process_goes_on_after_a_broken_one(monkeypatch):
    """Of three cells a process ends at the second one, without a word of it."""
    todo = [Cell("spmm", "tiny", k, "float32") for k in (1, 2, 3)]

    def popen(argv, *, stdout, stderr, text, cwd):
        first = int(argv[-1])
        stderr.write("bad: illegal\n" * (first == 0))
        lines = [json.dumps(cell._asdict()) for cell in todo[first : first + 1 + first // 2]]
        return contextlib.nullcontext(SimpleNamespace(stdout=lines, wait=lambda: 1))

    monkeypatch.setattr(command.subprocess, "Popen", popen)
    options = argparse.Namespace(
        device="cpu", rounds=1, kernel=["spmm"], columns=[1], dtype=["float32"]
    )
    rows = list(command._of_matrix(options, "tiny", todo))
    assert [row.get("broke") for row in rows] == [None, "bad: illegal", None]
    assert [row["columns"] for row in rows] == [1, 2, 3]
    text = report.markdown("a machine", 1e9, rows[1:2])
    assert "* spmm, tiny, 2, float32: the process ended: bad: illegal" in text


def timed(ratio, seconds):
    spread = {"median": seconds, "q1": seconds, "q3": seconds, "min": seconds, "n": 3}
    around = {"median": ratio, "q1": ratio / 2, "q3": ratio * 2, "min": ratio / 2, "n": 3}
    own = {"seconds": spread, "peak": 2_000_000}
    others = {
        "near": {"seconds": spread, "ratio": around, "device ratio": around, "peak": 5_000_000},
        "far": {"seconds": spread, "ratio": {**around, "median": ratio + 1}, "peak": None},
    }
    sizes = {"near": 4_000_000, "far": 8_000_000}
    return {"kernel": "spmm", "matrix": "wing", "columns": 64, "dtype": "float32", **sizes,
            "found": {contenders.OWN: own, **others}}  # fmt: skip


def test_the_table_has_the_worst_ratio_first():
    rows = [timed(2.0, 1e-5), timed(0.5, 1e-4), timed(1.25, 1e-3)]
    lines = report.markdown("a machine", 8e11, rows).splitlines()
    assert lines[0] == "a machine; copies on the device move 800 GB/s"
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[4:]]
    ratios = ["**0.50 (0.25 to 1.00)**", "1.25 (0.62 to 2.50)", "2.00 (1.00 to 4.00)"]
    assert [cell[1] for cell in cells] == ratios
    assert cells[0][2:] == [
        "0.50",
        "100 (100 to 100)",
        "5 to 10",
        "2",
        "near",
        "100 (100 to 100)",
        "5",
    ]


def test_bytes_of_a_small_matrix():
    """3 x 5, 7 entries, 2 columns, 4 bytes: rows of 8 bytes."""
    s = Sizes(3, 5, 7, 2, 4)
    view, rows = 7 * 4 + 4 * 4, 7 * 8  # indices and pointers; gathered rows
    assert traffic.spmm(s) == (view + 7 * 4 + 3 * 8, rows, 5 * 8)
    assert traffic.spmm(s).far == 44 + 28 + 24 + 56
    assert traffic.spmm(s).near == 44 + 28 + 24 + 40
    assert traffic.sddmm(s) == (view + 7 * 4 + 3 * 8, rows, 40)
    assert traffic.spmm_sddmm(s) == (7 * 16 + 6 * 4 + 2 * 5 * 8, rows, 3 * 8)
    assert traffic.step(s).once == 96 + 216
    assert traffic.softmax(s) == (2 * 28 + 16, 0, 0)
    assert traffic.softmax_backward(s) == (3 * 28 + 16, 0, 0)
    assert traffic.softmax_step(s).near == traffic.softmax_step(s).far == 172
    assert traffic.attention(s) == (view + 3 * 4 + 2 * 24, 2 * rows, 2 * 40)
    backward = view + 28 + 6 * 4 + 2 * 3 * 4 + 3 * 24 + 4 * 40
    assert traffic.attention_backward(s) == (backward, 4 * rows + 56, 2 * 24 + 2 * 40 + 24)
    assert traffic.attention_step(s).gathered == 6 * rows + 56
    heads = s._replace(heads=8, columns=16)
    assert traffic.spmm(heads).once == view + 8 * 28 + 3 * 64
    x, number = 64, 32  # of a row: of x, and of a number in float32 for each head
    forward = view + 3 * (3 * number + x), 7 * (x + number), 5 * (x + number)
    assert traffic.additive_attention(heads) == forward
    split = traffic.additive_attention_split(heads)
    assert split == (forward[0] + 3 * (x + number), *forward[1:])
    by_rows, by_columns = 3 * (3 * x + 9 * number), 28 + 24 + 5 * 2 * (x + number)
    backward = by_rows + by_columns, 7 * (x + 4 * number), 3 * (x + 4 * number)
    assert traffic.additive_attention_backward(heads) == backward
    step = traffic.additive_attention_step(heads)
    assert step == tuple(a + b for a, b in zip(split, backward, strict=True))


def test_bytes_of_blocks():
    """4 x 8 in three blocks of 2 x 2, a column of 2 bytes."""
    s = Sizes(4, 8, 12, 1, 2, block=2)
    moved = traffic.block_spmm(s)
    assert moved == (12 * 2 + 3 * 4 + 3 * 4 + 4 * 2, 3 * 2 * 2, 8 * 2)
    assert moved.near == moved.far  # fewer rows are asked for than there are
    assert traffic.block_sddmm(s) == moved
    turned = (12 * 2 + 3 * 4 + 5 * 4 + 8 * 2, 12, 8)
    assert traffic.bsr_step(s) == tuple(2 * a + b for a, b in zip(moved, turned, strict=True))


@pytest.mark.parametrize(
    ("registers", "shared", "warps", "count"),
    [
        (32, 0, 4, 16),  # 64 warps
        (80, 1024, 4, 6),  # 24 warps by registers
        (81, 1024, 4, 5),  # 88 registers: 20 warps
        (255, 0, 4, 2),
        (32, 48 * 1024, 4, 4),  # 49 KB of 228
        (16, 0, 1, 32),
        (255, 0, 16, 0),  # too many registers for one
    ],
)
def test_programs_of_a_multiprocessor(registers, shared, warps, count):
    assert paper.programs(paper.MACHINES[0], registers, shared, warps) == count


def test_the_table_on_paper(monkeypatch):
    monkeypatch.setattr(paper, "fits", lambda *args: paper.Fits(70, 7, 4, 0))
    lines = paper.markdown(["spmm", "segment_softmax"], torch.float32, [64, 256]).splitlines()
    assert len(lines) == 5
    # 1.58 M entries of 8 bytes and 256 more of a row of x, pointers, rows of y; at 3.35 TB/s
    assert lines[2].startswith("| spmm | 64 | 422 | 22 | 126, 7 | 70 | 7 x 4 | 0 | 272, 14 | 70 ")
    assert lines[4].startswith("| segment_softmax | - | 13 | 13 | 4, 4 | 70 ")
    held = paper.markdown(["attention_backward"], torch.float32, [256])  # 38 MB in each pass
    assert "| 1981, 67 |" in held
    assert "*" not in held
    beyond = paper.markdown(["attention"], torch.float32, [512])
    assert "| 1958, 48* |" in beyond
    assert beyond.endswith("more than the L2 holds.\n")


def test_paper_knows_every_kernel():
    from spgrad.kernels.triton import MODULES

    assert MODULES.keys() - paper.KERNELS.keys() == set()


def test_cells_that_make_sense():
    found = cells(KERNELS, MATRIX_NAMES, COLUMNS, DTYPES)
    assert Cell("bsr", "blocks-16", 64, "float16") in found
    assert not any(c.kernel.startswith("bsr") != c.matrix.startswith("blocks") for c in found)
    assert {c.columns for c in found if c.kernel.startswith("softmax")} == {1}
    assert {c.columns for c in found if c.kernel == "heads"} == set(COLUMNS) - {1}
    assert [c.matrix for c in found] == sorted((c.matrix for c in found), key=MATRIX_NAMES.index)


def test_turns_time_every_run_in_every_round():
    calls = []
    runs = {name: lambda name=name: calls.append(name) for name in "ab"}
    taken = clock.in_turns(runs, 4, "cpu", sample=0)
    assert {name: len(samples) for name, samples in taken.items()} == {"a": 4, "b": 4}
    assert "".join(calls) == "aaabbb" + "abba" * 2
    assert np.all(np.array(list(taken.values())) >= 0)
    assert clock.copy_rate("cpu", 1 << 16) > 0
