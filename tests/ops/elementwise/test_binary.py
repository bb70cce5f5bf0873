"""Functions of two elements: numbers, patterns that differ, promotion, in place, refusals."""

import math
import operator
import re

import pytest
import torch
from samples import drawn, made_by_spgrad

import spgrad
from spgrad import support, testing
from spgrad.core.pattern import LAYOUTS

F64 = torch.float64
PAIRS = [
    operator.add,
    operator.sub,
    operator.mul,
    torch.maximum,
    torch.minimum,
    torch.ne,
    torch.gt,
    torch.lt,
]


@pytest.mark.parametrize("name", support.ALL)
@pytest.mark.parametrize("fn", PAIRS, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("zoo", list(testing.ZOO))
def test_patterns_of_the_zoo(fn, name, zoo, poisoned):
    a = testing.ZOO[zoo]().double()
    b = a.flip(0) * (torch.arange(a.shape[1]) % 3 > 0)
    A, B = made_by_spgrad(a, name), made_by_spgrad(b, "csr")
    y = fn(A, B)
    assert y.pattern.name == name
    testing.assert_close(y, fn(a, b))
    testing.assert_close(fn(B, A), fn(b, a))


@pytest.mark.parametrize("name", support.ALL)
@pytest.mark.parametrize("shape", [(), (2, 3), (1, 2, 3), (1, 1, 2, 3), (3,), (2, 1)])
@pytest.mark.parametrize("gradient", [False, True])
def test_dense_operands_of_dense_dimensions_alone(shape, name, gradient):
    """Each element is a matrix, which is multiplied with the same matrix or part of one."""
    A = testing.random_sparse((4, 6, 2, 3), LAYOUTS[name], dense_dim=2)
    x = torch.arange(1.0, 1 + math.prod(shape), dtype=F64).reshape(shape).requires_grad_(gradient)
    y = A * x
    assert y.pattern is A.pattern
    assert y.values().shape == A.values().shape
    testing.assert_close(y.detach(), A.to_dense() * x.detach())


@pytest.mark.parametrize("fn", PAIRS[:3], ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("other", ["none", "all", "same", "disjoint"])
def test_extreme_overlaps(fn, other, poisoned):
    a = drawn(6, 8)
    b = {
        "none": torch.zeros(6, 8, dtype=F64),
        "all": torch.ones(6, 8, dtype=F64),
        "same": a * 2,
        "disjoint": (a == 0) * torch.ones(6, 8, dtype=F64),
    }[other]
    A, B = made_by_spgrad(a).requires_grad_(), made_by_spgrad(b).requires_grad_()
    y = fn(A, B)
    testing.assert_close(y, fn(a, b))
    if fn is not operator.mul:
        assert y.pattern.elements == int(((a != 0) | (b != 0)).sum())
    else:
        assert y.pattern.elements == int(((a != 0) & (b != 0)).sum())
    y.values().sum().backward()
    twin_a, twin_b = (t.clone().requires_grad_() for t in (a, b))
    fn(twin_a, twin_b).sum().backward()
    testing.assert_close(A.grad, twin_a.grad * (a != 0))
    testing.assert_close(B.grad, twin_b.grad * (b != 0))


def test_a_shared_pattern_is_kept():
    A = made_by_spgrad(drawn(4, 6))
    B = A * 2
    assert (A + B).pattern is A.pattern
    assert (A * B).pattern is A.pattern
    assert (A / B).pattern is A.pattern


def test_the_joint_pattern_is_made_once():
    A, B = made_by_spgrad(drawn(4, 6)), made_by_spgrad(drawn(4, 6, seed=1))
    assert (A + B).pattern is (A - B).pattern
    assert (A * B).pattern is torch.mul(A, B).pattern


@pytest.mark.parametrize("fn", [torch.div, torch.remainder, torch.floor_divide])
def test_what_the_divisor_lacks(fn):
    """Elements of the dividend are divided by 0 there; elements it lacks itself are 0."""
    a = torch.tensor([[1.0, -2.0, 0.0, 0.0]], dtype=F64)
    b = torch.tensor([[4.0, 0.0, 5.0, 0.0]], dtype=F64)
    y = fn(made_by_spgrad(a), made_by_spgrad(b))
    testing.assert_close(y, torch.where(a != 0, fn(a, b), 0.0))
    assert y.pattern.elements == 2


@pytest.mark.parametrize("mode", ["trunc", "floor"])
def test_rounded_division(mode):
    a = drawn(4, 6) * 10
    y = torch.div(made_by_spgrad(a), 0.7, rounding_mode=mode)
    testing.assert_close(y, torch.div(a, 0.7, rounding_mode=mode))


@pytest.mark.parametrize("name", support.ALL)
def test_numbers(name):
    a = drawn(4, 6)
    A = made_by_spgrad(a, name)
    cases = {
        A * 2: a * 2,
        2 * A: 2 * a,
        A / 4: a / 4,
        A // 0.3: a // 0.3,
        A % 0.3: a % 0.3,
        abs(A) ** 0.5: a.abs() ** 0.5,
        A + 0: a,
        0 + A: a,
        A - 0: a,
        0 - A: -a,
        A > 0.2: a > 0.2,
        A < -0.2: a < -0.2,
        A >= 0.2: a >= 0.2,
        A <= -0.2: a <= -0.2,
        A == 0.5: a == 0.5,
        A != 0: a != 0,
        torch.maximum(A, torch.tensor(-0.1, dtype=F64)): a.clamp(min=-0.1),
        torch.minimum(A, torch.tensor(0.1, dtype=F64)): a.clamp(max=0.1),
        spgrad.maximum(-0.1, A): a.clamp(min=-0.1),
        spgrad.minimum(0.1, A): a.clamp(max=0.1),
    }
    for y, expected in cases.items():
        testing.assert_close(y, expected)
        assert y.dtype == expected.dtype
        assert y.pattern is A.pattern


def test_builtin_sum_starts_with_zero():
    a, b = drawn(4, 6), drawn(4, 6, seed=1)
    testing.assert_close(sum([made_by_spgrad(a), made_by_spgrad(b)]), a + b)


@pytest.mark.parametrize(
    "refused",
    [
        lambda A: A + 1,
        lambda A: 1 - A,
        lambda A: A**0,
        lambda A: A**-1,
        lambda A: A > -1,
        lambda A: A == 0,
        lambda A: A != 3,
        lambda A: torch.maximum(A, torch.tensor(1.0)),
        lambda A: torch.minimum(A, torch.tensor(float("nan"))),
        lambda A: torch.pow(A, torch.tensor([1.0, 0.0, 2.0])),
    ],
)
def test_numbers_that_fill_the_tensor_are_refused(refused):
    A = spgrad.from_dense(torch.tensor([[0.0, 2.0, 3.0]]))
    with pytest.raises(ValueError, match=r"spgrad\.\w+: `(other|exponent)` is .*A\.to_dense\(\)"):
        refused(A)


@pytest.mark.parametrize(
    ("refused", "called"),
    [
        (lambda A, x: x / A, ", in Tensor / A"),
        (lambda A, x: torch.pow(x, A), ".pow"),
        (lambda A, x: torch.pow(A, A), ".pow"),
        (lambda A, x: 1 / A, ", in 1 / A"),
        (lambda A, x: 2**A, ", in 2 ** A"),
        (lambda A, x: 7 // A, ", in 7 // A"),
        (lambda A, x: 7 % A, ", in 7 % A"),
        (lambda A, x: torch.eq(A, A), ".eq"),
        (lambda A, x: A <= A * 2, ".le"),
    ],
)
def test_results_that_are_not_sparse_are_refused(refused, called):
    A = spgrad.from_dense(torch.tensor([[0.0, 2.0, 3.0]]))
    with pytest.raises(NotImplementedError, match=rf"^spgrad{re.escape(called)}: `input`"):
        refused(A, torch.ones(1, 3))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: torch.ones(5), r"`other` has shape \(5,\); what broadcasts to \(4, 6\)"),
        (lambda: torch.ones(2, 4, 6), r"`other` has shape \(2, 4, 6\); what broadcasts to"),
        (lambda: made_by_spgrad(drawn(4, 8)), r"`other` has shape \(4, 8\); \(4, 6\) with 0 dense"),
        (lambda: made_by_spgrad(drawn(1, 6)), r"`other` has shape \(1, 6\).*do not broadcast"),
    ],
)
def test_shapes_that_do_not_fit(other, message):
    with pytest.raises(ValueError, match=rf"spgrad\.mul: {message}"):
        torch.mul(made_by_spgrad(drawn(4, 6)), other())


def test_kinds_that_do_not_fit():
    A = made_by_spgrad(drawn(4, 6))
    with pytest.raises(TypeError, match=r"spgrad\.mul: `other` is a str; a tensor or a number"):
        spgrad.mul(A, "2")
    with pytest.raises(TypeError, match=r"at least one sparse operand"):
        spgrad.add(torch.ones(2), torch.ones(2))
    with pytest.raises(ValueError, match=r"spgrad\.add: .*broadcasts with \(4, 6\)"):
        spgrad.add(A, torch.ones(5))
    with pytest.raises(ValueError, match=r"spgrad\.floor_divide: `other` has a 0, by which"):
        spgrad.from_dense(torch.eye(2, dtype=torch.int64)) // 0
    assert (A == None) is False  # noqa: E711
    assert A != "text"


DTYPES = [torch.bool, torch.uint8, torch.int64, torch.bfloat16, torch.float32, torch.complex64]


@pytest.mark.parametrize("left", DTYPES, ids=str)
@pytest.mark.parametrize("right", DTYPES, ids=str)
@pytest.mark.parametrize("fn", [torch.add, torch.mul, torch.div], ids=lambda fn: fn.__name__)
def test_promotion_is_that_of_torch(fn, left, right):
    a, b = drawn(4, 6, dtype=left), drawn(4, 6, dtype=right, seed=1, density=1.1)
    b = torch.where(b == 0, torch.ones_like(b), b)
    A = made_by_spgrad(a)
    assert fn(A, made_by_spgrad(b)).dtype == fn(a, b).dtype
    if fn is not torch.div:
        testing.assert_close(fn(A, made_by_spgrad(b)), fn(a, b))
    testing.assert_close(fn(A, b).to_dense() * (a != 0), fn(a, b) * (a != 0))
    for number in (3, 2.5, torch.tensor(3), torch.tensor(2.5, dtype=F64)):
        if fn is not torch.add:
            assert fn(A, number).dtype == fn(a, number).dtype


def test_the_unspecified_stay_so_whatever_they_are_multiplied_with():
    a = torch.tensor([[0.0, 2.0]])
    x = torch.tensor([[float("inf"), float("nan")]])
    y = made_by_spgrad(a) * x
    assert y.pattern.elements == 1
    assert y.values().isnan().all()


@pytest.mark.parametrize("name", support.ALL)
@pytest.mark.parametrize("shape", [(6,), (1, 6), (4, 1), (4, 6), (1, 1)], ids=str)
def test_vectors_scale_rows_and_columns(name, shape, poisoned):
    a = drawn(4, 6)
    x = torch.rand(shape, dtype=F64) + 0.1
    for fn in (torch.mul, torch.div):
        A, v = made_by_spgrad(a, name).requires_grad_(), x.clone().requires_grad_()
        twin, w = a.clone().requires_grad_(), x.clone().requires_grad_()
        y, expected = fn(A, v), fn(twin, w)
        g = torch.randn(4, 6, dtype=F64)
        y.to_dense().backward(g)
        expected.backward(g * testing.mask_of(A.pattern))
        testing.assert_close(y, expected)
        testing.assert_close(A.grad, twin.grad * testing.mask_of(A.pattern))
        testing.assert_close(v.grad, w.grad)


def test_the_degree_normalisation_of_a_graph():
    a = drawn(6, 6).abs()
    A = made_by_spgrad(a).requires_grad_()
    twin = a.clone().requires_grad_()
    d, e = A.sum(1), twin.sum(1)
    scale, factor = ((t + 1).pow(-0.5) for t in (d, e))
    y = A * scale[:, None] * scale
    expected = twin * factor[:, None] * factor
    testing.assert_close(y, expected)
    y.values().square().sum().backward()
    expected.square().sum().backward()
    testing.assert_close(A.grad, twin.grad * (a != 0))


@pytest.mark.parametrize("name", support.ALL)
def test_in_place(name):
    a = drawn(4, 6)
    A = made_by_spgrad(a, name)
    before = A.pattern
    A += A
    A *= 3
    A /= 2
    A -= A * 0.5
    A.mul_(torch.arange(1.0, 7.0, dtype=F64))
    A.addcmul_(A, A, value=0.1).lerp_(A * 2, 0.25)
    b = a * 3 * 0.5 * torch.arange(1.0, 7.0, dtype=F64)
    b = b + 0.1 * b * b
    testing.assert_close(A, b * 1.25)
    assert A.pattern is before


def test_in_place_keeps_the_graph():
    a = drawn(4, 6)
    A, twin = made_by_spgrad(a).requires_grad_(), a.clone().requires_grad_()
    B, b = A * 2, twin * 2
    B.sin_().mul_(3).pow_(2)
    b.sin_().mul_(3).pow_(2)
    B.values().sum().backward()
    b.sum().backward()
    testing.assert_close(A.grad, twin.grad * (a != 0))


def test_in_place_needs_room():
    A, B = made_by_spgrad(drawn(4, 6)), made_by_spgrad(drawn(4, 6, seed=1))
    with pytest.raises(RuntimeError, match=r"spgrad\.add_: the result is csr .* nse"):
        A += B
    with pytest.raises(ValueError, match=r"spgrad\.div_: `input` has dtype int64"):
        spgrad.from_dense(torch.eye(2, dtype=torch.int64)).div_(2)
    dense = torch.zeros(4, 6, dtype=F64)
    dense += A
    testing.assert_close(dense, A.to_dense())


def test_repeated_elements():
    indices = torch.tensor([[0, 0, 1, 0], [1, 1, 0, 2]])
    A = spgrad.sparse_coo_tensor(indices, torch.tensor([1.0, 2.0, 3.0, 4.0]), (2, 3))
    a = A.to_dense()
    assert (A * 2).pattern is A.pattern
    testing.assert_close(A * 2, a * 2)
    testing.assert_close(A * a, a * a)
    testing.assert_close(A * A, a * a)
    testing.assert_close(A**2, a**2)
    testing.assert_close(A // 2, a // 2)
    testing.assert_close(A + A.coalesce(), 2 * a)
    testing.assert_close(A + a, 2 * a)


def test_more_sparse_dimensions_than_a_dense_tensor_has_elements():
    size = (2**20, 2**20, 2**20)
    A = spgrad.sparse_coo_tensor([[0, 5], [1, 2**20 - 1], [7, 3]], [1.0, 2.0], size)
    B = spgrad.sparse_coo_tensor([[5, 6], [2**20 - 1, 0], [3, 0]], [8.0, 20.0], size)
    assert (A + B).coalesce().values().tolist() == [1, 10, 20]
    assert (A * B).values().tolist() == [16]
    assert (A / B).values().tolist() == [float("inf"), 0.25]


def test_hybrid_and_three_sparse_dimensions():
    a = drawn(3, 4, 2)
    A = spgrad.from_dense(a, layout=torch.sparse_coo)
    assert A.sparse_dim() == 3
    testing.assert_close(A * torch.ones(4, 1, dtype=F64), a)
    testing.assert_close(A + A.t() if a.dim() == 2 else A + A, 2 * a)
    x = torch.randn(3, 1, 2, dtype=F64)
    testing.assert_close(A * x, a * x)


def test_the_gradient_of_a_factor():
    t = torch.tensor(2.0, dtype=F64, requires_grad=True)
    A = made_by_spgrad(drawn(4, 6))
    (A * t).values().sum().backward()
    testing.assert_close(t.grad, A.values().sum())
    t.grad = None
    (A / t).values().sum().backward()
    testing.assert_close(t.grad, -A.values().sum() / 4)


def test_results_do_not_depend_on_the_number_of_threads():
    n, nse = 3000, 60000
    A, B = (
        spgrad.sparse_coo_tensor(
            torch.randint(n, (2, nse)), torch.randn(nse), (n, n)
        ).to_sparse_csr()
        for _ in range(2)
    )
    x = torch.rand(n, 1)

    def results():
        fresh = [
            spgrad.sparse_csr_tensor(C.crow_indices(), C.col_indices(), C.values(), (n, n))
            for C in (A, B)
        ]
        found = (fresh[0] + fresh[1], fresh[0] * fresh[1], fresh[0] * x)
        return [t for y in found for t in (*y.pattern.indices, y.values())]

    torch.set_num_threads(1)
    one = results()
    torch.set_num_threads(2)
    assert all(torch.equal(a, b) for a, b in zip(one, results(), strict=True))


@pytest.mark.parametrize("nse", [2, 50, 5000, 100_000])
def test_unchecked_indices_may_be_unsorted(nse):
    """Merges look at the order of indices that the constructor did not check."""
    half = torch.randperm(2 * nse)[:nse]
    ptr, idx = torch.tensor([0, nse, 2 * nse]), torch.cat([half, half.flip(0)])
    values, size = torch.ones(2 * nse), (2, 2 * nse)
    A = spgrad.sparse_csr_tensor(ptr, idx, values, size, check_invariants=False)
    other = torch.randperm(2 * nse)[:nse].sort().values
    B = spgrad.sparse_csr_tensor(ptr, torch.cat([other, other]), values, size)
    for C, D in ((A, B), (B, A), (A, A.clone())):
        assert torch.equal((C + D).to_dense(), C.to_dense() + D.to_dense())
        assert torch.equal((C * D).to_dense(), C.to_dense() * D.to_dense())
