"""Sums, means and maxima of rows of a table, whose gradient has only the rows that were used."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from spgrad import kernels
from spgrad.core import checks
from spgrad.core.pattern import Pattern
from spgrad.core.refusals import refuse_script, refuse_tracers
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import stored_values
from spgrad.errors import ArgumentValueError
from spgrad.lowering.coalesce import without_repeats
from spgrad.lowering.operands import dense_operand, is_sparse, require_rank, sparse_operand
from spgrad.lowering.products.spmm import sddmm, spmm
from spgrad.nn.copied_rows import CopiedRows, reduced_items, refuse_counts
from spgrad.ops.layouts.convert import to_sparse_csr
from spgrad.ops.products.embedding import (
    bag_pattern,
    bags_of,
    mean_of_bags,
    reduced_bags,
    require_bags,
    weights_of_bags,
    without_row,
)
from spgrad.public import public_as
from spgrad.torch_protocol.compile import when_tracing
from spgrad.torch_protocol.func_transforms import Derived, is_mapped, mapped_over, transforming

_IN_ONNX = "torch.nn.EmbeddingBag is accepted. Export one that has loaded the state_dict."


class SparseEmbeddingBag(nn.EmbeddingBag):
    """`torch.nn.EmbeddingBag` as a product: a sparse matrix of bags times the table.

    It does more than `torch.nn.EmbeddingBag`: the bags may be a SparseTensor, with weights in
    every mode; a mean takes weights too; there are gradients of every order; and ``sparse=True``,
    the default here, is accepted in every mode and together with scale_grad_by_freq. The sparse
    gradient lists each row once.

    Args:
        num_embeddings: Rows of the table `weight`.
        embedding_dim: Columns of the table.
        max_norm: Rows that are used and have a larger norm are first scaled to this norm, in place.
        norm_type: Order of that norm.
        scale_grad_by_freq: Divides the gradient of a row by the number of its uses in the batch, as
            `torch.nn.Embedding` does; `torch.nn.EmbeddingBag` of torch 2.13 divides by the number
            of uses of other rows.
        mode: "sum", "mean" or "max" of the rows of a bag, each times its weight. The mean divides
            by the number of rows in the bag. A bag without rows gives 0.
        sparse: Gives the table a torch.sparse_coo gradient of the used rows, which
            `torch.optim.SGD` and `torch.optim.SparseAdam` accept; False gives a dense gradient,
            which `torch.nn.EmbeddingBag` gives by default.
        _weight: The table, in place of a random one.
        include_last_offset: `offsets` ends with the number of inputs.
        padding_idx: Inputs of this number are left out.
        device: Of the table.
        dtype: Of the table.

    Shape:
        `input`: int (bags, length) without offsets; (inputs,) with `offsets` (bags,), where each
        bag starts; or a SparseTensor (bags, num_embeddings) whose values are the weights.
        `per_sample_weights`: the shape of an `input` of ints, not for the mode "max". Output:
        (bags, embedding_dim).

    Gradient:
        Of the table by rows, of the weights, or of the values of a SparseTensor on its pattern.

    Cost:
        O(inputs embedding_dim), and a sort of the inputs in the backward; the mode "max" sorts in
        the forward and copies the rows used. Nothing of size inputs x embedding_dim is made.
        torch.compile makes one graph of every kind of bags. The graph copies a row for each input
        if the mode is "max" or scale_grad_by_freq is given, and so does torch.func.vmap over the
        inputs. A graph checks the inputs when it runs, and may list a row once for each use in the
        sparse gradient.

    Raises:
        TypeError: An argument is of another kind.
        IndexError: An input is not in [0, num_embeddings).
        ValueError: Shapes or dtypes do not fit, or offsets do not grow from 0.
        NotImplementedError: scale_grad_by_freq is given, and torch.func.vmap maps over the inputs.

    Example:
        >>> bags = spgrad.nn.SparseEmbeddingBag(10, 3, mode="sum")
        >>> y = bags(torch.tensor([1, 2, 4, 4]), torch.tensor([0, 3]))
        >>> y.sum().backward()
        >>> bags.weight.grad.coalesce().indices()
        tensor([[1, 2, 4]])
        >>> A = spgrad.sparse_csr_tensor([0, 2, 3], [1, 2, 4], [1.0, 0.5, 2.0], (2, 10))
        >>> bags(A).shape
        torch.Size([2, 3])
    """

    __prepare_scriptable__ = refuse_script

    @public_as("nn.SparseEmbeddingBag")
    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = True,
        _weight: torch.Tensor | None = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if mode not in ("sum", "mean", "max"):
            raise ArgumentValueError(
                f"`mode` is {mode!r}; 'sum', 'mean' and 'max' are accepted. Choose one of them."
            )
        for name, size in (("num_embeddings", num_embeddings), ("embedding_dim", embedding_dim)):
            checks.require_number(name, size, "It is a size of the table.", least=0, whole=True)
        checks.require_number("norm_type", norm_type, "2.0 is the Euclidean norm.")
        if max_norm is not None:
            checks.require_number("max_norm", max_norm, "None bounds no norm.")
        _require_table(num_embeddings, embedding_dim, _weight, padding_idx)
        super().__init__(
            num_embeddings,
            embedding_dim,
            max_norm,
            norm_type,
            scale_grad_by_freq,
            mode,
            sparse,
            _weight,
            include_last_offset,
            padding_idx,
            device,
            dtype,
        )

    @classmethod
    @public_as("nn.SparseEmbeddingBag.from_pretrained")
    def from_pretrained(  # type: ignore[override]
        cls, embeddings: torch.Tensor, freeze: bool = True, **options: Any
    ) -> SparseEmbeddingBag:
        """The layer with a given table (num_embeddings, embedding_dim).

        Args:
            embeddings: The table, which is shared.
            freeze: Leaves the table without a gradient.
            options: Arguments of the class.
        """
        require_rank("embeddings", dense_operand("embeddings", embeddings), 2, "It is the table.")
        rows, columns = embeddings.shape
        made = cls(rows, columns, _weight=embeddings, **options)
        made.weight.requires_grad_(not freeze)
        return made

    def forward(
        self,
        input: torch.Tensor,
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The sum, mean or maximum of each bag."""
        traced, meta = torch.compiler.is_compiling(), getattr(input, "is_meta", False)
        if (traced or meta) and self._as_in_torch(input, per_sample_weights):
            # numbers that are not known can neither be checked nor make a pattern
            if not traced:
                self._require_fit(input, offsets, per_sample_weights)
            return super().forward(input, offsets, per_sample_weights)
        if torch.compiler.is_dynamo_compiling():
            weights, used = per_sample_weights, input
            if not isinstance(input, SparseTensor):
                weights = weights_of_bags(self.weight, input, weights, self.mode)
            elif self.max_norm is not None:
                used = _rows_of_graph(input, self.weight)
            if self.max_norm is not None:  # a step of its own, as it changes the table
                self._renormalise(used.reshape(-1), self.padding_idx)
            return _bags_of_graph(
                self.weight, input, offsets, weights, self.include_last_offset,
                self.padding_idx, self.mode, self.sparse, self.scale_grad_by_freq,
            )  # fmt: skip
        refuse_tracers("nn.SparseEmbeddingBag.forward", "a SparseEmbeddingBag", _IN_ONNX)
        return self._forward(input, offsets, per_sample_weights)

    @torch.no_grad()
    def _renormalise(self, index: torch.Tensor, stays: int | None = None) -> None:
        """Scales the rows that are used, but for one that stays as it is."""
        assert self.max_norm is not None
        row = None if stays is None else self.weight[stays].clone()
        torch.embedding_renorm_(self.weight, index, self.max_norm, self.norm_type)
        if row is not None:
            self.weight[stays] = row

    def _as_in_torch(self, input: torch.Tensor, weights: torch.Tensor | None) -> bool:
        """Whether torch's module computes the same, but for repeats in a sparse gradient."""
        plain = not (self.scale_grad_by_freq or self.max_norm is not None or self.mode == "max")
        weighted = weights is not None and self.mode == "mean"
        padded = self.sparse and self.padding_idx is not None  # fails in torch's compiler
        return plain and not (weighted or padded or isinstance(input, SparseTensor))

    @public_as("nn.SparseEmbeddingBag.forward")
    def _require_fit(self, input: torch.Tensor, offsets: Any, weights: Any) -> None:
        """Refuses arguments whose kinds, dtypes or shapes do not fit."""
        require_bags(input, offsets)
        weights_of_bags(self.weight, input, weights, self.mode)

    @public_as("nn.SparseEmbeddingBag.forward")  # not on `forward`, where torch.compile starts
    def _forward(
        self,
        input: torch.Tensor,
        offsets: torch.Tensor | None,
        per_sample_weights: torch.Tensor | None,
    ) -> torch.Tensor:
        if is_sparse(input):
            ptr, index, weights = _of_matrix(input, self.weight, offsets, per_sample_weights)
        else:
            ptr, index = bags_of(input, offsets, self.include_last_offset, self.num_embeddings)
            weights = weights_of_bags(self.weight, input, per_sample_weights, self.mode)
        if is_mapped(index) or is_mapped(ptr):
            refuse_counts(self.scale_grad_by_freq)
            if self.max_norm is not None:
                self._renormalise(mapped_over(index).reshape(-1), self.padding_idx)
            return reduced_items(self.weight, ptr, index, weights, self.mode, self.padding_idx)
        if self.padding_idx is not None:
            ptr, there = without_row(self.padding_idx, ptr, index)
            index, weights = index[there], weights if weights is None else weights[there]
        if self.max_norm is not None:
            self._renormalise(index)
        by_frequency = self.scale_grad_by_freq
        return _of_table(self.weight, ptr, index, weights, self.mode, self.sparse, by_frequency)


def _require_table(rows: int, columns: int, weight: Any, padding_idx: Any) -> None:
    """Refuses a table of another shape, and a number of a row that it does not have."""
    if weight is not None and tuple(dense_operand("_weight", weight).shape) != (rows, columns):
        raise ArgumentValueError(
            f"`_weight` has shape {tuple(weight.shape)}; {(rows, columns)} is accepted. Its sizes "
            "are num_embeddings and embedding_dim."
        )
    if weight is not None and not (weight.is_floating_point() or weight.is_complex()):
        raise ArgumentValueError(
            f"`_weight` has dtype {checks.short(weight.dtype)}; floating-point and complex dtypes "
            "are accepted. Convert it with .to(torch.float32)."
        )
    if padding_idx is not None:
        hint = "It is the number of a row; negative ones count from the end."
        checks.require_number(
            "padding_idx", padding_idx, hint, least=-rows, most=rows - 1, whole=True
        )


def _of_matrix(
    input: torch.Tensor, table: torch.Tensor, offsets: Any, weights: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Row pointers, column indices and weights of the bags that are the rows of a matrix."""
    A = sparse_operand("input", input)
    if offsets is not None or weights is not None:
        raise ArgumentValueError(
            "`offsets` or `per_sample_weights` is given beside a SparseTensor; the "
            "SparseTensor alone is accepted. Its rows are the bags, and its values the weights."
        )
    if A.dim() != 2 or A.shape[1] != table.shape[0]:
        hint = "It has a row for each bag and a column for each row of the table."
        accepted = f"(bags, {table.shape[0]})"
        raise checks.bad_shape("input", tuple(A.shape), accepted, hint)
    if A._vals.is_complex() and not table.is_complex():
        checks.require_same_dtype(input=A._vals, weight=table)
    flat: Any = to_sparse_csr(without_repeats(A))
    ptr, index = (i.to(torch.int64) for i in flat._pattern.indices)
    return ptr, index, stored_values(flat).to(table.dtype)


def _of_table(
    table: torch.Tensor,
    ptr: torch.Tensor,
    index: torch.Tensor,
    weights: torch.Tensor | None,
    mode: str,
    sparse: bool,
    by_frequency: bool,
) -> torch.Tensor:
    """`reduced_bags` of rows of a table, with the gradient that the layer is asked for."""
    if mode == "max":
        used, inverse, times = index.unique(return_inverse=True, return_counts=True)
        rows = F.embedding(used, table, sparse=sparse and not transforming())
        if by_frequency and rows.requires_grad:
            rows.register_hook(lambda g: g / times[:, None])
        return reduced_bags(rows, ptr, inverse, weights, "max")
    if not (sparse or by_frequency) or transforming():
        return reduced_bags(table, ptr, index, weights, mode)
    vals = table.new_ones(index.shape) if weights is None else weights
    pattern = bag_pattern(ptr, index, table.shape[0])
    divisors = None
    if mode == "mean":
        vals, divisors = mean_of_bags(vals, ptr)
    y: Any = _Sums.apply(table, vals, pattern, sparse, by_frequency)
    return y if divisors is None else (y / divisors).to(table.dtype)


@public_as("nn.SparseEmbeddingBag.forward")
def _bags_of_graph(
    table: torch.Tensor,
    input: torch.Tensor,
    offsets: torch.Tensor | None,
    weights: torch.Tensor | None,
    include_last_offset: bool,
    padding_idx: int | None,
    mode: str,
    sparse: bool,
    by_frequency: bool,
) -> torch.Tensor:
    """The layer as one step of a graph of torch.compile, whose runs check the numbers."""
    if isinstance(input, SparseTensor):
        ptr, index, weights = _of_matrix(input, table, offsets, weights)
    else:
        ptr, index = bags_of(input, offsets, include_last_offset, table.shape[0])
    row, each = index, mode == "max" or by_frequency
    if each:  # reads a row for each input, as no trace knows how many of them differ
        row = torch.arange(index.shape[0], device=index.device)
    if padding_idx is not None:
        ptr, there = without_row(padding_idx, ptr, index)
        row, weights = row[there], weights if weights is None else weights[there]
    if each:
        found: Any = CopiedRows.apply(table, index, sparse, by_frequency)
        return reduced_bags(found, ptr, row, weights, mode)
    return _of_table(table, ptr, row, weights, mode, sparse, False)


@public_as("nn.SparseEmbeddingBag.forward")
def _rows_of_graph(A: SparseTensor, table: torch.Tensor) -> torch.Tensor:
    """The rows that bags take, as one step of a graph of torch.compile."""
    return _of_matrix(A, table, None, None)[1]


when_tracing(_bags_of_graph)
when_tracing(_rows_of_graph)


class _Sums(Derived):
    """The sums of `reduced_bags`, with a gradient of the table that lists the rows used."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        table: torch.Tensor,
        vals: torch.Tensor,
        pattern: Pattern,
        sparse: bool,
        by_frequency: bool,
    ) -> torch.Tensor:
        needed = ctx.needs_input_grad[1]
        ctx.save_for_backward(vals, table if needed else None)  # unsaved, it may change in place
        ctx.pattern, ctx.sparse, ctx.by_frequency = pattern, sparse, by_frequency
        return spmm(vals, table, pattern)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        vals, table = ctx.saved_tensors
        of_table = _of_rows_used(ctx, vals, g) if ctx.needs_input_grad[0] else None
        of_vals = None if table is None else sddmm(g, table, ctx.pattern)
        return of_table, of_vals, None, None, None


def _of_rows_used(ctx: Any, vals: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    """S^T g for the matrix S (bags, rows) of values on a pattern, with only the rows used."""
    ptr, index = ctx.pattern.indices
    bags, rows = ctx.pattern.shape
    used, ends, order = kernels.sort_coo(index[None], [rows])
    bag = torch.repeat_interleave(ptr.diff().to(ends.dtype), output_size=index.numel())
    at = bag.index_select(0, order)
    each = Pattern(torch.sparse_csr, (used.shape[1], bags), (ends, at), ordered=False)
    found = spmm(vals.index_select(0, order), g, each)
    if ctx.by_frequency:
        found = found / ends.diff()[:, None].to(found.dtype)
    if not ctx.sparse:
        return found.new_zeros(rows, found.shape[1]).index_copy(0, used[0], found)
    size = (rows, found.shape[1])
    return torch.sparse_coo_tensor(used, found, size, is_coalesced=True, check_invariants=False)
