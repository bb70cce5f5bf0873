"""How each library converts, joins and rearranges: functions of their own matrices."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from operator import methodcaller
from typing import Any

import scipy.sparse as sp
import torch

Functions = Mapping[str, Callable[..., Any]]

_SIDE = (2, 2)  # blocks of BSR


def _from_dense(x: torch.Tensor) -> Any:
    import spgrad

    return spgrad.from_dense(x)


SPGRAD: Functions = {
    "to_csc": methodcaller("to_sparse_csc"),
    "to_coo": methodcaller("to_sparse"),
    "from_coo": methodcaller("to_sparse_csr"),
    "to_bsr": methodcaller("to_sparse_bsr", _SIDE),
    "from_bsr": methodcaller("to_sparse_csr"),
    "to_dense": methodcaller("to_dense"),
    "from_dense": _from_dense,
    "transpose": lambda A: A.T.to_sparse_csr(),
    "transpose_coo": methodcaller("t"),
    "cat_rows": lambda A, B: torch.cat([A, B]),
    "cat_columns": lambda A, B: torch.cat([A, B], 1),
    "tril": torch.tril,
    "flip_rows": methodcaller("flip", 0),
    "flip_columns": methodcaller("flip", 1),
    "kron": torch.kron,
}

TORCH_CSR: Functions = {
    "to_csc": methodcaller("to_sparse_csc"),
    "to_coo": methodcaller("to_sparse"),
    "to_bsr": methodcaller("to_sparse_bsr", _SIDE),
    "to_dense": methodcaller("to_dense"),
    "from_dense": methodcaller("to_sparse_csr"),
    "transpose": lambda A: A.t().to_sparse_csr(),
}

TORCH_COO: Functions = {
    "from_coo": methodcaller("to_sparse_csr"),
    "to_dense": methodcaller("to_dense"),
    "transpose_coo": lambda A: A.t().coalesce(),
    "cat_rows": lambda A, B: torch.cat([A, B]),
    "cat_columns": lambda A, B: torch.cat([A, B], 1).coalesce(),
}

SCIPY: Functions = {
    "to_csc": methodcaller("tocsc"),
    "to_coo": methodcaller("tocoo"),
    "from_coo": methodcaller("tocsr"),
    "to_bsr": methodcaller("tobsr", _SIDE),
    "from_bsr": methodcaller("tocsr"),
    "to_dense": methodcaller("toarray"),
    "from_dense": sp.csr_array,
    "transpose": lambda A: A.T.tocsr(),
    "transpose_coo": lambda C: C.T.tocsr().tocoo(),  # in order
    "cat_rows": lambda A, B: sp.vstack([A, B], format="csr"),
    "cat_columns": lambda A, B: sp.hstack([A, B], format="csr"),
    "tril": lambda A: sp.tril(A, format="csr"),
    "flip_rows": operator.itemgetter(slice(None, None, -1)),
    "flip_columns": operator.itemgetter((slice(None), slice(None, None, -1))),
    "kron": lambda A, B: sp.kron(A, B, format="csr"),
}
