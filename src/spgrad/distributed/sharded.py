"""The base of sharded matrices: values, a plan, and properties that need no other process."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from spgrad.core import checks
from spgrad.distributed import agreement
from spgrad.distributed.plan import Plan
from spgrad.errors import ArgumentKindError, ArgumentValueError, StateError, UnsupportedError
from spgrad.public import Call, public_as
from spgrad.torch_protocol.autocast import in_its_dtype

if TYPE_CHECKING:
    from typing_extensions import Self

P = ParamSpec("P")
T = TypeVar("T")


def collective(name: str, *, of_mesh: bool = False) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """`public_as` for a function that all processes call.

    An error that comes before the function compares its arguments is told to the other processes,
    which wait for the comparison: all raise it.

    Args:
        name: The name, such as "distributed.save".
        of_mesh: Whether the function begins with the comparison of meshes; else its first argument
            is the matrix.
    """

    def decorate(op: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(op)
        def run(*args: P.args, **kwargs: P.kwargs) -> T:
            shared = agreement.Shared(Call(op, name, args, kwargs))
            running = agreement.RUNNING.calls
            running.append(shared)
            try:
                return op(*args, **kwargs)
            except Exception as error:
                if not shared.compared:
                    matrix = args[0] if args else kwargs.get("D")
                    _tell_of_mesh(error) if of_mesh else _tell(error, matrix)
                raise
            finally:
                running.pop()

        return public_as(name, collective=True)(run)

    return decorate


def _tell(error: Exception, D: object) -> None:
    """Raises an error of this process on all ranks, if there is a group of them."""

    def check() -> NoReturn:
        raise error

    if isinstance(D, Sharded):
        D.agree(check)
    elif dist.is_initialized():
        agreement.agree(None, check, "cpu")


def _tell_of_mesh(error: Exception) -> None:
    told = agreement.refused_at_once(error)
    if told is not None:
        raise told from error


def kind_in_words(t: torch.Tensor) -> str:
    """The dtype of a tensor, and whether a call that is made now records its gradient."""
    recorded = torch.is_grad_enabled() and t.requires_grad
    return f"of {checks.short(t.dtype)}" + (" that require a gradient" if recorded else "")


class Sharded:
    """Values of the own entries on the plan of their pattern; `ShardedMatrix` adds operations."""

    def __init__(self, values: torch.Tensor, plan: Plan, *, transposed: bool = False) -> None:
        if not isinstance(plan, Plan):
            raise ArgumentKindError(
                f"`plan` is {checks.describe_kind(plan)}; a plan of the library is accepted. Make "
                "a ShardedMatrix with spgrad.distributed.distribute, from_local or load.",
                function="distributed.ShardedMatrix",
            )
        self._values = values
        self.plan = plan
        self.transposed = transposed
        self.refused: tuple[object, Exception] | None = None

    def require_no_repeat(self, other: object) -> None:
        """Raises the error of ``other * D`` again, where Python asks D after the tensor `other`.

        Python asks the second operand after a TypeError of the first one. The comparison with the
        other processes is over by then.
        """
        refused, self.refused = self.refused, None
        if refused is not None and refused[0] is other:
            raise refused[1]

    @property
    def shape(self) -> torch.Size:
        """Shape of the whole matrix."""
        m, k = self.plan.shape
        return torch.Size((k, m) if self.transposed else (m, k))

    @property
    def local_shape(self) -> torch.Size:
        """(own rows, own columns): the rows of the result and of the operand of a product here."""
        sizes = self.plan.rows.count, self.plan.columns.count
        return torch.Size(sizes[::-1] if self.transposed else sizes)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the values."""
        return self._values.dtype

    @property
    def device(self) -> torch.device:
        """Where the rows of this process are."""
        return self._values.device

    @property
    def nse(self) -> int:
        """Number of specified elements of the whole matrix."""
        return sum(self.plan.entries)

    @property
    def mesh(self) -> DeviceMesh:
        """The processes."""
        return self.plan.mesh

    @property
    def requires_grad(self) -> bool:
        """Whether the values require a gradient."""
        return self._values.requires_grad

    @property
    def row_ids(self) -> torch.Tensor:
        """Numbers of the own rows in the whole matrix (int64), in the order of local tensors."""
        shares = self.plan.columns if self.transposed else self.plan.rows
        return shares.numbers(self.plan.device)

    @property
    def column_ids(self) -> torch.Tensor:
        """Numbers of the own columns, and so of the own rows of x in ``D @ x`` (int64)."""
        shares = self.plan.rows if self.transposed else self.plan.columns
        return shares.numbers(self.plan.device)

    @property
    def T(self) -> Self:  # noqa: N802  # torch's name
        """The transpose; nothing is moved."""
        return type(self)(self._values, self.plan, transposed=not self.transposed)

    mT = T  # noqa: N815  # torch's name

    def t(self) -> Self:
        """The transpose; nothing is moved."""
        return self.T

    def local_values(self) -> torch.Tensor:
        """Values of the own entries (nse of this process,), with their graph.

        Entries in own columns come first, then the others; both by rows. ``requires_grad_()`` may
        make them a leaf, whose gradient then stays in this process.
        """
        return self._values

    def detach(self) -> Self:
        """The same values without their graph."""
        return self._with(self._values.detach())

    def __copy__(self) -> Self:
        """A matrix with the same plan and the same values."""
        return self._with(self._values)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A matrix on the same plan with its own values, as copies of modules have them."""
        copied = self._with(copy.deepcopy(self._values, memo))
        memo[id(self)] = copied
        return copied

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise UnsupportedError(
            "a ShardedMatrix is pickled or given to torch.save, which can't keep its process "
            "group; its values and its file are accepted. Call spgrad.distributed.save(D, path), "
            "or save D.values() with torch.distributed.checkpoint.",
            function="distributed.ShardedMatrix",
        )

    def in_autocast(self) -> Self:
        """The matrix in the dtype that autocast has for products, if it is on."""
        return self._with(in_its_dtype(self._values))

    def _with(self, values: torch.Tensor) -> Self:
        return type(self)(values, self.plan, transposed=self.transposed)

    def agree(self, check: Callable[[], dict[str, object]]) -> None:
        """`agreement.agree` in a call of this matrix, which has to be the same on all ranks."""
        agreement.agree(self._group(), self._checked(check), self.device)

    def agreed(self, check: Callable[[], dict[str, object]], compute: Callable[[], T]) -> T:
        """`agreement.agreed` in a call of this matrix, which has to be the same on all ranks."""
        return agreement.agreed(self._group(), self._checked(check), self.device, compute)

    def _group(self) -> Any:
        """The process group; raises if it was destroyed."""
        group = self.plan.group
        if not dist.is_initialized() or group not in dist.distributed_c10d._world.pg_map:
            raise StateError(
                "the process group of `D` was destroyed; a matrix of a group that exists is "
                "accepted. Make D again, with spgrad.distributed.load or distribute, after "
                "torch.distributed.init_process_group."
            )
        return group

    def _checked(self, check: Callable[[], dict[str, object]]) -> Callable[[], dict[str, object]]:
        pattern = f"number {self.plan.number}" + (", transposed" if self.transposed else "")
        return lambda: {**check(), "D.plan": pattern}

    def in_words(self) -> str:
        """What must be equal in all processes, so that their backwards send the same rows."""
        return "values " + kind_in_words(self._values)

    def _same(self, other: object) -> Self:
        if not isinstance(other, type(self)):
            raise ArgumentKindError(
                f"`other` is {checks.describe_kind(other)}; a ShardedMatrix on the same pattern is "
                "accepted. For a multiple of the identity call D.add_identity(alpha)."
            )
        if other.plan is not self.plan or other.transposed != self.transposed:
            raise ArgumentValueError(
                "`other` has another pattern; one on the same pattern is accepted. Make both from "
                "one matrix with D.with_values(...)."
            )
        return other
