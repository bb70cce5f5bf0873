"""What newcomers pass by mistake: the error names the argument, and what to do with this object."""

import numpy as np
import pytest
import torch
from refused import assert_refused

import spgrad
from spgrad import distributions, linalg, nn
from spgrad.core import refusals

A = spgrad.from_dense(torch.tensor([[2.0, 1.0, 0.0], [1.0, 2.0, 1.0], [0.0, 1.0, 2.0]]))
WIDE = spgrad.from_dense(torch.ones(2, 3))
EDGES = torch.tensor([[0, 1, 2], [1, 2, 0]])
NATIVE, ARRAY, X = torch.eye(3).to_sparse_csr(), np.eye(3, dtype=np.float32), torch.ones(3, 2)


def scipy():
    return pytest.importorskip("scipy.sparse").eye_array(3, format="csr", dtype=np.float32)


REFUSED = {
    # objects of other libraries, where a conversion exists
    "SciPy to SciPy": (lambda: spgrad.to_scipy(scipy()), "Convert it with spgrad.from_scipy."),
    "SciPy to torch": (lambda: spgrad.to_torch(scipy()), "Convert it with spgrad.from_scipy."),
    "values of SciPy": (lambda: spgrad.values(scipy()), "Convert it with spgrad.from_scipy."),
    "a pattern of SciPy": (
        lambda: spgrad.from_values(torch.ones(3), scipy()),
        (
            "`pattern` is a csr_array; a Pattern or a SparseTensor is accepted. Convert it with "
            "spgrad.from_scipy."
        ),
    ),
    "a pattern of torch": (
        lambda: spgrad.from_values(torch.ones(3), NATIVE),
        "Convert it with spgrad.from_torch.",
    ),
    "a weight of SciPy": (
        lambda: nn.SparseLinear(3, 3, pattern=scipy()),
        "Convert it with spgrad.from_scipy.",
    ),
    "a product of SciPy": (lambda: spgrad.mm(scipy(), X), "Convert it with spgrad.from_scipy."),
    "SciPy compared": (lambda: spgrad.allclose(A, scipy()), "Convert it with spgrad.from_scipy."),
    "SciPy as edges": (lambda: spgrad.from_edges(scipy()), "Use spgrad.from_scipy for the whole."),
    "SciPy as indices": (
        lambda: spgrad.sparse_coo_tensor(scipy()),
        (
            "`values` is None; a tensor or list of numbers is accepted with indices. To convert a "
            "whole matrix, use spgrad.from_scipy."
        ),
    ),
    "a right side of SciPy": (
        lambda: linalg.solve(A, scipy()),
        "Convert it with torch.as_tensor(b.toarray()).",
    ),
    "native samples": (
        lambda: spgrad.data.sample_neighbors(NATIVE, [0], [1]),
        "Convert it with spgrad.from_torch.",
    ),
    # dense tensors and arrays
    "an array": (
        lambda: spgrad.from_dense(ARRAY),
        "`x` is an ndarray; a dense tensor is accepted. Convert it with torch.as_tensor(x).",
    ),
    "an array for SciPy's": (
        lambda: spgrad.from_scipy(ARRAY),
        "Convert it with spgrad.from_dense(torch.as_tensor(S)).",
    ),
    "an array for torch's": (
        lambda: spgrad.from_torch(ARRAY),
        "Convert it with spgrad.from_dense(torch.as_tensor(x)).",
    ),
    "an array as a matrix": (
        lambda: spgrad.sum(ARRAY),
        "Convert it with spgrad.from_dense(torch.as_tensor(input)).",
    ),
    "a dense tensor for torch": (
        lambda: spgrad.to_torch(torch.eye(3)),
        (
            "`A` is a dense tensor of shape (3, 3); a SparseTensor is accepted. Convert it with "
            "spgrad.from_dense."
        ),
    ),
    "a dense matrix as indices": (
        lambda: spgrad.sparse_coo_tensor(torch.eye(3)),
        "To convert a whole matrix, use spgrad.from_dense.",
    ),
    "a sparse tensor made sparse": (
        lambda: spgrad.from_dense(A),
        "Convert a sparse one with spgrad.to_sparse(x, layout=...).",
    ),
    "a SparseTensor for SciPy's": (
        lambda: spgrad.from_scipy(A),
        "It is a SparseTensor already.",
    ),
    "a native tensor for torch": (lambda: spgrad.to_torch(NATIVE), "It is one of torch already."),
    "a sparse right side": (
        lambda: linalg.solve(A, spgrad.from_dense(torch.ones(3, 1))),
        (
            "`b` is a csr tensor of shape (3, 1); a dense tensor is accepted. Convert it with "
            "b.to_dense()."
        ),
    ),
    # other objects
    "a list of matrices": (lambda: spgrad.block_diag([A, A]), "Give the tensors one by one"),
    "swapped": (
        lambda: spgrad.io.save("a.npz", A),
        "Make one with spgrad.from_edges, spgrad.from_dense or spgrad.from_scipy.",
    ),
    "a number": (lambda: A @ 3, "`other` is an int; a vector, matrix or batch of matrices"),
    "a number before": (lambda: 3 @ A, "Multiply by a number with A * number."),
    # graphs
    "too few nodes": (
        lambda: spgrad.from_edges(EDGES, size=2),
        "`edge_index` has 2 in row 1 at position 1; indices in [0, 2) are accepted.",
    ),
    "nodes for weights": (
        lambda: spgrad.from_edges(EDGES, 3),
        "Give one weight for each edge, and the number of nodes as size=.",
    ),
    "edges for a layer": (
        lambda: nn.GraphConv(2, 4)(X, EDGES),
        "spgrad.from_edges(edge_index.flip(0), edge_weight, num_nodes)",
    ),
    # options
    "a layout by its name": (
        lambda: spgrad.eye(3, layout="csc"),
        (
            "`layout` is 'csc'; torch.sparse_coo, sparse_csr, sparse_csc, sparse_bsr and "
            "sparse_bsc are accepted. For example layout=torch.sparse_csc."
        ),
    ),
    "a dense layout": (
        lambda: spgrad.eye(3, layout=torch.strided),
        "Use spgrad.to_dense for a dense tensor.",
    ),
    "a shape for a size": (lambda: spgrad.eye((3, 3)), "eye: `n` is (3, 3); an int is accepted."),
    "half a size": (lambda: spgrad.eye(3, 2.5), "eye: `m` is 2.5; an int is accepted."),
    "a share as a size": (
        lambda: spgrad.rand(3, 3, 0.5),
        "Give a share of the elements as density=",
    ),
    "rows, then columns": (
        lambda: spgrad.sparse_coo_tensor([0, 1], [1, 2], (3, 3)),
        (
            "`indices` has shape (2,); (sparse_dim, nse) is accepted. It has a row for each "
            "dimension: join them with torch.stack([rows, columns])."
        ),
    ),
    "another name of a reduction": (
        lambda: spgrad.spmm(A, X, "max"),
        (
            "`reduce` is 'max'; sum, mean, amax, amin, prod, min_plus, max_plus are accepted. "
            "Write 'amax', as torch does."
        ),
    ),
    "more than all": (lambda: spgrad.dropout(A, 2.0), "dropout: `p` is 2.0; numbers from 0 to 1"),
    "not COO": (lambda: spgrad.coalesce(A), "`A` has layout csr; coo is accepted."),
    # shapes
    "eigenvalues of a wide matrix": (
        lambda: linalg.eigsh(WIDE, 1),
        "For other matrices there are spgrad.linalg.lstsq and spgrad.linalg.svds.",
    ),
    "too many eigenvalues": (lambda: linalg.eigsh(A, 9), "an int from 1 to 3 is accepted"),
    "a power of a wide matrix": (
        lambda: spgrad.matrix_power(WIDE, 2),
        "`input` has shape (2, 3); a square matrix or batch is accepted.",
    ),
    "a short vector": (lambda: linalg.expm_multiply(A, torch.ones(2)), "(3,) or (3, n) is"),
    # names of SciPy and torch
    "a matrix in dot": (
        lambda: A.dot(torch.ones(3)),
        "dot: `input` has layout csr; vectors, which are in coo, are accepted. For a matrix",
    ),
    "a layout by its place": (
        lambda: spgrad.to_sparse(A, "csr"),
        "`sparse_dim` is 'csr'; an int or None is accepted. Give a layout by its name",
    ),
    "one side of a block": (lambda: A.to_sparse_bsr(3), "are accepted for bsr. For example (2, 2)"),
    "a loss": (
        lambda: torch.nn.functional.mse_loss(A, A),
        "Use (A - B).square().mean(), in which the zeros count.",
    ),
    "an assignment": (
        lambda: A.index_put_((EDGES[0], EDGES[1]), torch.ones(3)),
        "Assign to specified elements: A[rows, columns] = v.",
    ),
    "single elements": (lambda: A.gather(1, EDGES), "Use A[rows, columns] for single elements."),
    "dense zeros": (lambda: A.new_zeros(3), "Use A.values().new_zeros(size) for a dense tensor."),
    "dense memory": (lambda: A.new_empty(3), "Use A.values().new_empty(size) for a dense tensor."),
    "a dense copy": (lambda: A.clone().copy_(torch.eye(3)), "`source` is a dense tensor of shape"),
    "too few rows": (
        lambda: A @ torch.ones(2, 2),
        "`other` has shape (2, 2); 3 rows (from `input` of shape (3, 3)) are accepted.",
    ),
    # solvers
    "a factor for a solver": (
        lambda: linalg.solve(A, X, linalg.factor(A)),
        (
            "`solver` is a Factor; a solver such as spgrad.linalg.CG() or None is accepted. "
            "Solve with the factor itself: F.solve(b)."
        ),
    ),
    "a short start": (
        lambda: linalg.solve(A, X, linalg.CG(), x0=torch.ones(3)),
        "`x0` has shape (3,); (3, 2), the shape of the result, is accepted. Or leave it out.",
    ),
    "a preconditioner for a solver": (
        lambda: linalg.solve(A, X, linalg.IC0()),
        "A solver takes it: spgrad.linalg.CG(preconditioner=...).",
    ),
    # the class itself
    "edges in the class": (
        lambda: spgrad.SparseTensor(torch.ones(3), EDGES),
        (
            "spgrad.SparseTensor: `pattern` is of class Tensor; a Pattern is "
            "accepted. Make a SparseTensor with spgrad.from_edges"
        ),
    ),
    # plausible calls with another shape or order
    "rows for pointers": (
        lambda: spgrad.sparse_csr_tensor(EDGES[1], EDGES[0], torch.ones(3)),
        (
            "`crow_indices` says where each row or column begins in `col_indices`; if you have the "
            "row and the column of each element, use spgrad.sparse_coo_tensor."
        ),
    ),
    "one number for a block": (
        lambda: spgrad.sparse_bsr_tensor([0, 1], [0], [1.0], (2, 2)),
        "Give one block for each index in `col_indices`.",
    ),
    "one size": (
        lambda: spgrad.sparse_coo_tensor(EDGES, torch.ones(3), (3,)),
        "`size` is (3,); a size for each of the 2 row(s) of the indices is accepted. Leave it out",
    ),
    "sizes without those of a value": (
        lambda: spgrad.sparse_coo_tensor(EDGES, torch.ones(3, 4), (3, 3)),
        "a size for each of the 2 row(s) of the indices, followed by (4,), those of a value, is",
    ),
    "rows and columns as a tuple": (
        lambda: spgrad.sparse_coo_tensor((EDGES[0], EDGES[1]), torch.ones(3)),
        "Join tensors with torch.stack(indices).",
    ),
    "sources and targets as two arguments": (
        lambda: spgrad.from_edges(EDGES[0], EDGES[1]),
        "Give sources and targets as a pair: from_edges((sources, targets), weights).",
    ),
    "no edges": (lambda: spgrad.from_edges(None), "`edge_index` is None, which torch can't read"),
    "a sparse vector in a product": (
        lambda: A[0] @ X,
        "Take a row as a matrix, A[i : i + 1], or make the vector dense with to_dense().",
    ),
    "two sparse tensors compared": (
        lambda: A == A,
        "spgrad.equal and spgrad.allclose compare whole tensors.",
    ),
    "a matrix as a condition": (lambda: bool(A), "or with A.any() for a condition."),
    "a number in a matrix": (lambda: 1.0 in A, "Use (A == x).any() for a number x other than 0."),
    "indices of CSR": (A.indices, "or take A.coo_indices(), the row and column of each"),
    "a tensor for a reduction": (
        lambda: spgrad.mm(A, X, A),
        "`reduce` is a csr tensor of shape (3, 3); sum, mean,",
    ),
    "too many singular values": (lambda: linalg.svds(A, 9), "`k` is 9 for 3 values; an int from"),
    "a layer with the graph first": (
        lambda: nn.GraphConv(2, 3)(A, X),
        "and `x` is sparse; a sparse `A` is accepted. The features come first: layer(x, A).",
    ),
    "gradcheck of a sparse tensor": (
        lambda: torch.autograd.gradcheck(
            lambda S: S @ X.double(), A.detach().double().requires_grad_()
        ),
        "check a function of the values, which makes the tensor inside: spgrad.from_values(",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_the_error_says_what_to_do(case):
    assert_refused(*REFUSED[case])


NAMED = {
    "linalg.solve": lambda: linalg.solve(WIDE, X),
    "linalg.lstsq": lambda: linalg.lstsq(A, "b"),
    "linalg.factor": lambda: linalg.factor(WIDE),
    "linalg.det": lambda: linalg.det(WIDE),
    "linalg.logdet": lambda: linalg.logdet(WIDE),
    "linalg.inverse_diagonal": lambda: linalg.inverse_diagonal(WIDE),
    "linalg.eigsh": lambda: linalg.eigsh(WIDE),
    "linalg.svds": lambda: linalg.svds(A, 9),
    "linalg.cond": lambda: linalg.cond(A, 3),
    "nn.gcn_norm": lambda: nn.gcn_norm(WIDE),
    "nn.add_self_loops": lambda: nn.add_self_loops(EDGES),
    "nn.parametrize_values": lambda: nn.parametrize_values(A),
    "data.collate": lambda: spgrad.data.collate([]),
    "data.uncollate": lambda: spgrad.data.uncollate(A, [3]),
}


@pytest.mark.parametrize("name", NAMED)
def test_the_error_names_the_function_where_it_is(name):
    with pytest.raises(spgrad.SpgradError, match=rf"^spgrad\.{name}: "):
        NAMED[name]()
    where, _, function = name.partition(".")
    assert callable(getattr(getattr(spgrad, where), function))


def test_an_advised_conversion_is_accepted():
    """The advice of the errors above, followed."""
    from_scipy, from_torch = spgrad.from_scipy(scipy()), spgrad.from_torch(NATIVE)
    from_array = spgrad.from_dense(torch.as_tensor(ARRAY))
    for made in (from_scipy, from_torch, from_array, spgrad.to_sparse(A, layout=torch.sparse_csr)):
        assert spgrad.mm(made, X).shape == X.shape
        assert spgrad.from_values(made.values(), made).pattern is made.pattern
        assert spgrad.to_torch(made).layout == torch.sparse_csr
    square = linalg.solve(A, torch.as_tensor(scipy().toarray()))
    assert torch.allclose(A @ square, torch.eye(3), atol=1e-6)
    assert spgrad.block_diag(A, A).shape == (6, 6)
    coo = spgrad.sparse_coo_tensor(torch.stack([EDGES[0], EDGES[1]]), torch.ones(3), (3, 3))
    assert spgrad.equal(coo, spgrad.from_edges(EDGES, size=3))


def test_the_advised_matrix_of_a_layer_sums_over_incoming_edges():
    made = spgrad.from_edges(torch.tensor([[0, 1], [2, 2]]).flip(0), None, 3)
    x = torch.tensor([[1.0], [2.0], [4.0]])
    assert nn.MessagePassing()(x, made).flatten().tolist() == [0.0, 0.0, 3.0]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nnz", "A.nse"),
        ("toarray", "A.to_dense()"),
        ("tocsr", "A.to_sparse_csr()"),
        ("row", "A.coo_indices()"),
        ("sum_duplicates", "A.coalesce() of COO; other layouts have no repeated entries"),
        ("set_value", "spgrad.from_values(values, A)"),
    ],
)
def test_an_attribute_of_another_library_is_translated(name, says):
    assert not hasattr(A, name)
    assert name not in dir(A)
    with pytest.raises(AttributeError) as raised:
        getattr(A, name)
    assert str(raised.value) == f"'SparseTensor' object has no attribute {name!r}. Use {says}."
    assert raised.value.obj is A


def test_no_method_of_torch_is_taken_for_an_attribute_of_another_library():
    assert not [name for name in refusals.ABSENT if hasattr(torch.Tensor, name)]
    assert torch.equal(A.multiply(2).values(), 2 * A.values())


def test_another_attribute_is_missing_as_usual():
    with pytest.raises(AttributeError, match=r"^'SparseTensor' object has no attribute 'nothing'$"):
        _ = A.nothing


def test_what_is_built_of_a_tensor_shows_its_size():
    made = distributions.SparseMultivariateNormal(torch.zeros(3), precision_matrix=A)
    shown = "SparseMultivariateNormal(loc: (3,), precision_matrix: (3, 3), nse 7)"
    assert repr(made) == repr(made.expand(())) == shown
    assert repr(linalg.factor(A)) == (
        "Factor(shape=(3, 3), nse=7, assume='general', engine=SuperLU)"
    )
    assert repr(A.pattern) == "Pattern(shape=(3, 3), nse=7, layout=csr)"
