"""Native torch sparse tensors, SciPy and edge lists, to and from SparseTensor."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.dlpack
from torch.utils.weak import WeakTensorKeyDictionary

from spgrad.core import checks
from spgrad.core.compressed import sparse_compressed_tensor
from spgrad.core.construct import sparse_coo_tensor
from spgrad.core.pattern import LAYOUT_NAMES, LAYOUTS, Pattern
from spgrad.core.refusals import no_memory
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import in_shares, on_pattern, stored_values
from spgrad.errors import ArgumentKindError, ArgumentValueError
from spgrad.public import public_op
from spgrad.torch_protocol.func_transforms import Derived

if TYPE_CHECKING:
    import scipy.sparse

# Layouts for whose gradients torch's own accumulation raises ("do not have is_contiguous").
_NOT_ACCUMULATED = (torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)

_PATTERNS: Any = WeakTensorKeyDictionary()  # native tensor -> (its index tensors, their Pattern)


@public_op
def from_torch(x: torch.Tensor) -> SparseTensor:
    """A native torch sparse tensor as a SparseTensor, without a copy.

    Args:
        x: Tensor of layout torch.sparse_coo, csr, csc, bsr or bsc.

    Returns:
        SparseTensor that shares memory with `x` (a batch of compressed matrices copies its
        pointers). A SparseTensor is given back as it is.

    Gradient:
        A native sparse tensor with the layout and the indices of `x`. If torch made `x` of values,
        its repeated elements have equal shares, because torch adds them up.

    Cost:
        One pass that validates the indices, on the first call with a tensor.

    Raises:
        TypeError: `x` is no sparse tensor.
        ValueError: An index of `x` is out of range, or not sorted and unique within a row or
            column of a compressed layout.

    Example:
        >>> A = torch.eye(2).to_sparse_coo().requires_grad_()
        >>> (spgrad.from_torch(A) @ torch.ones(2, 1)).sum().backward()
        >>> A.grad.layout, A.grad._nnz()
        (torch.sparse_coo, 2)
    """
    if isinstance(x, SparseTensor):
        return x
    if not isinstance(x, torch.Tensor) or x.layout not in LAYOUT_NAMES:
        raise ArgumentKindError(
            f"`x` is {checks.describe_kind(x)}; a sparse torch tensor is accepted. "
            f"{checks.sparse_hint('x', x)}"
        )
    pattern = _pattern_of(x)
    if torch.is_grad_enabled() and x.requires_grad:
        A: Any = _FromNative.apply(x, pattern)
        if x.is_leaf and x.layout in _NOT_ACCUMULATED:
            _accumulate(x, A.grad_fn.next_functions[0][0])
        return A
    return SparseTensor(_native_values(x).detach().reshape(pattern.values_shape), pattern)


def _accumulate(x: torch.Tensor, node: Any) -> None:
    """Adds up the gradient of the leaf `x` in a hook of `node`, because torch's step raises."""
    if node.metadata.get(from_torch):
        return

    def add(grads: tuple[torch.Tensor, ...]) -> tuple[None]:
        (g,) = grads
        x.grad = g if x.grad is None else to_torch(from_torch(x.grad) + from_torch(g))
        return (None,)

    node.metadata[from_torch] = True
    node.register_prehook(add)


@public_op
def to_torch(A: torch.Tensor) -> torch.Tensor:
    """A SparseTensor as a native torch sparse tensor of the same layout.

    Args:
        A: SparseTensor. A batch of compressed matrices must have equal nse in all items.

    Returns:
        Native sparse tensor that shares values (and indices, where these are of the dtype that
        torch keeps) with `A`. Autograd does not notice when torch changes the shared values in
        place; clone the result first.

    Gradient:
        On the pattern of `A`, from a native sparse or dense cotangent.

    Cost:
        O(1) but for copies of batch pointers and int32 COO indices.

    Raises:
        TypeError: `A` is no SparseTensor.
        ValueError: `A` is a ragged batch, which torch can't hold.

    Example:
        >>> spgrad.to_torch(spgrad.from_dense(torch.eye(2))).layout
        torch.sparse_csr
    """
    if not isinstance(A, SparseTensor):
        native = isinstance(A, torch.Tensor) and A.layout in LAYOUT_NAMES
        raise ArgumentKindError(
            f"`A` is {checks.describe_kind(A)}; a SparseTensor is accepted. "
            f"{'It is one of torch already.' if native else checks.sparse_hint('A', A)}"
        )
    if torch.is_grad_enabled() and A.requires_grad:
        return _ToNative.apply(A)  # type: ignore[return-value]
    return _native(A._vals, A._pattern)


class _FromNative(Derived):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, pattern: Pattern) -> SparseTensor:  # type: ignore[override]
        return SparseTensor(_native_values(x).detach().reshape(pattern.values_shape), pattern)

    @staticmethod
    def backward(ctx: Any, G: SparseTensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        return to_torch(in_shares(G, ctx.next_functions[0][0].name())), None


class _ToNative(Derived):
    @staticmethod
    def forward(ctx: Any, A: SparseTensor) -> torch.Tensor:  # type: ignore[override]
        ctx.pattern = A._pattern
        return _native(A._vals.detach(), A._pattern)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> SparseTensor:  # type: ignore[override]
        return _on_pattern_of(g, ctx.pattern)


def _native_values(x: torch.Tensor) -> torch.Tensor:
    return x._values() if x.layout == torch.sparse_coo else x.values()


def _native_indices(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    if x.layout == torch.sparse_coo:
        return (x._indices(),)
    if x.layout in (torch.sparse_csr, torch.sparse_bsr):
        return x.crow_indices(), x.col_indices()
    return x.ccol_indices(), x.row_indices()


def _pattern_of(x: torch.Tensor) -> Pattern:
    """The pattern of a native tensor, validated once as long as its indices do not change."""
    indices = _native_indices(x)
    coalesced = x.is_coalesced() if x.layout == torch.sparse_coo else True
    state = None  # inference tensors do not count changes in place
    if not any(i.is_inference() for i in indices):
        state = (tuple(x.shape), coalesced, *((i.data_ptr(), i.shape, i._version) for i in indices))
        kept = _PATTERNS.get(x)
        if kept is not None and kept[0] == state:
            return kept[1]
    vals, size = _native_values(x).detach(), tuple(x.shape)
    if x.layout == torch.sparse_coo:
        made = sparse_coo_tensor(indices[0], vals, size, is_coalesced=coalesced)
    else:
        ptr, idx = indices
        made = sparse_compressed_tensor(ptr, idx, vals, size, layout=x.layout)
    if state is not None:
        _PATTERNS[x] = (state, made._pattern)
    return made._pattern


def _native(stored: torch.Tensor, pattern: Pattern) -> torch.Tensor:
    with torch._C.DisableTorchFunction():  # drop-in mode would make a SparseTensor here
        return _constructed(stored, pattern)


def _constructed(stored: torch.Tensor, pattern: Pattern) -> torch.Tensor:
    size = tuple(pattern.shape)
    if pattern.is_coo:
        return torch.sparse_coo_tensor(
            pattern.indices[0],
            stored,
            size,
            is_coalesced=pattern.coalesced,
            check_invariants=False,
        )
    if pattern.batch and not pattern.items:
        raise ArgumentValueError(
            "`A` is a ragged batch; torch accepts batches of compressed matrices with the same "
            "number of entries in each. Convert with A.to_sparse_coo() first."
        )
    return torch.sparse_compressed_tensor(
        pattern.compressed_by_item(),
        pattern.plain_by_item(),
        pattern.by_item(stored),
        size,
        layout=pattern.layout,
        check_invariants=False,
    )


def _on_pattern_of(g: torch.Tensor, pattern: Pattern) -> SparseTensor:
    """A native cotangent, sparse or dense, at the elements of `pattern`."""
    if g.layout in LAYOUT_NAMES:
        G = from_torch(g)
        if G._pattern.same_as(pattern):
            return on_pattern(stored_values(G), pattern)
    if not pattern.coalesced:
        if g.layout in LAYOUT_NAMES:
            raise ArgumentValueError(
                "the cotangent of an uncoalesced tensor has other indices than it; its own "
                "indices, or a dense cotangent, are accepted. Call A.coalesce() first.",
                function="to_torch",
            )
        index = pattern.indices[0][: pattern.sparse_dim]
        return on_pattern(g[tuple(index)], pattern)
    sparse_shape = pattern.shape[: len(pattern.shape) - pattern.dense_dim]
    bare = Pattern.from_spec(pattern.spec._replace(dense_dim=0), sparse_shape, pattern.indices)
    positions = torch.arange(1, pattern.elements + 1, device=pattern.device)
    # a native tensor of the positions, counted from 1; 0 means that there is no element
    probe = _native(positions.view(bare.values_shape), bare).to_sparse_coo().coalesce()
    if g.layout in LAYOUT_NAMES:
        found = g.to_sparse_coo().coalesce().sparse_mask(probe)._values()
    else:
        found = g[tuple(probe.indices())]
    stored = torch.empty_like(found).index_copy(0, probe.values() - 1, found)
    return on_pattern(stored.view(pattern.values_shape), pattern)


@public_op
def from_scipy(S: scipy.sparse.sparray | scipy.sparse.spmatrix) -> SparseTensor:
    """A SciPy sparse array or matrix as a SparseTensor.

    Args:
        S: Array or matrix of any SciPy format. csr, csc, bsr and coo keep their layout, others
            become CSR. A 1-d array becomes a matrix of one row, unless it is coo.

    Returns:
        SparseTensor that shares the values and, except for COO, the indices with `S`. Compressed
        indices that are unsorted or repeated are sorted and summed in a copy. Unsigned values of
        more than 8 bits become int64.

    Cost:
        O(nse).

    Raises:
        TypeError: `S` is no SciPy sparse array.
        ValueError: `S` has indices that are out of range, invalid pointers, or a dtype that torch
            does not have.

    Example:
        >>> import scipy.sparse
        >>> spgrad.from_scipy(scipy.sparse.eye_array(3, format="csr")).nse
        3
    """
    form = getattr(S, "format", None)
    if form is None or not hasattr(S, "tocsr"):
        raise ArgumentKindError(
            f"`S` is {checks.describe_kind(S)}; a SciPy sparse array or matrix is accepted. "
            f"{checks.sparse_hint('S', S)}"
        )
    source: Any = S
    if form == "coo":
        coords = [_from_numpy(c).to(torch.int64) for c in source.coords]
        return sparse_coo_tensor(torch.stack(coords), _from_numpy(source.data), source.shape)
    if form not in LAYOUTS or source.ndim != 2:
        source = source.reshape(1, -1).tocsr() if source.ndim == 1 else source.tocsr()
    _require_pointers(source)
    if not source.has_canonical_format:
        source = source.copy()
        source.sum_duplicates()
    # SciPy's arrays of indices and data may be longer than nse
    ptr, nse = _from_numpy(source.indptr), int(source.indptr[-1])
    idx, vals = _from_numpy(source.indices)[:nse], _from_numpy(source.data)[:nse]
    index = torch.promote_types(ptr.dtype, idx.dtype)  # SciPy's own routines take two dtypes too
    layout = LAYOUTS[source.format]
    return sparse_compressed_tensor(ptr.to(index), idx.to(index), vals, source.shape, layout=layout)


def as_operand(x: Any) -> Any:
    """An array of NumPy or a sparse array of SciPy as a tensor that shares its memory.

    A NumPy scalar becomes a Python number; anything else is given back as it is. Neither package
    is imported.
    """
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and isinstance(x, numpy.generic):
        return x.item()
    if numpy is not None and isinstance(x, numpy.ndarray):
        return _from_numpy(numpy.asarray(x))
    known = hasattr(x, "format") and hasattr(x, "tocsr")
    return from_scipy(x) if known else x


def _require_pointers(S: Any) -> None:
    """Refuses pointers with which SciPy itself would read outside of its arrays."""
    ptr, line_dim = S.indptr, int(S.format == "csc")
    lines = S.shape[line_dim] // (S.blocksize[0] if S.format == "bsr" else 1)
    if len(ptr) != lines + 1 or ptr[0] != 0 or (ptr[1:] < ptr[:-1]).any():
        says = f"does not rise from 0 in {lines + 1} steps"
    elif ptr[-1] > min(len(S.indices), len(S.data)):
        says = f"ends with {ptr[-1]} for {len(S.indices)} indices and {len(S.data)} values"
    else:
        return
    raise ArgumentValueError(
        f"`S` has an indptr that {says}; a valid {S.format} array is accepted. Check it with "
        "S.check_format()."
    )


def _from_numpy(data: Any) -> torch.Tensor:
    if not data.flags.writeable or checks.is_backwards(data):
        data = data.copy()
    try:
        return torch.from_numpy(checks.signed(data))
    except (TypeError, ValueError) as error:
        raise ArgumentValueError(
            f"`S` has dtype {data.dtype}; those that torch has are accepted. Convert it with "
            "S.astype(float)."
        ) from error


@public_op
def to_scipy(A: torch.Tensor) -> Any:
    """A SparseTensor as a SciPy sparse array, detached.

    Args:
        A: SparseTensor or native sparse tensor, without dense dimensions, and without batch
            dimensions unless it is COO.

    Returns:
        coo_array, csr_array, csc_array or bsr_array that shares values and indices with `A` if
        these are on the CPU; a BSC tensor becomes a csr_array.

    Cost:
        O(1); O(nse) for BSC, and from another device than the CPU.

    Raises:
        TypeError: `A` is not sparse.
        ValueError: `A` has dense dimensions, is a batch of compressed matrices, or has a 16-bit
            floating dtype.

    Example:
        >>> spgrad.to_scipy(spgrad.from_dense(torch.eye(2))).format
        'csr'
    """
    import scipy.sparse

    if not isinstance(A, SparseTensor):
        if not isinstance(A, torch.Tensor) or A.layout not in LAYOUT_NAMES:
            raise ArgumentKindError(
                f"`A` is {checks.describe_kind(A)}; a sparse tensor is accepted. "
                f"{checks.sparse_hint('A', A)}"
            )
        A = from_torch(A)
    if A.dtype in (torch.bfloat16, torch.float16):
        raise ArgumentValueError(
            f"`A` has dtype {checks.short(A.dtype)}; those that SciPy's sparse arrays have are "
            "accepted. Convert it with A.float()."
        )
    pattern, vals = A._pattern, A._vals.detach().resolve_conj().resolve_neg().cpu()
    if pattern.dense_dim or (pattern.batch and not pattern.is_coo):
        raise ArgumentValueError(
            f"`A` has shape {tuple(pattern.shape)} with batch or dense dimensions; a matrix is "
            "accepted. Convert one item or slice at a time."
        )
    data, shape = vals.numpy(), tuple(pattern.shape)
    if pattern.is_coo:
        return scipy.sparse.coo_array((data, tuple(pattern.indices[0].cpu().numpy())), shape=shape)
    ptr, idx = (i.cpu().numpy() for i in pattern.indices)
    if pattern.name == "bsc":  # SciPy has no BSC: the transpose of a BSR of transposed blocks
        flipped = scipy.sparse.bsr_array((data.swapaxes(1, 2), idx, ptr), shape=shape[::-1])
        return flipped.T.tocsr()
    make = getattr(scipy.sparse, f"{pattern.name}_array")
    return make((data, idx, ptr), shape=shape)


_to_dlpack = torch.utils.dlpack.to_dlpack


@functools.wraps(_to_dlpack)
def _checked_to_dlpack(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    if isinstance(tensor, SparseTensor):
        raise no_memory("to_dlpack")
    return _to_dlpack(tensor, *args, **kwargs)


# torch.utils.dlpack does not call __torch_function__, so it is replaced
torch.to_dlpack = torch.utils.dlpack.to_dlpack = _checked_to_dlpack  # type: ignore[assignment]
