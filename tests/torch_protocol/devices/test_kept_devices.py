"""Results and gradients are on the device of the operands; nothing is computed.

The device is meta, or CUDA for fake tensors. On a torch without CUDA, these are made, multiplied,
and moved to `cuda:0` only: torch neither moves them to `cuda`, as `A.cuda()` does, nor indexes them
in Python, nor records their gradients.
"""

import pytest
import torch
from torch._subclasses import FakeTensorMode

import spgrad
from spgrad import kernels, nn, testing
from spgrad.core.pattern import Pattern
from spgrad.core.values import on_pattern
from spgrad.lowering.views import find_views
from spgrad.ops.products.graphs.additive_attention import attend

N = 6
LAYOUTS = ("csr", "csc", "bsr", "coo")
CPU = {
    name: testing.random_sparse((N, N), testing.LAYOUTS[name], dtype=torch.float32)
    for name in LAYOUTS
}


def on_cuda(layout):
    """The matrix as fake tensors on CUDA."""
    ptr, idx = (torch.empty_like(t, device="cuda") for t in CPU[layout].pattern.indices)
    values = torch.empty_like(CPU[layout].values(), device="cuda")
    make = getattr(spgrad, f"sparse_{layout}_tensor")
    return make(ptr, idx, values, (N, N), check_invariants=False)


def ones(*shape):
    return lambda device: torch.ones(shape, device=device)


def attention(A, q):
    return torch.nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=A)


def layer(made):
    return lambda A, x: made.to(A.device)(x, A)


PRODUCTS = {
    "product": (lambda A, x: A @ x, ones(N, 3), (N, 3)),
    "vector": (lambda A, x: A @ x, ones(N), (N,)),
    "softmax": (lambda A, x: torch.softmax(A, 1) * x, ones(N, 1), (N, N)),
    "row_sums": (lambda A, x: A.sum(1) * x, ones(N), (N,)),
    "sum": (lambda A, x: A.sum() * x, ones(2), (2,)),
    "same_pattern": (lambda A, x: A + A * x, ones(N), (N, N)),
    "transposed": (lambda A, x: A.t() * x, ones(N), (N, N)),
    "dense": (lambda A, x: A.to_dense() + x, ones(N), (N, N)),
    "sampled": (lambda A, x: A * spgrad.sddmm(A, x, x), ones(N, 2), (N, N)),
    "of_values": (lambda A, x: spgrad.from_values(A.values() * x, A), ones(1), (N, N)),
    "attention": (attention, ones(2, N, 4), (2, N, 4)),
}
"""Name -> a function of A and x, x, and the shape of the result."""
MORE = {
    "product_from_left": (lambda A, x: x @ A, ones(3, N), (3, N)),
    "graph_conv": (layer(nn.GraphConv(3, 4)), ones(N, 3), (N, 4)),
    "sage": (layer(nn.SAGEConv(3, 4)), ones(N, 3), (N, 4)),
    "gin": (layer(nn.GINConv(torch.nn.Linear(3, 4))), ones(N, 3), (N, 4)),
    "linear": (lambda A, x: torch.nn.functional.linear(x, A), ones(3, N), (3, N)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", PRODUCTS | MORE)
def test_results_and_gradients_are_on_the_device_of_the_operands(name, layout):
    function, operand, shape = (PRODUCTS | MORE)[name]
    A, x = CPU[layout].to("meta").requires_grad_(), operand("meta").requires_grad_()
    y = function(A, x)
    assert (y.device.type, tuple(y.shape)) == ("meta", shape)
    y.sum().backward()
    assert A.grad.pattern is A.pattern
    assert (A.grad.device.type, x.grad.device.type) == ("meta", "meta")
    assert (A.grad.shape, x.grad.shape) == (A.shape, x.shape)


@pytest.fixture
def _fake():
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        yield


@pytest.mark.parametrize("layout", ["csr", "csc"])
@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.usefixtures("_fake")
def test_results_are_on_cuda(name, layout):
    function, operand, shape = PRODUCTS[name]
    y = function(on_cuda(layout), operand("cuda"))
    assert (y.device.type, tuple(y.shape)) == ("cuda", shape)
    if isinstance(y, spgrad.SparseTensor):
        assert {i.device.type for i in y.pattern.indices} == {"cuda"}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.usefixtures("_fake")
def test_a_matrix_moves_to_cuda_and_back(layout):
    """Its values and all of its indices; the matrix that was there stays where it is."""
    pattern = CPU[layout].pattern
    indices = tuple(torch.empty_like(i) for i in pattern.indices)
    pattern = Pattern.from_spec(pattern.spec, pattern.shape, indices)
    A = on_pattern(torch.empty_like(CPU[layout].values()), pattern)
    for device in ("cuda:0", "cpu"):
        moved = A.to(torch.device(device))
        assert (moved.layout, moved.shape, moved.dtype) == (A.layout, A.shape, A.dtype)
        for t in (moved, moved.values(), *moved.pattern.indices):
            assert t.device == torch.device(device)
        assert {i.device.type for i in A.pattern.indices} != {moved.device.type}
        A = moved


@pytest.mark.usefixtures("_fake")
def test_operands_on_two_devices_are_refused():
    with pytest.raises(
        spgrad.ArgumentValueError, match="`other` is on cuda:0; `input` is on cpu, and one device"
    ):
        CPU["csr"] @ torch.ones(N, 3, device="cuda")


@pytest.mark.parametrize("function", [lambda A, x: A @ x, lambda A, x: torch.softmax(A, 1) @ x])
@pytest.mark.usefixtures("_fake")
def test_compiled_functions_are_on_cuda(function):
    A = on_cuda("csr")
    find_views(A.pattern)  # as torch.compile does for tensors that have numbers
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    y = compiled(A, torch.ones(N, 3, device="cuda"))
    assert (y.device.type, tuple(y.shape)) == ("cuda", (N, 3))


@pytest.mark.usefixtures("_fake")
def test_compiled_functions_find_the_views_of_fake_operands():
    compiled = torch.compile(lambda A, x: A @ x, backend="aot_eager", fullgraph=True)
    y = compiled(on_cuda("csr"), torch.ones(N, 3, device="cuda"))
    assert (y.device.type, tuple(y.shape)) == ("cuda", (N, 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [4, 8, 16])
@pytest.mark.usefixtures("_fake")
def test_blocks_that_fill_a_product_of_matrices_are_multiplied_so_on_cuda(size, dtype, monkeypatch):
    """Triton has the kernel for blocks of 8 and more, and not for float64."""
    called = []
    for name in ("spmm", "block_spmm"):
        kernel = getattr(kernels, name)

        def run(*args, name=name, kernel=kernel):
            called.append(name)
            return kernel(*args)

        monkeypatch.setattr(kernels, name, run)
    monkeypatch.setattr(kernels, "by_triton", lambda: ("block_spmm",))
    values = torch.empty(2, size, size, dtype=dtype, device="cuda")
    ptr, idx = (torch.empty(n, dtype=torch.int64, device="cuda") for n in (3, 2))
    A = spgrad.sparse_bsr_tensor(ptr, idx, values, (2 * size, 2 * size), check_invariants=False)
    A @ torch.ones(2 * size, 3, dtype=dtype, device="cuda")
    fits = size >= 8 and dtype == torch.float32
    assert called == ["block_spmm" if fits else "spmm"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("there", [False, True])
@pytest.mark.usefixtures("_fake")
def test_triton_reads_16_bit_operands_of_attention_as_they_are(there, dtype, monkeypatch):
    read, kernel = [], kernels.attention

    def run(*args):
        read.append({t.dtype for t in args[3:7]})
        return kernel(*args)

    monkeypatch.setattr(kernels, "attention", run)
    monkeypatch.setattr(kernels, "by_triton", lambda: ("attention",) if there else ())
    values = torch.empty(CPU["csr"].nse, dtype=dtype, device="cuda")
    A = spgrad.from_values(values, on_cuda("csr").pattern)
    y = attention(A, torch.ones(2, N, 4, dtype=dtype, device="cuda"))
    assert (y.dtype, y.device.type) == (dtype, "cuda")
    assert read == [{dtype if there else torch.float32}]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.usefixtures("_fake")
def test_triton_reads_operands_of_additive_attention_as_they_are(dtype, monkeypatch):
    """Also a bias that all heads share."""
    read, kernel = [], kernels.additive_attention

    def run(*args):
        read.append([(t.dtype, t.shape[1]) for t in args[3:7]])
        return kernel(*args)

    monkeypatch.setattr(kernels, "additive_attention", run)
    monkeypatch.setattr(kernels, "by_triton", lambda: ("additive_attention",))
    bias, left, x = (
        torch.empty(*shape, dtype=dtype, device="cuda")
        for shape in ((CPU["csr"].nse, 1), (N, 2), (N, 2, 3))
    )
    y = attend(on_cuda("csr").pattern, bias, left, left, x, 0.2)
    assert (y.dtype, y.device.type, y.shape) == (dtype, "cuda", (N, 2, 3))
    assert read == [[(dtype, 1), (dtype, 2), (dtype, 2), (dtype, 6)]]


def as_if_elsewhere(pattern, monkeypatch):
    """Its indices equal no others before they are moved, like indices on another device."""
    same_as = Pattern.same_as

    def move(self, device, non_blocking=False):
        if self is not pattern:
            return self
        return Pattern.from_spec(self.spec, self.shape, tuple(i.clone() for i in self.indices))

    monkeypatch.setattr(Pattern, "moved", move)
    monkeypatch.setattr(Pattern, "same_as", lambda a, b: pattern not in (a, b) and same_as(a, b))


def test_a_state_from_another_device_leaves_the_pattern_of_a_parameter(monkeypatch):
    """So its gradient and the states of its optimizer stay valid."""
    module = torch.nn.Module()
    module.A = torch.nn.Parameter(CPU["csr"].detach().clone())
    pattern = module.A.pattern
    (module.A @ torch.ones(N, 1)).sum().backward()
    indices = tuple(i.clone() for i in pattern.indices)
    elsewhere = Pattern.from_spec(pattern.spec, pattern.shape, indices)
    state = {"A": on_pattern(torch.full((pattern.nse,), 7.0), elsewhere)}
    as_if_elsewhere(elsewhere, monkeypatch)
    module.load_state_dict(state)
    assert module.A.pattern is pattern
    assert module.A.values().eq(7).all()
    assert module.A.grad.pattern is pattern


def test_a_parameter_without_numbers_takes_a_state_by_assignment():
    module = torch.nn.Module()
    module.A = torch.nn.Parameter(CPU["csr"].to("meta"))
    module.load_state_dict({"A": CPU["csr"].detach().clone()}, assign=True)
    assert module.A.device.type == "cpu"
    assert {i.device.type for i in module.A.pattern.indices} == {"cpu"}


def test_a_copy_to_a_tensor_without_numbers_does_nothing():
    """As for dense tensors; load_state_dict then warns that it is a no-op."""
    A, other = CPU["csr"], testing.random_sparse((N, N), density=1.0)
    empty = torch.nn.Parameter(A.to("meta"))
    with torch.no_grad():
        assert empty.copy_(A) is empty
        assert empty.device.type == "meta"
        with pytest.raises(spgrad.ArgumentValueError, match="`source` is on meta and has no num"):
            A.clone().copy_(empty)
        assert {i.device.type for i in empty.copy_(other).pattern.indices} == {"meta"}
        assert (empty.nse, empty.device.type) == (N * N, "meta")
    with pytest.raises(spgrad.ArgumentValueError, match="different patterns"):
        A.to("meta").requires_grad_().clone().copy_(other)


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch moves them")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_move_to_a_device_that_is_not_there_is_refused_as_torch_does(layout):
    with pytest.raises(Exception, match=r"CUDA|cuda") as of_torch:
        torch.ones(2).cuda()
    for move in (lambda t: t.cuda(), lambda t: t.to("cuda"), lambda t: t.to(device="cuda:0")):
        with pytest.raises(type(of_torch.value)) as found:
            move(CPU[layout])
        assert str(of_torch.value) in str(found.value)


@pytest.fixture(params=[torch.float16, torch.bfloat16], ids=str)
def lowered(request):
    """The dtype of autocast on CUDA, which is on."""
    before = torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", True)  # torch.autocast asks for a device that is there
    torch.set_autocast_dtype("cuda", request.param)
    yield request.param
    torch.set_autocast_enabled("cuda", False)
    torch.set_autocast_dtype("cuda", before)


LOWERED = {
    "product": lambda A, x: A @ x,
    "vector": lambda A, x: A @ x.sum(1),
    "addmm": lambda A, x: torch.addmm(x, A, x),
    "sampled": lambda A, x: spgrad.sddmm(A, x, x),
    "attention": lambda A, x: attention(A, x.unsqueeze(0)),
}


@pytest.mark.parametrize("name", LOWERED)
@pytest.mark.usefixtures("_fake")
def test_autocast_of_cuda(name, lowered):
    product = LOWERED[name]
    assert product(on_cuda("csr"), torch.ones(N, 3, device="cuda")).dtype == lowered
    assert product(CPU["csr"], torch.ones(N, 3)).dtype == torch.float32


@pytest.mark.usefixtures("_fake")
def test_compiled_functions_under_autocast_of_cuda(lowered):
    compiled = torch.compile(lambda A, x: A @ x, backend="aot_eager", fullgraph=True)
    y = compiled(on_cuda("csr"), torch.ones(N, 3, device="cuda"))
    assert (y.device.type, y.dtype) == ("cuda", lowered)


@pytest.mark.parametrize(
    "mixed",
    [
        lambda A, x: A @ x,
        lambda A, x: A * x.sum(1),
        lambda A, x: spgrad.sddmm(A, x, x),
        lambda A, x: attention(A, x.unsqueeze(0)),
    ],
)
@pytest.mark.usefixtures("_fake")
def test_operands_on_two_of_several_gpus_are_refused(mixed):
    """As where a rank has moved its matrix to its own device, and not its features."""
    with pytest.raises(
        spgrad.ArgumentValueError,
        match=r"is on cuda:[01]; `[a-z_]+` is on cuda:[01], and one device",
    ):
        mixed(on_cuda("csr"), torch.ones(N, 3, device="cuda:1"))
