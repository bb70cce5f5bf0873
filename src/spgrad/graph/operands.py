"""Checks the operands of functions of graphs."""

from __future__ import annotations

from typing import Any

from spgrad.core import checks
from spgrad.core.tensor import SparseTensor
from spgrad.errors import ArgumentValueError
from spgrad.lowering.coalesce import without_repeats
from spgrad.lowering.operands import matrix_operand, require_rank


def matrix_of_graph(A: Any) -> SparseTensor:
    """`A` as one adjacency matrix without repeated elements, or the refusal."""
    M = matrix_operand("A", A, bools=True)
    require_rank("A", M, 2, "Join a batch of graphs with spgrad.block_diag.")
    return without_repeats(M)


def weighted_graph(A: Any) -> SparseTensor:
    """`matrix_of_graph` for a floating-point dtype; other dtypes are refused."""
    M = matrix_of_graph(A)
    if not M._vals.is_floating_point():
        raise ArgumentValueError(
            f"`A` has dtype {checks.short(M._vals.dtype)}; floating-point dtypes are "
            "accepted. Convert it with A.float()."
        )
    return M
