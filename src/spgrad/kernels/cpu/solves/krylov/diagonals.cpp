// Products with matrices whose elements lie on a few diagonals, such as stencils on regular grids:
// there are no columns to read, and neighbouring rows read neighbouring elements of x.
#include "common/dispatch.h"
#include "common/lanes.h"
#include "solves/krylov/vectors.h"

namespace spgrad {
namespace {

// Values by diagonals are (blocks, diagonals, kRows): a block is kRows rows, and the values of a
// diagonal in it lie side by side. Where the matrix has no element, the value is 0.
constexpr int kRows = 16;
static_assert(kChunk % kRows == 0);

int64_t blocks_of(int64_t rows) { return (rows + kRows - 1) / kRows; }

// Position of an offset, which ascend; `at` is a guess that is right in most rows.
int64_t position(const int64_t* offsets, int64_t count, int64_t offset, int64_t at) {
  if (at < count && offsets[at] == offset) return at;
  return std::lower_bound(offsets, offsets + count, offset) - offsets;
}

// Writes the offsets, column less row, of the diagonals that have elements, in ascending order.
// Returns their number, or -1 if there are more than `most`.
template <class index_t>
int64_t find_offsets(const index_t* ptr, const index_t* idx, int64_t rows, int64_t most,
                     int64_t* offsets) {
  int64_t count = 0;
  for (int64_t i = 0; i < rows; ++i) {
    int64_t at = 0;
    for (int64_t e = ptr[i]; e < ptr[i + 1]; ++e, ++at) {
      const int64_t offset = int64_t{idx[e]} - i;
      at = position(offsets, count, offset, at);
      if (at < count && offsets[at] == offset) continue;
      if (count == most) {
        std::fill_n(offsets, count, 0);
        return -1;
      }
      std::copy_backward(offsets + at, offsets + count, offsets + count + 1);
      offsets[at] = offset;
      ++count;
    }
  }
  return count;
}

Tensor list_diagonals(const Tensor& ptr, const Tensor& idx, int64_t most) {
  check_view(ptr, idx, std::nullopt);
  STD_TORCH_CHECK(most >= 0, "spgrad: `most` is ", most, "; 0 or more is accepted.");
  Tensor out = empty(ptr, {most + 1}, ScalarType::Long);
  int64_t* const found = mutable_data<int64_t>(out);
  std::fill_n(found, most + 1, 0);
  dispatch_index(ptr.scalar_type(), [&]<class index_t>() {
    found[0] =
        find_offsets(data<index_t>(ptr), data<index_t>(idx), ptr.size(0) - 1, most, found + 1);
  });
  return out;
}

template <class index_t, class scalar_t>
void fill_block(const index_t* ptr, const index_t* idx, const scalar_t* val, const int64_t* offsets,
                int64_t count, int64_t first, int64_t last, scalar_t* out) {
  std::fill_n(out, count * kRows, scalar_t{});
  for (int64_t i = first; i < last; ++i) {
    int64_t at = 0;
    for (int64_t e = ptr[i]; e < ptr[i + 1]; ++e, ++at) {
      const int64_t offset = int64_t{idx[e]} - i;
      at = position(offsets, count, offset, at);
      if (at < count && offsets[at] == offset) out[at * kRows + i - first] += val[e];
    }
  }
}

Tensor by_diagonals(const Tensor& ptr, const Tensor& idx, const Tensor& val,
                    const Tensor& offsets) {
  check_view(ptr, idx, std::nullopt);
  check_tensor(val, 1, val.scalar_type(), "val");
  check_size(val, 0, idx.size(0), "val");
  check_tensor(offsets, 1, ScalarType::Long, "offsets");
  const int64_t rows = ptr.size(0) - 1, count = offsets.size(0), blocks = blocks_of(rows);
  const int64_t* const offset = data<int64_t>(offsets);
  Tensor out = empty(val, {blocks, count, kRows});
  dispatch_index(ptr.scalar_type(), [&]<class index_t>() {
    dispatch_solvable(val.scalar_type(), [&]<class scalar_t>() {
      const index_t *starts = data<index_t>(ptr), *columns = data<index_t>(idx);
      const scalar_t* const from = data<scalar_t>(val);
      scalar_t* const to = mutable_data<scalar_t>(out);
      const auto run = [&](int64_t first, int64_t last) {
        for (int64_t b = first; b < last; ++b) {
          fill_block(starts, columns, from, offset, count, b * kRows,
                     std::min((b + 1) * kRows, rows), to + b * count * kRows);
        }
      };
      const int64_t grain = kSerialWork / (count * kRows + 1) + 1;
      if (blocks <= grain) return run(0, blocks);
      torch::stable::parallel_for(0, blocks, grain, run);
    });
  });
  return out;
}

template <class scalar_t>
struct Diagonals {
  const scalar_t* val;
  const int64_t* offsets;
  int64_t count, rows;
  const scalar_t* x;
  scalar_t* y;

  // Rows whose elements all lie inside: [inner, outer).
  int64_t inner() const {
    return -std::min<int64_t>(0, *std::min_element(offsets, offsets + count));
  }
  int64_t outer() const {
    return rows - std::max<int64_t>(0, *std::max_element(offsets, offsets + count));
  }
};

// y of rows that may have values outside of the matrix, which are 0.
template <class scalar_t>
void edge_rows(const Diagonals<scalar_t>& a, int64_t first, int64_t last) {
  for (int64_t i = first; i < last; ++i) {
    const scalar_t* const val = a.val + i / kRows * a.count * kRows + i % kRows;
    scalar_t sum{};
    for (int64_t d = 0; d < a.count; ++d) {
      const int64_t j = i + a.offsets[d];
      if (j >= 0 && j < a.rows) sum += val[d * kRows] * a.x[j];
    }
    a.y[i] = sum;
  }
}

// y of whole blocks of inner rows.
template <int kBytes, class scalar_t>
SPGRAD_INLINE void inner_blocks(const Diagonals<scalar_t>& a, int64_t first, int64_t last) {
  constexpr int kWidth = kFull<scalar_t, kBytes>, kRegisters = kRows / kWidth;
  const scalar_t* val = a.val + first * a.count * kRows;
  for (int64_t row = first * kRows; row < last * kRows; row += kRows) {
    Lanes<scalar_t, kWidth> sums[kRegisters] = {}, by, near;
    for (int64_t d = 0; d < a.count; ++d, val += kRows) {
      const scalar_t* const x = a.x + row + a.offsets[d];
      for (int r = 0; r < kRegisters; ++r) {
        load<kWidth>(val + r * kWidth, by);
        load<kWidth>(x + r * kWidth, near);
        sums[r] += by * near;
      }
    }
    for (int r = 0; r < kRegisters; ++r) store<kWidth>(sums[r], a.y + row + r * kWidth);
  }
}

template <class scalar_t>
void multiply_rows(const Diagonals<scalar_t>& a, int64_t first, int64_t last) {
  if (a.count == 0) return edge_rows(a, first, last);
  const int64_t from = std::clamp(blocks_of(a.inner()) * kRows, first, last);
  const int64_t to = std::clamp(a.outer() / kRows * kRows, from, last);
  const int64_t whole = from + (to - from) / kRows * kRows;  // `last` may end in a block
  edge_rows(a, first, from);
  with_vectors([&]<int kBytes>() { inner_blocks<kBytes>(a, from / kRows, whole / kRows); });
  edge_rows(a, whole, last);
}

std::tuple<Tensor, Tensor> spmv_diagonals(const Tensor& val, const Tensor& offsets,
                                          const Tensor& x) {
  const VectorShape s = shape_of(x, "x");
  check_size(x, 0, 1, "x");
  check_size(x, 2, 1, "x");
  check_tensor(offsets, 1, ScalarType::Long, "offsets");
  check_tensor(val, 3, x.scalar_type(), "val");
  check_size(val, 0, blocks_of(s.m), "val");
  check_size(val, 1, offsets.size(0), "val");
  check_size(val, 2, kRows, "val");
  Tensor y = empty(x, {1, s.m, 1}), out = empty(x, {1, 1}, ScalarType::Double);
  dispatch_real(x, [&]<class scalar_t>() {
    const Diagonals<scalar_t> a{.val = data<scalar_t>(val),
                                .offsets = data<int64_t>(offsets),
                                .count = offsets.size(0),
                                .rows = s.m,
                                .x = data<scalar_t>(x),
                                .y = mutable_data<scalar_t>(y)};
    sum_chunks(s, 1, mutable_data<double>(out),
               [&](int64_t start, int64_t count, int64_t, double* sum) {
                 multiply_rows(a, start, start + count);
                 dot_chunk(a.x + start, a.y + start, count, 1, sum);
               });
  });
  return {y, out};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) {
  m.impl("list_diagonals", SPGRAD_BOX(&list_diagonals));
  m.impl("by_diagonals", SPGRAD_BOX(&by_diagonals));
  m.impl("spmv_diagonals", SPGRAD_BOX(&spmv_diagonals));
}

}  // namespace spgrad
