"""Solvers in the benchmarks: which cells there are, what is right, which targets there are."""

import json
import math

import numpy as np
import pytest
import scipy.sparse as sp

from benchmarks import __main__ as command
from benchmarks import matrices, measure, plan, summary, targets
from benchmarks.expected import Expected, WrongResultError
from benchmarks.operations import OPS, SOLVERS
from benchmarks.peers import CONTENDERS
from benchmarks.problems import Problem
from benchmarks.solves import matrices as systems

ITERATIVE = ["cg", "cg_ic0", "cg_amg"]
POISSON = Problem("tiny-poisson", 1, "float64")


def options_of(*arguments):
    return command._options(command._parser().parse_args(arguments))


def cells_of(*arguments):
    return list(options_of(*arguments).cells())


def test_a_run_without_a_choice_has_no_solver():
    for arguments in ([], ["--widths"], ["--matrix", "all"], ["--op", "spmm", "sddmm"]):
        options = options_of(*arguments)
        assert not set(options.matrices) & set(matrices.SOLVES)
        assert options.dtypes[0] == "float32"
    assert not set(options_of().ops) & set(SOLVERS)


def test_solves_are_all_solvers_on_systems(monkeypatch):
    monkeypatch.setattr(plan, "available_memory", lambda: math.inf)
    cells = cells_of("--solves")
    assert {c.op for c in cells} == set(SOLVERS)
    assert {c.matrix for c in cells} == set(matrices.SOLVES)
    assert {c.dtype for c in cells} == {"float64"}
    assert {c.k for c in cells if c.op == "triangular"} == {1, 32}
    assert {c.matrix for c in cells_of("--solves", "--matrix", "tiny-factor")} == {"tiny-factor"}


def test_a_solver_has_matrices_of_its_own(monkeypatch):
    monkeypatch.setattr(plan, "available_memory", lambda: math.inf)
    found = [(c.matrix, c.k, c.dtype) for c in cells_of("--op", "cg", "triangular", "solve_step")]
    assert found == [
        ("poisson-250", 1, "float64"),
        ("poisson-250", 1, "float64"),  # the direct step; a larger grid is not factored
        ("poisson-1000", 1, "float64"),
        ("factor-400", 1, "float64"),
        ("factor-400", 32, "float64"),
    ]
    mixed = {(c.op, c.matrix, c.dtype) for c in cells_of("--op", "spmv", "cg")}
    assert {("spmv", "MIT8", "float32"), ("cg", "poisson-1000", "float64")} <= mixed
    assert {op for op, matrix, _ in mixed if matrix == "MIT8"} == {"spmv"}


def test_full_has_solvers_on_their_matrices_alone(monkeypatch):
    monkeypatch.setattr(plan, "available_memory", lambda: math.inf)
    cells = [c for c in cells_of("--full", "--threads", "1") if c.op in SOLVERS]
    others = cells_of("--full", "--threads", "1", "--matrix", "solves")
    assert {c.matrix for c in cells} == set(matrices.SOLVES)
    assert {c.op for c in cells} == {c.op for c in others} == set(SOLVERS)
    assert {c.dtype for c in cells if c.op in ITERATIVE} == {"float64"}
    assert {c.dtype for c in cells if c.op == "triangular"} == {"float32", "float64"}
    assert {c.k for c in cells if c.op == "triangular"} == {1, 32}


def test_memory_is_that_of_steps():
    cells = plan.memory_cells(options_of("--op", "cg", "cg_50_step", "--matrix", "poisson-250"))
    assert [(c.op, c.matrix, c.dtype) for c in cells] == [("cg_50_step", "poisson-250", "float64")]
    asked = plan._request(options_of(), cells[0], [*CONTENDERS], "memory")["contenders"]
    assert {"spgrad", "spgrad forward"} <= set(asked)
    assert "step limit" not in asked


@pytest.mark.parametrize("side", [3, 10])
def test_poisson(side):
    S = systems.poisson(side, np.random.default_rng()).toarray()
    assert np.array_equal(S, S.T)
    waves = np.cos(np.pi * np.arange(1, side + 1) / (side + 1))
    wanted = 4 - 2 * waves[:, None] - 2 * waves
    assert np.linalg.eigvalsh(S) == pytest.approx(np.sort(wanted, axis=None))


def test_a_factor_is_triangular_and_kept(tmp_path, monkeypatch):
    L = matrices.load("tiny-factor", "float64")
    assert sp.triu(L, 1).nnz == 0
    assert np.array_equal(L.diagonal(), np.ones(L.shape[0]))
    made = []
    monkeypatch.setattr(systems, "ROOT", tmp_path)
    monkeypatch.setattr(systems, "_lower", lambda side, rng: made.append(side) or L)
    first, second = (systems.factor(100, np.random.default_rng()) for _ in range(2))
    assert made == [100]
    assert (first != second).nnz == (first != L).nnz == 0
    assert len(list(tmp_path.rglob("*"))) == len(["build", "benchmarks", "file"])


@pytest.mark.parametrize("op", ITERATIVE)
def test_a_residual_above_the_tolerance_is_found(op):
    expected = Expected.of(OPS[op], POISSON)
    x = np.linalg.solve(POISSON.S.toarray(), POISSON.column)
    b = np.linalg.norm(POISSON.column)
    away = np.linalg.solve(POISSON.S.toarray(), np.full(len(x), b / np.sqrt(len(x))))
    expected.check((x + 0.99e-6 * away,))
    with pytest.raises(WrongResultError, match="off by"):
        expected.check((x + 1.01e-6 * away,))


@pytest.mark.parametrize("op", ["solve_step", "cg_50_step", "logdet_step"])
@pytest.mark.parametrize("which", [0, 1])
def test_a_wrong_gradient_or_value_is_found(op, which):
    found = [CONTENDERS["spgrad"].read(a) for a in CONTENDERS["spgrad"].prepare(op, POISSON)()]
    expected = Expected.of(OPS[op], POISSON)
    expected.check(tuple(found))
    found[which] = found[which] * (1 + 1e-6)
    with pytest.raises(WrongResultError, match="off by"):
        expected.check(tuple(found))


@pytest.mark.parametrize("which", [0, -1])
def test_the_gradient_of_a_determinant_is_compared_at_single_elements(which):
    """Two elements that are wrong alike, so that the trace of A^-1 A is what it was."""
    value, gradient = (
        CONTENDERS["spgrad"].read(a) for a in CONTENDERS["spgrad"].prepare("logdet_step", POISSON)()
    )
    row, col = POISSON.S.tocoo().coords
    first = POISSON.S.shape[0] - 1 if which else 0  # rows that are looked at
    at = np.flatnonzero((row == first) & (col != first))
    gradient.data[at[0]] += 1e-3
    gradient.data[at[1]] -= 1e-3
    with pytest.raises(WrongResultError, match="off by"):
        Expected.of(OPS["logdet_step"], POISSON).check((value, gradient))


def test_a_long_call_is_timed_once(monkeypatch):
    monkeypatch.setattr(measure, "_LONG", -1.0)
    taken = measure.interleave({"a": lambda: None}, rounds=9, seconds=-1, sample=0)
    assert len(taken["a"]) == 1


def figures(op, others, matrix="poisson-1000", k=1):
    """A cell in which spgrad takes a second, and the others as long as it says."""
    found = {"spgrad": {"seconds": measure.spread([1.0])}}
    for name, taken in others.items():
        found[name] = {
            "seconds": measure.spread([taken]),
            "ratio": measure.paired([taken], [1.0]),
        }
    where = {"op": op, "matrix": matrix, "k": k, "threads": 1, "layout": "csr"}
    return {**where, "dtype": "float64", "index": "int32", "contenders": found}


@pytest.mark.parametrize(
    ("op", "name", "taken", "met"),
    [
        ("cg", "SciPy", 2.6, True),
        ("cg", "SciPy", 2.4, False),
        ("cg", "torch-sla", 4.9, False),
        ("cg", "torchsparsegradutils", 4.1, True),
        ("cg_ic0", "spgrad CG", 2.1, True),
        ("cg_amg", "spgrad CG", 5.9, False),
        ("cg_50", "step limit", 0.81, True),
        ("cg_50", "step limit", 0.79, False),
        ("triangular", "spgrad A x", 0.7, True),
        ("triangular", "spgrad A x", 0.6, False),
        ("triangular", "torch CSR", 7.9, False),
        ("triangular", "SciPy", 5.1, True),
        ("solve_step", "engine alone", 0.88, True),
        ("solve_step", "engine alone", 0.86, False),
        ("refactor", "spgrad factor", 1.1, True),
        ("refactor", "spgrad factor", 0.9, False),
        ("logdet_step", "spgrad forward", 0.26, True),
        ("logdet_step", "spgrad forward", 0.24, False),
    ],
)
def test_targets_of_solvers(op, name, taken, met):
    (found,) = targets.findings([figures(op, {name: taken})], [])
    assert (found.met, found.cells) == (met, 1)


def test_substitution_of_many_columns_is_compared_with_a_product_alone():
    cell = figures("triangular", {"SciPy": 9, "torch CSR": 9, "spgrad A x": 1}, k=32)
    (found,) = targets.findings([cell], [])
    assert found.target.title == "triangular substitution over A x"


@pytest.mark.parametrize(("vectors", "met"), [(6, True), (7, False)])
def test_the_target_of_memory(vectors, met):
    cell = figures("cg_50_step", {})
    vector = 8 * 10**6
    held = {"spgrad": (5 + vectors) * vector, "spgrad forward": 5 * vector}
    cell["contenders"] = {name: {"growth": grown} for name, grown in held.items()}
    (found,) = targets.findings([], [cell])
    assert (found.met, found.worst) == (met, vectors)
    cell["contenders"]["spgrad forward"] = {"error": "out of memory"}
    assert not list(targets.findings([], [cell]))


def test_the_furthest_from_its_bound_is_the_first():
    cells = [
        figures("cg", {"SciPy": 2.0, "torch-sla": 2.5, "torchsparsegradutils": 4.0}),
        figures("cg_50", {"step limit": 0.4}),
    ]
    run = {"times": cells, "memory": [], "machine": {}}
    rows = command.report.target_table(run).rows
    assert [row[0] for row in rows] == [
        "CG 5 times as fast as torch-sla",
        "a step of CG over A p and moving its vectors once",
        "CG 2.5 times as fast as SciPy",
        "CG 4 times as fast as torchsparsegradutils",
    ]
    assert [row[-1] for row in rows] == ["NO", "NO", "NO", "yes"]


def test_parts_are_no_peers():
    names = {"SciPy": 3.0, **dict.fromkeys((*summary.PARTS, *summary.LIMITS), 0.1)}
    cell = figures("cg", names)
    assert summary.best_peer(cell) == "SciPy"
    assert {*summary.PARTS, "step limit"} <= {*CONTENDERS}


def test_a_run_of_solvers(tmp_path, capsys):
    where = ["--op", "cg", "cg_50", "triangular", "--matrix", "tiny-poisson", "tiny-factor"]
    how = ["--peer", "SciPy", "--quick", "--k", "1", "--out", str(tmp_path)]
    assert command.main([*where, *how]) == 0
    assert "CG to 1e-6" in capsys.readouterr()[0]
    run = json.loads((tmp_path / "results.json").read_text())
    assert {r["op"]: sorted(r["contenders"]) for r in run["times"]} == {
        "cg": ["SciPy", "spgrad"],
        "cg_50": ["SciPy", "spgrad", "step limit"],
        "triangular": ["SciPy", "spgrad", "spgrad A x"],
    }
    assert not [c for r in run["times"] for c in r["contenders"].values() if "error" in c]
