"""Objects of other libraries where a sparse tensor is needed: the error names the way to one."""

import pytest
import torch
from refused import assert_refused

import spgrad
from spgrad import graph


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


A = spgrad.eye(4)
REFUSED = {
    "a SciPy matrix is no tensor": (
        lambda: spgrad.from_torch(scipy()),
        "from_torch: `x` is a csr_array; a sparse torch tensor is accepted. Convert it with",
    ),
    "pairs": (lambda: spgrad.from_edges([(0, 1), (1, 2), (2, 3)]), "transpose a list of pairs"),
    "a short mask": (
        lambda: graph.k_hop(A, torch.tensor([True, False]), 1),
        "k_hop: `seeds` has shape (2,); (4,) for a bool mask is accepted",
    ),
    "a mask as one seed": (
        lambda: graph.shortest_paths(A, torch.tensor(True)),
        "shortest_paths: `sources` has shape (); (4,) for a bool mask is accepted",
    ),
    "lengths of int": (
        lambda: graph.shortest_paths(A.long(), [0]),
        "`A` has dtype int64; floating-point dtypes are accepted",
    ),
    "least sums of int": (
        lambda: spgrad.spmm(A.long(), torch.ones(4, 1, dtype=torch.int64), "min_plus"),
        "`input` has dtype int64; floating-point dtypes are accepted",
    ),
    "an array in a product of elements": (
        lambda: A * torch.ones(4).numpy(),
        "make an operand a tensor with torch.as_tensor(array), or spgrad.from_scipy for a",
    ),
    "a batch": (
        lambda: spgrad.compact(spgrad.zeros(2, 3, 5)),
        "compact: `input` has shape (2, 3, 5); (m, k), and (m, k | d) with dense dimensions,",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    assert_refused(*REFUSED[case])
