"""Rows of the algorithms on sparse matrices."""

from __future__ import annotations

from spgrad.support.table import Op


def _row(
    name: str, module: str, names: tuple[str, ...], signature: str, order: int, why: str
) -> Op:
    absent = {"dense": why}
    module = f"linalg.{module}"
    return Op(name, module, names, (signature,), None, order=order, absent=absent, traced=False)


_RANDOM = "its result depends on a random matrix, and is right up to signs"

_NO_SUCH = "torch has no such function"

ROWS = (
    _row("lobpcg", "lobpcg", ("torch.lobpcg",), "A[m,m] -> y[n]", 2, _RANDOM),
    _row("svd_lowrank", "lowrank", ("torch.svd_lowrank",), "A[m,k] -> y[m,n]", 2, _RANDOM),
    _row("pca_lowrank", "lowrank", ("torch.pca_lowrank",), "A[m,k] -> y[m,n]", 2, _RANDOM),
    _row("reverse_cuthill_mckee", "ordering", (), "A[m,m] -> y[m]", 0, _NO_SUCH),
    _row("locality_order", "ordering", (), "A[m,m] -> y[m]", 0, _NO_SUCH),
    _row("reorder", "ordering", (), "A[m,m] -> C[m,m]", 2, "it gives several tensors"),
)
