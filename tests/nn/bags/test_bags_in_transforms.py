"""SparseEmbeddingBag within torch.func: items of inputs, and gradients of the table for each."""

import itertools

import pytest
import torch
from torch.testing import assert_close

import spgrad
from spgrad.nn import SparseEmbeddingBag

F64 = torch.float64
MODES = ["sum", "mean", "max"]
modes = pytest.mark.parametrize("mode", MODES)
LISTS = torch.tensor([[1, 1, 4, 0], [2, 6, 4, 4], [7, 0, 3, 5]])
ITEMS = {
    "bags": (LISTS.view(3, 2, 2),),
    "offsets": (LISTS, torch.tensor([[0, 2, 2], [0, 0, 0], [0, 1, 4]])),
    "last": (LISTS, torch.tensor([[0, 2, 4], [0, 0, 4], [0, 3, 4]])),
    "no inputs": (LISTS[:, :0], torch.zeros(3, 2, dtype=torch.int64)),
}


def made(mode="mean", dtype=F64, **options):
    torch.manual_seed(0)
    return SparseEmbeddingBag(8, 3, mode=mode, dtype=dtype, **options)


def items(form):
    return list(zip(*ITEMS[form], strict=True))


@pytest.mark.parametrize(
    ("form", "padding_idx", "max_norm"), [*itertools.product(ITEMS, (None, 4), (None, 0.5))]
)
@modes
def test_items_are_those_of_calls(mode, form, padding_idx, max_norm):
    options = {"padding_idx": padding_idx, "max_norm": max_norm}
    layer, twin = (made(mode, include_last_offset=form == "last", **options) for _ in range(2))
    found = torch.func.vmap(layer)(*ITEMS[form])
    assert_close(found, torch.stack([twin(*item) for item in items(form)]))
    assert_close(layer.weight, twin.weight)


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("form", ["bags", "offsets"])
@modes
def test_gradients_of_the_table_for_each_item(mode, form, sparse):
    layer = made(mode, sparse=sparse, padding_idx=4)
    table = {"weight": layer.weight.detach()}

    def loss(table, *item):
        return torch.func.functional_call(layer, table, item).square().sum()

    dims = (None, *(0 for _ in ITEMS[form]))
    found = torch.func.vmap(torch.func.grad(loss), dims)(table, *ITEMS[form])["weight"]
    second = torch.func.vmap(torch.func.hessian(loss), dims)(table, *ITEMS[form])
    for i, item in enumerate(items(form)):
        layer.zero_grad()
        layer(*item).square().sum().backward()
        assert_close(found[i], layer.weight.grad.to_dense())
        alone = torch.func.hessian(loss)(table, *item)["weight"]["weight"]
        assert_close(second["weight"]["weight"][i], alone)


def test_the_first_of_equal_rows_gets_the_gradient_of_a_maximum():
    layer = made("max")
    torch.nn.init.ones_(layer.weight)
    table = {"weight": layer.weight.detach()}

    def total(table, inputs):
        return torch.func.functional_call(layer, table, (inputs,)).sum()

    found = torch.func.vmap(torch.func.grad(total), (None, 0))(table, ITEMS["bags"][0])["weight"]
    wanted = torch.zeros(3, 8)
    for i, bag in itertools.product(range(3), range(2)):
        wanted[i, ITEMS["bags"][0][i, bag, 0]] += 1
    assert_close(found[..., 0].float(), wanted)


def test_numbers_that_are_no_number_stay():
    layer = made("max")
    with torch.no_grad():
        layer.weight[1, 0] = torch.nan
    found = torch.func.vmap(layer)(ITEMS["bags"][0])
    assert_close(found, torch.stack([layer(*x) for x in items("bags")]), equal_nan=True)
    assert bool(found[0, 0, 0].isnan())


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_weights_of_the_items(mode):
    layer, weights = made(mode), torch.rand(3, 2, 2, dtype=F64)
    found = torch.func.vmap(lambda x, w: layer(x, None, w))(LISTS.view(3, 2, 2), weights)
    pairs = zip(LISTS.view(3, 2, 2), weights, strict=True)
    assert_close(found, torch.stack([layer(x, None, w) for x, w in pairs]))


def test_sums_of_16_bits_are_formed_in_32():
    layer = SparseEmbeddingBag(2, 1, dtype=torch.float16)
    torch.nn.init.constant_(layer.weight, 60_000.0)
    inputs = torch.zeros(2, 1, 100, dtype=torch.int64)
    assert torch.func.vmap(layer)(inputs).flatten().tolist() == [60_000.0] * 2


def test_maps_within_maps_and_along_other_dimensions():
    layer, inputs = made(), torch.arange(48).view(2, 3, 4, 2) % 8
    found = torch.func.vmap(torch.func.vmap(layer))(inputs)
    assert_close(found, torch.stack([torch.stack([layer(x) for x in each]) for each in inputs]))
    found = torch.func.vmap(layer, in_dims=2)(inputs[0])
    assert_close(found, torch.stack([layer(x) for x in inputs[0].unbind(2)]))


@pytest.mark.parametrize(
    ("given", "options", "error", "text"),
    [
        (([[[1, 2]], [[3, 8]]],), {}, IndexError, r"`input` has 8; rows in \[0, 8\)"),
        (([[[1, 2]], [[-1, 3]]],), {}, IndexError, "`input` has -1"),
        (([[1, 2], [3, 4]], [[0, 1], [0, 3]]), {}, ValueError, "`offsets` does not grow"),
        (
            ([[[1, 2]], [[3, 4]]],),
            {"scale_grad_by_freq": True},
            NotImplementedError,
            "`scale_grad_by_freq` is True, and torch.func.vmap maps",
        ),
    ],
)
def test_items_that_are_refused(given, options, error, text):
    with pytest.raises(error, match=text) as caught:
        torch.func.vmap(made(**options))(*map(torch.tensor, given))
    assert isinstance(caught.value, spgrad.SpgradError)
