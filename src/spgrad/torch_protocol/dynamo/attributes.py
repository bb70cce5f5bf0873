"""Attributes of a SparseTensor, as Dynamo reads them in the code that it compiles.

Importing Dynamo doubles the time that ``import torch`` takes, so each function imports it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partialmethod
from typing import Any

from spgrad.torch_protocol.callers import updates


def teach_dynamo() -> None:
    """Tells Dynamo, which is imported, how to read attributes of a SparseTensor."""
    from torch._dynamo import output_graph
    from torch._dynamo.variables import TensorVariable, UserDefinedObjectVariable

    # Dynamo asks a method of such a name for an attribute, or for a call, of a tensor of its graph
    variables: Any = TensorVariable
    variables.method_attr_nse = _nse
    variables.method__nnz = _nnz
    for name in ("sparse_dim", "dense_dim", "is_coalesced"):
        setattr(variables, f"method_{name}", partialmethod(_constant, name=name))
    ordinary = getattr(variables, "method_attr_is_sparse", lambda variable, tx: None)
    variables.method_attr_is_sparse = _is_sparse(ordinary)
    variables.method_attr_pattern = _pattern
    objects: Any = UserDefinedObjectVariable
    objects.as_proxy = _no_pattern(objects.as_proxy)
    # with this function, Dynamo finds the sizes that a graph needs as numbers beside its tensors
    output_graph.free_symbols = _symbols  # type: ignore[attr-defined]


def _symbols(value: Any) -> Any:
    """The symbols in the sizes of a value; for a sparse tensor, also of its indices and values.

    Without the latter, a backward could not take an array whose length is a multiple of the number
    of blocks, and a cache on disk could not compare sizes.
    """
    from torch.fx.experimental.symbolic_shapes import free_symbols

    found = free_symbols(value)
    if hasattr(value, "_pattern"):
        found = found.union(
            *(free_symbols(getattr(value, name)) for name in value.__tensor_flatten__()[0])
        )
    return found


def _pattern_of(variable: Any) -> Any:
    """The pattern of a tensor of Dynamo's graph, with the sizes of the trace; None if dense."""
    return getattr(variable.proxy.node.meta.get("example_value"), "_pattern", None)


def _constant(variable: Any, tx: Any, name: str) -> Any:
    """The result of a method that the spec of a pattern determines, and so a guard too."""
    from torch._dynamo.variables import ConstantVariable

    if _pattern_of(variable) is None:
        return None
    return ConstantVariable.create(getattr(variable.proxy.node.meta["example_value"], name)())


def _is_sparse(ordinary: Callable[..., Any]) -> Callable[..., Any]:
    """`is_sparse` as in Python, where Dynamo has noted that the tensor looks strided.

    As in Python, the steps of torch's optimizers see False.
    """
    from torch._dynamo.variables import ConstantVariable

    def read(variable: Any, tx: Any) -> Any:
        pattern = _pattern_of(variable)
        if pattern is None:
            return ordinary(variable, tx)
        return ConstantVariable.create(pattern.is_coo and not updates(tx.f_code.co_filename))

    return read


def _nnz(variable: Any, tx: Any) -> Any:
    """`_nnz()` as `nse` over the number of items of equal nse."""
    from torch._dynamo.variables import BuiltinVariable, ConstantVariable

    pattern = _pattern_of(variable)
    if pattern is None:
        return None
    found = variable.var_getattr(tx, "nse")
    for dim in range(len(pattern.items)):
        size = variable.call_method(tx, "size", [ConstantVariable.create(dim)], {})
        found = BuiltinVariable(operator.floordiv).call_function(tx, [found, size], {})
    return found


def _nse(variable: Any, tx: Any) -> Any:
    """`nse` of a tensor that a graph makes, as a size of its indices; None of other tensors.

    Dynamo would take it for a constant, as it takes all attributes of such tensors.
    """
    from torch._dynamo.variables import ConstantVariable

    pattern = _pattern_of(variable)
    if variable.source is not None or pattern is None:
        return None
    last = variable.dynamic_getattr(tx, f"_index_{len(pattern.indices) - 1}")
    return last.call_method(tx, "size", [ConstantVariable.create(-1)], {})


def _pattern(variable: Any, tx: Any) -> Any:
    """`pattern`, in whose place functions of the graph get the tensor itself, as they accept both.

    That of a tensor which the graph makes has the attributes that tensors have too.
    """
    from torch._dynamo.variables import UserDefinedObjectVariable
    from torch._dynamo.variables.base import VariableTracker

    pattern = _pattern_of(variable)
    if pattern is None:
        return None

    class OfInput(UserDefinedObjectVariable):
        def as_proxy(self) -> Any:
            return variable.as_proxy()

    class OfResult(VariableTracker):
        def as_proxy(self) -> Any:
            return variable.as_proxy()

        def python_type(self) -> type:
            return type(pattern)

        def var_getattr(self, tx: Any, name: str) -> Any:
            return variable.var_getattr(tx, name)

    if variable.source is None:
        return OfResult()
    found = variable.dynamic_getattr(tx, "pattern").realize()
    return OfInput(found.value, source=found.source)


def _no_pattern(ordinary: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Objects of Python in a graph: a Pattern of no tensor in the graph is refused by name."""

    def as_proxy(variable: Any) -> Any:
        if type(variable.value).__name__ != "Pattern":
            return ordinary(variable)
        from torch._dynamo.exc import unimplemented

        return unimplemented(
            gb_type="a Pattern of spgrad that is no attribute of a tensor in the graph",
            context=repr(variable.value),
            explanation="Graphs hold tensors; a SparseTensor with this pattern is accepted.",
            hints=["Write spgrad.from_values(values, A) for a SparseTensor A with this pattern."],
        )

    return as_proxy
