"""Matrix Market files, read and written by SciPy.

R. F. Boisvert, R. Pozo, K. A. Remington: The Matrix Market Exchange Formats, NISTIR 5935, 1996.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, BinaryIO

import torch

from spgrad.construct import sparse_coo_tensor
from spgrad.interop import to_scipy
from spgrad.io.stream import reading, unpacked_limit, writing
from spgrad.ops.convert import convert
from spgrad.ops.dense import from_dense
from spgrad.ops.structure import coalesce
from spgrad.tensor import SparseTensor

_LONGEST = 1 << 16  # bytes of a line of the header


def read(path: Path) -> SparseTensor:
    """The matrix as COO, its symmetric part written out; ValueError says what is wrong."""
    import scipy.io

    with reading(path) as file:
        kind, field, symmetry, sizes = _header(file)
        # SciPy allocates what the header asks for, so this is held against the file first.
        # The shortest lines are "1 1" of an entry and "1" of an element, and their ends.
        halved = 1 if symmetry == "general" else 2
        least = 4 * sizes[-1] if kind == "coordinate" else 2 * math.prod(sizes) // halved - sizes[0]
        if least > unpacked_limit(path) + 1:
            asked = " x ".join(str(size) for size in sizes[:2])
            many = f" with {sizes[2]} entries" if kind == "coordinate" else ""
            raise ValueError(f"its header asks for {asked}{many}, which don't fit in its size")
        file.seek(0)
        source = _Source(file)
        S: Any = scipy.io.mmread(source)
        if source.failure:
            raise source.failure
    if kind == "array":
        return from_dense(torch.from_numpy(S), torch.sparse_coo)
    if field == "pattern":
        vals = torch.ones(S.nnz, dtype=torch.get_default_dtype())
        if symmetry == "skew-symmetric":
            vals = vals.copysign(torch.from_numpy(S.data))
    else:
        vals = torch.from_numpy(S.data.astype("int64") if S.data.dtype.kind == "u" else S.data)
    indices = torch.stack([torch.from_numpy(S.row).long(), torch.from_numpy(S.col).long()])
    return coalesce(sparse_coo_tensor(indices, vals, S.shape))


def _header(file: BinaryIO) -> tuple[str, str, str, list[int]]:
    """Kind (coordinate or array), field, symmetry, and the sizes that the header has."""
    words = file.readline(_LONGEST).decode("latin-1").lower().split()
    if len(words) != 5 or words[:2] != ["%%matrixmarket", "matrix"]:
        raise ValueError("its first line is not that of a Matrix Market matrix")
    kind, field, symmetry = words[2:]
    line = file.readline(_LONGEST)
    while line and (line.startswith(b"%") or not line.strip()):
        line = file.readline(_LONGEST)
    try:
        sizes = [int(word) for word in line.split()]
    except ValueError:
        sizes = []
    if len(sizes) != {"coordinate": 3, "array": 2}.get(kind) or min(sizes) < 0:
        raise ValueError(f"it has no line with the sizes of a matrix of kind {kind[:20]}")
    return kind, field, symmetry, sizes


class _Source:
    """A file as SciPy may see it: it can't seek, never raises, and ends with a whole line.

    SciPy's reader (1.17) seeks when it is destroyed, and a seek that fails there ends the process;
    so does a number that breaks off where the file ends, which is read beyond its memory.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._last = b""
        self.failure: Exception | None = None

    def read(self, size: int) -> bytes:
        try:
            found = self._file.read(size)
        except Exception as error:  # noqa: BLE001  # raised again once SciPy is done
            self.failure = error
            found = b""
        if not found and self._last not in (b"", b"\n"):
            found = b"\n"
        self._last = found[-1:]
        return found


class _Target:
    """A file that SciPy writes to and, again, can't seek in."""

    def __init__(self, file: BinaryIO) -> None:
        self.write = file.write


def write(path: Path, A: SparseTensor) -> None:
    """Writes all entries of a matrix, none left out as symmetric to another."""
    import scipy.io

    coo: torch.Tensor = convert(A, torch.sparse_coo).detach()
    if A.dtype in (torch.bfloat16, torch.float16):
        coo = coo.float()
    elif A.dtype == torch.bool:
        coo = coo.to(torch.uint8)
    with writing(path) as file:
        scipy.io.mmwrite(_Target(file), to_scipy(coo), symmetry="general")
