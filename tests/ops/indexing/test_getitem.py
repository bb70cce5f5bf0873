"""Index expressions and their relatives: sparse against dense, in value and gradients."""

import random

import numpy as np
import pytest
import torch

import spgrad
from spgrad import support, testing
from spgrad.core import kept
from spgrad.core.pattern import LAYOUTS

layouts = pytest.mark.parametrize("name", support.ALL)
F64 = torch.float64
RANDOM, DRAWS = 6, 60


def made(name="csr", shape=(4, 6), **options):
    return testing.random_sparse(shape, LAYOUTS[name], **options).requires_grad_()


def dims_of(part):
    if part is None or part is ... or isinstance(part, bool):
        return 0
    return part.dim() if isinstance(part, torch.Tensor) and part.dtype == torch.bool else 1


def of_dense(x, index):
    """x[index], with the negative steps that torch refuses and lists as index tensors."""
    parts = list(index) if isinstance(index, tuple) else [index]
    if not any(part is ... for part in parts):
        parts.append(...)
    more = x.dim() - sum(map(dims_of, parts))
    found, dim = [], 0
    for part in parts:
        if isinstance(part, slice) and (part.step or 1) < 0:
            places = range(x.shape[dim])[part][::-1]  # ascending, then turned round
            x = x.flip(dim)
            last = x.shape[dim] - 1
            start, stop = (last - places[-1], last - places[0] + 1) if places else (0, 0)
            part = slice(start, stop, -part.step)
        elif isinstance(part, list | range):
            part = torch.tensor(list(part), dtype=None if list(part) else torch.int64)
        elif isinstance(part, torch.Tensor) and part.layout != torch.strided:
            part = part.to_dense()
        found.append(part)
        dim += more if part is ... else dims_of(part)
    return x[tuple(found)]


def check_pattern(pattern):
    """Sorted, unique and in range, as the checks of a constructor find it."""
    if pattern.is_coo:
        sizes = tuple(pattern.shape[: pattern.sparse_dim])
        assert spgrad.core.checks.require_coordinates("test", pattern.indices[0], sizes)
    else:
        m, k = (n // b for n, b in zip(pattern.matrix, pattern.blocksize or (1, 1), strict=True))
        lines, across = (m, k) if pattern.compressed_by_rows else (k, m)
        spgrad.core.checks.require_compressed("test", ("p", "i"), *pattern.indices, across, lines)
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


S = slice
MASK = torch.tensor([True, False, True, True])
WIDE = torch.tensor([False, True, True, False, False, True])
MATRIX = {
    "row": 2,
    "last_row": (-1,),
    "rows": S(1, 3),
    "odd_rows": S(1, 2),
    "rows_reversed": S(None, None, -1),
    "column": (S(None), 3),
    "columns": (S(None), S(2, 4)),
    "odd_columns": (S(None), S(1, 4)),
    "steps": (S(3, None, -2), S(1, None, 2)),
    "outside": (S(-9, 9), S(4, 99)),
    "nothing": (S(3, 1), S(None)),
    "element": (1, 2),
    "numbers": (np.int64(1), torch.tensor(-1)),
    "list": [3, 0, 3],
    "no_list": [],
    "range": range(2),
    "columns_listed": (S(None), [5, 0, 0, 2]),
    "rows_and_columns": (S(1, 4), [4, 1]),
    "points": ([0, 1, 3, 3], [0, -1, 2, 2]),
    "grid_of_points": (torch.tensor([[0], [2]]), torch.tensor([[1, 3]])),
    "matrix_of_rows": torch.tensor([[0, 1], [3, 3]], dtype=torch.int32),
    "row_mask": MASK,
    "mask_list": [True, False, True, True],
    "column_mask": (..., WIDE),
    "two_masks": (MASK, WIDE),
    "array": np.array([1, 0]),
    "batch": None,
    "behind": (..., None),
    "between": (S(None), None, [1, 2]),
    "true": True,
    "false": False,
    "true_and_list": (True, [1, 0, 2]),
    "int_and_list": (-2, [1, 0]),
}
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
    compare(made(name), MATRIX[case])


@layouts
@pytest.mark.parametrize("case", BATCH)
def test_batches(case, name, poisoned):
    compare(made(name, (2, 4, 6)), BATCH[case])


@layouts
@pytest.mark.parametrize("case", HYBRID)
def test_dense_dimensions(case, name, poisoned):
    compare(made(name, (4, 6, 3, 2), dense_dim=2), HYBRID[case])


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
    return made(
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
        told = f"draw {draw}: {A.pattern.name} {tuple(A.shape)} {A.dense_dim()} {index}"
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
            raise AssertionError(told) from error
        answered += 1
    assert answered > DRAWS // 2
    assert refused < DRAWS // 10  # a dense dimension in front


@layouts
@pytest.mark.parametrize("case", ["steps", "columns_listed", "points", "list"])
def test_second_derivatives(case, name):
    check_second(made(name), MATRIX[case])


@layouts
def test_layouts_of_results(name):
    A, B = made(name), made(name, (2, 4, 6))
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
    A = made("bsr", (8, 6))
    assert A[2:6, 2:].nse <= A.nse
    assert A[2:6].values().shape[1:] == (2, 2)
    testing.assert_close(A[2:6].values().detach(), A.values()[A[:2].nse :][: A[2:6].nse].detach())
    assert A[::2].pattern.elements >= A[::2].to_sparse_csr().nse


@layouts
def test_sparse_masks(name):
    A = made(name)
    for mask in (A.detach() > 0, (made("coo", seed=1).detach() > 0), made("csc").detach() != 0):
        compare(A, mask)
        y = compare(A, mask, take=torch.masked_select)
        assert y.dim() == 1
    wide = made(name, (4, 6, 3), dense_dim=1)
    compare(wide, wide.detach() > 0.3)
    compare(wide, (A.detach() > 0).to_sparse_coo())


def test_vectors():
    v = made("coo", (7,), coalesced=False)
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


@layouts
def test_names_of_torch(name):
    A, H = made(name, (2, 4, 6)), made(name, (4, 6, 3), dense_dim=1)
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
    for A in (made(name), made(name, (3, 4, 6)), made(name, (4, 6, 3), dense_dim=1)):
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


def test_iteration():
    A = made()
    assert [row.shape for row in A] == [(6,)] * 4
    assert [x.shape for x in made("coo", (3,))] == [()] * 3
    assert made("coo", (0, 3)).unbind() == ()


# Cost


def test_rows_of_csr_and_coo_look_at_nothing_else():
    """No conversion, transpose or list of all positions is made for rows, ranges and points."""
    for name in ("csr", "csc", "coo"):
        A = made(name, (40, 60)).detach()
        before = set(A.pattern._derived)
        part = A[:, 3] if name == "csc" else A[3]
        assert part.nse < A.nse
        _ = (A[:, 3:9], A[:, 5:6]) if name == "csc" else (A[3:9], A[5:6])
        _ = A[2, 3], A[:, [4, 2]] if name == "csc" else A[[4, 2]]
        assert set(A.pattern._derived) - before == {kept.PART}


@pytest.mark.parametrize("index", [torch.tensor([4, 2]), slice(3, 9), (slice(None), slice(1, 4))])
def test_parts_of_inference_mode_have_patterns_for_training(index):
    A = made("csr", (40, 60)).detach()
    with torch.inference_mode():
        pattern = A[index].pattern
    assert not any(t.is_inference() for t in pattern.indices)


def test_lists_that_are_no_dense_tensors_are_refused():
    rows = torch.tensor([0, 1, 0]).to_sparse()
    with pytest.raises(TypeError, match=r"spgrad\.getitem: `index`"):
        made("csr", (3, 4))[rows]


def test_index_work_is_kept_for_slices_and_limited():
    A = made()
    assert A[1:3].pattern is A[1:3].pattern
    for i in range(4):
        for j in range(4):
            A[i:, j:]
    assert len(A.pattern.derived(kept.PART)) <= 8
    with torch.inference_mode():
        part = A.detach()[0:2]
    assert not part.pattern.indices[0].is_inference()


def test_parts_are_copies():
    A = made().detach()
    before = A.to_dense()
    for y in (A[1:3], A[0], A[[0]], A.unbind()[0], A.narrow(1, 0, 3)):
        y.mul_(2)
        assert y._vals.untyped_storage().data_ptr() != A._vals.untyped_storage().data_ptr()
        idx = y.pattern.indices[-1]
        assert idx.untyped_storage().nbytes() <= idx.numel() * 16
    testing.assert_close(A, before)


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


# Assignment


@layouts
@pytest.mark.parametrize(
    "case", [c for c in MATRIX if c not in ("list", "points", "matrix_of_rows")]
)
def test_assignment(case, name):
    index = MATRIX[case]
    index = index if not isinstance(index, slice | list) else (index,)
    F = made(name, density=1.1)
    x = F.detach().to_dense()
    shape = of_dense(x, index).shape
    value = torch.randn(shape, dtype=F64)
    turned = of_dense(torch.arange(24).view(4, 6), index).reshape(-1)
    wanted = x.view(-1).index_copy(0, turned, value.reshape(-1)).view(4, 6)
    B = F.detach().clone()
    B[index] = value
    testing.assert_close(B, wanted)
    assert B.pattern is F.pattern
    value.requires_grad_()
    C = F * 1
    C[index] = value
    testing.assert_close(C.detach(), wanted)
    g = torch.randn(4, 6, dtype=F64)
    of_F, of_value = torch.autograd.grad(C.to_dense(), (F, value), g)
    testing.assert_close(of_F, g.view(-1).index_fill(0, turned, 0).view(4, 6))
    testing.assert_close(of_value, g.view(-1)[turned].view(shape))


@layouts
def test_assignment_where_elements_are_missing(name):
    A = made(name).detach()
    x = A.to_dense()
    mask = testing.mask_of(A.pattern)
    B = A.clone()
    B[1:3] = 0
    B[:, 1] = 0.0 * torch.ones(4)
    numbers = torch.arange(int(mask.sum()), dtype=F64)
    B[mask] = numbers
    testing.assert_close(B, torch.zeros(4, 6, dtype=F64).masked_scatter(mask, numbers))
    B[A > 0] = 7
    assert B[A > 0].eq(7).all()
    assert torch.equal(
        B.to_dense() == 7, (x > 0) | (torch.zeros_like(x).masked_scatter(mask, numbers) == 7)
    )
    B[1:3] = 2 * A[1:3]
    testing.assert_close(B[1:3], 2 * x[1:3])
    B[0] *= 3
    B[2] = spgrad.zeros(6, layout=torch.sparse_coo, dtype=F64)
    assert B[2].to_dense().count_nonzero() == 0
    row, col = (~mask).nonzero()[0].tolist()
    for index, value in (
        ((row, col), 1.0),
        (row, 1.0),
        ((S(None), col), torch.ones(4, dtype=F64)),
        (~mask, 2),
        (S(None), spgrad.sparse_coo_tensor([[row], [col]], [1.0], (4, 6)).double()),
    ):
        with pytest.raises(spgrad.StateError, match=r"setitem: `value`.*Add elements first: A \+"):
            A[index] = value
    testing.assert_close(A, x)


def test_assignment_in_graphs():
    A = made()
    with pytest.raises(RuntimeError, match="leaf"):
        A[0] = 0
    with torch.no_grad():
        A[0] = 0
    assert A[0].detach().values().abs().sum() == 0
    y = A.sin()
    used = (y * y).values().sum()
    y[0] = 0
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        used.backward()
    B = made("coo", coalesced=False).detach()
    with pytest.raises(spgrad.StateError, match="setitem"):
        B[0] = 0


@layouts
def test_assignment_to_dense_dimensions(name):
    H = made(name, (4, 6, 3), dense_dim=1, density=1.1).detach()
    x = H.to_dense()
    for index, value in (
        ((..., 1), 5.0),
        ((S(1, 3), [0, 2], [2, 0]), 6.0),
        (([0, 1], [1, 2]), torch.randn(2, 3, dtype=F64)),
        ((1, 2, S(0, 2)), torch.randn(2, dtype=F64)),
        (S(0, 2), torch.randn(2, 6, 1, dtype=F64)),
    ):
        H[index] = value
        x[index] = value
        testing.assert_close(H, x)


@layouts
def test_index_add(name, poisoned):
    for dim, count in ((0, 3), (1, 5)):
        A = made(name)
        shape = [4, 6]
        shape[dim] = count
        B = made("coo" if name.startswith("b") else name, tuple(shape), seed=1)
        index = torch.randint(A.shape[dim], (count,))
        y = A.index_add(dim, index, B, alpha=2)
        a, b = testing.dense_leaves([A, B])
        wanted = a.index_add(dim, index, b, alpha=2)
        testing.assert_close(y.detach(), wanted.detach())
        assert y.layout == A.layout
        g = torch.randn(4, 6, dtype=F64)
        wanted.backward(g)
        y.to_dense().backward(g)
        for operand, twin in ((A, a), (B, b)):
            testing.assert_close(operand.grad, twin.grad * testing.mask_of(operand.pattern))
    H = made(name, (4, 6, 3), dense_dim=1)
    y = torch.index_add(H, 0, torch.tensor([3, 3, 0, 1]), H)
    x = H.detach().to_dense()
    testing.assert_close(y.detach(), x.index_add(0, torch.tensor([3, 3, 0, 1]), x))


# Refusals

A46 = testing.random_sparse((4, 6))
H463 = testing.random_sparse((4, 6, 3), dense_dim=1)
REFUSALS = {
    "row": (lambda: A46[4], ValueError, "getitem: `index` has 4 for dimension 0 of size 4"),
    "column": (lambda: A46[:, -7], ValueError, "`index` has -7 for dimension 1 of size 6"),
    "listed": (lambda: A46[:, [0, 6]], ValueError, "`index` has 6 for dimension 1 of size 6"),
    "dense": (lambda: H463[..., 3], ValueError, "for dimension 2 of size 3"),
    "empty": (lambda: A46[0:0][0], ValueError, "no index is accepted"),
    "many": (lambda: A46[0, 0, 0], ValueError, "has 3 indices"),
    "ellipses": (lambda: A46[..., ...], ValueError, "2 ellipses"),
    "mask": (lambda: A46[:, MASK], ValueError, r"mask of shape \(4,\) for the dimensions from 1"),
    "shapes": (lambda: A46[[0, 1], [0, 1, 2]], ValueError, r"shapes \(2,\), \(3,\)"),
    "float": (lambda: A46[1.0], TypeError, "`index` has a float"),
    "floats": (lambda: A46[[0.5]], TypeError, "a tensor of dtype float32"),
    "uint8": (lambda: A46[torch.ones(4, dtype=torch.uint8)], TypeError, "dtype uint8"),
    "text": (lambda: A46["row"], TypeError, "`index` has a str"),
    "slices_listed": (lambda: A46[[S(1), 2]], TypeError, "`index` has a list"),
    "zero_step": (lambda: A46[::0], ValueError, "for dimension 0"),
    "dense_first": (
        lambda: testing.random_sparse((4, 6, 3, 2, 2), dense_dim=3)[..., [0], :, [1]],
        NotImplementedError,
        "in front of sparse ones",
    ),
    "dense_operand": (lambda: spgrad.getitem(torch.ones(3), 0), TypeError, "getitem: `input`"),
    "select": (lambda: A46.select(0, 4), ValueError, "select: `index` has 4 for dimension 0"),
    "dim": (lambda: A46.select(2, 0), ValueError, "select: `dim` is 2"),
    "narrow": (lambda: A46.narrow(1, 4, 3), ValueError, "narrow: `start` is 4 and `length` 3"),
    "negative": (
        lambda: A46.index_select(0, torch.tensor([-1])),
        ValueError,
        "index_select: `index` has -1",
    ),
    "no_vector": (
        lambda: A46.index_select(0, torch.zeros(1, 1, dtype=torch.int64)),
        ValueError,
        "index_select: `index`",
    ),
    "no_tensor": (lambda: spgrad.index_select(A46, 0, [1]), TypeError, "index_select: `index`"),
    "split": (lambda: A46.split(0), ValueError, "split: `split_size_or_sections` is 0"),
    "sections": (lambda: A46.split([1, 2]), ValueError, "add up to"),
    "chunk": (lambda: A46.chunk(0), ValueError, "chunk: `chunks` is 0"),
    "masked": (lambda: A46.masked_select(MASK), ValueError, "masked_select: `mask`"),
    "no_mask": (lambda: A46.masked_select(A46), TypeError, "masked_select: `mask`"),
    "value": (lambda: spgrad.setitem(A46, 0, "x"), TypeError, "setitem: `value`"),
    "value_shape": (lambda: spgrad.setitem(A46, 0, torch.ones(5)), ValueError, "setitem: `value`"),
    "complex": (lambda: spgrad.setitem(A46, 0, 1j), ValueError, "setitem: `value`"),
    "added": (
        lambda: A46.index_add(0, torch.tensor([0]), A46),
        ValueError,
        r"index_add: `source` has shape \(4, 6\)",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals(case):
    function, error, says = REFUSALS[case]
    with pytest.raises(error, match=says) as caught:
        function()
    assert isinstance(caught.value, spgrad.SpgradError)
