"""Functions, methods and operators say which operand should be sparse, or a tensor at all."""

import operator
import re

import pytest
import torch
from refused import assert_refused

import spgrad
from spgrad import support, testing

FIRST = {}
for _cell in testing.cells():
    if _cell.op.public:
        FIRST.setdefault(_cell.op.name, _cell)


# torch's diag takes a dense vector; sizes are compared of any tensors.
REFUSING = [name for name in FIRST if name not in ("diag", "diag_embed", "is_same_size")]


def says(name):
    return rf"^spgrad\.{name}: (`\w+(\[\d\])*`|no operand is sparse)"


@pytest.mark.parametrize("name", REFUSING)
def test_dense_operands_are_refused_by_name(name):
    cell = FIRST[name]
    operands = [testing.dense_result(a.detach()) for a in testing.sample(cell)]
    with pytest.raises(spgrad.SpgradError, match=says(name)) as raised:
        testing.call(cell, getattr(spgrad, name), operands, cell.options)
    assert isinstance(raised.value, TypeError | ValueError | NotImplementedError)


@pytest.mark.parametrize("name", FIRST)
def test_what_is_no_tensor_is_refused_by_name(name):
    cell = FIRST[name]
    operands = [object() for _ in support.parse(cell.signature)[0]]
    with pytest.raises(spgrad.SpgradError, match=says(name)):
        testing.call(cell, getattr(spgrad, name), operands, cell.options)


@pytest.mark.parametrize("position", [0, 1])
def test_sparse_indices_are_refused(position):
    ptr, idx = torch.tensor([0, 1, 2]), torch.tensor([0, 1])
    parts = [ptr, idx]
    parts[position] = parts[position].to_sparse()
    with pytest.raises(spgrad.ArgumentKindError, match=r"^spgrad\.sparse_csr_tensor: `"):
        spgrad.sparse_csr_tensor(*parts, torch.ones(2))
    with pytest.raises(spgrad.ArgumentKindError, match=r"^spgrad\.sparse_coo_tensor: `indices`"):
        spgrad.sparse_coo_tensor(torch.tensor([[0, 1]]).to_sparse(), torch.ones(2))


OTHER_STORAGE = {
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(6, 6), 0.1, 0, torch.qint8),
    "mkldnn": lambda: torch.ones(6, 6).to_mkldnn(),
    "float8": lambda: torch.ones(6, 6).to(torch.float8_e4m3fn),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.filterwarnings("ignore:.*quantiz")
@pytest.mark.parametrize("kind", OTHER_STORAGE)
@pytest.mark.parametrize("name", ["matmul", "mm", "add", "mul", "sampled_addmm", "linear", "diag"])
def test_tensors_in_other_storage_are_refused_by_name(name, kind):
    cell, x = FIRST[name], OTHER_STORAGE[kind]()
    operands = [a.detach() for a in testing.sample(cell)]
    for position in range(len(operands)):
        given = [x if i == position else a for i, a in enumerate(operands)]
        with pytest.raises(spgrad.SpgradError, match=says(name)):
            testing.call(cell, getattr(spgrad, name), given, cell.options)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.filterwarnings("ignore:.*quantiz")
@pytest.mark.parametrize("kind", OTHER_STORAGE)
def test_tensors_in_other_storage_are_refused_among_several(kind):
    A = spgrad.from_dense(torch.eye(6))
    with pytest.raises(spgrad.SpgradError, match=says("einsum")):
        spgrad.einsum("ij,jk->ik", A, OTHER_STORAGE[kind]())


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.filterwarnings("ignore:.*quantiz")
@pytest.mark.parametrize(
    ("kind", "hint"),
    [("nested", "to_padded_tensor"), ("quantized", r"t\.dequantize\(\)"), ("mkldnn", "to_dense")],
)
def test_the_refusal_says_how_other_storage_is_converted(kind, hint):
    """`other` has the shape of the matrix where it has one, so nothing else is wrong."""
    A = spgrad.from_dense(torch.eye(6))
    text = rf"^spgrad\.mul: `other` is a {kind} tensor; a dense .* is accepted\. Use .*{hint}"
    with pytest.raises(spgrad.ArgumentKindError, match=text):
        spgrad.mul(A, OTHER_STORAGE[kind]())


A = testing.random_sparse((3, 3), dtype=torch.float32)
X = torch.ones(3, 3)
METHODS = {
    method: row
    for row in support.OPS.values()
    for method in (name.removeprefix("torch.Tensor.") for name in row.torch)
    if method.isidentifier() and not method.startswith("__")
}
WRITTEN = {"tensor_where": "where"}
"""The names of functions whose rows have another name."""
NO_TENSORS = {"list": [[1.0]], "tuple": (1.5,), "None": None, "str": "a", "dict": {}, "set": {1}}


def error_of(call, arguments):
    """The text of the error of a call, which is one of spgrad; None if there is a result."""
    try:
        call(*arguments)
    except spgrad.SpgradError as error:
        return str(error)
    return None


@pytest.mark.parametrize("kind", NO_TENSORS)
@pytest.mark.parametrize("method", METHODS)
def test_a_method_refuses_what_is_no_tensor_as_the_function_does(method, kind):
    """In the place of the first argument, and beside a tensor; torch's own text names no argument.

    A method that takes it, as clamp takes None, has a result.
    """
    x, row = NO_TENSORS[kind], METHODS[method].name
    name = WRITTEN.get(row, row)
    for arguments in ((x,), (X, x), (x, X)):
        text = error_of(getattr(A.clone(), method), arguments)
        assert text is None or re.match(rf"spgrad\.(linalg\.)?{name}_?: .* accepted", text)


WORDED = {
    "mm": (
        A.mm,
        "mm: `mat2` is a list; a sparse or dense tensor is accepted. Convert",
    ),
    "matmul": (A.matmul, "matmul: `other` is a list; a dense tensor is accepted."),
    "addmm": (lambda x: A.addmm(x, X), "addmm: `mat1` is a list; "),
    "mv": (A.mv, "mv: `vec` is a list; "),
    "add": (A.add, "add: `other` is a list; a tensor or a number is accepted."),
    "add_": (lambda x: A.clone().add_(x), "add: `other` is a list; a tensor or a number is"),
    "sub": (lambda x: A.sub(x, alpha=2), "sub: `other` is a list; a tensor or a number is"),
    "mul": (lambda x: A.mul(other=x), "mul: `other` is a list; a tensor or a number is accepted."),
    "div": (lambda x: A.div(x, rounding_mode="floor"), "div: `other` is a list; a tensor or a"),
    "where": (lambda x: A.where(x, 0), "where: `condition` is a list; "),
    "softmax": (A.softmax, "softmax: `dim` is [[1.0]]; "),
    "to": (A.to, "to: the arguments are ([[1.0]]); a torch.dtype, a torch.device or"),
    "t": (
        A.t,
        "t: takes 1 positional argument but 2 were given; t(input) is accepted.",
    ),
}


@pytest.mark.parametrize("method", WORDED)
def test_what_a_method_says_of_a_list(method):
    call, says = WORDED[method]
    assert_refused(lambda: call([[1.0]]), f"spgrad.{says}")


OPERATORS = {
    **dict.fromkeys(("+", "+ from left"), (operator.add, "add", "other")),
    **dict.fromkeys(("-", "- from left"), (operator.sub, "sub", "other")),
    **dict.fromkeys(("*", "* from left"), (operator.mul, "mul", "other")),
    **dict.fromkeys(("/", "/ from left"), (operator.truediv, "div", "other")),
    **dict.fromkeys(("//", "// from left"), (operator.floordiv, "floor_divide", "other")),
    **dict.fromkeys(("%", "% from left"), (operator.mod, "remainder", "other")),
    **dict.fromkeys(("**", "** from left"), (operator.pow, "pow", "exponent")),
    **dict.fromkeys(("&", "& from left"), (operator.and_, "bitwise_and", "other")),
    **dict.fromkeys(("|", "| from left"), (operator.or_, "bitwise_or", "other")),
    **dict.fromkeys(("^", "^ from left"), (operator.xor, "bitwise_xor", "other")),
    "<": (operator.lt, "lt", "other"),
    "<=": (operator.le, "le", "other"),
    ">": (operator.gt, "gt", "other"),
    ">=": (operator.ge, "ge", "other"),
}


@pytest.mark.parametrize("kind", ["list", "tuple", "None", "str", "dict"])
@pytest.mark.parametrize("sign", OPERATORS)
def test_an_operator_refuses_what_is_no_tensor(sign, kind):
    """From either side for the same reason, where Python asks both operands for the result."""
    function, name, argument = OPERATORS[sign]
    x, from_left = NO_TENSORS[kind], sign.endswith("left")
    if from_left and kind == "str" and function is operator.mod:
        return  # Python formats the str
    word = "None" if x is None else f"a {kind}"
    assert_refused(
        lambda: function(x, A) if from_left else function(A, x),
        f"spgrad.{name}: `{argument}` is {word}; a tensor or a number is accepted.",
    )


def test_a_tensor_is_unequal_to_what_is_no_tensor():
    for x in NO_TENSORS.values():
        assert (A == x) is False
        assert (A != x) is True
