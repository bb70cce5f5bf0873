"""Rows of the functions of graphs."""

from __future__ import annotations

from spgrad.support.dense import graphs as dense
from spgrad.support.table import Op

ROWS: list[Op] = [
    Op(
        "graph.degree",
        "graph.symmetry",
        (),
        ("A[m,k] -> y[m]",),
        dense.degree,
        samples=({"weighted": True},),
        traced=False,
        public=False,
    ),
    Op(
        "graph.normalize",
        "graph.laplacian",
        (),
        ("P[m,k] -> C[m,k]",),
        dense.normalized,
        samples=({}, {"how": "row"}, {"how": "col"}),
        traced=False,
        public=False,
    ),
    Op(
        "graph.laplacian",
        "graph.laplacian",
        (),
        ("P[m,m] -> C[m,m]",),
        dense.laplacian,
        samples=({}, {"normalization": "sym"}, {"normalization": "rw"}),
        traced=False,
        public=False,
    ),
    Op(
        "graph.to_symmetric",
        "graph.symmetry",
        (),
        ("A[m,m] -> C[m,m]",),
        dense.symmetric,
        samples=({}, {"reduce": "mean"}, {"reduce": "amax"}, {"reduce": "amin"}),
        traced=False,
        public=False,
    ),
    Op(
        "graph.shortest_paths",
        "graph.paths",
        (),
        ("P[m,m] -> y[1,m]",),
        dense.lengths,
        samples=({"sources": [0]},),
        traced=False,
        public=False,
    ),
    Op(
        "graph.k_hop",
        "graph.neighbours",
        (),
        ("A[m,m] -> y[m]",),
        None,
        order=0,
        absent={"dense": "its result is several tensors"},
        traced=False,
        public=False,
    ),
]
