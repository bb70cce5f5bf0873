"""The demo's graphs: the Cora citation graph, or a file of the user's own."""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from spgrad.core import checks
from spgrad.core.interop import to_scipy
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import from_values, values
from spgrad.errors import ArgumentValueError, SpgradError
from spgrad.ops import from_edges

if TYPE_CHECKING:
    from importlib.abc import Traversable  # Python 3.14 has it in importlib.resources.abc alone

ANCHORS = 4
KEYS = tuple(
    f"{m}_{part}" for m in ("adj", "attr") for part in ("data", "indices", "indptr", "shape")
)
MATRIX_KEYS = {"format", "shape", "data"}  # what scipy.sparse.save_npz writes for every format
UNREADABLE = (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error)
ACCEPTED = (
    "a .npz file with adj_*, attr_* and labels (as cora.npz has), a .npz file that "
    "scipy.sparse.save_npz wrote, or a .mtx file is accepted"
)


@dataclass(frozen=True)
class Graph:
    """A graph whose nodes are to be classified.

    Attributes:
        name: Name of the graph in the transcript.
        adjacency: Symmetric (n, n) with self loops, CSR, D^-1/2 (A + I) D^-1/2.
        features: (n, f), CSR, each row scaled to the sum 1.
        labels: int64 (n,), classes 0 to c - 1.
        classes: Their names.
        links: Number of undirected links between two nodes.
        task: A description of labels and features.
        per_class: Number of training nodes of each class, at most a third of the class.
    """

    name: str
    adjacency: SparseTensor
    features: SparseTensor
    labels: torch.Tensor
    classes: tuple[str, ...]
    links: int
    task: str
    per_class: int = 20

    def to(self, device: torch.device | str) -> Graph:
        """The graph with its tensors on a device."""
        adjacency, features = self.adjacency.to(device), self.features.to(device)
        labels = self.labels.to(device)
        return replace(self, adjacency=adjacency, features=features, labels=labels)


@dataclass(frozen=True)
class Split:
    """Node numbers to train on, to choose the epoch by, and to test on."""

    train: torch.Tensor
    validation: torch.Tensor
    test: torch.Tensor

    def to(self, device: torch.device | str) -> Split:
        """The numbers on a device."""
        return Split(*(part.to(device) for part in (self.train, self.validation, self.test)))


def refusal(
    what: str, then: str = "Check the file.", accepted: str = ACCEPTED
) -> ArgumentValueError:
    """The error for a file that the demo does not take."""
    return ArgumentValueError(f"`--data` {what}; {accepted}. {then}")


def load(path: Path | None = None) -> Graph:
    """Reads a graph.

    Args:
        path: A .npz or .mtx file; by default the Cora graph of the package.

    Returns:
        The graph, symmetrised and with self loops.

    Raises:
        ValueError: The file is missing, is of another kind, or holds no square matrix.
    """
    if path is None:
        return _labelled("Cora", _arrays(resources.files("spgrad.demo") / "cora" / "cora.npz"))
    if path.suffix.lower() not in (".npz", ".mtx"):
        raise refusal(f"is {path}", "Save the graph in one of these.")
    if not path.is_file():
        raise refusal(f"is {path}, which is not a file", "Check the path.")
    if path.suffix.lower() == ".mtx":
        return _bare(path.stem, _read_scipy(path))
    arrays = _arrays(path)
    if arrays.keys() >= MATRIX_KEYS:
        return _bare(path.stem, _read_scipy(path))
    return _labelled(path.stem, arrays)


def _arrays(path: Path | Traversable) -> dict[str, Any]:
    """The arrays of a .npz file that the demo uses; pickled ones are never loaded."""
    import numpy as np

    try:
        with path.open("rb") as file:
            if not zipfile.is_zipfile(file):  # numpy would advise to unpickle it
                raise refusal(f"is {path}, which is no .npz file inside")
            file.seek(0)
            loaded = np.load(file, allow_pickle=False)
            used = {*KEYS, *MATRIX_KEYS, "labels", "class_names"} & set(loaded.files)
            return {key: loaded[key] for key in used}
    except UNREADABLE as error:
        if isinstance(error, SpgradError):
            raise
        raise refusal(f"is {path}, which can't be read ({_first_line(error)})") from error


def _read_scipy(path: Path) -> Any:
    """The matrix in a .mtx file, or a .npz file that SciPy wrote, as a COO array."""
    checks.require_packages("demo", "scipy")
    import scipy.io
    import scipy.sparse

    try:
        if path.suffix.lower() == ".npz":
            S = scipy.sparse.load_npz(path)
            if hasattr(S, "check_format"):  # SciPy converts bad pointers unchecked
                S.check_format()
            return scipy.sparse.coo_array(S)
        return scipy.sparse.coo_array(scipy.io.mmread(path, spmatrix=False))
    except (*UNREADABLE, KeyError, TypeError, OverflowError, NotImplementedError) as error:
        raise refusal(f"is {path}, which can't be read ({_first_line(error)})") from error


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0].rstrip(".")


def _bare(name: str, S: Any) -> Graph:
    """A graph made from a matrix alone, without features and labels of its own.

    Some nodes far from each other are anchors, and the class of a node is its nearest anchor. The
    features are one-hot node numbers, so the class of a node can be told only from its neighbours.
    """
    _require_square(S.shape)
    n = S.shape[0]
    row, col = (torch.from_numpy(c).long() for c in S.coords)
    there = torch.from_numpy(S.data != 0)
    adjacency, links = normalised(row[there], col[there], n)
    labels = nearest_anchor(adjacency, ANCHORS)
    node = torch.arange(n)
    features = from_edges(torch.stack([node, node]), size=n)
    classes = tuple(f"region {i + 1}" for i in range(int(labels.max()) + 1))
    task = (
        f"Labels: which of {ANCHORS} nodes far apart is nearest, as the file has none. Features: "
        "which node it is"
    )
    return Graph(name, adjacency, features, labels, classes, links, task, per_class=n)


def nearest_anchor(A: SparseTensor, anchors: int) -> torch.Tensor:
    """For each node the number of the nearest anchor; distances are numbers of links.

    The first anchor is the node with most neighbours; each other one is farthest from those before
    it (Gonzalez, 1985). Nodes that no anchor reaches belong to the last anchor.

    Args:
        A: Adjacency matrix (n, n).
        anchors: Number of anchors.

    Returns:
        int64 (n,), consecutive from 0.
    """
    from scipy.sparse.csgraph import dijkstra

    S = to_scipy(A)
    anchor = int(A.crow_indices().diff().argmax())
    shortest = torch.full((A.shape[0],), torch.inf, dtype=torch.float64)
    nearest = torch.full((A.shape[0],), anchors - 1)
    for number in range(anchors):
        distance = torch.from_numpy(dijkstra(S, unweighted=True, indices=anchor))
        nearest[distance < shortest] = number
        shortest = torch.minimum(shortest, distance)
        anchor = int(shortest.argmax())
    return nearest.unique(return_inverse=True)[1]


def _labelled(name: str, arrays: dict[str, Any]) -> Graph:
    """A graph with features and labels."""
    missing = sorted({*KEYS, "labels"} - arrays.keys())
    if missing:
        raise refusal(f"has no {', '.join(missing)}", "Add what is missing.")
    shape = _shape(arrays["adj_shape"])
    _require_square(shape)
    n, (rows, words) = shape[0], _shape(arrays["attr_shape"])
    raw = arrays["labels"]
    if raw.shape != (n,) or raw.dtype.kind not in "iu" or rows != n:
        raise refusal(
            f"has labels {raw.dtype} {raw.shape} and attr_shape {(rows, words)} for {n} nodes",
            "Give every node a row and a label.",
            "one integer label and one row of features for each node is accepted",
        )
    kinds, labels = torch.from_numpy(raw.astype("int64")).unique(return_inverse=True)
    row, col, entries = _coordinates(arrays, "adj", shape)
    adjacency, links = normalised(row[entries != 0], col[entries != 0], n)
    row, col, entries = _coordinates(arrays, "attr", (rows, words))
    features = from_edges(torch.stack([row, col]), entries, size=(rows, words))
    total = entries.new_zeros(n).index_add(0, row, entries.abs()).clamp_min(1e-12)
    scaled = values(features) / torch.repeat_interleave(total, features.crow_indices().diff())
    names = [str(c) for c in arrays.get("class_names", ())]
    classes = tuple(names[k] if 0 <= k < len(names) else f"class {k}" for k in kinds.tolist())
    task = f"Labels: {len(classes)} classes. Features: {features.nse} of {n} x {words} words"
    return Graph(name, adjacency, from_values(scaled, features), labels, classes, links, task)


def _shape(array: Any) -> tuple[int, int]:
    if array.shape != (2,) or array.dtype.kind not in "iu" or (array < 1).any():
        raise refusal(f"has a shape {array.tolist()}", accepted="two positive sizes are accepted")
    return int(array[0]), int(array[1])


def _coordinates(
    arrays: dict[str, Any], matrix: str, shape: tuple[int, int]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows, columns and float32 values of a CSR matrix, whose rows may be unsorted."""
    data, col, ptr = (arrays[f"{matrix}_{part}"] for part in ("data", "indices", "indptr"))
    numeric = data.dtype.kind in "fiub" and col.dtype.kind in "iu" and ptr.dtype.kind in "iu"
    flat = data.ndim == col.ndim == ptr.ndim == 1 and data.shape == col.shape
    if not numeric or not flat or ptr.shape != (shape[0] + 1,):
        raise refusal(f"has {matrix}_* that are not the parts of a CSR matrix {shape}")
    entries = torch.from_numpy(data.astype("float32"))
    col, ptr = torch.from_numpy(col.astype("int64")), torch.from_numpy(ptr.astype("int64"))
    count = ptr.diff()
    if int(ptr[0]) or int(ptr[-1]) != col.numel() or bool((count < 0).any()):
        raise refusal(f"has {matrix}_indptr that does not rise from 0 to {col.numel()}")
    if col.numel() and not 0 <= int(col.min()) <= int(col.max()) < shape[1]:
        raise refusal(f"has {matrix}_indices outside [0, {shape[1]})")
    if not bool(entries.isfinite().all()):
        raise refusal(f"has infinite or NaN values in {matrix}_data")
    return torch.repeat_interleave(count), col, entries


def _require_square(shape: tuple[int, ...]) -> None:
    if len(shape) != 2 or shape[0] != shape[1] or shape[0] < 1:
        raise refusal(
            f"holds a matrix of shape {tuple(shape)}",
            "Give the adjacency matrix of a graph.",
            "a square matrix is accepted",
        )


def normalised(row: torch.Tensor, col: torch.Tensor, n: int) -> tuple[SparseTensor, int]:
    """D^-1/2 (A + I) D^-1/2 of the graph with these links, and their number (Kipf, Welling 2017).

    Args:
        row: Where the links start, int64 (links,).
        col: Where they end. Direction, repetition and links of a node to itself don't matter.
        n: Number of nodes.

    Returns:
        CSR SparseTensor (n, n), symmetric, and the number of links between two nodes.
    """
    node = torch.arange(n)
    edges = torch.stack([torch.cat([row, col, node]), torch.cat([col, row, node])])
    A = from_edges(edges, size=n)
    degree = A.crow_indices().diff()
    weight = torch.repeat_interleave(degree.rsqrt(), degree) * degree.rsqrt()[A.col_indices()]
    return from_values(weight, A), (A.nse - n) // 2


def split(graph: Graph, seed: int) -> Split:
    """A random split: 20 nodes of each class to train, 500 for validation, 1000 to test.

    At most a third of a class is for training. If fewer than 1500 nodes remain, a third of them is
    for validation and the others are for the test.

    Args:
        graph: The graph whose nodes are split.
        seed: Seed of the random split.

    Returns:
        Three disjoint sets of node numbers.

    Raises:
        ValueError: There are too few nodes for three sets.
    """
    labels = graph.labels
    order = torch.randperm(labels.numel(), generator=torch.Generator().manual_seed(seed))
    chosen = torch.zeros(labels.numel(), dtype=torch.bool)
    for kind in range(int(labels.max()) + 1):
        members = order[labels[order] == kind]
        chosen[members[: min(graph.per_class, max(1, members.numel() // 3))]] = True
    rest = order[~chosen[order]]
    held = min(500, rest.numel() // 3)
    if held == 0 or int(labels.max()) == 0:
        raise refusal(
            f"has {labels.numel()} nodes in {int(labels.max()) + 1} classes",
            "Give a larger graph.",
            "a graph with two or more classes of at least three nodes is accepted",
        )
    return Split(order[chosen[order]], rest[:held], rest[held : held + 1000])
