"""Products of which one operand alone asks for a gradient, to the second order."""

import itertools

import pytest
import torch

import spgrad
from spgrad import support, testing
from spgrad.core.pattern import LAYOUTS
from spgrad.lowering.products import spmm

layouts = pytest.mark.parametrize("name", support.ALL)
F64 = torch.float64
TWO = list(itertools.product([False, True], repeat=2))


def dense(*shape, seed=0, **options):
    generator = torch.Generator().manual_seed(seed)
    return testing.random_dense(shape, generator=generator, **options)


def check(sparse, dense_form, operands, asked):
    """First and second derivatives of those that are asked for, against dense torch."""
    given = [t.detach().clone().requires_grad_(a) for t, a in zip(operands, asked, strict=True)]
    twins = [testing.dense_leaves([t])[0] for t in given]
    y, wanted = sparse(*given), dense_form(*twins)
    testing.assert_close(testing.dense_result(y).detach(), wanted.detach())
    if not any(asked):
        assert not y.requires_grad
        return
    own = [t for t in given if t.requires_grad]
    theirs = [t for t in twins if t.requires_grad]
    g = dense(*wanted.shape, seed=5)
    first = torch.autograd.grad(
        (testing.dense_result(y).abs().square() * g).sum(), own, create_graph=True
    )
    second = torch.autograd.grad((wanted.abs().square() * g).sum(), theirs, create_graph=True)
    masks = [testing.mask_of(t.pattern) if isinstance(t, spgrad.SparseTensor) else 1 for t in own]
    for got, want, mask in zip(first, second, masks, strict=True):
        testing.assert_close(testing.dense_result(got).detach(), want.detach() * mask)
    total = sum(testing.dense_result(got).abs().square().sum() for got in first)
    whole = sum(
        (want * mask).abs().square().sum() for want, mask in zip(second, masks, strict=True)
    )
    got = torch.autograd.grad(total, own)
    want = torch.autograd.grad(whole, theirs)
    for a, b, mask in zip(got, want, masks, strict=True):
        testing.assert_close(testing.dense_result(a), b * mask)


@layouts
@pytest.mark.parametrize("asked", TWO)
@pytest.mark.parametrize("dtype", [F64, torch.complex128])
def test_matrix_products(name, asked, dtype):
    A = testing.random_sparse((4, 6), LAYOUTS[name], dtype=dtype)
    for x in (dense(6, 3, dtype=dtype), dense(6, dtype=dtype)):
        check(lambda A, x: A @ x, lambda a, x: a @ x, (A, x), asked)
    check(lambda A, x: x @ A, lambda a, x: x @ a, (A, dense(8, 4, dtype=dtype)), asked)
    layer = torch.nn.functional.linear
    check(lambda A, x: layer(x, A), lambda a, x: layer(x, a), (A, dense(8, 6, dtype=dtype)), asked)
    B = testing.random_sparse((6, 4), LAYOUTS[name], dtype=dtype, seed=3)
    check(lambda A, B: A @ B, lambda a, b: a @ b, (A, B), asked)


FORMS = {  # with the shape of x beside A (4, 6)
    "left": (lambda A, x: A @ x, (6, 3)),
    "lines": (lambda A, x: A @ x, (6, 8)),  # each row of x fills two cache lines
    "transposed": (lambda A, x: A.t() @ x, (4, 3)),
    "right": (lambda A, x: x @ A, (8, 4)),
    "vector": (lambda A, x: x @ A, (4,)),
    "layer": (lambda A, x: torch.nn.functional.linear(x, A), (8, 6)),
}


@layouts
@pytest.mark.parametrize("asked", TWO[1:])
@pytest.mark.parametrize("form", FORMS)
def test_first_derivatives_of_complex_products_without_a_graph(name, asked, form):
    """Backward has other kernels where it records no graph."""
    function, shape = FORMS[form]
    A = testing.random_sparse((4, 6), LAYOUTS[name], dtype=torch.complex128)
    check_without_a_graph(function, A, dense(*shape, dtype=A.dtype), asked)


def check_without_a_graph(function, A, x, asked):
    given = [t.detach().clone().requires_grad_(a) for t, a in zip((A, x), asked, strict=True)]
    twins = [testing.dense_leaves([t])[0] for t in given]
    y, wanted = function(*given), function(*twins)
    testing.assert_close(y, wanted)
    g = dense(*wanted.shape, seed=5, dtype=A.dtype)
    got = torch.autograd.grad(y, [t for t in given if t.requires_grad], g)
    want = torch.autograd.grad(wanted, [t for t in twins if t.requires_grad], g)
    mask = testing.mask_of(A.pattern)
    for found, full in zip(got, want, strict=True):
        of_A = isinstance(found, spgrad.SparseTensor)
        testing.assert_close(testing.dense_result(found), full * mask if of_A else full)


@pytest.mark.parametrize("name", ["bsr", "bsc"])
@pytest.mark.parametrize("blocksize", [(4, 4), (8, 8), (2, 8), (8, 2), (8, 16)], ids=str)
@pytest.mark.parametrize("asked", TWO[1:])
def test_first_derivatives_of_matrices_whose_blocks_have_kernels_of_their_own(
    name, blocksize, asked
):
    m, k = 3 * blocksize[0], 2 * blocksize[1]
    A = testing.random_sparse((m, k), LAYOUTS[name], blocksize=blocksize, density=0.01)
    assert 0 < A.pattern.nse < 6
    check_without_a_graph(lambda A, x: A @ x, A, dense(k, 8), asked)
    check_without_a_graph(lambda A, x: A.mT @ x, A, dense(m, 3), asked)
    check_without_a_graph(lambda A, x: x @ A, A, dense(8, m), asked)
    check_without_a_graph(lambda A, x: x @ A.mT, A, dense(3, k), asked)


def test_both_gradients_of_a_complex_matrix_with_long_rows():
    """Each gradient has its own kernel where rows of A are long and those of x are not."""
    a, x = (dense(24, n, seed=n, dtype=torch.complex128).requires_grad_() for n in (24, 4))
    A = spgrad.from_dense(a.detach()).requires_grad_()
    g = dense(24, 4, seed=5, dtype=a.dtype)
    of_A, of_x = torch.autograd.grad(A @ x, (A, x), g)
    want = torch.autograd.grad(a @ x, (a, x), g)
    testing.assert_close(of_A.to_dense(), want[0])
    testing.assert_close(of_x, want[1])


@layouts
@pytest.mark.parametrize("asked", list(itertools.product([False, True], repeat=3)))
def test_sampled_products(name, asked):
    A = testing.random_sparse((4, 6), LAYOUTS[name])
    mask = testing.mask_of(A.pattern)

    def at_elements(a, x, y):
        return torch.where(mask, a + x @ y, 0)

    operands = A, dense(4, 3), dense(3, 6, seed=1)
    check(spgrad.sampled_addmm, at_elements, operands, asked)


@pytest.mark.parametrize(("function", "arg"), [(spgrad.smm, "input"), (spgrad.hspmm, "mat1")])
def test_a_batch_is_refused_by_the_name_of_the_argument(function, arg):
    A = testing.random_sparse((2, 4, 6), torch.sparse_coo)
    message = rf"`{arg}` has shape \(2, 4, 6\)"
    with pytest.raises(spgrad.ArgumentValueError, match=message):
        function(A, torch.ones(6, 3, dtype=F64))


@pytest.mark.parametrize("n", [1, 3, 4, 8, 16, 64])
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, F64, torch.bfloat16, torch.complex64])
def test_one_kernel_gives_the_gradients_of_two(n, transpose, dtype, monkeypatch):
    """A small matrix takes one call for both gradients, of any width and dtype."""
    A = testing.random_sparse((30, 40), torch.sparse_csr, dtype=dtype)
    k, m = (30, 40) if transpose else (40, 30)
    x, g = dense(k, n, dtype=dtype), dense(m, n, seed=1, dtype=dtype)
    ways = []
    for one in (False, True):
        monkeypatch.setattr(spmm, "in_one_pass", lambda *_, one=one: one)
        with torch.no_grad():
            ways.append(spmm.spmm_gradients(A.values(), x, g, A.pattern, transpose, (True, True)))
    for both in zip(*ways, strict=True):
        testing.assert_close(*both)


@pytest.mark.parametrize("name", ["coo", "csr", "csc"])
def test_products_with_a_vector(name):
    """Outside of graphs a vector goes to the kernel as it is, in both directions."""
    A = testing.random_sparse((5, 7), LAYOUTS[name])
    for v, product in ((dense(7), lambda A, v: A @ v), (dense(5), lambda A, v: v @ A)):
        y = product(A, v)
        assert not y._is_view()
        testing.assert_close(y, product(A.to_dense(), v))
        spread = torch.stack([v, -v], 1)
        testing.assert_close(product(A, spread[:, 0]), y)
    z = torch.complex(dense(7), dense(7, seed=1))
    C = spgrad.from_values(torch.complex(A.values(), 2 * A.values()), A.pattern)
    testing.assert_close(C @ z.conj(), C.to_dense() @ z.conj())


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("layout", ["coo", "csr", "csc"])
def test_pending_conjugations_and_negations(layout, transpose):
    """Of values, of vectors and of columns, also where they are no block of memory."""
    A = testing.random_sparse((5, 7), LAYOUTS[layout])
    pattern, stored = A.pattern, torch.complex(A.values(), 2 * A.values())
    shape = (5, 4) if transpose else (7, 4)
    z = torch.complex(dense(*shape), dense(*shape, seed=1))
    for vals, x in ((stored.conj(), z.conj()), (stored.conj().imag, z.conj().imag)):
        assert vals.is_conj() or vals.is_neg()
        M = spgrad.from_values(vals, pattern)
        m = M.to_dense().t() if transpose else M.to_dense()
        for operand in (x, x[:, 1:3], x[:, :1], x[:, 0]):
            y = operand.t() @ M if transpose else M @ operand
            testing.assert_close(y.t() if transpose else y, m @ operand.resolve_conj())
