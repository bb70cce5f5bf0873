"""Stacks, block-diagonal matrices, identities, and COO to CSR, of torch's own tensors."""

from __future__ import annotations

import itertools
from typing import Any

import torch


def stack_csr(tensors: list[torch.Tensor], dim: int = 0) -> torch.Tensor:
    """A batch of CSR matrices of one shape and one number of elements.

    Example:
        >>> stack_csr([torch.eye(2).to_sparse_csr()] * 3).shape
        torch.Size([3, 2, 2])
    """
    if not isinstance(tensors, (list, tuple)):
        raise TypeError(f"tensors is {type(tensors).__name__}; a list is taken")
    if not tensors:
        raise ValueError("tensors is empty; one matrix or more is taken")
    first = tensors[0]
    for t in tensors:
        if t.shape != first.shape or t.layout != torch.sparse_csr or t.dim() != 2:
            raise ValueError(
                f"tensors has one of shape {tuple(t.shape)} and layout {t.layout}; CSR matrices of "
                "one shape are taken"
            )
    parts = ([t.crow_indices() for t in tensors], [t.col_indices() for t in tensors])
    crow, col = (torch.stack(part, dim) for part in parts)
    shape = list(first.shape)
    shape.insert(dim, len(tensors))
    values = torch.stack([t.values() for t in tensors], dim)
    return torch.sparse_csr_tensor(crow, col, values, tuple(shape))


def _sort_coo_indices(indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The columns of indices in lexicographic order, and the old position of each column."""
    order = torch.arange(indices.shape[1], device=indices.device)
    for row in indices.flip(0):
        order = order[torch.argsort(row[order], stable=True)]
    return indices[:, order].contiguous(), order


def _compress_row_indices(row_indices: torch.Tensor, num_rows: int) -> torch.Tensor:
    """Row pointers of sorted row indices."""
    if not isinstance(row_indices, torch.Tensor):
        raise TypeError(f"row_indices is {type(row_indices).__name__}; a tensor is taken")
    if row_indices.dim() != 1:
        raise ValueError(f"row_indices has {row_indices.dim()} dimensions; a vector is taken")
    if row_indices.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"row_indices has dtype {row_indices.dtype}; int32 and int64 are taken")
    if not isinstance(num_rows, int) or num_rows <= 0:
        raise ValueError(f"num_rows is {num_rows}; a positive int is taken")
    if bool(((row_indices < 0) | (row_indices >= num_rows)).any()):
        raise ValueError(f"row_indices has an index outside of the {num_rows} rows")
    counts = torch.bincount(row_indices, minlength=num_rows).cumsum(0)
    return torch.nn.functional.pad(counts, (1, 0)).to(row_indices.dtype)


def _demcompress_crow_indices(crow_indices: torch.Tensor, num_rows: int) -> torch.Tensor:
    """The row indices that belong to row pointers."""
    row = torch.arange(num_rows, dtype=crow_indices.dtype, device=crow_indices.device)
    return torch.repeat_interleave(row, crow_indices.diff())


def convert_coo_to_csr_indices_values(
    coo_indices: torch.Tensor, num_rows: int, values: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """crow, col and values in CSR order; without values, the old position of each element.

    Example:
        >>> convert_coo_to_csr_indices_values(torch.tensor([[1, 0], [0, 1]]), 2)
        (tensor([0, 1, 2]), tensor([1, 0]), tensor([1, 0]))
    """
    dims = coo_indices.shape[0]
    if dims not in (2, 3):
        raise ValueError(f"coo_indices has {dims} rows; 2, or 3 with a batch, are taken")
    if coo_indices.shape[1] and int(coo_indices[-2].max()) >= num_rows:
        raise ValueError(f"coo_indices has an index outside of the {num_rows} rows")
    if values is not None and values.shape[0] != coo_indices.shape[1]:
        raise ValueError(f"values has {values.shape[0]} numbers for {coo_indices.shape[1]} indices")
    indices, order = _sort_coo_indices(coo_indices)
    found = order if values is None else values[order]
    if dims == 2:
        return _compress_row_indices(indices[0], num_rows), indices[1].clone(), found
    items = int(indices[0].max()) + 1 if indices.shape[1] else 1
    each = _in_each(torch.bincount(indices[0], minlength=items))
    row = indices[1].view(items, each)
    crow = torch.stack([_compress_row_indices(r, num_rows) for r in row])
    return crow, indices[2].view(items, each), found.view(items, each)


def _in_each(counts: torch.Tensor) -> int:
    """The one number of elements that the items of a batch have, of their numbers."""
    least, most = (int(n) for n in counts.aminmax())
    if least != most:
        raise ValueError(f"the items have from {least} to {most} elements; one number is taken")
    return most


def convert_coo_to_csr(sparse_coo_tensor: torch.Tensor) -> torch.Tensor:
    """A COO matrix, or batch with one number of elements in each, in CSR.

    Example:
        >>> convert_coo_to_csr(torch.eye(2).to_sparse_coo()).layout
        torch.sparse_csr
    """
    if sparse_coo_tensor.layout != torch.sparse_coo:
        raise ValueError(f"sparse_coo_tensor has layout {sparse_coo_tensor.layout}; COO is taken")
    A = sparse_coo_tensor.coalesce()
    if A.dim() == 3 and A.sparse_dim() == 3 and A.shape[0]:
        _in_each(torch.bincount(A.indices()[0], minlength=A.shape[0]))
    if not A._nnz():
        return torch.zeros(A.shape, dtype=A.dtype, device=A.device, layout=torch.sparse_csr)
    crow, col, val = convert_coo_to_csr_indices_values(A.indices(), A.shape[-2], A.values())
    return torch.sparse_csr_tensor(crow, col, val, A.shape)


def sparse_block_diag(*sparse_tensors: torch.Tensor) -> torch.Tensor:
    """The block-diagonal matrix of some matrices, which are all COO or all CSR.

    Example:
        >>> A = torch.eye(2).to_sparse_csr()
        >>> sparse_block_diag(A, A).shape
        torch.Size([4, 4])
    """
    for t in sparse_tensors:
        if not isinstance(t, torch.Tensor):
            raise TypeError(f"{type(t).__name__} is given; tensors are taken")
    layouts = {t.layout for t in sparse_tensors}
    if layouts not in ({torch.sparse_coo}, {torch.sparse_csr}):
        raise ValueError(f"layouts {layouts} are given; all COO, or all CSR, are taken")
    if any(t.sparse_dim() != 2 or t.dense_dim() for t in sparse_tensors):
        raise ValueError("a tensor is given that is no sparse matrix; matrices are taken")
    if len(sparse_tensors) == 1:
        return sparse_tensors[0]
    shapes = [t.shape for t in sparse_tensors]
    down = [0, *itertools.accumulate(s[0] for s in shapes)]
    across = [0, *itertools.accumulate(s[1] for s in shapes)]
    size = down[-1], across[-1]
    if layouts == {torch.sparse_coo}:
        parts = [t.coalesce() for t in sparse_tensors]
        moved = [
            t.indices() + torch.tensor([[r], [c]], device=t.device)
            for t, r, c in zip(parts, down, across, strict=False)
        ]
        values = torch.cat([t.values() for t in parts])
        return torch.sparse_coo_tensor(torch.cat(moved, 1), values, size, is_coalesced=True)
    before = [0, *itertools.accumulate(t._nnz() for t in sparse_tensors)]
    crow = [t.crow_indices()[1:] + k for t, k in zip(sparse_tensors, before, strict=False)]
    col = [t.col_indices() + c for t, c in zip(sparse_tensors, across, strict=False)]
    crow = torch.cat([sparse_tensors[0].crow_indices()[:1], *crow])
    values = torch.cat([t.values() for t in sparse_tensors])
    return torch.sparse_csr_tensor(crow, torch.cat(col), values, size)


def sparse_block_diag_split(
    sparse_block_diag_tensor: torch.Tensor, *shapes: tuple[int, int]
) -> tuple[torch.Tensor, ...]:
    """The matrices of these shapes along the diagonal of a COO or CSR matrix.

    Example:
        >>> A = torch.eye(4).to_sparse_csr()
        >>> [B.shape for B in sparse_block_diag_split(A, (1, 1), (3, 3))]
        [torch.Size([1, 1]), torch.Size([3, 3])]
    """
    A = sparse_block_diag_tensor
    if not isinstance(A, torch.Tensor):
        raise TypeError(f"{type(A).__name__} is given; a tensor is taken")
    if A.layout not in (torch.sparse_coo, torch.sparse_csr):
        raise ValueError(f"layout {A.layout} is given; COO and CSR are taken")
    if any(len(s) != 2 for s in shapes):
        raise ValueError(f"shapes has {shapes}; pairs of rows and columns are taken")
    size = sum(s[0] for s in shapes), sum(s[1] for s in shapes)
    if size != tuple(A.shape[-2:]):
        raise ValueError(f"shapes add up to {size}, and the matrix has {tuple(A.shape)}")
    found, r, c = [], 0, 0
    for rows, columns in shapes:
        found.append(_block(A, r, c, rows, columns))
        r, c = r + rows, c + columns
    return tuple(found)


def _block(A: torch.Tensor, r: int, c: int, rows: int, columns: int) -> torch.Tensor:
    if A.layout == torch.sparse_coo:
        A = A.coalesce()
        row, col = A.indices()
        at = (row >= r) & (row < r + rows) & (col >= c) & (col < c + columns)
        here = A.indices()[:, at] - torch.tensor([[r], [c]], device=A.device)
        return torch.sparse_coo_tensor(here, A.values()[at], (rows, columns), is_coalesced=True)
    crow = A.crow_indices()[r : r + rows + 1]
    lines = slice(int(crow[0]), int(crow[-1]))
    col, values = A.col_indices()[lines] - c, A.values()[lines]
    at = (col >= 0) & (col < columns)
    before = torch.cat([crow.new_zeros(1), at.cumsum(0, dtype=crow.dtype)])
    return torch.sparse_csr_tensor(before[crow - crow[0]], col[at], values[at], (rows, columns))


def sparse_eye(
    size: tuple[int, ...],
    *,
    layout: torch.layout = torch.sparse_coo,
    values_dtype: torch.dtype = torch.float64,
    indices_dtype: torch.dtype = torch.int64,
    device: Any = None,
    requires_grad: bool = False,
) -> torch.Tensor:
    """The identity (n, n), or a batch of it (b, n, n), in COO or CSR.

    Example:
        >>> sparse_eye((2, 3, 3), layout=torch.sparse_csr).values().shape
        torch.Size([2, 3])
    """
    if len(size) not in (2, 3) or size[-1] != size[-2]:
        raise ValueError(f"size is {tuple(size)}; (n, n) or (b, n, n) is taken")
    if values_dtype not in (torch.float32, torch.float64):
        raise ValueError(f"values_dtype is {values_dtype}; float32 and float64 are taken")
    if indices_dtype not in (torch.int32, torch.int64):
        raise ValueError(f"indices_dtype is {indices_dtype}; int32 and int64 are taken")
    n, batch = size[-1], tuple(size[:-2])
    line = torch.arange(n, dtype=indices_dtype, device=device)
    values = torch.ones(*batch, n, dtype=values_dtype, device=device)
    if layout == torch.sparse_csr:
        crow = torch.arange(n + 1, dtype=indices_dtype, device=device)
        crow, col = (t.expand(*batch, -1).contiguous() for t in (crow, line))
        A = torch.sparse_csr_tensor(crow, col, values, tuple(size))
    elif layout == torch.sparse_coo:
        item = [torch.arange(b, dtype=indices_dtype).repeat_interleave(n) for b in batch]
        lines = line.repeat(*(batch or (1,)))
        parts = [*(t.to(line.device) for t in item), lines, lines]
        indices = torch.stack(parts)
        A = torch.sparse_coo_tensor(indices, values.flatten(), tuple(size), is_coalesced=True)
    else:
        raise ValueError(f"layout is {layout}; torch.sparse_coo and torch.sparse_csr are taken")
    return A.requires_grad_(requires_grad)
