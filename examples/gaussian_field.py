"""A map from scattered noisy data: fit a Gaussian Markov random field, then fill in the gaps.

The field x on an n x n grid solves (kappa^2 + G) x = white noise / tau, where G is the Laplacian of
the grid. Its covariance is a Matern covariance (Lindgren, Rue and Lindstrom, 2011). The covariance
matrix is full, but the precision Q = tau^2 (kappa^2 + G)^2 is sparse, with 13 elements a row. The
observations are y = x + noise of deviation sigma at some of the cells. The likelihood of y needs
determinants and a solve. Its gradient needs elements of inverses, at the pattern of Q only.

    python examples/gaussian_field.py --plot field.png
"""

import argparse

import torch

import spgrad
from spgrad import linalg

NAMES = ("kappa", "tau", "sigma")
TRUE = torch.tensor([0.3, 1.0, 0.4], dtype=torch.float64)


class Field:
    """The matrices of a grid, and the cells that are observed."""

    def __init__(self, n: int, observed: torch.Tensor) -> None:
        steps = spgrad.spdiags(  # differences between neighbours in a line of n cells
            torch.tensor([[-1.0], [1.0]], dtype=torch.float64).expand(2, n),
            torch.tensor([0, 1]),
            (n - 1, n),
        )
        line, one = steps.mT @ steps, spgrad.eye(n, dtype=torch.float64)
        self.G = spgrad.kron(line, one) + spgrad.kron(one, line)
        self.I = spgrad.eye(n * n, dtype=torch.float64)
        self.seen = spgrad.diag(observed.double())

    def root(self, kappa: torch.Tensor) -> torch.Tensor:
        """K = kappa^2 + G; Q = tau^2 K K."""
        return self.I * kappa**2 + self.G

    def log_likelihood(self, log_parameters: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The logarithm of the density of y, up to a constant.

        With the precision P = Q + seen / sigma^2 of x given y, and b = seen y / sigma^2,

            2 log p(y) = log|Q| - log|P| - m log sigma^2 - y^T y / sigma^2 + b^T P^-1 b.
        """
        kappa, tau, sigma = log_parameters.exp()
        F, b = self.posterior(y, kappa, tau, sigma)
        log_det_Q = 2 * (linalg.logdet(self.root(kappa)) + len(y) * tau.log())
        noise = self.seen.sum() * 2 * sigma.log() + y.square().sum() / sigma**2
        return (log_det_Q - F.logdet() - noise + b @ F.solve(b)) / 2

    def posterior(
        self, y: torch.Tensor, kappa: torch.Tensor, tau: torch.Tensor, sigma: torch.Tensor
    ) -> tuple[linalg.Factor, torch.Tensor]:
        """A factor of P, which serves its determinant, solves and diagonal; and b."""
        K = self.root(kappa)
        P = (K @ K) * tau**2 + self.seen / sigma**2
        return linalg.factor(P, assume="positive definite"), y / sigma**2


def fit(field: Field, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
    """The parameters of the greatest likelihood, their standard errors, and the evaluations."""
    log_parameters = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([log_parameters], max_iter=40, line_search_fn="strong_wolfe")
    evaluations = 0

    def gradient(at: torch.Tensor) -> torch.Tensor:
        at = at.detach().requires_grad_()
        return torch.autograd.grad(-field.log_likelihood(at, y), at)[0]

    def closure() -> torch.Tensor:
        nonlocal evaluations
        evaluations += 1
        optimizer.zero_grad()
        loss = -field.log_likelihood(log_parameters, y)
        loss.backward()
        return loss

    optimizer.step(closure)  # type: ignore[arg-type]
    # The inverse of the Fisher information is the covariance of the estimates.
    unit = 1e-3 * torch.eye(3, dtype=torch.float64)
    columns = [(gradient(log_parameters + e) - gradient(log_parameters - e)) / 2e-3 for e in unit]
    found = log_parameters.detach().exp()
    return found, found * torch.stack(columns).inverse().diagonal().sqrt(), evaluations


def main(arguments: list[str] | None = None) -> None:
    """Draws a field and data of it, fits the parameters, and estimates the field."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a small grid, for tests")
    parser.add_argument("--plot", metavar="FILE", help="draws the result into a file")
    options = parser.parse_args(arguments)
    n = 32 if options.quick else 100

    torch.manual_seed(0)
    row, col = torch.arange(n).repeat_interleave(n), torch.arange(n).repeat(n)
    cloud = (row - 0.6 * n) ** 2 + (col - 0.4 * n) ** 2 < (0.15 * n) ** 2
    observed = (torch.rand(n * n) < 0.3) & ~cloud
    field = Field(n, observed)
    white = torch.randn(2, n * n, dtype=torch.float64)
    x = linalg.solve(field.root(TRUE[0]), white[0]) / TRUE[1]
    y = (x + TRUE[2] * white[1]) * observed
    print(f"grid       {n} x {n}, {int(observed.sum())} cells observed, with noise")

    found, error, evaluations = fit(field, y)
    print(f"fit        {evaluations} evaluations of the likelihood and its gradient")
    for name, value, deviation, true in zip(NAMES, found, error, TRUE):
        print(f"{name:<10} {value:.3f} +- {deviation:.3f}, truth {true:.1f}")

    F, b = field.posterior(y, *found)
    mean, std = F.solve(b), F.inverse_at(field.I).values().sqrt()
    off, hidden = (mean - x).abs(), ~observed
    rms = off[hidden].square().mean().sqrt().item()
    inside = (off < 1.96 * std)[hidden].double().mean().item()
    print(f"hidden     error {rms:.3f}, where {std[hidden].square().mean().sqrt():.3f} is expected")
    print(f"           and {x[hidden].std():.3f} is the deviation of the field")
    sure = bool(((found - TRUE).abs() < 3 * error).all()) and abs(inside - 0.95) < 0.03
    print(
        f"check      {100 * inside:.1f} % of the hidden cells are within 1.96 deviations (95 %): "
        f"{'good' if sure else 'BAD'}"
    )
    if options.plot:
        shown = y.where(observed, torch.nan)
        draw(options.plot, n, {"data": shown, "truth": x, "posterior mean": mean, "deviation": std})


def draw(path: str, n: int, maps: dict[str, torch.Tensor]) -> None:
    """The maps side by side; the first three have one scale."""
    from matplotlib import pyplot as plt

    limit = maps["truth"].abs().max().item()
    figure, axes = plt.subplots(1, 4, figsize=(14, 3.4), layout="constrained")
    for axis, (title, values) in zip(axes, maps.items()):
        scale = {} if title == "deviation" else {"vmin": -limit, "vmax": limit, "cmap": "RdBu_r"}
        image = axis.imshow(values.view(n, n).numpy(), interpolation="none", **scale)
        axis.set(title=title, xticks=[], yticks=[])
        figure.colorbar(image, ax=axis, shrink=0.85)
    figure.savefig(path, dpi=80)


if __name__ == "__main__":
    main()
