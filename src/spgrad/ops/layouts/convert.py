"""Conversions between layouts."""

from __future__ import annotations

import torch

from spgrad.core.pattern import LAYOUT_NAMES, LAYOUTS, Pattern
from spgrad.core.tensor import SparseTensor
from spgrad.errors import ArgumentKindError, ArgumentValueError, UnsupportedError
from spgrad.lowering.convert import convert
from spgrad.lowering.operands import sparse_operand
from spgrad.public import public_op


@public_op
def to_sparse(
    A: torch.Tensor,
    sparse_dim: int | None = None,
    *,
    layout: torch.layout | None = None,
    blocksize: tuple[int, int] | None = None,
    dense_dim: int | None = None,
) -> SparseTensor:
    """`A` in another sparse layout.

    Args:
        A: SparseTensor of any layout; a COO tensor with d sparse dimensions is a batch of matrices
            in its first d - 2.
        sparse_dim: None, or the number of dimensions of `A` that are not dense; the result is then
            in COO.
        layout: torch.sparse_coo (the default), sparse_csr, sparse_csc, sparse_bsr or sparse_bsc.
        blocksize: Rows and columns of a block, which divide those of the matrix; for BSR and BSC.
        dense_dim: None, or the number of dense dimensions of `A`; it can't change.

    Returns:
        SparseTensor with the same elements; `A` itself if it is in that layout. Blocks that hold
        a specified element are filled up with explicit zeros.

    Gradient:
        The cotangent at the elements of `A`, on its pattern.

    Cost:
        O(nse); indices are computed once for each pattern.

    Raises:
        TypeError: `A` is not sparse, or `layout` is not a sparse layout.
        ValueError: `blocksize` is missing, not wanted, or does not divide the matrix; `sparse_dim`
            or `dense_dim` is another than that of `A`.
        NotImplementedError: `A` has fewer than two sparse dimensions.

    Example:
        >>> A = spgrad.sparse_coo_tensor([[0, 1], [1, 0]], [1.0, 2.0], (2, 2))
        >>> spgrad.to_sparse(A, layout=torch.sparse_csr).crow_indices()
        tensor([0, 1, 2])
    """
    A = sparse_operand("A", A)
    dense = A._pattern.dense_dim
    own = {"sparse_dim": len(A._pattern.shape) - dense, "dense_dim": dense}
    if isinstance(sparse_dim, (str, torch.layout)):
        raise ArgumentKindError(
            f"`sparse_dim` is {sparse_dim!r}; an int or None is accepted. Give a layout by its "
            "name, for example layout=torch.sparse_csr."
        )
    for arg, asked in (("sparse_dim", sparse_dim), ("dense_dim", dense_dim)):
        if asked not in (None, own[arg]):
            raise ArgumentValueError(
                f"`{arg}` is {asked} for a sparse tensor that has {own[arg]}; that number is "
                "accepted. Use spgrad.from_dense(A.to_dense(), dense_dim=...)."
            )
    layout = torch.sparse_coo if layout is None else layout
    require_layout(layout)
    return convert(A, layout, require_blocksize(A._pattern, layout, blocksize))


def require_layout(layout: torch.layout) -> None:
    """Refuses what is not one of the five sparse layouts."""
    if layout not in LAYOUT_NAMES:
        raise ArgumentKindError(
            f"`layout` is {layout!r}; torch.sparse_coo, sparse_csr, sparse_csc, sparse_bsr and "
            f"sparse_bsc are accepted. {_layout_hint(layout)}"
        )


def _layout_hint(layout: object) -> str:
    if layout == torch.strided:
        return "Use spgrad.to_dense for a dense tensor."
    name = layout if isinstance(layout, str) and layout in LAYOUTS else "csr"
    return f"For example layout=torch.sparse_{name}."


def require_blocksize(
    pattern: Pattern, layout: torch.layout, blocksize: tuple[int, int] | None
) -> tuple[int, int] | None:
    """The block size to convert to, checked against layout and shape."""
    if layout != torch.sparse_coo and len(pattern.shape) - pattern.dense_dim < 2:
        raise UnsupportedError(
            f"`A` has shape {tuple(pattern.shape)} with {pattern.dense_dim} dense dimension(s); "
            "two or more sparse dimensions are accepted for a compressed layout. Keep it in COO."
        )
    if layout not in (torch.sparse_bsr, torch.sparse_bsc):
        if blocksize is not None:
            raise ArgumentValueError(
                f"`blocksize` is {blocksize}; None is accepted for layout {LAYOUT_NAMES[layout]}. "
                "Leave it out, or ask for BSR or BSC."
            )
        return None
    if blocksize is None and pattern.blocksize is not None:
        return pattern.blocksize
    m, k = pattern.matrix
    ok = (
        isinstance(blocksize, (tuple, list))
        and len(blocksize) == 2
        and all(isinstance(b, int) and b > 0 for b in blocksize)
    )
    if blocksize is None or not ok or m % blocksize[0] or k % blocksize[1]:
        hint = "Pad the matrix, or choose other blocks." if ok else "For example (2, 2)."
        raise ArgumentValueError(
            f"`blocksize` is {blocksize}; two positive ints that divide the matrix sizes ({m}, "
            f"{k}) are accepted for {LAYOUT_NAMES[layout]}. {hint}"
        )
    return blocksize[0], blocksize[1]


@public_op
def to_sparse_coo(A: torch.Tensor) -> SparseTensor:
    """`A` in COO: `spgrad.to_sparse` with layout=torch.sparse_coo."""
    return to_sparse(A)


@public_op
def to_sparse_csr(A: torch.Tensor) -> SparseTensor:
    """`A` in CSR: `spgrad.to_sparse` with layout=torch.sparse_csr."""
    return to_sparse(A, layout=torch.sparse_csr)


@public_op
def to_sparse_csc(A: torch.Tensor) -> SparseTensor:
    """`A` in CSC: `spgrad.to_sparse` with layout=torch.sparse_csc."""
    return to_sparse(A, layout=torch.sparse_csc)


@public_op
def to_sparse_bsr(A: torch.Tensor, blocksize: tuple[int, int]) -> SparseTensor:
    """`A` in BSR: `spgrad.to_sparse` with layout=torch.sparse_bsr."""
    return to_sparse(A, layout=torch.sparse_bsr, blocksize=blocksize)


@public_op
def to_sparse_bsc(A: torch.Tensor, blocksize: tuple[int, int]) -> SparseTensor:
    """`A` in BSC: `spgrad.to_sparse` with layout=torch.sparse_bsc."""
    return to_sparse(A, layout=torch.sparse_bsc, blocksize=blocksize)
