"""Plain loops with numba: parallel over rows, with sums in any order.

Imported only where numba is installed.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

_compiled = numba.njit(parallel=True, fastmath=True, cache=True)


@_compiled
def spmm(ptr: Any, col: Any, val: Any, x: Any) -> Any:
    m, k = len(ptr) - 1, x.shape[1]
    y = np.empty((m, k), x.dtype)
    for i in numba.prange(m):
        y[i, :] = 0
        for e in range(ptr[i], ptr[i + 1]):
            a, j = val[e], col[e]
            for c in range(k):
                y[i, c] += a * x[j, c]
    return y


@_compiled
def mm_mean(ptr: Any, col: Any, val: Any, x: Any) -> Any:
    m, k = len(ptr) - 1, x.shape[1]
    y = np.empty((m, k), x.dtype)
    for i in numba.prange(m):
        y[i, :] = 0
        factor = x.dtype.type(1 / max(ptr[i + 1] - ptr[i], 1))
        for e in range(ptr[i], ptr[i + 1]):
            a, j = val[e] * factor, col[e]
            for c in range(k):
                y[i, c] += a * x[j, c]
    return y


@_compiled
def spmv(ptr: Any, col: Any, val: Any, x: Any) -> Any:
    m = len(ptr) - 1
    y = np.empty(m, x.dtype)
    for i in numba.prange(m):
        s = x.dtype.type(0)
        for e in range(ptr[i], ptr[i + 1]):
            s += val[e] * x[col[e]]
        y[i] = s
    return y


@_compiled
def sddmm(ptr: Any, col: Any, g: Any, x: Any) -> Any:
    m, k = g.shape
    val = np.empty(len(col), x.dtype)
    for i in numba.prange(m):
        for e in range(ptr[i], ptr[i + 1]):
            s, j = x.dtype.type(0), col[e]
            for c in range(k):
                s += g[i, c] * x[j, c]
            val[e] = s
    return val


@_compiled
def sum_rows(ptr: Any, val: Any) -> Any:
    m = len(ptr) - 1
    y = np.empty(m, val.dtype)
    for i in numba.prange(m):
        s = val.dtype.type(0)
        for e in range(ptr[i], ptr[i + 1]):
            s += val[e]
        y[i] = s
    return y


@_compiled
def softmax(ptr: Any, val: Any) -> Any:
    out = np.empty(len(val), val.dtype)
    for i in numba.prange(len(ptr) - 1):
        first, last = ptr[i], ptr[i + 1]
        top = val.dtype.type(-np.inf)
        for e in range(first, last):
            top = max(top, val[e])
        s = val.dtype.type(0)
        for e in range(first, last):
            out[e] = np.exp(val[e] - top)
            s += out[e]
        for e in range(first, last):
            out[e] /= s
    return out
