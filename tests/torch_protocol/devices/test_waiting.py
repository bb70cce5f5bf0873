"""How often the host waits for a device: once for a new pattern, not at all for a known one."""

import sys
from functools import partial

import pytest
import torch
from waiting import waits

import spgrad
from spgrad import nn, testing
from spgrad.core.pattern import Pattern

N = 12
LAYOUTS = ("csr", "csc", "bsr", "coo")


def matrix(layout="csr", seed=0):
    A = testing.random_sparse((N, N), testing.LAYOUTS[layout], dtype=torch.float32, seed=seed)
    return A.requires_grad_()


def dense(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).requires_grad_()


def product(layout):
    A, x = matrix(layout), dense(N, 3)
    return lambda: A @ x


def of_values(function, *operands):
    return lambda: spgrad.values(function(*operands))


def from_values():
    A, x = matrix().detach(), dense(N, 3)
    v = A.values().clone().requires_grad_()
    return lambda: spgrad.from_values(v, A) @ x


def heads():
    A = testing.random_sparse((N, N, 2), dense_dim=1, dtype=torch.float32).requires_grad_()
    x = dense(N, 2, 3)
    return lambda: spgrad.spmm(A, x)


def sums():
    A = matrix()
    return lambda: A.sum(0) + A.sum(1) + A.sum()


def module(made, *operands):
    return lambda: made(*operands)


def attention():
    q, k, v = dense(2, N, 4), dense(2, N, 4), dense(2, N, 4)
    mask = matrix()
    return lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def sparse_product(left, right):
    A, B = matrix(left), matrix(right, seed=1)
    return lambda: spgrad.values(A @ B)


def repeated():
    """The sum of elements that repeat, to which gradients go back."""
    indices = torch.tensor([[1, 0, 1, 2], [3, 2, 3, 0]])
    A = spgrad.sparse_coo_tensor(indices, torch.ones(4), (N, N)).requires_grad_()
    return lambda: spgrad.values(A.coalesce())


def chain():
    """S^T A S, with which graphs are pooled."""
    A, S = matrix(), matrix(seed=1)
    return lambda: spgrad.values(S.t() @ A @ S)


STEPS = {
    **{f"product_{layout}": lambda layout=layout: product(layout) for layout in LAYOUTS},
    "product_of_two_csr": lambda: sparse_product("csr", "csr"),
    "product_of_two_coo": lambda: sparse_product("coo", "csc"),
    "product_of_three": chain,
    "heads": heads,
    "softmax_of_rows": lambda: of_values(torch.softmax, matrix(), 1),
    "softmax_of_columns": lambda: of_values(torch.softmax, matrix(), 0),
    "sddmm": lambda: of_values(spgrad.sddmm, matrix().detach(), dense(N, 4), dense(N, 4)),
    "sampled_addmm": lambda: of_values(spgrad.sampled_addmm, matrix(), dense(N, 4), dense(4, N)),
    "from_values": from_values,
    "times_vector": lambda: of_values(torch.mul, matrix(), dense(N, 1)),
    "sum_of_two": lambda: of_values(torch.add, matrix(), matrix(seed=1)),
    "sums": sums,
    "variance": lambda: module(torch.var, matrix(), 1),
    "maxima": lambda: module(lambda A, x: spgrad.spmm(A, x, reduce="amax"), matrix(), dense(N, 3)),
    "rows": lambda: of_values(torch.narrow, matrix(), 0, 2, 5),
    "concatenated": lambda: of_values(lambda A, B: torch.cat([A, B]), matrix(), matrix(seed=1)),
    "substitution": lambda: module(
        partial(spgrad.solve_triangular, upper=False), lower(), dense(N, 2)
    ),
    "running_sums": lambda: of_values(spgrad.cumsum, matrix(), 1),
    "fused": lambda: of_values(torch.addcmul, matrix(), matrix(), matrix(seed=1)),
    "clamped": lambda: of_values(partial(torch.clamp, min=-0.5, max=0.5), matrix()),
    "norm": lambda: module(torch.linalg.norm, matrix()),
    "coalesced": repeated,
    "linear": lambda: module(nn.SparseLinear(N, 4, density=0.4), dense(5, N)),
    "graph_conv": lambda: module(nn.GraphConv(3, 4), dense(N, 3), matrix()),
    "graph_conv_cached": lambda: module(
        nn.GraphConv(3, 4, cached=True), dense(N, 3), matrix().detach()
    ),
    "graph_attention": lambda: module(nn.GraphAttention(3, 4, heads=2), dense(N, 3), matrix()),
    "attention": attention,
}


SOURCES = {
    "item": lambda t: t[0].item(),
    "truth": lambda t: bool((t > 0).all()),
    "list": lambda t: t.tolist(),
    "position": lambda t: t.nonzero(),
    "mask": lambda t: t[t > 0],
    "upload": lambda t: torch.tensor([1.0]) + t,
    "repeats": lambda t: torch.repeat_interleave(t.long()),
    "made on the CPU": lambda t: torch.arange(3) + t,
    "moved and converted": lambda t: t.to("cpu", torch.float64),
    "copied": lambda t: torch.empty(3, device="cpu").copy_(t),
    "moved by the name of an option": lambda t: t.to(device="cpu", dtype=torch.float64),
}


@pytest.mark.parametrize("name", SOURCES)
def test_what_waits_is_found(name):
    x = torch.ones(3)
    with waits() as found:
        SOURCES[name](x)
    assert len(found) == 1


@pytest.mark.parametrize(
    "computed",
    [
        lambda t: (torch.zeros(3, device="cpu") + 1).tolist(),
        lambda t: torch.ones((), device="cpu").item(),
        lambda t: t.to(t.device, torch.float64),
        lambda t: torch.empty(3, device="cpu").copy_(t, non_blocking=True).tolist(),
    ],
)
def test_what_stays_where_it_is_does_not_wait(computed):
    x = torch.ones(3)
    with waits() as found:
        computed(x)
    assert not found


def test_what_waits_in_a_backward_pass_is_found():
    x = torch.ones(3, requires_grad=True)
    y = x * 2
    y.register_hook(lambda g: g * g[0].item())
    with waits() as found:
        y.sum().backward()
    assert len(found) == 1


@pytest.mark.parametrize("name", STEPS)
def test_a_step_on_a_known_pattern_waits_for_nothing(name):
    forward = STEPS[name]()
    with waits() as found:
        for _ in range(2):  # a pattern keeps views from its second use on
            forward().square().sum().backward()
        found.clear()
        forward().square().sum().backward()
    assert not found, "\n".join(found)


ON_TRITON = [
    *(f"product_{layout}" for layout in LAYOUTS),
    "heads",
    "softmax_of_rows",
    "softmax_of_columns",
    "sddmm",
    "sampled_addmm",
    "from_values",
    "linear",
    "graph_conv",
    "graph_attention",
    "attention",
]


@pytest.mark.parametrize("name", ON_TRITON)
def test_steps_on_triton_kernels_wait_for_nothing(name, monkeypatch):
    """Neither the first one: the length of the longest line is there when a later step looks.

    Patterns have more elements than a chunk, so it is asked for.
    """
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    monkeypatch.setattr(sys.modules[__name__], "N", 96)
    forward = STEPS[name]()
    with waits("triton") as found:
        forward().square().sum().backward()
        assert len(found) <= (name == "graph_attention"), found  # which adds loops that miss
        found.clear()
        for _ in range(2):
            forward().square().sum().backward()
        assert interpreter.InterpretedFunction.run.called
    assert not found, "\n".join(found)


def trained(name, **options):
    """What a later step of an optimizer waits for, and the trained parameters."""
    A, w, x = matrix(), dense(3, 2), dense(N, 3).detach()
    optimizer = getattr(torch.optim, name)([A, w], lr=0.05, **options)
    with waits() as found:
        for _ in range(4):
            found.clear()
            optimizer.zero_grad()
            (torch.softmax(A, 1) @ (A @ x @ w)).square().sum().backward()
            optimizer.step()
    return found, (A.detach().values(), w.detach())


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}])
def test_a_step_of_sgd_waits_for_nothing(options):
    found, _ = trained("SGD", **options)
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "name", ["Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adadelta", "RMSprop", "ASGD", "Rprop"]
)
def test_a_step_that_can_be_captured_waits_for_nothing(name, monkeypatch):
    """A CUDA graph holds what runs on the device: no wait, and nothing that comes from the CPU."""
    for module in ("adam", name.lower()):  # torch takes `capturable` for devices with graphs only
        supported = sys.modules[f"torch.optim.{module}"], "_get_capturable_supported_devices"
        monkeypatch.setattr(*supported, lambda *_, **__: ["cpu"], raising=False)
    found, captured = trained(name, capturable=True)
    assert not found, "\n".join(found)
    torch.testing.assert_close(captured, trained(name)[1])


def parts(layout):
    """Tensors of a new matrix, and what makes one of them."""
    A = matrix(layout).detach()
    values = A.values().clone()
    make = getattr(spgrad, f"sparse_{layout}_tensor")
    if layout == "coo":
        return make, (A.indices().clone(), values, (N, N))
    ptr, idx = A.pattern.indices
    return make, (ptr.clone(), idx.clone(), values, (N, N))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_new_pattern_and_its_first_step_wait_once(layout):
    """For the verdict on the indices; views and kernels then ask for nothing."""
    make, arguments = parts(layout)
    x = dense(N, 3)
    with waits() as found:
        A = make(*arguments, requires_grad=True)
        (A @ x).square().sum().backward()
    assert len(found) <= 1, "\n".join(found)
    with waits() as found:
        A = make(*arguments, requires_grad=True, check_invariants=False)
        (A @ x).square().sum().backward()
    assert not found, "\n".join(found)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_patterns_that_share_their_indices_are_compared_without_waiting(layout):
    pattern = matrix(layout).pattern
    views = tuple(i.view_as(i) for i in pattern.indices)
    other = Pattern.from_spec(pattern.spec, pattern.shape, views)
    with waits() as found:
        assert pattern.same_as(other)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("layout", LAYOUTS[:3])
def test_a_batch_with_other_batch_sizes_still_knows_that_its_items_have_equal_nse(layout):
    blocks = (2, 2) if layout == "bsr" else None
    A = spgrad.from_dense(torch.ones(6, 4, 4), testing.LAYOUTS[layout], blocksize=blocks)
    assert A.pattern.items == (6,)
    for B in (A.reshape(2, 3, 4, 4), A[0].unsqueeze(0)):
        with waits() as found:
            assert B.values().shape[: B.dim() - 2] == B.shape[:-2]
        assert not found, "\n".join(found)


def unsorted():
    indices = torch.tensor([[1, 0, 1, 2], [3, 2, 3, 0]])
    return spgrad.sparse_coo_tensor(indices, torch.ones(4), (N, N))


def lower():
    return (matrix().detach().tril(-1) + spgrad.eye(N)).to_sparse_csr().requires_grad_()


def batch():
    return testing.random_sparse((2, 6, 6), torch.sparse_csr, dtype=torch.float32)


def hollow():
    """A graph that misses loops."""
    return matrix().detach().tril(-1).requires_grad_()


FIRST = {
    # the number of distinct elements
    "coalesced": (torch.Tensor.coalesce, (unsorted(),), 1),
    "softmax": (torch.softmax, (matrix(), 1), 0),
    "sum": (torch.sum, (matrix(),), 0),
    # the number of elements of the result
    "union": (torch.add, (matrix(), matrix(seed=1)), 1),
    "union_of_coo": (torch.add, (matrix("coo"), matrix("coo", seed=1)), 1),
    "intersection": (torch.mul, (matrix(), matrix(seed=1)), 1),
    "triangle": (torch.tril, (matrix(),), 1),
    "substitution": (partial(spgrad.solve_triangular, upper=False), (lower(), dense(N, 2)), 0),
    # whether indices are in range, the number of elements
    "rows": (torch.index_select, (matrix(), 0, torch.tensor([3, 1])), 2),
    # the number of products, and whether torch's kernel takes the rows; it asks for the size itself
    "product": (torch.matmul, (matrix(), matrix(seed=1)), 1),
    # where the lines that it takes begin and end
    "slice_of_rows": (lambda A: A[2:5], (matrix(),), 1),
    "slice_of_coo": (lambda A: A[2:5], (matrix("coo"),), 1),
    "some_rows": (partial(torch.narrow, dim=0, start=1, length=3), (matrix(),), 1),
    "an_element_of_coo": (lambda A: A[1, 2], (matrix("coo"),), 2),
    # the longest line
    "running_sums": (spgrad.cumsum, (matrix(), 1), 1),
    "blocks": (lambda A: A.to_sparse_bsr((2, 2)), (matrix(),), 1),
    # sizes alone, which nothing copies to the device
    "tiles": (partial(torch.tile, dims=(2, 3)), (matrix(),), 0),
    "block_array": (lambda A: spgrad.block_array([[A, A], [None, A]]), (matrix("coo"),), 0),
    "batch_normalized": (partial(spgrad.normalize, p=3, dim=(0, -1)), (batch(),), 0),
    "batch_of_diagonals": (spgrad.diag_embed, (dense(5),), 0),
    # the number of places that an item of the batch has elements at
    "softmax_over_a_batch": (partial(torch.softmax, dim=0), (batch(),), 1),
    # what is not on the diagonal, and the union with it
    "set_diag": (partial(spgrad.set_diag, value=1.0), (batch(),), 2),
    # the number of elements on the diagonal
    "einsum_of_a_diagonal": (partial(spgrad.einsum, "ii->i"), (matrix(),), 1),
    # the loops that miss, and their union with the graph
    "graph_conv": (nn.GraphConv(3, 4), (dense(N, 3), hollow()), 1),
}
"""Name -> a function, operands whose patterns are new to it, and how often it waits at most."""


@pytest.mark.parametrize("name", FIRST)
def test_what_is_found_once_waits_a_few_times(name):
    function, operands, most = FIRST[name]
    with waits() as found:
        function(*operands)
    assert len(found) <= most, "\n".join(found)
