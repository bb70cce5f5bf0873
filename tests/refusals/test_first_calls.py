"""The first calls of a newcomer that fail: the error says what is wrong in the library's words."""

import re

import numpy as np
import pytest
import torch
from refused import assert_refused

import spgrad
from spgrad import distributions, graph, linalg, nn, testing

A = spgrad.from_dense(torch.tensor([[2.0, 1.0, 0.0], [1.0, 2.0, 1.0], [0.0, 1.0, 2.0]]))
EDGES, X = torch.tensor([[0, 1, 2], [1, 2, 0]]), torch.ones(3, 2)
BOOLS, INTS, COMPLEX = A.bool(), A.long(), A.to(torch.complex64)
HYBRID = spgrad.sparse_coo_tensor(EDGES, torch.ones(3, 4), (3, 3, 4))
NORMAL = distributions.SparseMultivariateNormal(torch.zeros(2, 3), precision_matrix=A)

EYE = spgrad.eye(4)


def networkx():
    return pytest.importorskip("networkx").path_graph(3)


def pandas():
    return pytest.importorskip("pandas").DataFrame({"row": [0], "col": [1]})


def scipy():
    return pytest.importorskip("scipy.sparse").eye_array(3, format="csr")


def pyg():
    return pytest.importorskip("torch_geometric.data").Data(edge_index=torch.tensor([[0], [1]]))


@pytest.mark.filterwarnings("ignore")  # the import of torch_geometric warns of its own code
@pytest.mark.parametrize("make", [networkx, pandas, scipy, pyg])
@pytest.mark.parametrize("call", [spgrad.sum, graph.laplacian, spgrad.from_dense])
def test_the_function_that_converts_is_named(make, call):
    with pytest.raises(TypeError, match=rf"Convert it with spgrad\.from_{make.__name__}\."):
        call(make())


@pytest.mark.parametrize(
    ("x", "named"),
    [
        (torch.tensor([[0, 1], [1, 2]]), "from_edges"),
        (torch.tensor([[0, 1], [1, 2], [2, 0]]), "from_dense"),  # three rows
        (torch.tensor([[0.0, 1.0], [1.0, 2.0]]), "from_dense"),  # no ints
        (torch.tensor([0, 1]), "from_dense"),
    ],
)
def test_two_rows_of_ints_are_taken_for_edges(x, named):
    with pytest.raises(TypeError, match=rf"Convert it with spgrad\.{named}\."):
        spgrad.sum(x)


REFUSED = {
    # objects of other libraries, and operands of graphs
    "a SciPy matrix is no tensor": (
        lambda: spgrad.from_torch(scipy()),
        "from_torch: `x` is a csr_array; a sparse torch tensor is accepted. Convert it with",
    ),
    "pairs": (lambda: spgrad.from_edges([(0, 1), (1, 2), (2, 3)]), "transpose a list of pairs"),
    "a short mask": (
        lambda: graph.k_hop(EYE, torch.tensor([True, False]), 1),
        "k_hop: `seeds` has shape (2,); (4,) for a bool mask is accepted",
    ),
    "a mask as one seed": (
        lambda: graph.shortest_paths(EYE, torch.tensor(True)),
        "shortest_paths: `sources` has shape (); (4,) for a bool mask is accepted",
    ),
    "lengths of int": (
        lambda: graph.shortest_paths(EYE.long(), [0]),
        "`A` has dtype int64; floating-point dtypes are accepted",
    ),
    "least sums of int": (
        lambda: spgrad.spmm(EYE.long(), torch.ones(4, 1, dtype=torch.int64), "min_plus"),
        "`input` has dtype int64; floating-point dtypes are accepted",
    ),
    "an array of a sparse tensor": (
        lambda: np.asarray(EYE),
        "make an operand a tensor with torch.as_tensor(array), or spgrad.from_scipy for a",
    ),
    "a batch": (
        lambda: spgrad.compact(spgrad.zeros(2, 3, 5)),
        "compact: `input` has shape (2, 3, 5); (m, k), and (m, k | d) with dense dimensions,",
    ),
    # the class, called as the classes of other libraries are
    "values in a list": (
        lambda: spgrad.SparseTensor([1.0, 2.0], A.pattern),
        "SparseTensor: `values` is of class list; a dense tensor is accepted.",
    ),
    "values in an array": (
        lambda: spgrad.SparseTensor(np.ones(7), A.pattern),
        "SparseTensor: `values` is of class ndarray; a dense tensor is accepted.",
    ),
    "too few values": (
        lambda: spgrad.SparseTensor(torch.ones(6), A.pattern),
        "SparseTensor: `values` has shape (6,); (7,) is accepted for this pattern. Give one value",
    ),
    "too many values": (
        lambda: spgrad.SparseTensor(torch.ones(7, 2), A.pattern),
        "SparseTensor: `values` has shape (7, 2); (7,) is accepted for this pattern.",
    ),
    "no pattern": (lambda: spgrad.SparseTensor(X), "SparseTensor: `pattern` is missing; a Pattern"),
    "nothing": (spgrad.SparseTensor, "SparseTensor: `pattern` is missing; a Pattern"),
    "rows and columns": (
        lambda: spgrad.SparseTensor(row=EDGES[0], col=EDGES[1]),
        "SparseTensor: `row` is no argument of the class; values and a Pattern are accepted. Make",
    ),
    "a word for a flag": (
        lambda: spgrad.SparseTensor(torch.ones(7), A.pattern, "yes"),
        "SparseTensor: `requires_grad` is of class str; True or False is accepted.",
    ),
    # constructors
    "weights that are no numbers": (
        lambda: spgrad.from_edges(EDGES, "abc"),
        (
            "from_edges: `edge_weight` is a str, which torch can't read; a tensor or nested list "
            "of numbers is accepted. Make one with torch.tensor."
        ),
    ),
    "a gap in the weights": (lambda: spgrad.from_edges(EDGES, [1.0, None, 2.0]), "It holds None."),
    "sparse weights": (
        lambda: spgrad.from_edges(EDGES, A),
        (
            "`edge_weight` is a csr tensor of shape (3, 3); a dense tensor is accepted. Pass its "
            "values, edge_weight.values()."
        ),
    ),
    "ragged indices": (
        lambda: spgrad.sparse_coo_tensor([[0, 1], [1]], [1.0, 2.0]),
        (
            "`indices` is a list, which torch can't read; a tensor or nested list of numbers is "
            "accepted. Give lists of the same length."
        ),
    ),
    "an array of words": (
        lambda: spgrad.sparse_coo_tensor(EDGES, np.array(["a", "b", "c"])),
        "Its dtype is <U1: convert it with values.astype(float).",
    ),
    "a vector": (
        lambda: spgrad.from_dense(torch.ones(3)),
        (
            "`x` has shape (3,); a matrix or batch of matrices is accepted. Take "
            "layout=torch.sparse_coo for a vector."
        ),
    ),
    "a number": (
        lambda: spgrad.from_dense(torch.tensor(2.0), torch.sparse_coo),
        "`x` has shape (); a vector, matrix or batch is accepted.",
    ),
    "a negative size": (lambda: spgrad.eye(-1), "eye: `n` is -1; ints from 0 are accepted."),
    "negative columns": (lambda: spgrad.eye(2, -1), "eye: `m` is -1; ints from 0 are accepted."),
    "a list to fill with": (
        lambda: spgrad.full_like(A, [1.0]),
        "`fill_value` is a list; a number is accepted.",
    ),
    "a complex number to fill with": (
        lambda: spgrad.full_like(A, 1j),
        "`fill_value` is 1j; a real number is accepted.",
    ),
    "random ints": (lambda: spgrad.rand_like(INTS), "`input` has dtype int64; floating-point and"),
    "a layout by its name": (
        lambda: A.to_sparse("csr"),
        "to_sparse: `sparse_dim` is 'csr'; an int or None is accepted. Give a layout by its name",
    ),
    "a layout as a word": (
        lambda: A.to_sparse(layout="csr"),
        "to_sparse: `layout` is 'csr'; torch.sparse_coo, sparse_csr, ",
    ),
    "no blocks": (A.to_sparse_bsr, "to_sparse_bsr: missing 1 required positional"),
    "an option of another loader": (
        lambda: spgrad.data.NeighborLoader(A, [2], seeds=[0]),
        "data.NeighborLoader: `seeds` is no argument of NeighborLoader or of torch's DataLoader",
    ),
    "a shape of samples": (
        lambda: linalg.factor(A).sample("x"),
        "linalg.Factor.sample: `shape` is ('x',); non-negative sizes are accepted.",
    ),
    # options of solvers
    "SciPy's tolerance": (
        lambda: linalg.CG(tol=1e-3),
        (
            "linalg.CG: got an unexpected keyword argument 'tol'; CG(rtol, atol, max_iter, "
            "preconditioner, strict, progress) is accepted."
        ),
    ),
    "an option that a preconditioner lacks": (
        lambda: linalg.BlockJacobi(blocks=2),
        "linalg.BlockJacobi: got an unexpected keyword argument 'blocks'; BlockJacobi(size) is",
    ),
    "an array for a word": (
        lambda: linalg.solve(A, X, assume=np.eye(2)),
        '`assume` is array([[1., 0.], [0., 1.]]); "general", "symmetric", ',
    ),
    "a tolerance below 0": (lambda: spgrad.allclose(A, A, rtol=-1), "`rtol` is -1; numbers from 0"),
    "NaN for a tolerance": (
        lambda: spgrad.isclose(A, A.to_dense(), atol=float("nan")),
        "`atol` is nan; numbers from 0",
    ),
    # dtypes
    "relu of bools": (
        lambda: torch.relu(BOOLS),
        (
            "relu: `input` has dtype bool; integer and floating-point dtypes are accepted. Convert "
            "it with input.to(torch.float32)."
        ),
    ),
    "floor of complex numbers": (
        COMPLEX.floor,
        "floor: `input` has dtype complex64; integer and floating-point dtypes are accepted.",
    ),
    "an imaginary part of reals": (
        lambda: spgrad.imag(A),
        (
            "imag: `input` has dtype float32; complex dtypes are accepted. Convert it with "
            "input.to(torch.complex64)."
        ),
    ),
    "bits of floats": (
        lambda: A & A,
        "bitwise_and: `input` has dtype float32; bool and integer dtypes are accepted.",
    ),
    "bits and a fraction": (lambda: INTS & 2.5, "`other` is 2.5; an int is accepted."),
    "the order of complex numbers": (lambda: A > 1j, "`other` is 1j; a real number is accepted."),
    "a truth value": (
        lambda: spgrad.logical_and(A, True),
        "logical_and: `other` is True; a tensor is accepted.",
    ),
    "two dtypes": (
        lambda: spgrad.lerp(A, A, A.double()),
        "`input` and the other operands have dtypes float32 and float64; one dtype for all",
    ),
    "integers divided by 0": (
        lambda: spgrad.floor_divide(INTS, 0),
        "`other` has a 0, by which torch does not divide integers; other numbers are accepted.",
    ),
    "a number in a fused product": (
        lambda: spgrad.addcmul(A, A, 2.0),
        "addcmul: `tensor2` is 2.0; a tensor is accepted.",
    ),
    "the shape of a dense factor": (
        lambda: spgrad.addcdiv(A, torch.ones(3, 3), torch.ones(3, 2)),
        "addcdiv: `tensor2` has shape (3, 2); what broadcasts with (3, 3) is accepted.",
    ),
    "a complex factor": (
        lambda: spgrad.addcdiv(A, A, A.to_dense() + 1, value=1j),
        "addcdiv: `value` is 1j; int or float is accepted for operands of dtype float32.",
    ),
    "a complex factor of a sum": (
        lambda: spgrad.add(A, A, alpha=1j),
        "add: `alpha` is 1j; int or float is accepted for operands of dtype float32.",
    ),
    "a number as an end": (lambda: spgrad.lerp(A, 3, 0.5), "lerp: `end` is 3; a tensor is"),
    "a way to round": (
        lambda: spgrad.div(A, 2, rounding_mode="ceil"),
        "`rounding_mode` is 'ceil'; None, 'trunc' and 'floor' are accepted.",
    ),
    "a function that fails": (
        lambda: spgrad.map(A, torch.pow),
        "map: `fn` does not take values of dtype float32 and shape (7,) (pow() received",
    ),
    # names of the arguments that were given
    "another shape": (lambda: A.view_as(X), "view_as: `other` is (3, 2); sizes whose product is 9"),
    "a size": (lambda: A.view(5), "view: `size` is (5,); sizes whose product is 9"),
    "a word for a function": (
        lambda: nn.sparsity.RigL(nn.SparseLinear(3, 3, density=0.5), end=9, reduce="sum"),
        "nn.sparsity.RigL: `reduce` is a str; a function of a tensor or None is accepted.",
    ),
    "a flag of a layer": (
        lambda: nn.GraphAttention(2, 3)(X, A, return_attention_weights=1),
        "nn.GraphAttention: `return_attention_weights` is 1; True and False are accepted.",
    ),
    "features of edges": (
        lambda: nn.SAGEConv(2, 3)(X, HYBRID),
        "nn.SAGEConv: `A` has shape (3, 3, 4); one weight for each edge is accepted.",
    ),
    "features of edges in GIN": (
        lambda: nn.GINConv(torch.nn.Linear(2, 3))(X, HYBRID),
        "nn.GINConv: `A` has shape (3, 3, 4); one weight for each edge is accepted.",
    ),
    "a folder that is not there": (
        lambda: spgrad.io.save(A, "/not/there/a.npz"),
        "io.save: `path` is /not/there/a.npz, whose folder /not/there is not there; a file in an",
    ),
    "an array of numbers": (
        lambda: spgrad.broadcast_to(A, torch.eye(3)),
        "broadcast_to: `size` is float32 (3, 3); an int is accepted.",
    ),
    # distributions, random tensors
    "bools as a value": (
        lambda: NORMAL.log_prob(torch.ones(3).bool()),
        "log_prob: `value` has dtype bool; float32, the dtype of `loc`, is accepted.",
    ),
    "a value of another dtype": (
        lambda: NORMAL.log_prob(torch.ones(3).double()),
        "log_prob: `value` has dtype float64; float32, the dtype of `loc`, is accepted.",
    ),
    "a number as a batch": (
        lambda: NORMAL.expand(2),
        "expand: `batch_shape` is 2; a tuple of sizes is accepted.",
    ),
    "another batch": (
        lambda: NORMAL.expand((3,)),
        "expand: `batch_shape` is (3,); what (2,) broadcasts to is accepted.",
    ),
    "sizes one by one": (
        lambda: testing.random_sparse(3, 3),
        "testing.random_sparse: `shape` is 3; a sequence of ints is accepted.",
    ),
    "a density in words": (
        lambda: testing.random_sparse((3, 3), density="half"),
        "testing.random_sparse: `density` is a str; numbers from 0 are accepted.",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_the_error_names_the_argument(case):
    assert_refused(*REFUSED[case])


@pytest.mark.parametrize("case", REFUSED)
def test_the_text_has_one_line_without_an_address(case):
    with pytest.raises(spgrad.SpgradError) as raised:
        REFUSED[case][0]()
    text = str(raised.value).partition("\n  called with")[0]
    assert "\n" not in text
    assert not re.search("torch says|0x[0-9a-f]{6}", text)


def test_the_advice_of_these_errors_is_accepted():
    assert spgrad.from_edges(EDGES, A.values()[:3]).nse == 3
    assert spgrad.from_dense(torch.ones(3), torch.sparse_coo).nse == 3
    assert torch.relu(BOOLS.to(torch.float32)).nse == 7
    assert linalg.solve(A, X, linalg.CG(rtol=1e-3)).shape == (3, 2)
    assert spgrad.allclose(A, A, rtol=torch.tensor(1e-5))
    assert NORMAL.log_prob(torch.ones(3)).shape == NORMAL.log_prob(torch.ones(3).long()).shape


def test_a_fused_sum_takes_two_dense_tensors():
    dense, X = A.to_dense(), torch.rand(3, 3, requires_grad=True)
    for fused in (torch.addcmul, torch.addcdiv):
        got = getattr(spgrad, fused.__name__)(A, X + 1, X + 2, value=3)
        torch.testing.assert_close(got, fused(dense, X + 1, X + 2, value=3))
        assert torch.autograd.grad(got.sum(), X)[0].abs().sum() > 0


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("solve", "Use spgrad.linalg.solve."),
        ("GraphConv", "Use spgrad.nn.GraphConv."),
        ("load", "Use spgrad.io.load."),
        ("sample_neighbors", "Use spgrad.data.sample_neighbors."),
    ],
)
def test_a_name_of_a_module_is_found(name, says):
    with pytest.raises(AttributeError, match=rf"^module 'spgrad' has no attribute '{name}'\. "):
        getattr(spgrad, name)
    with pytest.raises(AttributeError, match=re.escape(says)):
        getattr(spgrad, name)


def test_python_can_suggest_a_name_that_is_alike():
    with pytest.raises(
        AttributeError, match=r"^module 'spgrad' has no attribute 'form_edges'$"
    ) as e:
        _ = spgrad.form_edges
    assert (e.value.name, e.value.obj) == ("form_edges", spgrad)
