"""Cases that two processes run at once; each gives a number, a tensor or the text of its error."""

import functools

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from samples import drawn, made_by_spgrad
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import spgrad
from spgrad import support

F64 = torch.float64
CASES = {}


def case(*arguments):
    def register(function):
        for argument in arguments:
            name = f"{function.__name__}_{argument}"
            CASES[name] = functools.partial(function, argument)
        if not arguments:
            CASES[function.__name__] = function
        return function

    return register


class Layer(nn.Module):
    """Two sparse matrices among dense tensors of one dtype, which are sent in one piece."""

    def __init__(self, A, *, parameter=False):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(3, 2, dtype=F64)
        self.register_buffer("shift", torch.ones(4, 1, dtype=F64))
        if parameter:
            self.A = nn.Parameter(A)
        else:
            self.register_buffer("A", A)
        self.register_buffer("B", A * 2)

    def forward(self, x):
        return self.A @ self.linear(x) + self.B @ self.linear(x) + self.shift


def by_values(layer):
    """The layer with its sparse parameters as dense ones."""
    return spgrad.nn.parametrize_values(layer)


def matrix(rank, layout="csr", seed=0):
    """One pattern in all processes; the values are `rank + 1` times those of the first."""
    return made_by_spgrad(drawn(4, 6, seed=seed), layout) * (rank + 1)


def given(rank):
    return drawn(6, 3, seed=rank)


@case(*support.ALL)
def buffers(layout, rank):
    """Values of the first process, in all; gradients as of two passes over dense buffers."""
    model = DistributedDataParallel(Layer(matrix(rank, layout)))
    pattern = model.module.A.pattern
    (model(given(rank)) + model(given(rank))).sum().backward()
    with torch.no_grad():
        model.module.B.mul_(3.0 - rank)
    model(given(rank))
    assert model.module.A.pattern is pattern
    return [model.module.A.to_dense(), model.module.B.to_dense(), model.module.linear.weight.grad]


@case()
def buffers_of_other_elements(rank):
    DistributedDataParallel(Layer(matrix(0, seed=rank)))


@case()
def a_parameter(rank):
    DistributedDataParallel(Layer(matrix(0), parameter=True))


@case()
def a_frozen_parameter(rank):
    layer = Layer(matrix(rank), parameter=True)
    layer.A.requires_grad_(False)
    DistributedDataParallel(layer)(given(rank)).sum().backward()
    return layer.A.detach().to_dense()


@case()
def values_as_parameters(rank):
    """The values of the first process, and the mean of the gradients, in all."""
    layer = by_values(Layer(matrix(rank), parameter=True))
    model = DistributedDataParallel(layer)
    model(given(rank)).sum().backward()
    spgrad.nn.unparametrize_values(layer)
    return [layer.A.detach().to_dense(), layer.A.grad.to_dense()]


@case(*support.ALL)
def all_reduce(layout, rank):
    layer = Layer(matrix(0, layout), parameter=True)
    (layer(given(0)).sum() * (rank + 1)).backward()
    grad = layer.A.grad
    dist.all_reduce(grad)
    assert grad.pattern is layer.A.pattern
    return grad.to_dense()


@case()
def values_as_parameters_of_other_elements(rank):
    """As many elements on each rank, so that all parameters have one shape."""
    layer = nn.Module()
    layer.A = nn.Parameter(moved_element(rank))
    DistributedDataParallel(by_values(layer))


@case()
def values_as_parameters_on_one_rank(rank):
    """Torch's own comparison of the numbers of parameters comes first."""
    layer = Layer(matrix(0), parameter=True)
    DistributedDataParallel(by_values(layer) if rank else layer.linear)


@case("whole", "sharded")
def state_of_the_first_process(kind, rank):
    """A state that rank 0 alone has, in a module of which each rank has a replica or a shard."""
    layer = by_values(Layer(matrix(rank), parameter=True))
    del layer.B
    state = layer.state_dict() if rank == 0 else {}
    if kind == "whole":
        model = DistributedDataParallel(by_values(Layer(matrix(2), parameter=True)))
        del model.module.B
    else:
        model = fully_shard(layer, mesh=init_device_mesh("cpu", (2,)))
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, state, options=options)
    values = getattr(model, "module", model).parametrizations.A.original0.detach()
    return values.full_tensor() if kind == "sharded" else values


def moved_element(rank):
    return spgrad.sparse_csr_tensor([0, 1, 2], [0, rank], [1.0, 2.0], (2, 2))


@case("apart", "one", "across")
def values_that_are_not_side_by_side(kind, rank):
    """Sums, and the first process's buffer, of values that C++ can't read as they lie in memory."""
    pattern = spgrad.eye(4, dtype=F64)
    if kind == "across":
        pattern = spgrad.sparse_coo_tensor([[0, 1], [1, 0]], torch.ones(2, 2), (2, 2, 2))
    given = []
    for _ in range(4):
        held = (torch.arange(8.0, dtype=F64) * (rank + 1)).view(4, 2)
        values = {"apart": held[:, 0], "one": held[1, 1].expand(4), "across": held.T[:, :2]}[kind]
        given.append(spgrad.from_values(values, pattern).detach())
    dist.all_reduce(given[0])
    dist.broadcast(given[1], 1)
    dist.all_reduce_coalesced([given[2], matrix(0)])
    net = nn.Linear(1, 1, dtype=F64)
    net.register_buffer("A", given[3])
    DistributedDataParallel(net)
    return [A.to_dense() for A in given]


@case()
def other_collectives(rank):
    largest, sent, later, added = (matrix(rank) for _ in range(4))
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    dist.broadcast(sent, 1)
    dist.all_reduce(later, async_op=True).wait()
    dist.reduce(added, 0)
    return [A.to_dense() for A in (largest, sent, later, added if rank == 0 else later)]


@case()
def all_reduce_of_other_elements(rank):
    dist.all_reduce(matrix(0, seed=rank))


@case()
def all_reduce_of_a_moved_element(rank):
    """As many elements, in a pattern that differs in one place."""
    dist.all_reduce(moved_element(rank))


@case()
def all_reduce_of_repeated_elements_on_one_rank(rank):
    indices = [[0, 0], [1, 1]] if rank else [[0, 1], [1, 0]]
    A = spgrad.sparse_coo_tensor(indices, [1.0, 2.0], (2, 2))
    dist.all_reduce(A if rank else A.coalesce())


@case()
def broadcast_of_another_dtype(rank):
    dist.broadcast(matrix(0).to(torch.float32 if rank else F64), 0)


@case()
def another_number_of_tensors(rank):
    dist.all_reduce_coalesced([matrix(0)] * (rank + 1))


@case()
def all_reduce_of_repeated_elements(rank):
    dist.all_reduce(spgrad.sparse_coo_tensor([[0, 0], [1, 1]], [1.0, 2.0], (2, 2)))


@case()
def all_reduce_of_complex(rank):
    dist.all_reduce(matrix(0).to(torch.complex128))


@case()
def all_gather(rank):
    dist.all_gather([matrix(0), matrix(0)], matrix(0))


@case()
def a_changed_buffer_in_a_graph(rank):
    """A change that autograd must notice, by a collective that the program calls itself."""
    A, x = matrix(0), torch.ones(6, 1, dtype=F64, requires_grad=True)
    y = (A @ x).sum()
    dist.all_reduce(A)
    y.backward()


@case()
def zero_redundancy(rank):
    """The parameters of each process after two steps."""
    from torch.distributed.optim import ZeroRedundancyOptimizer  # its import warns

    layer = Layer(matrix(0), parameter=True)
    optimizer = ZeroRedundancyOptimizer(layer.parameters(), torch.optim.Adam, lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        layer(given(rank)).sum().backward()
        for p in layer.parameters():
            dist.all_reduce(p.grad)
        optimizer.step()
    return [p.detach().to_dense() for p in layer.parameters()]


@case("buffer", "parameter", "values")
def checkpoint(kind, rank, directory):
    """A state is written by both and read into another model."""
    layer, twin = (Layer(matrix(i), parameter=kind != "buffer") for i in (0, 2))
    if kind == "values":
        layer, twin = map(by_values, (layer, twin))
    dcp.save(layer.state_dict(), checkpoint_id=f"{directory}/{kind}")
    state = twin.state_dict()
    dcp.load(state, checkpoint_id=f"{directory}/{kind}")
    twin.load_state_dict(state)
    return twin.A.detach().to_dense()


@case("buffer", "parameter", "values")
def sharded(kind, rank):
    layer = Layer(matrix(0), parameter=kind != "buffer")
    if kind == "values":
        layer = by_values(layer)
    fully_shard(layer, mesh=init_device_mesh("cpu", (2,)))
    layer(given(rank)).sum().backward()
    trained = layer.parametrizations.A.original0 if kind == "values" else layer.linear.weight
    return trained.grad.full_tensor()


def run(rank, directory):
    """All cases in one process of two; what each gives goes to a file."""
    torch.set_num_threads(1)
    start = f"file://{directory}/start"
    dist.init_process_group("gloo", init_method=start, rank=rank, world_size=2)
    found = {}
    for name, function in CASES.items():
        more = (directory,) if name.startswith("checkpoint") else ()
        try:
            found[name] = function(rank, *more)
        except Exception as error:  # noqa: BLE001  # for the other process to go on
            found[name] = f"{type(error).__name__}: {error}"
    torch.save(found, f"{directory}/{rank}.pt")
    dist.destroy_process_group()
