"""spgrad has each name that the documents of torch.sparse list; docs/names.md says which function.

Update the document with: python tests/documented/test_names.py.
"""

import operator
from pathlib import Path

import pytest
import torch

import spgrad
from spgrad import support
from spgrad.core.slots import TORCH_FUNCTIONS
from spgrad.core.tensor import SparseTensor

DOCUMENT = Path(__file__).parents[2] / "docs" / "names.md"


def words(text):
    return text.split()


METHODS = words(
    """
    is_sparse layout dense_dim sparse_dim sparse_mask to_sparse to_sparse_coo to_sparse_csr
    indices values _indices _values coalesce sparse_resize_ sparse_resize_and_clear_
    is_coalesced to_dense crow_indices col_indices ndim shape requires_grad_ matmul add add_
    addmm addmm_ any asin asin_ arcsin arcsin_ bmm clone deg2rad deg2rad_ detach detach_ dim
    div div_ floor_divide floor_divide_ get_device index_select isnan log1p log1p_ mm mul
    mul_ mv narrow_copy neg neg_ negative negative_ numel rad2deg rad2deg_ resize_as_ size
    pow sqrt square smm sspaddmm sub sub_ t t_ transpose transpose_ zero_ __getitem__
    __matmul__
    """
)
FUNCTIONS = words(
    """
    sparse_coo_tensor sparse_csr_tensor sparse.sum sparse.addmm sparse.sampled_addmm
    sparse.mm sspaddmm hspmm smm sparse.softmax sparse.log_softmax mv matmul mm bmm addmm
    lobpcg pca_lowrank svd_lowrank cat dstack empty empty_like hstack index_select
    is_complex is_floating_point is_nonzero is_same_size is_signed is_tensor native_norm
    select stack unsqueeze vstack zeros zeros_like
    """
)
NAMES = [*(f"torch.Tensor.{n}" for n in METHODS), *(f"torch.{n}" for n in FUNCTIONS)]
CONSTRUCTORS = ("sparse_coo_tensor", "sparse_csr_tensor", "empty", "zeros")
# torch's own functions, which read only the values, shape or device of a SparseTensor
OWN = words(
    """
    torch.Tensor.clone torch.Tensor.detach torch.Tensor.detach_ torch.Tensor.dim
    torch.Tensor.get_device torch.Tensor.numel torch.Tensor.size torch.Tensor.zero_
    torch.Tensor.ndim torch.Tensor.shape torch.Tensor.requires_grad_ torch.is_complex
    torch.is_floating_point torch.is_signed torch.is_tensor
    """
)
# torch has only `resize_as`, which asks for another tensor's shape alone
WRITTEN = {
    "torch.Tensor.resize_as_": "written `resize_as` there",
    "torch.Tensor.zero_": "or `zero`",
}


def rows():
    return {
        name.removesuffix(".__get__"): row for row in support.OPS.values() for name in row.torch
    }


def answer(name, found):
    """What answers for a name, in the words of the document; None if nothing does."""
    if name in found:
        return f"row `{found[name].name}` of the support table"
    short = name.removeprefix("torch.").removeprefix("Tensor.")
    value = operator.attrgetter(name.removeprefix("torch."))(torch)
    if name.startswith("torch.Tensor.") and short in vars(SparseTensor):
        return "method or property of SparseTensor"
    if name in OWN:
        return "torch's own, which sees values, shape, dtype and device"
    if value in TORCH_FUNCTIONS:
        return f"`spgrad.{TORCH_FUNCTIONS[value].__name__}`; no row: no dense form to compare with"
    if short in CONSTRUCTORS:
        return f"constructor `spgrad.{short}`"
    return None


def table():
    found = rows()
    lines = ["| documented name | answered by |", "|---|---|"]
    for name in NAMES:
        more = f" ({WRITTEN[name]})" if name in WRITTEN else ""
        lines.append(f"| `{name}`{more} | {answer(name, found)} |")
    return "\n".join(lines)


def test_every_name_is_answered():
    found = rows()
    assert [name for name in NAMES if answer(name, found) is None] == []


def test_the_document_says_so():
    assert table() in DOCUMENT.read_text()


def test_names_of_functions_are_those_of_spgrad():
    found = rows()
    for name in NAMES:
        value = operator.attrgetter(name.removeprefix("torch."))(torch)
        if answer(name, found).startswith("`spgrad."):
            assert hasattr(spgrad, TORCH_FUNCTIONS[value].__name__)
    for name in CONSTRUCTORS:
        assert callable(getattr(spgrad, name))


ASKED = {
    "dim": lambda t: t.dim(),
    "size": lambda t: (t.size(), t.size(0), t.size(-1)),
    "numel": lambda t: t.numel(),
    "get_device": lambda t: t.get_device(),
    "ndim": lambda t: (t.ndim, t.shape),
    "is_complex": torch.is_complex,
    "is_floating_point": torch.is_floating_point,
    "is_signed": torch.is_signed,
    "is_tensor": torch.is_tensor,
    "clone": lambda t: (t.clone() + t).to_dense().tolist(),
    "detach": lambda t: t.detach().requires_grad,
    "detach_": lambda t: (t * 1).detach_().requires_grad,
    "zero_": lambda t: t.detach().clone().zero_().to_dense().tolist(),
    "requires_grad_": lambda t: t.detach().requires_grad_().requires_grad,
}


@pytest.mark.parametrize("layout", support.ALL)
def test_what_torch_answers_itself(layout):
    dense = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
    blocks = {"blocksize": (2, 1)} if layout.startswith("b") else {}
    A = getattr(spgrad.from_dense(dense), f"to_sparse_{layout}")(**blocks).detach()
    for ask in ASKED.values():
        assert ask(A.requires_grad_()) == ask(dense.requires_grad_())


if __name__ == "__main__":
    text = DOCUMENT.read_text()
    start = text.index("| documented name |")
    DOCUMENT.write_text(text[:start] + table() + "\n")
