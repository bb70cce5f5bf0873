"""Rows of the functions that create a tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from spgrad.support.table import ALL, Op, plainly

_FORMS = ("A[m,k] -> C[m,k]", "A[b,m,k] -> C[b,m,k]", "A[m,k|d] -> C[m,k|d]")
_RANDOM = {"dense": "its values are random"}
_SIZE = {"size": (4, 6)}


def _full_like(A: torch.Tensor, fill_value: float = 1, *, mask: torch.Tensor) -> torch.Tensor:
    return torch.where(mask, torch.full_like(A, fill_value), A.new_zeros(()))


def _like(
    name: str,
    dense: Callable[..., Any] | None,
    sample: Mapping[str, Any] | None = None,
    absent: Mapping[str, str] | None = None,
) -> Op:
    return Op(
        name,
        "creation.like",
        (f"torch.{name}",),
        _FORMS,
        dense,
        order=0,
        samples=(sample or {},),
        absent=absent or {},
    )


def _sized(function: Callable[..., Any], *, size: tuple[int, ...], **options: Any) -> Any:
    return function(*size, **options)


def _made(
    name: str,
    dense: Callable[..., Any] | None,
    *samples: Mapping[str, Any],
    module: str = "create",
    operand: str = "",
    blocks: bool = True,
    call: Callable[..., Any] = plainly,
) -> Op:
    absent: dict[str, str] = {}
    if not blocks:
        absent |= dict.fromkeys(ALL[3:], "it takes no sizes of blocks")
    if dense is None:
        absent |= _RANDOM
    return Op(
        name,
        f"creation.{module}",
        (),
        (f"{operand}-> C[m,k]:asked",),
        dense,
        layouts=ALL if blocks else ALL[:3],
        order=2 if operand else 0,
        samples=samples,
        absent=absent,
        call=call,
    )


def _diagonals(
    diagonals: torch.Tensor, offsets: torch.Tensor, shape: tuple[int, int]
) -> torch.Tensor:
    return torch.sparse.spdiags(diagonals, offsets, shape).to_dense()


def _weighted(function: Callable[..., Any], weight: Any, *, edge_index: Any, **options: Any) -> Any:
    return function(edge_index, weight, **options)


def _adjacency(
    edge_index: torch.Tensor, edge_weight: torch.Tensor, size: tuple[int, int]
) -> torch.Tensor:
    at = edge_index[0], edge_index[1]
    return edge_weight.new_zeros(size).index_put(at, edge_weight, accumulate=True)


ROWS = (
    _like("zeros_like", torch.zeros_like),
    _like("ones_like", _full_like),
    _like("full_like", _full_like, {"fill_value": 2}),
    _like("empty_like", None, absent={"dense": "its values are uninitialised memory"}),
    _like("rand_like", None, absent=_RANDOM),
    _like("randn_like", None, absent=_RANDOM),
    _made("zeros", torch.zeros, _SIZE, call=_sized),
    _made("empty", torch.zeros, _SIZE, call=_sized),
    _made("eye", torch.eye, {"n": 4}, {"n": 4, "m": 6}),
    _made(
        "spdiags",
        _diagonals,
        {"offsets": torch.tensor([0, -1, 2]), "shape": (4, 6)},
        operand="x[d,k] ",
        blocks=False,
    ),
    _made("rand", None, _SIZE | {"density": 0.5}, module="random", call=_sized),
    _made("randn", None, _SIZE | {"density": 0.5}, module="random", call=_sized),
    _made("banded", None, {"n": 4, "bandwidth": 1}, module="random", blocks=False),
    _made("random_spd", None, {"n": 4, "density": 0.5}, module="random", blocks=False),
    _made("random_triangular", None, {"n": 4, "density": 0.5}, module="random", blocks=False),
    _made(
        "from_edges",
        _adjacency,
        {"edge_index": torch.tensor([[0, 3, 1, 3, 0, 2], [1, 5, 2, 5, 0, 4]]), "size": (4, 6)},
        module="graph",
        operand="x[k] ",
        blocks=False,
        call=_weighted,
    ),
    Op(
        "neighbourhood_pattern",
        "creation.grid",
        (),
        (),
        None,
        order=0,
        absent={"dense": "its result is a pattern, which has tests of its own"},
        traced=False,
    ),
)
