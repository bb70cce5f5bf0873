"""Graphs as sparse matrices: degrees, normalisations, Laplacians, neighbourhoods and paths."""

from spgrad.data import Subgraph
from spgrad.graph.laplacian import laplacian, normalize
from spgrad.graph.neighbours import Neighbourhood, k_hop, subgraph
from spgrad.graph.paths import shortest_paths
from spgrad.graph.symmetry import degree, to_symmetric
from spgrad.linalg import connected_components, is_symmetric
from spgrad.ops import register_family

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

register_family("graph")
