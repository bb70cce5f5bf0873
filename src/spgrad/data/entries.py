"""Splits the elements of a matrix for training and testing; samples pairs without an element."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

import torch

from spgrad.core import checks
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import on_pattern, stored_values
from spgrad.data.arguments import require_count, require_graph
from spgrad.errors import ArgumentKindError, ArgumentValueError
from spgrad.lowering.rebuild import finished, subset
from spgrad.lowering.views import linear_positions
from spgrad.public import public_as


@public_as("data.split_entries")
def split_entries(
    A: SparseTensor,
    fractions: Sequence[float],
    *,
    generator: torch.Generator | None = None,
) -> tuple[SparseTensor, ...]:
    """Puts each specified element of A into one of several matrices, at random.

    Args:
        A: Sparse matrix (m, k) in COO, CSR or CSC, coalesced.
        fractions: Part of the elements for each matrix; they add up to 1.
        generator: Source of the random order; None takes torch's default generator.

    Returns:
        A matrix of the shape and layout of A for each fraction; their sum is A. In a random order
        of the elements, matrix i has those from ``round(nse * sum(fractions[:i]))`` on.

    Gradient:
        The values of the parts are those of A, so the gradients of all parts together fill the
        pattern of A.

    Cost:
        O(nse) for each part.

    Raises:
        ValueError: A fraction is negative, or they do not add up to 1.

    Example:
        >>> A = spgrad.from_dense(torch.ones(4, 5)).to_sparse_csr()
        >>> [part.values().numel() for part in spgrad.data.split_entries(A, (0.8, 0.1, 0.1))]
        [16, 2, 2]
    """
    pattern = require_graph(A)
    if isinstance(fractions, str) or not isinstance(fractions, Iterable):
        raise ArgumentKindError(
            f"`fractions` is {checks.describe_kind(fractions)}; a list of numbers is accepted. For "
            "example (0.8, 0.1, 0.1)."
        )
    for f in (parts := list(fractions)):
        checks.require_number("fractions", f, "For example (0.8, 0.1, 0.1).")
    if not parts or not all(f >= 0 for f in parts) or abs(math.fsum(parts) - 1) > 1e-6:
        raise ArgumentValueError(
            f"`fractions` is {tuple(parts)}; numbers of 0 or more that add up to 1 are accepted. "
            "For example (0.8, 0.1, 0.1)."
        )
    order = torch.randperm(pattern.nse, generator=generator, device="cpu")
    ends = [round(pattern.nse * min(end, 1.0)) for end in itertools.accumulate(parts)]
    part = torch.empty_like(order)
    for i, (start, end) in enumerate(itertools.pairwise([0, *ends[:-1], pattern.nse])):
        part[order[start:end]] = i
    vals, made = stored_values(A), []
    for i in range(len(parts)):
        move = finished(subset(pattern, (part == i).to(pattern.device)), pattern.nse)
        made.append(on_pattern(move.gather(vals), move.pattern))
    return tuple(made)


@public_as("data.negative_sampling")
def negative_sampling(
    A: SparseTensor, num: int, *, generator: torch.Generator | None = None
) -> torch.Tensor:
    """Distinct pairs (row, column) at which A has no specified element, drawn uniformly.

    It draws numbers of missing elements, not pairs of which it would have to reject some. So an
    almost dense matrix takes no longer.

    Args:
        A: Sparse matrix (m, k) in COO, CSR or CSC, coalesced.
        num: Number of pairs, at most ``m * k - nse``.
        generator: Source of the random numbers; None takes torch's default generator.

    Returns:
        Rows and columns (2, num), int64, in random order.

    Cost:
        O(nse + num log(nse)) on average, and as much memory.

    Raises:
        ValueError: Fewer than `num` elements of A are unspecified.

    Example:
        >>> A = spgrad.from_dense(torch.ones(3, 3) - torch.eye(3)).to_sparse_csr()
        >>> row, col = spgrad.data.negative_sampling(A, 3)
        >>> sorted(row.tolist()), bool((row == col).all())
        ([0, 1, 2], True)
    """
    pattern = require_graph(A)
    m, k = pattern.matrix
    missing = m * k - pattern.nse
    require_count("num", num, 0, "a number of pairs")
    if num > missing:
        raise ArgumentValueError(
            f"`num` is {num}; at most {missing} is accepted, the elements that A lacks. Ask for "
            "fewer pairs."
        )
    drawn = _distinct(missing, num, generator).to(pattern.device)
    there = linear_positions(pattern).sort().values
    before = there - torch.arange(pattern.nse, device=there.device)  # missing ones before each
    at = drawn + torch.searchsorted(before, drawn, right=True)
    return torch.stack([torch.div(at, max(k, 1), rounding_mode="floor"), at % max(k, 1)])


def _distinct(bound: int, num: int, generator: torch.Generator | None) -> torch.Tensor:
    """Distinct numbers in [0, bound), in random order; O(num) on average."""
    if 2 * num > bound:
        return torch.randperm(bound, generator=generator, device="cpu")[:num]
    found = torch.empty(0, dtype=torch.int64, device="cpu")
    while found.numel() < num:  # each number is new with a probability of 1/2 or more
        more = torch.randint(bound, (num - found.numel() + 8,), generator=generator, device="cpu")
        found = torch.cat([found, more]).unique()
    return found[torch.randperm(found.numel(), generator=generator, device="cpu")[:num]]
