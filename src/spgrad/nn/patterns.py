"""Patterns of sparse attention: bool matrices (length, length) whose elements all are True.

Join them with ``|``, and take ``spgrad.tril`` for causal ones. Making one takes O(nse) memory. Code
of torch.compile may make them; one graph then serves all lengths.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch

from spgrad.core.checks import short
from spgrad.core.pattern import Pattern, index_dtype
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import on_pattern
from spgrad.errors import ArgumentIndexError, ArgumentKindError, ArgumentValueError
from spgrad.public import public_as
from spgrad.torch_protocol.compile import is_real, when_tracing

__all__ = ["band", "block", "global_tokens", "strided"]

Device = torch.device | str | None


@public_as("nn.patterns.band")
def band(
    length: int, below: int, above: int | None = None, *, device: Device = None
) -> SparseTensor:
    """Each token attends to itself, to `below` tokens before it and to `above` tokens after it.

    Args:
        length: Number of tokens.
        below: Diagonals below the main one.
        above: Diagonals above it; as many as below by default.
        device: Of the pattern.

    Returns:
        Bool CSR tensor (length, length).

    Cost:
        O(nse), about length (below + above + 1).

    Raises:
        ValueError: A size is negative or not an int.

    Source:
        Beltagy, Peters, Cohan 2020, "Longformer: The Long-Document Transformer".

    Example:
        >>> spgrad.nn.patterns.band(4, 1, 0).to_dense().int()
        tensor([[1, 0, 0, 0],
                [1, 1, 0, 0],
                [0, 1, 1, 0],
                [0, 0, 1, 1]], dtype=torch.int32)
    """
    above = below if above is None else above
    _require_at_least(0, length=length, below=below, above=above)
    i = torch.arange(length, device=device)
    first = (i - below).clamp(min=0)
    counts = (i + above).clamp(max=length - 1) + 1 - first
    nse = length + _beside_diagonal(length, below) + _beside_diagonal(length, above)
    return _progressions(length, first, counts, 1, nse)


@public_as("nn.patterns.strided")
def strided(length: int, stride: int, *, device: Device = None) -> SparseTensor:
    """Each token attends to the tokens at distances 0, `stride`, 2 `stride`, ... from it.

    Args:
        length: Number of tokens.
        stride: Distance between the tokens that one token attends to.
        device: Of the pattern.

    Returns:
        Bool CSR tensor (length, length).

    Cost:
        O(nse), about length^2 / stride.

    Raises:
        ValueError: A size is negative, not an int, or `stride` 0.

    Source:
        Child, Gray, Radford, Sutskever 2019, "Generating Long Sequences with Sparse Transformers".

    Example:
        >>> spgrad.nn.patterns.strided(4, 2).to_dense().int()
        tensor([[1, 0, 1, 0],
                [0, 1, 0, 1],
                [1, 0, 1, 0],
                [0, 1, 0, 1]], dtype=torch.int32)
    """
    _require_at_least(0, length=length)
    _require_at_least(1, stride=stride)
    first = torch.arange(length, device=device) % stride
    # rows i, i + stride, ... have as many elements as there are of them
    shorter, longer = length // stride, length % stride
    nse = longer * (shorter + 1) ** 2 + (stride - longer) * shorter**2
    return _progressions(length, first, (length - first + stride - 1) // stride, stride, nse)


@public_as("nn.patterns.block")
def block(length: int, size: int, *, device: Device = None) -> SparseTensor:
    """Each token attends to the tokens of its own block of `size` tokens.

    Args:
        length: Number of tokens; the last block may be shorter.
        size: Tokens of a block.
        device: Of the pattern.

    Returns:
        Bool CSR tensor (length, length).

    Cost:
        O(nse), about length size.

    Raises:
        ValueError: A size is negative, not an int, or `size` 0.

    Source:
        Qiu, Ma, Levy, Yih, Wang, Tang 2020, "Blockwise Self-Attention for Long Document
        Understanding".

    Example:
        >>> spgrad.nn.patterns.block(3, 2).to_dense().int()
        tensor([[1, 1, 0],
                [1, 1, 0],
                [0, 0, 1]], dtype=torch.int32)
    """
    _require_at_least(0, length=length)
    _require_at_least(1, size=size)
    first = torch.arange(length, device=device) // size * size
    nse = length // size * size**2 + (length % size) ** 2
    return _progressions(length, first, (length - first).clamp(max=size), 1, nse)


@public_as("nn.patterns.global_tokens")
def global_tokens(
    length: int, tokens: int | Sequence[int] | torch.Tensor, *, device: Device = None
) -> SparseTensor:
    """Some tokens attend to all tokens, and all tokens attend to them.

    Args:
        length: Number of tokens.
        tokens: Places of the global tokens, a list or an int tensor; an int n for the first n
            places.
        device: Of the pattern.

    Returns:
        Bool CSR tensor (length, length). In code of torch.compile, which does not know how many
        places a tensor names, a place that repeats adds elements that are False.

    Cost:
        O(nse), about 2 length tokens.

    Raises:
        TypeError: `tokens` are no ints.
        ValueError: A size is negative or not an int.
        IndexError: A place is outside of the sequence.

    Source:
        Zaheer and others 2020, "Big Bird: Transformers for Longer Sequences".

    Example:
        >>> spgrad.nn.patterns.global_tokens(3, [1]).to_dense().int()
        tensor([[0, 1, 0],
                [1, 1, 1],
                [0, 1, 0]], dtype=torch.int32)
    """
    _require_at_least(0, length=length)
    at, named = _places_of(tokens, length, device)
    everywhere = torch.zeros(length, dtype=torch.bool, device=device).index_fill_(0, at, True)
    few = at.numel()
    counts = everywhere * (length - few) + few
    crow, row, place = _places(counts, few * length + (length - few) * few)
    within = place.clamp(max=max(few - 1, 0))
    col = torch.where(everywhere[row], place, at[within] if few else place)
    made = _ones(length, crow, col)
    return made if named is None else on_pattern(named[row] | named[col], made._pattern)


for _pattern in (band, strided, block, global_tokens):
    when_tracing(_pattern)


def _places_of(
    tokens: Any, length: int, device: Device
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The places of global tokens, ascending, each of them once.

    A trace does not know how many of a tensor are distinct. Then others are among the places, so
    that there are as many as `tokens` has, and bool (length,) says which are named; it is None
    where all are.
    """
    if isinstance(tokens, (int, torch.SymInt)):
        first: Any = tokens
        _require_at_least(0, tokens=first)
        _require_inside(0, first - 1, length)
        return torch.arange(first, device=device), None
    if isinstance(tokens, torch.Tensor):
        if tokens.dtype == torch.bool or tokens.is_floating_point() or tokens.is_complex():
            raise ArgumentKindError(
                f"`tokens` has dtype {short(tokens.dtype)}; places, as ints, are accepted. Pass "
                "tokens.nonzero() for those where it is not zero."
            )
        at = tokens.to(device=device, dtype=torch.int64).flatten()
        if not is_real(at) or at.is_meta:
            return _places_in_trace(at, length)
        at = at.unique()
        if at.numel():
            _require_inside(int(at[0]), int(at[-1]), length)
        return at, None
    try:
        found = sorted({operator.index(place) for place in tokens})
    except TypeError:
        raise ArgumentKindError(
            f"`tokens` is {tokens!r}; an int, or ints in a list or tensor, are accepted. They are "
            "the places of the global tokens."
        ) from None
    if found:
        _require_inside(found[0], found[-1], length)
    return torch.tensor(found, dtype=torch.int64, device=device), None


def _places_in_trace(tokens: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`_places_of` a tensor whose numbers nobody knows yet."""
    inside = (tokens >= 0) & (tokens < length)
    torch._assert_async(inside.all(), f"spgrad.nn.patterns.global_tokens: {_OUTSIDE}")
    named = tokens.new_zeros(length, dtype=torch.bool).index_fill_(0, tokens, True)
    few = torch.sym_min(tokens.numel(), length)
    first = named.to(torch.int8).argsort(descending=True, stable=True)[:few]
    return first.sort().values, named


_OUTSIDE = (
    "`tokens` has a place outside of the sequence; places in [0, length) are accepted. Count from "
    "the start."
)


def _require_inside(first: int, last: int, length: int) -> None:
    if first < 0 or last >= length:
        raise ArgumentIndexError(
            f"`tokens` has {first if first < 0 else last}; places in [0, {length}) are accepted. "
            "Count from the start."
        )


def _beside_diagonal(length: int, diagonals: int) -> int:
    """How many elements there are on this many diagonals on one side of the main one."""
    reached: Any = torch.sym_min(diagonals, length)
    return reached * length - reached * (reached + 1) // 2


def _progressions(
    length: int, first: torch.Tensor, counts: torch.Tensor, step: int, nse: int
) -> SparseTensor:
    """A pattern whose row i has the columns first[i], first[i] + step, ...: counts[i] of them."""
    crow, row, place = _places(counts, nse)
    return _ones(length, crow, first[row] + step * place)


def _places(counts: torch.Tensor, nse: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Row pointers, and for each of the nse elements its row and its place within the row."""
    crow = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    row = torch.repeat_interleave(counts, output_size=nse)
    place = torch.arange(nse, device=counts.device) - crow[row]
    return crow, row, place


def _ones(length: int, crow: torch.Tensor, col: torch.Tensor) -> SparseTensor:
    dtype = index_dtype(torch.int32, (length, col.numel()))
    pattern = Pattern(torch.sparse_csr, (length, length), (crow.to(dtype), col.to(dtype)))
    return SparseTensor(torch.ones(col.numel(), dtype=torch.bool, device=col.device), pattern)


def _require_at_least(least: int, **sizes: Any) -> None:
    for name, size in sizes.items():
        whole = isinstance(size, (int, torch.SymInt)) and not isinstance(size, bool)
        if not whole or size < least:
            raise ArgumentValueError(
                f"`{name}` is {size!r}; an int of at least {least} is accepted. Give whole numbers."
            )
