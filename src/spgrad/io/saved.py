"""Files of `torch.save`: any layout, dtype, batch and dense dimensions, and requires_grad."""

from __future__ import annotations

import pickle
import re
import zipfile
from pathlib import Path

import torch

from spgrad.core import checks
from spgrad.core.interop import from_torch
from spgrad.core.pattern import LAYOUT_NAMES
from spgrad.core.tensor import SparseTensor
from spgrad.io.stream import Limit


def read(path: Path, limit: Limit) -> SparseTensor:
    """The sparse tensor in a file, on the CPU; ValueError says what is wrong with it."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            limit.require(sum(info.file_size for info in archive.infolist()))
    try:
        A = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:  # torch's text would advise to load it nevertheless
        names = re.search(r"GLOBAL ([\w.]+)", str(error))
        if names:
            raise ValueError(f"it calls {names[1]}, and no code of a file is run") from error
        raise ValueError("it is cut short, or no file of torch.save") from error
    if isinstance(A, torch.Tensor) and A.layout in LAYOUT_NAMES:
        A = from_torch(A)
        if A.device.type != "cpu":
            raise ValueError(f"it holds a tensor without data, on {A.device}")
        # an expanded tensor takes little memory but means many values
        limit.require(A._vals.numel() * A._vals.element_size())
        return A
    raise ValueError(f"it holds {checks.describe_kind(A)}, not a sparse tensor")


def write(path: Path, A: SparseTensor) -> None:
    """Saves a tensor with its pattern."""
    torch.save(A, path)
