"""The first call of a process imports no module that takes long."""

import subprocess
import sys

PROGRAM = """
import sys, torch, spgrad
A = spgrad.from_dense(torch.eye(4) + 1).to_sparse_csr()
x = torch.ones(4, 2)
v = A.values().clone().requires_grad_()
(spgrad.from_values(v, A) @ x).sum().backward()
A @ x, A @ A, A + A.t(), A * x[:, :1], A.sum(1), A[1:3], torch.softmax(A, 1)
assert "sympy" not in sys.modules
"""


def test_products_and_gradients_of_values_do_not_import_sympy():
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
