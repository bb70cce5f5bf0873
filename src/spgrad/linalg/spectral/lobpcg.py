"""Some eigenvalues and eigenvectors of a symmetric matrix: lobpcg, with its derivative."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import _lobpcg as theirs

from spgrad.core import checks
from spgrad.core.pattern import Pattern
from spgrad.core.tensor import SparseTensor
from spgrad.errors import ArgumentKindError, ArgumentValueError, StateError, UnsupportedError
from spgrad.linalg.solvers.units import PencilUnits
from spgrad.linalg.spectral.repeated import Told, quotients
from spgrad.lowering.coalesce import without_repeats
from spgrad.lowering.operands import is_sparse, require_int, require_rank, sparse_operand
from spgrad.lowering.products import spmm
from spgrad.ops.products.broadcast import flat
from spgrad.ops.products.named.einsum import require_operands
from spgrad.public import public_op
from spgrad.torch_protocol.autocast import in_given_precision
from spgrad.torch_protocol.func_transforms import Derived

MOST_STEPS = 10_000
"""Conjugate gradient steps that a derivative of eigenvectors may take."""


class Matrix(NamedTuple):
    """A sparse matrix by its pattern, or a dense one (None); values are passed separately."""

    pattern: Pattern | None

    def times(self, vals: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """The product with a dense matrix."""
        return vals @ x if self.pattern is None else spmm.spmm(vals, x, self.pattern)

    def sampled(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """x y^T at the elements of the matrix, made symmetric, as its values."""
        left, right = torch.cat([x, y], 1) / 2, torch.cat([y, x], 1)
        if self.pattern is None:
            return left @ right.mT
        return spmm.sddmm(left, right, self.pattern)


class Problem(NamedTuple):
    """A x = e B x, solved for the largest or smallest e."""

    A: Matrix
    B: Matrix | None  # None: the identity
    largest: bool
    solve: Callable[[], tuple[torch.Tensor, torch.Tensor]]


@public_op
@in_given_precision
def lobpcg(
    A: torch.Tensor,
    k: int | None = None,
    B: torch.Tensor | None = None,
    X: torch.Tensor | None = None,
    n: int | None = None,
    iK: torch.Tensor | None = None,
    niter: int | None = None,
    tol: float | None = None,
    largest: bool | None = None,
    method: str | None = None,
    tracker: Any = None,
    ortho_iparams: Mapping[str, int] | None = None,
    ortho_fparams: Mapping[str, float] | None = None,
    ortho_bparams: Mapping[str, bool] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The k largest or smallest eigenvalues E, with vectors X: A X = B X diag(E), X^T B X = 1.

    Runs `torch.lobpcg` (Knyazev, 2001; Stathopoulos and Wu, 2002) on products with the sparse
    operands, and adds the derivative.

    Args:
        A: Sparse symmetric (m, m) of any layout, or dense if B is sparse.
        k: Number of eigenvalues; by default that of the columns of X, or 1.
        B: Sparse or dense symmetric positive definite (m, m), or None for the identity.
        X: Dense (m, n), the eigenvectors to start from; by default random.
        n: Columns of a random X; by default k.
        iK: Sparse or dense (m, m) preconditioner, or None.
        niter: Most iterations, 1000 by default; -1 or 0, as in torch, for no bound.
        tol: Relative residual to stop at; by default the square root of torch.finfo(dtype).eps.
        largest: False for the smallest eigenvalues.
        method: "ortho" (the default) or "basic".
        tracker: Called with the state of the iteration in each step, as torch documents.
        ortho_iparams: Options of "ortho", as torch documents.
        ortho_fparams: Likewise.
        ortho_bparams: Likewise.

    Returns:
        E (k,) and X (m, k), dense.

    Gradient:
        Of the eigenvalues: x x^T at the elements of A, -e x x^T at those of B, for each pair. Of
        the eigenvectors: the part of the k found vectors in closed form, and the rest by conjugate
        gradients on (A - e B), restricted to the complement of the found vectors, where it is
        definite. Vectors of equal eigenvalues are refused, unless the loss is the same for every
        basis of these vectors. As in torch, A and B are taken as the mean with their transposes.
        Only the eigenvalues have a second derivative. The gradient is as accurate as the pairs:
        lower `tol` for more accuracy.

    Cost:
        O(nse n) for each iteration, O(m n) memory. Gradients: O((nse + m) k), for eigenvectors in
        each step of conjugate gradients.

    Raises:
        TypeError: Neither A nor B is sparse, or an operand is not a tensor.
        ValueError: Sizes, dtypes or devices don't fit, m is less than 3 n, or k is not between 1
            and n; the dtype is other than float32 and float64.
        RuntimeError: In the backward: the gradient of the eigenvectors did not converge, or the
            vectors of repeated eigenvalues are differentiated.
        NotImplementedError: A is a batch or has dense dimensions.

    Example:
        >>> A = spgrad.from_dense(torch.diag(torch.tensor([1.0, 2.0, 5.0]))).requires_grad_()
        >>> E, X = spgrad.lobpcg(A, k=1)
        >>> E.sum().backward()
        >>> torch.allclose(A.grad.values(), torch.tensor([0.0, 0.0, 1.0]), atol=1e-3)
        True
    """
    _require_options(niter, tol, method, tracker)
    given = {"A": A, "B": B, "X": X, "iK": iK}
    named = [(name, x) for name, x in given.items() if x is not None or name == "A"]
    parts = dict(zip([name for name, _ in named], _operands(named), strict=True))
    columns = _require_fit(parts, k, n)
    k = columns if k is None else k
    first, second = parts["A"], parts.get("B")
    vals = _values(first), None if second is None else _values(second)
    units = PencilUnits.of(*vals)
    detached = {name: _detached(x) for name, x in parts.items()}
    for name, unit in (("A", units.A), ("B", units.M)):
        if unit is not None:
            detached[name] = _divided(detached[name], unit)

    def solve() -> tuple[torch.Tensor, torch.Tensor]:
        options = (niter, tol, largest, method, tracker, ortho_iparams, ortho_fparams)
        a, b, x, ik = (detached.get(name) for name in given)
        # torch's inner function, because torch.lobpcg would dispatch to this one
        return theirs._lobpcg(a, k, b, x, n, ik, *options, ortho_bparams)  # type: ignore[arg-type]

    problem = Problem(
        Matrix(_pattern(first)),
        None if second is None else Matrix(_pattern(second)),
        largest is None or largest,
        solve,
    )
    E, Y = _Lobpcg.apply(*units.inside(*vals), problem)  # type: ignore[misc]
    return units.outside(E, Y)


def _require_options(niter: Any, tol: Any, method: Any, tracker: Any) -> None:
    if niter is not None:
        checks.require_number("niter", niter, "-1 stands for no bound.", least=-1, whole=True)
    if tol is not None:
        most = torch.finfo(torch.float64).max
        checks.require_number("tol", tol, "None takes the default.", least=0, most=most)
    if method not in (None, "ortho", "basic"):
        raise ArgumentValueError(
            f"`method` is {method!r}; 'ortho', 'basic' and None are accepted. None is 'ortho'."
        )
    if tracker is not None and not callable(tracker):
        raise ArgumentKindError(
            f"`tracker` is {checks.describe_kind(tracker)}; a function or None is accepted. It is "
            "called with the state of the iteration."
        )


def _operands(named: list[tuple[str, Any]]) -> list[torch.Tensor]:
    ready = [
        (name, without_repeats(sparse_operand(name, x)) if is_sparse(x) else x) for name, x in named
    ]
    return require_operands(ready)


def _require_fit(parts: dict[str, torch.Tensor], k: int | None, n: int | None) -> int:
    """Refuses what the iteration can't run on; returns the number of columns that it runs with."""
    for name, x in parts.items():
        if name in ("A", "B") and is_sparse(x) and x.dim() > 2:
            raise UnsupportedError(
                f"`{name}` is a batch of shape {tuple(x.shape)}; one matrix is accepted. Call it "
                "once for each item."
            )
        require_rank(name, x, 2, "Call it once for each item of a batch.")
    A = parts["A"]
    m = A.shape[0]
    if A.dtype not in (torch.float32, torch.float64):
        raise ArgumentValueError(
            f"`A` has dtype {checks.short(A.dtype)}; float32 and float64 are accepted. Convert it "
            "with A.to(torch.float32)."
        )
    for name, x in parts.items():
        if name != "X" and tuple(x.shape) != (m, m):
            accepted = "a square matrix" if name == "A" else f"{(m, m)}, the shape of `A`,"
            raise checks.bad_shape(name, tuple(x.shape), accepted, "Check the sizes.")
    start = parts.get("X")
    k = k if k is None else require_int("k", k)
    columns = require_int("n", n) if n is not None else 1 if k is None else k
    if start is not None:
        columns = start.shape[1]
        if start.shape[0] != m:
            raise checks.bad_shape(
                "X", tuple(start.shape), f"({m}, n)", "It holds the vectors to start from."
            )
    if m < 3 * columns:
        raise ArgumentValueError(
            f"`A` has {m} rows for {columns} column(s) of `X`; 3 rows or more for each are "
            "accepted. Use torch.linalg.eigh of A.to_dense() for so small a matrix."
        )
    if not 1 <= (columns if k is None else k) <= columns:
        raise ArgumentValueError(
            f"`k` is {k} for {columns} column(s) of `X`; ints from 1 to {columns} are accepted. "
            "Raise `n`, or give `X` more columns."
        )
    return columns


def _pattern(x: torch.Tensor) -> Pattern | None:
    return x._pattern if isinstance(x, SparseTensor) else None


def _values(x: torch.Tensor) -> torch.Tensor:
    return flat(x) if isinstance(x, SparseTensor) else x


def _detached(x: torch.Tensor) -> torch.Tensor:
    return SparseTensor(x._vals.detach(), x._pattern) if isinstance(x, SparseTensor) else x.detach()


def _divided(x: torch.Tensor, unit: torch.Tensor) -> torch.Tensor:
    return SparseTensor(x._vals / unit, x._pattern) if isinstance(x, SparseTensor) else x / unit


class _Lobpcg(Derived):
    """E and X from the values of A and B.

    With S = X^T g for the cotangent g of X, and h that of E, a change of the pair (e, x) is

        de = x^T (dA - e dB) x,
        dx = sum_j x_j x_j^T (dA - e dB) x / (e - e_j) - x (x^T dB x) / 2

    over all other eigenvectors x_j. With w = x h + sum_j x_j (x_j^T g) / (e - e_j), the gradient of
    A is the sum of w x^T over the pairs, that of B the sum of -e w x^T - (x^T g) x x^T / 2.
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, a: torch.Tensor, b: torch.Tensor | None, problem: Problem
    ) -> tuple[torch.Tensor, torch.Tensor]:
        E, X = problem.solve()
        E, X = E.clone(), X.clone(memory_format=torch.contiguous_format)
        ctx.save_for_backward(a, b, E, X)
        ctx.problem = problem
        ctx.set_materialize_grads(False)
        return E, X

    @staticmethod
    @in_given_precision
    def backward(  # type: ignore[override]
        ctx: Any, h: torch.Tensor | None, g: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        a, b, E, X = ctx.saved_tensors
        problem: Problem = ctx.problem
        W = X * h if h is not None else torch.zeros_like(X)
        own = None
        if g is not None:
            S = X.mT @ g
            own = S.diagonal()
            weights = quotients(S.detach(), E, E.abs().max(), Told("lobpcg"))
            W = W + X @ (S * weights) + _Rest.apply(g, a, b, E, X, problem)
        grad_a = grad_b = None
        if ctx.needs_input_grad[0]:
            grad_a = problem.A.sampled(W, X)
        if problem.B is not None and ctx.needs_input_grad[1]:
            right = -W * E if own is None else -W * E - X * own / 2
            grad_b = problem.B.sampled(right, X)
        return grad_a, grad_b, None


class _Rest(Derived):
    """Column by column, the sum over the eigenvectors not found of x_j (x_j^T g) / (e - e_j)."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        g: torch.Tensor,
        a: torch.Tensor,
        b: torch.Tensor | None,
        E: torch.Tensor,
        X: torch.Tensor,
        problem: Problem,
    ) -> torch.Tensor:
        return _solved(g, a, b, E, X, problem)

    @staticmethod
    @in_given_precision
    def backward(ctx: Any, w: torch.Tensor) -> Any:  # type: ignore[override]
        raise UnsupportedError(
            "a second derivative of the eigenvectors was asked for; that of the eigenvalues, and "
            "first derivatives, are accepted. Use torch.linalg.eigh of A.to_dense().",
            function="lobpcg",
        )


def _solved(
    g: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor | None,
    E: torch.Tensor,
    X: torch.Tensor,
    problem: Problem,
) -> torch.Tensor:
    """Conjugate gradients for all columns at once, each with its own shift e.

    On the complement of the found eigenvectors +-(A - e B) is positive definite: the found are the
    largest, or the smallest. P projects on the complement; P P^T preconditions the residuals.
    """
    sign = 1 if problem.largest else -1
    BX = X if problem.B is None or b is None else problem.B.times(b, X)

    def outside(y: torch.Tensor) -> torch.Tensor:  # P y
        return y - X @ (BX.mT @ y)

    def dual(r: torch.Tensor) -> torch.Tensor:  # P^T r
        return r - BX @ (X.mT @ r)

    def shifted(y: torch.Tensor) -> torch.Tensor:  # +-(e B - A) y
        By = y if problem.B is None or b is None else problem.B.times(b, y)
        return dual(sign * (By * E - problem.A.times(a, y)))

    r = dual(sign * g)
    y = torch.zeros_like(r)
    bound = torch.finfo(r.dtype).eps ** 0.75 * g.norm(dim=0)
    z = outside(r)
    p = z
    rz = (r * z).sum(0)
    for _ in range(min(MOST_STEPS, 10 * r.shape[0])):
        active = r.norm(dim=0) > bound
        if not bool(active.any()):
            return outside(y)
        Ap = shifted(p)
        curvature = (p * Ap).sum(0)
        if bool((active & (curvature <= 0)).any()):  # an eigenvalue further out was not found
            break
        step = torch.where(active, rz / torch.where(active, curvature, 1), 0)
        y, r = y + step * p, dual(r - step * Ap)
        z = outside(r)
        before, rz = rz, (r * z).sum(0)
        p = z + torch.where(active, rz / torch.where(active, before, 1), 0) * p
    left = float((r.norm(dim=0) / g.norm(dim=0).clamp(min=torch.finfo(r.dtype).tiny)).max())
    raise StateError(
        f"the gradient of the eigenvectors did not converge (relative residual {left:.1e}); "
        "eigenvalues that differ from all others are accepted. Raise `k` until a gap follows, or "
        "lower `tol`.",
        function="lobpcg",
    )
