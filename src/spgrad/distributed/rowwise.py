"""Operations on shards besides the product: softmax, attention, scaling and diagonals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.distributed.tensor import DTensor

from spgrad.core import checks
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import on_pattern, stored_values
from spgrad.distributed import dtensors
from spgrad.distributed.exchange import collect
from spgrad.distributed.plan import join, row_of_entries
from spgrad.distributed.sharded import Sharded
from spgrad.errors import ArgumentKindError, ArgumentValueError, UnsupportedError
from spgrad.ops.products.attention import scaled_dot_product_attention
from spgrad.ops.products.heads import spmm
from spgrad.ops.reductions.softmax import softmax as softmax_of

S = TypeVar("S", bound=Sharded)


def require_rows_of(D: Sharded) -> None:
    """Refuses a transpose."""
    if D.transposed:
        raise UnsupportedError(
            "a transposed ShardedMatrix is accepted by D.T @ x, sums, scaling and functions of "
            "single values; this operation needs its rows, which are not in one process. "
            "Distribute the transpose of the matrix."
        )


def whole_rows(D: Sharded) -> SparseTensor:
    """The own rows, whose columns are the rows of `arriving`."""
    require_rows_of(D)
    pattern, order = D.plan.whole
    return on_pattern(D.local_values()[order], pattern)


def arriving(x: torch.Tensor, D: Sharded) -> torch.Tensor:
    """The own rows of x and those that arrive, in the order of the whole x."""
    plan, arrived = D.plan, collect(x, D.plan.exchange)
    if plan.columns.ids is not None:
        return torch.cat([x, arrived]).index_select(0, plan.column_order)
    before = int((plan.far_ids < plan.columns.begin).sum())
    return torch.cat([arrived[:before], x, arrived[before:]])


def softmax(D: S, dim: int) -> S:
    """Softmax of each row; nothing travels, because a process has whole rows."""

    def check() -> dict[str, object]:
        accepted = (
            "1 is accepted, because rows are in one process and columns are not. Distribute the "
            "transpose of the matrix for softmax over columns."
        )
        if not isinstance(dim, int):
            raise ArgumentKindError(f"`dim` is {checks.describe_kind(dim)}; {accepted}")
        if dim not in (1, -1):
            raise ArgumentValueError(f"`dim` is {dim}; {accepted}")
        require_rows_of(D)
        return {"call": "softmax", "D": D.in_words()}

    def run() -> S:
        A = softmax_of(whole_rows(D), 1)
        order = D.plan.whole[1]
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(len(order), device=order.device)
        return D._with(stored_values(A)[inverse])

    return D.agreed(check, run)


def reduced(D: Sharded, x: torch.Tensor, reduce: str) -> torch.Tensor:
    """The mean or extremum of a_ij x_j over the elements of each row."""
    dtensors.agree_on(D, "x", x, "spmm", reduce, "transposed" if D.transposed else "")
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
    """Attention of own rows; keys and values of all heads travel together, as rows of x do."""
    plan = D.plan

    def check() -> dict[str, object]:
        require_rows_of(D)
        facts: dict[str, object] = {"call": "attention", "scale": scale, "D": D.in_words()}
        for name, t in (("query", query), ("key", key)):  # the others are compared with them
            dtensors.require_dense(name, t, D)
        operands = (("query", query, 0), ("key", key, 1), ("value", value, 1))
        for name, t, side in operands:
            dense = dtensors.require_dense(name, t, D)
            _require_heads(name, dense, query, key, D.local_shape[side])
            if dense.dim() == 2:
                dtensors.require_rows(name, dense, D.local_shape[side], D.shape[side], plan)
            dtensors.require_dtype_of(D, name, dense)
            *heads, _, width = dense.shape
            kind = dtensors.describe(dense, (width,))
            facts[name] = f"{heads} heads of {kind}" if heads else kind
        return facts

    D.agree(check)
    q, k, v = (
        dtensors.of_shares(t, shares, plan)
        for t, shares in ((query, plan.rows), (key, plan.columns), (value, plan.columns))
    )
    rows = torch.cat([k, v], -1).movedim(-2, 0)
    keys, values = arriving(rows, D).movedim(0, -2).split([k.shape[-1], v.shape[-1]], -1)
    y = scaled_dot_product_attention(q, keys, values, whole_rows(D), scale=scale)
    if isinstance(query, DTensor):
        return dtensors.from_rows(y, dtensors.rows(plan.rows, plan), plan)
    return y


def _require_heads(
    name: str, x: torch.Tensor, query: torch.Tensor, key: torch.Tensor, own: int
) -> None:
    """Refuses operands of attention whose heads, rows or features differ from those of others."""
    plain = not isinstance(x, DTensor)
    rows = x.shape[0] if x.dim() == 2 else own  # of matrices checked with more words
    lacks = name == "query" and x.shape[-1:] != key.shape[-1:]
    heads = x.shape[:-2] == query.shape[:-2]
    if x.dim() < 2 or (x.dim() > 2 and not plain) or x.shape[-2] != rows or lacks or not heads:
        raise checks.bad_shape(
            name,
            tuple(x.shape),
            f"({rows}, n), or (heads, {rows}, n) of own rows, with the heads of the query and, for "
            "the query, the n of the key,",
            "A DTensor has no heads: pass the own rows, or one head a call.",
        )


def scaled(
    D: Sharded, other: float | torch.Tensor | Sharded, by: Callable[..., Any]
) -> torch.Tensor:
    """The values times, or over, a number, a vector, or the values of a matrix on the pattern."""
    values, call = D.local_values(), by.__name__
    facts: dict[str, object] = {"call": call, "D": D.in_words()}
    if isinstance(other, torch.Tensor) and other.dim():
        return by(values, _at_entries(D, other, facts))

    def check() -> dict[str, object]:
        if isinstance(other, Sharded):
            return {"other": f"a matrix with {D._same(other).in_words()}", **facts}
        accepted = (
            "a number, a tensor or a ShardedMatrix on the same pattern is accepted. Take a vector "
            "of the own rows or columns."
        )
        dtensors.require_number("other", other, D, accepted)
        return {"other": dtensors.describe_number(other, values), **facts}

    def run() -> torch.Tensor:
        if isinstance(other, Sharded):
            return by(values, other.local_values())
        if isinstance(other, DTensor):
            return by(values, dtensors.local_copy(other))
        return by(values, other)

    return D.agreed(check, run)


def _at_entries(D: Sharded, other: torch.Tensor, facts: dict[str, object]) -> torch.Tensor:
    """For each own entry, the element of a vector of rows (rows, 1) or columns (columns,)."""
    plan = D.plan
    rows, columns = D.shape if isinstance(other, DTensor) else D.local_shape
    by_rows = other.shape == (rows, 1)

    def check() -> dict[str, object]:
        dtensors.require_dense("other", other, D)
        if isinstance(other, DTensor):
            dtensors.require_placement("other", other, plan)
        if not by_rows and other.shape != (columns,):  # (1, 1) would be a vector of either
            wanted = f"(), ({rows}, 1) for the own rows or ({columns},) for the own columns"
            hint = "The result keeps the pattern of D."
            raise checks.bad_shape("other", tuple(other.shape), wanted, hint)
        kind = dtensors.describe(other, ())
        return {"other": f"{kind}, a vector of {'rows' if by_rows else 'columns'}", **facts}

    D.agree(check)
    on_rows = by_rows != D.transposed
    line = other.reshape(-1)
    line = dtensors.of_shares(line, plan.rows if on_rows else plan.columns, plan)
    if on_rows:
        return line[plan.coordinates()[0]]
    arrived = collect(line, plan.exchange)
    far = [arrived[part.begin : part.end][part.pattern.indices[1]] for part in plan.far]
    return join([line[plan.own.indices[1]], *far])


def diagonal(D: Sharded) -> torch.Tensor:
    """The own rows of the diagonal."""
    at, row = _diagonal_entries(D)
    found = D.local_values().new_zeros(D.plan.rows.count)
    return found.index_add(0, row, D.local_values()[at])


def add_identity(D: S, alpha: float | torch.Tensor) -> S:
    """D + alpha I on the same pattern."""
    values = D.local_values()

    def check() -> dict[str, object]:
        lacking = D.plan.rows.count - len(_diagonal_entries(D)[1])
        if lacking:
            raise ArgumentValueError(
                f"`D` lacks {lacking} elements of the diagonal; a pattern with all of them is "
                "accepted. Distribute spgrad.set_diag(A, spgrad.diagonal(A))."
            )
        accepted = (
            "a number is accepted. For a diagonal of several numbers distribute "
            "spgrad.set_diag(A, ...)."
        )
        dtensors.require_number("alpha", alpha, D, accepted)
        if torch.result_type(values, alpha) != values.dtype:
            raise ArgumentValueError(
                f"`alpha` is {alpha}, and `D` has dtype {checks.short(values.dtype)}; a number of "
                "that dtype is accepted. Convert D by D.map."
            )
        number = dtensors.describe_number(alpha, values)
        return {"call": "add_identity", "alpha": number, "D": D.in_words()}

    def run() -> S:
        at, _ = _diagonal_entries(D)
        number = dtensors.local_copy(alpha) if isinstance(alpha, DTensor) else alpha
        step = torch.as_tensor(number, dtype=values.dtype, device=values.device)
        return D._with(values.index_add(0, at, step.expand(len(at))))

    return D.agreed(check, run)


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
