"""A plugin of pytest: the tests that it runs have their tensors on the current CUDA device.

    TRITON_INTERPRET=0 SPGRAD_TEST_GPU=everything python -m pytest -p on_gpu tests/ops tests/nn
    TRITON_INTERPRET=0 SPGRAD_TEST_GPU=operands python -m pytest -p on_gpu tests/support

With "everything" the device is torch's default device, so all tensors are made there. With
"operands" `spgrad.testing.sample` moves its tensors there, and what makes a tensor without saying
where makes it on the CPU, as in most programs; the dense functions that results are compared with
run on the CPU. Numbers that a test draws from a generator of the CPU are the same as without the
plugin.

`SPGRAD_TEST_CHUNK=8` cuts lines into chunks of eight entries, as the tests of the Triton kernels
do; compiled kernels keep the number that they were compiled with, so it is chosen once.
"""

import functools
import importlib
import os
import sys

import pytest
import torch

_DRAWS = ("rand", "randn", "randint", "randperm", "bernoulli", "multinomial")


def _drawn_on_the_cpu(draw):
    """The function, whose numbers come from the CPU where the generator is there."""

    @functools.wraps(draw)
    def drawn(*args, generator=None, device=None, requires_grad=False, **options):
        if generator is None or device is not None or generator.device.type != "cpu":
            given = {"generator": generator, "device": device, "requires_grad": requires_grad}
            return draw(*args, **{name: x for name, x in given.items() if x}, **options)
        args = [x.cpu() if isinstance(x, torch.Tensor) else x for x in args]
        with torch.device("cpu"):
            found = draw(*args, generator=generator, **options)
        return found.cuda().requires_grad_(requires_grad)

    return drawn


def _moved(sample):
    """The function, whose tensors are on the device, as leaves."""

    @functools.wraps(sample)
    def moved(*args, **options):
        operands = sample(*args, **options)
        return [a.detach().cuda().requires_grad_(a.requires_grad) for a in operands]

    return moved


def _there(options, device):
    """Keyword arguments of which the tensors are on the device."""
    return {
        name: value.to(device) if isinstance(value, torch.Tensor) else value
        for name, value in options.items()
    }


def _back(told):
    """The function, whose tensors are on the CPU."""
    return lambda *args: _there(told(*args), "cpu")


def _on_the_cpu(expected_all):
    """The function, which takes dense tensors from the device and gives results there."""

    def expected(cell, operands, dense):
        found = expected_all(cell, operands, [a.cpu() for a in dense])
        return tuple(y.cuda() for y in found)

    return expected


@pytest.fixture(autouse=True)
def _the_device_works_after_each_test():
    """A kernel that breaks the device is found in its own test, and ends the process."""
    yield
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        sys.stderr.write(f"the device broke in {os.environ['PYTEST_CURRENT_TEST']}: {error}\n")
        os._exit(1)


def pytest_configure():
    assert os.environ.get("TRITON_INTERPRET") == "0", "set TRITON_INTERPRET=0"
    if os.environ.get("SPGRAD_TEST_GPU") == "operands":
        from spgrad import testing

        for name, changed in (("sample", _moved), ("told", _back), ("expected_all", _on_the_cpu)):
            setattr(testing, name, changed(getattr(testing, name)))
        call = testing.call
        testing.call = lambda cell, function, operands, options: call(
            cell, function, operands, _there(options, "cuda")
        )
    else:
        # remembers torch's functions, before others take their names
        importlib.import_module("torch.utils._device")._device_constructors()
        for name in _DRAWS:
            setattr(torch, name, _drawn_on_the_cpu(getattr(torch, name)))
        torch.set_default_device("cuda")
    chunk = int(os.environ.get("SPGRAD_TEST_CHUNK", "0"))
    if chunk:
        from spgrad.kernels.triton.common.lines import LONG
        from spgrad.kernels.triton.products.block_matmul import LONG_BLOCKS
        from spgrad.kernels.triton.reductions import softmax

        LONG.value = LONG_BLOCKS.value = softmax.LONG.value = chunk
