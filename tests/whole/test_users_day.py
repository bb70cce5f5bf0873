"""A training script from its data to its exported model, without special code for sparse tensors.

Each step is taken with a SparseTensor as a buffer, as a parameter, and with its values as the
parameter, and compared with a dense matrix of the same elements. Several processes are in
tests/torch_protocol/processes, data loaders in tests/data.
"""

import copy
import io
import shutil

import pytest
import torch
from samples import made
from torch import nn
from torch.optim import swa_utils
from torch.utils.checkpoint import checkpoint

import spgrad
from spgrad import testing

F64 = torch.float64
KINDS = ["buffer", "parameter", "values"]
kinds = pytest.mark.parametrize("kind", KINDS)
# Warnings of torch: for anomaly mode, for modules that transforms and compilers load, when vmap
# takes items one by one, and when it compiles code after `backward`.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
    pytest.mark.filterwarnings("ignore:.torch.jit.*is deprecated"),
    pytest.mark.filterwarnings("ignore:There is a performance drop"),
]


def close(got, wanted):
    torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-12)


class Model(nn.Module):
    """One layer of a graph network. `mask` is None for a sparse matrix."""

    def __init__(self, A, mask=None, *, trained):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(3, 2, dtype=A.dtype)
        self.mask = mask
        if trained:
            self.A = nn.Parameter(A)
        else:
            self.register_buffer("A", A)

    def forward(self, x):
        A = self.A if self.mask is None else self.A * self.mask
        return A @ self.linear(x).relu()


def model(kind, dtype=F64):
    made_ = Model(made("csr", (6, 6)).to(dtype), trained=kind != "buffer")
    return spgrad.nn.parametrize_values(made_) if kind == "values" else made_


def twin(kind, dtype=F64):
    """The same with a dense matrix that has no elements elsewhere."""
    A = made("csr", (6, 6)).to(dtype)
    return Model(A.to_dense(), testing.mask_of(A.pattern), trained=kind != "buffer")


def inputs(steps=4, dtype=F64):
    return torch.randn(steps, 6, 3, dtype=dtype, generator=torch.Generator().manual_seed(1))


class Run:
    """A model with all that stands around it in a script."""

    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, 0.8)
        self.scaler = torch.amp.GradScaler("cpu")
        average = swa_utils.get_ema_multi_avg_fn(0.9)
        self.ema = swa_utils.AveragedModel(model, multi_avg_fn=average)
        self.parts = (self.model, self.optimizer, self.scheduler, self.scaler, self.ema)

    def step(self, x):
        self.optimizer.zero_grad()
        loss = self.model(x).square().mean()
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        self.ema.update_parameters(self.model)
        return torch.stack([loss.detach(), norm])

    def states(self):
        return [part.state_dict() for part in self.parts]


def saved(state):
    """What a file gives back."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@kinds
def test_steps_and_averages(kind):
    """AdamW, a schedule, scaled and clipped gradients, and an average of the models."""
    run, dense = Run(model(kind)), Run(twin(kind))
    for x in inputs():
        close(run.step(x), dense.step(x))
    close(run.ema(x).detach(), dense.ema(x).detach())
    close(copy.deepcopy(run.model)(x).detach(), dense.model(x).detach())


@kinds
def test_a_run_is_taken_up_again(kind):
    """From the states of a file, as if it had never stopped."""
    *first, second, third = inputs()
    run, later = Run(model(kind)), Run(model(kind))
    for x in first:
        run.step(x)
    for part, state in zip(later.parts, saved(run.states()), strict=True):
        part.load_state_dict(state)
    for x in (second, third):
        assert torch.equal(later.step(x), run.step(x))
    assert torch.equal(later.ema(x), run.ema(x))


def gradients(model, x, call=None):
    """Of all parameters, a SparseTensor's by its dense form."""
    model.zero_grad()
    (model if call is None else call)(x).square().sum().backward()
    return [p.grad.to_dense() for p in model.parameters()]


@kinds
def test_checkpointed_layers_hooks_and_anomaly_mode(kind):
    net, x = model(kind), inputs()[0]
    wanted = gradients(net, x)
    recomputed = gradients(net, x, lambda x: checkpoint(net, x, use_reentrant=False))
    close(recomputed, wanted)
    seen = []
    net.register_forward_hook(lambda *_: seen.append("forward"))
    net.register_full_backward_hook(lambda *_: seen.append("backward"))
    for p in net.parameters():
        p.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.shape))
    with torch.autograd.detect_anomaly():
        close(gradients(net, x.clone().requires_grad_()), wanted)
    assert seen[0] == "forward"
    assert "backward" in seen
    assert len(seen) == 2 + len(list(net.parameters()))


@kinds
def test_autocast(kind):
    net, dense = (make(kind, torch.float32) for make in (model, twin))
    x = inputs(dtype=torch.float32)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, wanted = net(x), dense(x)
    assert y.dtype == wanted.dtype == torch.bfloat16
    torch.testing.assert_close(y, wanted, rtol=0.02, atol=0.02)
    y.float().sum().backward()
    assert {p.grad.dtype for p in net.parameters()} == {torch.float32}


@kinds
def test_compiled_modules_and_training_steps(kind):
    net, x = model(kind), inputs()
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    close(gradients(net, x[0], compiled), gradients(net, x[0]))
    losses = []
    for wrap in (lambda step: step, lambda step: torch.compile(step, backend="aot_eager")):
        net = model(kind)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)

        def step(x, net=net, optimizer=optimizer):
            optimizer.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        losses.append(torch.stack([*map(wrap(step), x)]))
    close(*losses)


@kinds
def test_exported_programs_from_a_file(kind):
    net, x = model(kind), inputs()[0]
    file = io.BytesIO()
    torch.export.save(torch.export.export(net, (x,)), file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    close(loaded(x).detach(), net(x).detach())


@kinds
def test_exported_programs_are_for_inference(kind):
    """Their graph has kernels in place of the functions with gradients; torch warns of that."""
    net, x = model(kind), inputs()[0]
    exported = torch.export.export(net, (x,)).module()
    with pytest.warns(UserWarning, match="spgrad::spmm: an autograd kernel was not registered"):
        exported(x).sum().backward()
    assert all(p.grad is None for p in exported.parameters())
    gradients(net, x)
    assert all(p.grad is not None for p in net.parameters())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(shutil.which("g++") is None, reason="AOTInductor calls a C++ compiler")
def test_packages_of_aot_inductor(tmp_path):
    """A sparse buffer and value parameters, in a library without Python code of the module."""

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.trained = model("values")
            self.register_buffer("B", made("coo", (6, 6), seed=1))

        def forward(self, x):
            return self.B @ self.trained(x)

    net, x = Both(), inputs()[0]
    with torch.no_grad():
        exported = torch.export.export(net, (x,))
        file = str(tmp_path / "net.pt2")
        torch._inductor.aoti_compile_and_package(exported, package_path=file)
        close(torch._inductor.aoti_load_package(file)(x), net(x))


@pytest.mark.parametrize("kind", ["buffer", "parameter"])
def test_onnx_is_refused_with_the_way_out(kind, monkeypatch):
    """By torch's exporter of today and by that of TorchScript."""
    net, x = model(kind), inputs()[0]
    with pytest.warns(), pytest.raises(spgrad.UnsupportedError, match=r"ONNX.*A\.to_dense\(\)"):
        torch.onnx.export(net, (x,), io.BytesIO(), dynamo=False)
    # as torch.onnx.export does, which needs a package of its own for what comes after this
    monkeypatch.setattr(torch.onnx, "is_in_onnx_export", lambda: True)
    with pytest.raises(spgrad.UnsupportedError, match=r"ONNX.*A\.to_dense\(\)"):
        torch.export.export(net, (x,))


LAYERS = {
    "GraphConv": lambda: spgrad.nn.GraphConv(4, 3),
    "GraphAttention": lambda: spgrad.nn.GraphAttention(4, 3, 2),
    "SAGEConv": lambda: spgrad.nn.SAGEConv(4, 3),
}


@pytest.mark.parametrize("options", [{"mode": "max"}, {"max_norm": 0.5}], ids=str)
def test_onnx_is_refused_for_bags_that_are_not_those_of_torch(options, monkeypatch):
    bags = spgrad.nn.SparseEmbeddingBag(8, 4, **options)
    monkeypatch.setattr(torch.onnx, "is_in_onnx_export", lambda: True)
    with pytest.raises(spgrad.UnsupportedError, match=r"ONNX.*torch\.nn\.EmbeddingBag"):
        torch.export.export(bags, (torch.tensor([[1, 2]]),))


@pytest.mark.parametrize("name", LAYERS)
def test_onnx_is_refused_for_graphs(name):
    """By the exporter of TorchScript too, whose tracer takes flags and numbers for tensors."""
    A = spgrad.from_edges(torch.tensor([[0, 1, 2], [1, 2, 0]]))
    with pytest.warns(), pytest.raises(spgrad.UnsupportedError, match=r"ONNX.*A\.to_dense\(\)"):
        torch.onnx.export(LAYERS[name](), (torch.ones(3, 4), A), io.BytesIO(), dynamo=False)


SCRIPTED = LAYERS | {
    "GINConv": lambda: spgrad.nn.GINConv(nn.Linear(4, 3)),
    "SparseLinear": lambda: spgrad.nn.SparseLinear(8, 4, density=0.5),
    "SparseAttention": lambda: spgrad.nn.SparseAttention(8, 2),
    "SparseEmbeddingBag": lambda: spgrad.nn.SparseEmbeddingBag(5, 2),
}


@pytest.mark.parametrize("name", SCRIPTED)
def test_torchscript_is_refused_with_the_way_out(name):
    module = nn.Sequential(nn.ReLU(), SCRIPTED[name]())
    with pytest.raises(spgrad.UnsupportedError, match=f"torch.jit.script.*{name}.*torch.export"):
        torch.jit.script(module)


@pytest.mark.parametrize("kind", ["values", "layer"])
def test_onnx_is_refused_for_values_that_are_parameters(kind, monkeypatch):
    net, x = spgrad.nn.SparseLinear(8, 4, density=0.5), torch.randn(2, 8)
    if kind == "values":
        net, x = model(kind), inputs()[0]
    monkeypatch.setattr(torch.onnx, "is_in_onnx_export", lambda: True)
    with pytest.raises(spgrad.UnsupportedError, match=r"ONNX.*A\.to_dense\(\)"):
        torch.export.export(net, (x,))


@pytest.mark.parametrize("kind", ["buffer", "values"])
def test_transforms_of_modules(kind):
    """Gradients for each item of a batch, and Jacobians, by `functional_call`."""
    net, xs = model(kind), inputs()
    parameters = {name: p.detach() for name, p in net.named_parameters()}

    def call(parameters, x):
        return torch.func.functional_call(net, parameters, (x,))

    def loss(parameters, x):
        return call(parameters, x).square().sum()

    each = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, xs)
    for i, x in enumerate(xs):
        close([g[i] for g in each.values()], gradients(net, x))
    close(
        torch.func.vmap(call, (None, 0))(parameters, xs), torch.stack([net(x).detach() for x in xs])
    )
    jacobian = torch.func.jacrev(call)(parameters, xs[0])
    ahead = torch.func.jacfwd(call)(parameters, xs[0])
    for name in parameters:
        close(jacobian[name], ahead[name])


def test_sparse_parameters_in_transforms_are_refused_with_the_way_out():
    net, x = model("parameter"), inputs()[0]
    parameters = dict(net.named_parameters())
    swapped = {**parameters, "A": net.A.detach() * 2}
    close(torch.func.functional_call(net, swapped, (x,)), 2 * net(x))

    def loss(parameters):
        return torch.func.functional_call(net, parameters, (x,)).sum()

    with pytest.raises(spgrad.UnsupportedError, match=r"spgrad\.nn\.parametrize_values\(module\)"):
        torch.func.grad(loss)(parameters)
