"""The multivariate normal distribution with a sparse covariance or precision, or factor of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch.distributions import constraints
from torch.distributions.distribution import Distribution
from torch.distributions.utils import _standard_normal

from spgrad.core import checks
from spgrad.core.tensor import SparseTensor
from spgrad.distributions.constraints import (
    sparse_lower_cholesky,
    sparse_lower_triangular,
    sparse_positive_definite,
)
from spgrad.distributions.parameters import Full, Parameter, Triangular, log_two_pi
from spgrad.errors import ArgumentKindError, ArgumentValueError, PivotError, UnsupportedError
from spgrad.linalg.assume import require_true
from spgrad.linalg.solve import require_finite
from spgrad.lowering.operands import dense_operand
from spgrad.ops.solves.triangular import square_operand
from spgrad.public import public_as
from spgrad.torch_protocol.autocast import in_given_precision
from spgrad.torch_protocol.compile import keep_outside
from spgrad.torch_protocol.func_transforms import is_transformed, mapped_over

_MATRICES = ("covariance_matrix", "precision_matrix", "scale_tril", "precision_tril")
_DTYPES = (torch.float32, torch.float64)
_NARROWER = (torch.float16, torch.bfloat16, torch.float32, torch.int32, torch.int64)


class SparseMultivariateNormal(Distribution):
    """Gaussian vectors with a mean and a sparse covariance or precision, or a factor of one.

    Exactly one matrix is given, as in `torch.distributions.MultivariateNormal`. With `diagonal`, D,
    a factor L has a diagonal of ones, stored or not, and stands for L D L^T. Gradients of a matrix
    lie on its pattern; those of a symmetric one are symmetric in every order, as torch's are.

    A whole matrix A is factored by SuperLU, P A P^T = L D L^T with an order P. A draw is
    P^T L^-T D^-1/2 P z for a precision and P^T L D^1/2 P z for a covariance. It has the
    distribution of torch's draws, but is another vector for the same z. The gradient moves a draw x
    by dS S^-1 x / 2 for a change dS of the covariance S, so the mean of the gradient of f(x) over
    draws is the gradient of the mean of f(x), for derivatives of every order.

    Args:
        loc: Mean, dense (*b, m), float32 or float64.
        covariance_matrix: Sparse (*b, m, m) of any layout, symmetric positive definite; both
            triangles are stored.
        precision_matrix: Inverse of the covariance: sparse (*b, m, m), symmetric positive definite;
            both triangles are stored.
        scale_tril: Lower triangular factor of the covariance, with a positive diagonal.
        precision_tril: Lower triangular factor of the precision, with a positive diagonal.
        diagonal: Dense (*b, m), positive: D of a factor with a diagonal of ones.
        validate_args: False leaves out the checks of values, such as that of a positive definite
            matrix by its factor; None is torch's default.

    Gradient:
        `rsample`, `log_prob`, `entropy`, `variance` and `torch.distributions.kl_divergence` have
        gradients of `loc`, `diagonal` and the matrix.

    Cost:
        With a triangular factor, O(nse) for a draw and a log density. A whole matrix is factored,
        once for draws and solves and once for the determinant; the gradient of a draw takes a
        solve and O(nse), that of the determinant the elements of the inverse at the pattern.
        `variance` takes O(nse) with a covariance; with a precision, it takes as long as
        `spgrad.linalg.inverse_diagonal`.

    Raises:
        TypeError: A matrix is not sparse, or `loc` or `diagonal` not dense.
        ValueError: Not exactly one matrix is given; sizes, dtypes or devices don't fit; or, with
            `validate_args`, a matrix is not what its name says.
        PivotError: Without `validate_args`, if factoring finds a matrix not positive definite.
        ImportError: SciPy is not installed, for a whole matrix.

    Example:
        >>> L = spgrad.from_dense(torch.tensor([[2.0, 0.0], [1.0, 1.0]]))
        >>> p = spgrad.distributions.SparseMultivariateNormal(torch.zeros(2), precision_tril=L)
        >>> p.variance
        tensor([0.5000, 1.0000])
        >>> p.log_prob(torch.zeros(2))
        tensor(-1.1447)
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {  # type: ignore[override]
        "loc": constraints.real_vector,
        "covariance_matrix": sparse_positive_definite,
        "precision_matrix": sparse_positive_definite,
        "scale_tril": sparse_lower_cholesky,
        "precision_tril": sparse_lower_cholesky,
        "diagonal": constraints.independent(constraints.positive, 1),
    }
    support = constraints.real_vector  # type: ignore[assignment]
    has_rsample = True

    @public_as("distributions.SparseMultivariateNormal")
    def __init__(
        self,
        loc: torch.Tensor,
        covariance_matrix: torch.Tensor | None = None,
        precision_matrix: torch.Tensor | None = None,
        scale_tril: torch.Tensor | None = None,
        precision_tril: torch.Tensor | None = None,
        *,
        diagonal: torch.Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        given = (covariance_matrix, precision_matrix, scale_tril, precision_tril)
        self._name, matrix = _only_one(given)
        T = square_operand(self._name, matrix)
        dense_operand("loc", loc)
        batch = _require_fit(loc, self._name, T, diagonal)
        self.loc = loc.expand(*batch, loc.shape[-1])
        self.diagonal = diagonal
        self._matrix = T
        super().__init__(torch.Size(batch), loc.shape[-1:], validate_args=False)
        if validate_args is None:
            validate_args = Distribution._validate_args
        self._validate_args = validate_args
        self._parameter: Parameter = _parameter(self._name, T, diagonal)
        if self._validate_args:
            _require_values(self)

    def __repr__(self) -> str:
        pattern = self._matrix._pattern
        matrix = f"{self._name}: {tuple(pattern.shape)}, nse {pattern.nse}"
        return f"SparseMultivariateNormal(loc: {tuple(self.loc.shape)}, {matrix})"

    @property
    def scale_tril(self) -> SparseTensor | None:
        """The factor of the covariance, where it was given."""
        return self._matrix if self._name == "scale_tril" else None

    @property
    def precision_tril(self) -> SparseTensor | None:
        """The factor of the precision, where it was given."""
        return self._matrix if self._name == "precision_tril" else None

    @property
    def covariance_matrix(self) -> SparseTensor:
        """The covariance, sparse: as it was given, or the product of its factors."""
        return self._sparse("covariance_matrix", False)

    @property
    def precision_matrix(self) -> SparseTensor:
        """The precision, sparse: as it was given, or the product of its factors."""
        return self._sparse("precision_matrix", True)

    @in_given_precision
    def _sparse(self, name: str, precision: bool) -> SparseTensor:
        if self._parameter.precision is not precision:
            raise UnsupportedError(
                f"`{name}` is the inverse of the sparse matrix that was given, and dense; a "
                f"distribution made of {name} or of its factor has it. Take `variance` for the "
                "diagonal of the covariance, or spgrad.linalg.inverse_at for other elements.",
                function=f"distributions.SparseMultivariateNormal.{name}",
            )
        return self._matrix if self._name == name else self._parameter.matrix()

    @property
    def mean(self) -> torch.Tensor:
        """`loc`."""
        return self.loc

    @property
    def mode(self) -> torch.Tensor:
        """`loc`."""
        return self.loc

    @property
    @in_given_precision
    def variance(self) -> torch.Tensor:
        """The diagonal of the covariance (*b, m)."""
        return self._parameter.variance().expand(self._extended_shape())

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> SparseMultivariateNormal:
        """The distribution expanded to a batch shape; the matrix is not copied."""
        made: Any = self._get_checked_instance(SparseMultivariateNormal, _instance)
        shape = _sizes("batch_shape", batch_shape, "expand")
        try:
            made.loc = self.loc.expand(*shape, self.event_shape[0])
        except RuntimeError:
            raise ArgumentValueError(
                f"`batch_shape` is {tuple(shape)}; what {tuple(self.loc.shape[:-1])} broadcasts to "
                "is accepted. Sizes of 1 are repeated, others kept.",
                function="distributions.SparseMultivariateNormal.expand",
            ) from None
        made.diagonal, made._matrix, made._name = self.diagonal, self._matrix, self._name
        made._parameter = self._parameter
        initialise: Any = Distribution.__init__
        initialise(made, shape, self.event_shape, validate_args=False)
        made._validate_args = self._validate_args
        return made

    def sample(self, sample_shape: Any = ()) -> torch.Tensor:
        """Draws (*sample_shape, *b, m) without gradient."""
        return super().sample(_sizes("sample_shape", sample_shape, "sample"))

    @in_given_precision
    def rsample(self, sample_shape: Any = ()) -> torch.Tensor:
        """Draws (*sample_shape, *b, m) with gradient."""
        shape = self._extended_shape(_sizes("sample_shape", sample_shape, "rsample"))
        z = _standard_normal(shape, dtype=self.loc.dtype, device=self.loc.device)
        return self.loc + self._parameter.draw(z)

    @in_given_precision
    def log_prob(self, value: torch.Tensor) -> torch.Tensor:
        """The logarithm of the density at `value` (*sample, *b, m)."""
        dense = isinstance(value, torch.Tensor) and not value.is_nested
        if not dense or value.layout != torch.strided:
            raise ArgumentKindError(
                f"`value` is {checks.describe_kind(value)}; a dense tensor (*sample, *b, m) is "
                "accepted. Convert it with torch.as_tensor.",
                function="distributions.SparseMultivariateNormal.log_prob",
            )
        m = self.event_shape[0]
        if value.dim() < 1 or value.shape[-1] != m:  # a size of 1 would broadcast
            raise ArgumentValueError(
                f"`value` has shape {tuple(value.shape)}; (*sample, *b, {m}) is accepted. It has "
                "an element for each of `loc`.",
                function="distributions.SparseMultivariateNormal.log_prob",
            )
        if value.dtype not in (self.loc.dtype, *_NARROWER):
            raise ArgumentValueError(
                f"`value` has dtype {checks.short(value.dtype)}; {checks.short(self.loc.dtype)}, "
                f"the dtype of `loc`, is accepted. Convert it with value.to({self.loc.dtype}).",
                function="distributions.SparseMultivariateNormal.log_prob",
            )
        self._require_fitting(value)
        square = self._parameter.quadratic(value - self.loc)
        return -0.5 * (log_two_pi(m) + square) - self._parameter.half_log_det()

    def _require_fitting(self, value: torch.Tensor) -> None:
        """Refuses another device or batch, and with `validate_args` NaN."""
        name = "distributions.SparseMultivariateNormal.log_prob"
        if value.device != self.loc.device:
            raise ArgumentValueError(
                f"`value` is on {value.device.type}; {self.loc.device.type}, where `loc` is, is "
                "accepted. Move one of them with .to().",
                function=name,
            )
        try:
            checks.broadcast_shapes(value.shape[:-1], self._batch_shape)
        except RuntimeError:
            batch, m = tuple(self._batch_shape), self.event_shape[0]
            raise ArgumentValueError(
                f"`value` has shape {tuple(value.shape)}; (*sample, *b, {m}) is accepted, where *b "
                f"broadcasts with the batch {batch}. Batch sizes are equal, or one of them is 1 or "
                "missing.",
                function=name,
            ) from None
        if self._validate_args:
            _require_no_nan(value)

    def entropy(self) -> torch.Tensor:
        """(m (1 + log 2 pi) + log det S) / 2 (*b,)."""
        m = self.event_shape[0]
        found = self._parameter.half_log_det() + 0.5 * (m + log_two_pi(m))
        return found.expand(self._batch_shape)


def _require_no_nan(value: torch.Tensor) -> None:
    if bool(mapped_over(value.isnan()).any()):
        raise ArgumentValueError(
            "`value` has an element that is NaN; real numbers are within the support, and are "
            "accepted. Find it with torch.isnan(value).",
            function="distributions.SparseMultivariateNormal.log_prob",
        )


def _sizes(arg: str, shape: Any, method: str) -> torch.Size:
    """`shape` if it is a tuple of sizes; raises otherwise."""
    ints = isinstance(shape, (tuple, list))
    if not ints or not all(isinstance(n, int) and n >= 0 for n in shape):
        raise ArgumentKindError(
            f"`{arg}` is {checks.describe_option(shape)}; a tuple of sizes is accepted. For "
            "example (10,) for ten.",
            function=f"distributions.SparseMultivariateNormal.{method}",
        )
    return torch.Size(shape)


def _only_one(given: tuple[Any, ...]) -> tuple[str, Any]:
    """The name and the value of the one matrix that was given."""
    found = [(name, A) for name, A in zip(_MATRICES, given, strict=True) if A is not None]
    if len(found) != 1:
        names = " and ".join(f"`{name}`" for name, _ in found) or "no matrix"
        raise ArgumentValueError(
            f"{names} is given; exactly one of {', '.join(_MATRICES)} is accepted. Leave out "
            "what the others determine."
        )
    return found[0]


def _parameter(name: str, T: SparseTensor, diagonal: torch.Tensor | None) -> Parameter:
    precision = name.startswith("precision")
    return Triangular(T, diagonal, precision) if "tril" in name else Full(T, precision)


def _require_fit(
    loc: torch.Tensor, name: str, T: SparseTensor, diagonal: torch.Tensor | None
) -> tuple[int, ...]:
    """The batch shape of all parameters; refuses sizes, dtypes and devices that don't fit."""
    m, parts = T._pattern.matrix[0], {"loc": loc}
    if diagonal is not None:
        if "tril" not in name:
            raise ArgumentValueError(
                f"`diagonal` is given with `{name}`; scale_tril or precision_tril is accepted with "
                "it. Leave it out."
            )
        parts["diagonal"] = dense_operand("diagonal", diagonal)
    if T._vals.dtype not in _DTYPES:
        raise ArgumentValueError(
            f"`{name}` has dtype {checks.short(T._vals.dtype)}; float32 and float64 are accepted. "
            f"Convert it with {name}.to(torch.float32)."
        )
    batch = T._pattern.batch
    for part, tensor in parts.items():
        if tensor.dim() < 1 or tensor.shape[-1] != m:
            accepted = f"(*b, {m}), as `{name}` has shape {tuple(T._pattern.shape)},"
            raise checks.bad_shape(part, tuple(tensor.shape), accepted, "One number for each row.")
        checks.require_same_dtype(**{part: tensor, name: T._vals})
        checks.require_same_device(**{part: tensor, name: T._vals})
        try:
            batch = tuple(checks.broadcast_shapes(batch, tensor.shape[:-1]))
        except RuntimeError:
            hint = "Batch sizes are equal, or one of them is 1 or missing."
            accepted = f"a batch that broadcasts with {tuple(batch)}"
            raise checks.bad_shape(part, tuple(tensor.shape), accepted, hint) from None
    return batch


def _require_values(made: SparseMultivariateNormal) -> None:
    """Refuses parameters whose values don't satisfy their constraints."""
    name, T = made._name, made._matrix
    for part in ("loc", "diagonal"):
        value = getattr(made, part)
        constraint = made.arg_constraints[part]
        if value is None or not value.numel():  # torch's constraints refuse empty batches
            continue
        if not bool(mapped_over(constraint.check(value)).all()):
            accepted = "finite" if part == "loc" else "positive"
            raise ArgumentValueError(
                f"`{part}` has an element that is not {accepted}; {accepted} numbers are accepted. "
                f"Look at {part}.min(), or pass validate_args=False."
            )
    require_finite(name, mapped_over(T._vals))
    if is_transformed(T._vals):  # whether it is definite is seen where it is factored
        return
    if isinstance(made._parameter, Full):
        _require_definite(name, T, made._parameter)
        return
    constraint = sparse_lower_triangular if made.diagonal is not None else sparse_lower_cholesky
    if bool(constraint.check(T).all()):
        return
    if bool(sparse_lower_triangular.check(T).all()):
        raise ArgumentValueError(
            f"`{name}` has an element of the diagonal that is missing or not positive; positive "
            "ones are accepted. Pass `diagonal` for a factor with a diagonal of ones."
        )
    raise ArgumentValueError(
        f"`{name}` has an element above the diagonal; a lower triangular "
        f"matrix is accepted. Take spgrad.tril({name})."
    )


def _require_definite(name: str, T: SparseTensor, parameter: Full) -> None:
    try:
        require_true(T, "positive definite")
    except (ArgumentValueError, PivotError) as error:
        raise _not_definite(name) from error
    root = parameter.root  # its error, such as one of too many elements, says what is wrong
    try:
        root.require()
    except PivotError as error:
        raise _not_definite(name) from error


def _not_definite(name: str) -> ArgumentValueError:
    return ArgumentValueError(
        f"`{name}` is not symmetric positive definite; a matrix that is, with both triangles "
        f"stored, is accepted. Take ({name} + {name}.mT) / 2, and add to its diagonal."
    )


for _check in (_require_values, _require_no_nan):
    keep_outside(_check, "a check reads the numbers; validate_args=False omits it")
