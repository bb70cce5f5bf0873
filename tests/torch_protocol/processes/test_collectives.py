"""Two processes: DistributedDataParallel, collectives, sharded optimizers and checkpoints."""

import pytest
import torch
import two_processes
from samples import drawn
from torch import multiprocessing
from two_processes import CASES, Layer, given, matrix

import spgrad
from spgrad import support
from spgrad.torch_protocol.processes.collectives import write_values

DENSE = drawn(4, 6)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What each case gave in each process."""
    directory = str(tmp_path_factory.mktemp("processes"))
    multiprocessing.spawn(two_processes.run, args=(directory,), nprocs=2)
    return [torch.load(f"{directory}/{rank}.pt") for rank in range(2)]


@pytest.fixture
def both(results):
    return lambda name: [result[name] for result in results]


def same(got, wanted):
    for found in got:
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("layout", support.ALL)
def test_buffers_of_every_layout(both, layout):
    layer = Layer(matrix(0, layout))
    sum(layer(given(rank)).sum() for rank in (0, 0, 1, 1)).backward()
    same(both(f"buffers_{layout}"), [DENSE, DENSE * 6, layer.linear.weight.grad / 2])


@pytest.mark.parametrize("layout", support.ALL)
def test_all_reduce_of_a_gradient(both, layout):
    layer = Layer(matrix(0, layout), parameter=True)
    (layer(given(0)).sum() * 3).backward()
    same(both(f"all_reduce_{layout}"), layer.A.grad.to_dense())


def test_a_frozen_parameter_is_sent(both):
    same(both("a_frozen_parameter"), DENSE)


@pytest.mark.parametrize("kind", ["whole", "sharded"])
def test_a_state_of_the_first_process_alone(both, kind):
    same(both(f"state_of_the_first_process_{kind}"), matrix(0).values())


@pytest.mark.parametrize("kind", ["apart", "one", "across"])
def test_values_that_are_not_side_by_side(both, kind):
    first = {
        "apart": torch.diag(torch.tensor([0.0, 2.0, 4.0, 6.0])),
        "one": torch.eye(4) * 3,
        "across": torch.tensor([[[0.0, 0.0], [0.0, 2.0]], [[1.0, 3.0], [0.0, 0.0]]]),
    }[kind].double()
    same(both(f"values_that_are_not_side_by_side_{kind}"), [first * 3, first * 2, first * 3, first])


@pytest.mark.parametrize("count", [1, 2, 3])
def test_what_arrives_for_one_number_in_memory_gets_memory_for_each(count):
    one = torch.tensor(5.0)
    A = spgrad.from_values(one.expand(count), spgrad.eye(count))
    write_values(A, torch.arange(float(count)))
    assert A.values().tolist() == list(range(count))
    assert one == (0 if count == 1 else 5)


def test_other_collectives(both):
    largest = torch.maximum(DENSE, DENSE * 2)
    same(both("other_collectives"), [largest, DENSE * 2, DENSE * 3, DENSE * 3])


def test_zero_redundancy_optimizer(both):
    layer = Layer(matrix(0), parameter=True)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        (layer(given(0)).sum() + layer(given(1)).sum()).backward()
        optimizer.step()
    same(both("zero_redundancy"), [p.detach().to_dense() for p in layer.parameters()])


@pytest.mark.parametrize("kind", ["buffer", "parameter", "values"])
def test_distributed_checkpoint(both, kind):
    same(both(f"checkpoint_{kind}"), DENSE)


def reduced(**options):
    """A layer with the mean of the gradients of both processes."""
    layer = Layer(matrix(0), **options)
    (sum(layer(given(rank)).sum() for rank in range(2)) / 2).backward()
    return layer


def test_fully_shard(both):
    same(both("sharded_buffer"), reduced().linear.weight.grad)
    same(both("sharded_values"), reduced(parameter=True).A.grad.values())


def test_values_as_parameters(both):
    same(both("values_as_parameters"), [DENSE, reduced(parameter=True).A.grad.to_dense()])


REFUSED = {
    "a_parameter": r"^UnsupportedError: .*shape \(4, 6\); dense .*nn\.parametrize_values\(module\)",
    "a_changed_buffer_in_a_graph": "^RuntimeError: .*modified by an inplace operation",
    "all_gather": r"^UnsupportedError: .*c10d.allgather_.* exchange the values",
    "all_reduce_of_a_moved_element": r"^ArgumentValueError: .*other elements .*nse 2 .*\(2, 2\)",
    "all_reduce_of_complex": "^UnsupportedError: .*view_as_real.* exchange the values",
    "all_reduce_of_other_elements": "^ArgumentValueError: .*other elements .*for allreduce",
    "all_reduce_of_repeated_elements_on_one_rank": "^ArgumentValueError: .*other elements",
    "another_number_of_tensors": "^ArgumentValueError: .*[12] sparse tensors in this process",
    "broadcast_of_another_dtype": "^ArgumentValueError: .*another dtype .*float(32|64) of this one",
    "values_as_parameters_on_one_rank": "^RuntimeError: DDP expects same model across all ranks",
    "values_as_parameters_of_other_elements": (
        r"^ArgumentValueError: .*other elements .*nse 2 of float32 .*\(2, 2\).*for Distributed"
    ),
    "all_reduce_of_repeated_elements": r"^StateError: .*not coalesced.* A\.coalesce\(\)",
    "buffers_of_other_elements": "^ArgumentValueError: .*other elements .*for broadcast",
    "sharded_parameter": r"^UnsupportedError: .*nn\.parametrize_values\(module\) before",
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_reach_every_process(both, name):
    for text in both(name):
        assert isinstance(text, str)
        with pytest.raises(RuntimeError, match=REFUSED[name]):
            raise RuntimeError(text)


def test_every_case_ran(results):
    for result in results:
        assert result.keys() == CASES.keys()
        assert {n for n in CASES if isinstance(result[n], str)} == REFUSED.keys()
