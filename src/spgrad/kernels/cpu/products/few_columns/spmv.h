// Sparse times one dense column, of float32 or float64: y (m) = A x.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "common/lanes.h"
#include "products/few_columns/row_of_length.h"
#include "products/few_columns/spmm_narrow.h"
#include "reading/gather.h"
#include "reading/prefetch_entries.h"

namespace spgrad {

// The order of a row's sum: entry e adds to lane e % kLanes of a register, and the lanes are joined
// by sum_lanes, neighbours first. All ways below keep to it, so which of them takes a row does not
// show in the result.

// Sums of up to four rows; a row's entries lie side by side in the lanes of its register. kFetched:
// columns and values are prefetched. kReadable: as end_of_readable says, without a test.
template <int kBytes, bool kReadable, bool kRegular = false, Fetched kFetched = Fetched::kNot,
          class index_t, class scalar_t>
SPGRAD_INLINE void spmv_long_rows(const Spmm<index_t, scalar_t>& a, int64_t first, int64_t count) {
  using S = Slots<kBytes, 1, scalar_t>;
  static_assert(S::kRegisters == 1);
  typename S::Values sums[4]{};
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) {
    if (r >= count) break;
    const int64_t p = a.ptr[first + r], end = a.ptr[first + r + 1];
    if constexpr (kFetched == Fetched::kByRow) prefetch_entries(a, p, end);
    if (kReadable || end + S::kSlots <= a.nse) [[likely]] {
      typename S::Values row[1]{};
      add_registers<kBytes, 1, kRegular, kFetched>(a, p, end, row);
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

// Products of so many entries are formed before they are added.
inline constexpr int64_t kBuffered = 1024;

// Sums of the rows [first, last), a multiple of four, none of more than kMost entries; together
// they have at most kBuffered. The products of all their entries are formed first, side by side;
// until a row is loaded, the processor has written them to the cache. Then each row is loaded as
// one vector, without the products of the rows behind it.
template <int kBytes, class index_t, class scalar_t>
SPGRAD_INLINE void spmv_short_rows(const Spmm<index_t, scalar_t>& a, int64_t first, int64_t last) {
  using S = Slots<kBytes, 1, scalar_t>;
  constexpr int kLanes = S::kLanes, kMost = std::min(kLanes, 8);
  using Row = Vector<scalar_t, kMost>;
  using Cells = Vector<typename S::Integer, kMost>;
  alignas(kBytes) scalar_t products[kBuffered + 2 * kLanes];
  const int64_t begin = a.ptr[first], count = a.ptr[last] - begin;
  for (int64_t p = 0; p < count; p += kLanes) {
    typename S::Values weights, rows;
    S::template load_rows<false>(a, begin + p, kLanes, rows);
    S::load_weights(a, begin + p, 0, weights);
    rows *= weights;
    std::memcpy(products + p, &rows, sizeof(rows));
  }
  for (; first < last; first += 4) {
    const index_t* const ptr = a.ptr + first;
    Row rows[4];
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
      Cells cells, exist;
      std::memcpy(&cells, products + (ptr[r] - begin), sizeof(cells));
      std::memcpy(&exist, kLengths<typename S::Integer, kMost>.exist[ptr[r + 1] - ptr[r]],
                  sizeof(exist));
      cells &= exist;
      rows[r] = std::bit_cast<Row>(cells);
    }
    Vector<scalar_t, 4> joined;
    sum_lanes<scalar_t, kMost>(rows, joined);
    joined += 0;  // -0 becomes 0, as in the other way
    std::memcpy(a.y + first, &joined, sizeof(joined));
  }
}

// The lengths of the shortest and of the longest of kRows rows.
template <class index_t>
struct Extremes {
  index_t least, most;
};
template <int kRows, class index_t>
SPGRAD_INLINE Extremes<index_t> lengths_of(const index_t* ptr) {
  Extremes<index_t> found{.least = ptr[1] - ptr[0], .most = ptr[1] - ptr[0]};
  for (int r = 0; r < kRows; ++r) {
    found.least = std::min<index_t>(found.least, ptr[r + 1] - ptr[r]);
    found.most = std::max<index_t>(found.most, ptr[r + 1] - ptr[r]);
  }
  return found;
}

// Where the rows from `first` on end that spmv_short_rows takes together: whole groups of kRows
// rows, until a group has a longer row, or the entries are more than kBuffered. Of the first group
// the caller knows that it has no longer row.
template <int kBytes, int kRows, class index_t, class scalar_t>
SPGRAD_INLINE int64_t end_of_short_rows(const Spmm<index_t, scalar_t>& a, int64_t first,
                                        int64_t last) {
  constexpr int kLanes = Slots<kBytes, 1, scalar_t>::kLanes, kMost = std::min(kLanes, 8);
  const int64_t stop = std::min<int64_t>(a.ptr[first] + kBuffered, a.nse - kLanes);
  int64_t end = first + kRows;
  while (end + kRows <= last && a.ptr[end + kRows] <= stop &&
         lengths_of<kRows>(a.ptr + end).most <= kMost) {
    end += kRows;
  }
  return end;
}

// Rows [first, last), some of them together: by code for their length if they have the same, as in
// a grid, else by products side by side if all are short, else row by row.
template <int kBytes, class index_t, class scalar_t>
SPGRAD_INLINE void spmv(const Spmm<index_t, scalar_t> a, int64_t first, int64_t last) {
  constexpr int kLanes = Slots<kBytes, 1, scalar_t>::kLanes, kMost = std::min(kLanes, 8);
  constexpr int kRows = 4 * kLanes;
  static_assert(kRows * kMost <= kBuffered);
  while (first + kRows <= last) {
    const index_t* const ptr = a.ptr + first;
    const int64_t count = ptr[kRows] - ptr[0];
    const bool readable = int64_t{ptr[kRows]} + kLanes <= a.nse;
    int64_t end = first + kRows;
    if (readable && count > kRows * kMost && count != kRows * int64_t{ptr[1] - ptr[0]}) {
      // Neither of one length nor all short: the test of each row would take longer.
      for (; first < end; first += 4) spmv_long_rows<kBytes, true>(a, first, 4);
      continue;
    }
    const auto [least, most] = lengths_of<kRows>(ptr);
    if (least == most && most <= kByLength) {
      for (int r = 0; r < kRows; r += 4) {
        rows_of_length<kBytes, 1, 4>(most, a.val + ptr[r], a.idx + ptr[r], a.x, a.y + first + r);
      }
    } else if (most <= kMost && readable) {
      end = end_of_short_rows<kBytes, kRows>(a, first, last);
      spmv_short_rows<kBytes>(a, first, end);
    } else {
      for (int r = 0; r < kRows; r += 4) spmv_long_rows<kBytes, false>(a, first + r, 4);
    }
    first = end;
  }
  for (; first < last; first += 4) {
    spmv_long_rows<kBytes, false>(a, first, std::min<int64_t>(4, last - first));
  }
}

}  // namespace spgrad
