"""Programs of larger operands: on 1, 2 and 4 threads their results have the same bits."""

import dataclasses

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import spgrad
from fuzz.compare import FIRST, Failure
from fuzz.operands import is_sparse
from fuzz.programs import Drawn, Program, Step
from spgrad import testing
from spgrad.core.pattern import LAYOUTS
from spgrad.core.tensor import SparseTensor

LINES = (64, 200, 300)
"""Sizes of matrices: a kernel is parallel from some 30 000 units of work."""
OTHERS = (1, 2, 3, 8)
DTYPES = (*[torch.float32] * 3, torch.float64, torch.bfloat16, torch.complex64, torch.int64)
MOST = 10**6
"""Elements beyond which a result is no operand of a further operation."""


@dataclasses.dataclass(frozen=True)
class Large:
    """An operand that follows from its seed."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    seed: int
    layout: str | None = None  # of a sparse one
    options: tuple[tuple[str, object], ...] = ()  # of `testing.random_sparse`
    grad: bool = False
    dominant: bool = False

    def make(self):
        if self.layout is None:
            x = testing.random_dense(
                self.shape, dtype=self.dtype, generator=torch.Generator().manual_seed(self.seed)
            )
        else:
            options = dict(self.options)
            layout = LAYOUTS[self.layout]
            x = testing.random_sparse(
                self.shape, layout, dtype=self.dtype, seed=self.seed, **options
            )
            x = testing.dominant(x) if self.dominant else x
        return x.requires_grad_(self.grad)

    def source(self):
        if self.layout is None:
            generator = f"generator=torch.Generator().manual_seed({self.seed})"
            made = f"testing.random_dense({self.shape}, dtype={self.dtype}, {generator})"
        else:
            options = "".join(f", {name}={value}" for name, value in self.options)
            given = f"{self.shape}, torch.sparse_{self.layout}, dtype={self.dtype}"
            made = f"testing.random_sparse({given}, seed={self.seed}{options})"
            made = f"testing.dominant({made})" if self.dominant else made
        return made + (".requires_grad_()" if self.grad else "")


class DrawnLarge(Drawn):
    """Draws such operands."""

    def __init__(self, seed):
        super().__init__(seed)
        self.steps = self.rng.choice((1, 1, 2, 3))
        self.dtype, self.mixed = self.rng.choice(DTYPES), False

    def size(self, letter):
        return self.rng.choice(LINES if letter in "mk" else OTHERS)

    def step_of(self, row, values, last, signature=None):
        if row.name == "kron" and last is not None:  # of two large ones
            return None
        return super().step_of(row, values, last, signature)

    def _loose(self, row, values, last):
        return None if last is None else super()._loose(row, values, last)

    def _operand(self, row, operand, shape, layout):
        rng, dtype = self.rng, self._dtype(operand)
        grad = not operand.constant and (dtype.is_floating_point or dtype.is_complex)
        seed = rng.randrange(1000)
        if not operand.sparse:
            return Large(shape, dtype, seed, None, (), grad)
        if len(shape) - operand.dense_dim < 2:
            layout = "coo"
        if layout.startswith("b") and any(s % 2 for s in self.matrix(shape, operand)):
            layout = "csr"
        options = {
            "density": 1.1 if operand.full or operand.dominant else rng.choice((0.02, 0.1, 0.4)),
            "dense_dim": operand.dense_dim,
            "positive": operand.positive,
            "index_dtype": rng.choice((torch.int32, torch.int64)),
            "coalesced": layout != "coo" or rng.random() < 0.7,
        }
        return Large(shape, dtype, seed, layout, tuple(options.items()), grad, operand.dominant)

    @staticmethod
    def matrix(shape, operand):
        """The last two sparse sizes."""
        return shape[: len(shape) - operand.dense_dim][-2:]


class TorchOnOneThread(TorchDispatchMode):
    """Runs torch's own operations on one thread, and leaves those of spgrad on several.

    Where a thread of torch begins, its vectors of numbers begin, and the last bit of its logarithm
    or of its complex quotient depends on that.
    """

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        threads = torch.get_num_threads()
        if func.namespace != "aten" or any(issubclass(t, SparseTensor) for t in types):
            return func(*args, **(kwargs or {}))
        torch.set_num_threads(1)
        try:
            return func(*args, **(kwargs or {}))
        finally:
            torch.set_num_threads(threads)


def run_threads(seed):
    """Draws a program while running it on one thread, runs it on 2 and 4; raises `Failure`."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        items, values = _drawn(seed)
        wanted = _results(items, values)
        for threads in (2, 4):
            torch.set_num_threads(threads)
            if not _same(_again(items), wanted):
                with TorchOnOneThread():
                    got = _again(items)
                _compare(items, threads, got, wanted)
    finally:
        torch.set_num_threads(before)
    return items


def _again(items):
    values = []
    for item in items:
        values.append(_call(item, values) if isinstance(item, Step) else item.make())
    return _results(items, values)


def _drawn(seed):
    drawer, items, values, last = DrawnLarge(seed), [], [], None
    for _ in range(drawer.steps):
        found = drawer.next_items(values, last)
        if found is None:
            break
        *operands, step = found
        operands = [(operand, operand.make()) for operand in operands]
        try:
            y = _call(step, [*values, *(made for _, made in operands)])
        except spgrad.SpgradError:
            break
        for operand, made in operands:
            items.append(operand)
            values.append(made)
        items.append(step)
        values.append(y)
        last = len(values) - 1
        if not isinstance(y, torch.Tensor) or y.numel() > MOST:
            break
    return items, values


def _call(step, values):
    args = [values[place] for place in step.args]
    options = dict(step.options)
    function = getattr(spgrad, step.name)
    result = step.row.call(function, *args, **options)
    if isinstance(result, torch.Tensor):
        return result
    result = tuple(result)
    return result[min(step.pick or 0, len(result) - 1)] if result else torch.zeros(0)


def _results(items, values):
    """All values, and the first derivatives of the last."""
    parts = [part for value in values if isinstance(value, torch.Tensor) for part in _parts(value)]
    y = values[-1] if values else None
    leaves = [v for i, v in zip(items, values, strict=True) if getattr(i, "grad", False)]
    if y is None or not isinstance(y, torch.Tensor) or not y.requires_grad:
        return parts
    stored = spgrad.to_dense(y) if is_sparse(y) and not y.pattern.coalesced else y
    stored = spgrad.values(stored) if is_sparse(stored) else stored
    g = torch.linspace(-1, 1, stored.numel(), dtype=torch.float64).reshape(stored.shape)
    try:
        grads = torch.autograd.grad(stored, leaves, g.to(stored.dtype), allow_unused=True)
    except RuntimeError as error:
        if "not implemented" in str(error):  # torch has no derivative
            return parts
        raise
    return parts + [part for g in grads if g is not None for part in _parts(g)]


def _parts(value):
    value = value.detach()
    return (*value.pattern.indices, value._vals) if is_sparse(value) else (value,)


def _compare(items, threads, got, wanted):
    for mine, theirs in zip(got, wanted, strict=True):
        if not _same([mine], [theirs]):
            step = next(i for i in reversed(items) if isinstance(i, Step))
            failure = Failure(f"{threads} threads", step.name, f"{mine} and {theirs}")
            failure.program = Program(tuple(items), FIRST)
            raise failure


def _same(got, wanted):
    """Whether the tensors have the same bits."""
    return all(
        mine.shape == theirs.shape
        and mine.dtype == theirs.dtype
        and torch.equal(_bits(mine), _bits(theirs))
        for mine, theirs in zip(got, wanted, strict=True)
    )


def _bits(x):
    # torch's own -x of complex numbers has 0 or -0 by the number of threads
    x = torch.view_as_real(x.resolve_conj()) + 0 if x.is_complex() else x
    if x.is_floating_point():  # one NaN is as good as another
        nothing = x.isnan()
        x = torch.stack([x.masked_fill(nothing, 0), nothing.to(x.dtype)])
    flat = x.reshape(-1).clone(memory_format=torch.contiguous_format)  # of one element, too
    return flat.view(torch.uint8)
