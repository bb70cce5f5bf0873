"""Random keyword arguments for a row of the support table.

They start from one of the row's samples. Each argument is then drawn anew, by its name, for the
shape of the operand. `test_program_fuzz.py` asserts that every argument of the table has a name
here.
"""

import math

import torch

WILD = 0.04
"""Share of arguments that are out of range, which both sides have to refuse."""


def draw_options(rng, row, shape):
    """Keyword arguments for an operand of this shape."""
    options = dict(rng.choice(row.samples))
    names = {name for sample in row.samples for name in sample}
    for name in sorted(names):
        if (name in options and rng.random() < 0.75) or (name not in options and _joins(rng, row)):
            options[name] = DRAW[name](rng, row, shape, options)
    if row.name == "dropout":
        options.setdefault("p", 0.0)  # one that leaves nothing to chance
    if "dim" in names and "dim" not in options:
        options.pop("keepdim", None)  # torch takes the one with the other only
    for name, other in (("dim1", "dim2"), ("dim0", "dim1"), ("axis0", "axis1")):
        if {name, other} <= options.keys() and len(shape) > 1:
            options[name], options[other] = _two(rng, len(shape))
    return options


def _joins(rng, row):
    return row.name != "split" and rng.random() < 0.25


def _dim(rng, rank):
    if rank == 0 or rng.random() < WILD:
        return rng.choice((-rank - 1, rank, 0))
    return rng.randrange(-rank, rank)


def _two(rng, rank):
    first, second = rng.sample(range(rank), 2)
    return rng.choice((first, first - rank)), rng.choice((second, second - rank))


def _dims(rng, rank, least=1):
    count = rng.randint(min(least, rank), rank) if rank else 0
    return tuple(rng.choice((d, d - rank)) for d in rng.sample(range(rank), count))


def _takes_several(row, name):
    return any(isinstance(sample.get(name), tuple) for sample in row.samples)


def _draw_dim(rng, row, shape, options):
    if isinstance(row.samples[0].get("dims"), tuple) or (
        _takes_several(row, "dim") and rng.random() < 0.4
    ):
        return _dims(rng, len(shape))
    return _dim(rng, len(shape))


def _draw_dims(rng, row, shape, options):
    rank = len(shape)
    if row.name == "permute":
        return tuple(rng.choice((d, d - rank)) for d in rng.sample(range(rank), rank))
    if row.name == "tile":
        return tuple(rng.choice((0, 1, 2, 3)) for _ in range(rng.randint(1, rank + 1)))
    if row.name == "tensordot":
        return rng.choice((0, 1, 1, 1, 1, 2))
    if row.name == "roll":
        return _dims(rng, rank) if isinstance(options["shifts"], tuple) else _dim(rng, rank)
    return _dims(rng, rank)


def _draw_shifts(rng, row, shape, options):
    if isinstance(options["dims"], tuple):
        return tuple(rng.randint(-7, 7) for _ in options["dims"])
    return rng.randint(-7, 7)


def _draw_source(rng, row, shape, options):
    rank = len(shape)
    if rng.random() < 0.5:
        options["destination"] = _dim(rng, rank)
        return _dim(rng, rank)
    source = _dims(rng, rank)
    options["destination"] = tuple(rng.sample(range(rank), len(source)))
    return source


def _draw_destination(rng, row, shape, options):
    return options["destination"]


def _draw_shape(rng, row, shape, options):
    """Sizes whose product is that of `shape`; sometimes -1, sometimes wrong."""
    left, sizes = math.prod(shape), []
    for _ in range(rng.randint(0, 3)):
        divisors = [d for d in range(1, left + 1) if left % d == 0] or [0, 1, 2]
        size = rng.choice(divisors)
        sizes.append(size)
        left = left // size if size else left
    sizes.insert(rng.randint(0, len(sizes)), left)
    if rng.random() < 0.5:
        sizes[rng.randrange(len(sizes))] = -1
    if rng.random() < WILD:
        sizes.append(2)
    return tuple(sizes)


def _draw_sizes(rng, row, shape, options):
    """Of `unflatten`, for the dimension that was drawn."""
    dim = options["dim"]
    size = shape[dim] if -len(shape) <= dim < len(shape) else 2
    return _draw_shape(rng, row, (size,), options)


def _draw_size(rng, row, shape, options):
    if row.name == "view":
        return _draw_shape(rng, row, shape, options)
    lead = [rng.choice((0, 1, 2, 3)) for _ in range(rng.choice((0, 0, 1, 1, 2)))]
    return (*lead, *(rng.choice((-1, s, 3 if s == 1 else s)) for s in shape))


def _draw_repeats(rng, row, shape, options):
    if row.name == "repeat_interleave":
        return rng.choice((0, 1, 2, 3))
    count = len(shape) + rng.choice((0, 0, 1))
    return tuple(rng.choice((0, 1, 1, 2, 2, 3)) for _ in range(count))


def _draw_index(rng, row, shape, options):
    rank = len(shape)
    if row.name == "select":
        dim = options["dim"]
        size = shape[dim] if -rank <= dim < rank else 1
        return rng.randint(-size, max(size - 1, 0))
    if row.name == "index_select":
        size = shape[options["dim"]] if -rank <= options["dim"] < rank else 1
        count = rng.choice((0, 1, 2, 3, 5)) if size else 0
        return torch.tensor([rng.randrange(size) for _ in range(count)], dtype=torch.int64)
    return _draw_expression(rng, shape)


def _draw_expression(rng, shape):
    """An index in brackets."""
    items = []
    lists = None  # the length that index lists have
    for size in shape[: rng.randint(0, len(shape))]:
        kind = rng.random()
        if kind < 0.45:
            start, stop = rng.choice((None, rng.randint(-5, 5))), rng.choice((None, 3, -1, 9))
            items.append(slice(start, stop, rng.choice((None, None, 1, 2, 3))))
        elif kind < 0.65 and size:
            items.append(rng.randint(-size, size - 1))
        elif kind < 0.85 and size:
            lists = rng.randint(1, 4) if lists is None else lists
            items.append([rng.randint(-size, size - 1) for _ in range(lists)])
        elif kind < 0.9 and not any(isinstance(i, list) for i in items):
            items.append([rng.random() < 0.5 for _ in range(size)])
            lists = sum(items[-1])
            break
        else:
            items.append(slice(None))
    if rng.random() < 0.2:
        items.insert(rng.randint(0, len(items)), None)
    if rng.random() < 0.15:
        items.insert(rng.randint(0, len(items)), Ellipsis)
    return tuple(items)


def _draw_start(rng, row, shape, options):
    dim = options["dim"]
    size = shape[dim] if -len(shape) <= dim < len(shape) else 1
    start = rng.randint(0, size)
    options["length"] = rng.randint(0, size - start)
    return start - size if row.name == "narrow_copy" and start < size else start


def _draw_length(rng, row, shape, options):
    return options["length"]


def _draw_split(rng, row, shape, options):
    dim = options.get("dim", 0)
    size = shape[dim] if shape and -len(shape) <= dim < len(shape) else 1
    if rng.random() < 0.5:
        return rng.randint(1, 4)
    first = rng.randint(0, size)
    return [first, size - first]


def _draw_blocksize(rng, row, shape, options):
    return rng.choice((1, 1, 2, 3)), rng.choice((1, 2, 2, 3))


def _one_of(*choices):
    return lambda rng, row, shape, options: rng.choice(choices)


_FLAG = _one_of(False, True)
_OFFSET = _one_of(0, 1, -1, 2, -2, 3, -5)
_INF = float("inf")


def _draw_ord(rng, row, shape, options):
    if row.name == "matrix_norm":
        return rng.choice(("fro", 1, -1, _INF, -_INF))
    if row.name == "linalg_norm" and not isinstance(options.get("dim"), int):
        # of matrices; that of order 2 has many derivatives where singular values are equal
        return rng.choice((0, 1, 3, 0.5, -1, _INF, -_INF))
    return rng.choice((0, 1, 2, 3, 0.5, -1, _INF, -_INF))


def _as_sampled(rng, row, shape, options):
    """What has no other meaning than the samples'."""
    name = next(
        n for n in ("reduce", "fn", "p", "equation", "input") if any(n in s for s in row.samples)
    )
    return rng.choice([sample[name] for sample in row.samples if name in sample])


def _draw_p(rng, row, shape, options):
    if row.name == "dropout":
        return rng.choice((0.0, 1.0))
    return rng.choice((1, 2, 2, 3, 0.5, _INF, -_INF))


DRAW = {
    "alpha": _one_of(0, 1, 2, -0.5),
    "as_tuple": _FLAG,
    "atol": _one_of(0.0, 0.2),
    "axis0": lambda rng, row, shape, options: _dim(rng, len(shape)),
    "axis1": lambda rng, row, shape, options: _dim(rng, len(shape)),
    "beta": _one_of(0, 1, 0.5, 2),
    "blocksize": _draw_blocksize,
    "chunks": _one_of(1, 2, 3, 5),
    "correction": _one_of(0, 1, 1, 2),
    "decimals": _one_of(0, 1, 2),
    "destination": _draw_destination,
    "diagonal": _OFFSET,
    "dim": _draw_dim,
    "dim0": lambda rng, row, shape, options: _dim(rng, len(shape)),
    "dim1": lambda rng, row, shape, options: _dim(rng, len(shape)),
    "dim2": lambda rng, row, shape, options: _dim(rng, len(shape)),
    "descending": _FLAG,
    "dims": _draw_dims,
    "equation": _as_sampled,
    "fill_value": _one_of(0, 1, 2, -1),
    "fn": _as_sampled,
    "index": _draw_index,
    "input": _as_sampled,
    "k": _one_of(0, 1, 1, 2, 3, 5),
    "keep": _one_of(0, 1, 2, 3, 7),
    "keepdim": _FLAG,
    "largest": _FLAG,
    "length": _draw_length,
    "max": _one_of(0, 0.25, 0.5, 1),
    "min": _one_of(0, -0.25, -0.5, -1),
    "mode": _one_of("sum", "mean", "max"),
    "n": _one_of(0, 1, 2, 3, 5, -1),
    "nan": _one_of(0.5, 0.0),
    "negative_slope": _one_of(0.0, 0.2, 1.0),
    "neginf": _one_of(-2.0),
    "offset": _OFFSET,
    "ord": _draw_ord,
    "p": _draw_p,
    "posinf": _one_of(2.0),
    "reduce": _as_sampled,
    "repeats": _draw_repeats,
    "return_counts": _FLAG,
    "rtol": _one_of(0.0, 0.5),
    "scale": _one_of(None, 1.0, 2.0),
    "shape": _draw_shape,
    "shifts": _draw_shifts,
    "size": _draw_size,
    "sizes": _draw_sizes,
    "source": _draw_source,
    "specified": _FLAG,
    "split_size_or_sections": _draw_split,
    "start": _draw_start,
    "start_dim": lambda rng, row, shape, options: _dim(rng, len(shape)),
    "threshold": _one_of(0.0, 0.3, 0.5),
    "training": _FLAG,
    "unitriangular": _FLAG,
    "t": _one_of(1.0, -0.5, 0.25, 0),
    "upper": _FLAG,
    "value": _one_of(0.0, 0.5, 1, -2),
}
"""Name of an argument -> what draws it: `fn(rng, row, shape, options so far)`."""
