"""SparseTensor: a pattern and its values, as a `torch.Tensor`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import torch

from spgrad.core import checks, inner_tensors, kept, refusals
from spgrad.core.pattern import Pattern, View
from spgrad.core.refusals import no_array, no_dense_form, no_memory, no_sparse_form
from spgrad.core.slots import ATEN_FUNCTIONS, Methods, Shown, Spelled, above, answer, refusable
from spgrad.errors import SpgradError, StateError
from spgrad.torch_protocol.callers import optimizing
from spgrad.torch_protocol.compile import compiled_for, of_trace, packed, same_inputs, traced

_DETACH = torch.ops.aten.detach.default
_make_wrapper = torch.Tensor._make_wrapper_subclass
_without_memory = torch._C._set_throw_on_mutable_data_ptr


class SparseTensor(Methods, Shown, Spelled, torch.Tensor):
    """A sparse tensor of any layout whose gradients stay on its own pattern.

    Made by the constructors (`spgrad.sparse_csr_tensor` and its siblings), by `spgrad.from_dense`,
    `spgrad.from_torch`, `spgrad.from_scipy`, `spgrad.from_edges`, or from the values of another
    tensor's pattern by `spgrad.from_values`. It answers to the names that torch documents for
    sparse tensors. The specified elements are its parameters: the gradient of a SparseTensor
    is a SparseTensor that shares its pattern.

    Example:
        >>> A = spgrad.sparse_csr_tensor([0, 2, 3], [0, 2, 1], [1.0, 2.0, 3.0], (2, 3))
        >>> A.requires_grad_()
        SparseTensor(shape=(2, 3), nse=3, density=50%, layout=csr, dtype=float32, \
requires_grad=True)
          (0, 0) 1
          (0, 2) 2
          (1, 1) 3
        >>> (A @ torch.ones(3, 2)).sum().backward()
        >>> A.grad.values()
        tensor([2., 2., 2.])
    """

    _vals: torch.Tensor
    _pattern: Pattern
    _is_alias = False  # True for the result of `detach` or `data`
    _is_trained = False  # True for an alias of a parameter that requires a gradient
    _outdated: list[bool] | None = None  # not empty after this leaf got other elements
    _is_bare = False  # True for a cotangent that compiled code takes; its views are left out

    @staticmethod
    def __new__(
        cls: type[SparseTensor],
        values: torch.Tensor = None,  # type: ignore[assignment]
        pattern: Pattern = None,  # type: ignore[assignment]
        requires_grad: bool = False,
        **others: Any,
    ) -> SparseTensor:
        """Wraps `values` without a copy and without autograd; use `from_values` for a gradient."""
        if pattern.__class__ is not Pattern or others:  # such as those of torch_sparse's class
            raise refusals.no_pattern(pattern, others)
        try:
            A = of_parts(values, pattern, requires_grad, cls)
        except (AttributeError, TypeError):
            raise refusals.no_values(values, requires_grad) from None
        if not of_trace(values) and values.shape != pattern.values_shape:
            raise refusals.no_values_of_pattern(tuple(values.shape), pattern.values_shape)
        return A

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Sends a torch function to the spgrad function that answers for it."""
        return answer(func, args, kwargs)

    @classmethod
    def __torch_dispatch__(
        cls,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Answers the calls of autograd, modules and optimizers; refuses every other."""
        # a short cut, because autograd detaches each stored gradient
        if func is _DETACH and type(args[0]._vals) is torch.Tensor:
            return above.alias(args[0])
        op: Any = ATEN_FUNCTIONS.get(func)
        if op is None:
            if torch.is_inference_mode_enabled():  # inference mode skips autograd's decompositions
                out = func.decompose(*args, **(kwargs or {}))
                if out is not NotImplemented:
                    return out
            raise no_sparse_form(func)
        return op(*args, **(kwargs or {}))

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        refusals.refuse_tracers()
        refusals.refuse_unwrapping(self)
        pattern = self._pattern
        if self._is_bare:
            return inner_tensors.bare(pattern)
        if of_trace(self._vals):
            tensors, context = inner_tensors.flattened(pattern)
        else:  # each call of compiled code asks twice for each operand
            tensors, context = pattern.derive(kept.FLATTENED, inner_tensors.with_views)
        return list(tensors), context

    @staticmethod
    def __tensor_unflatten__(
        inner: dict[str, torch.Tensor], context: Any, size: tuple[int, ...], stride: Any
    ) -> SparseTensor:
        pattern = inner_tensors.unflattened(inner, context, size)
        A = of_parts(inner["_stored"], pattern)
        A._is_bare = context[1] is None
        return A

    def __coerce_tangent_metadata__(self) -> SparseTensor:
        """A cotangent as a trace expects it; the views of the real cotangent are not known yet."""
        p = self._pattern
        pattern = Pattern.from_spec(p.spec, p.shape, tuple(map(packed, p.indices)))
        A = of_parts(packed(self._vals), pattern)
        A._is_bare = True
        return A

    def __coerce_same_metadata_as_tangent__(
        self, expected: Any, kind: type[torch.Tensor] | None = None
    ) -> SparseTensor | None:
        """The cotangent in the form for which code was traced; None if it has another form."""
        same = kind is None and expected[0] == self._pattern.spec
        return self.__coerce_tangent_metadata__() if same else None

    def __dir__(self) -> list[str]:
        # torch.export looks up, in its graph, the place of each tensor attribute that is named
        # here; an intermediate result has no such place
        return [n for n in super().__dir__() if n != "_vals" and n not in refusals.ABSENT]

    def _stable_hash_for_caching(self) -> str:
        """All that compiled code depends on in this tensor and its trace, for caches on disk."""
        names, context = self.__tensor_flatten__()
        inner = [(name, *compiled_for(getattr(self, name))) for name in names]
        flags = requires_grad(self), self.is_inference()
        return repr((tuple(self.shape), *flags, context, inner, same_inputs()))

    _stored = property(lambda self: self._vals)
    _index_0 = property(lambda self: self._pattern.indices[0])
    _index_1 = property(lambda self: self._pattern.indices[1])

    @property
    def layout(self) -> torch.layout:  # type: ignore[override]
        """The sparse layout; torch.compile itself sees strided, the layout of the wrapper."""
        return torch.strided if traced(shown=True) else self._pattern.layout

    @property
    def is_sparse(self) -> bool:  # type: ignore[override]
        """True for COO, as in torch; torch.optim sees False, as Adam refuses sparse gradients."""
        return self._pattern.is_coo and not traced() and not optimizing()

    @property
    def is_sparse_csr(self) -> bool:  # type: ignore[override]
        """True for CSR."""
        return self._pattern.layout == torch.sparse_csr and not traced(shown=True)

    @property
    def nse(self) -> int:
        """Number of specified elements (blocks in BSR and BSC), of all batch items together."""
        return self._pattern.nse

    @property
    def pattern(self) -> Pattern:
        """The indices, shared with every tensor that has the same specified elements."""
        return self._pattern

    def _nnz(self) -> int:
        """Number of specified elements as torch counts it: per batch item where all agree."""
        return self._pattern.nse_of_item

    def sparse_dim(self) -> int:
        """Number of sparse dimensions; 2 for the compressed layouts."""
        return self._pattern.sparse_dim

    def dense_dim(self) -> int:
        """Number of dense dimensions."""
        return self._pattern.dense_dim

    @refusable
    def is_coalesced(self) -> bool:
        """True if indices are known to be unique and sorted; COO only."""
        refusals.require_coo(self, "is_coalesced")
        return self._pattern.coalesced

    @refusable
    def values(self) -> torch.Tensor:
        """The values, as `spgrad.values`."""
        return above.values(self)

    @refusable
    def indices(self) -> torch.Tensor:
        """Indices (sparse_dim, nse) of a coalesced COO tensor."""
        refusals.require_coo(self, "indices")
        if not self._pattern.coalesced:
            raise StateError(
                "`A` is not coalesced; indices are given for a coalesced tensor. Call A.coalesce() "
                "first, or take A._indices().",
                function="indices",
            )
        return self._pattern.indices[0]

    def _coalesced_(self, coalesced: bool) -> SparseTensor:
        """Says that the indices are sorted and unique, if they are, or that they may not be."""
        refusals.require_coo(self, "_coalesced_")
        old = self._pattern
        size = tuple(old.shape[: old.sparse_dim])
        if coalesced and not (old.ordered or checks.require_coordinates(old.indices[0], size)):
            raise StateError(
                "`coalesced` is True for indices that are not sorted and unique; False is accepted "
                "for them. Call A.coalesce() to sort them.",
                function="_coalesced_",
            )
        spec = old.spec._replace(coalesced=coalesced)  # coalesced indices are ordered
        self._pattern = Pattern.from_spec(spec, tuple(old.shape), old.indices)
        return self

    def _indices(self) -> torch.Tensor:
        """Indices (sparse_dim, nse) of a COO tensor, coalesced or not."""
        refusals.require_coo(self, "_indices")
        return self._pattern.indices[0]

    def _values(self) -> torch.Tensor:
        """The values, detached, of a coalesced or uncoalesced tensor."""
        return self._pattern.by_item(self._vals).detach()

    @refusable
    def crow_indices(self) -> torch.Tensor:
        """Row pointers (*b, m + 1) of CSR, block row pointers of BSR."""
        refusals.require_layout_of_accessor(self, "crow_indices", rows=True)
        return self._pattern.compressed_by_item()

    @refusable
    def ccol_indices(self) -> torch.Tensor:
        """Column pointers (*b, n + 1) of CSC, block column pointers of BSC."""
        refusals.require_layout_of_accessor(self, "ccol_indices", rows=False)
        return self._pattern.compressed_by_item()

    @refusable
    def col_indices(self) -> torch.Tensor:
        """Column indices (*b, nse) of CSR, block column indices of BSR; flat if ragged."""
        refusals.require_layout_of_accessor(self, "col_indices", rows=True)
        return self._pattern.plain_by_item()

    @refusable
    def row_indices(self) -> torch.Tensor:
        """Row indices (*b, nse) of CSC, block row indices of BSC; flat if ragged."""
        refusals.require_layout_of_accessor(self, "row_indices", rows=False)
        return self._pattern.plain_by_item()

    def coo_indices(self) -> torch.Tensor:
        """Rows and columns of the elements in the order of their values: `spgrad.coo_indices`."""
        return above.coo_indices(self)

    def __getitem__(self, index: Any) -> torch.Tensor:
        return above.getitem(self, index)

    def __matmul__(self, other: torch.Tensor) -> torch.Tensor:
        try:
            return above.matmul(self, other)
        except SpgradError as error:
            return above.refused(torch.Tensor.__matmul__, (self, other), error)

    def __rmatmul__(self, other: torch.Tensor) -> torch.Tensor:
        try:
            return above.matmul(other, self)
        except SpgradError as error:
            return above.refused(torch.Tensor.__rmatmul__, (self, other), error)

    @property
    def mT(self) -> torch.Tensor:  # type: ignore[override]  # noqa: N802
        """The tensor with its two matrix dimensions exchanged, as `spgrad.transpose`."""
        return above.transpose(self, -2, -1)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return above.describe(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> SparseTensor:
        if id(self) in memo:
            return memo[id(self)]
        if not self.is_leaf:
            raise StateError(
                "`A` was computed from other tensors; only leaves are copied, as in torch. Use "
                "A.detach() first.",
                function="deepcopy",
            )
        copy = leaf_of(self._vals.clone(), self._pattern, self.requires_grad, is_parameter(self))
        memo[id(self)] = copy
        if self.grad is not None:
            copy.grad = self.grad.__deepcopy__(memo)
        return copy

    def __reduce_ex__(self, protocol: Any) -> Any:
        pattern = self._pattern
        state = (tuple(pattern.spec), tuple(pattern.shape), pattern.indices)
        flags = (self.requires_grad and self.is_leaf, is_parameter(self))
        return above.load, (self._vals.detach(), *state, *flags)

    def is_shared(self) -> bool:
        """True if values and indices are in memory that other processes can map."""
        return all(t.is_shared() for t in (self._vals, *self._pattern.indices))

    def share_memory_(self) -> SparseTensor:
        """Moves values and indices to memory that other processes can map."""
        for t in (self._vals, *self._pattern.indices):
            t.share_memory_()
        return self

    def numpy(self, *, force: bool = False) -> Any:
        """Refused: NumPy has no sparse array; see `spgrad.to_scipy`."""
        raise no_dense_form("numpy")

    def tolist(self) -> Any:
        """Refused: a list would be dense."""
        raise no_dense_form("tolist")

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return no_array()

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any:
        raise no_memory("__dlpack__")

    def __dlpack_device__(self) -> Any:
        raise no_memory("__dlpack__")

    def data_ptr(self) -> int:
        """Refused: values and indices have separate memory."""
        raise no_memory("data_ptr")


def of_parts(
    values: torch.Tensor,
    pattern: Pattern,
    requires_grad: bool = False,
    cls: type[SparseTensor] = SparseTensor,
) -> SparseTensor:
    """What the class returns, for values and a pattern that are known to fit."""
    dtype, device = values.dtype, values.device
    A = _make_wrapper(cls, pattern.shape, dtype=dtype, device=device, requires_grad=requires_grad)
    _without_memory(A)  # so that C++ gets an exception for its address, not a null pointer
    A._vals = values  # not in __init__: its call takes a tenth of the time
    A._pattern = pattern
    return A


def _field(key: Any, name: str, A: SparseTensor) -> torch.Tensor | None:
    if A._pattern.derived(key) is None:  # as in a tensor from a file, which an export reads
        above.find_views(A._pattern)
    return getattr(A._pattern.derived(key), name)


for _key, _name in product(inner_tensors.VIEWS.values(), View._fields[:3]):
    setattr(SparseTensor, f"_{_key.name}_{_name}", property(partial(_field, _key, _name)))


any_requires_grad: Callable[..., bool] = torch._C._any_requires_grad
"""Whether one of some tensors requires a gradient, read without the torch protocol."""


def requires_grad(A: torch.Tensor) -> bool:
    """`A.requires_grad`, read without the torch protocol, which takes several times as long."""
    if torch.compiler.is_dynamo_compiling():  # which does not know the other function
        with torch._C.DisableTorchFunctionSubclass():
            return A.requires_grad
    return any_requires_grad(A)


def is_parameter(A: torch.Tensor) -> bool:
    """True for tensors that `torch.nn.Parameter` made."""
    return getattr(A, "_is_param", False)


def leaf_of(
    stored: torch.Tensor, pattern: Pattern, requires_grad: bool, parameter: bool
) -> SparseTensor:
    """A new leaf with these parts."""
    A = of_parts(stored, pattern, requires_grad)
    if parameter:
        A._is_param = True  # as torch.nn.Parameter does for tensors of custom classes
    return A
