"""The demo: its data, its networks, its measurements, and one run from end to end."""

import contextlib
import io
import multiprocessing
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import scipy.sparse
import torch
from rich.console import Console

from spgrad import cli
from spgrad.demo import compare, data, model, report, step
from spgrad.errors import ArgumentValueError

CORA = Path(data.__file__).parent / "cora" / "cora.npz"


@pytest.fixture(scope="module")
def cora():
    return data.load()


@pytest.fixture(scope="module")
def arrays():
    """What cora.npz holds."""
    with np.load(CORA, allow_pickle=False) as file:
        return {key: file[key] for key in file.files}


@pytest.fixture
def communities(tmp_path):
    """A .mtx file of three groups of 20 nodes with links mostly within."""
    rng = np.random.default_rng(0)
    group = np.arange(60) // 20
    chance = np.where(group[:, None] == group, 0.3, 0.01)
    path = tmp_path / "communities.mtx"
    scipy.io.mmwrite(path, scipy.sparse.coo_array(rng.random((60, 60)) < chance).astype(float))
    return path


def test_the_demo_needs_no_name_that_python_3_14_removed():
    program = "import importlib.abc as a; vars(a).pop('Traversable', None); import spgrad.demo.data"
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True)


def test_cora_is_the_graph_that_is_documented(cora):
    assert cora.adjacency.shape == (2708, 2708)
    assert cora.features.shape == (2708, 1433)
    assert cora.features.nse == 49216
    assert cora.links == 5278
    assert cora.adjacency.nse == 2 * 5278 + 2708
    assert len(cora.classes) == 7
    assert (CORA.parent / "LICENSE").is_file()


def test_the_adjacency_is_the_symmetric_normalisation(cora, arrays):
    S = scipy.sparse.csr_array(
        tuple(arrays[f"adj_{part}"] for part in ("data", "indices", "indptr")), shape=(2708, 2708)
    )
    S = ((S + S.T + scipy.sparse.eye_array(2708)) != 0).astype(float)
    scale = scipy.sparse.diags_array(S.sum(1) ** -0.5)
    expected = torch.from_numpy((scale @ S @ scale).toarray()).float()
    torch.testing.assert_close(cora.adjacency.to_dense(), expected)


def test_rows_of_features_sum_to_one(cora):
    total = cora.features.to_dense().sum(1)
    torch.testing.assert_close(total, torch.ones_like(total))


def test_a_split_is_disjoint_balanced_and_repeatable(cora):
    parts = data.split(cora, 3)
    assert [part.numel() for part in (parts.train, parts.validation, parts.test)] == [
        140,
        500,
        1000,
    ]
    assert cora.labels[parts.train].bincount().tolist() == [20] * 7
    assert torch.cat([parts.train, parts.validation, parts.test]).unique().numel() == 1640
    assert torch.equal(data.split(cora, 3).test, parts.test)
    assert not torch.equal(data.split(cora, 4).test, parts.test)


def test_the_gradient_of_an_edge_is_that_of_the_dense_network(cora):
    network = model.GraphNetwork(cora, learn_edges=True).eval()
    labels = cora.labels
    torch.nn.functional.cross_entropy(network(), labels).backward()
    A = cora.adjacency.to_dense().requires_grad_()
    X = cora.features.to_dense()
    hidden = torch.relu(A @ (X @ network.first.detach()) + network.bias.detach())
    scores = A @ (hidden @ network.second.detach())
    torch.nn.functional.cross_entropy(scores, labels).backward()
    row = torch.repeat_interleave(cora.adjacency.crow_indices().diff())
    # d/ds of w exp(s) at s = 0 is w
    expected = A.grad[row, cora.adjacency.col_indices()] * cora.adjacency.values()
    torch.testing.assert_close(network.scale.grad, expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("learn_edges", [False, True])
def test_training_learns(cora, learn_edges):
    before = torch.get_rng_state()
    ticks = []
    options = {"learn_edges": learn_edges, "epochs": 60, "seed": 0}
    torch.set_num_threads(1)
    run = model.train(cora, data.split(cora, 0), advance=lambda: ticks.append(1), **options)
    assert torch.equal(torch.get_rng_state(), before)
    assert len(ticks) == len(run.loss) == len(run.validation) == 60
    assert run.loss[-1] < 0.7 * run.loss[0]
    assert run.test > 0.5
    assert run.validation[run.best] == max(run.validation)
    if learn_edges:
        assert (run.scale > 0).all()
        assert run.scale.ne(1).any()
    else:
        assert run.scale is None


def test_a_graph_and_its_split_move_to_a_device(cora):
    there, parts = cora.to("meta"), data.split(cora, 0).to("meta")
    network = model.GraphNetwork(there, learn_edges=True).to("meta")
    network()[parts.train].sum().backward()
    assert {p.grad.device.type for p in network.parameters()} == {"meta"}
    assert there.labels.device.type == "meta"


@pytest.mark.parametrize("found", [0, 2])
def test_a_device_that_is_not_there_is_refused(found, communities, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: found > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: found)
    device = f"cuda:{found}" if found else "cuda"
    out = tmp_path / "picture.png"
    words = ["demo", "--data", communities, "--out", out, "--device", device]
    assert cli.main([str(word) for word in words]) == 2
    accepted = "cpu, cuda, cuda:0, cuda:1 are" if found else "cpu is"
    said = f"spgrad demo: `--device` is {device}; {accepted} accepted, as torch finds no other"
    assert capsys.readouterr().err.startswith(said)
    assert not out.exists()


@pytest.mark.parametrize("competitor", compare.COMPETITORS, ids=lambda c: "-".join(c[:3]))
def test_competitors_make_the_same_step(competitor, communities):
    A = data.load(communities).adjacency
    parts = (A.crow_indices().numpy(), A.col_indices().numpy(), A.values().numpy())
    matrix = step.Matrix(*parts, tuple(A.shape), 3)
    gradients = [step._step(c, matrix)() for c in (compare.COMPETITORS[0], competitor)]
    row = torch.repeat_interleave(A.crow_indices().diff())
    ours, theirs = (step._on_elements(g, row, A.col_indices()) for g in gradients)
    torch.testing.assert_close(ours, theirs)


def test_a_step_that_needs_too_much_memory_is_refused(communities, monkeypatch):
    monkeypatch.setattr(step, "_memory", lambda: 1000)
    A = data.load(communities).adjacency
    parts = (A.crow_indices().numpy(), A.col_indices().numpy(), A.values().numpy())
    matrix = step.Matrix(*parts, tuple(A.shape), 3)
    for competitor in compare.COMPETITORS:
        if competitor.dense:
            with pytest.raises(MemoryError, match="not tried: "):
                step._prepare(competitor, matrix)
        else:
            step._prepare(competitor, matrix)


def test_a_competitor_that_ends_is_no_end_of_the_demo(communities, monkeypatch):
    @contextlib.contextmanager
    def ended(competitor, matrix):
        here, there = multiprocessing.Pipe()
        there.send({"memory": 1, "gradient": 1})
        there.close()
        yield here
        here.close()

    monkeypatch.setattr(compare, "COMPETITORS", compare.COMPETITORS[:1])
    monkeypatch.setattr(compare, "_process", ended)
    A = data.load(communities).adjacency
    (result,) = compare.compare(A, 3, lambda: None)
    assert result.seconds is None
    assert result.failure == "ended by the system"


def test_the_demo_runs_to_its_end(communities, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(compare, "COMPETITORS", compare.COMPETITORS[::2])  # processes start slowly
    out = tmp_path / "picture.png"
    before = (torch.get_num_threads(), os.environ.get("SPGRAD_NO_EXT"))
    words = ["demo", "--data", communities, "--out", out, "--epochs", 3, "--seeds", 2]
    words += ["--device", "cpu"]
    assert cli.main([str(word) for word in words]) == 0
    assert (torch.get_num_threads(), os.environ.get("SPGRAD_NO_EXT")) == before
    said = capsys.readouterr().out
    for part in ("communities: 60 nodes", "learned - given", "A.grad", "picture.png"):
        assert part in said
    for competitor in compare.COMPETITORS:
        assert f"{competitor.library} {competitor.layout}" in said
    assert "nan" not in said
    assert out.read_bytes().startswith(b"\x89PNG")


def test_a_step_that_raises_no_peak_has_no_ratio():
    assert report._ratio(3.0, 2.0) == "1.5"
    assert report._ratio(0, 5) == "0.0"
    assert report._ratio(7, 0) == report._ratio(0, 0) == "-"


def test_a_matrix_alone_has_regions_for_classes(tmp_path):
    chain = scipy.sparse.diags_array(np.ones(39), offsets=1, shape=(40, 40), format="csc")
    path = tmp_path / "chain.npz"
    scipy.sparse.save_npz(path, chain)
    graph = data.load(path)
    assert graph.links == 39
    assert len(graph.classes) == data.ANCHORS
    assert graph.labels.diff().ne(0).sum() == data.ANCHORS - 1  # the regions hang together
    parts = data.split(graph, 0)
    assert parts.train.numel() + parts.validation.numel() + parts.test.numel() == 40


def test_own_data_with_the_keys_of_cora(arrays, tmp_path, cora):
    path = tmp_path / "own.npz"
    np.savez(path, **{**arrays, "labels": arrays["labels"] * 10 - 5})
    graph = data.load(path)
    assert torch.equal(graph.labels, cora.labels)
    assert graph.name == "own"


def broken(arrays, key, value):
    return {**{k: v for k, v in arrays.items() if k != "node_names"}, key: value}


@pytest.mark.parametrize(
    ("key", "change", "says"),
    [
        ("labels", lambda v: v[:-1], r"has labels int8 \(2707,\)"),
        ("labels", lambda v: v.astype(float), "one integer label and one row of features"),
        ("labels", lambda v: 0 * v, "has 2708 nodes in 1 classes"),
        ("labels", lambda v: v.astype(object), "allow_pickle"),
        ("adj_shape", lambda v: v + np.arange(2), r"holds a matrix of shape \(2708, 2709\)"),
        ("adj_shape", lambda v: -v, "two positive sizes are accepted"),
        ("adj_indices", lambda v: v + 2000, r"has adj_indices outside \[0, 2708\)"),
        ("adj_indptr", lambda v: v[::-1], "has adj_indptr that does not rise from 0 to 5429"),
        ("adj_data", lambda v: v[:-1], "not the parts of a CSR matrix"),
        ("attr_data", lambda v: v * np.nan, "has infinite or NaN values in attr_data"),
    ],
)
def test_broken_arrays(arrays, key, change, says, tmp_path):
    path = tmp_path / "broken.npz"
    np.savez(path, **broken(arrays, key, change(arrays[key])))
    with pytest.raises(ArgumentValueError, match=rf"`--data` .*{says}"):
        data.split(data.load(path), 0)


def write(path: Path, kind: str) -> None:
    """A file that is not accepted."""
    if kind == "no graph":
        np.savez(path, x=np.ones(3))
    elif kind == "one array":
        with path.open("wb") as file:
            np.save(file, np.ones(3))
    elif kind == "cut short":
        path.write_bytes(CORA.read_bytes()[:5000])
    elif kind == "text":
        path.write_text("hello\nthere")
    elif kind == "empty":
        path.touch()
    elif kind == "not square" and path.suffix == ".mtx":
        scipy.io.mmwrite(path, scipy.sparse.eye_array(3, 4))
    elif kind == "not square":
        scipy.sparse.save_npz(path, scipy.sparse.eye_array(3, 4, format="csr"))
    elif kind == "bad pointers":
        parts = {"indices": np.arange(3), "indptr": np.array([0, 100, 2, 3])}
        np.savez(path, format=b"csr", shape=np.array([3, 3]), data=np.ones(3), **parts)


@pytest.mark.parametrize(
    ("name", "kind", "says"),
    [
        ("a.npz", "missing", "which is not a file"),
        ("a.txt", "text", "a .mtx file is accepted"),
        ("a.npz", "no graph", "has no adj_data, adj_indices"),
        ("a.npz", "one array", "which is no .npz file inside"),
        ("a.npz", "cut short", "which is no .npz file inside"),
        ("a.npz", "text", "which is no .npz file inside"),
        ("a.npz", "empty", "which is no .npz file inside"),
        ("a.npz", "bad pointers", "indptr must be a non-decreasing sequence"),
        ("a.npz", "not square", "holds a matrix of shape (3, 4); a square matrix is accepted"),
        ("a.mtx", "not square", "holds a matrix of shape (3, 4); a square matrix is accepted"),
        ("a.mtx", "text", "Not a Matrix Market file"),
        ("a.mtx", "empty", "which can't be read"),
    ],
)
def test_files_that_are_refused(name, kind, says, tmp_path, capsys):
    path = tmp_path / name
    write(path, kind)
    out = tmp_path / "picture.png"
    assert cli.main(["demo", "--data", str(path), "--out", str(out)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("spgrad demo: `--data` ")
    assert said.err.count("\n") == 1
    assert says in said.err
    assert not out.exists()


@pytest.mark.parametrize(
    ("seconds", "shown", "times"),
    [(0.00037, "0.37 ms", "1.0"), (0.0149, "14.9 ms", "40.3"), (0.26112, "261 ms", "706")],
)
def test_a_row_of_costs_fits_a_terminal(seconds, shown, times):
    assert (report._time(seconds), report._ratio(seconds, 0.00037)) == (shown, times)


def test_a_step_that_fails_is_reported_by_its_process(communities, monkeypatch):
    A = data.load(communities).adjacency
    matrix = step.Matrix(A.crow_indices(), A.col_indices(), A.values(), tuple(A.shape), 3)
    dense = next(c for c in compare.COMPETITORS if c.dense)
    monkeypatch.setattr(step, "_memory", lambda: 1000)
    here, there = multiprocessing.Pipe()
    with warnings.catch_warnings():  # the process that it is made for ignores all
        step.serve(there, dense, matrix, torch.get_num_threads())
    assert here.poll()
    assert here.recv()["failure"].startswith("not tried: ")


def test_a_competitor_without_a_step_has_a_row_that_says_why(communities):
    first, other = compare.COMPETITORS[:2]
    results = [compare.Result(first, 0.5, 100, 7), compare.Result(other, failure="no memory")]
    console = Console(width=120, record=True, file=io.StringIO())
    report._tell_cost(console, data.load(communities), results, 2)
    lines = [line for line in console.export_text().splitlines() if other.layout in line]
    assert any("no memory" in line and " - " in line for line in lines)


def test_processes_run_on_the_kernels_of_the_demo(monkeypatch):
    monkeypatch.setattr(compare, "compiled", lambda: False)
    for before in (None, "0"):
        monkeypatch.delenv("SPGRAD_NO_EXT", raising=False)
        if before is not None:
            monkeypatch.setenv("SPGRAD_NO_EXT", before)
        with compare._same_kernels():
            assert os.environ["SPGRAD_NO_EXT"] == "1"
        assert os.environ.get("SPGRAD_NO_EXT") == before


def test_a_picture_that_may_not_be_written_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(report.os, "access", lambda *_: False)  # an administrator may write
    with pytest.raises(ArgumentValueError, match=r"a\.png, which may not be written"):
        report._require_writable(tmp_path / "a.png")


def test_memory_where_the_system_tells_less_of_it(monkeypatch):
    in_use = step._peak()
    monkeypatch.setattr(step.Path, "exists", lambda path: False)
    peaks = []
    for platform in ("linux", "darwin"):  # in kilobytes, and in bytes
        monkeypatch.setattr(step.sys, "platform", platform)
        peaks.append(step._peak())
    assert peaks[0] == 1024 * peaks[1]
    assert peaks[0] >= in_use // 2
    monkeypatch.setattr(step.os, "sysconf_names", {})
    assert step._memory() == 8 << 30
