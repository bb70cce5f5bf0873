"""SciPy's .npz files, read and written with NumPy alone.

`scipy.sparse.load_npz` allocates what a header asks for and follows pointers that it has not
checked, so this module reads the arrays, each after comparing its header with the file.
"""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import Any

import torch

from spgrad.core import checks
from spgrad.core.compressed import sparse_compressed_tensor
from spgrad.core.construct import sparse_coo_tensor
from spgrad.core.pattern import LAYOUTS
from spgrad.core.tensor import SparseTensor
from spgrad.io.stream import MOST_PACKED, Limit, reading, writing
from spgrad.lowering.convert import with_sorted_lines
from spgrad.ops.layouts.structure import coalesce

INDEX_KEYS = {
    "csr": ("indptr", "indices"),
    "csc": ("indptr", "indices"),
    "bsr": ("indptr", "indices"),
    "dia": ("offsets",),
}


_MOST_DIMS = 64  # of a tensor in torch


def read(path: Path, limit: Limit) -> SparseTensor:
    """The matrix or COO tensor in a file; ValueError says what is wrong with it."""
    with reading(path, limit) as file, zipfile.ZipFile(file) as archive:
        limit.require(sum(info.file_size for info in archive.infolist()))
        names = set(archive.namelist())
        missing = [key for key in ("format", "shape", "data") if f"{key}.npy" not in names]
        if missing:
            raise ValueError(f"it has no array {' and no '.join(f'`{key}`' for key in missing)}")
        form = _format(_array(archive, "format", "SU"))
        keys = INDEX_KEYS.get(form) or (("coords",) if "coords.npy" in names else ("row", "col"))
        missing = [key for key in keys if f"{key}.npy" not in names]
        if missing:
            raise ValueError(f"it has no array `{missing[0]}`, which {form} has")
        sizes = _array(archive, "shape", "iu").reshape(-1)
        if sizes.size > _MOST_DIMS:
            raise ValueError(f"its array `shape` has {sizes.size} sizes")
        shape = tuple(int(s) for s in sizes)
        indices = [_index(_array(archive, key, "iu")) for key in keys]
        vals = _tensor("data", checks.signed(_array(archive, "data", "biufc")))
    if form == "coo":
        stacked = indices[0] if len(indices) == 1 else torch.stack(_alike(indices))
        return coalesce(sparse_coo_tensor(stacked, vals, shape))
    if len(shape) != 2:
        raise ValueError(f"its shape {shape} has not the two dimensions of {form}")
    if form == "dia":
        return _from_diagonals(indices[0], vals, shape)
    ptr, idx = _alike(indices)
    return _from_compressed(form, ptr, idx, vals, shape)


def _array(archive: zipfile.ZipFile, key: str, kinds: str) -> Any:
    """An array of the archive, after its header was found to ask for no more bytes than it has."""
    from numpy.lib import format as npy

    info = archive.getinfo(f"{key}.npy")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"its array `{key}` is packed in another way than numpy packs")
    if info.file_size > (info.compress_size + 1) * MOST_PACKED:
        raise ValueError(f"its array `{key}` claims {info.file_size} bytes, which don't fit in it")
    with archive.open(info) as file:
        version = npy.read_magic(file)
        header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = header(file)
        there = info.file_size - file.tell()
    if dtype.hasobject:
        raise ValueError(f"its array `{key}` holds pickled objects, which are never loaded")
    if dtype.kind not in kinds:
        raise ValueError(f"its array `{key}` has dtype {dtype}")
    if any(size < 0 for size in shape) or math.prod(shape) * dtype.itemsize != there:
        raise ValueError(f"its array `{key}` claims shape {shape} and has {there} bytes")
    with archive.open(info) as file:
        return npy.read_array(file, allow_pickle=False)


def _format(array: Any) -> str:
    name = array.item() if array.ndim == 0 else ""
    name = name.decode("ascii", "replace") if isinstance(name, bytes) else name
    if name not in (*INDEX_KEYS, "coo"):
        raise ValueError(f"its format is {name!r}, not one of coo, {', '.join(INDEX_KEYS)}")
    return name


def _tensor(key: str, array: Any) -> torch.Tensor:
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    try:
        return torch.from_numpy(array)
    except TypeError as error:
        raise ValueError(f"its array `{key}` has dtype {array.dtype}, which torch lacks") from error


def _index(array: Any) -> torch.Tensor:
    if array.dtype.kind == "u" or array.dtype.itemsize < 4:
        array = array.astype("int64")  # a larger index wraps to a negative one, which is refused
    return _tensor("indices", array)


def _alike(indices: list[torch.Tensor]) -> list[torch.Tensor]:
    """Index tensors of the widest dtype among them."""
    narrow = all(index.dtype == torch.int32 for index in indices)
    return [index if narrow else index.long() for index in indices]


def _from_compressed(
    form: str, ptr: torch.Tensor, idx: torch.Tensor, vals: torch.Tensor, shape: tuple[int, ...]
) -> SparseTensor:
    """CSR, CSC or BSR; SciPy allows indices of a line to be unsorted and to repeat."""
    if ptr.dim() != 1 or idx.dim() != 1 or vals.dim() != (3 if form == "bsr" else 1):
        raise ValueError(f"its arrays have other dimensions than those of {form}")
    if ptr.numel():
        used = int(ptr[-1])
        if 0 <= used <= min(idx.numel(), vals.shape[0]):
            # SciPy's arrays may be longer than the number of elements
            idx, vals = idx[:used], vals[:used]
    block = tuple(vals.shape[1:])
    lines, bound = (shape[1], shape[0]) if form == "csc" else shape
    if block:
        if 0 in block or shape[0] % block[0] or shape[1] % block[1]:
            raise ValueError(f"its blocks {block} do not divide the shape {shape}")
        lines, bound = shape[0] // block[0], shape[1] // block[1]
    if ptr.numel() != lines + 1:
        raise ValueError(f"its array `indptr` has {ptr.numel()} pointers for {lines} lines")
    ptr, idx, vals = with_sorted_lines(ptr, idx, vals, bound)
    return sparse_compressed_tensor(ptr, idx, vals, shape, layout=LAYOUTS[form])


def _from_diagonals(
    offsets: torch.Tensor, vals: torch.Tensor, shape: tuple[int, ...]
) -> SparseTensor:
    """COO from diagonals (d, length): element (j - offset, j) is in column j; zeros are padding."""
    if offsets.dim() != 1 or vals.dim() != 2 or vals.shape[0] != offsets.numel():
        raise ValueError("its arrays `offsets` and `data` don't fit")
    vals = vals[:, : shape[1]]
    line, col = vals.nonzero().unbind(1)
    row = col - offsets.long()[line]
    inside = (row >= 0) & (row < shape[0])
    line, col = line[inside], col[inside]
    return coalesce(sparse_coo_tensor(torch.stack([row[inside], col]), vals[line, col], shape))


def write(path: Path, A: SparseTensor) -> None:
    """Writes a matrix, or COO without dense dimensions, as `scipy.sparse.save_npz` does."""
    import numpy as np

    pattern = A._pattern
    arrays = {"format": pattern.name.encode(), "shape": tuple(pattern.shape), "_is_array": True}
    indices = [index.cpu().numpy() for index in pattern.indices]
    if not pattern.is_coo:
        arrays.update(indptr=indices[0], indices=indices[1])
    elif len(pattern.shape) == 2:
        arrays.update(row=indices[0][0], col=indices[0][1])
    else:
        arrays.update(coords=indices[0])
    arrays["data"] = A._vals.detach().resolve_conj().resolve_neg().cpu().numpy()
    with writing(path) as file:
        np.savez_compressed(file, **arrays)
