// Products with matrices whose elements lie on a few diagonals, such as stencils on regular grids:
// there are no columns to read, and neighbouring rows read neighbouring elements of x.
#include "solves/krylov/diagonals.h"
#include "common/dispatch.h"
#include "common/lanes.h"
#include "solves/krylov/vectors.h"

namespace spgrad {
namespace {

// Values of all diagonals, see the header; of a symmetric matrix those of the main diagonal and the
// ones above it may be given alone: element (i, i - d) is element (i - d, i).

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
void fill_rows(const index_t* ptr, const index_t* idx, const scalar_t* val, const int64_t* offsets,
               int64_t count, int64_t stride, int64_t first, int64_t last, scalar_t* out) {
  for (int64_t d = 0; d < count; ++d)
    std::fill(out + d * stride + first, out + d * stride + last, scalar_t{});
  for (int64_t i = first; i < last; ++i) {
    int64_t at = 0;
    for (int64_t e = ptr[i]; e < ptr[i + 1]; ++e, ++at) {
      const int64_t offset = int64_t{idx[e]} - i;
      at = position(offsets, count, offset, at);
      if (at < count && offsets[at] == offset) out[at * stride + i] += val[e];
    }
  }
}

Tensor by_diagonals(const Tensor& ptr, const Tensor& idx, const Tensor& val,
                    const Tensor& offsets) {
  check_view(ptr, idx, std::nullopt);
  check_tensor(val, 1, val.scalar_type(), "val");
  check_size(val, 0, idx.size(0), "val");
  check_tensor(offsets, 1, ScalarType::Long, "offsets");
  const int64_t rows = ptr.size(0) - 1, count = offsets.size(0), stride = stride_of(rows);
  const int64_t* const offset = data<int64_t>(offsets);
  Tensor out = empty(val, {count, stride});
  dispatch_index(ptr.scalar_type(), [&]<class index_t>() {
    dispatch_solvable(val.scalar_type(), [&]<class scalar_t>() {
      const index_t *starts = data<index_t>(ptr), *columns = data<index_t>(idx);
      const scalar_t* const from = data<scalar_t>(val);
      scalar_t* const to = mutable_data<scalar_t>(out);
      for (int64_t d = 0; d < count; ++d) {
        std::fill(to + d * stride + rows, to + (d + 1) * stride, scalar_t{});
      }
      const auto run = [&](int64_t first, int64_t last) {
        fill_rows(starts, columns, from, offset, count, stride, first, last, to);
      };
      const int64_t grain = kSerialWork / (count + 1) + 1;
      if (rows <= grain) return run(0, rows);
      torch::stable::parallel_for(0, rows, grain, run);
    });
  });
  return out;
}

template <class scalar_t>
struct Diagonals {
  List<const scalar_t*> val;  // of row 0 of each diagonal
  const int64_t* offsets;
  int64_t rows;
  const scalar_t* x;
  scalar_t* y;

  int64_t count() const { return static_cast<int64_t>(val.size()); }
  // Rows whose elements all lie inside: [inner, outer).
  int64_t inner() const {
    return count() == 0 ? 0 : -std::min<int64_t>(0, *std::min_element(offsets, offsets + count()));
  }
  int64_t outer() const {
    if (count() == 0) return rows;
    return rows - std::max<int64_t>(0, *std::max_element(offsets, offsets + count()));
  }
};

constexpr int64_t kTile = 512;  // rows whose y stays in the nearest cache

// y of rows [first, last), of which some have no element on some diagonals.
template <class scalar_t>
SPGRAD_INLINE void edge_rows(const Diagonals<scalar_t>& a, int64_t first, int64_t last) {
  std::fill(a.y + first, a.y + last, scalar_t{});
  for (int64_t d = 0; d < a.count(); ++d) {
    const int64_t offset = a.offsets[d];
    const int64_t from = std::clamp(-offset, first, last);
    const int64_t to = std::clamp(a.rows - offset, from, last);
    const scalar_t* const by = a.val[d];
    for (int64_t i = from; i < to; ++i) a.y[i] += by[i] * a.x[i + offset];
  }
}

// Adds kCount diagonals from d on to y, or sets y to their sum.
template <int kCount, bool kAdd, int kBytes, class scalar_t>
SPGRAD_INLINE void sum_diagonals(const Diagonals<scalar_t>& a, int64_t d, int64_t first,
                                 int64_t last) {
  constexpr int kWidth = kFull<scalar_t, kBytes>;
  const scalar_t *by[kCount], *near[kCount];
  for (int k = 0; k < kCount; ++k) {
    by[k] = a.val[d + k];
    near[k] = a.x + a.offsets[d + k];
  }
  scalar_t* const y = a.y;
  int64_t i = first;
  for (; i + kWidth <= last; i += kWidth) {
    Lanes<scalar_t, kWidth> sum{}, left, right;
    if constexpr (kAdd) load<kWidth>(y + i, sum);
    for (int k = 0; k < kCount; ++k) {
      load<kWidth>(by[k] + i, left);
      load<kWidth>(near[k] + i, right);
      sum += left * right;
    }
    store<kWidth>(sum, y + i);
  }
  for (; i < last; ++i) {
    scalar_t sum = kAdd ? y[i] : scalar_t{};
    for (int k = 0; k < kCount; ++k) sum += by[k][i] * near[k][i];
    y[i] = sum;
  }
}

// As many diagonals at a time as a known number of them is left: stencils have 3, 5, 7, 9 and 27.
template <bool kAdd, int kBytes, class scalar_t>
SPGRAD_INLINE int64_t sum_some(const Diagonals<scalar_t>& a, int64_t d, int64_t first,
                               int64_t last) {
  const int64_t left = a.count() - d;
  const auto sum = [&]<int kCount>() {
    sum_diagonals<kCount, kAdd, kBytes>(a, d, first, last);
    return d + kCount;
  };
  if (left >= 9) return sum.template operator()<9>();
  if (left >= 7) return sum.template operator()<7>();
  if (left >= 5) return sum.template operator()<5>();
  if (left >= 3) return sum.template operator()<3>();
  return sum.template operator()<1>();
}

template <int kBytes, class scalar_t>
SPGRAD_INLINE void multiply_rows(const Diagonals<scalar_t>& a, int64_t first, int64_t last) {
  const int64_t inner = a.inner(), outer = a.outer();
  for (int64_t from = first; from < last; from += kTile) {
    const int64_t to = std::min(from + kTile, last);
    if (from < inner || to > outer || a.count() == 0) {
      edge_rows(a, from, to);
      continue;
    }
    int64_t d = sum_some<false, kBytes>(a, 0, from, to);
    while (d < a.count()) d = sum_some<true, kBytes>(a, d, from, to);
  }
}

// Where the values of each diagonal begin; those below the main one may be stored above it.
template <class scalar_t>
List<const scalar_t*> diagonals_of(const Tensor& val, const int64_t* offsets, int64_t count) {
  const scalar_t* const stored = data<scalar_t>(val);
  const int64_t stride = val.size(1), folded = count - val.size(0);
  List<const scalar_t*> found(count);
  for (int64_t d = 0; d < count; ++d) {
    found[d] = d < folded ? stored + (count - 1 - d - folded) * stride + offsets[d]
                          : stored + (d - folded) * stride;
  }
  return found;
}

void check_diagonals(const Tensor& val, const Tensor& offsets, int64_t rows) {
  const int64_t count = offsets.size(0), stored = val.size(0);
  check_size(val, 1, stride_of(rows), "val");
  if (stored == count) return;
  check_size(val, 0, (count + 1) / 2, "val");
  const int64_t* const offset = data<int64_t>(offsets);
  for (int64_t d = 0; d < count - stored; ++d) {
    STD_TORCH_CHECK(offset[d] < 0 && offset[d] == -offset[count - 1 - d], "spgrad: `offsets` has ",
                    offset[d], " and ", offset[count - 1 - d],
                    "; pairs of -d and d are accepted where `val` has half of the diagonals.");
  }
}

std::tuple<Tensor, Tensor> spmv_diagonals(const Tensor& val, const Tensor& offsets,
                                          const Tensor& x) {
  const VectorShape s = shape_of(x, "x");
  check_size(x, 0, 1, "x");
  check_size(x, 2, 1, "x");
  check_tensor(offsets, 1, ScalarType::Long, "offsets");
  check_tensor(val, 2, x.scalar_type(), "val");
  check_diagonals(val, offsets, s.m);
  Tensor y = empty(x, {1, s.m, 1}), out = empty(x, {1, 1}, ScalarType::Double);
  dispatch_real(x, "x", [&]<class scalar_t>() {
    const int64_t* const at = data<int64_t>(offsets);
    const Diagonals<scalar_t> a{.val = diagonals_of<scalar_t>(val, at, offsets.size(0)),
                                .offsets = at,
                                .rows = s.m,
                                .x = data<scalar_t>(x),
                                .y = mutable_data<scalar_t>(y)};
    sum_chunks(
        s, 1, mutable_data<double>(out), [&](int64_t start, int64_t count, int64_t, double* sum) {
          with_vectors([&]<int kBytes>() { multiply_rows<kBytes>(a, start, start + count); });
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
