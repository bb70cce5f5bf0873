"""Which elements of a matrix a layer keeps: at random, or by magnitude."""

from __future__ import annotations

from typing import Any

import torch

from spgrad.core import checks
from spgrad.core.compressed import sparse_bsr_tensor, sparse_csr_tensor
from spgrad.core.pattern import LAYOUT_NAMES, Pattern
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import on_pattern
from spgrad.errors import ArgumentKindError, ArgumentValueError
from spgrad.ops.layouts.convert import to_sparse
from spgrad.ops.layouts.dense import from_dense

Blocks = tuple[int, int] | None


def at_positions(
    positions: torch.Tensor, size: tuple[int, int], blocksize: Blocks, dtype: torch.dtype
) -> SparseTensor:
    """A CSR or BSR matrix of zeros at these sorted row-major positions of elements or blocks."""
    bm, bn = blocksize or (1, 1)
    lines, width = size[0] // bm, size[1] // bn
    counts = torch.bincount(positions // max(width, 1), minlength=lines)
    ptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    shape = (positions.numel(), *(blocksize or ()))
    vals = torch.zeros(shape, dtype=dtype, device=positions.device)
    make = sparse_csr_tensor if blocksize is None else sparse_bsr_tensor
    return make(ptr, positions % max(width, 1), vals, size, check_invariants=False)


def distinct(total: int, n: int, generator: torch.Generator | None) -> torch.Tensor:
    """n distinct numbers below `total`, sorted; each set is equally likely; O(n) memory."""
    device = generator.device if generator is not None else torch.device("cpu")
    options: dict[str, Any] = {"generator": generator, "device": device}
    if 4 * n >= total:
        return torch.randperm(total, **options)[:n].sort().values
    found = torch.empty(0, dtype=torch.int64, device=device)
    while found.numel() < n:
        more = torch.randint(total, (n + n // 4 + 8,), **options)
        found = torch.cat([found, more]).unique()
    kept = torch.randperm(found.numel(), **options)[:n]
    return found[kept].sort().values


def distinct_beside(
    taken: torch.Tensor, total: int, n: int, generator: torch.Generator | None
) -> torch.Tensor:
    """n distinct numbers below `total` that are not in `taken`, which is sorted."""
    ranks = distinct(total - taken.numel(), n, generator).to(taken.device)
    before = taken - torch.arange(taken.numel(), device=taken.device)
    return ranks + torch.searchsorted(before, ranks, right=True)


def random_positions(
    size: tuple[int, int], blocksize: Blocks, density: float, generator: torch.Generator | None
) -> torch.Tensor:
    """Positions of a random share `density` of the elements, or of the blocks."""
    bm, bn = blocksize or (1, 1)
    total = (size[0] // bm) * (size[1] // bn)
    return distinct(total, round(density * total), generator)


def random_in_groups(
    size: tuple[int, int], n_m: tuple[int, int], generator: torch.Generator | None
) -> torch.Tensor:
    """Positions of n random elements in each m that follow one another in a row."""
    n, m = n_m
    device = generator.device if generator is not None else torch.device("cpu")
    order = torch.rand(size[0] * size[1] // m, m, generator=generator, device=device)
    return _first_of_groups(order, n)


def _first_of_groups(score: torch.Tensor, n: int) -> torch.Tensor:
    """Positions of the n largest in each row of (groups, m)."""
    chosen = score.topk(n, dim=1).indices.sort(dim=1).values
    base = torch.arange(score.shape[0], device=score.device)[:, None] * score.shape[1]
    return (chosen + base).reshape(-1)


def largest_positions(
    dense: torch.Tensor, blocksize: Blocks, density: float | None, n_m: tuple[int, int] | None
) -> torch.Tensor:
    """Positions of the elements of largest magnitude, or of the blocks of largest norm."""
    if n_m is not None:
        return _first_of_groups(dense.abs().reshape(-1, n_m[1]), n_m[0])
    assert density is not None
    score = dense.abs() if blocksize is None else as_blocks(dense, blocksize).norm(dim=(2, 3))
    flat = score.reshape(-1)
    return flat.topk(round(density * flat.numel())).indices.sort().values


def in_groups(positions: torch.Tensor, size: tuple[int, int], m: int) -> Pattern:
    """Sorted row-major positions in a matrix whose rows are its groups of m columns."""
    groups = (size[0] * size[1] // max(m, 1), m)
    return at_positions(positions, groups, None, torch.bool)._pattern


def as_blocks(dense: torch.Tensor, blocksize: tuple[int, int]) -> torch.Tensor:
    """A dense matrix as (rows of blocks, columns of blocks, *blocksize)."""
    bm, bn = blocksize
    return dense.unflatten(1, (-1, bn)).unflatten(0, (-1, bm)).transpose(1, 2)


def given_pattern(pattern: Any, size: tuple[int, int], blocksize: Blocks) -> SparseTensor:
    """The elements of a SparseTensor or of a dense mask, as CSR or BSR."""
    if not isinstance(pattern, torch.Tensor):
        raise ArgumentKindError(
            f"`pattern` is {checks.describe_kind(pattern)}; a SparseTensor or a dense mask of "
            f"dtype bool is accepted. {checks.sparse_hint('pattern', pattern)}"
        )
    if tuple(pattern.shape) != size:
        hint = "Its shape is (out_features, in_features)."
        raise checks.bad_shape("pattern", tuple(pattern.shape), str(size), hint)
    if not isinstance(pattern, SparseTensor):
        is_native = pattern.layout in LAYOUT_NAMES
        if pattern.dtype != torch.bool or is_native:
            wrapped = checks.sparse_hint("pattern", pattern)
            raise ArgumentKindError(
                f"`pattern` is {checks.describe_kind(pattern)} of {checks.short(pattern.dtype)}; a "
                "SparseTensor or a dense mask of dtype bool is accepted. "
                f"{wrapped if is_native else 'Compare it: pattern != 0.'}"
            )
        if blocksize is None:
            return from_dense(pattern)
        return from_dense(pattern, layout=torch.sparse_bsr, blocksize=blocksize)
    layout = torch.sparse_csr if blocksize is None else torch.sparse_bsr
    p = pattern._pattern
    marks = on_pattern(torch.ones(p.values_shape, dtype=torch.bool, device=p.device), p)
    return to_sparse(marks, layout=layout, blocksize=blocksize)


def require_choice(
    size: tuple[int, int],
    blocksize: Any,
    density: Any,
    pattern: Any,
    n_m: Any,
) -> None:
    """Refuses all but one of density, pattern and n_m, and a choice that does not fit the size."""
    given = [
        k for k, v in (("density", density), ("pattern", pattern), ("n_m", n_m)) if v is not None
    ]
    if len(given) != 1:
        found = f"`{'` and `'.join(given)}` are" if given else "none of them is"
        raise ArgumentValueError(
            f"{found} given; one of `density`, `pattern` and `n_m` is accepted. For example "
            "density=0.1."
        )
    if density is not None:
        hint = "It is the share of elements that are kept."
        checks.require_number("density", density, hint, least=0, most=1)
    if blocksize is not None:
        _require_blocks(size, blocksize, n_m)
    if n_m is not None:
        require_groups(n_m, size[1])


def require_groups(n_m: Any, columns: int) -> None:
    """Refuses what is not n of m, where m divides the columns."""
    n, m = n_m if _is_pair(n_m) else (0, 0)
    if not 0 < n <= m or columns % m:
        raise ArgumentValueError(
            f"`n_m` is {n_m!r} for {columns} columns; n of m with 0 < n <= m, where m divides the "
            "columns, is accepted. Choose m among their divisors."
        )


def _require_blocks(size: tuple[int, int], blocksize: Any, n_m: Any) -> None:
    if n_m is not None:
        raise ArgumentValueError(
            f"`blocksize` is {blocksize} beside n_m; one of them is accepted. Leave one out."
        )
    fits = _is_pair(blocksize) and all(
        b > 0 and s % b == 0 for b, s in zip(blocksize, size, strict=True)
    )
    if not fits:
        raise ArgumentValueError(
            f"`blocksize` is {checks.describe_option(blocksize)} for a weight {size}; two positive "
            "divisors of its sizes are accepted. Choose others, or pad the layer."
        )


def _is_pair(given: Any) -> bool:
    """Whether it is a tuple or list of two ints."""
    pair = isinstance(given, (tuple, list)) and len(given) == 2
    return pair and all(type(part) is int for part in given)
