"""Sparse arrays of CuPy and JAX, whose parts are shared by DLPack."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from spgrad.core import checks
from spgrad.core.compressed import sparse_csc_tensor, sparse_csr_tensor
from spgrad.core.construct import sparse_coo_tensor
from spgrad.core.tensor import SparseTensor
from spgrad.errors import ArgumentKindError, ArgumentValueError, UnsupportedError
from spgrad.interop.edges import single_matrix
from spgrad.lowering.convert import convert
from spgrad.ops.layouts.structure import coalesce
from spgrad.public import public_op


@public_op
def from_cupy(S: Any) -> SparseTensor:
    """A sparse matrix of CuPy as a SparseTensor on the same device, detached.

    Args:
        S: cupyx.scipy.sparse matrix; csr, csc and coo keep their layout, others become CSR.

    Returns:
        SparseTensor that shares the arrays with `S`, unless repeated elements are added.

    Cost:
        One pass that validates the indices.

    Raises:
        TypeError: `S` is no sparse matrix of CuPy.
        ValueError: Its indices are out of range or, in a row, unsorted or repeated.

    Example:
        >>> import importlib.util, pytest
        >>> if importlib.util.find_spec("cupy") is None:
        ...     pytest.skip("CuPy is not installed")
        >>> import cupyx.scipy.sparse
        >>> spgrad.from_cupy(cupyx.scipy.sparse.eye(3, format="csr")).nse
        3
    """
    form = getattr(S, "format", None)
    if form is None or not hasattr(S, "tocsr") or not hasattr(S.data, "__dlpack__"):
        raise ArgumentKindError(
            f"`S` is {checks.describe_kind(S)}; a sparse matrix of CuPy is accepted. "
            f"{checks.sparse_hint('S', S)}"
        )
    if form == "coo":
        indices = torch.stack([_shared(S.row), _shared(S.col)])
        return coalesce(sparse_coo_tensor(indices, _shared(S.data), tuple(S.shape)))
    if form not in ("csr", "csc"):
        S = S.tocsr()
    make = sparse_csc_tensor if S.format == "csc" else sparse_csr_tensor
    return make(_shared(S.indptr), _shared(S.indices), _shared(S.data), tuple(S.shape))


@public_op
def to_cupy(A: torch.Tensor) -> Any:
    """A matrix as a sparse matrix of CuPy, which shares its arrays.

    Args:
        A: Sparse matrix on a CUDA device, in COO, CSR or CSC.

    Returns:
        cupyx.scipy.sparse matrix of that layout, detached.

    Cost:
        O(1).

    Raises:
        TypeError: `A` is not sparse.
        NotImplementedError: `A` is in BSR or BSC, or not on a CUDA device.
        ImportError: CuPy is not installed.

    Example:
        >>> import importlib.util, pytest
        >>> if importlib.util.find_spec("cupy") is None or not torch.cuda.is_available():
        ...     pytest.skip("CuPy or a GPU is missing")
        >>> spgrad.to_cupy(spgrad.eye(3, device="cuda")).nnz
        3
    """
    M = single_matrix(A)
    pattern = M._pattern
    if pattern.device.type != "cuda" or pattern.name not in ("coo", "csr", "csc"):
        raise UnsupportedError(
            f"`A` is {pattern.name} on {pattern.device}; coo, csr and csc on a CUDA device are "
            'accepted. Convert it with A.to_sparse_csr() and A.to("cuda").'
        )
    return _cupy_matrix(M)


def _cupy_matrix(M: SparseTensor) -> Any:
    checks.require_packages("cupy", "cupy")
    pattern = M._pattern
    cupy: Any = importlib.import_module("cupy")
    sparse: Any = importlib.import_module("cupyx.scipy.sparse")
    parts = [cupy.from_dlpack(t) for t in (_data(M), *pattern.indices)]
    if pattern.is_coo:
        data, indices = parts
        return sparse.coo_matrix((data, (indices[0], indices[1])), tuple(M.shape))
    data, ptr, idx = parts
    make = getattr(sparse, f"{pattern.name}_matrix")
    return make((data, idx, ptr), tuple(M.shape))


@public_op
def from_jax(S: Any) -> SparseTensor:
    """A BCOO or BCSR array of JAX as a SparseTensor, detached.

    Args:
        S: jax.experimental.sparse.BCOO with any number of sparse and dense dimensions, or a BCSR
            matrix. Without batch dimensions.

    Returns:
        SparseTensor in COO, or in CSR for a BCSR. Repeated elements are added, and what JAX pads
        is left out.

    Cost:
        O(nse) radix passes for BCOO, and for BCSR whose rows are not sorted; two passes that check
        the indices for other BCSR.

    Raises:
        TypeError: `S` is no such array.
        ValueError: An index is negative, or the pointers of a BCSR are not valid.
        NotImplementedError: `S` has batch dimensions, or a transform of JAX traces it.

    Example:
        >>> import importlib.util, pytest
        >>> if importlib.util.find_spec("jax") is None:
        ...     pytest.skip("JAX is not installed")
        >>> from jax.experimental import sparse
        >>> import jax.numpy
        >>> spgrad.from_jax(sparse.BCOO.fromdense(jax.numpy.eye(3))).nse
        3
    """
    rows = hasattr(S, "indptr")
    if not (hasattr(S, "indices") and hasattr(S, "data") and hasattr(S, "n_batch")):
        raise ArgumentKindError(
            f"`S` is {checks.describe_kind(S)}; a BCOO or BCSR array of JAX is accepted. Make one "
            "with jax.experimental.sparse.BCOO.fromdense."
        )
    if S.n_batch:
        raise UnsupportedError(
            f"`S` has {S.n_batch} batch dimension(s); an array without is accepted. Convert it "
            "with sparse.bcoo_update_layout(S, n_batch=0)."
        )
    if not all(hasattr(part, "__dlpack_device__") for part in (S.data, S.indices)):
        raise UnsupportedError(
            "`S` has no numbers yet, because jax.jit or another transform of JAX traces it; an "
            "array with numbers is accepted. Convert it outside of the function."
        )
    vals, indices = _shared(S.data), _shared(S.indices)
    shape = tuple(int(size) for size in S.shape)
    if rows:
        return _from_rows(_shared(S.indptr), indices, vals, shape)
    return _from_list(indices.t().to(torch.int64), vals, shape)


def _from_rows(
    ptr: torch.Tensor, idx: torch.Tensor, vals: torch.Tensor, shape: tuple[int, ...]
) -> SparseTensor:
    """In CSR; JAX may pad, and leave the elements of a row unsorted and repeated."""
    lengths, stored = ptr.diff(), int(ptr[-1])
    if int(ptr[0]) or bool((lengths < 0).any()) or stored > idx.shape[0]:
        return sparse_csr_tensor(ptr, idx, vals, shape)  # the refusal
    idx, vals = idx[:stored], vals[:stored]
    line = torch.repeat_interleave(lengths, output_size=stored)
    ordered = (idx.diff() > 0) | (line.diff() > 0)
    if bool((idx < shape[1]).all() & ordered.all()):
        return sparse_csr_tensor(ptr, idx, vals, shape)
    listed = _from_list(torch.stack([line, idx.to(torch.int64)]), vals, shape)
    return convert(listed, torch.sparse_csr)


def _from_list(indices: torch.Tensor, vals: torch.Tensor, shape: tuple[int, ...]) -> SparseTensor:
    """In COO, without the indices out of range that JAX pads with."""
    sizes = indices.new_tensor(shape[: indices.shape[0]])[:, None]
    inside = (indices < sizes).all(0)
    if not bool(inside.all()):
        indices, vals = indices[:, inside], vals[inside]
    return coalesce(sparse_coo_tensor(indices.contiguous(), vals, shape))


@public_op
def to_jax(A: torch.Tensor) -> Any:
    """A matrix as an array of JAX: BCSR for CSR, BCOO for any other layout.

    Args:
        A: Sparse matrix of any layout.

    Returns:
        jax.experimental.sparse.BCSR or BCOO on the same device, detached. JAX rounds float64 to
        float32, and complex128 to complex64, unless it computes with 64 bits.

    Cost:
        O(nse): the indices become int32, unless they need int64.

    Raises:
        TypeError: `A` is not sparse.
        ValueError: `A` has batch or dense dimensions, or a size or an int beyond int32 while JAX
            computes with 32 bits.
        ImportError: JAX is not installed.

    Example:
        >>> import importlib.util, pytest
        >>> if importlib.util.find_spec("jax") is None:
        ...     pytest.skip("JAX is not installed")
        >>> spgrad.to_jax(spgrad.eye(3)).nse
        3
    """
    checks.require_packages("jax", "jax")
    jnp: Any = importlib.import_module("jax.numpy")
    sparse: Any = importlib.import_module("jax.experimental.sparse")
    M = single_matrix(A)
    if M._pattern.name != "csr":
        M = convert(M, torch.sparse_coo)
    pattern, shape, vals = M._pattern, tuple(M.shape), _data(M)
    wide = max(*shape, pattern.nse) > _INT32.max
    _require_bits(wide, vals)
    data = jnp.from_dlpack(vals)
    indices = [i.to(torch.int64 if wide else torch.int32) for i in pattern.indices]
    if pattern.name == "csr":
        ptr, idx = (jnp.from_dlpack(i) for i in indices)
        found = sparse.BCSR((data, idx, ptr), shape=shape)
        found.indices_sorted = found.unique_indices = True
        return found
    at = jnp.from_dlpack(indices[0].t().contiguous())
    return sparse.BCOO((data, at), shape=shape, indices_sorted=True, unique_indices=True)


_INT32 = torch.iinfo(torch.int32)


def _require_bits(wide: bool, vals: torch.Tensor) -> None:
    """Refuses sizes and ints that JAX would cut to 32 bits without a word."""
    large = False
    if vals.dtype == torch.int64 and vals.numel():
        least, most = vals.aminmax()
        large = int(least) < _INT32.min or int(most) > _INT32.max
    if (wide or large) and not importlib.import_module("jax").config.jax_enable_x64:
        found = "a size or number of elements" if wide else "an element"
        raise ArgumentValueError(
            f"`A` has {found} beyond int32, and JAX computes with 32 bits; smaller ones are "
            'accepted. Call jax.config.update("jax_enable_x64", True) before.'
        )


def _data(A: SparseTensor) -> torch.Tensor:
    return A._vals.detach().resolve_conj().resolve_neg().contiguous()


def _shared(x: Any) -> torch.Tensor:
    """An array of another library as a tensor, which shares its memory."""
    return torch.from_dlpack(x)
