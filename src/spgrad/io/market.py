"""Matrix Market files, read and written by SciPy.

R. F. Boisvert, R. Pozo, K. A. Remington: The Matrix Market Exchange Formats, NISTIR 5935, 1996.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import torch

from spgrad.construct import sparse_coo_tensor
from spgrad.interop import to_scipy
from spgrad.io.stream import reading, unpacked_limit, writing
from spgrad.ops.convert import convert, from_dense
from spgrad.ops.structure import coalesce
from spgrad.tensor import SparseTensor


def read(path: Path) -> SparseTensor:
    """The matrix as COO, its symmetric part written out; ValueError says what is wrong."""
    import scipy.io

    with reading(path) as file:
        rows, columns, entries, kind, field, symmetry = scipy.io.mminfo(file)
        # SciPy allocates what the header asks for, so this is held against the file first
        if kind == "array":
            least = 2 * (rows * columns if symmetry == "general" else rows * (columns - 1) // 2)
        else:
            least = 4 * entries  # "1 1" and the end of the line
        if least > unpacked_limit(path) + 1:
            raise ValueError(
                f"its header asks for {rows} x {columns} with {entries} entries, which don't fit "
                "in its size"
            )
        file.seek(0)
        S: Any = scipy.io.mmread(file)
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


def write(path: Path, A: SparseTensor) -> None:
    """Writes all entries of a matrix, none left out as symmetric to another."""
    import scipy.io

    coo: torch.Tensor = convert(A, torch.sparse_coo).detach()
    if A.dtype in (torch.bfloat16, torch.float16):
        coo = coo.float()
    elif A.dtype == torch.bool:
        coo = coo.to(torch.uint8)
    S = to_scipy(coo)
    if path.suffix == ".mtx":
        scipy.io.mmwrite(path, S, symmetry="general")
        return
    text = io.BytesIO()  # SciPy aborts the process on a file that it can't seek in
    scipy.io.mmwrite(text, S, symmetry="general")
    with writing(path) as file:
        file.write(text.getbuffer())
