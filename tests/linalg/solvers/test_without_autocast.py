"""Solves, factors and eigenvalues under autocast have the digits of their operands."""

import pytest
import torch

import spgrad
from spgrad import linalg

M = 60


def matrices():
    g = torch.Generator().manual_seed(0)
    T = torch.randn(M, M, generator=g) * (torch.rand(M, M, generator=g) < 0.1)
    definite = T @ T.mT + torch.eye(M) * torch.arange(5, 5 + M)
    return {
        "definite": definite,
        "general": definite + T.triu(1),
        "b": torch.randn(M, 3, generator=g),
    }


def cg(preconditioner):
    return lambda A, b: linalg.solve(A, b, linalg.CG(preconditioner=preconditioner))


OPERATIONS = {
    "solve": ("general", linalg.solve),
    "gmres": ("general", lambda A, b: linalg.solve(A, b, linalg.GMRES())),
    "blocks": ("definite", cg(linalg.BlockJacobi(8))),
    "amg": ("definite", cg(linalg.AMG())),
    "lstsq": ("general", linalg.lstsq),
    "logdet": ("general", lambda A, b: linalg.logdet(A)),
    "inverse": ("general", lambda A, b: linalg.inverse_diagonal(A)),
    "eigenvectors": ("definite", lambda A, b: linalg.eigsh(A, k=2).eigenvectors),
    "shifted": ("definite", lambda A, b: linalg.eigsh(A, k=2, sigma=0.0).eigenvectors),
    "singular": ("general", lambda A, b: linalg.svds(A, k=2)[0]),
    "cond": ("general", lambda A, b: linalg.cond(A)),
    "norm": ("general", lambda A, b: torch.linalg.matrix_norm(A, 2)),
    "exponential": ("general", lambda A, b: spgrad.expm_multiply(A, b, 0.01)),
    "lobpcg": ("definite", lambda A, b: spgrad.lobpcg(A, k=2, X=b)[0]),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_autocast_takes_no_digits(name):
    if name == "amg":
        pytest.importorskip("pyamg")
    kind, operation = OPERATIONS[name]
    given = matrices()

    def run():
        A = spgrad.from_dense(given[kind]).requires_grad_()
        found = operation(A, given["b"])
        (gradient,) = torch.autograd.grad((found * found.detach().cos()).sum(), A)
        return found.detach(), gradient.to_dense()

    run()  # a factor after the first takes the order that the first found
    expected = run()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = run()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
