"""A linear layer with a sparse weight."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import nn

from spgrad.core import checks, kept
from spgrad.core.pattern import Pattern
from spgrad.errors import ArgumentKindError
from spgrad.lowering.operands import is_sparse
from spgrad.nn import choose
from spgrad.nn.weight import SparseWeight
from spgrad.ops.indexing.mask import sparse_mask
from spgrad.ops.layouts.dense import to_dense
from spgrad.ops.products.matmul import linear, linear_of_values
from spgrad.public import public_as
from spgrad.torch_protocol.autocast import lowered


class SparseLinear(SparseWeight):
    """`torch.nn.Linear` with a sparse weight: y = x W^T + b.

    One of `density`, `pattern` and `n_m` says which elements W has.

    Args:
        in_features: Size of the last dimension of the input.
        out_features: Size of the last dimension of the output.
        bias: False leaves b out.
        device: Of the parameters and indices.
        dtype: Of the parameters: a floating-point or complex one.
        density: The share of elements, or of blocks, that W has, at places drawn at random.
        pattern: The elements of this SparseTensor (out_features, in_features), or the places where
            this dense bool tensor is True; with `blocksize`, the blocks that hold any of them.
        blocksize: Makes W a BSR matrix of blocks of this size.
        n_m: (n, m) gives W n elements, drawn at random, in each group of m consecutive elements of
            a row.
        generator: Draws the elements, and the first parameters.

    Shape:
        Input (*, in_features), output (*, out_features), with any leading dimensions.

    Gradient:
        Of `values` (nse,), or (nse, *blocksize), and of the input; any order. No dense gradient of
        W is made.

    Cost:
        O(nse rows of the input), forward and backward. The indices take 16 bytes an element and
        as much again for the order of columns that the backward reads.

    Raises:
        TypeError: `pattern` is neither a SparseTensor nor a dense bool tensor.
        ValueError: None or several of density, pattern and n_m are given, or one does not fit.

    Source:
        Parameters are drawn as those of `torch.nn.Linear`, uniformly from [-a, a] with a =
        1 / sqrt(inputs), where `inputs` is the number of elements of the row.

    Example:
        >>> layer = spgrad.nn.SparseLinear(6, 4, density=0.25)
        >>> layer
        SparseLinear(in_features=6, out_features=4, bias=True, nse=6, density=0.25)
        >>> layer(torch.ones(2, 3, 6)).shape
        torch.Size([2, 3, 4])
        >>> [(name, tuple(p.shape)) for name, p in layer.named_parameters()]
        [('values', (6,)), ('bias', (4,))]
    """

    bias: nn.Parameter | None

    @public_as("nn.SparseLinear")
    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        density: float | None = None,
        pattern: torch.Tensor | None = None,
        blocksize: tuple[int, int] | None = None,
        n_m: tuple[int, int] | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        for name, features in (("in_features", in_features), ("out_features", out_features)):
            checks.require_number(name, features, "Such as 16.", least=0, whole=True)
        checks.require_generator(generator)
        size = (out_features, in_features)
        choose.require_choice(size, blocksize, density, pattern, n_m)
        dtype = torch.get_default_dtype() if dtype is None else dtype
        _require_parameters(dtype)
        blocksize = None if blocksize is None else (blocksize[0], blocksize[1])
        if pattern is not None:
            weight: Any = choose.given_pattern(pattern, size, blocksize)
            device = weight.device if device is None else device
        else:
            if n_m is not None:
                positions = choose.random_in_groups(size, n_m, generator)
            else:
                assert density is not None
                positions = choose.random_positions(size, blocksize, density, generator)
            weight = choose.at_positions(positions, size, blocksize, dtype)
        device = torch.get_default_device() if device is None else device
        super().__init__(size, weight.to(device=device, dtype=dtype))
        self.in_features, self.out_features = in_features, out_features
        self.n_m = n_m
        made = torch.empty(out_features, device=device, dtype=dtype) if bias else None
        self.register_parameter("bias", None if made is None else nn.Parameter(made))
        self.reset_parameters(generator)

    @property
    def n_m(self) -> tuple[int, int] | None:
        """(n, m) while each group of m consecutive columns has n elements, in a layer made so.

        The elements say what n is: those of a state that is loaded may be fewer.
        """
        made = self.__dict__.get("n_m")
        if made is None or self.crow_indices.is_meta:
            return made
        pattern = self.pattern
        n = pattern.derive(kept.GROUPS.of(made[1]), partial(_elements_of_groups, m=made[1]))
        return None if n is None else (n or made[0], made[1])

    @n_m.setter
    def n_m(self, made: tuple[int, int] | None) -> None:
        self.__dict__["n_m"] = made

    @public_as("nn.SparseLinear.reset_parameters")
    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draws values and bias anew, each row for the number of inputs that it has."""
        checks.require_generator(generator)
        if self.values.is_meta:
            return
        ptr = self.pattern.indices[0]
        height, width = self.blocksize or (1, 1)
        lines = ptr.diff()
        real = self.values.dtype.to_real()
        bound = (lines * width).to(real).rsqrt()  # inf of an empty row, which nothing reads
        line_of = torch.repeat_interleave(lines, output_size=self.values.shape[0])
        spread = bound[line_of].view(-1, *[1] * (self.values.dim() - 1))
        self.values.copy_(_uniform(self.values, generator) * spread)
        if self.bias is not None:
            by_row = torch.where(lines > 0, bound, 0).repeat_interleave(height)
            self.bias.copy_(_uniform(self.bias, generator) * by_row)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """x W^T + b."""
        values, pattern = self.values, self.pattern
        compiles, fits = torch.compiler.is_compiling(), values.shape == pattern.values_shape
        if compiles or is_sparse(input) or not fits:
            return linear(input, self.weight, self.bias)
        return _of_values(input, values, pattern, self.bias)

    def extra_repr(self) -> str:
        """Sizes and density in one line."""
        words = [
            f"in_features={self.in_features}, out_features={self.out_features}",
            f"bias={self.bias is not None}, nse={self.values.numel()}",
            f"density={self.density:.3g}",
        ]
        words += [f"blocksize={self.blocksize}"] if self.blocksize else []
        words += [f"n_m={self.n_m}"] if self.n_m else []
        return ", ".join(words)

    @torch.no_grad()
    def to_dense(self) -> nn.Linear:
        """The `torch.nn.Linear` that computes the same, with copies of the parameters."""
        dense = nn.Linear(
            self.in_features, self.out_features, self.bias is not None, "meta", self.values.dtype
        )
        dense.weight = nn.Parameter(to_dense(self.weight), self.values.requires_grad)
        if self.bias is not None:
            dense.bias = nn.Parameter(self.bias.detach().clone(), self.bias.requires_grad)
        return dense.train(self.training)

    @classmethod
    @public_as("nn.SparseLinear.from_dense")
    @torch.no_grad()
    def from_dense(
        cls,
        linear: nn.Linear,
        *,
        density: float | None = None,
        pattern: torch.Tensor | None = None,
        blocksize: tuple[int, int] | None = None,
        n_m: tuple[int, int] | None = None,
    ) -> SparseLinear:
        """The layer with the elements of `linear` of largest magnitude, or those of a pattern.

        Args:
            linear: A `torch.nn.Linear`; its parameters are copied.
            density: The share of elements that stay, those of largest magnitude, or with
                `blocksize` of blocks, those of largest norm.
            pattern: The elements that stay, as SparseTensor or dense bool tensor.
            blocksize: Makes the weight a BSR matrix.
            n_m: (n, m) keeps the n largest in each group of m consecutive elements of a row.

        Returns:
            SparseLinear, on the device and in the dtype of `linear`.

        Raises:
            TypeError: `linear` is no torch.nn.Linear.
            ValueError: None or several of density, pattern and n_m are given, or one does not fit.

        Example:
            >>> dense = torch.nn.Linear(8, 4)
            >>> layer = spgrad.nn.SparseLinear.from_dense(dense, n_m=(2, 4))
            >>> layer.density
            0.5
        """
        if not isinstance(linear, nn.Linear):
            raise ArgumentKindError(
                f"`linear` is {checks.describe_kind(linear)}; a torch.nn.Linear is accepted. Use "
                "spgrad.nn.convert for a module that holds some."
            )
        full = linear.weight.detach()
        size = (linear.out_features, linear.in_features)
        choose.require_choice(size, blocksize, density, pattern, n_m)
        if pattern is None:
            positions = choose.largest_positions(full, blocksize, density, n_m)
            pattern = choose.at_positions(positions, size, blocksize, full.dtype)
        has_bias = linear.bias is not None
        options: dict[str, Any] = {"device": full.device, "dtype": full.dtype}
        made = cls(
            linear.in_features,
            linear.out_features,
            has_bias,
            pattern=pattern,
            blocksize=blocksize,
            **options,
        )
        made.n_m = n_m
        made.values.copy_(sparse_mask(full, made.weight)._vals)
        made.values.requires_grad_(linear.weight.requires_grad)
        if made.bias is not None:
            made.bias.copy_(linear.bias)
            made.bias.requires_grad_(linear.bias.requires_grad)
        return made.train(linear.training)


def _elements_of_groups(pattern: Pattern, m: int) -> int | None:
    """How many elements each group of m columns has; None where they differ."""
    rows, columns = pattern.matrix
    line = torch.repeat_interleave(pattern.indices[0].diff(), output_size=pattern.nse)
    counts = choose.in_groups(line * columns + pattern.indices[1], (rows, columns), m).indices[0]
    counts = counts.diff()
    if not counts.numel():
        return 0
    least, most = counts.aminmax()
    return int(least) if bool(least == most) else None


@public_as("linear")
@lowered
def _of_values(
    input: torch.Tensor, values: torch.Tensor, pattern: Pattern, bias: torch.Tensor | None
) -> torch.Tensor:
    """`linear` with the weight from_values(values, pattern), which is not made."""
    flat = values if values.dim() == 1 else values.reshape(-1)
    return linear_of_values(input, flat, pattern, bias)


def _uniform(like: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
    """Uniform numbers in [-1, 1); complex ones have the same mean square as real ones."""
    real = torch.view_as_real(like) if like.is_complex() else like
    device = like.device if generator is None else generator.device
    drawn = torch.rand(real.shape, generator=generator, device=device, dtype=torch.float64)
    found = (2 * drawn - 1).to(like.device, real.dtype)
    return torch.view_as_complex(found) / math.sqrt(2) if like.is_complex() else found


def _require_parameters(dtype: Any) -> None:
    if not isinstance(dtype, torch.dtype):
        raise ArgumentKindError(
            f"`dtype` is {checks.describe_kind(dtype)}; a torch.dtype is accepted. For example "
            "torch.float32."
        )
    if not (dtype.is_floating_point or dtype.is_complex):
        raise checks.ArgumentValueError(
            f"`dtype` is {checks.short(dtype)}; a floating-point or complex dtype is accepted. "
            "Parameters are trained: use torch.float32."
        )
