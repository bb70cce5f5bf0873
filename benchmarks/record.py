"""The cells measured so far, in a file, so that a later run can go on from there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Result = dict[str, Any]

FIELDS = ("threads", "matrix", "op", "k", "dtype", "index", "layout")
# Of the machine: what figures depend on. The date and the load are others in each piece of a run.
_KEPT = ("cpu", "cores", "caches", "system", "simd", "python", "spgrad", "code", "compiled")


class OtherRunError(Exception):
    """The file is of a run whose figures can't stand beside those of this one."""


def about(machine: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """What has to be equal in two pieces of a run: machine, versions and settings."""
    found = {name: machine.get(name) for name in _KEPT} | machine["versions"] | settings
    return json.loads(json.dumps(found))


class Record:
    """A file of lines: the first says what the run is about, each other one has a cell.

    A cell is written as soon as it is measured: a process that ends loses only the current cell.
    """

    def __init__(self, path: Path, known: dict[tuple[Any, ...], Result]) -> None:
        self._path, self._known = path, known

    @classmethod
    def begin(cls, path: Path, about: dict[str, Any]) -> Record:
        """An empty record; an existing file is kept under another name."""
        if path.exists():
            path.replace(path.with_name(f"old-{path.name}"))
        path.write_text(json.dumps(about) + "\n")
        return cls(path, {})

    @classmethod
    def resume(cls, path: Path, about: dict[str, Any]) -> Record:
        """The record of an earlier piece of this run, or an empty one.

        Raises:
            OtherRunError: The file is of another machine, or another version, or no such file.
        """
        if not path.exists():
            return cls.begin(path, about)
        text = path.read_text()
        whole = text[: text.rfind("\n") + 1]  # without what a stopped process has left of a line
        try:
            there, *lines = (json.loads(line) for line in whole.splitlines())
            known = {_key(line["what"], line): line["result"] for line in map(_flat, lines)}
            others = [name for name in about if there.get(name) != about[name]]
            others += [name for name in there if name not in about]
        except (ValueError, KeyError, AttributeError, TypeError):
            raise OtherRunError(f"{path} is no file of measured cells") from None
        if others:
            told = "; ".join(f"{n}: {there.get(n)} there, {about.get(n)} here" for n in others)
            raise OtherRunError(f"{path} is of another run ({told})")
        path.write_text(whole)
        return cls(path, known)

    def find(self, what: str, cell: dict[str, Any]) -> Result | None:
        """The result of a cell, "time" or "memory", if it has been measured."""
        return self._known.get(_key(what, cell))

    def add(self, what: str, result: Result) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps({"what": what, "result": result}) + "\n")
        self._known[_key(what, result)] = result


def _flat(line: Any) -> dict[str, Any]:
    return {**line["result"], **line}


def _key(what: str, cell: dict[str, Any]) -> tuple[Any, ...]:
    return (what, *(cell[field] for field in FIELDS))
