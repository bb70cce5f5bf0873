"""Results are the same, bit for bit, whether or not the host knows that no line is long."""

import pytest
import torch
from interpreting import LAUNCHED, chunks_of_eight

from benchmarks.gpu import ahead
from spgrad.kernels.triton import MODULES
from spgrad.kernels.triton.common import launch

pytestmark = pytest.mark.usefixtures("poisoned", chunks_of_eight.__name__)

LENGTHS = [3, 4, 0, 8, 1, 2, 5, 3, 3, 2, 4, 3, 2]


def with_data(name, operands, index):
    """The operands of a kernel, which are on meta, with numbers."""
    ptr = torch.tensor([0, *LENGTHS]).cumsum(0).to(index)
    nse = sum(LENGTHS)
    idx, perm = torch.randint(len(LENGTHS), (nse,), dtype=index), torch.randperm(nse).to(index)
    of_pattern = [ptr, perm] if name.startswith("segment_") else [ptr, idx, perm]
    made = {id(x): y for x, y in zip(operands, of_pattern, strict=False)}
    for x in operands:
        if isinstance(x, torch.Tensor) and id(x) not in made:
            made[id(x)] = torch.rand(x.shape, dtype=x.dtype)
    return [made.get(id(x), x) for x in operands]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy, where a line has no entries
@pytest.mark.parametrize(
    ("dtype", "index"), [(torch.float32, torch.int64), (torch.bfloat16, torch.int32)]
)
@pytest.mark.parametrize("name", MODULES)
def test_parts_of_lines_that_are_not_long_change_nothing(name, dtype, index, monkeypatch):
    monkeypatch.setattr(ahead, "_ROWS", len(LENGTHS))
    monkeypatch.setattr(ahead, "_ENTRIES", sum(LENGTHS))
    operands = with_data(name, ahead.calls(dtype, index, 3, block=2)[name], index)
    results, asked = [], []
    for longest in (None, max(LENGTHS)):
        monkeypatch.setattr(launch, "_longest_line", lambda _, n=longest: asked.append(n) or n)
        results.append(LAUNCHED[name](*operands))
    assert None in asked or name == "block_sddmm"  # which cuts no line
    unknown, known = results
    pairs = zip(known, unknown, strict=True) if isinstance(known, tuple) else [(known, unknown)]
    for one, other in pairs:
        assert torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))
        assert not one.isnan().any()  # what nothing wrote
