"""Products summed over named dimensions: tensordot, inner, dot, vdot, outer."""

from __future__ import annotations

from typing import Any

import torch

from spgrad.core.checks import describe_kind
from spgrad.core.tensor import SparseTensor
from spgrad.errors import ArgumentKindError, ArgumentValueError, UnsupportedError
from spgrad.lowering.operands import is_sparse, require_dim, require_rank, shape_of, sparse_operand
from spgrad.ops.elementwise.unary import conj
from spgrad.ops.products import broadcast
from spgrad.ops.products.named.einsum import contract, require_operands
from spgrad.ops.products.named.terms import Term
from spgrad.public import public_op


@public_op
def tensordot(a: torch.Tensor, b: torch.Tensor, dims: Any = 2) -> torch.Tensor:
    """Sum of products over dimensions of two tensors, of which at least one is sparse.

    Args:
        a: Sparse of any layout without dense dimensions, or dense.
        b: Likewise.
        dims: The number of dimensions to sum over, the last of `a` and the first of `b`; or a pair
            of lists of dimensions, of `a` and of `b`, which are summed over in pairs.

    Returns:
        The other dimensions of `a`, then those of `b`. As with `spgrad.einsum`, the result is
        sparse if both operands are, and dense if one is dense and something is summed.

    Gradient:
        As `spgrad.matmul`, to which it lowers.

    Cost:
        That of the matrix product, and O(nse) to rearrange sparse operands, once for each pattern.

    Raises:
        TypeError: Neither operand is sparse, one is not a tensor, or `dims` is neither an int nor
            a pair.
        ValueError: `dims` are out of range, or sizes, dtypes or devices don't fit.
        NotImplementedError: A sparse operand has dense dimensions.

    Example:
        >>> A = spgrad.from_dense(torch.tensor([[1.0, 0.0], [3.0, 2.0]]))
        >>> spgrad.tensordot(A, torch.ones(2, 2), dims=([0, 1], [0, 1]))
        tensor(6.)
    """
    operands = require_operands([("a", a), ("b", b)])
    ranks = [len(shape_of(x)) for x in operands]
    of_a, of_b = _pairs(dims, ranks)
    left, right = [f"a{d}" for d in range(ranks[0])], [f"b{d}" for d in range(ranks[1])]
    for i, j in zip(of_a, of_b, strict=True):
        right[j] = left[i]
    result = [s for d, s in enumerate(left) if d not in of_a]
    result += [s for d, s in enumerate(right) if d not in of_b]
    terms = [Term(operands[0], tuple(left)), Term(operands[1], tuple(right))]
    return contract(terms, tuple(result))


def _as_ints(dims: torch.Tensor) -> Any:
    """The ints of a dense tensor, as one int or as lists."""
    whole = dims.layout == torch.strided and dims.dtype in (torch.int64, torch.int32)
    if not whole or dims.is_meta or not dims.numel():
        raise _no_dims(describe_kind(dims))
    return dims.tolist() if dims.numel() > 1 else int(dims)


def _no_dims(what: str) -> ArgumentKindError:
    return ArgumentKindError(
        f"`dims` is {what}; an int or a pair of lists of ints is accepted. For example ([1], [0])."
    )


def _pairs(dims: Any, ranks: list[int]) -> tuple[list[int], list[int]]:
    """The dimensions of either operand that are summed over."""
    if isinstance(dims, torch.Tensor):
        dims = _as_ints(dims)
    if isinstance(dims, int):
        if not 0 <= dims <= min(ranks):
            raise ArgumentValueError(
                f"`dims` is {dims} for operands of {ranks[0]} and {ranks[1]} dimension(s); numbers "
                f"from 0 to {min(ranks)} are accepted. Sum over fewer."
            )
        return list(range(ranks[0] - dims, ranks[0])), list(range(dims))
    pair = isinstance(dims, (tuple, list)) and len(dims) == 2
    if not pair or not all(isinstance(d, (int, tuple, list)) for d in dims):
        raise _no_dims(repr(dims))
    given = [[d] if isinstance(d, int) else list(d) for d in dims]
    found = [
        [require_dim("dims", d, rank) for d in side]
        for side, rank in zip(given, ranks, strict=True)
    ]
    if len(found[0]) != len(found[1]) or any(len(set(side)) < len(side) for side in found):
        raise ArgumentValueError(
            f"`dims` is {dims}; as many dimensions of `a` as of `b`, each of them once, are "
            "accepted. Pair each dimension with one of the other operand."
        )
    return found[0], found[1]


@public_op
def inner(input: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """`spgrad.tensordot` with the last dimension of both summed over: sum_k input_.k other_.k.

    Of two matrices it is input other^T, of two vectors `spgrad.dot`.
    """
    operands = require_operands([("input", input), ("other", other)])
    ranks = [len(shape_of(x)) for x in operands]
    left, right = [f"a{d}" for d in range(ranks[0])], [f"b{d}" for d in range(ranks[1])]
    if min(ranks):
        right[-1] = left[-1] = "k"
    terms = [Term(operands[0], tuple(left)), Term(operands[1], tuple(right))]
    return contract(terms, tuple(s for s in (*left, *right) if s != "k"))


@public_op
def dot(input: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """sum_i input_i tensor_i for two vectors of which at least one is sparse.

    Args:
        input: Sparse or dense (n,).
        tensor: Likewise.

    Returns:
        Dense 0-d tensor.

    Gradient:
        Of a sparse operand, g times the other at its own elements; of a dense one, dense.

    Cost:
        O(nse of both). The common elements of the two are found once for a pair of patterns.

    Raises:
        TypeError: Neither operand is sparse, or one is not a tensor.
        ValueError: An operand is not a vector, or sizes, dtypes or devices don't fit.
        NotImplementedError: A sparse operand has another layout than COO, the only one of vectors.

    Example:
        >>> a = spgrad.sparse_coo_tensor([[1, 4]], [2.0, 3.0], (5,))
        >>> spgrad.dot(a, torch.arange(5.0))
        tensor(14.)
    """
    return _of_vectors(input, ("tensor", tensor))


@public_op
def vdot(input: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """`spgrad.dot` with the complex conjugate of `input`."""
    left = conj(input) if is_sparse(input) else input.conj()
    return _of_vectors(left, ("other", other))


def _vectors(input: Any, second: tuple[str, Any]) -> list[torch.Tensor]:
    named = [("input", input), second]
    operands = [sparse_operand(name, x) if is_sparse(x) else x for name, x in named]
    for (name, _), x in zip(named, operands, strict=True):
        if isinstance(x, SparseTensor) and not x._pattern.is_coo:
            raise UnsupportedError(
                f"`{name}` has layout {x._pattern.name}; vectors, which are in coo, are accepted. "
                "For a matrix use A @ x or spgrad.tensordot."
            )
    operands = require_operands([(n, x) for (n, _), x in zip(named, operands, strict=True)])
    for (name, _), x in zip(named, operands, strict=True):
        require_rank(name, x, 1, "Use spgrad.tensordot for other numbers of dimensions.")
    return operands


def _of_vectors(input: Any, second: tuple[str, Any]) -> torch.Tensor:
    operands = _vectors(input, second)
    sizes = [x._pattern.shape[0] if isinstance(x, SparseTensor) else x.shape[0] for x in operands]
    if sizes[0] != sizes[1]:
        raise ArgumentValueError(
            f"`{second[0]}` has {sizes[1]} element(s) and `input` {sizes[0]}; as many in both are "
            "accepted. Check the sizes of the vectors."
        )
    return contract([Term(x, ("i",)) for x in operands], ())


@public_op
def outer(input: torch.Tensor, vec2: torch.Tensor) -> SparseTensor:
    """input_i vec2_j for two vectors, of which the first, or both, are sparse.

    Args:
        input: Sparse (n,).
        vec2: Sparse or dense (m,).

    Returns:
        COO SparseTensor (n, m). With a dense `vec2` its second dimension is dense: a row of values
        for each element of `input`.

    Gradient:
        Of `input`: for each element, the sum of its row of the cotangent times `vec2`; of `vec2`
        likewise; of sparse ones on their own patterns.

    Cost:
        O(nse of the result).

    Raises:
        TypeError: Neither operand is sparse, or one is not a tensor.
        ValueError: An operand is not a vector, or dtypes or devices don't fit.
        NotImplementedError: `input` is dense, so that the dense dimension would come first, or a
            sparse operand has another layout than COO.

    Example:
        >>> a = spgrad.sparse_coo_tensor([[1]], [2.0], (3,))
        >>> spgrad.outer(a, torch.tensor([1.0, 10.0])).to_dense()
        tensor([[ 0.,  0.],
                [ 2., 20.],
                [ 0.,  0.]])
    """
    if broadcast.are_bools(input, vec2):
        counts = (broadcast.as_counts("input", x) for x in (input, vec2))
        return broadcast.as_truth(outer(*counts))
    operands = _vectors(input, ("vec2", vec2))
    if not isinstance(operands[0], SparseTensor):
        raise UnsupportedError(
            "`input` is dense and `vec2` sparse, with which the dense dimension would come first; "
            "a sparse `input` is accepted. Use spgrad.outer(vec2, input), the transpose, or "
            "spgrad.outer(spgrad.from_dense(input, torch.sparse_coo), vec2)."
        )
    terms = [Term(x, (s,)) for x, s in zip(operands, "ij", strict=True)]
    y = contract(terms, ("i", "j"))
    assert isinstance(y, SparseTensor)
    return y
