"""SparseTensor parameters as dense ones that hold their values, and back; values of layers that are
made of another parameter."""

import copy
import io

import pytest
import torch
from samples import made
from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import weight_norm

import spgrad
from spgrad import support, testing

F64 = torch.float64
layouts = pytest.mark.parametrize("layout", support.ALL)


class Layer(nn.Module):
    def __init__(self, A):
        super().__init__()
        self.weight = nn.Parameter(A)
        self.linear = nn.Linear(3, 2, dtype=A.dtype)

    def forward(self, x):
        return self.weight @ self.linear(x)


def pair(layout="csr", **options):
    """A module, and a copy of it with dense parameters."""
    layer = Layer(made(layout, **options))
    return layer, spgrad.nn.parametrize_values(copy.deepcopy(layer))


def values_of(layer):
    return layer.parametrizations.weight.original0


def steps(layer, x, optimizer=torch.optim.Adam):
    made = optimizer(layer.parameters(), lr=0.1)
    for _ in range(3):
        made.zero_grad()
        layer(x).square().sum().backward()
        made.step()
    return layer(x).detach()


@layouts
def test_it_computes_and_learns_what_the_module_did(layout):
    sparse, dense = pair(layout)
    x = torch.randn(6, 3, dtype=F64)
    assert isinstance(dense.weight, spgrad.SparseTensor)
    assert dense.weight.layout == sparse.weight.layout
    assert type(values_of(dense)) is nn.Parameter
    assert torch.equal(dense(x), sparse(x))
    testing.assert_close(steps(dense, x), steps(sparse, x))
    back = spgrad.nn.unparametrize_values(dense)
    assert type(back) is Layer
    assert {n for n, _ in back.named_parameters()} == {n for n, _ in sparse.named_parameters()}
    assert isinstance(back.weight, nn.Parameter)
    assert back.weight.is_leaf
    testing.assert_close(back(x).detach(), sparse(x).detach())
    testing.assert_close(back.weight.grad.to_dense(), sparse.weight.grad.to_dense())


@layouts
def test_gradients_of_first_and_second_order(layout):
    _, dense = pair(layout)
    x = torch.randn(6, 3, dtype=F64, requires_grad=True)

    def call(v, x):
        return torch.func.functional_call(dense, {"parametrizations.weight.original0": v}, (x,))

    v = values_of(dense).detach().requires_grad_()
    assert torch.autograd.gradcheck(call, (v, x))
    assert torch.autograd.gradgradcheck(call, (v, x))


@pytest.mark.parametrize(
    "case", ["batch", "complex", "empty", "no rows", "uncoalesced", "hybrid", "across in memory"]
)
def test_other_tensors(case):
    A = {
        "batch": lambda: torch.stack([made(seed=0), made(seed=1)]),
        "complex": lambda: made(dtype=torch.complex128),
        "empty": lambda: spgrad.zeros(4, 6, dtype=F64, layout=torch.sparse_csr),
        "no rows": lambda: spgrad.zeros(0, 6, dtype=F64, layout=torch.sparse_csr),
        "uncoalesced": lambda: spgrad.sparse_coo_tensor(
            [[0, 0, 1], [1, 1, 2]], torch.tensor([1.0, 2, 3], dtype=F64), (4, 6)
        ),
        "hybrid": lambda: spgrad.sparse_coo_tensor(
            [[0, 1], [1, 2]], torch.ones(2, 3, dtype=F64), (4, 6, 3)
        ),
        "across in memory": lambda: spgrad.sparse_coo_tensor(
            [[0, 1], [1, 2]], torch.arange(6, dtype=F64).view(3, 2).T, (4, 6, 3)
        ),
    }[case]()
    module = nn.Module()
    module.weight = nn.Parameter(A)
    spgrad.nn.parametrize_values(module)
    (p,) = module.parameters()
    assert p.shape == A._vals.shape
    assert p.is_contiguous()  # as fully_shard asks
    assert torch.equal(module.weight.detach().to_dense(), A.to_dense())
    module.weight.to_dense().abs().sum().backward()
    assert p.grad.shape == p.shape
    spgrad.nn.unparametrize_values(module)
    assert module.weight.pattern is A.pattern
    assert module.weight.grad.pattern is A.pattern


def test_state_dicts_have_values_and_indices():
    sparse, dense = pair()
    state = dense.state_dict()
    prefix = "parametrizations.weight"
    assert set(state) == {
        "linear.weight",
        "linear.bias",
        f"{prefix}.original0",
        f"{prefix}.0.crow_indices",
        f"{prefix}.0.col_indices",
    }
    assert all(type(t) is torch.Tensor for t in state.values())
    assert torch.equal(state[f"{prefix}.0.col_indices"], sparse.weight.col_indices())
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    twin = pair()[1]
    with torch.no_grad():
        values_of(twin).zero_()
    twin.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(values_of(twin), values_of(dense))
    columns = sparse.weight.col_indices().clone()
    for key in list(state):
        state[key].detach().zero_()  # as a reader of a checkpoint does, in place
    assert torch.equal(dense.weight.detach().col_indices(), columns)


@layouts
def test_a_state_of_other_elements_is_refused(layout):
    _, dense = pair(layout)
    _, other = pair(layout, seed=3)
    with pytest.raises(RuntimeError, match=r"lists other elements than .*parametrize_values"):
        dense.load_state_dict(other.state_dict())
    with pytest.raises(RuntimeError, match=r"Missing key.*parametrizations\.weight\.0"):
        dense.load_state_dict({k: v for k, v in other.state_dict().items() if "indices" not in k})
    state = dense.state_dict()
    state["parametrizations.weight.0.what"] = torch.ones(1)
    with pytest.raises(RuntimeError, match=r"Unexpected key.*what"):
        dense.load_state_dict(state)
    dense.load_state_dict({"linear.bias": torch.ones(2)}, strict=False)


def test_moving_copying_and_freezing():
    _, dense = pair()
    x = torch.randn(6, 3, dtype=F64)
    whole = io.BytesIO()
    torch.save(dense.linear, whole)
    dense.float()
    assert dense.weight.dtype == torch.float32
    assert dense.weight.pattern is dense.parametrizations.weight[0].elements.pattern
    assert copy.deepcopy(dense).weight.pattern is dense.weight.pattern
    dense.to("meta")
    assert dense.weight.device.type == "meta"
    assert dense.weight.pattern.device.type == "meta"
    _, shared = pair()
    shared.share_memory()
    assert shared.weight.detach().is_shared()
    _, frozen = pair()
    frozen.requires_grad_(False)
    assert not frozen.weight.requires_grad
    spgrad.nn.unparametrize_values(frozen)
    assert [n for n, _ in frozen.named_parameters()] == ["weight", "linear.weight", "linear.bias"]
    assert not frozen.weight.requires_grad
    frozen(x)


def test_a_parameter_in_several_places_stays_one():
    A = nn.Parameter(made(shape=(4, 4)))
    net = nn.ModuleList([nn.ParameterList([A]), nn.ParameterDict({"B": A}), nn.Module()])
    net[2].A = A
    spgrad.nn.parametrize_values(net)
    (p,) = net.parameters()
    x = torch.ones(4, dtype=F64)
    (net[0][0] @ (net[1]["B"] @ (net[2].A @ x))).sum().backward()
    wanted = made(shape=(4, 4)).requires_grad_()
    (wanted @ (wanted @ (wanted @ x))).sum().backward()
    testing.assert_close(p.grad, wanted.grad.values())
    spgrad.nn.unparametrize_values(net)
    assert net[0][0] is net[1]["B"] is net[2].A
    assert len(list(net.parameters())) == 1


def test_state_as_distributed_checkpoints_read_it():
    """torch looks up each key of the state as attributes of modules."""
    state_dict = pytest.importorskip("torch.distributed.checkpoint.state_dict")
    _, dense = pair()
    state = state_dict.get_model_state_dict(dense)
    assert state.keys() == dense.state_dict().keys()
    _, other = pair()
    values_of(other).data.zero_()
    state_dict.set_model_state_dict(other, state)
    assert torch.equal(values_of(other), values_of(dense))


def test_a_gradient_that_is_there_comes_along():
    layer = Layer(made("csr"))
    layer(torch.randn(6, 3, dtype=F64)).sum().backward()
    before = layer.weight.grad
    assert torch.equal(values_of(spgrad.nn.parametrize_values(layer)).grad, before.values())


@pytest.mark.parametrize("swap", [False, True])
def test_what_is_assigned_stays_as_it_is(swap, monkeypatch):
    """Also where torch swaps a parameter with the new one, instead of writing to it."""
    monkeypatch.setattr(torch.__future__, "_swap_module_params_on_conversion", swap)
    _, dense = pair()
    frozen = nn.Parameter(torch.rand(dense.weight.nse, dtype=F64), requires_grad=False)
    given = frozen.clone()
    dense.weight = spgrad.from_values(frozen, dense.weight)
    assert torch.equal(values_of(dense), given)
    assert values_of(dense).requires_grad
    assert torch.equal(frozen, given)
    assert not frozen.requires_grad


def test_another_parametrization_on_top_stays():
    class Twice(nn.Module):
        def forward(self, A):
            return A * 2

    sparse, dense = pair()
    x = torch.randn(6, 3, dtype=F64)
    parametrize.register_parametrization(dense, "weight", Twice())
    testing.assert_close(dense(x).detach(), 2 * sparse(x).detach())
    with pytest.raises(RuntimeError, match="has 2 parametrizations of 'weight'"):
        spgrad.nn.unparametrize_values(dense)


def test_what_is_no_module_is_refused():
    for function in (spgrad.nn.parametrize_values, spgrad.nn.unparametrize_values):
        with pytest.raises(TypeError, match=r"`module` is .*; a torch\.nn\.Module is accepted"):
            function(made())


def test_code_that_needs_dense_parameters_takes_it():
    _, dense = pair()
    vector = nn.utils.parameters_to_vector(dense.parameters())
    nn.utils.vector_to_parameters(vector * 2, dense.parameters())
    assert "csr, shape=(4, 6)" in repr(dense)


def test_a_copy_is_undone_and_the_first_stays():
    layer = pair()[1]
    x = torch.randn(layer.weight.shape[1], 3, dtype=F64)
    wanted = layer(x)
    other = spgrad.nn.unparametrize_values(copy.deepcopy(layer))
    assert isinstance(other.weight, spgrad.SparseTensor)
    assert type(other) is Layer
    torch.testing.assert_close(layer(x), wanted)
    torch.testing.assert_close(other(x), wanted)
    torch.testing.assert_close(copy.deepcopy(layer)(x), wanted)


def held_by(layer):
    """What `values` is made of."""
    held = layer.get_submodule("parametrizations.values")
    assert isinstance(held, parametrize.ParametrizationList)
    return held


class Positive(nn.Module):
    """Values that are positive whatever the parameter is."""

    def forward(self, free):
        return nn.functional.softplus(free)

    def right_inverse(self, values):
        return values.abs().add(1e-3).expm1().log()


def positive_layer(**kwargs):
    torch.manual_seed(0)
    layer = spgrad.nn.SparseLinear(6, 4, dtype=torch.float64, **(kwargs or {"density": 0.4}))
    parametrize.register_parametrization(layer, "values", Positive())
    return layer


@pytest.mark.parametrize("kwargs", [{"density": 0.4}, {"density": 0.5, "blocksize": (2, 3)}])
def test_the_gradient_arrives_at_what_the_values_are_made_of(kwargs):
    layer = positive_layer(**kwargs)
    x = torch.randn(3, 6, dtype=torch.float64)
    names = [name for name, _ in layer.named_parameters()]
    assert sorted(names) == ["bias", "parametrizations.values.original"]
    free = held_by(layer).original
    assert (layer.values > 0).all()
    torch.testing.assert_close(
        layer(x), nn.functional.linear(x, layer.weight.to_dense(), layer.bias)
    )
    (got,) = torch.autograd.grad(layer(x).square().sum(), free)
    dense = spgrad.from_values(nn.functional.softplus(free), layer.weight).to_dense()
    loss = nn.functional.linear(x, dense, layer.bias).square().sum()
    torch.testing.assert_close(got, torch.autograd.grad(loss, free)[0])


def test_a_step_of_an_optimizer_changes_the_output_and_keeps_the_values_positive():
    layer = positive_layer()
    x = torch.randn(3, 6, dtype=torch.float64)
    optimizer = torch.optim.SGD(layer.parameters(), lr=10)
    before = layer(x).square().sum()
    before.backward()
    optimizer.step()
    assert (layer.values > 0).all()
    assert layer(x).square().sum() != before


def test_a_copy_and_a_state_keep_the_parametrization():
    layer = positive_layer()
    x = torch.randn(3, 6, dtype=torch.float64)
    torch.testing.assert_close(copy.deepcopy(layer)(x), layer(x), rtol=0, atol=0)
    other = positive_layer(pattern=layer.weight)
    other.load_state_dict(layer.state_dict())
    torch.testing.assert_close(other(x), layer(x), rtol=0, atol=0)


def test_functional_call_and_compile_see_it():
    layer = positive_layer()
    x = torch.randn(3, 6, dtype=torch.float64)
    state = {name: p.detach() + 1 for name, p in layer.named_parameters()}
    got = torch.func.functional_call(layer, state, x)
    other = positive_layer(pattern=layer.weight)
    other.load_state_dict(state, strict=False)
    torch.testing.assert_close(got, other(x))
    torch.testing.assert_close(torch.compile(layer, backend="aot_eager")(x), layer(x))


def test_removing_it_leaves_the_values_as_they_are_and_the_layer_as_it_was():
    layer = positive_layer()
    values = layer.values.detach().clone()
    parametrize.remove_parametrizations(layer, "values")
    assert isinstance(layer.values, nn.Parameter)
    torch.testing.assert_close(layer.values.detach(), values, rtol=0, atol=0)
    layer.set_weight(spgrad.eye(4, 6, dtype=torch.float64, layout=torch.sparse_csr))
    assert layer.values.numel() == 4


def test_weight_norm_has_a_direction_and_a_length_of_each_value():
    layer = weight_norm(spgrad.nn.SparseLinear(6, 4, density=0.4), "values")
    assert held_by(layer).original0.shape == layer.values.shape
    layer(torch.ones(6)).sum().backward()
    for parameter in held_by(layer).parameters():
        assert parameter.grad is not None
        assert parameter.grad.shape == layer.values.shape


def test_other_parameters_can_be_parametrized_too():
    layer = spgrad.nn.SparseLinear(6, 4, density=0.4)
    parametrize.register_parametrization(layer, "bias", nn.ReLU())
    assert (layer.bias >= 0).all()


def test_other_elements_are_refused_before_anything_changes():
    layer = positive_layer()
    x = torch.randn(3, 6, dtype=torch.float64)
    before, state = layer(x), copy.deepcopy(layer.state_dict())
    with pytest.raises(spgrad.SpgradError, match="remove_parametrizations"):
        layer.set_weight(spgrad.eye(4, 6, dtype=torch.float64, layout=torch.sparse_csr))
    with pytest.raises(spgrad.SpgradError, match="remove_parametrizations"):
        spgrad.nn.sparsity.move(layer, torch.ones(4, 6) > 0)
    state["col_indices"] = state["col_indices"].flip(0)
    with pytest.raises(RuntimeError, match="remove_parametrizations"):
        layer.load_state_dict(state)
    torch.testing.assert_close(layer(x), before, rtol=0, atol=0)


@pytest.mark.parametrize("wrong", [3, torch.eye(4, 6)])
def test_a_weight_that_is_not_sparse_is_refused(wrong):
    layer = spgrad.nn.SparseLinear(6, 4, density=0.4)
    with pytest.raises(TypeError, match=r"set_weight.*`weight` is .*SparseTensor"):
        layer.set_weight(wrong)


def test_parametrizations_of_others_stay():
    module = nn.Module()
    module.weight, module.bias = nn.Parameter(spgrad.eye(3)), nn.Parameter(-torch.ones(3))
    parametrize.register_parametrization(module, "bias", nn.ReLU())
    spgrad.nn.unparametrize_values(spgrad.nn.parametrize_values(module))
    assert isinstance(module.weight, spgrad.SparseTensor)
    assert not parametrize.is_parametrized(module, "weight")
    assert parametrize.is_parametrized(module, "bias")
    assert module.bias.tolist() == [0, 0, 0]
