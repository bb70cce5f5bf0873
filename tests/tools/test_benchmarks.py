"""The machinery of the benchmarks, on a tiny matrix; no test depends on how long things take."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp

from benchmarks import __main__ as command
from benchmarks import (
    formulas,
    limits,
    matrices,
    measure,
    plan,
    worker,
)
from benchmarks.expected import Expected, WrongResultError
from benchmarks.operations import OPS
from benchmarks.peers import CONTENDERS
from benchmarks.plan import EXACT_MEMORY, ROOT
from benchmarks.problems import Problem
from spgrad import support

TINY = Problem("tiny", 4)
# Contenders that compile take seconds for each operation: one operation is tested.
COMPILING = {"numba", "JAX BCOO", "pydata/sparse"}


def tiny(op, **others):
    """The smallest problem that an operation can be tried on."""
    dtypes = OPS[op].dtypes or ("float32",)
    return replace(Problem(OPS[op].smallest, 4, dtypes[0]), **others)


def results_of(contender, op, problem):
    return tuple(contender.read(result) for result in contender.prepare(op, problem)())


GRID = [
    (op, name)
    for op in OPS
    for name, c in CONTENDERS.items()
    if c.installed and c.offers(op, tiny(op).dtype) and (name not in COMPILING or op == "spmm")
]


@pytest.mark.parametrize(
    ("name", "n", "nse"),
    [
        ("MIT8", 6440, 502504),
        ("astro-ph", 16706, 242502),
        ("wing", 62032, 243088),
        ("memplus", 17758, 126150),
    ],
)
def test_real_matrices(name, n, nse):
    S = matrices.load(name, "float32")
    assert S.shape == (n, n)
    assert S.nnz == nse
    assert S.has_canonical_format
    pattern = sp.csr_array((np.ones(nse), S.indices, S.indptr), shape=S.shape)
    assert (pattern != pattern.T).nnz == 0


QUICK = [n for n, m in matrices.MATRICES.items() if m.group != "real" and m.entries < 4e6]


@pytest.mark.parametrize("name", QUICK)
def test_generated_matrices(name):
    S = matrices.load(name, "float64")
    claimed = matrices.MATRICES[name]
    assert S.shape == claimed.shape
    assert S.nnz == pytest.approx(claimed.entries, rel=0.01)
    again = sp.csr_array((S.data, S.indices, S.indptr), shape=S.shape)  # knows nothing of its order
    assert again.has_canonical_format
    assert S.indices.max() < S.shape[1]
    if name in ("social", "bipartite"):
        T = S.T.tocsr()
        assert np.array_equal(T.indices, S.indices)
        assert np.array_equal(T.indptr, S.indptr)
    assert S.indices.dtype == np.int32
    assert S.dtype == np.float64
    if claimed.group == "blocked":
        blocks = S.tobsr((claimed.block, claimed.block))
        assert blocks.nnz == S.nnz  # all of them are full
    if S.nnz < 1e6:
        assert np.array_equal(S.data, matrices.load(name, "float64").data)


def lengths(name):
    return np.diff(matrices.load(name, "float32").indptr)


def test_rows_of_the_generated_matrices():
    assert set(lengths("one-entry")) == {1}
    assert sorted(lengths("huge-row"))[-2:] == [4, 200_000]
    assert np.bincount(lengths("fem"), minlength=82).nonzero()[0].tolist() == [24, 36, 54, 81]
    assert lengths("diagonals")[32:-32].tolist() == [64] * (8_700 - 64)


def test_a_road_network_is_chains_and_local():
    S = matrices.load("road", "float32")
    degrees = np.diff(S.indptr)
    assert 2 <= degrees.mean() <= 2.5
    assert degrees.max() <= 4
    assert (degrees == 2).mean() > 0.8
    row, col = S.tocoo().coords
    assert (S.astype(bool) != S.T.astype(bool)).nnz == 0
    assert np.median(abs(row - col)) < 50


def test_a_chemical_process_has_clusters_and_no_symmetry():
    S = matrices.load("chemical", "float32")
    row, col = S.tocoo().coords
    apart = abs(row - col)
    assert (apart < 64).mean() > 0.95
    assert apart.max() > 640
    beside = np.diff(col)[np.diff(row) == 0] == 1
    assert beside.mean() > 0.8
    assert (S.astype(bool) != S.T.astype(bool)).nnz > S.nnz / 2


def test_bfloat16_is_rounded():
    exact, rounded = TINY, replace(TINY, dtype="bfloat16")
    for name in ("x", "g"):
        a, b = getattr(exact, name), getattr(rounded, name)
        assert b.dtype == np.float32
        assert not (b.view(np.uint32) & 0xFFFF).any()
        assert abs(a - b).max() <= abs(a).max() * 2**-8
    assert rounded.needed * 2 < exact.needed * 1.5


@pytest.mark.parametrize("op", ["spmm", "step", "attention_step", "softmax", "sum_rows"])
def test_spgrad_is_right_in_bfloat16(op):
    problem = replace(TINY, dtype="bfloat16")
    Expected.of(OPS[op], problem).check(results_of(CONTENDERS["spgrad"], op, problem))


def test_the_tiny_matrix_has_an_empty_and_a_full_row():
    assert {0, 60} <= set(np.diff(TINY.S.indptr))


@pytest.mark.parametrize("name", ["MIT8", "wing", "tall"])
def test_the_second_matrix_shares_half_of_the_elements(name):
    problem = Problem(name)
    shared = problem.S.multiply(problem.B).nnz
    assert problem.B.has_canonical_format
    assert shared / problem.S.nnz == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("op", OPS)
def test_every_operation_has_something_to_compare(op):
    dtype = tiny(op).dtype
    assert CONTENDERS["spgrad"].offers(op, dtype)
    modules = ("torch", "scipy", "pyamg")
    assert any(c.offers(op, dtype) for c in CONTENDERS.values() if c.module in modules)


@pytest.mark.parametrize("op", OPS)
def test_new_patterns_are_new_in_each_call(op):
    renewed = []
    own = CONTENDERS["spgrad"]
    counting = replace(own, renew=lambda A: renewed.append(A) or own.renew(A))
    run = counting.prepare(op, tiny(op))
    run()
    run()
    sparse = {name for name in OPS[op].operands if sp.issparse(getattr(tiny(op), name))}
    assert len(renewed) == 2 * OPS[op].new * len(sparse)


@pytest.mark.parametrize(("second", "tied"), [(1.0, True), (1 + 1e-8, True), (1.1, False)])
def test_a_tie_has_no_right_gradient(second, tied):
    S = sp.csr_array([[1.0, second]])
    p = SimpleNamespace(S=S, x=np.ones((2, 1)), g=np.full((1, 1), 3.0))
    y, dA, dx = formulas.mm_amax_step_sizes(p)
    assert y == pytest.approx(second)
    assert np.isinf(dA.data).tolist() == np.isinf(dx[:, 0]).tolist() == [tied, tied]
    results = formulas.mm_amax_step(p)
    assert results[1].data[1] == 3
    assert results[2][1] == pytest.approx(3 * second)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the libraries about themselves
@pytest.mark.filterwarnings("ignore:.*CG .* 50 iterations:UserWarning")  # as they were told to
@pytest.mark.parametrize(("op", "name"), GRID)
def test_contenders_are_right(op, name):
    contender, problem = CONTENDERS[name], tiny(op)
    if contender.limit:
        contender.prepare(op, problem)()  # sees to it itself
    else:
        Expected.of(OPS[op], problem).check(results_of(contender, op, problem))


@pytest.mark.parametrize("layout", ["coo", "csc"])
@pytest.mark.parametrize("op", OPS)
def test_spgrad_is_right_in_other_layouts(op, layout):
    problem = tiny(op, dtype="float64", layout=layout, index="int64")
    Expected.of(OPS[op], problem).check(results_of(CONTENDERS["spgrad"], op, problem))


@pytest.mark.parametrize("op", OPS)
def test_operations_are_rows_of_the_support_table(op):
    assert OPS[op].row in support.OPS


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("wrong", [1e-3, float("nan")])
def test_a_wrong_result_is_found(op, wrong):
    expected = Expected.of(OPS[op], tiny(op))
    own = CONTENDERS["spgrad"]
    *others, last = results_of(own, op, tiny(op)) if expected.compared else expected.results
    spoilt = last.copy()
    (spoilt.data if sp.issparse(spoilt) else spoilt.reshape(-1))[0] += wrong
    with pytest.raises(WrongResultError, match="off by"):
        expected.check((*others, spoilt))


def test_a_result_of_another_shape_is_found():
    expected = Expected.of(OPS["spmm"], TINY)
    with pytest.raises(WrongResultError, match="shape"):
        expected.check((expected.results[0].T,))
    with pytest.raises(WrongResultError, match="2 results"):
        expected.check(expected.results * 2)


def test_the_needed_memory():
    S, k = TINY.S, TINY.k
    A = 4 * (S.nnz + S.nnz + S.shape[0] + 1)
    x, y = 4 * k * S.shape[1], 4 * k * S.shape[0]
    assert TINY.operands == A + x
    assert TINY.needed == A + x + y + 4 * S.nnz + x
    assert replace(TINY, dtype="float64").operands == A + 4 * S.nnz + 2 * x


def test_turns():
    calls = []
    runs = {name: (lambda name=name: calls.append(name)) for name in "abc"}
    taken = measure.interleave(runs, rounds=4, seconds=60, sample=0)
    assert calls[3:] == [*"abc", *"bca", *"cab", *"abc"]  # the first three tell how long they take
    assert {name: len(samples) for name, samples in taken.items()} == dict.fromkeys("abc", 4)


def test_a_slow_run_leaves_after_three_rounds():
    taken = measure.interleave({"a": lambda: None}, rounds=9, seconds=-1, sample=0)
    assert len(taken["a"]) == 3


def test_spread_and_pairs():
    assert measure.spread([3.0, 1.0, 2.0, 5.0, 4.0]) == {
        "median": 3, "q1": 2, "q3": 4, "min": 1, "n": 5,
    }  # fmt: skip
    assert measure.spread([7.0])["q1"] == 7
    # the machine is ten times slower in the second round; the ratio is what it was
    assert measure.paired([4.0, 40.0, 4.0], [2.0, 20.0])["median"] == 2


@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is known on Linux only")
def test_peak_memory():
    program = """if True:
        import numpy as np
        from benchmarks.measure import growth
        kept = []
        def run():
            first = np.ones(10**6)
            kept.append(first + 1)
        run()
        print(growth(run))
    """
    env = {**os.environ, **EXACT_MEMORY, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", program]
    found = int(subprocess.run(command, env=env, check=True, capture_output=True).stdout)
    assert found == pytest.approx(3 * 8e6, rel=0.05)  # two are kept, and one is there besides


@pytest.mark.parametrize(
    "arguments",
    [
        ["--k", "0"],
        ["--op", "fft"],
        ["--matrix", "nowhere"],
        ["--repeats", "many"],
        ["--memory-limit", "-1"],
        ["--against", "no-such-file.json"],
        ["--against", __file__],
        ["--out", __file__],
        ["--minutes", "-1"],
        ["--unknown"],
    ],
)
def test_wrong_arguments_give_one_line(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        command.main(arguments)
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("benchmarks: ")
    assert error.count("\n") == 1


def test_full_leaves_out_what_says_nothing():
    everything = plan.Options(
        ops=tuple(OPS),
        matrices=("tiny", "small-64", "uniform-1e4", "tiny-poisson", "tiny-factor"),
        columns=(8, 32, 512),
        threads=(1,),
        dtypes=("float32", "float64"),
        indices=("int32", "int64"),
        full=True,
    )
    cells = list(everything.cells())
    assert len(set(cells)) == len(cells)
    small = [cell for cell in cells if cell.matrix == "small-64"]
    assert {(cell.op, cell.k) for cell in small} == {("spmm", 8), ("step", 8)}
    types = {(c.dtype, c.index) for c in cells if c.op == "spmm" and c.matrix == "tiny"}
    assert types == {("float32", "int32"), ("float64", "int32"), ("float32", "int64")}
    assert {cell.op for cell in cells} == set(OPS)
    assert {cell.k for cell in cells if cell.matrix == "tiny"} == {1, 8, 32, 512}


def test_full_compares_products_at_every_width():
    columns = tuple(sorted({*plan.WIDTHS, *plan.FULL_COLUMNS}))
    floats = ("float32", "float64", "bfloat16")
    names = ("wing", "blocks-4")
    options = plan.Options(tuple(OPS), names, columns, (1,), floats, full=True)
    found = {}
    for cell in options.cells():
        found.setdefault((cell.matrix, cell.op, cell.dtype), []).append(cell.k)
    for op in ("spmm", "step"):
        assert set(found["wing", op, "float64"]) == set(plan.WIDTHS)
        assert set(found["wing", op, "float32"]) == set(columns)
        assert found["wing", op, "bfloat16"] == [1, 32, 128]
    assert found["wing", "sddmm", "float32"] == [1, 8, 32, 128, 512]
    assert {op for matrix, op, _ in found if matrix == "blocks-4"} == {"spmm_bsr", "step_bsr"}
    assert ("wing", "spmm_bsr", "float32") not in found


def test_what_does_not_fit_is_left_out(monkeypatch):
    options = plan.Options(("spmm",), ("uniform-1e4", "uniform-1e8"), (32,), (1,))
    monkeypatch.setattr(plan, "available_memory", lambda: 2e9)
    assert [cell.matrix for cell in options.cells()] == ["uniform-1e4"]


def test_contenders_in_pairs_where_all_do_not_fit():
    names = ["spgrad", "torch CSR", "SciPy"]
    together = worker.time_cell("spmm", TINY, names, 3, 1)
    apart = worker.time_cell("spmm", TINY, names, 3, 1, limit=1)
    assert list(together) == list(apart) == names
    assert together["spgrad"]["seconds"]["n"] == 3
    assert apart["spgrad"]["seconds"]["n"] == 6
    assert apart["SciPy"]["ratio"]["n"] == 3


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("k", [8, 24, 128, 512])
def test_the_gather_limit_reads_every_row(dtype, k):
    if not limits.GATHER.installed:
        pytest.skip("no C++ compiler")
    for op, index in (("spmm", "int32"), ("sddmm", "int64")):
        limits.GATHER.prepare(op, Problem("tiny", k, dtype, index=index))()


def test_a_limit_that_reads_something_else_is_found(monkeypatch):
    monkeypatch.setattr(limits, "_library", lambda: lambda *arguments: 1e9)
    with pytest.raises(WrongResultError, match="sum of"):
        limits.GATHER.prepare("spmm", TINY)()


def test_bandwidth():
    assert set(limits.bandwidth(2**16)) == {"copy", "add"}


def test_a_whole_run(tmp_path, capsys):
    where = ["--matrix", "tiny", "--op", "spmm", "step", "--k", "4", "--threads", "1"]
    how = ["--peer", "torch CSR", "--quick", "--out", str(tmp_path)]
    assert command.main([*where, *how]) == 0
    printed, progress = capsys.readouterr()
    assert "A x, dA and dx" in printed
    assert sum(line.startswith("[") for line in progress.splitlines()) == 3
    limited = ["gather limit"] if limits.GATHER.installed else []
    assert (tmp_path / "ratio.png").exists()
    assert (tmp_path / "limit.png").exists() is bool(limited)
    run = json.loads((tmp_path / "results.json").read_text())
    assert [(r["op"], sorted(r["contenders"])) for r in run["times"]] == [
        ("spmm", [*limited, "spgrad", "torch CSR"]),
        ("step", ["spgrad", "spgrad A x", "torch CSR"]),
    ]
    for result in run["times"]:
        assert result["contenders"]["torch CSR"]["ratio"]["n"] >= 1
    (memory,) = run["memory"]
    if sys.platform == "linux":
        assert memory["contenders"]["spgrad"]["multiple"] > 0
    assert run["left"] == 0
    assert (tmp_path / "results.md").read_text().count("| tiny |") >= 3
