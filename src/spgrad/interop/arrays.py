"""Sparse arrays of CuPy and JAX, whose parts are shared by DLPack."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from spgrad.core import checks
from spgrad.core.compressed import sparse_csc_tensor, sparse_csr_tensor
from spgrad.core.construct import sparse_coo_tensor
from spgrad.core.tensor import SparseTensor
from spgrad.errors import ArgumentKindError, UnsupportedError
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
    checks.require_packages("cupy", "cupy")
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
        SparseTensor in COO, coalesced (JAX pads with indices out of range, which are left out), or
        in CSR.

    Cost:
        O(nse) radix passes for BCOO, one pass that validates the indices for BCSR.

    Raises:
        TypeError: `S` is no such array.
        ValueError: An index of BCSR is out of range, or in a row unsorted or repeated.
        NotImplementedError: `S` has batch dimensions.

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
            f"`S` is {checks.describe_kind(S)}; a BCOO or BCSR array of JAX is accepted. "
            f"{checks.sparse_hint('S', S)}"
        )
    if S.n_batch:
        raise UnsupportedError(
            f"`S` has {S.n_batch} batch dimension(s); an array without is accepted. Convert it "
            "with sparse.bcoo_update_layout(S, n_batch=0)."
        )
    vals, indices = _shared(S.data), _shared(S.indices)
    shape = tuple(int(size) for size in S.shape)
    if rows:
        return sparse_csr_tensor(_shared(S.indptr), indices, vals, shape)
    indices = indices.t().to(torch.int64)
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
        jax.experimental.sparse.BCSR or BCOO on the same device, detached.

    Cost:
        O(nse): JAX's indices are int32 unless it computes with 64 bits.

    Raises:
        TypeError: `A` is not sparse.
        ValueError: `A` has batch or dense dimensions.
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
    pattern, shape = M._pattern, tuple(M.shape)
    data = jnp.from_dlpack(_data(M))
    indices = [i.to(torch.int32) for i in pattern.indices]
    if pattern.name == "csr":
        ptr, idx = (jnp.from_dlpack(i) for i in indices)
        found = sparse.BCSR((data, idx, ptr), shape=shape)
        found.indices_sorted = found.unique_indices = True
        return found
    at = jnp.from_dlpack(indices[0].t().contiguous())
    return sparse.BCOO((data, at), shape=shape, indices_sorted=True, unique_indices=True)


def _data(A: SparseTensor) -> torch.Tensor:
    return A._vals.detach().resolve_conj().resolve_neg().contiguous()


def _shared(x: Any) -> torch.Tensor:
    """An array of another library as a tensor, which shares its memory."""
    return torch.from_dlpack(x)
