"""Fixtures of the tests of distributions."""

import pytest
from torch.distributions import Distribution


@pytest.fixture(autouse=True)
def _validated():
    """Checks parameters, as at the start: torch.compile switches that off for the process."""
    Distribution.set_default_validate_args(True)
