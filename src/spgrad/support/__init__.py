"""The support table: what works, for which operands and layouts, and what it means.

One row per operation. Tests, refusals, the tables in the documents, the benchmarks' list and
`python -m spgrad ops` all come from it. A signature names the operands with their shapes: upper
case is sparse, lower case dense, dense dimensions of a sparse tensor stand behind a bar; a sparse
result has the layout of the first sparse operand, or COO where that can't hold it (CSR or CSC for
a part of a BSR or BSC matrix), unless another stands behind a colon. Operands in parentheses are
given as one list. Flipped is the layout of the transpose: CSC for CSR, BSC for BSR, and the other
way round.
"""

from spgrad.support import (
    attention,
    binary,
    contract,
    elementwise,
    indexing,
    layouts,
    products,
    reductions,
    shapes,
)
from spgrad.support.table import ALL, FLIPPED, Op, Operand, parse

__all__ = ["ALL", "FLIPPED", "OPS", "Op", "Operand", "parse"]

OPS: dict[str, Op] = {
    row.name: row
    for family in (
        products,
        contract,
        attention,
        elementwise,
        binary,
        reductions,
        layouts,
        shapes,
        indexing,
    )
    for row in family.ROWS
}
"""Name -> its row."""
