"""What the figures were taken on."""

from __future__ import annotations

import datetime as dt
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

    modules = {c.module for c in CONTENDERS.values() if c.installed} - {"spgrad"}
    return {
        "cpu": _cpu(),
        "cores": all_threads(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "spgrad": spgrad.__version__,
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
    kernels = "compiled kernels" if machine["compiled"] else "reference kernels only"
    moved = "; ".join(
        f"{threads} thread{'s' * (threads != '1')}: copies {found['copy'] / 1e9:.1f} GB/s, "
        f"sums {found['add'] / 1e9:.1f} GB/s"
        for threads, found in machine.get("bandwidth", {}).items()
        if isinstance(found, dict)
    )
    return (
        f"{machine['cpu']}, {machine['cores']} cores ({machine['simd']}), {machine['system']}; "
        f"spgrad {machine['spgrad']} ({kernels}), {versions}; "
        f"{moved}{'; ' * bool(moved)}{machine['date'][:10]}"
    )


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _version(module: str) -> str:
    try:
        return version(module)
    except PackageNotFoundError:
        return "of unknown version"
