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

template <int kBytes, class index_t, class scalar_t>
SPGRAD_INLINE void spmv(const Spmm<index_t, scalar_t> a, int64_t first, int64_t last) {
  constexpr int kLanes = Slots<kBytes, 1, scalar_t>::kLanes, kMost = std::min(kLanes, 8);
  while (first + kLanes <= last) {
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
