"""A call of every kernel on about n entries, for tests of a property of all kernels."""

import importlib
import importlib.util

import torch

from spgrad import kernels
from spgrad.kernels import REFERENCES
from spgrad.kernels.reference.solves.krylov.diagonals import TILE_ROWS, stride
from spgrad.kernels.triton import MODULES

if importlib.util.find_spec("triton"):  # its kernels are declared where they are imported
    for _module in set(MODULES.values()):
        importlib.import_module(_module)

OF_THE_MACHINE = {"assume_cache", "empty_cache", "traffic"}
"""Kernels that say what the compiled library keeps or chooses; the references do neither."""
IN_PLACE = {
    "add_spmm",
    "bicgstab_direction",
    "bicgstab_move",
    "cg_direction",
    "cg_residual",
    "gmres_extend",
    "gmres_project",
    "gmres_subtract",
    "krylov_active",
    "krylov_left",
    "krylov_normalise",
    "krylov_subtract",
    "lsmr_step",
    "minres_step",
    "sddmm_into",
    "spmm_sddmm_into",
}
"""Kernels that change their arguments, with tests of their own."""
NAMES = sorted(REFERENCES.keys() - OF_THE_MACHINE - IN_PLACE)
"""Every kernel that computes something, and changes nothing."""

NUM_COLS = 64


def lines(n, dtype, count=None):
    """Pointers to `count` lines, about n / 3.5 by default, and the n ascending indices in them."""
    ends = torch.randint(0, 8, (n // 2 + 1,)).cumsum(0)
    ends = ends[ends < n]
    ends = ends if count is None else ends[: count - 1]
    more = 1 if count is None else count - len(ends)
    ptr = torch.cat([torch.zeros(1, dtype=torch.int64), ends, torch.full((more,), n)])
    line = torch.repeat_interleave(ptr.diff())
    first = torch.randint(0, NUM_COLS - 7, (len(ptr),))
    return ptr.to(dtype), (first[line] + torch.arange(n) - ptr[line]).to(dtype)


def numbers(*shape):
    """Small integers as floats: their sums are exact in any order."""
    return torch.randint(-4, 5, shape).to(torch.float64)


def calls(n, dtype=torch.int64):
    """{name: arguments} for all of `NAMES`."""
    ptr, idx = lines(n, dtype)
    perm = torch.randperm(n).to(dtype)
    made = {**_structure(ptr, idx, perm), **_products(ptr, idx, perm)}
    made |= {**_segments(ptr, idx, perm), **_solves(ptr, idx, perm)}
    assert sorted(made) == NAMES
    return made


def _structure(ptr, idx, perm):
    m, n, dtype = len(ptr) - 1, len(idx), idx.dtype
    val = numbers(n)
    row = kernels.expand(ptr, n)
    begin, end = ptr[:-1].flip(0).contiguous(), ptr[1:].flip(0).contiguous()
    joined = kernels.join_ranges(idx, begin, end, idx.new_tensor([0]), n, False)[0]
    even = torch.cat([ptr, ptr[-1:].expand(m % 2)])  # an even number of lines
    one_line = ptr.new_tensor([0, NUM_COLS])
    points = (torch.arange(NUM_COLS - 1, -1, -1) // 2 * 2).to(dtype)
    inverse = kernels.transpose_plan(one_line, points, NUM_COLS)
    other = lines(n, dtype, m)
    unsorted = torch.where(row % 3 == 1, NUM_COLS - 1 - idx, idx)
    coo = torch.stack([row[perm.long()], idx, perm % 9])
    return {
        "check_compressed": (ptr, idx, NUM_COLS),
        "check_coo": (torch.stack([row, idx]), (m, NUM_COLS)),
        "coalesce": (coo, (m, NUM_COLS, 9)),
        "compress": (row[perm.long()], m),
        "coordinates": (ptr, idx),
        "cut_lines": (ptr, idx, torch.randint(NUM_COLS, (m,))),
        "densify": (ptr, idx, perm, val, m, NUM_COLS),
        "expand": (ptr, n),
        "expand_blocks": (ptr, idx, 2, 3, True, numbers(6 * n)),
        "group_blocks": (even, idx, 2, 4, False, val),
        "intersection": (ptr, idx, *other),
        "intersection_values": (ptr, idx, val, *other, numbers(len(other[1]))),
        "join_lines": ([ptr, ptr], [idx, idx], [0, NUM_COLS], [val, -val], True),
        "join_ranges": (idx, begin, end, idx.new_tensor([5]), n, True),
        "kron_lines": (ptr, idx, ptr.new_tensor([0, 2, 3]), ptr.new_tensor([0, 1, 1]), 2),
        "list_lines": (ptr, idx, val, torch.randint(m, (m,))),
        "random_walks": (ptr, idx % m, torch.randint(m, (m,)), 2, 1.0, 1.0, 7),
        "relabel_lines": (idx[: n // 64].unique(), ptr, idx, perm, True),
        "sample_lines": (ptr, idx, numbers(n).abs(), torch.randint(m, (m,)), 0, 3, False, 7),
        "locate": (ptr, idx, torch.randint(m, (n,)), torch.randint(NUM_COLS, (n,))),
        "select_columns": (ptr, idx, inverse[0], inverse[2]),
        "select_range": (ptr, idx, NUM_COLS - 1, -2, NUM_COLS // 2, val),
        "sort_coo": (coo[:2], (m, NUM_COLS)),
        "take": (val, torch.randint(-1, n, (n,)).to(dtype)),
        "take_ranges": (val, joined, begin, end, n, False),
        "transpose_dense": (numbers(n // 7 + 1, 7),),
        "transpose_plan": (ptr, idx, NUM_COLS, val),
        "union": (ptr, unsorted, *other),
        "union_sum": (ptr, unsorted, val, *other, numbers(len(other[1])), False),
        "union_values": (ptr, unsorted, val, *other, numbers(len(other[1]))),
    }


def _segments(ptr, idx, perm):
    m, n = len(ptr) - 1, len(idx)
    few = torch.tensor([0, n // 2, n // 2, n - n // 8, n]).to(ptr.dtype)
    wide = numbers(n, 3)
    return {
        "scatter_sum": (perm % NUM_COLS, numbers(n).to(torch.bfloat16), NUM_COLS, True),
        "segment_arg": (few, perm, wide, True),
        "segment_expand": (ptr, perm, n, numbers(m, 3)),
        "segment_order": (few, wide, True),
        "segment_reduce": (few, perm, wide, "sum"),
        "segment_scan": (few, perm, wide, True),
        "segment_softmax": (few, perm, wide, False),
        "segment_softmax_backward": (few, perm, wide.abs() / n, wide, False),
        "segment_top": (ptr, numbers(n), idx.long(), NUM_COLS, 3, True, False),
        "shares": (few, 3),
    }


def _products(ptr, idx, perm):
    m, n, dtype = len(ptr) - 1, len(idx), idx.dtype
    val, x, g = numbers(n), numbers(NUM_COLS, 5), numbers(m, 5)
    a = ptr, idx, perm, val
    b = *lines(3 * NUM_COLS, dtype, NUM_COLS), None, numbers(3 * NUM_COLS)
    product = kernels.spgemm(*a, *b, NUM_COLS)
    largest = kernels.spmm_reduce(*a, x, True)[1]
    q, k, v = numbers(2, m, 3), numbers(2, NUM_COLS, 3), numbers(2, NUM_COLS, 4)
    out, lse = kernels.attention(ptr, idx, perm, val, q, k, v, 0.1)
    by_cols = kernels.transpose_plan(ptr, idx, NUM_COLS)
    delta = torch.linalg.vecdot(out, out)
    ends = numbers(n, 2), numbers(m, 2), numbers(NUM_COLS, 2), numbers(NUM_COLS, 8), 0.5
    by_head = kernels.additive_attention(ptr, idx, perm, *ends, True)
    places = perm[by_cols[2].long()]
    blocks = numbers(6 * n), numbers(2, 2 * m, 3), numbers(2, 3 * NUM_COLS, 3)
    of_blocks = *blocks, numbers(2, 3 * NUM_COLS, 4)
    cotangent = numbers(2, 2 * m, 4), numbers(2, 2 * m), numbers(2, 2 * m)
    return {
        "additive_attention": (*a[:3], *ends, True),
        "additive_attention_backward": (*by_cols[:2], places, *ends, by_head[0], *by_head),
        "attention": (ptr, idx, perm, val, q, k, v, 0.1),
        "attention_backward": (*a[:3], *by_cols, val, q, k, v, out, lse, delta, 0.1),
        "block_attention": (*a[:3], *of_blocks, 0.1, 2, 3),
        "block_attention_backward": (*a[:3], *by_cols, *of_blocks, *cotangent, 0.1, 2, 3),
        "block_sddmm": (*a[:3], numbers(2 * m, 5), numbers(3 * NUM_COLS, 5), 2, 3, False),
        "block_spmm": (*a[:3], numbers(6 * n), numbers(3 * NUM_COLS, 5), 2, 3, True),
        "heads_sddmm": (*a[:3], numbers(m, 10), numbers(NUM_COLS, 10), 2),
        "heads_spmm": (*a[:3], numbers(n, 2), numbers(NUM_COLS, 10)),
        "masked_spgemm": (*product[:2], None, *a, *b, NUM_COLS),
        "row_sddmm": (*a[:3], numbers(12, m), numbers(12, NUM_COLS)),
        "row_spmm": (*a, numbers(12, NUM_COLS)),
        "row_spmm_sddmm": (*a, numbers(12, m), numbers(12, NUM_COLS)),
        "scale": (*a, numbers(m), numbers(NUM_COLS)),
        "sddmm": (*a[:3], g, x),
        "spgemm": (*a, *b, NUM_COLS),
        "spgemm_values": (*product[:2], *a, *b, NUM_COLS),
        "spmm": (*a, x),
        "untiled_spmm": (ptr, idx, val, x),
        "spmm_prod": (ptr, idx, x.sign()),
        "spmm_plus": (*a, x, False),
        "spmm_reduce": (*a, x, True),
        "spmm_reduce_backward": (*a, x, g, largest),
        "spmm_sddmm": (*a, g, x),
    }


def _solves(ptr, idx, perm):
    m, n = len(ptr) - 1, len(idx)
    deep = kernels.expand(ptr, n) >= NUM_COLS  # each depends on rows that depend on none
    val = torch.empty(n, dtype=torch.float64).index_copy_(0, perm.long(), numbers(n) * deep)
    # two diagonals, of a matrix whose factors are small integers and halves
    entry = torch.arange(n - 1 + n % 2)
    band = torch.where(entry % 2 == 0, 5.0, 2.0).double()
    band[0] = 4.0
    starts = (2 * torch.arange(len(band) // 2 + 2) - 1).clamp(min=0)
    matrix = starts.to(ptr.dtype), (entry // 2).to(ptr.dtype), band
    starts_of_one = torch.arange(m + 1, dtype=ptr.dtype)  # of a diagonal matrix
    diagonal = starts_of_one, starts_of_one[:-1]
    few = starts_of_one[:200]  # dense in the reference
    some = starts_of_one[:3000]  # a loop in the reference, and no threads in the kernel
    factor = few, few[:-1], torch.full((len(few) - 1,), 4.0).double()
    nodes = few, torch.zeros_like(few), few[:0]
    return {
        "factor_pattern": (some, some[:-1]),
        "incomplete_cholesky": matrix,
        "incomplete_lu": (*matrix, 0.0),
        "relaxed_cholesky": (some, some[:-1], torch.full((len(some) - 1,), 4.0).double(), 0.5),
        "by_diagonals": (*diagonal, torch.full((m,), 4.0).double(), torch.tensor([0, 3])),
        "list_diagonals": (*diagonal, 3),
        "substitute_diagonals": (
            numbers(1, stride(len(few) - 1)),
            torch.tensor([-1]),
            None,
            numbers(1, len(few) - 1, 1),
            False,
        ),
        "spmv_diagonals": (numbers(2, stride(m)), torch.tensor([-1, 0]), numbers(1, m, 1)),
        "spmv_tiles": (
            numbers(1, TILE_ROWS),
            torch.zeros(-(-m // TILE_ROWS), 2, dtype=torch.int32),
            torch.tensor([-1, 0]),
            numbers(1, m, 1),
        ),
        "tiles_of_diagonals": (torch.ones(2, stride(3000)), 3000, 4),
        "krylov_dot": (numbers(2, n, 1), numbers(2, n, 1)),
        "krylov_product": (*diagonal, torch.full((m,), 4.0).double(), numbers(1, m, 1)),
        "selected_inverse": (*diagonal, torch.full((m,), 4.0).double(), *diagonal, diagonal[1]),
        "solve_triangular": (ptr, idx, perm, val, numbers(m, 17), False, True),
        "supernodal_inverse": (*nodes, *factor, *factor, 0),
        "supernodes": (*factor[:2], *factor[:2], 10 * m),
    }


def interpreted(name):
    """A smaller huge line, still of several parts: Triton's interpreter takes minutes."""
    length = 1_100 if name.startswith("segment_") else 300
    return {"one huge line": ([1, length, 0, 2], length + 100)}
