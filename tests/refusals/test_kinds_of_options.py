"""Options that a signature does not accept.

Numbers, flags and generators of the wrong kind are refused by an error of the library that names
the option, whatever the other arguments are. The error for a name that no argument has lists the
arguments.
"""

import numpy as np
import pytest
import torch
from refused import assert_refused

import spgrad
from spgrad import data, graph, linalg, nn

F64 = torch.float64
DENSE = torch.eye(6, dtype=F64) * 4 + torch.eye(6, dtype=F64).roll(1, 1)
A = spgrad.from_dense(DENSE + DENSE.T)
B, X = torch.ones(6, dtype=F64), torch.ones(6, 3, dtype=F64)
LAYER = nn.SparseLinear(6, 4, density=0.5)
TABLE = nn.SparseEmbeddingBag(6, 3)
INPUTS = torch.tensor([0, 1, 2])
EDGES = torch.tensor([[0, 1], [1, 2]])

STRANGERS = {
    "str": "abc",
    "numeral": "2",  # which float() and int() take
    "object": object(),
    "list": ["a"],
    "complex": 1j,
    "matrix": torch.ones(2, 2),
    "dtype": torch.float32,
    "function": len,
    "NaN": float("nan"),
}


def by(solver, solve=linalg.solve):
    """A solve of this solver, whose options are the arguments."""
    return lambda **options: solve(A, B, solver=solver(**options))


def through(preconditioner):
    return lambda **options: linalg.solve(A, B, linalg.CG(preconditioner=preconditioner(**options)))


def schedule(made, **fixed):
    return lambda **options: made(LAYER, **{**fixed, **options})


def module(made, **fixed):
    return lambda **options: made(**{**fixed, **options})


def walk(**options):
    return data.random_walk(A, [0], **{"length": 2, **options})


def attend(**options):
    return spgrad.scaled_dot_product_attention(X, X, X, A, **options)


def attend_by_sums(**options):
    return spgrad.additive_attention(B, B, X, A, **options)


def bags(**options):
    return spgrad.embedding_bag(INPUTS, A, **options)


CALLS = {
    "CG": (by(linalg.CG), "rtol atol max_iter strict progress"),
    "GMRES": (by(linalg.GMRES), "rtol atol max_iter restart"),
    "LSMR": (by(linalg.LSMR, linalg.lstsq), "rtol atol max_iter strict progress"),
    "SuperLU": (by(linalg.SuperLU), "ordering"),
    "BlockJacobi": (through(linalg.BlockJacobi), "size"),
    "SSOR": (through(linalg.SSOR), "omega"),
    "IC0": (through(linalg.IC0), "shift"),
    "AMG": (through(linalg.AMG), "method sweeps"),
    "sample": (linalg.factor(A).sample, "shape generator"),
    "logdet": (lambda **o: linalg.logdet(A, method="lanczos", **o), "probes steps generator"),
    "eigsh": (lambda **o: linalg.eigsh(A, **{"k": 2, **o}), "k sigma which v0 ncv maxiter tol"),
    "k_hop": (lambda **o: graph.k_hop(A, **{"seeds": [0], "k": 1, **o}), "seeds k"),
    "shortest_paths": (lambda **o: graph.shortest_paths(A, **o), "sources"),
    "random_walk": (walk, "length p q generator"),
    "sample_neighbors": (
        lambda **o: data.sample_neighbors(A, **{"seeds": [0], "fanout": [2], **o}),
        "seeds fanout replace generator",
    ),
    "split_entries": (
        lambda **o: data.split_entries(A, **{"fractions": [1.0], **o}),
        "fractions generator",
    ),
    "negative_sampling": (
        lambda **o: data.negative_sampling(A, **{"num": 1, **o}),
        "num generator",
    ),
    "saint_sample": (
        lambda **o: data.saint_sample(A, **{"num": 1, **o}),
        "num method length generator",
    ),
    "partition": (lambda **o: data.partition(A, **{"parts": 2, **o}), "parts weights"),
    "SparseLinear": (
        lambda **o: nn.SparseLinear(
            **{"in_features": 6, "out_features": 4, "density": None if "n_m" in o else 0.5, **o}
        ),
        "in_features out_features density dtype blocksize n_m generator",
    ),
    "table of bags": (
        module(nn.SparseEmbeddingBag, num_embeddings=6, embedding_dim=3),
        "num_embeddings embedding_dim max_norm norm_type padding_idx dtype",
    ),
    "SparseAttention": (
        module(nn.SparseAttention, embed_dim=4, num_heads=2),
        "embed_dim num_heads dropout kdim vdim",
    ),
    "SparseEmbeddingBag": (lambda **o: TABLE(INPUTS, **o), "offsets"),
    "weights of bags": (lambda **o: TABLE(INPUTS[None], **o), "per_sample_weights"),
    "SET": (schedule(nn.sparsity.SET), "optimizer fraction every begin end generator"),
    "RigL": (
        schedule(nn.sparsity.RigL, end=9),
        "optimizer fraction every begin end memory",
    ),
    "GradualMagnitude": (
        schedule(nn.sparsity.GradualMagnitude, density=0.5, end=9),
        "optimizer density end begin every",
    ),
    "attention": (attend, "dropout_p scale"),
    "additive attention": (attend_by_sums, "dropout_p negative_slope"),
    "embedding_bag": (bags, "offsets mode per_sample_weights padding_idx"),
    "topk": (lambda **o: spgrad.topk(A, **{"k": 2, **o}), "k dim largest"),
    "sort": (lambda **o: spgrad.sort(A, **o), "dim descending"),
    "cumsum": (lambda **o: spgrad.cumsum(A, **o), "dim"),
    "normalize": (lambda **o: spgrad.normalize(A, **o), "p eps"),
    "leaky_relu": (lambda **o: spgrad.leaky_relu(A, **o), "negative_slope"),
    "dropout": (lambda **o: spgrad.dropout(A, **o), "p"),
    "addmm": (lambda **o: spgrad.addmm(X, A, X, **o), "alpha beta"),
    "svds": (lambda **o: linalg.svds(A, **{"k": 2, **o}), "k ncv maxiter tol"),
    "lobpcg": (lambda **o: spgrad.lobpcg(A, **{"k": 1, **o}), "k niter tol"),
    "svd_lowrank": (lambda **o: spgrad.svd_lowrank(A, **o), "q niter"),
    "neighbourhood_pattern": (
        lambda **o: spgrad.neighbourhood_pattern(**{"shape": (3, 3), "radius": 1, **o}),
        "shape radius",
    ),
    "rand": (lambda **o: spgrad.rand(4, 4, **{"density": 0.5, **o}), "density generator"),
    "matrix_power": (lambda **o: spgrad.matrix_power(A, **{"n": 2, **o}), "n"),
    "GraphAttention": (
        module(nn.GraphAttention, in_channels=3, out_channels=2),
        "out_channels heads dropout version negative_slope edge_dim",
    ),
    "GraphConv": (
        module(nn.GraphConv, in_channels=3, out_channels=2),
        "in_channels out_channels",
    ),
}
WITH_NAN = {"normalize", "leaky_relu", "addmm"}  # which torch computes with too
CASES = [(name, option) for name, (_, options) in CALLS.items() for option in options.split()]


@pytest.mark.parametrize(("name", "option"), CASES, ids=[".".join(case) for case in CASES])
def test_an_option_of_another_kind_is_refused_by_its_name(name, option):
    call = CALLS[name][0]
    for kind, stranger in STRANGERS.items():
        if kind == option or (kind == "NaN" and name in WITH_NAN):
            continue  # it is none
        with pytest.raises(spgrad.SpgradError, match=f"`{option}`"):
            call(**{option: stranger})


@pytest.mark.parametrize("name", ["CG", "GMRES", "LSMR"])
def test_a_number_of_steps_that_is_no_int_ends_no_iteration(name):
    call = CALLS[name][0]
    for steps in (2.5, float("inf"), True):
        with pytest.raises(TypeError, match=r"`max_iter` is a .*; ints from 0 are accepted"):
            call(max_iter=steps, rtol=0.0)


def test_a_scale_that_is_a_tensor_would_lose_its_gradient():
    with pytest.raises(TypeError, match=r"`scale`.*Multiply the queries by a tensor"):
        attend(scale=torch.tensor(0.5, requires_grad=True))


@pytest.mark.parametrize("flag", ["is_causal", "enable_gqa"])
def test_what_is_no_flag_is_refused_where_autocast_lowers_operands(flag):
    for stranger in ("", [], 0, 1.0, None):
        with pytest.raises(TypeError, match=rf"attention: `{flag}` is .*True and False"):
            attend(**{flag: stranger})


@pytest.mark.parametrize("function", [spgrad.any, spgrad.all])
def test_dimensions_of_numpy_are_those_of_python(function):
    assert torch.equal(function(A, np.int64(1)), function(A, 1))
    for stranger in (np.ones(3), np.float32(1.5), np.True_):
        with pytest.raises(TypeError, match="`dim`"):
            function(A, stranger)


@pytest.mark.parametrize("function", [spgrad.norm, spgrad.matrix_norm, spgrad.linalg_norm])
def test_an_order_is_no_array(function):
    name = "p" if function is spgrad.norm else "ord"
    for stranger in (np.ones(3), torch.ones(3), torch.ones(0), torch.tensor(True)):
        with pytest.raises(TypeError, match=f"`{name}`.*a number"):
            function(A, stranger)
    assert function(A, np.int64(1)) == function(A, 1)


BY_DIM = """
    sum mean prod amax argmax max any all count_nonzero sparse_sum vector_norm norm linalg_norm
    logsumexp softmax log_softmax sort argsort cumsum topk normalize
"""


@pytest.mark.parametrize("name", BY_DIM.split())
def test_true_is_no_dimension(name):
    options = {"k": 1} if name == "topk" else {}
    with pytest.raises(TypeError, match=rf"{name}: `dim` is \(?True"):
        getattr(spgrad, name)(A, dim=True, **options)


def test_true_is_no_index():
    for index in (True, torch.tensor(True), torch.tensor(1j)):
        with pytest.raises(TypeError, match="index"):
            spgrad.select(A, 0, index)
        with pytest.raises(TypeError, match="start"):
            spgrad.narrow(A, 0, index, 1)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_an_object_half_made_is_not_described():
    """Its description may read what its constructor has not set yet."""
    with pytest.raises(ValueError, match=r"GINConv: `eps` is 1000.*2\^63"):
        nn.GINConv(torch.nn.Linear(6, 4), eps=10**400)
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    with pytest.raises(TypeError, match="SparseEmbeddingBag: `_weight` is a nested tensor"):
        nn.SparseEmbeddingBag(6, 3, _weight=nested)


def test_a_bool_tensor_is_no_number():
    with pytest.raises(TypeError, match="from_dense: `dense_dim`"):
        spgrad.from_dense(DENSE, dense_dim=torch.tensor(True))


@pytest.mark.parametrize("value", ["1", True, torch.tensor(1)], ids=repr)
@pytest.mark.parametrize("name", ["zeros", "empty"])
def test_numbers_of_dense_dimensions_are_whole(name, value):
    with pytest.raises(TypeError, match=rf"^spgrad\.{name}: `dense_dim` is .*int"):
        getattr(spgrad, name)((4, 6), dense_dim=value)


def test_an_infinite_tolerance_of_lobpcg():
    with pytest.raises(ValueError, match="lobpcg: `tol` is inf"):
        spgrad.lobpcg(A, 1, tol=float("inf"))


MISFITS = {
    "a name of another library": (
        lambda: spgrad.from_edges(EDGES, num_nodes=3),
        (
            "spgrad.from_edges: got an unexpected keyword argument 'num_nodes'; "
            "from_edges(edge_index, edge_weight, size, *, layout, return_order) is accepted. Check "
            "the names and the number of the arguments."
        ),
    ),
    "a missing operand": (
        lambda: spgrad.mm(A),
        "missing 1 required positional argument: 'mat2'; mm(input, mat2, reduce) is accepted.",
    ),
    "a missing keyword": (
        lambda: spgrad.solve_triangular(A, torch.ones(3)),
        "'upper'; solve_triangular(A, B, *, upper, left, unitriangular) is accepted.",
    ),
    "sizes one by one": (
        lambda: spgrad.sparse_coo_tensor(EDGES, torch.ones(2), 3, 3),
        "takes from 0 to 3 positional arguments but 4 were given; sparse_coo_tensor(indices, ",
    ),
    "no argument for users": (
        lambda: spgrad.softmax(A, axis=1),
        "spgrad.softmax: got an unexpected keyword argument 'axis'; softmax(input, dim, dtype) is",
    ),
    "a class": (
        lambda: spgrad.nn.SparseLinear(3, 3, sparsity=0.5),
        "'sparsity'; SparseLinear(in_features, out_features, bias, device, dtype, *, density, ",
    ),
}


@pytest.mark.parametrize("case", MISFITS)
def test_the_error_lists_the_arguments(case):
    call, says = MISFITS[case]
    assert_refused(call, says)
    with pytest.raises(TypeError):
        call()


def test_an_error_of_a_callers_function_stays():
    def needs_two(values, more):
        return values

    with pytest.raises(TypeError, match=r"needs_two\(\) missing 1 required"):
        spgrad.map(A, needs_two)
