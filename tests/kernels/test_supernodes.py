"""The inverse by supernodes: the plan and the elements against the references and dense torch."""

import pytest
import torch

from spgrad import kernels

DTYPES = {
    torch.float32: 1e-4,
    torch.float64: 1e-11,
    torch.complex64: 1e-4,
    torch.complex128: 1e-11,
}


def factors(m, density, dtype, mirror=0, index_dtype=torch.int32):
    """A dominant matrix, and L without its diagonal and U by columns."""
    A = torch.randn(m, m, dtype=dtype) * (torch.rand(m, m) < density)
    if mirror:
        A = A + (A.mT if mirror == 1 else A.mH)
    A = A + (1 + A.abs().sum()) * torch.eye(m, dtype=dtype)
    lu = A.clone()
    for k in range(m):
        lu[k + 1 :, k] /= lu[k, k].clone()
        lu[k + 1 :, k + 1 :] -= lu[k + 1 :, k, None] * lu[k, k + 1 :]
    return A, by_columns(lu.tril(-1), index_dtype), by_columns(lu.triu(), index_dtype)


def by_columns(M, index_dtype):
    column, row = (M.mT != 0).nonzero().T
    ptr = torch.searchsorted(column, torch.arange(M.shape[0] + 1))
    return ptr.to(index_dtype), row.to(index_dtype), M[row, column]


def elements(plan, z, m, mirror):
    """Z as a dense matrix, NaN where it is not known."""
    start, row_ptr, rows = plan
    out, at = torch.full((m, m), torch.nan, dtype=z.dtype), 0
    for s in range(len(start) - 1):
        J = torch.arange(int(start[s]), int(start[s + 1]))
        R = rows[int(row_ptr[s]) : int(row_ptr[s + 1])].long()
        w, r = len(J), len(R)
        out[J[:, None], torch.cat([J, R])] = z[at : at + w * (w + r)].view(w, w + r)
        at += w * (w + r)
        if not mirror:
            out[R[:, None], J] = z[at : at + w * r].view(w, r).mT
            at += w * r
    assert at == len(z)
    return out


@pytest.mark.parametrize("mirror", [0, 1, 2])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_elements_of_the_inverse(dtype, mirror):
    bound = DTYPES[dtype]
    for m in (0, 1, 2, 17, 90):
        for density in (0.0, 1.5 / max(m, 1), 1.0):
            index_dtype = torch.int64 if m == 17 else torch.int32
            A, lower, upper = factors(m, density, dtype, mirror, index_dtype)
            plan = kernels.supernodes(*lower[:2], *upper[:2], 10 * m * m)
            wanted = kernels.REFERENCES["supernodes"](*lower[:2], *upper[:2], 10 * m * m)
            assert all(torch.equal(a, b) for a, b in zip(plan, wanted, strict=True))
            z = kernels.supernodal_inverse(*plan, *lower, *upper, mirror)
            reference = kernels.REFERENCES["supernodal_inverse"](*plan, *lower, *upper, mirror)
            scale = A.abs().max() if m else 1
            torch.testing.assert_close(z * scale, reference * scale, rtol=bound, atol=bound)
            found, inverse = elements(plan, z, m, mirror), torch.linalg.inv(A)
            known = ~found.isnan()
            assert known[A != 0].logical_or(torch.tensor(mirror > 0)).all()
            error = (found - inverse)[known] * scale
            torch.testing.assert_close(error, torch.zeros_like(error), rtol=0, atol=bound)


def test_supernodes_of_a_band_and_of_the_whole():
    for m in (5, 64, 150):
        _, lower, upper = factors(m, 1.0, torch.float64)
        start, _, rows = kernels.supernodes(*lower[:2], *upper[:2], 2 * m * m)
        assert start.tolist() == [*range(0, m, 64), m]  # no wider than 64 columns
        assert len(rows) == sum(m - s for s in start[1:].tolist())
    _, lower, upper = factors(9, 0.0, torch.float64)
    start, row_ptr, rows = kernels.supernodes(*lower[:2], *upper[:2], 9)
    assert start.tolist() == list(range(10))
    assert row_ptr.tolist() == [0] * 10
    assert len(rows) == 0


def test_no_supernodes_beyond_the_limit():
    _, lower, upper = factors(30, 0.1, torch.float64)
    for kernel in (kernels.supernodes, kernels.REFERENCES["supernodes"]):
        found = kernel(*lower[:2], *upper[:2], 29)
        assert [t.tolist() for t in found] == [[0], [0], []]


def test_wrong_arguments_are_refused():
    if not kernels.compiled():
        return
    _, lower, upper = factors(4, 0.5, torch.float64)
    plan = kernels.supernodes(*lower[:2], *upper[:2], 100)
    for args in (
        (*plan, *lower[:2], lower[2].float(), *upper, 0),
        (*plan, *lower, *upper[:2], upper[2][1:], 0),
        (*plan, *lower, upper[0][1:], *upper[1:], 0),
        (*plan, *lower, *upper, 3),
    ):
        with pytest.raises(RuntimeError, match="spgrad"):
            kernels.supernodal_inverse(*args)
    with pytest.raises(RuntimeError, match="spgrad"):
        kernels.supernodes(*lower[:2], upper[0].long(), upper[1].long(), 100)
