"""What notebooks and rich show of a SparseTensor."""

import xml.etree.ElementTree as ET

import pytest
import torch
from rich.pretty import pretty_repr
from samples import made

import spgrad
from spgrad import support


def parts(A):
    """The table as a dict, and the paths of the picture."""
    tree = ET.fromstring(A._repr_html_().replace("<br>", "<br/>"))
    table = {row[0].text: row[1].text for row in tree.iter("tr")}
    return table, [path.get("d") for path in tree.iter("path")]


@pytest.mark.parametrize("name", support.ALL)
def test_table_and_picture(name):
    A = made(name)
    table, paths = parts(A)
    assert table["shape"] == "(4, 6)"
    assert table["layout"] == name
    assert table["nse"] == str(A.pattern.nse)
    assert sum(d.count("M") for d in paths) == int((A.to_dense() != 0).sum())


def test_where_the_elements_are():
    A = spgrad.sparse_csr_tensor([0, 2, 3], [0, 2, 1], [1.0, 2.0, 3.0], (2, 3))
    assert parts(A)[1] == ["M0 0h1v1h-1zM2 0h1v1h-1zM1 1h1v1h-1z"]


def test_large_ones_are_small_pictures():
    A = spgrad.rand(3000, 100, density=0.1)
    text = A._repr_html_()
    assert len(text) < 40_000
    assert 'width="4" height="144" viewBox="0 0 1 48"' in text


@pytest.mark.parametrize(
    "A",
    [
        spgrad.zeros(0, 3),
        spgrad.zeros(2, 3),
        spgrad.sparse_coo_tensor([[1, 4]], [1.0, 2.0], (9,)),
        spgrad.sparse_coo_tensor([[1]], torch.ones(1, 9)),
        spgrad.zeros(2, 3, 4),
        spgrad.rand(2, 3, 4, density=0.5),
        spgrad.eye(3).to("meta"),
        spgrad.eye(3).requires_grad_() * 2,
    ],
)
def test_any_tensor_is_shown(A):
    table, _ = parts(A)
    assert "dtype" in table


def test_beyond_a_limit_there_is_no_picture(monkeypatch):
    from spgrad.torch_protocol import repr as shown

    monkeypatch.setattr(shown, "_MOST_DRAWN", 2)
    assert parts(spgrad.eye(3))[1] == []


def test_rich():
    assert pretty_repr(spgrad.eye(2), max_width=99) == (
        "SparseTensor(shape=(2, 2), nse=2, density=50%, layout=csr, dtype=float32)"
    )
