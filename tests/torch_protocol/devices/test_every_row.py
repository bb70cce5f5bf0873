"""How often the host waits for a device in each row of the support table, and in its gradients.

A row waits once for a new pattern, whose size the host has to know, and not at all for a known one.
`MORE` lists the rows that wait more often, each with the reason.
"""

import pytest
import torch
from waiting import waits

import spgrad
from spgrad import support, testing

MORE = {
    # a new pattern that takes several steps, each with a size of its own
    "multi_dot": (2, 0),  # two products
    "matrix_power": (4, 0),  # and the blocks of both
    "matmul": (2, 0),  # the batch of one operand, and the product
    "addmm": (2, 0),  # the product, and the sum with another pattern
    "addcmul": (2, 0),  # an intersection, and a union
    "set_diag": (2, 0),  # the blocks of the diagonal, and the union
    "where": (2, 0),  # elements of a condition and two operands
    "tensor_where": (2, 0),
    "compact": (2, 0),  # the rows with elements, and the columns
    "is_symmetric": (2, 0),  # the blocks of the transpose, and the union
    "is_hermitian": (2, 0),
    "graph.laplacian": (3, 0),  # without the diagonal, and with all of it and its blocks
    "graph.to_symmetric": (2, 0),  # the blocks of the transpose, and the union
    "split": (3, 0),  # one for each part
    "chunk": (3, 0),
    # what the elements of the result are depends on numbers of the operands in each call
    "sspaddmm": (2, 1),
    "getitem": (3, 3),
    "index_select": (3, 3),
    "setitem": (3, 1),
    "masked_select": (1, 1),
    "index_add": (4, 4),
    "prune": (1, 1),
    "nonzero": (1, 1),
    "find": (1, 1),
    "unique": (1, 1),
    "block_array": (4, 4),
    # whether indices are in range, and how many rows they take
    "embedding": (4, 4),
    "embedding_bag": (5, 5),
    # whether nodes are in range and distinct, how many entries their rows have, and which stay
    "graph.subgraph": (8, 8),
    # which nodes are asked for, whether a length is negative, and whether a path became shorter
    "graph.shortest_paths": (9, 9),
    # a number that Python reads
    "equal": (2, 1),
    "unbind": (1, 1),
    # whether a number or a factor keeps what is zero
    **dict.fromkeys(("pow", "maximum", "minimum", "eq", "gt", "ge", "lt", "le"), (1, 1)),
}
"""Row -> waits for a new pattern, and for a known one, at most."""

ON_THE_CPU = {
    "det", "logdet", "slogdet", "inverse_diagonal", "inverse_at", "factor", "solve",
    "linalg_solve", "cond", "expm_multiply",
}  # fmt: skip
"""A direct solver's library, or the choice of a number of terms, computes on the host."""


def cells(op):
    """Each signature in CSR; the first also in COO and BSR, and with all its arguments."""
    found = []
    for cell in testing.cells():
        if cell.op is op:
            first = cell.signature == op.signatures[0]
            main = cell.layout == ("csr" if "csr" in op.layouts else op.layouts[0])
            if (main and first) or (
                cell.sample == 0 and (main or (first and cell.layout != "csc"))
            ):
                found.append(cell)
    return found


def gradients(results):
    """Backward passes of what has one."""
    found = [y for y in results if isinstance(y, torch.Tensor) and y.requires_grad]
    ends = testing.parameters(found)
    if ends:
        torch.autograd.backward(
            [torch.view_as_real(y).sum() if y.is_complex() else y.sum() for y in ends]
        )


def counted(cell):
    """Waits of the first call, and of a later one, each with its gradients."""
    operands = testing.sample(cell, torch.float32)
    calls = []
    with waits() as found:
        for _ in range(3):  # a pattern keeps views from its second use on
            gradients(testing.run_all(cell, operands))
            # a row's own function makes operands out of numbers
            calls.append([f for f in found if "/support/" not in f])
            found.clear()
    return calls[0], calls[-1]


ROWS = [op for name, op in support.OPS.items() if name not in ON_THE_CPU]


@pytest.mark.parametrize("op", ROWS, ids=lambda op: op.name)
def test_a_row_waits_as_often_as_it_may(op):
    """Rows that are in `MORE` wait as often as it says, so that it stays true."""
    new, known = MORE.get(op.name, (1, 0))
    most = [0, 0]
    for cell in cells(op):
        for i, (found, allowed) in enumerate(zip(counted(cell), (new, known), strict=True)):
            assert len(found) <= allowed, f"{cell}:\n" + "\n".join(found)
            most[i] = max(most[i], len(found))
    assert op.name not in MORE or tuple(most) == (new, known)


MADE_BY_THE_TABLE = {
    "equal",
    "allclose",
    "is_same_size",
    "is_symmetric",
    "is_hermitian",
    "index_add",
}
"""The row's own function makes a tensor of numbers, on the default device."""


@pytest.mark.parametrize(
    "op",
    [op for op in ROWS if op.compared and op.name not in MADE_BY_THE_TABLE],
    ids=lambda op: op.name,
)
def test_the_default_device_is_not_that_of_the_operands(op):
    """What a function makes for itself is with its operands, or on the CPU, where it says so."""
    cell = cells(op)[0]
    operands, leaves = (testing.sample(cell) for _ in range(2))
    wanted = testing.run_all(cell, leaves)
    gradients(wanted)
    with torch.device("meta"):
        found = testing.call(cell, op.function, operands, cell.options)
        found = (found,) if isinstance(found, torch.Tensor) else tuple(found)
        gradients(found)
    pairs = [*zip(found, wanted, strict=True)]
    pairs += [(a.grad, b.grad) for a, b in zip(operands, leaves, strict=True) if b.grad is not None]
    for one, other in pairs:
        testing.assert_close(testing.dense_result(one), testing.dense_result(other).detach())


@pytest.mark.parametrize(
    "run",
    [
        spgrad.linalg.det,
        lambda A: spgrad.linalg.solve(A, torch.ones(40, dtype=A.dtype, device="cpu")),
        lambda A: spgrad.linalg.eigsh(A, 2)[0],
        lambda A: spgrad.linalg.eigsh(A, 2, sigma=0.5)[0],
        lambda A: spgrad.linalg.svds(A, 2)[1],
        lambda A: spgrad.linalg.factor(A).refactor(A).logdet(),
        lambda A: spgrad.linalg.factor(A, engine="cholmod").logdet(),
        spgrad.linalg.cond,
    ],
    ids=["det", "solve", "eigsh", "eigsh near a number", "svds", "refactor", "CHOLMOD", "cond"],
)
def test_solvers_on_the_host_do_not_ask_for_the_default_device(run):
    A = testing.random_sparse((40, 40), torch.sparse_csr, dtype=torch.float64, density=0.1)
    A = (A + A.mT + 20 * spgrad.eye(40, dtype=torch.float64)).to_sparse_csr().detach()
    wanted = run(A)
    with torch.device("meta"):
        found = run(A.clone())
    torch.testing.assert_close(found, wanted)
