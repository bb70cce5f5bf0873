"""Where elements are, and which of them are zero or small: coo_indices, nonzero, find, prune."""

from __future__ import annotations

import math
from typing import Any

import torch

from spgrad.core import checks
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import on_pattern
from spgrad.errors import ArgumentKindError, ArgumentValueError, UnsupportedError
from spgrad.lowering.coalesce import without_repeats
from spgrad.lowering.operands import matrix_operand, require_int, require_rank, sparse_operand
from spgrad.lowering.rebuild import coordinates, finished, flat_values, subset
from spgrad.ops.reductions.order import among_largest
from spgrad.public import public_op
from spgrad.torch_protocol.compile import is_real, lasting


@public_op
def nonzero(
    input: torch.Tensor, *, as_tuple: bool = False
) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """Indices of the elements that are not zero, in row-major order.

    Args:
        input: Sparse tensor of any layout; repeated elements are added first.
        as_tuple: True gives a vector for each dimension; together they index a dense tensor.
            Without dimensions, one vector of zeros, as in torch.

    Returns:
        Dense int64 (n, dimensions), or a tuple of (n,). A specified zero is left out.

    Gradient:
        None.

    Cost:
        O(nse).

    Raises:
        TypeError: `input` is not sparse.

    Example:
        >>> spgrad.nonzero(spgrad.from_dense(torch.tensor([[0.0, 1.0], [2.0, 0.0]])))
        tensor([[0, 1],
                [1, 0]])
    """
    found = _nonzero(without_repeats(sparse_operand("input", input)))[0]
    if as_tuple:
        return found.unbind(0) or (found.new_zeros(found.shape[1]),)
    return torch.stack(found.unbind(0), 1) if found.shape[0] else found.t()


@public_op
def coo_indices(input: torch.Tensor) -> torch.Tensor:
    """Row and column of each specified element, in any layout, in the order of the values.

    They are the coordinates of SciPy's `A.tocoo()` and the `edge_index` of PyG. Column p says
    where ``A.values()[p]`` is; in BSR and BSC, where ``A.values().flatten(0, 2)[p]`` is.

    Args:
        input: Sparse tensor of any layout; COO may be uncoalesced.

    Returns:
        Dense int64 (sparse dimensions, elements): rows and columns of a matrix, after the batch
        dimensions of a batch. The elements of a block are listed one by one, row by row.

    Gradient:
        None.

    Cost:
        O(nse) on the first call for a pattern, O(1) after it; a sort for CSC and BSC.

    Raises:
        TypeError: `input` is not sparse.

    Example:
        >>> A = spgrad.sparse_csr_tensor([0, 2, 3], [0, 2, 1], [1.0, 2.0, 3.0], (2, 3))
        >>> A.coo_indices(), A.values()
        (tensor([[0, 0, 1],
                [0, 2, 1]]), tensor([1., 2., 3.]))
    """
    coo, entry = coordinates(sparse_operand("input", input)._pattern)
    indices = coo.indices[0].to(torch.int64)
    return indices if entry is None else torch.empty_like(indices).index_copy_(1, entry, indices)


@public_op
def find(
    input: torch.Tensor, *, specified: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows, columns and values of the elements of a matrix that are not zero.

    A specified zero is left out, as `scipy.sparse.find` does; ``specified=True`` keeps it.

    Args:
        input: Sparse matrix of any layout; repeated elements are added first.
        specified: True gives all specified elements, those inside blocks one by one.

    Returns:
        Three dense tensors (n,) in row-major order, indices as int64. For indices in the order of
        ``A.values()`` see `coo_indices`.

    Gradient:
        Of the values, on the pattern of `input`: the cotangent at these elements, 0 at the others.

    Cost:
        O(nse).

    Raises:
        TypeError: `input` is not sparse.
        ValueError: `input` is not a matrix.
        NotImplementedError: `input` has dense dimensions.

    Example:
        >>> spgrad.find(spgrad.from_dense(torch.tensor([[0.0, 1.0], [2.0, 0.0]])))
        (tensor([0, 1]), tensor([1, 0]), tensor([1., 2.]))
    """
    A = matrix_operand("input", input, bools=True)
    require_rank("input", A, 2, "Take one matrix of a batch at a time.")
    A = without_repeats(A)
    indices, entry = _nonzero(A, specified=specified)
    vals = flat_values(A)
    vals = vals.clone() if entry is None else vals.index_select(0, entry)
    return indices[0], indices[1], vals


@public_op
def prune(
    input: torch.Tensor, threshold: float | None = None, *, keep: int | None = None
) -> SparseTensor:
    """The elements of `input` whose magnitude is above a threshold, or the largest of each row.

    The other elements are removed.

    Args:
        input: Sparse tensor of any layout; repeated elements are added first. An element with
            dense dimensions stays whole if any of its numbers is above the threshold.
        threshold: 0 removes specified zeros. NaN stays. By default 0, or with `keep` none.
        keep: How many elements of each row, along the last dimension, stay at most: those of the
            largest magnitude. Of equal elements the first stay. Not for elements with dense
            dimensions.

    Returns:
        SparseTensor in the layout of `input`, with fewer elements. A block of BSR and BSC is
        removed if all of its elements are; in other blocks, removed elements become 0.

    Gradient:
        On the pattern of `input`: the cotangent at the elements that stay, 0 at the others.

    Cost:
        O(nse), with `keep` O(nse log nse), on every call: the result depends on the values.

    Raises:
        TypeError: `input` is not sparse, `threshold` is not a number, or `keep` is not an int.
        ValueError: `keep` is below 0.
        NotImplementedError: `keep` is given for elements with dense dimensions.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[0.1, 1.0], [2.0, 0.0]]))
        >>> spgrad.prune(A, 0.5).to_dense()
        tensor([[0., 1.],
                [2., 0.]])
    """
    A = without_repeats(sparse_operand("input", input))
    if threshold is None and keep is None:
        threshold = 0.0
    if threshold is not None and not isinstance(threshold, checks.REAL):
        raise ArgumentKindError(
            f"`threshold` is {threshold!r}; a number is accepted. For example 1e-6."
        )
    vals = flat_values(A)
    size, limit = _magnitudes(vals.detach(), threshold)
    kept = torch.ones_like(size, dtype=torch.bool) if limit is None else ~(size <= limit)
    if A._pattern.dense_dim:
        kept = kept.flatten(1).any(1)
    if keep is not None:
        kept = kept & _largest(A, size, keep)
    with lasting(*A._pattern.indices, kept):
        made = finished(subset(A._pattern, kept), A._pattern.elements)
    out = made.gather(vals)
    return on_pattern(out.view(made.pattern.values_shape), made.pattern)


def _magnitudes(
    vals: torch.Tensor, threshold: float | None
) -> tuple[torch.Tensor, float | int | None]:
    """Numbers in the order of the magnitudes, and the one that stands for the threshold.

    Of ints they are int64 and one less than the magnitude. So the least int has one, and a
    threshold that its dtype does not hold is compared as it is.
    """
    if vals.dtype == torch.bool:
        return vals, threshold
    if vals.is_floating_point() or vals.is_complex():
        return vals.abs(), threshold
    wide = vals.to(torch.int64)
    size = torch.where(wide < 0, ~wide, wide - 1)
    if threshold is None or math.isnan(threshold) or threshold < 0:
        return size, None
    return size, int(min(threshold, 2**63)) - 1


def _largest(A: SparseTensor, size: torch.Tensor, keep: Any) -> torch.Tensor:
    """Which stored elements are among the largest of their rows (elements,)."""
    pattern = A._pattern
    require_int("keep", keep)
    if keep < 0:
        raise ArgumentValueError(
            f"`keep` is {keep}; a number from 0 on is accepted. For example 8."
        )
    if pattern.dense_dim:
        raise UnsupportedError(
            f"`keep` is given for an `input` with {pattern.dense_dim} dense dimension(s); scalar "
            "elements are accepted. Give a threshold, or take one slice at a time."
        )
    return among_largest(pattern, size, keep)


def _nonzero(
    A: SparseTensor, *, specified: bool = False
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Coordinates (dimensions, n) of what is not zero, and which stored element each of them is.

    With `specified` they are those of all stored elements. None means all elements in order.
    """
    coo, entry = coordinates(A._pattern)
    vals = flat_values(A).detach()
    vals = vals if entry is None else vals.index_select(0, entry)
    kept = torch.ones_like(vals, dtype=torch.bool) if specified else vals != 0
    indices = coo.indices[0].to(torch.int64)
    if not coo.dense_dim and is_real(kept) and bool(kept.all()):
        return indices.clone() if indices is coo.indices[0] else indices, entry
    at, *dense = kept.nonzero().unbind(1)
    found = torch.cat([indices.index_select(1, at), *(d[None] for d in dense)])
    return found, at if entry is None else entry.index_select(0, at)
