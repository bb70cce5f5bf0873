"""The constructors by layout, and one matrix in the parts that each of them takes."""

import torch

import spgrad
from spgrad import support

CONSTRUCTOR = {name: getattr(spgrad, f"sparse_{name}_tensor") for name in support.ALL}
NATIVE = {name: getattr(torch, f"sparse_{name}_tensor") for name in support.ALL}
INDEX_NAMES = {
    "csr": ("crow_indices", "col_indices"),
    "csc": ("ccol_indices", "row_indices"),
    "bsr": ("crow_indices", "col_indices"),
    "bsc": ("ccol_indices", "row_indices"),
}
# The matrix [[1, 0, 2], [0, 3, 0]] (blocks of (1, 3) and (2, 1) hold zeros) in every layout.
PARTS = {
    "coo": ([[0, 0, 1], [0, 2, 1]], [1.0, 2.0, 3.0]),
    "csr": ([0, 2, 3], [0, 2, 1], [1.0, 2.0, 3.0]),
    "csc": ([0, 1, 2, 3], [0, 1, 0], [1.0, 3.0, 2.0]),
    "bsr": ([0, 1, 2], [0, 0], [[[1.0, 0.0, 2.0]], [[0.0, 3.0, 0.0]]]),
    "bsc": ([0, 1, 2, 3], [0, 0, 0], [[[1.0], [0.0]], [[0.0], [3.0]], [[2.0], [0.0]]]),
}
DENSE = torch.tensor([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0]])


def tensors(name, **options):
    *indices, vals = PARTS[name]
    return *(torch.tensor(i) for i in indices), torch.tensor(vals, **options)
