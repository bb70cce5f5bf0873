"""Einstein sums of sparse tensors with dense dimensions, against dense torch."""

import pytest
import torch
from samples import made

import spgrad
from spgrad import support, testing

SIZES = {"b": 2, "i": 6, "j": 4, "h": 3, "g": 2, "n": 2, "c": 5}
DENSE = "hg"
PRODUCTS = [
    "ijh,jhn->ihn",
    "ijh,jhn->nhi",
    "ijh,ihn->jhn",
    "ijh,jh->ih",
    "ijh,jn->ihn",
    "ijh,nhjc->cinh",
    "ijh,jhn->in",
    "ijh,ijn->hn",
    "ijh,ijn->ihn",
    "ijh,jhn->ijhn",
    "ijh,hn->ijn",
    "ijhg,gn->ijhn",
    "ijh,jjh->ih",
    "ijhg,jhn->ihgn",
    "ijhg,jgn->ign",
    "bijh,jhn->bihn",
    "bijh,bjhn->bihn",
    "bijh,bihn->jhn",
    "ijh,jhn,nc->ihc",
]
AT_THE_ELEMENTS = [
    "ijh,ihn,jhn->ijh",
    "ijh,ihn,jhn->ij",
    "ijh,ihn,jhn->",
    "ijh,in,jn->ijh",
    "ijh,ihn,jn->ijh",
    "ijh,ihgn,jhgn->ijhg",
    "ijh,ign,jgn->ijhg",
    "ijhg,ign,jgn->ijhg",
    "bijh,bihn,bjhn->bijh",
    "ijh,jhc,ihn,jhn->ihc",
    "ijh,h->ijh",
    "ijh,h->ij",
    "ijh,ih,jh->ijh",
    "ijh,i->jh",
    "ijh,ij->h",
    "ijh,n->ijhn",
    "ijh->ij",
    "ijh->jih",
    "ijh->ih",
    "ijh->h",
    "ijhg->ijgh",
]


def operands_of(equation, layout):
    """A sparse tensor of the first labels, of which h and g are dense, and dense tensors."""
    first, *others = equation.partition("->")[0].split(",")
    dense_dim = sum(s in DENSE for s in first)
    A = made(layout, tuple(SIZES[s] for s in first), dense_dim=dense_dim)
    shapes = [tuple(SIZES[s] for s in labels) for labels in others]
    return [A, *(torch.randn(shape, dtype=torch.float64) for shape in shapes)]


@pytest.mark.parametrize("layout", support.ALL)
@pytest.mark.parametrize("equation", PRODUCTS + AT_THE_ELEMENTS)
def test_value_and_gradient(equation, layout):
    operands = [x.requires_grad_() for x in operands_of(equation, layout)]
    dense = testing.dense_leaves(operands)
    y, want = torch.einsum(equation, *operands), torch.einsum(equation, *dense)
    testing.assert_close(y, want)
    left, _, result = equation.partition("->")
    backwards = f"{','.join(reversed(left.split(',')))}->{result}"
    testing.assert_close(spgrad.einsum(backwards, *reversed(operands)), want)
    g = torch.randn_like(want)
    mask = testing.mask_of(y.pattern) if isinstance(y, spgrad.SparseTensor) else 1
    got = torch.autograd.grad(testing.dense_result(y), operands, g)
    wanted = torch.autograd.grad(want, dense, g * mask)
    assert got[0].pattern is operands[0].pattern
    testing.assert_close(got[0], wanted[0] * testing.mask_of(got[0].pattern))
    for mine, other in zip(got[1:], wanted[1:], strict=True):
        testing.assert_close(mine, other)


@pytest.mark.parametrize("layout", support.ALL)
@pytest.mark.parametrize(
    "equation", ["ijh,ihn,jhn->ijh", "ijh,ihn,jhn->ij", "ijh,jhn->in", "ijh,hn->ijn"]
)
def test_second_derivative(equation, layout):
    operands = [x.requires_grad_() for x in operands_of(equation, layout)]

    def run(*leaves):
        made_again = testing.with_parameters(operands, leaves)
        return testing.dense_result(spgrad.einsum(equation, *made_again))

    leaves = testing.parameters(operands)
    assert torch.autograd.gradcheck(run, leaves, fast_mode=True)
    assert torch.autograd.gradgradcheck(run, leaves, fast_mode=True)


@pytest.mark.parametrize("layout", support.ALL)
def test_the_pattern_of_the_operand_stays(layout):
    A, x, y = operands_of("ijh,ihn,jhn->ijh", layout)
    if layout == "coo":
        A = A.coalesce()
    assert spgrad.einsum("ijh,ihn,jhn->ijh", A, x, y).pattern is A.pattern
    assert spgrad.einsum("ijh,ih->ijh", A, x[:, :, 0]).pattern is A.pattern


def test_complex():
    A = made("csr", (6, 4, 3), dense_dim=1, dtype=torch.complex128).requires_grad_()
    x, y = (torch.randn(m, 3, 2, dtype=torch.complex128, requires_grad=True) for m in (6, 4))
    operands = [A, x, y]

    def run(*leaves):
        made_again = testing.with_parameters(operands, leaves)
        return testing.dense_result(spgrad.einsum("ijh,ihn,jhn->ijh", *made_again))

    assert torch.autograd.gradcheck(run, testing.parameters(operands))


@pytest.mark.parametrize("layouts", [("coo", "csr"), ("csr", "csr"), ("csc", "coo")], ids=str)
def test_two_sparse_operands_at_their_elements(layouts):
    A = made(layouts[0], (6, 4, 3), dense_dim=1).requires_grad_()
    B = made(layouts[1], (6, 4, 3), dense_dim=1, seed=5).requires_grad_()
    C = made(layouts[1], (6, 4), seed=6).requires_grad_()
    for equation, other in (
        ("ijh,ijh->ijh", B),
        ("ijh,ijh->ij", B),
        ("ijh,ijh->", B),
        ("ijh,ij->ijh", C),
        ("ij,ijh->ih", C),
    ):
        operands = (A, other) if equation.startswith("ijh") else (other, A)
        dense = [t.detach().to_dense().requires_grad_() for t in operands]
        y, want = spgrad.einsum(equation, *operands), torch.einsum(equation, *dense)
        testing.assert_close(y, want)
        got = torch.autograd.grad(testing.dense_result(y).sum(), operands)
        wanted = torch.autograd.grad(want.sum(), dense)
        for mine, twin in zip(got, wanted, strict=True):
            testing.assert_close(mine, twin * testing.mask_of(mine.pattern))


def test_sizes_of_one_broadcast():
    A, x = made("csr", (6, 4, 3), dense_dim=1), torch.randn(1, 3, 2, dtype=torch.float64)
    want = torch.einsum("ijh,jhn->ihn", A.to_dense(), x)
    testing.assert_close(spgrad.einsum("ijh,jhn->ihn", A, x), want)
    one = made("csr", (6, 4, 1), dense_dim=1)
    y = torch.randn(4, 3, 2, dtype=torch.float64)
    want = torch.einsum("ijh,jhn->ihn", one.to_dense(), y)
    testing.assert_close(spgrad.einsum("ijh,jhn->ihn", one, y), want)
    alone, z = made("csr", (1, 1, 3), dense_dim=1, density=1.0), torch.randn(6, 4).double()
    found = spgrad.einsum("ijh,ij->ijh", alone, z)
    assert type(found) is torch.Tensor  # no sparse dimension is left
    testing.assert_close(found, torch.einsum("ijh,ij->ijh", alone.to_dense(), z))


@pytest.mark.parametrize("shape", [(0, 4, 3), (6, 0, 3), (6, 4, 0)])
def test_empty(shape):
    m, k, h = shape
    A = spgrad.from_dense(torch.ones(shape), dense_dim=1).requires_grad_()
    x, y = (torch.ones(size, h, 2, requires_grad=True) for size in (m, k))
    for equation, operands in (
        ("ijh,ihn,jhn->ijh", (A, x, y)),
        ("ijh,jhn->ihn", (A, y)),
        ("ijh,hn->ijn", (A, torch.ones(h, 2))),
        ("ijh,h->ij", (A, torch.ones(h))),
    ):
        found = testing.dense_result(spgrad.einsum(equation, *operands))
        dense = [testing.dense_result(t).detach() for t in operands]
        testing.assert_close(found, torch.einsum(equation, *dense))
        assert torch.autograd.grad(found.sum(), A)[0].pattern is A.pattern


def test_nothing_of_the_size_of_the_matrix_is_made():
    n = 2**22
    A = spgrad.sparse_csr_tensor(
        torch.tensor([0, *[2] * n]), torch.tensor([1, n - 1]), torch.ones(2, 3), (n, n, 3)
    ).requires_grad_()
    x = torch.ones(n, 3, 1, requires_grad=True)
    y = spgrad.einsum("ijh,ihn,jhn->ijh", A, x, x)
    assert y.pattern is A.pattern
    spgrad.sum(y).backward()
    assert torch.equal(A.grad.values(), torch.ones(2, 3))
    assert x.grad.count_nonzero() == 9
