"""A plugin of pytest: Triton kernels in the interpreter run for tensors on the CPU.

Set TRITON_INTERPRET=1, and switch off the other backends by the environment.
"""

import quick_interpreter

from spgrad.kernels.declare import register_launched
from spgrad.kernels.triton import MODULES
from spgrad.ops.products.graphs import additive_attention


def pytest_configure():
    quick_interpreter.install()
    register_launched(MODULES, "CPU")
    additive_attention._by_triton = lambda x: True
