"""Edge lists: text with a line for each edge, its source, its target and perhaps its weight."""

from __future__ import annotations

import csv
import io
import warnings
from pathlib import Path
from typing import Any

import torch

from spgrad.core.tensor import SparseTensor
from spgrad.io.stream import Limit, reading, writing
from spgrad.lowering.convert import convert
from spgrad.ops.creation.graph import from_edges

DELIMITERS = {".csv": ",", ".tsv": "\t", ".txt": " "}
COMMENTS = ("#", "%")
QUOTE = '"'


def read(
    path: Path,
    kind: str,
    size: Any,
    header: bool | None,
    limit: Limit,
    dtype: torch.dtype | None = None,
) -> SparseTensor:
    """The adjacency matrix as COO, with weights in float64, or in int64 for a dtype of integers.

    ValueError says what is wrong with the file.
    """
    columns = _columns(path, kind, header, limit, "f8")
    whole = dtype is not None and not (dtype.is_floating_point or dtype.is_complex)
    if whole and len(columns) == 3 and columns[2].numel() and columns[2].abs().max() >= 2**53:
        columns = _columns(path, kind, header, limit, "i8")  # which float64 would round
    if not columns:
        columns = [torch.zeros(0, dtype=torch.int64, device="cpu")] * 2
    weights = columns[2] if len(columns) == 3 else None
    return from_edges(torch.stack(columns[:2]), weights, size, layout=_COO)


def _columns(
    path: Path, kind: str, header: bool | None, limit: Limit, weights: str
) -> list[torch.Tensor]:
    """The two or three columns of the file; none if it is empty."""
    import numpy as np

    with reading(path, limit) as file, io.TextIOWrapper(file, encoding="utf-8-sig") as text:
        first, comment = None, "#"
        for line in text:
            if line.lstrip().startswith(COMMENTS):
                comment = line.lstrip()[0]
            elif line.strip():
                first = line
                break
        if first is None:
            return []
        delimiter = DELIMITERS[kind]
        if kind == ".txt":
            delimiter = "," if "," in first else None
        fields = _fields(first, delimiter)
        if not 2 <= len(fields) <= 3:
            raise ValueError(f"its first line of data has {len(fields)} columns, not two or three")
        if any(map(_is_number, fields)) if header is None else not header:
            text.seek(0)  # the first line has no names of columns
        columns = [("row", "i8"), ("col", "i8"), ("value", weights)][: len(fields)]
        with warnings.catch_warnings():
            # NumPy warns of 1.5 as an int; it is no node
            warnings.simplefilter("error", DeprecationWarning)
            # NumPy warns of a file that has only the names of columns
            warnings.simplefilter("ignore", UserWarning)
            table = np.loadtxt(
                text,
                dtype=columns,
                comments=comment,  # NumPy is slower with more than one
                delimiter=delimiter,
                quotechar=QUOTE,
                ndmin=1,
            )
    return [torch.from_numpy(table[name].copy()) for name, _ in columns]


_COO = torch.sparse_coo


def _fields(line: str, delimiter: str | None) -> list[str]:
    """The fields of a line, without the quotes that they may be in."""
    if delimiter is None:
        return [field.strip(QUOTE) for field in line.split()]
    return next(csv.reader([line.strip()], delimiter=delimiter, quotechar=QUOTE))


def _is_number(field: str) -> bool:
    try:
        float(field.strip("'\""))  # a number in quotes is not the name of a column
    except ValueError:
        return False
    return True


def write(path: Path, kind: str, A: SparseTensor) -> None:
    """Writes row, column and value of each element, with the fewest digits that keep the value."""
    import numpy as np

    A = convert(A, torch.sparse_coo)
    vals = A._vals.detach().resolve_neg().cpu()
    if A.dtype in (torch.bfloat16, torch.float16):
        vals = vals.float()
    elif A.dtype == torch.bool:
        vals = vals.to(torch.uint8)
    row, col = A._pattern.indices[0].cpu().numpy()
    columns = [("row", "i8"), ("col", "i8"), ("value", vals.numpy().dtype)]
    table = np.empty(vals.shape[0], dtype=columns)
    table["row"], table["col"], table["value"] = row, col, vals.numpy()
    with writing(path) as file:
        np.savetxt(file, table, fmt="%s", delimiter=DELIMITERS[kind])
