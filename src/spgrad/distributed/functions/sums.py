"""Sums and norms on shards: of rows, of columns, and of all elements."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist

from spgrad.core import checks
from spgrad.core.values import on_pattern
from spgrad.distributed import dtensors
from spgrad.distributed.exchange import give_back
from spgrad.distributed.plan import join
from spgrad.distributed.sharded import Sharded
from spgrad.errors import ArgumentKindError, ArgumentValueError, UnsupportedError
from spgrad.ops.reductions.axes import require_dtype, wide
from spgrad.ops.reductions.norms import norm as norm_of
from spgrad.ops.reductions.norms import power_from_zero
from spgrad.ops.reductions.reduce import sum as sum_of


def total(D: Sharded, dim: int | None) -> torch.Tensor:
    """Sums of rows, of columns, or of all elements."""

    def check() -> dict[str, object]:
        _require_dim(dim)
        return {"call": "sum", "dim": dim, "D": D.in_words()}

    D.agree(check)
    if dim is None:
        return dtensors.summed(D.local_values().sum(), D)
    return _lines(D, D.local_values(), _is_of_rows(D, dim))


def _require_dim(dim: Any) -> None:
    if dim is None or (isinstance(dim, int) and -2 <= dim < 2):
        return
    shown = isinstance(dim, (int, float, tuple))
    made = ArgumentValueError if isinstance(dim, (int, tuple)) else ArgumentKindError
    raise made(
        f"`dim` is {dim if shown else checks.describe_kind(dim)}; 0, 1 and None are accepted. A "
        "ShardedMatrix has two dimensions."
    )


def _is_of_rows(D: Sharded, dim: int) -> bool:
    """Whether the lines along a dimension are rows of the stored matrix, each in one process."""
    return (dim % 2 == 1) != D.transposed


def _lines(D: Sharded, values: torch.Tensor, of_rows: bool) -> torch.Tensor:
    """Sums of values of the entries, over the own rows or columns of the stored matrix."""
    plan = D.plan
    own, *far = (
        sum_of(on_pattern(v, pattern), 1 if of_rows else 0)
        for v, pattern in zip(plan.split(values), plan.patterns, strict=True)
    )
    if not of_rows:
        return own + give_back(join(far), plan.exchange)
    for part, found in zip(plan.far, far, strict=True):
        own = own + found if part.rows is None else own.index_add(0, part.rows, found)
    return own


def norm(D: Sharded, p: Any = "fro", dim: Any = None, names: tuple[str, ...] = ()) -> torch.Tensor:
    """(sum of abs(a)^p)^(1/p) of rows, of columns, or of all elements.

    `names` are that of `p` in the call, and what must be equal in all processes besides.
    """
    dim = None if _are_both(dim) else dim
    order = 2 if p is None or _is_named(p, "fro") else p
    named, *more = names or ("p",)

    def check() -> dict[str, object]:
        _require_dim(dim)
        if not isinstance(order, (int, float)):
            raise _no_order(named, order, "numbers and 'fro'")
        require_dtype(D.dtype, arg="D", accepted="real complex")
        if dim is not None and not _is_of_rows(D, dim) and not 0 <= order < math.inf:
            raise UnsupportedError(
                f"`{named}` is {order} and `dim` is {dim}, for elements that are in several "
                "processes; orders from 0 to below infinity are accepted, and all orders for the "
                "lines that are in one process. Distribute the transpose of the matrix."
            )
        terms = D.shape if dim is None else [D.shape[dim]]
        if 0 in terms and not 0 <= order < math.inf:
            hint = "It has no largest or smallest element."
            raise checks.bad_shape("D", tuple(D.shape), f"a matrix with elements for {order}", hint)
        return {"call": ("norm", order, *more), "dim": dim, "D": D.in_words()}

    D.agree(check)
    if dim is None:
        return _of_all(D, order)
    if _is_of_rows(D, dim):
        return norm_of(dtensors.local_rows(D.T if D.transposed else D), order, 1)
    found = _root(_lines(D, _terms(D.local_values(), order), of_rows=False), order)
    return found.to(D.dtype.to_real())


def _are_both(dim: Any) -> bool:
    """Whether these are both dimensions, or none is named, which means both."""
    if not isinstance(dim, (tuple, list)):
        return False
    if not all(isinstance(d, int) and -2 <= d < 2 for d in dim):
        return False
    return len(dim) == 0 or (len(dim) == 2 and sorted(d % 2 for d in dim) == [0, 1])


def _is_named(p: object, name: str) -> bool:
    return isinstance(p, str) and p == name  # an array is compared number by number


def _no_order(name: str, order: object, accepted: str) -> Exception:
    if isinstance(order, (int, float)) or _is_named(order, "nuc"):
        return UnsupportedError(
            f"`{name}` is {order!r}, which has no form for a ShardedMatrix; {accepted} are "
            "accepted. Take the norm of D.full()."
        )
    given = repr(order) if isinstance(order, str) else checks.describe_kind(order)
    return ArgumentKindError(f"`{name}` is {given}; {accepted} are accepted. For example 2.")


def _terms(values: torch.Tensor, p: float) -> torch.Tensor:
    """abs(a)^p; for order 0, 1 where a is not 0."""
    size = wide(values).abs()
    if p == 0:
        return torch.where(size.isnan(), 1, size.sign())
    return size**p if p >= 1 else power_from_zero(size, p)


def _root(sums: torch.Tensor, p: float) -> torch.Tensor:
    """The norm for the sums of terms; its gradient is 0 where it is 0."""
    if p in (0, 1):
        return sums
    zero = sums == 0
    root = torch.where(zero, torch.ones_like(sums), sums) ** (1 / p)
    return torch.where(zero, torch.zeros_like(sums), root)


def _of_all(D: Sharded, p: float) -> torch.Tensor:
    values = D.local_values()
    missing = D.shape.numel() - D.nse
    if math.isinf(p):
        return _extremum(values.abs(), D, largest=p > 0, zero=missing > 0)
    found = _root(dtensors.summed(_terms(values, p).sum(), D), p).to(D.dtype.to_real())
    if p >= 0:
        return found
    zeros = (values == 0).sum()
    dist.all_reduce(zeros, group=D.plan.group)
    if missing + int(zeros) == 0:
        return found
    return torch.where(found.isnan(), found, torch.zeros_like(found))


def _extremum(size: torch.Tensor, D: Sharded, *, largest: bool, zero: bool) -> torch.Tensor:
    """The largest or smallest of sizes that are not negative, of all processes and `zero`.

    Its gradient is shared out among all that are equal to it.
    """
    sign, known = (1 if largest else -1), size.detach()
    found = (sign * known).amax() if len(known) else known.new_full((), -math.inf)
    words = torch.stack([found, known.isnan().any().to(found.dtype)])
    words = words.where(~words.isnan(), -math.inf)
    dist.all_reduce(words, dist.ReduceOp.MAX, group=D.plan.group)
    best = sign * words[0]
    if zero or (largest and best < 0):  # there is an unspecified element, or none at all
        best = best.clamp(min=0) if largest else best.clamp(max=0)
    there = known == best
    count = there.sum()
    dist.all_reduce(count, group=D.plan.group)
    if words[1] != 0:
        there, best = known.isnan(), known.new_full((), math.nan)
    part = torch.where(there, size, 0).sum() / count.clamp(min=1)
    return dtensors.summed(part, D)


def vector_norm(D: Sharded, ord: Any = 2, dim: Any = None) -> torch.Tensor:
    """`torch.linalg.vector_norm` on shards."""
    return norm(D, ord, dim, ("ord",))


def linalg_norm(D: Sharded, ord: Any = None, dim: Any = None) -> torch.Tensor:
    """`torch.linalg.norm` on shards: of rows or columns that of vectors, else that of matrices."""
    if ord is None or isinstance(dim, int):
        return norm(D, ord, dim, ("ord",))
    return matrix_norm(D, ord, (0, 1) if dim is None else dim)


def matrix_norm(D: Sharded, ord: Any = "fro", dim: Any = (-2, -1)) -> torch.Tensor:
    """`torch.linalg.matrix_norm` on shards, for the orders "fro", 1, -1, inf and -inf."""
    if _is_named(ord, "fro"):
        return norm(D, ord, dim, ("ord",))

    def check() -> dict[str, object]:
        if not _are_both(dim) or not dim:
            raise ArgumentValueError(
                f"`dim` is {dim!r}; (0, 1) and (1, 0) are accepted. It has two."
            )
        if ord not in (1, -1, math.inf, -math.inf):
            raise _no_order("ord", ord, "'fro', 1, -1, inf and -inf")
        if ord < 0 and D.shape[1 - summed() % 2] == 0:
            hint = "Of none there is no smallest one."
            what = "a matrix with rows and columns"
            raise checks.bad_shape("D", tuple(D.shape), f"{what} for {ord}", hint)
        return {"call": ("matrix_norm", ord), "dim": tuple(dim)}

    def summed() -> int:
        return dim[0] if abs(ord) == 1 else dim[1]

    D.agree(check)
    return _extremum(norm(D, 1, summed()), D, largest=ord > 0, zero=False)
