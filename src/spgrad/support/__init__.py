"""The support table: what works, for which operands and layouts, and what it means.

One row per operation. A row names the module of its function; registration for torch's names, the
names of `spgrad`, tests, refusals, the tables in the documents and `python -m spgrad ops` come from
it. A signature names the operands with their shapes: upper
case is sparse, lower case dense, dense dimensions of a sparse tensor stand behind a bar; a sparse
result has the layout of the first sparse operand, or COO where that can't hold it (CSR or CSC for
a part of a BSR or BSC matrix), unless another stands behind a colon. Operands in parentheses are
given as one list. Flipped is the layout of the transpose: CSC for CSR, BSC for BSR, and the other
way round.
"""

from spgrad.support import (
    core,
    creation,
    elementwise,
    indexing,
    layouts,
    linalg,
    products,
    reductions,
    shapes,
    solves,
)
from spgrad.support.table import (
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
        core,
    )
    for row in family.ROWS
}
"""Name -> its row."""
