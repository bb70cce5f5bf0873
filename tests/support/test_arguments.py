"""Arguments under NumPy's names, wherever torch takes them: axis for dim, keepdims for keepdim."""

import contextlib

import pytest
import torch

import spgrad
from spgrad import testing
from spgrad.support import torch_named
from spgrad.torch_protocol.inplace import is_in_place

NUMPYS = {"dim": "axis", "keepdim": "keepdims"}
PYTHONS = {  # functions of torch's own that are written in Python, and take no names of NumPy
    "torch.Tensor.norm",
    "torch.Tensor.split",
    "torch.Tensor.unflatten",
    "torch.native_norm",
    "torch.nn.functional.log_softmax",
    "torch.nn.functional.normalize",
    "torch.nn.functional.softmax",
    "torch.norm",
    "torch.split",
}
CASES = [
    (cell, name)
    for cell in testing.cells()
    if cell.layout in ("csr", "coo") and cell.signature in cell.op.signatures[:2]
    if "dim" in cell.options and not {"specified", "correction"} & set(cell.options)
    for name in cell.op.torch
    if name not in PYTHONS and not is_in_place(name)
]


def result_of(call):
    y = call()
    return y if isinstance(y, torch.Tensor) else y[0]


@pytest.mark.parametrize(("cell", "name"), CASES, ids=str)
def test_names_of_numpy_mean_what_they_mean_in_torch(cell, name):
    func = torch_named(name)
    operands = [a.detach() for a in testing.sample(cell)]
    options = {NUMPYS.get(k, k): v for k, v in cell.options.items()}
    dense = [testing.dense_result(a) for a in operands]
    with contextlib.suppress(NotImplementedError):  # torch.sparse.softmax, of dense ones
        testing.call(cell, func, dense, options)  # torch takes these names
    wanted = result_of(lambda: testing.call(cell, func, operands, cell.options))
    y = result_of(lambda: testing.call(cell, func, operands, options))
    testing.assert_close(y, testing.dense_result(wanted))
    with spgrad.dropin(fallback="refuse"):
        y = result_of(lambda: testing.call(cell, func, operands, options))
    testing.assert_close(y, testing.dense_result(wanted))


def test_most_names_with_a_dimension_are_tried():
    assert len({name for _, name in CASES}) > 50


def test_methods_take_the_names():
    A = testing.random_sparse((4, 6))
    dense = A.to_dense()
    testing.assert_close(A.sum(axis=1, keepdims=True), dense.sum(1, keepdim=True))
    testing.assert_close(A.sum(axis=1, specified=True), dense.sum(1))
    testing.assert_close(torch.cat([A, A], axis=1), torch.cat([dense, dense], 1))


def test_a_dimension_given_twice_is_refused():
    A = testing.random_sparse((4, 6))
    for call in (lambda: A.sum(axis=1, dim=1), lambda: torch.sum(A, 1, axis=1)):
        with pytest.raises(TypeError, match=r"axis|multiple values"):
            call()


def test_an_out_that_is_none_is_left_out():
    A = testing.random_sparse((4, 6))
    testing.assert_close(torch.sum(A, axis=1, out=None), A.to_dense().sum(1))
    with pytest.raises(spgrad.UnsupportedError, match=r"spgrad\.sum: `out`"):
        torch.sum(A, axis=1, out=torch.empty(4, dtype=A.dtype))
