"""What a bug report should contain: `spgrad.show_versions` and `python -m spgrad versions`."""

from __future__ import annotations

import importlib
import os
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

import torch

from spgrad import kernels
from spgrad.machine import caches, caches_in_words, processor_flags, processor_name

OPTIONAL = (
    "cupy-cuda12x",
    "cvxopt",
    "h5py",
    "jax",
    "matplotlib",
    "networkx",
    "numpy",
    "pandas",
    "pyamg",
    "pymetis",
    "pypardiso",
    "rich",
    "safetensors",
    "scipy",
    "torch_geometric",
    "tqdm",
)
"""The optional packages of spgrad's extras."""
FLAGS = (
    "sse4_2",
    "avx",
    "avx2",
    "fma",
    "f16c",
    "bmi2",
    "avx512f",
    "avx512bw",
    "avx512dq",
    "avx512vl",
    "asimd",
    "sve",
)
"""Linux's names of the instruction sets that kernels of torch and spgrad are chosen by."""
VARIABLES = (
    "SPGRAD_NO_EXT",
    "SPGRAD_NO_NATIVE",
    "SPGRAD_CACHE_MB",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
)
"""Variables of the environment that change which kernels run, and how."""


def show_versions() -> None:
    """Prints what a bug report needs: versions, the processor, and which kernels run.

    `python -m spgrad versions` prints the same. The text has no names of folders, users or
    machines.

    Examples:
        >>> spgrad.show_versions()
        spgrad      ...
        kernels     ...
        torch       ...
        python      ...
        system      ...
        processor   ...
        threads     ...
        variables   ...
        packages    ...
    """
    print(report())


def report() -> str:
    """What `show_versions` prints."""
    return "\n".join(f"{name:10}  {said}".rstrip() for name, said in _lines())


def _lines() -> Iterator[tuple[str, str]]:
    yield "spgrad", importlib.import_module("spgrad").__version__  # imports only point down
    yield "kernels", _kernels()
    if names := kernels.by_triton():
        yield "", f"on CUDA devices by Triton {_version('triton')}: {', '.join(names)}"
    yield "torch", f"{torch.__version__}, CPU capability {torch.backends.cpu.get_cpu_capability()}"
    if torch.cuda.is_available():
        devices = sorted({torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())})
        yield "", f"CUDA {torch.version.cuda}: {', '.join(devices)}"
    yield "python", f"{platform.python_version()} ({platform.python_implementation()})"
    yield "system", platform.platform()
    yield "processor", f"{processor_name()} ({platform.machine()})"
    if flags := processor_flags():
        yield "", " ".join(flag for flag in FLAGS if flag in flags)
    if sizes := caches_in_words(caches()):
        yield "", sizes
    count = os.cpu_count() or 1
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else count
    yield "threads", f"{torch.get_num_threads()}, where {usable} of {count} cores may be used"
    variables = [f"{name}={os.environ[name]}" for name in VARIABLES if name in os.environ]
    yield "variables", ", ".join(variables) or "none is set"
    found = {name: _version(name) for name in OPTIONAL}
    there = [f"{name} {number}" for name, number in found.items() if number]
    yield "packages", ", ".join(there) or "none of the optional ones"
    if absent := [name for name, number in found.items() if not number]:
        yield "", f"not installed: {', '.join(absent)}"


def _kernels() -> str:
    """Which kernels run on the CPU, and if not the compiled ones, why."""
    said = {
        "compiled": "compiled",
        "native": "native: torch's own sparse kernels where they serve, and references",
        "reference": "references",
    }[kernels.backend()]
    if kernels.compiled():
        return said
    if os.environ.get("SPGRAD_NO_EXT"):
        return f"{said}; SPGRAD_NO_EXT is set"
    return f"{said}; {kernels.why_missing()}"


def _version(package: str) -> str:
    """The version of a package; empty if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
