"""Settings and fixtures of every test."""

import os

import hypothesis
import pytest
import torch
from samples import made_by_spgrad, made_by_torch

import spgrad

# Triton kernels run in its interpreter; read when Triton is imported, which nothing above does.
os.environ.setdefault("TRITON_INTERPRET", "1")

# Examples are the same in every run, so a failing test fails again.
hypothesis.settings.register_profile("spgrad", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("spgrad")


@pytest.fixture(autouse=True)
def fresh_process_state():
    """Seeds torch, and gives back the number of threads that the test found."""
    threads = torch.get_num_threads()
    torch.default_generator.manual_seed(0)  # torch.manual_seed notes a stack per accelerator
    yield
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)


@pytest.fixture
def poisoned():
    """Memory from `torch.empty`, the kernels' included, is NaN (or the largest integer).

    Output that a kernel never wrote then shows in any comparison.
    """
    before = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(before, warn_only=warn_only)


@pytest.fixture(params=["spgrad", "dropin"])
def sparse(request):
    """Makes a SparseTensor of a dense one; in drop-in mode with torch's own methods."""
    if request.param == "spgrad":
        yield made_by_spgrad
    else:
        with spgrad.dropin():
            yield made_by_torch
