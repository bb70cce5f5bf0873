"""Reference of the supernodes of the factors."""

from __future__ import annotations

import torch
from torch import Tensor

from spgrad.kernels.declare import kernel

_WIDEST = 64
_GATHER = 6


def _supernode_shapes(
    l_ptr: Tensor, l_idx: Tensor, u_ptr: Tensor, u_idx: Tensor, limit: int
) -> tuple[Tensor, Tensor, Tensor]:
    count = torch.library.get_ctx().new_dynamic_size()
    below = torch.library.get_ctx().new_dynamic_size()
    return l_ptr.new_empty(count), l_ptr.new_empty(count), l_ptr.new_empty(below)


@kernel(
    "supernodes(Tensor l_ptr, Tensor l_idx, Tensor u_ptr, Tensor u_idx, int limit) -> "
    "(Tensor, Tensor, Tensor)",
    fake=_supernode_shapes,
)
def supernodes(
    l_ptr: Tensor, l_idx: Tensor, u_ptr: Tensor, u_idx: Tensor, limit: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Supernodes of L + U: columns side by side that have nearly the same rows below them.

    The pattern is that of the factors of a matrix with the mirrored pattern of L + U; in a
    supernode, every column has the rows of the last.

    Args:
        l_ptr: Column pointers (m + 1,) of L.
        l_idx: Row of every entry, without repeats in a column, in any order. Entries on the
            diagonal do not count.
        u_ptr: Column pointers (m + 1,) of U.
        u_idx: As `l_idx`.
        limit: Elements that the supernodes may have, those below counted twice.

    Returns:
        The first column of each supernode, and m; row pointers (supernodes + 1,); and the rows
        below the supernodes, sorted in each. Beyond the limit, no supernodes: (0,), (0,), ().
    """
    m = l_ptr.shape[0] - 1
    l_starts, l_rows = l_ptr.tolist(), l_idx.tolist()
    below = [{i for i in l_rows[l_starts[j] : l_starts[j + 1]] if i > j} for j in range(m)]
    u_starts, u_rows = u_ptr.tolist(), u_idx.tolist()
    for c in range(m):
        for i in u_rows[u_starts[c] : u_starts[c + 1]]:
            if i < c:
                below[i].add(c)
    start, row_ptr, rows, elements = [0], [0], [], 0
    for j in range(m):
        last = below[j]
        first, parent = start[-1], min(last, default=None)
        width, now = j + 1 - first, 0
        if parent is not None:
            below[parent] |= last - {parent}
            now = len(below[parent])
        inherited = (len(last) - 1) ** 2
        follows = parent == j + 1 and width < _WIDEST
        if follows and width * (now**2 - inherited) <= _GATHER * inherited:
            continue
        start.append(j + 1)
        rows += sorted(last)
        row_ptr.append(len(rows))
        elements += width * (width + 2 * len(last))
    if elements > limit:
        start, row_ptr, rows = [0], [0], []
    first, ptr, idx = (
        torch.tensor(a, dtype=l_ptr.dtype, device=l_ptr.device) for a in (start, row_ptr, rows)
    )
    return first, ptr, idx
