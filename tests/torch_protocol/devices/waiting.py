"""What makes the host wait for a device, counted on a machine that may have none."""

import importlib
import traceback
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

import spgrad
from spgrad.kernels import LAUNCHED, NATIVE, REFERENCES
from spgrad.kernels.native.common.torch_csr import csr
from spgrad.kernels.native.solves import triangular
from spgrad.kernels.triton import MODULES
from spgrad.lowering import align
from spgrad.lowering.products import spmm
from spgrad.ops.products import spgemm
from spgrad.ops.products.graphs import additive_attention

READ = {
    "_local_scalar_dense",
    "_unique2",
    "bincount",
    "equal",
    "is_nonzero",
    "item",
    "masked_select",
    "nonzero",
    "unique_consecutive",
    "unique_dim",
    "unique_dim_consecutive",
}
"""Operations whose result, or the size of it, the host reads."""
WRITTEN = {"lift_fresh"}
"""Operations that bring numbers of Python to a device, as torch.tensor does."""
COPIED = ("cpu", "numpy", "tolist")
"""Methods that copy to the host; for a tensor that is there already, they call no operation."""
MADE = ("arange", "empty", "eye", "full", "linspace", "ones", "rand", "randn", "randperm", "zeros")
"""Functions of torch that make tensors on the CPU, unless a device is given."""
INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_"}
"""Operations that wait where a mask says how many elements they take."""
_PACKAGE = Path(spgrad.__file__).parent
_EMPTY = torch.zeros(1, dtype=torch.int64)
csr(_EMPTY, _EMPTY[:0], torch.zeros(0), 0)  # what a process does once is done


@contextmanager
def waits(backend="native"):
    """A list of what would wait for a device, if the tensors were on one, and of where.

    What is made on the CPU counts, because a copy of it to a device does not fit into a CUDA graph,
    except where the code says that it is for the CPU, and computes there alone.

    Every kernel runs on the backend that answers on CUDA where Triton is not there: the native one,
    or its reference. With "triton" the host's part of Triton kernels runs, and no kernel: results
    have any numbers. Products of two sparse matrices keep pairs, patterns are joined, and nobody
    looks for rows that MKL would fail on, as on CUDA. Backward passes are counted too: on the CPU,
    the calling thread runs them.
    """
    mode = _Waits(_launched() if backend == "triton" else {})
    with ExitStack() as stack:
        if backend == "triton":
            for patch in _on_triton():
                stack.enter_context(patch)
        for name in MADE:
            stack.enter_context(mock.patch.object(torch, name, mode.making(name)))
        stack.enter_context(mock.patch.object(spgemm, "lists_pairs", return_value=True))
        stack.enter_context(mock.patch.object(triangular, "lacks_pivot", return_value=False))
        stack.enter_context(mock.patch.object(align, "asks_device", return_value=True))
        for name in COPIED:
            stack.enter_context(mock.patch.object(torch.Tensor, name, mode.noting(name)))
        stack.enter_context(mock.patch.object(torch.Tensor, "to", mode.moving()))
        stack.enter_context(mode)
        yield mode.found


def _launched():
    """Kernel name -> what launches its Triton kernels."""
    for module in set(MODULES.values()):
        importlib.import_module(module)
    return LAUNCHED


def _on_triton():
    """Patches by which operations choose as where Triton answers, and no kernel is interpreted."""
    interpreter = importlib.import_module("triton.runtime.interpreter")
    yield mock.patch.object(interpreter.InterpretedFunction, "run")
    yield mock.patch.object(additive_attention, "_by_triton", return_value=True)
    yield mock.patch.object(
        spmm, "uses_blocks", lambda pattern, x, **_: pattern.blocksize is not None
    )


class _Waits(TorchDispatchMode):
    def __init__(self, launched):
        super().__init__()
        self.found, self.launched = [], launched

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if any(issubclass(t, spgrad.SparseTensor) for t in types):
            return NotImplemented
        name = function.overloadpacket.__name__
        if function.namespace == "spgrad":
            with self:
                kernel = self.launched.get(name) or NATIVE.get(name, REFERENCES[name])
                return kernel(*args, **kwargs)
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        hosted = bool(given) and all(map(_hosted, given))
        if not hosted and _waits(name, function, args, kwargs):
            self.note(name)
        found = function(*args, **kwargs)
        return tree_map_only(torch.Tensor, _host, found) if hosted else found

    def note(self, name):
        frames = [f for f in traceback.extract_stack() if _PACKAGE in Path(f.filename).parents]
        place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "outside of spgrad"
        self.found.append(f"{name} at {place}")

    def noting(self, name):
        method = getattr(torch.Tensor, name)

        def read(tensor, *args, **kwargs):
            if not _hosted(tensor):
                self.note(name)
            return method(tensor, *args, **kwargs)

        return read

    def moving(self):
        """Tensor.to, with a note where it is called with the name of the host."""
        method = torch.Tensor.to

        def to(tensor, *args, **kwargs):
            given = [a for a in (*args, *kwargs.values()) if isinstance(a, str)]
            if "cpu" in given and not _hosted(tensor):
                self.note("to the CPU")
            return method(tensor, *args, **kwargs)

        return to

    def making(self, name):
        function = getattr(torch, name)

        def make(*args, **kwargs):
            device = kwargs.get("device")
            if device is None:
                self.note(f"{name} on the CPU")
            found = function(*args, **kwargs)
            return _host(found) if device == "cpu" else found

        return make


def _host(t):
    t.for_the_host = True
    return t


def _hosted(t):
    return getattr(t, "for_the_host", False)


def _waits(name, function, args, kwargs):
    if name in INDEXED:
        return any(t is not None and t.dtype in (torch.bool, torch.uint8) for t in args[1])
    if name == "repeat_interleave":
        return function._overloadname == "Tensor" and kwargs.get("output_size") is None
    if name == "segment_reduce":  # it looks at its lengths
        return not kwargs.get("unsafe", False)
    if name == "copy_":  # to the host; the host asks an event whether a copy is done
        return _hosted(args[0]) and not (kwargs.get("non_blocking") or args[2:] == (True,))
    if name == "_to_copy":  # autocast, and derivatives of conversions, name the device they are on
        converts = kwargs.get("dtype") not in (None, args[0].dtype)
        return kwargs.get("device") is not None and not converts
    return name in READ or name in WRITTEN
