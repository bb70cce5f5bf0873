"""The machine and the versions that the figures are from."""

from __future__ import annotations

import datetime as dt
import hashlib
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from benchmarks.peers import CONTENDERS
from benchmarks.plan import all_threads


def describe() -> dict[str, Any]:
    """Processor, system, versions, and the date."""
    import spgrad
    from spgrad.machine import caches, processor_name

    modules = {c.module for c in CONTENDERS.values() if c.installed} - {"spgrad"}
    return {
        "cpu": processor_name(),
        "cores": all_threads(),
        "caches": caches(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "spgrad": spgrad.__version__,
        "code": _digest(Path(spgrad.__file__).parent),
        "compiled": spgrad.compiled(),
        "simd": torch.backends.cpu.get_cpu_capability(),
        "mkl": torch.backends.mkl.is_available(),
        "versions": {module: _version(module) for module in sorted(modules)},
        "absent": [name for name, c in CONTENDERS.items() if not c.installed],
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0,
        "date": dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
    }


def in_words(machine: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {found}" for name, found in machine["versions"].items())
    kernels = "compiled kernels" if machine["compiled"] else "no compiled kernels"
    moved = "; ".join(
        f"{threads} thread{'s' * (threads != '1')}: copies {found['copy'] / 1e9:.1f} GB/s, "
        f"sums {found['add'] / 1e9:.1f} GB/s"
        for threads, found in machine.get("bandwidth", {}).items()
        if isinstance(found, dict)
    )
    return (
        f"{processor(machine)} ({machine['simd']}), {machine['system']}; "
        f"spgrad {machine['spgrad']} ({kernels}), {versions}; "
        f"{moved}{'; ' * bool(moved)}{machine['date'][:10]}"
    )


def processor(machine: dict[str, Any]) -> str:
    """Its name, its cores and their caches."""
    from spgrad.machine import caches_in_words

    sizes = caches_in_words(machine.get("caches") or ())
    return f"{machine['cpu']}, {machine['cores']} cores{f', {sizes}' if sizes else ''}"


def cache(machine: dict[str, Any], name: str) -> int:
    """Bytes of one of its caches, "L1d", "L2" or "L3"; 0 where it is not known."""
    sizes = (c["bytes"] for c in machine.get("caches") or () if c["name"] == name)
    return next(sizes, 0)


def _digest(folder: Path) -> str:
    """Of the code that runs: it may change while the version stays the same."""
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".py", ".so", ".dylib", ".dll"):
            found.update(path.relative_to(folder).as_posix().encode())
            found.update(path.read_bytes())
    return found.hexdigest()[:12]


def _version(module: str) -> str:
    try:
        return version(module)
    except PackageNotFoundError:
        return "of unknown version"
