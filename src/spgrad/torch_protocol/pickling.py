"""Loads a SparseTensor that was pickled or saved, and checks every part of it."""

from __future__ import annotations

import copyreg
import math
import sys
from reprlib import repr as repr_of
from types import FrameType
from typing import Any

import torch

from spgrad.core import checks
from spgrad.core.pattern import LAYOUTS, Pattern, Spec, reaching
from spgrad.core.tensor import SparseTensor, leaf_of
from spgrad.errors import ArgumentValueError
from spgrad.public import public_as

_PARTS = ("values", "spec", "shape", "indices", "requires_grad", "parameter")


@public_as("load")
def load(*state: Any) -> SparseTensor:
    """Rebuilds a saved SparseTensor from `_PARTS`; what pickle and `torch.load` call."""
    if len(state) != len(_PARTS):
        raise _damaged("state", f"of {len(state)} parts", f"one of {len(_PARTS)}")
    _require_filled(sys._getframe(1))
    stored, spec, shape, indices, requires_grad, parameter = state
    for name, flag in zip(_PARTS[-2:], state[-2:], strict=True):
        if type(flag) is not bool:
            raise _damaged(name, flag, "True or False")
    pattern = load_pattern(spec, shape, indices)
    if not _is_dense(stored) or stored.shape != pattern.values_shape:
        raise _damaged("values", stored, f"a dense tensor of shape {pattern.values_shape}")
    if stored.device != pattern.device:
        raise _damaged("values", str(stored.device), f"the device of the indices, {pattern.device}")
    if requires_grad and not (stored.is_floating_point() or stored.is_complex()):
        raise _damaged("requires_grad", requires_grad, f"False for {checks.short(stored.dtype)}")
    return leaf_of(stored, pattern, requires_grad, parameter)


@public_as("load")
def load_pattern(*state: Any) -> Pattern:
    """Rebuilds a saved Pattern from its spec, shape and indices; what it derived is left out."""
    if len(state) != 3:
        raise _damaged("state", f"of {len(state)} parts", "one of 3")
    pattern = _pattern(*state)
    if not pattern.indices[0].is_meta:
        _require_valid(pattern)
    return pattern


def _parts_of_pattern(pattern: Pattern) -> tuple[Any, ...]:
    return load_pattern, (tuple(pattern.spec), tuple(pattern.shape), pattern.indices)


def _require_filled(frame: FrameType | None) -> None:
    """Refuses torch's format from before 1.6, which fills tensors after `load` has checked them."""
    while frame is not None:
        if frame.f_code.co_name == "_legacy_load":
            raise _damaged("file", "in torch's old format", "its zip format, the default since 1.6")
        frame = frame.f_back


def _pattern(spec: Any, shape: Any, indices: Any) -> Pattern:
    """The pattern of the loaded parts; raises if these are of wrong kinds or numbers."""
    if not isinstance(spec, (tuple, list)) or len(spec) != len(Spec._fields):
        raise _damaged("spec", spec, f"{len(Spec._fields)} fields")
    made = Spec(*spec)
    coo, blocked = made.layout == "coo", made.layout in ("bsr", "bsc")
    if str(made.layout) not in LAYOUTS or not _are_ints([made.dense_dim]) or made.dense_dim < 0:
        raise _damaged("spec", spec, "a layout and a number of dense dimensions")
    order = (made.coalesced, made.ordered)
    if not all(type(flag) is bool for flag in order) or not (coo or all(order)):
        raise _damaged("spec", spec, "True or False for coalesced and ordered, True but for coo")
    sparse_dim = len(shape) - made.dense_dim if isinstance(shape, (tuple, list)) else -1
    if sparse_dim < (0 if coo else 2) or not _are_ints(shape):
        raise _damaged("shape", shape, f"a size for each dimension of {made.layout}")
    checks.require_addressable(tuple(shape))
    if not isinstance(indices, (tuple, list)) or len(indices) != (1 if coo else 2):
        raise _damaged("indices", indices, f"{1 if coo else 2} index tensor(s)")
    for index in indices:
        if not _is_dense(index) or index.dim() != (2 if coo else 1):
            raise _damaged("indices", index, f"{2 if coo else 1}-d index tensors")
        checks.require_index("indices", index)
        if index.numel() * index.element_size() > index.untyped_storage().nbytes():
            raise _damaged("indices", index, "one with memory for each index")
    if len({(i.dtype, i.device) for i in indices}) > 1:
        raise _damaged("indices", [i.dtype for i in indices], "one dtype and device")
    if coo and indices[0].shape[0] != sparse_dim:
        raise _damaged("indices", indices[0], f"a tensor ({sparse_dim}, nse)")
    if not (_is_blocksize(made.blocksize) if blocked else made.blocksize is None):
        raise _damaged("blocksize", made.blocksize, "two positive sizes" if blocked else "None")
    indices = reaching(tuple(shape), tuple(indices), made.dense_dim)
    return Pattern.from_spec(made, tuple(shape), indices)


def _require_valid(pattern: Pattern) -> None:
    """Refuses indices that don't fit the shape, or whose order is not as the file claims."""
    if pattern.is_coo:
        sizes = tuple(pattern.shape[: pattern.sparse_dim])
        if not checks.require_coordinates(pattern.indices[0], sizes) and pattern.ordered:
            raise _damaged("indices", "unsorted", "what is saved as sorted and unique")
        return
    (block_rows, block_cols), (m, k) = pattern.blocksize or (1, 1), pattern.matrix
    if m % block_rows or k % block_cols:
        raise _damaged("shape", tuple(pattern.shape), f"a multiple of {pattern.blocksize}")
    lines, bound = m // block_rows, k // block_cols
    if not pattern.compressed_by_rows:
        lines, bound = bound, lines
    ptr, idx = pattern.indices
    expected = lines * math.prod(pattern.batch) + 1
    if ptr.numel() != expected:
        raise _damaged("indices", f"{ptr.numel()} pointers", f"{expected}")
    names = ("compressed indices", "plain indices")
    checks.require_compressed(names, ptr, idx, bound, lines)


def _is_dense(x: Any) -> bool:
    return (
        isinstance(x, torch.Tensor)
        and not isinstance(x, SparseTensor)
        and x.layout == torch.strided
    )


def _is_blocksize(b: Any) -> bool:
    return isinstance(b, (tuple, list)) and len(b) == 2 and _are_ints(b) and min(b) > 0


def _are_ints(sizes: Any) -> bool:
    return all(type(s) is int for s in sizes)


def _damaged(part: str, found: Any, accepted: str) -> ArgumentValueError:
    if not isinstance(found, str):  # repr of an object that contains itself would not end
        found = checks.describe_kind(found) if isinstance(found, torch.Tensor) else repr_of(found)
    return ArgumentValueError(
        f"`{part}` is {found}; {accepted} is accepted. The file is damaged: save the tensor again."
    )


for _loads in (load, load_pattern):
    _loads.__module__ = "spgrad.serialize"  # saved files contain this name
torch.serialization.add_safe_globals([load, load_pattern])
copyreg.pickle(Pattern, _parts_of_pattern)
