"""What only a GPU can show; with `-p on_gpu`, and skipped without it."""

import copy
import warnings

import pytest
import torch
from test_captured import PROGRAMS

import spgrad
from spgrad import testing

pytestmark = pytest.mark.skipif(
    torch.get_default_device().type != "cuda", reason="needs a GPU, and -p on_gpu"
)
M, K, N = 300, 200, 24


def operands(dtype=torch.float32, layout=torch.sparse_csr, density=0.2):
    A = testing.random_sparse((M, K), layout, dtype=dtype, density=density)
    return A.requires_grad_(), torch.randn(K, N, dtype=dtype, requires_grad=True)


def step_of(name):
    """Parameters, optimizer and a function that takes a step, from the same numbers each time."""
    torch.manual_seed(0)
    parameters, loss = PROGRAMS[name]()
    optimizer = torch.optim.Adam(parameters, capturable=True)

    def step():
        optimizer.zero_grad(set_to_none=False)
        loss().backward()
        optimizer.step()

    return parameters, step


def numbers(parameters):
    return [testing.dense_result(p.detach()).clone() for p in parameters]


# Random numbers differ; the substitution of cuSPARSE ends a process that captures it.
CAPTURED = [name for name in PROGRAMS if name not in ("dropout", "substitution")]


@pytest.mark.parametrize("name", CAPTURED)
def test_a_training_step_in_a_cuda_graph(name):
    """Three steps of the graph are three steps, bit for bit."""
    parameters, step = step_of(name)
    for _ in range(6):
        step()
    wanted = numbers(parameters)
    parameters, step = step_of(name)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for _ in range(3):
        graph.replay()
    for one, other in zip(numbers(parameters), wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_step_does_not_wait_for_the_device(name):
    _, step = step_of(name)
    for _ in range(3):
        step()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the mode is a prototype
            torch.cuda.set_sync_debug_mode("error")
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_csc, torch.sparse_coo])
def test_a_step_equals_the_one_on_the_cpu(layout, dtype):
    A, x = operands(dtype, layout)
    there = A.detach().cpu().requires_grad_(), x.detach().cpu().requires_grad_()
    for a, b in ((A, x), there):
        (torch.softmax(a, 1) @ b).square().sum().backward()
        (a @ b).square().sum().backward()
    loose = {"rtol": 1e-4, "atol": 1e-4} if dtype.itemsize > 2 else {"rtol": 0.03, "atol": 0.5}
    torch.testing.assert_close(A.grad.values().cpu(), there[0].grad.values(), **loose)
    torch.testing.assert_close(x.grad.cpu(), there[1].grad, **loose)


def test_results_have_the_same_bits_each_time():
    A, x = operands()
    q, k = torch.randn(M, 16), torch.randn(K, 16)
    found = []
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()):
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            A.grad = x.grad = None
            y = A @ x
            y.backward(y.detach())
            w = spgrad.scaled_dot_product_attention(q, k, x.detach(), A.detach() != 0)
        torch.cuda.synchronize()
        found.append([y.detach(), A.grad.values(), x.grad, w, torch.softmax(A, 1).values()])
    for again in found[1:]:
        assert all(map(torch.equal, again, found[0]))


def test_autocast():
    A, x = operands()
    with torch.autocast("cuda", torch.bfloat16):
        y = A @ x
    assert y.dtype == torch.bfloat16
    wanted = A.detach().to_dense() @ x.detach()
    torch.testing.assert_close(y.float(), wanted, rtol=0.03, atol=0.1)
    y.float().sum().backward()
    assert A.grad.dtype == x.grad.dtype == torch.float32


def test_compiled():
    A, x = operands(torch.float64)
    again = copy.deepcopy(A.detach()).requires_grad_(), x.detach().clone().requires_grad_()

    def loss(A, x):
        return (torch.softmax(A, 1) @ x).relu().square().sum()

    loss(A, x).backward()
    torch.compile(loss, fullgraph=True)(*again).backward()
    torch.testing.assert_close(again[0].grad.values(), A.grad.values())
    torch.testing.assert_close(again[1].grad, x.grad)


def test_operands_on_two_devices_are_refused():
    A, x = operands()
    for run in (lambda: A @ x.cpu(), lambda: A.cpu() @ x, lambda: A + A.cpu()):
        with pytest.raises(spgrad.SpgradError, match=r"cuda.*cpu|cpu.*cuda"):
            run()


def test_to_the_device_and_back():
    A, _ = operands()
    back = A.detach().cpu().cuda()
    assert back.device.type == "cuda"
    assert torch.equal(back.values(), A.detach().values())
    assert torch.equal(A.detach().cpu().to_dense().cuda(), A.detach().to_dense())
