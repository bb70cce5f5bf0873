"""Rows of what a SparseTensor is made of, and of torch's own sparse tensors."""

from __future__ import annotations

from spgrad.support.table import Op


def _row(name: str, module: str, signature: str, reason: str) -> Op:
    return Op(name, f"core.{module}", (), (signature,), None, absent={"dense": reason})


_NATIVE = "the operand or the result is a native sparse tensor"

ROWS = (
    _row("values", "values", "A[m,k] -> y[nse]", "the order of the values is that of the layout"),
    _row(
        "from_values", "values", "x[nse] M[m,k] -> C[m,k]:second", "a dense tensor has no pattern"
    ),
    _row("from_torch", "interop", "A[m,k] -> C[m,k]", _NATIVE),
    _row("to_torch", "interop", "A[m,k] -> C[m,k]", _NATIVE),
)
