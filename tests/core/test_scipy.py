"""Matrices of SciPy to sparse tensors and back: shared memory, dtypes, refusals."""

import operator

import pytest
import torch

import spgrad
from spgrad import support, testing
from spgrad.core.pattern import LAYOUTS

scipy_sparse = pytest.importorskip("scipy.sparse")
np = pytest.importorskip("numpy")
FORMATS = ("coo", "csr", "csc", "bsr", "dia", "lil", "dok")


def random_scipy(form, dtype=np.float64):
    rng = np.random.default_rng(0)
    dense = ((rng.random((6, 8)) < 0.4) * rng.integers(1, 9, (6, 8))).astype(dtype)
    return scipy_sparse.coo_array(dense).asformat(form), dense


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.complex64, np.int64, np.bool_])
def test_from_scipy(form, dtype):
    S, dense = random_scipy(form, dtype)
    A = spgrad.from_scipy(S)
    assert A.layout == LAYOUTS.get(form, torch.sparse_csr)
    assert A.shape == dense.shape
    assert torch.equal(A.to_dense(), torch.from_numpy(dense))


@pytest.mark.parametrize("form", ["csr", "csc", "bsr", "coo"])
def test_from_scipy_shares_memory(form):
    S, _ = random_scipy(form)
    A = spgrad.from_scipy(S)
    assert A._vals.data_ptr() == S.data.ctypes.data
    if form != "coo":
        assert A.pattern.indices[0].data_ptr() == S.indptr.ctypes.data
        assert A.pattern.indices[1].data_ptr() == S.indices.ctypes.data
    S.data *= 2
    assert torch.equal(A.to_dense(), torch.from_numpy(S.toarray()))


@pytest.mark.parametrize("form", ["csr", "coo"])
@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.uint64])
def test_unsigned_values_become_int64(form, dtype):
    S, dense = random_scipy(form, dtype)
    A = spgrad.from_scipy(S)
    assert A.dtype == torch.int64
    assert (A @ A.t()).to_dense().tolist() == (dense @ dense.T).tolist()


def test_the_largest_int64_is_taken_from_unsigned_values():
    S = scipy_sparse.csr_array(np.array([[2**63 - 1, 1]], dtype=np.uint64))
    assert spgrad.from_scipy(S).values().tolist() == [2**63 - 1, 1]
    S.data[0] += 1
    with pytest.raises(ValueError, match="uint64"):
        spgrad.from_scipy(S)


@pytest.mark.parametrize("index_dtype", [np.int32, np.int64])
def test_from_scipy_keeps_index_dtypes(index_dtype):
    S, dense = random_scipy("csr")
    S.indices, S.indptr = S.indices.astype(index_dtype), S.indptr.astype(index_dtype)
    A = spgrad.from_scipy(S)
    assert A.crow_indices().dtype == torch.from_numpy(S.indptr).dtype
    assert torch.equal(A.to_dense(), torch.from_numpy(dense))


def test_from_scipy_mends_a_copy():
    unsorted = scipy_sparse.csr_array(([1.0, 2.0, 3.0], [2, 0, 0], [0, 3]), shape=(1, 3))
    A = spgrad.from_scipy(unsorted)
    assert torch.equal(A.to_dense(), torch.tensor([[5.0, 0.0, 1.0]]).double())
    assert unsorted.indices.tolist() == [2, 0, 0]
    assert unsorted.data.tolist() == [1.0, 2.0, 3.0]
    blocks = np.arange(6.0).reshape(3, 1, 2)
    S = scipy_sparse.bsr_array((blocks, [1, 0, 0], [0, 3]), shape=(1, 4))
    assert torch.equal(spgrad.from_scipy(S).to_dense(), torch.from_numpy(S.toarray()))
    coo = scipy_sparse.coo_array(([1.0, 2.0], ([0, 0], [1, 1])), shape=(2, 2))
    A = spgrad.from_scipy(coo)
    assert A.nse == 2
    assert not A.is_coalesced()
    assert torch.equal(A.to_dense(), torch.from_numpy(coo.toarray()))


@pytest.mark.parametrize("form", ["csr", "csc", "bsr", "coo"])
def test_from_scipy_copies_what_is_read_only(form):
    S, dense = random_scipy(form)
    arrays = [S.data, *(S.coords if form == "coo" else (S.indptr, S.indices))]
    for array in arrays:
        array.flags.writeable = False
    A = spgrad.from_scipy(S)
    assert torch.equal(A.to_dense(), torch.from_numpy(dense))
    A._vals.mul_(2)
    assert np.array_equal(S.toarray(), dense)


def test_from_scipy_drops_slack():
    S = scipy_sparse.csr_array((np.ones(5), [0, 1, 2, 0, 0], [0, 1, 2]), shape=(2, 3))
    S.indices, S.data = np.append(S.indices, 2), np.append(S.data, 9.0)
    A = spgrad.from_scipy(S)
    assert A.nse == 2
    assert torch.equal(A.to_dense(), torch.eye(2, 3).double())


@pytest.mark.parametrize("form", ["csr", "csc", "bsr", "coo"])
@pytest.mark.parametrize("looked_at", [True, False])
def test_from_scipy_refuses_bad_indices(form, looked_at):
    S, _ = random_scipy(form)
    if looked_at and form != "coo":
        assert S.has_canonical_format  # which SciPy keeps
    (S.coords[1] if form == "coo" else S.indices)[0] = 1000
    with pytest.raises(spgrad.ArgumentValueError, match=r"^spgrad\..* has 1000 "):
        spgrad.from_scipy(S)


@pytest.mark.parametrize("form", ["csr", "csc", "bsr"])
@pytest.mark.parametrize("pointer", [10**8, -1])
def test_from_scipy_refuses_bad_pointers(form, pointer):
    """SciPy would follow them out of its arrays."""
    S, _ = random_scipy(form)
    S.indptr[2] = pointer
    with pytest.raises(spgrad.ArgumentValueError, match=r"^spgrad\.from_scipy: `S` has an indptr "):
        spgrad.from_scipy(S)
    S, _ = random_scipy(form)
    S.indptr[-1] = 1000
    with pytest.raises(spgrad.ArgumentValueError, match=r"^spgrad\.from_scipy: `S` has an indptr "):
        spgrad.from_scipy(S)


def test_from_scipy_refuses_dtypes_that_torch_lacks():
    S, _ = random_scipy("csr", np.longdouble)
    with pytest.raises(spgrad.ArgumentValueError, match=r"`S` has dtype (float128|longdouble); "):
        spgrad.from_scipy(S)


def test_from_scipy_matrices_and_other_dimensions():
    S, dense = random_scipy("csr")
    assert torch.equal(
        spgrad.from_scipy(scipy_sparse.csr_matrix(S)).to_dense(), torch.from_numpy(dense)
    )
    vector = scipy_sparse.coo_array(np.array([0.0, 2.0, 0.0]))
    assert torch.equal(spgrad.from_scipy(vector).to_dense(), torch.tensor([0.0, 2.0, 0.0]).double())
    for form in ("csr", "dok"):
        row = spgrad.from_scipy(vector.asformat(form))
        assert torch.equal(row.to_dense(), torch.tensor([[0.0, 2.0, 0.0]]).double())


@pytest.mark.parametrize("name", support.ALL)
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64], ids=str)
def test_to_scipy(name, index_dtype):
    A = testing.random_sparse((4, 6), LAYOUTS[name], index_dtype=index_dtype)
    S = spgrad.to_scipy(A)
    assert S.format == ("csr" if name == "bsc" else name)
    assert S.shape == (4, 6)
    assert np.array_equal(S.toarray(), A.to_dense().numpy())
    if name != "bsc":
        assert S.data.ctypes.data == A._vals.data_ptr()
        assert torch.equal(spgrad.from_scipy(S).to_dense(), A.to_dense())
    assert np.array_equal(spgrad.to_scipy(spgrad.to_torch(A)).toarray(), S.toarray())


def test_to_scipy_detaches_and_resolves():
    A = testing.random_sparse((4, 6)).requires_grad_()
    assert np.array_equal(spgrad.to_scipy(A).toarray(), A.detach().to_dense().numpy())
    vals = torch.tensor([1.0 + 2.0j, 3.0 - 1.0j])
    for view in (vals.conj(), vals.conj().imag):
        made = spgrad.sparse_csr_tensor([0, 2], [0, 1], view, (1, 2))
        assert spgrad.to_scipy(made).data.tolist() == view.tolist()


def test_to_scipy_refusals():
    with pytest.raises(spgrad.ArgumentValueError, match="with batch or dense dimensions; a matrix"):
        spgrad.to_scipy(testing.random_sparse((2, 4, 6)))
    hybrid = spgrad.sparse_csr_tensor([0, 1], [0], torch.ones(1, 3), (1, 1, 3))
    with pytest.raises(spgrad.ArgumentValueError, match="with batch or dense dimensions; a matrix"):
        spgrad.to_scipy(hybrid)
    for dtype in (torch.bfloat16, torch.float16):
        with pytest.raises(spgrad.ArgumentValueError, match=f"has dtype {str(dtype)[6:]}; those"):
            spgrad.to_scipy(testing.random_sparse((4, 6)).to(dtype))


def test_sparse_solver_of_scipy_takes_what_to_scipy_gives():
    from scipy.sparse.linalg import spsolve

    A = spgrad.from_dense(torch.eye(4, dtype=torch.float64) * 2)
    assert spsolve(spgrad.to_scipy(A), np.ones(4)).tolist() == [0.5] * 4


ARITHMETIC = [operator.add, operator.sub, operator.mul, operator.truediv, operator.mod]
COMPARISONS = [operator.ne, operator.lt, operator.le, operator.gt, operator.ge]


@pytest.mark.parametrize("form", ["array", "matrix", "dense", "number"])
@pytest.mark.parametrize("op", ARITHMETIC + COMPARISONS, ids=lambda op: op.__name__)
def test_operators_take_arrays(form, op):
    """As the functions of the same names do; torch leaves these operators to the arrays."""
    A = spgrad.from_dense(torch.tensor([[2.0, 0.0], [0.0, 3.0]])).to_sparse_csr()
    other = np.array([[1.0, 4.0], [5.0, 2.0]], dtype=np.float32)
    given = {
        "array": scipy_sparse.csr_array(other),
        "matrix": scipy_sparse.csr_matrix(other),
        "dense": other,
        "number": np.array(2.0, dtype=np.float32),
    }[form]
    dense = torch.as_tensor(other if form != "number" else 2.0)
    if form == "matrix" and op is operator.mul:
        with pytest.raises(spgrad.ArgumentKindError, match="Write A @ other for that product"):
            op(A, given)
        with pytest.raises(spgrad.ArgumentKindError, match="Write A @ other for that product"):
            op(given, A)
        return
    if form == "number" and not torch.equal(op(torch.zeros(()), dense), torch.zeros(())):
        with pytest.raises(spgrad.ArgumentValueError, match=r"`other` is 2\.0"):
            op(A, given)
        return
    if form in ("array", "matrix") and op in (operator.le, operator.ge):  # True where both are 0
        with pytest.raises(spgrad.UnsupportedError, match="the result would be dense"):
            op(A, given)
        return
    found = op(A, given)
    found = found.to_dense() if isinstance(found, spgrad.SparseTensor) else found
    expected = op(A.to_dense(), dense)
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)


@pytest.mark.parametrize("op", [operator.add, operator.sub], ids=lambda op: op.__name__)
def test_arrays_come_first(op):
    A = spgrad.from_dense(torch.eye(2)).to_sparse_csr().requires_grad_()
    other = np.array([[1.0, 4.0], [5.0, 2.0]], dtype=np.float32)
    expected = op(torch.as_tensor(other), torch.eye(2))
    for given in (other, scipy_sparse.csr_array(other), scipy_sparse.csr_matrix(other)):
        found = op(given, A)
        dense = found.to_dense() if isinstance(found, spgrad.SparseTensor) else found
        assert torch.equal(dense, expected)
        (g,) = torch.autograd.grad(dense.sum(), A)
        assert g.values().tolist() == [op(0.0, 1.0)] * 2
    assert torch.equal((other * A).to_dense(), torch.as_tensor(other) * torch.eye(2))
    assert torch.equal(other < A, torch.as_tensor(other) < torch.eye(2))
    with pytest.raises(spgrad.ArgumentKindError, match="NumPy asked a SparseTensor"):
        scipy_sparse.csr_array(other) < A  # noqa: B015


def test_arrays_that_run_backwards():
    """NumPy's x[::-1] has a negative stride, and torch no such tensor."""
    values, index = np.array([3.0, 2.0, 1.0])[::-1], np.array([2, 1, 0])[::-1]
    assert values.strides[0] < 0
    expected = torch.diag(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    S = scipy_sparse.csr_array(np.eye(3))
    S.data, S.indices = values, np.array([2, 1, 0], np.int32)[::-1]
    coo = scipy_sparse.coo_array((values, (index, index)), shape=(3, 3))
    made = [
        spgrad.from_scipy(S),
        spgrad.from_scipy(coo),
        spgrad.sparse_csr_tensor(np.arange(4), index, values, (3, 3)),
        spgrad.sparse_coo_tensor(np.stack([index, index])[::-1], values, (3, 3)),
        spgrad.from_edges(np.stack([index, index])[::-1], values),
        spgrad.eye(3, dtype=torch.float64) * np.diag(values[::-1])[::-1, ::-1],
    ]
    for A in made:
        assert torch.equal(A.to_dense(), expected)


@pytest.mark.parametrize("wide", ["indptr", "indices"])
def test_arrays_of_two_index_dtypes(wide):
    """SciPy computes with them."""
    S = scipy_sparse.csr_matrix(np.array([[0.0, 1.0], [2.0, 3.0]]))
    setattr(S, wide, getattr(S, wide).astype(np.int64))
    A = spgrad.from_scipy(S)
    assert A.crow_indices().dtype == A.col_indices().dtype == torch.int64
    assert A.to_dense().tolist() == S.toarray().tolist()
