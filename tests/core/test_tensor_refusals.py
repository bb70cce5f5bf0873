"""What a SparseTensor refuses: operations without a sparse form, and tensors of other patterns."""

import pytest
import torch
from samples import made
from torch import nn

import spgrad
from spgrad import testing

OTHERS = {
    "elements": lambda: testing.random_sparse((4, 6), seed=5),
    "as many elements": lambda: spgrad.from_dense(made().to_dense().flip(1)),
    "csc": lambda: made("csc"),
    "coo": lambda: made("coo"),
    "shape": lambda: testing.random_sparse((6, 4)),
}


@pytest.mark.parametrize("case", OTHERS)
def test_other_patterns_are_refused(case):
    A, other = made(), OTHERS[case]()
    with pytest.raises(spgrad.ArgumentValueError, match="of different patterns"):
        A.copy_(other)


@pytest.mark.parametrize("case", OTHERS)
@pytest.mark.parametrize("name", ["add", "sub", "add_", "sub_"])
def test_values_of_other_patterns_are_not_added(name, case):
    """In the calls that autograd and optimizers make, for which no joint pattern is found."""
    A, other = made(), OTHERS[case]()
    before = A.to_dense()
    refused = pytest.raises(spgrad.ArgumentValueError, match="of different patterns")
    with torch._C.DisableTorchFunctionSubclass(), refused:
        getattr(torch.Tensor, name)(A, other)
    assert torch.equal(A.to_dense(), before)


def test_repeated_elements_that_would_be_rounded_one_by_one_are_refused():
    source = spgrad.sparse_coo_tensor([[0, 0], [1, 1]], [0.6, 0.6], (2, 2))
    whole = spgrad.from_values(torch.zeros(2, dtype=torch.int64), source)
    with pytest.raises(spgrad.ArgumentValueError, match=r"repeated elements .* Call A\.coalesce"):
        whole.copy_(source)
    doubled = spgrad.from_values(torch.zeros(2, dtype=torch.float64), source)
    doubled.copy_(source)
    testing.assert_close(doubled.to_dense(), source.to_dense().double())


REFUSED = {
    "fill": lambda A: A.fill_(1.0),
    "random": lambda A: A.normal_(),
    "resize": lambda A: A.resize_(2, 2),
    "comparison": lambda A: A == A,
    "divide_number": lambda A: torch.tensor(2.0) / A,
    "add_number": lambda A: A + 1,
    "number_in_place": lambda A: torch.tensor(2.0, dtype=torch.float64).mul_(A),
    "masked_grad": lambda A: A.to_dense(masked_grad=False),
    "copy_dense": lambda A: A.copy_(torch.ones(4, 6, dtype=torch.float64)),
    "dense_copy": lambda A: torch.ones(4, 6, dtype=torch.float64).copy_(A),
    "numpy": lambda A: A.numpy(),
    "array": lambda A: pytest.importorskip("numpy").asarray(A),
    "list": lambda A: A.tolist(),
    "out": lambda A: torch.mm(A, torch.ones(6, 1).double(), out=torch.ones(4, 1).double()),
    "values_of_native": lambda A: spgrad.values(spgrad.to_torch(A)),
    "from_values_shape": lambda A: spgrad.from_values(torch.ones(3), A),
    "from_values_list": lambda A: spgrad.from_values([1.0], A),
    "from_values_pattern": lambda A: spgrad.from_values(torch.ones(3), torch.ones(3)),
    "from_values_device": lambda A: spgrad.from_values(A._vals.to("meta"), A),
    "from_values_sparse": lambda A: spgrad.from_values(A, A),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("name", ["coo", "csr", "bsc"])
def test_what_has_no_sparse_form_is_refused_by_name(case, name):
    A = made(name)
    before = A.to_dense()
    says = r"^spgrad(\.\w+|, in Tensor / A)?: .*; .* accepted"
    with pytest.raises(spgrad.SpgradError, match=says):
        REFUSED[case](A)
    assert torch.equal(A.to_dense(), before)


PRODUCTS = [getattr(torch.ops.aten, name).Tensor for name in ("mul", "div", "mul_", "div_")]
SUMS = [getattr(torch.ops.aten, name).Tensor for name in ("add", "sub", "add_", "sub_")]
SECOND = {
    "dense tensor of shape (10,)": lambda A: torch.ones(10, dtype=A.dtype),  # of as many as values
    "native csr tensor of shape (4, 6)": spgrad.to_torch,
    "SparseTensor of shape (4, 6)": lambda A: A,
}


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    ("function", "kind"),
    [
        *((f, kind) for f in PRODUCTS for kind in SECOND),
        *((f, kind) for f in SUMS for kind in SECOND if not kind.startswith("SparseTensor")),
    ],
    ids=str,
)
def test_what_torch_calls_below_autograd_is_not_taken_for_values(function, kind, first):
    A = made("csr")
    before, other = A.to_dense(), SECOND[kind](A)
    accepted = "two SparseTensors" if function in SUMS else "a number or a 0-d tensor"
    with pytest.raises(spgrad.UnsupportedError) as found:
        function(*((A, other) if first else (other, A)))
    assert str(found.value).startswith(f"spgrad: `{function}` of a SparseTensor and a {kind} ")
    assert f"; {accepted} " in str(found.value)
    assert torch.equal(A.to_dense(), before)


def test_several_values_at_each_element_need_dense_dimensions():
    A = made("csr")
    heads = torch.ones(A.nse, 2)
    with pytest.raises(ValueError, match=r"coo_indices\(\), values, \(4, 6, 2\)\)"):
        spgrad.from_values(heads, A)
    assert spgrad.sparse_coo_tensor(A.coo_indices(), heads, (4, 6, 2)).shape == (4, 6, 2)
    with pytest.raises(ValueError, match="Give one value for each specified element"):
        spgrad.from_values(torch.ones(2, A.nse), A)


def test_refusal_names_the_operation():
    with pytest.raises(spgrad.UnsupportedError, match=r"`aten\.gelu\.default`\) has no form"):
        nn.functional.gelu(made())
    with pytest.raises(NotImplementedError):
        nn.functional.gelu(made())
