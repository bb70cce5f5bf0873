"""A picture from its shadows: tomography by least squares, with a damping that is learned.

Each measurement b is the integral of the picture x along a ray; A holds the length of each ray in
each pixel. With too few rays and noise, A x = b has no good answer, and the one of

    min ||A x - b||^2 + damp^2 ||x||^2

depends on the damping: noise wins where it is small, blur where it is great. Rays that were kept
apart tell which is best. Their error goes through `spgrad.linalg.lstsq` as through any function of
torch, so that its gradient by the damping takes a few steps of Newton's method to 0.

    python examples/tomography.py --plot tomography.png
"""

import argparse

import torch

import spgrad
from spgrad.linalg import LSMR

ELLIPSES = (  # value, centre, half axes, angle in degrees; after Shepp and Logan (1974)
    (1.0, 0.0, 0.0, 0.69, 0.92, 0.0),
    (-0.8, 0.0, -0.018, 0.662, 0.874, 0.0),
    (-0.2, 0.22, 0.0, 0.11, 0.31, -18.0),
    (-0.2, -0.22, 0.0, 0.16, 0.41, 18.0),
    (0.3, 0.0, 0.35, 0.21, 0.25, 0.0),
    (0.3, 0.0, -0.1, 0.06, 0.06, 0.0),
    (0.3, -0.08, -0.605, 0.06, 0.04, 0.0),
)


def phantom(n: int) -> torch.Tensor:
    """A section of a head, (n n,) pixels."""
    at = (torch.arange(n, dtype=torch.float64) + 0.5) * 2 / n - 1
    y, x = torch.meshgrid(-at, at, indexing="ij")
    picture = torch.zeros(n, n, dtype=torch.float64)
    for value, cx, cy, a, b, degrees in ELLIPSES:
        turn = torch.tensor(degrees).deg2rad()
        u = (x - cx) * turn.cos() + (y - cy) * turn.sin()
        v = (y - cy) * turn.cos() - (x - cx) * turn.sin()
        picture += value * ((u / a) ** 2 + (v / b) ** 2 <= 1)
    return picture.flatten()


def rays(n: int, angles: int) -> spgrad.SparseTensor:
    """The matrix (rays, pixels) of path lengths, for parallel beams one pixel apart (Siddon, 1985).

    A ray crosses lines of the grid at some distances t along it. Between two of them that follow
    one another it is in one pixel: the one in which the middle lies.
    """
    # Angles and offsets that no line of the grid has: no ray runs between two pixels.
    angle = (torch.arange(angles, dtype=torch.float64) + 0.37) * torch.pi / angles
    offset = torch.arange(-0.7 * n, 0.7 * n, dtype=torch.float64)
    angle, offset = (v.flatten()[:, None] for v in torch.meshgrid(angle, offset, indexing="ij"))
    dx, dy = angle.cos(), angle.sin()
    x0, y0 = -offset * dy, offset * dx  # the point of a ray that is nearest to the centre
    lines = torch.arange(n + 1, dtype=torch.float64) - n / 2
    t = torch.cat([(lines - x0) / dx, (lines - y0) / dy], 1).sort(1).values  # (rays, 2 n + 2)
    middle, length = (t[:, 1:] + t[:, :-1]) / 2, t.diff()
    col, row = (x0 + middle * dx + n / 2).floor().long(), (y0 + middle * dy + n / 2).floor().long()
    inside = (col >= 0) & (col < n) & (row >= 0) & (row < n) & (length > 1e-9)
    ray = torch.arange(len(t))[:, None].expand_as(col)
    edges = torch.stack([ray[inside], (row * n + col)[inside]])
    return spgrad.from_edges(edges, length[inside], size=(len(t), n * n))


def reconstruct(A: spgrad.SparseTensor, b: torch.Tensor, damp: torch.Tensor) -> torch.Tensor:
    """x, with a gradient by the damping.

    `lstsq` takes a number for `damp`. For a tensor we write what it stands for: the rows damp * I
    below A, and zeros below b.
    """
    pixels = A.shape[1]
    damped = spgrad.cat([A, spgrad.eye(pixels, dtype=A.dtype) * damp])
    return spgrad.linalg.lstsq(damped, torch.cat([b, b.new_zeros(pixels)]), solver=LSMR(rtol=1e-6))
