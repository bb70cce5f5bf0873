"""What the annotations of public functions say of their arguments, and errors name."""

import importlib
import inspect

import numpy as np
import pytest
import torch

import spgrad
from spgrad import annotations, data, distributions, graph, linalg, nn
from spgrad.public import public_op

NAMES = "nn nn.sparsity linalg graph data io plot distributions distributed testing"
MODULES = [spgrad, *(importlib.import_module(f"spgrad.{name}") for name in NAMES.split())]
A = spgrad.from_dense(torch.eye(4, dtype=torch.float64) * 3)
HUGE = 10**30
NORMAL = distributions.SparseMultivariateNormal(torch.zeros(4).double(), precision_matrix=A)


def decorated(function):
    """The function under the decorator of public functions; None if it is not decorated."""
    code = public_op(len).__code__
    while getattr(function, "__code__", None) is not code:
        function = getattr(function, "__wrapped__", None)
        if function is None:
            return None
    return function.__wrapped__


def public():
    for module in MODULES:
        for name in module.__all__:
            value = getattr(module, name)
            made = value.__init__ if inspect.isclass(value) else value
            op = decorated(made)
            if op is not None:
                yield f"{module.__name__}.{name}", value, op


FLAGS = {
    f"{name}.{flag}": (value, flag)
    for name, value, op in public()
    for _, flag, _ in annotations.flags(op)
    if name != "spgrad.distributed.solve"  # whose processes compare all arguments together
}


@pytest.mark.parametrize("case", FLAGS)
def test_a_flag_is_true_or_false(case):
    """Flags are compared first, so that the other arguments may be missing."""
    function, flag = FLAGS[case]
    for stranger in ("False", 1, torch.ones(2), [], np.ones(2)):
        with pytest.raises(TypeError, match=rf"^spgrad\.[\w.]+: `{flag}` is .* True and False are"):
            function(**{flag: stranger})


def test_there_are_flags_everywhere():
    assert len(FLAGS) > 120
    assert {case.rpartition(".")[0].rpartition(".")[0] for case in FLAGS} >= {
        "spgrad",
        "spgrad.nn",
        "spgrad.linalg",
        "spgrad.data",
        "spgrad.plot",
    }


def test_flags_that_are_accepted():
    assert spgrad.sum(A, 1, np.True_).shape == (4, 1)
    assert spgrad.sum(A, 1, True).shape == (4, 1)
    assert spgrad.lobpcg(A, k=1, largest=None)[0].shape == (1,)

    @public_op
    def of_both(first: bool, second: bool | None = None, *, third: "bool" = False):
        return first, second, third

    of_both.__wrapped__.__annotations__ = {"first": "bool", "second": "bool | None"}
    wanted = annotations.flags(of_both.__wrapped__)
    assert wanted == ((0, "first", False), (1, "second", True))
    annotations.require_flags(wanted, (True,), {"second": None})
    annotations.require_flags(wanted, (), {})
    with pytest.raises(TypeError, match="`first` is None"):
        annotations.require_flags(wanted, (None,), {})
    with pytest.raises(TypeError, match="`second` is 0; True"):
        annotations.require_flags(wanted, (True, 0), {})


REFUSED = {
    "dtype": (
        lambda: nn.GraphConv(3, 2, dtype="float32"),
        TypeError,
        "nn.GraphConv: `dtype` is 'f",
    ),
    "random dtype": (
        lambda: spgrad.rand(3, 3, density=0.5, dtype=2),
        TypeError,
        "rand: `dtype` is",
    ),
    "device": (lambda: spgrad.eye(3, device="abc"), ValueError, "eye: `device` is 'abc'; a torch."),
    "kind of device": (lambda: nn.GraphConv(3, 2, device=2.5), TypeError, "`device` is a float; a"),
    "no device": (
        lambda: nn.GraphConv(3, 2, device=True),
        TypeError,
        "`device` is a bool; a torch",
    ),
    "huge device": (lambda: nn.GraphConv(3, 2, device=HUGE), ValueError, "`device` is 1000000"),
    "layout": (
        lambda: spgrad.to_sparse(A, layout=["csr"]),
        TypeError,
        "to_sparse: `layout` is a l",
    ),
    "generator": (
        lambda: spgrad.randn(3, 3, nse=2, generator=1),
        TypeError,
        "`generator` is an int",
    ),
    "number": (lambda: graph.is_symmetric(A, rtol="x"), TypeError, "`rtol` is a str; number"),
    "of GINConv": (
        lambda: nn.GINConv(torch.nn.Linear(3, 3), None),
        TypeError,
        "`eps` is None; a n",
    ),
    "name": (lambda: linalg.det(A, assume=np.ones(2)), TypeError, '; "general", "symmetric", "'),
    "huge factor": (lambda: spgrad.mul(A, HUGE), ValueError, "mul: `other` is 1000"),
    "huge alpha": (lambda: spgrad.add(A, A, alpha=HUGE), ValueError, "add: `alpha` is 1000"),
    "huge operand": (lambda: spgrad.map(A, torch.add, HUGE), ValueError, "map: `args[0]` is 100"),
    "huge option": (lambda: spgrad.map(A, torch.add, other=HUGE), ValueError, "map: `other` is 1"),
    "huge size": (
        lambda: nn.GraphConv(3, 2**63),
        ValueError,
        "`out_channels` is 9223372036854775808",
    ),
    "huge fanout": (
        lambda: data.sample_neighbors(A, [0], [1, HUGE]),
        ValueError,
        "sample_neighbors: `fanout` is 1000",
    ),
    "huge tolerance": (
        lambda: linalg.solve(A, torch.ones(4).double(), linalg.CG(rtol=HUGE)),
        ValueError,
        "solve: `rtol` is 1000",
    ),
    "huge bound": (
        lambda: linalg.solve(A, torch.ones(4).double(), linalg.CG(max_iter=2**63)),
        ValueError,
        "solve: `max_iter` is 9223372036854775808",
    ),
    "no mapping": (
        lambda: linalg.lobpcg(A, 1, ortho_iparams=3),
        TypeError,
        "lobpcg: `ortho_iparams` is an int; a dict or None is accepted",
    ),
    "no sequence": (
        lambda: spgrad.to_networkx(A, nodes=3),
        TypeError,
        "to_networkx: `nodes` is an int; a list or another iterable or None is accepted",
    ),
    "no tuple": (
        lambda: spgrad.to_pandas(A, names=3),
        TypeError,
        "to_pandas: `names` is an int; a list or another iterable is accepted",
    ),
    "meta": (lambda: linalg.det(A.to("meta")), NotImplementedError, "det: `A` is on meta, where"),
    "weights of a table": (
        lambda: nn.SparseEmbeddingBag(3, 2, _weight=torch.ones(2, 2)),
        ValueError,
        "`_weight` has shape (2, 2); (3, 2) is accepted",
    ),
    "kind of table": (
        lambda: nn.SparseEmbeddingBag(3, 2, _weight=[1.0]),
        TypeError,
        "`_weight` is a list; a dense tensor",
    ),
    "size of a table": (lambda: nn.SparseEmbeddingBag(-1, 2), ValueError, "`num_embeddings` is -1"),
    "padding": (
        lambda: nn.SparseEmbeddingBag(3, 2, padding_idx=3),
        ValueError,
        "`padding_idx` is 3; ints from -3 to 2",
    ),
    "class for a preconditioner": (
        lambda: linalg.solve(A, torch.ones(4), linalg.CG(preconditioner=linalg.Jacobi)),
        ValueError,
        "`b` has dtype",
    ),
    "class of preconditioner": (
        lambda: linalg.solve(A, torch.ones(4).double(), linalg.CG(preconditioner=linalg.Jacobi)),
        TypeError,
        "`preconditioner` is the class Jacobi; a preconditioner such as",
    ),
    "solver of normal equations": (
        lambda: linalg.lstsq(A, torch.ones(4).double(), solver=linalg.NormalEquations("CG")),
        TypeError,
        "lstsq: `solver` is a str; a solver or None",
    ),
    "flag of a solver": (lambda: linalg.CG(strict="no"), TypeError, "linalg.CG: `strict` is 'no'"),
    "norm of cond": (
        lambda: linalg.cond(A, torch.ones(2)),
        NotImplementedError,
        "cond: `p` is tens",
    ),
    "method of lobpcg": (
        lambda: linalg.lobpcg(A, method="x"),
        ValueError,
        "`method` is 'x'; 'orth",
    ),
    "tracker": (lambda: linalg.lobpcg(A, tracker=1), TypeError, "`tracker` is an int; a function"),
    "iterations": (lambda: linalg.lobpcg(A, niter=2.5), TypeError, "`niter` is a float; ints from"),
    "tolerance": (lambda: linalg.lobpcg(A, tol="x"), TypeError, "`tol` is a str; numbers from 0"),
    "nothing": (lambda: linalg.lobpcg(None), TypeError, "lobpcg: `A` is None; a dense tensor"),
    "batches": (lambda: data.prefetched(3), TypeError, "prefetched: `batches` is an int; a DataL"),
    "transform": (
        lambda: data.NeighborLoader(A, transform="x"),
        TypeError,
        "NeighborLoader: `transform` is a str; a function",
    ),
    "ordering": (
        lambda: linalg.solve(A, torch.ones(4).double(), linalg.SuperLU(np.ones(2))),
        ValueError,
        "`ordering` is array",
    ),
    "colours": (
        lambda: spgrad.plot.spy(A, cmap="abc"),
        ValueError,
        "`cmap` is 'abc'; a colour map",
    ),
    "kind of colours": (
        lambda: spgrad.plot.spy(A, cmap=3),
        TypeError,
        "`cmap` is an int; a colour",
    ),
    "fill": (
        lambda: nn.GraphAttention(2, 2, fill_value=[]),
        ValueError,
        "`fill_value` is []; a numb",
    ),
    "nested dimensions": (lambda: spgrad.sum(A, [[0], 1]), TypeError, "sum: `dim` is ([0], 1); an"),
    "dimensions of floats": (
        lambda: spgrad.tensordot(A, torch.ones(4, 2).double(), dims=torch.ones(2)),
        TypeError,
        "tensordot: `dims` is a dense tensor of shape (2,)",
    ),
    "dimensions of texts": (
        lambda: spgrad.tensordot(A, torch.ones(4, 2).double(), dims=(1.5, 0)),
        TypeError,
        "tensordot: `dims` is (1.5, 0)",
    ),
    "operand": (
        lambda: spgrad.einsum("ij,jk", None, torch.ones(2, 2)),
        TypeError,
        "einsum: `operands[0]` is None",
    ),
    "exponent": (lambda: spgrad.pow(A, -1), ValueError, "pow: `exponent` is -1, with which 0"),
    "kind of exponent": (
        lambda: spgrad.pow(A, None),
        TypeError,
        "pow: `exponent` is None; a tensor",
    ),
    "shape of exponent": (
        lambda: spgrad.pow(A, torch.ones(3).double()),
        ValueError,
        "pow: `exponent` has shape (3,)",
    ),
    "dtype among options": (
        lambda: spgrad.zeros_like(A, dtype="float32"),
        TypeError,
        "zeros_like: `dtype` is 'float32'; a torch.dtype",
    ),
    "layout among options": (
        lambda: spgrad.ones_like(A, layout=["csr"]),
        NotImplementedError,
        "ones_like: `layout` is ['csr']",
    ),
    "flag among options": (
        lambda: spgrad.rand_like(A, requires_grad="yes"),
        TypeError,
        "rand_like: `requires_grad` is 'yes'; True",
    ),
    "meta for a device": (
        lambda: spgrad.banded(4, 1, device="meta"),
        NotImplementedError,
        "banded: `device` is meta, where",
    ),
    "sizes": (
        lambda: spgrad.neighbourhood_pattern((4, 4), 1.0, device=3.5),
        TypeError,
        "neighbourhood_pattern: `device` is a float",
    ),
    "ints for a table": (
        lambda: nn.SparseEmbeddingBag(3, 2, _weight=torch.ones(3, 2).long()),
        ValueError,
        "`_weight` has dtype int64; floating",
    ),
    "value of a density": (
        lambda: NORMAL.log_prob([0.0]),
        TypeError,
        "log_prob: `value` is a list",
    ),
    "sparse value": (lambda: NORMAL.log_prob(A), TypeError, "`value` is a csr tensor of shape"),
    "samples": (lambda: NORMAL.sample(3), TypeError, "`sample_shape` is 3; a tuple of sizes"),
    "negative samples": (lambda: NORMAL.rsample((-1,)), TypeError, "`sample_shape` is (-1,)"),
    "names": (
        lambda: spgrad.to_networkx(A, nodes=[[0], 1, 2, 3]),
        TypeError,
        "to_networkx: `nodes` has a list, which can't be a name",
    ),
    "dtype of a dense tensor": (
        lambda: spgrad.from_dense(torch.ones(3, 3).to(torch.uint16)),
        ValueError,
        "from_dense: `x` has dtype uint16",
    ),
    "dtype without sums": (
        lambda: spgrad.from_edges([[0, 0], [1, 1]], torch.ones(2).to(torch.uint16)),
        ValueError,
        "from_edges: `edge_weight` has dtype uint16, which torch stores and hardly computes with",
    ),
    "dtype without order": (
        lambda: spgrad.topk(spgrad.eye(2, dtype=torch.float8_e4m3fn), 1),
        ValueError,
        "topk: `input` has dtype float8_e4m3fn",
    ),
    "blocks of edges": (
        lambda: spgrad.from_edges([[0], [1]], layout=torch.sparse_bsr),
        ValueError,
        "from_edges: `layout` is torch.sparse_bsr; torch.sparse_csr",
    ),
    "size of a graph": (
        lambda: spgrad.from_edges([[0], [1]], size=2.0),
        TypeError,
        "from_edges: `size` is 2.0; a number of nodes",
    ),
    "first number": (lambda: spgrad.maximum(9, A), ValueError, "maximum: `input` is 9, with which"),
}


NEEDS = {
    "names": "networkx",
    "colours": "matplotlib",
    "kind of colours": "matplotlib",
    "meta": "scipy",
    "name": "scipy",
    "ordering": "scipy",
    "norm of cond": "scipy",
    "solver of normal equations": "scipy",
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_argument_is_named(name):
    call, kind, text = REFUSED[name]
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    with pytest.raises(spgrad.SpgradError) as raised:
        call()
    assert isinstance(raised.value, kind)
    assert text in str(raised.value)
    assert str(raised.value).startswith("spgrad.")


def test_a_device_that_torch_does_not_reach():
    if torch.cuda.is_available():
        pytest.skip("torch reaches one")
    with pytest.raises(spgrad.ArgumentValueError, match="`device` is cuda, which torch does not"):
        spgrad.eye(3, device="cuda")


def test_errors_of_other_causes_stay():
    """Only an argument that its annotation refuses is named; no other error changes."""

    def broken(values):
        raise RuntimeError("of the user")

    with pytest.raises(spgrad.SpgradError, match="of the user"):
        spgrad.map(A, broken)


def test_an_error_of_a_constructor_does_not_show_the_unfinished_object():
    with pytest.raises(spgrad.SpgradError) as raised:
        nn.GraphConv(0, 2)
    assert "called with in_channels: 0, out_channels: 2" in str(raised.value)


def test_a_call_of_a_layer_names_its_operands_alone():
    with pytest.raises(ValueError, match="`x` has shape") as raised:
        spgrad.nn.SAGEConv(3, 2)(torch.ones(4, 5), spgrad.eye(4))
    assert "\n  called with x: float32 (4, 5), A: csr" in str(raised.value)


@pytest.mark.parametrize("number", [-1.5, 0, -2, float("-inf")])
def test_maximum_with_a_number(number):
    dense = torch.tensor([[1.0, 0.0], [-2.0, 0.0]], dtype=torch.float64)
    for x in (dense, dense.long()):
        A = spgrad.from_dense(x)
        wanted = torch.maximum(x, torch.tensor(number, dtype=torch.result_type(x, number)))
        for found in (spgrad.maximum(A, number), spgrad.maximum(number, A)):
            assert found.dtype == wanted.dtype
            assert found.nse == A.nse
            torch.testing.assert_close(found.to_dense(), wanted)
        least = torch.minimum(x, torch.tensor(-number, dtype=torch.result_type(x, number)))
        torch.testing.assert_close(spgrad.minimum(A, -number).to_dense(), least)
