"""spgrad.linalg.solve with every solver against dense torch.linalg: values and gradients."""

import pytest
import torch

import spgrad
from spgrad import linalg, testing
from spgrad.core.pattern import LAYOUTS

D, C = torch.float64, torch.complex128
TIGHT = {"rtol": 1e-13, "max_iter": 500}
GENERAL = {
    "direct": None,
    "bicgstab": linalg.BiCGSTAB(**TIGHT),
    "gmres": linalg.GMRES(**TIGHT),
    "gmres, restarted": linalg.GMRES(**TIGHT, restart=4),
    "gmres, ilu0": linalg.GMRES(**TIGHT, preconditioner=linalg.ILU0()),
    "bicgstab, blocks": linalg.BiCGSTAB(**TIGHT, preconditioner=linalg.BlockJacobi(3)),
    "bicgstab, ssor": linalg.BiCGSTAB(**TIGHT, preconditioner=linalg.SSOR(1.2)),
    "lsmr": linalg.LSMR(**TIGHT),
}
DEFINITE = {
    "direct": None,
    "cg": linalg.CG(**TIGHT),
    "cg, jacobi": linalg.CG(**TIGHT, preconditioner=linalg.Jacobi()),
    "cg, ic0": linalg.CG(**TIGHT, preconditioner=linalg.IC0()),
    "cg, ssor": linalg.CG(**TIGHT, preconditioner=linalg.SSOR()),
    "cg, factor": linalg.CG(**TIGHT, preconditioner=linalg.SuperLU()),
    "cg, callable": linalg.CG(**TIGHT, preconditioner=lambda r: r / 5),
    "minres": linalg.MINRES(**TIGHT),
    "minres, jacobi": linalg.MINRES(**TIGHT, preconditioner=linalg.Jacobi()),
}


def general(m=10, dtype=D, seed=0, batch=()):
    """Nonsymmetric and well conditioned, with all of its diagonal."""
    g = torch.Generator().manual_seed(seed)
    made = torch.randn(*batch, m, m, dtype=dtype, generator=g)
    made = made * (torch.rand(*batch, m, m, generator=g) < 0.3)
    return made + 5 * torch.eye(m, dtype=dtype)


def definite(m=10, dtype=D, seed=0, batch=()):
    """Hermitian positive definite, with the pattern of its sum with the transpose."""
    half = general(m, dtype, seed, batch)
    return (half + half.mH) / 2 + 2 * torch.eye(m, dtype=dtype)


def right(*shape, dtype=D):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(7))


def check(M, b, solver, **options):
    """Value and both gradients, for M dense."""
    layout = options.pop("layout", "csr")
    blocksize = (2, 2) if layout in ("bsr", "bsc") else None
    A = spgrad.from_dense(M, LAYOUTS[layout], blocksize=blocksize).requires_grad_()
    ours, theirs = b.clone().requires_grad_(), b.clone().requires_grad_()
    dense = A.detach().to_dense().requires_grad_()
    x, wanted = linalg.solve(A, ours, solver, **options), torch.linalg.solve(dense, theirs)
    torch.testing.assert_close(x, wanted, rtol=1e-9, atol=1e-10)
    w = torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(3))
    x.backward(w)
    wanted.backward(w)
    assert A.grad.pattern is A.pattern
    at_pattern = dense.grad.where(testing.mask_of(A.pattern), 0)
    torch.testing.assert_close(A.grad.to_dense(), at_pattern, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("dtype", [D, C])
@pytest.mark.parametrize("name", GENERAL)
def test_nonsymmetric(name, dtype):
    """A transpose that was left out would show here."""
    check(general(dtype=dtype), right(10, 3, dtype=dtype), GENERAL[name])


@pytest.mark.parametrize("dtype", [D, C])
@pytest.mark.parametrize("name", DEFINITE)
def test_positive_definite(name, dtype):
    b = right(10, 3, dtype=dtype)
    check(definite(dtype=dtype), b, DEFINITE[name], assume="positive definite")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", GENERAL)
def test_layouts(name, layout):
    check(general(dtype=C), right(10, dtype=C), GENERAL[name], layout=layout)
    check(general(batch=(2,)), right(2, 10, 2), GENERAL[name], layout=layout)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", DEFINITE)
def test_layouts_of_definite_matrices(name, layout):
    options = {"layout": layout, "assume": "positive definite"}
    check(definite(dtype=C), right(10, dtype=C), DEFINITE[name], **options)
    check(definite(batch=(2,)), right(2, 10, 2), DEFINITE[name], **options)


@pytest.mark.parametrize("name", GENERAL)
def test_batches(name):
    """Items differ in their elements; each converges by itself, and batch dimensions broadcast."""
    M = general(batch=(3,))
    M[1] = torch.eye(10, dtype=D)
    for shape in [(3, 10), (3, 10, 2), (10, 2), (4, 1, 10, 2)]:
        check(M, right(*shape), GENERAL[name])
    check(general(), right(3, 10, 2), GENERAL[name])


@pytest.mark.parametrize("name", DEFINITE)
def test_batches_of_definite_matrices(name):
    M = definite(batch=(3,))
    M[2] = 3 * torch.eye(10, dtype=D)
    check(M, right(3, 10, 4), DEFINITE[name], assume="positive definite")


@pytest.mark.parametrize("dtype", [D, C])
@pytest.mark.parametrize("name", GENERAL)
def test_second_order(name, dtype):
    A = spgrad.from_dense(general(6, dtype))
    vals, b = A.values().clone().requires_grad_(), right(6, 2, dtype=dtype).requires_grad_()

    def run(vals, b):
        return linalg.solve(spgrad.from_values(vals, A), b, GENERAL[name])

    assert torch.autograd.gradcheck(run, (vals, b), fast_mode=True)
    assert torch.autograd.gradgradcheck(run, (vals, b), fast_mode=True)


@pytest.mark.parametrize("dtype", [D, C])
@pytest.mark.parametrize("name", DEFINITE)
def test_second_order_of_definite_matrices(name, dtype):
    A = spgrad.from_dense(definite(6, dtype))
    vals, b = A.values().clone().requires_grad_(), right(6, 2, dtype=dtype).requires_grad_()

    def run(vals, b):
        half = spgrad.from_values(vals, A)
        return linalg.solve((half + half.mH) / 2, b, DEFINITE[name], assume="positive definite")

    assert torch.autograd.gradcheck(run, (vals, b), fast_mode=True)
    assert torch.autograd.gradgradcheck(run, (vals, b), fast_mode=True)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("solver", [None, *map(GENERAL.get, ["bicgstab", "gmres", "lsmr"])])
def test_second_order_of_layouts_and_batches(solver, layout):
    """A hermitian matrix would not tell a transpose; each item of the batch differs."""
    M = general(4, C, batch=(2,))
    blocksize = (2, 2) if layout in ("bsr", "bsc") else None
    A = spgrad.from_dense(M, LAYOUTS[layout], blocksize=blocksize)
    vals, b = A.values().clone().requires_grad_(), right(2, 4, 2, dtype=C).requires_grad_()

    def run(vals, b):
        return linalg.solve(spgrad.from_values(vals, A), b, solver)

    assert torch.autograd.gradcheck(run, (vals, b), fast_mode=True)
    assert torch.autograd.gradgradcheck(run, (vals, b), fast_mode=True)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["cg", "cg, jacobi", "minres", "minres, jacobi"])
def test_second_order_of_definite_layouts_and_batches(name, layout):
    """Value, gradients, and the gradients of a product with them, against torch.linalg.solve."""
    M, b = definite(4, C, batch=(2,)), right(2, 4, 2, dtype=C)
    blocksize = (2, 2) if layout in ("bsr", "bsc") else None
    A = spgrad.from_dense(M, LAYOUTS[layout], blocksize=blocksize)
    direction = right(*A.values().shape, dtype=C)

    def orders(solve):
        vals, y = A.values().clone().requires_grad_(), b.clone().requires_grad_()
        half = spgrad.from_values(vals, A)
        x = solve(half, y)
        first = torch.autograd.grad((x.abs() ** 2).sum(), (vals, y), create_graph=True)
        along = (first[0] * direction.conj()).real.sum() + (first[1] * b.conj()).real.sum()
        return x, *first, *torch.autograd.grad(along, (vals, y))

    def sparse(half, y):
        return linalg.solve((half + half.mH) / 2, y, DEFINITE[name], assume="positive definite")

    def dense(half, y):
        whole = half.to_dense()
        return torch.linalg.solve((whole + whole.mH) / 2, y)

    for found, wanted in zip(orders(sparse), orders(dense), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("solver", [None, linalg.BiCGSTAB(**TIGHT)])
def test_torch_func(solver):
    A = spgrad.from_dense(general(6))
    b, at_elements = right(6), tuple(A.coo_indices())

    def ours(vals, b):
        return linalg.solve(spgrad.from_values(vals, A), b, solver)

    def dense(vals, b):
        return torch.linalg.solve(torch.zeros(6, 6, dtype=D).index_put(at_elements, vals), b)

    vals = A.values()
    for transform in (torch.func.jacrev, torch.func.jacfwd):
        for at in (0, 1):
            found, wanted = transform(ours, at)(vals, b), transform(dense, at)(vals, b)
            torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-9)
    many = torch.stack([vals, 2 * vals, vals + 0.1])
    found = torch.func.vmap(torch.func.grad(lambda v: ours(v, b).square().sum()))(many)
    wanted = torch.stack([torch.func.grad(lambda v: dense(v, b).square().sum())(v) for v in many])
    torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-9)


def test_checkpointing():
    A = spgrad.from_dense(general()).requires_grad_()
    b = right(10)
    x = torch.utils.checkpoint.checkpoint(linalg.solve, A, b, use_reentrant=False)
    x.sum().backward()
    other = A.detach().requires_grad_()
    linalg.solve(other, b).sum().backward()
    torch.testing.assert_close(A.grad.values(), other.grad.values())


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("assume", [None, "triangular"])
def test_triangular(upper, assume):
    M = general().triu() if upper else general().tril()
    check(M, right(10, 2), None, assume=assume)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
@pytest.mark.parametrize(
    "solver", [None, linalg.CG(), linalg.MINRES(), linalg.BiCGSTAB(), linalg.GMRES(), linalg.LSMR()]
)
def test_single_precision(solver, dtype):
    M = definite(dtype=dtype)
    x = linalg.solve(spgrad.from_dense(M), right(10, 2, dtype=dtype), solver)
    wanted = torch.linalg.solve(M, right(10, 2, dtype=dtype))
    assert x.dtype == dtype
    torch.testing.assert_close(x, wanted, rtol=1e-3, atol=1e-4)


def test_from_the_left():
    M, b = general(dtype=C), right(3, 10, dtype=C)
    A = spgrad.from_dense(M).requires_grad_()
    dense = M.clone().requires_grad_()
    for solver in (None, GENERAL["gmres"]):
        x, wanted = linalg.solve(A, b, solver, left=False), torch.linalg.solve(dense, b, left=False)
        torch.testing.assert_close(x, wanted)
        (ours,) = torch.autograd.grad(x.abs().square().sum(), A)
        (theirs,) = torch.autograd.grad(wanted.abs().square().sum(), dense)
        at_pattern = theirs.where(testing.mask_of(A.pattern), 0)
        torch.testing.assert_close(ours.to_dense(), at_pattern)


def test_names_of_torch():
    M, b = general(), right(10, 2)
    A = spgrad.from_dense(M)
    wanted = torch.linalg.solve(M, b)
    for found in (torch.linalg.solve(A, b), torch.sparse.spsolve(A, b)):
        torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(torch.linalg.lstsq(A, b).solution, wanted, rtol=1e-6, atol=1e-7)
    with pytest.raises(spgrad.UnsupportedError, match="the inverse of a sparse matrix is dense"):
        torch.linalg.inv(A)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64])
def test_what_lstsq_of_torch_gives_beside_the_solution(dtype):
    """Empty tensors of torch's dtypes, no two of them one object."""
    M, b = torch.eye(2, dtype=dtype), torch.ones(2, 1, dtype=dtype)
    found, wanted = torch.linalg.lstsq(spgrad.from_dense(M), b), torch.linalg.lstsq(M, b)
    assert [t.dtype for t in found] == [t.dtype for t in wanted]
    assert [t.numel() for t in found[1:]] == [0, 0, 0]
    assert len(set(map(id, found))) == 4


def test_batches_that_do_not_fit():
    A = spgrad.from_dense(torch.eye(3).expand(2, 3, 3))
    with pytest.raises(
        ValueError, match=r"`b` has shape \(3, 3, 1\); a batch that broadcasts with"
    ):
        spgrad.linalg.solve(A, torch.ones(3, 3, 1))


def test_blocks_that_have_no_inverse():
    dense = torch.block_diag(torch.eye(2), torch.ones(2, 2), torch.eye(1))
    b = torch.ones(5)

    def solved(A, size):
        jacobi = spgrad.linalg.BlockJacobi(size)
        solver = spgrad.linalg.BiCGSTAB(preconditioner=jacobi, strict=False)
        return spgrad.linalg.solve(A, b.expand(*A.shape[:-2], 5), solver)

    both = torch.stack([torch.eye(5), dense])
    for A in (spgrad.from_dense(dense), spgrad.from_dense(both)):
        with pytest.raises(
            spgrad.PivotError, match="a singular block on the diagonal from row 2 on"
        ):
            solved(A, 2)
        with pytest.raises(ValueError, match="`size` is 0; ints from 1 are accepted"):
            solved(A, 0)
    assert torch.equal(solved(spgrad.from_dense(torch.eye(5)), 2), b)


def test_blocks_have_eight_rows():
    """The inverse of a matrix of blocks of eight takes one iteration."""
    generator = torch.Generator().manual_seed(0)
    blocks = torch.randn(3, 8, 8, generator=generator, dtype=torch.float64) + 9 * torch.eye(8)
    M, b = torch.block_diag(*blocks), torch.ones(24, dtype=torch.float64)
    solver = spgrad.linalg.BiCGSTAB(preconditioner=spgrad.linalg.BlockJacobi())
    x, info = spgrad.linalg.solve(spgrad.from_dense(M), b, solver, return_info=True)
    torch.testing.assert_close(x, torch.linalg.solve(M, b))
    assert info.iterations == 1


def test_a_block_larger_than_the_matrix_takes_its_memory_alone():
    A = spgrad.random_spd(20, density=0.2, dtype=torch.float64)
    solver = spgrad.linalg.CG(preconditioner=spgrad.linalg.BlockJacobi(10**6))
    x, info = spgrad.linalg.solve(A, A @ torch.ones(20).double(), solver, return_info=True)
    torch.testing.assert_close(x, torch.ones(20).double())
    assert info.iterations == 1


@pytest.mark.parametrize("call", [linalg.solve, linalg.lstsq, spgrad.expm_multiply])
def test_what_reads_numbers_is_not_linearized(call):
    A, b = spgrad.eye(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    with pytest.raises(spgrad.UnsupportedError, match=r"traced by torch\.func\.linearize"):
        torch.func.linearize(lambda b: call(A, b), b)
