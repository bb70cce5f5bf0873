"""What a caller declares of a matrix by `assume`: each function checks it, and uses it."""

import re

import pytest
import torch

import spgrad
from spgrad import linalg

F64, C128 = torch.float64, torch.complex128


def changed(M, *elements):
    M = M.clone()
    for i, j, value in elements:
        M[i, j] = value
    return M


SYMMETRIC = torch.tensor([[4.0, 1, 0], [1, 3, 1], [0, 1, 2]], dtype=F64)
GENERAL = changed(SYMMETRIC, (1, 0, 2))
ONE_SIDED = changed(SYMMETRIC, (2, 1, 0))
INDEFINITE = changed(SYMMETRIC, (2, 2, -2))
HERMITIAN = changed(SYMMETRIC.to(C128), (0, 1, 1 + 1j), (1, 0, 1 - 1j))
MIRRORED = changed(HERMITIAN, (1, 0, 1 + 1j))  # complex symmetric
COMPLEX_DIAGONAL = changed(HERMITIAN, (2, 2, 2 + 1j))


def right(A):
    return torch.arange(1.0, 4).to(A.dtype)


FUNCTIONS = {
    "solve": lambda A, word: linalg.solve(A, right(A), assume=word),
    "solve by GMRES": lambda A, word: linalg.solve(A, right(A), linalg.GMRES(), assume=word),
    "factor": lambda A, word: linalg.factor(A, assume=word).solve(right(A)),
    "det": lambda A, word: linalg.det(A, assume=word),
    "slogdet": lambda A, word: linalg.slogdet(A, assume=word)[1],
    "inverse_at": lambda A, word: linalg.inverse_at(A, A.pattern, assume=word).to_dense(),
    "inverse_diagonal": lambda A, word: linalg.inverse_diagonal(A, assume=word),
}
DENSE = {
    "solve": lambda M: torch.linalg.solve(M, right(M)),
    "solve by GMRES": lambda M: torch.linalg.solve(M, right(M)),
    "factor": lambda M: torch.linalg.solve(M, right(M)),
    "det": torch.linalg.det,
    "slogdet": lambda M: torch.linalg.slogdet(M)[1],
    "inverse_at": lambda M: torch.linalg.inv(M).where(M != 0, 0),
    "inverse_diagonal": lambda M: torch.linalg.inv(M).diagonal(),
}
APART = "and mirrored elements of `A` differ by up to"
UNTRUE = {
    "no triangle": (GENERAL, "triangular", "has elements above and below the diagonal"),
    "other elements": (GENERAL, "symmetric", APART),
    "other elements, hermitian": (GENERAL, "hermitian", APART),
    "other elements, definite": (GENERAL, "positive definite", APART),
    "no element": (ONE_SIDED, "symmetric", '`assume` is "symmetric", and '),
    "a conjugate": (HERMITIAN, "symmetric", APART),
    "no conjugate": (MIRRORED, "hermitian", APART),
    "no conjugate, definite": (MIRRORED, "positive definite", APART),
    "a complex diagonal": (COMPLEX_DIAGONAL, "hermitian", APART),
    "a negative diagonal": (INDEFINITE, "positive definite", "diagonal has -2 in row 2"),
    "no word": (SYMMETRIC, "spd", "`assume` is 'spd'; \"general\", "),
}


@pytest.mark.parametrize("case", UNTRUE)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_not_true_is_refused(name, case):
    M, word, text = UNTRUE[case]
    kind = spgrad.PivotError if case == "a negative diagonal" else spgrad.ArgumentValueError
    function = name.partition(" ")[0]
    with pytest.raises(kind, match=rf"spgrad\.linalg\.{function}: .*{re.escape(text)}"):
        FUNCTIONS[name](spgrad.from_dense(M).to_sparse_csr(), word)


TRUE = [
    (GENERAL, None),
    (GENERAL, "general"),
    (GENERAL.triu(), "triangular"),
    (GENERAL.tril(), "triangular"),
    (SYMMETRIC, "symmetric"),
    (SYMMETRIC, "hermitian"),
    (SYMMETRIC, "positive definite"),
    (INDEFINITE, "symmetric"),
    (HERMITIAN, "hermitian"),
    (HERMITIAN, "positive definite"),
    (MIRRORED, "symmetric"),
    (changed(SYMMETRIC, (1, 0, 1 + 1e-15)), "positive definite"),
]


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc], ids=str)
@pytest.mark.parametrize(("M", "word"), TRUE, ids=lambda x: x if isinstance(x, str) else "")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_true_gives_the_same_values_and_gradients(name, M, word, layout):
    A = spgrad.from_dense(M, layout).requires_grad_()
    twin = M.clone().requires_grad_()
    y, wanted = FUNCTIONS[name](A, word), DENSE[name](twin)
    near = {"rtol": 1e-6, "atol": 1e-7}
    torch.testing.assert_close(y, wanted, **near)
    g = torch.arange(1.0, 1 + y.numel(), dtype=F64).view(y.shape).to(y.dtype)
    y.backward(g)
    wanted.backward(g)
    torch.testing.assert_close(A.grad.to_dense(), twin.grad.where(M != 0, 0), **near)


@pytest.mark.parametrize("layout", [torch.sparse_bsr, torch.sparse_bsc], ids=str)
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_zeros_of_blocks_may_be_in_the_other_triangle(name, upper, layout):
    """The pattern has both triangles, and every element of it gets its gradient."""
    M = GENERAL.triu() if upper else GENERAL.tril()
    A = spgrad.from_dense(M, layout, blocksize=(3, 3)).requires_grad_()
    twin = M.clone().requires_grad_()
    y, wanted = FUNCTIONS[name](A, "triangular"), DENSE[name](twin)
    if name == "inverse_at":  # at the elements of the block
        wanted = torch.linalg.inv(twin)
    g = torch.arange(1.0, 1 + y.numel(), dtype=F64).view(y.shape)
    near = {"rtol": 1e-6, "atol": 1e-7}
    torch.testing.assert_close(y, wanted, **near)
    first, expected = (
        torch.autograd.grad(z, of, g, create_graph=True)[0] for z, of in ((y, A), (wanted, twin))
    )
    torch.testing.assert_close(first.to_dense(), expected, **near)
    second, expected = (
        torch.autograd.grad((z * z).sum(), of)[0]
        for z, of in ((first.to_dense(), A), (expected, twin))
    )
    torch.testing.assert_close(second.to_dense(), expected, rtol=1e-5, atol=1e-6)


def test_a_declared_triangle_of_blocks_names_the_row_without_a_diagonal():
    M = changed(GENERAL.tril(), (1, 1, 0))
    A = spgrad.from_dense(M, torch.sparse_bsr, blocksize=(3, 3))
    with pytest.raises(spgrad.PivotError, match="on the diagonal in row 1"):
        linalg.solve(A, right(A), assume="triangular")


def test_blocks_with_elements_in_both_triangles_are_refused():
    A = spgrad.from_dense(GENERAL, torch.sparse_bsr, blocksize=(3, 3))
    with pytest.raises(spgrad.ArgumentValueError, match="has elements above and below"):
        linalg.solve(A, right(A), assume="triangular")


ELSEWHERE = {
    "lanczos": (lambda A: linalg.logdet(A, method="lanczos"), 'Take method="factor".'),
    "CHOLMOD": (lambda A: linalg.solve(A, right(A), linalg.CHOLMOD()), "Take spgrad.linalg.Super"),
    "sample": (lambda A: linalg.factor(A).sample(), "Factor the precision of a Gaussian"),
    "eigsh": (lambda A: linalg.eigsh(spgrad.eye(3, dtype=F64), 1, A), "Find all eigenvalues by"),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_diagonal_that_nobody_declared_positive_has_another_hint(name):
    function, hint = ELSEWHERE[name]
    if name == "CHOLMOD":
        pytest.importorskip("cvxopt")
    A = spgrad.from_dense(INDEFINITE)
    with pytest.raises(spgrad.PivotError, match=re.escape(f"numbers are accepted. {hint}")):
        function(A)
    with pytest.raises(spgrad.PivotError, match=r"numbers are accepted\. Leave `assume` out\."):
        linalg.solve(A, right(A), assume="positive definite")
