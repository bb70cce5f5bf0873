"""What the benchmarks make of their figures: targets, tables, plots; on made-up ones."""

import sys

import pytest

from benchmarks import matrices, measure, plots, report, summary, targets


def made_up(own, peer, multiple, *, matrix="wing", op="step", limit=None):
    where = {"op": op, "matrix": matrix, "k": 32, "threads": 1}
    settings = {"dtype": "float32", "layout": "csr", "index": "int32"}
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
    run = made_up(own, 6.0, multiple, matrix=matrix)
    assert [found.met for found in targets.findings(run["times"], run["memory"])] == met


@pytest.mark.parametrize(("limit", "met"), [(0.85, True), (0.7, False)])
def test_a_limit_is_no_peer(limit, met):
    run = made_up(1.0, 2.0, 1.0, matrix="social", op="spmm", limit=limit)
    (result,) = run["times"]
    assert summary.best_peer(result) == "torch CSR"
    assert summary.share(result) == (limit, "gather limit")
    assert [found.met for found in targets.findings(run["times"], [])] == [True, True, met]


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


def test_changes():
    run, old = made_up(1.0, 4.0, 1.5), made_up(2.0, 4.0, 1.5)
    assert [found[1:] for found in summary.changes(old["times"], run["times"])] == [(2.0, 1.0)]
    old["times"][0]["dtype"] = "float64"
    assert not list(summary.changes(old["times"], run["times"]))


def test_plots(tmp_path):
    runs = [made_up(1.0, 6.0, 1.0, op="spmm", limit=0.8, matrix=name) for name in matrices.GROWTH]
    times = [result for run in runs for result in run["times"]]
    assert plots.draw({"times": times}, tmp_path) == ["ratio.png", "growth.png", "limit.png"]
    assert plots.draw({"times": []}, tmp_path) == []
    assert all((tmp_path / f"{name}.png").stat().st_size > 5000 for name in ("ratio", "limit"))
