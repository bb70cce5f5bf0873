"""Data that a trace derives from a live pattern are real tensors; later eager calls use them."""

import io

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import spgrad
from spgrad import support, testing
from spgrad.core.pattern import LAYOUTS, Pattern

layouts = pytest.mark.parametrize("name", support.ALL)

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the compiler are not ours


def fresh(name="csr", shape=(6, 8)):
    """A tensor whose pattern keeps nothing yet."""
    A = testing.random_sparse(shape, LAYOUTS[name])
    p = A.pattern
    return spgrad.from_values(A.values(), Pattern.from_spec(p.spec, tuple(p.shape), p.indices))


def tensors(kept):
    """All tensors in what a pattern keeps."""
    if isinstance(kept, torch.Tensor):
        yield kept
    elif isinstance(kept, Pattern):
        yield from kept.indices
        yield from tensors(kept._derived)
    elif isinstance(kept, dict):
        for value in kept.values():
            yield from tensors(value)
    elif isinstance(kept, (tuple, list)):
        for value in kept:
            yield from tensors(value)
    elif hasattr(kept, "entry"):
        yield from tensors((kept.entry, kept.place))


def assert_real(A):
    for t in tensors(A.pattern):
        assert type(t) is torch.Tensor
        assert not torch._C._functorch.is_functorch_wrapped_tensor(t)


FUNCTIONS = {
    "matmul": lambda A: A @ torch.ones(A.shape[-1], 2, dtype=A.dtype),
    "matmul_t": lambda A: A.t() @ torch.ones(A.shape[-2], 2, dtype=A.dtype),
    "csc": lambda A: A.to_sparse_csc(),
    "coo": lambda A: A.to_sparse_coo(),
    "bsr": lambda A: A.to_sparse_bsr((2, 2)),
    "sum": lambda A: A.sum(0),
    "softmax": lambda A: torch.softmax(A, 1),
    "rows": lambda A: A[1:3],
    "row": lambda A: A[1],
    "columns": lambda A: A[:, 2:5],
    "tril": lambda A: A.tril(),
    "diagonal": lambda A: A.diagonal(),
    "flip": lambda A: torch.flip(A, (0,)),
    "join": lambda A: torch.cat([A, A]),
    "sparse_product": lambda A: A.to_sparse_csr() @ A.to_sparse_csr().t(),
    "add": lambda A: A + A.to_sparse_csc(),
    "to_dense": lambda A: A.to_dense(),
}


@pytest.mark.parametrize("name", ["csr", "coo", "csc", "bsr"])
@pytest.mark.parametrize("case", FUNCTIONS)
def test_under_fake_tensors(case, name):
    A = fresh(name)
    try:
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            v = mode.from_tensor(A.values())
            FUNCTIONS[case](spgrad.from_values(v, A))
    except torch._subclasses.fake_tensor.DynamicOutputShapeException:
        pass  # what was kept before the size was asked for must be real as well
    except torch._subclasses.fake_tensor.DataDependentOutputException:
        pass
    assert_real(A)
    eager = FUNCTIONS[case](A)
    testing.assert_close(eager, testing.dense_result(FUNCTIONS[case](fresh(name))))


@pytest.mark.parametrize("name", ["csr", "coo", "csc", "bsr"])
@pytest.mark.parametrize("case", FUNCTIONS)
def test_under_transforms(case, name):
    A = fresh(name)
    dense = lambda v: testing.dense_result(FUNCTIONS[case](spgrad.from_values(v, A)))  # noqa: E731
    torch.func.grad(lambda v: dense(v).sin().sum())(A.values())
    assert_real(A)


class Scaled(nn.Module):
    def __init__(self, A):
        super().__init__()
        self.A = (A,)  # in a tuple, where a module does not look for buffers

    def forward(self, v, x):
        return spgrad.from_values(v, self.A[0]) @ x


@layouts
@pytest.mark.parametrize("strict", [False, True])
def test_export_leaves_the_tensor_as_it_was(name, strict):
    A = fresh(name)
    v, x = A.values(), torch.randn(8, 2, dtype=A.dtype)
    exported = torch.export.export(Scaled(A), (v, x), strict=strict)
    assert_real(A)
    assert type(A @ x) is torch.Tensor
    testing.assert_close(exported.module()(2 * v, x), 2 * (A.to_dense() @ x))


class Layer(nn.Module):
    def __init__(self, A, *, parameter):
        super().__init__()
        if parameter:
            self.A = nn.Parameter(A)
        else:
            self.register_buffer("A", A)

    def forward(self, x):
        return torch.softmax(self.A * 2, -1) @ x.relu()


@pytest.mark.parametrize("name", ["csr", "coo"])
@pytest.mark.parametrize("parameter", [False, True])
@pytest.mark.parametrize("strict", [False, True])
def test_exported_modules_hold_a_sparse_tensor(name, parameter, strict):
    layer = Layer(fresh(name), parameter=parameter)
    x = torch.randn(8, 2, dtype=layer.A.dtype)
    exported = torch.export.export(layer, (x,), strict=strict).module()
    testing.assert_close(exported(2 * x).detach(), layer(2 * x).detach())
    with torch.no_grad():
        exported.A.mul_(3)
        layer.A.copy_(exported.A)
    testing.assert_close(exported(x).detach(), layer(x).detach())


@layouts
@pytest.mark.parametrize("parameter", [False, True])
def test_exported_modules_run_from_a_file(name, parameter):
    layer = Layer(fresh(name), parameter=parameter)
    x = torch.randn(8, 2, dtype=layer.A.dtype)
    file = io.BytesIO()
    torch.export.save(torch.export.export(layer, (x,)), file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    testing.assert_close(loaded(2 * x).detach(), layer(2 * x).detach())


class Twice(nn.Module):
    def forward(self, A, x):
        return (2 * A) @ x


@layouts
@pytest.mark.parametrize("strict", [False, True])
def test_exported_functions_of_a_sparse_tensor(name, strict):
    A = fresh(name)
    x = torch.randn(8, 2, dtype=A.dtype)
    exported = torch.export.export(Twice(), (A, x), strict=strict).module()
    B = spgrad.from_values(A.values() + 1, A)
    testing.assert_close(exported(B, x), 2 * (B.to_dense() @ x))
