"""Pictures of degrees, of blocks and of two orders."""

import itertools

import pytest
import torch

import spgrad
import spgrad.plot
from spgrad import support, testing
from spgrad.core.pattern import LAYOUTS

pytest.importorskip("matplotlib")
from matplotlib.figure import Figure


@pytest.fixture
def ax():
    return Figure().subplots()


@pytest.mark.parametrize("layout", support.ALL)
@pytest.mark.parametrize("dim", [0, 1])
def test_bars_of_degrees(layout, dim, ax):
    A = testing.random_sparse((8, 6), LAYOUTS[layout])
    assert spgrad.plot.degrees(A, ax, dim=dim) is ax
    counts = testing.mask_of(A.pattern).sum(dim)
    drawn = {round(bar.get_center()[0]): bar.get_height() for bar in ax.patches}
    assert drawn == {int(n): int((counts == n).sum()) for n in counts.unique()}
    assert ax.get_ylabel() == ("rows" if dim else "columns")


def test_degrees_of_far_more_rows_than_elements(ax):
    """Takes memory for the elements, not for 10^12 rows."""
    indices = torch.tensor([[0, 5, 5, 10**12 - 1], [1, 2, 3, 0]])
    spgrad.plot.degrees(spgrad.sparse_coo_tensor(indices, torch.ones(4), (10**12, 4)), ax)
    assert [bar.get_height() for bar in ax.patches] == [10**12 - 3, 2, 1]
    assert ax.get_xlabel() == "elements in a row: 0 to 2, 4e-12 on average"


def test_many_degrees_are_points(ax):
    x = torch.ones(100, 100).tril(-1)
    spgrad.plot.degrees(spgrad.from_dense(x), ax)
    assert ax.get_xscale() == ax.get_yscale() == "log"
    assert "0 to 99" in ax.get_xlabel()
    assert "1 without any" in ax.get_xlabel()


def test_blocks(ax):
    A = spgrad.eye(5)
    spgrad.plot.blocks(A, ax, blocksize=(2, 3))
    (image,) = ax.images
    assert image.get_array().shape == (3, 2)
    assert image.get_array()[0, 0] == pytest.approx(2 / 6)
    assert image.get_array().mask.tolist() == [[False, True], [False, False], [True, False]]
    assert ax.get_xlabel() == "4 of 6 blocks have elements"


def test_the_blocks_of_bsr_count_what_is_not_zero(ax):
    A = spgrad.eye(4).to_sparse_bsr((2, 2))
    spgrad.plot.blocks(A, ax, colorbar=False, title="T")
    assert ax.images[0].get_array().max() == 0.5
    assert ax.get_title("left") == "T"
    assert len(ax.figure.axes) == 1


@pytest.mark.parametrize("A", [spgrad.zeros(4, 4), spgrad.eye(4)])
def test_blocks_have_whole_numbers(A, ax):
    spgrad.plot.blocks(A, ax, blocksize=(1, 1))
    for axis in (ax.xaxis, ax.yaxis):
        assert all(tick == int(tick) for tick in axis.get_ticklocs())


def test_large_matrices_have_larger_blocks(ax):
    spgrad.plot.blocks(spgrad.eye(5000), ax, blocksize=(1, 1))
    assert max(ax.images[0].get_array().shape) <= 512


def test_blocks_with_more_elements_than_int64_counts(ax):
    A = spgrad.sparse_coo_tensor([[2**40], [1]], [1.0], (2**41, 2))
    spgrad.plot.blocks(A, ax)
    assert ax.images[0].get_array().max() == 2.0**-70
    assert ax.get_xlabel() == "1 of 64 blocks have elements"


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0), (2, 2)])
def test_nothing_to_draw(shape, ax):
    A = spgrad.zeros(*shape)
    spgrad.plot.degrees(A, ax)
    spgrad.plot.blocks(A, Figure().subplots())
    if shape[0] == shape[1]:
        spgrad.plot.reordered(A, ax=Figure().subplots(1, 2))


WITH_TICKS = {
    "degrees": lambda ax: spgrad.plot.degrees(spgrad.zeros(5, 7), ax),
    "bars": lambda ax: spgrad.plot.degrees(spgrad.from_dense(torch.ones(30, 30).tril()), ax),
    "blocks": lambda ax: spgrad.plot.blocks(spgrad.eye(19), ax, blocksize=(1, 1)),
    "elements": lambda ax: spgrad.plot.spy(spgrad.eye(19), ax),
}


@pytest.mark.parametrize("name", WITH_TICKS)
def test_ticks_stand_at_whole_numbers(name, ax):
    WITH_TICKS[name](ax)
    for ticks in (ax.get_xticks(), ax.get_yticks()):
        assert len(ticks)
        assert all(tick == round(tick) for tick in ticks)


def test_large_numbers_are_short(ax):
    indices = torch.tensor([[0, 2_999_999], [0, 1_999_999]])
    A = spgrad.sparse_coo_tensor(indices, torch.ones(2), (3_000_000, 2_000_000))
    spgrad.plot.spy(A, ax)
    ax.figure.canvas.draw()
    assert ax.xaxis.get_offset_text().get_text() == ""  # it stood over the caption
    assert any(label.get_text().endswith(" M") for label in ax.get_xticklabels())


def test_two_orders():
    n = torch.randperm(50)
    A = spgrad.banded(50, 1)[n][:, n].requires_grad_()
    left, right = spgrad.plot.reordered(A, ax=Figure().subplots(1, 2), colorbar=False)
    assert left.get_title("left").startswith("Given, bandwidth")
    assert right.get_title("left") == "Reordered, bandwidth 1"
    order = torch.arange(50)
    _, right = spgrad.plot.reordered(A, order, Figure().subplots(1, 2))
    assert right.get_title("left").split()[-1] == left.get_title("left").split()[-1]


def test_figures_of_pyplot():
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    assert len(spgrad.plot.reordered(spgrad.eye(3))) == 2
    assert spgrad.plot.degrees(spgrad.eye(3)).figure is plt.gcf()
    plt.close("all")


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda ax: spgrad.plot.degrees(torch.eye(2), ax), "plot.degrees: `A` is a dense tensor"),
        (lambda ax: spgrad.plot.degrees(spgrad.eye(2), 3), "`ax` is an int"),
        (lambda ax: spgrad.plot.degrees(spgrad.eye(2), ax, dim=2), "`dim` is 2"),
        (lambda ax: spgrad.plot.blocks(spgrad.eye(2), ax, blocksize=(0, 1)), "`blocksize` is (0"),
        (lambda ax: spgrad.plot.blocks(spgrad.zeros(1, 2, 2), ax), "one matrix of a batch"),
        (lambda ax: spgrad.plot.reordered(spgrad.eye(2), ax=ax), "two matplotlib Axes"),
        (lambda ax: spgrad.plot.reordered(spgrad.eye(2), ax=[ax, ax], title="T"), "`title` is"),
        (lambda ax: spgrad.plot.reordered(spgrad.zeros(2, 3), ax=[ax, ax]), "a square matrix"),
    ],
)
def test_refusals(call, text, ax):
    with pytest.raises(spgrad.SpgradError) as raised:
        call(ax)
    assert text in str(raised.value)


def texts(ax):
    """The boxes of title, caption and, of a colour bar, label, in pixels."""
    written = [ax.title, ax._left_title, ax.xaxis.label, ax.yaxis.label]
    return [text.get_window_extent() for text in written if text.get_text()]


def test_texts_of_narrow_pictures_do_not_overlap():
    figure = Figure(figsize=(5.5, 4.5), layout="constrained")
    two = (spgrad.plot.blocks, spgrad.plot.spy)
    wide, square = spgrad.rand(30, 200, density=0.05), spgrad.rand(200, 200, density=0.03)
    pairs = zip(figure.subplots(2, 2).flat, (wide, square, square, wide), strict=True)
    for (ax, A), draw in zip(pairs, two * 2, strict=True):
        draw(A, ax)
    figure.draw_without_rendering()
    boxes = [box for ax in figure.axes for box in texts(ax)]
    assert len(boxes) == 12
    for i, box in enumerate(boxes):
        assert not [other for other in boxes[:i] if box.overlaps(other)], box


@pytest.mark.parametrize("shape", [(200, 200), (30, 200)])
def test_the_colour_bar_is_about_as_high_as_the_picture(shape):
    figure = Figure(figsize=(6, 6), layout="constrained")
    ax = figure.subplots()
    spgrad.plot.blocks(spgrad.rand(*shape, density=0.05), ax)
    figure.draw_without_rendering()
    picture, bar = (each.get_window_extent().height for each in figure.axes)
    assert 0.6 * picture < bar < 1.2 * picture


def test_a_flat_picture_has_fewer_ticks():
    figure = Figure(figsize=(4, 4), layout="constrained")
    ax = figure.subplots()
    spgrad.plot.spy(spgrad.rand(30, 200, density=0.05), ax)
    figure.draw_without_rendering()
    labels = [label.get_window_extent() for label in ax.get_yticklabels() if label.get_text()]
    inside = [box for box in labels if 0 <= (box.y0 + box.y1) / 2 - ax.bbox.y0 <= ax.bbox.height]
    assert inside
    assert not any(a.overlaps(b) for a, b in itertools.pairwise(inside))
