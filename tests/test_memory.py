"""A step needs memory of the order of its inputs: never m x k, nor entries x columns."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import spgrad
from spgrad import support, testing

CLEAR = Path("/proc/self/clear_refs")
STATUS = Path("/proc/self/status")
LIMIT = 100  # MB above what stands before the step; m x k would be 1600, a block row 13

pytestmark = pytest.mark.skipif(
    not (CLEAR.exists() and os.access(CLEAR, os.W_OK)), reason="the kernel keeps no peak to reset"
)

SIZE, ENTRIES, COLUMNS = 20_000, 200_000, 16

# One process for each layout: the cases share its start, each has its own peak.
SCRIPT = """
import json, sys, pathlib, torch, spgrad
from spgrad.pattern import LAYOUTS
name, size, entries, columns = sys.argv[1], *map(int, sys.argv[2:])
torch.set_num_threads(1)
torch.manual_seed(0)

def status(key):
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) / 1024

def matrix(size, entries):
    index = torch.randint(size, (2, entries))
    blocks = {"blocksize": (2, 2)} if name.startswith("b") else {}
    if blocks:  # of four elements each
        index = (index[:, : entries // 4] // 2 * 2)
    A = spgrad.sparse_coo_tensor(index, torch.randn(index.shape[1]), (size, size))
    return A.to_sparse(layout=LAYOUTS[name], **blocks).detach().clone()

def mm(A, x, y, D):
    return A @ x

def dense_first(A, x, y, D):
    return x.t() @ A

def addmm(A, x, y, D):
    return spgrad.addmm(y, A, x, beta=0.5, alpha=2)

def sampled_addmm(A, x, y, D):
    return spgrad.sampled_addmm(A, x, y.t()).values()

def product(A, x, y, D):
    return (A @ D).values()

def parts(A, x, y, D):
    half, listed = size // 2, torch.arange(0, size, 3)
    rows = A[:half].values().sum() + A[listed].values().sum() + A[size // 4].values().sum()
    columns = A[:, ::-2].values().sum() + A[:, listed].values().sum()
    return rows + columns + A[listed, listed].sum()

def densified(A, x, y, D):  # what the limit has to catch
    return A.to_dense() @ x

grown = {}
cases = [mm, dense_first, addmm, sampled_addmm, product, parts]
for case in [*cases, densified] if name == "csr" else cases:
    small = case is densified
    n, e = (size // 2, entries // 4) if small else (size, entries)
    A = matrix(n, e).requires_grad_()
    D = spgrad.sparse_csr_tensor(torch.arange(n + 1), torch.arange(n), torch.ones(n), (n, n))
    D.requires_grad_()
    x, y = (torch.randn(n, columns, requires_grad=True) for _ in range(2))
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    case(A, x, y, D).sum().backward()
    grown[case.__name__] = status("VmHWM") - before
    assert A.grad.pattern is A.pattern
    assert x.grad is not None or case in (product, parts)
print(json.dumps(grown))
"""


@pytest.fixture(scope="module")
def grown():
    """Growth of the peak by case, in MB, for a layout; measured once."""
    measured = {}

    def ask(name):
        if name not in measured:
            command = [sys.executable, "-c", SCRIPT, name, *map(str, (SIZE, ENTRIES, COLUMNS))]
            paths = [str(Path(spgrad.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
            run = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(filter(None, paths)),
                    "MALLOC_ARENA_MAX": "1",
                },
            )
            assert run.returncode == 0, run.stderr
            measured[name] = json.loads(run.stdout)
        return measured[name]

    return ask


@pytest.mark.parametrize("name", support.ALL)
@pytest.mark.parametrize(
    "case", ["mm", "dense_first", "addmm", "sampled_addmm", "product", "parts"]
)
def test_a_step_stays_small(case, name, grown):
    assert grown(name)[case] < LIMIT


def test_the_measure_sees_a_dense_matrix(grown):
    """A quarter of the matrix, made dense, is beyond the limit by far."""
    assert grown("csr")["densified"] > 3 * LIMIT


@pytest.mark.parametrize("name", support.ALL)
def test_shapes_that_no_dense_matrix_fits(name):
    """2^40 elements: whatever forms one of them dies here."""
    n = 2**20
    steps = torch.arange(0, n, 2**14)
    A = spgrad.sparse_coo_tensor(torch.stack([steps, steps.flip(0)]), torch.ones(64), (n, n))
    if name != "coo":
        blocks = {"blocksize": (4, 4)} if name.startswith("b") else {}
        A = getattr(A, f"to_sparse_{name}")(**blocks)
    A = A.detach().clone().requires_grad_()
    x = torch.ones(n, 1, requires_grad=True)
    ((A @ x).sum() + (x.t() @ A).sum() + (A @ A).values().sum()).backward()
    assert A.grad.pattern is A.pattern
    assert x.grad.sum() == 2 * 64


HUGE = {**testing.SIZES, "m": 2**18, "k": 2**18}


def dense_fits(cell):
    """Whether the dense operands and the result of a signature are small at these sizes."""
    operands, result = support.parse(cell.signature)
    return all(
        operand.sparse or math.prod(HUGE[d] for d in operand.dims) <= 2**23
        for operand in (*operands, result)
    ) and not any(operand.full for operand in operands)


# Functions of one element are declared in a line each: one for all, and those of other families.
MEASURED = [
    cell
    for cell in testing.cells()
    if cell.sample == 0
    and dense_fits(cell)
    and (cell.op.family != "elementwise" or cell.op.name in ("sin", "abs", "map", "relu"))
]


@pytest.mark.parametrize("cell", MEASURED, ids=str)
def test_no_operation_forms_the_dense_matrix(cell, monkeypatch):
    """Forwards and backwards on 2^18 x 2^18 with 64 elements: one byte for each is 64 GB."""
    monkeypatch.setattr(testing, "SIZES", HUGE)
    monkeypatch.setattr(testing, "random_sparse", scattered)
    operands = testing.sample(cell)
    y = testing.run(cell, operands)
    if cell.op.order:
        y = y.values() if isinstance(y, spgrad.SparseTensor) else y
        y.real.sum().backward()
        for operand in operands:
            if isinstance(operand, spgrad.SparseTensor) and operand.grad is not None:
                assert operand.grad.pattern is operand.pattern


def scattered(shape, layout, *, dtype, dense_dim, positive, seed, **_):
    """64 random elements, or blocks, of a huge tensor."""
    generator = torch.Generator().manual_seed(seed)
    sparse_shape = shape[: len(shape) - dense_dim]
    indices = torch.stack([torch.randint(n, (64,), generator=generator) for n in sparse_shape])
    A = spgrad.sparse_coo_tensor(indices, torch.ones(64, *shape[len(sparse_shape) :]), shape)
    blocks = {"blocksize": (2, 2)} if layout in (torch.sparse_bsr, torch.sparse_bsc) else {}
    A = A.coalesce()
    pattern = (A if layout == torch.sparse_coo else A.to_sparse(layout=layout, **blocks)).pattern
    vals = testing.random_dense(
        pattern.values_shape, dtype=dtype, generator=generator, positive=positive
    )
    return spgrad.from_values(vals, pattern)
