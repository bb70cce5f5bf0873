"""Index expressions for a matrix (4, 6), and what they mean for dense tensors."""

import numpy as np
import torch

F64 = torch.float64


def dims_of(part):
    if part is None or part is ... or isinstance(part, bool):
        return 0
    return part.dim() if isinstance(part, torch.Tensor) and part.dtype == torch.bool else 1


def of_dense(x, index):
    """x[index], with the negative steps that torch refuses and lists as index tensors."""
    parts = list(index) if isinstance(index, tuple) else [index]
    if not any(part is ... for part in parts):
        parts.append(...)
    more = x.dim() - sum(map(dims_of, parts))
    found, dim = [], 0
    for part in parts:
        if isinstance(part, slice) and (part.step or 1) < 0:
            places = range(x.shape[dim])[part][::-1]  # ascending, then turned round
            x = x.flip(dim)
            last = x.shape[dim] - 1
            start, stop = (last - places[-1], last - places[0] + 1) if places else (0, 0)
            part = slice(start, stop, -part.step)
        elif isinstance(part, list | range):
            part = torch.tensor(list(part), dtype=None if list(part) else torch.int64)
        elif isinstance(part, torch.Tensor) and part.layout != torch.strided:
            part = part.to_dense()
        found.append(part)
        dim += more if part is ... else dims_of(part)
    return x[tuple(found)]


S = slice
MASK = torch.tensor([True, False, True, True])
WIDE = torch.tensor([False, True, True, False, False, True])
MATRIX = {
    "row": 2,
    "last_row": (-1,),
    "rows": S(1, 3),
    "odd_rows": S(1, 2),
    "rows_reversed": S(None, None, -1),
    "column": (S(None), 3),
    "columns": (S(None), S(2, 4)),
    "odd_columns": (S(None), S(1, 4)),
    "steps": (S(3, None, -2), S(1, None, 2)),
    "every_second_row": S(None, None, 2),
    "every_second_row_reversed": S(3, 0, -2),
    "every_third_column": (S(None), S(1, None, 3)),
    "every_second_column_reversed": (S(None), S(None, 1, -2)),
    "outside": (S(-9, 9), S(4, 99)),
    "nothing": (S(3, 1), S(None)),
    "nothing_before": S(-9, -7, -1),
    "no_columns_before": (S(None), S(-9, -7, -1)),
    "element": (1, 2),
    "numbers": (np.int64(1), torch.tensor(-1)),
    "list": [3, 0, 3],
    "no_list": [],
    "range": range(2),
    "columns_listed": (S(None), [5, 0, 0, 2]),
    "rows_and_columns": (S(1, 4), [4, 1]),
    "points": ([0, 1, 3, 3], [0, -1, 2, 2]),
    "grid_of_points": (torch.tensor([[0], [2]]), torch.tensor([[1, 3]])),
    "matrix_of_rows": torch.tensor([[0, 1], [3, 3]], dtype=torch.int32),
    "matrix_of_rows_of_int64": torch.tensor([[2, 0], [1, 3]]),
    "row_mask": MASK,
    "mask_list": [True, False, True, True],
    "column_mask": (..., WIDE),
    "two_masks": (MASK, WIDE),
    "array": np.array([1, 0]),
    "batch": None,
    "behind": (..., None),
    "between": (S(None), None, [1, 2]),
    "batch_of_rows": (None, [3, 0, 3]),
    "batch_of_columns": (None, S(1, 4), [4, 1]),
    "true": True,
    "false": False,
    "true_and_list": (True, [1, 0, 2]),
    "int_and_list": (-2, [1, 0]),
}
