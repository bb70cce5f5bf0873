"""Binsparse files: a JSON descriptor and one array for each part, in HDF5.

The descriptor and the names of the arrays are those of the Binsparse Specification, version 0.1;
its reference implementations read and write the same files. The formats COO, COOR, COOC, CSR, CSC,
DCSR, DCSC and CVEC are read; those of dense arrays and custom ones are refused.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from spgrad.core import checks
from spgrad.core.compressed import sparse_csc_tensor, sparse_csr_tensor
from spgrad.core.construct import sparse_coo_tensor
from spgrad.core.tensor import SparseTensor
from spgrad.io import heaps
from spgrad.io.stream import Limit
from spgrad.lowering.coalesce import without_repeats
from spgrad.lowering.convert import convert
from spgrad.ops.layouts.structure import coalesce

VERSION = "0.1.0"
"""The version that is written; files that say version 0.1, without a third number, are read too."""
_ARRAYS = {
    "COO": ("indices_0", "indices_1"),
    "COOR": ("indices_0", "indices_1"),
    "COOC": ("indices_0", "indices_1"),
    "CVEC": ("indices_0",),
    "CSR": ("pointers_to_1", "indices_1"),
    "CSC": ("pointers_to_1", "indices_1"),
    "DCSR": ("indices_0", "pointers_to_1", "indices_1"),
    "DCSC": ("indices_0", "pointers_to_1", "indices_1"),
}
_TYPES = {f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)}
_MOST_TEXT = 1 << 20


def read(path: Path, limit: Limit) -> SparseTensor:
    """The tensor in a file; ValueError says what is wrong with it."""
    import h5py

    with h5py.File(path, "r") as file:
        heaps.require_sound(path, file)
        head = _descriptor(file)
        form, shape, count = head["format"], head["shape"], head["number_of_stored_values"]
        arrays = {name: _array(file, name, limit) for name in (*_ARRAYS[form], "values")}
        if head.get("fill", False):
            filled = _array(file, "fill_value", limit)
            if filled.size != 1 or filled[0] != 0:
                raise ValueError("its elements that are not stored have another value than 0")
    types = head["data_types"]
    vals = _values(arrays.pop("values"), str(types.get("values", "")), count, limit)
    base = head.get("index_base", 0)
    narrow = all(x.dtype.kind == "i" and x.dtype.itemsize == 4 for x in arrays.values())
    indices = {name: _indices(name, x, types, base) for name, x in arrays.items()}
    if narrow:
        indices = {name: i.to(torch.int32) for name, i in indices.items()}
    A = _assembled(form, shape, indices, vals)
    return _completed(A, head.get("structure"), limit)


def _descriptor(file: Any) -> dict[str, Any]:
    """The descriptor, after each of its entries was checked."""
    import h5py

    if "binsparse" not in file.attrs:
        raise ValueError("it has no attribute `binsparse`")
    stored = file.attrs.get_id("binsparse")
    if stored.get_storage_size() > _MOST_TEXT or not h5py.check_string_dtype(stored.dtype):
        raise ValueError("its attribute `binsparse` is no text of at most 1 MiB")
    text = file.attrs["binsparse"]
    if not isinstance(text, (str, bytes)):
        raise ValueError("its attribute `binsparse` is no single text")
    if len(text) > _MOST_TEXT:
        raise ValueError("its attribute `binsparse` is longer than 1 MiB")
    found = json.loads(text)
    head = found.get("binsparse") if isinstance(found, dict) else None
    if not isinstance(head, dict):
        raise ValueError("its descriptor has no entry `binsparse`")
    if str(head.get("version", "")).split(".")[:2] != VERSION.split(".")[:2]:
        raise ValueError(f"it has version {head.get('version')!r} of Binsparse, not {VERSION}")
    form = head.get("format")
    if not isinstance(form, str) or form not in _ARRAYS:
        raise ValueError(f"its format is {form!r}, not one of {', '.join(_ARRAYS)}")
    sizes, ndim = head.get("shape"), 1 if form == "CVEC" else 2
    counts = [*(sizes if isinstance(sizes, list) else [-1])]
    counts.append(head.get("number_of_stored_values"))
    if not all(type(n) is int and 0 <= n < 2**63 for n in counts) or len(counts) != ndim + 1:
        raise ValueError(f"its shape {sizes} or number of stored values is none of {form}")
    if head.get("index_base", 0) not in (0, 1) or not isinstance(head.get("data_types"), dict):
        raise ValueError("its index_base or data_types is not as it should be")
    return head


def _array(file: Any, name: str, limit: Limit) -> Any:
    """An array in the file itself, which is read after its size was found within the limit."""
    import h5py

    link = file.get(name, getlink=True)
    there = isinstance(link, h5py.HardLink)  # others may lead to other files
    found = file[name] if there else None
    if not isinstance(found, h5py.Dataset) or found.ndim != 1:
        raise ValueError(f"it has no vector `{name}`")
    if found.is_virtual or found.external:
        raise ValueError(f"its array `{name}` lies in another file, which is not read")
    if found.dtype.kind not in "iufb":
        raise ValueError(f"its array `{name}` has dtype {found.dtype}")
    limit.require(found.shape[0] * max(found.dtype.itemsize, 8))
    return found[()]


def _indices(name: str, x: Any, types: dict[str, Any], base: int) -> torch.Tensor:
    if str(types.get(name)) not in _TYPES or x.dtype.kind not in "iu":
        raise ValueError(f"its array `{name}` has type {types.get(name)!r} and dtype {x.dtype}")
    wide = checks.signed(x.astype("uint64") if x.dtype.kind == "u" else x)
    return torch.from_numpy(wide.astype("int64")) - base


def _values(x: Any, kind: str, count: int, limit: Limit) -> torch.Tensor:
    """The values (count,), with the modifiers iso[] and complex[] of their type resolved."""
    whole = kind
    same = kind.startswith("iso[") and kind.endswith("]")
    kind = kind[4:-1] if same else kind
    pairs = kind.startswith("complex[") and kind.endswith("]")
    kind = kind[8:-1] if pairs else kind
    accepted = ("float32", "float64") if pairs else (*_TYPES, "float32", "float64", "bint8")
    if kind not in accepted:
        raise ValueError(f"its values have type {whole!r}, which Binsparse {VERSION} does not name")
    x = x.astype("uint8" if kind == "bint8" else kind, copy=False)
    vals = torch.from_numpy(checks.signed(x.astype(x.dtype.newbyteorder("="), copy=False)))
    vals = vals != 0 if kind == "bint8" else vals
    if pairs:
        if vals.numel() % 2:
            raise ValueError("its complex values are not pairs")
        vals = torch.view_as_complex(vals.view(-1, 2))
    if vals.numel() != (1 if same else count):
        raise ValueError(f"it has {vals.numel()} values for {count} stored values of type {whole}")
    if same:
        limit.require(count * vals.element_size())
        vals = vals.expand(count).clone()
    return vals


def _assembled(
    form: str, shape: list[int], indices: dict[str, torch.Tensor], vals: torch.Tensor
) -> SparseTensor:
    if form in ("CSR", "CSC"):
        make = sparse_csr_tensor if form == "CSR" else sparse_csc_tensor
        return make(indices["pointers_to_1"], indices["indices_1"], vals, tuple(shape))
    first, second = indices["indices_0"], indices.get("indices_1")
    if form in ("DCSR", "DCSC"):
        counts = indices["pointers_to_1"].diff()
        right = counts.numel() == first.numel() and bool((counts >= 0).all())
        if not right or int(counts.sum()) != vals.numel():
            raise ValueError("its array `pointers_to_1` does not fit the other arrays")
        first = first.repeat_interleave(counts)
    if second is None:
        return coalesce(sparse_coo_tensor(first[None], vals, tuple(shape)))
    if form in ("COOC", "DCSC"):
        first, second = second, first
    if first.numel() != second.numel():
        raise ValueError(f"it has {first.numel()} and {second.numel()} indices")
    return coalesce(sparse_coo_tensor(torch.stack([first, second]), vals, tuple(shape)))


def _completed(A: SparseTensor, structure: Any, limit: Limit) -> SparseTensor:
    """The whole matrix, if the file stores one triangle of it."""
    if structure is None:
        return A
    kind, _, side = str(structure).rpartition("_")
    if kind not in ("symmetric", "hermitian", "skew_symmetric") or side not in ("lower", "upper"):
        raise ValueError(f"its structure is {structure!r}")
    coo = convert(A, torch.sparse_coo)
    row, col = coo._pattern.indices[0]
    vals, shape = coo._vals, tuple(coo._pattern.shape)
    if len(shape) != 2 or shape[0] != shape[1]:
        raise ValueError(f"it has shape {shape} and structure {structure}")
    if bool((row < col).any() if side == "lower" else (row > col).any()):
        raise ValueError(f"it has elements in the other triangle than its structure {structure}")
    off = row != col
    limit.require(2 * vals.numel() * (16 + vals.element_size()))
    mirrored = vals[off]
    mirrored = mirrored.conj() if kind == "hermitian" else mirrored
    mirrored = -mirrored if kind == "skew_symmetric" else mirrored
    rows, cols = torch.cat([row, col[off]]), torch.cat([col, row[off]])
    whole = sparse_coo_tensor(torch.stack([rows, cols]), torch.cat([vals, mirrored]), shape)
    return convert(coalesce(whole), A._pattern.layout)


def write(path: Path, A: SparseTensor) -> None:
    """Writes a vector or matrix in COO, CSR or CSC."""
    import h5py

    A = without_repeats(A)
    pattern = A._pattern
    vals, kind = _stored(A._vals.detach().resolve_conj().resolve_neg().cpu())
    if pattern.is_coo:
        form = "COO" if len(pattern.shape) == 2 else "CVEC"
        parts = list(pattern.indices[0])
    else:
        form, parts = pattern.name.upper(), list(pattern.indices)
    indices = {name: i.cpu().numpy() for name, i in zip(_ARRAYS[form], parts, strict=True)}
    head = {
        "version": VERSION,
        "format": form,
        "shape": list(pattern.shape),
        "number_of_stored_values": pattern.nse,
        "data_types": {name: str(i.dtype) for name, i in indices.items()} | {"values": kind},
    }
    with h5py.File(path, "w") as file:
        file.attrs["binsparse"] = json.dumps({"binsparse": head}, indent=2, sort_keys=True)
        for name, array in (*indices.items(), ("values", vals)):
            file.create_dataset(name, data=array)


def _stored(vals: torch.Tensor) -> tuple[Any, str]:
    """The array that is written for values, and the name of its type."""
    if vals.dtype == torch.bool:
        return vals.to(torch.uint8).numpy(), "bint8"
    if vals.is_complex():
        pairs = torch.view_as_real(vals).reshape(-1).numpy()
        return pairs, f"complex[{pairs.dtype}]"
    return vals.numpy(), str(vals.numpy().dtype)
