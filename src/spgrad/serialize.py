"""Loading a SparseTensor that was pickled or saved: the indices are validated like any others."""

from __future__ import annotations

import math
from typing import Any

import torch

from spgrad import checks
from spgrad.errors import ArgumentValueError
from spgrad.pattern import Pattern, Spec
from spgrad.tensor import METHODS, SparseTensor, rebuild


def load(
    stored: torch.Tensor,
    spec: tuple[Any, ...],
    shape: tuple[int, ...],
    indices: tuple[torch.Tensor, ...],
    requires_grad: bool,
    parameter: bool,
) -> SparseTensor:
    """Rebuilds a saved SparseTensor; what pickle and `torch.load` call."""
    pattern = Pattern.from_spec(Spec(*spec), shape, tuple(indices))
    if stored.shape != pattern.values_shape:
        raise ArgumentValueError(
            f"spgrad.load: `values` has shape {tuple(stored.shape)}; {pattern.values_shape} is "
            "accepted for the saved indices. The file is damaged; save it again."
        )
    for index in indices:
        checks.require_index("load", "indices", index)
    if pattern.is_coo:
        sizes = tuple(shape[: pattern.sparse_dim])
        ordered = checks.require_coordinates("load", indices[0], sizes)
        if pattern.ordered and not ordered:
            raise ArgumentValueError(
                "spgrad.load: `indices` are saved as sorted and unique but are not; the file is "
                "damaged. Save the tensor again."
            )
    else:
        by_rows = pattern.compressed_by_rows
        along, across = pattern.blocksize or (1, 1)
        m, k = pattern.matrix
        lines, bound = (m // along, k // across) if by_rows else (k // across, m // along)
        expected = lines * math.prod(pattern.batch) + 1
        if indices[0].numel() != expected:
            raise ArgumentValueError(
                f"spgrad.load: `indices` has {indices[0].numel()} pointers; {expected} are "
                f"accepted for shape {tuple(shape)}. The file is damaged; save it again."
            )
        names = ("compressed indices", "plain indices")
        checks.require_compressed("load", names, indices[0], indices[1], bound, lines)
    return rebuild(stored, pattern, requires_grad, parameter)


METHODS["load"] = load
torch.serialization.add_safe_globals([load])
