"""Elements of one tensor where a condition is True, and of another elsewhere."""

from __future__ import annotations

from typing import Any

import torch

from spgrad.core import checks
from spgrad.core.pattern import Pattern
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import on_pattern, stored_values
from spgrad.errors import ArgumentKindError, ArgumentValueError, UnsupportedError
from spgrad.lowering.align import align
from spgrad.lowering.coalesce import without_repeats
from spgrad.lowering.dense_at import dense_at_elements
from spgrad.lowering.operands import is_sparse, sparse_operand
from spgrad.ops.indexing.nonzero import nonzero
from spgrad.public import public_as, public_op


@public_op
def where(condition: torch.Tensor, input: Any = None, other: Any = None) -> Any:
    """The elements of `input` where `condition` is True, and those of `other` elsewhere.

    `where(condition)` alone is ``nonzero(condition, as_tuple=True)``, as in torch.

    Args:
        condition: Sparse or dense tensor of bools. What a sparse one does not specify is False.
        input: Sparse tensor, dense tensor or number.
        other: Sparse tensor, dense tensor or number. At least one of the three arguments is
            sparse. Sparse arguments have one shape and any layouts; dense ones broadcast to this
            shape.

    Returns:
        SparseTensor in the layout of the first sparse argument, with the elements that any sparse
        argument specifies. For a condition alone, a vector of indices for each dimension.

    Gradient:
        Of `input` the cotangent where the condition is True, of `other` the cotangent where it is
        False; for a sparse argument on its own pattern.

    Cost:
        O(nse of all); the pattern of the result is found once for given patterns.

    Raises:
        TypeError: No argument is sparse, or one is of another kind.
        ValueError: `condition` has another dtype than bool, or shapes or devices differ.
        NotImplementedError: The result would be dense: `other` is neither sparse nor 0, or `input`
            is neither while `condition` is dense.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[1.0, -2.0], [0.0, 3.0]]))
        >>> spgrad.where(A > 0, A, 0.1 * A).to_dense()
        tensor([[ 1.0000, -0.2000],
                [ 0.0000,  3.0000]])
    """
    if input is None and other is None:
        return nonzero(sparse_operand("condition", condition), as_tuple=True)
    return _where({"condition": condition, "input": input, "other": other})


@public_as("where")
def tensor_where(input: torch.Tensor, condition: torch.Tensor, other: Any) -> SparseTensor:
    """`spgrad.where` with the arguments in the order of `torch.Tensor.where`."""
    return _where({"input": input, "condition": condition, "other": other})


def _where(operands: dict[str, Any]) -> SparseTensor:
    sparse: dict[str, SparseTensor] = {}
    for name, x in operands.items():
        if is_sparse(x):
            sparse[name] = without_repeats(sparse_operand(name, x))
        elif not isinstance(x, (torch.Tensor, *checks.NUMBER)) or (
            name == "condition" and not isinstance(x, torch.Tensor)
        ):
            raise ArgumentKindError(
                f"`{name}` is {checks.describe_kind(x)}; a sparse or dense tensor"
                f"{' of bools' if name == 'condition' else ' or a number'} is accepted. "
                f"{checks.tensor_hint(x)}"
            )
    condition = operands["condition"]
    if condition.dtype != torch.bool:
        raise ArgumentValueError(
            f"`condition` has dtype {checks.short(condition.dtype)}; bool is accepted. Compare "
            "with 0: condition != 0."
        )
    if not sparse:
        raise ArgumentKindError(
            "`condition`, `input` and `other` are dense; a sparse one at least is accepted. Call "
            "torch.where."
        )
    for name in ("other",) if "condition" in sparse else ("input", "other"):
        if name not in sparse and _may_be_nonzero(operands[name]):
            raise UnsupportedError(
                f"`{name}` is {checks.describe_kind(operands[name])}, which would make the result "
                "dense; a sparse tensor or 0 is accepted. Call torch.where with "
                "condition.to_dense()."
            )
    pattern, at = _on_elements_of_all(sparse)
    at |= {name: _at(name, x, pattern) for name, x in operands.items() if name not in sparse}
    vals = torch.where(at["condition"], *_of_one_kind(at["input"], at["other"]))
    return on_pattern(vals.expand(pattern.values_shape).contiguous(), pattern)


def _of_one_kind(a: Any, b: Any) -> tuple[Any, Any]:
    """Both as complex if one tensor is: of two kinds, torch.where has no gradient."""
    tensors = isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
    if not tensors or a.is_complex() == b.is_complex():
        return a, b
    dtype = torch.result_type(a, b)
    return a.to(dtype), b.to(dtype)


def _may_be_nonzero(x: Any) -> bool:
    return isinstance(x, torch.Tensor) or x != 0


def _on_elements_of_all(
    sparse: dict[str, SparseTensor],
) -> tuple[Pattern, dict[str, torch.Tensor]]:
    """The elements of all, in the layout of the first, and the values of each there."""
    (name, A), *others = sparse.items()
    pattern, found = A._pattern, {name: stored_values(A)}
    for other, B in others:
        checks.require_same_device(**{name: A._vals, other: B._vals})
        joined = {
            earlier: align(SparseTensor(vals, pattern), B, "either", name=other)
            for earlier, vals in found.items()
        }
        *_, last = joined.values()
        found = {earlier: both.a for earlier, both in joined.items()} | {other: last.b}
        pattern = last.pattern
    return pattern, found


def _at(name: str, x: Any, pattern: Pattern) -> Any:
    """What an argument that is not sparse has at the elements of a pattern."""
    if not isinstance(x, torch.Tensor):
        return x
    if x.dim() or x.device.type != "cpu":  # a number on the CPU meets tensors anywhere
        checks.require_same_device(**{name: x}, pattern=pattern.indices[0])
    # a 0-d tensor as it is: it decides the dtype of the result less than one with dimensions
    return dense_at_elements(x, pattern, name) if x.dim() else x
