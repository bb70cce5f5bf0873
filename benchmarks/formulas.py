"""What SciPy and NumPy make of the operands, for the operations that take more than a line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp

_SLOPE = 0.2  # of leaky_relu in graph attention
_TIE = 1e-6  # relative distance within which rounding may choose either of two products


def _rows(S: Any) -> np.ndarray:
    """The row of each element."""
    return np.repeat(np.arange(S.shape[0]), np.diff(S.indptr))


def _with(S: Any, val: np.ndarray) -> sp.csr_array:
    """The matrix on the same pattern with these values."""
    return sp.csr_array((val, S.indices, S.indptr), shape=S.shape)


def _maxima(S: Any, val: np.ndarray) -> np.ndarray:
    """The largest of the values in each row of S; 0 where it has none."""
    found = np.zeros(S.shape[0])
    filled = np.flatnonzero(np.diff(S.indptr))
    found[filled] = np.maximum.reduceat(val, S.indptr[filled])
    return found


def kron(p: Any) -> tuple[Any, ...]:
    """A block of `small` for each element."""
    return (sp.kron(p.S, p.small, format="csr"),)


def sampled(S: Any, x: np.ndarray, g: np.ndarray) -> sp.csr_array:
    """g x^T at the elements of S, a block of elements at a time."""
    row, col = _rows(S), S.indices
    val = np.empty(S.nnz)
    for at in range(0, S.nnz, 65_536):
        part = slice(at, at + 65_536)
        val[part] = np.einsum("ij,ij->i", g[row[part]], x[col[part]])
    return _with(S, val)


def step(p: Any) -> tuple[Any, ...]:
    """A x and its gradients."""
    return p.S @ p.x, sampled(p.S, p.x, p.g), p.S.T @ p.g


def step_bsr(p: Any) -> tuple[Any, ...]:
    """The same, with a gradient for every element of a block."""
    return p.filled @ p.x, sampled(p.filled, p.x, p.g), p.filled.T @ p.g


def amax_specified(p: Any) -> tuple[Any, ...]:
    """The largest element of each row, leaving out unspecified ones."""
    S = p.S
    return (_maxima(S, S.data),)


def softmax(p: Any) -> tuple[Any, ...]:
    """exp(a) / sum of exp(a) along the rows."""
    S = p.S
    row = _rows(S)
    grown = np.exp(S.data - _maxima(S, S.data)[row])
    return (_with(S, grown / np.bincount(row, grown)[row]),)


def softmax_sizes(p: Any) -> tuple[Any, ...]:
    """Of an exponential: that of its argument, a difference of two elements, besides its own."""
    (y,) = softmax(p)
    return (y * (1 + 2 * abs(p.S.data).max()),)


def softmax_step(p: Any, sign: int = -1) -> tuple[Any, ...]:
    """The same and its gradient y (g - sum of y g) for the cotangent g = y."""
    (y,) = softmax(p)
    inner = np.bincount(_rows(y), y.data**2)[_rows(y)]
    return y, _with(y, y.data * (y.data + sign * inner))


def softmax_step_sizes(p: Any) -> tuple[Any, ...]:
    """Those of the softmax, and twice that for the products of two."""
    y, grad = softmax_step(p, sign=1)
    reach = 1 + 2 * abs(p.S.data).max()
    return y * reach, grad * 2 * reach


def attention(p: Any) -> tuple[Any, ...]:
    """softmax(Q K^T / sqrt(k)) V over the elements of each row of the mask."""
    return (_weights(p) @ p.value,)


def attention_sizes(p: Any) -> tuple[Any, ...]:
    """Of an exponential, that of its argument besides its own."""
    return (_weights(p) @ abs(p.value) * _reach(p),)


def attention_step(p: Any) -> tuple[Any, ...]:
    """The same and the gradients of Q, K and V for the cotangent g."""
    weights, factor = _weights(p), p.query.shape[1] ** -0.5
    part = sampled(p.mask, p.value, p.g).data
    mean = np.bincount(_rows(weights), weights.data * part, weights.shape[0])
    scores = _with(weights, weights.data * (part - mean[_rows(weights)]) * factor)
    return weights @ p.value, scores @ p.x, scores.T @ p.query, weights.T @ p.g


def attention_step_sizes(p: Any) -> tuple[Any, ...]:
    """The same of absolute values and sums for differences."""
    weights, factor = _weights(p), p.query.shape[1] ** -0.5
    part = sampled(p.mask, abs(p.value), abs(p.g)).data
    mean = np.bincount(_rows(weights), weights.data * part, weights.shape[0])
    scores = _with(weights, weights.data * (part + mean[_rows(weights)]) * factor)
    found = (
        weights @ abs(p.value),
        scores @ abs(p.x),
        scores.T @ abs(p.query),
        weights.T @ abs(p.g),
    )
    return tuple(size * _reach(p) for size in found)


def _weights(p: Any) -> sp.csr_array:
    scores = sampled(p.mask, p.x, p.query).data * p.query.shape[1] ** -0.5
    row = _rows(p.mask)
    grown = np.exp(scores - _maxima(p.mask, scores)[row])
    return _with(p.mask, grown / np.bincount(row, grown)[row])


def _reach(p: Any) -> float:
    """A difference of two scores, made of rounded products, is the argument."""
    sizes = sampled(p.mask, abs(p.x), abs(p.query)).data
    return 1 + 2 * sizes.max() * p.query.shape[1] ** -0.5


def additive_attention(p: Any) -> tuple[Any, ...]:
    """Graph attention: softmax of leaky_relu(left_i + right_j) times x, for each head."""
    return (_stacked(w @ x for w, x, _ in _heads(p)),)


def additive_attention_sizes(p: Any) -> tuple[Any, ...]:
    """Of an exponential, that of its argument besides its own."""
    return (_stacked(w @ abs(x) for w, x, _ in _heads(p)) * _reach_of_sums(p),)


def additive_attention_step(p: Any) -> tuple[Any, ...]:
    """The same and the gradients of left, right and x for the cotangent g."""
    found = []
    for head, (w, x, g) in enumerate(_heads(p)):
        part, row = sampled(p.mask, x, g).data, _rows(w)
        change = w.data * (part - np.bincount(row, w.data * part, w.shape[0])[row])
        change *= np.where(_sums(p, head) > 0, 1, _SLOPE)
        found.append((w @ x, *_by_ends(w, change), w.T @ g))
    return _joined(found)


def additive_attention_step_sizes(p: Any) -> tuple[Any, ...]:
    """The same of absolute values and sums for differences, without the slope.

    The gradient of left may be a difference of two sums over entries whose score is above zero.
    """
    found = []
    for w, x, g in _heads(p):
        part, row = sampled(p.mask, abs(x), abs(g)).data, _rows(w)
        change = w.data * (part + np.bincount(row, w.data * part, w.shape[0])[row])
        found.append((w @ abs(x), *_by_ends(w, change), w.T @ abs(g)))
    return tuple(size * _reach_of_sums(p) for size in _joined(found))


def _heads(p: Any) -> Any:
    """Weights, x and g of each head."""
    heads = p.left.shape[1]
    of_heads = (np.split(dense, heads, axis=1) for dense in (p.x, p.g))
    for head, (x, g) in enumerate(zip(*of_heads, strict=True)):
        sums, row = _sums(p, head), _rows(p.mask)
        scores = np.where(sums > 0, sums, _SLOPE * sums)
        grown = np.exp(scores - _maxima(p.mask, scores)[row])
        yield _with(p.mask, grown / np.bincount(row, grown)[row]), x, g


def _sums(p: Any, head: int) -> np.ndarray:
    return p.left[_rows(p.mask), head] + p.right[p.mask.indices, head]


def _by_ends(S: Any, val: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sums of the values over rows, and over columns."""
    m, n = S.shape
    return np.bincount(_rows(S), val, m), np.bincount(S.indices, val, n)


def _stacked(results: Any) -> np.ndarray:
    """(rows, columns of a head) of each head as (rows, heads, columns of a head)."""
    return np.stack(list(results), axis=1)


def _joined(found: Any) -> tuple[np.ndarray, ...]:
    """Result and gradients of each head: those of x stand side by side."""
    out, left, right, x = zip(*found, strict=True)
    return _stacked(out), np.stack(left, 1), np.stack(right, 1), np.concatenate(x, 1)


def _reach_of_sums(p: Any) -> float:
    """A difference of two scores, sums of two numbers, is the argument."""
    return 1 + 2 * (abs(p.left).max() + abs(p.right).max())


def mm_mean(p: Any) -> tuple[Any, ...]:
    """A x divided by the number of elements of each row."""
    S = p.S
    return (S @ p.x / np.maximum(np.diff(S.indptr), 1)[:, None],)


def mm_amax(p: Any) -> tuple[Any, ...]:
    """The largest product instead of the sum in A x."""
    S = p.S
    found = [_maxima(S, S.data * column[S.indices]) for column in p.x.T]
    return (np.stack(found, axis=1),)


def mm_amax_step(p: Any) -> tuple[Any, ...]:
    """The same with its gradients: of each maximum, at the product that it is."""

    def weigh(products: np.ndarray, top: np.ndarray, row: np.ndarray, g: np.ndarray) -> np.ndarray:
        return np.where(products == top[row], g[row], 0)

    return _of_maxima(p, weigh, lambda factor: factor)


def mm_amax_step_sizes(p: Any) -> tuple[Any, ...]:
    """Infinite for gradients that go to one of several products nearly as large as each other."""

    def weigh(products: np.ndarray, top: np.ndarray, row: np.ndarray, g: np.ndarray) -> np.ndarray:
        near = products >= (top - _TIE * abs(top))[row]
        tied = near & (np.bincount(row, near) > 1)[row]
        return np.where(tied, np.inf, np.where(near, abs(g[row]), 0))

    return _of_maxima(p, weigh, abs)


def _of_maxima(
    p: Any, weigh: Callable[..., np.ndarray], size: Callable[[np.ndarray], np.ndarray]
) -> tuple[Any, ...]:
    """Maxima, and sums of what `weigh` gives each product times the factors of that product."""
    S, x, g = p.S, p.x, p.g
    row, col = _rows(S), S.indices
    y, dA, dx = np.empty(g.shape), np.zeros(S.nnz), np.empty(x.shape)
    for j in range(x.shape[1]):
        factor = x[col, j]
        y[:, j] = _maxima(S, S.data * factor)
        weight = weigh(S.data * factor, y[:, j], row, g[:, j])
        dA += weight * size(factor)
        dx[:, j] = np.bincount(col, weight * size(S.data), S.shape[1])
    return y, _with(S, dA), dx
