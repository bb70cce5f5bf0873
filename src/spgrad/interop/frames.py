"""pandas: tables with a row for each element."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from spgrad.core import checks
from spgrad.core.tensor import SparseTensor
from spgrad.errors import ArgumentKindError, ArgumentValueError
from spgrad.interop.edges import listed, positions_of, require_names
from spgrad.ops.creation.graph import from_edges
from spgrad.public import public_op

if TYPE_CHECKING:
    import pandas as pd


class Labelled(NamedTuple):
    """What `spgrad.from_pandas` returns: a matrix, and the labels of its rows and columns."""

    A: SparseTensor
    """The values."""
    rows: Any
    """The label of each row: a pandas.Index, or a range where rows are numbers."""
    cols: Any
    """The label of each column, likewise."""


@public_op
def from_pandas(
    frame: pd.DataFrame,
    row: str,
    col: str,
    value: str | None = None,
    *,
    size: tuple[int, int] | int | None = None,
    square: bool = False,
    dtype: torch.dtype | None = None,
    layout: torch.layout = torch.sparse_csr,
) -> Labelled:
    """The matrix of a table with a line for each element: a row, a column and a value.

    Values of lines with the same row and column add.

    Args:
        frame: The table.
        row: The name of the table's column of rows: labels of any kind, or, with `size`, numbers
            from 0.
        col: The name of the table's column of columns, likewise.
        value: The name of the table's column of values; None for ones.
        size: Number of rows and columns of the matrix; by default the numbers of distinct labels,
            which are sorted.
        square: Whether rows and columns have the same labels, as the two ends of edges.
        dtype: Dtype of the values; by default that of the table (int64 for unsigned numbers of more
            than 8 bits), torch's default dtype for ones.
        layout: torch.sparse_csr, sparse_csc or sparse_coo.

    Returns:
        A `Labelled`: the matrix, and the labels of its rows and columns.

    Cost:
        O(lines log lines).

    Raises:
        TypeError: `frame` is no DataFrame, or values are no numbers.
        ValueError: A name is no column, or that of several, a label is missing (NaN), or a number
            is out of range.
        ImportError: pandas is not installed.

    Example:
        >>> import importlib.util, pytest
        >>> if importlib.util.find_spec("pandas") is None:
        ...     pytest.skip("pandas is not installed")
        >>> import pandas
        >>> frame = pandas.DataFrame({"user": ["b", "a"], "item": [7, 9], "stars": [4.0, 5.0]})
        >>> A, users, items = spgrad.from_pandas(frame, "user", "item", "stars")
        >>> A.to_dense(), list(users), list(items)
        (tensor([[0., 5.],
                [4., 0.]], dtype=torch.float64), ['a', 'b'], [7, 9])
    """
    checks.require_packages("pandas", "pandas", "numpy")
    import pandas as pd

    if not isinstance(frame, pd.DataFrame):
        raise ArgumentKindError(
            f"`frame` is {checks.describe_kind(frame)}; a pandas.DataFrame is accepted. Make one "
            "with pandas.DataFrame."
        )
    names = {"row": row, "col": col} | ({} if value is None else {"value": value})
    for arg, name in names.items():
        if name not in frame.columns:
            raise ArgumentValueError(
                f"`{arg}` is {name!r}; {', '.join(map(repr, frame.columns))} are accepted. Name a "
                "column of the table."
            )
        if isinstance(frame[name], pd.DataFrame):
            raise ArgumentValueError(
                f"`{arg}` is {name!r}, which is the name of {frame[name].shape[1]} columns; a name "
                "of one is accepted. Give the columns other names by frame.columns = [...]."
            )
    columns = {arg: frame[name] for arg, name in (("row", row), ("col", col))}
    for arg, column in columns.items():
        if column.isna().any():
            raise ArgumentValueError(
                f"`{arg}` names a column with missing labels; labels in each line are accepted. "
                "Leave those lines out with frame.dropna()."
            )
    if size is None:
        codes, labels = _coded(columns, square)
        size = (len(labels[0]), len(labels[1]))
    else:
        pair = size if isinstance(size, (tuple, list)) and len(size) == 2 else (size, size)
        codes = [_numbers(*each) for each in zip(columns, columns.values(), pair, strict=True)]
        labels = None
    vals = None if value is None else _values(frame[value])
    if dtype is not None:
        vals = torch.ones(len(frame), dtype=dtype) if vals is None else vals.to(dtype)
    A = from_edges(torch.stack(codes), vals, size, layout=layout)
    of_rows, of_cols = labels or (range(A.shape[0]), range(A.shape[1]))
    return Labelled(A, of_rows, of_cols)


def _coded(columns: dict[str, Any], square: bool) -> tuple[list[torch.Tensor], tuple[Any, Any]]:
    """The position of each label among the distinct labels, and the distinct labels, sorted."""
    import pandas as pd

    parts = list(columns.values())
    for arg, part in columns.items():
        strange = [x for x in part if not isinstance(x, Hashable)] if part.dtype == object else []
        if strange:
            raise ArgumentKindError(
                f"`{arg}` names a column with {checks.describe_kind(strange[0])}; strings, numbers "
                "and other hashable labels are accepted. Lists become labels by .map(tuple)."
            )
    if square:
        code, labels = pd.factorize(pd.concat(parts, ignore_index=True), sort=True)
        both = torch.from_numpy(code.astype("int64")).view(2, -1)
        return list(both), (pd.Index(labels), pd.Index(labels))
    found = [pd.factorize(part, sort=True) for part in parts]
    codes = [torch.from_numpy(code.astype("int64")) for code, _ in found]
    return codes, (pd.Index(found[0][1]), pd.Index(found[1][1]))


def _numbers(arg: str, column: Any, size: Any) -> torch.Tensor:
    """A column of numbers below a size; `from_edges` refuses what is no size."""
    if column.dtype.kind not in "iu":
        raise ArgumentKindError(
            f"`{arg}` names a column of dtype {column.dtype}; with `size`, whole numbers are "
            "accepted. Leave `size` out for labels."
        )
    numbers = column.to_numpy()
    if isinstance(size, int):
        outside = numbers[(numbers < 0) | (numbers >= size)]
        if len(outside):
            raise ArgumentValueError(
                f"`{arg}` names a column with {outside[0]}; numbers in [0, {size}) are accepted. "
                "Pass a larger `size`, or leave it out for labels."
            )
    return torch.from_numpy(numbers.astype("int64"))


def _values(column: Any) -> torch.Tensor:
    try:
        return torch.from_numpy(checks.signed(column.to_numpy().copy()))
    except (TypeError, ValueError) as error:
        raise ArgumentKindError(
            f"`value` names a column of dtype {column.dtype}; numbers that torch has are accepted. "
            "Convert it with frame.astype."
        ) from error


@public_op
def to_pandas(
    A: torch.Tensor,
    rows: Sequence[Any] | None = None,
    cols: Sequence[Any] | None = None,
    *,
    names: tuple[str, str, str] = ("row", "col", "value"),
) -> pd.DataFrame:
    """A table with a line for each specified element: its row, its column and its value.

    Args:
        A: Sparse matrix of any layout.
        rows: The label of each row; by default numbers.
        cols: The label of each column.
        names: Of the columns of the table.

    Returns:
        pandas.DataFrame with three columns, in row-major order, detached.

    Cost:
        O(nse).

    Raises:
        TypeError: `A` is not sparse.
        ValueError: `A` is no matrix, there are not as many labels as rows or columns, or two of
            `names` are equal.
        ImportError: pandas is not installed.

    Example:
        >>> import importlib.util, pytest
        >>> if importlib.util.find_spec("pandas") is None:
        ...     pytest.skip("pandas is not installed")
        >>> A = spgrad.from_dense(torch.tensor([[0.0, 2.0], [3.0, 0.0]]))
        >>> print(spgrad.to_pandas(A, rows=["a", "b"]))
          row  col  value
        0   a    1    2.0
        1   b    0    3.0
    """
    checks.require_packages("pandas", "pandas", "numpy")
    import pandas as pd

    if len(tuple(names)) != 3:
        raise checks.bad_shape("names", (len(tuple(names)),), "(3,)", "Name row, column and value.")
    positions_of("names", names)
    M, edges, vals = listed(A)
    m, k = M._pattern.matrix
    if vals.dtype == torch.bfloat16:
        vals = vals.float()
    lines: dict[str, Any] = {}
    for arg, given, count, index in (("rows", rows, m, edges[0]), ("cols", cols, k, edges[1])):
        numbers = index.cpu().numpy()
        labels = None if given is None else pd.Index(require_names(arg, given, count))
        lines[arg] = numbers if labels is None else labels.take(numbers)
    lines["value"] = vals.detach().cpu().numpy()
    return pd.DataFrame(dict(zip(names, lines.values(), strict=True)))
