"""Files as streams: unpacked where they are .gz, with a progress bar where they are large."""

from __future__ import annotations

import contextlib
import gzip
import importlib.util
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

LARGE = 20_000_000
"""Files of more bytes than this are read with a progress bar."""

MOST_PACKED = 1032
"""Bytes that one byte of a .gz or .zip can stand for; from deflate's code for a run of 258."""


FEWEST = 1 << 26
"""Every file may unpack to this many bytes."""

USUAL = 50
"""By default, the arrays of a file may take this many times its size."""


class Limit(NamedTuple):
    """The most bytes that the arrays in a file may take once they are unpacked."""

    nbytes: int

    @classmethod
    def of(cls, path: Path, asked: int | None) -> Limit:
        """The limit that was asked for, or the default for a file of this size."""
        return cls(max(FEWEST, USUAL * path.stat().st_size) if asked is None else asked)

    def require(self, nbytes: int, what: str = "its arrays") -> None:
        """Refuses a file that asks for more."""
        if nbytes > self.nbytes:
            raise ValueError(
                f"{what} would take {nbytes} bytes, more than max_bytes={self.nbytes}; trust it "
                f"with max_bytes={nbytes}"
            )


def unpacked_limit(path: Path) -> int:
    """Most bytes that the file can hold once unpacked."""
    size = path.stat().st_size
    return size * MOST_PACKED if path.suffix.lower() == ".gz" else size


@contextlib.contextmanager
def reading(path: Path, limit: Limit) -> Iterator[BinaryIO]:
    """The bytes of a file, unpacked; progress is shown on a terminal, by tqdm or rich."""
    with contextlib.ExitStack() as stack:
        raw = stack.enter_context(path.open("rb"))
        size = path.stat().st_size
        if size > LARGE and (advance := stack.enter_context(_progress(path.name, size))):
            raw = io.BufferedReader(_Counted(raw, advance))
        if path.suffix.lower() == ".gz":
            packed = stack.enter_context(gzip.GzipFile(fileobj=raw))
            yield io.BufferedReader(_Limited(packed, limit))
        else:
            yield raw


@contextlib.contextmanager
def writing(path: Path) -> Iterator[BinaryIO]:
    """The new content of a file, packed if it is .gz."""
    with gzip.open(path, "wb") if path.suffix.lower() == ".gz" else path.open("wb") as file:
        yield file  # type: ignore[misc]


class _Counted(io.RawIOBase):
    """A file that calls `advance` with the number of bytes of each read."""

    def __init__(self, file: Any, advance: Callable[[int], Any]) -> None:
        self._file, self._advance = file, advance

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def readinto(self, buffer: Any) -> int:
        count = self._file.readinto(buffer)
        self._advance(count)
        return count


class _Limited(_Counted):
    """A file that refuses to unpack to more bytes than its limit."""

    def __init__(self, file: Any, limit: Limit) -> None:
        super().__init__(file, lambda _: limit.require(file.tell(), "its text"))


@contextlib.contextmanager
def _progress(name: str, size: int) -> Iterator[Callable[[int], Any] | None]:
    """Yields a function to call with each number of bytes read; None without tqdm and rich."""
    if importlib.util.find_spec("tqdm"):
        from tqdm import tqdm

        # `disable=None`: only on a terminal
        with tqdm(
            total=size, desc=name, unit="B", unit_scale=True, leave=False, disable=None
        ) as bar:
            yield bar.update
    elif importlib.util.find_spec("rich"):
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True), transient=True) as bars:
            task = bars.add_task(name, total=size)
            yield lambda count: bars.advance(task, count)
    else:
        yield None
