"""The layouts on the badges of functions that the support table has no row for.

Each function runs with a matrix in each layout, or is asked for a result in it.
"""

import importlib
import importlib.util
import inspect
import tempfile
from operator import attrgetter
from pathlib import Path

import pytest
import test_reference
import torch
import torch.distributed as dist

import spgrad
from spgrad import data, io, nn, plot, support, testing
from spgrad.core.pattern import LAYOUTS

DENSE = torch.eye(4) + torch.eye(4).flip(0)
EDGES = torch.tensor([[0, 1, 3], [1, 2, 0]])
FOLDER = tempfile.TemporaryDirectory()
FILE = Path(FOLDER.name, "matrix.pt")
CUPY = importlib.util.find_spec("cupy") is not None and torch.cuda.is_available()


class Holder(torch.nn.Module):
    def __init__(self, A):
        super().__init__()
        self.A = torch.nn.Parameter(A)


def constructed(layout):
    """The result of the constructor of a layout, from the parts of a matrix in that layout."""
    A = testing.random_sparse((4, 4), LAYOUTS[layout])
    make = getattr(spgrad, f"sparse_{layout}_tensor")
    return lambda *_: make(*A.pattern.indices, A.values(), A.shape)


def compressed(A, layout):
    return spgrad.sparse_compressed_tensor(*A.pattern.indices, A.values(), A.shape, layout=layout)


def from_networkx(A, layout):
    graph = importlib.import_module("networkx").path_graph(3)
    return spgrad.from_networkx(graph, layout=layout).A


def from_pandas(A, layout):
    frame = importlib.import_module("pandas").DataFrame({"i": [0, 1], "j": [1, 0], "x": [1.0, 2.0]})
    return spgrad.from_pandas(frame, "i", "j", "x", layout=layout).A


def loaded(A, layout):
    io.save(A, FILE)
    return io.load(FILE)


MAKES = {
    **{f"sparse_{layout}_tensor": constructed(layout) for layout in support.ALL},
    "sparse_compressed_tensor": compressed,
    "from_cupy": lambda A, _: spgrad.from_cupy(spgrad.to_cupy(A.to("cuda"))),
    "from_dgl": lambda A, layout: spgrad.from_dgl(tuple(EDGES), layout=layout),
    "from_jax": lambda A, _: spgrad.from_jax(spgrad.to_jax(A)),
    "from_networkx": from_networkx,
    "from_pandas": from_pandas,
    "from_pyg": lambda A, layout: spgrad.from_pyg(EDGES, layout=layout),
    "from_scipy": lambda A, _: spgrad.from_scipy(spgrad.to_scipy(A)),
    "io.load": loaded,
    "nn.patterns.band": lambda *_: nn.patterns.band(4, 1),
    "nn.patterns.block": lambda *_: nn.patterns.block(4, 2),
    "nn.patterns.global_tokens": lambda *_: nn.patterns.global_tokens(4, 1),
    "nn.patterns.strided": lambda *_: nn.patterns.strided(4, 2),
    "testing.random_sparse": lambda A, layout: testing.random_sparse((4, 4), layout),
}
"""Functions without a sparse argument: what they return for a matrix, or for its layout."""

TAKES = {
    "data.collate": lambda A: data.collate([A]),
    "data.negative_sampling": lambda A: data.negative_sampling(A, 2),
    "data.partition": lambda A: data.partition(A, 2),
    "data.random_walk": lambda A: data.random_walk(A, [0], 2),
    "data.saint_sample": lambda A: data.saint_sample(A, 2),
    "data.sample_neighbors": lambda A: data.sample_neighbors(A, [0], [1]),
    "data.split_entries": lambda A: data.split_entries(A, (0.5, 0.5)),
    "data.subgraph": lambda A: data.subgraph(A, [0, 1]),
    "data.uncollate": lambda A: data.uncollate(A, torch.tensor([[2, 2], [2, 2]])),
    "distributed.distribute": spgrad.distributed.distribute,
    "distributed.from_local": spgrad.distributed.from_local,
    "io.save": lambda A: io.save(A, FILE),
    "nn.add_self_loops": nn.add_self_loops,
    "nn.gcn_norm": nn.gcn_norm,
    "nn.parametrize_values": lambda A: nn.parametrize_values(Holder(A)),
    "nn.sparsity.move": lambda A: nn.sparsity.move(nn.SparseLinear(4, 4, density=0.5), A),
    "nn.unparametrize_values": lambda A: nn.unparametrize_values(nn.parametrize_values(Holder(A))),
    **{f"plot.{name}": getattr(plot, name) for name in plot.__all__},
    "testing.assert_close": lambda A: testing.assert_close(A, A.to_dense()),
    "to_cupy": lambda A: spgrad.to_cupy(A.to("cuda")),
    **{f"to_{name}": getattr(spgrad, f"to_{name}") for name in ("jax", "networkx", "pandas")},
    **{f"to_{name}": getattr(spgrad, f"to_{name}") for name in ("pyg", "scipy")},
}
"""Functions of a sparse tensor."""

NONE = {
    *("compiled", "dropin", "empty_cache", "show_versions"),
    *("data.prefetched", "nn.convert", "nn.to_dense"),
    *("distributed.load", "distributed.save", "distributed.solve"),  # of a ShardedMatrix
    *("testing.cells", "testing.sample", "testing.tolerance"),
}
"""Public functions without a sparse tensor of one layout."""


@pytest.fixture
def alone():
    """A group of this process alone, and no figures."""
    pyplot = pytest.importorskip("matplotlib.pyplot")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    pyplot.close("all")


def matrix(layout):
    """A symmetric matrix of blocks (2, 2) on its diagonal, which fits each of the functions."""
    block = torch.tensor([[2.0, 1.0], [1.0, 2.0]])
    dense = torch.block_diag(block, block)
    blocksize = (2, 2) if layout.startswith("b") else None
    return spgrad.from_dense(dense).to_sparse(layout=LAYOUTS[layout], blocksize=blocksize)


def skip_what_is_missing(name):
    if name.endswith("cupy") and not CUPY:
        pytest.skip("CuPy or a GPU is missing")
    packages = {"jax": "jax", "pyg": "torch_geometric", "partition": "pymetis", "scipy": "scipy"}
    package = packages.get(name.rpartition("_")[2].rpartition(".")[2])
    if package is not None:
        pytest.importorskip(package)


def made(name, layout):
    """The layout of a result; None if this layout is refused."""
    try:
        return MAKES[name](matrix(layout), LAYOUTS[layout]).pattern.name
    except spgrad.SpgradError as error:
        if f"sparse_{layout}" in str(error) or "has no blocks" in str(error):
            return None
        raise


@pytest.mark.parametrize("name", MAKES)
def test_a_badge_shows_the_layouts_of_results(name):
    skip_what_is_missing(name)
    found = {made(name, layout) for layout in support.ALL} - {None}
    assert found == set(support.WITHOUT_ROW[name])


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", TAKES)
def test_a_badge_shows_the_layouts_that_are_taken(name):
    skip_what_is_missing(name)
    for layout in support.ALL:
        if layout in support.WITHOUT_ROW[name]:
            TAKES[name](matrix(layout))
        else:
            with pytest.raises(spgrad.SpgradError, match=rf"`A` (has layout|is) {layout}"):
                TAKES[name](matrix(layout))


def test_every_public_function_says_its_layouts():
    """In a row of the support table or in `WITHOUT_ROW`, or it has no sparse tensor."""
    tool = test_reference.loaded()
    modules = {"": spgrad}
    modules |= {f"{name}.": importlib.import_module(f"spgrad.{name}") for name in tool.MODULES}
    without = set()
    for prefix, module in modules.items():
        for name in module.__all__:
            value, full = getattr(module, name), f"spgrad.{prefix}{name}"
            if inspect.isroutine(value) and ":bdg-success:" not in tool.badges(full, value)[0]:
                without.add(f"{prefix}{name}")
    assert without == NONE - {"dropin"}
    assert set(support.WITHOUT_ROW) == {*MAKES, *TAKES}
    assert not set(MAKES) & set(TAKES)
    assert all(callable(attrgetter(name)(spgrad)) for name in support.WITHOUT_ROW)
    assert not set(support.WITHOUT_ROW) & set(support.OPS)
