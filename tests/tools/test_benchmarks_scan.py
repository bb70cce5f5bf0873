"""The scan over many operations, on a tiny matrix; no test depends on how long things take."""

import pytest
import torch

import spgrad
from benchmarks import scan
from spgrad import support, testing
from spgrad.core.pattern import LAYOUTS


@pytest.mark.parametrize("layout", ["csr", "csc", "coo"])
@pytest.mark.parametrize("shape", [(9, 9), (6, 11)], ids=["square", "oblong"])
def test_every_call_is_measured(shape, layout):
    dense = testing.random_sparse(shape, torch.sparse_csr).detach().to_dense().float()

    def make():
        return spgrad.from_dense(dense).to_sparse(layout=LAYOUTS[layout])

    rows = scan.scan(make, calls=1)
    names = {row.name for row in rows}
    assert names == scan.CALLS.keys() | (scan.SQUARE.keys() if shape[0] == shape[1] else set())
    assert rows == sorted(rows, reverse=True)
    assert all(row.later > 0 and row.first > 0 for row in rows)
    measured = {row.name for row in rows if row.step is not None}
    assert {"sort dim=1", "topk dim=0", "add other pattern", "spmm min_plus"} <= measured
    assert "nonzero" not in measured


def test_some_calls_are_measured():
    (row,) = scan.scan(lambda: spgrad.eye(5).to_sparse_csr(), ["tril"], calls=1)
    assert row.name == "tril"


def test_names_are_rows_of_the_support_table():
    known = support.OPS.keys()
    methods = {"clone", "double", "t"}
    assert {name.split()[0] for name in {**scan.CALLS, **scan.SQUARE}} - methods <= known
