"""Options of the solvers and of the helpers of torchsparsegradutils, each against dense torch."""

import pytest
import torch

import spgrad.dropin.torchsparsegradutils as tsgu
from spgrad.dropin.torchsparsegradutils.encoders import PairwiseEncoder
from spgrad.dropin.torchsparsegradutils.utils import linear_cg, lsmr, minres, rand_sparse, stack_csr
from spgrad.dropin.torchsparsegradutils.utils.bicgstab import BICGSTABSettings, bicgstab

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


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_an_encoder_shows_its_options(index, layout):
    options = {"diag": True, "upper": False, "channel_voxel_relation": "intra", "layout": layout}
    code = PairwiseEncoder(1.5, (2, 3, 4), **options, indices_dtype=index)
    for name, value in options.items():
        assert getattr(code, name) == value
    assert (code.radius, code.volume_shape, code.indices_dtype) == (1.5, (2, 3, 4), index)
    assert (code.volume_numel, code.spatial_dims) == (24, 2)
    arrays = [code.indices] if layout == torch.sparse_coo else [code.crow_indices, code.col_indices]
    assert {t.dtype for t in arrays} == {index}
