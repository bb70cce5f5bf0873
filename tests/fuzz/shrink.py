"""Shrinks a program that fails, as long as it fails in the same way."""

import dataclasses
import itertools

import torch

import spgrad
from fuzz.compare import SECOND, Failure, Run, run
from fuzz.operands import Dense, Number, described, is_sparse, literal
from fuzz.programs import Step
from fuzz.twin import drawn

TRIES = 600


def shrink(failure, tries=TRIES):
    """The failure of a smaller program; the given one if none is found.

    Args:
        failure: A `Failure` with its program.
        tries: How many programs to run at most.
    """
    best, progress = failure, True
    while progress and tries > 0:
        progress = False
        for program in candidates(best.program):
            tries -= 1
            found = fails(program)
            if found is not None and found.key == failure.key and smaller(found, best):
                best, progress = found, True
                break
            if tries <= 0:
                break
    return best


def fails(program):
    """The failure of a program, or None."""
    try:
        run(program)
    except Failure as failure:
        return failure
    except Exception:  # noqa: BLE001  an operand that can't be made
        return None
    return None


def size(program):
    """What is to become less: steps, then operands, elements, sizes, and what is out of order."""
    operands = [item for item in program.items if not isinstance(item, Step)]
    return (
        len(program.steps),
        len(operands),
        program.order,
        sum(len(getattr(o, "values", ())) for o in operands),
        sum(sum(getattr(o, "shape", ())) + len(getattr(o, "shape", ())) for o in operands),
        sum(len(step.options) for step in program.steps),
        sum(map(strangeness, operands)),
    )


def strangeness(operand):
    """How far an operand is from a plain one."""
    if isinstance(operand, Number):
        return 0
    strange = operand.grad + (operand.dtype != torch.float64)
    strange += sum(sum(v != 1 for v in _flat(values)) for values in operand.values)
    if isinstance(operand, Dense):
        return strange + 2 * (operand.form != "plain")
    strange += 2 * ("coo", "csr", "csc", "bsr", "bsc").index(operand.layout)
    return strange + (operand.index_dtype != torch.int64) + (not operand.coalesced)


def _flat(values):
    return values if isinstance(values, tuple) else (values,)


def smaller(one, other):
    return size(one.program) < size(other.program)


def candidates(program):
    """Programs that are simpler in one respect, the most promising first."""
    yield from _without_steps(program)
    for order in range(program.order):
        yield dataclasses.replace(program, order=order)
    yield from _less_sizes(program)
    for place, item in enumerate(program.items):
        for other in simpler(item):
            items = (*program.items[:place], other, *program.items[place + 1 :])
            yield dataclasses.replace(program, items=items)


def _without_steps(program):
    """Each step but the last replaced by what it gives, the last of them first."""
    done = Run()
    for item in program.items[:-1]:
        if isinstance(item, Step):
            done.step(item)
        else:
            done.operand(item)
    for place in reversed(range(len(done.items))):
        if isinstance(program.items[place], Step):
            for grad in (True, False):
                value = as_operand(done.values[place], grad=grad)
                items = (*program.items[:place], value, *program.items[place + 1 :])
                yield used(dataclasses.replace(program, items=items))


def as_operand(value, *, grad):
    """A result as an operand."""
    if is_sparse(value):
        spec = described(value)
    else:
        spec = Dense(tuple(value.shape), tuple(value.detach().reshape(-1).tolist()), value.dtype)
    return dataclasses.replace(
        spec, grad=grad and (value.is_floating_point() or value.is_complex())
    )


def used(program):
    """A program without the operands that no step takes."""
    keep = {len(program.items) - 1}
    for place in reversed(range(len(program.items))):
        item = program.items[place]
        if place in keep and isinstance(item, Step):
            keep |= set(item.args)
    order = sorted(keep)
    at = {old: new for new, old in enumerate(order)}
    items = [program.items[place] for place in order]
    items = [
        dataclasses.replace(i, args=tuple(at[a] for a in i.args)) if isinstance(i, Step) else i
        for i in items
    ]
    return dataclasses.replace(program, items=tuple(items))


def _less_sizes(program):
    """Smaller dimensions: all of one size together, then each on its own."""
    shaped = [
        (place, dim)
        for place, item in enumerate(program.items)
        if not isinstance(item, (Step, Number))
        for dim in range(len(item.shape))
    ]
    sizes = {program.items[place].shape[dim] for place, dim in shaped}
    groups = [[at for at in shaped if program.items[at[0]].shape[at[1]] == s] for s in sizes]
    pairs = [list(pair) for pair in itertools.combinations(shaped, 2)]
    for group in [*groups, *([at] for at in shaped), *pairs]:
        have = {program.items[place].shape[dim] for place, dim in group}
        for less in sorted({0, 1, *(s - 1 for s in have), *(s // 2 for s in have)}):
            items = list(program.items)
            for place, dim in group:
                items[place] = items[place] and resized(items[place], dim, less)
            if None not in items:
                yield dataclasses.replace(program, items=tuple(items))


def resized(operand, dim, less):
    """An operand cut to a smaller size in one dimension; None if that is not less."""
    if not 0 <= less < operand.shape[dim]:
        return None
    shape = (*operand.shape[:dim], less, *operand.shape[dim + 1 :])
    if isinstance(operand, Dense):
        values = operand.plain().narrow(dim, 0, less).reshape(-1).tolist()
        return dataclasses.replace(operand, shape=shape, values=tuple(values), form="plain")
    sparse = len(operand.sparse_shape)
    if dim >= sparse:
        count = len(operand.entries)
        parts = torch.tensor(operand.values, dtype=operand.dtype)
        parts = parts.reshape(count, *operand.element_shape)
        parts = parts.narrow(1 + len(operand.block) + dim - sparse, 0, less)
        values = parts.reshape(count, -1).tolist() if parts.numel() else []
        values = values or [()] * count
        return dataclasses.replace(operand, shape=shape, values=tuple(map(tuple, values)))
    step = operand.block[dim - sparse + 2] if operand.block and dim >= sparse - 2 else 1
    if less % step:
        return None
    kept = [i for i, entry in enumerate(operand.entries) if entry[dim] < less // step]
    return _with_entries(dataclasses.replace(operand, shape=shape), kept)


def _with_entries(operand, kept):
    return dataclasses.replace(
        operand,
        entries=tuple(operand.entries[i] for i in kept),
        values=tuple(operand.values[i] for i in kept),
    )


def simpler(item):
    """Variants of one item that are simpler in one respect."""
    if isinstance(item, Step):
        for name, _ in item.options:
            options = tuple(pair for pair in item.options if pair[0] != name)
            yield dataclasses.replace(item, options=options)
        return
    if isinstance(item, Number):
        return
    if item.grad:
        yield dataclasses.replace(item, grad=False)
    if item.dtype != torch.float64:
        yield _as_float(item)
    if isinstance(item, Dense):
        if item.form != "plain":
            yield dataclasses.replace(item, form="plain")
        for i, value in enumerate(item.values):
            if value != 1:
                yield dataclasses.replace(
                    item, values=(*item.values[:i], 1.0, *item.values[i + 1 :])
                )
        return
    yield from _simpler_sparse(item)


def _as_float(item):
    def real(values):
        if isinstance(values, tuple):
            return tuple(map(real, values))
        return float(complex(values).real)

    return dataclasses.replace(item, dtype=torch.float64, values=real(item.values))


def _simpler_sparse(item):
    count = len(item.entries)
    for i in range(count):
        yield _with_entries(item, [j for j in range(count) if j != i])
    if item.index_dtype != torch.int64:
        yield dataclasses.replace(item, index_dtype=torch.int64)
    for layout in ("coo", "csr"):
        if layout != item.layout and not item.block:
            other = dataclasses.replace(item, layout=layout)
            yield other.sorted() if len(item.sparse_shape) == 2 else other
    if item.block:
        layout = {"bsr": "csr", "bsc": "csc"}[item.layout]
        size = item.block[0] * item.block[1]
        values = tuple(v[: len(v) // size] for v in item.values)
        yield dataclasses.replace(item, layout=layout, block=(), values=values).sorted()
    if item.layout == "coo" and not item.coalesced:
        yield dataclasses.replace(item, coalesced=True)
        yield dataclasses.replace(item, coalesced=True).sorted()
    for i, values in enumerate(item.values):
        ones = tuple(1.0 for _ in values)
        if values != ones:
            yield dataclasses.replace(item, values=(*item.values[:i], ones, *item.values[i + 1 :]))


def reproducer(failure):
    """Python that shows a failure: the program, and its derivatives if these differ."""
    lines = failure.program.source()
    if failure.kind.startswith("gradient"):
        lines += "\n" + "\n".join(_derivatives(failure.program))
    return f"{lines}\n# " + str(failure).replace("\n", "\n# ")


def _derivatives(program):
    done = Run()
    for item in program.items:
        if isinstance(item, Step):
            done.step(item)
        else:
            done.operand(item)
    at = [place for place, item in enumerate(program.items) if getattr(item, "grad", False)]
    leaves = "[" + ", ".join(f"v{place}" for place in at) + "]"
    y, name = done.values[-1], f"v{len(done.values) - 1}"
    y, name = (spgrad.to_dense(y), f"spgrad.to_dense({name})") if is_sparse(y) else (y, name)
    g, second = drawn(y.shape, y.dtype, 0), program.order == SECOND
    yield f"g = {literal(g)}"
    options = f"create_graph={second}, allow_unused=True"
    yield f"first = torch.autograd.grad({name}, {leaves}, g, {options})"
    if not second:
        return
    inputs = [done.values[place] for place in at]
    first = torch.autograd.grad(y, inputs, g, create_graph=True, allow_unused=True)
    yield "from spgrad.core.values import stored_values"
    parts = []
    for i, (place, grad) in enumerate(zip(at, first, strict=True)):
        if grad is not None and grad.requires_grad:
            leaf = done.values[place]
            shape = leaf.pattern.values_shape if is_sparse(leaf) else leaf.shape
            part = f"stored_values(first[{i}])" if is_sparse(grad) else f"first[{i}]"
            parts.append(f"({part} * {literal(drawn(shape, leaf.dtype, place))}).sum().real")
    yield f"total = {' + '.join(parts)}"
    yield f"second = torch.autograd.grad(total, {leaves}, allow_unused=True)"
