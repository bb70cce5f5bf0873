"""Operations whose operands are all dense say which of them should be sparse."""

import pytest
import torch

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
