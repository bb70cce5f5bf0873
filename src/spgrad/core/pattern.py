"""The pattern of a sparse tensor: where its specified elements are, and what follows from that."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

import torch
from torch._C._functorch import get_unwrapped, is_batchedtensor, is_functorch_wrapped_tensor

from spgrad.core import kept
from spgrad.core.kept import Key
from spgrad.torch_protocol.compile import known, lasting, may_keep

T = TypeVar("T")
_NOTHING: Any = object()

LAYOUTS: dict[str, torch.layout] = {
    "coo": torch.sparse_coo,
    "csr": torch.sparse_csr,
    "csc": torch.sparse_csc,
    "bsr": torch.sparse_bsr,
    "bsc": torch.sparse_bsc,
}
LAYOUT_NAMES: dict[torch.layout, str] = {layout: name for name, layout in LAYOUTS.items()}


class View(NamedTuple):
    """A matrix by rows (or, of its transpose, by columns), as every kernel takes it.

    Line i has the entries ``ptr[i] <= p < ptr[i + 1]``; entry p is in column ``idx[p]`` and has the
    value ``values[perm[p]]``, or ``values[p]`` where `perm` is None.
    """

    ptr: torch.Tensor  # (lines + 1,)
    idx: torch.Tensor  # (elements,)
    perm: torch.Tensor | None  # (elements,)
    num_cols: int  # of the matrix, or of its transpose: exclusive bound of idx


class Spec(NamedTuple):
    """All parts of a pattern except its tensors and its shape; hashable, for compiled guards."""

    layout: str
    dense_dim: int
    blocksize: tuple[int, int] | None
    coalesced: bool
    ordered: bool


class Pattern:
    """Indices of the specified elements of one sparse tensor, shared by all tensors that have them.

    A pattern is immutable: an operation that changes the indices makes a new pattern. Data that are
        derived from it (row and column views, the coalesced form, other layouts) are computed once
        and kept.

    A batch of compressed matrices is stored as one: the row pointers of all items in one array of
    ``b * m + 1``, the plain indices and the values one item after the other. Items may differ in
    their number of entries (a ragged batch).

    Attributes:
        layout: The sparse torch layout.
        shape: Size of the whole tensor: batch (or further sparse), matrix and dense dimensions.
        indices: ``(indices,)`` of shape (sparse_dim, nse) for COO; ``(compressed, plain)``, both
            flat, for the compressed layouts.
        dense_dim: Number of trailing dense dimensions.
        blocksize: Rows and columns of a block in BSR and BSC, else None.
        coalesced: The result of `is_coalesced`; always True for the compressed layouts.
        ordered: True where indices are known to be sorted and unique.
    """

    __slots__ = (
        "__weakref__",
        "_derived",
        "blocksize",
        "coalesced",
        "dense_dim",
        "indices",
        "layout",
        "ordered",
        "shape",
    )

    def __init__(
        self,
        layout: torch.layout,
        shape: tuple[int, ...],
        indices: tuple[torch.Tensor, ...],
        *,
        dense_dim: int = 0,
        blocksize: tuple[int, int] | None = None,
        coalesced: bool = True,
        ordered: bool = True,
    ) -> None:
        self.layout = layout
        self.shape = torch.Size(shape)
        if not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active():
            indices = tuple(map(_without_wrapper, indices))
        self.indices = indices
        self.dense_dim = dense_dim
        self.blocksize = blocksize
        self.coalesced = coalesced
        self.ordered = ordered or coalesced
        self._derived: dict[Any, Any] = {}

    def __repr__(self) -> str:
        return f"Pattern(shape={tuple(self.shape)}, nse={self.nse}, layout={self.name})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Pattern:
        return self  # a copy of a tensor shares it too

    @property
    def name(self) -> str:
        """The layout's short name: coo, csr, csc, bsr or bsc."""
        return LAYOUT_NAMES[self.layout]

    @property
    def compressed_by_rows(self) -> bool:
        """True for CSR and BSR."""
        return self.layout in (torch.sparse_csr, torch.sparse_bsr)

    @property
    def is_coo(self) -> bool:
        """True for COO."""
        return self.layout == torch.sparse_coo

    @property
    def nse(self) -> int:
        """Number of index entries: elements, or blocks in BSR and BSC; of all batch items."""
        return self.indices[-1].shape[-1]

    @property
    def elements(self) -> int:
        """Number of specified elements, those inside blocks counted one by one."""
        return self.nse * math.prod(self.blocksize or (1, 1))

    @property
    def batch(self) -> tuple[int, ...]:
        """Sizes before the matrix dimensions (for COO: all sparse dimensions but the last two)."""
        return tuple(self.shape[: len(self.shape) - self.dense_dim - 2])

    @property
    def matrix(self) -> tuple[int, int]:
        """Rows and columns of one matrix."""
        start = len(self.shape) - self.dense_dim - 2
        return self.shape[start], self.shape[start + 1]

    @property
    def extent(self) -> tuple[int, int]:
        """Rows and columns of the block-diagonal matrix that a batch is stored as."""
        (m, k), items = self.matrix, math.prod(self.batch)
        return items * m, items * k

    @property
    def dense_shape(self) -> tuple[int, ...]:
        """Sizes of the dense dimensions."""
        return tuple(self.shape[len(self.shape) - self.dense_dim :])

    @property
    def sparse_dim(self) -> int:
        """Number of sparse dimensions as torch counts them: 2 for the compressed layouts."""
        return len(self.shape) - self.dense_dim if self.is_coo else 2

    @property
    def values_shape(self) -> tuple[int, ...]:
        """Shape in which values are stored: (nse, *blocksize, *dense_shape)."""
        return (self.nse, *(self.blocksize or ()), *self.dense_shape)

    @property
    def items(self) -> tuple[int, ...]:
        """Batch sizes of a batch of compressed matrices with equal nse; () for anything else."""
        if self.is_coo or not self.batch:
            return ()
        return self.derive(kept.ITEMS, _uniform_items)

    @property
    def nse_of_item(self) -> int:
        """Number of index entries of each of the `items`."""
        return self.nse // max(math.prod(self.items), 1)

    @property
    def uniform(self) -> bool | None:
        """True for a batch whose items have equal nse, None where that is not known yet."""
        items = self._derived.get(kept.ITEMS)
        return None if items is None else items != ()

    @property
    def values_shape_by_item(self) -> tuple[int, ...]:
        """Shape in which values are shown: (*items, nse of an item, ...)."""
        return (*self.items, self.nse_of_item, *self.values_shape[1:])

    def by_item(self, stored: torch.Tensor) -> torch.Tensor:
        """Values by batch item, as torch shows them, if all have equal nse; otherwise as stored."""
        return stored.view(self.values_shape_by_item) if self.items else stored

    def plain_by_item(self) -> torch.Tensor:
        """Plain indices (*b, nse) of a compressed layout; flat if the batch is ragged."""
        items = self.items
        return self.indices[1].view(self.values_shape_by_item[: len(items) + 1])

    def compressed_by_item(self) -> torch.Tensor:
        """Pointers (*b, lines + 1) of a compressed layout, each item's from 0."""
        ptr = self.indices[0]
        if not self.batch:
            return ptr
        items = math.prod(self.batch)
        along = 0 if self.compressed_by_rows else 1
        lines = self.matrix[along] // (self.blocksize or (1, 1))[along]
        if items * lines == 0:
            return ptr.new_zeros(*self.batch, lines + 1)
        starts, ends = ptr[:-1].view(items, lines), ptr[1:].view(items, lines)
        full = torch.cat([starts, ends[:, -1:]], 1)  # (items, lines + 1)
        return (full - full[:, :1]).view(*self.batch, lines + 1)

    def bound(self, view: Key) -> int:
        """The `num_cols` of a view: columns of the matrix, or its rows in a view by columns."""
        across = 1 if view in (kept.ROWS, kept.BLOCK_ROWS) else 0
        blocksize = None if view in (kept.ROWS, kept.COLS) else self.blocksize
        return self.extent[across] // (blocksize or (1, 1))[across]

    @property
    def device(self) -> torch.device:
        """Where the indices are."""
        return self.indices[0].device

    @property
    def spec(self) -> Spec:
        """Everything but shape and tensors."""
        return Spec(self.name, self.dense_dim, self.blocksize, self.coalesced, self.ordered)

    @property
    def form(self) -> tuple[Any, ...]:
        """Layout, shape, and how much of it is dense or in blocks."""
        return self.layout, self.shape, self.dense_dim, self.blocksize

    @classmethod
    def from_spec(
        cls, spec: Spec, shape: tuple[int, ...], indices: tuple[torch.Tensor, ...]
    ) -> Pattern:
        """Rebuilds a pattern from the parts that `spec`, `shape` and `indices` give."""
        return cls(
            LAYOUTS[spec.layout],
            shape,
            indices,
            dense_dim=spec.dense_dim,
            blocksize=spec.blocksize,
            coalesced=spec.coalesced,
            ordered=spec.ordered,
        )

    def derive(self, key: Key | tuple[Any, ...], build: Callable[[Pattern], T]) -> T:
        """Gives the result of `build` for this pattern, computed on the first call with `key`."""
        found = self._derived.get(key, _NOTHING)
        if found is _NOTHING:
            with lasting(*self.indices):
                found = build(self)
            if may_keep(*self.indices):
                self._derived[key] = found
        return found

    def derive_with(self, key: Key, other: Pattern, build: Callable[[Pattern, Pattern], T]) -> T:
        """Gives the result of `build` for this pattern and `other`, kept while both live."""
        found = self._derived.get(key)
        if found is None:
            found = self._derived[key] = weakref.WeakKeyDictionary()
        made = found.get(other)
        if made is None:
            with lasting(*self.indices, *other.indices):
                made = build(self, other)
            if may_keep(*self.indices, *other.indices):
                found[other] = made
        return made

    def derived(self, key: Key | tuple[Any, ...]) -> Any | None:
        """Gives the value that is kept under `key`, or None."""
        return self._derived.get(key)

    def keep(self, key: Key | tuple[Any, ...], value: Any) -> None:
        """Keeps `value` under `key`: for code that made this pattern and has the value already."""
        self._derived[key] = value

    def as_uniform_as(self, old: Pattern) -> Pattern:
        """Gives self; notes that its items have equal nse if those of `old` do, or `old` is one."""
        if self.batch and not self.is_coo and (not old.batch or old.derived(kept.ITEMS)):
            self.keep(kept.ITEMS, self.batch)
        return self

    def ascending(self, *old: Pattern) -> Pattern:
        """Gives self; notes that the indices of lines ascend, if those of all of `old` do."""
        if all(p.ascends for p in old):
            self.keep(kept.ASCENDING, _versions(self.indices))
        return self

    @property
    def ascends(self) -> bool:
        """Whether the indices of each line are known to ascend, unless they changed in place."""
        return self.derived(kept.ASCENDING) == _versions(self.indices)

    def same_as(self, other: Pattern) -> bool:
        """Tells whether both patterns list the same elements in the same order; O(1) if shared."""
        if self is other:
            return True
        if self.form != other.form:
            return False
        # the plain indices first: pointers are often equal where these differ from the start on
        both = zip(reversed(self.indices), reversed(other.indices), strict=True)
        return all(_same_tensor(a, b) for a, b in both)

    def agrees_with(self, other: Pattern, text: str) -> bool:
        """As `same_as`; but a traced graph gets an assertion, which raises `text`."""
        if self is other or not torch.compiler.is_compiling():
            return self.same_as(other)
        if self.form != other.form:
            return False
        text = f"spgrad: {text}"
        if not (known(self.nse) and known(other.nse)):
            torch._check(self.nse == other.nse, lambda: text)
        elif self.nse != other.nse:
            return False
        return self.derive_with(kept.ASSERTED, other, lambda a, b: _assert_equal(a, b, text))

    def moved(self, device: torch.device, non_blocking: bool = False) -> Pattern:
        """Gives this pattern with its indices on `device`."""
        if device == self.device:
            return self
        moved = tuple(i.to(device, non_blocking=non_blocking) for i in self.indices)
        return Pattern.from_spec(self.spec, self.shape, moved)


def index_dtype(like: torch.dtype, sizes: Iterable[int]) -> torch.dtype:
    """`like`, if it holds indices and pointers up to each of `sizes`, else int64.

    Each size is compared by itself: `max` would make compiled code depend on which is the largest.
    """
    most = torch.iinfo(like).max
    for size in sizes:
        if type(size) is not int and not known(size):
            torch._check(size <= most)  # unknown to a trace; a run with a larger size raises
        if size > most:
            return torch.int64
    return like


def reaching(
    shape: tuple[int, ...], indices: tuple[torch.Tensor, ...], dense_dim: int
) -> tuple[torch.Tensor, ...]:
    """The indices, as int64 if a sparse size exceeds 2^31 - 1.

    Operations compute within the shape in the dtype of the indices: they turn the index of a
    block, for example, into the index of its last column.
    """
    sparse = shape[: len(shape) - dense_dim]
    if indices[0].dtype == torch.int64 or index_dtype(torch.int32, sparse) == torch.int32:
        return indices
    return tuple(i.to(torch.int64) for i in indices)


def _without_wrapper(index: torch.Tensor) -> torch.Tensor:
    """An index tensor as it is outside of the derivatives of torch.func that run.

    Whole numbers have no derivative. What is kept on a pattern outlives the transform, and has to
    be made from tensors that do too. A tensor that torch.func.vmap maps over stays as it is.
    """
    while is_functorch_wrapped_tensor(index) and not is_batchedtensor(index):
        index = get_unwrapped(index)
    return index


def _same_tensor(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a is b:
        return True
    if torch.compiler.is_compiling() or a.shape != b.shape or a.device != b.device:
        return False  # a trace may not know the shapes
    if a.dtype != b.dtype:
        return torch.equal(a.to(torch.int64), b.to(torch.int64))
    if a.data_ptr() == b.data_ptr() and a.stride() == b.stride():
        return True
    return torch.equal(a, b)


def _versions(indices: tuple[torch.Tensor, ...]) -> tuple[int, ...]:
    return tuple([0 if t.is_inference() else t._version for t in indices])


def _assert_equal(a: Pattern, b: Pattern, text: str) -> bool:
    for ours, theirs in zip(a.indices, b.indices, strict=True):
        torch._assert_async((ours == theirs).all(), text)
    return True


def _uniform_items(pattern: Pattern) -> tuple[int, ...]:
    items = math.prod(pattern.batch)
    ptr = pattern.indices[0]
    if items == 0 or ptr.numel() == 1 or ptr.is_meta:
        return pattern.batch
    counts = ptr[:: (ptr.numel() - 1) // items].diff()
    return pattern.batch if bool((counts == counts[0]).all()) else ()
