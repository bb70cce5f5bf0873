"""Rows of a sparse table, and their sums, means and maxima."""

from __future__ import annotations

from typing import Any

import torch

from spgrad.core import checks
from spgrad.core.pattern import Pattern
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import as_result, on_pattern
from spgrad.errors import (
    ArgumentIndexError,
    ArgumentKindError,
    ArgumentValueError,
    UnsupportedError,
)
from spgrad.lowering.operands import dense_operand, matrix_operand, require_int, require_rank
from spgrad.lowering.products.spmm import spmm
from spgrad.ops.indexing.getitem import index_select
from spgrad.ops.layouts.dense import to_dense
from spgrad.ops.products.spmm_reduce import in_two_steps, reduced_product
from spgrad.ops.reductions.axes import require_dtype
from spgrad.public import public_op
from spgrad.torch_protocol.compile import told_by_a_run
from spgrad.torch_protocol.func_transforms import mapped_over


@public_op
def embedding(
    input: torch.Tensor,
    weight: torch.Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> torch.Tensor:
    """The rows of a sparse table `weight` that `input` names, as dense vectors.

    Args:
        input: Dense int tensor of any shape, with numbers of rows.
        weight: Sparse (m, k) of any layout.
        padding_idx: A row that gets no gradient.
        max_norm: None. A table whose rows would be changed in place is refused.
        norm_type: Of `max_norm`.
        scale_grad_by_freq: False.
        sparse: Not used: the gradient always lies on the pattern of `weight`.

    Returns:
        Dense (*input.shape, k). ``weight[input]`` gives the same rows as a sparse tensor.

    Gradient:
        Of `weight` on its pattern: each element gets the sum of the cotangents of the results that
        took its row.

    Cost:
        O(size of the result + nse of the rows).

    Raises:
        TypeError: `input` is not a dense tensor, or `weight` is not sparse.
        IndexError: A number is out of range.
        ValueError: `weight` is not a matrix, or `input` has no int dtype.
        NotImplementedError: `max_norm` or `scale_grad_by_freq` is given.

    Example:
        >>> W = spgrad.from_dense(torch.tensor([[0.0, 1.0], [2.0, 0.0]]))
        >>> torch.nn.functional.embedding(torch.tensor([1, 0, 1]), W)
        tensor([[2., 0.],
                [0., 1.],
                [2., 0.]])
    """
    W, index = _table(input, weight, max_norm, scale_grad_by_freq)
    _require_rows(index.reshape(-1), W._pattern.shape[0])
    pad = _padding(padding_idx, W)
    found = to_dense(index_select(W, 0, index.reshape(-1)))
    if pad is not None:
        found = torch.where((index.reshape(-1) == pad)[:, None], found.detach(), found)
    return as_result(found, (*index.shape, W._pattern.shape[1]))


@public_op
def embedding_bag(
    input: torch.Tensor,
    weight: torch.Tensor,
    offsets: torch.Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: torch.Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> torch.Tensor:
    """Sums, means or maxima of rows of a sparse table, which are listed in bags.

    Args:
        input: Dense ints: (bags, length) without offsets, (inputs,) with offsets.
        weight: Sparse (m, k) of any layout.
        offsets: Where each bag starts (bags,).
        max_norm: None. A table whose rows would be changed in place is refused.
        norm_type: Of `max_norm`.
        scale_grad_by_freq: False.
        mode: "sum", "mean" or "max" over the rows of a bag. A bag without rows gives 0.
        sparse: Not used: the gradient always lies on the pattern of `weight`.
        per_sample_weights: Factor of each input, of the shape of `input`, for the mode "sum".
        include_last_offset: `offsets` ends with the number of inputs.
        padding_idx: Inputs of this number are left out.

    Returns:
        Dense (bags, k).

    Gradient:
        Of `weight` on its pattern, and of `per_sample_weights`.

    Cost:
        O((inputs + rows used) k + nse of the rows), and a sort of the inputs. The rows used are
        made dense.

    Raises:
        TypeError: `input` is not a dense tensor, or `weight` is not sparse.
        IndexError: A number is out of range.
        ValueError: Shapes, offsets or `mode` are not as above.
        NotImplementedError: `max_norm` or `scale_grad_by_freq` is given.

    Example:
        >>> W = spgrad.from_dense(torch.tensor([[0.0, 1.0], [2.0, 0.0]]))
        >>> torch.nn.functional.embedding_bag(torch.tensor([[1, 0], [1, 1]]), W, mode="sum")
        tensor([[2., 1.],
                [4., 0.]])
    """
    W, index = _table(input, weight, max_norm, scale_grad_by_freq)
    pad = _padding(padding_idx, W)
    require_dtype(W._vals.dtype, arg="weight", accepted="real")
    if mode not in ("sum", "mean", "max"):
        raise ArgumentValueError(
            f"`mode` is {mode!r}; 'sum', 'mean' and 'max' are accepted. Choose one of them."
        )
    factors = _factors(index, per_sample_weights, mode)
    ptr, index = bags_of(index, offsets, include_last_offset, W._pattern.shape[0])
    if pad is not None:
        ptr, there = without_row(pad, ptr, index)
        index, factors = index[there], factors if factors is None else factors[there]
    used, inverse = index.unique(return_inverse=True)
    table = to_dense(index_select(W, 0, used))
    return reduced_bags(table, ptr, inverse, factors, mode)


def reduced_bags(
    table: torch.Tensor,
    ptr: torch.Tensor,
    row: torch.Tensor,
    factors: torch.Tensor | None,
    mode: str,
) -> torch.Tensor:
    """Sum, mean or maximum (bags, k) of the rows of a dense table (rows, k) that are in each bag.

    `ptr` (bags + 1,) says where the inputs of each bag begin, `row` what row of the table each
    input takes. Factors of the mode "max" are those of rows that a bag has once.
    """
    pattern = bag_pattern(ptr, row, table.shape[0])
    vals = table.new_ones(row.shape) if factors is None else factors
    if mode == "max":
        return reduced_product(on_pattern(vals, pattern), table, "amax")
    if mode == "sum":
        return spmm(vals, table, pattern)
    vals, divisors = mean_of_bags(vals, ptr)
    return (spmm(vals, table, pattern) / divisors).to(table.dtype)


def bag_pattern(ptr: torch.Tensor, row: torch.Tensor, rows: int) -> Pattern:
    """The matrix (bags, rows) of the inputs, for products: in their order, with repeats."""
    return Pattern(torch.sparse_csr, (ptr.shape[0] - 1, rows), (ptr, row), ordered=False)


def mean_of_bags(vals: torch.Tensor, ptr: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Factors (inputs,) of the rows, and divisors (bags, 1) of their sums, that give means.

    `vals` are the weights of the inputs. The divisors have at least 32 bits.
    """
    length = ptr.diff()
    wide = torch.promote_types(vals.dtype, torch.float32)
    divisors = length.clamp(min=1)[:, None].to(wide)
    if vals.dtype == torch.float16:
        of_values, divisors = in_two_steps(divisors)
        of_values = of_values.squeeze(1).repeat_interleave(length, output_size=vals.shape[0])
        vals = vals * of_values
    return vals, divisors


def without_row(
    row: int, ptr: torch.Tensor, index: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Where the bags begin without the inputs that take one row, and which inputs are left."""
    kept = index != row
    before = torch.cat([ptr.new_zeros(1), kept.cumsum(0)])
    return before[ptr], kept.nonzero().squeeze(1)


def bags_of(
    input: torch.Tensor, offsets: torch.Tensor | None, include_last_offset: bool, rows: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Where the inputs of each bag begin (bags + 1,), and the row of each input (inputs,)."""
    require_bags(input, offsets)
    index = input.reshape(-1).to(torch.int64)
    if offsets is None:
        bags, length = input.shape
        _require_rows(index, rows)
        return torch.arange(bags + 1, device=input.device) * length, index
    ptr = offsets.to(torch.int64)
    if not include_last_offset:
        ptr = torch.cat([ptr, ptr.new_full((1,), index.numel())])
    _require_rows(index, rows, ptr)
    return ptr, index


def require_bags(input: torch.Tensor, offsets: torch.Tensor | None) -> None:
    """Refuses kinds, dtypes and shapes that describe no bags, whatever the numbers are."""
    if not isinstance(input, torch.Tensor):
        raise ArgumentKindError(
            f"`input` is {checks.describe_kind(input)}; a tensor of ints or a SparseTensor is "
            "accepted. Convert it with torch.tensor."
        )
    checks.require_index("input", input)
    if input.dim() != (2 if offsets is None else 1):
        raise ArgumentValueError(
            f"`input` has {input.dim()} dimensions {'without' if offsets is None else 'beside'}"
            " offsets; (bags, length) without, and (inputs,) with offsets is accepted. Give "
            "offsets where the bags differ in length."
        )
    if offsets is None:
        return
    checks.require_index("offsets", offsets)
    if offsets.dim() != 1:
        hint = "It says where each bag starts."
        raise checks.bad_shape("offsets", tuple(offsets.shape), "a vector", hint)


def weights_of_bags(
    table: torch.Tensor, input: torch.Tensor, weights: Any, mode: str
) -> torch.Tensor | None:
    """The weights (inputs,) of the rows of a dense table, or the refusal."""
    if weights is None:
        return None
    if mode == "max":
        raise ArgumentValueError(
            "`per_sample_weights` is given for the mode 'max'; it is accepted for 'sum' and "
            "'mean'. Pass the bags as a SparseTensor, whose values are weights in every mode."
        )
    dense_operand("per_sample_weights", weights)
    checks.require_same_dtype(weight=table, per_sample_weights=weights)
    if weights.shape != input.shape:
        hint = "Give one weight for each input."
        accepted = f"{tuple(input.shape)}, the shape of `input`,"
        raise checks.bad_shape("per_sample_weights", tuple(weights.shape), accepted, hint)
    return weights.reshape(-1)


def _require_rows(index: torch.Tensor, rows: int, ptr: torch.Tensor | None = None) -> None:
    """Refuses indices that are not rows, and pointers that do not grow from 0 to all indices.

    All numbers are read at once, those of all items that torch.func.vmap maps over. A trace does
    not know them; its graph checks them in the run.
    """
    count = index.numel()
    ends = index.aminmax() if count else (index.new_zeros(()), index.new_full((), -1))
    grows = [] if ptr is None or not ptr.numel() else [ptr[0], ptr[-1], (ptr.diff() < 0).any()]
    found = torch.stack([*ends, *(n.to(index.dtype) for n in grows)])
    if told_by_a_run(found):
        fits = (found[0] >= 0) & (found[1] < rows)
        if grows:
            fits = fits & (found[2] == 0) & (found[3] == count) & (found[4] == 0)
        torch._assert_async(
            fits,
            "spgrad: `input` has a number that is no row, or `offsets` does not grow from 0 to the "
            "inputs; outside of compiled code the error says which.",
        )
        return
    for least, most, *of_pointers in mapped_over(found).reshape(-1, found.shape[0]).tolist():
        if least < 0 or most >= rows:
            wrong = least if least < 0 else most
            raise ArgumentIndexError(
                f"`input` has {wrong}; rows in [0, {rows}) are accepted. Check "
                "how the inputs were made."
            )
        if ptr is not None and of_pointers != [0, count, 0]:
            raise ArgumentValueError(
                f"`offsets` does not grow from 0 to the {count} inputs; offsets that do "
                "are accepted. They are where each bag starts; with include_last_offset the "
                "last is the number of inputs."
            )


def _table(
    input: Any, weight: Any, max_norm: Any, scale_grad_by_freq: Any
) -> tuple[SparseTensor, torch.Tensor]:
    """The table and the numbers of its rows, as int64."""
    W = matrix_operand("weight", weight, bools=True)
    require_rank("weight", W, 2, "The rows of a matrix are the vectors.")
    index = dense_operand("input", input)
    checks.require_index("input", index)
    checks.require_same_device(input=index, weight=W._vals)
    if max_norm is not None or scale_grad_by_freq:
        name = "max_norm" if max_norm is not None else "scale_grad_by_freq"
        raise UnsupportedError(
            f"`{name}` is given for a sparse table; it is accepted for a dense one. Leave it out, "
            "and scale the rows with spgrad.mul."
        )
    return W, index.to(torch.int64)


def _padding(padding_idx: Any, W: SparseTensor) -> int | None:
    if padding_idx is None:
        return None
    m = W._pattern.shape[0]
    if not -m <= require_int("padding_idx", padding_idx) < m:
        raise ArgumentIndexError(
            f"`padding_idx` is {padding_idx} for {m} rows; numbers from {-m} to {m - 1} are "
            "accepted. Leave it out for none."
        )
    return padding_idx % m


def _factors(input: torch.Tensor, weights: Any, mode: str) -> torch.Tensor | None:
    if weights is None:
        return None
    factors = dense_operand("per_sample_weights", weights)
    if mode != "sum":
        raise ArgumentValueError(
            f"`per_sample_weights` is given for the mode {mode!r}; it is accepted for 'sum'. Leave "
            "it out."
        )
    if factors.shape != input.shape:
        accepted = f"{tuple(input.shape)}, the shape of `input`,"
        hint = "Give one weight for each input."
        raise checks.bad_shape("per_sample_weights", tuple(factors.shape), accepted, hint)
    return factors.reshape(-1)
