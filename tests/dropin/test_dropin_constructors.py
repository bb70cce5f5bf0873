"""Drop-in mode: tensors without elements, and leaves, that functions of torch make."""

import pytest
import torch

import spgrad

LAYOUTS = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc)
EMPTY = {
    "empty": lambda layout, **options: torch.empty(5, 3, layout=layout, **options),
    "empty of a batch": lambda layout, **options: torch.empty(2, 5, 3, layout=layout, **options),
    "new_empty": lambda layout, **options: torch.eye(2).new_empty((5, 3), layout=layout, **options),
    "zeros": lambda layout, **options: torch.zeros(5, 3, layout=layout, **options),
    "zeros_like": lambda layout, **options: torch.zeros_like(
        torch.ones(5, 3), layout=layout, **options
    ),
}


@pytest.fixture(autouse=True)
def filled_with_numbers_that_are_no_pointers():
    """Memory that torch leaves as it is holds the largest integer."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("name", EMPTY)
def test_tensors_without_elements(name, layout):
    with spgrad.dropin():
        A = EMPTY[name](layout)
    assert type(A) is spgrad.SparseTensor
    assert A.layout == layout
    assert A.nse == 0
    assert torch.equal(A.to_dense(), torch.zeros(A.shape))
    if layout != torch.sparse_coo:
        pointers = A.crow_indices() if layout == torch.sparse_csr else A.ccol_indices()
        assert not pointers.any()


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_new_tensors_of_a_sparse_one(layout):
    with spgrad.dropin():
        A = torch.eye(4).to_sparse(layout=layout)
        for B in (A.new_empty((5, 5)), A.new_zeros((5, 5)), A.new_empty((5, 5), layout=layout)):
            assert type(B) is spgrad.SparseTensor
            assert B.layout == layout
            assert not B.to_dense().any()
        for make in (lambda: A.new_ones((2, 2)), lambda: A.new_full((2, 2), 3.0)):
            with pytest.raises(spgrad.UnsupportedError, match=r"every element would be specified"):
                make()


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("name", [n for n in EMPTY if n != "zeros_like"])
def test_what_is_made_with_a_gradient_is_a_leaf(name, layout):
    with spgrad.dropin():
        A = EMPTY[name](layout, requires_grad=True)
        assert A.is_leaf
        assert A.requires_grad
        A.sum().backward()
    assert type(A.grad) is spgrad.SparseTensor
    assert A.grad.nse == 0


def test_the_same_functions_still_make_dense_tensors():
    with spgrad.dropin():
        for x in (torch.empty(2, 2), torch.eye(2).new_ones((2, 2)), torch.eye(2).new_full((2,), 3)):
            assert type(x) is torch.Tensor


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("gaps", [0, 1])
def test_indices_with_gaps_are_refused_as_torch_refuses_them(gaps, rows):
    """Of two numbers or more; torch has no strided indices."""
    given = [torch.arange(rows + 1), torch.tensor([0, 1])[-rows:] % 2]
    if gaps == 1:
        given = [2 * given[0], torch.tensor([0, 1] * rows)]
    given[gaps] = given[gaps].repeat_interleave(2)[::2]
    assert given[gaps].stride() == (2,)
    arrays = *given, torch.ones(given[1].shape), (rows, 2)
    with pytest.raises(RuntimeError, match="contiguous"):
        torch.sparse_csr_tensor(*arrays, check_invariants=True)
    with spgrad.dropin(fallback="refuse"), pytest.raises(ValueError, match="are not contiguous"):
        torch.sparse_csr_tensor(*arrays)


def test_one_index_has_no_gaps_and_a_number_is_no_index():
    with spgrad.dropin(fallback="refuse"):
        ptr, idx = torch.tensor([0, 1]), torch.arange(4)[::4]
        A = torch.sparse_csr_tensor(ptr, idx, torch.ones(1), (1, 2))
        assert torch.equal(A.to_dense(), torch.eye(1, 2))
        with pytest.raises(ValueError, match=r"`crow_indices` has shape \(\); \(\*batch, lines"):
            torch.sparse_csr_tensor(torch.tensor(0), torch.tensor(0), torch.ones(1))


@pytest.mark.parametrize("values", [torch.tensor([5, 6]), torch.tensor([5.0, 6.0]), [5.0, 6.0]])
def test_indices_of_coo_become_int64_whatever_the_values_are(values):
    indices = torch.tensor([[0, 1], [2, 0]], dtype=torch.int32)
    wanted = torch.sparse_coo_tensor(indices, values, (2, 3))
    with spgrad.dropin():
        A = torch.sparse_coo_tensor(indices, values, (2, 3))
    assert type(A) is spgrad.SparseTensor
    assert A._indices().dtype == torch.int64
    assert torch.equal(A.to_dense(), wanted.to_dense())
