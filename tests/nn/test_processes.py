"""DistributedDataParallel and fully_shard take layers with sparse weights as any others."""

import linecache

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close

import spgrad
from spgrad.nn import SparseLinear
from spgrad.nn.sparsity import SET, RigL, move


def test_two_processes(tmp_path):
    mp.spawn(process, (f"file://{tmp_path}/meeting",), nprocs=2)


def process(rank, meeting):
    """One of two, each with data and, before the first step, elements of its own."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    torch.manual_seed(rank)
    x = torch.randn(4, 16)
    layer = SparseLinear(16, 8, density=0.25)
    parallel = DistributedDataParallel(layer)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
    change = RigL(parallel, optimizer, end=100, every=3)
    assert change.reduce.func is dist.all_reduce
    for step in range(1, 8):
        first = layer.pattern
        optimizer.zero_grad()
        parallel(x).square().sum().backward()
        assert layer.pattern is first  # though the buffers are sent before each step
        optimizer.step()
        assert change.step() == (step % 3 == 0)
        assert_close_in_all(layer.col_indices)
        assert_close_in_all(layer.values.detach())
    random_places(rank, parallel, optimizer)
    sharded(rank, x)
    dist.destroy_process_group()


def random_places(rank, parallel, optimizer):
    """The same in all processes, though their default generators differ."""
    layer = parallel.module
    change = SET(parallel, optimizer, fraction=0.5)
    for _ in range(2):
        before = layer.pattern
        assert change.step()
        assert not layer.pattern.same_as(before)
        assert_close_in_all(layer.col_indices)
    seeds = {SET(parallel, optimizer).generator.initial_seed() for _ in range(8)}
    assert len(seeds) == 8
    assert max(seeds) > 2**56  # of 2**62
    resumed = SET(parallel, optimizer, generator=torch.Generator().manual_seed(3), fraction=0.5)
    resumed.load_state_dict(change.state_dict())
    resumed.step()
    assert_close_in_all(layer.col_indices)
    with pytest.raises(spgrad.SpgradError, match="SET: `generator` is in another state in other"):
        SET(parallel, optimizer, generator=torch.Generator().manual_seed(rank))
    for kind in (SET, RigL):
        text = f"sparsity.{kind.__name__}: each of 2 processes cho"
        with pytest.warns(UserWarning, match=text) as told:
            kind(layer, end=9)
        (place,) = {(warning.filename, warning.lineno) for warning in told}
        assert linecache.getline(*place).strip() == "kind(layer, end=9)"
    kept = layer.pattern
    change = RigL(parallel, end=9, every=1)
    if rank == 0:  # one process without a gradient lets all keep their elements
        parallel.module(torch.ones(2, 16)).sum().backward()
    change.step()
    assert layer.pattern is kept


def sharded(rank, x):
    alone = SparseLinear(16, 8, density=0.25, generator=torch.Generator().manual_seed(1))
    layer = SparseLinear(16, 8, density=0.25, generator=torch.Generator().manual_seed(1))
    fully_shard(layer, mesh=init_device_mesh("cpu", (2,)))
    y = layer(x)
    assert_close(y, alone(x))
    y.square().mean().backward()
    alone(x).square().mean().backward()
    mean = alone.values.grad
    dist.all_reduce(mean)
    assert_close(layer.values.grad.to_local(), (mean / 2).chunk(2)[rank])
    optimizer = torch.optim.Adam(layer.parameters())
    optimizer.step()
    for call in (
        lambda: RigL(layer, optimizer, end=9),
        lambda: move(layer, torch.ones(8, 16, dtype=torch.bool)),
    ):
        with pytest.raises(spgrad.UnsupportedError, match="values are a DTensor"):
            call()


def assert_close_in_all(t):
    found = [torch.empty_like(t) for _ in range(2)]
    dist.all_gather(found, t)
    assert_close(*found)
