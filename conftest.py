"""What examples in docstrings find without importing it."""

import pytest
import torch

import spgrad


@pytest.fixture(autouse=True)
def names_in_examples(doctest_namespace: dict[str, object]) -> None:
    """Gives examples `torch` and `spgrad`, as the reader has imported them."""
    doctest_namespace["torch"] = torch
    doctest_namespace["spgrad"] = spgrad


# Doctests are looked for in modules; these have names that are not unique.
collect_ignore_glob = ["*conftest.py"]
