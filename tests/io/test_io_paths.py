"""The format of a file, by its name."""

import pytest
import torch

import spgrad
import spgrad.io
from spgrad import testing


@pytest.mark.parametrize(
    "name",
    [
        "a.b.npz",
        "a.csv.npz",
        "1.5.mtx",
        "x.mtx.gz",
        "a.b.mtx.gz",
        "A.NPZ",
        "A.Mtx.GZ",
        "v1.2.pt",
        "my graph.csv",
        "a.npz.csv.gz",
    ],
)
def test_the_last_suffix_counts(tmp_path, name):
    A = testing.random_sparse((4, 6))
    spgrad.io.save(A, tmp_path / name)
    B = spgrad.io.load(
        str(tmp_path / name), size=(4, 6) if "npz" not in name[-4:] and ".csv" in name else None
    )
    testing.assert_close(B, A.to_dense())


@pytest.mark.parametrize("name", ["npz", "a", "a.gz", "a.npz.gz", "a.npz.zip", ".npz", "a.pt.gz"])
def test_other_suffixes_are_refused(tmp_path, name):
    for call in (
        lambda: spgrad.io.save(spgrad.eye(2), tmp_path / name),
        lambda: spgrad.io.load(tmp_path / name),
    ):
        with pytest.raises(spgrad.ArgumentValueError, match=r"`path` is .* are accepted"):
            call()
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize("path", [None, 3, b"a.npz", ["a.npz"]])
def test_what_is_no_path_is_refused(path):
    with pytest.raises(spgrad.ArgumentKindError, match="`path` is"):
        spgrad.io.load(path)


def test_a_file_keeps_its_layout_or_takes_the_one_asked_for(tmp_path):
    for layout in (torch.sparse_csr, torch.sparse_csc, torch.sparse_coo):
        A = testing.random_sparse((4, 6), layout)
        spgrad.io.save(A, tmp_path / "a.npz")
        assert spgrad.io.load(tmp_path / "a.npz").layout == layout
        assert (
            spgrad.io.load(tmp_path / "a.npz", layout=torch.sparse_csc).layout == torch.sparse_csc
        )
