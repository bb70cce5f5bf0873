"""The processor that this process runs on."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_CPUINFO = Path("/proc/cpuinfo")


def processor_name(cpuinfo: Path = _CPUINFO) -> str:
    """What the system calls the processor."""
    named = _fields(cpuinfo, "model name")
    return named or platform.processor() or platform.machine()


def processor_flags(cpuinfo: Path = _CPUINFO) -> frozenset[str]:
    """The instruction sets that Linux lists, by its names for them; empty on other systems."""
    return frozenset(_fields(cpuinfo, "flags|Features").split())


def _fields(cpuinfo: Path, name: str) -> str:
    """The text after the colon in the first line of this name; empty without such a line."""
    try:
        with cpuinfo.open() as lines:  # Linux writes the lines of a core when they are read
            found = (re.match(rf"(?:{name})\s*:(.*)", line) for line in lines)
            return next((match[1].strip() for match in found if match), "")
    except OSError:
        return ""


def caches(folder: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> list[dict[str, Any]]:
    """Name, size in bytes and number of sharing CPUs of each data cache; empty if not listed."""
    found = []
    for index in sorted(folder.glob("index*")):
        try:
            kind, level, size, sharing = (
                (index / name).read_text().strip()
                for name in ("type", "level", "size", "shared_cpu_list")
            )
        except OSError:
            continue
        if kind != "Instruction":
            name = f"L{level}{'d' * (kind == 'Data')}"
            found.append({"name": name, "bytes": _bytes(size), "shared_by": _count(sharing)})
    return found


def caches_in_words(found: Iterable[dict[str, Any]]) -> str:
    """The result of `caches` in words: "L2 2 MB of each, L3 260 MB shared by 2"."""
    return ", ".join(
        f"{c['name']} {_size(c['bytes'])} "
        + (f"shared by {c['shared_by']}" if c["shared_by"] > 1 else "of each")
        for c in found
    )


def _size(count: int) -> str:
    return f"{count / 2**20:g} MB" if count >= 2**20 else f"{count / 2**10:g} KB"


def _bytes(size: str) -> int:
    """The number of bytes that a size such as "48K" says."""
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    return int(size[:-1]) * units[size[-1]] if size[-1] in units else int(size)


def _count(cpus: str) -> int:
    """How many CPUs a list such as "0-3,8" names."""
    ends = (part.split("-") for part in cpus.split(","))
    return sum(int(end[-1]) - int(end[0]) + 1 for end in ends)
