"""Sparse matrices of the pairs of neighbouring points of a grid (channels, *space)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch

from spgrad.dropin.torchsparsegradutils.utils.utils import convert_coo_to_csr_indices_values
from spgrad.ops.creation.grid import grid_pairs, neighbour_steps, part_with_neighbours, side_is

Offset = tuple[int, ...]

_RELATIONS = ("indep", "intra", "inter")
_SHAPE = "volume_shape must be a tuple of at least 2 positive integers, (channels, *space)"


def _trim_nd(x: torch.Tensor, offsets: Offset) -> torch.Tensor:
    """The part of a grid whose points p have a point p - offsets on the grid."""
    if x.dim() != len(offsets):
        raise ValueError(f"offsets has {len(offsets)} numbers for {x.dim()} dimensions")
    return part_with_neighbours(x, offsets)


def _gen_coords_nd(radius: float, spatial_dims: int) -> set[Offset]:
    """The steps to all neighbours within the radius."""
    if spatial_dims <= 0:
        raise ValueError(f"spatial_dims must be a positive integer, not {spatial_dims}")
    return set(neighbour_steps(spatial_dims, radius))


def _gen_coords(radius: float) -> set[Offset]:
    """`_gen_coords_nd` of three dimensions."""
    return _gen_coords_nd(radius, 3)


def _gen_offsets_nd(
    radius: float,
    spatial_dims: int,
    upper: bool | None = None,
    num_channels: int = 1,
    channel_voxel_relation: str = "indep",
) -> list[Offset]:
    """Steps (channel, *space) to all neighbours, nearest first; channels are 10 points apart."""
    space = sorted(_gen_coords_nd(radius, spatial_dims))
    offsets = [(0, *s) for s in space]
    here = [(0,) * spatial_dims] if channel_voxel_relation != "indep" else []
    here += space if channel_voxel_relation == "inter" else []
    offsets += [(c, *s) for c in range(1, num_channels) for s in here]
    return sorted((o for o in offsets if side_is(o, upper)), key=_order)


def _order(offset: Offset) -> tuple[Any, ...]:
    channel, *space = offset
    distance = (10 * channel) ** 2 + sum(s * s for s in space)
    return distance, [abs(s) for s in offset], [s >= 0 for s in offset]


def _gen_offsets(
    radius: float,
    upper: bool | None = None,
    num_channels: int = 1,
    channel_voxel_relation: str = "indep",
) -> list[Offset]:
    """`_gen_offsets_nd` of three dimensions."""
    return _gen_offsets_nd(radius, 3, upper, num_channels, channel_voxel_relation)


def calc_pairwise_coo_indices_nd(
    radius: float,
    volume_shape: tuple[int, ...],
    diag: bool = False,
    upper: bool | None = None,
    channel_voxel_relation: str = "indep",
    dtype: torch.dtype = torch.int64,
    device: Any = None,
) -> dict[Offset, torch.Tensor]:
    """For each step to a neighbour, rows and columns (2, pairs) of the pairs this step apart.

    Example:
        >>> found = calc_pairwise_coo_indices_nd(1, (1, 3), upper=True)
        >>> found[(0, -1)]
        tensor([[0, 1],
                [1, 2]])
    """
    if radius < 1:
        raise ValueError(f"radius is {radius}; 1 or more is taken")
    _require_shape(volume_shape, 2)
    if channel_voxel_relation not in _RELATIONS:
        raise ValueError(f"channel_voxel_relation is {channel_voxel_relation!r}, not {_RELATIONS}")
    if volume_shape[0] == 1 and channel_voxel_relation != "indep":
        raise ValueError("channel_voxel_relation must be 'indep' for one channel")
    space = len(volume_shape) - 1
    offsets = _gen_offsets_nd(radius, space, upper, volume_shape[0], channel_voxel_relation)
    offsets = [(0,) * len(volume_shape)] * diag + offsets
    return {o: grid_pairs(volume_shape, o, dtype, device) for o in offsets}


def calc_pairwise_coo_indices(
    radius: float,
    volume_shape: tuple[int, ...],
    diag: bool = False,
    upper: bool | None = None,
    channel_voxel_relation: str = "indep",
    dtype: torch.dtype = torch.int64,
    device: Any = None,
) -> dict[Offset, torch.Tensor]:
    """`calc_pairwise_coo_indices_nd` of three dimensions and channels."""
    _require_shape(volume_shape, 4, most=4)
    given = radius, volume_shape, diag, upper, channel_voxel_relation, dtype, device
    return calc_pairwise_coo_indices_nd(*given)


calc_pariwise_coo_indices = calc_pairwise_coo_indices  # a misspelt name that programs use


def _require_shape(shape: Any, least: int, most: int | None = None) -> None:
    fits = len(shape) >= least and (most is None or len(shape) <= most)
    if not fits or not all(isinstance(n, int) and n > 0 for n in shape):
        raise ValueError(f"{_SHAPE}; it is {shape}")


class PairwiseEncoder(torch.nn.Module):
    """Puts values of pairs of neighbouring points into a sparse matrix.

    Its input (steps, channels, *space), or a batch of these, has a value for each step and point.
    Its result is a matrix with a row and a column for each point of each channel: the element for a
    step is in the row of the point that the step leads to. `offsets` are the steps in their order.

    Example:
        >>> encode = PairwiseEncoder(1, (1, 3), upper=False)
        >>> encode(torch.tensor([[[0.0, 5.0, 6.0]]])).to_dense()
        tensor([[0., 0., 0.],
                [5., 0., 0.],
                [0., 6., 0.]])
    """

    def __init__(
        self,
        radius: float,
        volume_shape: tuple[int, ...],
        diag: bool = False,
        upper: bool | None = None,
        channel_voxel_relation: str = "indep",
        layout: torch.layout = torch.sparse_coo,
        indices_dtype: torch.dtype = torch.int64,
        device: Any = None,
    ) -> None:
        super().__init__()
        if indices_dtype not in (torch.int64, torch.int32):
            raise ValueError(f"indices_dtype is {indices_dtype}; int32 and int64 are taken")
        if layout not in (torch.sparse_coo, torch.sparse_csr):
            raise ValueError(f"layout is {layout}; torch.sparse_coo and sparse_csr are taken")
        self.radius, self.volume_shape, self.layout = radius, volume_shape, layout
        self.diag, self.upper, self.indices_dtype = diag, upper, indices_dtype
        self.channel_voxel_relation = channel_voxel_relation
        self.volume_numel = math.prod(volume_shape)
        self.spatial_dims = len(volume_shape) - 1
        found = calc_pairwise_coo_indices_nd(
            radius, volume_shape, diag, upper, channel_voxel_relation, indices_dtype, device
        )
        self.offsets = list(found)
        indices = torch.cat(list(found.values()), 1)
        self.csr_permutation: torch.Tensor | None = None
        if layout == torch.sparse_coo:
            self.indices = indices
        else:
            parts = convert_coo_to_csr_indices_values(indices, self.volume_numel)
            self.crow_indices, self.col_indices, self.csr_permutation = parts

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        for name in ("indices", "csr_permutation", "crow_indices", "col_indices"):
            index = getattr(self, name, None)
            if index is not None:
                setattr(self, name, fn(index))
        return self

    @property
    def device(self) -> torch.device:
        """Where the indices are."""
        return (self.indices if self.layout == torch.sparse_coo else self.crow_indices).device

    def _calc_values(self, values: torch.Tensor) -> torch.Tensor:
        """The values of all pairs (*b, pairs), step by step."""
        steps = values.unbind(values.dim() - len(self.volume_shape) - 1)
        lead = (0,) * (steps[0].dim() - len(self.volume_shape))
        pairs = zip(steps, self.offsets, strict=True)
        return torch.cat(
            [part_with_neighbours(v, (*lead, *o)).flatten(len(lead)) for v, o in pairs], -1
        )

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """The sparse matrix (points, points), or a batch of them."""
        self._require_values(values)
        batch = tuple(values.shape[: values.dim() - len(self.volume_shape) - 1])
        size = (*batch, self.volume_numel, self.volume_numel)
        found = self._calc_values(values)
        if self.csr_permutation is not None:
            crow, col = (t.expand(*batch, -1) for t in (self.crow_indices, self.col_indices))
            found = found.index_select(-1, self.csr_permutation)
            return torch.sparse_csr_tensor(crow.contiguous(), col.contiguous(), found, size)
        indices = self.indices
        if batch:
            count = indices.shape[1]
            item = torch.arange(batch[0], dtype=indices.dtype, device=indices.device)
            indices = torch.cat((item.repeat_interleave(count)[None], indices.repeat(1, batch[0])))
        return torch.sparse_coo_tensor(indices, found.flatten(), size).coalesce()

    def _require_values(self, values: torch.Tensor) -> None:
        whole = len(self.volume_shape) + 1
        if values.dim() not in (whole, whole + 1):
            raise ValueError(f"values has {values.dim()} dimensions; {whole}, or a batch, is taken")
        space = tuple(self.volume_shape[1:])
        if tuple(values.shape[-len(space) :]) != space:
            raise ValueError(f"values has shape {tuple(values.shape)}; it must end in {space}")
        if values.shape[-whole] != len(self.offsets):
            raise ValueError(f"values has {values.shape[-whole]} steps, not {len(self.offsets)}")
        if values.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"values has dtype {values.dtype}; float32 and float64 are taken")


class PairwiseVoxelEncoder(PairwiseEncoder):
    """`PairwiseEncoder` of three dimensions, by its old name."""

    def __init__(
        self, radius: float, volume_shape: tuple[int, ...], *more: Any, **options: Any
    ) -> None:
        text = "PairwiseVoxelEncoder is deprecated; PairwiseEncoder has its place"
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        _require_shape(volume_shape, 4, most=4)
        super().__init__(radius, volume_shape, *more, **options)
