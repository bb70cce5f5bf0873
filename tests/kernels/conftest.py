"""What tests of kernels share."""

import functools
import importlib.util

import pytest
import torch

from spgrad import kernels


def _interpret_device_functions_faster():
    """Lets Triton replace the functions of `triton.language` once for a launch.

    Its interpreter does it again for each call of a device function, a third of a kernel's time.
    """
    from triton import language
    from triton.runtime import interpreter

    @functools.cache
    def modules(function):
        names = function.__globals__.values()
        return [m for m in (language, language.core) if any(value is m for value in names)]

    def call(self, *args, **kwargs):
        if any(language.core.is_builtin(module.load) for module in modules(self.fn)):
            interpreter._patch_lang(self.fn)
        return self.rewrite()(*args, **kwargs)

    interpreter.InterpretedFunction.__call__ = call


if importlib.util.find_spec("triton") is not None:
    _interpret_device_functions_faster()


@pytest.fixture
def assume():
    """Lets kernels choose for a cache of so many bytes."""
    yield lambda size: kernels.assume_cache(torch.empty(0), size).item()
    kernels.assume_cache(torch.empty(0), 0)
