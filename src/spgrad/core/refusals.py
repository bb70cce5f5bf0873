"""Errors for what torch can't do with a SparseTensor: the function called, what to do instead."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import FrameType
from typing import Any, NoReturn

import torch

from spgrad.errors import ArgumentKindError, ArgumentValueError, StateError, UnsupportedError

_TRANSFORMS = ("torch._functorch.apis", "torch._functorch.eager_transforms")
_SHARDED = ("torch.distributed.fsdp", "torch.distributed.tensor")
_DISTRIBUTED = "torch.distributed"
_GRADCHECK = "torch.autograd.gradcheck"


def no_sparse_form(operation: Any) -> UnsupportedError:
    """The error for an operation of torch's dispatcher that SparseTensor does not answer."""
    called, within = _called(sys._getframe(1))
    name = torch.overrides.resolve_name(called) if called is not None else None
    name = (name or "").removesuffix(".__get__")
    what = f"`{name}` (which calls `{operation}`)" if name else f"torch operation `{operation}`"
    why = ", because the zeros count and the result would be dense" if _fills(name) else ""
    return UnsupportedError(
        f"{what} has no form for a SparseTensor{why}; the operations that `python -m spgrad ops` "
        f"lists are accepted. {_way_out(operation, name, within)}"
    )


SCRIPTED = torch._C.ScriptMethod
"""The class of the methods of a module of torch.jit.script or torch.jit.trace."""
SCRIPTED_FUNCTION = torch._C.ScriptFunction
"""The class of their functions."""


def scripted(method: Any) -> UnsupportedError:
    """The error for a compiled method, which would take a SparseTensor for a dense tensor."""
    return UnsupportedError(
        f"`{method.name}` of torch.jit is called with a SparseTensor, which TorchScript "
        "takes for a dense tensor; native sparse tensors are accepted. Pass spgrad.to_torch(A), or "
        "compile the program with torch.compile, which takes SparseTensors."
    )


def called_from(frame: FrameType | None) -> bool:
    """True if a torch function that accepts SparseTensors made the call, not C++ on its own."""
    return _called(frame)[0] is not None


def _called(frame: FrameType | None) -> tuple[Any | None, str]:
    """The torch function that the user called, and the module of torch from which it was called.

    The module is one that distributes tensors or checks gradients, if only torch's code is between
    it and the call, or one that transforms functions (torch.func); "" for neither. Only the frames
    of the stack tell this, because torch clears its stack of transforms before it dispatches.
    """
    called, within, by_torch = None, "", True
    while frame is not None:
        if called is None and frame.f_code.co_name == "__torch_function__":
            called = frame.f_locals.get("func")
        module = frame.f_globals.get("__name__", "")
        by_torch = by_torch and module.startswith(("torch.", "spgrad."))
        if not within:
            direct = (*_SHARDED, _DISTRIBUTED, _GRADCHECK) if by_torch else ()
            names = (*direct, *_TRANSFORMS)
            within = next((name for name in names if module.startswith(name)), "")
        frame = frame.f_back
    return called, within


_SOME = "Use spgrad.linalg.{}(A, k) for k of them."
_FACTOR = "Use spgrad.linalg.factor(A), whose factors are sparse."
_ORDERED = {
    "torch.sort": "Use spgrad.sort(A) for its specified elements alone, or torch.topk(A, k).",
    "torch.argsort": "Use spgrad.argsort(A) for its specified elements alone, or torch.topk(A, k).",
    "torch.msort": "Use spgrad.sort(A, 0) for its specified elements alone.",
    "torch.cumsum": "Use spgrad.cumsum(A) for its specified elements alone.",
}
"""What takes the place of functions whose result counts the zeros and has an element for each."""
_INSTEAD = {
    **_ORDERED,
    "torch.nn.functional.mse_loss": "Use (A - B).square().mean(), in which the zeros count.",
    **dict.fromkeys(("torch.gather", "torch.take"), "Use A[rows, columns] for single elements."),
    **dict.fromkeys(
        ("torch.index_put", "torch.scatter"), "Assign to specified elements: A[rows, columns] = v."
    ),
    "torch.__contains__": "Use (A == x).any() for a number x other than 0.",
    "torch.__reversed__": "Use A.flip(0).",
    "torch.dropout": "Use torch.nn.functional.dropout(A, p, training).",
    "torch.resize": "Use A.sparse_resize_(size, sparse_dim, dense_dim).",
    **{
        f"torch.new_{name}": f"Use A.values().new_{name}(size) for a dense tensor."
        for name in ("zeros", "ones", "full", "empty")
    },
    "torch.fill": "Use spgrad.full_like(A, value) for the specified elements.",
    "torch.fill_diagonal": "Use spgrad.set_diag(A, value).",
    "torch.masked_fill": "Use torch.where(mask, value, A) with a sparse mask.",
    **dict.fromkeys(("torch.linalg.eigh", "torch.linalg.eigvalsh"), _SOME.format("eigsh")),
    **dict.fromkeys(
        ("torch.linalg.svd", "torch.linalg.svdvals", "torch.svd"), _SOME.format("svds")
    ),
    **dict.fromkeys(
        ("torch.linalg.cholesky", "torch.cholesky", "torch.linalg.lu_factor", "torch.linalg.lu"),
        _FACTOR,
    ),
    "torch.linalg.pinv": "Use spgrad.linalg.lstsq(A, b).",
    "torch.linalg.qr": "Use spgrad.linalg.lstsq(A, b) for least squares.",
    "torch.matrix_exp": "Use spgrad.expm_multiply(A, x).",
    "torch.linalg.matrix_exp": "Use spgrad.expm_multiply(A, x).",
}
"""What takes the place of functions that have no sparse form."""


def _function(name: str) -> str:
    """The name of the function of torch that a method has, also in place."""
    name = name.replace("torch.Tensor.", "torch.")
    return name if name.endswith("__") else name.removesuffix("_")


def _fills(name: str) -> bool:
    """True if the dense meaning of a function gives a number for each zero."""
    return _function(name) in _ORDERED


def _way_out(operation: Any, name: str, within: str) -> str:
    """Says what the user can call instead."""
    aten = operation._schema.name.partition("::")[2]
    if within in _SHARDED:
        return (
            "Call spgrad.nn.parametrize_values(module) before its parameters are distributed: it "
            "makes the values the parameters."
        )
    if operation.namespace == "c10d" or within == _DISTRIBUTED:
        return (
            "Where all processes have the same pattern, let them exchange the values: "
            "all_reduce(A.values())."
        )
    if within == _GRADCHECK:
        return (
            "torch.autograd.gradcheck changes one number of a dense tensor at a time: check a "
            "function of the values, which makes the tensor inside: spgrad.from_values(values, A)."
        )
    if within in _TRANSFORMS:
        return (
            "In torch.func, transform a function of the values, which makes the tensor inside: "
            "spgrad.from_values(values, A). For a module, call "
            "spgrad.nn.parametrize_values(module) first."
        )
    instead = _INSTEAD.get(_function(name))
    if instead is not None:
        return f"{instead} Or call it with A.to_dense() if the dense tensor fits in memory."
    if aten.startswith(("as_strided", "set_", "unfold")):
        return (
            "A SparseTensor has no memory but that of its parts: take A.values() and "
            "A.pattern.indices."
        )
    if torch.Tag.nondeterministic_seeded in operation.tags:
        return (
            "Draw random values, and join them with the pattern: "
            "spgrad.from_values(torch.rand_like(A.values()), A)."
        )
    if torch.Tag.pointwise in operation.tags:
        function = name if name.startswith("torch.") and "Tensor" not in name else "fn"
        return (
            f"Apply it to the specified elements alone with spgrad.map(A, {function}), or to all "
            "of A.to_dense()."
        )
    return "Work on A.values(), or on A.to_dense() if the dense tensor fits in memory."


_ARRAYS = (
    "Call it on A.to_dense(), or on the components A.values() and A.coo_indices(); "
    "spgrad.to_scipy(A) is a sparse array."
)


def no_dense_form(name: str) -> ArgumentKindError:
    """The error for a request of a dense array."""
    return ArgumentKindError(
        f"`A` is a SparseTensor; a dense tensor is accepted. {_ARRAYS}", function=name
    )


def no_array() -> Any:
    """Raises if NumPy asks for an array; only SciPy's product gets an array, without dimensions.

    The product `S @ A` with a SciPy sparse array S converts A with NumPy. If that gives an object
    array without dimensions, SciPy leaves the product to `A.__rmatmul__`.
    """
    caller = sys._getframe(2)
    module = caller.f_globals.get("__name__", "")
    if caller.f_code.co_name == "_matmul_dispatch" and module.startswith("scipy.sparse"):
        return sys.modules["numpy"].empty((), dtype=object)
    raise ArgumentKindError(
        "NumPy asked a SparseTensor for a dense array, as numpy.asarray(A) and S < A of SciPy do; "
        "a dense tensor is accepted. Use A.to_dense().numpy(), the components A.values().numpy() "
        "and A.coo_indices().numpy(), or spgrad.to_scipy(A); make an operand a tensor with "
        "torch.as_tensor(array), or spgrad.from_scipy for a sparse array."
    )


ABSENT = {
    **dict.fromkeys(("nnz", "getnnz"), "A.nse"),
    **dict.fromkeys(("toarray", "todense"), "A.to_dense()"),
    **{f"to{name}": f"A.to_sparse_{name}()" for name in ("coo", "csr", "csc")},
    **dict.fromkeys(("row", "col", "coo", "coords"), "A.coo_indices()"),
    "tobsr": "A.to_sparse_bsr(blocksize)",
    "indptr": "A.crow_indices() of CSR, A.ccol_indices() of CSC",
    "csr": "A.crow_indices(), A.col_indices() and A.values()",
    "csc": "A.ccol_indices(), A.row_indices() and A.values()",
    "val": "A.values()",
    "set_value": "spgrad.from_values(values, A)",
    "fill_value": "spgrad.full_like(A, value)",
    **dict.fromkeys(("sparse_sizes", "sparse_size", "sizes"), "A.shape"),
    "density": "A.nse / A.numel()",
    "astype": "A.to(dtype)",
    "getrow": "A[i : i + 1]",
    "getcol": "A[:, j : j + 1]",
    "sort_indices": "A.coalesce() of COO; other layouts are sorted",
    "power": "A ** n",
    "eliminate_zeros": "spgrad.prune(A)",
    "sum_duplicates": "A.coalesce() of COO; other layouts have no repeated entries",
    "setdiag": "spgrad.set_diag(A, values)",
    "smax": "A.amax(dim, specified=True)",
    "smin": "A.amin(dim, specified=True)",
    "smean": "A.mean(dim, specified=True)",
    "to_scipy": "spgrad.to_scipy(A)",
    "to_torch": "spgrad.to_torch(A)",
    "to_torch_sparse_csr_tensor": "spgrad.to_torch(A)",
    "to_symmetric": "spgrad.graph.to_symmetric(A)",
}
"""What SparseTensor has for attributes of the classes of SciPy, torch_sparse and DGL."""


class Absent:
    """An attribute that a class lacks; its error says what to use.

    Dynamo cannot read the attributes of a tensor whose class has a `__getattr__`.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, A: object, owner: type) -> NoReturn:
        name = self._name
        says = f"{owner.__name__!r} object has no attribute {name!r}. Use {ABSENT[name]}."
        raise AttributeError(says, name=name, obj=A)


def no_pattern(pattern: object, others: Iterable[str]) -> ArgumentKindError:
    """The error for a call of the class with something else than values and a pattern."""
    name = next(iter(others), "pattern")
    what = "no argument of the class"
    accepted = "values and a Pattern are"
    if name == "pattern":
        what = "missing" if pattern is None else f"of class {type(pattern).__name__}"
        accepted = "a Pattern is"
    return ArgumentKindError(
        f"`{name}` is {what}; {accepted} accepted. Make a SparseTensor with spgrad.from_edges, "
        "spgrad.sparse_coo_tensor, spgrad.sparse_csr_tensor, spgrad.from_dense or "
        "spgrad.from_scipy.",
        function="SparseTensor",
    )


def no_values(values: object, requires_grad: object) -> ArgumentKindError:
    """The error for a call of the class whose values are no tensor, or whose flag is no bool."""
    name, got, accepted = "values", values, "a dense tensor"
    if isinstance(values, torch.Tensor):
        name, got, accepted = "requires_grad", requires_grad, "True or False"
    return ArgumentKindError(
        f"`{name}` is of class {type(got).__name__}; {accepted} is accepted. Make a SparseTensor "
        "of lists, arrays or edges with spgrad.sparse_coo_tensor, spgrad.sparse_csr_tensor or "
        "spgrad.from_edges, and of new values for a pattern with spgrad.from_values.",
        function="SparseTensor",
    )


def no_values_of_pattern(got: tuple[int, ...], accepted: tuple[int, ...]) -> ArgumentValueError:
    """The error for a call of the class whose values are not as many as the pattern's elements."""
    return ArgumentValueError(
        f"`values` has shape {got}; {accepted} is accepted for this pattern. Give one value for "
        "each specified element, with spgrad.from_values for a gradient and for batches.",
        function="SparseTensor",
    )


def two_products(other: object) -> ArgumentKindError:
    """The error for ``*`` with a matrix of SciPy."""
    return ArgumentKindError(
        f"`other` is a {type(other).__name__} of SciPy, whose * is the product of matrices; a "
        "sparse array of SciPy or a tensor is accepted. Write A @ other for that product, or "
        "convert it with spgrad.from_scipy for the product of elements.",
        function="mul",
    )


def require_layout_of_accessor(A: Any, name: str, *, rows: bool) -> None:
    """Refuses the accessor `name` of a compressed layout for another layout."""
    pattern = A._pattern
    if pattern.is_coo or pattern.compressed_by_rows is not rows:
        accepted = "csr and bsr" if rows else "csc and bsc"
        raise ArgumentKindError(
            f"`A` has layout {pattern.name}; {accepted} have {name}. Convert with "
            f"A.{'to_sparse_csr' if rows else 'to_sparse_csc'}(), or take A.coo_indices(), the row "
            "and column of each value in any layout.",
            function=name,
        )


def require_coo(A: Any, name: str) -> None:
    """Refuses the accessor `name` of COO for another layout."""
    if not A._pattern.is_coo:
        raise ArgumentKindError(
            f"`A` has layout {A._pattern.name}; coo has {name}. Convert with A.to_sparse_coo(), or "
            "take A.coo_indices(), the row and column of each value in any layout.",
            function=name,
        )


def no_memory(name: str) -> UnsupportedError:
    """The error for a function that needs the one block of memory of a dense tensor."""
    return UnsupportedError(
        "`A` is a SparseTensor, whose elements are not one block of memory; a dense tensor is "
        "accepted. Pass its parts, A.values() and A.pattern.indices, or A.to_dense().",
        function=name,
    )


jit_state = torch._C._get_tracing_state
"""Gives what torch.jit.trace records calls with, or None where it does not."""


def jit_traces() -> bool:
    """Whether torch.jit.trace records calls; Dynamo knows that it does not while Dynamo reads."""
    return jit_state() is not None


def refuse_tracers(
    function: str = "",
    got: str = "a SparseTensor, in the module or as an argument",
    instead: str = (
        "dense tensors are accepted. Export a module that holds A.to_dense() in its place."
    ),
) -> None:
    """Raises while torch.onnx.export or torch.jit.trace reads a module or calls `function`.

    They record operations on dense tensors, and would keep the elements of this call as constants.
    """
    onnx = sys.modules.get("torch.onnx")
    if onnx is not None and onnx.is_in_onnx_export():
        raise UnsupportedError(
            f"torch.onnx.export got {got}, for which ONNX has no operations; {instead}",
            function=function,
        )
    if jit_traces():
        raise UnsupportedError(
            "torch.jit.trace records the call, and would take the elements of sparse tensors for "
            "constants; calls outside of it are accepted. Use torch.compile or torch.export.",
            function=function,
        )


_UNWRAPPING = "torch._functorch._aot_autograd.subclass_parametrization"


def refuse_unwrapping(A: torch.Tensor) -> None:
    """Raises where the caller's caller makes a parameter of each inner tensor, as AOTInductor does.

    The indices can't require a gradient.
    """
    if sys._getframe(2).f_globals.get("__name__") == _UNWRAPPING and A.requires_grad:
        raise StateError(  # torch passes over a NotImplementedError here
            f"AOTInductor got a SparseTensor parameter of shape {tuple(A.shape)} that requires a "
            "gradient; one that does not is accepted. Call module.requires_grad_(False) before "
            "torch.export.export: compiled packages are for inference."
        )


def refuse_script(module: object) -> NoReturn:
    """Raises for torch.jit.script, which calls `__prepare_scriptable__` of each module first."""
    raise UnsupportedError(
        f"torch.jit.script got a module with {type(module).__name__}, whose code TorchScript can't "
        "read; modules without sparse layers are accepted. Use torch.compile or torch.export."
    )
