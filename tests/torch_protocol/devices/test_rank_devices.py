"""One device for each rank: parts of matrices and products of them on a device that is not there.

The device is meta, because torch without CUDA does not index fake tensors there in Python. The
process group sends nothing.
"""

import pytest
import torch

pytest.importorskip("numpy")

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.testing._internal.distributed.fake_pg import FakeStore

import spgrad
from spgrad import testing
from spgrad.core.pattern import Pattern
from spgrad.distributed import create, products
from spgrad.distributed.exchange import Exchange
from spgrad.distributed.plan import Part, Plan
from spgrad.distributed.shares import Shares

ROWS, COLUMNS, FAR = 5, 5, 3


@pytest.fixture
def group():
    """A process group of one process, whose collectives do nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def csr(device, lines, width):
    """A CSR pattern on a device, with every element; there are no indices to read."""
    sizes = lines + 1, lines * width
    indices = tuple(torch.empty(n, dtype=torch.int64, device=device) for n in sizes)
    return Pattern(torch.sparse_csr, (lines, width), indices)


def plan_on(device, group, far_rows):
    """The plan of one of several processes: rows that travel, and entries that meet them."""
    own = csr(device, ROWS, COLUMNS)
    lines = ROWS if far_rows is None else len(far_rows)
    far = csr(device, lines, FAR)
    rows = None if far_rows is None else torch.empty(lines, dtype=torch.int64, device=device)
    ids, starts = (torch.empty(n, dtype=torch.int64, device=device) for n in (FAR, ROWS))
    exchange = Exchange(group, ROWS, ids, [FAR], [FAR], FAR)
    shares = Shares([0, ROWS], 0)
    mesh = DeviceMesh("meta", [0])
    entries = [own.nse + far.nse]
    return Plan(mesh, shares, shares, own, (Part(far, rows, 0),), ids, starts, exchange, entries, 1)


@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize("far_rows", [None, [0, 3]])
def test_products_and_gradients_stay_on_the_device(group, far_rows, adjoint):
    plan = plan_on("meta", group, far_rows)
    values = torch.empty(plan.nse, device="meta", requires_grad=True)
    x = torch.empty(ROWS, 4, device="meta", requires_grad=True)
    y = products.product(values, x, plan, adjoint)
    assert (y.device.type, tuple(y.shape)) == ("meta", (ROWS, 4))
    y.sum().backward()
    for t in (values, x):
        assert (t.grad.device.type, t.grad.shape) == ("meta", t.shape)


@pytest.mark.parametrize("partition", ["nse", torch.tensor([0, 0, 0, 0, 0])])
def test_parts_move_to_the_devices_of_the_mesh(group, partition, monkeypatch):
    """They are sent from there: NCCL sends nothing that the CPU has."""
    built = []
    # which reads numbers of the device
    monkeypatch.setattr(create, "agree", lambda group, check, device: check())
    monkeypatch.setattr(create, "_build", lambda mesh, parts: built.append(parts))
    A = testing.random_sparse((5, 5), torch.sparse_csr)
    spgrad.distributed.distribute(A, DeviceMesh("meta", [0]), partition)
    tensors = [t for t in built[0] if isinstance(t, torch.Tensor)]
    assert len(tensors) >= 4
    assert {t.device.type for t in tensors} == {"meta"}
