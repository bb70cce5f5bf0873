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
    return [*args] if found is None else [found, *args]


def check(name, args, threads):
    torch.set_num_threads(threads[0])
    found = outcome(getattr(kernels, name), args)
    wanted = outcome(REFERENCES[name], args)
    tolerance = 1e-4 if args[0].dtype in (torch.float32, torch.complex64) else 1e-9
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


def test_sums_of_single_precision_are_formed_in_double():
    a = torch.full((1, 100_000, 1), 0.1)
    wanted = (a.double() * a.double()).sum()
    assert abs(float(kernels.krylov_dot(a, a)) / float(wanted) - 1) < 1e-12
