"""Mini-batches: samples of graphs, and rows of matrices that stay on disk."""

from spgrad.data.collate import Blocks, collate, uncollate
from spgrad.data.entries import negative_sampling, split_entries
from spgrad.data.loader import NeighborLoader
from spgrad.data.neighbors import NeighborBatch, sample_neighbors
from spgrad.data.on_disk import RowDataset, prefetched
from spgrad.data.subgraphs import Subgraph, partition, saint_sample, subgraph
from spgrad.data.walks import random_walk

__all__ = [
    "Blocks",
    "NeighborBatch",
    "NeighborLoader",
    "RowDataset",
    "Subgraph",
    "collate",
    "negative_sampling",
    "partition",
    "prefetched",
    "random_walk",
    "saint_sample",
    "sample_neighbors",
    "split_entries",
    "subgraph",
    "uncollate",
]
