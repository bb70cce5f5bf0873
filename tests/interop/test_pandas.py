"""Tables of pandas, there and back."""

import pytest
import torch

import spgrad
from spgrad import support
from spgrad.core.pattern import LAYOUTS

pandas = pytest.importorskip("pandas")


def table():
    return pandas.DataFrame(
        {"u": ["b", "a", "b", "b"], "v": ["x", "b", "x", "a"], "w": [1.0, 2.0, 4.0, 8.0]}
    )


@pytest.mark.parametrize("layout", support.ALL[:3])
def test_labels_and_sums(layout):
    A, rows, cols = spgrad.from_pandas(table(), "u", "v", "w", layout=LAYOUTS[layout])
    assert A.pattern.name == layout
    assert (list(rows), list(cols)) == (["a", "b"], ["a", "b", "x"])
    wanted = table().pivot_table(index="u", columns="v", values="w", aggfunc="sum", fill_value=0)
    assert A.to_dense().tolist() == wanted.to_numpy().tolist()


def test_one_set_of_labels_for_both_ends():
    A, rows, cols = spgrad.from_pandas(table(), "u", "v", square=True)
    assert list(rows) == list(cols) == ["a", "b", "x"]
    assert A.to_dense().tolist() == [[0, 1, 0], [1, 0, 2], [0, 0, 0]]


def test_numbers_with_a_size():
    frame = pandas.DataFrame({"i": [2, 0], "j": [1, 1], "w": [3, 4]})
    A, rows, cols = spgrad.from_pandas(frame, "i", "j", "w", size=(3, 2), dtype=torch.float32)
    assert (list(rows), list(cols)) == ([0, 1, 2], [0, 1])
    assert A.to_dense().tolist() == [[0, 4], [0, 0], [0, 3]]
    assert spgrad.from_pandas(frame[:0], "i", "j", "w").A.shape == (0, 0)


@pytest.mark.parametrize("layout", support.ALL)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.bool])
def test_there_and_back(layout, dtype):
    x = torch.tensor([[0.0, 2, 0, 1], [3, 0, 0, 4]]).to(dtype)
    blocks = (2, 2) if layout.startswith("b") else None
    A = spgrad.from_dense(x).to_sparse(layout=LAYOUTS[layout], blocksize=blocks)
    frame = spgrad.to_pandas(A, names=("r", "c", "v"))
    B = spgrad.from_pandas(frame, "r", "c", "v", size=(2, 4)).A
    assert torch.equal(B.to_dense().to(dtype), x)
    named = spgrad.to_pandas(A, rows=["p", "q"], cols=list("wxyz"))
    assert set(named["row"]) == {"p", "q"}


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "uint64"])
def test_unsigned_values_become_int64(dtype):
    frame = table().assign(w=pandas.Series([1, 2, 3, 4]).astype(dtype))
    A = spgrad.from_pandas(frame, "u", "v", "w").A
    assert A.dtype == torch.int64
    assert A.to_dense().tolist() == [[0, 2, 0], [4, 0, 4]]


def test_values_with_a_pending_conjugation_or_negation():
    x = torch.tensor([1 + 2j, 3 - 1j]).conj()
    for vals in (x, x.imag):
        frame = spgrad.to_pandas(spgrad.from_values(vals, spgrad.eye(2)))
        assert frame["value"].tolist() == vals.tolist()


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: spgrad.from_pandas([], "u", "v"), "`frame` is a list"),
        (lambda: spgrad.from_pandas(table(), "z", "v"), "`row` is 'z'; 'u', 'v', 'w' are accepted"),
        (lambda: spgrad.from_pandas(table(), "u", "v", "u"), "`value` names a column of dtype"),
        (lambda: spgrad.from_pandas(table(), "u", "v", size=3), "`row` names a column of dtype"),
        (
            lambda: spgrad.from_pandas(
                pandas.DataFrame([[1, 2, 3]], columns=list("uuv")), "u", "v"
            ),
            "`row` is 'u', which is the name of 2 columns",
        ),
        (
            lambda: spgrad.from_pandas(pandas.DataFrame({"u": [[1]], "v": [1]}), "u", "v"),
            "`row` names a column with a list",
        ),
        (
            lambda: spgrad.from_pandas(table().assign(w=[2**63, 1, 1, 1]), "u", "v", "w"),
            "`value` names a column of dtype uint64",
        ),
        (lambda: spgrad.to_pandas(spgrad.eye(2), names=("a", "a", "b")), "`names` has 'a' more"),
        (
            lambda: spgrad.from_pandas(pandas.DataFrame({"u": [None], "v": [1]}), "u", "v"),
            "`row` names a column with missing labels",
        ),
        (
            lambda: spgrad.from_pandas(pandas.DataFrame({"u": [5], "v": [1]}), "u", "v", size=2),
            "`row` names a column with 5; numbers in [0, 2) are accepted",
        ),
        (
            lambda: spgrad.from_pandas(
                pandas.DataFrame({"u": [5], "v": [-1]}), "u", "v", size=(6, 2)
            ),
            "`col` names a column with -1; numbers in [0, 2) are accepted",
        ),
        (
            lambda: spgrad.from_pandas(pandas.DataFrame({"u": [5], "v": [1]}), "u", "v", size=(6,)),
            "`size` is (6,); a number of nodes, or (rows, columns), is accepted",
        ),
        (lambda: spgrad.to_pandas(spgrad.eye(2), rows=["a"]), "`rows` has shape (1,)"),
        (lambda: spgrad.to_pandas(spgrad.eye(2), names=("a",)), "`names` has shape (1,)"),
        (lambda: spgrad.to_pandas(torch.eye(2)), "`A` is a dense tensor"),
    ],
)
def test_refusals(call, text):
    with pytest.raises((spgrad.SpgradError, ValueError)) as raised:
        call()
    assert text in str(raised.value)
