"""SparseLinear computes what torch.nn.Linear does on the same weight, and so does its gradient."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import spgrad
from spgrad.nn import SparseLinear
from spgrad.nn.choose import distinct
from spgrad.nn.sparsity import SET, GradualMagnitude

MASK = (
    torch.tensor(
        [[1, 0, 0, 1, 0, 0, 1, 0], [0] * 8, [1] * 8, [0, 1] * 4, [1, 0] * 4, [0] * 7 + [1]]
    )
    > 0
)
KINDS = {
    "density": {"density": 0.3},
    "full": {"density": 1.0},
    "none": {"density": 0.0},
    "pattern": {"pattern": MASK},
    "n_m": {"n_m": (2, 4)},
    "blocks": {"density": 0.5, "blocksize": (2, 4)},
    "pattern of blocks": {"pattern": MASK & (torch.arange(8) < 4), "blocksize": (3, 4)},
}
DTYPES = [
    torch.float64,
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.complex64,
    torch.complex128,
]


def test_a_call_is_one_node_of_autograd():
    """A small call spends its time on nodes, not on products."""
    layer = made("density", bias=False)
    y = layer(torch.randn(5, 8, dtype=torch.float64, requires_grad=True))
    before = {type(node).__name__ for node, _ in y.grad_fn.next_functions if node is not None}
    assert before == {"AccumulateGrad"}


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("outputs", [1, 6])
def test_what_a_layer_gives_may_be_changed_in_place(rows, outputs):
    layer = SparseLinear(8, outputs, bias=False, density=0.5, dtype=torch.float64)
    x = torch.randn(rows, 8, dtype=torch.float64)
    layer(x).relu_().sum().backward()
    found = layer.values.grad.clone()
    layer.values.grad = None
    layer(x).relu().sum().backward()
    assert_close(found, layer.values.grad)


def test_places_are_drawn_in_memory_for_those_that_are_kept():
    places = distinct(2**60, 1000, None)
    assert places.shape == (1000,)
    assert (places.diff() > 0).all()
    assert places[0] >= 0
    assert places[-1] < 2**60


def made(kind, dtype=torch.float64, **more):
    generator = torch.Generator().manual_seed(3)
    return SparseLinear(8, 6, dtype=dtype, generator=generator, **KINDS[kind], **more)


@pytest.fixture(params=KINDS)
def layer(request):
    return made(request.param)


def test_an_ensemble_maps_over_parameters_and_not_over_indices():
    layers = [made("density") for _ in range(3)]
    x = torch.randn(2, 8, dtype=torch.float64)
    parameters, buffers = torch.func.stack_module_state(layers)

    def call(*state):
        return torch.func.functional_call(layers[0], state, (x,))

    assert_close(torch.func.vmap(call)(parameters), torch.stack([f(x) for f in layers]))
    text = r"spgrad\.nn\.SparseLinear: `crow_indices` or .* Map over the parameters alone"
    with pytest.raises(spgrad.SpgradError, match=text):
        torch.func.vmap(call)(parameters, buffers)


def test_the_error_of_another_dtype_says_what_to_convert():
    layer = made("density", torch.float32)
    text = r"Convert with input\.to\(torch\.float32\)\.\n.* pattern: csr \(6, 8\) nse "
    with pytest.raises(spgrad.SpgradError, match=text):
        layer(torch.ones(2, 8, dtype=torch.int64))


@pytest.mark.parametrize("lead", [(), (1,), (5,), (2, 3), (0,), (2, 0, 3)])
def test_value_and_gradient_are_those_of_the_dense_layer(layer, lead):
    dense = layer.to_dense()
    x = torch.randn(*lead, 8, dtype=torch.float64, requires_grad=True)
    twin = x.detach().clone().requires_grad_()
    y, expected = layer(x), dense(twin)
    assert_close(y, expected)
    g = torch.randn_like(y)
    y.backward(g)
    expected.backward(g)
    assert_close(x.grad, twin.grad)
    assert_close(layer.bias.grad, dense.bias.grad)
    at = spgrad.sparse_mask(dense.weight.grad, layer.weight)
    assert_close(layer.values.grad, at.values().detach())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["density", "blocks"])
def test_dtypes(kind, dtype):
    layer = made(kind, dtype)
    x = torch.randn(4, 8, dtype=dtype)
    tolerance = {"atol": 2e-2, "rtol": 2e-2} if dtype.itemsize == 2 else {}
    assert_close(layer(x), layer.to_dense()(x), **tolerance)
    assert layer(x).dtype == dtype


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
@pytest.mark.parametrize("kind", ["density", "blocks"])
def test_gradients_of_first_and_second_order(kind, dtype):
    layer = made(kind, dtype)
    x = torch.randn(3, 8, dtype=dtype, requires_grad=True)

    def call(x, values, bias):
        return torch.func.functional_call(layer, {"values": values, "bias": bias}, (x,))

    operands = (x, *(p.detach().requires_grad_() for p in (layer.values, layer.bias)))
    assert torch.autograd.gradcheck(call, operands)
    assert torch.autograd.gradgradcheck(call, operands)


def test_torch_func_grad(layer):
    x = torch.randn(3, 8, dtype=torch.float64)

    def loss(parameters):
        return torch.func.functional_call(layer, parameters, (x,)).square().sum()

    found = torch.func.grad(loss)({k: v.detach() for k, v in layer.named_parameters()})
    layer(x).square().sum().backward()
    assert_close(found["values"], layer.values.grad)


def test_weight_is_the_sparse_tensor(layer):
    assert isinstance(layer.weight, spgrad.SparseTensor)
    assert layer.weight.requires_grad
    assert_close(layer.weight.to_dense(), layer.to_dense().weight)
    blocked = layer.blocksize is not None
    assert layer.weight.layout == (torch.sparse_bsr if blocked else torch.sparse_csr)


def test_the_pattern_is_made_once():
    layer = made("density")
    first = layer.pattern
    layer(torch.ones(2, 8, dtype=torch.float64)).sum().backward()
    layer.double()
    layer.crow_indices.add_(0)  # as DistributedDataParallel writes buffers again
    assert layer.pattern is first


def test_autocast():
    layer = made("density", torch.float32)
    x = torch.randn(4, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(x)
    assert y.dtype == torch.bfloat16
    assert_close(y.float(), layer(x), atol=2e-2, rtol=2e-2)
    y.sum().backward()
    assert layer.values.grad.dtype == torch.float32


@pytest.mark.parametrize("twin", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies(layer, twin):
    x = torch.randn(4, 8, dtype=torch.float64)
    other = twin(layer)
    assert_close(other(x), layer(x))
    before = layer.values.clone()
    with torch.no_grad():
        other.values.add_(1)
    assert torch.equal(layer.values, before)
    assert other.pattern.same_as(layer.pattern)


@pytest.mark.parametrize("kind", ["density", "blocks"])
def test_compiled_code_serves_every_batch_size(kind):
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    layer = made(kind)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(layer, fullgraph=True, backend=counter)
    for n in (1, 2, 3, 7, 20):
        x = torch.randn(n, 8, dtype=torch.float64)
        y = compiled(x)
        assert_close(y, layer(x))
        y.sum().backward()
        found, layer.values.grad = layer.values.grad, None
        layer(x).sum().backward()
        assert_close(found, layer.values.grad)
        layer.values.grad = None
    assert counter.frame_count <= 2


def test_compiled_code_follows_the_elements():
    torch._dynamo.reset()
    layer = made("density")
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x = torch.randn(3, 8, dtype=torch.float64)
    compiled(x)
    generator = torch.Generator().manual_seed(1)
    change = SET(layer, fraction=0.5, generator=generator)
    prune = GradualMagnitude(layer, density=0.1, begin=2, end=2)
    for _ in range(3):
        change.step()
        prune.step()
        assert_close(compiled(x), layer.to_dense()(x))


def test_rows_are_drawn_for_their_number_of_inputs():
    mask = torch.zeros(3, 400, dtype=torch.bool)
    mask[0, :4] = mask[1] = True
    layer = SparseLinear(400, 3, pattern=mask, generator=torch.Generator().manual_seed(0))
    first, rest = layer.values[:4].abs().max(), layer.values[4:].abs().max()
    assert first <= 0.5
    assert 0.045 < rest <= 0.05
    assert layer.bias[2] == 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
def test_numbers_of_every_dtype_have_the_same_mean_square(dtype):
    generator = torch.Generator().manual_seed(0)
    layer = SparseLinear(400, 60, density=0.5, dtype=dtype, generator=generator)
    square = layer.values.abs().square().mean() * layer.values.numel() / 60
    torch.testing.assert_close(square.item(), 1 / 3, rtol=0.03, atol=0)
    for part in torch.view_as_real(layer.values).unbind(-1) if dtype.is_complex else [layer.values]:
        assert 0.45 < (part > 0).double().mean() < 0.55


def test_a_seed_gives_the_same_layer():
    one, two = made("density"), made("density")
    assert torch.equal(one.col_indices, two.col_indices)
    assert torch.equal(one.values, two.values)


@pytest.mark.parametrize(("density", "nse"), [(0.0, 0), (0.05, 2), (0.3, 14), (0.9, 43), (1.0, 48)])
def test_the_density_is_exact(density, nse):
    assert SparseLinear(8, 6, density=density).values.shape == (nse,)
    assert SparseLinear(1, 48, density=density).col_indices.tolist() == [0] * nse


def test_magnitude_decides_which_elements_stay():
    dense = nn.Linear(8, 4, dtype=torch.float64)
    weight = dense.weight.detach()
    half = SparseLinear.from_dense(dense, density=0.5)
    least = weight.abs().flatten().sort().values[16]
    assert_close(half.weight.to_dense().detach(), weight * (weight.abs() >= least))
    groups = SparseLinear.from_dense(dense, n_m=(1, 4)).weight.to_dense().detach()
    assert ((groups.reshape(-1, 4) != 0).sum(1) == 1).all()
    assert_close(groups.reshape(-1, 4).abs().amax(1), weight.reshape(-1, 4).abs().amax(1))
    norms = weight.reshape(2, 2, 2, 4).norm(dim=(1, 3))
    blocks = SparseLinear.from_dense(dense, density=0.25, blocksize=(2, 4))
    at = int(norms.argmax())
    assert blocks.col_indices.tolist() == [at % 2]
    assert_close(blocks.values[0].detach(), weight.reshape(2, 2, 2, 4)[at // 2, :, at % 2])
    assert_close(half.bias, dense.bias)


def test_to_dense_and_back():
    dense = nn.Linear(8, 6, bias=False)
    back = SparseLinear.from_dense(dense, density=1.0).to_dense()
    assert_close(back.weight, dense.weight)
    assert back.bias is None


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({"density": 0.25, "bias": False}, "bias=False, nse=16, density=0.25"),
        ({"pattern": torch.ones(8, 8).tril() > 0}, "bias=True, nse=36, density=0.562"),
        ({"n_m": (1, 4)}, "bias=True, nse=16, density=0.25, n_m=(1, 4)"),
        (
            {"density": 0.5, "blocksize": (2, 4)},
            "bias=True, nse=32, density=0.5, blocksize=(2, 4)",
        ),
    ],
)
def test_what_is_shown_of_a_layer(options, shown):
    layer = SparseLinear(8, 8, **options)
    assert repr(layer) == f"SparseLinear(in_features=8, out_features=8, {shown})"


def test_a_given_pattern_in_any_layout():
    for layout in (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc):
        A = spgrad.from_dense(MASK.double(), layout)
        layer = SparseLinear(8, 6, pattern=A)
        assert torch.equal(layer.weight.to_dense() != 0, MASK)
        other = spgrad.from_dense(MASK.flip(1).double())
        layer.load_state_dict(SparseLinear(8, 6, pattern=other).state_dict())
        assert torch.equal(A.to_dense() != 0, MASK)


def test_it_is_trained():
    torch.manual_seed(0)
    layer = SparseLinear(8, 6, pattern=MASK)
    x, weight = torch.randn(64, 8), torch.randn(6, 8) * MASK
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.05, weight_decay=0)
    for _ in range(400):
        optimizer.zero_grad()
        (layer(x) - x @ weight.T).square().mean().backward()
        optimizer.step()
    assert_close(layer.weight.to_dense().detach(), weight, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "none of them is given; one of `density`"),
        ({"density": 0.5, "n_m": (2, 4)}, "`density` and `n_m` are given; one of"),
        ({"density": 1.5}, "`density` is 1.5; numbers from 0 to 1 are accepted"),
        ({"density": 0.5, "blocksize": (4, 4)}, r"`blocksize` is \(4, 4\) for a weight \(6, 8\)"),
        ({"n_m": (2, 4), "blocksize": (2, 4)}, r"`blocksize` is \(2, 4\) beside n_m"),
        ({"n_m": (2, 3)}, r"`n_m` is \(2, 3\) for 8 columns"),
        ({"n_m": (5, 4)}, r"`n_m` is \(5, 4\) for 8 columns"),
        ({"n_m": (1, 2, 4)}, r"`n_m` is \(1, 2, 4\) for 8 columns"),
        ({"n_m": {2, 4}}, r"`n_m` is \{2, 4\} for 8 columns"),
        ({"pattern": MASK.T}, r"`pattern` has shape \(8, 6\); \(6, 8\) is accepted"),
        ({"pattern": MASK.float()}, "`pattern` is a .* of float32; a SparseTensor or a dense mask"),
        ({"pattern": MASK.tolist()}, "`pattern` is a list; a SparseTensor or a dense mask"),
        ({"density": 0.5, "dtype": torch.int64}, "`dtype` is int64; a floating-point or complex"),
    ],
)
def test_refusals(arguments, text):
    with pytest.raises(spgrad.SpgradError, match=text) as error:
        SparseLinear(8, 6, **arguments)
    assert "spgrad.nn.SparseLinear" in str(error.value)


def test_only_a_linear_layer_is_converted():
    with pytest.raises(TypeError, match=r"`linear` is a ReLU; a torch.nn.Linear is accepted"):
        SparseLinear.from_dense(nn.ReLU(), density=0.5)


def test_an_input_of_another_size_is_refused(layer):
    with pytest.raises(ValueError, match=r"spgrad\.linear"):
        layer(torch.ones(2, 7, dtype=torch.float64))


def test_groups_are_counted_anew_for_groups_of_another_size():
    layer = SparseLinear(8, 4, n_m=(1, 2))
    assert layer.n_m == (1, 2)
    layer.n_m = (1, 4)
    assert layer.n_m == (2, 4)


def test_parameters_are_drawn_by_generators_alone():
    layer = SparseLinear(4, 3, density=0.5)
    says = r"^spgrad\.nn\.SparseLinear\.reset_parameters: `generator` is an int; a torch\.Generator"
    with pytest.raises(TypeError, match=says):
        layer.reset_parameters(0)
    layer.reset_parameters(torch.Generator().manual_seed(0))
    first = layer.values.detach().clone()
    layer.reset_parameters(torch.Generator().manual_seed(0))
    assert torch.equal(layer.values, first)
