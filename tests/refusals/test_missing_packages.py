"""Each function that needs an optional package names it, and the extra that installs it."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from torch._subclasses import FakeTensorMode

import spgrad
import spgrad.io
import spgrad.plot
from spgrad import data, linalg
from spgrad.core import checks
from spgrad.distributions import SparseMultivariateNormal
from spgrad.dropin.torchsparsegradutils.utils import dist_stats_helpers

SRC = Path(spgrad.__file__).parent
ELSEWHERE = ("demo/", "distributed/", "info.py")
"""Files whose functions want a process group or the command line, and whose own tests do this."""


def eye(n=4):
    return spgrad.eye(n, layout=torch.sparse_csr, dtype=torch.float64)


def on_cuda():
    with FakeTensorMode(), torch.no_grad():
        parts = [torch.empty(n, dtype=torch.int64, device="cuda") for n in (3, 2)]
        values = torch.empty(2, device="cuda")
        return spgrad.sparse_csr_tensor(*parts, values, (2, 2), check_invariants=False)


def moments():
    return torch.zeros(1, 2), torch.eye(2).expand(1, 2, 2)


# The call, the package that is hidden, the extra.
CALLS = {
    "to_networkx": (lambda path: spgrad.to_networkx(eye()), "networkx", "networkx"),
    "from_pandas": (lambda path: spgrad.from_pandas(None, "a", "b"), "pandas", "pandas"),
    "to_pandas": (lambda path: spgrad.to_pandas(eye()), "pandas", "pandas"),
    "to_cupy": (lambda path: spgrad.to_cupy(on_cuda()), "cupy", "cupy"),
    "to_jax": (lambda path: spgrad.to_jax(eye()), "jax", "jax"),
    "to_pyg": (lambda path: spgrad.to_pyg(eye()), "torch_geometric", "pyg"),
    "to_pyg of a matrix": (
        lambda path: spgrad.to_pyg(eye(), "sparse_tensor"),
        "torch_sparse",
        None,
    ),
    "Batch.to_pyg": (
        lambda path: data.sample_neighbors(eye(), [1], 2).to_pyg(),
        "torch_geometric",
        "pyg",
    ),
    "partition": (lambda path: data.partition(eye(), 2), "pymetis", "order"),
    "RowDataset": (lambda path: data.RowDataset(path / "a"), "numpy", "io"),
    "hotelling": (
        lambda path: dist_stats_helpers.mean_hotelling_t2_test(*2 * moments()[:1], moments()[1], 9),
        "scipy",
        "scipy",
    ),
    "nagao": (
        lambda path: dist_stats_helpers.cov_nagao_test(*2 * moments()[1:], 9),
        "scipy",
        "scipy",
    ),
    "connected_components": (lambda path: linalg.connected_components(eye()), "scipy", "scipy"),
    "reverse_cuthill_mckee": (lambda path: spgrad.reverse_cuthill_mckee(eye()), "scipy", "scipy"),
    "locality_order": (lambda path: spgrad.locality_order(eye()), "pymetis", "order"),
    "factor": (lambda path: linalg.factor(eye()), "scipy", "scipy"),
    "cholmod": (
        lambda path: linalg.factor(eye(), "positive definite", "cholmod"),
        "cvxopt",
        "cholmod",
    ),
    "pardiso": (lambda path: linalg.factor(eye(), engine="pardiso"), "pypardiso", "pardiso"),
    "AMG": (
        lambda path: linalg.solve(eye(), torch.ones(4).double(), linalg.CG(preconditioner=amg())),
        "pyamg",
        "amg",
    ),
    "progress": (
        lambda path: linalg.solve(eye(), torch.ones(4).double(), linalg.CG(progress=True)),
        "rich",
        "progress",
    ),
    "eigsh": (lambda path: linalg.eigsh(eye(40), 2), "scipy", "scipy"),
    "normal": (
        lambda path: SparseMultivariateNormal(
            torch.zeros(4).double(), precision_matrix=eye()
        ).rsample(),
        "scipy",
        "scipy",
    ),
    "save": (lambda path: spgrad.io.save(eye(), path / "a.mtx"), "scipy", "io"),
    "load": (lambda path: spgrad.io.load(path / "a.npz"), "numpy", "io"),
    "spy": (lambda path: spgrad.plot.spy(eye()), "matplotlib", "plot"),
    "degrees": (lambda path: spgrad.plot.degrees(eye()), "matplotlib", "plot"),
    "blocks": (lambda path: spgrad.plot.blocks(eye().to_sparse_bsr((2, 2))), "matplotlib", "plot"),
    "reordered": (lambda path: spgrad.plot.reordered(eye()), "matplotlib", "plot"),
}


def amg():
    return linalg.AMG()


def hide(monkeypatch, package):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == package else find(name, *a)
    )


@pytest.mark.parametrize("name", CALLS)
def test_the_error_names_package_and_extra(name, monkeypatch, tmp_path):
    call, package, extra = CALLS[name]
    spgrad.io.save(spgrad.eye(2), tmp_path / "a.npz")
    hide(monkeypatch, package)
    with pytest.raises(spgrad.MissingPackageError, match=package) as caught:
        call(tmp_path)
    install = f"'spgrad[{extra}]'" if extra else package
    assert f"pip install {install}" in str(caught.value)


def test_every_check_for_a_package_is_called_here(monkeypatch, tmp_path):
    spgrad.io.save(spgrad.eye(2), tmp_path / "a.npz")
    seen = set()
    require = checks.require_packages

    def recording(extra, *names):
        caller = sys._getframe(1)
        file = Path(caller.f_code.co_filename).relative_to(SRC)
        seen.add((str(file), caller.f_lineno))
        require(extra, *names)

    monkeypatch.setattr(checks, "require_packages", recording)
    for call, package, _ in CALLS.values():
        with monkeypatch.context() as within:
            hide(within, package)
            with pytest.raises(spgrad.MissingPackageError):
                call(tmp_path)
    checked = {
        (str(path.relative_to(SRC)), number)
        for path in SRC.rglob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if "checks.require_packages(" in line
    }
    checked = {(file, line) for file, line in checked if not file.startswith(ELSEWHERE)}
    assert checked == seen
