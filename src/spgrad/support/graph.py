"""Rows of the functions of graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spgrad.support.dense import graphs
from spgrad.support.table import Op


def _row(
    name: str, module: str, signature: str, dense: Callable[..., Any] | None, **more: Any
) -> Op:
    name, module = f"graph.{name}", f"graph.{module}"
    return Op(name, module, (), (signature,), dense, public=False, **more)


def _matrix(function: Callable[..., Any], A: Any, **options: Any) -> Any:
    """The matrix of a subgraph, without the numbers of its nodes and edges."""
    found = function(A, **options)
    return found[0] if isinstance(found, tuple) else found


_STEPS = "its number of steps depends on numbers"

ROWS: list[Op] = [
    _row("degree", "symmetry", "A[m,k] -> y[m]", graphs.degree, samples=({"weighted": True},)),
    _row(
        "normalize",
        "laplacian",
        "P[m,k] -> C[m,k]",
        graphs.normalized,
        samples=({}, {"how": "row"}, {"how": "col"}),
    ),
    _row(
        "laplacian",
        "laplacian",
        "P[m,m] -> C[m,m]",
        graphs.laplacian,
        samples=({}, {"normalization": "sym"}, {"normalization": "rw"}),
    ),
    _row(
        "to_symmetric",
        "symmetry",
        "A[m,m] -> C[m,m]",
        graphs.symmetric,
        samples=({}, {"reduce": "mean"}, {"reduce": "amax"}, {"reduce": "amin"}),
    ),
    _row(
        "shortest_paths",
        "paths",
        "P[m,m] -> y[1,m]",
        graphs.lengths,
        samples=({"sources": [0]},),
        traced=False,
        outside=_STEPS,
    ),
    _row(
        "k_hop",
        "neighbours",
        "A[m,m] -> y[m]",
        None,
        order=0,
        absent={"dense": "its result is several tensors"},
        traced=False,
        outside=_STEPS,
    ),
    _row(
        "subgraph",
        "neighbours",
        "A[m,m] -> C[n,n]:csr",
        graphs.between,
        layouts=("coo", "csr", "csc"),
        samples=({"nodes": [2, 0]},),
        absent=dict.fromkeys(("bsr", "bsc"), "the nodes may cut a block"),
        call=_matrix,
        traced=False,
        outside="its number of elements depends on numbers",
    ),
]
