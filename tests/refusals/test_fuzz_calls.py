"""Thousands of malformed calls of operations: an error of the library, or a right answer.

Every draw follows from the number of the test alone, so a case that fails fails again. torch
compiles nothing here, so the file also runs under AddressSanitizer.
"""

import inspect
import random

import pytest
import torch
from fuzz.differences import ARITHMETIC

import spgrad
from spgrad import support, testing
from spgrad.core.pattern import LAYOUTS

CALLS = 30
PER_TEST = 150
CELLS = [cell for cell in testing.cells() if cell.op.public]


def stranger(rng, operand, *, alone):
    """Something in the place of an operand that most likely does not belong there."""
    A = operand.detach()
    shape = tuple(A.shape)
    dense = torch.randn(shape, dtype=torch.float64)
    wrong = list(shape)
    if wrong:
        wrong[rng.randrange(len(wrong))] = rng.choice([0, 1, 3, 5])
    layout = LAYOUTS[rng.choice(("coo", "csr", "csc"))]
    makers = [
        lambda: torch.randn(wrong, dtype=torch.float64),
        lambda: torch.randn(shape[1:], dtype=torch.float64),
        lambda: torch.randn((2, *shape), dtype=torch.float64),
        lambda: torch.tensor(2.0, dtype=torch.float64),
        lambda: torch.zeros(0, dtype=torch.float64),
        dense.float,
        lambda: dense > 0,
        lambda: dense.to(torch.uint16),
        lambda: dense.to("meta"),
        lambda: dense.to(torch.complex128),
        lambda: A.to(torch.bool),
        A.float,
        lambda: A.to("meta"),
        lambda: dense,
        lambda: dense.relu().to_sparse(),
        lambda: torch.sparse_coo_tensor(
            [[10**9]], [1.0], (3,), dtype=torch.float64, check_invariants=False
        ),
        lambda: testing.random_sparse(tuple(wrong) if len(wrong) > 1 else (4, 6), layout),
        lambda: testing.random_sparse((2, 4, 6), layout),
        lambda: testing.random_sparse((5,), torch.sparse_coo),
        lambda: spgrad.sparse_coo_tensor((4, 6, 2), dtype=torch.float64),
        lambda: spgrad.sparse_coo_tensor(torch.zeros(1, 2).long(), torch.ones(2, 3).double()),
        lambda: spgrad.sparse_coo_tensor(torch.zeros(0, 2).long(), torch.ones(2).double()),
        lambda: spgrad.sparse_csr_tensor([0, 1], [0], torch.ones(1, 2).double(), (1, 6, 2)),
    ]
    if rng.random() < 0.1:
        return rng.choice([None, 3, 2.5, "x", [], [1.0], (), {}, object(), True])
    made = rng.choice(makers)()
    if alone and getattr(made, "is_meta", False):
        return A  # without data an operation may have no answer; mixed devices are the question
    return made


OPTIONS = {
    "beta": (None, "x", torch.ones(2), 2, 1j, [1], True),
    "alpha": (None, "x", torch.ones(2), 2, 1j, [1], False),
    "blocksize": (None, 2, (2, 2), (3, 4), (0, 1), (-1, 2), "ab", (2,), (2.0, 2.0), (2, 2, 2)),
    "layout": (None, "csr", torch.strided, 3),
    "reduce": ("sum", 3, "x"),
    "dtype": (torch.float32, "x", 3),
    "masked_grad": (False, True, "x"),
    "dim": (0, -1, 1, -2, 2, 5, -7, (0, 1), (0, 0), (-1,), [1], "x", 1.5),
    "keepdim": (True, False),
    "specified": (True, False),
    "correction": (0, 1, 2, 100, "x"),
    "value": (0, 2, -1.5, "x", 1j),
}


def spoil_options(rng, cell):
    options = cell.options
    parameters = list(inspect.signature(getattr(spgrad, cell.op.name)).parameters)
    names = [n for n in parameters[len(support.parse(cell.signature)[0]) :] if n in OPTIONS]
    if names and rng.random() < 0.3:
        name = rng.choice(names)
        if (
            name not in ("specified", "keepdim") or name in options
        ):  # not every specification has it
            options[name] = rng.choice(OPTIONS[name])
    if cell.op.name == "prod" and isinstance(options.get("dim"), (tuple, list)):
        options["dim"] = -1  # torch's takes one dimension
    return options


def densified(x):
    return x.detach().to_dense() if isinstance(x, torch.Tensor) and x.layout != torch.strided else x


@pytest.mark.filterwarnings("ignore:Casting complex")
@pytest.mark.filterwarnings(r"ignore:(var|std)\(\)")  # of torch, about samples of one
@pytest.mark.parametrize("number", range(CALLS))
def test_calls(number):
    rng = random.Random(number)
    torch.manual_seed(number)
    refused = answered = 0
    for draw in range(PER_TEST):
        cell = rng.choice(CELLS)
        operands = testing.sample(cell, seed=draw, coalesced=rng.random() < 0.7)
        at = rng.randrange(len(operands))
        if rng.random() < 0.85:
            operands[at] = stranger(rng, operands[at], alone=len(operands) == 1)
        options = spoil_options(rng, cell)
        text = f"draw {draw}: {cell} with {operands} {options}"
        try:
            y = testing.call(cell, getattr(spgrad, cell.op.name), operands, options)
        except spgrad.SpgradError as error:
            refused += 1
            says = str(error)
        except Exception as error:
            raise AssertionError(text) from error
        else:
            answered += 1
            check_answer(cell, operands, options, y, text)
            continue
        assert says.startswith("spgrad"), text
    assert refused > PER_TEST // 10
    assert answered > PER_TEST // 20


def check_answer(cell, operands, options, y, text):
    if isinstance(y, tuple) and not y:  # the coordinates of a tensor without dimensions
        return
    y = y if isinstance(y, torch.Tensor) else y[0]
    if y.device.type == "meta":
        return
    if "dtype" in options:
        operands = [x.to(options["dtype"]) for x in operands]
    options = {
        k: v
        for k, v in options.items()
        if k
        not in ("blocksize", "layout", "dtype", "masked_grad", cell.op.name == "mm" and "reduce")
    }
    if cell.op.told:
        kinds = support.parse(cell.signature)[0]
        first = next(x for x, kind in zip(operands, kinds, strict=True) if kind.sparse)
        options |= testing.told(cell.op, spgrad.from_torch(first).pattern)
    try:
        wanted = cell.op.call(cell.op.dense, *map(densified, operands), **options)
        wanted = wanted if isinstance(wanted, torch.Tensor) else wanted[0]
    except Exception as error:
        raise AssertionError(f"answered what the specification refuses: {text}") from error
    got = y.detach() if not isinstance(y, spgrad.SparseTensor) else y.detach().to_dense()
    assert got.shape == wanted.shape, text
    if isinstance(y, spgrad.SparseTensor) and options.get("specified"):
        wanted = torch.where(testing.mask_of(y.pattern), wanted, 0)  # unspecified stays so
    if isinstance(y, spgrad.SparseTensor) and cell.op.module in ARITHMETIC:
        outside = ~testing.mask_of(y.pattern)  # where 0 / 0 is not calculated
        wanted = wanted.masked_fill(outside & wanted.isnan(), 0)
        if not y.pattern.coalesced:  # a / 0 + b / 0 may be inf - inf
            got = got.where(~(wanted.isinf() & got.isnan()), wanted)
    try:
        testing.assert_close(*in_dtype_of_repeats(operands, got, wanted.detach()))
    except AssertionError as error:
        raise AssertionError(text) from error


def in_dtype_of_repeats(operands, *found):
    """What was found, in the precision in which repeated elements of an operand were added."""
    for x in operands:
        repeats = isinstance(x, torch.Tensor) and x.is_sparse and not x.is_coalesced()
        if repeats and all(t.dtype.is_floating_point for t in (x, *found)):
            found = [t.to(x.dtype) if x.dtype.itemsize < t.dtype.itemsize else t for t in found]
    return found
