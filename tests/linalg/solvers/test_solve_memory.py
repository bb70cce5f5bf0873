"""How many vectors of the size of b an iterative solver has at a time, and its backward."""

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import spgrad
from spgrad import linalg

D = torch.float64
M = 3000


class Alive(TorchDispatchMode):
    """Counts the vectors of M numbers that operations have made and that are not yet freed."""

    def __init__(self):
        super().__init__()
        self.known, self.most = {}, 0
        self.made = []  # the name of each operation, and how many such vectors it made

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if any(issubclass(t, spgrad.SparseTensor) for t in types):
            return NotImplemented
        before = {
            t.untyped_storage()._cdata for t in tree_leaves(args) if isinstance(t, torch.Tensor)
        }
        found = function(*args, **(kwargs or {}))
        stored = [t.untyped_storage() for t in tree_leaves(found) if isinstance(t, torch.Tensor)]
        new = [s for s in stored if s.nbytes() == M * D.itemsize and s._cdata not in before]
        self.made.append((function.overloadpacket.__name__, len(new)))
        self.known = {at: ref for at, ref in self.known.items() if not ref.expired()}
        self.known |= {s._cdata: StorageWeakRef(s) for s in new}
        self.most = max(self.most, len(self.known))
        return found


def system():
    one = torch.ones(M, dtype=D)
    A = spgrad.spdiags(torch.stack([-one, 2.5 * one, -one]), torch.tensor([-1, 0, 1]), (M, M))
    return A, torch.randn(M, dtype=D, generator=torch.Generator().manual_seed(0))


def test_a_prepared_solver_keeps_no_conjugate_of_its_values():
    A, b = system()
    prepared = linalg.BiCGSTAB(rtol=1e-13).prepare(A * (1 + 0.1j), "general")
    x, _ = prepared.solve(b[:, None] + 0j, adjoint=True)
    spgrad.testing.assert_close((A * (1 - 0.1j)).mT @ x, b[:, None] + 0j)
    assert prepared.A.conj is None


@pytest.mark.skipif(not spgrad.compiled(), reason="the references make temporary vectors")
@pytest.mark.parametrize(
    ("kind", "vectors"),
    [(linalg.CG, 4), (linalg.MINRES, 6), (linalg.BiCGSTAB, 6), (linalg.LSMR, 6)],
)
def test_a_solver_has_as_many_vectors_as_it_says(kind, vectors):
    A, b = system()
    solver = kind(rtol=0, max_iter=10, strict=False)
    linalg.solve(A, b, solver)  # the pattern finds what it needs
    with Alive() as alive:
        linalg.solve(A, b, solver)
    assert alive.most == vectors
    with Alive() as alive:
        linalg.solve(A, b, kind())  # the residual of x is checked after the last step
    assert alive.most == vectors
    said = {4: "four", 6: "six"}[vectors]
    assert f"{said} vectors of the size of b" in " ".join(kind.__doc__.split())


@pytest.mark.parametrize("adjoint", [False, True])
def test_a_backward_copies_no_vector_after_its_solve(adjoint):
    A, b = system()
    A.requires_grad_()
    solver = linalg.CG()
    x = linalg.solve(A, b.requires_grad_(), solver, left=not adjoint)
    with Alive() as alive:
        x.backward(torch.ones_like(b))
    last = max(i for i, (name, _) in enumerate(alive.made) if name.startswith("cg_"))
    after = alive.made[last:]
    product = max(i for i, (name, _) in enumerate(after) if name == "sub")  # b - A x, checked
    assert sum(count for _, count in after[:product]) == 1, after
    assert sum(count for _, count in after[product:]) == 0, after
