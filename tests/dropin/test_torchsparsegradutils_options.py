"""Options of the solvers and of the helpers of torchsparsegradutils, each against dense torch."""

import pytest
import torch

import spgrad.dropin.torchsparsegradutils as tsgu
from spgrad.dropin.torchsparsegradutils.encoders import PairwiseEncoder
from spgrad.dropin.torchsparsegradutils.utils import (
    BICGSTABSettings,
    LinearCGSettings,
    MINRESSettings,
    bicgstab,
    convert_coo_to_csr,
    linear_cg,
    lsmr,
    minres,
    rand_sparse,
    rand_sparse_tri,
    sparse_eye,
    stack_csr,
)
from spgrad.dropin.torchsparsegradutils.utils.random_sparse import make_spd_sparse

D, C = torch.float64, torch.complex128
LAYOUTS = [torch.sparse_coo, torch.sparse_csr]
close = torch.testing.assert_close


def drawn(*shape, dtype=D, seed=0):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def definite(m=5, seed=0):
    root = drawn(m, m, seed=seed)
    return root @ root.T + m * torch.eye(m, dtype=D)


# Least squares


def tall(dtype=D):
    return drawn(60, 40, dtype=dtype) / 8 + 3 * torch.eye(60, 40, dtype=dtype)


def as_function(M):
    return {"A": M.matmul, "Armat": M.mH.matmul, "n": M.shape[1]}


@pytest.mark.parametrize("dtype", [torch.float32, D, C], ids=str)
@pytest.mark.parametrize(
    "given",
    [
        lambda M: {"A": M},
        lambda M: {"A": M.to_sparse_csr()},
        lambda M: {"A": M, "Armat": M.mH.contiguous()},
        as_function,
    ],
)
def test_lsmr_ends_where_the_residual_is_orthogonal(given, dtype):
    M, b = tall(dtype), drawn(60, dtype=dtype, seed=1)
    wanted = torch.linalg.pinv(M) @ b
    x, steps = lsmr(b=b, **given(M))
    close(x, wanted, rtol=1e-4, atol=1e-4 if dtype == torch.float32 else 1e-6)
    assert 3 < steps < 30  # of 40 at most: the residual is not 0
    few, done = lsmr(b=b, maxiter=3, **given(M))
    assert done == 3
    assert (few - wanted).abs().max() > 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, D], ids=str)
def test_lsmr_lowers_a_tolerance(dtype):
    M, b = tall(dtype), drawn(60, dtype=dtype, seed=1)
    normal = M.T @ (M @ lsmr(M, b, atol=1.0)[0] - b)
    assert normal.norm() < (1e-4 if dtype == torch.float32 else 1e-7) * (M.T @ b).norm()


@pytest.mark.parametrize("damp", [0.0, 2.0])
@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
def test_lsmr_starts_at_a_guess(shape, damp):
    M, b = tall(), drawn(60, seed=1)
    solution = torch.linalg.solve(M.T @ M + damp**2 * torch.eye(40, dtype=D), M.T @ b)
    x, steps = lsmr(M, b.view(shape), damp=damp, x0=solution.view(shape))
    assert steps == 0
    close(x, solution)
    x, steps = lsmr(M, b, damp=damp, x0=drawn(40, seed=2).view(shape))
    assert steps > 0
    close(x, solution, rtol=1e-6, atol=1e-7)


def test_lsmr_of_numbers():
    x, steps = lsmr(torch.tensor([[2.0]]), torch.tensor(4.0), x0=torch.tensor(2.0))
    assert (x.tolist(), steps) == ([2], 0)


# Systems


@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("columns", [None, 1, 3])
@pytest.mark.parametrize("shifts", [None, [0.0], [0.5, 2.0], [-1.0, 0.0, 3.0]])
@pytest.mark.parametrize("value", [None, 2.0])
def test_minres_solves_shifted_systems(value, shifts, columns, batch):
    """A right-hand side without a batch is that of each matrix."""
    M = torch.stack([definite(), 2 * definite(seed=1)]) if batch else definite()
    right = drawn(5, *([] if columns is None else [columns]), seed=2)
    given = None if shifts is None else torch.tensor(shifts, dtype=D)
    found = minres(M, right, shifts=given, value=value)
    b = right[:, None] if columns is None else right
    wanted = [
        torch.linalg.solve((value or 1) * M + shift * torch.eye(5, dtype=D), b)
        for shift in shifts or [0.0]
    ]
    wanted = torch.stack([x.squeeze(-1) if columns is None else x for x in wanted])
    close(found, wanted if len(wanted) > 1 else wanted[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("columns", [(), (1,), (3,)])
def test_a_guess_that_solves_the_system_comes_back(columns):
    M = definite()
    x = drawn(5, *columns, seed=1)
    b, calls = M @ x, []

    def times(v):
        calls.append(v)
        return M @ v

    for guess in (x, x.reshape(5, -1)):
        close(linear_cg(M, b, initial_guess=guess, max_iter=0), x)
    close(bicgstab(times, b, x), x)
    assert len(calls) <= max(1, *columns, 1)
    close(bicgstab(M, b, x, BICGSTABSettings(matvec_max=1)), x)


def test_settings_that_are_left_out_are_those_of_the_package():
    assert MINRESSettings() == (1000, 1e-4, False)
    assert LinearCGSettings() == (1000, 20, 1, False, False)
    assert BICGSTABSettings()[:4] == (None, 1e-8, 1e-6, None)


BY_OPTIONS = {
    "linear_cg": lambda M, b, tolerance, steps: linear_cg(
        M, b, tolerance=tolerance, max_iter=steps
    ),
    "linear_cg by settings": lambda M, b, tolerance, steps: linear_cg(
        M, b, settings=LinearCGSettings(cg_tolerance=tolerance, max_cg_iterations=steps)
    ),
    "minres": lambda M, b, tolerance, steps: minres(
        M, b, settings=MINRESSettings(minres_tolerance=tolerance, max_cg_iterations=steps)
    ),
    "bicgstab": lambda M, b, tolerance, steps: bicgstab(
        M, b, settings=BICGSTABSettings(reltol=tolerance, abstol=0.0, matvec_max=2 * steps)
    ),
}


@pytest.mark.filterwarnings("ignore:CG ended after")
@pytest.mark.parametrize("solve", BY_OPTIONS.values(), ids=BY_OPTIONS)
def test_tolerances_and_numbers_of_steps_are_kept(solve):
    M = torch.diag(torch.logspace(0, 2, 60, dtype=D)) + 0.05 * torch.ones(60, 60, dtype=D)
    b, calls = drawn(60, seed=1), []

    def times(x):
        calls.append(x)
        return M @ x

    found = {}
    for tolerance in (1e-4, 1e-9, 1e-12):
        calls.clear()
        x = solve(times, b, tolerance, 200)
        found[tolerance] = len(calls), float((M @ x - b).norm() / b.norm())
    # those of conjugate gradients and of minimal residuals are lowered to 1e-8
    assert found[1e-4][0] <= found[1e-9][0] < found[1e-12][0]
    assert found[1e-9][1] < 1e-8
    assert found[1e-12][1] < 1e-11 < found[1e-9][1] < found[1e-4][1] < 1e-3
    calls.clear()
    short = solve(times, b, 1e-12, 3)
    assert len(calls) <= 8
    assert (M @ short - b).norm() > 0.01 * b.norm()


def test_bicgstab_takes_two_products_for_each_row():
    calls, M = [], torch.diag(torch.logspace(0, 12, 30, dtype=D)) + drawn(30, 30)

    def times(x):
        calls.append(x)
        return M @ x

    settings = BICGSTABSettings(reltol=0.0, abstol=0.0)
    for start in (None, drawn(30, seed=1)):
        calls.clear()
        bicgstab(times, drawn(30, seed=2), start, settings)
        assert 58 <= len(calls) <= 61


def test_bicgstab_ends_at_an_absolute_residual_and_tells_a_logger():
    class Told:
        lines = ()

        def info(self, text, *args):
            self.lines += (text % args,)

    told, M, b = Told(), definite(), drawn(5, seed=1)
    settings = BICGSTABSettings(abstol=2 * float(b.norm()), reltol=0.0, logger=told)
    assert not bicgstab(M, b, settings=settings).any()
    x = bicgstab(M, b, settings=settings._replace(abstol=1e-10))
    close(M @ x, b)
    assert [line[:7] for line in told.lines] == ["0 steps", "5 steps"]


def by_numpy(solve):
    """A solver that leaves torch, and so takes no tensor that requires a gradient."""

    def solved(A, B):
        return torch.from_numpy(solve(A.to_dense().numpy(), B.numpy()))

    return solved


@pytest.mark.parametrize("columns", [(), (2,)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_solvers_of_numpy_have_gradients(layout, columns):
    """Of a vector they get and give vectors."""
    linalg = pytest.importorskip("numpy").linalg
    square = definite() + drawn(5, 5, seed=3)
    high = drawn(6, 4, seed=4)
    for M, run, dense in (
        (square, lambda A, b: tsgu.sparse_generic_solve(A, b, by_numpy(linalg.solve)), None),
        (
            high,
            lambda A, b: tsgu.sparse_generic_lstsq(
                A,
                b,
                by_numpy(lambda A, B: linalg.pinv(A) @ B),
                by_numpy(lambda A, B: linalg.pinv(A.T) @ B),
            ),
            torch.linalg.pinv,
        ),
    ):
        A, twin = M.to_sparse(layout=layout).requires_grad_(), M.clone().requires_grad_()
        b = drawn(M.shape[0], *columns, seed=5).requires_grad_()
        other = b.detach().clone().requires_grad_()
        x = run(A, b)
        wanted = torch.linalg.solve(twin, other) if dense is None else dense(twin) @ other
        close(x, wanted)
        g = drawn(*x.shape, seed=6)
        x.backward(g)
        wanted.backward(g)
        close(A.grad.to_dense(), twin.grad)
        close(b.grad, other.grad)


# Sums, stacks, random matrices and encoders


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("include_zeros", [True, False])
@pytest.mark.parametrize("shape", [(2, 4), (4, 2), (3, 2, 4), (3, 4, 2)])
@pytest.mark.parametrize("layout", [*LAYOUTS, torch.sparse_csc])
def test_logarithms_of_sums_of_matrices_and_batches(layout, shape, include_zeros):
    size = shape[-2] * shape[-1]
    stored = torch.randperm(size, generator=torch.Generator().manual_seed(0)) < size - 3
    dense = (drawn(*shape) * stored.view(shape[-2:])).requires_grad_()
    A = dense.detach().to_sparse(layout=layout).requires_grad_()
    shown = dense if include_zeros else dense.where(dense != 0, -torch.inf)
    column, row = tsgu.sparse_bidir_logsumexp(A, include_zeros=include_zeros)
    close(column, shown.logsumexp(-2))
    close(row, shown.logsumexp(-1))
    kept = tsgu.sparse_bidir_logsumexp(A, True, include_zeros)
    close(kept, (column.unsqueeze(-2), row.unsqueeze(-1)))
    for dim, result in ((-2, column), (-1, row)):
        close(tsgu.sparse_logsumexp(A, dim, False, include_zeros), result)
        kept = tsgu.sparse_logsumexp(A, dim % len(shape), True, include_zeros)
        close(kept, result.unsqueeze(dim))
    both = tsgu.sparse_logsumexp(A, (-1, -2), include_zeros=include_zeros)
    close(both, shown.logsumexp((-1, -2)))
    padded = tsgu.sparse_bidir_logsumexp(A, False, include_zeros, "padded")
    assert padded.shape == (2, *shape[:-2], max(shape[-2:]))
    close(padded[0, ..., : shape[-1]], column)
    close(padded[1, ..., : shape[-2]], row)
    assert int(padded.isneginf().sum()) >= 2 * padded[0, ..., 0].numel()
    both.sum().backward()
    shown.logsumexp((-1, -2)).sum().backward()
    close(A.grad.to_dense(), dense.grad.where(dense != 0, 0))


def test_stacks_hold_the_matrices_in_their_order():
    parts = [rand_sparse((3, 4), 5, torch.sparse_csr) for _ in range(2)]
    assert torch.equal(stack_csr(parts).to_dense(), torch.stack([p.to_dense() for p in parts]))


@pytest.mark.parametrize("shape", [(3, 4), (0, 4), (3, 0), (2, 3, 4), (1, 3, 4), (0, 3, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, C], ids=str)
def test_matrices_without_elements_become_csr(shape, dtype):
    A = convert_coo_to_csr(torch.zeros(shape, dtype=dtype).to_sparse())
    assert (A.layout, A.shape, A.dtype) == (torch.sparse_csr, shape, dtype)
    assert A.crow_indices().shape == (*shape[:-2], shape[-2] + 1)
    assert not A.crow_indices().any()


@pytest.mark.parametrize("counts", [(1, 3), (0, 2), (2, 0), (2, 2, 0), (3, 1)])
def test_items_of_other_numbers_of_elements_do_not_become_csr(counts):
    A = torch.stack([(torch.arange(4) < n).view(2, 2) for n in counts]).double().to_sparse()
    text = f"items have from {min(counts)} to {max(counts)} elements; one number is taken"
    with pytest.raises(ValueError, match=text):
        convert_coo_to_csr(A)


INDEX = pytest.mark.parametrize("index", [torch.int32, torch.int64])


def index_dtypes(A):
    """Those of the arrays that keep their dtype; the indices of COO become int64."""
    return {A.crow_indices().dtype, A.col_indices().dtype} if A.layout == torch.sparse_csr else None


@INDEX
@pytest.mark.parametrize("dtype", [torch.float32, D], ids=str)
@pytest.mark.parametrize("size", [(4, 4), (2, 4, 4)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_made_matrices_have_the_dtypes_and_numbers_that_are_asked_for(layout, size, dtype, index):
    options = {"values_dtype": dtype, "indices_dtype": index, "device": "cpu"}
    bounds = {"value_range": (2.0, 3.0)}
    for kind, A in {
        "any": rand_sparse(size, 7, layout, **options),
        "safe": rand_sparse(size, 16, layout, well_conditioned=True, min_diag_value=5, **options),
        "upper": rand_sparse_tri(size, 7, layout, **bounds, **options),
        "lower": rand_sparse_tri(size, 7, layout, upper=False, **bounds, **options),
        "strict": rand_sparse_tri(size, 5, layout, strict=True, **bounds, **options),
        "eye": sparse_eye(size, layout=layout, **options),
    }.items():
        dense, items = A.to_dense(), size[0] if len(size) == 3 else 1
        assert (A.layout, A.shape, A.dtype, A.requires_grad) == (layout, size, dtype, False)
        assert index_dtypes(A) in (None, {index})
        count = {"safe": 16, "strict": 5, "eye": 4}.get(kind, 7)
        assert A.values().numel() == count * items
        diagonal = dense.diagonal(0, -2, -1)
        if kind in ("any", "safe"):
            assert 0 <= dense.min() <= dense.max() < 1 or kind == "safe"
        if kind == "safe":
            assert 5 <= diagonal.min() <= diagonal.max() < 5.5
            assert (dense - torch.diag_embed(diagonal)).max() < 1
        elif kind == "eye":
            assert torch.equal(dense, torch.eye(4, dtype=dtype).expand(size))
        elif kind != "any":
            assert 2 <= A.values().min() <= A.values().max() < 3
            triangle = {"upper": dense.triu(), "lower": dense.tril(), "strict": dense.triu(1)}
            assert torch.equal(dense, triangle[kind])
    leaf = sparse_eye(size, layout=layout, requires_grad=True)
    assert (leaf.requires_grad, leaf.is_leaf, leaf.dtype) == (True, True, D)


@INDEX
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("ratio", "zeros"), [(0.0, 0), (0.5, 20), (1.0, 42)])
def test_definite_matrices_have_a_share_of_zeros(ratio, zeros, layout, index):
    made, dense = make_spd_sparse(7, layout, torch.float32, index, "cpu", sparsity_ratio=ratio)
    assert (made.layout, made.dtype, dense.dtype) == (layout, torch.float32, torch.float32)
    assert index_dtypes(made) in (None, {index})
    assert torch.equal(made.to_dense(), dense)
    assert torch.equal(dense, dense.T)
    assert int((dense == 0).sum()) == zeros
    assert torch.linalg.eigvalsh(dense).min() > 1


@INDEX
@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_encoder_shows_its_options(index, layout):
    options = {"diag": True, "upper": False, "channel_voxel_relation": "intra", "layout": layout}
    code = PairwiseEncoder(1.5, (2, 3, 4), **options, indices_dtype=index)
    for name, value in options.items():
        assert getattr(code, name) == value
    assert (code.radius, code.volume_shape, code.indices_dtype) == (1.5, (2, 3, 4), index)
    assert (code.volume_numel, code.spatial_dims) == (24, 2)
    arrays = [code.indices] if layout == torch.sparse_coo else [code.crow_indices, code.col_indices]
    assert {t.dtype for t in arrays} == {index}


@pytest.mark.parametrize("size", [(2, 3), (3, 2), (2, 2, 3)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_places_of_a_matrix_that_is_not_square_are_drawn(layout, size):
    A = rand_sparse(size, 6, layout, value_range=(2.0, 3.0))
    assert A.values().numel() == A.numel()
    assert 2 <= A.to_dense().min() <= A.to_dense().max() < 3
