"""The exponential of a sparse matrix times a dense one."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from spgrad.core import checks
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import as_result, stored_values
from spgrad.errors import ArgumentKindError, ArgumentValueError
from spgrad.linalg.solve import require_finite
from spgrad.lowering.operands import dense_operand, matrix_operand
from spgrad.lowering.products.spmm import wants_grad
from spgrad.ops import diagonal, matmul, sum  # noqa: A004
from spgrad.public import public_op
from spgrad.torch_protocol.autocast import in_given_precision
from spgrad.torch_protocol.func_transforms import in_torch_func, mapped_over

HALVES = (torch.float16, torch.bfloat16)
DTYPES = (*HALVES, torch.float32, torch.float64, torch.complex64, torch.complex128)

# Al-Mohy and Higham (2011), table 3.1: the largest 1-norm for which this many terms of the series
# have a backward error below the unit roundoff.
_TERMS = tuple(range(5, 60, 5))
_REACH_32 = (0.13, 1.0, 2.2, 3.6, 4.9, 6.3, 7.7, 9.1, 11.0, 12.0, 13.0)
_REACH_64 = (2.4e-3, 0.14, 0.64, 1.4, 2.4, 3.5, 4.7, 6.0, 7.2, 8.5, 9.9)

_MOST_PRODUCTS = 10_000_000
"""A call that needs more products than this is refused, because it would seem to hang."""


@public_op
@in_given_precision
def expm_multiply(A: torch.Tensor, x: torch.Tensor, t: float | torch.Tensor = 1.0) -> torch.Tensor:
    """exp(t A) x, without the exponential of the matrix, which is dense.

    The solution at time t of dx/dt = A x: diffusion on a graph or mesh, a Markov chain in
    continuous time. Scaling and a truncated Taylor series: Al-Mohy and Higham, Computing the action
    of the matrix exponential (SIAM Journal on Scientific Computing, 2011), algorithm 3.2, with the
    1-norm of t (A - trace(A) / m) for their estimate of norms of powers.

    Args:
        A: Sparse (*b, m, m) of any layout, of a floating-point or complex dtype; 16-bit numbers are
            multiplied in float32.
        x: Dense (*b, m) or (*b, m, n) of the same dtype; one dimension less than `A`, or as many.
        t: A real number, or a dense tensor without dimensions.

    Returns:
        Dense, of the shape of `x`.

    Gradient:
        Of `A`, `x` and `t`, of any order; of `A` on its own pattern.

    Cost:
        At most 5 + 4.3 |t| norm products with `A` for float32, 15 + 5.7 |t| norm for float64,
        where norm is the 1-norm above. Without a gradient, a series ends when its terms no longer
        change the sum. Time steps are so short that |t| norm of one step is at most 13 for float32
        and 9.9 for float64.
        The gradient keeps a tensor of the size of `x` for each step, and up to 110 in the backward
        of one step.

    Raises:
        TypeError: `A` is not sparse, `x` not dense, or `t` is not a number.
        ValueError: `A` is not square, sizes or dtypes don't fit, t A or `x` has an element that is
            not finite, or t A is so large that more than ten million products would be needed.
        NotImplementedError: `A` has dense dimensions.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[0.0, -1.0], [1.0, 0.0]]))  # turns by t
        >>> spgrad.expm_multiply(A, torch.tensor([1.0, 0.0]), torch.pi / 4)
        tensor([0.7071, 0.7071])
    """
    M, b = _operands(A, x)
    if b.dtype in HALVES:
        return expm_multiply(M.to(torch.float32), b.to(torch.float32), t).to(b.dtype)
    time = _time(t, M)
    vector = b.dim() == len(M._pattern.shape) - 1
    y = b[..., None] if vector else b
    # where there is nothing to compute, a sum keeps the graph
    y = _advanced(M, y, time) if y.numel() else y + stored_values(M).sum() * time
    return as_result(y.squeeze(-1)) if vector else y


def _operands(A: Any, x: Any) -> tuple[SparseTensor, torch.Tensor]:
    M, b = matrix_operand("A", A), dense_operand("x", x)
    m, k = M._pattern.matrix
    shape = tuple(M._pattern.shape)
    if m != k:
        raise checks.bad_shape("A", shape, "a square matrix or batch", "Only these have powers.")
    if M.dtype not in DTYPES:
        accepted = ", ".join(map(checks.short, DTYPES))
        raise ArgumentValueError(
            f"`A` has dtype {checks.short(M.dtype)}; {accepted} are accepted. Convert it with "
            "A.to(torch.float32)."
        )
    checks.require_same_dtype(A=M._vals, x=b)
    checks.require_same_device(A=M._vals, x=b)
    if b.shape[: len(shape) - 1] != shape[:-1] or b.dim() > len(shape):
        batch = "".join(f"{size}, " for size in shape[:-2])
        accepted = f"({batch}{m}{'' if batch else ','}) or ({batch}{m}, n)"
        raise checks.bad_shape("x", tuple(b.shape), accepted, "It has the rows of `A`.")
    return M, b


def _time(t: Any, A: SparseTensor) -> torch.Tensor:
    """t as a tensor without dimensions, of the real dtype of A."""
    dtype = A.dtype.to_real()
    if isinstance(t, torch.Tensor):
        t = dense_operand("t", t)
        if t.dim() or t.is_complex() or t.dtype == torch.bool:
            raise checks.bad_shape(
                "t", tuple(t.shape), "a real tensor without dimensions", "Call it for each time."
            )
        return t.to(A.device, dtype)
    if isinstance(t, bool) or not isinstance(t, (int, float)):
        raise ArgumentKindError(
            f"`t` is {checks.describe_kind(t)}; a real number is accepted. For example 1.0."
        )
    return torch.tensor(t, dtype=dtype, device=A.device)


def _advanced(A: SparseTensor, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """exp(t A) x for x (*b, m, n): A = B + mean, so that exp(t A) = exp(t mean) exp(t B)."""
    with torch.no_grad():
        on_diagonal = diagonal(A.detach(), 0, -2, -1)
        mean = on_diagonal.mean(-1, keepdim=True)  # any number would be right
        rest = sum(A.detach().abs(), -2)
        columns = rest - on_diagonal.abs() + (on_diagonal - mean).abs()
        norm = float(mapped_over(columns.abs() * t.abs()).max())
    if not math.isfinite(norm):
        raise ArgumentValueError(
            f"t A has the 1-norm {norm}; finite elements and a finite `t` are accepted. "
            "Find those that are not with torch.isfinite(A.values())."
        )
    require_finite("x", mapped_over(x))
    steps, terms = _plan(norm, A.dtype)
    if steps * terms > _MOST_PRODUCTS:
        raise ArgumentValueError(
            f"t A has the 1-norm {norm:.3g}, which takes {steps * terms:.3g} products; "
            f"{_MOST_PRODUCTS:.3g} are accepted. Pass a smaller `t`."
        )
    mean = mean[..., None]  # (*b, 1, 1)
    factor = torch.exp(t * mean / steps)
    saves = torch.is_grad_enabled() and steps > 1 and not in_torch_func()  # which refuses it
    whole = wants_grad(stored_values(A), x, t)

    def step(y: torch.Tensor) -> torch.Tensor:
        return factor * _series(A, mean, y, t / steps, terms, whole)

    for _ in range(steps):
        x = checkpoint(step, x, use_reentrant=False) if saves else step(x)  # type: ignore[assignment]
    return x


def _plan(norm: float, dtype: torch.dtype) -> tuple[int, int]:
    """Steps into which the time is cut, and terms of each, for the fewest products."""
    reach = _REACH_32 if dtype.to_real() == torch.float32 else _REACH_64
    plans = [
        (max(1, math.ceil(norm / limit)), terms) for terms, limit in zip(_TERMS, reach, strict=True)
    ]
    return min(plans, key=lambda plan: plan[0] * plan[1])


def _series(
    A: SparseTensor, mean: torch.Tensor, x: torch.Tensor, t: torch.Tensor, terms: int, whole: bool
) -> torch.Tensor:
    """The Taylor series of exp(t (A - mean)) x, until two terms in turn no longer count.

    With `whole`, all terms: those that are small for this x are not for others, and a derivative
    has them. For an x with A x = 0, terms of the first derivative grow with the norm of A.
    """
    total, term = x, x
    limit = torch.finfo(x.dtype).eps / 2
    before = x.detach().abs().amax()
    for j in range(1, terms + 1):
        term = (matmul(A, term) - mean * term) * (t / j)
        total = total + term
        if whole:
            continue
        size = term.detach().abs().amax()
        if bool(mapped_over(before + size <= limit * total.detach().abs().amax()).all()):
            break
        before = size
    return total
