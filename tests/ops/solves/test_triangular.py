"""Triangular systems: sides, transposes, missing pivots, derivatives beyond the table's."""

import pytest
import torch

import spgrad
from spgrad import kernels, testing
from spgrad.core.pattern import LAYOUTS

LAYOUT = pytest.mark.parametrize("layout", LAYOUTS)


def in_layout(dense, layout):
    blocks = {"blocksize": (2, 2)} if layout.startswith("b") else {}
    return spgrad.from_dense(dense, LAYOUTS[layout], **blocks)


def drawn(shape, layout="csr", dtype=torch.float64):
    size = torch.eye(shape[-1]).expand(shape)
    A = testing.random_sparse(
        shape, LAYOUTS[layout], dtype=dtype, density=torch.full(shape, 0.5).maximum(2 * size)
    )
    return testing.dominant(A)


def dense_solution(A, b, *, upper, left=True, unitriangular=False):
    return torch.linalg.solve_triangular(A, b, upper=upper, left=left, unitriangular=unitriangular)


@LAYOUT
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("unitriangular", [False, True])
def test_from_the_right(layout, upper, unitriangular):
    options = {"upper": upper, "left": False, "unitriangular": unitriangular}
    A = drawn((3, 6, 6), layout).requires_grad_()
    b = torch.randn(3, 4, 6, dtype=torch.float64, requires_grad=True)
    dense, right = testing.dense_leaves([A, b])
    x, wanted = spgrad.solve_triangular(A, b, **options), dense_solution(dense, right, **options)
    testing.assert_close(x, wanted)
    assert x.is_contiguous()
    g = torch.randn_like(x)
    x.backward(g)
    wanted.backward(g)
    assert A.grad.pattern is A.pattern
    testing.assert_close(A.grad, dense.grad * testing.mask_of(A.pattern))
    testing.assert_close(b.grad, right.grad)


@LAYOUT
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
def test_with_the_transpose_and_the_adjoint(layout, dtype):
    A = drawn((6, 6), layout, dtype).requires_grad_()
    b = torch.randn(6, 3, dtype=dtype)
    (dense,) = testing.dense_leaves([A])
    for sparse, plain in ((A.mT, dense.mT), (A.mH, dense.mH), (A.mT.conj(), dense.mT.conj())):
        x = torch.linalg.solve_triangular(sparse, b, upper=True)
        testing.assert_close(x, dense_solution(plain, b, upper=True))
        A.grad = dense.grad = None
        x.abs().sum().backward()
        dense_solution(plain, b, upper=True).abs().sum().backward()
        testing.assert_close(A.grad, dense.grad * testing.mask_of(A.pattern))


def test_second_derivatives_of_complex_numbers():
    A = drawn((3, 3), dtype=torch.complex128).detach()
    vals, b = A.values().clone(), torch.randn(3, 2, dtype=A.dtype)

    def solution(vals, b):
        return spgrad.solve_triangular(spgrad.from_values(vals, A), b, upper=True)

    operands = vals.requires_grad_(), b.requires_grad_()
    assert torch.autograd.gradgradcheck(solution, operands)


@pytest.mark.parametrize("transpose", [False, True])
def test_the_older_name_gives_what_it_gave(transpose):
    A, b = drawn((5, 5)), torch.randn(5, 2, dtype=torch.float64)
    found = torch.triangular_solve(b, A, upper=False, transpose=transpose)
    matrix = A.to_dense().tril()
    testing.assert_close((matrix.mT if transpose else matrix) @ found.solution, b)
    assert torch.equal(found.cloned_coefficient.to_dense(), A.to_dense())
    assert torch.equal(b.triangular_solve(A, False, transpose)[0], found.solution)


@pytest.mark.parametrize("unitriangular", [False, True])
@pytest.mark.parametrize("n", [None, 1, 3])
def test_derivatives_by_transforms(n, unitriangular):
    A = drawn((5, 5), dtype=torch.complex128)
    b = torch.randn((5,) if n is None else (5, n), dtype=torch.complex128)
    vals = A.values().clone()

    def solve(v, right):
        made = spgrad.from_values(v, A.pattern)
        return spgrad.solve_triangular(made, right, upper=False, unitriangular=unitriangular)

    tangents = torch.randn_like(vals), torch.randn_like(b)
    x, moved = torch.func.jvp(solve, (vals, b), tangents)
    T = A.to_dense().tril(-1) if unitriangular else A.to_dense().tril()
    T = T + torch.eye(5) if unitriangular else T
    change = spgrad.from_values(tangents[0], A.pattern).to_dense()
    change = change.tril(-1 if unitriangular else 0)
    wanted = torch.linalg.solve(T, tangents[1] - change @ x)
    testing.assert_close(moved, wanted)
    pull = torch.func.vjp(solve, vals, b)[1]
    g = torch.randn_like(x)
    pairs = zip(pull(g), tangents, strict=True)
    both = sum((left.conj() * right).sum() for left, right in pairs)
    testing.assert_close(both, (g.conj() * moved).sum())


def test_second_derivative_of_both():
    A, b = drawn((5, 5)), torch.randn(5, 2, dtype=torch.float64, requires_grad=True)
    vals = A.values().clone().requires_grad_()
    for upper in (False, True):

        def solve(v, right, side=upper):
            return spgrad.solve_triangular(spgrad.from_values(v, A.pattern), right, upper=side)

        assert torch.autograd.gradcheck(solve, (vals, b))
        assert torch.autograd.gradgradcheck(solve, (vals, b))


@LAYOUT
def test_a_row_without_pivot_is_named(layout):
    dense = torch.eye(6).expand(2, 6, 6).clone()
    dense[1, 4, 4] = 0
    A = in_layout(dense, layout)
    said = "diagonal in row 4 of batch item 1; "
    with pytest.raises(spgrad.PivotError, match=said):
        spgrad.solve_triangular(A, torch.ones(6, 2), upper=True)
    with pytest.raises(torch.linalg.LinAlgError, match="diagonal in row 4; "):
        spgrad.solve_triangular(A[1], torch.ones(6), upper=False)
    x = spgrad.solve_triangular(A, torch.ones(6, 2), upper=True, unitriangular=True)
    assert torch.equal(x, torch.ones(2, 6, 2))


def test_refusals():
    A, b = drawn((4, 4)), torch.ones(4, 2, dtype=torch.float64)
    refused = {
        "float16; float32, float64, complex64, complex128 are accepted": (A.half(), b.half()),
        "int64": (A.long(), b.long()),
        r"`A` has shape \(4, 6\); a square matrix": (spgrad.from_dense(torch.ones(4, 6)), b),
        r"`B` has shape \(3, 2\); 4 equations": (A, b[:3]),
        r"`B` has shape \(\); a vector": (A, b[0, 0]),
        "`B` has dtype float32": (A, b.float()),
        "a batch that broadcasts": (drawn((2, 4, 4)), b.expand(3, 4, 2)),
        "`A` is a dense tensor": (b, b),
        "`B` is a csr": (A, A),
    }
    for text, (matrix, right) in refused.items():
        with pytest.raises(spgrad.SpgradError, match=text):
            spgrad.solve_triangular(matrix, right, upper=True)
    with pytest.raises(spgrad.SpgradError, match="`b` has shape"):
        torch.triangular_solve(b[:, 0], A)


@LAYOUT
def test_systems_without_equations_or_without_columns(layout):
    for shape, right in (((0, 0), (0, 3)), ((4, 4), (4, 0)), ((0, 4, 4), (4, 2)), ((0, 0), (0,))):
        A = in_layout(torch.eye(shape[-1]).expand(shape).clone(), layout)
        A.requires_grad_()
        b = torch.ones(right, requires_grad=True)
        x = spgrad.solve_triangular(A, b, upper=True)
        assert x.shape == (*shape[:-2], *right)
        x.sum().backward()
        assert A.grad.pattern is A.pattern
        assert b.grad.shape == right


def test_repeated_elements_add_up():
    at = torch.tensor([[1, 0, 1, 1, 0], [1, 0, 0, 1, 1]])
    A = spgrad.sparse_coo_tensor(at, torch.tensor([1.0, 2.0, 6.0, 3.0, 9.0])).requires_grad_()
    x = spgrad.solve_triangular(A, torch.tensor([2.0, 10.0]), upper=False)
    assert torch.equal(x, torch.ones(2))
    x.sum().backward()
    assert torch.equal(A.grad._values(), torch.tensor([-0.25, 0.25, -0.25, -0.25, 0.0]))


@pytest.mark.skipif(not kernels.compiled(), reason="torch's own products share out their sums")
def test_the_same_bits_on_every_number_of_threads():
    A, b = drawn((400, 400)), torch.randn(400, 40, dtype=torch.float64)
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append(spgrad.solve_triangular(A, b, upper=False))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
