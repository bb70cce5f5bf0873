"""The part of a derivative of eigenvectors that divides by differences of found eigenvalues."""

from __future__ import annotations

import torch

from spgrad.errors import StateError
from spgrad.torch_protocol.func_transforms import transforming

SAME = 100
"""Eigenvalues that differ by at most this many rounding errors count as equal."""


def quotients(
    S: torch.Tensor, E: torch.Tensor, scale: torch.Tensor, function: str | None = None
) -> torch.Tensor:
    """1 / (e_p - e_q) in row q and column p, and 0 for equal eigenvalues.

    `scale` is the magnitude to which the rounding errors of eigenvalues are relative. Equal
    eigenvalues have many bases of eigenvectors, and any of them may have been found. A loss
    has a derivative if it is the same for all bases, and then S is hermitian there.
    """
    apart = E - E[:, None]
    with torch.no_grad():
        bound = SAME * torch.finfo(E.dtype).eps * torch.maximum(scale, E.abs().max())
        near = apart.abs() <= bound
        if not transforming():  # under torch.func.vmap, no branch may depend on numbers
            _require_same_for_every_basis(S, E, near, bound, function)
    return torch.where(near, 0, 1 / torch.where(near, 1, apart))


def _require_same_for_every_basis(
    S: torch.Tensor,
    E: torch.Tensor,
    near: torch.Tensor,
    bound: torch.Tensor,
    function: str | None,
) -> None:
    turned = (S - S.mH).abs()
    depends = near & (turned > torch.finfo(E.dtype).eps ** 0.5 * S.abs().max())
    depends.fill_diagonal_(False)
    if not bool(depends.any()):
        return
    q, p = (int(i) for i in torch.nonzero(depends)[0])
    raise StateError(
        f"eigenvalues {q} and {p}, {float(E[q]):.8g} and {float(E[p]):.8g}, differ by "
        f"{abs(float(E[q] - E[p])):.1e}, so that their vectors are one basis of many, and the loss "
        f"depends on which; a gap of more than {float(bound):.1e}, or a loss that is the same for "
        "every basis, such as one of X @ X.mH, is accepted. Differentiate the eigenvalues alone, "
        "or such a loss.",
        function=function,
    )
