"""The accessors of index tensors, by torch's names; each layout has its own."""

import pytest
import torch

import spgrad
from spgrad import support, testing
from spgrad.core.pattern import LAYOUTS

NAMES = {
    "coo": ("indices", "_indices"),
    "csr": ("crow_indices", "col_indices"),
    "csc": ("ccol_indices", "row_indices"),
    "bsr": ("crow_indices", "col_indices"),
    "bsc": ("ccol_indices", "row_indices"),
}
ALL = sorted({name for names in NAMES.values() for name in names})


@pytest.mark.parametrize("layout", support.ALL)
@pytest.mark.parametrize("name", ALL)
def test_each_layout_has_its_own_names(layout, name):
    A = testing.random_sparse((4, 6), LAYOUTS[layout])
    if name in NAMES[layout]:
        assert getattr(A, name)().dtype == torch.int64
        assert getattr(A, name)().data_ptr() in [part.data_ptr() for part in A.pattern.indices]
        return
    with pytest.raises(spgrad.SpgradError, match=rf"spgrad\.{name}: .*{layout}"):
        getattr(A, name)()


def test_uncoalesced_tensors_have_inner_names_alone():
    A = testing.random_sparse((4, 6), torch.sparse_coo, coalesced=False)
    assert A._indices().shape == (2, A._nnz())
    assert A._values().shape == (A._nnz(),)
    for name in ("indices", "values"):
        with pytest.raises(RuntimeError, match=r"coalesce\(\)"):
            getattr(A, name)()


@pytest.mark.parametrize("name", [*ALL, "values", "_values", "_nnz", "sparse_dim", "dense_dim"])
def test_torchs_own_methods_answer(name):
    for layout in support.ALL:
        A = testing.random_sparse((4, 6), LAYOUTS[layout])
        assert type(A) is spgrad.SparseTensor
        if name in ALL and name not in NAMES[layout]:
            with pytest.raises(spgrad.SpgradError, match=rf"spgrad\.{name}: .*{layout}"):
                getattr(torch.Tensor, name)(A)
            continue
        found, expected = getattr(torch.Tensor, name)(A), getattr(A, name)()
        assert torch.equal(torch.as_tensor(found), torch.as_tensor(expected))


@pytest.mark.parametrize("layout", support.ALL)
def test_torchs_assert_close_compares_elements(layout):
    A = testing.random_sparse((4, 6), LAYOUTS[layout])
    torch.testing.assert_close(A, A.clone())
    torch.testing.assert_close({"A": A}, {"A": A * (1 + 1e-9)})
    with pytest.raises(AssertionError, match=r"[vV]alues"):
        torch.testing.assert_close(A, A * 2)
    other = testing.random_sparse((4, 6), LAYOUTS[layout], density=0.1)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(A, other)


@pytest.mark.parametrize("shape", [(2, 0, 3), (3, 0, 0), (0, 4, 3)])
def test_pointers_of_batches_without_lines_or_items(shape):
    A = spgrad.sparse_coo_tensor(torch.zeros(3, 0, dtype=torch.int64), torch.zeros(0), shape)
    for B, lines in ((A.to_sparse_csr(), shape[1]), (A.mT.to_sparse_csc(), shape[1])):
        found = B.crow_indices() if B.layout == torch.sparse_csr else B.ccol_indices()
        assert torch.equal(found, torch.zeros(shape[0], lines + 1, dtype=found.dtype))
