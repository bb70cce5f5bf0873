"""Every row of the support table on every matrix of the zoo, in every layout that it lists."""

import math
from typing import NamedTuple

import pytest
import torch
from claims import check_second_derivative, check_value_layout_and_gradient

import spgrad
from spgrad import support, testing

ROWS = [row for row in support.OPS.values() if row.compared]
PAIRS = [(row, name) for row in ROWS for name in testing.ZOO]
SECOND = 7  # one case in so many is differentiated twice


class Case(NamedTuple):
    """A cell of the support table and a matrix of the zoo, as they take turns by a number."""

    row: support.Op
    name: str
    number: int

    @property
    def cell(self):
        """Signatures, samples and layouts take turns, so that in time all meet all."""
        forms = [(s, i) for s in self.row.signatures for i in range(len(self.row.samples))]
        layouts = self.row.layouts
        signature, sample = forms[self.number % len(forms)]
        rounds = self.number // math.lcm(len(forms), len(layouts))
        return testing.Cell(
            self.row, signature, layouts[(self.number + rounds) % len(layouts)], sample
        )

    def operands(self):
        """Index dtypes, repeated indices and mixed layouts take turns."""
        cell = self.cell
        return testing.sample(
            cell,
            matrix=testing.ZOO[self.name](),
            index_dtype=(torch.int32, torch.int64)[self.number % 2],
            coalesced=cell.layout != "coo" or self.number // len(self.row.layouts) % 2 == 0,
            mixed=self.number % 3 == 2,
        )


def cases(row, name):
    """Two or more for a matrix; the one without entries meets every form and every layout."""
    forms = len(row.signatures) * len(row.samples)
    if name == "no_entries":
        numbers = range(max(forms, len(row.layouts)))
    else:
        count = max(2, math.ceil(forms / len(testing.ZOO)))
        first = list(testing.ZOO).index(name) * count
        numbers = range(first, first + count)
    return [Case(row, name, number) for number in numbers]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_claim_meets_the_zoo(row):
    """Each matrix, and each layout, signature and sample: with entries and without."""
    met = {name: [case.cell for case in cases(row, name)] for name in testing.ZOO}
    assert all(len(cells) > 1 for cells in met.values())
    empty = met.pop("no_entries")
    for found in (empty, [cell for cells in met.values() for cell in cells]):
        assert {cell.layout for cell in found} == set(row.layouts)
        assert {cell.signature for cell in found} == set(row.signatures)
        assert {cell.sample for cell in found} == set(range(len(row.samples)))
    numbers = [case.number for name in testing.ZOO for case in cases(row, name)]
    assert {number % 2 for number in numbers} == {0, 1}  # int32 and int64


def refused(cell, operands):
    """Whether the dense function refuses these sizes, such as an index beyond them."""
    try:
        testing.expected_all(cell, operands, testing.dense_leaves(operands))
    except (RuntimeError, IndexError, ValueError):
        return True
    return False


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")  # of torch's var of nothing
@pytest.mark.parametrize(("row", "name"), PAIRS, ids=lambda v: getattr(v, "name", v))
def test_value_layout_and_gradient(row, name, poisoned):
    for case in cases(row, name):
        cell, operands = case.cell, case.operands()
        if refused(cell, operands):
            with pytest.raises(spgrad.SpgradError):
                testing.run(cell, operands)
            continue
        check_value_layout_and_gradient(cell, operands)
        if row.order >= 2 and case.number % SECOND == 0:
            check_second_derivative(cell, operands)
