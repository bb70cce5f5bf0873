"""What happens on the host before Triton kernels run: it reads no number of the operands."""

import contextlib
import sys

import pytest
import torch
from interpreting import LAUNCHED, REFERENCES
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.gpu import ahead
from spgrad.kernels import declare
from spgrad.kernels.triton import MODULES
from spgrad.kernels.triton.common import launch


@pytest.fixture
def launched(monkeypatch):
    """The names of the kernels that would run."""
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    found = []
    monkeypatch.setattr(
        interpreter.InterpretedFunction,
        "run",
        lambda self, *_, **__: found.append(self.fn.__name__),
    )
    return found


def on_meta(x):
    return x.to("meta") if isinstance(x, torch.Tensor) else x


@pytest.mark.parametrize("n", [1, 64])
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_operands_need_no_numbers(dtype, index, n, launched):
    """So nothing waits for a device, and a CUDA graph holds a call with its tiles and its grid."""
    calls = ahead.calls(dtype, index, n)
    assert dtype == torch.float64 or calls.keys() == MODULES.keys()
    for name, operands in calls.items():
        launched.clear()
        found = LAUNCHED[name](*map(on_meta, operands))
        assert launched, name
        wanted = REFERENCES[name](*map(on_meta, operands))
        pairs = zip(found, wanted, strict=True) if isinstance(found, tuple) else [(found, wanted)]
        for one, other in pairs:
            assert (one.device.type, one.shape, one.dtype) == ("meta", other.shape, other.dtype)


def test_kernels_run_on_the_device_of_their_operands(monkeypatch, launched):
    """Which need not be the current one, where each process has a device of its own."""
    asked = []

    @contextlib.contextmanager
    def device_of(tensor):
        asked.append(tensor)
        yield
        assert launched  # within the block

    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    for name, operands in ahead.calls(torch.float32, torch.int32, 8).items():
        launched.clear()
        there = [on_meta(x) for x in operands]
        LAUNCHED[name](*there)
        assert asked.pop() is there[0]
        assert not asked


@pytest.mark.parametrize(("length", "known"), [(2, ["spmm_kernel"]), (300, None)])
def test_long_lines_are_known_from_the_second_use_on(length, known, launched):
    """Then nothing is launched for their parts if there are none; and nothing is pickled."""
    ptr = torch.arange(301, dtype=torch.int32) * length
    idx = torch.zeros(int(ptr[-1]), dtype=torch.int32)
    operands = ptr, idx, None, torch.ones(len(idx)), torch.ones(1, 4)
    unknown = ["spmm_kernel", "join_parts_kernel"]
    for wanted in (unknown, known or unknown, known or unknown):
        launched.clear()
        LAUNCHED["spmm"](*operands)
        assert launched == wanted
    launched.clear()
    LAUNCHED["spmm"](ptr.clone(), *operands[1:])
    assert launched == unknown
    assert not vars(ptr)


class Event:
    """Of a device that works on until it is told to be done."""

    def __init__(self):
        self.done, self.asked = False, 0

    def query(self):
        self.asked += 1
        return self.done


class _Asked(TorchDispatchMode):
    """The names of the operations of torch that run."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


@pytest.fixture
def events(monkeypatch):
    """The events that are recorded behind copies to the host."""
    made = []

    def record(_):
        made.append(Event())
        return made[-1]

    monkeypatch.setattr(launch, "_record_event", record)
    return made


def short_lines():
    """Operands of spmm: 300 lines of two entries, more than a chunk has."""
    ptr = torch.arange(301, dtype=torch.int32) * 2
    return ptr, torch.zeros(600, dtype=torch.int32), None, torch.ones(600), torch.ones(1, 4)


UNKNOWN = ["spmm_kernel", "join_parts_kernel"]


def test_the_host_does_not_wait_for_the_longest_line(launched, events):
    """Parts are launched until the number is there; only then it is read, on the host."""
    operands = short_lines()
    with _Asked() as asked:
        for _ in range(4):
            launched.clear()
            LAUNCHED["spmm"](*operands)
            assert launched == UNKNOWN
    assert asked.names.count("copy_") == 1
    assert "_local_scalar_dense" not in asked.names  # which int() and item() call
    (event,) = events
    assert event.asked == 3
    event.done = True
    with _Asked() as asked:
        for _ in range(2):
            launched.clear()
            LAUNCHED["spmm"](*operands)
            assert launched == ["spmm_kernel"]
    assert asked.names.count("_local_scalar_dense") == 1
    assert event.asked == 4  # not again where the number is known


def test_nothing_is_copied_or_asked_while_a_graph_is_captured(launched, events, monkeypatch):
    operands = short_lines()
    captured = True
    monkeypatch.setattr(launch, "_captured", lambda _: captured)
    LAUNCHED["spmm"](*operands)
    assert not events
    captured = False
    LAUNCHED["spmm"](*operands)
    (event,) = events
    event.done = captured = True
    launched.clear()
    LAUNCHED["spmm"](*operands)
    assert launched == UNKNOWN
    assert event.asked == 0
    captured = False
    LAUNCHED["spmm"](*operands)
    captured = True
    launched.clear()
    LAUNCHED["spmm"](*operands)  # what is known is used in a graph too
    assert launched == ["spmm_kernel"]


def test_a_kernel_is_imported_when_it_is_first_used(monkeypatch, tmp_path):
    name = "launches_of_twice"
    text = "from spgrad.kernels.declare import LAUNCHED\nLAUNCHED['twice'] = lambda x: 2 * x\n"
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(declare, "LAUNCHED", {})
    twice = declare._on_first_use("twice", name)
    assert name not in sys.modules
    assert twice(3) == 6
    assert sys.modules.pop(name).__file__ == str(tmp_path / f"{name}.py")
    assert twice(4) == 8
    assert name not in sys.modules  # the second use imports nothing
