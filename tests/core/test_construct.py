"""The constructors: torch's arguments, shared memory, dtypes, devices and gradients."""

import inspect

import pytest
import torch
from constructors import CONSTRUCTOR, DENSE, INDEX_NAMES, NATIVE, PARTS, tensors
from samples import made_by_torch

import spgrad
from spgrad import support, testing
from spgrad.core.pattern import LAYOUTS

DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
)


@pytest.mark.parametrize("name", support.ALL)
def test_arguments_are_those_of_torch(name):
    """torch documents its constructors in docstrings alone: names, order, keyword-only."""
    documented = NATIVE[name].__doc__
    head = documented[documented.index("(") + 1 : documented.index(") -> Tensor")]
    positional, _, keywords = head.replace("\n", " ").partition("*,")
    wanted = [part.partition("=")[0].strip() for part in positional.split(",") if part.strip()]
    parameters = inspect.signature(CONSTRUCTOR[name]).parameters.values()
    assert [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY] == wanted
    mine = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
    assert mine == {part.partition("=")[0].strip() for part in keywords.split(",")}


@pytest.mark.parametrize("name", support.ALL)
def test_from_lists_and_from_tensors(name):
    for parts in (PARTS[name], tensors(name)):
        A = CONSTRUCTOR[name](*parts, (2, 3))
        assert A.layout == LAYOUTS[name]
        assert A.shape == (2, 3)
        assert A.dtype == torch.float32
        assert A.is_leaf
        assert not A.requires_grad
        assert torch.equal(A.to_dense(), DENSE)
    assert torch.equal(CONSTRUCTOR[name](*PARTS[name]).to_dense(), DENSE)  # size inferred
    assert torch.equal(CONSTRUCTOR[name](*PARTS[name], [2, 3]).to_dense(), DENSE)
    assert torch.equal(CONSTRUCTOR[name](*PARTS[name], torch.Size((2, 3))).to_dense(), DENSE)
    if name != "coo":
        general = spgrad.sparse_compressed_tensor
        A = general(*PARTS[name], (2, 3), layout=LAYOUTS[name])
        assert A.layout == LAYOUTS[name]
        assert torch.equal(A.to_dense(), DENSE)
        names = ("compressed_indices", "plain_indices", "values")
        named = dict(zip(names, PARTS[name], strict=True))
        assert torch.equal(general(**named, layout=LAYOUTS[name]).to_dense(), DENSE)


@pytest.mark.parametrize("name", support.ALL)
def test_memory_is_shared(name):
    *indices, vals = tensors(name)
    A = CONSTRUCTOR[name](*indices, vals, (2, 3))
    assert A._vals.data_ptr() == vals.data_ptr()
    for mine, given in zip(A.pattern.indices, indices, strict=True):
        assert mine.data_ptr() == given.data_ptr()
    vals.mul_(2)
    assert torch.equal(A.to_dense(), 2 * DENSE)


@pytest.mark.parametrize("name", support.ALL)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes_of_values(name, dtype):
    *indices, vals = tensors(name)
    for A in (
        CONSTRUCTOR[name](*indices, vals.to(dtype), (2, 3)),
        CONSTRUCTOR[name](*indices, vals, (2, 3), dtype=dtype),
        CONSTRUCTOR[name](*PARTS[name], (2, 3), dtype=dtype),
    ):
        assert A.dtype == dtype
        assert torch.equal(A.to_dense(), DENSE.to(dtype))


@pytest.mark.parametrize("name", support.ALL)
def test_index_dtypes_are_kept(name):
    *indices, vals = tensors(name)
    for dtype in (torch.int32, torch.int64):
        A = CONSTRUCTOR[name](*(i.to(dtype) for i in indices), vals)
        assert [i.dtype for i in A.pattern.indices] == [dtype] * len(indices)
        assert torch.equal(A.to_dense(), DENSE)


def test_index_dtype_of_other_integers_is_refused():
    for dtype in (torch.int16, torch.uint8, torch.float32, torch.bool):
        with pytest.raises(
            spgrad.ArgumentValueError,
            match=r"^spgrad\.sparse_csr_tensor: `crow_indices` has dtype .*; int32 and int64 are "
            r"accepted\. Convert it with crow_indices\.long\(\)\.\n  called with crow_indices: ",
        ):
            spgrad.sparse_csr_tensor(torch.tensor([0, 1]).to(dtype), [0], [1.0])


@pytest.mark.parametrize("name", support.ALL)
def test_requires_grad_makes_a_leaf(name):
    A = CONSTRUCTOR[name](*PARTS[name], (2, 3), requires_grad=True)
    assert A.requires_grad
    assert A.is_leaf
    A.to_dense().sum().backward()
    assert A.grad.pattern is A.pattern
    assert torch.equal(A.grad.to_dense(), A.detach().to_dense().new_ones(2, 3) * mask(A))
    with pytest.raises(spgrad.ArgumentValueError, match="`requires_grad` is set for values of"):
        CONSTRUCTOR[name](*PARTS[name], (2, 3), dtype=torch.int64, requires_grad=True)


def mask(A):
    return testing.mask_of(A.pattern)


@pytest.mark.parametrize("name", support.ALL)
def test_derivatives_with_respect_to_values(name):
    *indices, vals = tensors(name, dtype=torch.float64)

    def run(vals):
        return CONSTRUCTOR[name](*indices, vals, (2, 3)).to_dense() ** 3

    assert torch.autograd.gradcheck(run, (vals.requires_grad_(),))
    assert torch.autograd.gradgradcheck(run, (vals,))
    (grad,) = torch.autograd.grad(run(vals).sum(), vals)
    assert grad.layout == torch.strided
    testing.assert_close(grad, 3 * vals.detach() ** 2)


def test_derivatives_with_respect_to_hybrid_and_ragged_values():
    hybrid = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    ragged = torch.randn(3, dtype=torch.float64, requires_grad=True)
    batched = torch.randn(2, 1, dtype=torch.float64, requires_grad=True)
    made = {
        hybrid: lambda v: spgrad.sparse_csr_tensor([0, 2, 3], [0, 2, 1], v, (2, 3, 2)),
        ragged: lambda v: spgrad.sparse_csr_tensor([[0, 1], [0, 2]], [0, 0, 1], v, (2, 1, 2)),
        batched: lambda v: spgrad.sparse_csr_tensor([[0, 1], [0, 1]], [[0], [1]], v, (2, 1, 2)),
    }
    for vals, make in made.items():

        def run(v, make=make):
            return make(v).to_dense() ** 3

        assert torch.autograd.gradcheck(run, (vals,))
        assert torch.autograd.gradgradcheck(run, (vals,))


def test_gradient_reaches_repeated_coordinates():
    vals = torch.tensor([2.0, 3.0], requires_grad=True)
    A = spgrad.sparse_coo_tensor([[1, 1]], vals, (3,))
    assert torch.equal(A.to_dense().detach(), torch.tensor([0.0, 5.0, 0.0]))
    (A.to_dense() * torch.tensor([7.0, 11.0, 13.0])).sum().backward()
    assert torch.equal(vals.grad, torch.tensor([11.0, 11.0]))


def test_coalesced_flag():
    def make(indices, **options):
        return spgrad.sparse_coo_tensor(
            [indices], torch.arange(len(indices)).float(), (9,), **options
        )

    assert not make([0, 1]).is_coalesced()  # sorted, and yet torch says no
    assert make([0, 1], is_coalesced=True).is_coalesced()
    assert not make([0, 1], is_coalesced=False).is_coalesced()
    assert make([5]).is_coalesced()  # one element alone, as torch says
    assert torch.equal(make([3, 7], is_coalesced=True).indices(), torch.tensor([[3, 7]]))
    for indices in ([1, 0], [1, 1]):
        with pytest.raises(
            spgrad.ArgumentValueError,
            match=r"`is_coalesced` is True but `indices` are not sorted and unique; ",
        ):
            make(indices, is_coalesced=True)
    with pytest.raises(RuntimeError, match="`A` is not coalesced; "):
        make([0, 1]).values()
    with pytest.raises(RuntimeError, match="`A` is not coalesced; "):
        make([0, 1]).indices()
    A = make([4, 2, 4])
    assert torch.equal(A._indices(), torch.tensor([[4, 2, 4]]))
    for unsorted in (A, make([1, 1])):
        with pytest.raises(RuntimeError, match="`coalesced` is True for indices that are not"):
            unsorted._coalesced_(True)
        assert not unsorted.is_coalesced()
    B = make([0, 1])
    assert B._coalesced_(True) is B
    assert B.is_coalesced()
    assert not B._coalesced_(False).is_coalesced()
    assert B.pattern.ordered  # which is still known
    with pytest.raises(TypeError, match="`A` has layout csr; coo has _coalesced_"):
        spgrad.eye(2)._coalesced_(True)
    assert torch.equal(A._values(), torch.tensor([0.0, 1.0, 2.0]))


def test_unchecked_indices_are_taken_as_they_are():
    A = spgrad.sparse_csr_tensor([0, 1], [7], [1.0], (1, 3), check_invariants=False)
    assert A.col_indices().tolist() == [7]
    A = spgrad.sparse_coo_tensor([[7]], [1.0], (3,), check_invariants=False)
    assert A._indices().tolist() == [[7]]
    for checked in (None, True):
        with pytest.raises(spgrad.ArgumentValueError):
            spgrad.sparse_coo_tensor([[7]], [1.0], (3,), check_invariants=checked)


def test_devices():
    """meta stands in for another device: it has no data, so nothing is checked."""
    *indices, vals = tensors("csr")
    A = spgrad.sparse_csr_tensor(*indices, vals, (2, 3), device="meta")
    assert A.device.type == "meta"
    assert {i.device.type for i in A.pattern.indices} == {"meta"}
    assert A.shape == (2, 3)
    assert spgrad.sparse_coo_tensor((2, 3), device="meta").device.type == "meta"
    assert spgrad.sparse_coo_tensor([[0]], [1.0], (3,), device="meta").device.type == "meta"
    for kept in range(2):
        moved = [i if at == kept else i.to("meta") for at, i in enumerate(indices)]
        with pytest.raises(
            spgrad.ArgumentValueError,
            match=r"_indices` is on meta; `values` is on cpu, and one device for all is accepted",
        ):
            spgrad.sparse_csr_tensor(*moved, vals, (2, 3))
    with pytest.raises(spgrad.ArgumentValueError, match="`size` is missing for indices on meta"):
        spgrad.sparse_csr_tensor(*indices, vals, device="meta")
    with pytest.raises(spgrad.ArgumentValueError, match="`size` is missing for indices on meta"):
        spgrad.sparse_coo_tensor([[0]], [1.0], device="meta")


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", support.ALL)
def test_equal_to_torch_on_random_tensors(name, seed):
    """What torch makes of a dense tensor, taken apart and put together by both."""
    dense = torch.randn(6, 8) * (torch.rand(6, 8) < 0.3)
    blocks = ((2, 4),) if name.startswith("b") else ()
    native = getattr(dense, f"to_sparse_{name}")(*blocks)
    if name == "coo":
        parts = native.indices(), native.values()
    else:
        parts = *(getattr(native, index)() for index in INDEX_NAMES[name]), native.values()
    A = CONSTRUCTOR[name](*parts, dense.shape)
    assert torch.equal(A.to_dense(), dense)
    assert A._nnz() == native._nnz()
    twin = NATIVE[name](*parts, dense.shape, check_invariants=True)
    assert torch.equal(A.to_dense(), twin.to_dense())


def test_duplicate_coordinates_add():
    indices = torch.tensor([[1, 0, 1, 1], [2, 0, 2, 0]])
    for vals in (torch.tensor([1.0, 2.0, 4.0, 8.0]), torch.randn(4, 3)):
        A = spgrad.sparse_coo_tensor(indices, vals, (2, 3, *vals.shape[1:]))
        native = torch.sparse_coo_tensor(indices, vals, A.shape, check_invariants=True)
        assert torch.equal(A.to_dense(), native.to_dense())
        assert A.coalesce().nse == 3


@pytest.mark.parametrize("name", support.ALL)
def test_values_of_a_constructor_have_a_gradient_of_their_size(sparse, name):
    """For 2^40 elements, so that no dense matrix is made on the way."""
    make = torch if sparse is made_by_torch else spgrad
    n = 2**20
    at = torch.arange(0, n, n // 4)
    ptr = torch.searchsorted(at, torch.arange(n + 1))
    values = torch.rand(4, requires_grad=True)
    block = values.view(-1, 1, 1)
    A = {
        "coo": lambda: make.sparse_coo_tensor(torch.stack([at, at]), values, (n, n)).coalesce(),
        "csr": lambda: make.sparse_csr_tensor(ptr, at, values, (n, n)),
        "csc": lambda: make.sparse_csc_tensor(ptr, at, values, (n, n)),
        "bsr": lambda: make.sparse_bsr_tensor(ptr, at, block, (n, n)),
        "bsc": lambda: make.sparse_bsc_tensor(ptr, at, block, (n, n)),
    }[name]()
    ((A @ torch.ones(n, 1)).sum() + A.sum() + (2 * A).values().sum()).backward()
    assert values.grad.tolist() == [4, 4, 4, 4]
    leaf = A.detach().requires_grad_()
    (leaf.sum() + leaf[n // 4, n // 4]).backward()
    assert leaf.grad.pattern is leaf.pattern
    assert leaf.grad.values().view(-1).tolist() == [1, 2, 1, 1]


def test_values_that_are_resized_later_leave_the_tensor_as_it_was():
    vals = torch.arange(4.0)
    A = spgrad.sparse_coo_tensor(torch.arange(4)[None], vals, (4,))
    vals.unsqueeze_(0).t_()
    assert A._values().shape == (4,)
    assert A.to_dense().tolist() == [0, 1, 2, 3]
    assert A._values().data_ptr() == vals.data_ptr()


def test_pinned_values(monkeypatch):
    """With a copy in place of torch's own call, which needs an accelerator."""
    pinned = []

    def pin(t):
        pinned.append(t.clone())
        return pinned[-1]

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    given = torch.tensor([1.0, 2.0])
    A = spgrad.sparse_coo_tensor([[0, 1], [1, 0]], given, (2, 2), pin_memory=True)
    assert len(pinned) == 1
    assert A._vals.data_ptr() == pinned[0].data_ptr() != given.data_ptr()


def test_pinned_values_where_torch_pins_none(monkeypatch):
    def pin(t):
        raise RuntimeError("no accelerator")

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    text = r"`pin_memory` is True, and torch can't pin memory here \(no accelerator\); False is"
    with pytest.raises(spgrad.ArgumentValueError, match=text):
        spgrad.sparse_coo_tensor([[0, 1], [1, 0]], [1.0, 2.0], (2, 2), pin_memory=True)
