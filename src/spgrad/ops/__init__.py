"""The operations; each function answers for its row of the support table.

This module finds them by their rows; `__init__.pyi` beside it lists them for type checkers.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from spgrad.core.slots import TORCH_FUNCTIONS, Methods, Slots, above
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import clone
from spgrad.lowering.operands import refusal
from spgrad.lowering.views import find_views
from spgrad.ops.elementwise.inside_transforms import inside_transform
from spgrad.ops.elementwise.queries import item
from spgrad.support import ABOVE, OPS, OUTSIDE, Op, torch_named
from spgrad.torch_protocol.arguments import as_written
from spgrad.torch_protocol.aten import alias
from spgrad.torch_protocol.compile import keep_outside, when_tracing
from spgrad.torch_protocol.dynamo.frames import when_called
from spgrad.torch_protocol.gradients import (
    SET_DATA,
    SET_GRAD,
    backward,
    grad,
    register_hook,
    set_data,
    set_grad,
)
from spgrad.torch_protocol.inplace import in_place, is_in_place
from spgrad.torch_protocol.optimizers import on_values
from spgrad.torch_protocol.pickling import load
from spgrad.torch_protocol.repr import describe, facts, picture


def register(row: Op) -> Any:
    """The function of a row, which the row's names in torch find from now on.

    The name of an in-place form finds the function whose name ends in an underscore, if the module
    has one. Otherwise it finds a function that stores the result in the first operand.
    """
    if row.layouts:
        op = row.function
        own_form = getattr(sys.modules[row.path], f"{row.name}_", None)
        (when_tracing if row.traced else when_called)(op)
        if row.outside:
            keep_outside(op, row.outside)
    else:
        op, own_form = refusal(row), None
    for name in row.torch:
        func = torch_named(name)
        stores = is_in_place(name) and not row.in_place
        answer = (own_form or in_place(row.name, op)) if stores else op
        TORCH_FUNCTIONS[func] = as_written(name, answer)
    return op


def register_family(family: str) -> None:
    """Registers the rows of a package above, which calls it when it is imported."""
    for row in OPS.values():
        if row.family == family:
            register(row)


ATTRIBUTES = {
    SET_GRAD: set_grad,
    SET_DATA: set_data,
    torch.Tensor.backward: backward,
    torch.Tensor.register_hook: register_hook,
    torch.autograd.backward: backward,
    torch.autograd.grad: grad,
    torch.Tensor.clone: clone,
    torch.clone: clone,
    # a method that is called as a function, as torch.testing.assert_close calls it
    **{
        getattr(torch.Tensor, name): getattr(SparseTensor, name)
        for name in (
            *("crow_indices", "col_indices", "ccol_indices", "row_indices", "indices", "_indices"),
            *("values", "_values", "_nnz", "is_coalesced", "sparse_dim", "dense_dim"),
        )
    },
    torch.Tensor.__complex__: as_written("__complex__", lambda A: complex(item(A))),
    torch.Tensor.__float__: as_written("__float__", lambda A: float(item(A))),
    torch.Tensor.__int__: as_written("__int__", lambda A: int(item(A))),
    # Since torch 2.14, Dynamo calls these operations for the attributes of the same meaning.
    torch.ops.aten.numpy_T: lambda A: A.T,
    torch.ops.aten.mT: lambda A: A.mT,
    torch.ops.aten.matrix_H: lambda A: A.H,
    torch.ops.aten.mH: lambda A: A.mH,
}
"""Torch's name -> what answers for it: attributes of a tensor, no operations, and without a row.

They tell or set what a tensor has, or its hooks, or are Python's own conversions to numbers.
"""

_FUNCTIONS = {row.name: register(row) for row in OPS.values() if row.family not in ABOVE}
__all__ = [  # pyright: ignore[reportUnsupportedDunderAll]  # the stub has the names
    row.name for row in OPS.values() if row.public and row.family not in OUTSIDE
]
TORCH_FUNCTIONS.update(ATTRIBUTES)
globals().update({name: _FUNCTIONS[name] for name in __all__})

when_tracing(clone)
for _member in (*vars(SparseTensor).values(), *vars(Methods).values()):
    when_called(getattr(_member, "fget", None) or getattr(_member, "__func__", _member))
above.fill(
    alias=alias,
    describe=describe,
    facts=facts,
    find_views=find_views,
    inside_transform=inside_transform,
    load=load,
    on_values=on_values,
    picture=picture,
    **{name: op for name, op in _FUNCTIONS.items() if name in Slots.__annotations__},
)
above.fill(getitem=TORCH_FUNCTIONS[torch.Tensor.__getitem__])
