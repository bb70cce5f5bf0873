"""The contenders: spgrad, its backends below Triton, and functions of torch and others."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import spgrad
from benchmarks import attention as composed
from benchmarks.gpu.cases import ADDITIVE, HEADS, Case, in_blocks
from benchmarks.gpu.clock import room
from spgrad import kernels
from spgrad.kernels.declare import NATIVE, REFERENCES
from spgrad.lowering.views import block_cols, block_rows, cols

Run = Callable[[], tuple[Any, ...]]
Make = Callable[[Case], Run]
"""Makes what has to be there before the clock starts, and gives what is timed."""

OWN = "spgrad"
BELOW = "spgrad below Triton"


class UnfitError(Exception):
    """A contender does not take part in a cell; the text says why."""


def _forward(function: Callable[[], Tensor]) -> Run:
    def run() -> tuple[Any, ...]:
        with torch.no_grad():
            return (function(),)

    return run


def _step(function: Callable[[], Tensor], g: Tensor | None, *leaves: Tensor) -> Run:
    """The result and the gradients of the leaves for the cotangent g, or for the result itself."""

    def run() -> tuple[Any, ...]:
        for leaf in leaves:
            leaf.grad = None
        y = function()
        y.backward(y.detach() if g is None else g)
        return (y.detach(), *(leaf.grad for leaf in leaves))

    return run


def entries(result: Any) -> Tensor:
    """The values of a sparse result, and a dense one as it is."""
    if callable(result):
        result = result()
    if isinstance(result, spgrad.SparseTensor):
        return result.values()
    if result.layout == torch.sparse_coo:
        return result.coalesce().values()
    return result if result.layout == torch.strided else result.values()


def _leaf(t: Tensor) -> Tensor:
    return t.detach().requires_grad_()


def _operands(c: Case, *names: str) -> list[Tensor]:
    return [_leaf(c.dense(name)) for name in names]


# ---- spgrad ----------------------------------------------------------------------------------


def _own_matrix(c: Case, values: Tensor | None = None) -> Any:
    values = c.val if values is None else values
    return spgrad.sparse_csr_tensor(c.ptr, c.idx, values, (*c.shape, *values.shape[1:]))


def _own_blocks(c: Case) -> Any:
    stored = in_blocks(c.S, c.block)
    ptr, idx = (
        torch.tensor(t, dtype=torch.int32, device=c.device) for t in (stored.indptr, stored.indices)
    )
    val = torch.tensor(stored.data, dtype=c.dtype, device=c.device)
    return spgrad.sparse_bsr_tensor(ptr, idx, val, c.shape)


def _own(c: Case) -> Run:
    """The public functions."""
    kernel = c.cell.kernel
    if kernel in ("bsr", "bsr_step"):
        A, (x,) = _leaf(_own_blocks(c)), _operands(c, "x")
        run = lambda: A @ x  # noqa: E731
        return _forward(run) if kernel == "bsr" else _step(run, c.dense("g"), A, x)
    if kernel == "heads":
        x = c.dense("x").unflatten(1, (HEADS, -1))
        H = _own_matrix(c, c.dense("by_head"))
        return _forward(lambda: spgrad.spmm(H, x))
    if kernel in ("attention", "attention_step"):
        mask = _own_matrix(c, torch.ones_like(c.val, dtype=torch.bool))
        leaves = _operands(c, "query", "x", "value")
        run = lambda: spgrad.scaled_dot_product_attention(*leaves, mask)  # noqa: E731
        return _forward(run) if kernel == "attention" else _step(run, c.dense("g"), *leaves)
    if kernel in ADDITIVE:
        mask = _own_matrix(c, torch.ones_like(c.val, dtype=torch.bool))
        return _additive(c, lambda *of: spgrad.additive_attention(*of, mask))
    A = _leaf(_own_matrix(c))
    if kernel in ("softmax", "softmax_step"):
        run = lambda: spgrad.softmax(A, 1).values()  # noqa: E731
        return _forward(run) if kernel == "softmax" else _step(run, None, A)
    x, g = _leaf(c.dense("x")), c.dense("g")
    if kernel == "sddmm":
        return _forward(lambda: spgrad.sddmm(A.pattern, g, x).values())
    return _forward(lambda: A @ x) if kernel == "spmm" else _step(lambda: A @ x, g, A, x)


def _kernel_below(name: str) -> Callable[..., Any]:
    return NATIVE.get(name, REFERENCES[name])


def _blocks(c: Case, kernel: Callable[[str], Callable[..., Any]]) -> Run:
    """Products of whole blocks, by the kernels that go by these names."""
    A, x, g, b = _own_blocks(c), c.dense("x"), c.dense("g"), c.block
    view, val = tuple(block_rows(A.pattern))[:3], A.values().reshape(-1)
    spmm, sddmm = kernel("block_spmm"), kernel("block_sddmm")
    if c.cell.kernel == "bsr":
        return lambda: (spmm(*view, val, x, b, b, False),)
    by_cols = tuple(block_cols(A.pattern))[:3]
    return lambda: (
        spmm(*view, val, x, b, b, False),
        sddmm(*view, g, x, b, b, False).view(-1, b, b),
        spmm(*by_cols, val, g, b, b, True),
    )


def _own_blocks_alone(c: Case) -> Run:
    """Whole blocks, where `A @ x` may multiply elements one by one."""
    return _blocks(c, lambda name: getattr(kernels, name))


def _below_attention(c: Case) -> Run:
    view = c.ptr, c.idx, None
    by_cols = cols(_own_matrix(c).pattern)[:3]
    q, k, v, g = (c.dense(name) for name in ("query", "x", "value", "g"))
    scale = c.cell.columns**-0.5
    forward, backward = _kernel_below("attention"), _kernel_below("attention_backward")

    def run() -> tuple[Any, ...]:
        given = [t.float()[None] for t in (q, k, v)]
        out, lse = forward(*view, None, *given, scale)
        found = [out]
        if c.cell.kernel == "attention_step":
            wide = g.float()[None]
            delta = torch.linalg.vecdot(wide, out)
            sums = wide, lse, delta, scale
            found += backward(*view, *by_cols, None, *given, *sums)[:3]
        return tuple(t[0].to(c.dtype) for t in found)

    return run


def _additive(c: Case, attend: Callable[..., Tensor]) -> Run:
    """A function of left, right and x (nodes, heads, columns of one), and its gradients."""
    leaves = left, right, x = _operands(c, "left", "right", "x")
    run = lambda: attend(left, right, x.unflatten(1, (HEADS, -1)))  # noqa: E731
    if c.cell.kernel == "additive_attention":
        return _forward(run)
    return _step(run, c.dense("g").unflatten(1, (HEADS, -1)), *leaves)


def _below_additive(c: Case) -> Run:
    """The reference, which stores scores and weights."""
    view, by_cols = (c.ptr, c.idx, None), cols(_own_matrix(c).pattern)[:3]
    of = None, *(c.dense(name) for name in ("left", "right", "x")), 0.2
    g, split = c.dense("g"), c.cell.kernel == "additive_attention_step"
    forward, backward = (_kernel_below(f"additive_attention{name}") for name in ("", "_backward"))

    def run() -> tuple[Any, ...]:
        out, *more = forward(*view, *of, split)
        grads = backward(*by_cols, *of, g, out, *more)[:3] if split else ()
        return out.unflatten(1, (HEADS, -1)), *grads

    return run


def _below(c: Case) -> Run:
    """The native backend, or the reference where it has no kernel."""
    kernel, (ptr, idx), val = c.cell.kernel, (c.ptr, c.idx), c.val
    if kernel in ("bsr", "bsr_step"):
        return _blocks(c, _kernel_below)
    if kernel in ("attention", "attention_step"):
        return _below_attention(c)
    if kernel in ADDITIVE:
        return _below_additive(c)
    if kernel in ("softmax", "softmax_step"):
        softmax, backward = (_kernel_below(f"segment_softmax{name}") for name in ("", "_backward"))
        if kernel == "softmax":
            return lambda: (softmax(ptr, None, val, False),)

        def both() -> tuple[Any, ...]:
            y = softmax(ptr, None, val, False)
            return y, backward(ptr, None, y, y, False)

        return both
    x, g = c.dense("x"), c.dense("g")
    if kernel == "heads":
        by_head, product = c.dense("by_head"), _kernel_below("heads_spmm")
        return lambda: (product(ptr, idx, None, by_head, x).unflatten(1, (HEADS, -1)),)
    spmm, sddmm = _kernel_below("spmm"), _kernel_below("sddmm")
    if kernel == "spmm":
        return lambda: (spmm(ptr, idx, None, val, x),)
    if kernel == "sddmm":
        return lambda: (sddmm(ptr, idx, None, g, x),)
    view = cols(_own_matrix(c).pattern)[:3]
    return lambda: (
        spmm(ptr, idx, None, val, x), sddmm(ptr, idx, None, g, x), spmm(*view, val, g)
    )  # fmt: skip


# ---- torch -----------------------------------------------------------------------------------


def _csr(c: Case, val: Tensor | None = None) -> Tensor:
    return torch.sparse_csr_tensor(
        c.ptr, c.idx, c.val if val is None else val, c.shape, check_invariants=False
    )


def _coo(c: Case, val: Tensor | None = None) -> Tensor:
    return torch.sparse_coo_tensor(
        c.coordinates, c.val if val is None else val, c.shape,
        is_coalesced=True, check_invariants=False,
    )  # fmt: skip


def _torch(c: Case, make: Callable[..., Tensor], attend: Callable[..., Tensor]) -> Run:
    kernel = c.cell.kernel
    if kernel in ("attention", "attention_step"):
        mask, leaves = make(c, torch.ones_like(c.val)), _operands(c, "query", "x", "value")
        run = lambda: attend(mask, *leaves)  # noqa: E731
        return _forward(run) if kernel == "attention" else _step(run, c.dense("g"), *leaves)
    A, x = _leaf(make(c)), _leaf(c.dense("x"))
    run = lambda: torch.sparse.mm(A, x)  # noqa: E731
    return _step(run, c.dense("g"), A, x) if kernel == "step" else _forward(run)


def _torch_csr(c: Case) -> Run:
    if c.cell.kernel == "sddmm":
        empty, g, x = _csr(c, torch.zeros_like(c.val)), c.dense("g"), c.dense("x")
        return _forward(lambda: torch.sparse.sampled_addmm(empty, g, x.mT, beta=0))
    return _torch(c, _csr, composed.torch_csr)


def _torch_coo(c: Case) -> Run:
    if c.cell.kernel in ("softmax", "softmax_step"):
        A = _leaf(_coo(c))
        run = lambda: torch.sparse.softmax(A, 1)  # noqa: E731
        if c.cell.kernel == "softmax":
            return _forward(run)

        def both() -> tuple[Any, ...]:
            A.grad = None
            y = run()
            y.backward(y.detach())
            return y.detach(), A.grad

        return both
    return _torch(c, _coo, composed.torch_coo)


def _torch_bsr(c: Case) -> Run:
    stored = in_blocks(c.S, c.block)
    ptr, idx = (torch.tensor(t, device=c.device) for t in (stored.indptr, stored.indices))
    val = torch.tensor(stored.data, dtype=c.dtype, device=c.device)
    A = torch.sparse_bsr_tensor(ptr, idx, val, c.shape, check_invariants=False)
    x = c.dense("x")
    return _forward(lambda: A @ x)


def _gathered(c: Case) -> Run:
    """Rows that entries ask for, and torch's dense functions of them."""
    row, col = c.coordinates
    if c.cell.kernel == "sddmm":
        g, x = c.dense("g"), c.dense("x")
        return _forward(lambda: (g[row] * x[col]).sum(1))
    x, weights = c.dense("x").unflatten(1, (HEADS, -1)), c.dense("by_head")
    y = x.new_zeros(c.shape[0], *x.shape[1:])
    return _forward(lambda: torch.index_add(y, 0, row, x[col] * weights[:, :, None]))


def _dense(c: Case) -> Run:
    """Scaled dot products of everything, and a mask."""
    m, n = c.shape
    if m * n * (2 * c.val.element_size() + 5) > room(c.device):
        raise UnfitError("a dense mask does not fit")
    mask = torch.zeros(m, n, dtype=torch.bool, device=c.device)
    mask[tuple(c.coordinates)] = True
    leaves = _operands(c, "query", "x", "value")

    def run() -> Tensor:
        return F.scaled_dot_product_attention(*(t[None, None] for t in leaves), attn_mask=mask)[
            0, 0
        ]

    return _forward(run) if c.cell.kernel == "attention" else _step(run, c.dense("g"), *leaves)


def _flex(c: Case) -> Run:
    """flex_attention, compiled on GPUs, with the blocks of the mask that the graph touches."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    (m, n), device = c.shape, c.device
    if 6 * m * n > room(device):
        raise UnfitError("a dense mask, from which the blocks are found, does not fit")
    dense = torch.zeros(m, n, dtype=torch.bool, device=device)
    dense[tuple(c.coordinates)] = True
    mask = create_block_mask(lambda b, h, i, j: dense[i, j], None, None, m, n, device=device)
    leaves = _operands(c, "query", "x", "value")
    if c.cell.kernel == "attention":
        leaves = [leaf.detach() for leaf in leaves]
    attend: Callable[..., Any] = flex_attention
    if device != "cpu":
        torch._dynamo.reset()  # shapes that were compiled before count against a limit
        attend = torch.compile(flex_attention, dynamic=False)

    def run() -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on CPUs, of what is not compiled
            return attend(*(t[None, None] for t in leaves), block_mask=mask)[0, 0]

    return _forward(run) if c.cell.kernel == "attention" else _step(run, c.dense("g"), *leaves)


def _geometric(c: Case) -> Run:
    """torch_geometric's scatter and softmax over edges."""
    try:
        from torch_geometric.utils import scatter, softmax
    except ImportError as error:
        raise UnfitError("torch_geometric is not installed") from error

    target, source = c.coordinates
    kernel, m = c.cell.kernel, c.shape[0]
    if kernel in ("attention", "attention_step"):
        leaves = q, k, v = _operands(c, "query", "x", "value")
        scale = c.cell.columns**-0.5

        def attend() -> Tensor:
            scores = (q[target] * k[source]).sum(1) * scale
            weights = softmax(scores, target, num_nodes=m)
            return scatter(v[source] * weights[:, None], target, 0, m, "sum")

        return _forward(attend) if kernel == "attention" else _step(attend, c.dense("g"), *leaves)
    val = _leaf(c.val)
    if kernel in ("softmax", "softmax_step"):
        run = lambda: softmax(val, target, num_nodes=m)  # noqa: E731
        return _forward(run) if kernel == "softmax" else _step(run, None, val)
    if kernel == "heads":
        x, weights = c.dense("x").unflatten(1, (HEADS, -1)), c.dense("by_head")
        return _forward(lambda: scatter(x[source] * weights[:, :, None], target, 0, m, "sum"))
    x = _leaf(c.dense("x"))
    run = lambda: scatter(x[source] * val[:, None], target, 0, m, "sum")  # noqa: E731
    return _forward(run) if kernel == "spmm" else _step(run, c.dense("g"), val, x)


def _gat(c: Case) -> Run:
    """What torch_geometric's layer does behind its linear functions."""
    try:
        from torch_geometric.nn import GATConv
    except ImportError as error:
        raise UnfitError("torch_geometric is not installed") from error

    layer = GATConv(1, c.cell.columns // HEADS, HEADS, add_self_loops=False, bias=False)
    edges, size = c.coordinates.flip(0), (c.shape[1], c.shape[0])

    def attend(left: Tensor, right: Tensor, x: Tensor) -> Tensor:
        scores = (right, left)  # of sources and of targets
        weights = layer.edge_updater(edges, alpha=scores, edge_attr=None, size=size)
        return layer.propagate(edges, x=(x, None), alpha=weights, size=size)

    return _additive(c, attend)


_ATTENTION, _SOFTMAX = ("attention", "attention_step"), ("softmax", "softmax_step")
_PRODUCTS = ("spmm", "step")
_OFFERED: dict[str, tuple[Make, Sequence[str]]] = {
    "spgrad kernels of blocks": (_own_blocks_alone, ("bsr", "bsr_step")),
    "torch CSR": (_torch_csr, (*_PRODUCTS, "sddmm", *_ATTENTION, "bsr")),
    "torch COO": (_torch_coo, (*_PRODUCTS, *_SOFTMAX, *_ATTENTION)),
    "torch BSR": (_torch_bsr, ("bsr",)),
    "torch gather": (_gathered, ("sddmm", "heads")),
    "torch dense": (_dense, _ATTENTION),
    "flex_attention": (_flex, _ATTENTION),
    "torch_geometric GATConv": (_gat, ADDITIVE),
    "torch_geometric": (_geometric, (*_PRODUCTS, "heads", *_SOFTMAX, *_ATTENTION)),
}


def contenders(kernel: str) -> dict[str, Make]:
    """Those that have the kernel, spgrad first."""
    others = {name: make for name, (make, those) in _OFFERED.items() if kernel in those}
    return {OWN: _own, BELOW: _below, **others}
