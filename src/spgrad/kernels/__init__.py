"""Kernels over plain dense tensors; none of them knows a sparse layout.

Every kernel is an op ``torch.ops.spgrad.<name>``. Its pure-torch reference answers wherever no
faster backend is registered. The compiled library takes over the CPU when it is there. On CUDA
devices Triton kernels answer where Triton is installed. Elsewhere the native backend does, for the
kernels that torch has fast ones for.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

from spgrad.kernels.declare import LAUNCHED, NATIVE, REFERENCES
from spgrad.kernels.native import register as _register_native
from spgrad.kernels.reference.common.memory import empty_cache
from spgrad.kernels.reference.elementwise.merge import (
    intersection,
    intersection_values,
    take,
    union,
    union_sum,
    union_values,
)
from spgrad.kernels.reference.elementwise.scale import scale
from spgrad.kernels.reference.indexing.select import (
    list_lines,
    locate,
    select_columns,
    select_range,
)
from spgrad.kernels.reference.layouts.blocks import expand_blocks, group_blocks
from spgrad.kernels.reference.layouts.checks import check_compressed, check_coo
from spgrad.kernels.reference.layouts.coalesce import coalesce, sort_coo
from spgrad.kernels.reference.layouts.compress import compress, coordinates, expand
from spgrad.kernels.reference.layouts.densify import densify
from spgrad.kernels.reference.layouts.transpose import transpose_plan
from spgrad.kernels.reference.products.attention import attention, attention_backward
from spgrad.kernels.reference.products.block_attention import (
    block_attention,
    block_attention_backward,
)
from spgrad.kernels.reference.products.block_matmul import block_sddmm, block_spmm
from spgrad.kernels.reference.products.graphs.additive_attention import (
    additive_attention,
    additive_attention_backward,
)
from spgrad.kernels.reference.products.heads import heads_sddmm, heads_spmm
from spgrad.kernels.reference.products.matmul import (
    sddmm,
    sddmm_into,
    shares,
    spmm,
    spmm_sddmm,
    spmm_sddmm_into,
)
from spgrad.kernels.reference.products.rows.row_products import (
    row_sddmm,
    row_spmm,
    row_spmm_sddmm,
)
from spgrad.kernels.reference.products.spgemm import spgemm
from spgrad.kernels.reference.products.spgemm_values import masked_spgemm, spgemm_values
from spgrad.kernels.reference.products.spmm_of_part import add_spmm, untiled_spmm
from spgrad.kernels.reference.products.spmm_reduce import (
    spmm_plus,
    spmm_prod,
    spmm_reduce,
    spmm_reduce_backward,
)
from spgrad.kernels.reference.reading.traffic import assume_cache, traffic
from spgrad.kernels.reference.reductions.ranking import segment_order, segment_top
from spgrad.kernels.reference.reductions.scan import segment_scan
from spgrad.kernels.reference.reductions.scatter import scatter_sum
from spgrad.kernels.reference.reductions.segment import segment_arg, segment_expand, segment_reduce
from spgrad.kernels.reference.reductions.softmax import segment_softmax, segment_softmax_backward
from spgrad.kernels.reference.sampling.neighbors import relabel_lines, sample_lines
from spgrad.kernels.reference.sampling.walks import random_walks
from spgrad.kernels.reference.shapes.join_lines import join_lines
from spgrad.kernels.reference.shapes.kron import kron_lines
from spgrad.kernels.reference.shapes.ranges import cut_lines, join_ranges, take_ranges
from spgrad.kernels.reference.shapes.transpose_dense import transpose_dense
from spgrad.kernels.reference.solves.incomplete import (
    incomplete_cholesky,
    incomplete_lu,
    relaxed_cholesky,
)
from spgrad.kernels.reference.solves.krylov.bicgstab import bicgstab_direction, bicgstab_move
from spgrad.kernels.reference.solves.krylov.cg import cg_direction, cg_residual
from spgrad.kernels.reference.solves.krylov.diagonal_tiles import tiles_of_diagonals
from spgrad.kernels.reference.solves.krylov.diagonal_triangles import substitute_diagonals
from spgrad.kernels.reference.solves.krylov.diagonals import (
    by_diagonals,
    list_diagonals,
    spmv_diagonals,
    spmv_tiles,
)
from spgrad.kernels.reference.solves.krylov.gmres import (
    gmres_extend,
    gmres_project,
    gmres_subtract,
)
from spgrad.kernels.reference.solves.krylov.lsmr import lsmr_step
from spgrad.kernels.reference.solves.krylov.minres import minres_step
from spgrad.kernels.reference.solves.krylov.vectors import (
    krylov_active,
    krylov_dot,
    krylov_left,
    krylov_normalise,
    krylov_product,
    krylov_subtract,
)
from spgrad.kernels.reference.solves.selected_inverse import factor_pattern, selected_inverse
from spgrad.kernels.reference.solves.supernodal_inverse import supernodal_inverse
from spgrad.kernels.reference.solves.supernodes import supernodes
from spgrad.kernels.reference.solves.triangular import solve_triangular
from spgrad.kernels.triton import register as _register_triton
from spgrad.machine import processor_flags

__all__ = [
    "LAUNCHED",
    "NATIVE",
    "REFERENCES",
    "add_spmm",
    "additive_attention",
    "additive_attention_backward",
    "answering",
    "assume_cache",
    "attention",
    "attention_backward",
    "backend",
    "bicgstab_direction",
    "bicgstab_move",
    "block_attention",
    "block_attention_backward",
    "block_sddmm",
    "block_spmm",
    "by_diagonals",
    "by_triton",
    "cg_direction",
    "cg_residual",
    "check_compressed",
    "check_coo",
    "coalesce",
    "compiled",
    "compress",
    "coordinates",
    "cut_lines",
    "densify",
    "empty_cache",
    "expand",
    "expand_blocks",
    "factor_pattern",
    "gmres_extend",
    "gmres_project",
    "gmres_subtract",
    "group_blocks",
    "heads_sddmm",
    "heads_spmm",
    "incomplete_cholesky",
    "incomplete_lu",
    "intersection",
    "intersection_values",
    "join_lines",
    "join_ranges",
    "kron_lines",
    "krylov_active",
    "krylov_dot",
    "krylov_left",
    "krylov_normalise",
    "krylov_product",
    "krylov_subtract",
    "list_diagonals",
    "list_lines",
    "locate",
    "lsmr_step",
    "masked_spgemm",
    "minres_step",
    "random_walks",
    "relabel_lines",
    "relaxed_cholesky",
    "row_sddmm",
    "row_spmm",
    "row_spmm_sddmm",
    "sample_lines",
    "scale",
    "scatter_sum",
    "sddmm",
    "sddmm_into",
    "segment_arg",
    "segment_expand",
    "segment_order",
    "segment_reduce",
    "segment_scan",
    "segment_softmax",
    "segment_softmax_backward",
    "segment_top",
    "select_columns",
    "select_range",
    "selected_inverse",
    "shares",
    "solve_triangular",
    "sort_coo",
    "spgemm",
    "spgemm_values",
    "spmm",
    "spmm_plus",
    "spmm_prod",
    "spmm_reduce",
    "spmm_reduce_backward",
    "spmm_sddmm",
    "spmm_sddmm_into",
    "spmv_diagonals",
    "spmv_tiles",
    "substitute_diagonals",
    "supernodal_inverse",
    "supernodes",
    "take",
    "take_ranges",
    "tiles_of_diagonals",
    "traffic",
    "transpose_dense",
    "transpose_plan",
    "union",
    "union_sum",
    "union_values",
    "untiled_spmm",
]


def _load() -> bool:
    """Loads the compiled kernels; a library that is there but does not load is an error.

    A library that was compiled for other processors than this one is not loaded.
    """
    if os.environ.get("SPGRAD_NO_EXT"):
        return False
    for library in _LIBRARIES:
        if runs_here(library):
            torch.ops.load_library(str(library))
            return True
    return False


def runs_here(library: Path, flags: Callable[[], frozenset[str]] = processor_flags) -> bool:
    """Whether this processor has what the name of the library says that it needs.

    ``libspgrad_cpu.avx512.so`` needs AVX-512; ``libspgrad_cpu.so`` runs on every processor of its
    architecture.
    """
    needed = _NEEDED.get(library.suffixes[0], frozenset())
    return not needed or needed <= flags()


# By what CMakeLists.txt puts into the name of the library: the flags of Linux for what is needed.
_NEEDED = {
    ".avx512": frozenset({"avx512bw", "avx512cd", "avx512dq", "avx512vl"}),
    ".avx2": frozenset({"avx2", "bmi2", "f16c", "fma"}),
}
_LIBRARIES = sorted(Path(__file__).parent.glob("libspgrad_cpu.*"))
_COMPILED = _load()
_NATIVE = not os.environ.get("SPGRAD_NO_NATIVE")
_BY_TRITON = _register_triton() if _NATIVE else ()
if _NATIVE:
    _register_native("CUDA", without=_BY_TRITON)
    if not _COMPILED:
        _register_native("CPU")


def compiled() -> bool:
    """Tells whether the compiled CPU kernels answer, or torch's own operations do."""
    return _COMPILED


def why_missing() -> str:
    """Why the compiled kernels do not answer, where SPGRAD_NO_EXT is not set."""
    if _LIBRARIES:
        return f"the compiled CPU kernels ({_LIBRARIES[0].name}) are for another processor"
    return "the compiled CPU kernels are not installed"


def warn_if_missing() -> None:
    """Warns the module that imports spgrad, which calls this, where no library was loaded."""
    if _COMPILED or os.environ.get("SPGRAD_NO_EXT"):
        return
    way = "pip install --no-binary spgrad spgrad"
    if _LIBRARIES:
        way = "rm -r build/cpu; make kernels"
    warnings.warn(
        f"spgrad: {why_missing()}, so every op runs on torch's own kernels, which are slower. "
        f"Compile them ({way}; this needs a C++ compiler), or set SPGRAD_NO_EXT=1 to say that this "
        "is intended.",
        stacklevel=3,
    )


def by_triton() -> tuple[str, ...]:
    """The kernels that Triton compiles for CUDA devices; none where it is not installed."""
    return _BY_TRITON


def answering() -> dict[str, dict[str, str]]:
    """Kernel -> the backend that answers in this process: on "CPU", on "CUDA", and "elsewhere".

    torch's dispatcher is asked what is registered. A CUDA device need not be there.
    """
    fast = {"CPU": ("compiled", REFERENCES if _COMPILED else ()), "CUDA": ("triton", _BY_TRITON)}
    found: dict[str, dict[str, str]] = {}
    for name in sorted(REFERENCES):
        found[name] = {"elsewhere": "reference"}
        for device, (own, names) in fast.items():
            registered = torch._C._dispatch_has_kernel_for_dispatch_key(f"spgrad::{name}", device)
            by = (own if name in names else "native") if registered else "reference"
            found[name][device] = by
    return found


def backend() -> str:
    """What answers on the CPU: "compiled", "native" (torch's sparse kernels) or "reference"."""
    if _COMPILED:
        return "compiled"
    return "native" if _NATIVE else "reference"
