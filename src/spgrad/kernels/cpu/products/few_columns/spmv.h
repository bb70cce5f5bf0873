// Sparse times one dense column, of float32 or float64: y (m) = A x.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "common/lanes.h"
#include "products/few_columns/spmm_narrow.h"
#include "reading/gather.h"

namespace spgrad {

// The order of a row's sum: entry e adds to lane e % kLanes of a register, and the lanes are joined
// by sum_lanes, neighbours first. All ways below keep to it, so which of them takes a row does not
// show in the result.

// Sums of four rows; a row's entries lie side by side in the lanes of its register.
template <int kBytes, class index_t, class scalar_t>
SPGRAD_INLINE void spmv_long_rows(const Spmm<index_t, scalar_t>& a, int64_t first, int64_t count) {
  using S = Slots<kBytes, 1, scalar_t>;
  static_assert(S::kRegisters == 1);
  typename S::Values sums[4]{};
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) {
    if (r >= count) break;
    const int64_t p = a.ptr[first + r], end = a.ptr[first + r + 1];
    if (end + S::kSlots <= a.nse) [[likely]] {
      typename S::Values row[1]{};
      add_registers<kBytes, 1>(a, p, end, row);
      sums[r] = row[0];
    } else {
      alignas(kBytes) scalar_t slots[S::kSlots]{};
      for (int64_t q = p; q < end; ++q) {
        slots[(q - p) % S::kSlots] += a.val[q] * *a.row(q);
      }
      std::memcpy(&sums[r], slots, sizeof(slots));
    }
  }
  Vector<scalar_t, 4> joined;
  sum_lanes<scalar_t, S::kLanes>(sums, joined);
  std::memcpy(a.y + first, &joined, count * sizeof(scalar_t));
}

// Sums of as many rows as a register has lanes, none of more than kMost entries: a lane is a row.
// The products of all their entries are formed first, side by side in `products`, which has a zero
// behind them.
template <int kBytes, class index_t, class scalar_t>
SPGRAD_INLINE void spmv_short_rows(const Spmm<index_t, scalar_t>& a, int64_t first, int64_t most) {
  using S = Slots<kBytes, 1, scalar_t>;
  constexpr int kLanes = S::kLanes, kMost = std::min(kLanes, 8);
  using Places = Vector<index_t, kLanes>;
  alignas(kBytes) scalar_t products[kLanes * kMost + kLanes];
  const int64_t begin = a.ptr[first], count = a.ptr[first + kLanes] - begin;
  for (int64_t p = 0; p < count; p += kLanes) {
    typename S::Values weights, rows;
    S::load_rows(a, begin + p, kLanes, rows);
    S::load_weights(a, begin + p, 0, weights);
    rows *= weights;
    std::memcpy(products + p, &rows, sizeof(rows));
  }
  products[count] = 0;
  Places place, end;
  std::memcpy(&place, a.ptr + first, sizeof(place));
  std::memcpy(&end, a.ptr + first + 1, sizeof(end));
  const auto nothing = static_cast<index_t>(count);
  place -= static_cast<index_t>(begin);
  end -= static_cast<index_t>(begin);
  typename S::Values terms[kMost]{};
#pragma GCC unroll 8
  for (int t = 0; t < kMost; ++t) {
    if (t >= most) break;
    const Places at = place < end ? place : Places{} + nothing;
    alignas(kBytes) index_t places[kLanes];
    std::memcpy(places, &at, sizeof(at));
    using Cell = std::conditional_t<sizeof(scalar_t) == 4, uint32_t, uint64_t>;
    Vector<Cell, kLanes> cells;
    gather<Cell, kLanes>(products, places, kLanes, cells);
    terms[t] = std::bit_cast<typename S::Values>(cells);
    place += 1;
  }
#pragma GCC unroll 4
  for (int t = 0; t < kMost; t += 4) {
    terms[t] = (terms[t] + terms[t + 1]) + (terms[t + 2] + terms[t + 3]);
  }
  if constexpr (kMost == 8) terms[0] += terms[4];
  terms[0] += 0;  // -0 becomes 0, as in the other way
  std::memcpy(a.y + first, &terms[0], sizeof(terms[0]));
}

// Products kFirst to kFirst + kWidth of a row of kLength entries that begins at val and idx, added
// as the lanes of a register are, but for those that there are not.
template <int kLength, int kFirst, int kWidth, class index_t, class scalar_t>
SPGRAD_INLINE scalar_t sum_products(const scalar_t* val, const index_t* idx, const scalar_t* x) {
  if constexpr (kWidth == 1) {
    scalar_t product = val[kFirst] * x[idx[kFirst]];
    keep_rounded(product);  // the other ways round each product too
    return product;
  } else {
    constexpr int kHalf = kWidth / 2;
    const scalar_t lower = sum_products<kLength, kFirst, kHalf>(val, idx, x);
    if constexpr (kFirst + kHalf >= kLength) {
      return lower;
    } else {
      return lower + sum_products<kLength, kFirst + kHalf, kHalf>(val, idx, x);
    }
  }
}

// Sums of four rows of kLength entries each: no register is filled, and nothing is stored but y.
template <int kLength, class index_t, class scalar_t>
SPGRAD_INLINE void spmv_four_rows(const scalar_t* val, const index_t* idx, const scalar_t* x,
                                  scalar_t* y) {
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r, val += kLength, idx += kLength) {
    scalar_t sum = 0;
    if constexpr (kLength > 0) sum += sum_products<kLength, 0, 8>(val, idx, x);
    y[r] = sum;  // 0 + -0 is 0, as in the other ways
  }
}

// Rows from `first` on, four at a time, as long as each four are of one length up to `most`. The
// row that it ends before. A function of its own, as the registers do not last for more.
template <class index_t, class scalar_t>
__attribute__((noinline)) int64_t spmv_alike_rows(const Spmm<index_t, scalar_t>& a, int64_t first,
                                                  int64_t last, index_t most) {
  const scalar_t* const x = a.x;
  for (; first + 4 <= last; first += 4) {
    const index_t* const ptr = a.ptr + first;
    const index_t length = ptr[1] - ptr[0];
    const bool alike =
        ptr[2] - ptr[1] == length && ptr[3] - ptr[2] == length && ptr[4] - ptr[3] == length;
    if (!alike || length > most) break;
    const scalar_t* const val = a.val + ptr[0];
    const index_t* const idx = a.idx + ptr[0];
    scalar_t* const y = a.y + first;
    switch (length) {
      case 0:
        spmv_four_rows<0>(val, idx, x, y);
        break;
      case 1:
        spmv_four_rows<1>(val, idx, x, y);
        break;
      case 2:
        spmv_four_rows<2>(val, idx, x, y);
        break;
      case 3:
        spmv_four_rows<3>(val, idx, x, y);
        break;
      case 4:
        spmv_four_rows<4>(val, idx, x, y);
        break;
      case 5:
        spmv_four_rows<5>(val, idx, x, y);
        break;
      case 6:
        spmv_four_rows<6>(val, idx, x, y);
        break;
      case 7:
        spmv_four_rows<7>(val, idx, x, y);
        break;
      default:
        spmv_four_rows<8>(val, idx, x, y);
    }
  }
  return first;
}

// kAlike where most rows are as long as the row before.
template <int kBytes, bool kAlike, class index_t, class scalar_t>
SPGRAD_INLINE void spmv(const Spmm<index_t, scalar_t> a, int64_t first, int64_t last) {
  constexpr int kLanes = Slots<kBytes, 1, scalar_t>::kLanes, kMost = std::min(kLanes, 8);
  while (first + kLanes <= last) {
    if constexpr (kAlike) {
      first = spmv_alike_rows<index_t>(a, first, last, kMost);
      if (first + kLanes > last) break;
    }
    index_t most = 0;
    for (int l = 0; l < kLanes; ++l) {
      most = std::max<index_t>(most, a.ptr[first + l + 1] - a.ptr[first + l]);
    }
    if (most <= kMost && a.ptr[first + kLanes] + kLanes <= a.nse) {
      spmv_short_rows<kBytes>(a, first, most);
    } else {
      for (int l = 0; l < kLanes; l += 4) spmv_long_rows<kBytes>(a, first + l, 4);
    }
    first += kLanes;
  }
  for (; first < last; first += 4) {
    spmv_long_rows<kBytes>(a, first, std::min<int64_t>(4, last - first));
  }
}

}  // namespace spgrad
