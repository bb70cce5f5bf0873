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

// Values by diagonals, all of them stored.
template <class scalar_t>
struct Stored {
  using scalar = scalar_t;
  static constexpr int64_t kTile = 512;  // rows whose y stays in the nearest cache

  List<const scalar_t*> first;  // of row 0 of each diagonal

  // The values of diagonal d from this row on.
  const scalar_t* at(int64_t d, int64_t row) const { return first[d] + row; }
  // Whether each diagonal is known to have one value in the tile that begins at this row.
  bool uniform(int64_t) const { return false; }
};

// The same, where tiles with equal values are stored once, see `tiles_of_diagonals`.
template <class scalar_t>
struct Tiled {
  using scalar = scalar_t;
  static constexpr int64_t kTile = kTileRows;

  const scalar_t* tiles;
  const int32_t* numbers;
  int64_t count;

  // The values of diagonal d from this row on, which begins a tile.
  const scalar_t* at(int64_t d, int64_t row) const {
    const int64_t number = numbers[row / kTile * count + d];
    return tiles + (number < 0 ? ~number : number) * kTile;
  }
  bool uniform(int64_t row) const {
    const int32_t* const of_row = numbers + row / kTile * count;
    return std::all_of(of_row, of_row + count, [](int32_t number) { return number < 0; });
  }
};

template <class Values>
struct Diagonals {
  using scalar_t = typename Values::scalar;
  Values val;
  const int64_t* offsets;
  int64_t count, rows;
  const scalar_t* x;
  scalar_t* y;

  // Rows whose elements all lie inside: [inner, outer).
  int64_t inner() const {
    return count == 0 ? 0 : -std::min<int64_t>(0, *std::min_element(offsets, offsets + count));
  }
  int64_t outer() const {
    return count == 0 ? rows
                      : rows - std::max<int64_t>(0, *std::max_element(offsets, offsets + count));
  }
};

// y of rows [first, last), of which some have no element on some diagonals.
template <class Values>
SPGRAD_INLINE void edge_rows(const Diagonals<Values>& a, int64_t first, int64_t last) {
  std::fill(a.y + first, a.y + last, typename Values::scalar{});
  for (int64_t d = 0; d < a.count; ++d) {
    const int64_t offset = a.offsets[d];
    const int64_t from = std::clamp(-offset, first, last);
    const int64_t to = std::clamp(a.rows - offset, from, last);
    if (from == to) continue;
    const auto* const by = a.val.at(d, first);
    for (int64_t i = from; i < to; ++i) a.y[i] += by[i - first] * a.x[i + offset];
  }
}

// Adds kCount diagonals from d on to y, or sets y to their sum. With kUniform each has one value.
template <int kCount, bool kAdd, bool kUniform, int kBytes, class Values>
SPGRAD_INLINE void sum_diagonals(const Diagonals<Values>& a, int64_t d, int64_t first,
                                 int64_t last) {
  using scalar_t = typename Values::scalar;
  constexpr int kWidth = kFull<scalar_t, kBytes>;
  const scalar_t *by[kCount], *near[kCount];
  for (int k = 0; k < kCount; ++k) {
    by[k] = a.val.at(d + k, first);
    near[k] = a.x + a.offsets[d + k] + first;
  }
  scalar_t* const y = a.y + first;
  const int64_t rows = last - first;
  Lanes<scalar_t, kWidth> one[kCount];
  if constexpr (kUniform) {
    for (int k = 0; k < kCount; ++k) load<kWidth>(by[k], one[k]);
  }
  int64_t i = 0;
  for (; i + kWidth <= rows; i += kWidth) {
    Lanes<scalar_t, kWidth> sum{}, left, right;
    if constexpr (kAdd) load<kWidth>(y + i, sum);
    for (int k = 0; k < kCount; ++k) {
      if constexpr (kUniform) {
        left = one[k];
      } else {
        load<kWidth>(by[k] + i, left);
      }
      load<kWidth>(near[k] + i, right);
      sum += left * right;
    }
    store<kWidth>(sum, y + i);
  }
  for (; i < rows; ++i) {
    scalar_t sum = kAdd ? y[i] : scalar_t{};
    for (int k = 0; k < kCount; ++k) sum += by[k][i] * near[k][i];
    y[i] = sum;
  }
}

// As many diagonals at a time as a known number of them is left: stencils have 3, 5, 7, 9 and 27.
template <bool kAdd, bool kUniform, int kBytes, class Values>
SPGRAD_INLINE int64_t sum_some(const Diagonals<Values>& a, int64_t d, int64_t first, int64_t last) {
  const int64_t left = a.count - d;
  const auto sum = [&]<int kCount>() {
    sum_diagonals<kCount, kAdd, kUniform, kBytes>(a, d, first, last);
    return d + kCount;
  };
  if (left >= 9) return sum.template operator()<9>();
  if (left >= 7) return sum.template operator()<7>();
  if (left >= 5) return sum.template operator()<5>();
  if (left >= 3) return sum.template operator()<3>();
  return sum.template operator()<1>();
}

template <bool kUniform, int kBytes, class Values>
SPGRAD_INLINE void sum_all(const Diagonals<Values>& a, int64_t first, int64_t last) {
  int64_t d = sum_some<false, kUniform, kBytes>(a, 0, first, last);
  while (d < a.count) d = sum_some<true, kUniform, kBytes>(a, d, first, last);
}

// y of rows [first, last), and the scalar product of x and y there, which is formed while the rows
// of a tile are in the nearest cache.
template <int kBytes, class Values>
SPGRAD_INLINE double multiply_rows(const Diagonals<Values>& a, int64_t first, int64_t last) {
  LaneSums<double> dot;
  const int64_t inner = a.inner(), outer = a.outer();
  for (int64_t from = first; from < last; from += Values::kTile) {
    const int64_t to = std::min(from + Values::kTile, last);
    if (from < inner || to > outer || a.count == 0) {
      edge_rows(a, from, to);
    } else if (a.val.uniform(from)) {
      sum_all<true, kBytes>(a, from, to);
    } else {
      sum_all<false, kBytes>(a, from, to);
    }
    const auto *const x = a.x + from, *const y = a.y + from;
    dot.add(to - from, [&](int64_t row) { return wide_product(x[row], y[row]); });
  }
  return dot.total();
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

// y = A x and the scalar product of x and y. values() gives the values of A, of the dtype of x.
template <class F>
std::tuple<Tensor, Tensor> product_and_dot(const Tensor& offsets, const Tensor& x,
                                           const F& values) {
  const VectorShape s = shape_of(x, "x");
  check_size(x, 0, 1, "x");
  check_size(x, 2, 1, "x");
  Tensor y = empty(x, {1, s.m, 1}), out = empty(x, {1, 1}, ScalarType::Double);
  dispatch_real(x, "x", [&]<class scalar_t>() {
    using Values = decltype(values.template operator()<scalar_t>());
    static_assert(kChunk % Values::kTile == 0);
    const Diagonals<Values> a{.val = values.template operator()<scalar_t>(),
                              .offsets = data<int64_t>(offsets),
                              .count = offsets.size(0),
                              .rows = s.m,
                              .x = data<scalar_t>(x),
                              .y = mutable_data<scalar_t>(y)};
    sum_chunks(s, 1, mutable_data<double>(out),
               [&](int64_t start, int64_t count, int64_t, double* sum) {
                 with_vectors(
                     [&]<int kBytes>() { *sum = multiply_rows<kBytes>(a, start, start + count); });
               });
  });
  return {y, out};
}

void check_operands(const Tensor& val, const Tensor& offsets, const Tensor& x) {
  check_tensor(x, 3, x.scalar_type(), "x");
  check_tensor(offsets, 1, ScalarType::Long, "offsets");
  check_tensor(val, 2, x.scalar_type(), "val");
}

std::tuple<Tensor, Tensor> spmv_diagonals(const Tensor& val, const Tensor& offsets,
                                          const Tensor& x) {
  check_operands(val, offsets, x);
  check_diagonals(val, offsets, x.size(1));
  return product_and_dot(offsets, x, [&]<class scalar_t>() {
    return Stored<scalar_t>{diagonals_of<scalar_t>(val, data<int64_t>(offsets), offsets.size(0))};
  });
}

std::tuple<Tensor, Tensor> spmv_tiles(const Tensor& val, const Tensor& numbers,
                                      const Tensor& offsets, const Tensor& x) {
  check_operands(val, offsets, x);
  check_size(val, 1, kTileRows, "val");
  check_tensor(numbers, 2, ScalarType::Int, "numbers");
  check_size(numbers, 0, (x.size(1) + kTileRows - 1) / kTileRows, "numbers");
  check_size(numbers, 1, offsets.size(0), "numbers");
  return product_and_dot(offsets, x, [&]<class scalar_t>() {
    return Tiled<scalar_t>{data<scalar_t>(val), data<int32_t>(numbers), offsets.size(0)};
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) {
  m.impl("list_diagonals", SPGRAD_BOX(&list_diagonals));
  m.impl("by_diagonals", SPGRAD_BOX(&by_diagonals));
  m.impl("spmv_diagonals", SPGRAD_BOX(&spmv_diagonals));
  m.impl("spmv_tiles", SPGRAD_BOX(&spmv_tiles));
}

}  // namespace spgrad
