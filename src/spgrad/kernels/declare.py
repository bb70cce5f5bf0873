"""Declares a kernel: its schema, its reference, its shape function, and its native backend."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch

_LIBRARY = torch.library.Library("spgrad", "DEF")

REFERENCES: dict[str, Callable[..., Any]] = {}
"""Kernel name -> its reference, the contract that every backend is tested against."""

NATIVE: dict[str, Callable[..., Any]] = {}
"""Kernel name -> its native backend, where torch has kernels that serve it."""

LAUNCHED: dict[str, Callable[..., Any]] = {}
"""Kernel name -> what launches its Triton kernels, of the modules that are imported."""


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
    NATIVE[function.__name__] = _silent(function)
    return NATIVE[function.__name__]


def launched(function: Callable[..., Any]) -> Callable[..., Any]:
    """Declares what launches the Triton kernels of the kernel that has the function's name.

    They run on the device of the first argument, in its current stream.
    """

    @functools.wraps(function)
    def launch(*args: Any) -> Any:
        with torch.cuda.device_of(args[0]):
            return function(*args)

    LAUNCHED[function.__name__] = _silent(launch)
    return function


def _silent(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function without graphs and without autocast."""

    @functools.wraps(function)
    def silent(*args: Any) -> Any:
        with torch.no_grad(), torch._C._DisableAutocast():
            return function(*args)

    return silent


def register_native(device: str, without: Collection[str] = ()) -> None:
    """Lets the native backend answer on a device, "CPU" or "CUDA", for the kernels that it has."""
    for name in NATIVE.keys() - set(without):
        _LIBRARY.impl(name, NATIVE[name], device)


def register_launched(modules: Mapping[str, str], device: str = "CUDA") -> None:
    """Lets Triton kernels answer on a device: {kernel: module}, each imported when it is used."""
    for name, module in modules.items():
        _LIBRARY.impl(name, _on_first_use(name, module), device)


def _on_first_use(name: str, module: str) -> Callable[..., Any]:
    def launch(*args: Any) -> Any:
        if name not in LAUNCHED:
            importlib.import_module(module)
        return LAUNCHED[name](*args)

    return launch
