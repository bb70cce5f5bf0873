"""Native torch tensors, SciPy and edge lists: shared memory, gradients of the kind that came."""

import pytest
import torch

import spgrad
from spgrad import support, testing
from spgrad.core import kept
from spgrad.core.pattern import LAYOUTS

scipy_sparse = pytest.importorskip("scipy.sparse")
np = pytest.importorskip("numpy")

COMPRESSED = support.ALL[1:]
FORMATS = ("coo", "csr", "csc", "bsr", "dia", "lil", "dok")


def native(name, dense=None, **options):
    """A native tensor of this layout; by default of a fixed matrix (6, 8)."""
    if dense is None:
        dense = torch.randn(6, 8, dtype=torch.float64) * (torch.rand(6, 8) < 0.4)
    blocks = ((2, 2),) if name.startswith("b") else ()
    return getattr(dense, f"to_sparse_{name}")(*blocks, **options)


def parts(x):
    """Index tensors and values of a native tensor."""
    if x.layout == torch.sparse_coo:
        return x._indices(), x._values()
    if x.layout in (torch.sparse_csr, torch.sparse_bsr):
        return x.crow_indices(), x.col_indices(), x.values()
    return x.ccol_indices(), x.row_indices(), x.values()


def assert_same_native(x, y):
    """Asserts two native tensors of one layout with equal indices and close values."""
    assert type(x) is torch.Tensor
    assert x.layout == y.layout
    assert x.shape == y.shape
    for a, b in zip(parts(x)[:-1], parts(y)[:-1], strict=True):
        assert torch.equal(a, b)
    testing.assert_close(parts(x)[-1], parts(y)[-1])


@pytest.mark.parametrize("name", support.ALL)
def test_native_round_trip_without_a_copy(name):
    x = native(name)
    A = spgrad.from_torch(x)
    assert A.layout == LAYOUTS[name]
    assert torch.equal(A.to_dense(), x.to_dense())
    pointers = [t.data_ptr() for t in parts(x)]
    assert [t.data_ptr() for t in (*A.pattern.indices, A._vals)] == pointers
    back = spgrad.to_torch(A)
    assert [t.data_ptr() for t in parts(back)] == pointers
    assert_same_native(back, x)
    assert spgrad.from_torch(A) is A
    if name == "coo":
        assert A.is_coalesced()
        assert back.is_coalesced()
    parts(x)[-1].mul_(3)
    assert torch.equal(A.to_dense(), x.to_dense())


@pytest.mark.parametrize("name", COMPRESSED)
def test_native_batches(name):
    dense = torch.randn(2, 6, 8, dtype=torch.float64) * (torch.rand(6, 8) < 0.4)
    x = native(name, dense).requires_grad_()
    A = spgrad.from_torch(x)
    assert torch.equal(A.detach().to_dense(), dense)
    assert A._vals.data_ptr() == parts(x)[-1].data_ptr()
    assert_same_native(spgrad.to_torch(A.detach()), x.detach())
    g = torch.randn(2, 6, 8, dtype=torch.float64)
    (A.to_dense() * g).sum().backward()
    assert x.grad.layout == x.layout
    testing.assert_close(x.grad.to_dense(), g * testing.mask_of(A.pattern))


def test_native_hybrids():
    dense = torch.randn(4, 6, 3, dtype=torch.float64) * (torch.rand(4, 6, 1) < 0.5)
    for x in (dense.to_sparse(2), dense.to_sparse_csr(dense_dim=1)):
        A = spgrad.from_torch(x.requires_grad_())
        assert A.dense_dim() == 1
        A.to_dense().pow(2).sum().backward()
        assert x.grad.dense_dim() == 1
        testing.assert_close(x.grad.to_dense(), 2 * dense)


@pytest.mark.parametrize("name", support.ALL)
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64], ids=str)
def test_index_dtypes(name, index_dtype):
    A = testing.random_sparse((4, 6), LAYOUTS[name], index_dtype=index_dtype)
    x = spgrad.to_torch(A)
    assert torch.equal(x.to_dense(), A.to_dense())
    wanted = torch.int64 if name == "coo" else index_dtype  # torch keeps no other for COO
    assert parts(x)[0].dtype == wanted
    assert torch.equal(spgrad.from_torch(x).to_dense(), A.to_dense())


@pytest.mark.parametrize("name", support.ALL)
def test_gradients_are_native_on_the_same_pattern(name):
    x = native(name).requires_grad_()
    y = torch.randn(8, 3, dtype=torch.float64, requires_grad=True)
    (spgrad.from_torch(x) @ y).sin().sum().backward()
    twin = x.detach().to_dense().requires_grad_()
    (twin @ y.detach()).sin().sum().backward()
    on_pattern = twin.grad * testing.mask_of(spgrad.from_torch(x).pattern)
    assert_same_native(
        x.grad,
        spgrad.to_torch(
            spgrad.from_values(
                spgrad.values(on_elements(on_pattern, x)), spgrad.from_torch(x).pattern
            )
        ),
    )
    before = x.grad.to_dense()
    (spgrad.from_torch(x) @ y).sin().sum().backward()
    assert x.grad.layout == x.layout
    testing.assert_close(x.grad.to_dense(), 2 * before)


def on_elements(dense, x):
    """The elements of `dense` at those of native `x`, as a SparseTensor of its layout."""
    pattern = spgrad.from_torch(x.detach()).pattern
    positions = spgrad.from_values(
        torch.arange(pattern.elements, dtype=torch.float64).view(pattern.values_shape), pattern
    )
    at = torch.empty(pattern.elements, dtype=torch.int64)
    mask = testing.mask_of(pattern)
    at[positions.to_dense()[mask].long()] = mask.flatten().nonzero().view(-1)
    return spgrad.from_values(dense.flatten()[at].view(pattern.values_shape), pattern)


@pytest.mark.parametrize("name", support.ALL)
def test_gradients_pass_through_to_torch(name):
    """A native cotangent, and a dense one, arrive on the pattern of A."""
    A = testing.random_sparse((4, 6), LAYOUTS[name]).requires_grad_()
    g = torch.randn(4, 6, dtype=torch.float64)
    cotangents = [
        spgrad.to_torch(spgrad.from_values(on_elements(g, spgrad.to_torch(A.detach()))._vals, A))
    ]
    cotangents.append(g)
    for cotangent in cotangents:
        (grad,) = torch.autograd.grad(spgrad.to_torch(A), A, cotangent)
        assert isinstance(grad, spgrad.SparseTensor)
        assert grad.pattern is A.pattern
        testing.assert_close(grad, g * testing.mask_of(A.pattern))


@pytest.mark.parametrize("name", ["coo", "csr"])
def test_cotangents_on_other_elements(name):
    """What a native op sends back on fewer or more elements is cut to the pattern."""
    A = testing.random_sparse((4, 6), LAYOUTS[name]).requires_grad_()
    g = torch.randn(4, 6, dtype=torch.float64) * (torch.rand(4, 6) < 0.6)
    (grad,) = torch.autograd.grad(spgrad.to_torch(A), A, native(name, g))
    assert grad.pattern is A.pattern
    testing.assert_close(grad, g * testing.mask_of(A.pattern))


def test_native_operation_between():
    """Into torch, through one of its own operations, and back."""
    A = testing.random_sparse((4, 6), torch.sparse_coo).requires_grad_()
    y = torch.randn(6, 2, dtype=torch.float64)
    torch.sparse.mm(spgrad.to_torch(A), y).sum().backward()
    wanted = torch.ones(4, 2, dtype=torch.float64) @ y.t() * testing.mask_of(A.pattern)
    testing.assert_close(A.grad, wanted)


@pytest.mark.parametrize("coalesced", [True, False])
def test_uncoalesced_coordinates(coalesced):
    indices = torch.tensor([[1, 0, 1], [2, 0, 2]])
    vals = torch.tensor([1.0, 2.0, 4.0])
    x = torch.sparse_coo_tensor(indices, vals, (2, 3))
    x = (x.coalesce() if coalesced else x).requires_grad_()
    A = spgrad.from_torch(x)
    assert A.is_coalesced() is coalesced
    assert spgrad.to_torch(A.detach()).is_coalesced() is coalesced
    assert torch.equal(A.detach().to_dense(), torch.tensor([[2.0, 0, 0], [0, 0, 5]]))
    (A @ torch.arange(3.0)[:, None]).sum().backward()
    assert torch.equal(x.grad._indices(), x._indices())
    assert torch.equal(x.grad._values(), x._indices()[1].float())


@pytest.mark.parametrize("name", support.ALL)
def test_second_order_through_native(name):
    x = native(name)
    pattern = spgrad.from_torch(x).pattern
    g = torch.randn(6, 8, dtype=torch.float64)

    def there_and_back(vals):
        middle = spgrad.to_torch(spgrad.from_values(vals, pattern))
        return (spgrad.from_torch(middle).to_dense() * g) ** 3

    vals = spgrad.from_torch(x)._vals.clone().requires_grad_()
    assert torch.autograd.gradcheck(there_and_back, (vals,), fast_mode=True)
    assert torch.autograd.gradgradcheck(there_and_back, (vals,), fast_mode=True)


@pytest.mark.parametrize("name", support.ALL)
def test_pattern_is_kept_for_a_native_tensor(name):
    x = native(name)
    pattern = spgrad.from_torch(x).pattern
    assert spgrad.from_torch(x).pattern is pattern
    spgrad.matmul(x, torch.ones(8, 1, dtype=torch.float64))
    assert pattern.derived(kept.ROWS) is not None
    assert spgrad.from_torch(x).pattern is pattern
    assert spgrad.from_torch(x.clone()).pattern is not pattern


@pytest.mark.parametrize("name", support.ALL)
def test_pattern_is_validated_again_when_indices_change(name):
    dense = torch.zeros(4, 4)
    dense[:, 2:] = 1
    x = native(name, dense)
    assert spgrad.from_torch(x).nse
    parts(x)[-2].view(-1)[-1] = 10**9
    with pytest.raises(spgrad.ArgumentValueError, match="has 1000000000 "):
        spgrad.from_torch(x)
    with pytest.raises(spgrad.ArgumentValueError, match="has 1000000000 "):
        spgrad.matmul(x, torch.ones(4, 2))


BAD_NATIVE = {
    "csr": lambda: torch.sparse_csr_tensor([0, 1, 2, 2], [0, 10**9], [1.0, 2.0], (3, 3)),
    "csc": lambda: torch.sparse_csc_tensor([0, 2, 2, 2], [1, 1], [1.0, 2.0], (3, 3)),
    "bsr": lambda: torch.sparse_bsr_tensor([0, 1], [7], torch.ones(1, 2, 2), (2, 4)),
    "bsc": lambda: torch.sparse_bsc_tensor([0, 1], [-1], torch.ones(1, 2, 2), (4, 2)),
    "pointers": lambda: torch.sparse_csr_tensor([0, 5, 2], [0, 1], [1.0, 2.0], (2, 3)),
    "coo": lambda: torch.sparse_coo_tensor(
        [[0, 10**9], [0, 1]], [1.0, 2.0], (3, 3), check_invariants=False
    ),
    "flag": lambda: torch.sparse_coo_tensor(
        [[1, 0]], [1.0, 2.0], (3,), is_coalesced=True, check_invariants=False
    ),
}


@pytest.mark.parametrize("case", BAD_NATIVE)
def test_native_tensors_with_bad_indices_are_refused(case):
    """torch makes them without a word; its products then read foreign memory."""
    x = BAD_NATIVE[case]()
    for take in (spgrad.from_torch, spgrad.to_dense):
        with pytest.raises(spgrad.ArgumentValueError, match=r"^spgrad\."):
            take(x)


def test_what_is_no_sparse_tensor_is_refused():
    for x in (torch.eye(2), 3, None, np.eye(2), torch.eye(2).to_mkldnn()):
        with pytest.raises(
            spgrad.ArgumentKindError, match=r"^spgrad\.from_torch: `x` is a .*; a s"
        ):
            spgrad.from_torch(x)
        with pytest.raises(spgrad.ArgumentKindError, match=r"^spgrad\.to_torch: `A` is a .*; a S"):
            spgrad.to_torch(x)
        with pytest.raises(spgrad.ArgumentKindError, match=r"^spgrad\.from_scipy: `S` is a .*; a "):
            spgrad.from_scipy(x)
        with pytest.raises(spgrad.ArgumentKindError, match=r"^spgrad\.to_scipy: `A` is a .*; a sp"):
            spgrad.to_scipy(x)
    with pytest.raises(spgrad.ArgumentKindError, match=r"^spgrad\.to_torch: `A` is a coo tensor"):
        spgrad.to_torch(torch.eye(2).to_sparse())


def test_ragged_batch_has_no_native_form():
    A = testing.random_sparse((2, 4, 6))
    with pytest.raises(spgrad.ArgumentValueError, match="`A` is a ragged batch; "):
        spgrad.to_torch(A)
    assert torch.equal(spgrad.to_torch(A.to_sparse_coo()).to_dense(), A.to_dense())


# SciPy


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


# Graphs

EDGES = torch.tensor([[0, 0, 2, 1, 0], [1, 2, 0, 1, 1]])  # one self-loop, one repeated edge


@pytest.mark.parametrize("layout", ["coo", "csr", "csc"])
def test_from_edges(layout):
    weights = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0], requires_grad=True)
    A = spgrad.from_edges(EDGES, weights, layout=LAYOUTS[layout])
    assert A.layout == LAYOUTS[layout]
    assert A.pattern.coalesced
    assert A.nse == 4
    wanted = torch.tensor([[0.0, 17.0, 2.0], [0.0, 8.0, 0.0], [4.0, 0.0, 0.0]])
    assert torch.equal(A.to_dense().detach(), wanted)
    g = torch.arange(9.0).view(3, 3)
    (A.to_dense() * g).sum().backward()
    assert torch.equal(weights.grad, g[EDGES[0], EDGES[1]])


def test_from_edges_sizes():
    assert torch.equal(spgrad.from_edges(EDGES).to_dense().sum(), torch.tensor(5.0))
    assert spgrad.from_edges(EDGES).shape == (3, 3)
    assert spgrad.from_edges(EDGES, size=5).shape == (5, 5)
    assert spgrad.from_edges(EDGES, size=(3, 7)).shape == (3, 7)
    assert spgrad.from_edges(EDGES.tolist(), size=(3, 7)).shape == (3, 7)
    assert spgrad.from_edges(EDGES[:, :0]).shape == (0, 0)
    assert spgrad.from_edges(EDGES[:, :0], size=4).to_dense().sum() == 0
    assert spgrad.from_edges(EDGES.int()).col_indices().dtype == torch.int32


def test_from_edges_with_features():
    features = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    A = spgrad.from_edges(EDGES, features, size=(3, 4))
    assert A.shape == (3, 4, 3)
    assert A.dense_dim() == 1
    wanted = torch.zeros(3, 4, 3, dtype=torch.float64)
    wanted = wanted.index_put((EDGES[0], EDGES[1]), features.detach(), accumulate=True)
    testing.assert_close(A, wanted)
    assert torch.autograd.gradcheck(
        lambda w: spgrad.from_edges(EDGES, w, size=(3, 4)).to_dense(), (features,)
    )


def test_from_edges_aggregates():
    """A @ x adds up what out-neighbours hold; the flipped list what in-neighbours do."""
    x = torch.randn(3, 2)
    wanted = torch.zeros(3, 2).index_add(0, EDGES[0], x[EDGES[1]])
    testing.assert_close(spgrad.from_edges(EDGES) @ x, wanted)
    wanted = torch.zeros(3, 2).index_add(0, EDGES[1], x[EDGES[0]])
    testing.assert_close(spgrad.from_edges(EDGES.flip(0)) @ x, wanted)


BAD_EDGES = {
    "out_of_range": ((EDGES,), {"size": 2}, ValueError),
    "negative": ((-EDGES,), {}, ValueError),
    "transposed": ((EDGES.t(),), {}, ValueError),
    "float": ((EDGES.float(),), {}, ValueError),
    "words": ((["ab", "cd"],), {}, TypeError),
    "none": ((None,), {}, TypeError),
    "weights": ((EDGES, torch.ones(3)), {}, ValueError),
    "weights_list": ((EDGES, [1.0] * 4), {}, ValueError),
    "weights_object": ((EDGES, object()), {}, TypeError),
    "scalar_weight": ((EDGES, torch.tensor(1.0)), {}, ValueError),
    "size": ((EDGES,), {"size": (3, 3, 3)}, ValueError),
    "size_word": ((EDGES,), {"size": "33"}, TypeError),
    "layout": ((EDGES,), {"layout": torch.strided}, TypeError),
    "blocks": ((EDGES,), {"layout": torch.sparse_bsr}, ValueError),
}


@pytest.mark.parametrize("case", BAD_EDGES)
def test_from_edges_refuses(case):
    arguments, options, kind = BAD_EDGES[case]
    with pytest.raises(spgrad.SpgradError, match=r"^spgrad\.") as raised:
        spgrad.from_edges(*arguments, **options)
    assert isinstance(raised.value, kind)
