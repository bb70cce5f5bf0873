"""A map from scattered noisy data, by a Gaussian field on a triangular mesh.

The field x solves (kappa^2 - Laplacian) x = white noise / tau, and its covariance is a Matern
covariance. Lindgren, Rue and Lindstrom (2011) solve it with linear finite elements on a mesh. With
the stiffness matrix G and the lumped, diagonal mass matrix C of the mesh, the precision of x is

    Q = tau^2 K C^-1 K,   K = kappa^2 C + G.

The covariance matrix is full, but Q is sparse, with about 19 elements a row. The mesh is the
Delaunay triangulation of scattered points, closer together in the west. The observations are
y = x + noise of deviation sigma at some of the points. The likelihood of y needs determinants and a
solve. Its gradient needs elements of inverses, at the pattern of Q only.

    python examples/gaussian_field.py --plot field.png
"""

import argparse

import torch
from scipy.spatial import Delaunay

import spgrad
from spgrad import linalg

NAMES = ("kappa", "tau", "sigma")
TRUE = torch.tensor([0.3, 1.0, 0.4], dtype=torch.float64)


class Mesh:
    """Points in a square of side n, the triangles between them, and the matrices of the mesh."""

    def __init__(self, n: int) -> None:
        inside = torch.quasirandom.SobolEngine(2, scramble=True, seed=0).draw(n * n).double()
        along = torch.linspace(0, 1, n + 1, dtype=torch.float64)[:, None]
        sides = torch.cat([along, along * 0], 1)
        sides = torch.cat([sides, sides.flip(1), 1 - sides, 1 - sides.flip(1)])
        self.points = torch.cat([inside, sides.unique(dim=0)])
        self.points[:, 0] **= 1.3  # closer together in the west
        self.points *= n
        self.triangles = torch.from_numpy(Delaunay(self.points.numpy()).simplices).long()
        a, b, c = self.points[self.triangles].unbind(1)
        edges = torch.stack([c - b, a - c, b - a], 1)  # (triangles, 3, 2), opposite to each corner
        area = torch.linalg.det(edges[:, :2]).abs() / 2
        # The integral over a triangle of the product of the gradients of two hat functions.
        stiffness = edges @ edges.mT / (4 * area[:, None, None])
        i = self.triangles[:, :, None].expand(-1, 3, 3)
        indices = torch.stack([i.flatten(), i.mT.flatten()])
        m = len(self.points)
        parts = spgrad.sparse_coo_tensor(indices, stiffness.flatten(), (m, m))
        self.G = parts.coalesce().to_sparse_csr()
        corners = self.triangles.flatten()
        third = (area / 3).repeat_interleave(3)
        self.mass = torch.zeros(m, dtype=torch.float64).index_add(0, corners, third)


class Field:
    """The field on a mesh, of which some points are observed."""

    def __init__(self, mesh: Mesh, observed: torch.Tensor) -> None:
        self.G, self.mass = mesh.G, mesh.mass
        self.C = spgrad.diag(mesh.mass)
        self.seen = spgrad.diag(observed.double())

    def root(self, kappa: torch.Tensor) -> torch.Tensor:
        """K = kappa^2 C + G; Q = tau^2 K C^-1 K."""
        return self.C * kappa**2 + self.G

    def sample(self, white: torch.Tensor) -> torch.Tensor:
        """A field with the true parameters: K^-1 C^1/2 white / tau has the precision Q."""
        return linalg.solve(self.root(TRUE[0]), self.mass.sqrt() * white) / TRUE[1]

    def log_likelihood(self, log_parameters: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The logarithm of the density of y, up to a constant.

        With the precision P = Q + seen / sigma^2 of x given y, and b = seen y / sigma^2,

            2 log p(y) = log|Q| - log|P| - m log sigma^2 - y^T y / sigma^2 + b^T P^-1 b.
        """
        kappa, tau, sigma = log_parameters.exp()
        F, b = self.posterior(y, kappa, tau, sigma)
        log_det_Q = (
            2 * (linalg.logdet(self.root(kappa)) + len(y) * tau.log()) - self.mass.log().sum()
        )
        noise = self.seen.sum() * 2 * sigma.log() + y.square().sum() / sigma**2
        return (log_det_Q - F.logdet() - noise + b @ F.solve(b)) / 2

    def posterior(
        self, y: torch.Tensor, kappa: torch.Tensor, tau: torch.Tensor, sigma: torch.Tensor
    ) -> tuple[linalg.Factor, torch.Tensor]:
        """A factor of P, which serves its determinant, solves and diagonal; and b."""
        K = self.root(kappa)
        P = (K / self.mass) @ K * tau**2 + self.seen / sigma**2
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
    parser.add_argument("--quick", action="store_true", help="a small mesh, for tests")
    parser.add_argument("--plot", metavar="FILE", help="draws the result into a file")
    options = parser.parse_args(arguments)
    n = 32 if options.quick else 100

    torch.manual_seed(0)
    mesh = Mesh(n)
    east, north = mesh.points.T
    cloud = (east - 0.4 * n) ** 2 + (north - 0.4 * n) ** 2 < (0.15 * n) ** 2
    observed = (torch.rand(len(east)) < 0.3) & ~cloud
    field = Field(mesh, observed)
    white = torch.randn(2, len(east), dtype=torch.float64)
    x = field.sample(white[0])
    y = (x + TRUE[2] * white[1]) * observed
    print(f"mesh       {len(y)} points, {len(mesh.triangles)} triangles")
    print(f"data       {int(observed.sum())} points observed, with noise")

    found, error, evaluations = fit(field, y)
    print(f"fit        {evaluations} evaluations of the likelihood and its gradient")
    for name, value, deviation, true in zip(NAMES, found, error, TRUE):
        print(f"{name:<10} {value:.3f} +- {deviation:.3f}, truth {true:.1f}")

    F, b = field.posterior(y, *found)
    mean, std = F.solve(b), F.inverse_at(field.C).values().sqrt()
    off, hidden = (mean - x).abs(), ~observed
    rms = off[hidden].square().mean().sqrt().item()
    inside = (off < 1.96 * std)[hidden].double().mean().item()
    print(f"hidden     error {rms:.3f}, where {std[hidden].square().mean().sqrt():.3f} is expected")
    print(f"           and {x[hidden].std():.3f} is the deviation of the field")
    sure = bool(((found - TRUE).abs() < 3 * error).all()) and abs(inside - 0.95) < 0.03
    print(
        f"check      {100 * inside:.1f} % of the hidden points are within 1.96 deviations (95 %): "
        f"{'good' if sure else 'BAD'}"
    )
    if options.plot:
        maps = {"truth": x, "posterior mean": mean, "deviation": std}
        draw(options.plot, mesh, y, observed, maps)


def draw(
    path: str, mesh: Mesh, y: torch.Tensor, observed: torch.Tensor, maps: dict[str, torch.Tensor]
) -> None:
    """The mesh with the data, and the maps; all but the deviation have one scale."""
    from matplotlib import pyplot as plt

    limit = maps["truth"].abs().max().item()
    common = {"vmin": -limit, "vmax": limit, "cmap": "RdBu_r"}
    east, north = mesh.points.T.numpy()
    figure, axes = plt.subplots(1, 4, figsize=(14, 3.4), layout="constrained")
    axes[0].triplot(east, north, mesh.triangles.numpy(), color="lightgrey", linewidth=0.3)
    images = [axes[0].scatter(east[observed], north[observed], 4, y[observed], **common)]
    for axis, (title, values) in zip(axes[1:], maps.items()):
        scale = {} if title == "deviation" else common
        triangles = mesh.triangles.numpy()
        images.append(
            axis.tripcolor(east, north, values, triangles=triangles, shading="gouraud", **scale)
        )
    for axis, title, image in zip(axes, ("mesh and data", *maps), images):
        axis.set(title=title, xticks=[], yticks=[], aspect="equal")
        figure.colorbar(image, ax=axis, shrink=0.85)
    figure.savefig(path, dpi=80)


if __name__ == "__main__":
    main()
