"""Sampling of neighbours written with NumPy, for layers of torch_geometric."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

import spgrad


class Block(NamedTuple):
    """Sampled edges (2, edges), sources and targets by number in the batch; targets come first."""

    edges: torch.Tensor
    targets: int


class Sampler:
    """Draws neighbours of nodes, with replacement, which is the faster way."""

    def __init__(self, A: spgrad.SparseTensor, fanout: Sequence[int]) -> None:
        self.ptr, self.idx = A.crow_indices().numpy(), A.col_indices().numpy()
        self.fanout = fanout
        self.number = np.full(A.shape[0], -1)
        self.random = np.random.default_rng(0)

    def blocks(self, seeds: torch.Tensor) -> tuple[torch.Tensor, list[Block]]:
        """The nodes of the batch, seeds first, and the edges of each layer, the outermost first."""
        nodes = seeds.numpy()
        self.number[nodes] = np.arange(len(nodes))
        found = []
        for count in self.fanout:
            targets = len(nodes)
            degree = self.ptr[nodes + 1] - self.ptr[nodes]
            drawn = np.minimum(degree, count)
            of = np.repeat(np.arange(targets), drawn)
            at = (self.random.random(len(of)) * degree[of]).astype(np.int64)
            neighbours = self.idx[self.ptr[nodes][of] + at]
            new = np.unique(neighbours[self.number[neighbours] < 0])
            self.number[new] = np.arange(targets, targets + len(new))
            nodes = np.concatenate([nodes, new])
            edges = np.stack([self.number[neighbours], of])
            found.append(Block(torch.from_numpy(edges), targets))
        self.number[nodes] = -1
        return torch.from_numpy(nodes), found[::-1]
