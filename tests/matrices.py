"""Matrices and batches that hypothesis draws: any layout, index dtype and share of elements."""

import torch
from hypothesis import settings
from hypothesis import strategies as st

import spgrad
from spgrad import support
from spgrad.core.pattern import LAYOUTS

settings.register_profile("properties", parent=settings.default, max_examples=30)
properties = settings.get_profile("properties")
INDEX_DTYPES = (torch.int32, torch.int64)
DTYPES = (torch.float32, torch.float64, torch.complex128, torch.int64, torch.bool)
BLOCKS = ((1, 1), (2, 1), (1, 3), (2, 3))


@st.composite
def matrices(draw, *, batch=False, dtypes=DTYPES, rows=None):
    """A SparseTensor of any layout, of whole numbers, so that sums are exact."""
    name = draw(st.sampled_from(support.ALL))
    blocks = draw(st.sampled_from(BLOCKS))
    m, k = (rows, rows) if rows else (6 * draw(st.integers(0, 2)), 6 * draw(st.integers(0, 2)))
    lead = draw(st.sampled_from([(), (2,), (2, 3)])) if batch else ()
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    density = draw(st.sampled_from([0.0, 0.1, 0.5, 1.0]))
    shape = (*lead, m, k)
    specified = torch.rand(shape, generator=generator) < density
    indices = specified.nonzero().t().contiguous().to(draw(st.sampled_from(INDEX_DTYPES)))
    vals = torch.randint(0, 9, (indices.shape[1],), generator=generator)  # also explicit zeros
    A = spgrad.sparse_coo_tensor(indices, vals, shape, dtype=draw(st.sampled_from(dtypes)))
    if name == "coo":
        return A.coalesce()
    return A.to_sparse(layout=LAYOUTS[name], blocksize=blocks if name.startswith("b") else None)


def checked(A):
    """Takes a tensor apart and validates the parts as those from outside."""
    if A.layout == torch.sparse_coo:
        made = spgrad.sparse_coo_tensor(A.indices(), A.values(), A.shape, is_coalesced=True)
    else:
        ptr = (A.crow_indices if A.pattern.compressed_by_rows else A.ccol_indices)()
        idx = (A.col_indices if A.pattern.compressed_by_rows else A.row_indices)()
        made = spgrad.sparse_compressed_tensor(ptr, idx, A.values(), A.shape, layout=A.layout)
    assert made.pattern.same_as(A.pattern)
    assert torch.equal(made._vals, A._vals)
