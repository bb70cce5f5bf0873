"""The kernels that multiply with matrices of a few diagonals."""

import pytest
import torch
from torch.testing import assert_close

from spgrad import kernels
from spgrad.kernels import REFERENCES
from spgrad.kernels.reference.solves.krylov.diagonals import TILE_ROWS, stride

BOTH = pytest.mark.parametrize("of", [vars(kernels), REFERENCES], ids=["kernel", "reference"])
OFFSETS = [[], [0], [-1, 0, 1], [-300, -1, 0, 1, 300], [5, 9], [-20_000, 3], list(range(-30, 31))]


def banded(m, offsets, index, dtype):
    """Pointers, columns and values by rows, of random values, some of which are left out."""
    at = torch.arange(m)[:, None] + torch.tensor(offsets, dtype=torch.int64)
    there = (at >= 0) & (at < m) & (torch.rand(at.shape) < 0.9)
    there[m // 2 : m // 2 + 1] = (at >= 0)[m // 2 : m // 2 + 1] & (at < m)[m // 2 : m // 2 + 1]
    ptr = torch.cat([torch.zeros(1, dtype=torch.int64), there.sum(1).cumsum(0)])
    idx = at[there]
    return ptr.to(index), idx.to(index), torch.randn(len(idx), dtype=dtype)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("offsets", OFFSETS, ids=len)
@pytest.mark.parametrize("m", [0, 1, 15, 16, 17, 400, 8192, 8209, 40_001])
def test_a_product_by_diagonals_is_that_by_rows(m, offsets, index, dtype):
    ptr, idx, val = banded(m, offsets, index, dtype)
    x = torch.randn(1, m, 1, dtype=dtype)
    found = kernels.list_diagonals(ptr, idx, 64)
    assert torch.equal(found, REFERENCES["list_diagonals"](ptr, idx, 64))
    at = found[1 : 1 + int(found[0])]
    assert at.tolist() == sorted(set((idx.long() - kernels.expand(ptr, len(idx))).tolist()))
    values = kernels.by_diagonals(ptr, idx, val, at)
    assert torch.equal(values, REFERENCES["by_diagonals"](ptr, idx, val, at))
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        results.append(kernels.spmv_diagonals(values, at, x))
    (y, dot), again = results
    assert torch.equal(y, again[0])
    assert torch.equal(dot, again[1])
    tolerance = 1e-4 if dtype == torch.float32 else 1e-11
    for wanted in (
        kernels.krylov_product(ptr, idx, val, x),
        REFERENCES["spmv_diagonals"](values, at, x),
    ):
        assert_close(y, wanted[0], rtol=tolerance, atol=tolerance)
        assert_close(dot, wanted[1], rtol=tolerance, atol=100 * tolerance)


@BOTH
def test_more_diagonals_than_asked_for_are_not_listed(of):
    ptr, idx, _ = banded(50, [-2, 0, 1, 7], torch.int64, torch.float64)
    assert of["list_diagonals"](ptr, idx, 4).tolist() == [4, -2, 0, 1, 7]
    assert of["list_diagonals"](ptr, idx, 3)[0] == -1


@BOTH
@pytest.mark.parametrize(
    ("offsets", "wanted"),
    [([-1, 0], [[0, 8], [3, 0]]), ([0, 1], [[3, 0], [4, 0]]), ([5], [[0, 0]])],
)
def test_elements_elsewhere_are_left_out_and_repeated_ones_are_added(of, offsets, wanted):
    ptr, idx = torch.tensor([0, 3, 4]), torch.tensor([0, 0, 1, 0])
    val = torch.tensor([1.0, 2.0, 4.0, 8.0])
    values = of["by_diagonals"](ptr, idx, val, torch.tensor(offsets))
    assert values[:, :2].tolist() == wanted
    assert not values[:, 2:].any()


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "offsets", [[0], [1], [0, 1], [1, 7, 300], [0, 1, 9_000], list(range(40))], ids=str
)
@pytest.mark.parametrize("m", [1, 17, 400, 8209, 40_001])
def test_half_of_the_diagonals_of_a_symmetric_matrix_give_the_same_bits(m, offsets, dtype):
    at = torch.tensor([*(-d for d in reversed(offsets) if d), *offsets])
    above = kernels.by_diagonals(*banded(m, offsets, torch.int64, dtype), torch.tensor(offsets))
    full = above.new_zeros(len(at), above.shape[1])
    full[-len(offsets) :] = above
    for row, d in enumerate(at.tolist()):
        if d < 0:
            full[row, -d:] = full[-1 - row, : max(above.shape[1] + d, 0)]
    x = torch.randn(1, m, 1, dtype=dtype)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        half, whole = (kernels.spmv_diagonals(v, at, x) for v in (above, full))
        assert torch.equal(half[0], whole[0])
        assert torch.equal(half[1], whole[1])
    wanted, _ = REFERENCES["spmv_diagonals"](above, at, x)
    tolerance = 1e-4 if dtype == torch.float32 else 1e-11
    assert_close(half[0], wanted, rtol=tolerance, atol=tolerance)
    assert_close(wanted, REFERENCES["spmv_diagonals"](full, at, x)[0])


def repeating(m, offsets, dtype):
    """Values by diagonals in tiles of one value, of two, and of many, which come again.

    Two kinds differ in the last value alone. In some rows every diagonal has one value.
    """
    choices = torch.stack(
        [torch.full((TILE_ROWS,), -0.25), torch.full((TILE_ROWS,), 4.0), torch.randn(TILE_ROWS)]
    ).to(dtype)
    choices = torch.cat([choices, choices[:1], -2 * choices[:1]])
    choices[1, 5] = choices[3, -1] = 0
    parts = -(-m // TILE_ROWS)
    kinds = torch.randint(0, 5, (len(offsets), parts))
    kinds[:, ::3] = 4 * (kinds[:, ::3] % 2)
    values = choices[kinds].flatten(1)
    return torch.nn.functional.pad(values[:, :m], (0, stride(m) - m))


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("offsets", OFFSETS, ids=len)
@pytest.mark.parametrize("m", [0, 1, 17, 127, 128, 129, 400, 8209, 40_001])
def test_tiles_that_are_stored_once_give_the_same_bits(m, offsets, dtype):
    values, at = repeating(m, offsets, dtype), torch.tensor(offsets, dtype=torch.int64)
    tiles, numbers = kernels.tiles_of_diagonals(values, m, 9)
    assert tiles.shape[0] <= 9  # five, and at most four that end with the last row
    x = torch.randn(1, m, 1, dtype=dtype)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        y, dot = kernels.spmv_tiles(tiles, numbers, at, x)
        wanted, total = kernels.spmv_diagonals(values, at, x)
        assert torch.equal(y, wanted)
        assert torch.equal(dot, total)


@BOTH
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tiles_are_compared_by_their_bits(of, dtype):
    values = torch.zeros(2, stride(3 * TILE_ROWS), dtype=dtype)
    values[0, TILE_ROWS : 2 * TILE_ROWS] = -0.0
    values[1, : 2 * TILE_ROWS] = torch.nan
    values[1, 5] = 1
    tiles, numbers = of["tiles_of_diagonals"](values, 3 * TILE_ROWS, 4)
    assert numbers.tolist() == [[~0, 2], [~1, ~3], [~0, ~0]]
    assert tiles[1].signbit().all()
    assert not tiles[0].signbit().any()
    assert_close(tiles[2:], values[1, : 2 * TILE_ROWS].view(2, -1), equal_nan=True)
    tiles, numbers = of["tiles_of_diagonals"](values, 3 * TILE_ROWS, 3)
    assert tiles.shape == (0, TILE_ROWS)
    assert not numbers.any()


@pytest.mark.skipif(not kernels.compiled(), reason="the reference trusts its caller")
def test_tiles_of_other_sizes_and_types_are_refused():
    values, x = torch.ones(1, stride(200)), torch.ones(1, 200, 1)
    tiles, numbers = kernels.tiles_of_diagonals(values, 200, 5)
    main = torch.tensor([0])
    with pytest.raises(RuntimeError, match="`val` has size 127 in dimension 1, not 128"):
        kernels.spmv_tiles(tiles[:, 1:].contiguous(), numbers, main, x)
    with pytest.raises(RuntimeError, match="`numbers` has size 1 in dimension 0, not 2"):
        kernels.spmv_tiles(tiles, numbers[1:], main, x)
    with pytest.raises(RuntimeError, match="`most` is -1; 0 or more is accepted"):
        kernels.tiles_of_diagonals(values, 200, -1)
    with pytest.raises(RuntimeError, match="`val` is complex; float32 and float64 are accepted"):
        kernels.tiles_of_diagonals(values.to(torch.complex64), 200, 5)


@pytest.mark.skipif(not kernels.compiled(), reason="the reference trusts its caller")
@pytest.mark.parametrize("offsets", [[-2, 0, 1], [0, 1, 2], [1, 0, -1]])
def test_half_of_the_diagonals_is_refused_if_their_offsets_are_no_pairs(offsets):
    with pytest.raises(RuntimeError, match="pairs of -d and d are accepted"):
        kernels.spmv_diagonals(torch.ones(2, 48), torch.tensor(offsets), torch.ones(1, 20, 1))


def test_offsets_outside_of_the_matrix_and_in_any_order_read_nothing_else():
    values, x = torch.ones(4, 48), torch.arange(1.0, 21.0).view(1, 20, 1)
    y, _ = kernels.spmv_diagonals(values, torch.tensor([3, -50, 0, 10**12]), x)
    shifted = torch.cat([x[:, 3:], torch.zeros(1, 3, 1)], 1)
    assert_close(y, x + shifted)


@pytest.mark.skipif(not kernels.compiled(), reason="the reference multiplies complex numbers")
def test_complex_numbers_are_refused():
    values = torch.ones(1, 32, dtype=torch.complex64)
    with pytest.raises(RuntimeError, match="`x` is complex; float32 and float64 are accepted"):
        kernels.spmv_diagonals(values, torch.tensor([0]), torch.ones(1, 16, 1).to(values))
