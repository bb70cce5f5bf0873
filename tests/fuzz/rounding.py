"""How far rounding can move what a dense program gives.

Sparse and dense programs add the same terms in another order, or in another precision. So their
results may differ, and the difference is larger the more the terms cancel. The dense program gives
the bound: it runs several times in double precision, and `Rounding` adds an error of the size of
the program's own precision to every operand and every result of an operation of torch. It adds one
to every term of a sum, so a sum changes by the size of its largest terms, also where they cancel.
"""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

import spgrad
from fuzz.operands import differentiable
from spgrad import testing

SEEDS = 8
"""How often a program is rounded anew."""
TIMES = 16
"""How many times the largest movement of those is no defect; some operations round many times."""


PRODUCTS = (torch.ops.aten.prod, torch.ops.aten.cumprod)
NORMS = (torch.ops.aten.linalg_vector_norm,)
"""Their results are calculated, also of one element, whose absolute value they may be."""
OF_SOFTMAX = torch.ops.aten._softmax_backward_data
"""y (g - sum(g y)): g and g y cancel in rows of one element, where they come of other sums."""
SUMS_AND_PRODUCTS = ("addmm", "baddbmm", "addbmm", "addmv")
"""beta z + alpha (A x): for an alpha of 0 no number says how large A x is."""


class Rounding(TorchDispatchMode):
    """Puts a random error on what operations of torch calculate; numbers that they move stay.

    Attributes:
        dtypes: Those of the program; the errors are those of the coarsest.
        seed: Of the errors; None for none, to see the size of the numbers.
        largest: The largest finite absolute value so far.
    """

    def __init__(self, dtypes, seed=None):
        super().__init__()
        self.eps = max(torch.finfo(d).eps for d in dtypes)
        self.tiny = max(torch.finfo(d).tiny for d in dtypes)
        self.generator = None if seed is None else torch.Generator().manual_seed(seed)
        self.largest = 0.0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        inputs = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        outputs = [y for y in tree_leaves(result) if _is_rounded(y)]
        plain = all(type(x) is torch.Tensor for x in (*inputs, *outputs))
        shares = any(a.alias_info for a in (*func._schema.arguments, *func._schema.returns))
        shapes_alone = any(y.is_meta for y in outputs)
        if not (plain and inputs and outputs) or shares or shapes_alone:
            return result
        known = torch.cat([*map(_parts, inputs)])
        self.largest = max(self.largest, *map(_largest, outputs))
        if func.overloadpacket in PRODUCTS:  # of some elements, before a 0 is met
            self.largest = max(self.largest, float(known.clamp(min=1).prod()))
        if func.overloadpacket._qualified_op_name.partition("::")[2] in SUMS_AND_PRODUCTS:
            self.largest = max(self.largest, _largest(args[1] @ args[2]))
        known = known[:0] if func.overloadpacket in NORMS else known
        if self.generator is None or all(bool(_moved(y, known).all()) for y in outputs):
            return result
        other = func(*tree_map(self.shaken, args), **tree_map(self.shaken, kwargs))
        if func.overloadpacket is OF_SOFTMAX:
            terms = args[0].abs().amax().expand_as(other) if other.numel() else other
            other = other + args[1] * (self.shaken(terms) - terms)
        return tree_map(lambda y, z: self._mixed(y, z, known), result, other)

    def shaken(self, x):
        """x with an error on every number; what underflows may be 0 or twice what it is."""
        if self.generator is None or not _is_rounded(x):
            return x
        noise = torch.rand(x.shape, generator=self.generator, dtype=torch.float64) * 2 - 1
        size = torch.where(x.abs() < self.tiny, 1.0, self.eps)
        return (x * (1 + size * noise)).to(x.dtype)

    def summed(self, x, A):
        """x, which is A as a dense tensor, with an error of the size of elements that A repeats."""
        if self.generator is None or not A._vals.numel():
            return x
        sizes = spgrad.from_values(A._vals.detach().abs().double(), A.pattern)
        more = (spgrad.to_dense(sizes) - x.abs()).clamp(min=0)
        noise = torch.rand(x.shape, generator=self.generator, dtype=torch.float64) * 2 - 1
        return x + self.eps * more * noise

    def _mixed(self, y, other, known):
        if not _is_rounded(y) or y.shape != other.shape:
            return y
        return torch.where(_moved(y, known), y, self.shaken(other))


def _is_rounded(x):
    return isinstance(x, torch.Tensor) and differentiable(x.dtype)


def _parts(x):
    """Absolute values of all real numbers in it."""
    x = x.detach().resolve_conj().resolve_neg()
    return (torch.view_as_real(x) if x.is_complex() else x).double().abs().reshape(-1)


def _largest(x):
    """The largest finite absolute value; 0 if there is none."""
    x = _parts(x)
    return float(x.where(x.isfinite(), 0).amax()) if x.numel() else 0.0


def _moved(y, known):
    """Which elements of a result are numbers that its operation was given.

    Of 0 this is not known: terms may have cancelled. Where none did, it is 0 with every error.
    """
    parts = _parts(y)
    parts = torch.isin(parts, known) & (parts != 0)
    return parts.reshape(*y.shape, -1).all(-1) if y.numel() else parts.reshape(y.shape)


def explained(got, want, dtypes, again):
    """Whether rounding can explain where the sparse side gives other numbers.

    Args:
        got: Of the sparse side.
        want: Of the dense side, at unspecified elements as the sparse side sees them.
        dtypes: Of the program.
        again: Gives the same of the dense side in double precision; takes a `Rounding`.
    """
    numbers = Rounding(dtypes)
    exact = again(numbers)
    if exact.shape != got.shape:
        return True  # the number of elements found depends on rounding
    if numbers.largest > min(map(_most, dtypes)):
        return True
    exact = _number(exact)
    bound = testing.tolerance(got.dtype)
    wide = got.to(exact.dtype)
    agree = torch.isclose(wide, want.to(exact.dtype), rtol=bound, atol=bound, equal_nan=True)
    off = distance(wide, exact).masked_fill(agree, 0)
    allowed = torch.full_like(off, bound)
    for seed in range(SEEDS):
        other = again(Rounding(dtypes, seed))
        if other.shape != exact.shape:
            return True
        allowed = torch.maximum(allowed, TIMES * distance(_number(other), exact))
        if bool((off <= allowed).all()):
            return True
    return False


def _number(x):
    """Of a comparison, 0 and 1: rounding may turn one into the other."""
    return x if differentiable(x.dtype) else x.double()


def _most(dtype):
    """The largest number that overflows in no order of calculation; complex ones are squared."""
    most = torch.finfo(dtype).max
    return most**0.5 if dtype.is_complex else most


def distance(a, b):
    """|a - b|, infinite where only one is finite or they are different infinities."""
    off = (a - b).abs()
    same = (a == b) | (a.isnan() & b.isnan())
    return torch.where(same, 0, off.nan_to_num(nan=torch.inf))
