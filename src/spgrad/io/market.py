"""Matrix Market files, read and written by SciPy.

R. F. Boisvert, R. Pozo, K. A. Remington: The Matrix Market Exchange Formats, NISTIR 5935, 1996.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch

from spgrad.core import checks
from spgrad.core.construct import sparse_coo_tensor
from spgrad.core.interop import to_scipy
from spgrad.core.tensor import SparseTensor
from spgrad.io.numbers import Numbers
from spgrad.io.stream import Limit, reading, unpacked_limit, writing
from spgrad.lowering.convert import convert
from spgrad.ops.layouts.dense import from_dense
from spgrad.ops.layouts.structure import coalesce

_PIECE = 1 << 18  # bytes that are checked together
_LONGEST = 1 << 16  # bytes of a line of the header
_WIDTHS = {"pattern": 0, "real": 1, "double": 1, "integer": 1, "unsigned-integer": 1, "complex": 2}
_WHOLE = ("pattern", "integer", "unsigned-integer")
_SYMMETRIES = ("general", "symmetric", "skew-symmetric", "hermitian")


class _Header(NamedTuple):
    kind: str  # coordinate or array
    field: str
    symmetry: str
    sizes: tuple[int, ...]  # rows, columns and, of a coordinate file, entries
    lines: int

    @property
    def stored(self) -> int:
        """Elements that the file lists."""
        if self.kind == "coordinate":
            return self.sizes[2]
        m, n = self.sizes
        diagonal = 0 if self.symmetry == "skew-symmetric" else n
        return m * n if self.symmetry == "general" else n * (n - 1) // 2 + diagonal

    @property
    def width(self) -> int:
        """How many numbers the file has for each element."""
        return _WIDTHS[self.field] + (2 if self.kind == "coordinate" else 0)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays that the header asks for."""
        value = 8 * max(1, _WIDTHS[self.field])
        if self.kind == "array":
            return math.prod(self.sizes) * value
        return self.stored * (16 + value) * (1 if self.symmetry == "general" else 2)


def read(path: Path, limit: Limit) -> SparseTensor:
    """The matrix as COO, with both triangles if it is symmetric; ValueError says what is wrong."""
    import scipy.io

    with reading(path, limit) as file:
        head = _header(file)
        # SciPy allocates what the header asks for, so that is compared with the file first: a
        # number takes two bytes with the blank after it.
        if 2 * head.width * head.stored > unpacked_limit(path) + 1:
            asked = " x ".join(str(size) for size in head.sizes[:2])
            many = f" with {head.stored} entries" if head.kind == "coordinate" else ""
            raise ValueError(f"its header asks for {asked}{many}, which don't fit in its size")
        limit.require(head.nbytes)
        source = _Source(file, head)
        try:
            # SciPy (1.17) divides by the sizes of an array
            empty = head.kind == "array" and head.stored == 0
            S: Any = _zeros(head, source) if empty else scipy.io.mmread(source, spmatrix=False)
        except Exception as error:
            raise source.failure or error from error
        source.finish()
    if head.kind == "array":
        if head.symmetry == "hermitian" and head.field == "complex" and S.diagonal().imag.any():
            raise ValueError("it is hermitian and has a number on its diagonal that is not real")
        return from_dense(torch.from_numpy(checks.signed(S)), torch.sparse_coo)
    vals = (
        torch.ones(S.nnz, device="cpu")
        if head.field == "pattern"
        else torch.from_numpy(checks.signed(S.data))
    )
    if head.field == "pattern":
        vals = vals.to(torch.get_default_dtype())
    indices = torch.stack([torch.from_numpy(S.row).long(), torch.from_numpy(S.col).long()])
    if head.symmetry != "general":
        indices, vals = _mirrored(indices, vals, head.symmetry, head.sizes[0])
    return coalesce(sparse_coo_tensor(indices, vals, S.shape))


def _mirrored(
    indices: torch.Tensor, vals: torch.Tensor, symmetry: str, size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The elements that a symmetric file lists, and those on the other side of the diagonal."""
    row, col = indices
    apart = row != col
    diagonal = vals[~apart]
    if symmetry == "skew-symmetric" and bool((diagonal != 0).any()):
        raise ValueError("it is skew-symmetric and has an element on its diagonal")
    if symmetry == "hermitian" and vals.is_complex() and bool((diagonal.imag != 0).any()):
        raise ValueError("it is hermitian and has a number on its diagonal that is not real")
    below = row > col
    if bool(below.any()) and bool((row < col).any()):
        keys = torch.where(below, row * size + col, col * size + row)
        if bool(torch.isin(keys[below], keys[row < col]).any()):
            raise ValueError("it is symmetric and lists an element on both sides of the diagonal")
    other = vals[apart]
    if symmetry == "skew-symmetric":
        other = -other
    elif symmetry == "hermitian":
        other = other.conj()
    return torch.cat([indices, indices.flip(0)[:, apart]], 1), torch.cat([vals, other])


def _header(file: BinaryIO) -> _Header:
    """The header of a file, after it was checked to be that of a matrix."""
    words = file.readline(_LONGEST).decode("latin-1").lower().split()
    if len(words) != 5 or words[:2] != ["%%matrixmarket", "matrix"]:
        raise ValueError("its first line is not that of a Matrix Market matrix")
    kind, field, symmetry = words[2:]
    lines, line = 2, file.readline(_LONGEST)
    while line and (line.startswith(b"%") or not line.strip()):
        lines, line = lines + line.endswith(b"\n"), file.readline(_LONGEST)
    sizes = _sizes(line)
    if len(sizes) != {"coordinate": 3, "array": 2}.get(kind):
        raise ValueError(f"it has no line with the sizes of a matrix of kind {kind[:20]}")
    known = field in _WIDTHS and symmetry in _SYMMETRIES
    if not known or (kind == "array" and field == "pattern"):
        raise ValueError(f"its header asks for a matrix {kind} {field[:20]} {symmetry[:20]}")
    if symmetry != "general" and sizes[0] != sizes[1]:
        raise ValueError(f"its header asks for a {symmetry} matrix of {sizes[0]} x {sizes[1]}")
    return _Header(kind, field, symmetry, sizes, lines)


def _sizes(line: bytes) -> tuple[int, ...]:
    words = line.split()
    return tuple(map(int, words)) if all(w.isdigit() and len(w) < 20 for w in words) else ()


def _zeros(head: _Header, source: _Source) -> Any:
    """An array without elements."""
    import numpy as np

    while source.read(1 << 16):
        pass
    dtype = {"complex": "c16", "integer": "i8", "unsigned-integer": "i8"}.get(head.field, "f8")
    return np.zeros(head.sizes, dtype)


class _Source:
    """A file-like object from which SciPy's reader can safely read a Matrix Market file.

    It can't seek, never raises, and ends with a whole line. Its header says "general" for every
    matrix of coordinates, so that `read` mirrors the elements, and only numbers follow the header.

    SciPy's reader (1.17) seeks in its destructor, and ends the process if that fails. If the file
    ends within a number, it reads beyond its memory.
    """

    def __init__(self, file: BinaryIO, head: _Header) -> None:
        symmetry = "general" if head.kind == "coordinate" else head.symmetry
        first = f"%%MatrixMarket matrix {head.kind} {head.field} {symmetry}\n"
        # as many lines as the header of the file has, for the messages of SciPy
        text = first + "%\n" * (head.lines - 2) + " ".join(map(str, head.sizes)) + "\n"
        self._file, self._expected = file, head.width * head.stored
        self._before = text.encode()
        whole = head.width if head.field in _WHOLE else 2 * (head.kind == "coordinate")
        self._numbers = Numbers(head.width, whole, head.lines + 1)
        self._last = b"\n"
        self._piece, self._at = b"", 0  # what was checked, and how much of it was read
        self.failure: Exception | None = None

    def read(self, size: int) -> bytes:
        if self._before:
            found, self._before = self._before[:size], self._before[size:]
            return found
        found = b"" if self.failure else self._checked(size)
        if not found and self._last != b"\n":
            found = b"\n"
        self._last = found[-1:] or self._last
        return found

    def _checked(self, size: int) -> bytes:
        if self._at == len(self._piece):  # SciPy asks for a kilobyte at a time
            self._piece, self._at = self._next_piece(max(size, _PIECE)), 0
        found = self._piece[self._at : self._at + size]
        self._at += len(found)
        return found

    def _next_piece(self, size: int) -> bytes:
        try:
            found = self._file.read(size)
            self._numbers.check(found or b"\n")
            # SciPy stores every number that it reads, also behind the end of its array
            self._require_numbers(self._numbers.count <= self._expected)
        except Exception as error:  # noqa: BLE001  # raised again once SciPy is done
            self.failure = error
            return b""
        return found

    def finish(self) -> None:
        """Raises what went wrong, and refuses numbers that SciPy skipped."""
        while not self.failure and self.read(1 << 20):
            pass
        if self.failure:
            raise self.failure
        self._require_numbers(self._numbers.count == self._expected)

    def _require_numbers(self, enough: bool) -> None:
        if not enough:
            found, expected = self._numbers.count, self._expected
            raise ValueError(f"it has {found} numbers where {expected} belong")


class _Target:
    """A file-like object that SciPy writes to, and that, as `_Source`, can't seek."""

    def __init__(self, file: BinaryIO) -> None:
        self.write = file.write


def write(path: Path, A: SparseTensor) -> None:
    """Writes all entries of a matrix, both triangles if it is symmetric."""
    import scipy.io

    coo: torch.Tensor = convert(A, torch.sparse_coo).detach()
    if A.dtype in (torch.bfloat16, torch.float16):
        coo = coo.float()
    elif A.dtype == torch.bool:
        coo = coo.to(torch.uint8)
    with writing(path) as file:
        if coo._nnz():
            scipy.io.mmwrite(_Target(file), to_scipy(coo), symmetry="general")
        else:  # which SciPy (1.17) takes for one of real numbers
            real = "real" if coo.is_floating_point() else "integer"
            field = "complex" if coo.is_complex() else real
            m, n = coo.shape
            file.write(f"%%MatrixMarket matrix coordinate {field} general\n{m} {n} 0\n".encode())
