"""Arguments that an operation refuses before it computes, each with the text of the error."""

import math
import re

import numpy as np
import pytest
import torch

import spgrad
from spgrad import annotations, testing
from spgrad.public import public_op

F32 = torch.float32
A = testing.random_sparse((4, 6), dtype=F32)
WHOLE = testing.random_sparse((4, 6), dtype=torch.int64)
HOLLOW = spgrad.zeros((4, 0))
HYBRID = testing.random_sparse((4, 6, 3), dense_dim=1, dtype=F32)
X = torch.ones(2, 2)
EDGES = torch.tensor([[0, 1], [1, 2]])

REFUSED = {
    # norms
    "norm_of_ints": (lambda: spgrad.vector_norm(WHOLE), ValueError, "vector_norm: `x` has dtype"),
    "norm_in_ints": (
        lambda: spgrad.vector_norm(A, dtype=torch.int64),
        ValueError,
        "vector_norm: `dtype` has dtype",
    ),
    "largest_of_nothing": (
        lambda: spgrad.vector_norm(HOLLOW, math.inf, 1),
        ValueError,
        "vector_norm: `input` has shape (4, 0)",
    ),
    "inverses_of_nothing": (
        lambda: spgrad.vector_norm(HOLLOW, -2, 1),
        ValueError,
        "vector_norm: `input` has shape (4, 0)",
    ),
    "power_of_an_order": (lambda: spgrad.norm(A, [2]), TypeError, "norm: `p` is [2]"),
    "no_correction": (
        lambda: spgrad.var(A, 1, correction="x"),
        TypeError,
        "var: `correction` is 'x'",
    ),
    "spread_of_ints": (lambda: spgrad.std(WHOLE, 1), ValueError, "std: `input` has dtype int64"),
    "one_matrix_dimension": (
        lambda: spgrad.matrix_norm(A, 1, (0,)),
        TypeError,
        "matrix_norm: `dim` is (0,)",
    ),
    "log_of_nothing": (
        lambda: testing.random_sparse((4, 6, 0), dense_dim=1).logsumexp(2, specified=True),
        ValueError,
        "logsumexp: `input` has shape (4, 6, 0)",
    ),
    "a_set_of_dimensions": (lambda: spgrad.sum(A, {1}), TypeError, "sum: `dim` is {1}"),
    # edges
    "weights_elsewhere": (
        lambda: spgrad.from_edges(EDGES, torch.ones(2, device="meta")),
        ValueError,
        "from_edges: `edge_weight`",
    ),
    "edges_in_three_rows": (
        lambda: spgrad.from_edges(torch.zeros(3, 2, dtype=torch.int64)),
        ValueError,
        "from_edges: `edge_index` has shape (3, 2)",
    ),
    "edges_in_a_vector": (
        lambda: spgrad.from_edges(torch.tensor([0, 1])),
        ValueError,
        "from_edges: `edge_index` has shape (2,)",
    ),
    # random
    "share_of_a_word": (lambda: spgrad.rand(3, 3, density="a"), TypeError, "rand: `density` is"),
    "share_of_a_bool": (lambda: spgrad.rand(3, 3, density=True), TypeError, "rand: `density` is"),
    "negative_share": (
        lambda: spgrad.rand(3, 3, density=-0.1),
        ValueError,
        "rand: `density` is -0.1",
    ),
    "negative_number": (lambda: spgrad.rand(3, 3, nse=-1), ValueError, "rand: `nse` is -1"),
    "half_an_element": (lambda: spgrad.rand(3, 3, nse=0.5), TypeError, "rand: `nse` is"),
    "negative_rows": (lambda: spgrad.random_spd(-1), ValueError, "random_spd: `n` is -1"),
    "negative_band": (lambda: spgrad.banded(-1, 2), ValueError, "banded: `n` is -1"),
    "triangle_of_nothing": (
        lambda: spgrad.random_triangular(-2),
        ValueError,
        "random_triangular: `n` is -2",
    ),
    "dense_triangle": (
        lambda: spgrad.random_triangular(3, 2.0),
        ValueError,
        "random_triangular: `density` is 2.0",
    ),
    "strided_band": (
        lambda: spgrad.banded(3, 1, layout=torch.strided),
        TypeError,
        "banded: `layout`",
    ),
    "strided_definite": (
        lambda: spgrad.random_spd(3, layout=torch.strided),
        TypeError,
        "random_spd: `layout`",
    ),
    # shape
    "too_few": (lambda: A.permute(0), ValueError, "permute: `dims` is (0,)"),
    "moved_twice": (lambda: A.movedim((0, 0), (0, 1)), ValueError, "movedim: `source` is (0, 0)"),
    "moved_to_one": (
        lambda: A.movedim((0, 1), (1, -1)),
        ValueError,
        "movedim: `destination` is (1, -1)",
    ),
    "moved_somewhere": (
        lambda: A.movedim((0, 1), (0,)),
        ValueError,
        "movedim: `source` has 2 dimension(s) and `destination` 1",
    ),
    "squeezed_twice": (lambda: A.squeeze((0, -2)), ValueError, "squeeze: `dim` is (0, -2)"),
    "flattened_backwards": (
        lambda: A.flatten(1, 0),
        ValueError,
        "flatten: `start_dim` is 1, behind `end_dim` 0",
    ),
    "less_than_nothing": (lambda: A.reshape(-2, -12), ValueError, "reshape: `shape` is (-2, -12)"),
    "unknown_beside_nothing": (
        lambda: HOLLOW.reshape(0, -1),
        ValueError,
        "reshape: `shape` is (0, -1)",
    ),
    "no_divisor": (lambda: A.reshape(-1, 5), ValueError, "reshape: `shape` is (-1, 5)"),
    "uneven_parts": (lambda: A.unflatten(1, (4, 2)), ValueError, "unflatten: `sizes` is (4, 2)"),
    "hybrid_joined": (HYBRID.flatten, NotImplementedError, "flatten: `shape` is (72,)"),
    "hybrid_turned": (
        lambda: HYBRID.transpose(0, 2),
        NotImplementedError,
        "transpose: the dimensions would be in the order (2, 1, 0)",
    ),
    # like
    "random_ints": (
        lambda: torch.rand_like(A, dtype=torch.int64),
        ValueError,
        "rand_like: `dtype` is torch.int64, in which torch.rand_like gives no values; a floating-",
    ),
    "no_blocks": (
        lambda: torch.ones_like(A, layout=torch.sparse_bsr),
        ValueError,
        "ones_like: `blocksize`",
    ),
    "half_a_grid": (
        lambda: spgrad.neighbourhood_pattern((0, 2), 1),
        ValueError,
        "neighbourhood_pattern: `shape` is (0, 2)",
    ),
    "no_grid": (
        lambda: spgrad.neighbourhood_pattern((), 1),
        ValueError,
        "neighbourhood_pattern: `shape` is ()",
    ),
    **{
        f"radius_{radius}": (
            lambda radius=radius: spgrad.neighbourhood_pattern((2, 2), radius),
            ValueError,
            f"neighbourhood_pattern: `radius` is {radius}",
        )
        for radius in (-1, math.inf, math.nan)
    },
    # products
    "bias_of_columns": (
        lambda: torch.nn.functional.linear(torch.ones(2, 6), A, torch.ones(6)),
        ValueError,
        "linear: `bias` has shape (6,); (4,) is accepted",
    ),
    "offsets_of_two_dimensions": (
        lambda: spgrad.embedding_bag(torch.tensor([0, 1]), A, torch.tensor([[0]])),
        ValueError,
        "embedding_bag: `offsets` has shape (1, 1)",
    ),
    "a_number_first": (
        lambda: spgrad.addcmul(3.0, A, A),
        TypeError,
        "addcmul: `input` is a float",
    ),
    "a_cutoff_of_singular_values": (
        lambda: torch.linalg.lstsq(A, torch.ones(4, 1), rcond=1e-3),
        ValueError,
        "linalg_lstsq: `rcond` is 0.001",
    ),
    # numbers that are not finite
    "components_of_nan": (
        lambda: spgrad.pca_lowrank(WHOLE.float() / 0),
        ValueError,
        "pca_lowrank: `A` has an element that is not finite",
    ),
    "factors_of_nan": (
        lambda: spgrad.svd_lowrank(WHOLE.float() / 0),
        ValueError,
        "svd_lowrank: `A` has an element that is not finite",
    ),
    "eigenvectors_of_nan": (
        lambda: spgrad.lobpcg(spgrad.eye(4) * math.nan),
        ValueError,
        "lobpcg: `A` has an element that is not finite",
    ),
    "a_start_with_nan": (
        lambda: spgrad.lobpcg(spgrad.eye(4), X=torch.full((4, 1), math.nan)),
        ValueError,
        "lobpcg: `X` has an element that is not finite",
    ),
    # layouts
    "blocks_of_csc": (
        lambda: A.to_sparse(layout=torch.sparse_csc, blocksize=(1, 1)),
        ValueError,
        "to_sparse: `blocksize` is (1, 1)",
    ),
    # indices
    # tensors and arrays in the place of words and sizes
    "an_ordering": (
        lambda: spgrad.linalg.solve(spgrad.eye(2), X, spgrad.linalg.SuperLU(X)),
        ValueError,
        "linalg.solve: `ordering` is a dense tensor of shape (2, 2); 'COLAMD'",
    ),
    "a_method": (
        lambda: spgrad.linalg.solve(
            spgrad.eye(2), X, spgrad.linalg.CG(preconditioner=spgrad.linalg.AMG(X))
        ),
        ValueError,
        "linalg.solve: `method` is a dense tensor of shape (2, 2); 'smoothed aggregation'",
    ),
    "an_array_of_sizes": (
        lambda: spgrad.nn.SparseLinear(2, 2, density=0.5, blocksize=np.eye(2)),
        ValueError,
        "nn.SparseLinear: `blocksize` is an ndarray for a weight (2, 2)",
    ),
    "a_dimension_too_few": (
        lambda: spgrad.from_dense(X, dense_dim=1),
        ValueError,
        "from_dense: `dense_dim` is 1 for a tensor of shape (2, 2)",
    ),
    "a_number_to_copy": (
        lambda: torch.ops.aten.copy_(spgrad.eye(2), 2.0),
        ValueError,
        "copy_: `source` is a number (2.0); a SparseTensor of the same pattern is accepted",
    ),
    # options
    "no_option": (lambda: spgrad.full_like(A, 2, size=3), TypeError, "full_like: `size` is no"),
    "like_dense": (lambda: spgrad.randn_like(torch.ones(2)), TypeError, "randn_like: `input` is"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    call, error, says = REFUSED[case]
    with pytest.raises(error, match=re.escape(f"spgrad.{says}")) as raised:
        call()
    assert isinstance(raised.value, spgrad.SpgradError)


BYTES = spgrad.eye(2, dtype=torch.int8)
COPY = A.clone()
WRITTEN = {
    "A[7]": lambda: A[7],
    "A[0, 9]": lambda: A[0, 9],
    "A[:, 'a':]": lambda: A.to_sparse_csr()[:, "a":],
    "A[::-2.5]": lambda: A[::-2.5],
    "A[..., None, 6]": lambda: A[..., None, 6],
    "A[[0, 9]]": lambda: A[[0, 9]],
    "A[[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]]": lambda: A[[0] * 12 + [9]],
    "A[list]": lambda: A[[0] * 99 + [9]],
    "A[0, Tensor]": lambda: A[0, EDGES + 9],
    "A[7] = 1.5": lambda: COPY.__setitem__(7, 1.5),
    "A[:] = 'a'": lambda: COPY.__setitem__(slice(None), "a"),
    "bool(A)": lambda: bool(A),
    "float(A)": lambda: float(A),
    "int(A)": lambda: int(A),
    "complex(A)": lambda: complex(A),
    "2 / A": lambda: 2 / A,
    "2.5 // A": lambda: 2.5 // A,
    "2 % A": lambda: 2 % A,
    "2 ** A": lambda: 2**A,
}


@pytest.mark.parametrize("expression", WRITTEN)
def test_an_expression_is_named_as_users_write_it(expression):
    with pytest.raises(spgrad.SpgradError, match=re.escape(f"spgrad, in {expression}: `")):
        WRITTEN[expression]()


def test_a_function_that_indexes_is_named_itself():
    """Also where an error named an expression before, inside of the function."""
    with pytest.raises(ValueError, match=r"^spgrad\.getitem: `index` has 7"):
        spgrad.getitem(A, 7)
    with pytest.raises(ValueError, match=r"^spgrad\.is_nonzero: `input` has shape"):
        torch.is_nonzero(A)
    with pytest.raises(spgrad.UnsupportedError, match=r"^spgrad\.rpow: `input` is sparse"):
        torch.Tensor.__rpow__(A)  # no expression calls it so

    @public_op
    def first_of_seven(A):
        return A[7]

    with pytest.raises(ValueError, match=r"^spgrad\.first_of_seven: `index` has 7"):
        first_of_seven(A)


@pytest.mark.parametrize("number", [300, -1e30, math.nan, math.inf])
@pytest.mark.parametrize(
    ("argument", "call"),
    [
        ("fill_value", lambda number: spgrad.full_like(BYTES, number)),
        ("value", lambda number: spgrad.set_diag(BYTES, number)),
        ("value", lambda number: BYTES.clone().__setitem__((0, 0), number)),
    ],
)
def test_numbers_that_the_dtype_does_not_hold(argument, call, number):
    with pytest.raises(RuntimeError, match="without overflow"):  # as torch
        torch.zeros(2, dtype=torch.int8).fill_(number)
    says = f"`{argument}` is {number}, which int8 does not hold; numbers from -128 to 127 are"
    with pytest.raises(ValueError, match=re.escape(says)):
        call(number)


def test_what_holds_a_number():
    with pytest.raises(ValueError, match=r"is 300, which int8 .*\.to\(torch\.int64\)"):
        spgrad.full_like(BYTES, 300)
    with pytest.raises(ValueError, match=r"`input` is 300, which int8"):
        spgrad.where(BYTES != 0, 300, BYTES)
    with pytest.raises(ValueError, match=r"is 1e\+300, which float32 .*\.to\(torch\.float64\)"):
        spgrad.set_diag(A[:, :4], 1e300)
    with pytest.raises(ValueError, match=r"is 70000\.0, which float16 .*\.to\(torch\.float32\)"):
        spgrad.full_like(A.half(), 70000.0)
    with pytest.raises(ValueError, match=r"is 2e\+20, which int8 does not hold"):
        spgrad.full_like(BYTES, torch.tensor(2e20, dtype=torch.float64))


LAYER = spgrad.nn.SparseLinear(2, 2, density=0.5)
ALIEN = {
    "an_int_beyond_int64": (spgrad.mul, (spgrad.eye(2), 2**70)),
    "a_rare_dtype": (spgrad.mul, (spgrad.eye(2), X.to(torch.uint16))),
    "a_layer_on_the_same_device": (type(LAYER).forward, (LAYER, X)),
}


@pytest.mark.parametrize("case", ALIEN)
def test_arguments_do_not_explain_every_error(case):
    """An argument that is unusual need not be why torch raised."""
    op, args = ALIEN[case]
    for text in ("not enough memory", "device memory is exhausted"):
        assert annotations.refusal(op, args, {}, RuntimeError(text)) is None
