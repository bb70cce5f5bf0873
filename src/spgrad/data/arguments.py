"""What the functions on graphs check of their arguments, and how they get a random key."""

from __future__ import annotations

from typing import Any

import torch

from spgrad.core import checks
from spgrad.core.pattern import Pattern, View
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import stored_values
from spgrad.errors import (
    ArgumentIndexError,
    ArgumentKindError,
    ArgumentValueError,
    StateError,
    UnsupportedError,
)

_GRAPH_LAYOUTS = ("coo", "csr", "csc")


def require_graph(A: Any, square: bool = False, arg: str = "A") -> Pattern:
    """The pattern of a matrix whose entries are the edges of a graph, row to column."""
    if not isinstance(A, SparseTensor):
        raise ArgumentKindError(
            f"`{arg}` is {checks.describe_kind(A)}; a SparseTensor is accepted. "
            f"{checks.sparse_hint(arg, A)}"
        )
    pattern = A._pattern
    if pattern.name not in _GRAPH_LAYOUTS:
        raise UnsupportedError(
            f"`{arg}` has layout {pattern.name}; coo, csr and csc are accepted. Convert it with "
            "A.to_sparse_csr()."
        )
    if len(pattern.shape) - pattern.dense_dim != 2:
        raise ArgumentValueError(
            f"`{arg}` has shape {tuple(pattern.shape)}; one matrix, without batch dimensions, is "
            "accepted. Pass the matrices of a batch one by one."
        )
    if not pattern.ordered:
        raise StateError(
            f"`{arg}` is not coalesced, so an edge may be there twice; a coalesced tensor is "
            "accepted. Call A.coalesce() first."
        )
    if square and pattern.matrix[0] != pattern.matrix[1]:
        raise ArgumentValueError(
            f"`{arg}` has shape {tuple(pattern.matrix)}; a square matrix is accepted, whose rows "
            "and columns are the same nodes. Use one hop for a rectangular matrix."
        )
    return pattern


def require_members(arg: str, members: Any, bound: int, one: bool = False) -> torch.Tensor:
    """A vector of numbers in [0, bound) as int64; a bool mask gives the numbers that it marks.

    With `one`, an int stands for the vector of it.
    """
    try:
        given = isinstance(members, torch.Tensor)
        found = members if given else torch.as_tensor(members, device="cpu")
    except (TypeError, ValueError, RuntimeError):
        raise ArgumentKindError(
            f"`{arg}` is {checks.describe_kind(members)}; ints or a bool mask, as a tensor or a "
            "list, are accepted. Convert them with torch.tensor."
        ) from None
    if found.numel() == 0 and found.dim() == 1 and not isinstance(members, torch.Tensor):
        return found.long()
    if found.dtype == torch.bool and tuple(found.shape) == (bound,):
        return found.nonzero().squeeze(1)
    if found.dtype == torch.bool:
        hint = "A mask has an item for each row; torch.tensor(numbers) takes numbers of rows."
        raise checks.bad_shape(arg, tuple(found.shape), f"({bound},) for a bool mask", hint)
    if found.dim() == 0 and one:
        found = found[None]
    if found.dim() == 0:
        raise checks.bad_shape(arg, (), "a vector", f"Put it into a list: [{arg}].")
    if found.dim() != 1:
        raise checks.bad_shape(arg, tuple(found.shape), "a vector", f"Flatten it: {arg}.flatten().")
    checks.require_index(arg, found)
    if found.numel():
        low, high = (int(end) for end in torch.aminmax(found))
        if low < 0 or high >= bound:
            at = int(((found < 0) | (found >= bound)).nonzero()[0])
            raise ArgumentIndexError(
                f"`{arg}` has {int(found[at])} at position {at}; numbers in [0, {bound}) are "
                "accepted. Check which rows of A they name."
            )
    return found.long()


def require_distinct(arg: str, members: torch.Tensor) -> None:
    """Refuses a vector in which a number repeats."""
    named, count = torch.unique(members, return_counts=True)
    if named.numel() < members.numel():
        twice = int(named[count > 1][0])
        raise ArgumentValueError(
            f"`{arg}` has {twice} more than once; distinct numbers are accepted. Call "
            f"torch.unique({arg}) first."
        )


def require_count(arg: str, count: Any, least: int, accepted: str) -> int:
    """An int of at least `least`."""
    if isinstance(count, bool) or not isinstance(count, int):
        raise ArgumentKindError(
            f"`{arg}` is {checks.describe_kind(count)}; {accepted} is accepted. Pass an int."
        )
    if not least <= count < 2**63:
        raise ArgumentValueError(
            f"`{arg}` is {count}; {accepted}, below 2^63, is accepted. Choose a "
            f"{'larger' if count < least else 'smaller'} one."
        )
    return count


def random_key(generator: torch.Generator | None) -> int:
    """One int64 of torch's random numbers, from which a kernel makes its own."""
    checks.require_generator(generator)
    return int(torch.randint(-(2**63), 2**63 - 1, (), generator=generator, device="cpu"))


def line_weights(
    A: SparseTensor | None, weights: bool | torch.Tensor, view: View
) -> torch.Tensor | None:
    """The weights of the entries in the order of the view, as kernels read them."""
    if weights is False:
        return None
    given = stored_values(A) if weights is True and A is not None else weights
    if not isinstance(given, torch.Tensor) or given.layout != torch.strided:
        raise ArgumentKindError(
            f"`weights` is {checks.describe_kind(given)}; a bool or a dense tensor is accepted. "
            "Pass one weight for each specified element."
        )
    nse = view.idx.numel()
    if tuple(given.shape) != (nse,) or given.is_complex():
        raise ArgumentValueError(
            f"`weights` has shape {tuple(given.shape)} and dtype {checks.short(given.dtype)}; one "
            f"real number for each of the {nse} specified elements is accepted. Pass them in the "
            "order of the values, or of the edges."
        )
    wide = torch.float32 if given.dtype == torch.float32 else torch.float64
    given = given.detach().to(wide)
    return given.contiguous() if view.perm is None else given.index_select(0, view.perm)


def stored_entries(view: View, entry: torch.Tensor) -> torch.Tensor:
    """The positions, int64, among the values of the matrix of these entries of its view."""
    return (entry if view.perm is None else view.perm[entry]).long()
