"""torch.func and forward mode, of functions of the values of a sparse tensor."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import spgrad
from spgrad import testing

F64 = torch.float64

# torch says so when vmap takes the items of a batch one after the other
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")


def places():
    """A pattern, its values, x, and the dense function of the values that is meant."""
    A = testing.random_sparse((4, 6))
    at = testing.mask_of(A.pattern).view(-1).nonzero().view(-1)
    x = torch.randn(6, 3, dtype=F64)

    def dense(v):
        return torch.zeros(24, dtype=F64).index_add(0, at, v).view(4, 6)

    return A, A.values().clone(), x, dense


OTHER = testing.random_sparse((4, 6), seed=7)
FUNCTIONS = {
    "matmul": (lambda A, x: A @ x, lambda a, x: a @ x),
    "sampled": (
        lambda A, x: spgrad.sampled_addmm(A, x[:4], x.t()).to_dense(),
        lambda a, x: a + (x[:4] @ x.t()) * (a != 0),
    ),
    "spgemm": (lambda A, x: (A @ A.t()).to_dense(), lambda a, x: a @ a.t()),
    "sum": (lambda A, x: A.sum(1), lambda a, x: a.sum(1)),
    "mean": (
        lambda A, x: spgrad.spmm(A, x, "mean"),
        lambda a, x: a @ x / (a != 0).sum(1, keepdim=True).clamp(min=1),
    ),
    "amax": (lambda A, x: A.amax(0), lambda a, x: a.amax(0)),
    "prod": (
        lambda A, x: A.prod(1, specified=True),
        lambda a, x: torch.where(a == 0, 1, a).prod(1),
    ),
    "softmax": (
        lambda A, x: torch.softmax(A, 1) @ x,
        lambda a, x: torch.where(a == 0, -torch.inf, a).softmax(1).nan_to_num(0.0) @ x,
    ),
    "scale": (lambda A, x: (A * x[:4, :1]).sin().to_dense(), lambda a, x: (a * x[:4, :1]).sin()),
    "add": (lambda A, x: (A + OTHER).to_dense(), lambda a, x: a + OTHER.to_dense()),
    "attention": (
        lambda A, x: scaled_dot_product_attention(x[:4], x, x, attn_mask=A),
        lambda a, x: scores_of(a, x).softmax(1).nan_to_num(0.0) @ x,
    ),
}


def scores_of(a, x):
    """Those of attention with a bias `a` on its elements."""
    return torch.where(a == 0, -torch.inf, x[:4] @ x.t() / x.shape[1] ** 0.5 + a)


NEW_PATTERNS = {"spgemm", "add"}  # whose sizes a transform in a graph does not know


@pytest.mark.parametrize("function", [name for name in FUNCTIONS if name not in NEW_PATTERNS])
def test_forward_mode_and_hessians_compile(function):
    """In one graph: torch.compile enters forward mode in a way of its own."""
    torch.compiler.reset()
    A, v, x, dense = places()
    sparse_form, dense_form = FUNCTIONS[function]

    def f(v):
        return sparse_form(spgrad.from_values(v, A), x).square().sum()

    def expected(v):
        return dense_form(dense(v), x).square().sum()

    t = torch.randn_like(v)
    both = {"fullgraph": True, "backend": "aot_eager"}
    moved = torch.compile(lambda v: torch.func.jvp(f, (v,), (t,))[1], **both)(v)
    testing.assert_close(moved, torch.func.grad(expected)(v) @ t)
    curved = torch.compile(torch.func.hessian(f), **both)(v)
    testing.assert_close(curved, torch.func.hessian(expected)(v))


@pytest.mark.parametrize("function", list(FUNCTIONS))
def test_transforms_of_functions(function):
    """Forward and backward mode, one in the other, and vmap, of a function of the values."""
    func, fw = torch.func, torch.autograd.forward_ad
    A, v, x, dense = places()
    sparse_form, dense_form = FUNCTIONS[function]

    def f(v, x=x):
        return sparse_form(spgrad.from_values(v, A), x)

    def expected(v, x=x):
        return dense_form(dense(v), x)

    def total(g):
        return lambda v: g(v).square().sum()

    jacobian = func.jacrev(expected)(v)
    testing.assert_close(func.jacrev(f)(v), jacobian)
    testing.assert_close(func.jacfwd(f)(v), jacobian)
    testing.assert_close(func.grad(total(f))(v), func.grad(total(expected))(v))
    testing.assert_close(func.hessian(total(f))(v), func.hessian(total(expected))(v))
    testing.assert_close(func.jacrev(func.jacfwd(total(f)))(v), func.hessian(total(expected))(v))
    several = torch.stack([v, 2 * v])
    testing.assert_close(func.vmap(f)(several), torch.stack([*map(expected, several)]))
    testing.assert_close(
        func.jacrev(lambda x: f(v, x))(x), func.jacrev(lambda x: expected(v, x))(x)
    )
    t = torch.randn_like(v)
    with fw.dual_level():
        out, tangent = fw.unpack_dual(f(fw.make_dual(v, t)))
    testing.assert_close(out, expected(v))
    testing.assert_close(tangent, (jacobian * t).sum(-1))


@pytest.mark.parametrize("function", list(FUNCTIONS))
def test_forward_mode_within_transforms_of_second_and_third_order(function):
    """torch itself drops the outer tangents of a custom function in the inner forward mode."""
    forward, backward = torch.func.jacfwd, torch.func.jacrev
    A, v, x, dense = places()
    sparse_form, dense_form = FUNCTIONS[function]

    def f(v):
        return (sparse_form(spgrad.from_values(v, A), x) ** 3).sum()

    def expected(v):
        return (dense_form(dense(v), x) ** 3).sum()

    second = backward(backward(expected))
    testing.assert_close(forward(forward(f))(v), second(v))
    third = backward(second)(v)
    for outer, inner, first in (
        (forward, forward, forward),
        (forward, forward, backward),
        (forward, backward, forward),
        (backward, forward, forward),
    ):
        testing.assert_close(outer(inner(first(f)))(v), third)


def test_a_sparse_tensor_in_a_transform_is_refused_clearly():
    A, _, x, _ = places()
    for transform in (torch.func.grad, torch.func.jacrev):
        with pytest.raises(spgrad.UnsupportedError, match=r"torch\.func, .*from_values"):
            transform(lambda A: (A @ x).sum())(A)
    with pytest.raises(spgrad.UnsupportedError, match=r"torch\.func, .*from_values"):
        torch.func.jvp(lambda A: A @ x, (A,), (A,))
    leaf = A.clone().requires_grad_()
    with pytest.raises(spgrad.UnsupportedError, match=r"requires a gradient .*from_values"):
        torch.func.grad(lambda x: (leaf @ x).sum())(x)


def test_constructors_in_a_transform():
    """The values of a tensor that is made inside are the argument."""
    x = torch.randn(6, 3, dtype=F64)
    index = torch.tensor([[0, 1, 1], [2, 0, 5]])

    def coo(v):
        return spgrad.sparse_coo_tensor(index, v, (4, 6)).coalesce() @ x

    def csr(v):
        return spgrad.sparse_csr_tensor([0, 1, 3, 3, 3], [2, 0, 5], v, (4, 6)) @ x

    v = torch.randn(3, dtype=F64)
    wanted = torch.zeros(4, 3, 3, dtype=F64)
    for p, (i, j) in enumerate(index.t().tolist()):
        wanted[i, :, p] = x[j]
    for f in (coo, csr):
        for jacobian in (torch.func.jacrev, torch.func.jacfwd):
            testing.assert_close(jacobian(f)(v), wanted)
        twice = torch.func.vmap(f)(torch.stack([v, -v]))
        testing.assert_close(twice, torch.stack([f(v), -f(v)]))


def test_a_layer_by_functional_call():
    """Gradients for each item of a batch, of a module that holds the values."""
    A = testing.random_sparse((4, 6))

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.values = torch.nn.Parameter(A.values().clone())

        def forward(self, x):
            return spgrad.from_values(self.values, A) @ x

    layer, x = Layer(), torch.randn(5, 6, dtype=F64)
    parameters = {name: p.detach() for name, p in layer.named_parameters()}

    def loss(parameters, x):
        return torch.func.functional_call(layer, parameters, (x,)).square().sum()

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)["values"]
    for i in range(5):
        layer.zero_grad()
        layer(x[i]).square().sum().backward()
        testing.assert_close(each[i], layer.values.grad)


def test_a_tensor_that_outlived_a_transform_keeps_its_gradient():
    """torch.func leaves a wrapper behind; what is recorded belongs to the tensor in it."""
    pattern = spgrad.from_dense(torch.eye(3)).pattern
    v = torch.rand(3, requires_grad=True)
    x = torch.rand(3, 2, requires_grad=True)
    kept = []

    def square(*tensors):
        kept.extend(tensors)
        return sum((t * t).sum() for t in tensors)

    torch.func.grad(square)(v, x)
    A = spgrad.from_values(kept[0], pattern)
    (A @ kept[1]).sum().backward()
    torch.testing.assert_close(v.grad, x.detach().sum(1))
    torch.testing.assert_close(x.grad, v.detach()[:, None].expand(3, 2))


SAME_PATTERN = (
    torch.Tensor.detach,
    torch.detach,
    torch.clone,
    torch.Tensor.double,
    torch.Tensor.contiguous,
    torch.positive,
    lambda A: A.to(torch.float64),
    lambda A: A.type(torch.float64),
)


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("function", SAME_PATTERN)
def test_functions_that_torch_answers_give_sparse_tensors_in_a_transform(function, requires_grad):
    A = spgrad.from_dense(torch.tensor([[0.0, 2.0], [3.0, 4.0]])).requires_grad_(requires_grad)
    if requires_grad and function not in SAME_PATTERN[:2]:
        with pytest.raises(NotImplementedError, match="Transform a function of its values"):
            torch.func.grad(lambda v: function(A).sum() * v)(torch.ones(()))
        return
    x = torch.tensor([[1.0], [2.0]], dtype=function(A).dtype)
    found = torch.func.grad(lambda v: (function(A) @ x).sum() * v)(torch.tensor(1.0))
    assert found == (A.detach().to_dense().to(x.dtype) @ x).sum()
    v = torch.ones(2, dtype=torch.float64)
    mapped = torch.func.vmap(lambda v: function(A).sum() * v)(v)
    assert mapped.tolist() == [9.0, 9.0]


@pytest.mark.parametrize("function", [torch.clone, torch.Tensor.double, torch.detach])
def test_values_of_a_transform_go_through_functions_that_torch_answers(function):
    v = torch.tensor([2.0, 3.0, 4.0])
    A = spgrad.from_dense(torch.tensor([[0.0, 2.0], [3.0, 4.0]]))
    found = torch.func.grad(lambda v: function(spgrad.from_values(v * v, A)).sum().float())(v)
    assert found.tolist() == ([0.0, 0.0, 0.0] if function is torch.detach else [4.0, 6.0, 8.0])


def test_the_name_of_a_dtype_in_a_transform():
    A = spgrad.from_dense(torch.eye(2))
    names = []

    def function(v):
        B = spgrad.from_values(v, A)
        names.extend([B.type(), B.double().type()])
        return B.sum()

    assert torch.func.grad(function)(torch.ones(2)).tolist() == [1.0, 1.0]
    assert names == [A.type(), A.double().type()] == ["torch.FloatTensor", "torch.DoubleTensor"]


def test_what_is_no_sparse_tensor_in_a_transform_is_refused():
    A = spgrad.from_dense(torch.eye(2))
    with pytest.raises(NotImplementedError, match="Call it before the transform"):
        torch.func.grad(lambda v: torch.isreal(A).sum() * v)(torch.ones(()))


def test_forward_mode_of_values_that_require_a_gradient():
    """The value and the tangent both have their gradient, also with patterns found on the way."""
    fw = torch.autograd.forward_ad
    A, v, x, dense = places()
    at = testing.mask_of(A.pattern)
    leaf, t = v.clone().requires_grad_(), torch.randn_like(v)

    def sparse(v):
        return ((torch.softmax(spgrad.from_values(v, A), 1) + OTHER) @ x).square()

    def expected(v):
        powers = torch.where(at, dense(v).exp(), 0)
        return ((powers / powers.sum(1, keepdim=True).clamp(min=1e-9) + OTHER.to_dense()) @ x) ** 2

    found = []
    for f in (sparse, expected):
        with fw.dual_level():
            y, tangent = fw.unpack_dual(f(fw.make_dual(leaf, t)))
            of_tangent, of_y = (
                torch.autograd.grad(out.sum(), leaf, retain_graph=True)[0] for out in (tangent, y)
            )
        found.append((y.detach(), tangent.detach(), of_tangent, of_y))
    for ours, theirs in zip(*found, strict=True):
        testing.assert_close(ours, theirs)


MAPPED = {
    "index_select": (lambda i: spgrad.index_select(spgrad.eye(4), 0, i), "`index`"),
    "getitem": (lambda i: spgrad.getitem(spgrad.eye(4), i), "`index`"),
    r"in A\[Tensor\]": (lambda i: spgrad.eye(4)[i], "`index`"),
    "embedding": (lambda i: torch.nn.functional.embedding(i, spgrad.eye(4)), "`input`"),
    "sparse_coo_tensor": (
        lambda i: spgrad.sparse_coo_tensor(torch.stack([i, i]), torch.ones(2)),
        "`indices`",
    ),
    "data.random_walk": (lambda i: spgrad.data.random_walk(spgrad.eye(4), i, 2), "`starts`"),
    r"in A\[Tensor, Tensor\]": (lambda i: spgrad.eye(4)[i, i], r"`index\[0\]`"),
}


@pytest.mark.parametrize("name", MAPPED)
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_indices_that_vmap_maps_over_are_refused(name):
    call, argument = MAPPED[name]
    text = f"{name}: {argument} has ints or bools that torch.func.vmap maps over"
    with pytest.raises(spgrad.UnsupportedError, match=text):
        torch.func.vmap(call)(torch.tensor([[0, 1], [2, 3]]))
