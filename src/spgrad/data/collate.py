"""Joins samples of a data set to one block-diagonal matrix, and takes it apart again."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.utils.data._utils.collate import collate as by_type
from torch.utils.data._utils.collate import default_collate_fn_map

from spgrad.core.checks import describe_kind
from spgrad.core.tensor import SparseTensor
from spgrad.errors import ArgumentKindError, ArgumentValueError, SpgradError, of_memory
from spgrad.lowering.operands import sparse_operand
from spgrad.ops.shapes.join import block_diag
from spgrad.public import public_as


class Blocks(NamedTuple):
    """Matrices along the diagonal of one, as `collate` returns them.

    Attributes:
        matrix: SparseTensor (m, k), m and k the sums of rows and columns.
        batch: Which of the matrices each row belongs to (m,), int64.
        sizes: Rows and columns of each matrix (b, 2), int64.
    """

    matrix: SparseTensor
    batch: torch.Tensor
    sizes: torch.Tensor

    def to(self, *args: Any, **kwargs: Any) -> Blocks:
        """The same `Blocks` on another device, or with the matrix in another dtype."""
        moved: Any = self.matrix.to(*args, **kwargs)
        return Blocks(moved, self.batch.to(moved.device), self.sizes.to(moved.device))


@public_as("data.collate")
def collate(samples: Sequence[Any]) -> Any:
    """Joins samples to a mini-batch in which sparse matrices are blocks of one: a `collate_fn`.

    `torch.utils.data.default_collate` makes a batch (b, m, k) of matrices of one shape. This is for
    matrices of any shapes, such as graphs with different numbers of nodes.

    Args:
        samples: A list of samples, each a sparse matrix, or a tuple, list or dict of sparse
            matrices, dense tensors and numbers. All samples have the same structure.

    Returns:
        One sample of this structure. Sparse matrices become `Blocks`: `matrix`, `batch`, `sizes`.
        Dense tensors (n_i, ...) such as the features of nodes are joined along their first
        dimension. Numbers and dense tensors without dimensions become a vector (b,), and the rest
        becomes what `default_collate` makes of it.

    Gradient:
        Each matrix gets its block of the cotangent, as for `spgrad.block_diag`.

    Cost:
        O(nse of all), and O(m) for `batch`.

    Raises:
        TypeError: `samples` is not a list, its structures differ, or a sample has a type that
            `default_collate` refuses.
        ValueError: There is no sample, a sparse tensor is not a matrix, or dense tensors differ in
            more than their first size.

    Source:
        Fey and Lenssen, Fast Graph Representation Learning with PyTorch Geometric, 2019: graphs of
        a mini-batch as one graph of several components.

    Example:
        >>> samples = [(spgrad.eye(m), torch.ones(m, 3), 0.5 * m) for m in (2, 1)]
        >>> graphs, x, y = spgrad.data.collate(samples)
        >>> graphs.matrix.shape, x.shape, y
        (torch.Size([3, 3]), torch.Size([3, 3]), tensor([1.0000, 0.5000], dtype=torch.float64))
        >>> graphs.batch, graphs.sizes.tolist()
        (tensor([0, 0, 1]), [[2, 2], [1, 1]])
    """
    if isinstance(samples, torch.Tensor) or not isinstance(samples, Sequence):
        raise ArgumentKindError(
            f"`samples` is {describe_kind(samples)}; a list of samples is accepted. Give [sample]."
        )
    if not samples:
        raise ArgumentValueError(
            "`samples` is empty; at least one sample is accepted. Leave out empty batches."
        )
    ours = {SparseTensor: _blocks, torch.Tensor: _rows}
    try:
        return by_type(list(samples), collate_fn_map={**ours, **default_collate_fn_map, **ours})
    except SpgradError:
        raise
    except Exception as error:  # torch's code meets what it does not expect in many ways
        if of_memory(error):
            raise
        raise ArgumentKindError(
            "`samples` has parts that cannot be joined, such as None, objects of other libraries, "
            "or a number where another sample has a list; samples of one structure, of sparse "
            "matrices, dense tensors, arrays, numbers, strings, and tuples, lists and dicts of "
            "these, are accepted. Leave the other parts out, or join them by a function of your "
            "own."
        ) from error


@public_as("data.uncollate")
def uncollate(matrix: torch.Tensor, sizes: torch.Tensor) -> list[SparseTensor]:
    """The blocks along the diagonal of a matrix, as a list: the inverse of `collate`.

    Args:
        matrix: `Blocks.matrix`, or a matrix computed from it with elements in its blocks only.
        sizes: `Blocks.sizes`: rows and columns of each block (b, 2), integers on any device.

    Returns:
        A list of b SparseTensors in the layout of `matrix`.

    Gradient:
        `matrix` gets the cotangents of its blocks, on its own pattern.

    Cost:
        O(nse) and a small constant for each block.

    Raises:
        TypeError: `matrix` is not sparse, or `sizes` is not an integer tensor.
        ValueError: The sizes do not add up to the shape, or an element is outside of the blocks.

    Example:
        >>> graphs = spgrad.data.collate([spgrad.eye(2), 3 * spgrad.eye(1)])
        >>> _, last = spgrad.data.uncollate(graphs.matrix, graphs.sizes)
        >>> last.to_dense()
        tensor([[3.]])
    """
    A = sparse_operand("matrix", matrix)
    shapes = _shapes(A, sizes)
    coo = A._pattern.is_coo
    rows: Any = A.to_sparse_csr() if coo else A
    ends = [itertools.accumulate(column, initial=0) for column in zip(*shapes, strict=True)]
    corners = list(zip(*ends, strict=True)) if shapes else []
    blocks = [rows[i:m, j:k] for (i, j), (m, k) in itertools.pairwise(corners)]
    # blocks that reach from one matrix into the next were taken apart
    count = rows._pattern.elements
    outside = count - sum(block._pattern.elements for block in blocks)
    if outside:
        raise ArgumentValueError(
            f"`matrix` has {outside} of {count} elements outside of the blocks; a "
            "matrix with elements in its blocks only is accepted. Pass the sizes of the batch "
            "that it was computed from."
        )
    return [block.to_sparse_coo() for block in blocks] if coo else blocks


def _shapes(A: SparseTensor, sizes: Any) -> list[tuple[int, int]]:
    """The shapes of the blocks, or the refusal."""
    if not isinstance(sizes, torch.Tensor) or sizes.is_floating_point() or sizes.is_complex():
        raise ArgumentKindError(
            f"`sizes` is {describe_kind(sizes)}; an integer tensor (b, 2) is accepted. Pass "
            "`sizes` of what spgrad.data.collate returned."
        )
    if A.dim() != 2 or sizes.dim() != 2 or sizes.shape[1] != 2:
        raise ArgumentValueError(
            f"`matrix` has shape {tuple(A.shape)} and `sizes` {tuple(sizes.shape)}; (m, k) and "
            "(b, 2) are accepted. Pass what spgrad.data.collate returned."
        )
    if sizes.sum(0).tolist() != list(A.shape) or bool((sizes < 0).any()):
        raise ArgumentValueError(
            f"`sizes` adds up to {tuple(sizes.sum(0).tolist())} for a matrix of shape "
            f"{tuple(A.shape)}; sizes that add up to the shape are accepted. Pass the sizes of the "
            "batch that it was computed from."
        )
    return [(m, k) for m, k in sizes.tolist()]


def _blocks(matrices: Sequence[SparseTensor], *, collate_fn_map: Any = None) -> Blocks:
    """The matrices along the diagonal of one."""
    matrix = block_diag(*matrices)
    sizes = torch.tensor([tuple(A.shape) for A in matrices], device=matrix.device)
    batch = torch.arange(len(matrices), device=matrix.device).repeat_interleave(sizes[:, 0])
    return Blocks(matrix, batch, sizes)


def _rows(tensors: Sequence[torch.Tensor], *, collate_fn_map: Any = None) -> torch.Tensor:
    """Dense tensors, one after the other."""
    first = tensors[0]
    for i, t in enumerate(tensors):
        dense = isinstance(t, torch.Tensor) and not isinstance(t, SparseTensor)
        if not dense or t.layout != torch.strided:
            raise ArgumentKindError(
                f"`samples[{i}]` has {describe_kind(t)} where the first has a dense one; samples "
                "of one structure are accepted. Wrap native sparse tensors with spgrad.from_torch."
            )
        if t.dim() != first.dim() or t.shape[1:] != first.shape[1:] or t.device != first.device:
            raise ArgumentValueError(
                f"`samples[{i}]` has a tensor of shape {tuple(t.shape)} on {t.device.type} where "
                f"the first has {tuple(first.shape)} on {first.device.type}; tensors that differ "
                "in their first size alone are accepted. They are joined along it."
            )
    return torch.cat(tuple(tensors)) if first.dim() else torch.stack(tuple(tensors))
