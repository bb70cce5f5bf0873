"""Native torch tensors: shared memory, gradients of the kind that came."""

import pytest
import torch

import spgrad
from spgrad import kernels, support, testing
from spgrad.core import kept
from spgrad.core.pattern import LAYOUTS

np = pytest.importorskip("numpy")
pytest.importorskip("scipy.sparse")

COMPRESSED = support.ALL[1:]


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


@pytest.mark.parametrize("dense", [(), (2,)])
@pytest.mark.parametrize("between", [lambda x: x, lambda x: x * 2, torch.Tensor.coalesce])
def test_gradients_of_values_whose_indices_repeat(between, dense):
    """They reach the values through torch's own derivative of the constructor."""
    indices = torch.tensor([[1, 0, 1, 1], [2, 0, 2, 0]])
    y = torch.randn(2, 3, *dense, dtype=torch.float64)
    val = torch.randn(4, *dense, dtype=torch.float64, requires_grad=True)

    def run(val):
        x = torch.sparse_coo_tensor(indices, val, (2, 3, *dense), check_invariants=True)
        return (spgrad.from_torch(between(x)).to_dense() * y) ** 3

    assert torch.autograd.gradcheck(run, val)


def test_repeated_elements_there_and_back():
    indices = torch.tensor([[1, 0, 1], [2, 0, 2]])
    A = spgrad.sparse_coo_tensor(indices, [1.0, 2.0, 3.0], (2, 3), requires_grad=True)
    spgrad.from_torch(spgrad.to_torch(A)).to_dense().backward(torch.arange(6.0).view(2, 3))
    assert A.grad._values().tolist() == [5, 0, 5]


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
    view = kept.ROWS if pattern.blocksize is None or not kernels.compiled() else kept.BLOCK_ROWS
    assert pattern.derived(view) is not None
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
            spgrad.ArgumentKindError, match=r"^spgrad\.from_torch: `x` is (an? .*|None); a s"
        ):
            spgrad.from_torch(x)
        with pytest.raises(
            spgrad.ArgumentKindError, match=r"^spgrad\.to_torch: `A` is (an? .*|None); a S"
        ):
            spgrad.to_torch(x)
        with pytest.raises(
            spgrad.ArgumentKindError, match=r"^spgrad\.from_scipy: `S` is (an? .*|None); a "
        ):
            spgrad.from_scipy(x)
        with pytest.raises(
            spgrad.ArgumentKindError, match=r"^spgrad\.to_scipy: `A` is (an? .*|None); a sp"
        ):
            spgrad.to_scipy(x)
    with pytest.raises(spgrad.ArgumentKindError, match=r"^spgrad\.to_torch: `A` is a coo tensor"):
        spgrad.to_torch(torch.eye(2).to_sparse())


def test_ragged_batch_has_no_native_form():
    A = testing.random_sparse((2, 4, 6))
    with pytest.raises(spgrad.ArgumentValueError, match="`A` is a ragged batch; "):
        spgrad.to_torch(A)
    assert torch.equal(spgrad.to_torch(A.to_sparse_coo()).to_dense(), A.to_dense())


def test_cotangents_of_an_uncoalesced_tensor():
    """Its own indices or a dense cotangent: each of the repeated elements gets the same."""
    indices = torch.tensor([[1, 0, 1], [2, 0, 2]])
    A = spgrad.sparse_coo_tensor(indices, [1.0, 2.0, 3.0], (2, 3), requires_grad=True)
    g = torch.arange(6.0).view(2, 3)
    spgrad.to_torch(A).backward(g)
    assert A.grad._values().tolist() == [5, 0, 5]
    A.grad = None
    own = torch.sparse_coo_tensor(indices, [7.0, 8.0, 9.0], (2, 3))
    spgrad.to_torch(A).backward(own)
    assert A.grad._values().tolist() == [7, 8, 9]
    other = torch.sparse_coo_tensor([[1], [2]], [7.0], (2, 3))
    with pytest.raises(spgrad.ArgumentValueError, match="has other indices than it; its own"):
        spgrad.to_torch(A).backward(other)
