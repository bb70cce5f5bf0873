"""Products and arithmetic with arrays and numbers of NumPy, and with sparse arrays of SciPy."""

import operator

import numpy as np
import pytest
import scipy.sparse
import torch

import spgrad
from spgrad import public, support, testing
from spgrad.core.pattern import LAYOUTS


def sparse(layout="csr", shape=(4, 6)):
    return testing.random_sparse(shape, LAYOUTS[layout])


@pytest.mark.parametrize("layout", support.ALL)
def test_products_with_arrays_of_numpy(layout):
    A = sparse(layout).requires_grad_()
    dense = A.to_dense().detach()
    x = np.random.default_rng(0).standard_normal((6, 3))
    for array in (x, np.asfortranarray(x), x[::-1], x[:, 0]):
        y = A @ array
        assert type(y) is torch.Tensor
        testing.assert_close(y, dense @ torch.tensor(array.copy()))
        left = array.T @ A.mT
        assert type(left) is torch.Tensor
        testing.assert_close(left, torch.tensor(array.T.copy()) @ dense.mT)
    (A @ x).sum().backward()
    assert A.grad.pattern is A.pattern


@pytest.mark.parametrize("layout", support.ALL)
@pytest.mark.parametrize("form", ["csr", "csc", "coo", "bsr", "dia"])
def test_products_with_sparse_arrays_of_scipy(layout, form):
    A = sparse(layout)
    S = scipy.sparse.random_array((6, 4), density=0.4, format=form, rng=0)
    other = torch.tensor(S.toarray())
    for B in (S, scipy.sparse.csr_matrix(S)):
        y = A @ B
        assert isinstance(y, spgrad.SparseTensor)
        assert y.layout == A.layout
        testing.assert_close(y, A.to_dense() @ other)
        z = B @ A
        assert isinstance(z, spgrad.SparseTensor)
        testing.assert_close(z, other @ A.to_dense())


def test_a_read_only_array_is_not_shared():
    x = np.ones((6, 2))
    x.flags.writeable = False
    testing.assert_close(sparse() @ x, sparse().to_dense().sum(1, keepdim=True).expand(4, 2))


def test_operands_that_do_not_fit_are_refused_by_name():
    A = sparse()
    with pytest.raises(spgrad.ArgumentValueError, match=r"spgrad\.matmul: .*float32"):
        A @ np.ones((6, 2), dtype=np.float32)
    with pytest.raises(spgrad.ArgumentValueError, match=r"spgrad\.matmul: .*shape"):
        A @ np.ones((5, 2))
    with pytest.raises(spgrad.ArgumentKindError, match=r"spgrad\.matmul: `other` is a list"):
        A @ [[1.0]]
    with pytest.raises(spgrad.ArgumentKindError, match=r"spgrad\.matmul: `other` is a float"):
        A @ np.float64(2)
    with pytest.raises(spgrad.ArgumentKindError, match=r"spgrad\.matmul: `other` is a longdouble"):
        A @ np.longdouble(2)  # which is no number of Python, not even as an item


def test_numpy_still_gets_no_dense_array():
    ways = (
        r"as numpy\.asarray\(A\) and S < A of SciPy do; .*A\.to_dense\(\)\.numpy\(\), "
        r"the components A\.values\(\)"
    )
    for ask in (np.asarray, np.array, lambda A: np.matmul(np.ones((2, 4)), A)):
        with pytest.raises(spgrad.ArgumentKindError, match=ways):
            ask(sparse())


def test_the_ways_out_of_a_refused_array_lead_out():
    A = sparse()
    assert A.to_dense().numpy().shape == (4, 6)
    assert A.coo_indices().numpy().shape == (2, A.values().numpy().size)


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int64, np.int8])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64])
def test_numbers_of_numpy_are_numbers(kind, dtype):
    A = sparse().to(dtype)
    dense = A.to_dense()
    for op in (operator.mul, operator.truediv, operator.gt):
        wanted = op(dense, kind(2))
        y = op(A, kind(2))
        assert y.dtype == wanted.dtype
        testing.assert_close(y, wanted)
    testing.assert_close(kind(2) * A, 2 * dense)
    testing.assert_close(A + kind(0), dense)
    with pytest.raises(spgrad.ArgumentValueError, match=r"spgrad\.add: .*would be dense"):
        spgrad.add(A, kind(1))


def test_elementwise_functions_take_arrays():
    A = sparse()
    x = np.arange(24.0).reshape(4, 6)
    testing.assert_close(spgrad.mul(A, x), A.to_dense() * torch.tensor(x))
    S = scipy.sparse.csr_array(x)
    testing.assert_close(spgrad.add(A, S), A.to_dense() + torch.tensor(x))


def test_numbers_inside_of_arguments_become_numbers_of_python():
    """As deep as they are looked for; what lies deeper is left as it is."""
    for depth, known in ((public._DEEPEST, True), (public._DEEPEST + 1, False)):
        for wrap in (lambda x: {"k": x}, lambda x: [x], lambda x: (x,)):
            given, wanted = np.int64(3), 3
            for _ in range(depth):
                given, wanted = wrap(given), wrap(wanted)
            assert public._has_numpys(given) is known
            found = public._pythons(given)
            assert found == wanted
            for _ in range(depth):
                found = found["k"] if isinstance(found, dict) else found[0]
            assert (type(found) is int) is known


OPERATORS = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lt", "le", "gt", "ge"]


@pytest.mark.parametrize("other", [[1.0, 2.0, 3.0], (1.0, 2.0, 3.0)], ids=["list", "tuple"])
@pytest.mark.parametrize(
    ("name", "turned"), [*((name, False) for name in OPERATORS), ("add", True), ("mul", True)]
)
def test_an_operator_says_what_it_takes_in_place_of_a_list(name, turned, other):
    A = spgrad.eye(3)
    operands = (other, A) if turned else (A, other)
    with pytest.raises(
        TypeError, match=rf"`(other|exponent)` is a {type(other).__name__}; a tensor or"
    ):
        getattr(operator, name)(*operands)


def test_a_tensor_is_unequal_to_a_list():
    assert spgrad.eye(3) != [1.0]
    assert (spgrad.eye(3) == [1.0]) is False
