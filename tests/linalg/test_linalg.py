"""lobpcg, svd_lowrank and pca_lowrank against dense torch."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import spgrad
from spgrad import errors, support, testing
from spgrad.core.pattern import LAYOUTS

D = torch.float64


def blocks(layout):
    return (2, 2) if layout in ("bsr", "bsc") else None


def symmetric(m=24, layout="csr", *, shift=0.0, seed=0):
    """A sparse symmetric matrix with distinct eigenvalues; positive definite with a large shift."""
    half = testing.random_sparse((m, m), density=0.1, seed=seed).to_dense()
    made = half + half.T + torch.diag(shift + 0.3 * torch.arange(m, dtype=D))
    return spgrad.from_dense(made, LAYOUTS[layout], blocksize=blocks(layout))


def generalised(A, B, k, largest):
    """Eigenpairs of the means of A and B with their transposes, by Cholesky and eigh."""
    A, B = (A + A.mT) / 2, (B + B.mT) / 2
    L = torch.linalg.cholesky(B)
    C = torch.linalg.solve_triangular(L, A, upper=False)
    C = torch.linalg.solve_triangular(L, C.mT, upper=False)
    E, Q = torch.linalg.eigh((C + C.mT) / 2)
    X = torch.linalg.solve_triangular(L.mT, Q, upper=True)
    return (E.flip(0)[:k], X.flip(1)[:, :k]) if largest else (E[:k], X[:, :k])


def loss(E, X):
    """What does not depend on the signs of eigenvectors."""
    w = torch.randn(X.shape, dtype=D, generator=torch.Generator().manual_seed(1))
    c = torch.arange(1.0, E.shape[0] + 1, dtype=D)
    return (E * c).sum() + ((X * w).sum(0) ** 2 * c).sum()


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize(
    ("layout", "other"),
    [("csr", None), ("csr", "coo"), ("coo", None), ("csc", "bsr"), ("bsc", "dense"), ("bsr", None)],
)
def test_lobpcg(layout, other, largest):
    k = 3
    A = symmetric(layout=layout).requires_grad_()
    B = symmetric(layout="csr" if other in (None, "dense") else other, shift=20.0, seed=5)
    B = B.to_dense() if other == "dense" else B
    B = torch.eye(24, dtype=D) if other is None else B.detach().requires_grad_()
    given = None if other is None else B
    E, X = torch.lobpcg(A, k, given, largest=largest, tol=1e-13, niter=300)
    dense = [testing.dense_result(t).detach().clone().requires_grad_() for t in (A, B)]
    wanted = generalised(*dense, k, largest)
    testing.assert_close(E, wanted[0])
    assert torch.allclose(X.abs(), wanted[1].abs(), atol=1e-7)
    loss(E, X).backward()
    loss(*wanted).backward()
    for operand, twin in zip((A, B), dense, strict=True):
        if isinstance(operand, spgrad.SparseTensor):
            assert operand.grad.pattern is operand.pattern
            grad = twin.grad.where(testing.mask_of(operand.pattern), 0)
            assert torch.allclose(operand.grad.to_dense(), grad, atol=1e-7)
        elif operand.requires_grad:
            assert torch.allclose(operand.grad, twin.grad, atol=1e-7)


def test_lobpcg_eigenvalues_have_a_second_derivative():
    A = symmetric(12)
    start = torch.linalg.eigh(A.to_dense())[1][:, -2:]

    def run(vals):
        half = spgrad.from_values(vals, A)  # which is not symmetric where one value is changed
        return spgrad.lobpcg((half + half.mT) / 2, X=start, tol=1e-13, niter=300)[0]

    vals = A.values().detach().requires_grad_()
    assert torch.autograd.gradcheck(run, vals, fast_mode=True)
    assert torch.autograd.gradgradcheck(run, vals, fast_mode=True, atol=1e-4)
    X = spgrad.lobpcg(A.requires_grad_(), X=start)[1]
    (first,) = torch.autograd.grad(X[0, 0], A, create_graph=True)
    with pytest.raises(spgrad.UnsupportedError, match="second derivative of the eigenvectors"):
        first.values().sum().backward()


@pytest.mark.parametrize("size", [1e-12, 1e12])
def test_gradients_of_lobpcg_are_as_exact_for_cotangents_of_any_size(size):
    A = symmetric().requires_grad_()
    X = spgrad.lobpcg(A, 2, tol=1e-13, niter=300)[1]
    g = torch.ones_like(X)
    one, scaled = (torch.autograd.grad(X, A, s * g, retain_graph=True)[0] for s in (1, size))
    assert torch.allclose(scaled.values() / size, one.values(), rtol=1e-8)


def test_lobpcg_takes_what_torch_takes():
    """A preconditioner, a start, a tracker, the other method, repeated elements, float32."""
    A = symmetric()
    wanted = torch.linalg.eigvalsh(A.to_dense())
    inverse = spgrad.from_dense(torch.diag(1 / (1 + A.to_dense().diagonal().abs())))
    steps = []
    E, _ = spgrad.lobpcg(A, 2, iK=inverse, largest=False, tracker=steps.append, tol=1e-12)
    testing.assert_close(E, wanted[:2])
    assert steps
    E, X = spgrad.lobpcg(A, 2, X=torch.eye(24, 4, dtype=D), method="basic", niter=200, tol=1e-8)
    assert torch.allclose(E, wanted.flip(0)[:2])
    assert X.shape == (24, 2)
    assert X.is_contiguous()
    assert X.untyped_storage().nbytes() == X.nbytes  # and not all four columns
    row, col = A.to_sparse_coo().indices()
    vals = A.to_sparse_coo().values() / 2
    twice = spgrad.sparse_coo_tensor(
        torch.stack([row.repeat(2), col.repeat(2)]), vals.repeat(2), (24, 24)
    ).requires_grad_()
    E, _ = spgrad.lobpcg(twice, 1, tol=1e-12)
    testing.assert_close(E, wanted[-1:])
    E.sum().backward()
    once = A.requires_grad_()
    spgrad.lobpcg(once, 1, tol=1e-12)[0].sum().backward()
    assert torch.allclose(twice.grad._values(), once.grad.to_sparse_coo().values().repeat(2))
    E, _ = spgrad.lobpcg(A.detach().float(), 1)
    assert E.dtype == torch.float32
    assert abs(E.item() - wanted[-1].item()) < 1e-3
    native = spgrad.to_torch(A.detach()).requires_grad_()
    spgrad.lobpcg(native, 1)[0].sum().backward()
    assert native.grad.layout == native.layout


def test_lobpcg_equal_eigenvalues():
    """A loss that does not depend on the basis of an eigenspace has its gradient."""
    values = torch.tensor([5.0, 5.0, 3.0, *torch.linspace(0, 1, 9).tolist()], dtype=D)
    full = torch.zeros(12, 12, dtype=D)
    full[:4, :4] = 1e-300  # the elements of a block, nearly zero
    full = full + torch.diag(values)
    A = spgrad.from_dense(full).requires_grad_()
    _, X = spgrad.lobpcg(A, 2, tol=1e-13)
    T = torch.randn(12, 12, dtype=D)
    (X @ X.mT * T).sum().backward()
    U, other = torch.eye(12, dtype=D)[:, :2], torch.eye(12, dtype=D)[:, 2:]
    gaps = values[:2, None] - values[2:]
    G = U @ ((U.mT @ (T + T.mT) @ other) / gaps) @ other.mT
    wanted = (G + G.mT) / 2 * testing.mask_of(A.pattern)
    assert torch.allclose(A.grad.to_dense(), wanted, atol=1e-6)


def test_lobpcg_refuses_vectors_of_equal_eigenvalues_in_a_loss_that_depends_on_their_basis():
    M = torch.diag(torch.tensor([5.0, 5.0, 3.0, 2.0, 1.0, 0.5, 0.4, 0.3, 0.2], dtype=D))
    A = spgrad.from_dense(M).requires_grad_()
    E, X = spgrad.lobpcg(A, 2, tol=1e-13)
    with pytest.raises(
        errors.StateError, match=r"lobpcg: eigenvalues 0 and 1, .* one basis of many"
    ):
        X[0, 0].backward(retain_graph=True)
    ((X @ X.mT)[0, 0] + E.sum()).backward()  # the same for every basis


def test_lobpcg_refusals():
    A = symmetric()
    batch = testing.random_sparse((2, 24, 24))
    for args, kind, says in (
        ((batch,), spgrad.UnsupportedError, "`A` is a batch"),
        ((testing.random_sparse((24, 6)),), ValueError, "a square matrix"),
        ((A, 9), ValueError, "3 rows or more"),
        ((A, 0), ValueError, "`k` is 0"),
        ((A, 3, None, torch.ones(24, 2, dtype=D)), ValueError, "`k` is 3"),
        ((A, None, None, torch.ones(23, 2, dtype=D)), ValueError, "`X` has shape"),
        ((A, 1, torch.eye(23, dtype=D)), ValueError, "`B` has shape"),
        ((A, 1, torch.eye(24)), ValueError, "`B` has dtype float32"),
        ((A.to(torch.complex128),), ValueError, "`A` has dtype complex128"),
        ((torch.eye(24),), TypeError, "no operand is sparse"),
        ((A, "1"), TypeError, "`k` is '1'"),
    ):
        with pytest.raises(kind, match=rf"spgrad\.lobpcg: .*{says}"):
            spgrad.lobpcg(*args)
    far = spgrad.lobpcg(A.requires_grad_(), 1, niter=1)[1]  # no eigenvector yet
    with pytest.raises(spgrad.StateError, match="did not converge"):
        far[0].sum().backward()


def same_numbers(fn, *args, **options):
    torch.manual_seed(3)
    return fn(*args, **options)


def svd_loss(U, S, V):
    """Real, and the same for all choices of phases."""
    generator = torch.Generator().manual_seed(1)
    T = testing.random_dense((U.shape[-2], V.shape[-2]), dtype=U.dtype, generator=generator)
    part = (U[..., :2] * S[..., None, :2]) @ V[..., :2].mH
    return (S * torch.arange(1, S.shape[-1] + 1)).sum() + (part - T).abs().square().sum()


def check_gradient(A, twin):
    assert A.grad.pattern is A.pattern
    grad = twin.grad.where(testing.mask_of(A.pattern), 0)
    assert torch.allclose(A.grad.to_dense(), grad, atol=1e-9)


@pytest.mark.parametrize("dtype", [D, torch.complex128], ids=str)
@pytest.mark.parametrize("layout", support.ALL)
@pytest.mark.parametrize("shape", [(12, 8), (8, 12), (3, 10, 6)], ids=str)
def test_svd_lowrank_is_that_of_torch(shape, layout, dtype):
    """With the same random numbers it has the same values and gradients."""
    A = testing.random_sparse(shape, LAYOUTS[layout], dtype=dtype, density=0.5).requires_grad_()
    twin = A.to_dense().detach().requires_grad_()
    found = same_numbers(torch.svd_lowrank, A, 4)
    wanted = same_numbers(torch.svd_lowrank, twin, 4)
    for y, expected in zip(found, wanted, strict=True):
        testing.assert_close(y, expected)
    svd_loss(*found).backward()
    svd_loss(*wanted).backward()
    check_gradient(A, twin)


@pytest.mark.parametrize("shape", [(12, 8), (8, 12)], ids=str)
@pytest.mark.parametrize("center", [True, False])
def test_pca_lowrank_is_that_of_torch(shape, center):
    A = testing.random_sparse(shape, torch.sparse_coo, coalesced=False).requires_grad_()
    twin = A.to_dense().detach().requires_grad_()
    found = same_numbers(torch.pca_lowrank, A, 3, center)
    wanted = same_numbers(torch.pca_lowrank, twin, 3, center)
    for y, expected in zip(found, wanted, strict=True):
        testing.assert_close(y, expected)
    svd_loss(*found).backward()
    svd_loss(*wanted).backward()
    times = spgrad.to_dense(spgrad.from_values(torch.ones_like(A._vals), A.pattern))
    testing.assert_close(A.grad, twin.grad * times)


@pytest.mark.parametrize("size", [(1, 8), (12, 1), (8,), (12, 8), "sparse"], ids=str)
def test_what_is_subtracted(size):
    A = testing.random_sparse((12, 8)).requires_grad_()
    twin = A.to_dense().detach().requires_grad_()
    if size == "sparse":
        M = testing.random_sparse((12, 8), torch.sparse_csc, seed=4).requires_grad_()
        N = M.to_dense().detach().requires_grad_()
    else:
        M = torch.randn(size, dtype=D, requires_grad=True)
        N = M.detach().clone().requires_grad_()
    found = same_numbers(torch.svd_lowrank, A, 5, M=M)
    wanted = same_numbers(torch.svd_lowrank, twin - N, 5)
    testing.assert_close(found[1], wanted[1])
    svd_loss(*found).backward()
    svd_loss(*wanted).backward()
    check_gradient(A, twin)
    if size == "sparse":
        check_gradient(M, N)
    else:
        testing.assert_close(M.grad, N.grad)


@pytest.mark.parametrize("shape", [(12, 8), (8, 12)], ids=str)
def test_gradient_of_a_rank_below_q(shape):
    """There the algorithm has no derivative, and the decomposition has."""
    u, v = torch.zeros(shape[0], 2, dtype=D), torch.zeros(shape[1], 2, dtype=D)
    u[:6], v[2:] = torch.randn(6, 2, dtype=D), torch.randn(shape[1] - 2, 2, dtype=D)
    A = spgrad.from_dense(u @ v.T).requires_grad_()
    twin = A.to_dense().detach().requires_grad_()
    U, S, V = spgrad.svd_lowrank(A, q=5)
    assert (S[2:] < 1e-12).all()
    svd_loss(U[:, :2], S[:2], V[:, :2]).backward()
    svd_loss(*torch.svd_lowrank(twin, q=2)).backward()  # whose q is the rank
    check_gradient(A, twin)


def test_factors_beside_an_item_of_a_rank_below_q():
    full = testing.random_sparse((12, 8), density=0.5).to_dense()
    low = full * (torch.arange(8) < 2)
    alone, beside = [], []
    for items, found in (([full], alone), ([full, low], beside)):
        A = spgrad.from_dense(torch.stack(items), torch.sparse_coo).requires_grad_()
        factors = [y[:1] for y in same_numbers(torch.svd_lowrank, A, 4)]
        svd_loss(*factors).backward()
        found += [*factors, A.grad.to_dense()[0]]
    for one, other in zip(alone, beside, strict=True):
        testing.assert_close(one, other)


def test_svd_lowrank_second_derivative():
    A = testing.random_sparse((6, 5), density=0.6)

    def run(vals):
        torch.manual_seed(0)
        return spgrad.svd_lowrank(spgrad.from_values(vals, A), q=3, niter=1)[1]

    vals = A.values().detach().requires_grad_()
    assert torch.autograd.gradgradcheck(run, vals, fast_mode=True)


class Largest(TorchDispatchMode):
    """Remembers the largest tensor that an operation makes."""

    def __init__(self):
        super().__init__()
        self.size = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        y = func(*args, **(kwargs or {}))
        for t in y if isinstance(y, (tuple, list)) else (y,):
            if isinstance(t, torch.Tensor) and not isinstance(t, spgrad.SparseTensor):
                self.size = max(self.size, t.untyped_storage().nbytes() // t.element_size())
        return y


def test_nothing_of_the_size_of_the_matrix_is_made():
    m, n, q, nse = 3000, 4000, 4, 8000
    at = torch.stack([torch.randint(m, (nse,)), torch.randint(n, (nse,))])
    A = spgrad.sparse_coo_tensor(at, torch.rand(nse), (m, n)).coalesce().requires_grad_()
    x, y = torch.rand(m, 2, q), torch.rand(n, 2, q)
    for run in (
        lambda: spgrad.einsum("ij,ihk,jhk->ijh", A, x, y).values(),
        lambda: spgrad.einsum("ij,ihk,jhk->", A, x, y),
        lambda: spgrad.svd_lowrank(A, q)[1],
        lambda: spgrad.pca_lowrank(A, q)[1],
        lambda: loss_of_eigenpairs(spgrad.matmul(A, A.mT)),
    ):
        with Largest() as largest:
            run().sum().backward()
        assert largest.size < 40 * (m + n + nse)


def loss_of_eigenpairs(A):
    E, X = spgrad.lobpcg(A, 1, niter=200)
    return E.sum() + X[0, 0]


def test_lowrank_refusals():
    A = testing.random_sparse((12, 8))
    for fn, args, kind, says in (
        ("svd_lowrank", (torch.eye(3),), TypeError, "`A` is a dense tensor"),
        ("svd_lowrank", (A, -1), ValueError, "`q` is -1"),
        ("svd_lowrank", (A, 2, -1), ValueError, "`niter` is -1"),
        ("svd_lowrank", (A, 2.0), TypeError, "`q` is 2.0"),
        ("svd_lowrank", (A.to(torch.int64), 2), ValueError, "`A` has dtype int64"),
        ("svd_lowrank", (A, 2, 2, torch.ones(7, dtype=D)), ValueError, "`M` has shape"),
        ("svd_lowrank", (A, 2, 2, torch.ones(8)), ValueError, "`M` has dtype float32"),
        ("svd_lowrank", (A, 2, 2, 1.0), TypeError, "`M` is a float"),
        ("pca_lowrank", (A, 9), ValueError, "`q` is 9"),
        ("pca_lowrank", (A, 2, True, -1), ValueError, "`niter` is -1"),
    ):
        with pytest.raises(kind, match=rf"spgrad\.{fn}: .*{says}"):
            getattr(spgrad, fn)(*args)
