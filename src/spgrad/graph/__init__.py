"""Graphs as sparse matrices: degrees, normalisations, Laplacians, neighbourhoods and paths."""

from spgrad import data
from spgrad.data import Subgraph
from spgrad.graph.laplacian import laplacian, normalize
from spgrad.graph.neighbours import Neighbourhood, k_hop
from spgrad.graph.paths import shortest_paths
from spgrad.graph.symmetry import degree, to_symmetric
from spgrad.linalg import connected_components, is_symmetric
from spgrad.ops import register_family
from spgrad.public import public_as

__all__ = [
    "Neighbourhood",
    "Subgraph",
    "connected_components",
    "degree",
    "is_symmetric",
    "k_hop",
    "laplacian",
    "normalize",
    "shortest_paths",
    "subgraph",
    "to_symmetric",
]

subgraph = public_as("graph.subgraph")(data.subgraph)
subgraph.__module__ = __name__  # where pickle looks for it

register_family("graph")
