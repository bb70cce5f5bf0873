"""The article on gradients of sparse tensors, and sparse_mm of torchsparsegradutils."""

import os
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

import spgrad

INDICES = torch.tensor([[0, 1, 2], [2, 0, 1]])


def test_update_of_the_values(make):
    """First program: the values are the parameter."""
    values = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    sparse_tensor = make.sparse_coo_tensor(INDICES, values, size=(3, 3))
    loss = (sparse_tensor.sum() - 5) ** 2
    loss.backward()
    assert loss.item() == 1
    assert values.grad.tolist() == [2, 2, 2]
    with torch.no_grad():
        values -= values.grad
    assert values.tolist() == [-1, 0, 1]
    updated = make.sparse_coo_tensor(INDICES, values, size=(3, 3))
    assert updated.to_dense().tolist() == [[0, 0, -1], [0, 0, 0], [0, 1, 0]]
    assert updated._nnz() == 3  # an explicit zero stays


class SparseLinearLayer(nn.Module):
    """As the article writes it."""

    def __init__(self, make, in_features, out_features):
        super().__init__()
        self.make = make
        self.weight_indices = torch.tensor([[0, 1, 0], [0, 1, 2]])
        self.weight_values = nn.Parameter(torch.randn(self.weight_indices.size(1)))
        self.in_features = in_features
        self.out_features = out_features

    def forward(self, x):
        size = (self.out_features, self.in_features)
        weight = self.make.sparse_coo_tensor(self.weight_indices, self.weight_values, size=size)
        return torch.sparse.mm(weight, x)


def test_sparse_linear_layer(make):
    """Second program: a sparse weight, a sparse input, Adam."""
    model = SparseLinearLayer(make, 3, 2)
    start = model.weight_values.detach().clone()
    input_indices = torch.tensor([[0, 1], [0, 2]])
    input_values = torch.randn(input_indices.size(1))
    with pytest.raises((ValueError, RuntimeError)):  # the article's own column 2 of 1
        make.sparse_coo_tensor(input_indices, input_values, size=(3, 1))
    sparse_input = make.sparse_coo_tensor([[0, 2], [0, 0]], input_values, size=(3, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    optimizer.zero_grad()
    output = model(sparse_input)
    assert isinstance(output, spgrad.SparseTensor)
    target = make.sparse_coo_tensor(torch.tensor([[0], [0]]), torch.tensor([0.5]), size=(2, 1))
    loss = F.mse_loss(output.to_dense(), target.to_dense())
    loss.backward()
    expected = start[0] * input_values[0] + start[2] * input_values[1]
    assert_close(output.to_dense(), torch.stack([expected, torch.zeros(())])[:, None])
    slope = expected - 0.5
    wanted = torch.stack([slope * input_values[0], torch.zeros(()), slope * input_values[1]])
    assert_close(model.weight_values.grad, wanted)
    optimizer.step()
    assert_close(model.weight_values.detach(), start - 0.01 * wanted.sign())
    size = (model.out_features, model.in_features)
    weight = make.sparse_coo_tensor(model.weight_indices, model.weight_values, size=size)
    assert weight._nnz() == 3


def test_update_from_a_sparse_gradient(make):
    """Third program."""
    values = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    sparse_tensor = make.sparse_coo_tensor(INDICES, values, size=(3, 3))
    loss = (sparse_tensor.sum() - 5) ** 2
    loss.backward()
    gradient_sparse = make.to_sparse(values.grad)
    assert gradient_sparse.indices().tolist() == [[0, 1, 2]]
    assert gradient_sparse.values().tolist() == [2, 2, 2]
    with torch.no_grad():
        updated_values = values - 0.1 * gradient_sparse.values()
    updated = make.sparse_coo_tensor(INDICES, updated_values, size=(3, 3))
    assert_close(updated.to_dense(), torch.tensor([[0, 0, 0.8], [1.8, 0, 0], [0, 2.8, 0]]))


def test_the_gradient_of_a_sparse_tensor_is_sparse(make):
    """What the article says of it: the same elements, and an update of these alone."""
    leaf = make.sparse_coo_tensor(INDICES, torch.tensor([1.0, 2.0, 3.0]), (3, 3)).requires_grad_()
    ((leaf.sum() - 5) ** 2).backward()
    assert isinstance(leaf.grad, spgrad.SparseTensor)
    assert torch.equal(leaf.grad._indices(), INDICES)
    with torch.no_grad():
        leaf -= 0.1 * leaf.grad
    assert_close(leaf.to_dense().detach(), torch.tensor([[0, 0, 0.8], [1.8, 0, 0], [0, 2.8, 0]]))


SPARSE = torch.tensor([[0, 0, 1, 1, 2, 2], [0, 2, 1, 3, 0, 2]])


def operand(make, layout="coo"):
    A = make.sparse_coo_tensor(SPARSE, torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), (3, 4))
    return A.coalesce() if layout == "coo" else A.to_sparse_csr()


@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_sparse_mm(make, layout):
    A, B = operand(make, layout), torch.randn(4, 2)
    out = spgrad.sparse_mm(A, B)
    assert out.shape == torch.Size([3, 2])
    assert_close(out, A.to_dense() @ B)
    A.requires_grad_(True)
    B.requires_grad_(True)
    spgrad.sparse_mm(A, B).sum().backward()
    assert A.grad.layout == A.layout
    assert A.grad.is_sparse == (layout == "coo")
    assert A.grad._nnz() == 6
    assert_close(A.grad.values(), B.detach().sum(1)[SPARSE[1]])
    assert_close(B.grad, A.detach().to_dense().sum(0)[:, None].expand(4, 2))


def test_sparse_mm_of_a_batch(make):
    A = operand(make).requires_grad_()
    A_batch = torch.stack([A, A])
    assert A_batch.shape == (2, 3, 4)
    B_batch = torch.randn(2, 4, 2)
    out = spgrad.sparse_mm(A_batch, B_batch)
    assert out.shape == torch.Size([2, 3, 2])
    assert_close(out, A.to_dense() @ B_batch)
    out.sum().backward()
    assert_close(A.grad.values(), B_batch.sum((0, 2))[SPARSE[1]])


def test_sparse_mm_refuses_what_does_not_fit(make):
    A, B = operand(make), torch.randn(4, 2)
    for a, b in (
        (A, [1.0]),  # not tensors
        ("A", B),
        (A, B[:, 0]),  # rank
        (torch.stack([A, A]), torch.randn(3, 4, 2)),  # batch
        (A, B[:3]),  # inner size
        (B.t(), B),  # layouts
    ):
        with pytest.raises((ValueError, TypeError), match=r"spgrad\.\w+: `\w+` "):
            spgrad.sparse_mm(a, b)


CLEAR = Path("/proc/self/clear_refs")


@pytest.mark.skipif(not os.access(CLEAR, os.W_OK), reason="the kernel keeps no peak to reset")
def test_sparse_mm_needs_memory_for_the_nonzero_entries_only(make):
    """Forwards and backwards; the dense gradient alone would have 1.6 GB."""

    def status(key):
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{key}:"))

    n = 20_000
    index = torch.stack([torch.arange(n), torch.arange(n).flip(0)])
    A = make.sparse_coo_tensor(index, torch.ones(n), (n, n)).coalesce().detach().requires_grad_()
    B = torch.randn(n, 8, requires_grad=True)
    CLEAR.write_text("5")
    before = status("VmRSS")
    spgrad.sparse_mm(A, B).sum().backward()
    assert status("VmHWM") - before < 100
    assert_close(A.grad.values(), B.detach().sum(1)[index[1]])
