"""Files for `spgrad.io.load`: valid ones of every kind, and mutations that know their structure."""

from __future__ import annotations

import gzip
import io
import tempfile
import warnings
import zipfile
from pathlib import Path

import numpy as np
import torch
from packed_mutations import binsparse, safetensors
from saved_mutations import ODD, saved, scrambled, tensor

ODD_WORDS = (
    *("", "-1", "0", "1.5", "1e3", "nan", "-inf", "infinity", "1e999", "0x10", "x", "1-2", "1_0"),
    *("9" * 30, str(2**31), str(2**63), str(2**62), "--1", "+2", ".5", "1e", "%", "#", '"', '"0"'),
    *("\0", "1\0", "\u0663", "\ufeff", "1,2", "1 2", "\t", "1;", "99999999", "4000000000"),
)
DTYPES = ("i1", "u1", "i2", ">i4", "u4", "i8", "u8", "f2", "f4", ">f8", "f16", "c8", "c16", "?")
STRANGE = ("S3", "U2", "M8[s]", "O", "V4")


def mutated(form, rng):
    """The bytes of a file of this format, the same for the same generator."""
    torch.manual_seed(rng.getrandbits(32))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        packed = form.endswith(".gz")
        make = MAKERS.get(form.removesuffix(".gz"), edges)
        blob = make(rng, form.removesuffix(".gz"))
    if packed:
        if rng.random() < 0.1:
            blob = scrambled(rng, blob)
        blob = gzip.compress(blob, 1, mtime=0)
        if rng.random() < 0.2:
            blob += gzip.compress(b"1 1 1\n" * rng.choice([1, 10**6]), 9, mtime=0)
    return scrambled(rng, blob) if rng.random() < 0.15 else blob


# .npz


def npz(rng, form):
    name = rng.choice(["coo", "csr", "csc", "bsr", "dia"])
    A = tensor(rng, "coo" if name == "dia" else name, plain=True)
    arrays = {"format": np.array(name.encode()), "shape": np.array(A.shape)}
    arrays["data"] = A._vals.numpy()
    indices = [i.numpy() for i in A.pattern.indices]
    if name == "dia":
        count = rng.randint(0, 3)
        arrays["offsets"] = np.array(sorted(rng.sample(range(-4, 5), count)), "i4")
        arrays["data"] = np.ones((count, A.shape[1]), A._vals.numpy().dtype)
    elif name == "coo":
        keys = {"coords": indices[0]}
        arrays |= keys if rng.random() < 0.3 else {"row": indices[0][0], "col": indices[0][1]}
    else:
        arrays |= {"indptr": indices[0], "indices": indices[1]}
    for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
        key = rng.choice(sorted(arrays))
        rng.choice(ARRAYS)(rng, arrays, key)
    return archive(rng, arrays)


def change_number(rng, arrays, key):
    array = np.array(arrays[key])
    if array.size and array.dtype.kind in "iufcb":
        value = rng.choice([*ODD, np.nan, np.inf] if array.dtype.kind in "fc" else ODD)
        with np.errstate(all="ignore"):
            array.reshape(-1)[rng.randrange(array.size)] = np.array(value).astype(array.dtype)
    arrays[key] = array


def change_dtype(rng, arrays, key):
    dtype = rng.choice(DTYPES if rng.random() < 0.8 else STRANGE)
    try:
        with np.errstate(all="ignore"):
            arrays[key] = np.array(arrays[key]).astype(dtype)
    except (ValueError, TypeError):
        arrays[key] = np.zeros(np.array(arrays[key]).shape, dtype)


def change_shape(rng, arrays, key):
    array = np.array(arrays[key])
    shapes = [(-1,), (1, -1), (-1, 1), (array.size, 1, 1), (1, 1, -1)]
    arrays[key] = array.reshape(rng.choice(shapes)) if array.size else array.reshape(0, 1)


def change_length(rng, arrays, key):
    array = np.array(arrays[key]).reshape(-1)
    cut = rng.randint(0, array.size)
    arrays[key] = array[:cut] if rng.random() < 0.5 else np.concatenate([array, array[:cut]])


def change_order(rng, arrays, key):
    array = np.array(arrays[key])
    arrays[key] = np.flip(array) if rng.random() < 0.7 else np.asfortranarray(array)


def swap_arrays(rng, arrays, key):
    other = rng.choice(sorted(arrays))
    arrays[key], arrays[other] = arrays[other], arrays[key]


def drop_array(rng, arrays, key):
    if len(arrays) > 1:
        del arrays[key]


def change_format(rng, arrays, key):
    words = ["coo", "csr", "csc", "bsr", "dia", "lil", "", b"csr", "csr\0", "CSR", 3]
    arrays["format"] = np.array(rng.choice(words))


def grow_array(rng, arrays, key):
    size = rng.choice([10**5, 10**6, 3 * 10**6])
    arrays[key] = np.zeros(size, np.array(arrays[key]).dtype)


ARRAYS = 3 * (change_number,) + 2 * (change_dtype,)
ARRAYS += (change_shape, change_length, change_order, swap_arrays, drop_array, change_format)


def archive(rng, arrays):
    if rng.random() < 0.01:
        grow_array(rng, arrays, rng.choice(sorted(arrays)))
    out = io.BytesIO()
    packing = rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_DEFLATED])
    packing = zipfile.ZIP_LZMA if rng.random() < 0.02 else packing
    with zipfile.ZipFile(out, "w", packing) as file:
        for key, array in arrays.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, np.asarray(array), allow_pickle=True)
            blob = member.getvalue()
            if rng.random() < 0.05:
                blob = header_changed(rng, blob)
            for _ in range(1 if rng.random() < 0.98 else 2):
                file.writestr(f"{key}.npy", blob)
    return out.getvalue()


def header_changed(rng, blob):
    header, _, rest = blob[10:].partition(b"\n")
    words = [
        b"'<f8'",
        b"'|O'",
        b"'<i8'",
        b"'<c32'",
        b"(2,)",
        b"(-1,)",
        b"(1000000000000,)",
        b"True",
    ]
    old = rng.choice([b"'<f8'", b"'<i8'", b"'<i4'", b"(2,)", b"()", b"(", b"False", b"descr", b"'"])
    header = header.replace(old, rng.choice(words), 1)
    return blob[:8] + (len(header) + 1).to_bytes(2, "little") + header + b"\n" + rest


# Text


def market(rng, form):
    kind = rng.choice(["coordinate", "coordinate", "array"])
    field = rng.choice(["real", "double", "integer", "complex", "pattern", "unsigned-integer"])
    symmetry = rng.choice(["general", "general", "symmetric", "skew-symmetric", "hermitian"])
    m, n = rng.randint(0, 4), rng.randint(0, 4)
    if symmetry != "general":
        n = m
    strict = symmetry == "skew-symmetric"
    places = [(i, j) for j in range(n) for i in range(m)]
    if symmetry != "general":
        places = [(i, j) for i, j in places if i > j or (i == j and not strict)]
    if kind == "coordinate":
        places = [p for p in places if rng.random() < 0.6]
    width = {"pattern": 0, "complex": 2}.get(field, 1)
    lines = []
    for i, j in places:
        whole = field in ("integer", "unsigned-integer")
        words = [
            str(rng.randint(0, 9)) if whole else f"{rng.gauss(0, 9):.4g}" for _ in range(width)
        ]
        if field == "complex" and i == j and symmetry == "hermitian":
            words[1] = "0"
        lines.append(([str(i + 1), str(j + 1)] if kind == "coordinate" else []) + words)
    sizes = [str(m), str(n), *([str(len(lines))] if kind == "coordinate" else [])]
    table = [["%%MatrixMarket", "matrix", kind, field, symmetry], ["% a comment"], sizes, *lines]
    return text(rng, table, " ")


def edges(rng, form):
    delimiter = {".csv": ",", ".tsv": "\t", ".txt": rng.choice([" ", ",", "\t"])}[form]
    width = rng.choice([2, 3])
    table = [["source", "target", "weight"][:width]] if rng.random() < 0.3 else []
    for _ in range(rng.randint(0, 6)):
        table.append([str(rng.randint(0, 5)), str(rng.randint(0, 5)), f"{rng.gauss(0, 9):.4g}"])
        table[-1] = table[-1][:width]
    if rng.random() < 0.2:
        table.insert(0, [rng.choice(["# a comment", "% 1 2 3"])])
    if rng.random() < 0.1:
        table = [[f'"{word}"' for word in line] for line in table]
    return text(rng, table, delimiter)


def text(rng, table, delimiter):
    for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
        rng.choice(LINES)(rng, table)
    end = "\r\n" if rng.random() < 0.1 else "\n"
    lines = [delimiter.join(line) for line in table]
    written = end.join(lines) + (end if rng.random() < 0.9 else "")
    return written.encode("utf-8", "surrogatepass")


def change_word(rng, table):
    if table:
        line = rng.choice(table)
        if line:
            line[rng.randrange(len(line))] = rng.choice(ODD_WORDS)


def add_word(rng, table):
    if table:
        rng.choice(table).append(rng.choice(ODD_WORDS))


def drop_word(rng, table):
    if table and (line := rng.choice(table)):
        line.pop()


def drop_line(rng, table):
    if table:
        table.pop(rng.randrange(len(table)))


def repeat_line(rng, table):
    if table:
        at = rng.randrange(len(table))
        table.insert(at, list(table[at]))


def swap_lines(rng, table):
    rng.shuffle(table) if rng.random() < 0.3 else table.reverse()


def insert_line(rng, table):
    line = rng.choice([[""], ["% c"], ["# c"], ["0", "1"], ["1", "1", "1"], ["\0"], ["1" * 5000]])
    table.insert(rng.randint(0, len(table)), list(line))


def change_header(rng, table):
    words = [
        "array",
        "coordinate",
        "symmetric",
        "skew-symmetric",
        "hermitian",
        "general",
        "integer",
    ]
    words += ["pattern", "complex", "real", "vector", "MATRIX", "unsigned-integer"]
    if table and len(table[0]) > 1:
        table[0][rng.randrange(1, len(table[0]))] = rng.choice(words)


LINES = 3 * (change_word,) + (add_word, drop_word, drop_line, repeat_line, swap_lines, insert_line)
LINES += (change_header,)


def in_folder(make):
    """The maker of a file whose writer wants a path."""

    def made(rng, form):
        with tempfile.TemporaryDirectory() as folder:
            return make(rng, Path(folder))

    return made


MAKERS = {".npz": npz, ".mtx": market, ".pt": saved}
MAKERS |= {".h5": in_folder(binsparse), ".safetensors": in_folder(safetensors)}
