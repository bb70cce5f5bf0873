"""What is found on the first call, read while another thread finds it."""

import torch

from spgrad.lowering.gather import Gather
from spgrad.lowering.segments import Scattered, Segments

ORDER = torch.tensor([1, 0])


def test_segments():
    seen = []

    class View:
        perm = None

        @property
        def ptr(self):
            seen.append(segments.each_its_own)  # as another thread reads it at this moment
            return torch.tensor([0, 2])

    segments = Segments(None, None, 2, 2, scattered=Scattered(torch.zeros(2), 1), find=View)
    assert segments.ptr.tolist() == [0, 2]
    assert seen == [False]
    assert segments.perm is None


def changed_between_reads(name, first):
    """A Gather whose attribute is a function on the first read, and found on the next ones."""
    reads = iter([first])
    attribute = property(lambda self: next(reads, ORDER), lambda self, value: None)
    return type("Changed", (Gather,), {name: attribute})


def test_entries():
    gather = changed_between_reads("_entries", lambda: ORDER)(None, 2)
    assert torch.equal(gather.entries, ORDER)


def test_places():
    gather = changed_between_reads("_place", lambda: ORDER)(ORDER, 2)
    assert torch.equal(gather.place, ORDER)
