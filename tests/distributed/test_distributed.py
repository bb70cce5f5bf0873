"""Sharded matrices in 1, 2 and 4 processes against one matrix in one process."""

import importlib
import os
import subprocess
import sys

import argument_cases
import group
import pytest
import torch
import torch.distributed as dist
from torch import multiprocessing

import spgrad
from spgrad.distributed import exchange, plan
from spgrad.distributed.exchange import Message, messages

WORLDS = (1, 2, 4)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("about", group.FAMILIES)
def test_as_in_one_process(about, world, tmp_path):
    """Many cases in one group of processes, because starting one takes seconds."""
    multiprocessing.spawn(group.run, args=(world, about, str(tmp_path)), nprocs=world)
    failures = [torch.load(tmp_path / f"{rank}.pt") for rank in range(world)]
    told = [
        f"{name}, rank {rank}:\n{text}"
        for rank, failed in enumerate(failures)
        for name, text in failed.items()
    ]
    assert not told, "\n".join(told)
    assert not multiprocessing.active_children()


def test_checkpoints_are_loaded_by_another_number_of_processes(tmp_path):
    """Saved by 4, with the state of an optimizer; loaded by 2, shared out in another way."""
    for world in (4, 2):
        multiprocessing.spawn(argument_cases.checkpoint, args=(world, str(tmp_path)), nprocs=world)


def test_a_program_of_one_process_is_told_what_to_do():
    with pytest.raises(spgrad.StateError, match="has no process group"):
        spgrad.distributed.distribute(spgrad.eye(3))
    with pytest.raises(spgrad.StateError, match="has no process group"):
        spgrad.distributed.load("a.npz")


def test_a_torch_without_its_distributed_package(monkeypatch):
    monkeypatch.setattr(dist, "is_available", lambda: False)
    monkeypatch.delitem(sys.modules, "spgrad.distributed")
    with pytest.raises(spgrad.MissingPackageError, match=r"torch\.distributed.*pytorch\.org"):
        importlib.import_module("spgrad.distributed")


def test_a_program_without_numpy_is_told_what_to_install(tmp_path, monkeypatch):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/start", rank=0, world_size=1)
    try:
        monkeypatch.setitem(sys.modules, "numpy", None)
        for call in (
            lambda: spgrad.distributed.distribute(spgrad.eye(3)),
            lambda: spgrad.distributed.from_local(spgrad.eye(3)),
            lambda: spgrad.distributed.load("a.npz"),
        ):
            with pytest.raises(spgrad.MissingPackageError, match=r"spgrad\[distributed\]"):
                call()
    finally:
        dist.destroy_process_group()


def test_a_matrix_of_a_group_that_was_destroyed(tmp_path):
    """A new group does not know the old one, whatever its processes are."""
    options = {"init_method": f"file://{tmp_path}/first", "rank": 0, "world_size": 1}
    dist.init_process_group("gloo", **options)
    D, x = spgrad.distributed.distribute(spgrad.eye(3)), torch.ones(3, 2)
    dist.destroy_process_group()

    def refused():
        for call in (
            lambda: D @ x,
            lambda: D * 2,
            D.sum,
            D.full,
            lambda: spgrad.distributed.save(D, tmp_path),
            lambda: spgrad.distributed.solve(D, x, spgrad.linalg.CG()),
        ):
            with pytest.raises(spgrad.StateError, match="the process group of `D` was destroyed"):
                call()

    refused()
    dist.init_process_group("gloo", **options | {"init_method": f"file://{tmp_path}/second"})
    try:
        refused()
        assert torch.equal(spgrad.distributed.distribute(spgrad.eye(3)) @ x, x)
    finally:
        dist.destroy_process_group()


def test_a_process_ends_while_rows_are_copied():
    """A thread that is in code of torch when the process ends would abort it."""
    program = """
import os, torch
from spgrad.distributed import exchange
x = torch.ones(1000, 1000)
exchange._background(os.getpid()).submit(lambda: [x @ x for _ in range(3)])
"""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, timeout=100, check=False
    )
    assert run.returncode == 0, run.stderr


def test_an_error_while_rows_are_copied_is_raised_where_they_are_waited_for():
    def failing():
        raise MemoryError("no room for the rows")

    background = exchange._background(os.getpid())
    failed = background.submit(failing)
    with pytest.raises(MemoryError, match="no room for the rows"):
        failed.result(timeout=100)
    done = []
    background.submit(lambda: done.append(torch.is_grad_enabled())).result(timeout=100)
    assert done == [False]  # the thread works on


def test_rows_are_divided_into_messages_by_their_bytes():
    """At most 2^20 bytes, or a sixteenth; equal sizes; the process asked for comes first."""
    like = torch.empty(0, 8, 32, dtype=torch.float32)  # 2^10 bytes in a row
    found = messages([2500, 0, 2**16], like, first=2)
    assert found[:16] == [Message(2, 2500 + 4096 * i, 2500 + 4096 * (i + 1), i) for i in range(16)]
    assert found[16:] == [(0, 0, 834, 0), (0, 834, 1668, 1), (0, 1668, 2500, 2)]
    assert messages([5], torch.empty(0, 0)) == []


def test_rows_that_arrive_are_cut_where_own_rows_have_enough_of_them():
    """A part has eight entries in a row that has any; there are at most four parts."""
    assert plan._cuts(torch.zeros(24), 9) == [(0, 3), (3, 6), (6, 9)]
    assert plan._cuts(torch.zeros(23), 9) == [(0, 4), (4, 9)]
    assert plan._cuts(torch.arange(3).repeat_interleave(16), 9) == [(0, 4), (4, 9)]
    assert len(plan._cuts(torch.zeros(100), 9)) == 4
    assert plan._cuts(torch.zeros(100), 2) == [(0, 1), (1, 2)]
    assert plan._cuts(torch.zeros(0), 0) == [(0, 0)]


def test_a_part_lists_its_rows_where_at_most_half_have_entries():
    row, col = torch.tensor([1, 1, 2]), torch.tensor([0, 2, 1])
    few, most = plan._part(row, col, 5, 8, 4), plan._part(row, col, 5, 8, 3)
    assert few.rows.tolist() == [1, 2]
    assert most.rows is None
    assert (few.pattern.shape, most.pattern.shape) == ((2, 3), (3, 3))
