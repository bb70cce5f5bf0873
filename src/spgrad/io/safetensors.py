"""safetensors files: values and indices as tensors, layout and shape as metadata."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import torch

from spgrad.core.checks import short
from spgrad.core.tensor import SparseTensor
from spgrad.io.stream import Limit
from spgrad.torch_protocol.pickling import load

_FORMAT = "spgrad"
_NAMES = ("compressed_indices", "plain_indices")
_PAIRS = {torch.complex128: torch.float64, torch.complex32: torch.float16}
"""The dtypes that safetensors lacks, which the metadata name; pairs of real numbers are stored."""


def read(path: Path, limit: Limit) -> SparseTensor:
    """The tensor in a file, every part of which is checked; ValueError says what is wrong."""
    limit.require(path.stat().st_size)
    safetensors: Any = importlib.import_module("safetensors")
    with safetensors.safe_open(path, framework="pt", device="cpu") as file:
        about = file.metadata() or {}
        if about.get("format") != _FORMAT:
            raise ValueError(f"its metadata does not say that its format is {_FORMAT}")
        spec, shape = json.loads(about["spec"]), json.loads(about["shape"])
        spec = [tuple(entry) if isinstance(entry, list) else entry for entry in spec]
        names = ("indices",) if spec[0] == "coo" else _NAMES
        missing = {"values", *names} - set(file.keys())
        if missing:
            raise ValueError(f"it has no tensor `{min(missing)}`")
        vals, *indices = (file.get_tensor(name) for name in ("values", *names))
    real = {short(dtype): of for dtype, of in _PAIRS.items()}.get(about.get("values", ""))
    if real is not None:
        if vals.dtype != real or not vals.dim() or vals.shape[-1] != 2:
            raise ValueError(f"its complex values are not pairs of {short(real)}")
        vals = torch.view_as_complex(vals.contiguous())
    return load(vals, spec, tuple(shape), tuple(indices), False, False)


def write(path: Path, A: SparseTensor) -> None:
    """Writes a tensor of any layout, with its batch and dense dimensions."""
    save: Any = importlib.import_module("safetensors.torch").save_file
    pattern = A._pattern
    names = ("indices",) if pattern.is_coo else _NAMES
    vals = A._vals.detach().resolve_conj().resolve_neg()
    about = {"spec": json.dumps(list(pattern.spec)), "shape": json.dumps(list(pattern.shape))}
    if vals.dtype in _PAIRS:
        vals, about["values"] = torch.view_as_real(vals), short(vals.dtype)
    parts = {"values": vals} | dict(zip(names, pattern.indices, strict=True))
    whole = {name: t.cpu().contiguous().clone() for name, t in parts.items()}
    save(whole, path, metadata={"format": _FORMAT, **about})
