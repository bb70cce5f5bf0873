"""Random operands, as data: they can be made, printed as Python, and made smaller."""

import dataclasses
import itertools
import math

import torch

import spgrad
from spgrad.core.tensor import SparseTensor

SIZES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4, 6)
DTYPES = (
    *[torch.float64] * 10,
    *[torch.float32] * 3,
    *[torch.complex128] * 2,
    torch.complex64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.bool,
)
FORMS = (*["plain"] * 4, "transposed", "expanded", "offset", "strided")
"""How a dense operand lies in memory."""


def literal(value):
    """Python that gives a value back."""
    if isinstance(value, torch.Tensor):
        if value.numel() == 0:
            return f"torch.zeros({tuple(value.shape)}, dtype={value.dtype})"
        # infinity and NaN have no literal
        source = repr(value.tolist()).replace("inf", "torch.inf").replace("nan", "torch.nan")
        return f"torch.tensor({source}, dtype={value.dtype})"
    if isinstance(value, float) and not math.isfinite(value):
        return f"float({str(value)!r})"
    if callable(value):
        return f"torch.{value.__name__}"
    return repr(value)


def tensor(values, shape, dtype):
    """Values in order, as a tensor; quick for few."""
    return torch.tensor(values, dtype=dtype).reshape(shape)


@dataclasses.dataclass(frozen=True)
class Number:
    """A Python number in the place of an operand without dimensions."""

    value: float | int | complex | bool
    grad = False

    def make(self):
        return self.value

    def source(self):
        return literal(self.value)


@dataclasses.dataclass(frozen=True)
class Dense:
    """A dense operand."""

    shape: tuple[int, ...]
    values: tuple
    dtype: torch.dtype
    form: str = "plain"
    grad: bool = False

    def plain(self):
        return tensor(self.values, self.shape, self.dtype)

    def make(self):
        x = self.plain()
        if self.form == "transposed":
            x = x.mT.contiguous().mT
        elif self.form == "expanded":
            x = x[:1].expand(self.shape)
        elif self.form == "offset":
            x = torch.cat([x.new_ones(1, *x.shape[1:]), x])[1:]
        elif self.form == "strided":
            x = torch.stack([x, torch.ones_like(x)], -1)[..., 0]
        return x.requires_grad_(self.grad)

    def source(self):
        x = self.plain()
        source = {
            "plain": lambda: literal(x),
            "transposed": lambda: f"{literal(x.mT.contiguous())}.mT",
            "expanded": lambda: f"{literal(x[:1])}.expand{self.shape}",
            "offset": lambda: f"{literal(torch.cat([x.new_ones(1, *x.shape[1:]), x]))}[1:]",
            "strided": lambda: f"{literal(torch.stack([x, torch.ones_like(x)], -1))}[..., 0]",
        }[self.form]()
        return source + (".requires_grad_()" if self.grad else "")


@dataclasses.dataclass(frozen=True)
class Sparse:
    """A sparse operand: coordinates and values of its elements, or of its blocks."""

    layout: str
    shape: tuple[int, ...]
    dense_dim: int
    block: tuple[int, ...]  # empty, or two numbers for BSR and BSC
    entries: tuple[tuple[int, ...], ...]  # coordinates; sorted if compressed
    values: tuple[tuple, ...]  # for each entry, those of its block and dense dimensions
    dtype: torch.dtype
    index_dtype: torch.dtype = torch.int64
    coalesced: bool = False  # whether COO says that it is
    grad: bool = False

    @property
    def sparse_shape(self):
        return self.shape[: len(self.shape) - self.dense_dim]

    @property
    def element_shape(self):
        return (*self.block, *self.shape[len(self.shape) - self.dense_dim :])

    def parts(self):
        """The arguments of the constructor."""
        count = len(self.entries)
        values = list(itertools.chain.from_iterable(self.values))
        vals = tensor(values, (count, *self.element_shape), self.dtype)
        if self.layout == "coo":
            indices = [list(axis) for axis in zip(*self.entries, strict=True)]
            shape = (len(self.sparse_shape), count)
            return tensor(indices, shape, self.index_dtype), vals
        ptr, plain = self._compressed()
        ptr = tensor(ptr, (*self.sparse_shape[:-2], self.lines + 1), self.index_dtype)
        return ptr, torch.tensor(plain, dtype=self.index_dtype), vals

    @property
    def by_rows(self):
        return self.layout in ("csr", "bsr")

    @property
    def lines(self):
        bm, bn = self.block or (1, 1)
        return self.sparse_shape[-2] // bm if self.by_rows else self.sparse_shape[-1] // bn

    def _compressed(self):
        batch, by_rows, lines = self.sparse_shape[:-2], self.by_rows, self.lines
        counts = {item: [0] * lines for item in itertools.product(*map(range, batch))}
        for *item, i, j in self.entries:
            counts[tuple(item)][i if by_rows else j] += 1
        ptr = [[0, *itertools.accumulate(c)] for c in counts.values()]
        return ptr, [entry[-1 if by_rows else -2] for entry in self.entries]

    def make(self):
        name = f"sparse_{self.layout}_tensor"
        options = {"is_coalesced": True} if self.coalesced else {}
        A = getattr(spgrad, name)(*self.parts(), self.shape, **options)
        return A.requires_grad_() if self.grad else A

    def source(self):
        arguments = [*map(literal, self.parts()), str(self.shape)]
        if self.coalesced:
            arguments.append("is_coalesced=True")
        made = f"spgrad.sparse_{self.layout}_tensor({', '.join(arguments)})"
        return made + (".requires_grad_()" if self.grad else "")

    def sorted(self):
        """The same with its entries in the order of its layout; of repeated ones, the first."""
        flip = self.layout in ("csc", "bsc")
        pairs = dict(zip(reversed(self.entries), reversed(self.values), strict=True))
        order = sorted(pairs, key=lambda e: (*e[:-2], e[-1], e[-2]) if flip else e)
        values = tuple(pairs[e] for e in order)
        return dataclasses.replace(self, entries=tuple(order), values=values)


def described(A):
    """A SparseTensor as data; None if it is large."""
    A = A.detach()
    pattern = A.pattern
    if A.layout == torch.sparse_coo:
        entries = A._indices().t().tolist()
    else:
        ones = spgrad.from_values(torch.ones(pattern.values_shape), pattern)
        entries = _block_coordinates(ones, pattern)
    values = A._values().reshape(len(entries), -1).tolist() if entries else []
    return Sparse(
        pattern.name,
        tuple(A.shape),
        pattern.dense_dim,
        tuple(pattern.blocksize or ()),
        tuple(map(tuple, entries)),
        tuple(map(tuple, values)),
        A.dtype,
        pattern.indices[0].dtype,
        pattern.name == "coo" and pattern.coalesced,
    )


def _block_coordinates(ones, pattern):
    bm, bn = pattern.blocksize or (1, 1)
    dense = spgrad.to_dense(ones)
    while dense.dim() > len(pattern.shape) - pattern.dense_dim:
        dense = dense.amax(-1) if dense.shape[-1] else dense.new_ones(dense.shape[:-1])
    at = (dense[..., ::bm, ::bn] != 0).nonzero().tolist()
    flip = pattern.name in ("csc", "bsc")
    return sorted(at, key=lambda e: (*e[:-2], e[-1], e[-2]) if flip else e)


def draw_value(rng, dtype, kind):
    """One number. Multiples of 1/64 keep sums exact, so that functions with jumps can be compared.

    Args:
        rng: random.Random.
        dtype: Of the tensor.
        kind: "any", "positive", "negative", "zeros" (which has some zeros) or "large".
    """
    if kind == "zeros" and rng.random() < 0.3:
        return False if dtype == torch.bool else 0
    if dtype == torch.bool:
        return kind == "positive" or rng.random() < 0.6
    if dtype.is_floating_point or dtype.is_complex:
        size = rng.randint(7, 58) / 64 * (1024 if kind == "large" else 1)
        if dtype.is_complex:
            if kind in ("positive", "negative"):
                return size if kind == "positive" else -size
            return complex(rng.choice((-size, size)), rng.randint(-50, 50) / 64)
    else:
        size = rng.randint(1, 4)
    if kind == "positive" or dtype == torch.uint8:
        return size
    return -size if kind == "negative" else rng.choice((-size, size))


def draw_kind(rng):
    return rng.choices(("any", "zeros", "large"), (80, 15, 5))[0]


def draw_dense(rng, shape, dtype, kind="any", *, grad=False):
    if not shape and rng.random() < 0.3:
        value = draw_value(rng, dtype, kind)
        return Number(value)
    form = rng.choice(FORMS) if rng.random() < 0.6 else "plain"
    if len(shape) < (2 if form == "transposed" else 1) or (form == "expanded" and not shape[0]):
        form = "plain"
    values = tuple(draw_value(rng, dtype, kind) for _ in range(math.prod(shape)))
    if form == "expanded":
        values = values[: len(values) // shape[0]] * shape[0]
    return Dense(tuple(shape), values, dtype, form, grad and differentiable(dtype))


def differentiable(dtype):
    return dtype.is_floating_point or dtype.is_complex


def draw_sparse(
    rng, layout, shape, dense_dim, dtype, kind="any", *, full=False, grad=False, index_dtype=None
):
    block = ()
    sparse = tuple(shape[: len(shape) - dense_dim])
    if layout in ("bsr", "bsc"):
        block = tuple(rng.choice([d for d in (1, 2, 2, 2, 3) if s % d == 0]) for s in sparse[-2:])
    places = list(sparse)
    if block:
        places[-2:] = sparse[-2] // block[0], sparse[-1] // block[1]
    entries = _draw_entries(rng, places, 1.0 if full else None)
    repeats = layout == "coo" and not full and rng.random() < 0.3
    if repeats and entries:
        entries += [rng.choice(entries) for _ in range(rng.randint(0, 3))]
        rng.shuffle(entries)
    element = math.prod((*block, *shape[len(shape) - dense_dim :]))
    values = [tuple(draw_value(rng, dtype, kind) for _ in range(element)) for _ in entries]
    drawn = Sparse(
        layout,
        tuple(shape),
        dense_dim,
        block,
        tuple(entries),
        tuple(values),
        dtype,
        index_dtype or rng.choice((torch.int64, torch.int64, torch.int32)),
        layout == "coo" and not repeats and rng.random() < 0.7,
        grad and differentiable(dtype),
    )
    return drawn if layout == "coo" else drawn.sorted()


def _draw_entries(rng, places, density):
    """Coordinates in order: of all densities, none at all, one full line, ragged batches."""
    everywhere = itertools.product(*map(range, places))
    style = rng.random()
    if density is not None:
        return list(everywhere)
    if style < 0.06:
        return []
    if style < 0.12 and len(places) >= 2 and places[-2]:
        line = rng.randrange(places[-2])
        return [e for e in everywhere if e[-2] == line or rng.random() < 0.1]
    density = rng.choice((0.15, 0.4, 0.4, 0.7, 1.0))
    return [e for e in everywhere if rng.random() < density]


def is_sparse(x):
    return isinstance(x, SparseTensor)
