"""Expected results of solvers: residuals of systems, steps of an iteration, determinants.

`p` is a problem, in float64 except for bounds. Where a residual, for example, is compared and not
the result of an operation, a function computes it from the problem and the results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp

Results = tuple[Any, ...]

RTOL = 1e-6
"""The residual that iterative solvers stop at, relative to the norm of the right-hand side."""
STEPS = 50
"""How many steps of an iteration are timed where it does not run to a residual."""
_DRIFT = 1e-3  # of RTOL: how far the residual that an iteration updates may be from b - A x
_DIRECT = 64  # units of rounding in the backward error of a direct solver
_ITERATED = 1e6  # units of rounding in a result of STEPS steps
_INVERTED = 1e4  # units of rounding in elements of an inverse
_PROBED = 4  # columns of an inverse that are compared


def zeros(count: int) -> Callable[[Any], Results]:
    """Expected errors, so many of them: 0."""
    return lambda p: (np.zeros(1),) * count


def at_most(units: float, count: int) -> Callable[[Any, Results], Results]:
    """Bounds of that many errors, in units of rounding."""
    return lambda p, wanted: (np.full(1, units * _eps(p)),) * count


def residual(p: Any, found: Results) -> Results:
    """Norm of b - A x over that of b."""
    (x,) = found
    left = np.linalg.norm(p.column - p.S @ x.astype(np.float64))
    return (np.full(1, left / np.linalg.norm(p.column)),)


def tolerated(p: Any, wanted: Results) -> Results:
    return (np.full(1, RTOL * (1 + _DRIFT)),)


def steps(p: Any) -> Results:
    """x of conjugate gradients after STEPS steps from zero."""
    return (_conjugate_gradients(p.S, p.column),)


def steps_and_gradients(p: Any) -> Results:
    """The same with both gradients; that of b takes as many steps from the cotangent."""
    x = _conjugate_gradients(p.S, p.column)
    solution = _conjugate_gradients(p.S, p.covector)
    return x, _outer(p.S, solution, x), solution


def steps_bounds(p: Any, wanted: Results) -> Results:
    return tuple(_like(a, _ITERATED * _eps(p) * abs(a).max()) for a in wanted)


def backward_error(p: Any, found: Results) -> Results:
    """|b - A x| over |A| |x| + |b|, in largest norms."""
    return (_backward_error(p.S, found[0], p.column),)


def backward_errors(p: Any, found: Results) -> Results:
    """The same of x, of the gradient of b, and how far that of A is from their product."""
    x, dA, db = found
    x, db = x.astype(np.float64), db.astype(np.float64)
    wanted = _outer(p.S, db, x)
    off = abs(dA.astype(np.float64) - wanted).max() / (abs(db).max() * abs(x).max())
    return (
        _backward_error(p.S, x, p.column),
        np.full(1, off),
        _backward_error(p.S.T, db, p.covector),
    )


def substitution_error(p: Any, found: Results) -> Results:
    """The largest |b - A x| over |A| |x| + |b|, element by element."""
    x = found[0].astype(np.float64)
    size = abs(p.S) @ abs(x) + abs(p.g)
    return (np.full(1, (abs(p.g - p.S @ x) / size).max()),)


def substitution_bound(p: Any, wanted: Results) -> Results:
    """Substitution is backward stable row by row (Higham, 2002, theorem 8.5)."""
    return (np.full(1, (np.diff(p.S.indptr).max() + 2) * _eps(p)),)


def logdet(p: Any) -> Results:
    """log |A|, the sum of its gradient times A, and columns of the inverse where A has elements."""
    from scipy.sparse.linalg import splu

    made = splu(p.S.tocsc())
    units = np.zeros((p.S.shape[0], _PROBED))
    at = _probed(p.S)
    units[at, range(_PROBED)] = 1
    value = np.log(abs(made.U.diagonal())).sum()
    inverse = made.solve(units)
    return np.full(1, value), np.full(1, float(p.S.shape[0])), _at_columns(p.S, inverse, at)


def logdet_compared(p: Any, found: Results) -> Results:
    """The cotangent is the value itself, so that the gradient is that times A^-T."""
    value, gradient = found
    G = gradient.astype(np.float64).tocsr() / float(value)  # its rows are columns of the inverse
    at = _probed(p.S)
    rows = np.ascontiguousarray(G[at].toarray().T)
    trace = float(G.multiply(p.S).sum())
    return np.full(1, float(value)), np.full(1, trace), _at_columns(p.S, rows, at)


def logdet_bounds(p: Any, wanted: Results) -> Results:
    """Traces and logarithms are sums over all rows."""
    value, trace, inverse = wanted
    unit = _INVERTED * _eps(p)
    return abs(value) * unit, trace * unit, np.full(inverse.shape, unit * abs(inverse).max())


def _probed(S: Any) -> np.ndarray:
    return np.linspace(0, S.shape[0] - 1, _PROBED).astype(int)


def _at_columns(S: Any, dense: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Columns of a dense matrix where those rows of S transposed have elements, else 0."""
    return dense * (S[:, at].toarray() != 0)


def _conjugate_gradients(A: Any, b: np.ndarray) -> np.ndarray:
    x, r, direction = np.zeros_like(b), b.copy(), b.copy()
    square = r @ r
    for _ in range(STEPS):
        moved = A @ direction
        alpha = square / (direction @ moved)
        x += alpha * direction
        r -= alpha * moved
        before, square = square, r @ r
        direction = r + (square / before) * direction
    return x


def _outer(S: Any, solution: np.ndarray, x: np.ndarray) -> Any:
    """-l x^T at the elements of S: the gradient of A, where A^T l is the cotangent of x."""
    row, col = S.tocoo().coords
    return sp.csr_array((-solution[row] * x[col], S.indices, S.indptr), shape=S.shape)


def _backward_error(A: Any, x: np.ndarray, b: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    size = abs(A).sum(axis=1).max() * abs(x).max() + abs(b).max()
    return np.full(1, abs(b - A @ x).max() / size)


def _like(a: Any, value: float) -> Any:
    """The same number at all elements."""
    if not sp.issparse(a):
        return np.full(a.shape, value)
    return sp.csr_array((np.full(a.nnz, value), a.indices, a.indptr), shape=a.shape)


def _eps(p: Any) -> float:
    return float(np.finfo(p.dtype).eps)


DIRECT = at_most(_DIRECT, 1)
DIRECT_STEP = at_most(_DIRECT, 3)
