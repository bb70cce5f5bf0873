"""Triton kernels run by Triton's interpreter, beside their references."""

import importlib

import pytest
import torch

pytest.importorskip("triton")

from spgrad.kernels import REFERENCES
from spgrad.kernels.declare import LAUNCHED
from spgrad.kernels.triton import MODULES
from spgrad.kernels.triton.common.lines import LONG
from spgrad.kernels.triton.products.block_matmul import LONG_BLOCKS
from spgrad.kernels.triton.reductions import softmax

for _module in set(MODULES.values()):
    importlib.import_module(_module)

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
PATTERNS = ["short", "hubs", "no_entries", "one_line", "nothing_but_hubs"]
"""Kinds of patterns for `view`: hubs are lines that are long where a chunk has eight entries."""


@pytest.fixture
def chunks_of_eight(monkeypatch):
    """Lines are long from nine entries or blocks on, so that small operands have many."""
    for size in (LONG, LONG_BLOCKS, softmax.LONG):
        monkeypatch.setattr(size, "value", 8)


def view(pattern, m=13, k=17, index=torch.int32, ordered=False):
    """ptr, idx and perm of a kind of pattern, m lines and indices below k."""
    filled = torch.rand(m, k) < 0.2
    if pattern == "hubs":
        filled[2] = filled[5] = filled[6] = True
        filled[m - 1] = torch.rand(k) < 0.9
        filled[3] = filled[0] = filled[4] = False
        filled[0, :8] = filled[4, :9] = True  # the longest short line, and the shortest long one
    elif pattern == "no_entries":
        filled[:] = False
    elif pattern == "one_line":
        filled[:] = False
        filled[m // 2] = True
    elif pattern == "nothing_but_hubs":
        filled[:] = True
    count = filled.sum(1)
    ptr = torch.cat([count.new_zeros(1), count.cumsum(0)]).to(index)
    idx = filled.nonzero()[:, 1].to(index)
    return ptr, idx, None if ordered else torch.randperm(len(idx)).to(index)


def by_columns(ptr, idx, perm, n):
    """The view by columns of a view by rows."""
    row = torch.repeat_interleave(torch.arange(len(ptr) - 1), ptr.diff().long())
    order = idx.sort(stable=True).indices
    count = torch.bincount(idx.long(), minlength=n)
    cols_ptr = torch.cat([count.new_zeros(1), count.cumsum(0)])
    cols_perm = order if perm is None else perm[order]
    return [t.to(ptr.dtype) for t in (cols_ptr, row[order], cols_perm)]


def long_lines(chunk, parts=4, index=torch.int32):
    """ptr, idx and perm of lines an entry shorter than a chunk, as long, one longer, of more parts.

    The first is behind an empty line; a line of three entries is before the last.
    """
    count = torch.tensor([0, chunk - 1, chunk, chunk + 1, 3, parts * chunk + 5])
    ptr = torch.cat([count.new_zeros(1), count.cumsum(0)]).to(index)
    nse = int(ptr[-1])
    return ptr, torch.randint(0, 17, (nse,), dtype=index), torch.randperm(nse).to(index)


def beside_reference(name, *args):
    """Asserts that the Triton kernels give what the reference gives; returns it."""
    found, wanted = LAUNCHED[name](*args), REFERENCES[name](*args)
    pairs = zip(found, wanted, strict=True) if isinstance(found, tuple) else [(found, wanted)]
    for one, other in pairs:
        torch.testing.assert_close(one, other, equal_nan=True)
    return found


def close(found, wanted):
    """Equal to references of operands in float32 at least, which round once; returns what is."""
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other.to(one.dtype), rtol=None, atol=None, equal_nan=True)
    return found
