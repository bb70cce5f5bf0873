"""Random programs against dense torch: fixed numbers here, any number with `make fuzz`."""

import contextlib
import dataclasses
import math

import pytest
import torch
from fuzz.__main__ import report
from fuzz.compare import Failure, Run, run, run_seed
from fuzz.operands import Dense, Sparse, described
from fuzz.options import DRAW
from fuzz.programs import ROWS, Drawn, Program, Step
from fuzz.shrink import as_operand, reproducer, shrink
from fuzz.threads import run_threads
from fuzz.twin import Divided, Multiplied

import spgrad
from spgrad import support, testing

BATCHES, PER_BATCH = 32, 100

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, of samples of one


@pytest.mark.parametrize("batch", range(BATCHES))
def test_random_programs(batch):
    for number in range(batch * PER_BATCH, (batch + 1) * PER_BATCH):
        check(number)


def check(number):
    try:
        run_seed(number)
    except Failure as failure:
        raise AssertionError(report(number, failure)) from failure


@pytest.mark.parametrize("batch", range(4))
def test_threads(batch):
    """Larger programs give the same bits on 1, 2 and 4 threads."""
    programs = [run_threads(number) for number in range(batch * 6, batch * 6 + 6)]
    assert any(programs)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_row_is_drawn(row):
    """Each signature of each row: a step that runs, and is not refused by both sides."""
    for signature in row.signatures:
        answered = 0
        for seed in range(8):
            drawer, done = Drawn(seed), Run()
            drawer.dtype, drawer.mixed = torch.float64, False
            *operands, step = drawer.step_of(row, [], None, signature)
            assert step.name == row.name
            for operand in operands:
                done.operand(operand)
            answered += done.step(step)
        assert answered, signature


def test_every_argument_of_the_table_is_drawn():
    assert {name for row in ROWS for sample in row.samples for name in sample} == set(DRAW)


@pytest.mark.parametrize("seed", range(40))
def test_the_source_makes_the_same_values(seed):
    with contextlib.suppress(Failure):
        done = run_seed(seed)
        names = {}
        try:
            exec(Program(tuple(done.items)).source(), names)
        except (spgrad.SpgradError, IndexError):  # refused, or the last of no parts
            assert len(done.values) < len(done.items), "the step gave a value before"
        for place, value in enumerate(done.values):
            if isinstance(value, torch.Tensor):
                again = names[f"v{place}"]
                testing.assert_close(again.detach(), testing.dense_result(value).detach())
                assert again.layout == value.layout


@pytest.mark.parametrize("layout", support.ALL)
def test_tensors_become_operands(layout):
    A = testing.random_sparse((2, 4, 6), getattr(torch, f"sparse_{layout}"), dense_dim=0)
    again = described(A).make()
    assert again.pattern.same_as(A.pattern)
    assert torch.equal(again._values(), A._values())


def test_a_failure_becomes_small(monkeypatch):
    """Of a sum that drops the element (1, 1), what is left is that element."""

    def wrong(A, *args, **options):
        keep = torch.ones(A.shape, dtype=A.dtype)
        keep[1:2, 1:2] = 0
        return true_sum(A * keep, *args, **options)

    true_sum = spgrad.sum
    monkeypatch.setattr(spgrad, "sum", wrong)
    A = described(testing.random_sparse((4, 6), torch.sparse_csc, dtype=torch.float32, density=1.1))
    x = Dense((6,), tuple(map(float, range(1, 7))), torch.float32, "offset", grad=True)
    steps = (
        Step("mul", "A[m,k] x[k] -> C[m,k]", (0, 1), (), None),
        Step("neg", "A[m,k] -> C[m,k]", (2,), (), None),
        Step("sum", "A[m,k] -> y[m]", (3,), (("dim", -1),), None),
    )
    with pytest.raises(Failure, match="value of sum") as caught:
        run(Program((A, x, *steps)))
    small = shrink(caught.value)
    assert small.key == ("value", "sum")
    operand, step = small.program.items
    assert isinstance(operand, Sparse)
    assert operand.shape == (2, 2)
    assert operand.entries == ((1, 1),)
    assert step.name == "sum"
    assert "spgrad.sum(v0" in small.program.source()


def test_a_failure_of_derivatives_is_told_with_them(monkeypatch):
    """Of a product whose derivative is wrong, in Python that runs."""

    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            return g * g

    true_mul = spgrad.mul
    monkeypatch.setattr(spgrad, "mul", lambda A, x: true_mul(A, Wrong.apply(x)))
    A = described(testing.random_sparse((4, 6)))
    x = Dense((6,), tuple(map(float, range(1, 7))), torch.float64, grad=True)
    step = Step("mul", "A[m,k] x[k] -> C[m,k]", (0, 1), (), None)
    with pytest.raises(Failure, match="gradient 1 of mul") as caught:
        run(Program((A, x, step), order=1))
    lines = reproducer(shrink(caught.value))
    names = {}
    exec(lines, names)
    assert len(lines.splitlines()) < 20
    (grad,) = names["first"]
    want = names["g"].sum(0) * names["v0"].to_dense().sum(0)
    assert not torch.allclose(grad, want)


def test_derivatives_of_second_order_are_told():
    A = dataclasses.replace(described(testing.random_sparse((4, 6))), grad=True)
    failure = Failure("gradient 2", "square", "")
    failure.program = Program((A, Step("square", "A[m,k] -> C[m,k]", (0,), (), None)))
    names = {}
    exec(reproducer(failure), names)
    (second,) = names["second"]
    assert second.pattern is names["v0"].pattern


# Programs that failed once.


def coo(indices, values, shape=None, dtype=torch.float64, index_dtype=torch.int64):
    indices = torch.as_tensor(indices, dtype=index_dtype)
    return spgrad.sparse_coo_tensor(indices, torch.as_tensor(values, dtype=dtype), shape)


FOUND = {
    "tile without sparse dimensions": (
        "tile",
        [coo(torch.zeros(0, 2), [[1.0, 2.0], [3.0, 4.0]])],
        {"dims": (2,)},
    ),
    "maximum without sparse dimensions": (
        "max",
        [coo(torch.zeros(0, 1), [[[1.0, 2.0], [3.0, -4.0]]])],
        {"dim": -1},
    ),
    "maximum without sparse dimensions or elements": (
        "argmax",
        [coo(torch.zeros(0, 0), torch.zeros(0, 2, 3))],
        {"dim": 0, "keepdim": True},
    ),
    "exponentials of a full row that underflow": (
        "logsumexp",
        [coo([[0, 0, 1], [0, 1, 1]], [-900.0, -901.0, -800.0], (2, 2))],
        {"dim": -1},
    ),
    "no copies of rows, with int32 indices": (
        "repeat",
        [coo([[0, 1], [2, 0]], [1.0, 2.0], (2, 3), index_dtype=torch.int32)],
        {"repeats": (2, 0)},
    ),
    "complex divisor of real tensors": (
        "addcdiv",
        [
            coo([[0, 1], [2, 0]], [1.0, 2.0], (2, 3)),
            coo([[0, 1], [1, 0]], [3.0, 4.0], (2, 3)),
            torch.full((2, 3), 1 + 2j, dtype=torch.complex128),
        ],
        {},
    ),
    "second derivative of attention without heads": (
        "scaled_dot_product_attention",
        [
            torch.ones(2, 0, 4, 3, dtype=torch.float64),
            torch.ones(2, 0, 5, 3, dtype=torch.float64),
            torch.ones(1, 0, 5, 2, dtype=torch.float64),
            coo([[0, 1], [0, 0], [2, 3], [4, 0]], [1.0, 2.0], (2, 1, 4, 5)),
        ],
        {},
    ),
}


@pytest.mark.parametrize("name", list(FOUND))
def test_found(name):
    operation, operands, options = FOUND[name]
    specs = [as_operand(t, grad=True) for t in operands]
    step = Step(operation, "-", tuple(range(len(specs))), tuple(options.items()), None)
    done = run(Program((*specs, step)))
    assert len(done.values) == len(specs) + 1, "both sides refuse"


# Programs that were reported once, though both sides were right.


def step(name, *args, **options):
    return Step(name, "-", args, tuple(options.items()), None)


RIGHT = {
    "a sum in a derivative that cancels": [
        torch.ones(1, 1),
        torch.tensor([[752.0], [672.0], [304.0]]),
        torch.tensor([[-0.734375, 0.828125, 0.125], [-0.234375, 0.28125, -0.484375], [1, 2, 3.0]]),
        coo([[0], [0]], [True], (1, 3), torch.bool),
        step("scaled_dot_product_attention", 0, 1, 2, 3),
    ],
    "quotient by a zero, which has a sign": [
        coo([[0, 0], [0, 1]], [-0.5, 0.25], (2, 2)),
        step("prod", 0),
        coo([[0], [0]], [1.0], (1, 1)),
        step("div", 2, 1),
    ],
    "zeros that normalize divides by zero": [
        coo(torch.zeros(2, 0), torch.zeros(0, 1), (1, 1, 1), torch.float16),
        step("normalize", 0),
        step("count_nonzero", 1),
    ],
    "product that overflows before it meets a zero": [
        coo([[0, 0], [0, 1]], [1e200, 1e200], (2, 2)),
        step("prod", 0),
    ],
    "infinity times what a triangle does not specify": [
        coo(torch.zeros(2, 0), torch.zeros(0), (2, 2)),
        torch.tensor([[1.0], [torch.inf]], dtype=torch.float64),
        step("solve_triangular", 0, 1, upper=True, unitriangular=True),
    ],
    "difference of a rounded number and an exact one": [
        coo([[1], [0]], [0.6952709555625916 - 0.5793924331665039j], (3, 6), torch.complex64),
        step("sgn", 0),
        torch.tensor([[0.671875]], dtype=torch.float64),
        step("sub", 1, 2),
    ],
}


@pytest.mark.parametrize("name", list(RIGHT))
def test_what_rounding_explains_is_not_reported(name):
    items = [i if isinstance(i, Step) else as_operand(i, grad=True) for i in RIGHT[name]]
    assert len(run(Program(tuple(items), order=1)).values) == len(items), "both sides refuse"


@pytest.mark.parametrize(("dtype", "error"), [(torch.float16, 0.05), (torch.bfloat16, 0.5)])
def test_what_rounding_does_not_explain_is_reported(monkeypatch, dtype, error):
    true_sum = spgrad.sum
    monkeypatch.setattr(spgrad, "sum", lambda *args: true_sum(*args) * (1 + error))
    A = described(testing.random_sparse((4, 6), dtype=dtype))
    with pytest.raises(Failure, match="value of sum"):
        run(Program((A, step("sum", 0))))


def test_an_error_beside_terms_that_cancel_is_reported(monkeypatch):
    """Of 1000 - 999.5, whose terms have errors of 1e-4 each, 0.5 is known to some 1e-3."""
    true_sub = spgrad.sub
    A, B = coo([[0], [0]], [1e3], (1, 1)), coo([[0], [0]], [999.5], (1, 1))
    for error, reported in ((1e-4, False), (1e-2, True)):
        monkeypatch.setattr(
            spgrad, "sub", lambda *args, e=error: true_sub(*args) + (A * (e / 1e3)).float()
        )
        program = Program((*(as_operand(t.float(), grad=False) for t in (A, B)), step("sub", 0, 1)))
        with pytest.raises(Failure) if reported else contextlib.nullcontext():
            run(program)


def test_the_dense_side_derives_exponentials_whatever_the_cotangent():
    """torch's own derivative has an error of 2e-4 there."""
    M = torch.zeros(3, 3, dtype=torch.float64)
    M[:, 2] = torch.tensor([-0.25, 0.1, 1.5])
    M.requires_grad_()
    scale, g = [], torch.tensor([0, 0, 1e12], dtype=torch.float64)
    y = Divided.apply(torch.linalg.matrix_exp(Multiplied.apply(M, scale)).sum(1), scale)
    (found,) = torch.autograd.grad(y, M, g)
    assert found[2, 2].item() == pytest.approx(1e12 * math.exp(1.5), rel=1e-12)
