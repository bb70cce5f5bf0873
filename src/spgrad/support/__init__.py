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
    "WITHOUT_ROW",
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

_LINES = ALL[:3]
"""The layouts without blocks."""

WITHOUT_ROW: dict[str, tuple[str, ...]] = {
    **{f"sparse_{layout}_tensor": (layout,) for layout in ALL},
    "sparse_compressed_tensor": ALL[1:],
    "from_scipy": ALL[:4],
    "from_jax": ALL[:2],
    **dict.fromkeys((f"from_{name}" for name in ("dgl", "networkx", "pandas", "pyg")), _LINES),
    **dict.fromkeys((f"to_{name}" for name in ("jax", "networkx", "pandas", "pyg", "scipy")), ALL),
    **dict.fromkeys(("from_cupy", "to_cupy"), _LINES),
    **dict.fromkeys(("io.load", "io.save", "data.collate", "data.uncollate"), ALL),
    **dict.fromkeys(
        (
            *("data.negative_sampling", "data.partition", "data.random_walk", "data.saint_sample"),
            *("data.sample_neighbors", "data.split_entries", "data.subgraph"),
        ),
        _LINES,
    ),
    **dict.fromkeys(("nn.add_self_loops", "nn.gcn_norm", "nn.sparsity.move"), ALL),
    **dict.fromkeys(("nn.parametrize_values", "nn.unparametrize_values"), ALL),
    **{f"nn.patterns.{name}": ("csr",) for name in ("band", "block", "global_tokens", "strided")},
    **dict.fromkeys(("distributed.distribute", "distributed.from_local"), ALL),
    **{f"plot.{name}": ALL for name in ("blocks", "degrees", "reordered", "spy")},
    **dict.fromkeys(("testing.assert_close", "testing.random_sparse"), ALL),
}
"""Public functions that are no operations, and so have no row -> the layouts of their tensor.

It is the tensor that they take, or else the one that they return.
"""
