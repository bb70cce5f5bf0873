"""A program: operands and operations on them, as data; and how one is drawn."""

import dataclasses
import random

import torch

from fuzz.operands import (
    DTYPES,
    SIZES,
    Number,
    described,
    differentiable,
    draw_dense,
    draw_kind,
    draw_sparse,
    is_sparse,
    literal,
)
from fuzz.options import draw_options
from spgrad import support, testing

LARGE = 3000
"""Elements beyond which a result is no operand of a further operation."""

ROWS = [row for row in support.OPS.values() if row.compared and row.public]
SIGNATURES = {s: support.parse(s) for row in ROWS for s in row.signatures}
BY_ROUNDING = ("signbit", "angle", "unique")
"""Of results, these tell apart what rounding alone does: -0 and 0, or two sums of equal terms."""
TAKES_NUMBERS = {"mul", "div", "remainder", "pow", "eq", "gt", "ge", "lt", "le"}


@dataclasses.dataclass(frozen=True)
class Step:
    """One operation.

    Attributes:
        name: Of its row.
        signature: Of that row; empty if the operand has another number of dimensions.
        args: Places of its operands in the program.
        options: Keyword arguments.
        pick: Which of several results goes on; None if there is one that is no tuple.
    """

    name: str
    signature: str
    args: tuple[int, ...]
    options: tuple[tuple[str, object], ...]
    pick: int | None = 0

    @property
    def row(self):
        return support.OPS[self.name]


@dataclasses.dataclass(frozen=True)
class Program:
    """Operands and steps, in order; steps refer to earlier items by their place."""

    items: tuple
    order: int = 2  # of the derivatives that are compared

    @property
    def steps(self):
        return [item for item in self.items if isinstance(item, Step)]

    def source(self):
        """Python that runs it."""
        lines = ["import torch", "import spgrad", "from spgrad import support, testing"]
        for place, item in enumerate(self.items):
            made = _call_source(item) if isinstance(item, Step) else item.source()
            lines.append(f"v{place} = {made}")
        return "\n".join(lines)


def _call_source(step):
    arguments = ", ".join(f"v{place}" for place in step.args)
    options = "".join(f", {name}={literal(value)}" for name, value in step.options)
    called = f"spgrad.{step.name}({arguments}{options})"
    if step.row.call is support.on_list:
        called = f"spgrad.{step.name}([{arguments}]{options})"
    elif step.row.call is not support.plainly:
        called = f"support.OPS[{step.name!r}].call(spgrad.{step.name}, {arguments}{options})"
    return called if step.pick is None else f"{called}[{step.pick}]"


class Drawn:
    """A program that grows: `next_items` proposes what to append.

    Attributes:
        rng: Its source of numbers.
        steps: How many steps it will have.
    """

    def __init__(self, seed):
        self.rng = rng = random.Random(seed)
        self.steps = rng.choice((1, 1, 2, 2, 3, 4, 5))
        self.dtype = rng.choice(DTYPES)
        self.mixed = rng.random() < 0.05  # dtypes
        self.index_dtype = rng.choice((None, torch.int64, torch.int32))

    def size(self, letter):
        """Of a dimension with this letter in a signature."""
        if letter == "5":  # which the dense function tells from the sizes of a matrix
            return 5
        return self.rng.choice(SIZES)

    def next_items(self, values, last):
        """Operands to append and the step that follows them; None if nothing fits.

        Args:
            values: What the items so far gave.
            last: Place of the value to go on with; None at the start.
        """
        for _ in range(20):
            row = self.rng.choice(ROWS)
            items = self.step_of(row, values, last)
            if items is not None:
                return items
        return None

    def step_of(self, row, values, last, signature=None):
        """The same for one row; None if it takes nothing like the value at `last`."""
        rng = self.rng
        if row.name in BY_ROUNDING and last is not None:
            return None
        loose = rng.random() < 0.15 and signature is None
        signature = signature or rng.choice(row.signatures)
        operands = SIGNATURES[signature][0]
        if loose and len(operands) == 1 and operands[0].name == "A":
            return self._loose(row, values, last)
        sizes, at = {"1": 1}, None
        if last is not None:
            places = [i for i, o in enumerate(operands) if _fits(o, values[last])]
            if not places:
                return None
            at = rng.choice(places)
            for letter, size in zip(operands[at].dims, values[last].shape, strict=True):
                if sizes.setdefault(letter, size) != size:
                    return None
        return self._filled(row, signature, values, last, sizes, at)

    def _filled(self, row, signature, values, last, sizes, at):
        rng, operands = self.rng, SIGNATURES[signature][0]
        for operand in operands:
            for letter in operand.dims:
                if letter not in sizes:
                    sizes[letter] = self.size(letter)
        layout = rng.choice(support.ALL if rng.random() < 0.02 else row.layouts)
        if last is not None and is_sparse(values[last]):
            layout = values[last].pattern.name
        items, args, seen = [], [], None
        for place, operand in enumerate(operands):
            shape = tuple(sizes[letter] for letter in operand.dims)
            known = last if place == at else self._again(operand, shape, values)
            if known is None:
                known = len(values) + len(items)
                items.append(self._operand(row, operand, shape, layout))
            if operand.sparse and seen is None:
                seen = shape
            args.append(known)
        options = draw_options(rng, row, seen or shape)
        if not differentiable(self.dtype):  # integers have no fractions for factors
            options = {k: int(v) if k in ("alpha", "beta") else v for k, v in options.items()}
        return [*items, self._step(row, signature, args, options)]

    def _step(self, row, signature, args, options):
        if row.name == "setitem":
            options["value"] = 0.0
        pick = self.rng.choice((0, 0, 1, 2))
        return Step(row.name, signature, tuple(args), tuple(options.items()), pick)

    def _loose(self, row, values, last):
        """One operand of any number of dimensions."""
        rng, items = self.rng, []
        if row.name in ("prune", "compact"):  # which take elements with dense dimensions whole
            return None
        if last is None:
            layout = rng.choice(row.layouts)
            batch = rng.choice(((), (), (2,), (3,), (2, 2), (0,), (1,)))
            dense = rng.choice(((), (), (2,), (3,), (2, 2), (0,), (1,)))
            matrix = tuple(rng.choice(SIZES) for _ in range(2))
            if layout == "coo":
                batch, matrix = (), (*batch, *matrix[: rng.choice((0, 1, 1, 2, 2, 2))])
            shape = (*batch, *matrix, *dense)
            items.append(self._sparse(layout, shape, len(dense), draw_kind(rng)))
            last = 0
        elif not is_sparse(values[last]):
            return None
        else:
            shape = tuple(values[last].shape)
        return [*items, self._step(row, "", [last], draw_options(rng, row, shape))]

    def _again(self, operand, shape, values):
        """The place of an earlier value that fits, for some of the operands."""
        if self.rng.random() > 0.25:
            return None
        places = [
            place
            for place, value in enumerate(values)
            if _fits(operand, value) and tuple(value.shape) == shape
        ]
        return self.rng.choice(places) if places else None

    def _operand(self, row, operand, shape, layout):
        rng = self.rng
        signed = "positive" if operand.positive else "negative" if operand.negative else None
        kind = signed or draw_kind(rng)
        dtype = self._dtype(operand)
        if not operand.sparse:
            drawn = draw_dense(rng, shape, dtype, kind, grad=rng.random() < 0.7)
            if isinstance(drawn, Number) and row.name not in TAKES_NUMBERS:
                drawn = draw_dense(rng, (1,), dtype, kind)
                drawn = dataclasses.replace(drawn, shape=(), form="plain")
            return drawn
        if rng.random() < 0.2:
            layout = rng.choice(row.layouts)
        full = (operand.full or operand.dominant) and rng.random() < 0.9
        drawn = self._sparse(layout, shape, operand.dense_dim, kind, operand, full=full)
        if operand.dominant:
            made = described(testing.dominant(drawn.make()))
            drawn = dataclasses.replace(made, grad=drawn.grad)
        return drawn

    def _sparse(self, layout, shape, dense_dim, kind, operand=None, *, full=False):
        rng, dtype = self.rng, self._dtype(operand)
        if len(shape) - dense_dim < 2:
            layout = "coo"
        grad = rng.random() < 0.8 and not (operand is not None and operand.constant)
        return draw_sparse(
            rng,
            layout,
            shape,
            dense_dim,
            dtype,
            kind,
            full=full,
            grad=grad,
            index_dtype=self.index_dtype,
        )

    def _dtype(self, operand=None):
        dtype = self.rng.choice(DTYPES) if self.mixed and self.rng.random() < 0.5 else self.dtype
        if operand is not None and operand.complex:
            return torch.promote_types(dtype, torch.complex64)
        if operand is not None and operand.integer and differentiable(dtype):
            return self.rng.choice((torch.bool, torch.int32, torch.int64))
        return torch.bool if operand is not None and operand.truth else dtype


def _fits(operand, value):
    if not isinstance(value, torch.Tensor) or value.dim() != len(operand.dims):
        return False
    if operand.sparse != is_sparse(value) or operand.name in "PFMSpn":
        return False
    if operand.complex and not value.dtype.is_complex:
        return False
    if operand.integer and differentiable(value.dtype):
        return False
    if operand.truth and value.dtype != torch.bool:
        return False
    if operand.sparse and value.pattern.dense_dim != operand.dense_dim:
        return False
    return all(d != "1" or s == 1 for d, s in zip(operand.dims, value.shape, strict=True))


def can_go_on(value):
    """Whether a result is taken as an operand."""
    return isinstance(value, torch.Tensor) and value.numel() <= LARGE
