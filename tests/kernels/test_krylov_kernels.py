"""The kernels that update the vectors of Krylov methods, against their references."""

import pytest
import torch
from torch.testing import assert_close

from spgrad import kernels
from spgrad.kernels import REFERENCES

DTYPES = [torch.float32, torch.float64, torch.complex64, torch.complex128]
SHAPES = [(1, 1, 1), (1, 40_003, 1), (3, 9000, 1), (2, 5001, 3), (1, 700, 40), (2, 0, 3), (0, 4, 1)]


def vectors(shape, dtype, count):
    g = torch.Generator().manual_seed(1)
    return [torch.randn(shape, dtype=dtype, generator=g) for _ in range(count)]


def scalars(shape, dtype, count):
    return [v[:, 0].clone() for v in vectors((shape[0], 1, shape[2]), dtype, count)]


def outcome(kernel, args):
    """What a kernel returns, and its arguments after it."""
    args = [t.clone() for t in args]
    found = kernel(*args)
    results = found if isinstance(found, tuple) else () if found is None else (found,)
    return [*results, *args]


def check(name, args, threads):
    torch.set_num_threads(threads[0])
    found = outcome(getattr(kernels, name), args)
    wanted = outcome(REFERENCES[name], args)
    single = any(t.dtype in (torch.float32, torch.complex64) for t in args)
    tolerance = 1e-4 if single else 1e-9
    for ours, theirs in zip(found, wanted, strict=True):
        assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    if not kernels.compiled():
        return
    torch.set_num_threads(threads[1])
    again = outcome(getattr(kernels, name), args)
    for ours, before in zip(again, found, strict=True):
        assert torch.equal(ours, before), "the result depends on the number of threads"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_equals_the_reference(shape, dtype):
    """With real scalars and, for complex vectors, complex ones; on one thread and on two."""
    x, p, z = vectors(shape, dtype, 3)
    check("krylov_dot", (x, p), (1, 2))
    for wide in {torch.float64, torch.complex128 if dtype.is_complex else torch.float64}:
        alpha, beta = scalars(shape, wide, 2)
        check("krylov_residual", (x, p, alpha), (1, 2))
        check("krylov_direction", (x, p, z, alpha, beta), (1, 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("long", [0, 3000])
@pytest.mark.parametrize(("items", "m"), [(1, 30_000), (3, 9000), (1, 3), (2, 0)])
def test_a_product_and_its_dot_are_those_of_the_separate_kernels(items, m, long, index, dtype):
    """With one row so long that threads share it, too; on one thread and on two."""
    g = torch.Generator().manual_seed(0)
    rows = items * m
    lengths = torch.randint(0, 12, (rows,), generator=g)
    if rows > 7:
        lengths[rows // 2] = long
    ptr = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]).to(index)
    nse = int(lengths.sum())
    idx = torch.randint(0, max(rows, 1), (nse,), generator=g).to(index)
    val = torch.randn(nse, generator=g, dtype=dtype)
    x = torch.randn(items, m, 1, generator=g, dtype=dtype)
    check("krylov_product", (ptr, idx, val, x), (1, 2))
    y, dots = kernels.krylov_product(ptr, idx, val, x)
    alone = kernels.spmm(ptr, idx, None, val, x.view(-1, 1)).view(x.shape)
    assert torch.equal(y, alone)
    assert torch.equal(dots, kernels.krylov_dot(x, alone))


def test_sums_of_single_precision_are_formed_in_double():
    a = torch.full((1, 100_000, 1), 0.1)
    wanted = (a.double() * a.double()).sum()
    assert abs(float(kernels.krylov_dot(a, a)) / float(wanted) - 1) < 1e-12
