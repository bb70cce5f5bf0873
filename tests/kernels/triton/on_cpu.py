"""A plugin of pytest: Triton kernels, in the interpreter, answer for tensors on the CPU.

The environment says TRITON_INTERPRET=1, and that no other backend answers.
"""

from spgrad.kernels.declare import register_launched
from spgrad.kernels.triton import MODULES


def pytest_configure():
    register_launched(MODULES, "CPU")
