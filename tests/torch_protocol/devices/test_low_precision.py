"""Attention of 16-bit operands as on a device: kernels read them as they are."""

from functools import partial

import pytest
import torch

import spgrad
from spgrad import kernels, testing
from spgrad.kernels import REFERENCES
from spgrad.ops.products import attention
from spgrad.ops.products.graphs import additive_attention

N = 9
attend = torch.nn.functional.scaled_dot_product_attention


@pytest.fixture
def read(monkeypatch):
    """The dtypes of queries that kernels were called with; references run in their place."""
    found = []
    monkeypatch.setattr(attention, "_takes_16_bits", lambda q: True)
    for name, at in (("attention", 4), ("attention_backward", 7)):

        def run(*args, name=name, at=at):
            found.append((name, args[at].dtype))
            return REFERENCES[name](*args)

        monkeypatch.setattr(kernels, name, run)
    return found


@pytest.fixture
def added(monkeypatch):
    """The dtypes of x that kernels of additive attention were called with, and of their biases."""
    found = []
    monkeypatch.setattr(additive_attention, "_by_triton", lambda x: True)
    for name in ("additive_attention", "additive_attention_backward"):

        def run(*args, name=name):
            found.append((name, args[6].dtype, args[3].dtype, args[3].shape[1]))
            return REFERENCES[name](*args)

        monkeypatch.setattr(kernels, name, run)
    return found


def operands(dtype):
    made = torch.Generator().manual_seed(0)
    A = testing.random_sparse((N, N), torch.sparse_csr, dtype=torch.float32, density=0.5)
    dense = (torch.randn(2, N, 4, generator=made) for _ in range(3))
    return [t.to(dtype).requires_grad_() for t in (A.detach(), *dense)]


def gradients(y, leaves, **options):
    return torch.autograd.grad(y.float().square().sum(), leaves, **options)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_operands_are_not_copied(dtype, read):
    A, *qkv = operands(dtype)
    y = attend(*qkv, attn_mask=A)
    found = gradients(y, [A, *qkv])
    assert read == [("attention", dtype), ("attention_backward", dtype)]
    assert {t.dtype for t in (y, *found)} == {dtype}
    wide, *others = (t.detach().float().requires_grad_() for t in (A, *qkv))
    wanted = attend(*others, attn_mask=wide)
    close = {"rtol": 8 * torch.finfo(dtype).eps, "atol": 8 * torch.finfo(dtype).eps}
    torch.testing.assert_close(y.float(), wanted, **close)
    for one, other in zip(found, gradients(wanted, [wide, *others]), strict=True):
        one, other = (t._vals if isinstance(t, spgrad.SparseTensor) else t for t in (one, other))
        torch.testing.assert_close(one.float(), other, **close)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_what_is_stored_is_in_float32(dtype, read, monkeypatch):
    """Scores, for dropout and for second derivatives."""
    stored, given = attention._stored, []

    def note(*args, **options):
        given.append({t.dtype for t in args[:4]})
        return stored(*args, **options)

    monkeypatch.setattr(attention, "_stored", note)
    A, *qkv = operands(dtype)
    dropped = attend(*qkv, attn_mask=A, dropout_p=0.5)
    assert dropped.dtype == dtype
    assert not read
    first = gradients(attend(*qkv, attn_mask=A), qkv, create_graph=True)
    second = torch.autograd.grad(sum(t.float().square().sum() for t in first), qkv)
    assert {t.dtype for t in (*first, *second)} == {dtype}
    assert given == [{torch.float32}] * 2
    assert [at for _, at in read] == [dtype, dtype]  # the cotangent depends on the result
    _, *others = (t.detach().float().requires_grad_() for t in (A, *qkv))
    once = gradients(attend(*others, attn_mask=A.detach().float()), others, create_graph=True)
    wanted = torch.autograd.grad(sum(t.square().sum() for t in once), others)
    for one, other in zip(second, wanted, strict=True):
        size = float(other.abs().max())
        torch.testing.assert_close(
            one.float() / size, other / size, rtol=0, atol=16 * torch.finfo(dtype).eps
        )


def additive_operands(dtype, dense_dim=0):
    """A mask, left, right and x of three heads."""
    made = torch.Generator().manual_seed(0)
    shape = (N, N, 3)[: 2 + dense_dim]
    options = {"dtype": torch.float32, "density": 0.5, "dense_dim": dense_dim}
    A = testing.random_sparse(shape, torch.sparse_csr, **options)
    dense = (torch.randn(N, 3, *more, generator=made) for more in ((), (), (4,)))
    return [t.to(dtype).requires_grad_() for t in (A.detach(), *dense)]


@pytest.mark.parametrize("dense_dim", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_operands_of_additive_attention_are_not_copied(dtype, dense_dim, added):
    """Nor is a mask without heads copied for each of them."""
    A, *dense = operands = additive_operands(dtype, dense_dim)
    y = spgrad.additive_attention(*dense, A)
    found = gradients(y, operands)
    biases = 3 if dense_dim else 1
    both = "additive_attention", "additive_attention_backward"
    assert added == [(name, dtype, dtype, biases) for name in both]
    assert {t.dtype for t in (y, *found)} == {dtype}
    wide, *others = (t.detach().float().requires_grad_() for t in operands)
    wanted = spgrad.additive_attention(*others, wide)
    close = {"rtol": 8 * torch.finfo(dtype).eps, "atol": 8 * torch.finfo(dtype).eps}
    torch.testing.assert_close(y.float(), wanted, **close)
    for one, other in zip(found, gradients(wanted, [wide, *others]), strict=True):
        one, other = (t._vals if isinstance(t, spgrad.SparseTensor) else t for t in (one, other))
        torch.testing.assert_close(one.float(), other, **close)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_what_additive_attention_stores_is_in_float32(dtype, added, monkeypatch):
    """Scores, for dropout and for second derivatives."""
    stored, given = additive_attention._attend_storing, []

    def note(*args, **options):
        given.append({t.dtype for t in args[:4]})
        return stored(*args, **options)

    monkeypatch.setattr(additive_attention, "_attend_storing", note)
    A, *dense = additive_operands(dtype)
    attend = partial(spgrad.additive_attention, attn_mask=A)
    assert attend(*dense, dropout_p=0.5).dtype == dtype
    assert not added
    first = gradients(attend(*dense), dense, create_graph=True)
    second = torch.autograd.grad(sum(t.float().square().sum() for t in first), dense)
    assert {t.dtype for t in (*first, *second)} == {dtype}
    assert given == [{torch.float32}] * 2
