"""Reference of the kernel of MINRES; vectors and scalars are as in `vectors`."""

from __future__ import annotations

import torch
from torch import Tensor

from spgrad.kernels.declare import kernel
from spgrad.kernels.reference.solves.krylov.vectors import (
    add_scaled,
    inverse,
    quotient,
    real,
    scaled,
    squares_of,
)


@kernel(
    "minres_step(Tensor(a!) x, Tensor(b!) v, Tensor(c!) z, Tensor? y, Tensor w, "
    "Tensor(d!) w_before, Tensor(e!)? r, Tensor(f!) state, Tensor square, Tensor delta, "
    "Tensor squares, Tensor active, Tensor(g!) broken) -> Tensor"
)
def minres_step(
    x: Tensor,
    v: Tensor,
    z: Tensor,
    y: Tensor | None,
    w: Tensor,
    w_before: Tensor,
    r: Tensor | None,
    state: Tensor,
    square: Tensor,
    delta: Tensor,
    squares: Tensor,
    active: Tensor,
    broken: Tensor,
) -> Tensor:
    """The rotation of a step, x and w after it, and v over its norm, all in place.

    The names are those of Elman, Silvester and Wathen (2014), algorithm 2.4. Vectors are
    (items, m, n), of one dtype. Scalars are (items, n), of which the real part is taken.

    Args:
        x: The solution so far.
        v: The next Lanczos vector, which is divided by its norm.
        z: M^-1 times the Lanczos vector before it; with `y`, M^-1 v takes its place.
        y: M^-1 times the v that is given, or None without a preconditioner; may be v itself.
        w: The direction of the step before.
        w_before: The direction of the step before that, whose memory the new direction takes.
        r: The residual, for a preconditioner, whose norm is not that of the residual; or None.
        state: gamma, c, c of the step before, s, s of the step before, and eta: (6, items, n),
            float64.
        square: The square of the norm of v, that is v^H M^-1 v.
        delta: The diagonal element of the tridiagonal matrix.
        squares: Squared norms of the residuals (items, n), float64.
        active: Bool (items, n); x, r and eta stay as they are elsewhere.
        broken: Bool (items, n), set to True where a column is active and can't go on.

    Returns:
        Squared norms of the residuals after the step, or with `r` those of `r`; float64.
    """
    square, delta = real(square), real(delta)
    gamma, c, c_before, s, s_before, eta = state.clone()
    turned = c_before * gamma
    first, second = c * delta - turned * s, s * delta + turned * c
    third = s_before * gamma
    gamma = square.clamp(min=0).sqrt()
    length = torch.hypot(first, gamma)
    broken.logical_or_(active & ((square < 0) | (length == 0)))
    going = active > broken  # active, and not broken
    shrunk, normed = inverse(length), inverse(gamma)
    c_before, s_before, c, s = c, s, first * shrunk, gamma * shrunk
    if r is not None:
        r.mul_(torch.where(going, s**2, 1).to(r.dtype)[:, None])
        squares = squares_of(add_scaled(r, v, quotient(eta * c, gamma, going)))
    now = add_scaled(add_scaled(z.clone(), w_before, third, -1), w, second, -1)
    w_before.copy_(scaled(now, shrunk))
    add_scaled(x, w_before, (c * eta).masked_fill_(~going, 0))
    if y is not None:
        z.copy_(scaled(y, normed))
    v.mul_(normed.to(v.dtype)[:, None])
    eta = torch.where(going, -s * eta, eta)
    torch.stack([gamma, c, c_before, s, s_before, eta], out=state)
    return squares.clone() if r is not None else torch.where(going, eta**2, squares)
