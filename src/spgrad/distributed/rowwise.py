"""Operations on shards besides the product: softmax, attention, scaling, sums and diagonals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate

from spgrad.core import checks
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import on_pattern, stored_values
from spgrad.distributed import dtensors
from spgrad.distributed.agreement import agree
from spgrad.distributed.exchange import collect, give_back
from spgrad.distributed.plan import row_of_entries
from spgrad.distributed.sharded import Sharded
from spgrad.errors import ArgumentValueError, UnsupportedError
from spgrad.ops.products.attention import scaled_dot_product_attention
from spgrad.ops.products.heads import spmm
from spgrad.ops.reductions.reduce import sum as sum_of
from spgrad.ops.reductions.softmax import softmax as softmax_of

S = TypeVar("S", bound=Sharded)


def whole_rows(D: Sharded) -> SparseTensor:
    """The own rows; own columns come first, then those of `far`, as in the rows of `arriving`."""
    if D.transposed:
        raise UnsupportedError(
            "a transposed ShardedMatrix is accepted by D.T @ x, sums, scaling and functions of "
            "single values; this operation needs its rows, which are not in one process. "
            "Distribute the transpose of the matrix."
        )
    pattern, order = D.plan.whole
    return on_pattern(D.local_values()[order], pattern)


def arriving(x: torch.Tensor, D: Sharded) -> torch.Tensor:
    """The own rows of x, then those that arrive from other processes."""
    return torch.cat([x, collect(x, D.plan.exchange)])


def softmax(D: S, dim: int) -> S:
    """Softmax of each row; nothing travels, because a process has whole rows."""
    if dim not in (1, -1):
        raise ArgumentValueError(
            f"`dim` is {dim}; 1 is accepted, because rows are in one process and columns are not. "
            "Distribute the transpose of the matrix for softmax over columns."
        )
    A = softmax_of(whole_rows(D), 1)
    order = D.plan.whole[1]
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(len(order), device=order.device)
    return D._with(stored_values(A)[inverse])


def reduced(D: Sharded, x: torch.Tensor, reduce: str) -> torch.Tensor:
    """The mean or extremum of a_ij x_j over the elements of each row."""
    dtensors.agree_on(D, "x", x, "spmm", reduce)
    A = whole_rows(D)

    def run(own: torch.Tensor) -> torch.Tensor:
        columns = own.unsqueeze(1) if own.dim() == 1 else own
        y = spmm(A, arriving(columns, D), reduce)
        return y.squeeze(1) if own.dim() == 1 else y

    return dtensors.on_rows(run, x, D)


def attention(
    D: Sharded,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float | None,
) -> torch.Tensor:
    """Attention of own rows; keys and values travel as rows of x do, in one message."""
    dtensors.agree_on(D, "key", key, "attention", scale)
    dtensors.agree_on(D, "value", value, "attention")
    A = whole_rows(D)

    def check() -> dict[str, object]:
        if query.shape != (D.local_shape[0], key.shape[1]):
            wanted = f"({D.local_shape[0]}, {key.shape[1]})"
            hint = "A process passes the rows of D.row_ids."
            raise checks.bad_shape("query", tuple(query.shape), wanted, hint)
        return {"query": query.requires_grad}

    agree(D.plan.group, check, D.device)
    both = arriving(torch.cat([key, value], 1), D)
    keys, values = both.split([key.shape[1], value.shape[1]], 1)
    return scaled_dot_product_attention(query, keys, values, A, scale=scale)


def scaled(
    D: Sharded, other: float | torch.Tensor | Sharded, by: Callable[..., Any]
) -> torch.Tensor:
    """The values times, or over, a number, a vector, or the values of a matrix on the pattern."""
    values, plan = D.local_values(), D.plan
    if not isinstance(other, (torch.Tensor, int, float, complex)):
        return by(values, D._same(other).local_values())
    if not isinstance(other, torch.Tensor) or other.dim() == 0:
        return by(values, other)
    rows, columns = D.local_shape

    def check() -> dict[str, object]:
        if other.shape == (rows, 1):
            return {"other": "rows"}
        if other.shape in ((columns,), (1, columns)):
            return {"other": "columns", "requires_grad": other.requires_grad}
        wanted = f"(), ({rows}, 1) for the own rows or ({columns},) for the own columns"
        hint = "The result keeps the pattern of D."
        raise checks.bad_shape("other", tuple(other.shape), wanted, hint)

    agree(plan.group, check, D.device)
    line = other.reshape(-1)
    if (other.dim() == 2 and other.shape[1] == 1 and rows == other.shape[0]) != D.transposed:
        at = line[plan.coordinates()[0]]
    else:
        arrived = collect(line, plan.exchange)
        at = torch.cat([line[plan.own.indices[1]], arrived[plan.far.indices[1]]])
    return by(values, at)


def total(D: Sharded, dim: int | None) -> torch.Tensor:
    """Sums of rows, of columns, or of all elements."""
    plan = D.plan

    def check() -> dict[str, object]:
        if dim not in (0, 1, -1, -2, None):
            raise ArgumentValueError(
                f"`dim` is {dim}; 0, 1 and None are accepted. A ShardedMatrix has two dimensions."
            )
        return {"dim": dim}

    agree(plan.group, check, D.device)
    if dim is None:
        return _summed(D.local_values().sum(), D)
    over = 1 if (dim % 2 == 1) != D.transposed else 0
    own, far = (
        sum_of(on_pattern(v, pattern), over)
        for v, pattern in zip(plan.halves(D.local_values()), (plan.own, plan.far), strict=True)
    )
    if over == 0:
        return own + give_back(far, plan.exchange)
    return own + far if plan.far_rows is None else own.index_add(0, plan.far_rows, far)


def _summed(part: torch.Tensor, D: Sharded) -> torch.Tensor:
    """The sum over processes, replicated; the gradient of each part is that of the sum."""
    found = DTensor.from_local(part, D.mesh, [Partial()], run_check=False)
    return found.redistribute(placements=[Replicate()])


def norm(D: Sharded) -> torch.Tensor:
    """The Frobenius norm; its gradient is 0 where it is 0."""
    square = _summed(D.local_values().abs().square().sum(), D)
    safe = torch.where(square == 0, torch.ones_like(square), square)
    return torch.where(square == 0, torch.zeros_like(square), safe.sqrt())


def diagonal(D: Sharded) -> torch.Tensor:
    """The own rows of the diagonal."""
    at, row = _diagonal_entries(D)
    found = D.local_values().new_zeros(D.plan.rows.count)
    return found.index_add(0, row, D.local_values()[at])


def add_identity(D: S, alpha: float | torch.Tensor) -> S:
    """D + alpha I on the same pattern."""
    at, row = _diagonal_entries(D)

    def check() -> dict[str, object]:
        if len(row) != D.plan.rows.count:
            raise ArgumentValueError(
                f"`D` lacks {D.plan.rows.count - len(row)} elements of the diagonal; a pattern "
                "with all of them is accepted. Distribute spgrad.set_diag(A, spgrad.diagonal(A))."
            )
        return {}

    agree(D.plan.group, check, D.device)
    values = D.local_values()
    step = torch.as_tensor(alpha, dtype=values.dtype, device=values.device)
    return D._with(values.index_add(0, at, step.expand(len(at))))


def _diagonal_entries(D: Sharded) -> tuple[torch.Tensor, torch.Tensor]:
    """Positions of the diagonal elements among the values, and the own row of each.

    They are in own columns, because a square matrix has equal shares of rows and columns.
    """
    plan = D.plan
    if plan.rows is not plan.columns:
        raise ArgumentValueError(
            f"`D` has shape {tuple(D.shape)} and other shares of columns than of rows; a square "
            "matrix with equal ones is accepted. Leave out `columns` where D is made."
        )
    row = row_of_entries(plan.own)
    at = torch.nonzero(row == plan.own.indices[1]).squeeze(1)
    return at, row[at]
