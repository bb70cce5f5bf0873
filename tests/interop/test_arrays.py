"""Sparse arrays of JAX, there and back, and stand-ins for those of JAX and of CuPy."""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

import spgrad
from spgrad import support
from spgrad.core.pattern import LAYOUTS

X = torch.tensor([[0.0, 2, 0, 1], [3, 0, 0, 4]])


@pytest.mark.parametrize("layout", support.ALL)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
def test_jax_there_and_back(layout, dtype):
    pytest.importorskip("jax")
    blocks = (2, 2) if layout.startswith("b") else None
    x = X.to(dtype)
    A = spgrad.from_dense(x).to_sparse(layout=LAYOUTS[layout], blocksize=blocks)
    S = spgrad.to_jax(A)
    assert type(S).__name__ == ("BCSR" if layout == "csr" else "BCOO")
    assert S.todense().tolist() == x.tolist()
    B = spgrad.from_jax(S)
    assert B.pattern.name == ("csr" if layout == "csr" else "coo")
    assert B.pattern.coalesced
    assert torch.equal(B.to_dense(), x)


@pytest.fixture
def stand_in(monkeypatch):
    """A JAX whose dense arrays are NumPy's, which reads the memory that DLPack hands over."""

    def module(name, **members):
        made = ModuleType(name)
        made.__spec__ = ModuleSpec(name, None)
        vars(made).update(members)
        monkeypatch.setitem(sys.modules, name, made)
        return made

    def made(parts, **told):
        return SimpleNamespace(parts=parts, **told)

    def read(t):
        assert t.is_contiguous()
        return np.from_dlpack(t)

    sparse = module("jax.experimental.sparse", BCSR=made, BCOO=made)
    module("jax.experimental", sparse=sparse)
    module("jax.numpy", from_dlpack=read)
    module("jax", config=SimpleNamespace(jax_enable_x64=False))


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("layout", ["coo", "csr", "csc"])
@pytest.mark.parametrize(
    "pending", [torch.conj, lambda z: torch._neg_view(z.real.clone()), lambda z: z.real]
)
def test_jax_gets_contiguous_values_with_nothing_pending(layout, pending):
    """Not the memory of z, of which torch remembers that a tensor shows the conjugate, or -z."""
    vals = pending(torch.tensor([1 + 2j, 3 - 4j]))
    if layout == "coo":
        at = torch.tensor([[0, 1], [1, 0]])
        A = spgrad.sparse_coo_tensor(at, vals, (2, 2), is_coalesced=True)
    else:
        A = getattr(spgrad, f"sparse_{layout}_tensor")([0, 1, 2], [1, 0], vals, (2, 2))
    wanted = [0, *vals.tolist(), 0] if layout != "csc" else [0, *vals.flip(0).tolist(), 0]
    S = spgrad.to_jax(A)
    assert S.shape == (2, 2)
    assert A.to_dense().flatten().tolist() == wanted
    assert S.parts[0].tolist() == wanted[1:3]


def test_what_jax_pads_is_left_out():
    padded = SimpleNamespace(
        indices=torch.tensor([[1, 0], [2, 3], [0, 1]]),
        data=torch.tensor([5.0, 0.0, 6.0]),
        shape=(2, 3),
        n_batch=0,
    )
    assert spgrad.from_jax(padded).to_dense().tolist() == [[0, 6, 0], [5, 0, 0]]


@pytest.mark.parametrize("padding", [0, 2])
@pytest.mark.parametrize(
    ("idx", "wanted"),
    [
        ([0, 2, 1], [[1, 0, 2], [0, 3, 0]]),
        ([2, 0, 1], [[2, 0, 1], [0, 3, 0]]),
        ([2, 2, 1], [[0, 0, 3], [0, 3, 0]]),
        ([0, 7, 1], [[1, 0, 0], [0, 3, 0]]),
        ([0, 2, 7], [[1, 0, 2], [0, 0, 0]]),
    ],
)
def test_rows_as_jax_may_have_them(idx, wanted, padding):
    """Unsorted, repeated and out of range, where `todense` of JAX takes them."""
    given = SimpleNamespace(
        indptr=torch.tensor([0, 2, 3]),
        indices=torch.tensor(idx + [2] * padding),
        data=torch.tensor([1.0, 2.0, 3.0] + [0.0] * padding),
        shape=(2, 3),
        n_batch=0,
    )
    A = spgrad.from_jax(given)
    assert A.pattern.name == "csr"
    assert A.to_dense().tolist() == wanted


@pytest.mark.parametrize("ptr", [[0, 2, 1], [0, 2, 4], [1, 2, 3], [0, 4, 3]])
def test_pointers_of_jax_that_are_not_valid(ptr):
    parts = {"indices": torch.tensor([0, 2, 1]), "data": torch.ones(3), "shape": (2, 3)}
    with pytest.raises(ValueError, match=r"^spgrad\.from_jax: `crow_indices`"):
        spgrad.from_jax(SimpleNamespace(indptr=torch.tensor(ptr), n_batch=0, **parts))


def sizes_beyond_int32():
    return spgrad.sparse_coo_tensor([[2**40], [1]], [1.0], (2**41, 2))


def ints_beyond_int32():
    return spgrad.from_dense(torch.tensor([[0, 5], [-(2**63), 0]]))


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("make", [sizes_beyond_int32, ints_beyond_int32])
def test_numbers_that_jax_would_cut_to_32_bits(make, monkeypatch):
    A = make()
    with pytest.raises(ValueError, match="beyond int32, and JAX computes with 32 bits"):
        spgrad.to_jax(A)
    monkeypatch.setattr(sys.modules["jax"].config, "jax_enable_x64", True)
    data, *indices = spgrad.to_jax(A).parts
    assert data.tolist() == A.values().tolist()
    assert indices[0].tolist() == (A.indices().T if A.pattern.is_coo else A.col_indices()).tolist()
    monkeypatch.setattr(sys.modules["jax"].config, "jax_enable_x64", False)
    spgrad.to_jax(spgrad.from_dense(torch.tensor([[0, 2**31 - 1], [-(2**31), 0]])))


def test_an_array_that_jax_traces():
    jax = pytest.importorskip("jax")
    from jax.experimental import sparse

    S = sparse.BCOO.fromdense(jax.numpy.eye(3))
    with pytest.raises(NotImplementedError, match=r"jax\.jit or another transform of JAX traces"):
        jax.jit(lambda S: spgrad.from_jax(S).to_dense())(S)


def test_matrices_of_cupy():
    A = spgrad.from_dense(X)
    parts = {"data": A.values(), "shape": (2, 4), "tocsr": lambda: compressed}
    ptr, idx = A.crow_indices(), A.col_indices()
    compressed = SimpleNamespace(format="csr", indptr=ptr, indices=idx, **parts)
    row, col = A.coo_indices()
    listed = SimpleNamespace(format="coo", row=row, col=col, **parts)
    other = SimpleNamespace(format="dia", **parts)
    for S in (compressed, listed, other):
        assert torch.equal(spgrad.from_cupy(S).to_dense(), X)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: spgrad.from_jax(X), "`S` is a dense tensor"),
        (
            lambda: spgrad.from_jax(SimpleNamespace(indices=X, data=X, n_batch=1)),
            "`S` has 1 batch dimension",
        ),
        (lambda: spgrad.from_cupy(X), "`S` is a dense tensor"),
        (lambda: spgrad.to_cupy(spgrad.eye(2)), "`A` is csr on cpu"),
    ],
)
def test_refusals(call, text):
    with pytest.raises(spgrad.SpgradError) as raised:
        call()
    assert text in str(raised.value)
