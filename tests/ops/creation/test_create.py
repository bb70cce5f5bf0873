"""Sparse tensors made from numbers, and with the pattern of another."""

import pytest
import torch
from samples import drawn, made_by_spgrad

import spgrad
from spgrad import support, testing
from spgrad.core.pattern import LAYOUTS
from spgrad.ops.creation import random

layouts = pytest.mark.parametrize("name", support.ALL)


def options(name):
    blocks = {"blocksize": (2, 2)} if name.startswith("b") else {}
    return {"layout": LAYOUTS[name], **blocks}


@layouts
def test_zeros_and_empty(name):
    for fn in (spgrad.zeros, spgrad.empty):
        A = fn((3, 4, 6), dtype=torch.float64, requires_grad=True, **options(name))
        assert (A.layout, A.nse, A.shape, A.dtype) == (LAYOUTS[name], 0, (3, 4, 6), torch.float64)
        assert A.requires_grad
        testing.assert_close(A.detach(), torch.zeros(3, 4, 6))
    assert spgrad.zeros(4, 6, 2, dense_dim=1, **options(name)).dense_dim() == 1
    assert spgrad.zeros(5, layout=torch.sparse_coo).shape == (5,)


@layouts
@pytest.mark.parametrize("size", [(4, 4), (4, 6), (6, 2), (0, 4)])
def test_eye(name, size):
    A = spgrad.eye(*size, **options(name))
    assert A.layout == LAYOUTS[name]
    testing.assert_close(A, torch.eye(*size))
    assert spgrad.eye(4, dtype=torch.int64, requires_grad=False).dtype == torch.int64


@pytest.mark.parametrize("layout", [None, torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
def test_spdiags(layout):
    for shape in ((4, 4), (3, 6), (6, 3), (5, 5)):
        x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
        offsets = torch.tensor([-2, 0, 1])
        A = spgrad.spdiags(x, offsets, shape, layout)
        wanted = torch.zeros(shape, dtype=torch.float64)
        for row, offset in zip(x.detach(), offsets.tolist(), strict=True):
            for j in range(min(4, shape[1])):
                if 0 <= j - offset < shape[0]:
                    wanted[j - offset, j] = row[j]
        testing.assert_close(A.detach(), wanted)
        if shape[1] >= 4:  # torch writes out of range where the matrix is narrower
            native = torch.sparse.spdiags(x.detach(), offsets, shape, layout)
            assert A.layout == native.layout
            testing.assert_close(A.detach(), native.to_dense())
        assert A.pattern.coalesced
        assert torch.autograd.gradcheck(
            lambda x, o=offsets, s=shape: spgrad.spdiags(x, o, s, layout).to_dense(), x
        )
    v = torch.arange(3.0)
    testing.assert_close(spgrad.spdiags(v, torch.tensor(0), (3, 3), layout), torch.diag(v))


@layouts
def test_like(name):
    A = testing.random_sparse((4, 6), LAYOUTS[name])
    for fn in ("empty_like", "rand_like", "randn_like", "zeros_like", "ones_like"):
        B = getattr(torch, fn)(A, dtype=torch.float32, requires_grad=True)
        assert B.pattern is A.pattern
        assert (B.dtype, B.requires_grad, B.is_leaf) == (torch.float32, True, True)
    assert (torch.full_like(A, 3).values() == 3).all()
    C = torch.ones_like(A, layout=torch.sparse_coo)
    testing.assert_close(C, testing.mask_of(A.pattern).double())
    assert C.layout == torch.sparse_coo
    assert torch.zeros_like(A, device="meta").device.type == "meta"
    with pytest.raises(NotImplementedError, match="zeros_like: `layout`"):
        torch.zeros_like(A, layout=torch.strided)
    with pytest.raises(TypeError, match="`size` is no option"):
        spgrad.zeros_like(A, size=3)


def test_values_like_those_of_a_tensor_that_its_dtype_does_not_hold():
    A = spgrad.eye(3)
    whole = A.to(torch.int64)
    for function, says in (
        (lambda: spgrad.full_like(A, 1 + 2j), r"`fill_value` is \(1\+2j\); a real number"),
        (
            lambda: spgrad.full_like(whole, 1 + 2j, dtype=torch.float64),
            r"`fill_value` is \(1\+2j\); a real number",
        ),
        (lambda: spgrad.rand_like(whole), "`input` has dtype int64; floating-point and complex"),
        (
            lambda: spgrad.randn_like(A, dtype=torch.int64),
            "`dtype` is torch.int64, in which torch.randn_like gives no values",
        ),
    ):
        with pytest.raises(ValueError, match=says):
            function()
    assert spgrad.full_like(A, 1 + 2j, dtype=torch.complex64).values().tolist() == [1 + 2j] * 3


def test_like_of_repeated_elements():
    A = spgrad.sparse_coo_tensor([[1, 1]], [3.0, 4.0], (3,))
    testing.assert_close(torch.ones_like(A), torch.tensor([0.0, 1.0, 0.0]))


@layouts
def test_random(name):
    generator = torch.Generator().manual_seed(0)
    for size in ((4, 6), (3, 4, 6), (200, 300)):
        for share in (0.0, 0.25, 0.5, 1.0):
            A = spgrad.rand(size, density=share, generator=generator, **options(name))
            places = torch.Size(size).numel() // (4 if name.startswith("b") else 1)
            assert (A.layout, A.nse) == (LAYOUTS[name], round(share * places))
            assert ((A.values() >= 0) & (A.values() < 1)).all()
            parts = [A.pattern.indices[-1]]
            assert all((p >= 0).all() for p in parts)
            testing.assert_close(spgrad.from_dense(A.to_dense()), A.to_dense())
    first = spgrad.randn(50, 50, nse=9, generator=torch.Generator().manual_seed(1))
    again = spgrad.randn(50, 50, nse=9, generator=torch.Generator().manual_seed(1))
    assert spgrad.equal(first, again)
    assert spgrad.rand(2**30, 2**31, nse=100, layout=torch.sparse_coo).nse == 100
    assert spgrad.rand(9, nse=3, layout=torch.sparse_coo).shape == (9,)
    assert spgrad.rand(20, 30).nse == 60  # a tenth


def test_random_places_are_all_alike():
    counts = torch.zeros(5, 6)
    generator = torch.Generator().manual_seed(0)
    for _ in range(600):
        counts += testing.mask_of(spgrad.rand(5, 6, nse=2, generator=generator).pattern)
    assert (counts - 40).abs().max() < 28  # 4.4 standard deviations


@pytest.mark.parametrize("layout", ["coo", "csr", "csc"])
def test_bands_and_positive_definite(layout):
    for n, width in ((5, 1), (4, 9), (6, 0), (1, 1), (0, 2)):
        A = spgrad.banded(n, width, layout=LAYOUTS[layout])
        i = torch.arange(n)
        assert torch.equal(testing.mask_of(A.pattern), (i[:, None] - i).abs() <= width)
    for n in (1, 2, 40):
        B = spgrad.random_spd(n, 0.3, layout=LAYOUTS[layout], dtype=torch.float64)
        dense = B.to_dense()
        assert torch.equal(dense, dense.t())
        assert torch.linalg.eigvalsh(dense).min() > 0.999
        assert B.nse == n + 2 * round(0.3 * n * (n - 1) / 2)
        for upper in (False, True):
            C = spgrad.random_triangular(n, 0.3, upper=upper, layout=LAYOUTS[layout])
            one_side = torch.triu if upper else torch.tril
            assert torch.equal(C.to_dense(), one_side(C.to_dense()))
            assert C.nse == n + round(0.3 * n * (n - 1) / 2)
            assert C.to_dense().diagonal().min() >= 1
    assert spgrad.random_spd(2**17, 1e-8).nse > 2**17
    assert spgrad.random_triangular(0).shape == spgrad.random_spd(0).shape == (0, 0)


REFUSALS = {
    "vector": (lambda: spgrad.zeros(3), ValueError, "zeros: `size`"),
    "strided": (lambda: spgrad.eye(3, layout=torch.strided), TypeError, "eye: `layout`"),
    "no_blocks": (lambda: spgrad.eye(4, layout=torch.sparse_bsr), ValueError, "eye: `blocksize`"),
    "density": (lambda: spgrad.rand(3, 3, density=2), ValueError, "rand: `density`"),
    "both": (lambda: spgrad.rand(3, 3, density=0.1, nse=1), ValueError, "rand: `density` and"),
    "nse": (lambda: spgrad.randn(3, 3, nse=10), ValueError, "randn: `nse`"),
    "band": (lambda: spgrad.banded(3, -1), ValueError, "banded: `bandwidth`"),
    "offsets": (
        lambda: spgrad.spdiags(torch.ones(2, 2), torch.tensor([0, 0]), (2, 2)),
        ValueError,
        "spdiags: `offsets`",
    ),
    "shape": (
        lambda: spgrad.spdiags(torch.ones(1, 2), torch.tensor([0]), 2),
        TypeError,
        "spdiags: `shape` is 2; a sequence",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals(case):
    function, error, says = REFUSALS[case]
    with pytest.raises(error, match=says):
        function()


@pytest.mark.parametrize("name", support.ALL)
def test_ones_are_ones(sparse, name):
    A = sparse(drawn(4, 6), name)
    mask = testing.mask_of(A.pattern)
    testing.assert_close(torch.ones_like(A), mask * 1.0)
    testing.assert_close(torch.full_like(A, 3.0), mask * 3.0)
    if sparse is made_by_spgrad or name.startswith("b"):  # these ask for a block size
        return
    for make in (torch.ones, lambda *size, **kw: torch.full(size, 1.0, **kw)):
        try:
            y = make(2, 2, layout=LAYOUTS[name])
        except (RuntimeError, TypeError):  # refused is as good as right
            continue
        testing.assert_close(y.to_dense(), torch.ones(2, 2))


def test_places_below_the_diagonal_survive_the_rounding_of_the_root(monkeypatch):
    """Place t = row (row - 1) / 2 + col: the root in float64 is a row too high, or too low.

    Too low where 8 t passes 2^53 and torch's root of many numbers is not the nearest one.
    """
    far = torch.arange(3_000_000_000, 3_000_001_000)
    rows = torch.cat([torch.arange(47_453_000, 47_456_000), far])
    ends = torch.cat([rows * (rows - 1) // 2, rows * (rows - 1) // 2 - 1])
    monkeypatch.setattr(random, "_distinct_numbers", lambda *_: ends)
    row, col = random._below_diagonal(3_000_001_000, 0.0, torch.sparse_coo, None, None)
    assert torch.equal(row, torch.cat([rows, rows - 1]))
    assert torch.equal(col, torch.cat([torch.zeros_like(rows), rows - 2]))
