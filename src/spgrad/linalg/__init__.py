"""Algorithms on sparse matrices, made of operations and without kernels of their own."""

import torch

from spgrad.core.slots import TORCH_FUNCTIONS
from spgrad.linalg.lobpcg import lobpcg
from spgrad.linalg.lowrank import pca_lowrank, svd_lowrank
from spgrad.linalg.ordering import reverse_cuthill_mckee

__all__ = ["lobpcg", "pca_lowrank", "reverse_cuthill_mckee", "svd_lowrank"]

TORCH_FUNCTIONS.update(
    {
        torch.lobpcg: lobpcg,
        torch.pca_lowrank: pca_lowrank,
        torch.svd_lowrank: svd_lowrank,
    }
)
