"""The reports of the benchmarks, on invented figures: targets, tables, plots."""

import sys

import pytest

from benchmarks import matrices, measure, plots, report, summary, tables, targets


def made_up(
    own,
    peer,
    multiple=1.0,
    *,
    matrix="wing",
    op="step",
    limit=None,
    forward=None,
    k=32,
    dtype="float32",
):
    where = {"op": op, "matrix": matrix, "k": k, "threads": 1}
    settings = {"dtype": dtype, "layout": "csr", "index": "int32"}
    figures = {
        "spgrad": {"seconds": measure.spread([own])},
        "torch CSR": {
            "seconds": measure.spread([peer]),
            "ratio": measure.paired([peer], [own]),
        },
        "torch COO": {"error": "out of memory"},
    }
    if limit:
        figures["gather limit"] = {
            "seconds": measure.spread([limit]),
            "ratio": measure.paired([limit], [own]),
        }
    if forward:
        figures["spgrad A x"] = {
            "seconds": measure.spread([forward]),
            "ratio": measure.paired([forward], [own]),
        }
    held = {"spgrad": {"growth": 1e6, "needed": 2e6, "multiple": multiple}}
    machine = {
        "cpu": "a cpu", "cores": 2, "system": "Linux", "spgrad": "0", "compiled": True,
        "simd": "none", "versions": {"torch": "2"}, "absent": ["torch_sparse"],
        "date": "2030-01-01",
    }  # fmt: skip
    return {
        "machine": machine,
        "times": [{**where, **settings, "contenders": figures}],
        "memory": [{**where, **settings, "contenders": held}],
    }


@pytest.mark.parametrize(
    ("own", "multiple", "matrix", "met"),
    [
        (1.0, 1.1, "wing", [True, True]),
        (1.0, 1.3, "wing", [True, False]),
        (2.0, 1.2, "wing", [False, True]),
        (2.0, 1.1, "small-64", []),
    ],
)
def test_targets(own, multiple, matrix, met):
    run = made_up(own, 9.0, multiple, matrix=matrix)
    assert [found.met for found in targets.findings(run["times"], run["memory"])] == met


@pytest.mark.parametrize(("limit", "met"), [(0.85, True), (0.7, False)])
def test_a_limit_is_no_peer(limit, met):
    run = made_up(1.0, 2.0, 1.0, matrix="social", op="spmm", limit=limit)
    (result,) = run["times"]
    assert summary.best_peer(result) == "torch CSR"
    assert summary.share(result) == (limit, "gather limit")
    assert [found.met for found in targets.findings(run["times"], [])] == [True, True, met]


def test_the_best_peer_is_the_one_nearest_to_spgrad_in_the_same_rounds():
    (result,) = made_up(1.0, 3.0)["times"]
    ratio = measure.paired([4.0, 0.9, 0.9], [1.0, 1.0, 1.0])  # the machine was busy in one round
    result["contenders"]["SciPy"] = {"seconds": measure.spread([4.0]), "ratio": ratio}
    assert summary.best_peer(result) == "SciPy"
    assert [value for value, _ in summary.behind([result])] == [0.9]
    alone = {**result, "contenders": {"SciPy": {"seconds": measure.spread([4.0])}}}
    assert summary.best_peer(alone) == "SciPy"
    assert summary.best_ratio(alone) is None


def met_by(run, title):
    found = targets.findings(run["times"], run["memory"])
    return [f.met for f in found if f.target.title.startswith(title)]


@pytest.mark.parametrize(
    ("k", "ratio", "met"),
    [(1, 1.25, True), (4, 1.1, False), (16, 1.25, False), (16, 1.35, True), (256, 1.4, False)],
)
def test_targets_by_width(k, ratio, met):
    run = made_up(1.0, ratio, op="spmm", k=k)
    assert met_by(run, "A x nowhere slower") == [True]
    (mean,) = [t for t in targets.TARGETS if t.op == "spmm" and k in t.columns and not t.each][:1]
    assert met_by(run, mean.title) == [met]


def test_the_worst_cell_of_both_types_counts():
    fine, behind = made_up(1.0, 2.0, op="spmm"), made_up(1.0, 0.9, op="spmm", k=2, dtype="float64")
    times = [*fine["times"], *behind["times"]]
    first = next(iter(targets.findings(times, [])))
    assert (first.met, first.cells, first.where) == (False, 2, "wing, k = 2, float64")


@pytest.mark.parametrize("op", ["spmm_bsr", "step_bsr"])
def test_targets_of_blocks(op):
    run = made_up(1.0, 2.5, op=op, matrix="blocks-4")
    (result,) = run["times"]
    figures = result["contenders"].pop("torch CSR")
    result["contenders"] |= {"torch BSR": figures, "spgrad CSR": figures}
    assert summary.peers(result) == ["torch COO", "torch BSR"]
    over_torch = op == "spmm_bsr"
    assert [f.met for f in targets.findings(run["times"], [])] == [over_torch, True]


@pytest.mark.parametrize(
    ("matrix", "cache", "met"), [("wing", 0, [False]), ("wing", 2**30, [True]), ("fem", 0, [True])]
)
def test_targets_of_a_step_over_its_own_forward(matrix, cache, met):
    times = made_up(3.0, 99.0, matrix=matrix, forward=1.0)["times"]
    assert summary.best_peer(times[0]) == "torch CSR"
    found = [f for f in targets.findings(times, [], cache) if "over A x alone" in f.target.title]
    assert [f.met for f in found] == met
    assert [f.worst for f in found] == [3.0]


@pytest.mark.parametrize(("time", "met"), [(0.9, [True, True]), (1.2, [False, False])])
def test_targets_of_other_types(time, met):
    usual, other = made_up(1.0, 6.0, 1.0), made_up(time, 6.0, 1.0)
    other["times"][0]["dtype"] = "bfloat16"
    found = list(targets.findings([*usual["times"], *other["times"]], []))[1:]
    assert [f.met for f in found] == met


@pytest.mark.parametrize("with_rich", [True, False])
def test_report(with_rich, monkeypatch):
    if with_rich:
        pytest.importorskip("rich")
    else:
        monkeypatch.setitem(sys.modules, "rich", None)
    run, old = made_up(1.0, 4.0, 1.5), made_up(2.0, 4.0, 1.5)
    lines = []
    report.show(run, old, lines.append)
    text = "\n".join(lines)
    for part in ("4.00x torch CSR", "out of memory", "torch_sparse", "1.50x", "a cpu", "2.00x"):
        assert part in text
    assert ("│" in text) is with_rich


def test_markdown():
    lines = report.markdown(made_up(1.0, 4.0, 1.5)).splitlines()
    row = "| A x, dA and dx | wing | 32 | 1 | float32 | 1e+03 | 4e+03 (torch CSR) | 4.00x "
    row += "| - | 1 (1.50x) | - |"
    assert row in lines


def widths():
    """Two matrices with four values of k; one cell of each is behind."""
    ratios = {"wing": (1.5, 0.9, 2.0, 3.0), "MIT8": (0.5, 1.2, 1.4, 1.6)}
    cells = [
        (m, k, v) for m, found in ratios.items() for k, v in zip((1, 2, 4, 8), found, strict=True)
    ]
    alone = [made_up(1.0, v, op="spmm", matrix=m, k=k) for m, k, v in cells]
    steps = [made_up(2.0 + k, 99.0, matrix=m, k=k, forward=1.0) for m, k, _ in cells]
    run = alone[0]
    run["times"] = [result for made in (*alone, *steps) for result in made["times"]]
    return run


def test_the_worst_cells_come_first():
    behind, by_k = (table.rows for table in tables.tables(widths())[:2])
    assert [(row[1], row[2], row[-1]) for row in behind] == [
        ("MIT8", "1", "0.50x"),
        ("wing", "2", "0.90x"),
    ]
    assert [row[0] for row in by_k] == ["MIT8", "wing", "geometric mean"]
    assert by_k[0][3:] == ("0.50x", "1.20x", "1.40x", "1.60x", "0.50x", "10.00x (k = 8)")
    assert [isinstance(text, tables.Behind) for text in by_k[0][3:8]] == [
        True,
        False,
        False,
        False,
        True,
    ]


@pytest.mark.parametrize("with_rich", [True, False])
@pytest.mark.parametrize("terminal", [True, False])
def test_cells_behind_are_red_in_a_terminal(with_rich, terminal, monkeypatch):
    if with_rich:
        pytest.importorskip("rich")
    else:
        monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal, raising=False)
    lines = []
    report.show(widths(), None, lines.append)
    text = "\n".join(lines)
    assert ("\033[31m" in text) is terminal
    assert "0.50x" in text


def test_markdown_for_the_readme():
    text = report.readme(widths())
    product = "| A x | float32 | 1 | **0.50x / 0.87x** | **0.90x / 1.04x** | 1.40x / 1.67x |"
    product += " 1.60x / 2.19x | **0.50x MIT8, k = 1, torch CSR** | 2 of 8 | - |"
    assert product in text
    assert "| A x, dA and dx | float32 | 1 | 33.00x / 33.00x | 24.75x / 24.75x |" in text
    assert "| 9.90x wing, k = 8, torch CSR | 0 of 8 | 5.18x |" in text
    assert "**NO**" in text


def test_changes():
    run, old = made_up(1.0, 4.0, 1.5), made_up(2.0, 4.0, 1.5)
    assert [found[1:] for found in summary.changes(old["times"], run["times"])] == [(2.0, 1.0)]
    old["times"][0]["dtype"] = "float64"
    assert not list(summary.changes(old["times"], run["times"]))


def test_plots(tmp_path):
    runs = [made_up(1.0, 6.0, 1.0, op="spmm", limit=0.8, matrix=name) for name in matrices.GROWTH]
    times = [result for run in runs for result in run["times"]]
    assert plots.draw({"times": times}, tmp_path) == ["ratio.png", "growth.png", "limit.png"]
    assert plots.draw({"times": widths()["times"]}, tmp_path) == ["ratio.png", "widths.png"]
    assert plots.draw({"times": []}, tmp_path) == []
    assert all((tmp_path / f"{name}.png").stat().st_size > 5000 for name in ("ratio", "limit"))
