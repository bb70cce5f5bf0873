"""What autograd sees of a SparseTensor: changes in place, gradients given by hand, hooks."""

import pytest
import torch
from samples import drawn, made_by_spgrad

import spgrad
from spgrad import support, testing
from spgrad.core.pattern import LAYOUTS

layouts = pytest.mark.parametrize("name", support.ALL)
CHANGED = "modified by an inplace operation"


def made(name="csr", seed=0, **options):
    options.setdefault("dtype", torch.float64)
    return testing.random_sparse((4, 4), LAYOUTS[name], seed=seed, **options)


# what changes a tensor, sparse or dense
CHANGES = {
    "mul_": lambda a: a.mul_(10),
    "clamp_": lambda a: a.clamp_(-0.1, 0.1),
    "zero_": lambda a: a.zero_(),
    "add_": lambda a: a.add_(a.detach()),
    "copy_": lambda a: a.copy_(a.detach() * 3),
    "setitem": lambda a: a.__setitem__((0, 0), 0.0),
    "imul": lambda a: a.__imul__(2),
    "values": lambda a: _values(a).mul_(10),
    "part of values": lambda a: _values(a)[:1].mul_(10),
    "transpose": lambda a: a.mT.mul_(10),
    "unsqueezed": lambda a: a.unsqueeze(0).mul_(10),
}
ALIASES = {
    "itself": lambda a: a,
    "detach": lambda a: a.detach(),
    "detach twice": lambda a: a.detach().detach(),
    "transpose detached": lambda a: a.mT.detach().mT,
}
READS = {
    "square": lambda a: (a * a).sum(),
    "sin": lambda a: a.sin().sum(),
    "product": lambda a: (a @ torch.ones(4, 2, dtype=a.dtype, requires_grad=True)).sum(),
}


def _values(a):
    return a.values() if isinstance(a, spgrad.SparseTensor) else a.view(-1)


def outcome(leaf, read, alias, change, computed):
    """The first words of the error of a program, or the gradient."""
    a = leaf * 2 if computed else leaf
    y = read(a)
    with torch.no_grad():
        change(alias(a))
    try:
        y.backward()
    except RuntimeError as error:
        return str(error).split(":")[0]
    return leaf.grad


@layouts
@pytest.mark.parametrize("computed", [False, True], ids=["leaf", "computed"])
@pytest.mark.parametrize("alias", ALIASES)
def test_a_change_between_forward_and_backward_raises_as_of_dense_tensors(name, alias, computed):
    for read, reading in READS.items():
        for change, changing in CHANGES.items():
            A = made(name).requires_grad_()
            dense = A.detach().to_dense().requires_grad_()
            program = reading, ALIASES[alias], changing, computed
            assert CHANGED in outcome(dense, *program)
            found = outcome(A, *program)
            if isinstance(found, str):
                assert CHANGED in found, (read, change)
            else:  # where a transpose is a copy
                assert "transpose" in (alias, change, *alias.split())
                assert torch.equal(A.detach()._vals, made(name)._vals)
                dense = made(name).to_dense().requires_grad_()
                program = reading, ALIASES["itself"], id, computed
                testing.assert_close(found, outcome(dense, *program) * testing.mask_of(A.pattern))


@layouts
def test_a_change_that_backward_does_not_need(name):
    A = made(name).requires_grad_()
    y = (A * 3).sum()
    A.detach().mul_(10)
    y.backward()
    assert (A.grad._vals == 3).all()


@layouts
def test_values_changed_in_place_where_a_gradient_is_recorded(name):
    """Of a leaf as a dense view of one; of others refused, as A could not follow."""
    A = made(name).requires_grad_()
    with pytest.raises(RuntimeError, match=r"a view of a leaf Variable|is a view"):
        A.values().mul_(10)
    with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
        (A * 2).values()[0].mul_(10)
    B = A * 2
    with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
        B.values().add_(torch.ones((), dtype=A.dtype, requires_grad=True))
    with torch.no_grad():
        A.values().mul_(10)
    assert torch.equal(A._vals, made(name)._vals * 10)
    A.values().clone().mul_(10)
    assert torch.equal(A._vals, made(name)._vals * 10)


def test_the_shape_of_values_is_their_own():
    A = made()
    v = A.values()
    assert v.data_ptr() == A._vals.data_ptr()
    v.unsqueeze_(0)
    v.requires_grad_()
    assert A.values().shape == (A.nse,)
    assert not (A @ torch.ones(4, 1, dtype=A.dtype)).requires_grad


def test_values_without_recording_make_a_tensor_without_gradient():
    A = made()
    w = A.values().clone().requires_grad_()
    with torch.no_grad():
        B = spgrad.from_values(w, A)
    assert not B.requires_grad
    assert not (B @ torch.ones(4, 1, dtype=A.dtype)).requires_grad
    y = (w * w).sum()
    B.detach().mul_(2)
    with pytest.raises(RuntimeError, match=CHANGED):
        y.backward()


def test_an_alias_of_values_with_a_graph_counts_their_changes():
    A, w = made(), torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    A.values().mul_(w)  # A has a graph without being asked for one
    y = (A * A).sum()
    assert not A.detach()._vals.requires_grad
    A.detach().mul_(3)
    with pytest.raises(RuntimeError, match=CHANGED):
        y.backward()


@pytest.mark.parametrize("name", ["csr", "coo", "bsc"])
def test_other_elements_between_forward_and_backward(name):
    other = made(name, seed=5)
    for read in READS.values():
        A = made(name).requires_grad_()
        y = read(A)
        with torch.no_grad():
            A.copy_(other)
        with pytest.raises(RuntimeError, match=CHANGED):
            y.backward()
    A = made(name).requires_grad_()
    y = (A * 2).sum()  # which needs no values
    with torch.no_grad():
        A.copy_(other)
    with pytest.raises(
        spgrad.StateError,
        match="the elements of a leaf were exchanged between forward and backward",
    ):
        y.backward()
    assert A.grad is None
    (A * 2).sum().backward()
    assert A.grad.pattern is A.pattern


def test_other_elements_for_a_result_between_forward_and_backward():
    A, other = made().requires_grad_(), made(seed=5)
    B = A * 1
    y = (B * B).sum()
    with torch.no_grad():
        B.copy_(other)
    with pytest.raises(RuntimeError, match=CHANGED):
        y.backward()
    C = A * 1
    C.retain_grad()
    (C * 2).sum().backward()
    with torch.no_grad(), pytest.raises(spgrad.StateError, match="has a gradient on its"):
        C.copy_(other)


def test_other_elements_for_an_alias_are_refused():
    A, other = made().requires_grad_(), made(seed=5)
    for alias in (A.detach(), A.data):
        with torch.no_grad(), pytest.raises(spgrad.StateError, match=r"came from detach\(\)"):
            alias.copy_(other)
    copy = A.detach().clone()
    parameter = torch.nn.Parameter(copy)
    with torch.no_grad():
        parameter.copy_(other)
    assert parameter.pattern is other.pattern


@pytest.mark.parametrize("layout", ["csr", "coo", "bsr"])
def test_a_product_is_differentiated_twice_at_the_values_that_it_had(layout):
    A = spgrad.from_dense(torch.eye(4, dtype=torch.float64) + 1)
    A = A.to_sparse_bsr((2, 2)) if layout == "bsr" else getattr(A, f"to_sparse_{layout}")()
    A = A.detach().requires_grad_()
    x = torch.arange(8.0, dtype=torch.float64).view(4, 2).requires_grad_()
    dense = A.to_dense().detach().requires_grad_()
    y, wanted = (A @ x).square().sum(), (dense @ x).square().sum()
    A.data = A.data * 3
    found = torch.autograd.grad(y, (A, x), create_graph=True)
    first = torch.autograd.grad(wanted, (dense, x), create_graph=True)
    torch.testing.assert_close(found[0].to_dense(), first[0])
    torch.testing.assert_close(found[1], first[1])
    second = torch.autograd.grad(found[0].values().sum() + found[1].sum(), (A, x))
    third = torch.autograd.grad(first[0].sum() + first[1].sum(), (dense, x))
    torch.testing.assert_close(second[0].to_dense(), third[0])
    torch.testing.assert_close(second[1], third[1])


@layouts
def test_data_is_replaced(name):
    A = made(name).requires_grad_()
    y = (A * A).sum()
    A.data = A.data * 3
    assert torch.equal(A._vals, made(name)._vals * 3)
    assert A.requires_grad
    assert A.is_leaf
    y.backward()  # of the values that it was recorded with
    assert torch.equal(A.grad._vals, made(name)._vals * 2)
    with pytest.raises(spgrad.StateError, match=r"spgrad\.data: .* has a gradient"):
        A.data = made(name, seed=5)
    A.grad = None
    A.data = made(name, seed=5)
    assert torch.equal(A.to_dense(), made(name, seed=5).to_dense())
    with pytest.raises(spgrad.ArgumentKindError, match=r"spgrad\.data: `data` is a dense tensor"):
        A.data = torch.ones(4, 4)
    with pytest.raises(spgrad.ArgumentValueError, match=r"spgrad\.data: .* layouts and shapes are"):
        A.data = A.data[:2]
    A.data = A.data.float()
    assert A.dtype == A.to_dense().dtype == torch.float32
    (A * A).sum().backward()
    assert torch.equal(A.grad._vals, A._vals.detach() * 2)
    if A._pattern.layout == torch.sparse_csr:
        A.requires_grad_(False).data = A.data.int()
        assert (A @ torch.ones(A.shape[1], dtype=torch.int32)).dtype == torch.int32


@layouts
def test_a_gradient_given_by_hand_lies_on_the_pattern(name):
    A = made(name).requires_grad_()
    A.grad = A.detach() * 2
    (A * 3).sum().backward()
    assert torch.equal(A.grad._vals, A._vals * 2 + 3)
    with pytest.raises(spgrad.ArgumentValueError, match=r"`grad` is a dense tensor of shape"):
        A.grad = torch.ones(4, 4, dtype=torch.float64)
    with pytest.raises(spgrad.ArgumentValueError, match=r"spgrad\.grad: `grad` is .* with nse"):
        A.grad = made(name, seed=5)
    A.grad = torch.ones(4, 4, dtype=torch.float64).sparse_mask(A)
    A.grad = None
    assert A.grad is None


@layouts
@pytest.mark.parametrize(
    "hook",
    [
        lambda g: g.to_dense() * 2,
        lambda g: spgrad.to_torch(g * 2),
        lambda g: (g * 2).to_sparse_csc(),
        lambda g: g * 2,
    ],
    ids=["dense", "native", "csc", "same"],
)
def test_what_a_hook_gives_is_taken_at_the_elements(name, hook):
    A = made(name).requires_grad_()
    B = A * 1
    handles = [a.register_hook(hook) for a in (A, B)]
    for times in (1, 2):
        (B * 3).sum().backward(retain_graph=True)
        assert A.grad.pattern is A.pattern
        testing.assert_close(A.grad._vals, torch.full_like(A._vals, 12.0 * times))
    seen = []
    for handle in handles:
        handle.remove()
    A.register_hook(seen.append)
    (B * 3).sum().backward()
    assert seen[0].pattern is A.pattern


@layouts
def test_anomaly_mode(name):
    A = made(name).requires_grad_()
    with torch.autograd.set_detect_anomaly(True):
        (A @ torch.ones(4, 2, dtype=A.dtype)).sum().backward()
        assert A.grad.pattern is A.pattern
        # dividing by zero makes an infinity, of which the next step makes NaN
        with pytest.raises(RuntimeError, match="returned nan values in its 0th output"), warned():
            ((A * 0).abs() ** 0.5 * 0).sum().backward()


def warned():
    return pytest.warns(UserWarning, match="Error detected in")


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@layouts
def test_gradients_are_asked_for_where_nothing_is_recorded(name, mode):
    A, x = made(name).requires_grad_(), torch.ones(4, 2, dtype=torch.float64)
    y, g = A @ x, torch.ones(4, 2, dtype=torch.float64)
    with mode():
        (found,) = torch.autograd.grad(y, A, g)
    testing.assert_close(found, testing.mask_of(A.pattern) * (g @ x.mT))


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
def test_values_of_one_uncoalesced_pattern_add_up(dtype):
    indices = torch.tensor([[0, 0, 1], [1, 1, 2]])
    A = spgrad.sparse_coo_tensor(indices, torch.tensor([1, 2, 3], dtype=dtype), (3, 3))
    B = spgrad.from_values(torch.tensor([10, 20, 30], dtype=dtype), A.pattern)
    assert (A + B)._values().tolist() == [11, 22, 33]
    assert A.add_(B, alpha=2) is A
    assert A._values().tolist() == [21, 42, 63]
    A -= B
    assert A._values().tolist() == [11, 22, 33]
    assert spgrad.rsub(A, B)._values().tolist() == [-1, -2, -3]
    assert (A - B).pattern is A.pattern
    other = spgrad.sparse_coo_tensor(indices.flip(1), B._values(), (3, 3))
    testing.assert_close(A + other, A.to_dense() + other.to_dense())
    with pytest.raises(spgrad.StateError, match=r"spgrad\.add_: the result is coo .* nse 2"):
        A.add_(other)


def test_bools_of_one_uncoalesced_pattern_are_combined():
    A = spgrad.sparse_coo_tensor([[0, 0], [1, 1]], [True, True], (2, 2))
    assert (A + A).pattern.coalesced
    assert (A + A).to_dense().tolist() == [[False, True], [False, False]]


@pytest.mark.parametrize("name", support.ALL)
def test_dense_results_change_in_place(name):
    """What a kernel wrote is no view of something else."""
    A = made(name).requires_grad_()
    for read in (spgrad.to_dense, lambda a: a.sum(0), lambda a: a.sum(1), spgrad.diag):
        y = read(A)
        y += 1
        y.mul_(2).sum().backward()
        g, A.grad = A.grad, None
        dense = A.detach().to_dense().requires_grad_()
        twin = spgrad.to_dense if read is spgrad.to_dense else read
        wanted = dense if twin is spgrad.to_dense else None
        wanted = torch.diag(dense) if read is spgrad.diag else wanted
        (read(dense) if wanted is None else wanted).mul(2).sum().backward()
        testing.assert_close(g, dense.grad * testing.mask_of(A.pattern))


@pytest.mark.parametrize("name", support.ALL)
def test_gradients_stay_on_the_pattern(sparse, name):
    A, B = (sparse(drawn(4, 4, seed=i), name).requires_grad_() for i in range(2))
    before = A.pattern, B.pattern
    optimizer = torch.optim.SGD([A, B], lr=0.1)
    for combine in (torch.add, torch.sub, torch.mul, torch.matmul):
        optimizer.zero_grad()
        combine(A, B).values().square().sum().backward()
        assert A.grad.pattern is before[0]
        assert B.grad.pattern is before[1]
        optimizer.step()
    assert (A.pattern, B.pattern) == before


@pytest.mark.parametrize("name", support.ALL)
def test_every_layout_takes_a_sparse_gradient(sparse, name):
    A = sparse(drawn(4, 6), name).requires_grad_()
    A.backward(torch.ones_like(A))
    (A * 2).backward(torch.ones_like(A))
    assert A.grad.pattern is A.pattern
    testing.assert_close(A.grad.values(), torch.full_like(A.values(), 3.0))


@pytest.mark.parametrize("name", support.ALL)
def test_a_cotangent_with_other_elements_counts_where_it_meets_the_pattern(name):
    a, g = drawn(4, 6), torch.randn(4, 6, dtype=torch.float64)
    A = made_by_spgrad(a, name).requires_grad_()
    for given in (g, *(made_by_spgrad(drawn(4, 6, seed=8), other) for other in support.ALL)):
        A.grad = None
        (A * 2).backward(given)
        wanted = given.to_dense() * 2 * testing.mask_of(A.pattern)
        assert A.grad.pattern is A.pattern
        testing.assert_close(A.grad, wanted)
    repeated = spgrad.sparse_coo_tensor([[1, 1]], [3.0, 4.0], (3,)).requires_grad_()
    with pytest.raises(ValueError, match="uncoalesced"):
        (repeated * 2).backward(torch.ones(3))
