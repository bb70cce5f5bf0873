"""The kernels that update the vectors of Krylov methods, against their references."""

import pytest
import torch
from torch.testing import assert_close

from spgrad import kernels
from spgrad.kernels import REFERENCES

DTYPES = [torch.float32, torch.float64, torch.complex64, torch.complex128]
FAMILIES = ("krylov_", "cg_", "bicgstab_", "gmres_", "minres_", "lsmr_")
SHAPES = [
    (1, 1, 1),
    (1, 40_003, 1),
    (3, 9000, 1),
    (2, 5001, 3),
    (1, 700, 40),
    (2, 0, 3),
    (0, 4, 1),
    (2, 5, 0),
]


class Drawn:
    """Vectors and scalars of one shape; some scalars are zero, and some columns are not active."""

    def __init__(self, shape, dtype):
        self.shape, self.dtype = shape, dtype
        self.wide = torch.complex128 if dtype.is_complex else torch.float64
        self.g = torch.Generator().manual_seed(1)

    def vectors(self, count):
        return [torch.randn(self.shape, dtype=self.dtype, generator=self.g) for _ in range(count)]

    def mask(self, part):
        return torch.rand(self.shape[0], self.shape[2], generator=self.g) < part

    def scalars(self, count, dtype=torch.float64):
        like = self.shape[0], self.shape[2]
        drawn = [torch.randn(like, dtype=dtype, generator=self.g) for _ in range(count)]
        return [v.masked_fill(self.mask(0.15), 0) for v in drawn]

    def squares(self, count):
        return [v.abs() for v in self.scalars(count)]


def bicgstab_direction(d):
    """With columns that have lost their shadow, columns without any step, and others."""
    alpha, omega, rho, before = d.scalars(4, d.wide)
    omega = torch.where(d.mask(0.2), alpha, omega)
    least = d.squares(1)[0] / 3
    arguments = d.vectors(4), rho, before, alpha, omega
    (p, shadow, r, v), *scalars = arguments
    return p, shadow, least, r, v, *scalars, *d.squares(1), d.mask(0.7), d.mask(0.1)


def minres_step(d, given):
    """Without a preconditioner, with one, and with one that returns the vector that it gets."""
    x, v, z, y, w, w_before, r = d.vectors(7)
    y, r = {"none": (None, None), "one": (y, r), "identity": (v, r)}[given]
    state = torch.stack(d.squares(1) + d.scalars(5))
    square, delta = d.scalars(2, d.wide)
    ends = *d.squares(1), d.mask(0.7), d.mask(0.1)
    return x, v, z, y, w, w_before, r, state, square, delta, *ends


def lsmr_step(d, least):
    ends = *d.squares(3), d.mask(0.7), d.mask(0.1), least
    return *d.vectors(4), torch.stack(d.scalars(12)), *ends


def moved(d, alias):
    x, r, p, q = d.vectors(4)
    return x, r, r if alias else p, q, *d.scalars(2, d.wide), d.mask(0.7)


def residual(d):
    (r, q), (alpha,) = d.vectors(2), d.scalars(1)
    return r, alpha, q, *d.scalars(2, d.wide), d.mask(0.7), d.mask(0.1)


def rows(d, k):
    """Vectors as rows, a basis of five rows, and k scalars of each vector."""
    items, m, n = d.shape
    w, *V = (v.mT.reshape(items * n, m).contiguous() for v in d.vectors(6))
    h = torch.randn(w.shape[0], k, dtype=d.wide, generator=d.g)
    return w, torch.stack(V, 1), h


def gmres_extend(d):
    """With columns whose space is exhausted, and others."""
    (w, V, h), k = rows(d, 3), 2
    H = torch.randn(w.shape[0], 5, 4, dtype=d.dtype, generator=d.g)
    null = torch.randn(w.shape[0], 5, dtype=d.wide, generator=d.g)
    of_w = d.squares(1)[0].view(-1, 1)
    lengths, beta = (1 + v for v in d.squares(2))
    return V, H, null, lengths, d.mask(0.2), w, h, h.flip(1), of_w, beta, d.mask(0.7), k


CASES = {
    "krylov_active": lambda d: (d.mask(0.5), *d.squares(2), d.mask(0.3)),
    "krylov_left": lambda d: (d.mask(0.5), *d.squares(2), d.mask(0.8)),
    "krylov_dot": lambda d: d.vectors(2),
    "krylov_normalise": lambda d: (*d.vectors(1), *d.squares(1)),
    "krylov_subtract": lambda d: (*d.vectors(2), *d.scalars(1, d.wide), None, None),
    "krylov_subtract of two": lambda d: (
        *d.vectors(2),
        *d.scalars(1, d.wide),
        *d.vectors(1),
        *d.scalars(1),
    ),
    "cg_residual": residual,
    "cg_direction": lambda d: (
        *d.vectors(3),
        *d.scalars(1),
        *d.scalars(2, d.wide),
        d.mask(0.7),
    ),
    "bicgstab_move": lambda d: moved(d, alias=False),
    "bicgstab_move of r": lambda d: moved(d, alias=True),
    "bicgstab_direction": bicgstab_direction,
    "gmres_project": lambda d: (*rows(d, 3)[:2], None, 3),
    "gmres_project of the rest": lambda d: (*rows(d, 3), 3),
    "gmres_subtract": lambda d: (*rows(d, 2), 2),
    "gmres_subtract of a full basis": lambda d: (*rows(d, 5), 5),
    "gmres_extend": gmres_extend,
    "minres_step": lambda d: minres_step(d, "none"),
    "minres_step preconditioned": lambda d: minres_step(d, "one"),
    "minres_step with the identity": lambda d: minres_step(d, "identity"),
    "lsmr_step": lambda d: lsmr_step(d, least=False),
    "lsmr_step of least squares": lambda d: lsmr_step(d, least=True),
}
"""Kernel, and which call of it -> the arguments. That of `krylov_product` follows below."""


def outcome(kernel, args):
    """What a kernel returns, and its arguments after it; equal arguments stay one tensor."""
    copies = {id(t): t.clone() for t in args if isinstance(t, torch.Tensor)}
    args = [copies.get(id(t), t) for t in args]
    found = kernel(*args)
    results = found if isinstance(found, tuple) else () if found is None else (found,)
    return [*results, *(t for t in args if isinstance(t, torch.Tensor))]


def check(name, args):
    torch.set_num_threads(1)
    found = outcome(getattr(kernels, name), args)
    wanted = outcome(REFERENCES[name], args)
    tensors = [t for t in args if isinstance(t, torch.Tensor)]
    single = any(t.dtype in (torch.float32, torch.complex64) for t in tensors)
    tolerance = 1e-4 if single else 1e-9
    for ours, theirs in zip(found, wanted, strict=True):
        assert_close(ours, theirs, rtol=tolerance, atol=tolerance, equal_nan=True)
    if not kernels.compiled():
        return
    torch.set_num_threads(2)
    again = outcome(getattr(kernels, name), args)
    for ours, before in zip(again, found, strict=True):
        assert_close(ours, before, rtol=0, atol=0, equal_nan=True)


def test_every_kernel_is_compared():
    changed = {name for name in REFERENCES if name.startswith(FAMILIES)} - {"krylov_product"}
    assert {case.split(" ")[0] for case in CASES} == changed


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("case", CASES)
def test_equals_the_reference(case, shape, dtype):
    """On one thread and on two, with the same bits."""
    check(case.split(" ")[0], CASES[case](Drawn(shape, dtype)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128])
@pytest.mark.parametrize("case", CASES)
def test_changes_what_its_schema_says_and_runs_on_fake_tensors(case, dtype):
    args = CASES[case](Drawn((2, 30, 3), dtype))
    copies = [t.clone() if isinstance(t, torch.Tensor) else t for t in args]
    kernel = getattr(kernels, case.split(" ")[0])
    torch.library.opcheck(kernel, copies, test_utils=("test_schema", "test_faketensor"))


def test_a_residual_that_is_no_number_is_not_active():
    nan = torch.tensor([[float("nan"), 2.0, 2.0]], dtype=torch.float64)
    active = torch.ones(1, 3, dtype=torch.bool)
    broken = torch.tensor([[False, False, True]])
    kernels.krylov_active(active, nan, torch.ones_like(nan), broken)
    assert active.tolist() == [[False, True, False]]


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
    check("krylov_product", (ptr, idx, val, x))
    y, dots = kernels.krylov_product(ptr, idx, val, x)
    alone = kernels.spmm(ptr, idx, None, val, x.view(-1, 1)).view(x.shape)
    assert torch.equal(y, alone)
    assert torch.equal(dots, kernels.krylov_dot(x, alone))


@pytest.mark.skipif(not kernels.compiled(), reason="the reference multiplies complex numbers")
def test_a_complex_product_and_its_dot_are_refused():
    ptr, val = torch.tensor([0, 1]), torch.ones(1, dtype=torch.complex64)
    with pytest.raises(RuntimeError, match="`x` is complex; float32 and float64 are accepted"):
        kernels.krylov_product(ptr, ptr[:1], val, val.view(1, 1, 1))


def test_sums_of_single_precision_are_formed_in_double():
    a = torch.full((1, 100_000, 1), 0.1)
    wanted = (a.double() * a.double()).sum()
    assert abs(float(kernels.krylov_dot(a, a)) / float(wanted) - 1) < 1e-12
