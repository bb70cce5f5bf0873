"""The base of layers with a sparse weight: a dense parameter of values and two index buffers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from spgrad.core import checks
from spgrad.core.compressed import sparse_bsr_tensor, sparse_csr_tensor
from spgrad.core.pattern import Pattern
from spgrad.core.refusals import refuse_script, refuse_tracers
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import from_values, on_pattern
from spgrad.errors import ArgumentValueError, SpgradError, StateError, UnsupportedError
from spgrad.lowering.operands import dense_operand, sparse_operand
from spgrad.public import public_as
from spgrad.torch_protocol.func_transforms import is_mapped

_INDICES = ("crow_indices", "col_indices")


class _Parametrizations(nn.ModuleDict):
    """The dict in which torch.nn.utils.parametrize keeps what a layer's parameters are made of.

    ModuleDict refuses the names of its own methods, of which `values` is one.
    """

    @property
    def values(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._modules.get("values") or super().values

    def add_module(self, name: str, module: Any) -> None:
        if name == "values":
            self._modules[name] = module
        else:
            super().add_module(name, module)


class SparseWeight(nn.Module):
    """The base of layers with one sparse matrix, `weight`.

    The values are an ordinary dense parameter, `values`: (nse,), or (nse, rows, columns) of blocks.
    So every optimizer, DistributedDataParallel, `fully_shard`, averages of parameters and
    `state_dict` treat them as any other parameter. The pattern is two buffers, `crow_indices` and
    `col_indices`, which `state_dict` saves. `load_state_dict` checks the indices and also accepts
    another pattern than the layer has; the parameter then stays the same object. Averages, such as
    those of torch.optim.swa_utils.AveragedModel, are for the values alone, without `use_buffers`.
    `torch.nn.utils.parametrize` works on `values`; the elements are then fixed.

    Attributes:
        values: The parameter.
        crow_indices: Pointers of the rows, or rows of blocks, int64 (lines + 1,).
        col_indices: Indices of the columns, or columns of blocks, int64 (nse,).
        blocksize: Size of a block, or None.
    """

    values: nn.Parameter
    crow_indices: torch.Tensor
    col_indices: torch.Tensor
    blocksize: tuple[int, int] | None

    __prepare_scriptable__ = refuse_script

    # `_elements` is made of a copy of the buffers; `_seen` has the buffers and versions of then
    _elements: SparseTensor | None = None
    _seen: tuple[tuple[torch.Tensor, int], ...] = ()

    def __init__(self, size: tuple[int, int], weight: SparseTensor) -> None:
        super().__init__()
        self._size = size
        pattern = weight._pattern
        self.blocksize = pattern.blocksize
        for name, index in zip(_INDICES, pattern.indices, strict=True):
            self.register_buffer(name, index.to(torch.int64).clone())
        self.values = nn.Parameter(weight._vals.detach())
        self._check_indices()

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "parametrizations" and type(value) is nn.ModuleDict and not len(value):
            value = _Parametrizations()
        super().__setattr__(name, value)

    @property
    def weight(self) -> SparseTensor:
        """The matrix, CSR or BSR, whose gradient arrives at `values`."""
        return from_values(self.values, self._current())

    @property
    def pattern(self) -> Pattern:
        """Where the specified elements of `weight` are."""
        return self._current()._pattern

    @property
    def density(self) -> float:
        """The specified elements, as a share of all."""
        total = self._size[0] * self._size[1]
        return self.values.numel() / total if total else 0.0

    @public_as("nn.SparseLinear.set_weight")
    @torch.no_grad()
    def set_weight(self, weight: SparseTensor) -> None:
        """Takes values and elements of `weight`; `values` stays the same parameter object.

        Args:
            weight: CSR, or BSR of this layer's block size, of the shape of the old weight.

        Raises:
            TypeError: `weight` is not sparse.
            ValueError: The shape, layout or block size is another.
            RuntimeError: `values` has a parametrization.

        The gradient is dropped. `spgrad.nn.sparsity.move` moves the gradient, and the states of an
        optimizer, to the new elements.
        """
        self._refuse_parametrized()
        weight = sparse_operand("weight", weight)
        pattern = weight._pattern
        wanted = torch.sparse_csr if self.blocksize is None else torch.sparse_bsr
        found = (pattern.layout, tuple(pattern.shape), pattern.blocksize)
        if found != (wanted, self._size, self.blocksize):
            raise checks.bad_shape(
                "weight",
                tuple(pattern.shape),
                f"{wanted} of shape {self._size} with blocks {self.blocksize}",
                "Convert it with weight.to_sparse.",
            )
        self.values.grad = None
        _replace_data(self.values, weight._vals)
        for name, index in zip(_INDICES, pattern.indices, strict=True):
            setattr(self, name, index.to(self.values.device, torch.int64, copy=True))
        self._check_indices()

    def _refuse_parametrized(self) -> None:
        if parametrize.is_parametrized(self, "values"):
            raise StateError(
                "`values` has a parametrization, which keeps a number for each element; other "
                "elements are accepted without one. Call "
                'torch.nn.utils.parametrize.remove_parametrizations(layer, "values") before.'
            )

    def take_indices(self, other: SparseWeight) -> None:
        """Takes the elements of a layer that shares `values` with this one."""
        for name in _INDICES:
            setattr(self, name, getattr(other, name).clone())
        self._check_indices()

    def _current(self) -> SparseTensor:
        """The pattern as a SparseTensor whose numbers are never read; made once."""
        refuse_tracers()
        if torch.compiler.is_compiling() and self._elements is not None:
            return self._elements
        if not self._is_unchanged():
            _require_one_pattern(self.crow_indices, self.col_indices)
            if self._elements is not None:
                in_place = [b for b, _ in self._seen]
                _refuse_averages(self._elements._pattern.indices, in_place)
            self._check_indices()
        assert self._elements is not None
        return self._elements

    def _is_unchanged(self) -> bool:
        if self._elements is None:
            return False
        buffers = (self.crow_indices, self.col_indices)
        return all(
            b is old and (b.is_inference() or b._version == version)
            for b, (old, version) in zip(buffers, self._seen, strict=True)
        )

    @torch.no_grad()
    def _check_indices(self) -> None:
        """Makes `_elements` from the present buffers; refuses indices that are no valid pattern."""
        buffers = (self.crow_indices, self.col_indices)
        seen = tuple((b, 0 if b.is_inference() else b._version) for b in buffers)
        old = self._elements
        if old is not None and all(
            a.shape == b.shape and a.device == b.device and torch.equal(a, b)
            for a, b in zip(old._pattern.indices, buffers, strict=True)
            if not b.is_meta
        ):
            self._seen = seen
            if old.device == buffers[0].device:
                return
        self._elements = None
        self._elements = _elements_of(buffers, self._size, self.blocksize)
        self._seen = seen

    def _apply(self, fn: Any, recurse: bool = True) -> SparseWeight:
        super()._apply(fn, recurse)
        try:  # to_empty leaves indices that a state, loaded later, replaces
            self._check_indices()
        except SpgradError:
            self._elements = None
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("_elements", "_seen")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[misc]
        self._check_indices()

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        try:
            self._make_room(*(state_dict.get(prefix + n) for n in (*_INDICES, "values")))
        except SpgradError as error:
            error_msgs.append(f"`{prefix or 'the layer'}`: {error}")
            return
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        if not self.crow_indices.is_meta:
            self._check_indices()

    def _make_room(self, ptr: Any, idx: Any, values: Any) -> None:
        """Checks the indices of a state, and gives buffers and parameter its number of elements."""
        if ptr is None and idx is None:
            return
        for name, t in zip((*_INDICES, "values"), (ptr, idx, values), strict=True):
            if t is not None:
                dense_operand(name, t)
        if parametrize.is_parametrized(self, "values") and idx is not None and ptr is not None:
            own = (self.crow_indices, self.col_indices)
            pairs = zip((ptr, idx), own, strict=True)
            if any(a.shape != b.shape or not torch.equal(a.to(b), b) for a, b in pairs):
                self._refuse_parametrized()
            return
        if ptr is None or idx is None or values is None:
            raise StateError(
                "the state has some of `crow_indices`, `col_indices` and `values`; all or only the "
                "values are accepted. Save the whole layer with state_dict()."
            )
        _elements_of((ptr, idx), self._size, self.blocksize)
        shape = (idx.shape[0], *(self.blocksize or ()))
        if tuple(values.shape) != shape:
            hint = "Save the whole layer with state_dict()."
            raise checks.bad_shape("values", tuple(values.shape), str(shape), hint)
        if idx.shape != self.col_indices.shape:
            self.values.grad = None
            _replace_data(self.values, self.values.new_empty(shape))
            self.col_indices = self.col_indices.new_empty(idx.shape)


@public_as("nn.SparseLinear")
def _require_one_pattern(crow_indices: torch.Tensor, col_indices: torch.Tensor) -> None:
    if is_mapped(crow_indices) or is_mapped(col_indices):
        raise UnsupportedError(
            "`crow_indices` or `col_indices` are mapped over by torch.func.vmap; one pattern for "
            "all items is accepted. Map over the parameters alone, without the buffers."
        )


@public_as("nn.SparseLinear")
@torch.no_grad()
def _refuse_averages(old: Any, new: Any) -> None:
    """Refuses indices that are the old ones averaged with themselves.

    torch truncates such an average to an int, so equal indices all become the same smaller one. The
    result may be a valid pattern of other elements.
    """
    pairs = zip(old, new, strict=True)
    if any(a.shape != b.shape or a.device != b.device or b.is_meta for a, b in pairs):
        return
    before, after = (torch.cat([i.reshape(-1) for i in indices]) for indices in (old, new))
    changed = int((after < before).sum())
    if not changed or bool((after > before).any()):
        return
    before, order = before.sort()
    if bool((after[order].diff()[before.diff() == 0] == 0).all()):
        raise ArgumentValueError(
            f"`crow_indices` and `col_indices` are averages of indices: {changed} of "
            f"{before.numel()} are smaller than before, because torch truncates averages of ints; "
            "averages of the values are accepted. Leave out use_buffers=True."
        )


def _elements_of(
    buffers: tuple[torch.Tensor, ...], size: tuple[int, int], blocksize: tuple[int, int] | None
) -> SparseTensor:
    """Checks these indices, and makes a SparseTensor on a copy of them."""
    for name, b in zip(_INDICES, buffers, strict=True):
        checks.require_index(name, b)
    ptr, idx = (b.detach().to(torch.int64, copy=True) for b in buffers)
    number = torch.zeros((), dtype=torch.bool, device=ptr.device)
    stored = number.expand(idx.shape[0] if idx.dim() else 1, *(blocksize or ()))
    make = sparse_csr_tensor if blocksize is None else sparse_bsr_tensor
    made = make(ptr, idx, stored, size, check_invariants=not ptr.is_meta)
    return on_pattern(number.expand(stored.shape), made._pattern)


def _replace_data(parameter: nn.Parameter, data: torch.Tensor) -> None:
    """Puts `data` into `parameter`, in place where the shape is the same."""
    if parameter.shape == data.shape:
        parameter.data.copy_(data)
        return
    device, dtype = parameter.device, parameter.dtype
    # A graph that is still alive keeps the node that accumulates gradients of the old shape; torch
    # drops this node where the dtype changes.
    other = torch.float64 if dtype != torch.float64 else torch.float32
    parameter.data = torch.empty(0, dtype=other, device=device)
    parameter.data = data.detach().to(device, dtype, copy=True)
