"""Contenders that compile: numba, JAX and pydata/sparse. Compiling is not timed."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import scipy.sparse as sp

from benchmarks.contender import DTYPES, Contender, as_numpy
from benchmarks.problems import Problem

_KEPT = Path(__file__).parents[1] / "build" / "benchmarks" / "numba"


@cache
def _numba() -> Any:
    """The loops, each parallel over rows; numba caches them for the next process."""
    os.environ.setdefault("NUMBA_CACHE_DIR", str(_KEPT))
    from benchmarks import loops

    return loops


NUMBA = Contender(
    "numba",
    "numba",
    build=lambda S, p: S,
    dense=as_numpy,
    functions={
        "spmm": lambda A, x: _numba().spmm(A.indptr, A.indices, A.data, x),
        "spmv": lambda A, x: _numba().spmv(A.indptr, A.indices, A.data, x),
        "sddmm": lambda A, g, x: sp.csr_array(
            (_numba().sddmm(A.indptr, A.indices, g, x), A.indices, A.indptr), shape=A.shape
        ),
        "sum_rows": lambda A: _numba().sum_rows(A.indptr, A.data),
        "softmax": lambda A: sp.csr_array(
            (_numba().softmax(A.indptr, A.data), A.indices, A.indptr), shape=A.shape
        ),
        "mm_mean": lambda A, x: _numba().mm_mean(A.indptr, A.indices, A.data, x),
    },
)


def _jax(dtype: str = "float32") -> Any:
    import jax
    from jax.experimental import sparse

    if dtype == "float64":
        jax.config.update("jax_enable_x64", True)
    return SimpleNamespace(jax=jax, sparse=sparse, array=jax.numpy.asarray)


def _jax_dense(a: np.ndarray, p: Problem) -> Any:
    return _jax(p.dtype).array(a, dtype=p.dtype)


def _bcoo(data: Any, indices: Any, shape: tuple[int, int]) -> Any:
    return _jax().sparse.BCOO(
        (data, indices), shape=shape, indices_sorted=True, unique_indices=True
    )


def _jax_matrix(S: Any, p: Problem) -> Any:
    indices = np.stack(S.tocoo().coords, axis=1).astype(np.int32)
    return _bcoo(_jax_dense(S.data, p), _jax(p.dtype).array(indices), S.shape)


def _product(A: Any, x: Any) -> Any:
    return A @ x


@cache
def _jitted(function: Callable[..., Any]) -> Callable[..., Any]:
    return _jax().jax.jit(function)


def _jax_product(A: Any, x: Any) -> Any:
    return _jitted(_product)(A, x).block_until_ready()


def _pulled(A: Any, x: Any, g: Any) -> Any:
    """The product, and both gradients: one compiled function."""
    y, pull = _jax().jax.vjp(lambda data, x: _bcoo(data, A.indices, A.shape) @ x, A.data, x)
    data, dx = pull(g)
    return y, _bcoo(data, A.indices, A.shape), dx


def _jax_step(function: Callable[..., Any]) -> Callable[..., tuple[Any, ...]]:
    return lambda A, x, g: _jax().jax.block_until_ready(_jitted(_pulled)(A, x, g))


def _jax_read(a: Any) -> Any:
    if not hasattr(a, "indices"):
        return np.asarray(a, dtype=np.promote_types(np.float32, a.dtype))
    data = _jax_read(a.data)
    return sp.coo_array((data, tuple(np.asarray(a.indices).T)), shape=a.shape).tocsr()


JAX = Contender(
    "JAX BCOO",
    "jax",
    build=_jax_matrix,
    dense=_jax_dense,
    functions={"spmm": _jax_product, "spmv": _jax_product},
    read=_jax_read,
    vjp=_jax_step,
    dtypes=DTYPES,
)


def _pydata_matrix(S: Any, p: Problem) -> Any:
    import sparse

    if S.format == "coo":
        return sparse.COO.from_scipy_sparse(S)
    return sparse.GCXS.from_scipy_sparse(S)


def _pydata_read(a: Any) -> Any:
    if isinstance(a, np.ndarray):
        return a
    return a.todense() if a.ndim == 1 else a.to_scipy_sparse().tocsr()


def _pydata_coalesce(C: Any, p: Problem) -> Callable[[], Any]:
    import sparse

    coords = np.stack(C.coords)
    return lambda: sparse.COO(coords, C.data, shape=C.shape)


PYDATA = Contender(
    "pydata/sparse",
    "sparse",
    build=_pydata_matrix,
    dense=as_numpy,
    functions={
        "spmm": operator.matmul,
        "spmv": operator.matmul,
        "spgemm": operator.matmul,
        "coalesce": _pydata_coalesce,
        "sin": np.sin,
        "add": operator.add,
        "times": operator.mul,
        "scale": operator.mul,
        "sum_rows": lambda A: A.sum(axis=1),
        "sum_columns": lambda A: A.sum(axis=0),
        "amax_rows": lambda A: A.max(axis=1),
    },
    read=_pydata_read,
)
