"""The memory that is kept for large results."""

from __future__ import annotations

import torch

from spgrad import kernels


def empty_cache() -> int:
    """Gives the memory of freed results, which spgrad keeps, back to the operating system.

    When a result of 4 MB or more is freed, its memory is kept for the next result of about that
    size, because new memory costs as much time as a product: each of its pages is cleared first.
    At most 512 MB are kept, or as many as the environment variable ``SPGRAD_CACHE_MB`` said when
    spgrad was imported; 0 keeps none. Where memory becomes short, Linux takes it back by itself,
    so a call is needed only to make the process report less memory. On other systems, and without
    the compiled kernels, nothing is kept.

    Such a result can't grow: torch resizes only memory of its own, so ``y.resize_`` and ``out=y``
    beyond the size of ``y`` raise. ``y.clone()`` can grow, and so can every result where no memory
    is kept.

    Returns:
        Number of bytes that were kept before the call.

    Examples:
        >>> A = spgrad.eye(100_000)
        >>> y = A @ torch.ones(100_000, 16)
        >>> del y
        >>> _ = spgrad.empty_cache()
        >>> spgrad.empty_cache()
        0
    """
    return kernels.empty_cache(torch.empty(0, device="cpu"))
