"""References of the kernels between matrices of blocks and of single elements."""

from __future__ import annotations

import torch
from torch import Tensor

from spgrad.kernels.declare import kernel
from spgrad.kernels.reference.common.views import (
    moved,
    positions,
    row_numbers,
    row_pointers,
)
from spgrad.kernels.reference.layouts.coalesce import coalesce

_View = tuple[Tensor, Tensor, Tensor]


@kernel(
    "expand_blocks(Tensor ptr, Tensor idx, SymInt block_lines, SymInt block_width, bool transposed,"
    " Tensor? val=None) -> (Tensor, Tensor, Tensor)"
)
def expand_blocks(
    ptr: Tensor,
    idx: Tensor,
    block_lines: int,
    block_width: int,
    transposed: bool,
    val: Tensor | None = None,
) -> _View:
    """The scalar view (pointers, indices, positions of the values) of a compressed block matrix.

    A block holds `block_lines` lines, in the compressed dimension, of `block_width` elements; its
    values lie line by line, or element by element if `transposed`. Line c of a line of blocks
    lists, block after block, the `block_width` elements of line c of the block. With values val
    (nb block_lines block_width,), these in the new order in place of their positions.
    """
    lines = ptr.diff()[:, None].expand(-1, block_lines).reshape(-1)  # blocks met by each line
    ends = lines.cumsum(0, dtype=ptr.dtype)
    line = torch.repeat_interleave(lines, output_size=idx.numel() * block_lines).long()
    first = ptr[:-1][:, None].expand(-1, block_lines).reshape(-1)
    start = ends - lines
    block = (positions(ptr, idx.numel() * block_lines) - start[line] + first[line])[:, None]
    c = (line % block_lines).to(ptr.dtype)[:, None]
    r = positions(ptr, block_width)[None, :]
    offset = r * block_lines + c if transposed else c * block_width + r
    perm = block * (block_lines * block_width) + offset  # (nb * block_lines, block_width)
    eidx = idx[block.long()] * block_width + r
    eptr = torch.cat([ptr.new_zeros(1), ends * block_width])
    return eptr, eidx.reshape(-1), moved(perm.reshape(-1), val)


def _fake_group_blocks(
    ptr: Tensor,
    idx: Tensor,
    block_lines: int,
    block_width: int,
    transposed: bool,
    val: Tensor | None = None,
) -> _View:
    size = torch.library.get_ctx().new_dynamic_size()  # number of blocks
    lines = (ptr.shape[0] - 1) // block_lines
    like = idx if val is None else val
    return (
        ptr.new_empty(lines + 1),
        idx.new_empty(size),
        like.new_empty(size * block_lines * block_width),
    )


@kernel(
    "group_blocks(Tensor ptr, Tensor idx, SymInt block_lines, SymInt block_width, bool transposed,"
    " Tensor? val=None) -> (Tensor, Tensor, Tensor)",
    fake=_fake_group_blocks,
)
def group_blocks(
    ptr: Tensor,
    idx: Tensor,
    block_lines: int,
    block_width: int,
    transposed: bool,
    val: Tensor | None = None,
) -> _View:
    """The blocks of `block_lines` lines by `block_width` indices that hold an entry.

    Args:
        ptr: Line pointers (m + 1,), m a multiple of `block_lines`.
        idx: Index of every entry (nse,), ascending in each line.
        block_lines: Lines of a block.
        block_width: Indices of a block.
        transposed: True where the elements of a block lie index by index, not line by line.
        val: Values (nse,), or None.

    Returns:
        Pointers (m / block_lines + 1,) to lines of blocks, ascending block indices (nb,), and the
        entry that each element of the blocks is (nb block_lines block_width,), -1 for none, or its
        value, zero for none. The dtype of the indices has to hold the number of the elements.
    """
    row = row_numbers(ptr, idx.shape[0]).long()
    col = idx.long()
    bounds = [(ptr.shape[0] - 1) // block_lines, torch.iinfo(idx.dtype).max]
    blocks, group = coalesce(torch.stack([row // block_lines, col // block_width]), bounds)
    r, c = row % block_lines, col % block_width
    size = block_lines * block_width
    place = group * size + (c * block_lines + r if transposed else r * block_width + c)
    entry = idx.new_full((blocks.shape[1] * size,), -1)
    entry.index_copy_(0, place, positions(idx, idx.shape[0]))
    starts = row_pointers(blocks[0], (ptr.shape[0] - 1) // block_lines)
    return starts.to(ptr.dtype), blocks[1].to(ptr.dtype), moved(entry, val)
