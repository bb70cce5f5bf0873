"""A sparse matrix whose rows are distributed over processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch.distributed.tensor import DTensor

from spgrad.core import checks
from spgrad.core.tensor import SparseTensor
from spgrad.distributed import dtensors, rowwise
from spgrad.distributed.agreement import agree, called
from spgrad.distributed.functions import sums, torch_names, whole
from spgrad.distributed.functions.refused import Refused
from spgrad.distributed.products import product
from spgrad.distributed.sharded import Sharded, collective, kind_in_words
from spgrad.errors import ArgumentKindError, UnsupportedError
from spgrad.ops.products.broadcast import are_bools, as_counts, as_truth
from spgrad.public import public_as
from spgrad.torch_protocol.autocast import in_its_dtype


class ShardedMatrix(Refused, Sharded):
    """A sparse matrix (m, k) of which each process holds some rows.

    `distribute`, `from_local` and `load` make it. All processes call the same functions in the same
    order; if the arguments of one process are wrong, all of them raise.

    A product ``D @ x`` sends a row of x only to the processes that have entries in its column.
    Gradients travel back the same way. "Own" rows or columns are those of this process.

    Attributes:
        plan: The pattern of the own rows, and which rows of x travel.
        transposed: True for the transpose of the stored matrix.
    """

    __array_ufunc__ = None
    """NumPy leaves ``array * D`` to D; else it would multiply D by each element."""

    def values(self) -> DTensor:
        """The values as a DTensor (nse,) with ``Shard(0)``, in the order of the whole CSR matrix.

        The shares are those of any DTensor, so optimizers, `torch.nn.utils.clip_grad_norm_` and
        `torch.distributed.checkpoint` take them as they are. A collective.
        """
        return dtensors.from_rows(self._values, dtensors.entries(self.plan), self.plan)

    @collective("distributed.ShardedMatrix.with_values")
    def with_values(self, values: torch.Tensor) -> ShardedMatrix:
        """The matrix with other values on the same pattern, with their graph.

        Args:
            values: A DTensor (nse,) as `values` gives it, or a dense tensor in the order of
                `local_values`.

        Raises:
            TypeError, ValueError: In all processes, if the kind or the size is another.
        """

        def check() -> dict[str, object]:
            checked = dtensors.require_dense("values", values, self)
            wanted = self.nse if isinstance(checked, DTensor) else self.plan.nse
            if tuple(checked.shape) != (wanted,):
                raise checks.bad_shape(
                    "values", tuple(checked.shape), f"({wanted},)", "Take those of D.values()."
                )
            if isinstance(checked, DTensor):
                dtensors.require_placement("values", checked, self.plan)
            return {"call": "with_values", "values": dtensors.describe(checked, ())}

        self.agree(check)
        return self._with(dtensors.own_values(values, self.plan))

    @collective("distributed.ShardedMatrix.matmul")
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
        D, x = self.in_autocast(), in_its_dtype(x)
        dtensors.agree_on(D, "x", x, "matmul")
        return dtensors.on_rows(D._product, x, D)

    def _product(self, x: torch.Tensor) -> torch.Tensor:
        columns, values = x.unsqueeze(1) if x.dim() == 1 else x, self._values
        if are_bools(values):  # is true where a sum of the products as numbers is not 0
            columns, values = (as_counts("x", t) for t in (columns, values))
        y = product(values, columns.contiguous(), self.plan, self.transposed)
        y = as_truth(y) if are_bools(x) else y
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

    @collective("distributed.ShardedMatrix.spmm")
    def spmm(self, x: torch.Tensor, reduce: str = "sum") -> torch.Tensor:
        """`spgrad.spmm` on shards: the sum, "mean", "amax" or "amin" of a_ij x_j over each row."""
        if reduce == "sum":
            return self.matmul(x)
        return rowwise.reduced(self.in_autocast(), in_its_dtype(x), reduce)

    @collective("distributed.ShardedMatrix.softmax")
    def softmax(self, dim: int = 1) -> ShardedMatrix:
        """Softmax of each row over its specified elements."""
        return rowwise.softmax(self, dim)

    @collective("distributed.ShardedMatrix.attention")
    def attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float | None = None,
    ) -> torch.Tensor:
        """`spgrad.scaled_dot_product_attention` of own rows, with D for the mask.

        Args:
            query: The own rows (own rows of D, d), or of several heads (heads, own rows of D, d);
                or a DTensor (m, d).
            key: The own rows (own columns of D, d), with the heads of the query; or a DTensor.
            value: The own rows (own columns of D, e), likewise.
            scale: Factor of the scores; d^-1/2 if it is None.

        Returns:
            The own rows (own rows of D, e), or (heads, own rows of D, e); for a DTensor query, a
            DTensor.

        Gradient:
            Of all operands and of the values of D. Keys and values travel, and their gradients
            travel back.
        """
        q, k, v = map(in_its_dtype, (query, key, value))
        return rowwise.attention(self.in_autocast(), q, k, v, scale)

    @collective("distributed.ShardedMatrix.sum")
    def sum(self, dim: int | None = None) -> torch.Tensor:
        """Sums of the own rows (`dim` 1) or own columns (0); with None, of all elements.

        The sum of all elements is a replicated DTensor of shape ().
        """
        return sums.total(self, dim)

    @collective("distributed.ShardedMatrix.norm")
    def norm(self, p: float | str | None = "fro", dim: int | None = None) -> torch.Tensor:
        """`spgrad.norm` on shards: (sum of abs(a)^p)^(1/p), of all elements or of rows or columns.

        Args:
            p: The order; "fro" and None are 2. Any number as in `spgrad.vector_norm`, but for
                columns (rows of a transpose), which have elements in several processes, from 0 to
                below infinity.
            dim: 1 for norms of the own rows, 0 for those of the own columns; None for the norm of
                all elements.

        Returns:
            The norm of all elements as a replicated DTensor of shape (); a tensor of the others.

        Raises:
            TypeError, ValueError: In all processes: `p` or `dim` is none of these.
            NotImplementedError: The norm takes singular values, or elements of other processes.
        """
        return sums.norm(self, p, dim)

    def abs(self) -> ShardedMatrix:
        """The magnitudes of the values."""
        return self._with(self._values.abs())

    __abs__ = abs  # noqa: A003  # the method above

    @collective("distributed.ShardedMatrix.pow")
    def pow(self, exponent: complex) -> ShardedMatrix:
        """The values to the power of a number greater than 0.

        Raises:
            TypeError, ValueError: In all processes: `exponent` is no number, or not positive.
        """
        return self._with(torch_names.powers(self, exponent))

    __pow__ = pow  # noqa: A003  # the method above

    @collective("distributed.ShardedMatrix.add_identity")
    def add_identity(self, alpha: float | torch.Tensor = 1.0) -> ShardedMatrix:
        """D + alpha I for a square D whose pattern has the whole diagonal."""
        return rowwise.add_identity(self, alpha)

    @public_as("distributed.ShardedMatrix.diagonal")
    def diagonal(self) -> torch.Tensor:
        """The own rows of the diagonal of a square matrix; 0 where it has no element."""
        return rowwise.diagonal(self)

    def to_local(self) -> SparseTensor:
        """The own rows as a CSR SparseTensor (own rows, k) with the columns of the whole matrix."""
        return dtensors.local_rows(self)

    @collective("distributed.ShardedMatrix.full")
    def full(self, rank: int | None = None) -> SparseTensor | None:
        """The whole matrix as CSR, on every process or on one; a collective. Not differentiable.

        Args:
            rank: The process that gets it; the others get None. None for every process.
        """
        return whole.full(self, rank)

    full_tensor = full

    @collective("distributed.ShardedMatrix.gather")
    def gather(self, y: torch.Tensor) -> torch.Tensor:
        """All rows of a result on every process, in the order of the whole matrix; a collective."""
        return whole.gather_rows(self, y)

    @collective("distributed.ShardedMatrix.scatter")
    def scatter(self, x: torch.Tensor) -> torch.Tensor:
        """The own rows of x (k, n), as ``D @ x`` takes them, where each process has the whole x."""

        def check() -> dict[str, object]:
            dense = dtensors.require_own("x", x, self, "D @ x takes it as it is.")
            if dense.shape[:1] != (self.shape[1],):
                raise checks.bad_shape(
                    "x", tuple(x.shape), f"({self.shape[1]}, n)", "D.scatter takes all rows of x."
                )
            return {"call": "scatter", "x": dtensors.describe(dense, tuple(dense.shape[1:]))}

        return self.agreed(check, lambda: x[self.column_ids])

    @collective("distributed.ShardedMatrix.mul")
    def __mul__(self, other: float | torch.Tensor | ShardedMatrix) -> ShardedMatrix:
        return self._with(rowwise.scaled(self, other, torch.mul))

    def __rmul__(self, other: float | torch.Tensor) -> ShardedMatrix:
        self.require_no_repeat(other)
        return self * other

    @collective("distributed.ShardedMatrix.div")
    def __truediv__(self, other: float | torch.Tensor) -> ShardedMatrix:
        return self._with(rowwise.scaled(self, other, torch.div))

    def __rtruediv__(self, other: float | torch.Tensor) -> None:
        self.require_no_repeat(other)
        self._divide(other)

    @collective("distributed.ShardedMatrix.div")
    def _divide(self, other: object) -> None:
        """Refuses ``other / D`` on every rank."""

        def check() -> dict[str, object]:
            raise ArgumentKindError(
                f"`D` divides {checks.describe_kind(other)}, which is infinity outside of the "
                "pattern; D / other is accepted. Divide by the values with D.map."
            )

        self.agree(check)

    @collective("distributed.ShardedMatrix.add")
    def __add__(self, other: ShardedMatrix) -> ShardedMatrix:
        return self._with(self._joined(other, torch.add))

    def __radd__(self, other: ShardedMatrix) -> ShardedMatrix:
        self.require_no_repeat(other)
        return self + other  # which refuses it on every rank

    @collective("distributed.ShardedMatrix.sub")
    def __sub__(self, other: ShardedMatrix) -> ShardedMatrix:
        return self._with(self._joined(other, torch.sub))

    def __rsub__(self, other: ShardedMatrix) -> ShardedMatrix:
        self.require_no_repeat(other)
        return self - other  # which refuses it on every rank

    def _joined(self, other: ShardedMatrix, by: Callable[..., torch.Tensor]) -> torch.Tensor:
        def check() -> dict[str, object]:
            return {
                "call": by.__name__,
                "D": self.in_words(),
                "other": self._same(other).in_words(),
            }

        def run() -> torch.Tensor:
            return by(self._values, other._values)

        return self.agreed(check, run)

    def __neg__(self) -> ShardedMatrix:
        return self._with(-self._values)

    @collective("distributed.ShardedMatrix.map")
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
            if not dtensors.is_dense(values) or isinstance(values, DTensor):
                raise ArgumentKindError(
                    f"`function` gave {checks.describe_kind(values)}; {wanted} is accepted. {hint}"
                )
            if values.shape != self._values.shape:
                raise checks.bad_shape("function", tuple(values.shape), wanted, hint)
            checks.require_same_device(D=self._values, function=values)
            return {"call": "map", "function": f"a function that gives {kind_in_words(values)}"}

        self.agree(check)
        return self._with(found[0])

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs the functions of torch that have a form for it; refuses all others."""
        return torch_names.answered(func, args, kwargs or {})

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

    D.agree(checked) if sharded else agree(None, checked, "cpu")
