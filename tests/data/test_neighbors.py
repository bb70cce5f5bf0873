"""Samples of neighbours: their distribution, that they can be repeated, and what is refused."""

import itertools

import pytest
import torch
from operands import check
from torch.testing import assert_close

import spgrad
from spgrad import data, kernels
from spgrad.kernels import REFERENCES
from spgrad.kernels.reference.sampling.random import below, minus_log, parts_of_one


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def graph(m=30, k=None, density=0.3, layout="csr", dtype=torch.float64, index=torch.int64):
    """Positive values; row 0 is empty."""
    k = m if k is None else k
    dense = torch.rand(m, k, generator=generator(), dtype=dtype) + 0.1
    dense = dense * (torch.rand(m, k, generator=generator(1)) < density)
    dense[0] = 0
    A = spgrad.from_dense(dense).to_sparse_csr()
    ptr, idx = A.crow_indices().to(index), A.col_indices().to(index)
    A = spgrad.sparse_csr_tensor(ptr, idx, A.values(), (m, k))
    return getattr(A, f"to_sparse_{layout}")()


def chi_square(found, expected):
    """A statistic with mean `cells - 1`, and the bound that one in a million passes."""
    cells = len(expected)
    spread = 2 * (cells - 1)
    statistic = float(((found - expected) ** 2 / expected).sum())
    return statistic, cells - 1 + 5.5 * spread**0.5 + 15


def row_of(weights, fanout, replace, draws=20_000):
    """Entries of `draws` samples of one row, as the kernel draws them (draws, fanout)."""
    d = len(weights)
    weight = None if weights.eq(weights[0]).all() else weights
    lines = torch.zeros(draws, dtype=torch.int64)
    idx = torch.arange(d)
    made = kernels.sample_lines(torch.tensor([0, d]), idx, weight, lines, 0, fanout, replace, 12345)
    return made[2].view(draws, fanout)


WEIGHTS = {
    "uniform": torch.ones(6, dtype=torch.float64),
    "weighted": torch.tensor([1.0, 2, 3, 0.5, 4, 1], dtype=torch.float64),
}


@pytest.mark.parametrize("kind", WEIGHTS)
def test_draws_with_replacement_are_independent(kind):
    """Every pair of two draws is as frequent as the product of their probabilities."""
    w = WEIGHTS[kind]
    drawn = row_of(w, 2, True)
    p = w / w.sum()
    expected = 20_000 * (p[:, None] * p).flatten()
    found = torch.bincount(drawn[:, 0] * 6 + drawn[:, 1], minlength=36)
    statistic, bound = chi_square(found, expected)
    assert statistic < bound


def probability(w, chosen):
    """That draws one after the other, each among those left, give the set `chosen`."""
    total = 0.0
    for order in itertools.permutations(chosen):
        left, p = float(w.sum()), 1.0
        for i in order:
            p *= float(w[i]) / left
            left -= float(w[i])
        total += p
    return total


@pytest.mark.parametrize("fanout", [1, 2, 3, 5])
@pytest.mark.parametrize("kind", WEIGHTS)
def test_sets_without_replacement(kind, fanout):
    """Every set is as frequent as successive draws make it."""
    w = WEIGHTS[kind]
    drawn = row_of(w, fanout, False).sort(1).values
    assert (drawn.diff(dim=1) > 0).all()
    sets = list(itertools.combinations(range(6), fanout))
    expected = 20_000 * torch.tensor([probability(w, s) for s in sets], dtype=torch.float64)
    code = (1 << drawn).sum(1)
    found = torch.stack([(code == sum(1 << i for i in s)).sum() for s in sets])
    statistic, bound = chi_square(found, expected)
    assert statistic < bound


@pytest.mark.parametrize(("d", "fanout"), [(100, 20), (1000, 100)])
def test_each_entry_of_a_long_row_is_as_likely(d, fanout):
    """By a search among few, and by marked bits."""
    drawn = row_of(torch.ones(d), fanout, False, 4000)
    assert all(len(set(one)) == fanout for one in drawn[:50].tolist())
    expected = torch.full((d,), 4000.0 * fanout / d)
    statistic, bound = chi_square(torch.bincount(drawn.flatten(), minlength=d), expected)
    assert statistic < bound


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("fanout", [37, 100])
def test_threads_and_reference_give_the_same_bits(fanout, weighted, replace, index):
    """Lines of more than 64 entries are put in order in another way than shorter ones."""
    torch.manual_seed(0)
    degree = torch.randint(0, 200, (3000,))
    ptr = torch.cat([torch.zeros(1, dtype=torch.int64), degree.cumsum(0)]).to(index)
    idx = torch.randint(0, 5000, (int(ptr[-1]),)).to(index)
    weight = torch.rand(len(idx)) if weighted else None
    lines = torch.randint(0, 3000, (2500,))
    found = check("sample_lines", ptr, idx, weight, lines, 0, fanout, replace, -(2**62))
    check("relabel_lines", torch.arange(10).to(index), *found[:3], not replace)


@pytest.mark.parametrize("replace", [False, True])
def test_the_reference_draws_by_all_bits_of_a_number(replace):
    """Of so many entries, 24 bits would draw some others, or in another order."""
    d = 50_000
    ptr, weight = torch.tensor([0, d]), torch.rand(d, generator=generator()) + 0.5
    check("sample_lines", ptr, torch.arange(d), weight, torch.tensor([0]), 0, d, replace, 3)


@pytest.mark.parametrize("layout", ["csr", "csc", "coo"])
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("fanouts", [[2, 3], [2, 1, 3], [1, 2, 1, 2]])
def test_blocks_are_parts_of_the_matrix(fanouts, layout, replace, weights):
    A = graph(60, layout=layout)
    batch = data.sample_neighbors(
        A, [3, 0, 7], fanouts, replace=replace, weights=weights, generator=generator()
    )
    dense, vals = A.to_dense(), A.values() if layout != "coo" else A._values()
    assert batch.n_id[:3].tolist() == [3, 0, 7]
    assert batch.batch_size == 3
    assert len(set(batch.n_id.tolist())) == len(batch.n_id) == sum(batch.num_sampled_nodes)
    assert batch.blocks[-1].shape[0] == 3
    hop = torch.repeat_interleave(torch.tensor(batch.num_sampled_nodes))
    for block in batch.blocks:
        coo = block if replace else block.to_sparse_coo()
        row, col = coo._indices()
        assert_close(dense[batch.n_id[row], batch.n_id[col]], coo._values())
        assert_close(vals[batch.e_id[: block._nnz()]], coo._values())
        degree = torch.bincount(row, minlength=block.shape[0])
        full = (dense != 0).sum(1)[batch.n_id[: block.shape[0]]]
        fanout = torch.tensor(fanouts)[hop[: len(full)]]
        wanted = torch.where(full > 0, fanout, 0) if replace else torch.minimum(fanout, full)
        assert degree.tolist() == wanted.tolist()
    for large, small in itertools.pairwise(block.to_dense() for block in batch.blocks):
        assert small.shape[0] < large.shape[0]
        assert_close(large[: small.shape[0], : small.shape[1]], small)


def test_all_neighbours():
    """-1, and a fanout larger than every row, take whole rows, in the order of columns."""
    A = graph()
    for fanout in (-1, 1000):
        batch = data.sample_neighbors(A, torch.arange(30), fanout)
        assert_close(batch.blocks[0].to_dense(), A.to_dense())
        assert batch.e_id.tolist() == list(range(A._nnz()))


def test_rectangular():
    A = graph(8, 40)
    batch = data.sample_neighbors(A, [5, 2], 3, generator=generator())
    block = batch.blocks[0].to_dense()
    assert_close(block[block != 0], A.to_dense()[[5, 2]][:, batch.n_id][block != 0])
    assert block.shape == (2, len(batch.n_id))
    assert len(batch.n_id) <= 6
    with pytest.raises(ValueError, match="square"):
        data.sample_neighbors(A, [5], [3, 3])


@pytest.mark.parametrize("seeds", [[], [0], torch.zeros(30, dtype=torch.bool)])
def test_nothing_to_draw(seeds):
    batch = data.sample_neighbors(graph(), seeds, [2, 2])
    assert batch.e_id.numel() == 0
    assert [tuple(b.shape) for b in batch.blocks] == [(batch.batch_size,) * 2] * 2


@pytest.mark.parametrize("bad", [-1.0, float("inf"), float("nan")])
def test_a_line_with_a_bad_weight_ends_in_no_sample(bad):
    weight = torch.tensor([1.0, 2.0, bad, 1.0, bad], dtype=torch.float64)
    lines = torch.tensor([1, 0])
    args = torch.tensor([0, 2, 5]), torch.arange(5), weight, lines, 0, 2, False, 7
    found = kernels.sample_lines(*args)
    assert found[3].tolist() == [2]
    assert found[0].tolist() == [0, 0, 0]
    assert found[1].numel() == found[2].numel() == 0
    for ours, wanted in zip(found, REFERENCES["sample_lines"](*args), strict=True):
        assert torch.equal(ours, wanted)


@pytest.mark.parametrize("bound", [1, 3, 10**6 + 3, 2**31 - 1])
def test_random_bits_become_an_integer_below_a_bound(bound):
    """As exact integers give it, also where the lower half of the product carries."""
    bits = torch.randint(-(2**63), 2**63 - 1, (1000,), generator=generator())
    bits[:4] = torch.tensor([0, -1, 2**32 - 1, 2**63 - 1])
    wanted = [(b % 2**64) * bound >> 64 for b in bits.tolist()]
    assert below(bits, torch.tensor(bound)).tolist() == wanted


def test_random_bits_become_a_part_of_one():
    """Exactly, and never 1."""
    bits = torch.tensor([0, 2**11 - 1, 2**11, 2**62 + 2**40, -1, -(2**63)])
    wanted = [(b % 2**64 >> 11) / 2**53 for b in bits.tolist()]
    assert parts_of_one(bits).tolist() == wanted
    assert max(wanted) < 1


def test_a_logarithm_is_exact_to_the_last_bits():
    near = 0.5**0.5 * (1 + torch.tensor([-1e-15, 1e-15], dtype=torch.float64))
    drawn = torch.rand(4000, generator=generator(), dtype=torch.float64)
    u = torch.cat([near, drawn, 1 - drawn * 2.0**-40, 2.0 ** -torch.arange(54).double()])
    assert_close(minus_log(u), -u.log(), rtol=6e-16, atol=0)


def test_weights_of_zero_are_never_drawn():
    A = spgrad.sparse_csr_tensor([0, 4, 4], [0, 1, 2, 3], [0.0, 1.0, 0.0, 2.0], (2, 4))
    for replace, count in ((False, 2), (True, 3)):
        found = data.sample_neighbors(A, [0, 1], 3, weights=True, replace=replace)
        assert len(found.e_id) == count
        assert set(found.e_id.tolist()) <= {1, 3}
    none = data.sample_neighbors(A, [0], 3, weights=torch.zeros(4), replace=True)
    assert none.e_id.numel() == 0
    every = data.sample_neighbors(A, [0], -1, weights=True)
    assert every.e_id.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("layout", ["csr", "csc", "coo"])
def test_gradients_of_values(replace, layout):
    A = graph(8, layout=layout)
    x = torch.rand(8, 1, dtype=torch.float64, requires_grad=True)

    def of(vals, x):
        B = spgrad.from_values(vals, A)
        batch = data.sample_neighbors(B, [4, 1], [2, 2], replace=replace, generator=generator())
        out = x[batch.n_id]
        for block in batch.blocks:
            out = (block @ out).tanh()
        return out

    vals = spgrad.values(A).detach().requires_grad_()
    assert torch.autograd.gradcheck(of, (vals, x))
    assert torch.autograd.gradgradcheck(of, (vals, x))
    B = A.detach().requires_grad_()
    batch = data.sample_neighbors(B, [4, 1], 2, replace=replace, generator=generator())
    batch.blocks[0].sum().backward()
    wanted = torch.bincount(batch.e_id, minlength=A._nnz()).double()
    assert_close(spgrad.values(B.grad), wanted)


def test_a_generator_repeats_a_sample():
    A = graph()
    one, two, other = (
        data.sample_neighbors(A, [3, 9, 7], [2, 2], generator=generator(s)).e_id.tolist()
        for s in (5, 5, 6)
    )
    assert one == two != other


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"seeds": [3, 30]}, r"`seeds` has 30 at position 1; numbers in \[0, 30\)"),
        ({"seeds": [-1]}, r"`seeds` has -1 at position 0"),
        ({"seeds": [3, 4, 3]}, "`seeds` has 3 more than once; distinct"),
        ({"seeds": [[3]]}, "`seeds` has shape"),
        ({"seeds": [0.5]}, "`seeds` has dtype float32"),
        ({"fanout": -2}, "`fanout` is -2"),
        ({"fanout": []}, "`fanout` is empty"),
        ({"fanout": 1.5}, "`fanout` is a float"),
        ({"fanout": 2**62, "replace": True, "seeds": [3, 4]}, "is .* in each of 2 rows"),
        ({"fanout": 2**31, "replace": True}, f"at most {2**31 - 1} draws in all"),
        ({"weights": torch.ones(3)}, r"`weights` has shape \(3,\)"),
        ({"weights": 2.0}, "`weights` is a float"),
        ({"A": torch.eye(30)}, "`A` is a dense tensor"),
        ({"A": graph().to_sparse_bsr((2, 2))}, "`A` has layout bsr"),
        ({"A": spgrad.stack([graph(), graph()])}, "`A` has shape .*one matrix"),
    ],
)
def test_refusals(change, text):
    with pytest.raises(spgrad.SpgradError, match=text) as caught:
        data.sample_neighbors(**{"A": graph(), "seeds": [3], "fanout": 2, **change})
    assert str(caught.value).startswith("spgrad.data.sample_neighbors: ")


@pytest.mark.parametrize("row", [1, 7])  # row 1 has the first entry
@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
def test_bad_weights(bad, row):
    A = graph()
    weights = torch.ones(A._nnz())
    weights[int(A.crow_indices()[row])] = bad
    with pytest.raises(ValueError, match=f"`weights` has {bad} in a row that is sampled"):
        data.sample_neighbors(A, [row], 2, weights=weights)
    data.sample_neighbors(A, [8], 2, weights=weights)


def test_a_tensor_that_is_not_coalesced():
    A = spgrad.sparse_coo_tensor(torch.tensor([[0, 0], [1, 1]]), torch.ones(2), (3, 3))
    with pytest.raises(RuntimeError, match="not coalesced"):
        data.sample_neighbors(A, [0], 1)
