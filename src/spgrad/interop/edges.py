"""Matrices as lists of edges, which most libraries take."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch

from spgrad.core import checks
from spgrad.core.tensor import SparseTensor
from spgrad.errors import ArgumentKindError, ArgumentValueError
from spgrad.linalg.structure import require_square
from spgrad.lowering.operands import matrix_operand, require_rank
from spgrad.ops.indexing.nonzero import find


def single_matrix(A: Any) -> SparseTensor:
    """`A` as one matrix without dense dimensions, or the refusal."""
    M = matrix_operand("A", A, bools=True)
    require_rank("A", M, 2, "Convert one matrix of a batch at a time.")
    return M


def listed(A: Any, *, square: bool = False) -> tuple[SparseTensor, torch.Tensor, torch.Tensor]:
    """A matrix, its (2, edges) rows and columns in row-major order, and its values."""
    M = single_matrix(A)
    if square:
        require_square(M)
    row, col, vals = find(M, specified=True)
    return M, torch.stack([row, col]), vals


def require_names(arg: str, names: Any, count: int) -> list[Any]:
    """Names of rows or columns, one for each; numbers where none are given."""
    if names is None:
        return list(range(count))
    found = names_in(names)
    if len(found) != count:
        hint = "Give one name for each."
        raise checks.bad_shape(arg, (len(found),), f"({count},)", hint)
    return found


def names_in(names: Any) -> list[Any]:
    """The names as a list; the numbers in a tensor or array, as ints and floats.

    Tensors of one number would be poor names: two of them with the same number are different keys.
    """
    return names.tolist() if hasattr(names, "__array__") else list(names)


def positions_of(arg: str, names: Sequence[Any]) -> dict[Any, int]:
    """The position of each name; refuses names that repeat."""
    try:
        found = {name: i for i, name in enumerate(names)}
    except TypeError as error:
        first = next(name for name in names if not isinstance(name, Hashable))
        raise ArgumentKindError(
            f"`{arg}` has {checks.describe_kind(first)}, which can't be a name; strings, numbers "
            "and other hashable objects are accepted. Give one for each row or node."
        ) from error
    if len(found) < len(names):
        seen: set[Any] = set()
        twice = next(name for name in names if name in seen or seen.add(name))
        raise ArgumentValueError(
            f"`{arg}` has {twice!r} more than once; distinct names are accepted. Leave out the "
            "second."
        )
    return found
