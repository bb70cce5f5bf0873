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
