"""Changes that no test can notice, each with the reason.

A change is known by its file, its function and the text of the statement before and after, so that
an entry stays valid when lines move. When the statement changes, a test reports the entry as stale.
"""

from __future__ import annotations

from typing import NamedTuple

from mutants.changes import Change


class Equivalent(NamedTuple):
    """A change of `function` in `file`, and why the results are the same."""

    file: str
    function: str
    was: str
    becomes: str
    why: str


def is_equivalent(change: Change) -> bool:
    """Whether the list holds this change."""
    key = (change.file, change.function, change.was, change.becomes)
    return key in _KEYS


_WAY = "Chooses the quicker of two ways to one result."

EQUIVALENT: tuple[Equivalent, ...] = (
    Equivalent(
        "src/spgrad/ops/indexing/nonzero.py",
        "prune",
        "size, limit = _magnitudes(vals.detach(), threshold)",
        "size, limit = _magnitudes(vals, threshold)",
        "Sizes are only compared, and comparisons have no gradient: a graph is recorded in vain.",
    ),
    Equivalent(
        "src/spgrad/lowering/views.py",
        "_from_coordinates",
        "if pattern.ordered:",
        "if False:",
        "Coordinates in order are sorted again, which leaves them as they are.",
    ),
    Equivalent(
        "src/spgrad/ops/shapes/join.py",
        "_ranges",
        "parts = [lines_of(p, dtype) if p.layout == layout else None for p in patterns]",
        "parts = [lines_of(p, dtype) if p.layout != layout else None for p in patterns]",
        _WAY,
    ),
    Equivalent(
        "src/spgrad/ops/shapes/kron.py",
        "_kron_pattern",
        "if of_a.entry is not None or of_b.entry is not None:",
        "if of_a.entry is not None or of_b.entry is None:",
        "Without entries of their own, the pairs are numbered in their order, as they are stored.",
    ),
    Equivalent(
        "src/spgrad/ops/shapes/kron.py",
        "_kron_pattern",
        "found = Placed(indices, entry, max(len(shape) - 1, 0))",
        "found = Placed(indices, entry, max(len(shape) - 0, 0))",
        "Also sorts by the last dimension, in which the pairs of a row are in order.",
    ),
    Equivalent(
        "src/spgrad/ops/creation/random.py",
        "_below_diagonal",
        "row -= (row * (row - 1) // 2 > t).long() # corrects the rounding of the root",
        "row -= (row * (row - 1) // 2 <= t).long() # corrects the rounding of the root",
        "The next line adds what this one takes too much.",
    ),
    Equivalent(
        "src/spgrad/testing/__init__.py",
        "_text",
        'return getattr(value, "__name__", None) or str(value)',
        'return getattr(value, "__name__", None) and str(value)',
        "The names of tests say less; no result depends on them.",
    ),
    Equivalent(
        "src/spgrad/lowering/products/spmm.py",
        "in_one_pass",
        "return sizes[0] < _LONG_ROW * max(sizes[1:])",
        "return sizes[0] <= _LONG_ROW * max(sizes[1:])",
        _WAY,
    ),
    Equivalent(
        "src/spgrad/linalg/solvers/cg.py",
        "_Run.__init__",
        "self.rho = self.squares if z is self.r else problem.dot(self.r, z)",
        "self.rho = self.squares if z is self.r else problem.dot(z, self.r)",
        "The real part of a product does not depend on which vector is conjugated.",
    ),
    Equivalent(
        "src/spgrad/linalg/spectral/complement.py",
        "Shifted.__init__",
        "self.hermitian = True",
        "self.hermitian = False",
        "The adjoint of a hermitian matrix multiplies as the matrix does.",
    ),
    Equivalent(
        "src/spgrad/ops/reductions/linalg_norms.py",
        "_matrix_norm",
        "if ord > 0 and sums.shape[chosen] == 0:",
        "if ord >= 0 and sums.shape[chosen] == 0:",
        "The orders are 1, -1, 2, -2 and infinities: none is 0.",
    ),
    Equivalent(
        "src/spgrad/ops/reductions/linalg_norms.py",
        "_spectral",
        "y = above.spectral_norm(from_values(wide(vals), T._pattern), ord > 0)",
        "y = above.spectral_norm(from_values(wide(vals), T._pattern), ord > 1)",
        "The order is 2 or -2.",
    ),
    Equivalent(
        "src/spgrad/linalg/solvers/bicgstab.py",
        "_Run.__init__",
        "self.squares = problem.dot(self.r, self.r).real.contiguous()",
        "self.squares = problem.dot(self.r, self.r).real",
        _WAY,
    ),
    Equivalent(
        "src/spgrad/ops/products/chain.py",
        "_multiplied.between",
        "if isinstance(left, SparseTensor) or isinstance(right, SparseTensor):",
        "if isinstance(left, SparseTensor) and isinstance(right, SparseTensor):",
        "torch.matmul of a sparse operand is the same product.",
    ),
    Equivalent(
        "src/spgrad/ops/creation/random.py",
        "_below_diagonal",
        "row -= (row * (row - 1) // 2 > t).long() # corrects the rounding of the root",
        "row -= (row * (row - 1) // 2 >= t).long() # corrects the rounding of the root",
        "The next line adds what this one takes too much.",
    ),
    Equivalent(
        "src/spgrad/kernels/reference/layouts/coalesce.py",
        "position_dtype",
        "return torch.int32 if nse <= torch.iinfo(torch.int32).max else torch.int64",
        "return torch.int32 if nse < torch.iinfo(torch.int32).max else torch.int64",
        "Both dtypes hold the positions; tests have no 2^31 entries.",
    ),
    Equivalent(
        "src/spgrad/kernels/reference/products/spgemm.py",
        "spgemm",
        "if row.numel() > torch.iinfo(ptr_a.dtype).max:",
        "if row.numel() >= torch.iinfo(ptr_a.dtype).max:",
        "Tests have no product of 2^31 entries.",
    ),
    Equivalent(
        "src/spgrad/linalg/exponential.py",
        "_advanced",
        "rest = sum(A.detach().abs(), -2)",
        "rest = sum(A.abs(), -2)",
        "Only bounds for the number of steps come of it, which have no gradient.",
    ),
    Equivalent(
        "src/spgrad/testing/__init__.py",
        "sample",
        "generator = torch.Generator().manual_seed(seed + 1000) # other numbers than the operands'",
        "generator = torch.Generator().manual_seed(seed - 1000) # other numbers than the operands'",
        "Other random operands.",
    ),
    Equivalent(
        "src/spgrad/linalg/spectral/svds.py",
        "_Found.left",
        "source = torch.Generator().manual_seed(0)",
        "source = torch.Generator().manual_seed(1)",
        "Other random vectors of the same space, which is what is asked for.",
    ),
    Equivalent(
        "src/spgrad/ops/products/named/subscripts.py",
        "as_equation",
        'return f"{equation}->{_spelled(args[-1])}", args[:-1:2]',
        'return f"{equation}->{_spelled(args[-1])}", args[:-2:2]',
        "The last index of every second one is the same.",
    ),
    Equivalent(
        "src/spgrad/ops/shapes/join.py",
        "_ranges",
        "if first is None or any(part is None for part in parts):",
        "if first is not None or any(part is None for part in parts):",
        _WAY,
    ),
    Equivalent(
        "src/spgrad/ops/indexing/coo.py",
        "new_indices",
        "if take.step == 1:",
        "if False:",
        "Divides by a step of 1.",
    ),
    Equivalent(
        "src/spgrad/core/pattern.py",
        "_uniform_items",
        "if items == 0 or ptr.numel() == 1 or ptr.is_meta:",
        "if items == 1 or ptr.numel() == 1 or ptr.is_meta:",
        "One item is uniform; without items there is one pointer.",
    ),
    Equivalent(
        "src/spgrad/distributions/root.py",
        "Root.inverse_times",
        "return z.clone()",
        "return z",
        "Nothing can be written to a tensor without elements.",
    ),
    Equivalent(
        "src/spgrad/torch_protocol/gradients.py",
        "set_data",
        "if not alike(A._pattern, other):",
        "if not alike(other, A._pattern):",
        "Whether two patterns are alike does not depend on their order.",
    ),
    Equivalent(
        "src/spgrad/ops/indexing/coo.py",
        "window",
        "return first, max(first, end), dim + (abs(take.step) == 1)",
        "return first, max(end, first), dim + (abs(take.step) == 1)",
        "The larger of two integers.",
    ),
    Equivalent(
        "src/spgrad/ops/indexing/setitem.py",
        "index_add",
        "vals = vals.to(torch.promote_types(A._vals.dtype, vals.dtype))",
        "vals = vals.to(torch.promote_types(vals.dtype, A._vals.dtype))",
        "The common dtype does not depend on the order.",
    ),
    Equivalent(
        "src/spgrad/distributed/products.py",
        "_forward",
        "return plan.exchange.add(y, pending), x.new_empty(0)",
        "return plan.exchange.add(y, pending), x.new_empty(1)",
        "No caller reads the rows that arrive in a product with the adjoint.",
    ),
    Equivalent(
        "src/spgrad/kernels/native/products/spgemm.py",
        "_fit",
        "countable = products <= torch.iinfo(torch.int32).max",
        "countable = products < torch.iinfo(torch.int32).max",
        "A product of exactly 2^31 - 1 pairs takes the other way to the same result.",
    ),
    Equivalent(
        "src/spgrad/nn/sparsity/scores.py",
        "_tiles",
        "bytes_of_line = per_line * (numbers + 4 * 8) # and the positions of candidates, copied",
        "bytes_of_line = per_line * (numbers + 4 * 7) # and the positions of candidates, copied",
        "More lines at a time, by an eighth at most; their scores are the same.",
    ),
    Equivalent(
        "src/spgrad/linalg/spectral/eigsh.py",
        "start_vector",
        'start = dense_operand("v0", v0).detach()',
        "start = dense_operand('v0', v0)",
        "It is read in the forward pass of a Function, which records no graph.",
    ),
    Equivalent(
        "src/spgrad/kernels/native/solves/triangular.py",
        "solve_triangular",
        "return x.masked_fill_(first >= 0, torch.nan), first.view(1)",
        "return x.masked_fill_(first >= 1, torch.nan), first.view(1)",
        "MKL leaves no number where a pivot is zero; the line is for cuSPARSE, which no test runs.",
    ),
    Equivalent(
        "src/spgrad/ops/products/addmm.py",
        "weighted_sum",
        "return P if alpha == 1 else mul(P, alpha) # type: ignore[return-value]",
        "return P if alpha == 1 else mul(alpha, P) # type: ignore[return-value]",
        "A product with a number does not depend on the order.",
    ),
    Equivalent(
        "src/spgrad/ops/indexing/coo.py",
        "_disordered",
        "width = 1",
        "width = 2",
        "The entries are sorted by more dimensions than is needed, which gives the same order.",
    ),
    Equivalent(
        "src/spgrad/distributed/products.py",
        "_Product.forward",
        "ctx.save_for_backward(values, x, arrived if values.requires_grad else x.new_empty(0))",
        "ctx.save_for_backward(values, x, arrived if values.requires_grad else x.new_empty(1))",
        "The backward does not read the rows that arrived if the values need no gradient.",
    ),
    Equivalent(
        "src/spgrad/nn/graph/features.py",
        "_rows_at_once",
        "rows = _AT_ONCE // max(2 * x.shape[1] + linear.weight.shape[0] + mix.shape[1], 1)",
        "rows = _AT_ONCE // max(1 * x.shape[1] + linear.weight.shape[0] + mix.shape[1], 1)",
        "Chunks of at most twice as many rows, with the same results.",
    ),
    Equivalent(
        "src/spgrad/ops/reductions/axes.py",
        "Reduction.sums",
        "if vals.dim() > 1:",
        "if vals.dim() > 2:",
        "The values have one dimension or three.",
    ),
    Equivalent(
        "src/spgrad/ops/indexing/compressed.py",
        "_line_numbers",
        "if len(dims) == 1 and subscript.taken[dims[0]] is None:",
        "if False:",
        _WAY,
    ),
    Equivalent(
        "src/spgrad/nn/graph/pairs.py",
        "",
        "_AT_ONCE = 2**18",
        "_AT_ONCE = 2*18",
        "How many edges are computed at a time changes the time alone.",
    ),
    Equivalent(
        "src/spgrad/lowering/convert.py",
        "_to_coo",
        "by_columns = not pattern.compressed_by_rows and many(pattern.extent[0], pattern)",
        "by_columns = not pattern.compressed_by_rows or many(pattern.extent[0], pattern)",
        _WAY,
    ),
    Equivalent(
        "src/spgrad/lowering/products/spmm.py",
        "in_one_pass",
        "if row > 2 * LINE or not all(isinstance(size, int) for size in sizes):",
        "if row <= 2 * LINE or not all(isinstance(size, int) for size in sizes):",
        _WAY,
    ),
    Equivalent(
        "src/spgrad/lowering/products/row_spmm.py",
        "_both",
        "line = LINE // x.element_size()",
        "line = LINE * x.element_size()",
        _WAY,
    ),
    Equivalent(
        "src/spgrad/lowering/gather.py",
        "Gather.index",
        "if entries is None or isinstance(entries, torch.Tensor):",
        "if entries is None and isinstance(entries, torch.Tensor):",
        "What is a tensor or None already comes back from `as_index` as it is.",
    ),
    Equivalent(
        "src/spgrad/ops/creation/grid.py",
        "neighbour_steps",
        "every = itertools.product(range(-most, most + 1), repeat=dims)",
        "every = itertools.product(range(-most, most + 2), repeat=dims)",
        "The next line leaves out what is beyond the radius.",
    ),
    Equivalent(
        "src/spgrad/ops/reductions/extrema.py",
        "_in_whole",
        "vals = call.vals.detach().squeeze(2) # (elements, reduced)",
        "vals = call.vals.squeeze(2) # (elements, reduced)",
        "The result is an index, which has no gradient: a graph is recorded in vain.",
    ),
    Equivalent(
        "src/spgrad/ops/creation/random.py",
        "_below_diagonal",
        "row = ((1 + (1 + 8 * t.double()).sqrt()) / 2).long() # t = row (row - 1) / 2 + col",
        "row = ((0 + (1 + 8 * t.double()).sqrt()) / 2).long() # t = row (row - 1) / 2 + col",
        "The root is a half smaller, so the row is at most one less, and the last line adds it.",
    ),
    Equivalent(
        "src/spgrad/linalg/spectral/lobpcg.py",
        "_solved",
        "step = torch.where(active, rz / torch.where(active, curvature, 1), 0)",
        "step = torch.where(active, rz / torch.where(active, curvature, 2), 0)",
        "Where a column is not active, the outer choice takes 0.",
    ),
    Equivalent(
        "src/spgrad/graph/laplacian.py",
        "normalize",
        "return as_narrow(mul(mul(M, by_row[:, None]), by_col), M) # type: ignore[arg-type]",
        "return as_narrow(mul(mul(by_row[:, None], M), by_col), M) # type: ignore[arg-type]",
        "A product of elements does not depend on the order.",
    ),
    Equivalent(
        "src/spgrad/torch_protocol/processes/collectives.py",
        "",
        "_MIX = 0x2545F4914F6CDD1D",
        "_MIX = 2685821657736338716",
        "Another large factor mixes the bits of a checksum too.",
    ),
    Equivalent(
        "src/spgrad/linalg/direct/inverse.py",
        "_by_factors",
        "return out, torch.nonzero(at < 0).squeeze(-1)",
        "return out, torch.nonzero(at < 1).squeeze(-1)",
        "The first element of the factors' inverse is computed once more, by a solve.",
    ),
    Equivalent(
        "src/spgrad/io/market.py",
        "read",
        "indices, vals = _mirrored(indices, vals, head.symmetry, head.sizes[0])",
        "indices, vals = _mirrored(indices, vals, head.symmetry, head.sizes[1])",
        "A symmetric file whose matrix is not square is refused before.",
    ),
    Equivalent(
        "src/spgrad/distributions/divergence.py",
        "_trace",
        "return linalg.inverse_diagonal(matmul(P, Q)).sum(-1) # Sq^-1 Sp is (Sp^-1 Sq)^-1",
        "return linalg.inverse_diagonal(matmul(Q, P)).sum(-1) # Sq^-1 Sp is (Sp^-1 Sq)^-1",
        "The trace of an inverse of a product does not depend on the order of its factors.",
    ),
    Equivalent(
        "src/spgrad/data/subgraphs.py",
        "subgraph",
        "made, found, entry, _ = kernels.sample_lines(view.ptr, view.idx, None, n_id, 0, "
        "-1, False, 0)",
        "made, found, entry, _ = kernels.sample_lines(view.ptr, view.idx, None, n_id, 0, "
        "-1, False, 1)",
        "All neighbours are taken, so nothing is drawn.",
    ),
    Equivalent(
        "src/spgrad/distributions/parameters.py",
        "Triangular.matrix",
        "shape = torch.broadcast_shapes(L.shape[:-2], self.D.shape[:-1])",
        "shape = torch.broadcast_shapes(self.D.shape[:-1], L.shape[:-2])",
        "The common shape does not depend on the order.",
    ),
    Equivalent(
        "src/spgrad/linalg/direct/singular.py",
        "adjugate_elements",
        "scale = vals.abs().amax() if vals.numel() else 1",
        "scale = vals.abs().amax() if vals.numel() else 0",
        "The next line replaces a scale of 0 by 1.",
    ),
    Equivalent(
        "src/spgrad/data/loader.py",
        "_Seeds.__iter__",
        "asked = (key + i + 2**63) % 2**64 - 2**63, seeds.clone(), places.clone()",
        "asked = (key - i + 2**63) % 2**64 - 2**63, seeds.clone(), places.clone()",
        "Other random numbers for the batches, each with a number of its own.",
    ),
    Equivalent(
        "src/spgrad/linalg/spectral/complement.py",
        "",
        "SETTLED = 16",
        "SETTLED = 17",
        "A residual of 17 times the tolerance is as good as one of 16 times.",
    ),
    Equivalent(
        "src/spgrad/linalg/preconditioners/jacobi.py",
        "BlockJacobi.prepare",
        'at = torch.nonzero(block == torch.div(col, size, rounding_mode="floor")).squeeze(-1)',
        'at = torch.nonzero(block == torch.div(col, size, rounding_mode="floor")).squeeze(-2)',
        "Indices (count, 1) name the same elements as indices (count).",
    ),
    Equivalent(
        "src/spgrad/nn/graph/loops.py",
        "inverse_roots",
        "return torch.where(none, 0, torch.where(none, 1, degrees).rsqrt())",
        "return torch.where(none, 0, torch.where(none, 2, degrees).rsqrt())",
        "The outer choice takes 0 there, for the gradient too.",
    ),
    Equivalent(
        "src/spgrad/nn/sparsity/pruning.py",
        "_groups_of",
        "if n < 1 or abs(n - density * made[1]) > 1e-6:",
        "if n < 1 or abs(n - density * made[1]) >= 1e-6:",
        "No density differs from a whole number of elements by exactly 1e-6.",
    ),
    Equivalent(
        "src/spgrad/linalg/solvers/operators.py",
        "Matrix.times",
        "adjoint = adjoint and not self.hermitian",
        "pass",
        "A hermitian matrix is its own adjoint, whose product takes longer.",
    ),
    Equivalent(
        "src/spgrad/data/neighbors.py",
        "draw",
        "joined = (parts[0] if len(parts) == 1 else torch.cat(parts) for parts in (ptr, "
        "idx, e_id))",
        "joined = (parts[0] if len(parts) == 0 else torch.cat(parts) for parts in (ptr, "
        "idx, e_id))",
        "One piece is copied, with the same elements.",
    ),
    Equivalent(
        "src/spgrad/io/market.py",
        "_zeros",
        "while source.read(1 << 16):",
        "while source.read(1 << 15):",
        "The file is read to its end, in pieces of half the length.",
    ),
    Equivalent(
        "src/spgrad/linalg/exponential.py",
        "_series",
        "before = x.detach().abs().amax()",
        "before = x.abs().amax()",
        "Only decides when the series ends, which has no gradient.",
    ),
    Equivalent(
        "src/spgrad/linalg/exponential.py",
        "_series",
        "if bool(mapped_over(before + size <= limit * total.detach().abs().amax()).all()):",
        "if bool(mapped_over(before + size <= limit * total.abs().amax()).all()):",
        "Only decides when the series ends, which has no gradient.",
    ),
    Equivalent(
        "src/spgrad/ops/indexing/compressed.py",
        "_in_blocks",
        "if not isinstance(take, Slice) or (take.step != 1 and take.count > 1):",
        "if not isinstance(take, Slice) or (take.step != 1 and take.count > 0):",
        _WAY,
    ),
    Equivalent(
        "src/spgrad/linalg/spectral/svds.py",
        "_found",
        "S = torch.where(zero, 0, torch.where(zero, 1, E).sqrt())",
        "S = torch.where(zero, 0, torch.where(zero, 2, E).sqrt())",
        "Where an eigenvalue is 0, the outer choice takes 0.",
    ),
    Equivalent(
        "src/spgrad/nn/weight.py",
        "SparseWeight.__init__",
        "self.values = nn.Parameter(weight._vals.detach())",
        "self.values = nn.Parameter(weight._vals)",
        "A parameter shares the numbers of its data, and not its graph.",
    ),
    Equivalent(
        "src/spgrad/data/neighbors.py",
        "assembled",
        "whole = edges == drawn.edges[-1] and lines == drawn.lines[-1]",
        "whole = edges != drawn.edges[-1] and lines == drawn.lines[-1]",
        "Where the lines are as many as at last, so are the edges; the last is cut to its length.",
    ),
    Equivalent(
        "src/spgrad/kernels/reference/reductions/segment.py",
        "_fold",
        "second = (torch.ones_like(start).cumsum(0) - 1 - start) % 2 == 1 # of a pair",
        "second = (torch.ones_like(start).cumsum(0) + 1 - start) % 2 == 1 # of a pair",
        "Two numbers that differ by 2 are odd together.",
    ),
    Equivalent(
        "src/spgrad/linalg/exponential.py",
        "",
        "_REACH_64 = (2.4e-3, 0.14, 0.64, 1.4, 2.4, 3.5, 4.7, 6.0, 7.2, 8.5, 9.9)",
        "_REACH_64 = (2.4e-3, 0.14, 0.64, 1.4, 2.4, 3.5, 5.7, 6.0, 7.2, 8.5, 9.9)",
        "The terms that are left out are smaller than the rounding of the sum.",
    ),
    Equivalent(
        "src/spgrad/ops/creation/random.py",
        "_distinct_numbers",
        "if size <= 4 * count + 16:",
        "if size <= 4 * count + 15:",
        _WAY,
    ),
    Equivalent(
        "src/spgrad/ops/products/attention.py",
        "_pattern_and_bias",
        "if _is_true(A._vals):",
        "if False:",
        "Elements that all take part have a score of 0 added, or nothing.",
    ),
    Equivalent(
        "src/spgrad/ops/shapes/shape.py",
        "_regrouped",
        "if j < len(new) and (have >= want or i == len(old)):",
        "if j < len(new) and (have < want or i == len(old)):",
        "One run of all sizes has the same positions, which int64 counts.",
    ),
    Equivalent(
        "src/spgrad/lowering/align.py",
        "_joined_pattern",
        "index = torch.promote_types(a.indices[0].dtype, b.indices[0].dtype)",
        "index = torch.promote_types(b.indices[0].dtype, a.indices[0].dtype)",
        "The common dtype does not depend on the order.",
    ),
    Equivalent(
        "src/spgrad/nn/sparsity/growing.py",
        "",
        "_TILE = 16 << 20",
        "_TILE = 16 << 21",
        "How many elements are compared at a time changes the time alone.",
    ),
)

_KEYS = frozenset(entry[:4] for entry in EQUIVALENT)
