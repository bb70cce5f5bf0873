"""Operands and results that change between forward and backward: an error, or right gradients.

A test records an operation of the support table, changes one of its operands or results in place
through an alias, and runs the backward. Either the backward raises an error, as for dense tensors,
or the gradients are those of the recorded operation.
"""

import random

import pytest
import torch

import spgrad
from spgrad import testing


def _no_grad(change):
    with torch.no_grad():
        return change()


SPARSE = {
    "in place": lambda A: _no_grad(lambda: A.mul_(3)),
    "zeroed": lambda A: _no_grad(A.zero_),
    "subtracted": lambda A: _no_grad(lambda: A.sub_(A, alpha=-3)),
    "detached": lambda A: A.detach().mul_(3),
    "detached, negated": lambda A: A.detach().neg_(),
    "detached, copied to": lambda A: A.detach().copy_(A.detach() * 3),
    "data": lambda A: A.data.mul_(3),
    "new data": lambda A: setattr(A, "data", A.data * 3),
    "stored values": lambda A: A._values().mul_(3),
    "values of detached": lambda A: A.detach()._values().zero_(),
    "alias": lambda A: torch.ops.aten.alias(A.detach()).mul_(3),
    "inference": lambda A: _inference(lambda: A.detach().mul_(3)),
    "transpose": lambda A: _no_grad(lambda: _transposed(A).mul_(3)),
    "transpose of detached": lambda A: _transposed(A.detach()).mul_(3),
    "rebuilt": lambda A: spgrad.from_values(A.detach()._vals, A).mul_(3),
}
DENSE = {
    "in place": lambda x: _no_grad(lambda: x.mul_(3)),
    "detached": lambda x: x.detach().mul_(3),
}


def _inference(change):
    with torch.inference_mode():
        return change()


def _transposed(A):
    return A.mT if A.dim() - A.dense_dim() >= 2 and not A.dense_dim() else A.unsqueeze(0)


CELLS = [cell for cell in testing.cells() if cell.op.order >= 1]


@pytest.mark.parametrize("part", range(8))
def test_what_an_operation_needs_is_not_changed_unseen(part):
    choice = random.Random(part)
    raised = total = 0
    for cell in CELLS[part::8]:
        coalesced = cell.layout != "coo" or choice.random() < 0.5
        state = _State(cell, coalesced, choice)
        total += 1
        raised += state.raises_or_is_right()
    assert 0 < raised < total


class _State:
    """One recorded operation, and which of its tensors changes how."""

    def __init__(self, cell, coalesced, choice):
        self.cell, self.coalesced = cell, coalesced
        self.operands = testing.sample(cell, coalesced=coalesced)
        self.inputs = [
            a * 1 if choice.random() < 0.5 and a.dtype != torch.bool else a for a in self.operands
        ]
        self.y = testing.run(cell, self.inputs)
        self.g = torch.randn(self.y.shape, dtype=self.y.dtype)
        found = [*self.inputs, self.y]
        self.at = choice.choice([i for i, t in enumerate(found) if t.dtype != torch.bool])
        kinds = SPARSE if isinstance(found[self.at], spgrad.SparseTensor) else DENSE
        self.how = choice.choice(list(kinds))
        self.changed, self.change = found[self.at], kinds[self.how]

    def gradients(self, y):
        wanted = [a for a in self.operands if a.requires_grad]
        dense = testing.dense_result(y)
        grads = torch.autograd.grad(dense, wanted, self.g, retain_graph=True, allow_unused=True)
        return [None if g is None else testing.dense_result(g) for g in grads]

    def raises_or_is_right(self):
        """Whether backward raises."""
        if not self.y.requires_grad:
            return False
        right = self.gradients(testing.run(self.cell, self.inputs))
        self.change(self.changed)
        try:
            found = self.gradients(self.y)
        except RuntimeError as error:
            text = str(error)  # of torch: of a saved tensor, and of a saved view
            if "modified by an inplace operation" in text or "been modified inplace" in text:
                return True
            raise
        for got, want in zip(found, right, strict=True):
            assert (got is None) == (want is None), self
            assert got is None or torch.allclose(got, want, equal_nan=True), self
        return False

    def __repr__(self):
        which = "result" if self.at == len(self.inputs) else f"operand {self.at}"
        return f"{self.cell}, coalesced={self.coalesced}: {which} {self.how}"
