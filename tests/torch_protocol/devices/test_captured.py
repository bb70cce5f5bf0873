"""Training steps that a CUDA graph can hold: the host reads and sends nothing, and makes no plan.

A graph records what is launched on a device. So a step must not wait for a number, must not copy
from the CPU, and its sizes must not depend on numbers of the device.
"""

import sys

import pytest
import torch
from torch._subclasses import FakeTensorMode
from waiting import waits

import spgrad
from spgrad import nn, testing
from spgrad.kernels.native.solves.triangular import solve_triangular
from spgrad.linalg.solvers import cg

N = 12


@pytest.fixture(autouse=True)
def _capturable_on_the_cpu(monkeypatch):
    """torch takes `capturable` for devices that have graphs only."""
    for name in ("adam", "adamw"):
        module = sys.modules[f"torch.optim.{name}"]
        monkeypatch.setattr(
            module, "_get_capturable_supported_devices", lambda *_, **__: ["cpu"], raising=False
        )


def matrix(layout="csr", seed=0):
    A = testing.random_sparse((N, N), testing.LAYOUTS[layout], dtype=torch.float32, seed=seed)
    return A.requires_grad_()


def dense(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def of_module(made, *operands):
    return list(made.parameters()), lambda: made(*operands).square().mean()


def product(layout="csr"):
    A, w, x = matrix(layout), dense(3, 2).requires_grad_(), dense(N, 3)
    return [A, w], lambda: (A @ (x @ w)).square().mean()


def under_autocast():
    parameters, loss = product()

    def run():
        with torch.autocast(torch.get_default_device().type, torch.bfloat16):
            return loss()

    return parameters, run


def softmax():
    A, x = matrix(), dense(N, 3)
    return [A], lambda: (torch.softmax(A, 1) @ x).square().mean()


def edges():
    """Scores of edges, as attention over a graph has them, from parts."""
    A, q = matrix().detach(), dense(N, 4).requires_grad_()
    x = dense(N, 3)
    return [q], lambda: (torch.softmax(spgrad.sddmm(A, q, q), 1) @ x).square().mean()


def attention():
    mask, q, k, v = matrix(), *(dense(2, N, 4).requires_grad_() for _ in range(3))
    attend = torch.nn.functional.scaled_dot_product_attention
    return [mask, q, k, v], lambda: attend(q, k, v, attn_mask=mask).square().mean()


def attention_of_a_graph():
    """Whether all elements of the mask are True stays on the device."""
    q = dense(2, N, 4).requires_grad_()
    mask = matrix().detach() > 0
    attend = torch.nn.functional.scaled_dot_product_attention
    return [q], lambda: attend(q, q, q, attn_mask=mask).square().mean()


def sparse_attention():
    layer, x = nn.SparseAttention(8, 2, pattern=nn.patterns.band(N, 2)), dense(N, 8)
    return list(layer.parameters()), lambda: layer(x, x, x)[0].square().mean()


def blocks():
    A, x = matrix("bsr"), dense(N, 3).requires_grad_()
    return [A, x], lambda: (A @ x).square().mean()


def two_matrices():
    A, B = matrix(), matrix(seed=1)
    return [A, B], lambda: spgrad.values(A @ B + A).square().mean()


def substitution():
    L = (matrix().detach().tril(-1) + spgrad.eye(N)).to_sparse_csr().requires_grad_()
    b = dense(N, 2)
    return [L], lambda: spgrad.solve_triangular(L, b, upper=False).square().mean()


def graph_network(*layers):
    def make():
        made, A, x = [layer() for layer in layers], matrix().detach(), dense(N, 3)

        def loss():
            h = x
            for layer in made:
                h = torch.relu(layer(h, A))
            return h.square().mean()

        return [p for layer in made for p in layer.parameters()], loss

    return make


PROGRAMS = {
    **{
        f"product_{layout}": lambda layout=layout: product(layout)
        for layout in ("csr", "csc", "coo")
    },
    "product_of_blocks": blocks,
    "product_under_autocast": under_autocast,
    "product_of_two_matrices": two_matrices,
    "softmax": softmax,
    "scores_of_edges": edges,
    "attention": attention,
    "attention_of_a_graph": attention_of_a_graph,
    "sparse_attention": sparse_attention,
    "substitution": substitution,
    "sparse_linear": lambda: of_module(nn.SparseLinear(N, 4, density=0.4), dense(5, N)),
    "graph_conv": graph_network(lambda: nn.GraphConv(3, 8), lambda: nn.GraphConv(8, 2)),
    "graph_attention": graph_network(
        lambda: nn.GraphAttention(3, 4, heads=2), lambda: nn.GraphAttention(8, 2)
    ),
    "dropout": graph_network(lambda: nn.GraphAttention(3, 4, heads=2, dropout=0.5)),
}
"""Name -> what makes the parameters, and a function that gives the loss."""


@pytest.mark.parametrize("clipped", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_training_step_can_be_captured(name, clipped):
    parameters, loss = PROGRAMS[name]()
    optimizer = torch.optim.Adam(parameters, capturable=True)
    with waits() as found:
        for _ in range(4):  # patterns keep views from the second use on; Adam makes its states
            found.clear()
            optimizer.zero_grad()
            loss().backward()
            if clipped:
                torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
    assert not found, "\n".join(found)
    assert all(p.grad is not None for p in parameters)


@pytest.mark.parametrize("preconditioner", [None, "Jacobi"])
def test_a_step_of_conjugate_gradients_can_be_captured(preconditioner, monkeypatch):
    """The loop reads whether columns have converged, every 16 steps; a step reads nothing."""
    A = testing.random_sparse((N, N), torch.sparse_csr, dtype=torch.float64, density=0.3)
    A = (A @ A.mT + spgrad.eye(N)).to_sparse_csr().detach()
    steps, of_step = [], cg._Run.step

    def counted(run, active):
        before = len(found)
        of_step(run, active)
        steps.append(found[before:])

    monkeypatch.setattr(cg._Run, "step", counted)
    made = getattr(spgrad.linalg, preconditioner)() if preconditioner else None
    method = spgrad.linalg.CG(max_iter=5, strict=False, preconditioner=made)
    with waits() as found:
        spgrad.linalg.solve(A, dense(N, 2).double(), method)
    assert len(steps) == 5
    assert not any(steps[1:]), steps  # the first one finds the views


def test_substitution_of_cusparse_is_refused_in_a_capture(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with FakeTensorMode():
        ptr, idx = (torch.empty(n, dtype=torch.int64, device="cuda") for n in (N + 1, N))
        val, b = torch.empty(N, device="cuda"), torch.empty(N, 2, device="cuda")
        with pytest.raises(spgrad.UnsupportedError, match="A CUDA graph is being captured"):
            solve_triangular(ptr, idx, None, val, b, True, False)
