"""What torch.sparse gets wrong, and is right here. Each test bears the number of its case.

The cases of one product, reduction or layout more are in test_support.py, for every operation;
what optimizers do is in test_optimizers.py, what torch.func does (21) in test_transforms.py, and
what is compiled in test_compile.py.
"""

import copy
import io
import pickle

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import spgrad
from spgrad import support, testing
from spgrad.core.pattern import LAYOUTS

F64 = torch.float64
UNCLEAR = ("do not have strides", "SPARSE_STATUS", "INTERNAL ASSERT", "Could not run")


def drawn(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    keep = torch.rand(shape, generator=generator) < 0.4
    return testing.random_dense(shape, generator=generator) * keep


def made_by_spgrad(dense, name="csr"):
    blocks = {"blocksize": (2, 2)} if name.startswith("b") else {}
    return spgrad.from_dense(dense).to_sparse(layout=LAYOUTS[name], **blocks).detach()


def made_by_torch(dense, name="csr"):
    blocks = {"blocksize": (2, 2)} if name.startswith("b") else {}
    return dense.to_sparse(layout=LAYOUTS[name], **blocks)


@pytest.fixture(params=["spgrad", "dropin"])
def sparse(request):
    """Makes a SparseTensor of a dense one; in drop-in mode with torch's own methods."""
    if request.param == "spgrad":
        yield made_by_spgrad
    else:
        with spgrad.dropin():
            yield made_by_torch


@pytest.mark.parametrize("name", ["csr", "csc"])
def test_1_products_are_sorted(sparse, name):
    """So that what comes after them is right; mixtures of layouts and addmm too."""
    a, b = drawn(50, 50), drawn(50, 50, seed=1)
    A, B = sparse(a, name), sparse(b, "csc" if name == "csr" else "csr")
    for P, p in (
        (A @ A, a @ a),
        (A @ B, a @ b),
        (torch.addmm(A, A, B), a + a @ b),
        (torch.sparse.mm(B, A), b @ a),
    ):
        plain = P.pattern.indices[1]
        ptr = P.pattern.indices[0]
        inner = torch.ones(plain.numel(), dtype=torch.bool)
        inner[ptr[:-1][ptr.diff() > 0]] = False
        assert bool((plain.diff()[inner[1:]] > 0).all())
        testing.assert_close(P, p)
        testing.assert_close(P * A, p * a)
        testing.assert_close(P * b, p * b)
        testing.assert_close(b.sparse_mask(P), b * testing.mask_of(P.pattern))
        softmax = torch.sparse.softmax(P.to_sparse_coo(), 1)
        rest = torch.where(testing.mask_of(P.pattern), p, -torch.inf)
        testing.assert_close(softmax, rest.softmax(1).nan_to_num(0.0))


@pytest.mark.parametrize("name", support.ALL)
@pytest.mark.parametrize("dim", [-1, -2, 0, 1])
def test_2_softmax_along_a_negative_dimension(sparse, name, dim):
    a = drawn(4, 6)
    for function in (torch.sparse.softmax, torch.sparse.log_softmax):
        A = sparse(a, name).requires_grad_()
        mask = testing.mask_of(A.pattern)
        twin = torch.where(mask, A.to_dense(), -torch.inf).detach().requires_grad_()
        dense = getattr(torch, function.__name__.replace("_sparse_", ""))
        y, expected = function(A, dim), dense(twin, dim)
        g = torch.randn(4, 6, dtype=F64)
        y.to_dense().backward(g)
        expected.backward(torch.where(mask, g, 0.0))
        testing.assert_close(y, torch.where(mask, expected, 0.0))
        testing.assert_close(A.grad, torch.where(mask, twin.grad, 0.0))


def test_5_alpha_scales_the_second_operand(sparse):
    a, x = drawn(4, 6), torch.randn(4, 6, dtype=F64)
    for name in support.ALL:
        testing.assert_close(torch.add(sparse(a, name), x, alpha=2), a + 2 * x)
        testing.assert_close(torch.add(x, sparse(a, name), alpha=2), x + 2 * a)
        testing.assert_close(torch.sub(sparse(a, name), x, alpha=2), a - 2 * x)
        testing.assert_close(torch.rsub(sparse(a, name), x, alpha=2), x - 2 * a)


@pytest.mark.parametrize("name", support.ALL)
def test_6_gradients_stay_on_the_pattern(sparse, name):
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
def test_9_batches_of_different_patterns(sparse, name):
    a, b = drawn(2, 4, 6), drawn(2, 4, 6, seed=1)
    y = sparse(a, name) + sparse(b, name)
    testing.assert_close(y, a + b)
    testing.assert_close(y @ torch.ones(6, 1, dtype=F64), (a + b).sum(-1, keepdim=True))


def test_10_repeats_are_added_before_they_are_multiplied():
    native = torch.sparse_csr_tensor(
        torch.tensor([0, 2]), torch.tensor([1, 1]), torch.tensor([2.0, 3.0]), (1, 2)
    )
    with pytest.raises(ValueError, match="sorted unique"):
        spgrad.mul(native, native)
    t = spgrad.sparse_coo_tensor([[0, 0], [1, 1]], [2.0, 3.0], (1, 2))
    testing.assert_close(t * t, torch.tensor([[0.0, 25.0]]))


@pytest.mark.parametrize("name", support.ALL)
def test_10_beta_0_ignores_the_input(sparse, name):
    A = sparse(torch.zeros(4, 6), name)
    x, nan = torch.ones(6, 3), torch.full((4, 3), torch.nan)
    assert torch.equal(torch.addmm(nan, A, x, beta=0), torch.zeros(4, 3))
    assert torch.equal(torch.sparse.addmm(nan, A, x, beta=0), torch.zeros(4, 3))


@pytest.mark.parametrize("name", support.ALL)
def test_10_a_pickled_leaf_still_requires_its_gradient(sparse, name):
    A = sparse(drawn(4, 6), name).requires_grad_()
    file = io.BytesIO()
    torch.save(A, file)
    file.seek(0)
    for loaded in (pickle.loads(pickle.dumps(A)), torch.load(file, weights_only=False)):
        assert loaded.requires_grad
        assert loaded.is_leaf
        testing.assert_close(loaded.detach(), A.to_dense().detach())


@pytest.mark.parametrize("name", support.ALL)
def test_16_what_torch_lacks(sparse, name):
    a, b = drawn(4, 6), drawn(4, 6, seed=1)
    col = torch.rand(4, 1, dtype=F64)
    A, B = sparse(a, name).requires_grad_(), sparse(b, name)
    for y, expected in (
        (A - B, a - b),
        (A / 2, a / 2),
        (A**2, a**2),
        (A * col, a * col),
        (A.mean(1), a.mean(1)),
        (A.amax(0), a.amax(0)),
    ):
        testing.assert_close(y.detach(), expected)
    for function in (torch.sin, torch.tanh, torch.sqrt, torch.asin, torch.expm1, torch.erf):
        A = sparse(a.abs(), name).detach().requires_grad_()
        twin = A.detach().to_dense().requires_grad_()
        function(A).values().sum().backward()
        function(twin).sum().backward()
        mask = testing.mask_of(A.pattern)
        testing.assert_close(A.grad, torch.where(mask, twin.grad, 0.0))


@pytest.mark.parametrize("name", support.ALL)
def test_17_the_gradient_of_a_dense_factor_is_dense(sparse, name):
    x = torch.randn(4, 6, dtype=F64, requires_grad=True)
    A = sparse(drawn(4, 6), name)
    (A * x).values().sum().backward()
    assert x.grad.layout == torch.strided
    testing.assert_close(x.grad, A.to_dense())


@pytest.mark.parametrize("name", support.ALL)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int64], ids=str)
def test_18_batches_and_narrow_dtypes(sparse, name, dtype):
    a = (drawn(2, 4, 6) * 8).to(dtype)
    A, x = sparse(a, name), (torch.rand(2, 6, 3) * 4).to(dtype)
    for y, expected in (
        (A + A, a + a),
        (A * A, a * a),
        (A.sum(-1), a.sum(-1)),
        (A @ x, (a.double() @ x.double())),
    ):
        testing.assert_close(y, expected)
        assert y.dtype in (dtype, torch.int64)


@pytest.mark.parametrize("name", support.ALL)
def test_3_products_in_other_layouts(sparse, name):
    a, b, c = drawn(4, 6), drawn(6, 4, seed=1), drawn(4, 4, seed=2)
    A, B, C = (sparse(t, name) for t in (a, b, c))
    testing.assert_close(torch.sparse.mm(A, B), a @ b)
    testing.assert_close(torch.addmm(C, A, B), c + a @ b)
    assert torch.sparse.mm(A, B)._nnz() > 0


def test_4_indices_are_checked(sparse):
    make = torch if sparse is made_by_torch else spgrad
    with pytest.raises((ValueError, RuntimeError), match="1000000000"):
        make.sparse_csr_tensor([0, 1, 2, 2], [0, 10**9], [1.0, 2.0], (3, 3))
    with pytest.raises((ValueError, RuntimeError), match="1000000000"):
        make.sparse_coo_tensor([[0, 10**9], [0, 1]], [1.0, 2.0], (3, 3))
    for name in support.ALL:
        A = sparse(drawn(4, 6), name)
        A.pattern.indices[-1].view(-1)[0] = 10**9
        file = io.BytesIO()
        torch.save(A, file)
        file.seek(0)
        with pytest.raises((ValueError, RuntimeError), match="1000000000"):
            torch.load(file, weights_only=False)


@pytest.mark.parametrize("name", support.ALL)
def test_7_ones_are_ones(sparse, name):
    A = sparse(drawn(4, 6), name)
    mask = testing.mask_of(A.pattern)
    testing.assert_close(torch.ones_like(A), mask * 1.0)
    testing.assert_close(torch.full_like(A, 3.0), mask * 3.0)
    if sparse is made_by_spgrad or name.startswith("b"):  # these ask for a block size
        return
    for make in (torch.ones, lambda *size, **kw: torch.full(size, 1.0, **kw)):
        try:
            y = make(2, 2, layout=LAYOUTS[name])
        except (RuntimeError, TypeError):  # refused is as good as right
            continue
        testing.assert_close(y.to_dense(), torch.ones(2, 2))


def test_8_a_mask_with_repeats_masks_once(sparse):
    make = torch if sparse is made_by_torch else spgrad
    mask = make.sparse_coo_tensor([[0, 0, 1], [1, 1, 2]], [1.0, 1.0, 1.0], (2, 3))
    x = torch.arange(6.0).view(2, 3)
    wanted = torch.tensor([[0.0, 1, 0], [0, 0, 5]])
    testing.assert_close(x.sparse_mask(mask), wanted)
    testing.assert_close(sparse(x, "coo").sparse_mask(mask), wanted)


FORMS = {
    "@": lambda A, x: A @ x,
    "x @": lambda A, x: x.t() @ A.t(),
    "mm": torch.mm,
    "matmul": torch.matmul,
    "mv": lambda A, x: torch.mv(A, x[:, 0]),
    "addmm": lambda A, x: torch.addmm(torch.ones(4, 3, dtype=F64), A, x),
    "addmv": lambda A, x: torch.addmv(torch.ones(4, dtype=F64), A, x[:, 0]),
    "linear": lambda A, x: F.linear(x.t(), A),
    "sparse.mm": torch.sparse.mm,
    "sparse.addmm": lambda A, x: torch.sparse.addmm(torch.ones(4, 3, dtype=F64), A, x),
    "sum": lambda A, x: A.sum() * x.sum(),
}


@pytest.mark.parametrize("name", support.ALL)
def test_11_the_gradient_of_the_sparse_operand_is_sparse(sparse, name):
    a, x = drawn(4, 6), torch.randn(6, 3, dtype=F64)
    for form in FORMS.values():
        A, twin = sparse(a, name).requires_grad_(), a.clone().requires_grad_()
        y, expected = form(A, x), form(twin, x)
        g = torch.randn_like(expected)
        y.backward(g)
        expected.backward(g)
        assert A.grad.pattern is A.pattern
        testing.assert_close(A.grad, twin.grad * testing.mask_of(A.pattern))


@pytest.mark.parametrize("name", support.ALL)
def test_12_values_of_a_constructor_have_a_gradient_of_their_size(sparse, name):
    """For 2^40 elements, so that no dense matrix is made on the way."""
    make = torch if sparse is made_by_torch else spgrad
    n = 2**20
    at = torch.arange(0, n, n // 4)
    ptr = torch.searchsorted(at, torch.arange(n + 1))
    values = torch.rand(4, requires_grad=True)
    block = values.view(-1, 1, 1)
    A = {
        "coo": lambda: make.sparse_coo_tensor(torch.stack([at, at]), values, (n, n)).coalesce(),
        "csr": lambda: make.sparse_csr_tensor(ptr, at, values, (n, n)),
        "csc": lambda: make.sparse_csc_tensor(ptr, at, values, (n, n)),
        "bsr": lambda: make.sparse_bsr_tensor(ptr, at, block, (n, n)),
        "bsc": lambda: make.sparse_bsc_tensor(ptr, at, block, (n, n)),
    }[name]()
    ((A @ torch.ones(n, 1)).sum() + A.sum() + (2 * A).values().sum()).backward()
    assert values.grad.tolist() == [4, 4, 4, 4]
    leaf = A.detach().requires_grad_()
    (leaf.sum() + leaf[n // 4, n // 4]).backward()
    assert leaf.grad.pattern is leaf.pattern
    assert leaf.grad.values().view(-1).tolist() == [1, 2, 1, 1]


def test_12_a_product_with_itself(sparse):
    for name in support.ALL:
        blocked = name.startswith("b")
        a = sparse(torch.eye(4), name).requires_grad_()
        torch.sparse.mm(a, a).sum().backward()
        wanted = torch.eye(2).repeat_interleave(2, 0).repeat_interleave(2, 1) if blocked else 1
        testing.assert_close(a.grad, 2 * torch.ones(4, 4) * wanted * testing.mask_of(a.pattern))


@pytest.mark.parametrize("name", support.ALL)
def test_13_slices_and_joins(sparse, name):
    """Each with a backward, whatever the data are."""
    a = drawn(4, 6)
    for take in (
        lambda t: t[:],
        lambda t: t[1],
        lambda t: t[:, 2],
        lambda t: t[1:, ::2],
        lambda t: t[2, 3],
        lambda t: t.select(1, 0),
        lambda t: torch.index_select(t, 0, torch.tensor([2, 0, 2])),
        lambda t: torch.narrow_copy(t, 1, 2, 3),
        lambda t: torch.cat([t, t[:2]]),
    ):
        A, twin = sparse(a, name).requires_grad_(), a.clone().requires_grad_()
        y, expected = take(A), take(twin)
        testing.assert_close(y.to_dense() if y.dim() else y, expected)
        y.square().sum().backward()
        expected.square().sum().backward()
        assert A.grad.pattern is A.pattern
        testing.assert_close(A.grad, twin.grad * testing.mask_of(A.pattern))


@pytest.mark.parametrize("name", support.ALL)
def test_14_every_layout_takes_a_sparse_gradient(sparse, name):
    A = sparse(drawn(4, 6), name).requires_grad_()
    A.backward(torch.ones_like(A))
    (A * 2).backward(torch.ones_like(A))
    assert A.grad.pattern is A.pattern
    testing.assert_close(A.grad.values(), torch.full_like(A.values(), 3.0))


class Layer(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, x):
        return self.weight @ x


@pytest.mark.parametrize("name", support.ALL)
def test_15_what_a_training_script_does(sparse, name):
    """Adam, clipping, copies, a state with other elements; test_optimizers.py has the rest."""
    layer, x = Layer(sparse(drawn(4, 6), name)), torch.randn(6, 3, dtype=F64)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.01)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = (layer(x) - 1).square().sum()
        loss.backward()
        assert layer.weight.grad.pattern is layer.weight.pattern
        nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > losses[1] > losses[2]
    twin = copy.deepcopy(layer)
    assert isinstance(twin.weight, nn.Parameter)
    assert torch.equal(twin(x), layer(x))
    assert torch.equal(copy.deepcopy(layer.weight.detach()) @ x, layer(x))
    other = Layer(sparse(drawn(4, 6, seed=5), name))
    layer.zero_grad()
    layer.load_state_dict(other.state_dict())
    assert layer.weight._nnz() == other.weight._nnz()
    assert torch.equal(layer(x), other(x))


def test_18_autocast(sparse):
    """Products take the precision that torch's own take; the gradient is that of the parameter."""
    a = drawn(8, 8).float()
    for name in ("coo", "csr", "bsc"):
        A, x = sparse(a, name).requires_grad_(), torch.randn(8, 4, requires_grad=True)
        twin = a.clone().requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y, expected = torch.relu(A @ (x @ torch.eye(4))), torch.relu(twin @ (x @ torch.eye(4)))
            assert y.dtype == F.linear(x.t(), A).dtype == torch.bfloat16
        testing.assert_close(y, expected.float())
        y.float().sum().backward()
        assert A.grad.dtype == x.grad.dtype == torch.float32
        assert A.grad.pattern is A.pattern


@pytest.mark.parametrize("name", support.ALL)
def test_19_an_attention_layer_in_one_layout(sparse, name):
    q, k, v = (torch.randn(4, 3, dtype=F64, requires_grad=True) for _ in range(3))
    A = sparse(drawn(4, 4) + torch.eye(4, dtype=F64), name)
    mask = testing.mask_of(A.pattern)
    scores = torch.sparse.sampled_addmm(A, q, k.t(), beta=0.0)
    weights = torch.sparse.softmax(scores, -1)
    y = weights @ v
    assert scores.layout == weights.layout == A.layout
    assert weights.pattern is A.pattern
    dense = torch.where(mask, q @ k.t(), -torch.inf).softmax(-1) @ v
    testing.assert_close(y, dense)
    grads = torch.autograd.grad(y.square().sum(), (q, k, v))
    for got, want in zip(grads, torch.autograd.grad(dense.square().sum(), (q, k, v)), strict=True):
        testing.assert_close(got, want)
    x = torch.randn(4, 3, dtype=F64)
    terms = torch.where(mask[:, :, None], A.to_dense()[:, :, None] * x, -torch.inf)
    testing.assert_close(spgrad.spmm(A, x, "amax"), terms.amax(1))


@pytest.mark.parametrize("name", support.ALL)
def test_20_names_that_raise_in_torch(sparse, name):
    a, b, x = drawn(4, 6), drawn(2, 4, 6), torch.randn(6, 3, dtype=F64)
    A, B = sparse(a, name), sparse(b, name)
    column, rows = torch.randn(4, dtype=F64), torch.randn(2, 5, 4, dtype=F64)
    added = torch.randn(2, 4, 3, dtype=F64)
    small = drawn(2, 2, seed=3)
    for y, expected in (
        (A.T, a.T),
        (A.mT, a.mT),
        (B.permute(1, 0, 2), b.permute(1, 0, 2)),
        (torch.addmv(column, A, x[:, 0]), torch.addmv(column, a, x[:, 0])),
        (torch.bmm(rows, B), torch.bmm(rows, b)),
        (torch.baddbmm(added, B, x.expand(2, 6, 3)), torch.baddbmm(added, b, x.expand(2, 6, 3))),
        (torch.matmul(B, x), b @ x),
        (torch.matmul(A, x.expand(2, 6, 3)), a @ x.expand(2, 6, 3)),
        (torch.kron(A, sparse(small, name)), torch.kron(a, small)),
        (F.linear(x.t(), A, column), F.linear(x.t(), a, column)),
        (torch.einsum("ij,jk->ik", A, x), a @ x),
    ):
        testing.assert_close(y, expected)
    if sparse is made_by_spgrad:
        testing.assert_close(torch.tensordot(A, x, 1), a @ x)


def test_21_compiles_whole(sparse):
    """Values, patterns and gradients; test_compile.py has the other operations."""
    A, x = sparse(drawn(4, 6), "coo").coalesce().requires_grad_(), torch.randn(6, 3, dtype=F64)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def f(A, x):
        return torch.sparse.mm(A, x).relu().sum()

    f(A, x).backward()
    twin = A.detach().to_dense().requires_grad_()
    (twin @ x).relu().sum().backward()
    assert A.grad.pattern.same_as(A.pattern)
    testing.assert_close(A.grad, twin.grad * testing.mask_of(A.pattern))


class ByValues(nn.Module):
    """The form of a sparse parameter that processes share."""

    def __init__(self, weight):
        super().__init__()
        self.pattern = weight.pattern
        self.values = nn.Parameter(weight.values().clone())

    def forward(self, x):
        return spgrad.from_values(self.values, self.pattern) @ x


@pytest.fixture
def gloo(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/gloo", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_21_several_processes(gloo):
    x = torch.randn(6, 3, dtype=F64)
    for name in support.ALL:
        A = made_by_spgrad(drawn(4, 6), name)
        for call in (lambda A=A: dist.all_reduce(A), lambda A=A: dist.broadcast(A, 0)):
            with pytest.raises(spgrad.UnsupportedError, match=r"all_reduce\(A\.values\(\)\)"):
                call()
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX):
            dist.all_reduce(A.values(), op)
        refused = Layer(A)
        with pytest.raises(spgrad.UnsupportedError, match=r"DistributedDataParallel .*from_values"):
            nn.parallel.DistributedDataParallel(refused)
        buffered = nn.Linear(2, 2)
        buffered.register_buffer("A", A)
        with pytest.raises(spgrad.UnsupportedError, match="DistributedDataParallel"):
            nn.parallel.DistributedDataParallel(buffered)
        model = nn.parallel.DistributedDataParallel(ByValues(A))
        model(x).sum().backward()
        wanted = spgrad.from_values(torch.ones_like(A.values()), A) * x.sum(1)
        testing.assert_close(model.module.values.grad, wanted.values())


@pytest.mark.parametrize("name", support.ALL)
def test_22_messages_say_what_to_do(sparse, name):
    A, x = sparse(drawn(4, 6), name), torch.randn(6, 3, dtype=F64)
    calls = (
        lambda: A + 1,
        lambda: torch.exp(A),
        lambda: A @ x[:5],
        lambda: A @ x.float(),
        lambda: A.cumsum(0),
        A.sort,
        lambda: torch.linalg.inv(A),
        lambda: A.as_strided((2,), (1,)),
        A.numpy,
        lambda: F.conv1d(A, A),
        lambda: A.view(-1, 5),
        lambda: A.clone().normal_(),
        lambda: A.crow_indices() if name in ("coo", "csc", "bsc") else A.ccol_indices(),
    )
    for call in calls:
        try:
            call()
        except (RuntimeError, TypeError, ValueError) as raised:
            error = raised
        else:
            assert sparse is made_by_torch  # where torch has an answer, it gives it
            continue
        if sparse is made_by_torch and not isinstance(error, spgrad.SpgradError):
            error = error.__cause__  # torch's own error comes from that of spgrad
        assert isinstance(error, spgrad.SpgradError)
        assert str(error).startswith("spgrad")
        assert not any(words in str(error) for words in UNCLEAR)


@pytest.mark.parametrize("name", support.ALL)
def test_a_cotangent_with_other_elements_counts_where_it_meets_the_pattern(name):
    a, g = drawn(4, 6), torch.randn(4, 6, dtype=F64)
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
