"""Index expressions and their relatives: sparse against dense, in value and gradients."""

import random

import numpy as np
import pytest
import torch
from expressions import MATRIX, S, of_dense
from samples import drawn, leaf

import spgrad
from spgrad import support, testing
from spgrad.core.pattern import LAYOUTS

layouts = pytest.mark.parametrize("name", support.ALL)
RANDOM, DRAWS = 6, 60


def check_pattern(pattern):
    """Sorted, unique and in range, as the checks of a constructor find it."""
    if pattern.is_coo:
        sizes = tuple(pattern.shape[: pattern.sparse_dim])
        assert spgrad.core.checks.require_coordinates(pattern.indices[0], sizes)
    else:
        m, k = (n // b for n, b in zip(pattern.matrix, pattern.blocksize or (1, 1), strict=True))
        lines, across = (m, k) if pattern.compressed_by_rows else (k, m)
        spgrad.core.checks.require_compressed(("p", "i"), *pattern.indices, across, lines)
        assert pattern.indices[0].numel() == torch.Size(pattern.batch).numel() * lines + 1
    assert all(t.is_contiguous() for t in pattern.indices)


def compare(A, index, take=lambda A, index: A[index]):
    """Asserts value and gradient of a part against those of a dense tensor."""
    y, x = take(A, index), A.detach().to_dense().requires_grad_()
    wanted = of_dense(x, index)
    dense = testing.dense_result(y)
    assert dense.shape == wanted.shape
    testing.assert_close(dense.detach(), wanted.detach())
    sparse = isinstance(y, spgrad.SparseTensor)
    if sparse:
        check_pattern(y.pattern)
        assert y._vals.shape == y.pattern.values_shape
    g = torch.randn(wanted.shape, dtype=wanted.dtype)
    (of_A,) = torch.autograd.grad(dense, A, g)
    (of_x,) = torch.autograd.grad(wanted, x, g * (testing.mask_of(y.pattern) if sparse else 1))
    assert of_A.pattern is A.pattern
    times = spgrad.from_values(torch.ones_like(A._vals), A.pattern).to_dense()
    testing.assert_close(of_A, torch.where(times == 0, 0, of_x * times))
    return y


def check_second(A, index):
    def take(vals):
        return testing.dense_result(spgrad.from_values(vals, A.pattern)[index])

    vals = A._vals.detach().clone().requires_grad_()
    if vals.numel() and take(vals).numel():
        assert torch.autograd.gradcheck(take, vals, fast_mode=True)
        assert torch.autograd.gradgradcheck(take, vals, fast_mode=True)


BATCH = {
    "item": 1,
    "items": S(None, None, -1),
    "rows_of_all": (S(None), 2),
    "columns_of_all": (..., 2),
    "rows_and_columns": (S(None), S(2, None), S(None, 4)),
    "listed": (S(None), [3, 1, 3]),
    "pairs": ([0, 1, 1], [3, 0, 2]),
    "apart": ([0, 1, 1], S(None), [3, 0, 2]),
    "behind": (S(None), [0, 3], [1, 5]),
    "points": ([0, 1], [0, 3], [1, 5]),
    "one_matrix": (0, S(1, 3), S(None, None, 2)),
    "new": (S(None), None, S(0, 2)),
}
HYBRID = {
    "row": 1,
    "rows": S(0, 2),
    "dense": (..., 1),
    "dense_range": (..., S(None, None, -1), S(0, 1)),
    "dense_listed": (S(None), S(None), [2, 0, 2]),
    "dense_pairs": (..., [0, 1], [1, 0]),
    "point": (1, 2),
    "points": ([0, 1], [0, 2]),
    "sparse_and_dense": (S(None), [0, 2, 3], [2, 0, 1]),
    "apart": ([0, 1, 3], S(None), [2, 0, 1]),
    "all_four": ([0, 1], [0, 2], [1, 2], [0, 1]),
    "dense_mask": torch.rand(4, 6, 3, 2, generator=torch.Generator().manual_seed(0)) < 0.3,
    "new_dense": (S(None), S(None), 0, None),
}


@layouts
@pytest.mark.parametrize("case", MATRIX)
def test_matrices(case, name, poisoned):
    compare(leaf(name), MATRIX[case])


@layouts
@pytest.mark.parametrize("case", BATCH)
def test_batches(case, name, poisoned):
    compare(leaf(name, (2, 4, 6)), BATCH[case])


@layouts
@pytest.mark.parametrize("case", HYBRID)
def test_dense_dimensions(case, name, poisoned):
    compare(leaf(name, (4, 6, 3, 2), dense_dim=2), HYBRID[case])


def drawn_index(rng, shape):
    """An index expression, perhaps with several index tensors, for the first dimensions."""
    parts, dim, upto = [], 0, rng.randint(0, len(shape))
    points = rng.choice([(1,), (2,), (3,), (2, 3), (0,)])
    while dim < upto:
        size, kind = shape[dim], rng.random()
        if kind < 0.1:
            parts.append(rng.choice([None, None, True, False]))
        elif kind < 0.15 and not any(part is ... for part in parts):
            parts.append(...)
            dim, upto = rng.randint(dim, len(shape)), len(shape)
        elif kind < 0.35 and size:
            parts.append(rng.choice([int, np.int64, torch.tensor])(rng.randrange(-size, size)))
            dim += 1
        elif kind < 0.65:
            ends = (rng.choice([None, rng.randint(-size - 1, size + 1)]) for _ in range(2))
            parts.append(slice(*ends, rng.choice([None, 1, 2, 3, -1, -2])))
            dim += 1
        elif kind < 0.9 and size:
            parts.append(torch.randint(-size, size, points, dtype=rng.choice([torch.int32, None])))
            dim += 1
        else:
            both = min(rng.choice([1, 1, 2]), upto - dim)
            parts.append(torch.rand(shape[dim : dim + both]) < 0.5)
            dim += both
    return tuple(parts)


def drawn_operand(rng, seed):
    name = rng.choice(support.ALL)
    dense = rng.choice([(), (), (3,), (2, 3)])
    shape = (*rng.choice([(), (), (2,), (3, 2), (0,)]), *rng.choice([(4, 6), (6, 4), (2, 2)]))
    if name == "coo":
        shape = rng.choice([shape, (5,), (3, 4, 2)])
    return leaf(
        name,
        (*shape, *dense),
        dense_dim=len(dense),
        density=rng.choice([0.4, 0.4, 0.1, 0.0, 1.1]),
        coalesced=name != "coo" or rng.random() < 0.5,
        index_dtype=rng.choice([torch.int32, torch.int64]),
        seed=seed,
    )


@pytest.mark.parametrize("number", range(RANDOM))
def test_random_expressions(number):
    rng = random.Random(number)
    answered = refused = 0
    for draw in range(DRAWS):
        A = drawn_operand(rng, draw)
        index = drawn_index(rng, A.shape)
        text = f"draw {draw}: {A.pattern.name} {tuple(A.shape)} {A.dense_dim()} {index}"
        try:
            of_dense(A.detach().to_dense(), index)
        except (IndexError, RuntimeError):  # masks and tensors that do not fit one another
            with pytest.raises((spgrad.ArgumentValueError, spgrad.UnsupportedError)):
                A[index]
            continue
        try:
            compare(A, index)
            if draw % 12 == 0:
                check_second(A, index)
        except spgrad.UnsupportedError:
            refused += 1
            continue
        except Exception as error:
            raise AssertionError(text) from error
        answered += 1
    assert answered > DRAWS // 2
    assert refused < DRAWS // 10  # a dense dimension in front


@layouts
@pytest.mark.parametrize("case", ["steps", "columns_listed", "points", "list"])
def test_second_derivatives(case, name):
    check_second(leaf(name), MATRIX[case])


@layouts
def test_layouts_of_results(name):
    A, B = leaf(name), leaf(name, (2, 4, 6))
    kept = [
        A[1:3],
        A[::-1],
        A[:, 2:4],
        A[[0, 3]],
        A[:, [1, 0]],
        A[None],
        B[0],
        B[[1, 0]],
        B[..., :4],
    ]
    assert {y.layout for y in kept} == {A.layout}
    coo = [A[0], A[:, 0], A[..., None], A[:, None], B[:, 0], B[..., 0], B[[0, 1], [1, 2]], B[0, 0]]
    assert {y.layout for y in coo} == {torch.sparse_coo}
    dense = [A[0, 0], A[[0], [1]], A[0, [1]], A[None, 0, 0], A[A.detach() > 0], B[0, 0, 0]]
    assert {type(y) for y in dense} == {torch.Tensor}
    assert A[...] is A[:] is A[:, 0:6] is A
    odd = {"bsr": "csr", "bsc": "csc"}.get(name, name)  # blocks of 2 x 2 do not fit
    assert A[1:2].layout == A[:, :3].layout == LAYOUTS[odd]


def test_whole_blocks_stay_whole():
    A = leaf("bsr", (8, 6))
    assert A[2:6, 2:].nse <= A.nse
    assert A[2:6].values().shape[1:] == (2, 2)
    testing.assert_close(A[2:6].values().detach(), A.values()[A[:2].nse :][: A[2:6].nse].detach())
    assert A[::2].pattern.elements >= A[::2].to_sparse_csr().nse


@layouts
def test_sparse_masks(name):
    A = leaf(name)
    for mask in (A.detach() > 0, (leaf("coo", seed=1).detach() > 0), leaf("csc").detach() != 0):
        compare(A, mask)
        y = compare(A, mask, take=torch.masked_select)
        assert y.dim() == 1
    wide = leaf(name, (4, 6, 3), dense_dim=1)
    compare(wide, wide.detach() > 0.3)
    compare(wide, (A.detach() > 0).to_sparse_coo())


def test_vectors():
    v = leaf("coo", (7,), coalesced=False)
    for index in (
        2,
        S(1, 5),
        S(None, None, -2),
        None,
        (S(2, 4), None),
        [1, 1, 6],
        torch.arange(7) > 2,
    ):
        compare(v, index)
    assert v[3].shape == ()
    assert torch.index_select(v, 0, torch.tensor([6, 1, 1])).layout == torch.sparse_coo
    compare(v, [6, 1, 1], take=lambda v, i: v.index_select(0, torch.tensor(i)))


@pytest.mark.parametrize("flag", [True, False])
def test_truth_values_among_dense_dimensions(flag):
    A = leaf("coo", (4, 5, 2, 3), dense_dim=2)
    for index in ((S(None),) * 2, (S(None),) * 3, (S(None),) * 4):
        compare(A, (*index, flag))
        compare(A, (*index[:2], flag, *index[2:]))


@layouts
def test_names_of_torch(name):
    A, H = leaf(name, (2, 4, 6)), leaf(name, (4, 6, 3), dense_dim=1)
    for dim in range(3):
        for X in (A, H):
            lead = (S(None),) * dim
            compare(X, (*lead, 1), take=lambda X, _, d=dim: X.select(d, 1))
            compare(X, (*lead, -1), take=lambda X, _, d=dim: torch.select(X, d, torch.tensor(-1)))
            compare(X, (*lead, S(1, 2)), take=lambda X, _, d=dim: X.narrow(d, -X.shape[d] + 1, 1))
            compare(X, (*lead, S(0, 2)), take=lambda X, _, d=dim: X.narrow_copy(d, 0, 2))
            index = torch.tensor([1, 0, 1], dtype=torch.int32)
            y = compare(X, (*lead, index), take=lambda X, i, d=dim: X.index_select(d, i[d]))
            assert y.layout == X.layout or name.startswith("b")
            compare(X, (*lead, S(0, 1)), take=lambda X, _, d=dim: X.split(1, d)[0])


@layouts
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_pieces(dim, name):
    for A in (leaf(name), leaf(name, (3, 4, 6)), leaf(name, (4, 6, 3), dense_dim=1)):
        x = A.detach().to_dense()
        size = A.shape[dim]
        for pieces, wanted in (
            (A.unbind(dim), x.unbind(dim)),
            (A.split(2, dim), x.split(2, dim)),
            (torch.split(A, [1, size - 1, 0], dim), x.split([1, size - 1, 0], dim)),
            (A.chunk(2, dim), x.chunk(2, dim)),
            (torch.chunk(A, 5, dim), x.chunk(5, dim)),
        ):
            assert len(pieces) == len(wanted)
            for got, want in zip(pieces, wanted, strict=True):
                testing.assert_close(testing.dense_result(got.detach()), want)
                if isinstance(got, spgrad.SparseTensor):
                    check_pattern(got.pattern)
        weights = torch.arange(size) + 1.0
        total = sum(w * y.to_dense().sum() for w, y in zip(weights, A.unbind(dim), strict=True))
        (grad,) = torch.autograd.grad(total, A)
        wanted = weights.double().view([-1 if d == dim % A.dim() else 1 for d in range(A.dim())])
        testing.assert_close(grad, testing.mask_of(A.pattern) * wanted)


@pytest.mark.parametrize(("name", "n"), [("chunk", 3), ("split", 2), ("split", 0)])
def test_pieces_of_no_rows(name, n):
    A, x = spgrad.zeros(0, 4), torch.zeros(0, 4)
    assert [y.shape for y in getattr(A, name)(n)] == [y.shape for y in getattr(x, name)(n)]


def test_iteration():
    A = leaf()
    assert [row.shape for row in A] == [(6,)] * 4
    assert [x.shape for x in leaf("coo", (3,))] == [()] * 3
    assert leaf("coo", (0, 3)).unbind() == ()


def test_lists_that_are_no_dense_tensors_are_refused():
    rows = torch.tensor([0, 1, 0]).to_sparse()
    with pytest.raises(TypeError, match=r"spgrad, in A\[Tensor\]: `index`"):
        leaf("csr", (3, 4))[rows]


def test_indices_beyond_int32():
    n = 2**40
    A = spgrad.sparse_coo_tensor(
        torch.tensor([[5, n - 1, n - 1], [7, 0, 2**21]]), torch.arange(1.0, 4.0), (n, 2**22)
    )
    assert A[-1].nse == 2
    assert A[-1, 2**21] == 3
    assert A[::-1][0].values().tolist() == [2, 3]
    assert A[[n - 1, 5], [0, 7]].tolist() == [2, 1]
    assert A[torch.tensor([n - 1, 5, n - 1])].values().tolist() == [2, 3, 1, 2, 3]
    assert A[:, [7, 2**21]].to_sparse_coo().nse == 2


@pytest.mark.parametrize("name", support.ALL)
def test_slices_and_joins(sparse, name):
    """Each with a backward, whatever the data are."""
    a = drawn(4, 6)
    for take in (
        lambda t: t[:],
        lambda t: t[1],
        lambda t: t[:, 2],
        lambda t: t[1:, ::2],
        lambda t: t[2, 3],
        lambda t: t.select(1, 0),
        lambda t: torch.index_select(t, 0, torch.tensor([2, 0, 2])),
        lambda t: torch.narrow_copy(t, 1, 2, 3),
        lambda t: torch.cat([t, t[:2]]),
    ):
        A, twin = sparse(a, name).requires_grad_(), a.clone().requires_grad_()
        y, expected = take(A), take(twin)
        testing.assert_close(y.to_dense() if y.dim() else y, expected)
        y.square().sum().backward()
        expected.square().sum().backward()
        assert A.grad.pattern is A.pattern
        testing.assert_close(A.grad, twin.grad * testing.mask_of(A.pattern))


def test_an_index_that_changes_before_backward():
    A = testing.random_sparse((4, 6), torch.sparse_csr).requires_grad_()
    rows = torch.tensor([3, 1])
    part = A[rows]
    rows.zero_()
    part.values().sum().backward()
    assert A.grad.to_dense().any(1).nonzero().flatten().tolist() == [1, 3]


@layouts
@pytest.mark.parametrize("flag", [True, False])
def test_a_tensor_with_one_truth_value(name, flag):
    """It adds a dimension of size 1 or 0, as True and False do, also behind an ellipsis."""
    A = leaf(name).detach()
    # of no rows and of one, or of one and of three: these go together
    x, mask = A.to_dense(), torch.tensor([flag, False, True, False, False, flag])
    for index in (
        (torch.tensor(flag),),
        (torch.tensor(flag), 0),
        (..., torch.tensor(flag), mask),
        (..., flag, mask.tolist()),
    ):
        found = A[index]
        testing.assert_close(found.to_dense() if found.is_sparse else found, x[index])


@layouts
def test_masks_of_two_dimensions_behind_an_ellipsis(name):
    A = testing.random_sparse((2, 4, 6), LAYOUTS[name])
    mask, x = torch.eye(4, 6) > torch.tensor([0, 0, 1, 1])[:, None], A.to_dense()
    for given in (mask, mask.tolist(), mask.numpy()):
        found = A[..., torch.tensor([True, True]), given]
        testing.assert_close(found.to_dense(), x[..., torch.tensor([True, True]), mask])


@layouts
def test_a_mask_behind_an_ellipsis_and_before_other_parts(name):
    A = testing.random_sparse((2, 4, 6), LAYOUTS[name])
    rows, cols, x = torch.arange(4) != 2, torch.arange(6) % 4 > 1, A.to_dense()
    for index in ((..., cols, None), (..., cols, True), (..., rows, 3), (..., rows, None, 3)):
        found = A[index]
        testing.assert_close(found.to_dense() if found.is_sparse else found, x[index])
