"""Makes functions atoms of `torch.compile`'s first pass, without importing the compiler.

Dynamo, which reads Python bytecode, puts such a function into its graph as it is; the second pass
then runs it on fake tensors and finds the kernels. Importing Dynamo doubles the time that
``import torch`` takes, so functions are handed to it only once something else has imported it.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

_DYNAMO = "torch._dynamo"
_WAITING: list[Callable[..., Any]] = []


def when_tracing(function: Callable[..., Any]) -> None:
    """Lets Dynamo call `function` as one operation of its graph, once Dynamo is imported."""
    if _DYNAMO in sys.modules:
        sys.modules[_DYNAMO].allow_in_graph(function)
    else:
        _WAITING.append(function)


class _AfterDynamo(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Hands the waiting functions over right after the import of Dynamo, then steps aside."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _DYNAMO:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return None
        self._loader = spec.loader
        spec.loader = self
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        if spec is not None:
            spec.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        for function in _WAITING:
            module.allow_in_graph(function)
        _WAITING.clear()


if _DYNAMO not in sys.modules:
    sys.meta_path.insert(0, _AfterDynamo())
