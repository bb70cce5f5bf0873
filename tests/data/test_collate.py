"""Mini-batches: batches of one shape, blocks of one matrix, and data loaders."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from samples import made
from torch.utils.data import DataLoader, Dataset, default_collate

import spgrad
from spgrad import support, testing
from spgrad.torch_protocol.processes import loading

SHAPES = [(4, 6), (2, 2), (6, 4)]
layouts = pytest.mark.parametrize("layout", support.ALL)


def matrices(layout, **options):
    return [made(layout, shape, seed=i, **options) for i, shape in enumerate(SHAPES)]


@layouts
def test_default_collate_makes_a_batch(layout):
    samples = [{"A": made(layout, seed=i), "y": i} for i in range(3)]
    batch = default_collate(samples)
    assert batch["A"].layout == samples[0]["A"].layout
    wanted = torch.stack([s["A"].to_dense() for s in samples])
    assert torch.equal(batch["A"].to_dense(), wanted)
    assert batch["y"].tolist() == [0, 1, 2]


def test_default_collate_refuses_other_shapes_and_kinds():
    with pytest.raises(ValueError, match=r"`batch\[1\]` has shape \(2, 2\) .*data\.collate"):
        default_collate(matrices("csr"))
    with pytest.raises(TypeError, match="is a dense tensor"):
        default_collate([made(), torch.ones(4, 6)])


@layouts
def test_blocks_and_back(layout):
    given = matrices(layout)
    blocks = spgrad.data.collate(given)
    assert torch.equal(blocks.matrix.to_dense(), torch.block_diag(*(A.to_dense() for A in given)))
    assert blocks.matrix.layout == given[0].layout
    assert blocks.batch.tolist() == [0] * 4 + [1] * 2 + [2] * 6
    assert blocks.sizes.tolist() == [list(shape) for shape in SHAPES]
    parts = spgrad.data.uncollate(blocks.matrix, blocks.sizes)
    for part, A in zip(parts, given, strict=True):
        assert part.layout == A.layout
        assert torch.equal(part.to_dense(), A.to_dense())


@layouts
def test_gradients(layout):
    given = matrices(layout)

    def through(*values):
        pairs = zip(values, given, strict=True)
        blocks = spgrad.data.collate([spgrad.from_values(v, A) for v, A in pairs])
        parts = spgrad.data.uncollate(blocks.matrix * blocks.matrix, blocks.sizes)
        return tuple(part.to_dense() for part in parts)

    values = [A.values().clone().requires_grad_() for A in given]
    assert torch.autograd.gradcheck(through, values)
    assert torch.autograd.gradgradcheck(through, values)


def test_structures():
    graphs = matrices("csr", dtype=torch.complex128)
    samples = [
        {"g": (A, torch.full((m, 2), float(i))), "y": i, "z": np.ones(m), "name": str(i)}
        for i, (A, (m, _)) in enumerate(zip(graphs, SHAPES, strict=True))
    ]
    out = spgrad.data.collate(samples)
    blocks, x = out["g"]
    assert blocks.matrix.dtype == torch.complex128
    assert torch.equal(x[:, 0].long(), blocks.batch)
    assert out["y"].tolist() == [0, 1, 2]
    assert out["z"].shape == (12,)
    assert out["name"] == ["0", "1", "2"]
    scalars = spgrad.data.collate([(A, torch.tensor(1.0)) for A in graphs])[1]
    assert scalars.shape == (3,)


def test_blocks_without_elements_or_rows():
    given = [spgrad.zeros(m, 3, layout=torch.sparse_csr) for m in (0, 2, 0)]
    blocks = spgrad.data.collate(given)
    assert blocks.batch.tolist() == [1, 1]
    parts = spgrad.data.uncollate(blocks.matrix, blocks.sizes)
    assert [tuple(part.shape) for part in parts] == [(0, 3), (2, 3), (0, 3)]


def test_matrices_that_are_not_made_of_the_blocks_of_the_first():
    # one block of the whole would reach from the second matrix into the third
    given = [
        spgrad.from_dense(torch.ones(2, 2), torch.sparse_bsr, blocksize=(2, 1)),
        spgrad.from_dense(torch.ones(1, 1)),
        spgrad.from_dense(torch.ones(3, 2)),
    ]
    blocks = spgrad.data.collate(given)
    assert blocks.matrix.layout == torch.sparse_coo
    assert blocks.matrix.nse == 11
    parts = spgrad.data.uncollate(blocks.matrix, blocks.sizes)
    for part, A in zip(parts, given, strict=True):
        assert torch.equal(part.to_dense(), A.to_dense())
    padded = blocks.matrix.to_sparse_bsr((2, 1))
    with pytest.raises(ValueError, match="`matrix` has 3 of 14 elements outside of the blocks"):
        spgrad.data.uncollate(padded, blocks.sizes)


def test_moving_blocks():
    blocks = spgrad.data.collate(matrices("csr"))
    assert blocks.to(torch.float32).matrix.dtype == torch.float32
    moved = blocks.to("meta")
    assert {t.device.type for t in moved} == {"meta"}


REFUSED = {
    "a tensor": (lambda: spgrad.data.collate(made()), TypeError, r"`samples` is .*list of samples"),
    "nothing": (lambda: spgrad.data.collate([]), ValueError, "`samples` is empty"),
    "a batch": (lambda: spgrad.data.collate([made(shape=(2, 3, 4))]), ValueError, "a matrix"),
    "mixed": (
        lambda: spgrad.data.collate([torch.ones(2), made()]),
        TypeError,
        r"`samples\[1\]` has a csr tensor",
    ),
    "another number of features": (
        lambda: spgrad.data.collate([(made(), torch.ones(4, 2)), (made(), torch.ones(4, 3))]),
        ValueError,
        r"`samples\[1\]` has a tensor of shape \(4, 3\) on cpu where the first has \(4, 2\)",
    ),
    "a vector and a matrix": (
        lambda: spgrad.data.collate([torch.ones(2), torch.ones(2, 3)]),
        ValueError,
        r"`samples\[1\]` has a tensor of shape \(2, 3\)",
    ),
    "features elsewhere": (
        lambda: spgrad.data.collate([torch.ones(2), torch.ones(2, device="meta")]),
        ValueError,
        "on meta where the first has .* on cpu",
    ),
    "a number beside a tensor": (
        lambda: spgrad.data.collate([torch.ones(2), 1]),
        TypeError,
        r"`samples\[1\]` has an int where",
    ),
    "a tensor beside a number": (
        lambda: spgrad.data.collate([(made(), 1), (made(), torch.ones(2))]),
        TypeError,
        r"^spgrad\.data\.collate: `samples` has parts that cannot be joined",
    ),
    "None": (
        lambda: spgrad.data.collate([(made(), None), (made(), None)]),
        TypeError,
        r"^spgrad\.data\.collate: `samples` has parts that cannot be joined",
    ),
    "other keys": (
        lambda: spgrad.data.collate([{"a": made()}, {"b": made()}]),
        TypeError,
        r"^spgrad\.data\.collate: `samples` has parts that cannot be joined",
    ),
    "dense": (
        lambda: spgrad.data.uncollate(torch.eye(2), torch.tensor([[2, 2]])),
        TypeError,
        "`matrix` is a dense tensor",
    ),
    "no sizes": (lambda: spgrad.data.uncollate(made(), [4, 6]), TypeError, "`sizes` is a list"),
    "sizes of floats": (
        lambda: spgrad.data.uncollate(made(), torch.tensor([[4.0, 6.0]])),
        TypeError,
        "`sizes` is .*; an integer tensor",
    ),
    "sizes of another rank": (
        lambda: spgrad.data.uncollate(made(), torch.tensor([4, 6])),
        ValueError,
        r"`matrix` has shape \(4, 6\) and `sizes` \(2,\)",
    ),
    "other sizes": (
        lambda: spgrad.data.uncollate(made(), torch.tensor([[4, 4]])),
        ValueError,
        r"adds up to \(4, 4\)",
    ),
    "elements outside": (
        lambda: spgrad.data.uncollate(made(density=1.0), torch.tensor([[2, 3], [2, 3]])),
        ValueError,
        "has 12 of 24 elements outside",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    call, kind, text = REFUSED[case]
    with pytest.raises(kind, match=text):
        call()


class Graphs(Dataset):
    """Graphs of `size` nodes, or of several sizes, with features and a label."""

    def __init__(self, size=None):
        self.size = size

    def __len__(self):
        return 4

    def __getitem__(self, i):
        m = self.size or i + 2
        return made("csr", (m, m), seed=i), torch.full((m, 2), float(i)), i


@pytest.mark.parametrize("context", [None, "fork", "spawn"])
def test_data_loaders(context):
    """Without workers, and with workers by both ways to start them."""
    workers = {"num_workers": 1, "multiprocessing_context": context} if context else {}
    loader = DataLoader(Graphs(3), batch_size=2, **workers)
    for b, (A, x, y) in enumerate(loader):
        assert A.shape == (2, 3, 3)
        assert A.is_shared() == bool(context)
        assert y.tolist() == [2 * b, 2 * b + 1]
        wanted = [made("csr", (3, 3), seed=2 * b + i).to_dense() for i in range(2)]
        testing.assert_close(A.to_dense(), torch.stack(wanted))
        assert x.shape == (2, 3, 2)
    if context == "spawn":
        return
    for blocks, x, _ in DataLoader(Graphs(), 4, collate_fn=spgrad.data.collate, **workers):
        assert blocks.matrix.shape == (14, 14)
        assert torch.equal(x[:, 0].long(), blocks.batch)


def test_page_locked_memory():
    """Where no accelerator is there, as of dense tensors."""
    A = made()
    assert not A.is_pinned()
    if not torch.accelerator.is_available():
        with pytest.raises(RuntimeError, match="accelerator"):
            A.pin_memory()
        return
    pinned = A.pin_memory()
    assert pinned.is_pinned()
    assert torch.equal(pinned.to_dense(), A.to_dense())


def test_page_locked_memory_has_values_and_indices(monkeypatch):
    """With a copy in place of torch's own call, which needs an accelerator."""
    called = []

    def pin(t, device):
        called.append(device)
        return t.clone()

    functions = SimpleNamespace(_pin_memory=SimpleNamespace(default=pin))
    monkeypatch.setattr(loading, "_aten", functions)
    for A in (made(), made("coo"), made("bsr")):
        called.clear()
        pinned = loading._pin_memory(A, "cuda")
        assert pinned.pattern is not A.pattern
        assert pinned.layout == A.layout
        assert torch.equal(pinned.to_dense(), A.to_dense())
        assert called == ["cuda"] * (1 + len(A.pattern.indices))


def test_shared_memory_and_moves():
    A = made().share_memory_()
    assert A.is_shared()
    assert copy.copy(A).is_shared()
    moved = A.to("cpu", torch.float32, non_blocking=True)
    assert moved.pattern is A.pattern
