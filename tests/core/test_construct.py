"""The constructors: torch's arguments, torch's tensors, and none of what torch lets through."""

import inspect

import pytest
import torch

import spgrad
from spgrad import support, testing
from spgrad.core.pattern import LAYOUTS

COMPRESSED = support.ALL[1:]
CONSTRUCTOR = {name: getattr(spgrad, f"sparse_{name}_tensor") for name in support.ALL}
NATIVE = {name: getattr(torch, f"sparse_{name}_tensor") for name in support.ALL}
INDEX_NAMES = {
    "csr": ("crow_indices", "col_indices"),
    "csc": ("ccol_indices", "row_indices"),
    "bsr": ("crow_indices", "col_indices"),
    "bsc": ("ccol_indices", "row_indices"),
}
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

# The matrix [[1, 0, 2], [0, 3, 0]] (blocks of (1, 3) and (2, 1) hold zeros) in every layout.
PARTS = {
    "coo": ([[0, 0, 1], [0, 2, 1]], [1.0, 2.0, 3.0]),
    "csr": ([0, 2, 3], [0, 2, 1], [1.0, 2.0, 3.0]),
    "csc": ([0, 1, 2, 3], [0, 1, 0], [1.0, 3.0, 2.0]),
    "bsr": ([0, 1, 2], [0, 0], [[[1.0, 0.0, 2.0]], [[0.0, 3.0, 0.0]]]),
    "bsc": ([0, 1, 2, 3], [0, 0, 0], [[[1.0], [0.0]], [[0.0], [3.0]], [[2.0], [0.0]]]),
}
DENSE = torch.tensor([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0]])


def tensors(name, **options):
    *indices, vals = PARTS[name]
    return *(torch.tensor(i) for i in indices), torch.tensor(vals, **options)


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
            r"accepted\. Convert it with crow_indices\.long\(\)\.$",
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


@pytest.mark.parametrize(
    "make",
    [
        lambda f: f((2, 3)),
        lambda f: f([2, 3]),
        lambda f: f(torch.Size((2, 3))),
        lambda f: f(size=(2, 3)),
        lambda f: f(torch.zeros(2, 0, dtype=torch.int64), torch.zeros(0), (2, 3)),
        lambda f: f([[], []], [], (2, 3)),
    ],
)
def test_empty_coo(make):
    A, twin = make(spgrad.sparse_coo_tensor), make(torch.sparse_coo_tensor)
    assert A.shape == twin.shape
    assert A.nse == 0
    assert A.dtype == twin.dtype
    assert A.is_coalesced() == twin.is_coalesced()
    assert torch.equal(A.to_dense(), torch.zeros(2, 3))


def test_empty_options():
    A = spgrad.sparse_coo_tensor((2, 3), dtype=torch.int32, device="cpu")
    assert A.dtype == torch.int32
    assert spgrad.sparse_coo_tensor((2, 3), requires_grad=True).requires_grad
    for name in COMPRESSED:
        blocks = (1, 1) if name.startswith("b") else ()
        A = CONSTRUCTOR[name]([0], [], torch.zeros(0, *blocks))
        assert A.shape == (0, 0)
        assert A.to_dense().shape == (0, 0)


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
    assert torch.equal(A._values(), torch.tensor([0.0, 1.0, 2.0]))


def test_unchecked_indices_are_taken_as_they_are():
    A = spgrad.sparse_csr_tensor([0, 1], [7], [1.0], (1, 3), check_invariants=False)
    assert A.col_indices().tolist() == [7]
    A = spgrad.sparse_coo_tensor([[7]], [1.0], (3,), check_invariants=False)
    assert A._indices().tolist() == [[7]]
    for checked in (None, True):
        with pytest.raises(spgrad.ArgumentValueError):
            spgrad.sparse_coo_tensor([[7]], [1.0], (3,), check_invariants=checked)


@pytest.mark.parametrize("name", support.ALL)
@pytest.mark.parametrize("dense", [(1,), (4,), (2, 3), (0,)], ids=str)
def test_dense_dimensions(name, dense):
    *indices, vals = tensors(name)
    ramp = 1.0 + torch.arange(torch.Size(dense).numel()).view(dense)
    vals = vals.reshape(*vals.shape, *(1 for _ in dense)) * ramp
    for size in ((2, 3, *dense), None):
        A = CONSTRUCTOR[name](*indices, vals, size)
        assert A.shape == (2, 3, *dense)
        assert A.dense_dim() == len(dense)
        assert A.sparse_dim() == 2
        expected = DENSE.reshape(2, 3, *(1 for _ in dense)) * ramp
        assert torch.equal(A.to_dense(), expected)
        if 0 not in dense:
            native = NATIVE[name](*indices, vals, (2, 3, *dense), check_invariants=True)
            assert native.dense_dim() == len(dense)
            assert torch.equal(A.to_dense(), native.to_dense())
    assert torch.equal(A._values(), vals)


def batch_parts(name):
    """Two items, DENSE and its double, in a batch of equal nse."""
    *indices, vals = tensors(name)
    return *(torch.stack([i, i]) for i in indices), torch.stack([vals, 2 * vals])


@pytest.mark.parametrize("name", COMPRESSED)
def test_batch(name):
    ptr, idx, vals = batch_parts(name)
    for size in ((2, 2, 3), None):
        A = CONSTRUCTOR[name](ptr, idx, vals, size)
        native = NATIVE[name](ptr, idx, vals, (2, 2, 3), check_invariants=True)
        assert A.shape == (2, 2, 3)
        assert torch.equal(A.to_dense(), torch.stack([DENSE, 2 * DENSE]))
        assert torch.equal(A.to_dense(), native.to_dense())
        assert torch.equal(A.values(), native.values())
        for index in INDEX_NAMES[name]:
            assert torch.equal(getattr(A, index)(), getattr(native, index)())
        assert A._nnz() == native._nnz()
    nested = CONSTRUCTOR[name](*(t.unsqueeze(1) for t in (ptr, idx, vals)))
    assert nested.shape == (2, 1, 2, 3)
    assert torch.equal(nested.to_dense()[:, 0], A.to_dense())


@pytest.mark.parametrize("name", COMPRESSED)
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64], ids=str)
def test_ragged_batch(name, index_dtype):
    """One item of DENSE, one without entries: torch can't hold this."""
    ptr, idx, vals = tensors(name)
    ptrs = torch.stack([ptr, torch.zeros_like(ptr), ptr]).to(index_dtype)
    idx = torch.cat([idx, idx]).to(index_dtype)
    A = CONSTRUCTOR[name](ptrs, idx, torch.cat([vals, 2 * vals]), (3, 2, 3))
    expected = torch.stack([DENSE, torch.zeros(2, 3), 2 * DENSE])
    assert torch.equal(A.to_dense(), expected)
    compressed, plain = INDEX_NAMES[name]
    assert torch.equal(getattr(A, compressed)(), ptrs)
    assert torch.equal(getattr(A, plain)(), idx)
    assert A.nse == len(idx)
    again = CONSTRUCTOR[name](getattr(A, compressed)(), getattr(A, plain)(), A.values(), A.shape)
    assert torch.equal(again.to_dense(), expected)


@pytest.mark.parametrize("name", COMPRESSED)
def test_batch_of_no_items_and_of_no_lines(name):
    block = (1, 1) if name.startswith("b") else ()
    long = {"dtype": torch.int64}
    no_items = (torch.zeros(0, 3, **long), torch.zeros(0, 2, **long), torch.zeros(0, 2, *block))
    A = CONSTRUCTOR[name](*no_items, (0, 2, 2))
    assert A.to_dense().shape == (0, 2, 2)
    size = (2, 0, 4) if name.endswith("sr") else (2, 4, 0)
    no_lines = (torch.zeros(2, 1, **long), torch.zeros(2, 0, **long), torch.zeros(2, 0, *block))
    A = CONSTRUCTOR[name](*no_lines, size)
    assert A.to_dense().shape == size


def test_sparse_dimensions_of_coo():
    scalar = spgrad.sparse_coo_tensor(
        torch.zeros(0, 2, dtype=torch.int64), torch.tensor([3.0, 4.0])
    )
    assert scalar.shape == ()
    assert scalar.to_dense() == 7
    assert scalar.coalesce().values().tolist() == [7]
    cube = spgrad.sparse_coo_tensor([[1], [0], [2]], [5.0])
    assert cube.shape == (2, 1, 3)
    assert cube.sparse_dim() == 3
    assert cube.to_dense()[1, 0, 2] == 5


def test_inputs_that_are_not_contiguous():
    indices = torch.tensor([[0, 0], [0, 2], [1, 1]]).t()
    vals = torch.tensor([[1.0, 9.0], [2.0, 9.0], [3.0, 9.0]])[:, 0]
    assert torch.equal(spgrad.sparse_coo_tensor(indices, vals, (2, 3)).to_dense(), DENSE)
    crow, col = (torch.tensor(i).repeat_interleave(2)[::2] for i in PARTS["csr"][:2])
    assert torch.equal(spgrad.sparse_csr_tensor(crow, col, vals, (2, 3)).to_dense(), DENSE)
    ptr, idx, vals = batch_parts("csr")
    flipped = [t.t().contiguous().t() for t in (ptr, idx, vals)]
    A = spgrad.sparse_csr_tensor(*flipped, (2, 2, 3))
    assert torch.equal(A.to_dense(), torch.stack([DENSE, 2 * DENSE]))


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


# What torch takes silently, and later reads foreign memory with; arguments of the constructors.
BAD = {
    "coo_out_of_range": (
        "coo",
        ([[0, 10**9], [0, 1]], [1.0, 2.0], (3, 3)),
        r"`indices` has 1000000000 in row 0 at position 1; indices in \[0, 3\) are accepted\. ",
    ),
    "coo_negative": (
        "coo",
        ([[0, 1], [0, -1]], [1.0, 2.0], (3, 3)),
        r"`indices` has -1 in row 1 at position 1; indices in \[0, 3\) are accepted\. ",
    ),
    "coo_negative_without_size": (
        "coo",
        ([[0, -2]], [1.0, 2.0]),
        r"`indices` has -2; non-negative indices are accepted\. ",
    ),
    "csr_out_of_range": (
        "csr",
        ([0, 1, 2, 2], [0, 10**9], [1.0, 2.0], (3, 3)),
        r"`col_indices` has 1000000000 at position 1; indices in \[0, 3\) are accepted\. ",
    ),
    "csc_negative": (
        "csc",
        ([0, 1, 2, 2], [0, -4], [1.0, 2.0], (3, 3)),
        r"`row_indices` has -4 at position 1; indices in \[0, 3\) are accepted\. ",
    ),
    "bsr_out_of_range": (
        "bsr",
        ([0, 1], [2], [[[1.0, 2.0], [3.0, 4.0]]], (2, 4)),
        r"`col_indices` has 2 at position 0; indices in \[0, 2\) are accepted\. ",
    ),
    "bsc_out_of_range": (
        "bsc",
        ([0, 0, 1], [1], [[[1.0, 2.0], [3.0, 4.0]]], (2, 4)),
        r"`row_indices` has 1 at position 0; indices in \[0, 1\) are accepted\. ",
    ),
    "negative_without_size": (
        "csr",
        ([0, 1], [-1], [1.0]),
        r"`col_indices` has -1 at position 0; indices in \[0, 0\) are accepted\. ",
    ),
    "unsorted": (
        "csr",
        ([0, 1, 3], [0, 2, 1], [1.0, 2.0, 3.0], (2, 3)),
        (
            r"`col_indices` has 1 after 2 at position 2; sorted unique indices within a row or "
            r"column are accepted\. Sort and sum duplicates with spgrad\.sparse_coo_tensor"
        ),
    ),
    "duplicate": (
        "csc",
        ([0, 2, 3], [1, 1, 0], [1.0, 2.0, 3.0], (3, 2)),
        r"`row_indices` has 1 after 1 at position 1; sorted unique indices",
    ),
    "pointers_start": (
        "csr",
        ([1, 2], [0, 1], [1.0, 2.0], (1, 3)),
        r"`crow_indices` starts with 1; 0 is accepted\. ",
    ),
    "pointers_decrease": (
        "csr",
        ([0, 2, 1, 2], [0, 1], [1.0, 2.0], (3, 3)),
        r"`crow_indices` decreases after position 1; non-decreasing pointers are accepted\. ",
    ),
    "pointers_end": (
        "bsc",
        ([0, 3], [0], [[[1.0]]], (1, 1)),
        r"`ccol_indices` ends with 3; the number of entries in `row_indices`, 1, is accepted\. ",
    ),
    "pointers_end_early": (
        "csr",
        ([0, 1], [0, 1], [1.0, 2.0], (1, 3)),
        r"`crow_indices` ends with 1; the number of entries in `col_indices`, 2, is accepted\. ",
    ),
    "pointers_of_an_item": (
        "csr",
        ([[0, 1], [1, 2]], [[0], [0]], [[1.0], [2.0]], (2, 1, 3)),
        r"`crow_indices` runs from 1 to 2 in batch item 1; from 0 to 1 is accepted\. ",
    ),
    "pointers_of_a_ragged_item": (
        "csr",
        ([[0, 0, 1], [0, 2, 1]], [0, 0], [1.0, 2.0], (2, 2, 3)),
        r"`crow_indices` decreases after position 1 of batch item 1; non-decreasing pointers",
    ),
    "pointers_of_a_ragged_batch": (
        "csr",
        ([[0, 1], [0, 1]], [0, 0, 0], [1.0, 2.0, 3.0], (2, 1, 3)),
        r"`crow_indices` ends with 2; the number of entries in `col_indices`, 3, is accepted\. ",
    ),
    "float_indices": (
        "coo",
        ([[0.5]], [1.0]),
        r"`indices` has dtype float32; int32 and int64 are accepted\. Convert it with indices\.lo",
    ),
    "indices_of_two_dtypes": (
        "csr",
        (torch.tensor([0, 1], dtype=torch.int32), torch.tensor([0]), [1.0]),
        r"`col_indices` has dtype int64; `crow_indices` has int32, and one dtype for both is",
    ),
    "no_pointers": (
        "csr",
        ([], [], []),
        r"`crow_indices` has shape \(0,\); \(\*batch, lines \+ 1\) is accepted\. ",
    ),
    "flat_coordinates": (
        "coo",
        ([0, 1], [1.0, 2.0]),
        r"`values` has shape \(2,\); \(nse, \*dense_shape\) for indices \(sparse_dim, nse\), here",
    ),
    "values_of_another_length": (
        "coo",
        ([[0, 1]], [1.0, 2.0, 3.0]),
        r"`values` has shape \(3,\); \(nse, \*dense_shape\) for indices",
    ),
    "compressed_values_of_another_length": (
        "csr",
        ([0, 1], [0], [1.0, 2.0]),
        r"`values` has shape \(2,\); \(1,\) followed by dense sizes is accepted\. ",
    ),
    "values_without_blocks": (
        "bsr",
        ([0, 1], [0], [1.0]),
        r"`values` has shape \(1,\); \(1,\) followed by block rows, block columns and dense sizes",
    ),
    "blocks_of_no_size": (
        "bsr",
        ([0, 1], [0], torch.zeros(1, 2, 0)),
        r"`values` has shape \(1, 2, 0\); ",
    ),
    "plain_of_another_batch": (
        "csr",
        ([[0, 1], [0, 1]], [[0]], [[1.0]]),
        r"`col_indices` has shape \(1, 1\); \(2, 'nse'\), or \(nse,\) of a ragged batch, is",
    ),
    "size_of_another_length": (
        "coo",
        ([[0]], [1.0], (2, 2)),
        r"`size` is \(2, 2\); 1 sparse sizes followed by \(\) is accepted\. ",
    ),
    "size_that_pointers_deny": (
        "csr",
        ([0, 1], [0], [1.0], (2, 3)),
        r"`size` is \(2, 3\); \(1, any\) is accepted\. ",
    ),
    "size_that_pointers_deny_csc": (
        "csc",
        ([0, 1], [0], [1.0], (3, 2)),
        r"`size` is \(3, 2\); \(any, 1\) is accepted\. ",
    ),
    "size_that_blocks_do_not_divide": (
        "bsr",
        ([0, 1], [0], [[[1.0, 2.0], [3.0, 4.0]]], (2, 5)),
        r"`size` is \(2, 5\); \(2, multiple of 2\) is accepted\. ",
    ),
    "negative_size": (
        "csr",
        ([0, 1], [0], [1.0], (1, -3)),
        r"`size` is \(1, -3\); non-negative sizes with at most 2\^63 - 1 elements in all are",
    ),
    "size_beyond_int64": (
        "coo",
        ([[0], [0]], [1.0], (2**40, 2**40)),
        r"`size` is \(1099511627776, 1099511627776\); non-negative sizes with at most 2\^63 - 1",
    ),
    "zero_beside_a_size_beyond_int64": (
        "coo",
        ([[], []], [], (0, 2**63)),
        r"`size` is \(0, 9223372036854775808\); ",
    ),
    "index_whose_size_is_beyond_int64": (
        "coo",
        ([[2**63 - 1]], [1.0]),
        r"`size` is \(9223372036854775808,\); ",
    ),
    "column_whose_size_is_beyond_int64": (
        "csr",
        ([0, 1, 1], [2**62], [1.0]),
        r"`size` is \(2, 4611686018427387905\); ",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named(case):
    name, arguments, says = BAD[case]
    fn = f"sparse_{name}_tensor"
    with pytest.raises(spgrad.ArgumentValueError, match=rf"^spgrad\.{fn}: {says}"):
        CONSTRUCTOR[name](*arguments)
    assert issubclass(spgrad.ArgumentValueError, ValueError)


WRONG_KIND = {
    "native_values": lambda: spgrad.sparse_coo_tensor([[0]], torch.eye(1).to_sparse()),
    "sparse_values": lambda: spgrad.sparse_coo_tensor([[0]], spgrad.from_dense(torch.eye(1))),
    "native_indices": lambda: spgrad.sparse_coo_tensor(torch.eye(1).to_sparse(), [1.0]),
    "words": lambda: spgrad.sparse_coo_tensor([["a"]], [1.0]),
    "word": lambda: spgrad.sparse_coo_tensor([[0]], "x"),
    "uneven_list": lambda: spgrad.sparse_coo_tensor([[0, 1], [0]], [1.0]),
    "huge_index": lambda: spgrad.sparse_coo_tensor([[2**70]], [1.0]),
    "object": lambda: spgrad.sparse_csr_tensor([0, 1], object(), [1.0]),
    "no_values": lambda: spgrad.sparse_coo_tensor([[0]]),
    "no_indices": lambda: spgrad.sparse_coo_tensor(values=[1.0]),
    "size_number": lambda: spgrad.sparse_coo_tensor([[0]], [1.0], 3),
    "size_float": lambda: spgrad.sparse_coo_tensor([[0]], [1.0], (3.0,)),
    "size_word": lambda: spgrad.sparse_csr_tensor([0, 1], [0], [1.0], "13"),
    "dtype": lambda: spgrad.sparse_coo_tensor([[0]], torch.ones(1), dtype="float32"),
    "device": lambda: spgrad.sparse_coo_tensor([[0]], torch.ones(1), device="nowhere"),
    "no_layout": lambda: spgrad.sparse_compressed_tensor([0, 1], [0], [1.0]),
    "layout_coo": lambda: spgrad.sparse_compressed_tensor(
        [0, 1], [0], [1.0], layout=torch.sparse_coo
    ),
    "layout_word": lambda: spgrad.sparse_compressed_tensor([0, 1], [0], [1.0], layout="csr"),
}


@pytest.mark.parametrize("case", WRONG_KIND)
def test_wrong_kinds_are_type_errors(case):
    with pytest.raises(spgrad.ArgumentKindError, match=r"^spgrad\.sparse_\w+_tensor: `\w+` .*; "):
        WRONG_KIND[case]()
    assert issubclass(spgrad.ArgumentKindError, TypeError)


def test_nothing_at_all_is_refused():
    with pytest.raises(spgrad.ArgumentValueError, match="`size` is missing; "):
        spgrad.sparse_coo_tensor()


def test_what_torch_takes_silently():
    """Regression: each of these makes a native tensor, of wrong numbers or worse later on."""
    cases = {
        "csr": ([0, 1, 2, 2], [0, 10**9], [1.0, 2.0], (3, 3)),
        "csc": ([0, 2, 2, 2], [1, 1], [1.0, 2.0], (3, 3)),
        "coo": ([[0, 10**9], [0, 1]], [1.0, 2.0], (3, 3)),
    }
    for name, arguments in cases.items():
        NATIVE[name](*arguments, check_invariants=False)
        with pytest.raises(spgrad.ArgumentValueError):
            CONSTRUCTOR[name](*arguments)


# Products: one line for each way in which operands can fail to fit.
def product_errors():
    A = testing.random_sparse((4, 6))
    B = testing.random_sparse((2, 4, 6))
    x = torch.ones(6, 2, dtype=torch.float64)
    wide = torch.ones(2, 6, 2, dtype=torch.float64)
    value, kind = spgrad.ArgumentValueError, spgrad.ArgumentKindError
    unsupported = spgrad.UnsupportedError
    hybrid = spgrad.sparse_coo_tensor([[0], [0]], torch.ones(1, 3, dtype=torch.float64), (4, 6, 3))
    yield "mm", (A, x[:5]), value, r"`mat2` has shape \(5, 2\); 6 rows \(from `input` of shape \(4"
    yield "mm", (x, A), value, r"`mat2` has shape \(4, 6\); 2 rows \(from `input` of shape \(6"
    yield "mm", (A, A), value, r"`mat2` has shape \(4, 6\); 6 rows \(from `input` of shape \(4"
    yield (
        "mm",
        (A, x.float()),
        value,
        "`mat2` has dtype float32; `input` has float64, and one dtype",
    )
    yield (
        "mm",
        (A, A.float()),
        value,
        "`mat2` has dtype float32; `input` has float64, and one dtype",
    )
    yield "mm", (A, x.to("meta")), value, "`mat2` is on meta; `input` is on cpu, and one device"
    yield "mm", (A, x[:, 0]), value, r"`mat2` has shape \(6,\); a 2-d tensor is accepted"
    yield "mm", (B, x), value, r"`input` has shape \(2, 4, 6\); a 2-d tensor is accepted"
    yield "mm", (x, x), kind, "`input` and `mat2` are dense "
    yield "mm", (A, 3), kind, "`mat2` is a int; "
    yield "mm", (None, A), kind, "`input` is a NoneType; "
    yield "matmul", (x, x), kind, "`input` and `other` are dense "
    yield "matmul", (A, 3.0), kind, "`other` is a float; a dense tensor is accepted"
    yield "matmul", ([1.0], A), kind, "`input` is a list; a dense tensor is accepted"
    yield "matmul", (A, torch.ones(()).double()), value, r"`other` has shape \(\); a vector, matrix"
    yield "matmul", (B, torch.cat([wide, wide[:1]])), value, r"a batch that broadcasts with \(2,\)"
    yield "matmul", (hybrid, x), unsupported, r"`input` has 1 dense dimension\(s\)"
    yield "addmm", (x[0].bool(), A.to(torch.bool), x.bool()), value, "`input` has dtype bool; float"
    yield "mv", (A, x), value, r"`vec` has shape \(6, 2\); a 1-d tensor is accepted"
    yield "mv", (x, x[:, 0]), kind, "`input` is a strided tensor of shape"
    yield "mv", (B, x[:, 0]), value, r"`input` has shape \(2, 4, 6\); a 2-d tensor is accepted"
    yield "mv", (A, x[:5, 0]), value, r"`vec` has shape \(5,\); 6 elements"
    yield "bmm", (A, x), value, r"`input` has shape \(4, 6\); a 3-d tensor is accepted"
    yield "bmm", (B, wide[:1]), value, r"`mat2` has shape \(1, 6, 2\); a batch of 2 is accepted"
    yield "sparse_mm", (x, x), value, "`A` is a strided tensor"
    yield "sparse_mm", (A, A), value, "`B` is a csr tensor"
    yield "sparse_mm", (A, wide), value, r"`B` has shape \(2, 6, 2\); a 2-d tensor is accepted"
    yield "linear", (x, A), value, r"`input` has shape \(.*\); .* \(from `weight` of shape"
    yield "linear", (A, A, x), kind, "`bias` is a strided tensor"
    yield "addmm", (A, A, x), kind, "`input` is sparse and one matrix is dense"
    yield "addmm", (x[:3], A, x), value, r"`input` has shape \(3, 2\); what broadcasts to \(4, 2\)"
    yield "addmm", (x[0].float(), A, x), value, "`input` has dtype float32; `mat1` has float64"
    yield "addmm", (3, A, x), kind, "`input` is a int; a dense tensor is accepted"
    yield "addmv", (x[0], A, x[:, 0]), value, r"`input` has shape \(2,\); what broadcasts to \(4,\)"
    yield "baddbmm", (x, B, wide[:1]), value, r"`batch2` has shape \(1, 6, 2\); a batch of 2"
    yield "smm", (x, A), kind, "`input` is a strided tensor"
    yield "hspmm", (A, A), kind, "`mat2` is a csr tensor"
    yield "sspaddmm", (A, A, x), value, r"`input` has shape \(4, 6\); \(4, 2\) is accepted"
    yield "sampled_addmm", (A, x, x), value, r"`mat1` has shape \(6, 2\); \(4, 2\) is accepted"
    yield "sampled_addmm", (x, x, x), kind, "`input` is a strided tensor"


ERRORS = list(product_errors())


@pytest.mark.parametrize("case", ERRORS, ids=lambda c: f"{c[0]}-{c[3][:20]}")
def test_operands_that_do_not_fit_are_named(case):
    fn, operands, kind, says = case
    with pytest.raises(kind, match=rf"^spgrad\.{fn}: .*{says}"):
        getattr(spgrad, fn)(*operands)


@pytest.mark.parametrize("name", support.ALL)
def test_operator_refuses_as_the_function_does(name):
    A = testing.random_sparse((4, 6), LAYOUTS[name])
    with pytest.raises(
        spgrad.ArgumentValueError, match=r"^spgrad\.matmul: `other` has shape \(5, 2\)"
    ):
        A @ torch.ones(5, 2, dtype=torch.float64)
    with pytest.raises(
        spgrad.ArgumentValueError, match=r"^spgrad\.matmul: `other` has shape \(4, 6\)"
    ):
        torch.ones(2, 5, dtype=torch.float64) @ A
    with pytest.raises(spgrad.ArgumentKindError, match=r"^spgrad\.matmul: `other` is a int"):
        A @ 3
    with pytest.raises(spgrad.ArgumentValueError, match=r"^spgrad\.mm: `mat2` has dtype float32"):
        torch.mm(A, torch.ones(6, 2))
