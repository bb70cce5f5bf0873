// Sparse times dense of one to four columns where the processor gathers slowly: rows of x are
// copied side by side into a buffer first, one load each, and then multiplied by whole registers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "common/lanes.h"
#include "products/few_columns/spmm_narrow.h"
#include "products/few_columns/spmv.h"
#include "reading/gather.h"
#include "reading/prefetch_entries.h"

namespace spgrad {

// Entries in the buffer, of at most 8 KB. If four rows have similar lengths, or rows of x are far
// away, all are copied before the first row is added, so that no branch that depends on the length
// of a row keeps the processor from loading further rows of x. Otherwise sums wait for such
// branches, and copying kStagedAhead entries ahead gives the processor something to do meanwhile.
template <int kRowBytes>
inline constexpr int64_t kStaged = kRowBytes > 8 ? kBuffered / 2 : kBuffered;
inline constexpr int64_t kStagedAhead = 64;

// Rows of this many entries keep enough loads under way by themselves if x is near, and are not
// staged.
inline constexpr int64_t kStagedRow = 48;

// Whether long rows are staged too if rows of x are far away: registers of 16 elements, which are
// loaded one by one, keep few loads under way.
template <int kColumns, class scalar_t>
inline constexpr bool kScattersLong = kColumns * sizeof(scalar_t) == 4;

// Rows of one column with at most this many entries are one vector each, half a register wide.
template <class scalar_t>
inline constexpr int kHalfRegister = 32 / sizeof(scalar_t);

// Adds the entries [p, end) of one row, whose rows of x lie side by side from `staged` on, to sums.
// No row may have more than kSteps registers of entries, unless kSteps is 0. The same steps for all
// rows: no branch depends on the length of one. Reads up to kAtOnce registers of a.val and of
// `staged` from p on, and one behind the row.
inline constexpr int kAtOnce = 4;
template <int kBytes, int kColumns, int kSteps, class index_t, class scalar_t, class Values>
SPGRAD_INLINE void add_staged(const Spmm<index_t, scalar_t>& a, const scalar_t* staged, int64_t p,
                              int64_t end, Values& sums) {
  using S = Slots<kBytes, kColumns, scalar_t>;
  static_assert(S::kRegisters == 1 && kSteps <= kAtOnce);
  const auto product = [&](int64_t q, Values& weights, Values& rows) {
    S::load_weights(a, q, 0, weights);
    std::memcpy(&rows, staged + (q - p) * kColumns, sizeof(rows));
  };
  const auto add_last = [&](int64_t q) {
    Values weights, rows;
    product(q, weights, rows);
    const Values more = sums + weights * rows;
    sums = S::exists(end - q) ? more : sums;
  };
  if constexpr (kSteps > 0) {
#pragma GCC unroll 4
    for (int step = 0; step < kSteps; ++step) add_last(p + step * S::kSlots);
  } else {
    Values weights, rows;
    int64_t q = p;
    for (; q + S::kSlots < end; q += S::kSlots) {
      product(q, weights, rows);
      sums += weights * rows;
    }
    add_last(q);
  }
}

// The same for the four rows from i on, staged from the entry `begin` on.
template <int kBytes, int kColumns, int kSteps, class index_t, class scalar_t, class Values>
SPGRAD_INLINE void add_four(const Spmm<index_t, scalar_t>& a, const scalar_t* staged, int64_t begin,
                            int64_t i, Values (&sums)[4]) {
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) {
    const int64_t p = a.ptr[i + r];
    add_staged<kBytes, kColumns, kSteps>(a, staged + (p - begin) * kColumns, p, a.ptr[i + r + 1],
                                         sums[r]);
  }
}

// Sums of four rows from i on, of one column, none of more than kMost entries. Each row is one
// vector of kMost lanes, in which the products of the rows behind it are set to 0.
template <int kMost, class index_t, class scalar_t>
SPGRAD_INLINE void staged_short_rows(const Spmm<index_t, scalar_t>& a, const scalar_t* staged,
                                     int64_t begin, int64_t i) {
  using Row = Vector<scalar_t, kMost>;
  using Integer = std::conditional_t<sizeof(scalar_t) == 4, int32_t, int64_t>;
  using Cells = Vector<Integer, kMost>;
  Row rows[4];
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) {
    const int64_t p = a.ptr[i + r];
    Row weights;
    Cells exist;
    std::memcpy(&rows[r], staged + (p - begin), sizeof(rows[r]));
    std::memcpy(&weights, a.val + p, sizeof(weights));
    std::memcpy(&exist, kLengths<Integer, kMost>.exist[a.ptr[i + r + 1] - p], sizeof(exist));
    rows[r] = std::bit_cast<Row>(std::bit_cast<Cells>(rows[r] * weights) & exist);
  }
  Vector<scalar_t, 4> joined;
  sum_lanes<scalar_t, kMost>(rows, joined);
  joined += 0;  // -0 becomes 0, as in the other way
  std::memcpy(a.y + i, &joined, sizeof(joined));
}

// Four rows from i on, staged from the entry `begin` on. If kShort, short ones have code of their
// own, and if kEven, rows of similar lengths; elsewhere the processor would foresee these choices
// wrongly.
template <int kBytes, int kColumns, bool kShort, bool kEven, class index_t, class scalar_t>
SPGRAD_INLINE void staged_rows(const Spmm<index_t, scalar_t>& a, const scalar_t* staged,
                               int64_t begin, int64_t i) {
  using S = Slots<kBytes, kColumns, scalar_t>;
  const index_t most = lengths_of<4>(a.ptr + i).most;
  if constexpr (kShort) {
    constexpr int kMost = kHalfRegister<scalar_t>;
    if (most <= kMost) {
      return staged_short_rows<kMost>(a, staged, begin, i);
    }
  }
  typename S::Values sums[4]{};
  if (!kEven || most > kAtOnce * S::kSlots) {
    add_four<kBytes, kColumns, 0>(a, staged, begin, i, sums);
  } else if (most <= S::kSlots) {
    add_four<kBytes, kColumns, 1>(a, staged, begin, i, sums);
  } else if (most <= 2 * S::kSlots) {
    add_four<kBytes, kColumns, 2>(a, staged, begin, i, sums);
  } else {
    add_four<kBytes, kColumns, kAtOnce>(a, staged, begin, i, sums);
  }
  if constexpr (kColumns == 1) {
    Vector<scalar_t, 4> joined;
    sum_lanes<scalar_t, S::kLanes>(sums, joined);
    std::memcpy(a.y + i, &joined, sizeof(joined));
  } else {
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
      typename S::Row row;
      S::fold({sums[r]}, row);
      std::memcpy(a.y + (i + r) * kColumns, &row, S::kRowBytes);
    }
  }
}

// Rows [i, i + count), at most four, by the loops for longer rows.
template <int kBytes, int kColumns, class index_t, class scalar_t>
SPGRAD_INLINE void unstaged_rows(const Spmm<index_t, scalar_t>& a, int64_t i, int64_t count) {
  if constexpr (kColumns == 1) {
    spmv_long_rows<kBytes, false>(a, i, count);
  } else {
    spmm_by_registers<kBytes, kColumns>(a, i, i + count);
  }
}

// The same numbers as spmv and spmm_by_registers give: a row is added in the same order.
template <int kBytes, int kColumns, bool kShort, bool kEven, class index_t, class scalar_t>
SPGRAD_INLINE void spmm_staged(const Spmm<index_t, scalar_t> a, int64_t first, int64_t last) {
  using S = Slots<kBytes, kColumns, scalar_t>;
  constexpr int64_t kStaged = spgrad::kStaged<S::kRowBytes>;
  constexpr int kRows = 4 * S::kLanes, kMost = std::min(S::kLanes, 8);
  alignas(kBytes) scalar_t staged[(kStaged + (kAtOnce + 1) * S::kSlots) * kColumns];
  // Whole registers are read from entries up to here.
  const int64_t readable = a.nse - kAtOnce * S::kSlots;
  const bool far = a.traffic.scattered, at_once = kEven || far;
  // Entries of four rows that are staged.
  const int64_t most = far && kScattersLong<kColumns, scalar_t> ? kStaged : 4 * kStagedRow;
  int64_t i = first;
  while (i + 4 <= last && a.ptr[i + 4] <= readable) {
    if constexpr (kColumns == 1 && kShort && kEven) {
      if (i + kRows <= last && a.ptr[i + kRows] <= readable &&
          lengths_of<kRows>(a.ptr + i).most <= kMost) {
        const int64_t end = end_of_short_rows<kBytes, kRows>(a, i, last);
        spmv_short_rows<kBytes>(a, i, end);
        i = end;
        continue;
      }
    }
    const int64_t begin = a.ptr[i],
                  stop = std::min<int64_t>({begin + kStaged, readable, a.ptr[last]});
    if (a.ptr[i + 4] > std::min(begin + most, stop)) {
      unstaged_rows<kBytes, kColumns>(a, i, 4);
      i += 4;
      continue;
    }
    for (int64_t copied = begin; i + 4 <= last && a.ptr[i + 4] <= stop; i += 4) {
      if (a.ptr[i + 4] - a.ptr[i] > most) break;
      const int64_t until = at_once ? stop : std::min<int64_t>(a.ptr[i + 4] + kStagedAhead, stop);
      for (; copied < until; copied += S::kSlots) {
        if constexpr (S::kRowBytes < kStagedBytes) {  // else only short rows are staged
          if (a.traffic.fetched) prefetch_entries(a, copied, copied + S::kSlots);
        }
        // Values are read a buffer later. If they come from memory, they have to come meanwhile.
        __builtin_prefetch(a.val + copied);
        typename S::Values rows;
        S::copy_rows(a, copied, rows);
        std::memcpy(staged + (copied - begin) * kColumns, &rows, sizeof(rows));
      }
      staged_rows<kBytes, kColumns, kShort, kEven>(a, staged, begin, i);
    }
  }
  for (; i < last; i += 4) {
    unstaged_rows<kBytes, kColumns>(a, i, std::min<int64_t>(4, last - i));
  }
}

}  // namespace spgrad
