"""Patterns of sparse attention: bool matrices (length, length) whose elements all are True.

Join them with ``|``, and take ``spgrad.tril`` for causal ones. Making one takes O(nse) memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from spgrad.core.pattern import Pattern, index_dtype
from spgrad.core.tensor import SparseTensor
from spgrad.errors import ArgumentIndexError, ArgumentValueError
from spgrad.public import public_as

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
    return _progressions(length, first, (i + above).clamp(max=length - 1) + 1 - first, 1)


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
    return _progressions(length, first, (length - first + stride - 1) // stride, stride)


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
    return _progressions(length, first, (length - first).clamp(max=size), 1)


@public_as("nn.patterns.global_tokens")
def global_tokens(
    length: int, tokens: int | Sequence[int] | torch.Tensor, *, device: Device = None
) -> SparseTensor:
    """Some tokens attend to all tokens, and all tokens attend to them.

    Args:
        length: Number of tokens.
        tokens: Places of the global tokens; an int n for the first n places.
        device: Of the pattern.

    Returns:
        Bool CSR tensor (length, length).

    Cost:
        O(nse), about 2 length tokens.

    Raises:
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
    if isinstance(tokens, int):
        _require_at_least(0, tokens=tokens)
        tokens = range(tokens)
    at = torch.as_tensor(list(tokens), dtype=torch.int64, device=device).unique()
    if at.numel() and not 0 <= int(at[0]) <= int(at[-1]) < length:
        wrong = int(at[0]) if int(at[0]) < 0 else int(at[-1])
        raise ArgumentIndexError(
            f"`tokens` has {wrong}; places in [0, {length}) are accepted. Count from the start."
        )
    everywhere = torch.zeros(length, dtype=torch.bool, device=device).index_fill_(0, at, True)
    counts = torch.where(everywhere, length, at.numel())
    crow, row, place = _places(counts)
    within = place.clamp(max=max(at.numel() - 1, 0))
    col = torch.where(everywhere[row], place, at[within] if at.numel() else place)
    return _ones(length, crow, col)


def _progressions(
    length: int, first: torch.Tensor, counts: torch.Tensor, step: int
) -> SparseTensor:
    """A pattern whose row i has the columns first[i], first[i] + step, ...: counts[i] of them."""
    crow, row, place = _places(counts)
    return _ones(length, crow, first[row] + step * place)


def _places(counts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Row pointers, and for each element its row and its place within the row."""
    crow = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    row = torch.repeat_interleave(counts)
    place = torch.arange(row.numel(), device=counts.device) - crow[row]
    return crow, row, place


def _ones(length: int, crow: torch.Tensor, col: torch.Tensor) -> SparseTensor:
    dtype = index_dtype(torch.int32, (length, col.numel()))
    pattern = Pattern(torch.sparse_csr, (length, length), (crow.to(dtype), col.to(dtype)))
    return SparseTensor(torch.ones(col.numel(), dtype=torch.bool, device=col.device), pattern)


def _require_at_least(least: int, **sizes: object) -> None:
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < least:
            raise ArgumentValueError(
                f"`{name}` is {size!r}; an int of at least {least} is accepted. Give whole numbers."
            )
