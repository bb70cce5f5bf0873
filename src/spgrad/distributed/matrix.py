"""A sparse matrix whose rows are distributed over processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch.distributed.tensor import DTensor
from torch.overrides import resolve_name

from spgrad.core import checks
from spgrad.core.slots import TORCH_FUNCTIONS, above
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import on_pattern
from spgrad.distributed import dtensors, rowwise
from spgrad.distributed.agreement import agree, agreed, called
from spgrad.distributed.products import product
from spgrad.distributed.sharded import Sharded
from spgrad.errors import ArgumentKindError, UnsupportedError
from spgrad.lowering.convert import flat_values
from spgrad.public import public_as
from spgrad.support import OPS

_BY_VALUE = ("elementwise.unary", "elementwise.dtypes")
"""Modules whose functions change each value by itself."""


class ShardedMatrix(Sharded):
    """A sparse matrix (m, k) of which each process holds some rows.

    `distribute`, `from_local` and `load` make it. All processes call the same functions in the same
    order; if the arguments of one process are wrong, all of them raise.

    A product ``D @ x`` sends a row of x only to the processes that have entries in its column.
    Gradients travel back the same way. "Own" rows or columns are those of this process.

    Attributes:
        plan: The pattern of the own rows, and which rows of x travel.
        transposed: True for the transpose of the stored matrix.
    """

    def values(self) -> DTensor:
        """The values as a DTensor (nse,) with ``Shard(0)``, in the order of the whole CSR matrix.

        The shares are those of any DTensor, so optimizers, `torch.nn.utils.clip_grad_norm_` and
        `torch.distributed.checkpoint` take them as they are. A collective.
        """
        return dtensors.from_rows(self._values, dtensors.entries(self.plan), self.plan)

    @public_as("distributed.ShardedMatrix.with_values")
    def with_values(self, values: torch.Tensor) -> ShardedMatrix:
        """The matrix with other values on the same pattern, with their graph.

        Args:
            values: A DTensor (nse,) as `values` gives it, or a dense tensor in the order of
                `local_values`.

        Raises:
            TypeError, ValueError: In all processes, if the kind or the size is another.
        """

        def check() -> dict[str, object]:
            checked = dtensors.require_dense("values", values)
            wanted = self.nse if isinstance(checked, DTensor) else self.plan.nse
            if tuple(checked.shape) != (wanted,):
                raise checks.bad_shape(
                    "values", tuple(checked.shape), f"({wanted},)", "Take those of D.values()."
                )
            return {"call": "with_values", "values": dtensors.describe(checked, ())}

        agree(self.plan.group, check, self.device)
        if isinstance(values, DTensor):
            values = dtensors.to_rows(values, dtensors.entries(self.plan), self.plan)
        return self._with(values)

    @public_as("distributed.ShardedMatrix.matmul")
    def matmul(self, x: torch.Tensor) -> torch.Tensor:
        """``D @ x``, with x distributed like the columns of D and the result like its rows.

        Args:
            x: The own rows (own columns of D, n), or (own columns,), as a dense tensor; or a
                DTensor (k, n) with ``Shard(0)`` or ``Replicate()``.

        Returns:
            The own rows of the result; for a DTensor x, a DTensor with ``Shard(0)``.

        Gradient:
            Of x: its parts travel back to their owners, which add them up. Of the values: nothing
            more travels.

        Cost:
            O(nse n) with the nse of the process that has most entries, and the rows of x that
            travel. A DTensor is moved to the shares of D and back. The gradient of a replicated x
            is replicated too: all its rows travel.

        Raises:
            TypeError, ValueError: In all processes, if an operand of one does not fit.
        """
        dtensors.agree_on(self, "x", x)
        return dtensors.on_rows(self._product, x, self)

    def _product(self, x: torch.Tensor) -> torch.Tensor:
        columns = x.unsqueeze(1) if x.dim() == 1 else x
        y = product(self._values, columns.contiguous(), self.plan, self.transposed)
        return y.squeeze(1) if x.dim() == 1 else y

    def __matmul__(self, x: torch.Tensor) -> torch.Tensor:
        return self.matmul(x)

    def __getitem__(self, index: object) -> NoReturn:
        raise UnsupportedError(
            "a ShardedMatrix has no form of D[...], because rows are in different processes; "
            "products, sums and functions of single values are accepted. Take D.to_local()[...] "
            "for rows of this process, or D.full()[...].",
            function="distributed.ShardedMatrix",
        )

    def spmm(self, x: torch.Tensor, reduce: str = "sum") -> torch.Tensor:
        """`spgrad.spmm` on shards: the sum, "mean", "amax" or "amin" of a_ij x_j over each row."""
        return self.matmul(x) if reduce == "sum" else rowwise.reduced(self, x, reduce)

    def softmax(self, dim: int = 1) -> ShardedMatrix:
        """Softmax of each row over its specified elements."""
        return rowwise.softmax(self, dim)

    def attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float | None = None,
    ) -> torch.Tensor:
        """`spgrad.scaled_dot_product_attention` of own rows, with D for the mask."""
        return rowwise.attention(self, query, key, value, scale)

    def sum(self, dim: int | None = None) -> torch.Tensor:
        """Sums of the own rows (`dim` 1) or own columns (0); with None, of all elements.

        The sum of all elements is a replicated DTensor of shape ().
        """
        return rowwise.total(self, dim)

    def norm(self) -> torch.Tensor:
        """The Frobenius norm, as a replicated DTensor of shape ()."""
        return rowwise.norm(self)

    def add_identity(self, alpha: float | torch.Tensor = 1.0) -> ShardedMatrix:
        """D + alpha I for a square D whose pattern has the whole diagonal."""
        return rowwise.add_identity(self, alpha)

    def diagonal(self) -> torch.Tensor:
        """The own rows of the diagonal of a square matrix; 0 where it has no element."""
        return rowwise.diagonal(self)

    def to_local(self) -> SparseTensor:
        """The own rows as a CSR SparseTensor (own rows, k) with the columns of the whole matrix."""
        return dtensors.local_rows(self)

    def full(self, rank: int | None = None) -> SparseTensor | None:
        """The whole matrix as CSR, on every process or on one; a collective. Not differentiable.

        Args:
            rank: The process that gets it; the others get None. None for every process.
        """
        return dtensors.full(self, rank)

    full_tensor = full

    @public_as("distributed.ShardedMatrix.gather")
    def gather(self, y: torch.Tensor) -> torch.Tensor:
        """All rows of a result on every process, in the order of the whole matrix; a collective."""
        return dtensors.gather_rows(self, y)

    @public_as("distributed.ShardedMatrix.scatter")
    def scatter(self, x: torch.Tensor) -> torch.Tensor:
        """The own rows of x (k, n), as ``D @ x`` takes them, where each process has the whole x."""

        def check() -> dict[str, object]:
            dense = dtensors.require_dense("x", x)
            if dense.shape[:1] != (self.shape[1],):
                raise checks.bad_shape(
                    "x", tuple(x.shape), f"({self.shape[1]}, n)", "D.scatter takes all rows of x."
                )
            return {"call": "scatter", "x": dtensors.describe(dense, tuple(dense.shape[1:]))}

        return agreed(self.plan.group, check, self.device, lambda: x[self.column_ids])

    @public_as("distributed.ShardedMatrix.mul")
    def __mul__(self, other: float | torch.Tensor | ShardedMatrix) -> ShardedMatrix:
        return self._with(rowwise.scaled(self, other, torch.mul))

    __rmul__ = __mul__

    @public_as("distributed.ShardedMatrix.div")
    def __truediv__(self, other: float | torch.Tensor) -> ShardedMatrix:
        return self._with(rowwise.scaled(self, other, torch.div))

    @public_as("distributed.ShardedMatrix.add")
    def __add__(self, other: ShardedMatrix) -> ShardedMatrix:
        return self._with(self._joined(other, torch.add))

    @public_as("distributed.ShardedMatrix.sub")
    def __sub__(self, other: ShardedMatrix) -> ShardedMatrix:
        return self._with(self._joined(other, torch.sub))

    def _joined(self, other: ShardedMatrix, by: Callable[..., torch.Tensor]) -> torch.Tensor:
        def check() -> dict[str, object]:
            return {"call": by.__name__, "other": self._same(other).dtype}

        def run() -> torch.Tensor:
            return by(self._values, other._values)

        return agreed(self.plan.group, check, self.device, run)

    def __neg__(self) -> ShardedMatrix:
        return self._with(-self._values)

    @public_as("distributed.ShardedMatrix.map")
    def map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> ShardedMatrix:
        """The matrix with `function` applied to each value, such as torch.exp.

        Raises:
            TypeError, ValueError: In all processes: `function` raised in one of them, gave no dense
                tensor or one of another shape, or the dtypes of its results differ.
        """
        found: list[torch.Tensor] = []

        def check() -> dict[str, object]:
            values = called("function", function, self._values)
            found.append(values)
            wanted = f"a result of shape {tuple(self._values.shape)}"
            hint = "It is applied to the values one by one."
            if not isinstance(values, torch.Tensor) or isinstance(values, (SparseTensor, DTensor)):
                raise ArgumentKindError(
                    f"`function` gave {checks.describe_kind(values)}; {wanted} is accepted. {hint}"
                )
            if values.shape != self._values.shape:
                raise checks.bad_shape("function", tuple(values.shape), wanted, hint)
            facts = values.dtype, torch.is_grad_enabled() and values.requires_grad
            return {"call": "map", "function": "a function that gives {}, {}".format(*facts)}

        agree(self.plan.group, check, self.device)
        return self._with(found[0])

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs torch's products, softmax, sums and elementwise functions; refuses all others."""
        answer = TORCH_FUNCTIONS.get(func)
        name = getattr(answer, "__name__", "")
        name = name if name in OPS else getattr(func, "__name__", str(func))
        D = args[0] if args else None
        if isinstance(D, ShardedMatrix):
            op = OPS.get(name)
            if op is not None and op.module in _BY_VALUE and answer is not None:
                return D._with(D._on_values(answer, args[1:], kwargs or {}))
            if name in ("matmul", "mm", "mv", "softmax", "sum", "mul", "div", "add", "sub"):
                method = getattr(cls, name, None) or getattr(cls, _OPERATORS.get(name, name))
                return method(D, *args[1:], **(kwargs or {}))
        if name == "matmul":
            raise UnsupportedError(
                "x @ D needs x in columns, and each process has rows of it; D @ x and D.T @ x "
                "are accepted. Write (D.T @ x.T).T with the rows of x.T.",
                function="distributed.ShardedMatrix.matmul",
            )
        form = _FORMS.get(name.removeprefix("linalg_"))
        hint = f"Call {form}, work" if form else "Work"
        raise UnsupportedError(
            f"a ShardedMatrix is given to {resolve_name(func) or name}, which has no form for it; "
            "products, spmm, softmax, attention, sum, norm, scaling by vectors, functions of "
            f"single values and spgrad.distributed.solve are accepted. {hint} on "
            "D.local_values(), or on D.full() if the whole matrix fits in memory.",
            function="distributed",
        )

    def _on_values(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> torch.Tensor:
        """The values of function(D); it gets SparseTensors, so that it refuses if f(0) != 0."""

        def run() -> torch.Tensor:
            parts = zip(self.plan.split(self._values), self.plan.patterns, strict=True)
            found = [function(on_pattern(v, pattern), *args, **kwargs) for v, pattern in parts]
            return torch.cat([flat_values(A) for A in found])

        if not args and not kwargs:  # which can't be wrong in one process alone
            return run()
        values: list[torch.Tensor] = []

        def check() -> dict[str, object]:
            values.append(run())
            given = {str(i): argument for i, argument in enumerate(args)} | kwargs
            return {"call": function.__name__, **{k: _in_words(v) for k, v in given.items()}}

        agree(self.plan.group, check, self.device)
        return values[0]

    def __repr__(self) -> str:
        plan, world = self.plan, len(self.plan.entries)
        mean = self.nse / world
        balance = max(plan.entries) / mean if mean else 1.0
        rank = plan.rows.rank
        grad = ", requires_grad=True" if self.requires_grad else ""
        return (
            f"ShardedMatrix(shape={tuple(self.shape)}, nse={self.nse}, dtype={self.dtype}, "
            f"mesh={tuple(self.mesh.shape)} {self.mesh.device_type}, rank {rank}: "
            f"{tuple(self.local_shape)}, nse={plan.nse}, rows that arrive="
            f"{plan.exchange.arriving}, most entries over mean={balance:.2f}{grad})"
        )


def _in_words(argument: object) -> object:
    """What two processes compare of an argument that is no tensor of rows."""
    return checks.describe_kind(argument) if isinstance(argument, torch.Tensor) else argument


_OPERATORS = {
    "mm": "matmul",
    "mv": "matmul",
    "mul": "__mul__",
    "div": "__truediv__",
    "add": "__add__",
    "sub": "__sub__",
}


_FORMS = {
    "matmul": "D @ x",
    "mm": "D @ x",
    "mv": "D @ x",
    "spmm": "D.spmm(x, reduce)",
    "solve": "spgrad.distributed.solve(D, b, solver)",
    "softmax": "D.softmax(1)",
    "scaled_dot_product_attention": "D.attention(query, key, value)",
    "sum": "D.sum(dim)",
    "norm": "D.norm()",
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


def agree_on_sharded(D: Any, check: Callable[[], dict[str, object]], hint: str) -> None:
    """`agree` in a call that takes D, also where D of one process is no ShardedMatrix.

    That process does not know the group of the others, so it tells all processes.
    """
    sharded = isinstance(D, ShardedMatrix)

    def checked() -> dict[str, object]:
        if not sharded:
            what = checks.describe_kind(D)
            raise ArgumentKindError(f"`D` is {what}; a ShardedMatrix is accepted. {hint}")
        return check()

    agree(D.plan.group if sharded else None, checked, D.device if sharded else "cpu")


def _elsewhere(name: str, operands: tuple[Any, ...]) -> str | None:
    if name.startswith("distributed."):
        return None
    if not any(isinstance(operand, ShardedMatrix) for operand in operands):
        return None
    form = _FORMS.get(name)
    call = f"Call {form}." if form else "It has no form for one: use D.full() if that fits."
    return (
        "an operand is a ShardedMatrix, whose rows are in several processes; a tensor of this "
        f"process is accepted. {call}"
    )


above.fill(elsewhere=_elsewhere)
