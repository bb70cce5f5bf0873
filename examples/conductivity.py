"""The conductivity of a plate, from potentials measured on it.

Currents flow through a plate of n x n cells. Each enters at one cell and leaves at another, and the
potential is measured at one cell in ten. The potentials x of a current b solve A x = b, where A is
the five-point stencil: the conductance between two neighbours is the harmonic mean of their
conductivities. We look for smooth conductivities whose potentials fit the measured ones.

The loss goes through `spgrad.linalg.solve`. Autograd gives its derivative with respect to all n^2
conductivities by one more solve, with the factor of the forward. The program forms no matrix but A,
and the gradient of A has five elements a row, like A.

    python examples/conductivity.py --plot conductivity.png
"""

import argparse
from collections.abc import Callable

import torch

import spgrad

NOISE = 3e-3  # of the measured potentials, relative to their standard deviation


class Plate:
    """The pattern of the stencil, made once; every conductivity is a set of values on it."""

    def __init__(self, n: int) -> None:
        cell = torch.arange(n * n).view(n, n)
        right, down = (cell[:, :-1], cell[:, 1:]), (cell[:-1], cell[1:])
        self.i, self.j = (torch.cat([a.flatten(), b.flatten()]) for a, b in zip(right, down))
        # Each edge adds its conductance to four elements. Cell 0 is connected to the ground too,
        # without which the potential would be known up to a constant only.
        ground = torch.zeros(1, dtype=torch.int64)
        row = torch.cat([self.i, self.j, self.i, self.j, ground])
        col = torch.cat([self.j, self.i, self.i, self.j, ground])
        ones = torch.ones(row.numel(), dtype=torch.float64)
        self.stencil = spgrad.sparse_coo_tensor(torch.stack([row, col]), ones, (n * n, n * n))

    def matrix(self, log_conductivity: torch.Tensor) -> torch.Tensor:
        """The matrix A; `coalesce` adds up what falls on one element."""
        s = log_conductivity.exp()
        c = 2 * s[self.i] * s[self.j] / (s[self.i] + s[self.j])
        values = torch.cat([-c, -c, c, c, c.new_ones(1)])
        return spgrad.from_values(values, self.stencil).coalesce()

    def potentials(self, log_conductivity: torch.Tensor, currents: torch.Tensor) -> torch.Tensor:
        """One column for each current.

        In two dimensions the factor of A is small (SuperLU, the default solver), it serves all
        currents, and the gradient uses it again. CG needs hundreds of steps for each current on
        a plate of 100 x 100 cells, and takes nine times as long.
        """
        A = self.matrix(log_conductivity)
        return spgrad.linalg.solve(A, currents, assume="positive definite")

    def roughness(self, log_conductivity: torch.Tensor) -> torch.Tensor:
        """The mean square of the differences between neighbours."""
        return (log_conductivity[self.i] - log_conductivity[self.j]).square().mean()


def truth(n: int) -> torch.Tensor:
    """The logarithm of the true conductivity: a good conductor, a bad one and a channel."""
    y, x = torch.meshgrid(*[torch.linspace(0, 1, n, dtype=torch.float64)] * 2, indexing="ij")
    good = 2.0 * torch.exp(-((x - 0.3) ** 2 + (y - 0.3) ** 2) / 0.02)
    bad = -2.0 * torch.exp(-((x - 0.7) ** 2 + (y - 0.35) ** 2) / 0.015)
    channel = 1.5 * torch.exp(-((y - 0.75 - 0.1 * torch.sin(6 * x)) ** 2) / 0.003)
    return (good + bad + channel).flatten()


def fit(
    loss: Callable[[torch.Tensor], torch.Tensor], cells: int
) -> tuple[torch.Tensor, list[float]]:
    """Fits the logarithm of the conductivity by L-BFGS from a uniform plate; also the losses."""
    m = torch.zeros(cells, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([m], max_iter=80, history_size=30, line_search_fn="strong_wolfe")
    losses: list[float] = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        value = loss(m)
        value.backward()
        losses.append(value.item())
        return value

    optimizer.step(closure)  # type: ignore[arg-type]
    return m.detach(), losses


def gradient_error(loss: Callable[[torch.Tensor], torch.Tensor], m: torch.Tensor) -> float:
    """How far the gradient is from central differences in four cells, relative to the greatest."""
    at = m.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(at), at)
    cells = torch.randperm(m.numel())[:4]
    steps = 1e-4 * (torch.arange(m.numel()) == cells[:, None])
    expected = torch.stack([(loss(m + step) - loss(m - step)) / 2e-4 for step in steps])
    return ((gradient[cells] - expected).abs().max() / expected.abs().max()).item()


def main(arguments: list[str] | None = None) -> None:
    """Measures, fits, checks the gradient, prints and draws."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a small plate, for tests")
    parser.add_argument("--plot", metavar="FILE", help="draws the result into a file")
    options = parser.parse_args(arguments)
    n, smooth = (32, 30.0) if options.quick else (100, 300.0)

    torch.manual_seed(0)
    plate, true = Plate(n), truth(n)
    source, sink = torch.randperm(n * n)[:32].view(2, 16)
    currents = torch.zeros(n * n, 16, dtype=torch.float64)
    currents[source, torch.arange(16)], currents[sink, torch.arange(16)] = 1.0, -1.0
    sensors = torch.randperm(n * n)[: n * n // 10]
    exact = plate.potentials(true, currents)[sensors]
    error = NOISE * exact.std()
    measured = exact + error * torch.randn_like(exact)
    print(f"plate      {n} x {n} cells, 16 currents, {len(sensors)} sensors, noise {NOISE:.1%}")

    def misfit(m: torch.Tensor) -> torch.Tensor:
        return ((plate.potentials(m, currents)[sensors] - measured) / error).square().mean()

    def loss(m: torch.Tensor) -> torch.Tensor:
        return misfit(m) + smooth * plate.roughness(m)

    print(f"gradient   differs from central differences by {gradient_error(loss, true / 2):.0e}")
    found, losses = fit(loss, n * n)
    print(f"fit        loss {losses[0]:.0f} -> {losses[-1]:.2f} in {len(losses)} evaluations")
    print(f"misfit     {misfit(found):.2f}, where the noise alone makes 1")
    off = ((found - true).norm() / (true - true.mean()).norm()).item()
    verdict = "good" if off < 0.2 else "BAD"
    print(f"check      relative error of the log-conductivity {off:.3f}, below 0.2: {verdict}")
    if options.plot:
        draw(options.plot, true.view(n, n), found.view(n, n), losses)


def draw(path: str, true: torch.Tensor, found: torch.Tensor, losses: list[float]) -> None:
    """The true plate, the recovered one, and the loss."""
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    for axis, values, title in zip(axes, (true, found), ("true", "recovered")):
        limits = {"vmin": true.min().item(), "vmax": true.max().item()}
        image = axis.imshow(values.numpy(), interpolation="none", **limits)
        axis.set(title=f"log-conductivity, {title}", xticks=[], yticks=[])
        figure.colorbar(image, ax=axis, shrink=0.85)
    axes[2].semilogy(losses)
    axes[2].set(title="loss", xlabel="evaluations")
    axes[2].grid(alpha=0.3)
    figure.savefig(path, dpi=80)


if __name__ == "__main__":
    main()
