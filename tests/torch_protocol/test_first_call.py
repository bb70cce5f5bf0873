"""What a process imports: the first call no module that takes long; Dynamo behind any hook."""

import importlib.util
import subprocess
import sys

from spgrad.torch_protocol.compile import _AfterDynamo

PROGRAM = """
import sys, torch, spgrad
A = spgrad.from_dense(torch.eye(4) + 1).to_sparse_csr()
x = torch.ones(4, 2)
v = A.values().clone().requires_grad_()
(spgrad.from_values(v, A) @ x).sum().backward()
A @ x, A @ A, A + A.t(), A * x[:, :1], A.sum(1), A[1:3], torch.softmax(A, 1)
A.clone(), torch.clone(A)
assert "sympy" not in sys.modules
"""


def run_alone(program):
    """Asserts that the program ends well in a process of its own."""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr


def test_products_copies_and_gradients_of_values_do_not_import_sympy():
    run_alone(PROGRAM)


BEHIND_A_HOOK = """
import importlib.machinery, sys

class Hook:  # that finds every module, as those of tracers do
    find_spec = staticmethod(importlib.machinery.PathFinder.find_spec)

sys.meta_path.insert(0, Hook)
import torch, spgrad
A = spgrad.from_dense(torch.eye(4) + 1).to_sparse_csr()
x = torch.ones(4, 2)
compiled = torch.compile(lambda x: spgrad.softmax(A, 1) @ x, backend="eager", fullgraph=True)
torch.testing.assert_close(compiled(x), x)
"""


def test_functions_are_compiled_behind_a_hook_of_imports():
    """Dynamo is told of spgrad's functions when it is imported, whoever else finds modules."""
    run_alone(BEHIND_A_HOOK)


AFTER_DYNAMO = """
import torch, torch._dynamo, spgrad
A = spgrad.from_dense(torch.eye(4) + 1).to_sparse_csr()
x = torch.ones(4, 2)

def smoothed(A, x):
    return spgrad.softmax(spgrad.from_values(A.values(), (2 * A).pattern), 1) @ x

compiled = torch.compile(smoothed, backend="eager", fullgraph=True)
torch.testing.assert_close(compiled(A, x), x)
"""


def test_functions_are_compiled_where_dynamo_was_imported_first():
    run_alone(AFTER_DYNAMO)


LOADED = """
import importlib.machinery, importlib.util, spgrad, torch._dynamo
loaders = torch._dynamo.__loader__, torch._dynamo.__spec__.loader
assert all(isinstance(loader, importlib.machinery.SourceFileLoader) for loader in loaders), loaders
assert importlib.util.find_spec("torch._dynamo").loader is loaders[0]
"""


def test_dynamo_keeps_the_loader_of_its_file():
    run_alone(LOADED)


def test_a_torch_without_dynamo(monkeypatch):
    """Python says that there is no such module; nobody looks for it again."""
    finder = _AfterDynamo()
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert finder.find_spec("torch._dynamo", None) is None
    assert finder not in sys.meta_path
