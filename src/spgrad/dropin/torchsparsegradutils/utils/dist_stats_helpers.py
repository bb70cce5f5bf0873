"""Statistical tests of the mean and of the covariance of a sample."""

from __future__ import annotations

import torch

from spgrad.core import checks

__all__ = ["cov_nagao_test", "mean_hotelling_t2_test"]


def mean_hotelling_t2_test(
    sample_mean: torch.Tensor,
    true_mean: torch.Tensor,
    sample_cov: torch.Tensor,
    n: int,
    confidence_level: float = 0.95,
) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Hotelling's T^2 test of the mean of n draws (b, p): whether it passes, statistic, bound.

    Example:
        >>> mean, cov = torch.zeros(1, 2), torch.eye(2).expand(1, 2, 2)
        >>> mean_hotelling_t2_test(mean, mean, cov, 100)[0]
        tensor([True])
    """
    checks.require_packages("scipy", "scipy")
    from scipy.stats import f

    p = sample_mean.shape[1]
    gap = (sample_mean - true_mean).unsqueeze(-1)
    statistic = n * (gap * torch.linalg.solve(sample_cov, gap)).sum((-2, -1)).cpu()
    bound = p * (n - 1) / (n - p) * float(f.ppf(confidence_level, p, n - p))
    return statistic <= bound, statistic, bound


def cov_nagao_test(
    emp_cov: torch.Tensor,
    ref_cov: torch.Tensor,
    n: int,
    confidence_level: float = 0.95,
) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Nagao's test of the covariance of n draws (b, p, p): whether it passes, statistic, bound.

    Example:
        >>> cov = torch.eye(2).expand(1, 2, 2)
        >>> cov_nagao_test(cov, cov, 100)[0]
        tensor([True])
    """
    checks.require_packages("scipy", "scipy")
    from scipy.stats import chi2

    p = emp_cov.shape[-1]
    L = torch.linalg.cholesky(ref_cov)
    left = torch.linalg.solve_triangular(L, emp_cov, upper=False)
    whitened = torch.linalg.solve_triangular(L, left.mT, upper=False)
    gap = whitened - torch.eye(p, dtype=whitened.dtype, device=whitened.device)
    statistic = (gap.square().sum((-2, -1)) * n / 2).cpu()
    bound = float(chi2.ppf(confidence_level, p * (p + 1) / 2))
    return statistic <= bound, statistic, bound
