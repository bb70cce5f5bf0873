"""`info` prints what the dense matrix has."""

import sys

import pytest
import torch

import spgrad
import spgrad.io
from spgrad import cli, info, kernels, support, testing
from spgrad.core.pattern import LAYOUTS


def saved(A, path):
    spgrad.io.save(A, path)
    return str(path)


@pytest.mark.parametrize("name", support.ALL)
@pytest.mark.parametrize("shape", [(6, 8), (8, 6), (3, 6, 6)])
def test_structure(name, shape):
    A = testing.random_sparse(shape, LAYOUTS[name], coalesced=name != "coo", density=0.2)
    dense = testing.mask_of(A.coalesce().pattern if name == "coo" else A.pattern)
    M = info.matrix(A)
    lengths = dense.sum(-1).flatten().sort().values
    found = info.row_lengths(M)
    n = lengths.numel()
    assert found.least == lengths[0]
    assert found.most == lengths[-1]
    assert found.empty == (lengths == 0).sum()
    assert found.quartiles == tuple(int(lengths[(n - 1) * q // 4]) for q in (1, 2, 3))
    row, col = dense.nonzero().t()[-2:]
    assert info.bandwidth(M) == (max((row - col).max(), 0), max((col - row).max(), 0))
    if shape[-1] == shape[-2]:
        off = dense & ~torch.eye(6, dtype=torch.bool)
        share = float((off & off.mT).sum() / off.sum())
        assert info.symmetry(M).partners == pytest.approx(share)


@pytest.mark.parametrize(
    ("dense", "values"),
    [
        ([[1.0, 2.0], [2.0, 0.0]], "symmetric"),
        ([[0.0, 2.0], [-2.0, 0.0]], "skew-symmetric"),
        ([[1.0, 2.0], [3.0, 0.0]], "neither"),
        ([[1.0, 2 + 1j], [2 - 1j, 0.0]], "hermitian"),
        ([[1.0, 2 + 1j], [3 - 1j, 0.0]], "neither"),
        ([[1.0, 2 + 1j], [2 + 1j, 0.0]], "symmetric"),
        ([[0.0, 2 + 1j], [-2 - 1j, 0.0]], "skew-symmetric"),
        ([[0.0, 0.0], [0.0, 0.0]], "symmetric"),
        ([[True, True], [True, False]], "symmetric"),
    ],
)
@pytest.mark.parametrize("batch", [False, True])
def test_symmetry(dense, values, batch):
    x = torch.tensor(dense)
    A = spgrad.from_dense(torch.stack([x, x]) if batch else x)
    assert info.symmetry(info.matrix(A)) == (1.0, values)


def test_a_pattern_without_partners():
    A = spgrad.from_dense(torch.tensor([[1.0, 2.0, 3.0], [2.0, 0.0, 0.0], [0.0, 0.0, 0.0]]))
    assert info.symmetry(info.matrix(A)) == (pytest.approx(2 / 3), "neither")
    assert "symmetry   66.6 % of the off-diagonal elements have a partner" in info.report(A)


@pytest.mark.parametrize("name", support.ALL)
@pytest.mark.parametrize("shape", [(8, 12), (3, 8, 12)])
def test_memory_is_what_each_layout_takes(name, shape):
    A = testing.random_sparse(shape, LAYOUTS[name], dtype=torch.float32)
    sizes = dict(info.memory(info.matrix(A), A.pattern, A.element_size()))
    for words, size in sizes.items():
        kind, *rest = words.split(",")[0].split(" ", 1)
        options = {"blocksize": tuple(map(int, rest[0].split(" × ")))} if rest else {}
        B = A.to_sparse(layout=LAYOUTS[kind], **options)
        taken = [B._vals, *B.pattern.indices]
        assert size == sum(t.numel() * t.element_size() for t in taken), words
    assert {words.split()[0] for words in sizes} == set(support.ALL)


@pytest.mark.parametrize("shape", [(3, 4), (4, 3), (5, 7), (0, 4)])
def test_memory_of_blocks_that_do_not_divide_the_matrix_is_not_shown(shape):
    A = spgrad.zeros(*shape).to_sparse_csr()
    sizes = dict(info.memory(info.matrix(A), A.pattern, A.element_size()))
    assert {words.split()[0] for words in sizes} == {"coo", "csr", "csc"}


def test_memory_shows_the_blocks_that_take_least():
    for side in (2, 3, 4, 8, 16):
        A = spgrad.kron(spgrad.eye(5), spgrad.from_dense(torch.ones(side, side))).to_sparse_csr()
        sizes = dict(info.memory(info.matrix(A), A.pattern, A.element_size()))
        assert any(words.startswith(f"bsr {side} × {side}, 100 %") for words in sizes)


@pytest.mark.parametrize("shape", [(0, 4), (2, 0, 4), (0, 2, 4)])
def test_lengths_of_no_rows(shape):
    A = testing.random_sparse(shape, torch.sparse_coo)
    assert info.row_lengths(info.matrix(A)) == info.Lengths(0, (0, 0, 0), 0, 0, 0)


def test_drawing_of_dots():
    lines = info.drawing(info.matrix(spgrad.eye(8)))
    assert lines == ["⠑⢄⠀⠀", "⠀⠀⠑⢄"]
    assert info.drawing(info.matrix(spgrad.sparse_coo_tensor((0, 4)))) == []
    assert info.drawing(info.matrix(spgrad.sparse_coo_tensor((4, 2)))) == ["⠀"]
    full = spgrad.from_dense(torch.ones(4, 4))  # crowded, but each element has a dot
    assert info.drawing(info.matrix(full)) == ["⣿⣿"]


def test_drawing_of_shades():
    crowded = torch.ones(200, 200)
    crowded[:100, 100:] = 0
    crowded[:100, 100:].fill_diagonal_(1)
    lines = info.drawing(info.matrix(spgrad.from_dense(crowded)), width=10)
    assert len(lines) == 5  # a character is twice as high as wide
    assert lines[0] == "█████░░   "
    assert lines[-1] == "█" * 10
    plain = info.drawing(info.matrix(spgrad.from_dense(crowded)), width=10, plain=True)
    assert plain[0] == "@@@@@..   "
    for shape in ((170, 200), (200, 150)):
        full = info.matrix(spgrad.from_dense(torch.ones(shape)))
        for lines in (info.drawing(full, width=10), info.drawing(full, width=10, plain=True)):
            assert (len(lines), len(lines[0])) == (5, 10 if shape[1] == 200 else 8)


@pytest.mark.parametrize("shape", [(1, 1000), (1000, 1), (3, 5), (96, 96), (97, 500)])
@pytest.mark.parametrize("plain", [False, True])
def test_drawings_fit_and_show_every_corner(shape, plain):
    m, k = shape
    A = spgrad.sparse_coo_tensor([[0, m - 1], [0, k - 1]], [1.0, 1.0], shape)
    lines = info.drawing(info.matrix(A), plain=plain)
    blank = " ⠀"
    assert 1 <= len(lines) <= info.WIDTH // 2
    assert len({len(line) for line in lines}) == 1
    assert len(lines[0]) <= info.WIDTH
    assert lines[0][0] not in blank
    assert lines[-1][-1] not in blank


@pytest.mark.parametrize("name", support.ALL)
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bool, torch.int64, torch.complex64, torch.bfloat16]
)
def test_reports(name, dtype):
    for A in (
        testing.random_sparse((2, 4, 6), LAYOUTS[name], dtype=torch.float32).to(dtype),
        testing.random_sparse((4, 4), LAYOUTS[name], density=0).to(dtype),
    ):
        report = info.report(A)
        for word in ("shape", "layout", "nse", "density", "rows", "bandwidth", "memory"):
            assert report.count(f"\n{word}") == 1
        assert info.report(A, plain=True).isascii()


@pytest.mark.parametrize("shape", [(), (5,), (0, 4), (4, 0), (0, 2, 3)])
def test_reports_of_other_shapes(shape):
    A = testing.random_sparse(shape, torch.sparse_coo, density=1.1)
    assert "\nnse" in info.report(A)


def test_a_report_of_vectors_has_no_rows():
    """Each element of one sparse dimension is a dense vector; there is no matrix to describe."""
    report = info.report(testing.random_sparse((5, 3), torch.sparse_coo, dense_dim=1))
    assert "\nnse" in report
    assert "\nrows" not in report
    assert "\nmemory" not in report


def test_odd_values_are_counted():
    x = torch.tensor([[1.0, torch.nan], [torch.inf, -2.0]])
    A = spgrad.from_dense(x) * torch.tensor([[0.0, 1.0]])
    assert "values     -2 to 0, 1 explicit zeros, 2 not finite" in info.report(A)
    twice = spgrad.sparse_coo_tensor([[0, 0], [1, 1]], [1.0, 2.0], (2, 2))
    report = info.report(twice)
    assert "nse        2, not coalesced: 1 elements" in report
    assert "density    25 %" in report
    hybrid = testing.random_sparse((4, 4, 2), dense_dim=1)
    assert "1 dense dimension(s)" in info.report(hybrid)


def test_memory_does_not_grow_with_the_shape():
    A = spgrad.sparse_coo_tensor([[0, 2**40], [5, 2**20]], [1.0, 2.0], (2**41, 2**21))
    assert "2,199,023,255,550 of 2,199,023,255,552 are empty" in info.report(A)


# The command


@pytest.mark.parametrize("suffix", [".npz", ".mtx", ".csv", ".pt"])
def test_the_command(suffix, tmp_path, capsys):
    path = saved(spgrad.eye(8), tmp_path / f"a{suffix}")
    assert cli.main(["info", path]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert said.out.startswith(f"tensor     {path}\nshape      8 × 8\nlayout     ")
    assert "symmetry   pattern symmetric, values symmetric" in said.out


def test_a_picture(tmp_path, capsys):
    path, png = saved(spgrad.eye(8), tmp_path / "a.npz"), tmp_path / "a.png"
    assert cli.main(["info", path, "--png", str(png)]) == 0
    assert png.read_bytes().startswith(b"\x89PNG")
    pixels = pytest.importorskip("matplotlib.image").imread(png)
    assert pixels.shape[:2] == (960, 1050)
    assert 0.001 < (pixels[..., :3].mean(-1) < 0.9).mean() < 0.5  # what is drawn, on white
    assert capsys.readouterr().out.endswith(f"\n\npicture    {png}\n")


@pytest.mark.parametrize(
    ("png", "says"),
    [("a.jpg", "a.jpg; the path of a .png file"), ("no/a.png", "a folder that is there")],
)
def test_wrong_pictures(png, says, tmp_path, capsys):
    path = saved(spgrad.eye(8), tmp_path / "a.npz")
    assert cli.main(["info", path, "--png", str(tmp_path / png)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert says in said.err
    assert said.err.count("\n") == 1


def test_wrong_files(tmp_path, capsys):
    (tmp_path / "bad.npz").write_text("bad")
    for name, says in (("none.npz", "which is not there"), ("bad.npz", "not a zip file")):
        assert cli.main(["info", str(tmp_path / name)]) == 2
        assert says in capsys.readouterr().err


def test_a_missing_package(tmp_path, monkeypatch, capsys):
    path = saved(spgrad.eye(8), tmp_path / "a.mtx")
    monkeypatch.setitem(sys.modules, "scipy", None)
    assert cli.main(["info", path]) == 1
    assert "scipy is not installed" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert cli.main(["info", path, "--png", str(tmp_path / "a.png")]) == 1
    assert "matplotlib is not installed" in capsys.readouterr().err


def test_an_output_without_dots(tmp_path, monkeypatch):
    import io

    path = saved(spgrad.eye(8), tmp_path / "a.npz")
    out = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    monkeypatch.setattr(sys, "stdout", out)
    assert cli.main(["info", path]) == 0
    out.seek(0)
    assert "shape      8 x 8" in out.read()


@pytest.mark.parametrize("argv", [["info", "--help"], ["info"]])
def test_help(argv, capsys):
    assert cli.main(argv) == (0 if "--help" in argv else 2)
    assert "spgrad info" in "".join(capsys.readouterr())


def test_choices_of_kernels(tmp_path, capsys):
    path = saved(spgrad.from_dense(torch.eye(50)), tmp_path / "A.npz")
    assert cli.main(["info", path, "--kernels"]) == 0
    lines = capsys.readouterr().out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("kernels"))
    if kernels.compiled():
        assert "second-level cache" in lines[start]
        assert [line.split()[2] for line in lines[start + 1 : start + 7]] == [
            *("1", "8", "32", "64", "128", "256")
        ]
        ways = ("read in place", "copied side by side")
        assert all(line.endswith(ways) for line in lines[start + 1 : start + 7])
    else:
        assert "nothing is chosen" in lines[start]


@pytest.mark.skipif(not kernels.compiled(), reason="only compiled kernels choose")
def test_choices_say_why():
    A = spgrad.from_edges(torch.randint(3000, (2, 60_000)), size=3000)
    kernels.assume_cache(torch.empty(0), 1 << 16)
    try:
        text = dict(enumerate(says for _, says in info.choices(A)))
    finally:
        kernels.assume_cache(torch.empty(0), 0)
    assert "65.5 kB" in text[0]
    assert "its rows are near, or those of A short" in text[1]
    assert "% of its rows are far away" in text[6]
    assert "prefetched" in text[6]


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (999, "999 B"),
        (1000, "1 kB"),
        (10**6, "1 MB"),
        (10**9, "1 GB"),
        (10**12, "1 TB"),
        (2_340_000, "2.34 MB"),
    ],
)
def test_bytes(count, text):
    assert info._bytes(count) == text


def test_each_dot_has_its_place():
    """Unicode numbers the dots 1, 2, 3, 7 down the left side and 4, 5, 6, 8 down the right."""
    for number, (row, col) in enumerate(
        [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1), (3, 0), (3, 1)]
    ):
        dots = torch.zeros(4, 2)
        dots[row, col] = 1
        assert info._braille(dots) == [chr(0x2800 + 2**number)]


def test_what_is_said_of_tiles_and_without_kernels(monkeypatch):
    """The words for what `kernels.traffic` answers: shares in two caches, and six ways."""
    A = spgrad.from_dense(torch.eye(50))
    answers = torch.tensor([2e6, 0.75, 0.25, 1, 1, 0, 0, 0, 0.875, 0.5, 0])
    monkeypatch.setattr(kernels, "traffic", lambda *_: answers)
    lines = [says for _, says in info.choices(A)]
    assert lines[0].endswith("cache of a core holds 2 MB")
    assert all(
        line.endswith(
            "75 % of its rows are far away and 88 % outside of the first-level cache, in tiles "
            "25 % and 50 %: copied into tiles and prefetched"
        )
        for line in lines[1:]
    )
    answers[7] = 1
    lines = [line for _, line in info.choices(A)]
    assert all(line.endswith("copied into tiles and prefetched twice") for line in lines[1:])
    answers[4], answers[10] = 0, 1
    lines = [line for _, line in info.choices(A)]
    assert ["by blocks of columns" in line for line in lines[1:]] == [False] * 4 + [False, True]
    for order, says in (
        (2, "prefetched twice and read to their end"),
        (3, ": prefetched and read one after the other"),
    ):
        answers[10] = order
        assert all(line.endswith(says) for _, line in list(info.choices(A))[1:])
    answers = torch.tensor([2e6, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0])
    lines = [line for _, line in info.choices(A)]
    says = "its rows are near, or those of A short: copied side by side, entries prefetched"
    assert all(line.endswith(says) for line in lines[1:])
    monkeypatch.setattr(kernels, "traffic", lambda *_: torch.zeros(11))
    says = "the compiled library is absent: nothing is chosen"
    assert list(info.choices(A)) == [("kernels", says)]


def test_a_picture_that_may_not_be_written(tmp_path, monkeypatch):
    path = saved(spgrad.eye(8), tmp_path / "a.npz")
    monkeypatch.setattr(info.os, "access", lambda *_: False)  # an administrator may write anywhere
    with pytest.raises(ValueError, match=r"a\.png, which may not be written"):
        info.run(path, tmp_path / "a.png")
    assert not (tmp_path / "a.png").exists()
