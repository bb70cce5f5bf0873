"""The dense side of a program, and whether tensors are close to each other."""

import contextlib

import torch

import spgrad
from fuzz.operands import Number, differentiable, is_sparse
from spgrad import testing


class Twin:
    """The dense side of a program.

    Attributes:
        values: Of the items so far.
        rounding: A `Rounding`, with which it calculates in double precision; or None.
    """

    def __init__(self, rounding=None):
        self.values = []
        self.rounding = rounding
        self.finite = self.finite_before = True  # all values; all but the last

    def operand(self, spec, made):
        if isinstance(spec, Number):
            self.values.append(made)
            return
        x = (spgrad.to_dense(made.detach()) if is_sparse(made) else made.detach()).clone()
        if self.rounding and differentiable(x.dtype):
            x = x.to(torch.complex128 if x.is_complex() else torch.float64)
            x = self.rounding.summed(x, made) if is_sparse(made) else x
        self.finite = self.finite and bool(x.isfinite().all())
        self.values.append(x.requires_grad_(spec.grad))

    def step(self, step, told):
        """All results; `told` is what the specification takes of a pattern."""
        options = {k: v for k, v in step.options if k not in ("blocksize", "layout")}
        options |= told
        args = [self.values[place] for place in step.args]
        scale = []
        if step.name == "expm_multiply":
            args = [Multiplied.apply(x, scale) if x.requires_grad else x for x in args]
        with self.rounding or contextlib.nullcontext():
            result = step.row.call(step.row.dense, *args, **options)
        if step.name == "expm_multiply":
            result = Divided.apply(result, scale)
        return (result,) if isinstance(result, torch.Tensor) else tuple(result)

    def append(self, result, mask, dense):
        """Keeps a result; off its pattern (mask) it passes back no infinity.

        Its zeros have the signs of those of the sparse side (dense). Which sign a zero has depends
        on the order of calculation, and a later division makes another infinity of it.
        """
        if differentiable(result.dtype):
            result = _ZerosOf.apply(result, dense.to(result.dtype))
        if mask is not None and result.requires_grad:
            result.register_hook(
                lambda g: None if g is None else torch.where(mask | g.isfinite(), g, 0)
            )
        self.values.append(result)
        self.finite_before = self.finite
        self.finite = self.finite and bool(result.isfinite().all())


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale = scale
        return x.view_as(x)


class Divided(_Scaled):
    """x; its cotangent is divided by the largest number in it, which `scale` gets.

    torch derives matrix_exp from the exponential of a matrix with the cotangent in a corner. If
    that is much larger than the others, their digits are lost. Once a derivative is derived again,
    which has other ways to the operands, the scale is 1.
    """

    @staticmethod
    def backward(ctx, g):
        if torch.is_grad_enabled() or ctx.scale == [None]:
            ctx.scale[:] = [None]
            return g, None
        most = g.abs().amax() if g.numel() else g.new_ones(())
        ctx.scale[:] = [torch.where(most.isfinite() & (most > 0), most, 1)]
        return g / ctx.scale[0], None


class Multiplied(_Scaled):
    """x; its gradient is multiplied by what `Divided` divided by."""

    @staticmethod
    def backward(ctx, g):
        return g if ctx.scale == [None] else g * ctx.scale[0], None


class _ZerosOf(torch.autograd.Function):
    """x with zeros of another tensor where both are 0."""

    @staticmethod
    def forward(ctx, x, zeros):
        return torch.where((x == 0) & (zeros == 0), zeros, x)

    @staticmethod
    def backward(ctx, g):
        return g, None


def close(got, want):
    """Quickly, what `testing.assert_close` says."""
    if got.shape != want.shape:
        return False
    want, bound = want.to(got.dtype), testing.tolerance(got.dtype)
    if got.dtype == torch.complex32:  # which torch does not compare
        got, want = got.to(torch.complex64), want.to(torch.complex64)
    return torch.equal(got, want) or torch.allclose(
        got, want, rtol=bound, atol=bound, equal_nan=True
    )


def drawn(shape, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    return torch.randn(shape, generator=generator, dtype=wide).to(dtype)
