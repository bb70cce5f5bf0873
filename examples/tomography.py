"""Tomography by least squares, with a damping that is learned.

Each measurement b is the integral of the picture x along a ray; A holds the length of each ray in
each pixel. With too few rays and with noise, A x = b has no useful solution. The solution of

    min ||A x - b||^2 + damp^2 ||x||^2

depends on the damping: a small one leaves noise, a large one blurs the picture. The best damping
has the least error on rays that were kept apart. That error goes through `spgrad.linalg.lstsq` as
through any function of torch, so a few steps of L-BFGS find the damping.

    python examples/tomography.py --plot tomography.png
"""

import argparse

import torch

import spgrad
from spgrad.linalg import LSMR

NOISE = 0.05  # of the measurements, relative to their standard deviation
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


def learn_damping(
    A: spgrad.SparseTensor, b: torch.Tensor, apart: torch.Tensor
) -> tuple[float, list[tuple[float, float]]]:
    """The damping with the least error on the rays kept apart, and (damping, error) on the way.

    `lstsq` takes a number for `damp`. For a gradient we write what it stands for: the rows damp I
    below A, and zeros below b.
    """
    inside, pixels = ~apart, A.shape[1]
    A_fit, A_check = A[inside.nonzero()[:, 0]], A[apart.nonzero()[:, 0]]
    identity = spgrad.eye(pixels, dtype=A.dtype)
    b_fit = torch.cat([b[inside], b.new_zeros(pixels)])
    log_damp = torch.tensor(10.0, dtype=A.dtype).log().requires_grad_()
    optimizer = torch.optim.LBFGS([log_damp], max_iter=5, line_search_fn="strong_wolfe")
    path: list[tuple[float, float]] = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        damped = spgrad.cat([A_fit, identity * log_damp.exp()])
        x = spgrad.linalg.lstsq(damped, b_fit, solver=LSMR(rtol=1e-5))
        loss = (A_check @ x - b[apart]).square().mean()
        loss.backward()
        path.append((log_damp.exp().item(), loss.item()))
        return loss

    optimizer.step(closure)  # type: ignore[arg-type]
    return log_damp.exp().item(), path


def main(arguments: list[str] | None = None) -> None:
    """Measures, learns the damping, reconstructs, and compares."""
    from scipy.sparse.linalg import lsmr

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a small picture, for tests")
    parser.add_argument("--plot", metavar="FILE", help="draws the result into a file")
    options = parser.parse_args(arguments)
    n, angles = (32, 20) if options.quick else (128, 60)

    torch.manual_seed(0)
    true, A = phantom(n), rays(n, angles)
    exact = A @ true
    b = exact + NOISE * exact.std() * torch.randn_like(exact)
    apart = torch.rand(len(b)) < 0.1
    print(f"rays       {A.shape[0]} of {angles} angles, {A.shape[1]} pixels, {A.nse} lengths")

    damp, path = learn_damping(A, b, apart)
    print(f"damping    {path[0][0]:.1f} -> {damp:.2f} in {len(path)} evaluations")
    least = min(error for _, error in path)
    print(f"           error of the rays kept apart {path[0][1]:.2f} -> {least:.2f}")
    x = spgrad.linalg.lstsq(A, b, damp=damp, solver=LSMR(rtol=1e-8))
    theirs = torch.from_numpy(lsmr(spgrad.to_scipy(A), b.numpy(), damp, 1e-10, 1e-10)[0])
    same = ((x - theirs).norm() / theirs.norm()).item()
    print(f"SciPy      lsmr differs by {same:.0e}")

    projected = A.mT @ b  # back projection, as bright as fits b best
    shadow = A @ projected
    projected = projected * (shadow @ b) / (shadow @ shadow)
    off, off_projected = (((p - true).norm() / true.norm()).item() for p in (x, projected))
    verdict = "good" if off < 0.6 * off_projected and same < 1e-4 else "BAD"
    print(f"check      relative error {off:.3f}, of back projection {off_projected:.3f}: {verdict}")
    if options.plot:
        pictures = {"true": true, "back projection": projected, f"damping {damp:.1f}": x}
        draw(options.plot, b.view(angles, -1), {k: v.view(n, n) for k, v in pictures.items()})


def draw(path: str, sinogram: torch.Tensor, pictures: dict[str, torch.Tensor]) -> None:
    """What was measured, and the pictures."""
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 4, figsize=(14, 3.6), layout="constrained")
    axes[0].imshow(sinogram.numpy(), aspect="auto", cmap="gray")
    axes[0].set(title="measured", xlabel="offset", ylabel="angle", xticks=[], yticks=[])
    for axis, (title, picture) in zip(axes[1:], pictures.items()):
        axis.imshow(picture.numpy(), cmap="gray", vmin=0, vmax=1, interpolation="none")
        axis.set(title=title, xticks=[], yticks=[])
    figure.savefig(path, dpi=80)


if __name__ == "__main__":
    main()
