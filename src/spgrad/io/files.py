"""load and save: find out the kind of a file, and write the texts of errors."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any, NamedTuple

import torch

from spgrad.core import checks
from spgrad.core.pattern import Pattern
from spgrad.core.tensor import SparseTensor
from spgrad.errors import (
    ArgumentKindError,
    ArgumentValueError,
    MissingFileError,
    SpgradError,
    UnsupportedError,
)
from spgrad.io import binsparse, edges, market, npz, safetensors, saved
from spgrad.io.stream import Limit
from spgrad.lowering.convert import convert
from spgrad.lowering.operands import sparse_operand
from spgrad.ops.layouts.convert import require_blocksize
from spgrad.public import public_as


class Kind(NamedTuple):
    """A kind of file: its suffixes, its description for errors, and the packages it needs."""

    suffixes: tuple[str, ...]
    accepted: str
    packages: tuple[str, ...]
    extra: str = "io"
    """The extra that installs these packages, as in spgrad[io]."""
    hint: str = "Check where the file is from, or make it again."
    """What to do with a file that can't be read."""


NPZ = Kind((".npz",), "a .npz file as scipy.sparse.save_npz writes it", ("numpy",))
MARKET = Kind((".mtx", ".mtx.gz"), "a Matrix Market file", ("numpy", "scipy"))
EDGES = Kind(
    tuple(suffix + packed for suffix in edges.DELIMITERS for packed in ("", ".gz")),
    "text with two whole numbers, and perhaps a weight, in each line",
    ("numpy",),
    hint="Read a table with names, or with more columns, with pandas, for spgrad.from_pandas.",
)
SAVED = Kind((".pt", ".pth"), "a file that torch.save made of a sparse tensor", ())
BINSPARSE = Kind((".h5", ".hdf5"), "a Binsparse file in HDF5", ("h5py", "numpy"), "hdf5")
TENSORS = Kind(
    (".safetensors",),
    "a .safetensors file as spgrad.io.save writes it",
    ("safetensors",),
    "safetensors",
)
KINDS = {
    suffix: kind
    for kind in (NPZ, MARKET, EDGES, SAVED, BINSPARSE, TENSORS)
    for suffix in kind.suffixes
}


@public_as("io.load")
def load(
    path: str | os.PathLike[str],
    *,
    layout: torch.layout | None = None,
    dtype: torch.dtype | None = None,
    size: tuple[int, int] | int | None = None,
    header: bool | None = None,
    max_bytes: int | None = None,
) -> SparseTensor:
    r"""The sparse tensor in a file, whose suffix says what kind of file it is.

    ============================== ===============================================================
    .npz                           as `scipy.sparse.save_npz` writes; diagonals become COO
    .mtx, .mtx.gz                  Matrix Market; symmetric, skew and hermitian ones in full
    .csv, .tsv, .txt (and .gz)     edge list: source, target and perhaps weight, counted from 0;
                                   # and % begin comments, a first line may name the columns,
                                   see `header`
    .pt, .pth                      as `torch.save` writes; native sparse tensors too
    .h5, .hdf5                     Binsparse, version 0.1; matrices of which one triangle is stored
                                   in full
    .safetensors                   as `save` writes
    ============================== ===============================================================

    `load` trusts no part of a file: it validates indices, compares sizes in headers with the size
    of the file, calls `torch.load` with weights_only, and refuses a file that would unpack to more
    than `max_bytes`. Files over 20 MB show their progress on a terminal if tqdm or rich is
    installed.

    Args:
        path: The file.
        layout: torch.sparse_coo, sparse_csr or sparse_csc; by default that of the file, and CSR
            for Matrix Market and edge lists.
        dtype: Of the values; by default the file's: numbers in text are float64 (int64 or
            complex128 where Matrix Market says so), and where there are none, the values are ones
            of torch's default dtype.
        size: For edge lists: the number of nodes, or (rows, columns); by default the smallest
            square that holds the edges.
        header: For edge lists: whether the first line names the columns. By default it does if none
            of its fields is a number; pandas writes the numbers 0 and 1 for columns without names.
        max_bytes: Most bytes that the arrays in the file, and the row pointers of the result, may
            take; by default 64 MiB, or 50 times the size of the file if that is more. Raise it for
            a file that you trust. Reading takes a few times as much memory.

    Returns:
        SparseTensor on the CPU, coalesced: repeated entries add. Unsigned numbers of more than 8
        bits become int64. Tensors in .pt and .safetensors files come back as they were saved.

    Cost:
        O(size of the unpacked file).

    Raises:
        TypeError: An argument is of the wrong kind.
        ValueError: The file is damaged, of another kind than its suffix says, or asks for more than
            `max_bytes`.
        FileNotFoundError: There is no such file; as all errors of arguments also a ValueError.
        NotImplementedError: `layout` is a compressed one, for a vector.
        ImportError: NumPy, or SciPy for Matrix Market, h5py for HDF5 (``spgrad[hdf5]``) or
            safetensors (``spgrad[safetensors]``), is not installed.

    Example:
        >>> import pathlib, tempfile, spgrad.io
        >>> path = pathlib.Path(tempfile.mkdtemp(), "edges.csv")
        >>> _ = path.write_text("source,target,weight\n0,1,0.5\n2,0,3\n")
        >>> spgrad.io.load(path).to_dense()
        tensor([[0.0000, 0.5000, 0.0000],
                [0.0000, 0.0000, 0.0000],
                [3.0000, 0.0000, 0.0000]], dtype=torch.float64)
    """
    file, suffix = _known(path)
    kind = KINDS[suffix]
    if layout not in (None, torch.sparse_coo, torch.sparse_csr, torch.sparse_csc):
        raise ArgumentKindError(
            f"`layout` is {layout}; torch.sparse_coo, sparse_csr, sparse_csc and None are "
            "accepted. Convert to blocks with A.to_sparse_bsr(blocksize)."
        )
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise ArgumentKindError(
            f"`dtype` is {dtype!r}; a torch.dtype or None is accepted. For example torch.float32."
        )
    if max_bytes is not None and (type(max_bytes) is not int or max_bytes < 0):
        raise ArgumentKindError(
            f"`max_bytes` is {max_bytes!r}; a number of bytes or None is accepted. For example "
            "2**30."
        )
    if header is not None:
        checks.require_bool("header", header)
    for name, given in (("size", size), ("header", header)):
        if given is not None and kind is not EDGES:
            raise ArgumentValueError(
                f"`{name}` is {given} for a {suffix} file, which has its own; None is accepted. "
                "Leave it out."
            )
    if not file.is_file():
        what = "a folder" if file.is_dir() else "not there"
        raise MissingFileError(
            f"`path` is {file}, which is {what}; {kind.accepted} is accepted. Check the path."
        )
    checks.require_packages(kind.extra, *kind.packages)
    limit = Limit.of(file, max_bytes)
    try:
        A = _read(file, suffix, size, header, limit, dtype)
    except Exception as error:  # a damaged file can raise anything in its parser
        raise _unreadable(file, kind, error) from error
    if layout is None and kind in (MARKET, EDGES):
        layout = torch.sparse_csr
    if layout is not None:
        require_blocksize(A._pattern, layout, None)
        _require_pointers_to_fit(file, A._pattern, layout, limit)
        A = convert(A, layout)
    return A if dtype is None else A.to(dtype)  # type: ignore[return-value]


def _known(path: Any) -> tuple[Path, str]:
    """The path, and the suffix that tells what kind of file it is."""
    if not isinstance(path, (str, os.PathLike)):
        raise ArgumentKindError(
            f"`path` is {checks.describe_kind(path)}; a path is accepted. Name a file, as a str or "
            "pathlib.Path."
        )
    file = Path(path)
    packed = file.suffix.lower() == ".gz"
    suffix = "".join(file.suffixes[-2:] if packed else file.suffixes[-1:]).lower()
    if suffix not in KINDS:
        raise ArgumentValueError(
            f"`path` is {file}; {', '.join(KINDS)} are accepted. Give the file one of these "
            "suffixes."
        )
    return file, suffix


def _read(
    file: Path,
    suffix: str,
    size: Any,
    header: bool | None,
    limit: Limit,
    dtype: torch.dtype | None,
) -> SparseTensor:
    kind = KINDS[suffix]
    if kind is NPZ:
        return npz.read(file, limit)
    if kind is MARKET:
        return market.read(file, limit)
    if kind is EDGES:
        return edges.read(file, suffix.removesuffix(".gz"), size, header, limit, dtype)
    if kind is BINSPARSE:
        return binsparse.read(file, limit)
    if kind is TENSORS:
        return safetensors.read(file, limit)
    return saved.read(file, limit)


def _require_pointers_to_fit(
    file: Path, pattern: Pattern, layout: torch.layout, limit: Limit
) -> None:
    """Refuses row pointers that would take far more memory than the entries do.

    Two numbers in a text file are enough to ask for 8 GB of them.
    """
    if layout == torch.sparse_coo:
        return
    nbytes = 8 * math.prod(pattern.batch) * max(pattern.matrix)
    if nbytes > max(limit.nbytes, 512 * pattern.nse):
        raise ArgumentValueError(
            f"`path` is {file}, whose shape {tuple(pattern.shape)} has far more rows or columns "
            f"than its {pattern.nse} entries fill; a matrix whose pointers take at most "
            f"{limit.nbytes} bytes is accepted. Load it with layout=torch.sparse_coo, or with "
            f"max_bytes={nbytes}."
        )


def _unreadable(file: Path, kind: Kind, error: Exception) -> ArgumentValueError:
    """The error that says which file can't be read, and why."""
    lines = str(error).strip().splitlines()
    what = (lines[0] if lines else "").rstrip(".")[:300]
    if isinstance(error, SpgradError):
        what = what.partition(": ")[2] or what
    elif not isinstance(error, (ValueError, RuntimeError)):  # the name says more than the text
        what = f"{type(error).__name__} {what}".rstrip()
    return ArgumentValueError(
        f"`path` is {file}, which can't be read ({what}); {kind.accepted} is accepted. {kind.hint}"
    )


@public_as("io.save")
def save(A: torch.Tensor, path: str | os.PathLike[str]) -> None:
    """Writes a sparse tensor to a file, whose suffix says what kind of file it is; see `load`.

    .pt and .safetensors keep everything. .npz and .h5 keep layout, index dtype and values. Matrix
    Market keeps the shape and the values, an edge list only the elements.

    Args:
        A: Sparse tensor. .pt and .safetensors files take any. The others take matrices without
            dense dimensions: .npz in any layout but BSC, .h5 in COO, CSR and CSC, text in any
            layout. .npz takes COO with any number of sparse dimensions, .h5 also with one.
        path: The file; an existing one is overwritten.

    Cost:
        O(nse).

    Raises:
        TypeError: `A` is not sparse, or `path` is not a path.
        ValueError: The suffix of `path` is not known.
        FileNotFoundError: Its folder is not there.
        NotImplementedError: The kind of file can't hold `A`.
        ImportError: NumPy, SciPy, h5py or safetensors, as for `load`, is not installed.
        OSError: The file can't be written.

    Example:
        >>> import pathlib, tempfile, spgrad.io
        >>> path = pathlib.Path(tempfile.mkdtemp(), "eye.mtx")
        >>> spgrad.io.save(spgrad.eye(3), path)
        >>> spgrad.io.load(path).nse
        3
    """
    A = sparse_operand("A", A)
    file, suffix = _known(path)
    kind = KINDS[suffix]
    checks.require_packages(kind.extra, *kind.packages)
    if not file.parent.is_dir():
        raise MissingFileError(
            f"`path` is {file}, whose folder {file.parent} is not there; a file in an existing "
            "folder is accepted. Make the folder with os.makedirs."
        )
    if kind not in (SAVED, TENSORS):
        _require_kept(A, suffix)
    if kind is NPZ:
        npz.write(file, A)
    elif kind is MARKET:
        market.write(file, A)
    elif kind is EDGES:
        edges.write(file, suffix.removesuffix(".gz"), A)
    elif kind is BINSPARSE:
        binsparse.write(file, A)
    elif kind is TENSORS:
        safetensors.write(file, A)
    else:
        saved.write(file, A)


_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)


def _require_kept(A: SparseTensor, suffix: str) -> None:
    """Refuses tensors that this kind of file, which is not one of torch's, can't hold."""
    pattern, kind = A._pattern, KINDS[suffix]
    many = pattern.is_coo and (kind is NPZ or (kind is BINSPARSE and len(pattern.shape) == 1))
    known = A.dtype in (*checks.PRODUCT_DTYPES, torch.bool, *_UNSIGNED)
    scipys = known and A.dtype not in (torch.bfloat16, torch.float16)
    if pattern.dense_dim or (len(pattern.shape) != 2 and not many):
        what, accepted = f"has shape {tuple(pattern.shape)}", "a matrix"
        if pattern.dense_dim:
            what += f" with {pattern.dense_dim} dense dimension(s)"
    elif kind is NPZ and pattern.name == "bsc":
        what, accepted = "has layout bsc", "any other layout"
    elif kind is BINSPARSE and pattern.blocksize is not None:
        what, accepted = f"has layout {pattern.name}", "coo, csr or csc"
    elif not (scipys if kind in (NPZ, BINSPARSE) else known) or (kind is EDGES and A.is_complex()):
        what = f"has dtype {checks.short(A.dtype)}"
        accepted = "a real dtype of NumPy" if kind is EDGES else "a dtype that SciPy has"
    else:
        return
    raise UnsupportedError(
        f"`A` {what}; {accepted} is accepted for {suffix} files. Save it as .pt, which keeps "
        "everything, or convert it."
    )
