"""Binsparse and safetensors files: valid ones, and mutations of their descriptors and arrays."""

from __future__ import annotations

import contextlib
import io
import json

import numpy as np
from saved_mutations import ODD, tensor

from spgrad.io import binsparse as writer
from spgrad.io import safetensors as safe_writer

WORDS = ("", "CSR", "csr", "COO", "DCSR", "DCSC", "COOR", "COOC", "CVEC", "DMAT", "0.1", "0.2", "x")
TYPES = ("int8", "uint64", "int32", "float32", "float64", "float16", "bint8", "complex[float32]")
TYPES += ("iso[float64]", "iso[complex[float64]]", "iso[", "complex[int8]", "iso[iso[int8]]")
STRUCTURES = ("symmetric_lower", "symmetric_upper", "hermitian_lower", "skew_symmetric_upper", "x")
KINDS = ("i1", "u1", "i2", ">i4", "u4", "i8", "u8", "f2", "f4", ">f8", "S3", "c8", "?")


def binsparse(rng, folder):
    """A Binsparse file, some of whose entries and arrays were changed."""
    import h5py

    path = folder / "made.h5"
    name = rng.choice(["coo", "csr", "csc"])
    writer.write(path, tensor(rng, name, plain=True))
    with h5py.File(path, "r") as file:
        head = json.loads(file.attrs["binsparse"])["binsparse"]
        arrays = {key: file[key][()] for key in file}
    if rng.random() < 0.3:
        _rename(rng, head, arrays)
    for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
        rng.choice(BINSPARSE)(rng, head, arrays)
    out = io.BytesIO()
    with h5py.File(out, "w") as file:
        text = json.dumps({"binsparse": head})
        text = text[: rng.randrange(len(text))] if rng.random() < 0.02 else text
        file.attrs["binsparse"] = text if rng.random() < 0.98 else np.frombuffer(b"12", "i1")
        for key, array in arrays.items():
            _put(rng, file, key, array)
    return out.getvalue()


def _put(rng, file, key, array):
    """Writes an array; some as a group, a matrix, a link, or in compressed chunks of any length."""
    import h5py

    chance = rng.random()
    if chance < 0.02:
        file.create_group(key)
    elif chance < 0.04:
        file[key] = array.reshape(1, -1)
    elif chance < 0.05:
        file[key] = h5py.SoftLink("/values")
    elif chance < 0.06:
        file[key] = h5py.ExternalLink("a.h5", "/values")
    elif chance < 0.2 and array.size and array.dtype.kind != "S":
        size = rng.choice([array.size, array.size, 10**6, 3 * 10**8])
        chunks = (min(size, 4096),)
        made = file.create_dataset(key, (size,), array.dtype, chunks=chunks, compression=4)
        if size == array.size:
            made[...] = array
    else:
        file[key] = array


def _rename(rng, head, arrays):
    """Another format whose arrays have other names, with what a writer would add to it."""
    if head["format"] == "COO":
        head["format"] = rng.choice(["COOR", "COOC"])
        return
    counts = np.diff(arrays["pointers_to_1"])
    there = np.flatnonzero(counts)
    arrays["indices_0"] = there.astype(arrays["indices_1"].dtype)
    arrays["pointers_to_1"] = np.concatenate([[0], np.cumsum(counts[there])]).astype("i8")
    head["format"] = "D" + head["format"]
    head["data_types"]["indices_0"] = str(arrays["indices_0"].dtype)
    head["data_types"]["pointers_to_1"] = "int64"


def _entry(rng, head, arrays):
    key = rng.choice([*sorted(head), "index_base", "fill", "structure"])
    odd = [None, True, [], {}, 1.5, *WORDS, *ODD, *STRUCTURES]
    head[key] = rng.choice(odd)


def _structure(rng, head, arrays):
    head["structure"] = rng.choice(STRUCTURES)


def _size(rng, head, arrays):
    sizes = head.get("shape")
    if isinstance(sizes, list) and sizes:
        sizes[rng.randrange(len(sizes))] = rng.choice([*ODD, "3", None])


def _kind(rng, head, arrays):
    types = head.get("data_types")
    if isinstance(types, dict) and types:
        types[rng.choice(sorted(types))] = rng.choice(TYPES)


def _number(rng, head, arrays):
    key = rng.choice(sorted(arrays))
    array = np.array(arrays[key])
    if array.size and array.dtype.kind in "iuf":
        with np.errstate(all="ignore"):
            array[rng.randrange(array.size)] = np.array(rng.choice(ODD)).astype(array.dtype)
    arrays[key] = array


def _dtype(rng, head, arrays):
    key, kind = rng.choice(sorted(arrays)), rng.choice(KINDS)
    with np.errstate(all="ignore"), contextlib.suppress(ValueError):  # text may be no number
        arrays[key] = arrays[key].astype(kind)


def _length(rng, head, arrays):
    key = rng.choice(sorted(arrays))
    cut = rng.randint(0, arrays[key].size)
    arrays[key] = arrays[key][:cut] if rng.random() < 0.5 else np.tile(arrays[key], 2)[: cut * 2]


def _drop(rng, head, arrays):
    if len(arrays) > 1:
        del arrays[rng.choice(sorted(arrays))]


def _fill(rng, head, arrays):
    head["fill"] = True
    arrays["fill_value"] = np.array([rng.choice([0, 0, 1])] * rng.choice([1, 1, 0, 2]), "f8")


BINSPARSE = (*2 * (_entry, _number), _structure, _size, _kind, _dtype, _length, _drop, _fill)


# safetensors


def safetensors(rng, folder):
    """A .safetensors file, whose header, metadata or tensors were changed."""
    path = folder / "made.safetensors"
    name = rng.choice(["coo", "csr", "csc", "bsr", "bsc"])
    safe_writer.write(path, tensor(rng, name, plain=False))
    blob = path.read_bytes()
    length = int.from_bytes(blob[:8], "little")
    head, data = json.loads(blob[8 : 8 + length]), bytearray(blob[8 + length :])
    for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
        rng.choice(SAFETENSORS)(rng, head, data)
    text = json.dumps(head).encode()
    size = len(text) if rng.random() < 0.97 else rng.choice([0, 2**20, 2**40, 2**63])
    return size.to_bytes(8, "little") + text + bytes(data)


def _spec(rng, head, data):
    about = head["__metadata__"]
    spec = json.loads(about["spec"]) if about.get("spec", "x")[:1] == "[" else ["coo"]
    if spec:
        spec[rng.randrange(len(spec))] = rng.choice([None, True, 1.5, [2, 2], [[]], *WORDS, *ODD])
    about["spec"] = json.dumps(spec)


def _layout(rng, head, data):
    about = head["__metadata__"]
    about["spec"] = about.get("spec", "").replace(
        rng.choice(["coo", "csr", "csc", "bsr", "bsc"]), rng.choice(["coo", "csr", "csc", "bsr"])
    )


def _shape(rng, head, data):
    about = head["__metadata__"]
    shape = json.loads(about["shape"]) if about.get("shape", "x")[:1] == "[" else [1, 1]
    if isinstance(shape, list) and shape:
        shape[rng.randrange(len(shape))] = rng.choice([None, "3", 1.5, [1], *ODD])
    about["shape"] = json.dumps(shape)


def _about(rng, head, data):
    about = head["__metadata__"]
    if about:
        about[rng.choice(sorted(about))] = rng.choice(["", "null", "{}", "[", "[1]", *WORDS])


def _without(rng, head, data):
    tables = [head["__metadata__"], head]
    table = rng.choice(tables)
    keys = sorted(set(table) - {"__metadata__"})
    if keys:
        del table[rng.choice(keys)]


def _tensor(rng, head, data):
    keys = sorted(set(head) - {"__metadata__"})
    if not keys:
        return
    entry = head[rng.choice(keys)]
    what = rng.choice(["dtype", "shape", "data_offsets"])
    if what == "dtype":
        entry[what] = rng.choice(["F32", "F64", "I32", "I64", "U8", "BF16", "F16", "BOOL", "C64"])
    elif entry[what]:
        entry[what][rng.randrange(len(entry[what]))] = rng.choice(ODD)


def _same_size(rng, head, data):
    """A dtype of as many bytes, which the reader of safetensors accepts."""
    twins = {"F32": "I32", "I32": "F32", "F64": "I64", "I64": "F64", "BOOL": "U8", "I8": "BOOL"}
    keys = sorted(set(head) - {"__metadata__"})
    if keys:
        entry = head[rng.choice(keys)]
        entry["dtype"] = twins.get(entry["dtype"], entry["dtype"])


def _swap(rng, head, data):
    keys = sorted(set(head) - {"__metadata__"})
    if len(keys) > 1:
        first, second = rng.sample(keys, 2)
        head[first], head[second] = head[second], head[first]


def _integer(rng, head, data):
    """A number of one of the tensors."""
    if len(data) >= 8:
        at = rng.randrange(len(data) // 8) * 8
        number = rng.choice(ODD)
        data[at : at + 8] = number.to_bytes(8, "little", signed=True)


SAFETENSORS = (_spec, _layout, _shape, _about, _without, _tensor, _same_size, _swap)
SAFETENSORS += 3 * (_integer,)
