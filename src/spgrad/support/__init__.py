"""The support table: one row for each operation, with its operands, layouts and specification.

A row names the module of its function. The registration under torch's names, the names in `spgrad`,
tests, error texts, the documented tables and `python -m spgrad ops` are generated from the rows.

A signature names the operands with their shapes. Upper case is sparse, lower case is dense; the
dense dimensions of a sparse tensor stand behind a bar. A sparse result has the layout of the first
sparse operand, or COO where that layout can't hold it (CSR or CSC for a part of a BSR or BSC
matrix), unless another layout stands behind a colon. The layout `flipped` is that of the transpose:
CSC for CSR, BSC for BSR, and the other way round. Operands in parentheses are given as one list.
"""

from spgrad.support import (
    core,
    creation,
    elementwise,
    graph,
    indexing,
    layouts,
    linalg,
    products,
    reductions,
    shapes,
    solves,
)
from spgrad.support.table import (
    ABOVE,
    ALL,
    FLIPPED,
    OUTSIDE,
    Op,
    Operand,
    on_list,
    parse,
    plainly,
    torch_named,
)

__all__ = [
    "ABOVE",
    "ALL",
    "FLIPPED",
    "OPS",
    "OUTSIDE",
    "Op",
    "Operand",
    "on_list",
    "parse",
    "plainly",
    "torch_named",
]

OPS: dict[str, Op] = {
    row.name: row
    for family in (
        products,
        solves,
        elementwise,
        reductions,
        layouts,
        shapes,
        indexing,
        creation,
        linalg,
        graph,
        core,
    )
    for row in family.ROWS
}
"""Name -> its row."""
