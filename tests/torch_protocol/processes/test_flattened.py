"""Sparse buffers of all kinds among dense ones, as DistributedDataParallel sends them."""

import pytest
import torch
import torch.distributed as dist
from samples import made
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import spgrad
from spgrad.torch_protocol.processes.flattened import Flat, Received

CSR = {"layout": torch.sparse_csr}
BUFFERS = {
    "no rows": lambda: [spgrad.zeros(0, 5, **CSR), torch.ones(3), spgrad.eye(3)],
    "no elements": lambda: [torch.ones(2), spgrad.zeros(4, 5, **CSR), spgrad.eye(3)],
    "no elements, alone": lambda: [spgrad.zeros(4, 5, **CSR)],
    "dtypes": lambda: [
        *(made(dtype=t) for t in (torch.float32, torch.complex64, torch.int64)),
        made() != 0,
        torch.ones(3, dtype=torch.int64),
        torch.ones(3, dtype=torch.complex64),
    ],
    "a batch": lambda: [torch.stack([made(seed=0), made(seed=1)])],
    "hybrid": lambda: [spgrad.sparse_coo_tensor([[0, 1], [1, 0]], torch.ones(2, 3), (2, 2, 3))],
    "repeated elements": lambda: [spgrad.sparse_coo_tensor([[0, 0], [1, 1]], [1.0, 2.0], (2, 2))],
    "values with gaps": lambda: [
        spgrad.from_values(torch.arange(8.0)[::2], spgrad.eye(4)),
        torch.ones(2),
    ],
    "larger than memory": lambda: [spgrad.eye(10**6), torch.ones(3), spgrad.eye(10**6)],
}


@pytest.fixture(scope="module", autouse=True)
def gloo(tmp_path_factory):
    start = f"file://{tmp_path_factory.mktemp('gloo')}/start"
    dist.init_process_group("gloo", init_method=start, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def numbers(t):
    return t._vals if isinstance(t, spgrad.SparseTensor) else t


@pytest.mark.parametrize("case", BUFFERS)
def test_buffers_keep_what_they_hold(case):
    net = nn.Linear(2, 2)
    buffers = BUFFERS[case]()
    for i, buffer in enumerate(buffers):
        net.register_buffer(f"b{i}", buffer)
    before = [numbers(buffer).clone() for buffer in buffers]
    model = DistributedDataParallel(net)
    model(torch.ones(1, 2)).sum().backward()
    model(torch.ones(1, 2))
    for buffer, wanted in zip(net.buffers(), before, strict=True):
        assert torch.equal(numbers(buffer), wanted)


def test_a_compiled_model_sends_its_buffers():
    net = nn.Linear(2, 2)
    net.register_buffer("A", made())
    model = torch.compile(DistributedDataParallel(net), backend="eager")
    model(torch.ones(1, 2)).sum().backward()
    assert torch.equal(net.weight.grad, torch.ones(2, 2))
    torch.compiler.reset()


def test_a_state_that_rank_0_sends_has_no_sparse_tensors():
    """Torch lets the other ranks wait for a dense tensor."""
    net = nn.Linear(2, 2)
    net.register_buffer("A", made())
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    with pytest.raises(spgrad.UnsupportedError, match="Leave out broadcast_from_rank0"):
        set_model_state_dict(net, net.state_dict(), options=options)
    set_model_state_dict(net, net.state_dict(), options=StateDictOptions(full_state_dict=True))


def test_parameters_are_not_flattened():
    net = nn.Linear(2, 2)
    net.sparse = nn.Parameter(made())
    with pytest.raises(spgrad.UnsupportedError, match=r"Call spgrad\.nn\.parametrize_values"):
        DistributedDataParallel(net)

    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.sparse = net.sparse

        def forward(self, x):
            return (self.sparse * x).sum()

    later = DistributedDataParallel(Sum(), init_sync=False)
    with pytest.raises(spgrad.UnsupportedError, match=r"Call spgrad\.nn\.parametrize_values"):
        later(torch.tensor(2.0)).backward()
    net.sparse.requires_grad_(False)
    DistributedDataParallel(net)  # as a parameter that is not trained it is only sent


@pytest.mark.parametrize("name", ["matmul", "mul"])
def test_a_dtensor_beside_a_sparse_tensor_is_named(name):
    x = distribute_tensor(torch.ones(3, 1), init_device_mesh("cpu", (1,)))
    with pytest.raises(spgrad.UnsupportedError, match=rf"^spgrad\.{name}: `other` is a DTensor"):
        getattr(torch, name)(spgrad.eye(3), x)
    with pytest.raises(spgrad.UnsupportedError, match=r"`tensors\[1\]` is a .* tensors\[1\]\.full"):
        spgrad.multi_dot([spgrad.eye(3), x])


def test_only_torch_itself_flattens():
    """`A.view(-1)` is the view of spgrad, and code that is no broadcast gets nothing to hold."""
    A = spgrad.eye(3)
    assert isinstance(A.view(-1), spgrad.SparseTensor)
    with torch._C.DisableTorchFunctionSubclass():
        flat = A.view(-1)
    assert type(flat) is Flat
    assert flat.shape == (9,)
    with pytest.raises(spgrad.UnsupportedError, match="has no form for a SparseTensor"):
        flat.add(1)
    received = torch.ops.aten.view.default(flat, [3, 3])
    assert type(received) is Received
    with torch._C.DisableTorchFunctionSubclass():
        B = spgrad.zeros_like(A)
        assert torch.ops.aten.copy_.default(B, received) is B
        assert torch.equal(B.values(), torch.ones(3))
        with pytest.raises(spgrad.UnsupportedError, match="has no form for a SparseTensor"):
            torch.ops.aten.add_.Tensor(B, received)
    with torch._C.DisableTorchFunctionSubclass(), pytest.raises(spgrad.UnsupportedError):
        A.view(9)
