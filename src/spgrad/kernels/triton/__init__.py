"""Triton kernels, which answer on CUDA devices.

A kernel has the file name of its reference, the contract that it is tested against: in Triton's
interpreter, and on GPUs where there are any. No kernel adds to memory that another program adds to,
so results do not depend on how a device schedules programs. The host waits for no number: the
length of a pattern's longest line is copied to it while it goes on. What has no Triton kernel, and
what these do not take, the native backend answers.

Nothing here is imported before a kernel is first used, and `import spgrad` does not import Triton.
"""

from __future__ import annotations

import importlib.util

from spgrad.kernels.declare import register_launched

MODULES = {
    name: f"{__name__}.{module}"
    for module, names in {
        "products.matmul": ("spmm", "sddmm", "spmm_sddmm"),
        "products.heads": ("heads_spmm", "heads_sddmm"),
        "products.attention": ("attention", "attention_backward"),
        "products.graphs.additive_attention": (
            "additive_attention",
            "additive_attention_backward",
        ),
        "reductions.softmax": ("segment_softmax", "segment_softmax_backward"),
        "products.block_matmul": ("block_spmm", "block_sddmm"),
    }.items()
    for name in names
}
"""Kernel name -> the module that has what launches it."""


def register() -> tuple[str, ...]:
    """Lets the kernels answer on CUDA where Triton is installed; the names of those that do."""
    if importlib.util.find_spec("triton") is None:
        return ()
    register_launched(MODULES)
    return tuple(MODULES)
