"""What examples in docstrings find without importing it; how threads and the collector work."""

import gc
import os

# OpenMP reads this when torch is imported. Otherwise threads that wait spin, and keep the cores
# from the other processes of the suite: together they then take up to six times as long.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import pytest
import torch

import spgrad


@pytest.fixture(autouse=True)
def names_in_examples(doctest_namespace: dict[str, object]) -> None:
    """Gives examples `torch` and `spgrad`, as the reader has imported them."""
    doctest_namespace["torch"] = torch
    doctest_namespace["spgrad"] = spgrad


def pytest_collection_finish() -> None:
    """Keeps the garbage collector from the tests themselves.

    It takes a second to look through them, as often as torch.compile asks for it.
    """
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Lets the collector free everything at the end; otherwise nanobind reports leaks."""
    gc.unfreeze()


# Doctests are looked for in modules; these have names that are not unique.
collect_ignore_glob = ["*conftest.py"]
