"""Modules with sparse weights, layers of graph networks, and tools for sparse parameters."""

from spgrad.nn import patterns, sparsity
from spgrad.nn.attention import SparseAttention
from spgrad.nn.bag import SparseEmbeddingBag
from spgrad.nn.conversion import convert, to_dense
from spgrad.nn.graph.attention import GraphAttention
from spgrad.nn.graph.convolutions import GINConv, GraphConv, MessagePassing, SAGEConv
from spgrad.nn.graph.loops import add_self_loops, gcn_norm
from spgrad.nn.linear import SparseLinear
from spgrad.nn.parametrize import parametrize_values, unparametrize_values

__all__ = [
    "GINConv",
    "GraphAttention",
    "GraphConv",
    "MessagePassing",
    "SAGEConv",
    "SparseAttention",
    "SparseEmbeddingBag",
    "SparseLinear",
    "add_self_loops",
    "convert",
    "gcn_norm",
    "parametrize_values",
    "patterns",
    "sparsity",
    "to_dense",
    "unparametrize_values",
]
