"""Thousands of malformed constructions: an error of the library, or the right tensor; no crash.

Every draw follows from the number of the test alone, so a case that fails fails again. torch
compiles nothing here, so the file also runs under AddressSanitizer.
"""

import itertools
import random

import pytest
import torch

import spgrad
from spgrad import support
from spgrad.core.pattern import LAYOUTS

CONSTRUCTIONS = 10  # tests, of PER_TEST draws each
PER_TEST = 150
SMALL = 10**5  # elements that are compared one by one

FLOATS = (torch.float32, torch.float64, torch.complex64, torch.bfloat16, torch.int64, torch.bool)


def valid_parts(rng, name):
    """Arguments of a constructor, and the dense tensor that they stand for."""
    batch = rng.choice([(), (), (2,), (2, 1)]) if name != "coo" else ()
    dense = rng.choice([(), (), (), (3,), (2, 2)])
    m, k = rng.randint(0, 4), rng.randint(0, 4)
    block = (rng.randint(1, 2), rng.randint(1, 3)) if name.startswith("b") else ()
    bm, bn = block or (1, 1)
    dtype = rng.choice(FLOATS)
    shape = (*batch, m * bm, k * bn, *dense)
    lines, across = (k, m) if name.endswith("sc") else (m, k)
    uniform = rng.random() < 0.5
    pointers, plain = [], []
    fill = rng.randint(0, across)
    for _ in range(max(1, torch.Size(batch).numel())):
        pointers.append([0])
        for _ in range(lines):
            count = fill if uniform else rng.randint(0, across)
            plain += sorted(rng.sample(range(across), count))
            pointers[-1].append(pointers[-1][-1] + count)
    ptr = torch.tensor(pointers).view(*batch, lines + 1)
    idx = torch.tensor(plain, dtype=torch.int64)
    vals = torch.randint(1, 9, (len(plain), *block, *dense)).to(dtype)
    if name == "coo":
        row = torch.repeat_interleave(torch.arange(lines), ptr.diff())
        return {
            "indices": torch.stack([row, idx]),
            "values": vals,
            "size": shape[-2 - len(dense) :],
        }
    if batch and uniform:
        idx = idx.view(*batch, -1) if idx.numel() else idx.view(*batch, 0)
        vals = vals.view(*idx.shape, *block, *dense)
    return {"compressed": ptr, "plain": idx, "values": vals, "size": shape}


def expected(name, parts):
    """The dense tensor, by loops over the definition; raises where there is none."""
    vals, size = parts["values"], tuple(parts["size"])
    out = torch.zeros(size, dtype=vals.dtype)
    if name == "coo":
        for p, index in enumerate(parts["indices"].t().tolist()):
            assert all(0 <= i < s for i, s in zip(index, size, strict=False))
            out[tuple(index)] += vals[p]
        return out
    ptr, idx = parts["compressed"], parts["plain"]
    batch = ptr.shape[:-1]
    block = vals.shape[idx.dim() : idx.dim() + 2] if name.startswith("b") else (1, 1)
    flat_idx = idx.reshape(-1).tolist()
    flat_vals = vals.reshape(len(flat_idx), *block, *vals.shape[idx.dim() + 2 * (name[0] == "b") :])
    items = out.view(batch.numel(), *out.shape[len(batch) :])
    start = 0
    for item, pointers in enumerate(ptr.reshape(-1, ptr.shape[-1]).tolist()):
        assert pointers[0] == 0
        for line, (a, b) in enumerate(itertools.pairwise(pointers)):
            assert a <= b
            columns = flat_idx[start + a : start + b]
            assert columns == sorted(set(columns))
            for p, column in enumerate(columns, start + a):
                i, j = (line, column) if name.endswith("sr") else (column, line)
                assert i >= 0
                assert j >= 0
                rows = slice(i * block[0], (i + 1) * block[0])
                cols = slice(j * block[1], (j + 1) * block[1])
                items[item, rows, cols] = flat_vals[p]  # a shape that does not fit raises
        start += pointers[-1]
    assert start == len(flat_idx)
    return out


BIG = (-1, -(2**31), 2**31, 2**62, 2**63 - 1, 7, 10**9)


def spoil_element(rng, parts, key):
    index = parts[key].clone()
    if index.numel():
        index.view(-1)[rng.randrange(index.numel())] = rng.choice(BIG)
    parts[key] = index


def spoil_order(rng, parts, key):
    parts[key] = parts[key].flip(-1)


def spoil_length(rng, parts, key):
    t = parts[key]
    if t.dim():
        dim = rng.randrange(t.dim())
        parts[key] = (
            torch.cat([t, t], dim) if rng.random() < 0.5 else t.narrow(dim, 0, t.shape[dim] // 2)
        )


def spoil_rank(rng, parts, key):
    t = parts[key]
    parts[key] = rng.choice([lambda: t[None], lambda: t.reshape(-1), lambda: t[..., None]])()


def spoil_dtype(rng, parts, key):
    parts[key] = parts[key].to(rng.choice([torch.float32, torch.int32, torch.int16, torch.bool]))


def spoil_kind(rng, parts, key):
    t = parts[key]
    others = [
        None,
        3,
        "x",
        1.5,
        [],
        [[]],
        object(),
        {"a": 1},
        [None],
        ["a"],
        [[1], [2, 3]],
        t.to("meta"),
    ]
    if t.dim() > 1 and not t.is_meta:
        others.append(t.to_sparse())
    parts[key] = rng.choice(others)


def spoil_size(rng, parts, key):
    size = list(parts["size"]) if isinstance(parts["size"], tuple) else [1, 2]
    change = rng.randrange(6)
    if change == 0 and size:
        size[rng.randrange(len(size))] += rng.choice([-1, 1, -100, 10**6, 2**63, 2**70])
    elif change == 1:
        size.append(rng.randint(0, 2))
    elif change == 2:
        size = size[1:]
    elif change == 3:
        size = rng.choice([3, "ab", 1.5, object(), torch.tensor([2, 2]), [1.0, 2.0], [None], {}])
    elif change == 4:
        size = None
    else:
        size = [2**40] * len(size)
    parts["size"] = size


SPOIL = (
    spoil_element,
    spoil_element,
    spoil_order,
    spoil_length,
    spoil_rank,
    spoil_dtype,
    spoil_kind,
)


def spoil(rng, parts):
    """Does 0 to 2 kinds of damage."""
    for _ in range(rng.choice([0, 1, 1, 1, 2])):
        keys = [k for k, v in parts.items() if isinstance(v, torch.Tensor)]
        if not keys or rng.random() < 0.2:
            spoil_size(rng, parts, "size")
        else:
            rng.choice(SPOIL)(rng, parts, rng.choice(keys))
    if rng.random() < 0.1:
        parts["size"] = None


def construct(rng, name, parts):
    arguments = list(parts.values())
    if arguments[-1] is None and rng.random() < 0.5:
        arguments.pop()
    options = {}
    if rng.random() < 0.15:
        options = rng.choice(
            [
                {"dtype": torch.float64},
                {"dtype": "float"},
                {"device": "cpu"},
                {"device": "nowhere"},
                {"device": 1.5},
                {"requires_grad": True},
                {"check_invariants": True},
            ]
        )
    if name != "coo" and rng.random() < 0.3:
        layout = rng.choice([LAYOUTS[name]] * 6 + [None, "csr", torch.strided, torch.sparse_coo])
        return spgrad.sparse_compressed_tensor(*arguments, layout=layout, **options)
    return getattr(spgrad, f"sparse_{name}_tensor")(*arguments, **options)


@pytest.mark.filterwarnings("ignore:Casting complex values to real")  # as torch's own do
@pytest.mark.parametrize("number", range(CONSTRUCTIONS))
def test_constructions(number):
    rng = random.Random(number)
    torch.manual_seed(number)
    accepted = refused = 0
    for draw in range(PER_TEST):
        name = rng.choice(support.ALL)
        parts = valid_parts(rng, name)
        spoil(rng, parts)
        try:
            A = construct(rng, name, parts)
        except spgrad.SpgradError as error:
            refused += 1
            says = str(error)
        except Exception as error:
            raise AssertionError(f"draw {draw}: {name} {parts}") from error
        else:
            accepted += 1
            check_accepted(draw, name, parts, A)
            continue
        assert says.startswith("spgrad.sparse_"), (draw, name, parts)
    assert accepted > PER_TEST // 10
    assert refused > PER_TEST // 10


def check_accepted(draw, name, parts, A):
    if A.device.type == "meta" or A.numel() > SMALL:
        assert repr(A)
        return
    as_tensors = {
        key: torch.as_tensor(value) if key != "size" else tuple(A.shape)
        for key, value in parts.items()
    }
    try:
        wanted = expected(name, as_tensors)
    except Exception as error:
        raise AssertionError(f"draw {draw}: accepted {name} {parts}") from error
    assert torch.equal(A.detach().to_dense(), wanted.to(A.dtype)), (draw, name, parts)
    assert repr(A)


@pytest.mark.parametrize("number", range(4))
def test_valid_constructions_are_accepted(number):
    rng = random.Random(1000 + number)
    torch.manual_seed(number)
    for draw in range(PER_TEST):
        name = rng.choice(support.ALL)
        parts = valid_parts(rng, name)
        A = getattr(spgrad, f"sparse_{name}_tensor")(*parts.values())
        check_accepted(draw, name, parts, A)
