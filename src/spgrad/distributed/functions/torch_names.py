"""The functions of torch that have a form for sharded matrices, and the refusal of all others."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import resolve_name

from spgrad.core import checks
from spgrad.core.slots import TORCH_FUNCTIONS, above
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import on_pattern
from spgrad.distributed.functions import sums
from spgrad.distributed.plan import join
from spgrad.distributed.sharded import Sharded
from spgrad.errors import ArgumentKindError, UnsupportedError
from spgrad.lowering.convert import flat_values
from spgrad.support import OPS

_BY_VALUE = ("elementwise.unary", "elementwise.dtypes")
"""Modules whose functions change each value by itself."""

_METHODS = {
    "matmul": "matmul",
    "mm": "matmul",
    "mv": "matmul",
    "softmax": "softmax",
    "sum": "sum",
    "norm": "norm",
    "pow": "pow",
    "mul": "__mul__",
    "div": "__truediv__",
    "add": "__add__",
    "sub": "__sub__",
}
"""Name of an operation -> the method that is its form for a ShardedMatrix."""

_EXCHANGED = {"mul": "__mul__", "add": "__add__", "sub": "__rsub__", "div": "__rtruediv__"}
"""The same where D is the second operand, after a tensor."""

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "native_norm": sums.vector_norm,
    "vector_norm": sums.vector_norm,
    "matrix_norm": sums.matrix_norm,
    "linalg_norm": sums.linalg_norm,
}
"""The same for functions that are no methods."""

_FORMS = {
    "matmul": "D @ x",
    "mm": "D @ x",
    "mv": "D @ x",
    "spmm": "D.spmm(x, reduce)",
    "solve": "spgrad.distributed.solve(D, b, solver)",
    "softmax": "D.softmax(1)",
    "scaled_dot_product_attention": "D.attention(query, key, value)",
    "sum": "D.sum(dim)",
    "norm": "D.norm(p, dim)",
    "vector_norm": "D.norm(ord, dim)",
    "linalg_norm": "D.norm(p, dim)",
    "pow": "D ** exponent",
    "abs": "abs(D)",
    "diagonal": "D.diagonal()",
    "values": "D.values()",
    "from_values": "D.with_values(values)",
    "map": "D.map(fn)",
    "mul": "D * other",
    "div": "D / other",
    "add": "D + other",
    "sub": "D - other",
    "io.save": "spgrad.distributed.save(D, path)",
    "to_dense": "D.full().to_dense()",
    "graph.degree": "D.map(torch.ones_like).sum(1)",
}
"""Public function -> the form of it for a ShardedMatrix."""


_METHOD_FORMS = {
    **dict.fromkeys(("to", "type"), "D.map(lambda values: values.to(dtype))"),
    **{
        name: f"D.map(torch.Tensor.{name})"
        for name in ("bfloat16", "bool", "clone", "double", "float", "half", "int", "long")
    },
    **dict.fromkeys(("dim", "ndim", "numel", "size"), "D.shape"),
    **dict.fromkeys(("numpy", "toarray", "todense"), "D.full().to_dense()"),
    **dict.fromkeys(("nnz", "_nnz"), "D.nse"),
    **dict.fromkeys(("adjoint", "transpose"), "D.T"),
    "requires_grad_": "D.local_values().requires_grad_()",
    "grad": "the gradient of D.local_values(), or of the values that D.with_values was given",
}
"""Attribute of a tensor that is no public function -> the form of it for a ShardedMatrix."""

NO_RIGHT_PRODUCT = (
    "x @ D needs x in columns, and each process has rows of it; D @ x and D.T @ x are accepted. "
    "Write (D.T @ x.T).T with the rows of x.T."
)


def form_of_method(name: str) -> str:
    """What to write for an attribute of a tensor that a ShardedMatrix lacks; "" if nothing is."""
    form, op = _FORMS.get(name) or _METHOD_FORMS.get(name), OPS.get(name)
    if form is None and op is not None and op.module in _BY_VALUE and hasattr(torch, name):
        form = f"torch.{name}(D)"
    if form is not None:
        return f"Use {form}."
    if name.startswith("_") or not hasattr(torch.Tensor, name):
        return ""
    return f"D.full() and D.to_local() are SparseTensors; use their {name!r}."


def answered(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a function of torch gives for a ShardedMatrix."""
    answer = TORCH_FUNCTIONS.get(func)
    name = getattr(answer, "__name__", "")
    name = name if name in OPS else getattr(func, "__name__", str(func))
    exchanged = name in _EXCHANGED and len(args) == 2 and not isinstance(args[0], Sharded)
    if exchanged:
        args = args[::-1]
    D = args[0] if args else None
    if isinstance(D, Sharded):
        op = OPS.get(name)
        if op is not None and op.module in _BY_VALUE and answer is not None:
            return D._with(on_values(D, answer, args[1:], kwargs))
        methods = _EXCHANGED if exchanged else _METHODS
        form = getattr(type(D), methods.get(name, ""), None) or _FUNCTIONS.get(name)
        if form is not None:
            taken = inspect.signature(form)
            given = {k: v for k, v in kwargs.items() if k in taken.parameters or v not in _ABSENT}
            _require_arguments(func, name, taken, (D, *args[1:]), given)
            try:
                return form(D, *args[1:], **given)
            except TypeError as error:
                D.refused = (args[1], error) if exchanged else None
                raise
    if name == "matmul":
        raise UnsupportedError(NO_RIGHT_PRODUCT, function="distributed.ShardedMatrix.matmul")
    call = _FORMS.get(name.removeprefix("linalg_"))
    hint = f"Call {call}, work" if call else "Work"
    raise UnsupportedError(
        f"a ShardedMatrix is given to {resolve_name(func) or name}, which has no form for it; "
        "products, spmm, softmax, attention, sum, norm, scaling by vectors, functions of "
        f"single values and spgrad.distributed.solve are accepted. {hint} on "
        "D.local_values(), or on D.full() if the whole matrix fits in memory.",
        function="distributed",
    )


_ABSENT = None, False
"""Arguments, such as ``keepdim=False``, that torch gives where the caller gave none."""


def _require_arguments(
    func: Any, name: str, taken: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Refuses arguments of torch's function that the form for a ShardedMatrix lacks."""
    try:
        taken.bind(*args, **kwargs)
    except TypeError as error:
        names = ", ".join(list(taken.parameters)[1:])
        call = _FORMS.get(name)
        raise UnsupportedError(
            f"{resolve_name(func) or name} of a ShardedMatrix {error}; {names} are accepted. "
            f"Call {call or 'it'} with these, and the function of torch on what that gives.",
            function="distributed",
        ) from error


def on_values(
    D: Sharded, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> torch.Tensor:
    """The values of function(D); it gets SparseTensors, so that it refuses if f(0) != 0."""

    def run() -> torch.Tensor:
        parts = zip(D.plan.split(D.local_values()), D.plan.patterns, strict=True)
        found = [function(on_pattern(v, pattern), *args, **kwargs) for v, pattern in parts]
        return join([flat_values(A) for A in found])

    if not args and not kwargs:  # which can't be wrong in one process alone
        return run()
    values: list[torch.Tensor] = []

    def check() -> dict[str, object]:
        values.append(run())
        given = {str(i): argument for i, argument in enumerate(args)} | kwargs
        return {"call": function.__name__, **{k: _in_words(v) for k, v in given.items()}}

    D.agree(check)
    return values[0]


def _in_words(argument: object) -> object:
    """What two processes compare of an argument that is no tensor of rows."""
    return checks.describe_kind(argument) if isinstance(argument, torch.Tensor) else argument


def powers(D: Sharded, exponent: Any) -> torch.Tensor:
    """The values of D ** exponent."""

    def power(A: SparseTensor, exponent: Any) -> torch.Tensor:
        if not isinstance(exponent, (int, float, complex)):
            raise ArgumentKindError(
                f"`exponent` is {checks.describe_kind(exponent)}; a number greater than 0 is "
                "accepted. For another exponent of each value call D.map."
            )
        return TORCH_FUNCTIONS[torch.pow](A, exponent)

    return on_values(D, power, (exponent,), {})


def _elsewhere(name: str, operands: tuple[Any, ...]) -> str | None:
    if name.startswith("distributed."):
        return None
    if not any(isinstance(operand, Sharded) for operand in operands):
        return None
    form = _FORMS.get(name.removeprefix("linalg."))
    call = f"Call {form}." if form else "It has no form for one: use D.full() if that fits."
    return (
        "an operand is a ShardedMatrix, whose rows are in several processes; a tensor of this "
        f"process is accepted. {call}"
    )


above.fill(elsewhere=_elsewhere)
