"""What tests of kernels share."""

import importlib.util

import pytest
import torch

from spgrad import kernels

if importlib.util.find_spec("triton") is not None:
    import quick_interpreter

    quick_interpreter.install()


@pytest.fixture
def assume():
    """Lets kernels choose for a cache of so many bytes."""
    yield lambda size: kernels.assume_cache(torch.empty(0), size).item()
    kernels.assume_cache(torch.empty(0), 0)
