"""Pictures: each element is where it should be, whatever the layout, size and values."""

import sys

import matplotlib as mpl
import numpy as np
import pytest
import torch

import spgrad
import spgrad.plot
from spgrad import support, testing
from spgrad.core.pattern import LAYOUTS
from spgrad.plot import elements

mpl.use("Agg")

from matplotlib.figure import Figure


@pytest.fixture
def ax():
    return Figure(layout="constrained").subplots()


def shown(ax):
    """The rows, columns and colours of the picture's first image or points."""
    ax.figure.canvas.draw()
    if ax.images:
        plane = ax.images[0].get_array()
        row, col = np.nonzero(~np.ma.getmaskarray(plane))
        return row, col, plane.data[row, col]
    (dots,) = ax.collections
    col, row = dots.get_offsets().T
    return row, col, dots.get_array()


@pytest.mark.parametrize("name", support.ALL)
@pytest.mark.parametrize("cells", [elements.CELLS, 0])
def test_elements_are_where_they_are(name, cells, ax, monkeypatch):
    monkeypatch.setattr(elements, "CELLS", cells)
    A = testing.random_sparse((6, 8), LAYOUTS[name], coalesced=name != "coo").requires_grad_()
    assert spgrad.plot.spy(A, ax) is ax
    row, col, level = shown(ax)
    dense = A.detach().to_dense().numpy()
    drawn = np.zeros_like(dense)
    drawn[row.astype(int), col.astype(int)] = level
    assert np.array_equal(drawn, dense)
    assert ax.get_xlim() == (-0.5, 7.5)
    assert ax.get_ylim() == (5.5, -0.5)
    assert ax.get_xlabel().startswith(f"{row.size} elem")
    assert ax.get_title(loc="left") == f"{name.upper()} 6 × 8"


@pytest.mark.parametrize("zoo", testing.ZOO)
@pytest.mark.parametrize("way", ["cells", "points", "density"])
def test_the_zoo_is_drawn(zoo, way, ax, monkeypatch):
    x = testing.ZOO[zoo]()
    if way != "cells":
        monkeypatch.setattr(elements, "CELLS", 1)
    if way == "density":
        monkeypatch.setattr(elements, "MOST_POINTS", 0)
    spgrad.plot.spy(spgrad.from_dense(x), ax)
    if x.any():
        assert shown(ax)[0].size == (x != 0).sum()


def test_density(ax, monkeypatch):
    """Every element counts once, in the place it is in."""
    monkeypatch.setattr(elements, "MOST_POINTS", 100)
    monkeypatch.setattr(elements, "BINS", 10)
    A = testing.random_sparse((450, 900), density=0.01)
    spgrad.plot.spy(A, ax)
    count = ax.images[0].get_array().filled(0)
    assert count.shape == (5, 10)
    assert np.array_equal(count, (A.to_dense() != 0).view(5, 90, 10, 90).sum((1, 3)).numpy())
    assert len(ax.figure.axes) == 2


def test_hybrid_shows_norms(ax):
    A = testing.random_sparse((4, 5, 3), dense_dim=1)
    spgrad.plot.spy(A, ax)
    row, col, level = shown(ax)
    norms = A.to_dense().norm(dim=-1).numpy()
    assert np.allclose(norms[row, col], level)
    assert ax.figure.axes[1].get_ylabel() == "norm"


def test_complex_shows_magnitudes(ax):
    A = testing.random_sparse((4, 5), dtype=torch.complex64)
    spgrad.plot.spy(A, ax)
    row, col, level = shown(ax)
    assert np.allclose(A.to_dense().abs().numpy()[row, col], level)


@pytest.mark.parametrize("shape", [(5, 3, 4), (2, 3, 3, 4)])
@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_coo])
def test_batches_stand_side_by_side(shape, layout, ax):
    A = testing.random_sparse(shape, layout)
    spgrad.plot.spy(A, ax)
    row, col, level = shown(ax)
    items = A.to_dense().flatten(0, -3)
    across = {5: 2, 6: 3}[len(items)]
    sheet = np.zeros((-(-len(items) // across) * 4 - 1, across * 5 - 1))
    for i, item in enumerate(items):
        top, left = i // across * 4, i % across * 5
        sheet[top : top + 3, left : left + 4] = item
    drawn = np.zeros_like(sheet)
    drawn[row, col] = level
    assert np.array_equal(drawn, sheet)
    (frames,) = ax.collections
    assert len(frames.get_paths()) == len(items)


def test_long_batches_are_cut(ax):
    spgrad.plot.spy(testing.random_sparse((100, 2, 2)), ax)
    assert ax.get_xlabel().endswith("; 64 of 100 items drawn")


@pytest.mark.parametrize("shape", [(), (5,), (0, 4), (4, 0), (0, 3, 4), (3, 0, 4)])
def test_other_shapes(shape, ax):
    A = testing.random_sparse(shape, torch.sparse_coo, density=1.1)
    spgrad.plot.spy(A, ax)
    ax.figure.canvas.draw()
    assert str(A.pattern.nse) in ax.get_xlabel()


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.int64, torch.uint8, torch.bfloat16, torch.float16]
)
def test_dtypes(dtype, ax):
    A = testing.random_sparse((4, 5)).mul(4).to(dtype)
    spgrad.plot.spy(A, ax)
    assert shown(ax)[0].size == A.nse


@pytest.mark.parametrize("cells", [elements.CELLS, 0])
def test_values_that_are_not_finite(cells, ax, monkeypatch):
    monkeypatch.setattr(elements, "CELLS", cells)
    x = torch.tensor([[1.0, torch.nan], [torch.inf, 2.0]])
    spgrad.plot.spy(spgrad.from_dense(x), ax, cmap="viridis")
    ax.figure.canvas.draw()
    assert ax.get_xlabel() == "4 elements, density 100%; 2 not finite"


def test_all_alike_has_no_bar(ax):
    spgrad.plot.spy(spgrad.eye(4), ax)
    assert len(ax.figure.axes) == 1


@pytest.mark.parametrize(
    ("values", "norm"),
    [
        ([1.0, 2.0, 3.0], "Normalize"),
        ([-1.0, 2.0, 3.0], "Normalize"),
        ([1.0, 2.0, 1e6], "LogNorm"),
        ([-1.0, 2.0, 1e6], "SymLogNorm"),
        ([0.0, 2.0, 1e6], "Normalize"),
    ],
)
def test_scales(values, norm, ax):
    A = spgrad.sparse_csr_tensor([0, 1, 2, 3], [0, 1, 2], values, (3, 3))
    spgrad.plot.spy(A, ax)
    assert type(ax.images[0].norm).__name__ == norm
    assert len(ax.figure.axes) == 2


def test_options(ax):
    A = testing.random_sparse((4, 5))
    spgrad.plot.spy(A, ax, cmap="magma", colorbar=False, title="A matrix")
    assert ax.images[0].get_cmap().name == "magma"
    assert len(ax.figure.axes) == 1
    assert ax.get_title(loc="left") == "A matrix"


def test_a_figure_of_its_own():
    from matplotlib import pyplot as plt

    ax = spgrad.plot.spy(torch.eye(3).to_sparse_csr())
    assert ax.figure.number in plt.get_fignums()
    plt.close(ax.figure)


def test_memory_does_not_grow_with_the_shape(ax):
    A = spgrad.sparse_coo_tensor([[0, 2**40], [5, 2**20]], [1.0, 2.0], (2**41, 2**21))
    spgrad.plot.spy(A, ax)
    assert shown(ax)[0].tolist() == [0, 2**40]


def test_refusals(ax, monkeypatch):
    with pytest.raises(TypeError, match=r"spgrad\.plot\.spy: `A` is a dense tensor"):
        spgrad.plot.spy(torch.eye(2), ax)
    with pytest.raises(TypeError, match=r"`ax` is a Figure; matplotlib Axes"):
        spgrad.plot.spy(spgrad.eye(2), ax.figure)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"matplotlib is not installed.*spgrad\[plot\]"):
        spgrad.plot.spy(spgrad.eye(2))
