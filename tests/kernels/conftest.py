"""What tests of kernels share."""

import pytest
import torch

from spgrad import kernels


@pytest.fixture
def assume():
    """Lets kernels choose for a cache of so many bytes."""
    yield lambda size: kernels.assume_cache(torch.empty(0), size).item()
    kernels.assume_cache(torch.empty(0), 0)
