"""The dense side of a program, and how far tensors are from each other."""

import torch

import spgrad
from fuzz.operands import Number, differentiable, is_sparse
from spgrad import testing


class Twin:
    """The dense side of a program.

    Attributes:
        values: Of the items so far.
        jitter: Relative error to put on everything, for asking how much rounding changes.
        wide: Whether to calculate in double precision.
    """

    def __init__(self, *, wide=False, jitter=0.0, seed=0):
        self.values = []
        self.wide = wide
        self.jitter = jitter
        self.finite = self.finite_before = True  # all values; all but the last
        self.generator = torch.Generator().manual_seed(seed) if jitter else None

    def operand(self, spec, made):
        if isinstance(spec, Number):
            self.values.append(made)
            return
        x = (spgrad.to_dense(made.detach()) if is_sparse(made) else made.detach()).clone()
        if self.wide and differentiable(x.dtype):
            x = x.to(torch.complex128 if x.is_complex() else torch.float64)
        self.finite = self.finite and bool(x.isfinite().all())
        self.values.append(self._shaken(x).detach().requires_grad_(spec.grad))

    def _shaken(self, x):
        if not self.jitter or not differentiable(x.dtype):
            return x
        noise = torch.randn(x.shape, generator=self.generator, dtype=torch.float64)
        return (x * (1 + self.jitter * noise)).to(x.dtype)

    def step(self, step, mask):
        """All results."""
        options = {k: v for k, v in step.options if k not in ("blocksize", "layout")}
        if step.row.masked:
            options["mask"] = mask
        args = [self.values[place] for place in step.args]
        result = step.row.call(step.row.dense, *args, **options)
        result = (result,) if isinstance(result, torch.Tensor) else tuple(result)
        return tuple(self._shaken(y) for y in result)

    def append(self, result, mask):
        """Keeps a result; off its pattern (mask) it is zero, and passes back no infinity."""
        if mask is not None and differentiable(result.dtype):
            result = torch.where(mask, result, result + 0)  # which makes 0 of -0
        if mask is not None and result.requires_grad:
            result.register_hook(
                lambda g: None if g is None else torch.where(mask | g.isfinite(), g, 0)
            )
        self.values.append(result)
        self.finite_before = self.finite
        self.finite = self.finite and bool(result.isfinite().all())


def distance(a, b):
    """|a - b|, infinite where only one is finite or they are different infinities."""
    off = (a - b).abs()
    same = (a == b) | (a.isnan() & b.isnan())
    return torch.where(same, 0, off.nan_to_num(nan=torch.inf))


def close(got, want):
    """Quickly, what `testing.assert_close` says."""
    bound = testing.tolerance(got.dtype)
    return got.shape == want.shape and torch.allclose(
        got, want.to(got.dtype), rtol=bound, atol=bound, equal_nan=True
    )


def drawn(shape, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    return torch.randn(shape, generator=generator, dtype=wide).to(dtype)
