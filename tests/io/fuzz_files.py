"""Mutated files for `spgrad.io.load`: each gives an error of the library or a valid tensor.

``python tests/io/fuzz_files.py --n N --seed S`` loads N files of each format in child processes,
which have little memory and time, so a crash, a decompression bomb and a hang are noticed. Findings
are printed with the format and the seed, and ``--keep FOLDER`` writes these files. The seed alone
determines a file.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import pickle
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

FORMATS = [".npz", ".mtx", ".mtx.gz", ".csv", ".tsv", ".txt", ".txt.gz", ".pt"]
FORMATS += [".h5"] if importlib.util.find_spec("h5py") else []
FORMATS += [".safetensors"] if importlib.util.find_spec("safetensors") else []
SECONDS = 10  # of the processor, for one file
GROWTH = 600 * 2**20  # bytes by which a file of a few kB may raise the peak of the process
OF_READERS = {".h5": 5 * 2**30}  # the library of HDF5 allocates any length of 32 bits in a heap
FENCE = 8 * 2**30  # bytes of address space that a child may have more than at its start
SMALL = 10**5
MANY = 4000  # cases of one child


def load_and_check(path, rng) -> bool:
    """Loads a file and uses what it holds; False where the file is refused."""
    import torch

    import spgrad
    import spgrad.io

    options = {}
    if rng.random() < 0.5:
        options["layout"] = rng.choice([torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
    if rng.random() < 0.1:
        options["dtype"] = rng.choice([torch.float32, torch.complex64, torch.int64])
    if path.suffix in (".csv", ".tsv", ".txt") and rng.random() < 0.3:
        options["size"] = rng.choice([4, 7, (3, 9), (10**6, 2), (0, 0)])
    try:
        A = spgrad.io.load(path, **options)
    except spgrad.SpgradError as error:
        said = str(error)
        assert len(said) < 1500, f"an error of {len(said)} characters"
        assert said.count("\n") == 1, "an error of several lines"  # what it was called with
        return False
    assert type(A) is spgrad.SparseTensor, type(A)
    assert A.layout == options.get("layout", A.layout)
    assert A.dtype == options.get("dtype", A.dtype)
    assert A.device.type == "cpu"
    B = pickle.loads(pickle.dumps(A))  # validates the indices, their order and all shapes
    assert B.pattern.same_as(A.pattern)
    use(A.detach())
    return True


def use(A):
    """Does with a tensor what any tensor can do."""
    import torch

    assert repr(A)
    pattern = A.pattern
    if A.numel() <= SMALL:
        dense = A.to_dense()
        assert dense.shape == A.shape
        total = A.coalesce() if pattern.is_coo else A
        assert int((dense != 0).sum()) <= total.values().numel()
    rows = A.shape[-2] if A.dim() == 2 else 0
    if A.dim() == 2 and not pattern.dense_dim and max(rows, A.shape[1]) <= SMALL:
        if A.dtype == torch.bool:
            return
        x = torch.ones(A.shape[1], 2).to(A.dtype)
        y = A @ x
        assert y.shape == (rows, 2)
        if A.numel() <= SMALL and not A.dtype.is_floating_point and not A.is_complex():
            assert torch.equal(y, A.to_dense() @ x)


def run_here(cases):
    """Runs cases (format, seed) in this process; prints each, and each finding, as JSON."""
    import torch
    from file_mutations import mutated

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    limit = _address_space() + FENCE
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    signal.signal(signal.SIGPROF, _too_long)
    with tempfile.TemporaryDirectory() as folder:
        for form, seed in cases:
            _print_event("at", form, seed)
            rng = random.Random(f"{form} {seed}")
            path = Path(folder, f"a{form}")
            path.write_bytes(mutated(form, rng))
            peak = _peak()
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            limit = int(time.process_time()) + 3 * SECONDS  # ends code in C that never returns
            resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
            try:
                if load_and_check(path, rng):
                    _print_event("loaded", form, seed)
            except BaseException as error:  # noqa: BLE001  # whatever it is, it is a finding
                _print_event("found", form, seed, f"{type(error).__name__}: {error}"[:600])
            signal.setitimer(signal.ITIMER_PROF, 0)
            if _peak() - peak > max(GROWTH, OF_READERS.get(form, 0)):
                grown = (_peak() - peak) // 2**20
                _print_event("found", form, seed, f"takes {grown} MB")


def _print_event(kind, form, seed, what=""):
    sys.stdout.write(json.dumps([kind, form, seed, what]) + "\n")
    sys.stdout.flush()


def _too_long(*_):
    raise TimeoutError(f"more than {SECONDS} s of the processor")


def _address_space():
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _peak():
    # of this program; ru_maxrss has the peak of the process that started it, too
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def run(n, seed, formats=FORMATS, on_finding=lambda *found: None):
    """Runs n cases of each format in children; gives [(format, seed, what)] and counts of loads."""
    rest = [(form, seed * 10**7 + i) for form in formats for i in range(n)]
    found, loaded = [], dict.fromkeys(formats, 0)
    while rest:
        child = subprocess.run(
            [sys.executable, __file__, "--child"],
            input=json.dumps(rest[:MANY]),
            capture_output=True,
            text=True,
            check=False,
        )
        lines = [json.loads(line) for line in child.stdout.splitlines() if line.startswith("[")]
        findings = [(form, seed, what) for kind, form, seed, what in lines if kind == "found"]
        at = [(form, seed) for kind, form, seed, _ in lines if kind == "at"]
        if child.returncode:
            if not at:
                raise RuntimeError(child.stderr)
            ended = f"ends the process ({child.returncode}): {child.stderr.strip()[-600:]}"
            findings.append((*at[-1], ended))
        for kind, form, _, _ in lines:
            loaded[form] += kind == "loaded"
        for case in findings:
            on_finding(*case)
        found += findings
        rest = rest[len(at) :]
    return found, loaded


def main():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=1000, help="files of each format")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--formats", nargs="*", default=FORMATS)
    parser.add_argument("--keep", type=Path, help="folder for the files that were found")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        run_here([tuple(case) for case in json.loads(sys.stdin.read())])
        return 0

    def on_finding(form, seed, what):
        sys.stdout.write(f"{form} {seed}: {what}\n")
        if options.keep:
            from file_mutations import mutated

            options.keep.mkdir(parents=True, exist_ok=True)
            blob = mutated(form, random.Random(f"{form} {seed}"))
            (options.keep / f"{seed}{form}").write_bytes(blob)

    found, loaded = run(options.n, options.seed, options.formats, on_finding)
    counts = ", ".join(f"{form} {count}" for form, count in loaded.items())
    sys.stdout.write(f"{len(found)} findings in {options.n} files of each format; ")
    sys.stdout.write(f"tensors loaded: {counts}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
