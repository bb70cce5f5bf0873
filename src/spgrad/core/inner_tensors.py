"""The inner tensors of a SparseTensor, of which compiled code makes its operands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from spgrad.core import kept
from spgrad.core.pattern import Pattern, Spec, View
from spgrad.core.slots import above
from spgrad.torch_protocol.compile import equate, equate_lines

VIEWS = {key.name: key for key in (kept.ROWS, kept.COLS, kept.BLOCK_ROWS, kept.BLOCK_COLS)}
"""The views that a pattern may have, by name."""


def _names(pattern: Pattern) -> list[str]:
    return ["_stored", *(f"_index_{i}" for i in range(len(pattern.indices)))]


def flattened(pattern: Pattern) -> tuple[list[str], Any]:
    """Names of the inner tensors, and what compiled code has to know beside these."""
    tensors = _names(pattern)
    names = {id(t): name for t, name in zip(pattern.indices, tensors[1:], strict=True)}
    views = []
    for key in pattern.derived(kept.GIVEN) or ():
        view, fields = pattern.derived(key), []
        for field in View._fields[:3]:
            t = getattr(view, field)
            if t is not None and id(t) not in names:
                names[id(t)] = f"_{key.name}_{field}"
                tensors.append(f"_{key.name}_{field}")
            fields.append(None if t is None else names[id(t)])
        views.append((key.name, tuple(fields)))
    # no size here: a guard compares this, so compiled code would be valid for that size only
    return tensors, (tuple(pattern.spec), tuple(views), pattern.uniform)


def with_views(pattern: Pattern) -> tuple[list[str], Any]:
    """The same, once the views are found that compiled code takes."""
    above.find_views(pattern)  # once here, instead of inside the graph on every call
    return flattened(pattern)


def bare(pattern: Pattern) -> tuple[list[str], Any]:
    """The same, without views."""
    return _names(pattern), (tuple(pattern.spec), None, None)


def unflattened(inner: Mapping[str, torch.Tensor], context: Any, size: tuple[int, ...]) -> Pattern:
    """The pattern of these inner tensors; `context` is what the functions above give."""
    spec, views, uniform = context
    indices = tuple(inner[n] for n in ("_index_0", "_index_1") if n in inner)
    pattern = Pattern.from_spec(Spec(*spec), tuple(size), indices)
    pattern.keep(kept.GIVEN, tuple(VIEWS[name] for name, _ in views or ()))
    for key, fields in ((VIEWS[name], fields) for name, fields in views or ()):
        ptr, idx, perm = (None if field is None else inner[field] for field in fields)
        assert ptr is not None
        assert idx is not None
        pattern.keep(key, View(ptr, idx, perm, pattern.bound(key)))
    if uniform is not None:
        pattern.keep(kept.ITEMS, pattern.batch if uniform else ())
    _relate_sizes(pattern, inner["_stored"])
    return pattern


def _relate_sizes(pattern: Pattern, stored: torch.Tensor) -> None:
    """Tells a trace which sizes of the indices, of the given views and of values are equal."""
    equate(stored.shape[0], pattern.nse)
    blocks = pattern.blocksize or (1, 1)
    if not pattern.is_coo:
        along = 0 if pattern.compressed_by_rows else 1
        equate_lines(pattern.indices[0].shape[0], pattern.extent[along], blocks[along])
    for key in pattern.derived(kept.GIVEN) or ():
        view, along = pattern.derived(key), 0 if key in (kept.ROWS, kept.BLOCK_ROWS) else 1
        assert view is not None
        by_elements = key in (kept.ROWS, kept.COLS)
        equate_lines(view.ptr.shape[0], pattern.extent[along], 1 if by_elements else blocks[along])
        for t in view[1:3]:
            if t is not None:
                equate(t.shape[0], pattern.elements if by_elements else pattern.nse)
