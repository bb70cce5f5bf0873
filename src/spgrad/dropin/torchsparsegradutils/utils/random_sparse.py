"""Random sparse matrices of torch's own class, drawn from torch's generator."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from spgrad.dropin.torchsparsegradutils.utils.utils import convert_coo_to_csr_indices_values

__all__ = [
    "generate_random_sparse_coo_matrix",
    "generate_random_sparse_csr_matrix",
    "generate_random_sparse_strictly_triangular_coo_matrix",
    "generate_random_sparse_strictly_triangular_csr_matrix",
    "generate_random_sparse_triangular_coo_matrix",
    "generate_random_sparse_triangular_csr_matrix",
    "make_spd_sparse",
    "rand_sparse",
    "rand_sparse_tri",
]


class _Kind(NamedTuple):
    """Where elements may be: everywhere, or in one triangle, which has a full diagonal or none."""

    triangle: str | None = None  # "upper" or "lower"
    strict: bool = False


def rand_sparse(
    size: tuple[int, ...], nnz: int, layout: torch.layout = torch.sparse_coo, **options: Any
) -> torch.Tensor:
    """A matrix, or batch, with `nnz` elements at random places, uniform in [0, 1).

    Options: `indices_dtype`, `values_dtype`, `device`; with `well_conditioned`, elements on the
    diagonal of a square matrix are from `min_diag_value` to `min_diag_value` + 0.5.

    Example:
        >>> rand_sparse((3, 4), 5, torch.sparse_csr)._nnz()
        5
    """
    return _made(_Kind(), size, nnz, layout, **options)


def rand_sparse_tri(
    size: tuple[int, ...],
    nnz: int,
    layout: torch.layout = torch.sparse_coo,
    *,
    upper: bool = True,
    strict: bool = False,
    **options: Any,
) -> torch.Tensor:
    """A triangular matrix, or batch, with `nnz` elements: all of its diagonal, none if `strict`.

    Options: those of `rand_sparse`, and `value_range`.

    Example:
        >>> rand_sparse_tri((3, 3), 4).shape
        torch.Size([3, 3])
    """
    kind = _Kind("upper" if upper else "lower", strict)
    return _made(kind, size, nnz, layout, **options)


def generate_random_sparse_coo_matrix(
    size: tuple[int, ...], nnz: int, **options: Any
) -> torch.Tensor:
    """`rand_sparse` in COO."""
    return rand_sparse(size, nnz, torch.sparse_coo, **options)


def generate_random_sparse_csr_matrix(
    size: tuple[int, ...], nnz: int, **options: Any
) -> torch.Tensor:
    """`rand_sparse` in CSR."""
    return rand_sparse(size, nnz, torch.sparse_csr, **options)


def generate_random_sparse_strictly_triangular_coo_matrix(
    size: tuple[int, ...], nnz: int, **options: Any
) -> torch.Tensor:
    """`rand_sparse_tri` in COO, without a diagonal."""
    return rand_sparse_tri(size, nnz, torch.sparse_coo, strict=True, **options)


def generate_random_sparse_strictly_triangular_csr_matrix(
    size: tuple[int, ...], nnz: int, **options: Any
) -> torch.Tensor:
    """`rand_sparse_tri` in CSR, without a diagonal."""
    return rand_sparse_tri(size, nnz, torch.sparse_csr, strict=True, **options)


def generate_random_sparse_triangular_coo_matrix(
    size: tuple[int, ...], nnz: int, **options: Any
) -> torch.Tensor:
    """`rand_sparse_tri` in COO, with its diagonal."""
    return rand_sparse_tri(size, nnz, torch.sparse_coo, **options)


def generate_random_sparse_triangular_csr_matrix(
    size: tuple[int, ...], nnz: int, **options: Any
) -> torch.Tensor:
    """`rand_sparse_tri` in CSR, with its diagonal."""
    return rand_sparse_tri(size, nnz, torch.sparse_csr, **options)


def _made(
    kind: _Kind,
    size: tuple[int, ...],
    nnz: int,
    layout: torch.layout,
    *,
    indices_dtype: torch.dtype = torch.int64,
    values_dtype: torch.dtype = torch.float32,
    device: Any = None,
    value_range: tuple[float, float] = (0.0, 1.0),
    well_conditioned: bool = False,
    min_diag_value: float = 1.0,
) -> torch.Tensor:
    if layout not in (torch.sparse_coo, torch.sparse_csr):
        raise ValueError(f"layout is {layout}; torch.sparse_coo and torch.sparse_csr are taken")
    if indices_dtype not in (torch.int32, torch.int64):
        raise ValueError(f"indices_dtype is {indices_dtype}; int32 and int64 are taken")
    places = _places(kind, tuple(size))
    least = size[-1] if kind.triangle and not kind.strict else 0
    if not least <= nnz <= least + places.shape[0]:
        raise ValueError(f"nnz is {nnz}; from {least} to {least + places.shape[0]} are taken")
    items = size[0] if len(size) == 3 else 1
    found = []
    for item in range(items):
        chosen = places[torch.randperm(places.shape[0])[: nnz - least]]
        chosen = torch.cat((torch.arange(least) * (size[-1] + 1), chosen))
        found.append(torch.stack((torch.full_like(chosen, item), chosen)))
    item, flat = torch.cat(found, 1)
    indices = torch.stack((item, flat // size[-1], flat % size[-1]))
    low, high = value_range
    values = torch.rand(indices.shape[1], dtype=values_dtype) * (high - low) + low
    on_diagonal = indices[1] == indices[2]
    if well_conditioned and size[-1] == size[-2]:
        safe = torch.rand(values.shape, dtype=values_dtype) / 2 + min_diag_value
        values = torch.where(on_diagonal, safe, values)
    indices = indices[3 - len(size) :].to(device, indices_dtype)
    values = values.to(device)
    if layout == torch.sparse_coo:
        return torch.sparse_coo_tensor(indices, values, tuple(size)).coalesce()
    crow, col, values = convert_coo_to_csr_indices_values(indices, size[-2], values)
    return torch.sparse_csr_tensor(crow, col, values, tuple(size))


def _places(kind: _Kind, size: tuple[int, ...]) -> torch.Tensor:
    """Row-major positions of the elements that may be drawn."""
    if len(size) not in (2, 3):
        raise ValueError(f"size is {size}; (m, k) or (b, m, k) is taken")
    rows, columns = size[-2:]
    if kind.triangle is None:
        return torch.arange(rows * columns)
    if rows != columns:
        raise ValueError(f"size is {size}; a square matrix or batch is taken")
    row, column = torch.tril_indices(rows, rows, -1)
    return column * rows + row if kind.triangle == "upper" else row * rows + column


def make_spd_sparse(
    n: int,
    layout: torch.layout,
    value_dtype: torch.dtype,
    index_dtype: torch.dtype,
    device: Any,
    sparsity_ratio: float = 0.5,
    nz: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """A random symmetric positive definite matrix, sparse and dense.

    `nz` off-diagonal elements are 0; by default, the share `sparsity_ratio` of them is.

    Example:
        >>> A, dense = make_spd_sparse(4, torch.sparse_csr, torch.float32, torch.int64, "cpu")
        >>> torch.equal(A.to_dense(), dense)
        True
    """
    if layout not in (torch.sparse_coo, torch.sparse_csr):
        raise ValueError(f"Unsupported layout {layout}: torch.sparse_coo and sparse_csr are taken")
    root = torch.randn(n, n, dtype=value_dtype, device=device)
    dense = (root @ root.T).tril()
    dense += dense.tril(-1).T  # exactly symmetric, which rounding of the product is not
    row, column = torch.triu_indices(n, n, 1, device=device)
    zeros = int(sparsity_ratio * row.shape[0]) if nz is None else min(nz // 2, row.shape[0])
    which = torch.randperm(row.shape[0], device=device)[:zeros]
    dense[row[which], column[which]] = dense[column[which], row[which]] = 0
    margin = dense.abs().sum(1) - dense.diagonal()  # what a diagonal needs to exceed its row
    dense.diagonal().add_(margin.clamp(min=0) + n)
    indices = dense.nonzero().T.to(index_dtype)
    values = dense[indices[0].long(), indices[1].long()]
    if layout == torch.sparse_coo:
        return torch.sparse_coo_tensor(indices, values, (n, n)).coalesce(), dense
    crow, col, values = convert_coo_to_csr_indices_values(indices, n, values)
    return torch.sparse_csr_tensor(crow, col, values, (n, n)), dense
