"""Files of torch.save for `spgrad.io.load`, and helpers for mutations of other formats."""

from __future__ import annotations

import io
import zipfile

import torch

import spgrad
from spgrad.core.pattern import LAYOUTS

ODD = (-1, 0, 1, 2, 3, 7, 255, 2**15, 2**31 - 1, 2**31, 10**9, 2**40, 2**62, 2**63 - 1, -(2**63))


def scrambled(rng, blob):
    """Bytes flipped, cut, repeated or put in."""
    blob = bytearray(blob)
    for _ in range(rng.choice([1, 1, 1, 2, 8])):
        at, length = rng.randrange(len(blob) + 1), rng.choice([1, 1, 2, 8, 100])
        kind = rng.randrange(6)
        if kind == 0 and at < len(blob):
            blob[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del blob[at : at + length]
        elif kind == 2:
            blob[at:at] = blob[at : at + length]
        elif kind == 3:
            blob[at:at] = rng.choice([b"\0", b"\xff", b"\x80", b"\r", b"\n", b"9", b"-", b'"'])
        elif kind == 4:
            del blob[at:]
        else:
            blob[at : at + length] = rng.randbytes(length)
    return bytes(blob)


def tensor(rng, name, *, plain):
    """A sparse tensor: any layout, dtype and index dtype; a batch or dense sizes unless plain."""
    kinds = [torch.float64, torch.float32, torch.int64, torch.complex64, torch.bool]
    dtype = rng.choice(kinds if plain else [*kinds, torch.bfloat16, torch.float16, torch.int8])
    batch = () if plain else rng.choice([(), (), (2,), (2, 1)])
    dense = () if plain else rng.choice([(), (), (2,)])
    shape = (*batch, 2 * rng.randint(0, 3), 2 * rng.randint(0, 3), *dense)
    mask = torch.rand(shape) < rng.choice([0.0, 0.4, 1.0])
    values = (torch.randn(shape) * 4).to(dtype)
    if name == "coo" and not plain and rng.random() < 0.3:
        shape = (6, 3)
        i = torch.randint(0, 6, (1, 5))
        return spgrad.sparse_coo_tensor(i, torch.randn(5, 3).to(dtype), shape)
    options = {"blocksize": (2, rng.choice([1, 2]))} if name in ("bsr", "bsc") else {}
    A = spgrad.from_dense(values * mask, layout=LAYOUTS[name], dense_dim=len(dense), **options)
    if rng.random() < 0.5:
        indices = [i.to(torch.int32) for i in A.pattern.indices]
        made = type(A.pattern).from_spec(A.pattern.spec, A.pattern.shape, tuple(indices))
        A = spgrad.SparseTensor(A._vals, made)
    return A


class Made:
    """What torch.save writes as a call of `load`."""

    def __init__(self, function, state):
        self.function, self.state = function, state

    def __reduce__(self):
        return self.function, tuple(self.state)


def saved(rng, form):
    A = tensor(rng, rng.choice(sorted(LAYOUTS)), plain=False)
    if rng.random() < 0.25:
        return stored(rng, native(rng, A))
    if A.is_floating_point() and rng.random() < 0.2:
        A.requires_grad_()
    if rng.random() < 0.2:
        return stored(rng, A)
    function, state = A.__reduce_ex__(2)
    state = list(state)
    for _ in range(rng.choice([1, 1, 1, 2])):
        state = changed_state(rng, state)
    return stored(rng, Made(function, state))


def native(rng, A):
    """A tensor of torch's own, perhaps with indices that it did not check."""
    if A.pattern.batch and not A.pattern.is_coo:
        A = A.to_sparse_coo()
    indices = [changed_tensor(rng, i) if rng.random() < 0.3 else i for i in A.pattern.indices]
    try:
        if A.pattern.is_coo:
            return torch.sparse_coo_tensor(
                indices[0], A._vals, A.shape, check_invariants=False, is_coalesced=True
            )
        return torch.sparse_compressed_tensor(
            *indices, A._vals, A.shape, layout=A.layout, check_invariants=False
        )
    except (RuntimeError, TypeError, ValueError):
        return spgrad.to_torch(A)


def changed_tensor(rng, t):
    if t.layout != torch.strided:  # put there by a change before
        return t.to_dense()
    kind = rng.randrange(8)
    if kind == 0 and t.numel():
        t = t.clone()
        odd = torch.tensor(rng.choice(ODD[:9])).to(t.dtype)
        t.reshape(-1)[rng.randrange(t.numel())] = odd
        return t
    if kind == 1:
        return t.flip(-1) if t.dim() else t
    if kind == 2:
        return t.to(rng.choice([torch.int32, torch.int64, torch.float32, torch.uint8]))
    if kind == 3:
        return t.reshape(-1)[: t.numel() // 2]
    if kind == 4:
        return t[None].expand(3, *t.shape)
    if kind == 5 and t.dim():
        return t.reshape(-1)[:1].expand(rng.choice([5, 10**9, 10**12])) if t.numel() else t
    if kind == 6:
        return t.to("meta")
    return rng.choice(
        [t.to_sparse() if t.layout == torch.strided else t, t * 2, t.mT[None] if t.dim() > 1 else t]
    )


def changed_state(rng, state):
    at = rng.randrange(len(state)) if state else 0
    kind = rng.randrange(6)
    if not state or kind == 0:
        return state[:at] if rng.random() < 0.5 else [*state, None]
    part = state[at]
    if kind == 1:
        odd = [None, 3, -1, 2**70, "coo", "", [], (), {}, 1.5, torch.ones(2), [torch.ones(1)], True]
        state[at] = rng.choice(odd)
    elif kind == 2:
        other = rng.randrange(len(state))
        state[at], state[other] = state[other], state[at]
    elif isinstance(part, torch.Tensor):
        state[at] = changed_tensor(rng, part)
    elif isinstance(part, tuple) and part:
        part = list(part)
        where = rng.randrange(len(part))
        old = part[where]
        new = rng.choice([*ODD, "csr", "bsc", None, (2, 2), (0, 1), True, False, [1]])
        part[where] = changed_tensor(rng, old) if isinstance(old, torch.Tensor) else new
        state[at] = tuple(part) if rng.random() < 0.9 else part
    else:
        state[at] = not part
    return state


def stored(rng, value):
    """What torch.save writes, perhaps with a changed member, in the new or the old format."""
    out = io.BytesIO()
    old = rng.random() < 0.1
    try:
        torch.save(value, out, _use_new_zipfile_serialization=not old)
    except (RuntimeError, AttributeError, TypeError):
        out = io.BytesIO()
        torch.save(torch.eye(2).to_sparse(), out)
        return out.getvalue()
    if old or rng.random() < 0.7:
        return out.getvalue()
    again = io.BytesIO()
    packing = zipfile.ZIP_DEFLATED if rng.random() < 0.1 else zipfile.ZIP_STORED
    with zipfile.ZipFile(out) as source, zipfile.ZipFile(again, "w", packing) as file:
        names = source.namelist()
        chosen = rng.choice([n for n in names if "data" in n])
        for name in names:
            blob = source.read(name)
            if name == chosen and rng.random() < 0.9:
                blob = scrambled(rng, blob)
            elif name == chosen:
                continue
            file.writestr(name, blob)
    return again.getvalue()
