"""The decorator of public functions: the text that it adds to an error of a call."""

import ast
import copy
import importlib
import inspect
import pickle
import sys
from pathlib import Path

import pytest
import torch

import spgrad
from spgrad import errors, public, testing
from spgrad.core.slots import Slots
from spgrad.public import public_as, public_op

MODULES = [importlib.import_module(f"spgrad{name}") for name in ("", ".linalg", ".io", ".plot")]
WITHOUT_TENSORS = {"compiled", "empty_cache", "show_versions"}
FUNCTIONS = {
    f"{module.__name__}.{name}": value
    for module in MODULES
    for name in module.__all__
    for value in [getattr(module, name)]
    if inspect.isfunction(value) and name not in WITHOUT_TENSORS
}
ERRORS = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and issubclass(value, spgrad.SpgradError)
]
SOURCES = sorted(Path(spgrad.__file__).parent.rglob("*.py"))


def is_public_op(function) -> bool:
    code = public_op(len).__code__
    while function is not None and getattr(function, "__code__", None) is not code:
        function = getattr(function, "__wrapped__", None)
    return function is not None


@public_op
def inner(x, flag=False):
    raise spgrad.ArgumentValueError("`x` is wrong; another is accepted. Take it.")


@public_op
def outer(A, *more, n=3, **options):
    inner(A, flag=True)


def said(function, *args, **kwargs) -> str:
    with pytest.raises(spgrad.SpgradError) as caught:
        function(*args, **kwargs)
    return str(caught.value)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_public_function_is_decorated(name):
    assert is_public_op(FUNCTIONS[name])


def test_there_are_public_functions():
    assert len(FUNCTIONS) > 180
    assert not is_public_op(len)
    assert not is_public_op(said)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_no_error_names_its_function_itself(path):
    """The text of an error starts with the argument; its function stands in front by itself."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        name = ast.unparse(node.func).rpartition(".")[2]
        if name in {error.__name__ for error in ERRORS}:
            assert not ast.unparse(node.args[0]).lstrip("f").startswith(("'spgrad", '"spgrad'))


def test_the_function_that_was_called_is_named():
    text = "`x` is wrong; another is accepted. Take it."
    assert said(inner, 1) == f"spgrad.inner: {text}\n  called with x: 1"
    assert said(outer, 1) == f"spgrad.outer: {text}\n  called with A: 1"
    assert said(public_as("io.read")(outer), 1).startswith("spgrad.io.read: `x` is wrong")
    assert str(spgrad.StateError(text)) == f"spgrad: {text}"


def test_torchs_names_lead_to_ours():
    A, x = spgrad.eye(3), torch.ones(4, 2)
    for call in (torch.mm, spgrad.mm, torch.Tensor.mm):
        assert said(call, A, x).startswith("spgrad.mm: `mat2` has shape (4, 2); 3 rows ")
    assert said(lambda: A @ x).startswith("spgrad.matmul: `other` has shape (4, 2); 3 rows ")
    assert said(A.indices).startswith("spgrad.indices: `A` has layout csr; ")
    assert said(lambda: A.add_(x)).startswith("spgrad.add: `other` has shape (4, 2); ")
    assert said(lambda: A.add_(torch.ones(3, 3))).startswith("spgrad.add_: the result is dense ")


def test_operands_are_listed():
    A = spgrad.sparse_csr_tensor([0, 2, 4, 5], [0, 1, 1, 3, 2], torch.ones(5), (3, 4))
    x = torch.ones(4, 2, dtype=torch.float64)
    assert said(spgrad.mm, A, x).endswith(
        "\n  called with input: csr (3, 4) nse 5 float32, mat2: float64 (4, 2)"
    )
    native = spgrad.to_torch(A)
    given = (A, native, [x, A], "s" * 99)
    assert said(outer, *given, n=torch.exp, b={"c": x}).endswith(
        "\n  called with A: csr (3, 4) nse 5 float32, more: (native csr (3, 4) nse 5 float32, "
        "[float64 (4, 2), csr (3, 4) nse 5 float32], '" + "s" * 27 + "..." + "s" * 28 + "'), "
        "n: exp, b: {'c': float64 (4, 2)}"
    )


def test_many_operands_are_cut_short():
    text = said(outer, list(range(99)), **{f"o{i}": i for i in range(9)})
    assert text.endswith(
        "\n  called with A: [0, 1, 2, 3, ...], o0: 0, o1: 1, o2: 2, o3: 3, o4: 4, ..."
    )


def test_operands_are_described_where_functions_are_transformed():
    A, W = spgrad.eye(3), torch.ones(4, 2)
    with pytest.raises(spgrad.ArgumentValueError, match=r"called with input: .*, other: float32"):
        torch.func.grad(lambda w: (A @ w).sum())(W)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have no notes before")
def test_other_errors_get_a_note():
    @public_op
    def fails(x):
        raise RuntimeError("out of memory")

    @public_op
    def calls(A):
        fails(A)

    for function, note in (
        (fails, "in spgrad.fails, called with x: float32 (2,)"),
        (calls, "in spgrad.calls, called with A: float32 (2,)"),
    ):
        with pytest.raises(RuntimeError, match="out of memory") as caught:
            function(torch.ones(2))
        assert str(caught.value) == "out of memory"
        assert caught.value.__notes__ == [note]

    @public_op
    def alone():
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError) as caught:
        alone()
    assert caught.value.__notes__ == ["in spgrad.alone"]


def test_an_error_of_torch_is_not_blamed_on_arguments_that_are_right(monkeypatch):
    def fails(*_):
        raise RuntimeError("out of luck")

    monkeypatch.setattr("spgrad.ops.products.chain.product", fails)
    A = spgrad.eye(2)
    with pytest.raises(RuntimeError, match="out of luck"):
        spgrad.chain_matmul(A, A)
    with pytest.raises(TypeError, match=r"`tensors\[1\]` is an int"):
        spgrad.chain_matmul(A, 3)


def test_an_interruption_passes():
    @public_op
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        interrupted()
    assert not hasattr(caught.value, "__notes__")


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))]
)
def test_errors_are_copied_and_pickled(kind, copied):
    @public_op
    def fails(A):
        raise kind("`A` is wrong.")

    with pytest.raises(kind) as caught:
        fails(spgrad.eye(2))
    again = copied(caught.value)
    assert type(again) is kind
    assert (
        str(again)
        == str(caught.value)
        == ("spgrad.fails: `A` is wrong.\n  called with A: csr (2, 2) nse 2 float32")
    )
    assert repr(again) == f"{kind.__name__}({str(again)!r})"
    assert again.function == "fails"


def test_names_and_signatures_stay():
    assert spgrad.mm.__name__ == "mm"
    assert list(inspect.signature(spgrad.mm).parameters) == ["input", "mat2", "reduce"]
    assert spgrad.mm.__module__ == "spgrad.ops.products.matmul"


NUMPYS_INTEGERS = {
    "sum": lambda A, two: A.sum(two - 1),
    "select": lambda A, two: torch.select(A, two - 1, two),
    "narrow": lambda A, two: A.narrow(two - 1, two - 1, two),
    "reshape": lambda A, two: A.reshape(two, two * 4),
    "to_sparse_bsr": lambda A, two: A.to_sparse_bsr((two, two)),
    "topk": lambda A, two: A.topk(two)[0],
    "constructor": lambda A, two: spgrad.sparse_coo_tensor([[0], [1]], [1.0], (two, two)),
    "norm": lambda A, two: A.norm(two),
    "keyword": lambda A, two: spgrad.prune(A, keep=two),
    "list": lambda A, two: A.sum([two - 1]),
}


@pytest.mark.parametrize("name", NUMPYS_INTEGERS)
def test_numbers_of_numpy_are_numbers(name):
    numpy = pytest.importorskip("numpy")
    A = spgrad.from_dense(torch.arange(16.0).view(4, 4))
    function = NUMPYS_INTEGERS[name]
    found, wanted = function(A, numpy.int64(2)), function(A, 2)
    assert torch.equal(testing.dense_result(found), testing.dense_result(wanted))


def test_long_doubles_are_numbers():
    """Of which Python has none, so that NumPy's item is a long double again."""
    numpy = pytest.importorskip("numpy")
    A = spgrad.from_dense(torch.eye(3))
    for found, wanted in (
        (A * numpy.longdouble(2.5), 2.5),
        (A / numpy.longdouble(2), 0.5),
        (numpy.longdouble(3) * A, 3),
        (A * numpy.clongdouble(2 - 1j), 2 - 1j),
    ):
        assert torch.equal(found.to_dense(), torch.eye(3) * wanted)


def test_wrong_numbers_of_numpy_are_refused():
    numpy = pytest.importorskip("numpy")
    A = spgrad.from_dense(torch.ones(2, 2))
    with pytest.raises(TypeError, match=r"`dim` is 1\.5"):
        A.sum(numpy.float64(1.5))
    with pytest.raises(IndexError, match="`dim` is 7"):
        A.sum(numpy.int64(7))


def test_a_hint_stands_behind_the_name_and_before_the_operands(monkeypatch):
    monkeypatch.setattr(public.above, "elsewhere", lambda *_: "`A` lives elsewhere.")
    with pytest.raises(TypeError, match=r"(?s)^spgrad\.kron: `A` lives elsewhere\..*other"):
        spgrad.kron(spgrad.eye(2), other="no matrix")


def test_a_function_for_no_slot_is_refused():
    slots = Slots()
    with pytest.raises(AttributeError, match="no slots: pictures, transposed"):
        slots.fill(transposed=len, values=len, pictures=len)
    assert not hasattr(slots, "values")


def test_no_hint_where_nothing_knows_another_function(monkeypatch):
    """As in a process that has not imported `spgrad.distributed`."""
    monkeypatch.setattr(public.above, "elsewhere", Slots().elsewhere)
    with pytest.raises(TypeError, match=r"^spgrad\.kron: `other` is"):
        spgrad.kron(spgrad.eye(2), other="no matrix")


@pytest.mark.parametrize(
    "text",
    [
        "aten.mm.default: got mixed torch.Tensor and DTensor, need to convert all",
        "Cannot access data pointer of Tensor that doesn't have storage",
        "vmap: It looks like you're calling .item() on a Tensor",
    ],
)
def test_an_error_of_tensors_that_are_no_arguments_names_none(text):
    call = public.Call(spgrad.mul, "mul", (spgrad.eye(2), torch.ones(2, 2)), {})
    assert public.named_error(call, RuntimeError(text)) is None
