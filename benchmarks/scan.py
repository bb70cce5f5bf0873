"""Nanoseconds a specified element of many operations on one matrix, the slowest first.

No peer is measured. An operation that reads the elements a few times takes 1 to 10 ns an element on
one thread; this scan finds those that take much longer.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

import spgrad
from benchmarks.matrices import MATRICES, load
from spgrad import graph
from spgrad.core.pattern import LAYOUTS

Call = Callable[[Any, Any], Any]

CALLS: dict[str, Call] = {
    "sum": lambda A, o: spgrad.sum(A),
    "sum dim=0": lambda A, o: spgrad.sum(A, 0),
    "sum dim=1": lambda A, o: spgrad.sum(A, 1),
    "mean dim=1": lambda A, o: spgrad.mean(A, 1),
    "std dim=1": lambda A, o: spgrad.std(A, 1),
    "prod dim=1": lambda A, o: spgrad.prod(A, 1, specified=True),
    "amax dim=1": lambda A, o: spgrad.amax(A, 1),
    "max dim=0": lambda A, o: spgrad.max(A, 0),
    "max dim=1": lambda A, o: spgrad.max(A, 1),
    "argmin dim=1": lambda A, o: spgrad.argmin(A, 1),
    "logsumexp dim=1": lambda A, o: spgrad.logsumexp(A, 1),
    "norm": lambda A, o: spgrad.norm(A),
    "vector_norm dim=1": lambda A, o: spgrad.vector_norm(A, 3, dim=1),
    "normalize": lambda A, o: spgrad.normalize(A, dim=1),
    "softmax dim=0": lambda A, o: spgrad.softmax(A, 0),
    "softmax dim=1": lambda A, o: spgrad.softmax(A, 1),
    "sort dim=0": lambda A, o: spgrad.sort(A, 0),
    "sort dim=1": lambda A, o: spgrad.sort(A, 1),
    "topk dim=0": lambda A, o: spgrad.topk(A, 1, 0),
    "topk dim=1": lambda A, o: spgrad.topk(A, 1),
    "cumsum": lambda A, o: spgrad.cumsum(A, 1),
    "unique": lambda A, o: spgrad.unique(A.detach()),
    "relu": lambda A, o: spgrad.relu(A),
    "pow": lambda A, o: spgrad.pow(A, 2),
    "gt": lambda A, o: spgrad.gt(A, 0.0),
    "dropout": lambda A, o: spgrad.dropout(A, 0.5),
    "mul row": lambda A, o: spgrad.mul(A, o.row),
    "mul column": lambda A, o: spgrad.mul(A, o.column),
    "mul same pattern": lambda A, o: spgrad.mul(A, o.same),
    "mul other pattern": lambda A, o: spgrad.mul(A, o.other),
    "add same pattern": lambda A, o: spgrad.add(A, o.same),
    "add other pattern": lambda A, o: spgrad.add(A, o.other),
    "maximum": lambda A, o: spgrad.maximum(A, o.other),
    "where": lambda A, o: spgrad.where(o.mask, A, o.same),
    "lerp": lambda A, o: spgrad.lerp(A, o.other, 0.5),
    "sparse_mask": lambda A, o: spgrad.sparse_mask(A, o.other),
    "clone": lambda A, o: A.clone(),
    "double": lambda A, o: A.double(),
    "to_sparse_coo": lambda A, o: spgrad.to_sparse_coo(A),
    "to_sparse_csr": lambda A, o: spgrad.to_sparse_csr(A),
    "to_sparse_csc": lambda A, o: spgrad.to_sparse_csc(A),
    "t in the same layout": lambda A, o: A.t().to_sparse(layout=A.layout),
    "getitem slice of rows": lambda A, o: A[: A.shape[0] // 2],
    "getitem slice of columns": lambda A, o: A[:, : A.shape[1] // 2],
    "getitem rows": lambda A, o: A[o.rows],
    "getitem columns": lambda A, o: A[:, o.columns],
    "getitem elements": lambda A, o: A[o.at],
    "index_select": lambda A, o: spgrad.index_select(A, 0, o.rows),
    "nonzero": lambda A, o: spgrad.nonzero(A.detach()),
    "find": lambda A, o: spgrad.find(A)[2],
    "prune": lambda A, o: spgrad.prune(A, 0.5),
    "prune keep": lambda A, o: spgrad.prune(A, keep=4),
    "compact": lambda A, o: spgrad.compact(A)[0],
    "cat rows": lambda A, o: spgrad.cat([A, o.other]),
    "cat columns": lambda A, o: spgrad.cat([A, o.other], 1),
    "flip": lambda A, o: spgrad.flip(A, (0,)),
    "roll": lambda A, o: spgrad.roll(A, 1, 1),
    "repeat": lambda A, o: spgrad.repeat(A, (2, 1)),
    "reshape": lambda A, o: spgrad.reshape(A, (1, -1)),
    "tril": lambda A, o: spgrad.tril(A),
    "diagonal": lambda A, o: spgrad.diagonal(A),
    "set_diag": lambda A, o: spgrad.set_diag(A, 1.0),
    "remove_diag": lambda A, o: spgrad.remove_diag(A),
    "matmul": lambda A, o: spgrad.matmul(A, o.x),
    "matmul transposed": lambda A, o: spgrad.matmul(A.t(), o.y),
    "spmm mean": lambda A, o: spgrad.spmm(A, o.x, "mean"),
    "spmm amax": lambda A, o: spgrad.spmm(A, o.x, "amax"),
    "spmm min_plus": lambda A, o: spgrad.spmm(A, o.x, "min_plus"),
    "sddmm": lambda A, o: spgrad.sddmm(A.detach(), o.y, o.x),
    "graph.degree": lambda A, o: graph.degree(A),
    "graph.normalize row": lambda A, o: graph.normalize(A.abs(), "row"),
}
"""What the scan runs: the name of a row of the support table, and which form of it."""

SQUARE: dict[str, Call] = {
    "add identity": lambda A, o: spgrad.add(A, o.identity),
    "is_symmetric": lambda A, o: spgrad.is_symmetric(A.detach()),
    "graph.normalize sym": lambda A, o: graph.normalize(A.abs()),
    "graph.laplacian": lambda A, o: graph.laplacian(A.abs()),
    "graph.to_symmetric": lambda A, o: graph.to_symmetric(A),
}
"""The same for square matrices."""


class Row(NamedTuple):
    """Nanoseconds an element: a later call, the first on a pattern, and a later step."""

    later: float
    first: float
    step: float | None  # None without a derivative
    name: str


def operands(A: Any) -> Any:
    """The other operands of all calls."""
    m, k = A.shape
    coo = A.to_sparse_coo()
    row, col = coo.indices()
    moved = torch.stack([row, (col + row % 3 + 1) % max(k, 1)])  # as long rows elsewhere
    other = spgrad.sparse_coo_tensor(moved, A.values().abs(), (m, k)).coalesce()
    return SimpleNamespace(
        row=torch.rand(k),
        column=torch.rand(m, 1),
        same=A * 2,
        other=other.to_sparse(layout=A.layout),
        mask=A > 0,
        rows=torch.randperm(m)[: (m + 1) // 2],
        columns=torch.randperm(k)[: (k + 1) // 2],
        at=(row, col),
        x=torch.rand(k, 8),
        y=torch.rand(m, 8),
        identity=spgrad.eye(m, layout=torch.sparse_csr).to_sparse(layout=A.layout),
    )


def scan(make: Callable[[], Any], names: Iterable[str] = (), calls: int = 3) -> list[Row]:
    """Measures the calls on the matrix of `make`, which gives it with a new pattern each time."""
    A = make()
    chosen = {**CALLS, **(SQUARE if A.shape[0] == A.shape[1] else {})}
    chosen = {name: chosen[name] for name in names} if names else chosen
    others, nse = operands(A), max(A.values().numel(), 1)
    rows = []
    for name, call in chosen.items():
        fresh = make()
        first = _nanoseconds(lambda call=call, A=fresh: call(A, others)) / nse
        later = min(_nanoseconds(lambda call=call: call(A, others)) for _ in range(calls)) / nse
        leaf = A.clone().requires_grad_()
        made = call(leaf, others)
        y = made[0] if isinstance(made, tuple) else made
        step = None
        if isinstance(y, torch.Tensor) and y.requires_grad:
            g = torch.ones_like(y)

            def one_step(call: Call = call, leaf: Any = leaf, g: torch.Tensor = g) -> None:
                found = call(leaf, others)
                y = found[0] if isinstance(found, tuple) else found
                torch.autograd.grad(y, leaf, g)

            step = statistics.median(_nanoseconds(one_step) for _ in range(calls)) / nse
        rows.append(Row(later, first, step, name))
    return sorted(rows, reverse=True)


def _nanoseconds(run: Callable[[], Any]) -> float:
    start = time.thread_time()
    run()
    return (time.thread_time() - start) * 1e9


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scan", description=__doc__)
    parser.add_argument("--matrix", nargs="+", default=["social"], choices=list(MATRICES))
    parser.add_argument("--layout", nargs="+", default=["csr"], choices=["csr", "csc", "coo"])
    parser.add_argument("--dtype", default="float32", choices=["float32", "float64"])
    parser.add_argument("--op", nargs="+", default=[], choices=[*CALLS, *SQUARE], metavar="NAME")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.matrix:
        stored = load(name, options.dtype)
        for layout in options.layout:

            def make(stored: Any = stored, layout: str = layout) -> Any:
                return spgrad.from_scipy(stored.copy()).to_sparse(layout=LAYOUTS[layout])

            print(f"{name}, {layout}, {stored.nnz} elements, one thread: ns an element")
            print(f"{'later':>9} {'first':>9} {'step':>9}")
            for row in scan(make, options.op):
                step = "" if row.step is None else f"{row.step:.2f}"
                print(f"{row.later:9.2f} {row.first:9.2f} {step:>9}  {row.name}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
