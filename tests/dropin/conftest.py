"""torch says once per process that a constructor of its older classes is deprecated."""

import warnings

import pytest


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.sparse.SparseTensor", UserWarning)
        yield
