"""Pickle, torch.save, deepcopy and worker processes: the result is equal, or an error is raised."""

import copy
import io
import pickle
from pathlib import Path

import pytest
import torch
from samples import drawn
from torch import nn
from torch.utils.data import DataLoader, Dataset

import spgrad
from spgrad import serialize, support, testing
from spgrad.core.pattern import LAYOUTS
from spgrad.core.slots import above
from spgrad.torch_protocol import pickling


def by_pickle(A):
    return pickle.loads(pickle.dumps(A))


def by_save(A):
    file = io.BytesIO()
    torch.save(A, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


WAYS = {"pickle": by_pickle, "save": by_save, "deepcopy": copy.deepcopy}

ways = pytest.mark.parametrize("way", WAYS.values(), ids=list(WAYS))


def variants():
    """Tensors of every layout and kind."""
    for name in support.ALL:
        yield name, lambda name=name: testing.random_sparse((4, 6), LAYOUTS[name])
        yield (
            f"{name}-ragged",
            lambda name=name: testing.random_sparse((3, 4, 6), LAYOUTS[name]),
        )
    for name in ("bsr", "bsc"):
        layout = LAYOUTS[name]
        yield (
            f"{name}-1x2",
            lambda layout=layout: testing.random_sparse((4, 6), layout, blocksize=(1, 2)),
        )
    yield "int32", lambda: testing.random_sparse((4, 6), index_dtype=torch.int32)
    yield (
        "uncoalesced",
        lambda: testing.random_sparse((4, 6), torch.sparse_coo, coalesced=False),
    )
    yield "empty", lambda: spgrad.sparse_coo_tensor((0, 3))
    yield "no_rows", lambda: spgrad.sparse_csr_tensor([0], [], torch.zeros(0), (0, 3))
    yield "hybrid", lambda: spgrad.sparse_csr_tensor([0, 1], [0], torch.ones(1, 3), (1, 2, 3))
    for dtype in (torch.bfloat16, torch.complex64, torch.bool, torch.int64):
        yield str(dtype), lambda dtype=dtype: testing.random_sparse((4, 6)).to(dtype)


VARIANTS = dict(variants())


@ways
@pytest.mark.parametrize("case", VARIANTS)
def test_round_trip(case, way):
    A = VARIANTS[case]()
    B = way(A)
    assert type(B) is spgrad.SparseTensor
    assert B is not A
    assert (B.shape, B.dtype, B.layout) == (A.shape, A.dtype, A.layout)
    assert B.pattern.spec == A.pattern.spec
    assert B.pattern.same_as(A.pattern)
    for i, j in zip(B.pattern.indices, A.pattern.indices, strict=True):
        assert i.dtype == j.dtype
    assert torch.equal(B._vals, A._vals)
    assert B._vals.data_ptr() != A._vals.data_ptr() or A._vals.numel() == 0
    assert not B.requires_grad
    assert not isinstance(B, nn.Parameter)
    assert torch.equal(B.to_dense(), A.to_dense())


@ways
@pytest.mark.parametrize("name", support.ALL)
def test_flags_are_kept(name, way):
    leaf = way(testing.random_sparse((4, 6), LAYOUTS[name]).requires_grad_())
    assert leaf.requires_grad
    assert leaf.is_leaf
    assert not isinstance(leaf, nn.Parameter)
    for requires_grad in (True, False):
        A = nn.Parameter(testing.random_sparse((4, 6), LAYOUTS[name]), requires_grad)
        B = way(A)
        assert isinstance(B, nn.Parameter)
        assert B.requires_grad is requires_grad
        assert [p is B for p in nn.ParameterList([B])] == [True]


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_every_pickle_protocol(protocol):
    A = testing.random_sparse((4, 6))
    assert torch.equal(pickle.loads(pickle.dumps(A, protocol)).to_dense(), A.to_dense())


@ways
def test_what_comes_back_works(way):
    A = testing.random_sparse((4, 6)).requires_grad_()
    A @ torch.ones(6, 1, dtype=torch.float64)  # derived views stay behind
    B = way(A)
    (B @ torch.ones(6, 1, dtype=torch.float64)).sum().backward()
    assert B.grad.pattern is B.pattern
    assert torch.equal(B.grad.values(), torch.ones_like(B.values()))


def test_saved_file_holds_no_more_than_the_parts():
    """Views that products derive are not stored."""
    A = testing.random_sparse((200, 200))
    before = len(pickle.dumps(A))
    A @ torch.ones(200, 1, dtype=torch.float64)
    torch.ones(1, 200, dtype=torch.float64) @ A
    assert len(pickle.dumps(A)) == before


def test_a_computed_tensor_is_saved_without_its_graph():
    A = testing.random_sparse((4, 6)).requires_grad_() * 2
    for way in (by_pickle, by_save):
        B = way(A)
        assert B.is_leaf
        assert not B.requires_grad
        assert torch.equal(B.to_dense(), A.detach().to_dense())
    with pytest.raises(RuntimeError, match="only leaves are copied"):
        copy.deepcopy(A)


def test_a_gradient_that_was_copied_before_its_tensor_stays_its_gradient():
    A = testing.random_sparse((4, 6)).requires_grad_()
    (A @ torch.ones(6, dtype=A.dtype)).sum().backward()
    grad, B = copy.deepcopy([A.grad, A])
    assert B.grad is grad
    assert grad is not A.grad


def test_state_dict_file():
    class Layer(nn.Module):
        def __init__(self, seed):
            super().__init__()
            self.weight = nn.Parameter(testing.random_sparse((4, 6), seed=seed))
            self.register_buffer("graph", testing.random_sparse((4, 4), seed=seed))

    layer, twin = Layer(0), Layer(0)
    with torch.no_grad():
        layer.weight.mul_(2)
    twin.load_state_dict(by_save(layer.state_dict()))
    assert torch.equal(twin.weight.to_dense(), layer.weight.to_dense())
    twin = copy.deepcopy(layer)
    assert twin.graph.pattern is layer.graph.pattern
    whole = pickle.loads(pickle.dumps(layer.state_dict()))
    assert torch.equal(whole["graph"].to_dense(), layer.graph.to_dense())


def test_load_to_another_device():
    file = io.BytesIO()
    torch.save(testing.random_sparse((4, 6)), file)
    file.seek(0)
    A = torch.load(file, weights_only=True, map_location="meta")
    assert {A.device.type, A.pattern.device.type} == {"meta"}
    assert A.shape == (4, 6)


def test_two_names_of_one_tensor_stay_one():
    A = testing.random_sparse((4, 6))
    for way in WAYS.values():
        pair = way({"a": A, "b": A})
        assert pair["a"] is pair["b"]


# Damaged files: every index of a file is checked.


def tampered(name, change):
    """The pickled form of a tensor whose parts `change` has been at."""
    A = testing.random_sparse((4, 6), LAYOUTS[name])
    function, (vals, spec, shape, indices, *flags) = A.__reduce_ex__(4)
    assert function is pickling.load
    parts = {
        "vals": vals.clone(),
        "spec": spec,
        "shape": shape,
        "indices": tuple(i.clone() for i in indices),
    }
    change(parts)
    return Rebuilt(tuple(parts.values()) + tuple(flags))


class Rebuilt:
    """Pickles as the call that makes a SparseTensor."""

    def __init__(self, arguments):
        self.arguments = arguments

    def __reduce__(self):
        return pickling.load, self.arguments


def put(parts, which, at, value):
    parts["indices"][which].view(-1)[at] = value


def replace(parts, key, value):
    parts[key] = value


def blocks_of(parts, *sizes):
    """Another size of the blocks, and values that have it as far as values can."""
    parts["spec"] = (*parts["spec"][:2], sizes, *parts["spec"][3:])
    shape = (int(max(size, 0)) for size in sizes)
    parts["vals"] = torch.ones(parts["indices"][1].numel(), *shape)


COMPRESSED = support.ALL[1:]
DAMAGE = {
    "index_out_of_range": (support.ALL, lambda p: put(p, -1, 0, 10**9)),
    "negative_index": (support.ALL, lambda p: put(p, -1, -1, -1)),
    "duplicate": (("csr", "csc"), lambda p: put(p, 1, 1, int(p["indices"][1][0]))),
    "unsorted_coo": (("coo",), lambda p: replace(p, "indices", (p["indices"][0].flip(1),))),
    "pointers_start": (COMPRESSED, lambda p: put(p, 0, 0, 1)),
    "pointers_end": (COMPRESSED, lambda p: put(p, 0, -1, 10**9)),
    "pointers_decrease": (COMPRESSED, lambda p: put(p, 0, 1, 10**6)),
    "too_few_pointers": (
        COMPRESSED,
        lambda p: replace(p, "indices", (p["indices"][0][:-1], p["indices"][1])),
    ),
    "values_cut": (support.ALL, lambda p: replace(p, "vals", p["vals"][:-1])),
    "values_flat": (("bsr", "bsc"), lambda p: replace(p, "vals", p["vals"].view(-1))),
    "values_list": (support.ALL, lambda p: replace(p, "vals", [1.0])),
    "values_sparse": (support.ALL, lambda p: replace(p, "vals", p["vals"].to_sparse())),
    "shape_smaller": (support.ALL, lambda p: replace(p, "shape", (2, 2))),
    "shape_longer": (support.ALL, lambda p: replace(p, "shape", (4, 6, 1))),
    "shape_shorter": (support.ALL, lambda p: replace(p, "shape", (4,))),
    "shape_between_blocks": (("bsr", "bsc"), lambda p: replace(p, "shape", (4, 7))),
    "shape_negative": (support.ALL, lambda p: replace(p, "shape", (-4, 6))),
    "shape_huge": (support.ALL, lambda p: replace(p, "shape", (2**40, 2**40))),
    "shape_word": (support.ALL, lambda p: replace(p, "shape", "46")),
    "index_dtype": (
        support.ALL,
        lambda p: replace(p, "indices", tuple(i.double() for i in p["indices"])),
    ),
    "index_dtypes": (
        COMPRESSED,
        lambda p: replace(p, "indices", (p["indices"][0].int(), p["indices"][1])),
    ),
    "index_list": (
        support.ALL,
        lambda p: replace(p, "indices", tuple(i.tolist() for i in p["indices"])),
    ),
    "index_dims": (
        support.ALL,
        lambda p: replace(p, "indices", tuple(i[None] for i in p["indices"])),
    ),
    "index_missing": (support.ALL, lambda p: replace(p, "indices", p["indices"][:-1])),
    "index_extra": (support.ALL, lambda p: replace(p, "indices", (*p["indices"], p["indices"][0]))),
    "index_none": (support.ALL, lambda p: replace(p, "indices", None)),
    "layout": (support.ALL, lambda p: replace(p, "spec", ("ell", *p["spec"][1:]))),
    "other_layout": (("csr", "bsr"), lambda p: replace(p, "spec", ("coo", *p["spec"][1:]))),
    "layout_list": (support.ALL, lambda p: replace(p, "spec", ([], *p["spec"][1:]))),
    "blocksize_number": (
        ("csr", "bsr"),
        lambda p: replace(p, "spec", (*p["spec"][:2], 2, *p["spec"][3:])),
    ),
    "spec_cut": (support.ALL, lambda p: replace(p, "spec", p["spec"][:-1])),
    "spec_none": (support.ALL, lambda p: replace(p, "spec", None)),
    "dense_dim": (support.ALL, lambda p: replace(p, "spec", (p["spec"][0], 9, *p["spec"][2:]))),
    "dense_dim_negative": (
        support.ALL,
        lambda p: replace(p, "spec", (p["spec"][0], -1, *p["spec"][2:])),
    ),
    "no_blocksize": (
        ("bsr", "bsc"),
        lambda p: replace(p, "spec", (*p["spec"][:2], None, *p["spec"][3:])),
    ),
    "blocksize_of_csr": (
        ("csr", "csc"),
        lambda p: replace(p, "spec", (*p["spec"][:2], (1, 1), *p["spec"][3:])),
    ),
    "blocksize_zero": (("bsr", "bsc"), lambda p: blocks_of(p, 0, 2)),
    "blocksize_negative": (("bsr", "bsc"), lambda p: blocks_of(p, 2, -2)),
    "blocksize_of_three": (("bsr", "bsc"), lambda p: blocks_of(p, 2, 2, 1)),
    "blocksize_float": (("bsr", "bsc"), lambda p: blocks_of(p, 2.0, 2.0)),
    "devices": (
        support.ALL,
        lambda p: replace(p, "vals", p["vals"].to("meta")),
    ),
}
CASES = [(case, name) for case, (names, _) in DAMAGE.items() for name in names]


@pytest.mark.parametrize(("case", "name"), CASES)
def test_damaged_files_are_refused(case, name):
    blob = pickle.dumps(tampered(name, DAMAGE[case][1]))
    text = "`blocksize`" if case.startswith("blocksize") else ""
    with pytest.raises(spgrad.SpgradError, match=rf"^spgrad\.load: {text}"):
        pickle.loads(blob)


@pytest.mark.parametrize("name", ["coo", "csr"])
def test_narrow_indices_of_a_wide_tensor_are_widened(name):
    """As constructors widen them, so that products of sizes do not overflow."""

    def widen(parts):
        parts["shape"] = (4, 2**40)
        parts["indices"] = tuple(i.to(torch.int32) for i in parts["indices"])

    A = pickle.loads(pickle.dumps(tampered(name, widen)))
    assert {i.dtype for i in A.pattern.indices} == {torch.int64}


def test_damage_is_found_by_torch_load():
    """Also where weights_only promises that a file can do no harm."""
    file = io.BytesIO()
    A = spgrad.sparse_csr_tensor([0, 1], [10**9], [1.0], (1, 3), check_invariants=False)
    torch.save(A, file)
    file.seek(0)
    with pytest.raises(spgrad.ArgumentValueError, match="has 1000000000 at position 0; "):
        torch.load(file, weights_only=True)


def test_truncated_files_are_no_crash():
    file = io.BytesIO()
    torch.save(testing.random_sparse((4, 6)), file)
    blob = file.getvalue()
    for length in (0, 10, len(blob) // 2, len(blob) - 10):
        with pytest.raises((RuntimeError, EOFError, pickle.UnpicklingError)):
            torch.load(io.BytesIO(blob[:length]), weights_only=True)


SAVED = Path(__file__).parent / "saved"


@pytest.mark.parametrize("name", ["before_the_move.pt", "before_the_move.pkl"])
def test_files_that_were_saved_before_modules_moved(name):
    if name.endswith(".pt"):
        found = torch.load(SAVED / name, weights_only=True)
        assert isinstance(found["parameter"]["W"], spgrad.SparseTensor)
    else:
        found = pickle.loads((SAVED / name).read_bytes())
    assert found["csr"].requires_grad
    assert found["csr"].to_dense().tolist() == [[1, 0, 2], [0, 3, 0]]
    assert found["coo"].to_dense().tolist() == [[0, 0, 3], [3, 0, 0]]


def test_load_is_what_pickles_name():
    """Files stay readable for as long as this name stays where it is."""
    assert above.load is pickling.load is serialize.load
    assert b"spgrad.serialize" in pickle.dumps(testing.random_sparse((2, 2)), 2)


# Worker processes


class Graphs(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, seed):
        return testing.random_sparse((4, 6), LAYOUTS["csr"], seed=seed), torch.tensor(seed)


@pytest.mark.parametrize("batch_size", [None, 2])
def test_data_loader_worker(batch_size):
    """A worker process makes them, shared memory carries them."""
    options = {"collate_fn": list} if batch_size else {}
    loader = DataLoader(
        Graphs(),
        batch_size=batch_size,
        num_workers=1,
        multiprocessing_context="fork",
        timeout=60,
        **options,
    )
    got = [item for batch in loader for item in (batch if batch_size else [batch])]
    assert len(got) == 2
    for A, seed in got:
        wanted = Graphs()[int(seed)][0]
        assert isinstance(A, spgrad.SparseTensor)
        assert torch.equal(A.to_dense(), wanted.to_dense())
        assert A._vals.is_shared()


@pytest.mark.parametrize("name", support.ALL)
def test_a_pickled_leaf_still_requires_its_gradient(sparse, name):
    A = sparse(drawn(4, 6), name).requires_grad_()
    file = io.BytesIO()
    torch.save(A, file)
    file.seek(0)
    for loaded in (pickle.loads(pickle.dumps(A)), torch.load(file, weights_only=False)):
        assert loaded.requires_grad
        assert loaded.is_leaf
        testing.assert_close(loaded.detach(), A.to_dense().detach())
