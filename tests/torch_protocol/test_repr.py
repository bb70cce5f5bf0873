"""The text of a SparseTensor: what it is and its first elements."""

import pytest
import torch
from samples import made

import spgrad
from spgrad import support, testing

layouts = pytest.mark.parametrize("name", support.ALL)


@layouts
def test_repr_says_what_it_is(name):
    text = repr(made(name).float())
    assert text.startswith("SparseTensor(shape=(4, 6), nse=")
    assert f"layout={name}, " in text
    assert "dtype=float32" in text
    assert ("blocksize=(2, 2)" in text) == name.startswith("b")
    assert "grad" not in text
    assert text.count("\n") <= 7
    assert str(made(name)) == f"{made(name)}" == repr(made(name))


def test_repr_of_everything_else():
    A = spgrad.sparse_csr_tensor([0, 2, 3], [0, 2, 1], [1.0, 2.5, -3.0], (2, 3))
    assert repr(A) == (
        "SparseTensor(shape=(2, 3), nse=3, density=50%, layout=csr, dtype=float32)\n"
        "  (0, 0) 1\n  (0, 2) 2.5\n  (1, 1) -3"
    )
    assert "requires_grad=True" in repr(A.clone().requires_grad_())
    assert "grad_fn=<" in repr(A.clone().requires_grad_() * 2)
    assert "coalesced=False" in repr(spgrad.sparse_coo_tensor([[1, 1]], [1.0, 2.0]))
    assert "index_dtype=int32" in repr(made(index_dtype=torch.int32))
    assert "device=meta" in repr(A.to("meta"))
    assert "... and " in repr(testing.random_sparse((20, 20)))
    assert repr(spgrad.sparse_coo_tensor((0, 3))).startswith("SparseTensor(shape=(0, 3), nse=0, ")
    hybrid = spgrad.sparse_coo_tensor([[1]], torch.arange(9.0)[None])
    assert "(1,) [0, 1, 2, 3, 4, 5, ...]" in repr(hybrid)
    batch = spgrad.sparse_csc_tensor([[0, 1], [0, 1]], [[1], [0]], [[5], [7]], (2, 2, 1))
    assert "(0, 1, 0) 5" in repr(batch)
    assert "(1, 0, 0) 7" in repr(batch)
    huge = spgrad.sparse_coo_tensor([[0], [0]], [1.0], (2**31, 2**31))
    assert "density=2.2e-17%" in repr(huge)
    assert "True" in repr(spgrad.sparse_coo_tensor([[0]], [True]))
    assert "1+2j" in repr(spgrad.sparse_coo_tensor([[0]], [1 + 2j]))
