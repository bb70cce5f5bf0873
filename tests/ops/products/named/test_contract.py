"""Einstein sums and other products over named dimensions, against dense torch."""

import re

import pytest
import torch

import spgrad
from spgrad import testing
from spgrad.core.pattern import LAYOUTS
from spgrad.ops.products.chain import Factor, best_order

SIZES = {"b": 2, "i": 4, "j": 6, "k": 4, "l": 2, "m": 6}
# An equation, and for each operand whether it is sparse; upper case: the result is sparse.
EQUATIONS = [
    ("ij,jk->ik", "sd"),
    ("ij,jk->ik", "ds"),
    ("ij,jk->ik", "sS"),
    ("ij,jk->ki", "sS"),
    ("ij,jk", "sd"),
    ("ij,kj->ik", "sd"),
    ("kj,ij->ik", "sS"),
    ("ij,kj->ki", "ss"),
    ("bij,bjk->bik", "sd"),
    ("bij,bjk->ikb", "sd"),
    ("bij,bjk->bik", "ss"),
    ("bij,jk->bik", "sd"),
    ("...ij,...jk->...ik", "sd"),
    ("...ij,jk->i...k", "sd"),
    ("ij->ji", "s"),
    ("bij->jbi", "s"),
    ("ij->i", "s"),
    ("ij->j", "s"),
    ("ij->", "s"),
    ("bij->ij", "s"),
    ("bij->...", "s"),
    ("ik", "s"),
    ("ki", "s"),
    ("ii->i", "s"),
    ("ii", "s"),
    ("bii->bi", "s"),
    ("iji->ji", "s"),
    ("ij,ij->", "ss"),
    ("ij,ij->", "sd"),
    ("ij,ji->", "ss"),
    ("ij,ij->i", "sd"),
    ("ij,ij->ij", "ss"),
    ("ij,ij->ij", "sd"),
    ("ij,ji->ij", "ds"),
    ("ij,j->i", "sd"),
    ("ij,j->i", "ss"),
    ("ij,j->i", "ds"),
    ("ij,j->ij", "sd"),
    ("ij,j->ij", "ss"),
    ("bij,bj->bij", "ss"),
    ("bij,ij->bij", "sd"),
    ("bij,bi->bj", "sd"),
    ("i,i->", "ss"),
    ("i,i->i", "sd"),
    ("i,j->ij", "ss"),
    ("bi,bj->bij", "ss"),
    ("i,j->ij", "sd"),
    ("bi,bj->ibj", "sd"),
    ("ij,jk->ijk", "sd"),
    ("i,ij,j->", "dsd"),
    ("i,ij,j->", "sss"),
    ("ij,jk,kl->il", "ssd"),
    ("ij,jk,kl->il", "dsd"),
    ("ik,jk,ij->ij", "dds"),
    ("bik,bkj,bji->bij", "dds"),
    ("ij,ik,jk->", "sdd"),
    ("ij,ik,jk->ijk", "sdd"),
    ("ij,ilk,jlk->ijl", "sdd"),
    ("bij,kbil,lbjk->bijkl", "sdd"),
    ("ij,ilk,jlk->il", "sdd"),
    ("ij,ik,jk,ij->i", "sdds"),
    ("ij,jk->k", "sd"),
    ("ij,jk->k", "ss"),
    ("ij,kl->", "ss"),
    ("ij,kl->ik", "sd"),
    ("bij,bjk,bk->bi", "sdd"),
    ("ij,->ij", "sd"),
    ("ijk,kjl->il", "sd"),
    ("ijk,jkl->il", "ss"),
    ("bik,kjl->bijl", "ss"),
    ("bik,kjl->bijl", "sd"),
]


def operands_of(equation, kinds, *, dtype=torch.float64, turn=0):
    """Operands for an equation, in layouts that take turns, and their dense twins."""
    made = []
    generator = torch.Generator().manual_seed(7)
    for at, (labels, kind) in enumerate(
        zip(equation.partition("->")[0].split(","), kinds.lower(), strict=True)
    ):
        shape = tuple(SIZES[s] for s in labels.replace("...", "b"))
        if kind == "d":
            x = testing.random_dense(shape, dtype=dtype, generator=generator)
        else:
            layouts = list(LAYOUTS.values()) if len(shape) > 1 else [torch.sparse_coo]
            layout = layouts[(at + turn) % len(layouts)]
            coalesced = layout != torch.sparse_coo or bool(turn % 2)
            options = {"coalesced": coalesced, "density": 0.5, "seed": at}
            x = testing.random_sparse(shape, layout, dtype=dtype, **options)
        made.append(x.requires_grad_())
    return made


@pytest.mark.parametrize("turn", range(3))
@pytest.mark.parametrize(("equation", "kinds"), EQUATIONS, ids=str)
def test_value_and_gradient(equation, kinds, turn):
    dtype = torch.complex128 if turn == 2 else torch.float64
    operands = operands_of(equation, kinds, dtype=dtype, turn=turn)
    dense = testing.dense_leaves(operands)
    y, expected = torch.einsum(equation, *operands), torch.einsum(equation, *dense)
    testing.assert_close(y, expected)
    if isinstance(y, spgrad.SparseTensor):
        assert y.pattern.coalesced
        mask = testing.mask_of(y.pattern)
    else:
        mask = 1
    g = torch.randn(y.shape, dtype=y.dtype)
    torch.autograd.backward(testing.dense_result(y), g)
    torch.autograd.backward(expected, g * mask)
    for operand, twin in zip(operands, dense, strict=True):
        if isinstance(operand, spgrad.SparseTensor):
            assert operand.grad.pattern is operand.pattern
            at = spgrad.from_values(torch.ones_like(operand._vals), operand.pattern)
            times = spgrad.to_dense(at)
            testing.assert_close(operand.grad, twin.grad * times)
        else:
            testing.assert_close(operand.grad, twin.grad)


@pytest.mark.parametrize(
    ("equation", "kinds"),
    [
        e
        for e in EQUATIONS
        if e[0] in ("ij,jk->ijk", "bij,bj->bij", "i,ij,j->", "ik,jk,ij->ij", "ij,ilk,jlk->ijl")
    ]
    + [("ij,ik,jk->", "sdd"), ("iji->ji", "s"), ("bij,bjk->bik", "ss")],
    ids=str,
)
def test_second_derivative(equation, kinds):
    operands = operands_of(equation, kinds, turn=1)

    def run(*leaves):
        made = testing.with_parameters(operands, leaves)
        return testing.dense_result(spgrad.einsum(equation, *made))

    assert torch.autograd.gradgradcheck(run, testing.parameters(operands), fast_mode=True)


SPARSE_RESULTS = {
    ("ij,jk->ik", "ss"): True,
    ("ij->ji", "s"): True,
    ("ij,j->ij", "sd"): True,
    ("ij,jk->ijk", "sd"): True,
    ("ii->i", "s"): True,
    ("ij->i", "s"): False,
    ("ij,jk->ik", "sd"): False,
    ("ik,jk,ij->ij", "dds"): True,
}


@pytest.mark.parametrize(("call", "sparse"), SPARSE_RESULTS.items(), ids=str)
def test_which_results_are_sparse(call, sparse):
    y = spgrad.einsum(call[0], *operands_of(*call, turn=1))
    assert isinstance(y, spgrad.SparseTensor) == sparse


def test_the_layout_of_a_product_is_that_of_its_first_factor():
    A = testing.random_sparse((4, 6), torch.sparse_csr)
    B = testing.random_sparse((6, 4), torch.sparse_coo)
    assert spgrad.einsum("ij,jk->ik", A, B).layout == torch.sparse_csr
    assert spgrad.einsum("jk,ij->ik", B, A).layout == torch.sparse_csr
    assert spgrad.einsum("ij->ji", A).layout == torch.sparse_csc


def test_forms_of_the_call():
    A, x = testing.random_sparse((4, 6)), torch.randn(6, 2, dtype=torch.float64)
    wanted = A @ x
    testing.assert_close(spgrad.einsum(A, [0, 1], x, [1, 30], [0, 30]), wanted)
    testing.assert_close(torch.einsum(A, [0, 1], x, [1, 30], [0, 30]), wanted)
    testing.assert_close(spgrad.einsum(A, [Ellipsis, 1], x, [1, 2]), wanted)
    testing.assert_close(spgrad.einsum(" ij , jk -> ik ", [A, x]), wanted)
    native = spgrad.to_torch(A).requires_grad_()
    spgrad.einsum("ij,jk->", native, x).backward()
    assert native.grad.layout == native.layout


def test_sizes_of_one_broadcast():
    B = testing.random_sparse((1, 4, 6))
    y = torch.randn(3, 6, 2, dtype=torch.float64)
    wanted = torch.einsum("bij,bjk->bik", B.to_dense(), y)
    testing.assert_close(spgrad.einsum("bij,bjk->bik", B, y), wanted)
    testing.assert_close(spgrad.einsum("...ij,...jk->...ik", B, y[0]), B.to_dense() @ y[0])


A, x = testing.random_sparse((4, 6)), torch.randn(6, 2, dtype=torch.float64)
H = testing.random_sparse((4, 6, 3), torch.sparse_coo, dense_dim=1)
Q = testing.random_sparse((4, 3, 3), torch.sparse_coo, dense_dim=1)
WRONG = {
    "one argument": (spgrad.ArgumentValueError, ("ij",), "1 argument"),
    "no equation": (spgrad.ArgumentKindError, (1, A), "`equation` is an int"),
    "operands": (spgrad.ArgumentValueError, ("ij", A, x), "names 1 operand"),
    "labels": (spgrad.ArgumentValueError, ("i,jk->ik", A, x), "has 1 label"),
    "letters": (spgrad.ArgumentValueError, ("i1->i", A), "has 'i1'"),
    "result": (spgrad.ArgumentValueError, ("ij->ik", A), "'k' in the result alone"),
    "twice": (spgrad.ArgumentValueError, ("ij->ii", A), "'i' twice"),
    "sizes": (spgrad.ArgumentValueError, ("ij,ik->jk", A, x), "has size 6 .* is 4 elsewhere"),
    "square": (spgrad.ArgumentValueError, ("ii->i", A), "has size 6"),
    "subscript": (spgrad.ArgumentValueError, (A, [0, 52]), "subscripts have 52"),
    "no list": (spgrad.ArgumentKindError, (A, 0), "a list of ints"),
    "dense": (spgrad.ArgumentKindError, ("ij,jk->ik", x.T, x), "no operand is sparse"),
    "dtype": (spgrad.ArgumentValueError, ("ij,jk->ik", A, x.float()), "dtype float32"),
    "kind": (spgrad.ArgumentKindError, ("ij,jk->ik", A, "x"), "is a str"),
    "diagonal of a hybrid": (spgrad.UnsupportedError, ("ijj->i", Q), "label twice in 'ijj'"),
    "hybrids": (spgrad.UnsupportedError, ("ijh,kjh->ikh", H, H), "multiplies 'ijh', of which 'h'"),
    "hybrid at its elements": (
        spgrad.UnsupportedError,
        ("ijh,jhn->ijn", H, x[:, None].expand(-1, 3, -1)),
        'as "ijh,jhn->ihn"',
    ),
    "heads first": (spgrad.UnsupportedError, ("ijh->hij", H), "dimensions h of the result"),
    "dense first": (spgrad.UnsupportedError, ("ij,jk->kij", A, x), "would not stand behind"),
}


@pytest.mark.parametrize("name", WRONG)
def test_refusals(name):
    kind, args, says = WRONG[name]
    with pytest.raises(kind, match=rf"spgrad\.einsum: .*{says}"):
        spgrad.einsum(*args)


def test_other_products_of_hybrids_are_refused():
    for call in (lambda: spgrad.tensordot(H, x, 1), lambda: spgrad.inner(H, x)):
        with pytest.raises(
            spgrad.UnsupportedError, match=r"1 dense dimension.* Use spgrad\.einsum"
        ):
            call()


@pytest.mark.parametrize(
    "dims", [0, 2, ([0, 1], [0, 1]), ([-1], [1]), torch.tensor([[0], [0]]), torch.tensor([2])]
)
def test_tensordot(dims):
    B = testing.random_sparse((4, 6), torch.sparse_coo, seed=3)
    y = torch.tensordot(A, B, dims=dims)
    testing.assert_close(y, torch.tensordot(A.to_dense(), B.to_dense(), dims=dims))
    assert isinstance(y, spgrad.SparseTensor) == (y.dim() > 0)


@pytest.mark.parametrize("dims", [([0], [1]), ([0, 1], [1, 0])])
def test_tensordot_pairs_dimensions_in_another_order(dims):
    B = testing.random_sparse((6, 4), torch.sparse_coo, seed=3)
    testing.assert_close(
        spgrad.tensordot(A, B, dims), torch.tensordot(A.to_dense(), B.to_dense(), dims)
    )


@pytest.mark.parametrize(
    ("dims", "says"),
    [
        (3, "`dims` is 3"),
        ("x", "`dims` is 'x'"),
        (([0], [0, 1]), "as many dimensions"),
        (([5], [0]), "`dims` is 5"),
        (torch.ones(2, 1, dtype=torch.int64, device="meta"), "`dims` is a "),
    ],
    ids=str,
)
def test_tensordot_refusals(dims, says):
    with pytest.raises(spgrad.SpgradError, match=re.escape("spgrad.tensordot: ") + f".*{says}"):
        spgrad.tensordot(A, x, dims)


def test_a_complex_operand_with_its_adjoint():
    """Two gradients of one operand add up, also where one of them comes conjugated."""
    A = testing.random_sparse((4, 6), dtype=torch.complex128).requires_grad_()
    twin = A.to_dense().detach().requires_grad_()
    x = torch.randn(6, 2, dtype=torch.complex128)
    for operand in (A, twin):
        (operand.mH @ (operand @ x)).abs().square().sum().backward()
    testing.assert_close(A.grad, twin.grad.where(testing.mask_of(A.pattern), 0))


def test_vectors():
    a = spgrad.sparse_coo_tensor([[1, 4]], [2.0, 3.0], (5,))
    with pytest.raises(spgrad.ArgumentValueError, match=r"spgrad\.dot: `tensor` has 4 element"):
        spgrad.dot(a, torch.ones(4))
    with pytest.raises(spgrad.ArgumentValueError, match=r"spgrad\.vdot: `other` has shape"):
        spgrad.vdot(a, torch.ones(4, 5))
    with pytest.raises(spgrad.ArgumentKindError, match=r"spgrad\.vdot: `input` is a list"):
        spgrad.vdot([1.0, 2.0], a)
    with pytest.raises(spgrad.UnsupportedError, match=r"spgrad\.outer: `input` is dense"):
        spgrad.outer(torch.ones(4), a)
    huge = spgrad.sparse_coo_tensor([[1, 2**40]], [2.0, 3.0], (2**41,))
    assert spgrad.outer(huge, a).nse == 4  # nothing of the size of a vector is made
    assert spgrad.dot(huge, huge) == 13


def test_the_order_of_a_chain():
    """Sparse matrices meet the vector first, and the few first."""
    thin = Factor(1000, 1, None)
    matrix = Factor(1000, 1000, 5000)
    assert best_order([matrix, matrix, thin])[0, 2] == 0  # A (B x)
    row = Factor(1, 1000, None)
    assert best_order([row, matrix, matrix])[0, 2] == 1  # (x A) B
    assert best_order([matrix, Factor(1000, 2, None), Factor(2, 1000, None)])[0, 2] == 1
    few = Factor(1000, 1000, 10)
    assert best_order([matrix, matrix, few])[0, 2] == 0


def test_multi_dot_refusals():
    for tensors, says in (
        ([A], "has 1 tensor"),
        (A, "a list of sparse and dense"),
        ([A, A], "has shape"),
        ([A, torch.ones(6, dtype=torch.float64), A], "has shape"),
    ):
        with pytest.raises(spgrad.SpgradError, match=rf"spgrad\.multi_dot: .*{says}"):
            spgrad.multi_dot(tensors)


def test_one_matrix_is_a_chain():
    assert spgrad.chain_matmul(A) is A
    v = spgrad.sparse_coo_tensor([[1, 4]], [2.0, 3.0], (6,), dtype=torch.float64)
    testing.assert_close(
        spgrad.multi_dot([v, A.mT, A, v]), (A.to_dense() @ v.to_dense()).square().sum()
    )


def test_vdot_takes_the_conjugate_of_a_dense_or_sparse_first_operand():
    x, y = torch.tensor([1 + 2j, 0, 3j]), torch.tensor([2 - 1j, 1, 0])
    a, b = (t.to_sparse() for t in (x, y))
    for left, right in ((x, b), (a, y), (a, b)):
        testing.assert_close(spgrad.vdot(left, right), torch.vdot(x, y))


@pytest.mark.parametrize("numbers", [(0, 25, 26), (25, 26, 51), (51, 0, 27)])
def test_numbers_of_dimensions_are_those_of_torch(numbers):
    """They are spelled A to Z, then a to z."""
    i, j, k = numbers
    B = testing.random_sparse((6, 4), torch.sparse_coo, seed=3)
    y = spgrad.einsum(A, [i, j], B, [j, k])  # the result has its dimensions in their order
    testing.assert_close(y.to_dense(), torch.einsum(A.to_dense(), [i, j], B.to_dense(), [j, k]))
    y = spgrad.einsum(A, [i, j], B, [j, k], [k, i])
    testing.assert_close(y.to_dense(), (A.to_dense() @ B.to_dense()).T)


def test_the_outer_product_of_bools():
    a, b = torch.tensor([True, False, True]), torch.tensor([True, False])
    A = spgrad.from_dense(a, torch.sparse_coo)
    found = torch.outer(A, b)
    assert found.dtype == torch.bool
    assert torch.equal(found.to_dense(), torch.outer(a, b))
