"""Every kernel on views of every kind: against its reference, and through torch's opcheck."""

import re
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from attention_operands import (
    ADDITIVE,
    ADDITIVE_BACKWARD,
    attention,
    attention_backward,
    attention_by_head,
    block_attention,
    block_attention_backward,
    block_attention_by_head,
    masked_block_attention,
    randn,
)
from calls import IN_PLACE, OF_THE_MACHINE, interpreted
from square_operands import OF_DIAGONALS, TRIANGLES, diagonal, factors, square, system, walked
from torch import Tensor
from torch.testing import assert_close

from spgrad import kernels
from spgrad.kernels import LAUNCHED, NATIVE, REFERENCES
from spgrad.kernels.triton import MODULES

NAN = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy, which interprets Triton
pytestmark = [pytest.mark.usefixtures("poisoned"), NAN]

SOURCES = Path(__file__).parents[3] / "src" / "spgrad" / "kernels" / "cpu"


class View(NamedTuple):
    """m lines of ascending indices below n; perm shuffles the values."""

    ptr: Tensor
    idx: Tensor
    perm: Tensor
    val: Tensor
    m: int
    n: int

    @property
    def nse(self):
        return len(self.idx)

    @property
    def indexed(self):
        return self.ptr, self.idx

    @property
    def permuted(self):
        return self.ptr, self.idx, self.perm

    @property
    def valued(self):
        return self.ptr, self.idx, self.perm, self.val


def view(lengths, n, dtype):
    """A view whose lines have so many entries, anywhere."""
    keys = [torch.randperm(n)[:length].sort().values for length in lengths]
    idx = torch.cat(keys) if keys else torch.empty(0, dtype=torch.int64)
    ptr = torch.tensor([0, *lengths]).cumsum(0)
    perm, val = torch.randperm(len(idx)), torch.randn(len(idx), dtype=torch.float64)
    return View(ptr.to(dtype), idx.to(dtype), perm.to(dtype), val, len(lengths), n)


ZOO = {  # entries of each line, and what all indices are below; even, so that blocks fit
    "plain": ([3, 2, 4, 1, 0, 5], 8),
    "no entries": ([0, 0, 0, 0], 6),
    "no lines": ([], 6),
    "no indices": ([0, 0], 0),
    "empty lines": ([0, 0, 3, 0, 0, 0, 2, 0], 6),
    "one index": ([1, 0, 1, 1], 2),
    "full": ([6, 6, 6, 6], 6),
    "one huge line": ([1, 20_000, 0, 2], 30_000),
}
HEADS = [(3, 1), (2, 5), (8, 4), (4, 16), (3, 24), (2, 0)]
"""Heads, and columns of each."""
INDEX_DTYPES = [torch.int32, torch.int64]
VIEWS = [(lines, t) for lines in ZOO for t in INDEX_DTYPES if "huge" not in lines or t.itemsize > 4]


def other(v):
    """Another view of the same size, with half as many entries in a line."""
    return view((v.ptr.diff() // 2).tolist(), v.n, v.ptr.dtype)


def both_valued(v):
    """Indices and values of a view and of another."""
    w = other(v)
    return *v.indexed, v.val, *w.indexed, w.val


def transposed(v):
    """The view of the transpose, with values of its own."""
    ptr, idx, perm = kernels.transpose_plan(v.ptr, v.idx, v.n)
    return View(ptr, idx, perm, randn(v.nse), v.n, v.m)


def coordinates(v):
    """Coordinates, unordered and partly repeated."""
    indices = torch.stack([kernels.expand(v.ptr, v.nse), v.idx])
    return torch.cat([indices.flip(1), indices[:, ::2]], 1)


def ranges(v):
    """Lines cut in two, the second part first: begins and ends."""
    middle = v.ptr[:-1] + v.ptr.diff() // 2
    begin, end = torch.stack([middle, v.ptr[:-1]], 1), torch.stack([v.ptr[1:], middle], 1)
    return begin.reshape(-1), end.reshape(-1)


def joined(v, *, backward):
    return v.idx, *ranges(v), v.ptr.new_tensor([1000, 2000]), v.nse, backward


def taken(v, val, *, backward):
    ptr = REFERENCES["join_ranges"](*joined(v, backward=backward))[0]
    return val, ptr, *ranges(v), v.nse, backward


def product(v):
    return *v.valued, *transposed(v).valued, v.m


def of_the_product(v):
    made = REFERENCES["spgemm"](*product(v))
    return *made[:2], *product(v)


def masked_product(v):
    """The transposed form: a cotangent on the pattern of the product, times a factor of it."""
    ptr, idx, val = REFERENCES["spgemm"](*product(v))
    back = transposed(v)
    return *v.permuted, ptr, idx, None, val, *back.valued, v.m


def selected(v):
    """Lists of columns as a map from old ones to the new: every second one twice."""
    columns = torch.arange(0, v.n, 2).repeat(2).to(v.ptr.dtype)
    ptr, _, idx = kernels.transpose_plan(v.ptr.new_tensor([0, len(columns)]), columns, v.n)
    return *v.indexed, ptr, idx


def located(v):
    at = coordinates(v).long()
    return *v.indexed, at[0], torch.where(torch.arange(at.shape[1]) % 3 == 0, v.n, at[1])


def reduced_backward(v):
    x = randn(v.n, 3)
    arg = REFERENCES["spmm_reduce"](*v.valued, x, True)[1]
    return *v.valued, x, randn(v.m, 3), arg


CALLS = {  # the arguments of every kernel, made of a view
    "additive_attention": ADDITIVE,
    "additive_attention_backward": ADDITIVE_BACKWARD,
    "attention": [attention, attention_by_head],
    "attention_backward": [
        attention_backward,
        lambda v: attention_backward(v, attention_by_head),
    ],
    "assume_cache": [lambda v: (torch.empty(0), 0)],
    "block_attention": [block_attention, block_attention_by_head, masked_block_attention],
    "block_attention_backward": [
        block_attention_backward,
        lambda v: block_attention_backward(v, block_attention_by_head),
        lambda v: block_attention_backward(v, masked_block_attention),
    ],
    "block_sddmm": [
        lambda v: (*v.permuted, randn(3 * v.m, 9), randn(4 * v.n, 9), 3, 4, True),
        lambda v: (*v.indexed, None, randn(4 * v.m, 9), randn(4 * v.n, 9), 4, 4, False),
    ],
    "block_spmm": [
        lambda v: (*v.permuted, randn(12 * v.nse), randn(4 * v.n, 9), 3, 4, True),
        lambda v: (*v.indexed, None, randn(6 * v.nse), randn(3 * v.n, 1), 2, 3, False),
    ],
    "by_diagonals": [lambda v: (*square(v, lower=False), torch.tensor([-1, 0, 2]))],
    "check_compressed": [lambda v: (*v.indexed, v.n), lambda v: (*v.indexed, v.n - 1)],
    "check_coo": [lambda v, k=k: (coordinates(v), (v.m, max(v.n - k, 0))) for k in (0, 1)],
    "coalesce": [lambda v: (coordinates(v), (v.m, v.n))],
    "compress": [lambda v: (kernels.expand(v.ptr, v.nse), v.m)],
    "coordinates": [lambda v: v.indexed],
    "cut_lines": [lambda v: (*v.indexed, torch.arange(v.m) % (v.n + 2) - 1)],
    "densify": [
        lambda v: (*v.valued, v.m, v.n) if v.m * v.n else None,  # takes no empty matrices
        lambda v: (*v.indexed, None, randn(v.nse, 2), v.m, v.n) if v.m * v.n else None,
    ],
    "empty_cache": [lambda v: (torch.empty(0),)],
    "expand": [lambda v: (v.ptr, v.nse)],
    "expand_blocks": [
        lambda v: (*v.indexed, 2, 3, True),
        lambda v: (*v.indexed, 2, 1, False, randn(2 * v.nse)),
    ],
    "factor_pattern": [lambda v: square(v, lower=False)[:2], diagonal],
    "group_blocks": [
        lambda v: (*v.indexed, 2, 2, True),
        lambda v: (*v.indexed, 1, 2, False, v.val),
    ],
    "heads_sddmm": [
        lambda v, h=h, n=n: (*v.permuted, randn(v.m, h * n), randn(v.n, h * n), h) for h, n in HEADS
    ],
    "heads_spmm": [
        lambda v, h=h, n=n: (*v.permuted, randn(v.nse, h), randn(v.n, h * n)) for h, n in HEADS
    ],
    "incomplete_cholesky": [lambda v: square(v, lower=True)],
    "incomplete_lu": [lambda v, w=w: (*square(v, lower=False), w) for w in (0.0, 0.6)],
    "intersection": [lambda v: (*v.indexed, *other(v).indexed)],
    "intersection_values": [both_valued],
    "join_lines": [lambda v: ([v.ptr] * 2, [v.idx] * 2, [0, 9], [v.val] * 2, True)],
    "join_ranges": [
        lambda v, backward=backward: joined(v, backward=backward) for backward in (False, True)
    ],
    "kron_lines": [lambda v: (*v.indexed, *view([1, 0, 2], 4, v.ptr.dtype).indexed, 4)],
    "krylov_dot": [
        lambda v: (randn(1, v.nse, 1), randn(1, v.nse, 1)),
        lambda v: (randn(2, v.m, 3), randn(2, v.m, 3)),
    ],
    "krylov_product": [lambda v: (*square(v, lower=False), randn(1, v.m, 1))],
    "list_diagonals": [lambda v: (*v.indexed, 9)],
    "list_lines": [lambda v: (*v.indexed, v.val, torch.arange(v.m).repeat(2).flip(0))],
    "locate": [located],
    "masked_spgemm": [masked_product],
    "random_walks": [walked, lambda v: walked(v, 0.5, 3.0), lambda v: walked(v, 1e9, 1e9)],
    "relaxed_cholesky": [lambda v: (*square(v, lower=True, transposed=True), 0.6)],
    "relabel_lines": [lambda v, up=up: (v.idx[:1], *v.permuted, up) for up in (True, False)],
    "row_sddmm": [lambda v: (*v.permuted, randn(12, v.m), randn(12, v.n))],
    "row_spmm": [lambda v, n=n: (*v.valued, randn(n, v.n)) for n in (1, 3, 12)],
    "row_spmm_sddmm": [
        lambda v, n=n: (*v.valued, randn(n, v.m), randn(n, v.n)) for n in (3, 12, 16)
    ],
    "sample_lines": [
        lambda v, f=fanout, w=weighted, r=replace: (
            *v.indexed,
            v.val.abs() if w else None,
            torch.arange(v.m).flip(0),
            5,
            f,
            r,
            -3,
        )
        for fanout in (-1, 0, 3, 40)
        for weighted in (False, True)
        for replace in (False, True)
    ],
    "scale": [
        lambda v: (*v.valued, randn(v.m), randn(v.n)),
        lambda v: (*v.indexed, None, v.val, None, randn(v.n)),
    ],
    "scatter_sum": [lambda v, w=wide: (v.idx, v.val, v.n, w) for wide in (False, True)],
    "sddmm": [lambda v: (*v.permuted, randn(v.m, 3), randn(v.n, 3))],
    "segment_arg": [lambda v: (v.ptr, v.perm, v.val, True), lambda v: (v.ptr, None, v.val, False)],
    "segment_expand": [
        lambda v: (v.ptr, v.perm, v.nse, randn(v.m)),
        lambda v: (v.ptr, None, v.nse, randn(v.m, 3)),
    ],
    "segment_order": [
        lambda v: (v.ptr, v.val, False),
        lambda v: (v.ptr, randn(v.nse, 3).round(), True),
    ],
    "segment_reduce": [
        *(lambda v, r=reduce: (v.ptr, v.perm, v.val, r) for reduce in ("sum", "prod", "amin")),
        lambda v: (v.ptr, None, randn(v.nse, 3), "amax"),
    ],
    "segment_scan": [
        lambda v: (v.ptr, v.perm, v.val, False),
        lambda v: (v.ptr, None, randn(v.nse, 40), True),
    ],
    "segment_softmax": [
        lambda v: (v.ptr, v.perm, v.val, False),
        lambda v: (v.ptr, None, randn(v.nse, 3), True),
    ],
    "segment_softmax_backward": [
        lambda v: (v.ptr, v.perm, v.val.abs(), randn(v.nse), False),
        lambda v: (v.ptr, None, randn(v.nse, 3), randn(v.nse, 3), True),
    ],
    "segment_top": [
        lambda v, k=k, o=option: (v.ptr, v.val.round(), v.idx.long(), v.n, min(k, v.n), o, not o)
        for k in (0, 2, 9)
        for option in (True, False)
    ],
    "select_columns": [selected],
    "selected_inverse": [
        lambda v: (*diagonal(v), 2 + randn(v.m).abs(), *diagonal(v), diagonal(v)[1]),
    ],
    "select_range": [
        lambda v: (*v.indexed, v.n // 3, 1, v.n // 2),
        lambda v: (*v.indexed, v.n - 1, -2, v.n // 2, v.val),
    ],
    "shares": [lambda v: (v.ptr, 2)],
    "solve_triangular": [
        lambda v, n=n, t=t: (*system(v, n, n == 3, n == 16), t)
        for n in (1, 3, 16)
        for t in (False, True)
    ],
    "sort_coo": [lambda v: (coordinates(v), (v.m, v.n))],
    "spgemm": [product],
    "spgemm_values": [of_the_product],
    "spmm": [lambda v, n=n: (*v.valued, randn(v.n, *n)) for n in ((), (3,), (16,))],
    "spmm_prod": [lambda v: (*v.indexed, randn(v.n, 3))],
    "spmm_plus": [lambda v, k=k: (*v.valued, randn(v.n, 3), k) for k in (True, False)],
    "spmm_reduce": [lambda v: (*v.valued, randn(v.n, 3), True)],
    "spmm_reduce_backward": [reduced_backward],
    **OF_DIAGONALS,
    "substitute_diagonals": TRIANGLES,
    "spmm_sddmm": [lambda v: (*v.valued, randn(v.m, 16), randn(v.n, 16))],
    "supernodal_inverse": [lambda v: factors(v, mirror=0), lambda v: factors(v, mirror=2)],
    "supernodes": [lambda v: (*diagonal(v), *diagonal(v), 10 * v.m)],
    "take": [lambda v: (v.val, torch.cat([v.perm, v.perm.new_tensor([-1])]))],
    "take_ranges": [
        lambda v: taken(v, v.val, backward=False),
        lambda v: taken(v, randn(v.nse, 3), backward=True),
    ],
    "traffic": [lambda v: (v.idx, randn(v.n, 64), True, v.m)],
    "transpose_dense": [lambda v: (randn(v.m, v.n),), lambda v: (randn(v.nse, 1),)],
    "transpose_plan": [lambda v: (*v.indexed, v.n), lambda v: (*v.indexed, v.n, v.val)],
    "untiled_spmm": [lambda v: (*v.indexed, v.val, randn(v.n, 9))],
    "union": [lambda v: (*v.indexed, *other(v).indexed)],
    "union_sum": [lambda v: (*both_valued(v), True)],
    "union_values": [both_valued],
}
CALLED = [(name, i) for name in REFERENCES for i in range(len(CALLS.get(name, ())))]


def test_no_kernel_is_left_out():
    assert CALLS.keys() == REFERENCES.keys() - IN_PLACE


def files(functions, backend):
    """Every kernel of a backend in Python with its path below the backend's folder."""
    folder = f"spgrad.kernels.{backend}."
    return {
        (name, function.__module__.removeprefix(folder).replace(".", "/"))
        for name, function in functions.items()
    }


def test_a_kernel_has_one_file_name_in_every_backend():
    """The path below the backend's folder, without the ending."""
    declared = files(REFERENCES, "reference")
    assert files(NATIVE, "native") <= declared
    triton = {(name, path.split("triton.")[1].replace(".", "/")) for name, path in MODULES.items()}
    assert triton <= declared
    assert LAUNCHED.keys() in (set(), MODULES.keys())
    registered = {
        (name, path.relative_to(SOURCES).with_suffix("").as_posix())
        for path in SOURCES.rglob("*.cpp")
        for name in re.findall(r'\bm\.impl\("(\w+)"', path.read_text())
        if name != "fail_allocation"  # only in a library for tests
    }
    assert registered == declared


def answering(name):
    """What torch's dispatcher chooses on the CPU, and the backends beside it."""
    beside = {"native": NATIVE.get(name), "triton": LAUNCHED.get(name)}
    backends = {"dispatched": getattr(kernels, name), **beside}
    return {backend: kernel for backend, kernel in backends.items() if kernel is not None}


@pytest.mark.parametrize(("lines", "index_dtype"), VIEWS, ids=str)
@pytest.mark.parametrize(
    ("name", "number", "backend"), [(*call, how) for call in CALLED for how in answering(call[0])]
)
def test_equals_its_reference(name, number, backend, lines, index_dtype):
    """On one thread and, to the bit, on two; Triton's interpreter has one."""
    kernel = answering(name)[backend]
    zoo = ZOO | interpreted(name) if backend == "triton" else ZOO
    args = CALLS[name][number](view(*zoo[lines], index_dtype))
    if args is None:
        assert lines in ("no lines", "no indices")
        return
    torch.set_num_threads(1)
    if name == "empty_cache":  # which tells how much other tests left
        kernels.empty_cache(*args)
    actual = kernel(*args)
    wanted = REFERENCES[name](*args)
    if name in OF_THE_MACHINE:
        assert torch.as_tensor(actual).shape == torch.as_tensor(wanted).shape
    else:
        assert_close(actual, wanted, rtol=1e-9, atol=1e-9)
    if backend == "triton":
        return
    torch.set_num_threads(2)
    again = kernel(*args)
    assert_close(again, actual, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("lines", ["plain", "no entries"])
@pytest.mark.parametrize(("name", "number"), CALLED)
def test_opcheck(name, number, lines):
    index_dtype = INDEX_DTYPES[(number + len(lines)) % 2]
    args = CALLS[name][number](view(*ZOO[lines], index_dtype))
    torch.library.opcheck(getattr(kernels, name), args)
