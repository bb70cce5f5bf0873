"""Declares a kernel: its schema, its reference, its shape function, and its native backend."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

_LIBRARY = torch.library.Library("spgrad", "DEF")

REFERENCES: dict[str, Callable[..., Any]] = {}
"""Kernel name -> its reference, the contract that every backend is tested against."""

NATIVE: dict[str, Callable[..., Any]] = {}
"""Kernel name -> its native backend, where torch has kernels that serve it."""


def kernel(
    schema: str, *, fake: Callable[..., Any] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declares the op ``spgrad::<schema>``; the decorated function is its reference.

    The reference answers on every device where no faster backend does. It must also run on
    fake tensors; where the size of its result depends on data it cannot, and `fake` says the
    shapes instead.

    Args:
        schema: An operator schema without namespace, ``"name(Tensor a, ...) -> Tensor"``.
        fake: A shape function with the reference's signature, for `torch.compile`.

    Returns:
        A decorator that gives the dispatched op in place of the reference.
    """

    def declare(reference: Callable[..., Any]) -> Callable[..., Any]:
        name = schema.partition("(")[0]
        _LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
        _LIBRARY.impl(name, reference, "CompositeExplicitAutograd")
        if fake is not None:
            torch.library.register_fake(f"spgrad::{name}", fake, lib=_LIBRARY)
        REFERENCES[name] = reference
        return getattr(torch.ops.spgrad, name).default

    return declare


def native(function: Callable[..., Any]) -> Callable[..., Any]:
    """Declares the native backend of the kernel that has the function's name.

    It calls the reference for operands that torch's kernels do not serve. No kernel records a
    graph; some that torch has, those with ``out=``, would refuse to. Nor does autocast change what
    it was called with: torch's CSR product on CPUs does not take the dtypes that autocast chooses.
    """

    @functools.wraps(function)
    def silent(*args: Any) -> Any:
        with torch.no_grad(), torch._C._DisableAutocast():
            return function(*args)

    NATIVE[function.__name__] = silent
    return silent


def register_native(device: str) -> None:
    """Lets the native backend answer on a device, "CPU" or "CUDA", for the kernels that it has."""
    for name, function in NATIVE.items():
        _LIBRARY.impl(name, function, device)
