"""Mini-batches of rows of a matrix that stays on disk, and a thread that makes batches ahead."""

from __future__ import annotations

import atexit
import queue
import threading
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, SequentialSampler

from spgrad import kernels
from spgrad.core import checks
from spgrad.core.pattern import Pattern
from spgrad.core.tensor import SparseTensor
from spgrad.core.values import on_pattern
from spgrad.data.arguments import require_count, require_members
from spgrad.errors import ArgumentKindError, ArgumentValueError, UnsupportedError
from spgrad.lowering.convert import with_sorted_lines
from spgrad.public import public_as

T = TypeVar("T")
_ARRAYS = ("indptr", "indices", "data")


class RowDataset(Dataset[SparseTensor]):
    """The rows of a CSR matrix in files, mapped into memory: only what a batch asks for is read.

    Reads what ``scipy.sparse.save_npz(path, A, compressed=False)`` writes, or a folder with
    ``indptr.npy``, ``indices.npy`` and ``data.npy``, as ``numpy.save`` writes them. The pointers
    are checked once; the indices of a batch are checked when it is read, and sorted if they are
    not: repeated ones are added up, as SciPy does. Files that are written to after they were opened
    are refused; they may be removed or replaced, which leaves the mapped data as they were.

    ``dataset[rows]`` is a CSR matrix of these rows, and `loader` gives such matrices. A worker
    process that gets a copy of the data set opens the files again.

    Args:
        path: The .npz file, or the folder.
        shape: Rows and columns (m, k), for a folder; a .npz file contains its shape.

    Cost:
        O(m) to open it; O(b + entries of the rows) for a batch of b rows.

    Raises:
        ValueError: The files are missing, are compressed, do not fit one another, or have changed
            since they were opened.
        TypeError: `path` is not a path.

    Example:
        >>> import tempfile, scipy.sparse
        >>> file = tempfile.mkdtemp() + "/a.npz"
        >>> scipy.sparse.save_npz(file, scipy.sparse.eye_array(5, format="csr"), compressed=False)
        >>> rows = spgrad.data.RowDataset(file)
        >>> [batch.shape for batch in rows.loader(batch_size=3)]
        [torch.Size([3, 5]), torch.Size([2, 5])]
    """

    @public_as("data.RowDataset")
    def __init__(self, path: Any, shape: Sequence[int] | None = None) -> None:
        checks.require_packages("io", "numpy")
        if not isinstance(path, str | Path):
            raise ArgumentKindError(
                f"`path` is {checks.describe_kind(path)}; a path is accepted. Name a file or a "
                "folder, as a str or pathlib.Path."
            )
        self.path, self._given = Path(path), shape
        self._open()

    def _open(self) -> None:
        self._written = _times_of_writing(self.path)
        if self.path.is_dir():
            found = {name: _mapped(self.path / f"{name}.npy", 0) for name in _ARRAYS}
            shape = self._given
        elif self.path.suffix == ".npz" and self.path.is_file():
            found, shape = _archived(self.path)
        else:
            raise _unfit(self.path, "it is no .npz file and no folder")
        if shape is None or len(tuple(shape)) != 2:
            raise ArgumentValueError(
                f"`shape` is {shape}; rows and columns are accepted, for a folder. Pass (m, k)."
            )
        self.shape = torch.Size(int(size) for size in shape)
        self._ptr, self._idx, self._val = (_tensor(self.path, found[name]) for name in _ARRAYS)
        if self._ptr.dtype != self._idx.dtype or self._ptr.dtype not in checks.INDEX_DTYPES:
            raise _unfit(self.path, "indptr and indices are not both int32 or both int64")
        if any(t.dim() != 1 for t in (self._ptr, self._idx, self._val)):
            raise _unfit(self.path, "its arrays are not vectors")
        nse = self._idx.numel()
        if self._ptr.numel() != self.shape[0] + 1 or self._val.numel() != nse:
            raise _unfit(self.path, f"its arrays do not fit one another and {tuple(self.shape)}")
        if (
            int(self._ptr[0]) != 0
            or int(self._ptr[-1]) != nse
            or bool((self._ptr.diff() < 0).any())
        ):
            raise _unfit(self.path, f"indptr does not ascend from 0 to {nse}")

    def __len__(self) -> int:
        return self.shape[0]

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "_given": self._given}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    @public_as("data.RowDataset")
    def __getitem__(self, rows: Any) -> SparseTensor:
        """Rows as CSR (b, k): several for a slice, a list, a tensor or a mask."""
        if isinstance(rows, slice):
            rows = range(*rows.indices(len(self)))
        lines = require_members("rows", rows, len(self), one=True)
        self._require_unchanged(lines)
        ptr, idx, val = kernels.list_lines(self._ptr, self._idx, self._val, lines)
        ptr, idx, val = with_sorted_lines(ptr, idx, val, self.shape[1])
        names = "indptr", "indices"
        checks.require_compressed(names, ptr, idx, self.shape[1], 0)
        shape = lines.numel(), self.shape[1]
        return on_pattern(val, Pattern(torch.sparse_csr, shape, (ptr, idx)))

    def _require_unchanged(self, lines: torch.Tensor) -> None:
        """Refuses files that were written to, as a kernel would read outside of their arrays.

        The pointers of these rows are checked too, because the times of files are coarse.
        """
        starts, ends = self._ptr[lines], self._ptr[lines + 1]
        bad = (starts < 0) | (ends < starts) | (ends > self._idx.numel())
        now = _times_of_writing(self.path)
        changed = any(now.get(file, then) != then for file, then in self._written.items())
        if changed or bool(bad.any()):
            raise ArgumentValueError(
                f"`path` is {self.path}, which has changed since it was opened; files that stay as "
                "they are, or are replaced by new ones, are accepted. Open it again."
            )

    def __getitems__(self, rows: Sequence[int]) -> SparseTensor:
        """A whole batch at once, for torch's DataLoader."""
        return self[rows]

    @public_as("data.RowDataset.loader")
    def loader(
        self,
        batch_size: int,
        shuffle: bool = False,
        drop_last: bool = False,
        generator: torch.Generator | None = None,
        **options: Any,
    ) -> DataLoader[SparseTensor]:
        """A DataLoader of batches of rows; `options` are torch's, such as `num_workers`."""
        require_count("batch_size", batch_size, 1, "an int of 1 or more")
        checks.require_generator(generator)
        for name in ("sampler", "batch_sampler", "collate_fn", "dataset"):
            if name in options:
                raise UnsupportedError(
                    f"`{name}` is {checks.describe_kind(options[name])}; it cannot be given, as a "
                    "batch is read at once. Pass the data set to torch.utils.data.DataLoader, "
                    "which takes it."
                )
        mixed = shuffle and len(self) > 0  # torch's sampler refuses an empty data set
        order = RandomSampler(self, generator=generator) if mixed else SequentialSampler(self)
        batches = BatchSampler(order, batch_size, drop_last)
        return DataLoader(self, batch_size=None, sampler=batches, collate_fn=_as_it_is, **options)


def _as_it_is(batch: Any) -> Any:
    return batch


def _times_of_writing(path: Path) -> dict[tuple[int, int], tuple[int, int]]:
    """The size and the time of the last change of each file that is there, by its inode."""
    files = [path / f"{name}.npy" for name in _ARRAYS] if path.is_dir() else [path]
    found = [file.stat() for file in files if file.is_file()]
    return {(at.st_dev, at.st_ino): (at.st_size, at.st_mtime_ns) for at in found}


def _unfit(path: Path, why: str) -> ArgumentValueError:
    return ArgumentValueError(
        f"`path` is {path}: {why}; an uncompressed .npz file of a CSR matrix or a folder with "
        "indptr.npy, indices.npy and data.npy is accepted. Write it with scipy.sparse.save_npz("
        "path, A.tocsr(), compressed=False)."
    )


def _tensor(path: Path, array: Any) -> torch.Tensor:
    try:
        with warnings.catch_warnings():  # torch says that the tensor can't be written to
            warnings.simplefilter("ignore", UserWarning)
            return torch.from_numpy(array)
    except TypeError as error:
        raise _unfit(path, f"torch has no dtype for {array.dtype}") from error


def _archived(path: Path) -> tuple[dict[str, Any], Any]:
    """The arrays of a .npz file, mapped into memory, and the shape that the file gives."""
    import numpy as np

    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        missing = [name for name in (*_ARRAYS, "shape", "format") if name not in members]
        if missing:
            raise _unfit(path, f"it has no array {missing[0]}")
        if any(members[name].compress_type != zipfile.ZIP_STORED for name in _ARRAYS):
            raise _unfit(path, "its arrays are compressed")
        with np.load(path, allow_pickle=False) as small:
            shape, form = small["shape"].tolist(), small["format"].item()
        if form not in (b"csr", "csr"):
            raise _unfit(path, f"its format is {form!r}, not csr")
        return {name: _mapped(path, _start(path, members[name])) for name in _ARRAYS}, shape
    except (OSError, zipfile.BadZipFile) as error:
        raise _unfit(path, str(error)) from error


def _start(path: Path, info: zipfile.ZipInfo) -> int:
    """Where the bytes of a member begin: behind its local header, a name and extra fields."""
    with path.open("rb") as file:
        file.seek(info.header_offset)
        header = file.read(30)
    name, extra = (int.from_bytes(header[i : i + 2], "little") for i in (26, 28))
    return info.header_offset + 30 + name + extra


def _mapped(path: Path, start: int) -> Any:
    """The vector of the .npy data that begin at `start`, mapped; writes don't change the file."""
    import numpy as np
    from numpy.lib import format as npy

    try:
        with path.open("rb") as file:
            file.seek(start)
            version = npy.read_magic(file)
            header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            shape, _, dtype = header(file)
            offset = file.tell()
        if dtype.hasobject or dtype.kind not in "biufc" or not dtype.isnative:
            raise _unfit(path, f"an array has dtype {dtype}")
        if 0 in shape:
            return np.zeros(shape, dtype)
        # read-only: the system reserves memory for the copies that a writable mapping may make
        return np.memmap(path, dtype, mode="r", offset=offset, shape=shape)
    except (OSError, ValueError) as error:
        if isinstance(error, ArgumentValueError):
            raise
        raise _unfit(path, str(error)) from error


_END = object()


@public_as("data.prefetched")
def prefetched(batches: Iterable[T], ahead: int = 2) -> Iterator[T]:
    """The same batches, but a thread makes the next ones while the caller uses the present one.

    For loaders without workers: reading and the kernels run outside of Python's lock, and nothing
    is copied between processes. The thread takes over grad mode and inference mode. An error in it
    is raised in place of its batch.

    Args:
        batches: An iterable of batches, such as a DataLoader.
        ahead: The thread makes at most this many batches ahead.

    Returns:
        An iterator over one pass, so call the function in each epoch. Closing the iterator, or
        leaving a loop over it, ends the thread.

    Cost:
        Memory of `ahead` + 1 batches.

    Raises:
        ValueError: `ahead` is below 1.

    Example:
        >>> list(spgrad.data.prefetched(range(3)))
        [0, 1, 2]
    """
    require_count("ahead", ahead, 1, "a number of batches of 1 or more")
    if not isinstance(batches, Iterable):
        raise ArgumentKindError(
            f"`batches` is {checks.describe_kind(batches)}; a DataLoader or another iterable "
            "is accepted. Give the loader itself."
        )
    return _prefetched(batches, ahead)


def _prefetched(batches: Iterable[T], ahead: int) -> Iterator[T]:
    made: queue.Queue[Any] = queue.Queue(ahead)
    stopped = threading.Event()
    # a new thread has modes of its own
    recording, inferring = torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    def put(item: Any) -> bool:
        while not stopped.is_set():
            try:
                made.put(item, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def work() -> None:
        error = None
        try:
            with torch.inference_mode(inferring), torch.set_grad_enabled(recording):
                for batch in batches:
                    if not put((batch, None)):
                        return
        except BaseException as caught:  # noqa: BLE001  # it is raised by the caller's thread
            error = caught
        put((_END, error))

    def stop(longest: float | None = None) -> None:
        stopped.set()
        thread.join(longest)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    # Python ends a daemon wherever it is, and the process with it if that is in code of torch. A
    # program that ends waits for the batch that is being made, but not for one that never comes.
    atexit.register(stop, 10)
    try:
        while True:
            batch, error = made.get()
            if error is not None:
                raise error
            if batch is _END:
                return
            yield batch
    finally:
        atexit.unregister(stop)
        stop()
