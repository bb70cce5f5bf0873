"""What every process of a group runs, and the expected results of one process."""

import faulthandler
import importlib
import os
import re
import tempfile
import traceback
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import spgrad
import spgrad.testing

F64 = torch.float64
CASES = {}
LIMIT = 240
"""Seconds after which a group of processes that hangs is ended."""

LIMIT_OF_A_CALL = 60
"""The same for a call that has to raise on every rank."""


def case(function):
    CASES[function.__name__] = function
    return function


def shared_folder():
    """A folder that all processes see."""
    found = [tempfile.mkdtemp(dir=os.environ["SPGRAD_TEST_FOLDER"])]
    dist.broadcast_object_list(found)
    return Path(found[0])


FAMILIES = {
    "numbers": ("product_cases", "derivative_cases", "row_cases"),
    "solves and errors": (
        "solve_cases",
        "argument_cases",
        "file_cases",
        "failure_cases",
        "refusal_cases",
        "misuse_cases",
    ),
}
"""Modules of cases. A group of processes runs those of one line."""


def run(rank, world, about, directory):
    """Runs cases in one process of a group, and writes what each of them raised."""
    for family in FAMILIES[about]:
        importlib.import_module(family)
    faulthandler.enable()
    faulthandler.dump_traceback_later(LIMIT, exit=True)
    os.environ["SPGRAD_TEST_FOLDER"] = str(directory)
    torch.set_num_threads(1)
    start = f"file://{directory}/start"
    dist.init_process_group("gloo", init_method=start, rank=rank, world_size=world)
    failed = {}
    for name, function in CASES.items():
        torch.manual_seed(0)
        try:
            function(rank, world)
        except Exception:  # noqa: BLE001  # a test says which
            failed[name] = traceback.format_exc()
    torch.save(failed, f"{directory}/{rank}.pt")
    dist.destroy_process_group()


def matrix(m=23, k=23, share=0.2, dtype=F64, seed=0, index=torch.int64):
    """A CSR matrix with some rows without elements."""
    generator = torch.Generator().manual_seed(seed)
    dense = torch.randn(m, k, dtype=dtype, generator=generator)
    dense = dense * (torch.rand(m, k, generator=generator) < share)
    dense[m // 3] = 0
    A = spgrad.from_dense(dense).to_sparse_csr()
    crow, col = A.crow_indices().to(index), A.col_indices().to(index)
    return spgrad.sparse_csr_tensor(crow, col, A.values(), (m, k))


def dense(rows, n, dtype=F64, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, n, dtype=dtype, generator=generator)


ERRORS = {F64: 1e-12, torch.complex128: 1e-12, torch.float32: 1e-6, torch.complex64: 1e-6}
"""Largest error of a sum, over the sum of the magnitudes of its terms."""


def close(found, wanted, sums=None):
    """The same numbers as in one process.

    `sums` are the sums of magnitudes that `wanted` are sums of, as far as they are known; else
    terms are taken to be of the order of 1.
    """
    error = ERRORS.get(wanted.dtype) or spgrad.testing.tolerance(wanted.dtype)
    assert found.dtype == wanted.dtype
    sums = wanted.detach().abs() + 1 if sums is None else sums
    over = (found - wanted).detach().abs() - error * sums
    assert found.shape == wanted.shape
    assert (over <= 0).all(), f"{over.max() + 0.0} over {error} of the sums of magnitudes"


def own(D, t):
    """The rows of the result of D that this process has, of all rows."""
    return t[D.row_ids]


def partitions(m, world):
    parts = torch.arange(m) * 7 % world
    uneven = [m - (world - 1), *[1] * (world - 1)]
    return ["nse", "rows", "metis", uneven, parts]


def second_order(y, values, x, weight, other):
    """y, the gradients of sum(w y^2), and those of how these depend on the operands."""
    loss = (y.abs().square() * weight.abs()).sum()
    first = torch.autograd.grad(loss, (values, x), create_graph=True)
    again = first[0].abs().square().sum() + (first[1] * other.conj()).real.sum()
    return [y, *first, *torch.autograd.grad(again, (values, x))]


def entry_ids(D):
    """Where the values of this process stand among those of the whole matrix."""
    return D.plan.entry_ids


def raises(kind, text, call):
    """Every process raises, whichever of them has the wrong argument."""
    faulthandler.dump_traceback_later(LIMIT_OF_A_CALL, exit=True)
    with pytest.raises(kind, match=re.escape(text)) as caught:
        call()
    faulthandler.dump_traceback_later(LIMIT, exit=True)
    assert isinstance(caught.value, spgrad.SpgradError)


def definite(dtype=F64):
    """A hermitian positive definite matrix."""
    G = matrix(dtype=dtype, share=0.1).to_dense()
    return spgrad.from_dense(G @ G.mH + 4 * torch.eye(23, dtype=dtype)).to_sparse_csr()
