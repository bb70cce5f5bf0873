"""Triton's interpreter, in two thirds of the time or less."""

import functools

from triton import language
from triton.runtime import interpreter


@functools.cache
def _modules(function):
    """Those of Triton's modules that a device function sees, whose functions are replaced."""
    names = function.__globals__.values()
    return [m for m in (language, language.core) if any(value is m for value in names)]


def _call(self, *args, **kwargs):
    if any(language.core.is_builtin(module.load) for module in _modules(self.fn)):
        interpreter._patch_lang(self.fn)
    return self.rewrite()(*args, **kwargs)


def install():
    """Lets the interpreter replace the functions of `triton.language` once for a launch.

    Triton's own code replaces them again in each call of a device function, which takes longer
    than many of the functions themselves.
    """
    interpreter.InterpretedFunction.__call__ = _call
