"""Cases in which an error, or another result than dense torch's, is right, each with its reason."""

import math

import torch

import spgrad
from fuzz.operands import differentiable, is_sparse

ARITHMETIC = {f"elementwise.{name}" for name in ("binary", "compare", "logic", "fused")}
SPREADS = ("var", "std")
"""Of no degrees of freedom they are infinite; torch then gives every element the same gradient."""
CHAINS = ("multi_dot", "chain_matmul")
EXTREMA = ("max", "min", "argmax", "argmin")


def hides_numbers(step, args):
    """Whether an operation leaves nothing of its operands' numbers to compare."""
    if step.name == "expm_multiply":  # the error is a share of exp(norm), beside smaller numbers
        return bool((~(_sizes(args[0]) <= 4)).any())
    if step.name in CHAINS:  # a product overflows in one order and not in another
        most = math.prod(float(_sizes(a).sum()) for a in args)
        return not most <= min(
            (torch.finfo(a.dtype).max for a in args if differentiable(a.dtype)), default=math.inf
        )
    return False


def _sizes(x):
    """The absolute values of the numbers in a tensor."""
    return (x._vals if is_sparse(x) else x).detach().to(torch.complex128).abs()


def refusal_is_right(step, args, error, want):
    """Whether the sparse side may refuse what the dense one answers.

    What a step has beyond the table (its signature, or the arguments that its samples show) may be
    refused as unsupported. Dtypes may be refused that a specification, a formula, lets pass; the
    generated tests compare them with torch's own functions.

    Args:
        step: The operation.
        args: Its operands.
        error: What the sparse side raises.
        want: The results of the dense side.
    """
    if isinstance(error, spgrad.UnsupportedError):
        return not step.signature or dict(step.options) not in map(dict, step.row.samples)
    if isinstance(error, spgrad.PivotError):  # dense torch divides by the zero
        return True
    text = str(error)
    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    empty = not all(a.numel() for a in (*tensors, *want))  # of nothing, torch checks little
    if empty and isinstance(error, spgrad.errors.ArgumentIndexError):
        return True
    plain = len({a.dtype for a in tensors}) == 1 and differentiable(tensors[0].dtype)
    if "dtype" in text and (empty or not plain):
        return True
    if "dimensions without elements" in text:  # what a batch of nothing gives is not 0
        return True
    if "would be NaN where it is not specified" in text:
        return True
    if (
        "with which 0 becomes" in text or "is 0 and has a gradient" in text
    ):  # depends on the value of a number
        return True
    if "blocksize" in text:  # the dense specification has no blocks
        return True
    return not step.signature and isinstance(error, spgrad.SpgradError)


def answer_is_right(step, args, error):
    """Whether the sparse side may answer what the dense specification refuses."""
    text = str(error)
    options = dict(step.options)
    # the scale of attention without features; a remainder of integers that are not specified
    if isinstance(error, ZeroDivisionError) or text == "ZeroDivisionError":
        return True
    if "does not support automatic differentiation" in text:
        return True
    if "view size is not compatible" in text:  # sparse views are copies
        return True
    if "dim must be a 2-tuple" in text:  # torch.norm of a vector has no limit, nor here
        return True
    # the specification reduces over nothing, where the result is said to be 0
    over_specified = options.get("specified") or "reduce" in options
    return bool(over_specified) and "non-zero size" in text


def _of_nan(step, dense, want):
    """The specification where NaN in an operand is NaN in a result of ours alone."""
    if step.name == "einsum":  # an element times the sum of nothing
        return torch.where((want == 0) & dense.isnan(), dense.to(want.dtype), want)
    if step.name == "embedding_bag":  # torch's maxima pass over NaN behind a number
        return torch.where(dense.isnan(), dense.to(want.dtype), want)
    return want


def adjusted(step, got, dense, want, finite, mask):
    """The specification where the documents say that spgrad differs from it.

    Args:
        step: The operation.
        got: A result of the sparse side.
        dense: The same as a dense tensor without graph.
        want: The same of the dense side.
        finite: Whether all values before it are.
        mask: Of the pattern of a sparse result.
    """
    if step.name == "einsum":  # along a size of 1, torch multiplies, which may give -0
        want = want + 0
    want = want if finite else _of_nan(step, dense, want)
    if (
        not finite
        and differentiable(want.dtype)
        and (
            step.row.family == "products"
            or step.row.module in ARITHMETIC
            or step.name in ("kron", "sparse_mask", "solve_triangular", "triangular_solve")
        )
    ):  # what is not specified is not multiplied
        if 0 in (dict(step.options).get(name, 1) for name in ("alpha", "beta")):
            return dense  # 0 times infinity, or nothing at all
        want = torch.where(want.isnan(), dense.to(want.dtype), want)
        if step.row.family == "products":  # a (b + c) is infinite where a b + a c is inf - inf
            want = torch.where(want.isinf() & dense.isnan(), dense.to(want.dtype), want)
    if step.name == "normalize" and want.dtype == torch.float16:  # of torch's, eps becomes 0
        want = torch.where(want.isnan() & (dense == 0), dense.to(want.dtype), want)
    if step.name in SPREADS:  # of complex numbers and none to divide by, torch has infinity + 0 / 0
        want = torch.where(want.isnan() & dense.isinf(), dense.to(want.dtype), want)
    specified = dict(step.options).get("specified")
    if specified and not finite and step.name in EXTREMA and got.dtype == torch.int64:
        return dense  # the specification fills in infinities, and may find one of these first
    if not is_sparse(got):
        return want
    outside = ~mask
    if specified:
        want = want.masked_fill(outside, 0)  # what is not specified stays so
    divides = step.row.module in ARITHMETIC or step.name == "normalize"
    if divides and differentiable(want.dtype):
        want = want.masked_fill(outside & want.detach().isnan(), 0)  # 0 / 0 is not calculated
        if not got.pattern.coalesced:  # a / 0 + b / 0 may be infinity - infinity
            want = torch.where(want.isinf() & dense.isnan(), dense.to(want.dtype), want)
    return want
