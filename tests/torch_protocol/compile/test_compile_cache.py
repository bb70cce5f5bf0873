"""A compile cache on disk: programs whose compiled code would differ do not share an entry."""

import os
import subprocess
import sys

import pytest
import torch

import spgrad
from spgrad import testing

PROGRAM = """
import sys, torch, spgrad
torch.manual_seed(int(sys.argv[1]))
A = spgrad.from_dense(torch.randn(6, 5) * (torch.rand(6, 5) < 0.5)).to_sparse_csr()
A.requires_grad_()
x = torch.randn(5, 3)
compiled = torch.compile(lambda A, x: torch.sparse.mm(A, x).relu().sum(), fullgraph=True)(A, x)
compiled.backward()
grad, A.grad = A.grad, None
eager = torch.sparse.mm(A, x).relu().sum()
eager.backward()
torch.testing.assert_close(compiled, eager)
torch.testing.assert_close(grad.values(), A.grad.values())
print(A.nse, len(torch._dynamo.utils.counters["aot_autograd"]))
"""


def test_two_programs_with_one_cache(tmp_path):
    found = []
    for seed in ("1", "2"):
        run = subprocess.run(
            [sys.executable, "-c", PROGRAM, seed],
            env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        found.append(run.stdout.split()[0])
    assert found[0] != found[1]


SHARED = """
import torch, spgrad
def made(rows, cols, values):
    indices = torch.tensor([rows, cols])
    return spgrad.sparse_coo_tensor(indices, torch.tensor(values), (3, 3)).to_sparse_csr()

A = made([0, 1, 2], [1, 0, 2], [1.0, 2.0, 3.0])
others = {
    "one pattern": spgrad.from_values(torch.tensor([3.0, 4.0, 5.0]), A),
    "equal indices": made([0, 1, 2], [1, 0, 2], [3.0, 4.0, 5.0]),
    "other indices": made([0, 1, 2], [1, 1, 2], [3.0, 4.0, 5.0]),
    "one tensor": A,
}
for kind in [*others, *reversed(others)]:
    torch._dynamo.reset()
    found = torch.compile(lambda A, B: A / B, fullgraph=True)(A, others[kind])
    assert torch.equal(found.values(), (A / others[kind]).values()), kind
assert torch._dynamo.utils.counters["aot_autograd"]["autograd_cache_hit"] >= 3
"""


def test_operands_that_share_their_pattern_or_do_not(tmp_path):
    """A graph takes what operands share from one of them."""
    run = subprocess.run(
        [sys.executable, "-c", SHARED],
        env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr


def key(A):
    return A._stable_hash_for_caching()


def tensor(rows=4, dtype=torch.float64, index=torch.int64, layout=torch.sparse_csr, last=0):
    row, col = torch.arange(rows), torch.zeros(rows, dtype=torch.int64)
    col[-1] = last
    coo = torch.stack([row, col]).to(index)
    A = spgrad.sparse_coo_tensor(coo, torch.ones(rows, dtype=dtype), (8, 8))
    return A.coalesce() if layout == torch.sparse_coo else A.coalesce().to_sparse(layout=layout)


OTHERS = {
    "more_entries": {"rows": 5},
    "dtype": {"dtype": torch.float32},
    "index_dtype": {"index": torch.int32},
    "layout": {"layout": torch.sparse_csc},
    "coo": {"layout": torch.sparse_coo},
}


@pytest.mark.parametrize("case", OTHERS)
def test_what_compiled_code_depends_on_is_in_the_key(case):
    assert key(tensor()) != key(tensor(**OTHERS[case]))


def test_gradients_are_in_the_key():
    assert key(tensor()) != key(tensor().requires_grad_())


def test_numbers_are_not_in_the_key():
    """Nor are addresses: the same program finds its entry again."""
    assert key(tensor()) == key(2 * tensor()) == key(tensor(last=3))
    A = testing.random_sparse((40, 60), torch.sparse_csr)
    assert len(key(A)) < 2000
