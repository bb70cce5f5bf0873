"""Operands of products that do not fit: the function, the operand and what it accepts are named."""

import pytest
import torch

import spgrad
from spgrad import support, testing
from spgrad.core.pattern import LAYOUTS


# Products: one line for each way in which operands can fail to fit.
def product_errors():
    A = testing.random_sparse((4, 6))
    B = testing.random_sparse((2, 4, 6))
    x = torch.ones(6, 2, dtype=torch.float64)
    wide = torch.ones(2, 6, 2, dtype=torch.float64)
    value, kind = spgrad.ArgumentValueError, spgrad.ArgumentKindError
    unsupported = spgrad.UnsupportedError
    hybrid = spgrad.sparse_coo_tensor([[0], [0]], torch.ones(1, 3, dtype=torch.float64), (4, 6, 3))
    yield "mm", (A, x[:5]), value, r"`mat2` has shape \(5, 2\); 6 rows \(from `input` of shape \(4"
    yield "mm", (x, A), value, r"`mat2` has shape \(4, 6\); 2 rows \(from `input` of shape \(6"
    yield "mm", (A, A), value, r"`mat2` has shape \(4, 6\); 6 rows \(from `input` of shape \(4"
    yield (
        "mm",
        (A, x.float()),
        value,
        "`mat2` has dtype float32; `input` has float64, and one dtype",
    )
    yield (
        "mm",
        (A, A.float()),
        value,
        "`mat2` has dtype float32; `input` has float64, and one dtype",
    )
    yield "mm", (A, x.to("meta")), value, "`mat2` is on meta; `input` is on cpu, and one device"
    yield "mm", (A, x[:, 0]), value, r"`mat2` has shape \(6,\); a 2-d tensor is accepted"
    yield "mm", (B, x), value, r"`input` has shape \(2, 4, 6\); a 2-d tensor is accepted"
    yield "mm", (x, x), kind, "`input` and `mat2` are dense "
    yield "mm", (A, 3), kind, "`mat2` is an int; "
    yield "mm", (None, A), kind, "`input` is None; "
    yield "matmul", (x, x), kind, "`input` and `other` are dense "
    yield "matmul", (A, 3.0), kind, "`other` is a float; a vector, matrix or batch"
    yield "matmul", ([1.0], A), kind, "`input` is a list; a dense tensor is accepted"
    yield "matmul", (A, torch.ones(()).double()), value, r"`other` has shape \(\); a vector, matrix"
    yield "matmul", (B, torch.cat([wide, wide[:1]])), value, r"a batch that broadcasts with \(2,\)"
    yield "matmul", (hybrid, x), unsupported, r"`input` has 1 dense dimension\(s\)"
    yield "addmm", (x[0].bool(), A.to(torch.bool), x.bool()), value, "`input` has dtype bool; float"
    yield "mv", (A, x), value, r"`vec` has shape \(6, 2\); a 1-d tensor is accepted"
    yield "mv", (x, x[:, 0]), kind, "`input` is a dense tensor of shape"
    yield "mv", (B, x[:, 0]), value, r"`input` has shape \(2, 4, 6\); a 2-d tensor is accepted"
    yield "mv", (A, x[:5, 0]), value, r"`vec` has shape \(5,\); 6 elements"
    yield "bmm", (A, x), value, r"`input` has shape \(4, 6\); a 3-d tensor is accepted"
    yield "bmm", (B, wide[:1]), value, r"`mat2` has shape \(1, 6, 2\); a batch of 2 is accepted"
    yield "sparse_mm", (x, x), value, "`A` is a dense tensor"
    yield "sparse_mm", (A, A), value, "`B` is a csr tensor"
    yield "sparse_mm", (A, wide), value, r"`B` has shape \(2, 6, 2\); a 2-d tensor is accepted"
    yield "linear", (x, A), value, r"`input` has shape \(.*\); .* \(from `weight` of shape"
    yield "linear", (A, A, x), kind, "`bias` is a dense tensor"
    yield "addmm", (A, A, x), kind, "`input` is sparse and one matrix is dense"
    yield "addmm", (x[:3], A, x), value, r"`input` has shape \(3, 2\); what broadcasts to \(4, 2\)"
    yield "addmm", (x[0].float(), A, x), value, "`input` has dtype float32; `mat1` has float64"
    yield "addmm", (3, A, x), kind, "`input` is an int; a dense tensor is accepted"
    yield "addmv", (x[0], A, x[:, 0]), value, r"`input` has shape \(2,\); what broadcasts to \(4,\)"
    yield "baddbmm", (x, B, wide[:1]), value, r"`batch2` has shape \(1, 6, 2\); a batch of 2"
    yield "smm", (x, A), kind, "`input` is a dense tensor"
    yield "hspmm", (A, A), kind, "`mat2` is a csr tensor"
    yield "sspaddmm", (A, A, x), value, r"`input` has shape \(4, 6\); \(4, 2\) is accepted"
    yield "sampled_addmm", (A, x, x), value, r"`mat1` has shape \(6, 2\); \(4, 2\) is accepted"
    yield "sampled_addmm", (x, x, x), kind, "`input` is a dense tensor"


def numbers_of_dimensions():
    A, B = testing.random_sparse((4, 6)), testing.random_sparse((2, 4, 6))
    x = torch.ones(6, 2, dtype=torch.float64)
    wide = torch.ones(2, 6, 2, dtype=torch.float64)
    value = spgrad.ArgumentValueError
    matrix, vector, batch = (rf"; a {n}-d tensor is accepted" for n in (2, 1, 3))
    three, thin = r" has shape \(2, 4, 6\)", r" has shape \(2, 6, 2\)"
    yield "sspaddmm", (B, A, x), value, "`input`" + three + matrix
    yield "sspaddmm", (A, B, x), value, "`mat1`" + three + matrix
    yield "sspaddmm", (A, A, wide), value, "`mat2`" + thin + matrix
    yield "hspmm", (B, x), value, "`mat1`" + three + matrix
    yield "hspmm", (A, wide), value, "`mat2`" + thin + matrix
    yield "smm", (B, x), value, "`input`" + three + matrix
    yield "smm", (A, wide), value, "`mat`" + thin + matrix
    yield "addmm", (x, B, x), value, "`mat1`" + three + matrix
    yield "addmm", (x, A, wide), value, "`mat2`" + thin + matrix
    yield "addmv", (x[:, 0], B, x[:, 0]), value, "`mat`" + three + matrix
    yield "addmv", (x[:, 0], A, x), value, r"`vec` has shape \(6, 2\)" + vector
    yield "baddbmm", (x, A, wide), value, r"`batch1` has shape \(4, 6\)" + batch
    yield "baddbmm", (x, B, x), value, r"`batch2` has shape \(6, 2\)" + batch


ERRORS = [*product_errors(), *numbers_of_dimensions()]


@pytest.mark.parametrize("case", ERRORS, ids=lambda c: f"{c[0]}-{c[3][:20]}")
def test_operands_that_do_not_fit_are_named(case):
    fn, operands, kind, says = case
    with pytest.raises(kind, match=rf"^spgrad\.{fn}: .*{says}"):
        getattr(spgrad, fn)(*operands)


@pytest.mark.parametrize("name", support.ALL)
def test_operator_refuses_as_the_function_does(name):
    A = testing.random_sparse((4, 6), LAYOUTS[name])
    with pytest.raises(
        spgrad.ArgumentValueError, match=r"^spgrad\.matmul: `other` has shape \(5, 2\)"
    ):
        A @ torch.ones(5, 2, dtype=torch.float64)
    with pytest.raises(
        spgrad.ArgumentValueError, match=r"^spgrad\.matmul: `other` has shape \(4, 6\)"
    ):
        torch.ones(2, 5, dtype=torch.float64) @ A
    with pytest.raises(spgrad.ArgumentKindError, match=r"^spgrad\.matmul: `other` is an int"):
        A @ 3
    with pytest.raises(spgrad.ArgumentValueError, match=r"^spgrad\.mm: `mat2` has dtype float32"):
        torch.mm(A, torch.ones(6, 2))
