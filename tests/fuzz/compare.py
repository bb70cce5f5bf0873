"""Runs a program twice, with sparse and with dense operands, and compares what it gives."""

import dataclasses

import torch

import spgrad
from fuzz.differences import SPREADS, adjusted, answer_is_right, hides_numbers, refusal_is_right
from fuzz.operands import Sparse, differentiable, is_sparse
from fuzz.programs import Drawn, Program, Step, can_go_on
from fuzz.rounding import explained
from fuzz.twin import Twin, close, drawn
from spgrad import testing
from spgrad.core.values import stored_values

FIRST = 1
SECOND = 2
NONE = [("beta", 0), ("alpha", 0), ("value", 0)]
"""Arguments with which an operand adds nothing, and its graph is left out."""


class Failure(Exception):  # noqa: N818
    """What differs.

    Attributes:
        kind: In a word, which a smaller program has to share.
        name: Of the operation.
        program: That which failed.
    """

    def __init__(self, kind, name, text):
        super().__init__(f"{kind} of {name}: {text}")
        self.kind = kind
        self.name = name
        self.program = None

    @property
    def key(self):
        return self.kind, self.name


class Run:
    """A program on both sides; raises `Failure` where they differ.

    Attributes:
        items: Operands and steps so far.
        values: What they gave.
        dense: The same as dense tensors without graph.
        refused: Names of operations that refused an operand beyond their signatures.
    """

    def __init__(self):
        self.items = []
        self.values = []
        self.dense = []
        self.twin = Twin()
        self.masks = []  # for each item: what its specification takes of a pattern, its own mask
        self.refused = []
        self.known = {}  # id of a pattern: its mask, and the pattern

    def mask(self, A):
        """True at the elements of a sparse tensor; None of a dense one."""
        if not is_sparse(A):
            return None
        kept = self.known.get(id(A.pattern))
        if kept is None:
            kept = self.known[id(A.pattern)] = testing.mask_of(A.pattern), A.pattern
        return kept[0]

    def operand(self, spec):
        made = spec.make()
        self.items.append(spec)
        self.values.append(made)
        self.dense.append(None)
        self.masks.append((None, None))
        self.twin.operand(spec, made)

    def step(self, step):
        """False if both sides refuse, or where rounding leaves nothing to compare."""
        self.items.append(step)
        args = [self.values[place] for place in step.args]
        if hides_numbers(step, args):
            return False
        first = next((a for a in args if is_sparse(a)), None)
        told = {
            "mask": self.mask(first),
            "heads": first is not None and first.pattern.dense_dim > 0,
        }
        told = {name: told[name] for name in step.row.told}
        self.masks.append((told, None))
        got, several, error = self._sparse(step, args)
        try:
            want, wanted_error = self.twin.step(step, told), None
        except Exception as raised:  # noqa: BLE001
            want, wanted_error = None, raised
        if error is not None:
            self._judge_refusal(step, args, error, want, wanted_error)
            return False
        if wanted_error is not None:
            if answer_is_right(step, args, wanted_error):
                return False
            raise Failure("answer", step.name, f"dense torch raises {wanted_error!r}")
        pick = min(step.pick or 0, len(got) - 1)
        self.items[-1] = dataclasses.replace(step, pick=pick if several else None)
        if len(got) != len(want):
            raise Failure("number", step.name, f"{len(got)} results, not {len(want)}")
        if not got:
            return False
        finite = self.twin.finite
        for at, (y, w) in enumerate(zip(got, want, strict=True)):
            dense = to_dense(y.detach())
            wanted = adjusted(step, y, dense, w, finite, self.mask(y))
            self._compare_value(step, at, y, dense, wanted)
            if at == pick:
                kept = y, dense, wanted
        self._keep(*kept)
        return True

    def _sparse(self, step, args):
        function = getattr(spgrad, step.name)
        try:
            result = step.row.call(function, *args, **dict(step.options))
        except spgrad.SpgradError as error:
            return None, False, error
        except Exception as error:
            raise Failure(f"error {type(error).__name__}", step.name, repr(error)) from error
        if isinstance(result, torch.Tensor):
            return (result,), False, None
        return tuple(result), True, None

    def _judge_refusal(self, step, args, error, want, wanted_error):
        if wanted_error is not None:
            return
        layouts = {a.pattern.name for a in args if is_sparse(a)}
        if layouts - set(step.row.layouts):
            if not isinstance(error, spgrad.UnsupportedError):
                raise Failure("refusal", step.name, repr(error))
            return
        if not refusal_is_right(step, args, error, want):
            raise Failure("refusal", step.name, repr(error)) from error
        self.refused.append((step.name, str(error)))

    def _compare_value(self, step, at, got, dense, want):
        if got.shape != want.shape:
            raise Failure("shape", step.name, f"{tuple(got.shape)}, not {tuple(want.shape)}")
        if got.dtype != want.dtype:
            raise Failure("dtype", step.name, f"{got.dtype}, not {want.dtype}")
        if is_sparse(got) and (
            got.pattern.shape != got.shape or got.pattern.values_shape != got._vals.shape
        ):
            raise Failure("pattern", step.name, f"{got.pattern.shape} {got._vals.shape}")
        place, outside = len(self.items) - 1, None
        if is_sparse(got) and dict(step.options).get("specified"):
            outside = ~self.mask(got)

        def again(replay):
            found = replay.result(place, at)
            return found if outside is None else found.masked_fill(outside, 0)

        self._close("value", step.name, dense, want.detach(), again)

    def _close(self, kind, name, got, want, again):
        """Fails if two tensors differ by more than rounding can explain.

        Args:
            kind: What they are.
            name: Of the operation.
            got: Of the sparse side.
            want: Of the dense side.
            again: Gives the same from a `Replay`.
        """
        if close(got, want):
            return
        if self._rounding(got, want, again):
            return
        try:
            testing.assert_close(got, want)
        except AssertionError as error:
            raise Failure(kind, name, str(error)) from error

    def _rounding(self, got, want, again):
        dtypes = {got.dtype, *(v.dtype for v in self.values if isinstance(v, torch.Tensor))}
        rounded = [d for d in dtypes if differentiable(d)]
        return bool(rounded) and explained(
            got, want, rounded, lambda rounding: again(Replay(self, rounding))
        )

    def _keep(self, got, dense, want):
        mask = self.mask(got)
        self.masks[-1] = (self.masks[-1][0], mask)
        self.values.append(got)
        self.dense.append(dense)
        self.twin.append(want, mask, dense)

    def gradients(self, order):
        """Compares the derivatives of the last value."""
        y, want = self.values[-1], self.twin.values[-1]
        name = self.items[-1].name
        if not differentiable(y.dtype) or not self.twin.finite_before:
            return
        if name in SPREADS and not self.twin.finite:
            return
        if want.requires_grad and not y.requires_grad:
            steps = Program(tuple(self.items)).steps
            if all(s.row.order and not any(o in NONE for o in s.options) for s in steps):
                raise Failure("graph", name, f"requires_grad is {y.requires_grad}")
            return
        if not (y.requires_grad and want.requires_grad):
            return
        if y.dtype not in (torch.float64, torch.complex128):
            order = FIRST  # terms of the second cancel, of which single precision leaves too little
        try:
            other = differentiate(self, self.twin.values, order)
        except RuntimeError:  # dense torch has no derivative, or an error in it
            return
        try:
            got = differentiate(self, self.values, order)
        except Exception as error:
            raise Failure(f"gradient {type(error).__name__}", name, repr(error)) from error
        for at, (mine, twins) in enumerate(zip(got, other, strict=True)):
            if mine is None or twins is None:
                self._compare_absent(at, name, mine, twins)
            else:
                self._compare_gradient(at, name, mine, twins, order)

    def _compare_absent(self, at, name, mine, twins):
        present = mine if twins is None else twins
        if present is None:
            return
        present = to_dense(present.detach())
        spec = leaf_of(self.items, at)
        if isinstance(spec, Sparse):
            present = present.where(self.mask(self.leaf(spec)), 0)
        if mine is None:
            present = present.detach().nan_to_num(nan=0.0)  # 0 * infinity
        if not close(present, torch.zeros_like(present)):
            raise Failure(f"gradient {order_of(self.items, at)}", name, f"{mine} and {twins}")

    def leaf(self, spec):
        return next(v for i, v in zip(self.items, self.values, strict=True) if i is spec)

    def _taken(self, spec, dense):
        """The elements of a dense tensor at a pattern: one for each entry, or those of blocks."""
        if spec.block:
            return dense.detach().where(self.mask(self.leaf(spec)), 0)
        if not spec.sparse_shape:  # every entry is the whole tensor
            return dense.expand(len(spec.entries), *dense.shape)
        at = tuple(torch.tensor(axis) for axis in zip(*spec.entries, strict=True))
        return dense[at] if at else dense.new_zeros(0, *spec.element_shape)

    def _compare_gradient(self, at, name, mine, twins, order):
        kind = f"gradient {order_of(self.items, at)}"
        spec = leaf_of(self.items, at)
        want = twins.detach()
        if isinstance(spec, Sparse):
            leaf = self.leaf(spec)
            if not is_sparse(mine) or mine.pattern is not leaf.pattern:
                raise Failure(kind + " pattern", name, repr(mine))
            mine, want = mine.detach(), self._taken(spec, want)
            mine = self._taken(spec, spgrad.to_dense(mine)) if spec.block else mine._vals
        elif is_sparse(mine):
            raise Failure(kind + " kind", name, "a sparse gradient of a dense operand")
        if mine.dtype != want.dtype:
            raise Failure(kind + " dtype", name, f"{mine.dtype}, not {want.dtype}")

        def again(replay):
            found = replay.gradients(order)[at]
            found = torch.zeros_like(twins) if found is None else found
            return self._taken(spec, found) if isinstance(spec, Sparse) else found

        mine = mine.detach()
        finite = self.twin.finite
        second = order_of(self.items, at) == SECOND
        if second or not finite:  # dense torch has 0 * infinity
            mine = torch.where(want.isnan(), want, mine)
        if not finite:  # so have we, as where the squares of a norm or an exponential overflow
            overflows = mine.isnan() & ~want.isfinite() if not second else mine.isnan()
            mine = torch.where(overflows, want, mine)
        self._close(kind, name, mine, want, again)


class Replay:
    """The dense side of a run once more, with other rounding."""

    def __init__(self, run, rounding):
        self.run = run
        self.twin = Twin(rounding)
        self.results = []
        for place, item in enumerate(run.items):
            masks = run.masks[place]
            if isinstance(item, Step):
                finite = self.twin.finite
                found = self.twin.step(item, masks[0])
                self.results.append(found)
                if place == len(run.values):  # the step that fails
                    return
                chosen, dense = found[min(item.pick or 0, len(found) - 1)], run.dense[place]
                chosen = adjusted(item, run.values[place], dense, chosen, finite, masks[1])
                self.twin.append(chosen, masks[1], dense)
            else:
                self.results.append(None)
                self.twin.operand(item, run.values[place])

    def result(self, place, at):
        y = self.results[place][at]
        return y.detach()

    def gradients(self, order):
        with self.twin.rounding:
            return differentiate(self.run, self.twin.values, order)


def differentiate(run, values, order):
    """Derivatives of the last value in direction of a fixed cotangent: first, then second order."""
    y = values[-1]
    dense = to_dense(y)
    at = [place for place, item in enumerate(run.items) if getattr(item, "grad", False)]
    leaves = [values[place] for place in at]
    g = drawn(dense.shape, dense.dtype, 0)
    first = torch.autograd.grad(dense, leaves, g, create_graph=order > FIRST, allow_unused=True)
    if order == FIRST:
        return first
    parts = []
    for place, grad in zip(at, first, strict=True):
        if grad is None or not grad.requires_grad:
            continue
        leaf = run.values[place]
        shape = leaf.pattern.values_shape if is_sparse(leaf) else leaf.shape
        v = drawn(shape, leaf.dtype, place)
        if is_sparse(grad):
            grad = stored_values(grad)
        elif is_sparse(leaf):
            grad = grad.where(run.mask(leaf), 0)
            v = spgrad.to_dense(spgrad.from_values(v, leaf.pattern))
        part = (grad * v.to(grad.dtype)).sum()
        parts.append(part.real if part.is_complex() else part)
    if not any(part.requires_grad for part in parts):
        return (*first, *[None] * len(leaves))
    return (*first, *torch.autograd.grad(sum(parts), leaves, allow_unused=True))


def to_dense(x):
    return spgrad.to_dense(x) if is_sparse(x) else x


def leaf_of(items, at):
    specs = [i for i in items if getattr(i, "grad", False)]
    return specs[at % len(specs)]


def order_of(items, at):
    return FIRST if at < sum(getattr(i, "grad", False) for i in items) else SECOND


def run(program):
    """Runs a program that is known; raises `Failure`."""
    done = Run()
    try:
        for item in program.items:
            if not isinstance(item, Step):
                done.operand(item)
            elif not done.step(item):
                return done
        if program.order and program.steps:
            done.gradients(program.order)
    except Failure as failure:
        failure.program = Program(tuple(done.items), program.order)
        raise
    return done


def run_seed(seed):
    """Draws a program while running it; raises `Failure`."""
    drawer, done = Drawn(seed), Run()
    order = SECOND if drawer.rng.random() < 0.3 else FIRST
    last = None
    try:
        for _ in range(drawer.steps):
            items = drawer.next_items(done.values, last)
            if items is None:
                break
            for operand in items[:-1]:
                done.operand(operand)
            if not done.step(items[-1]):
                return done
            last = len(done.values) - 1
            if not can_go_on(done.values[last]):
                break
        done.gradients(order)
    except Failure as failure:
        failure.program = Program(tuple(done.items), order)
        raise
    return done
