// Sparse times dense where a row of x is at most half of a vector register: one to eight columns of
// float32, one to four of float64. Several entries are multiplied by one instruction.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "common/lanes.h"
#include "products/spmm.h"
#include "reading/gather.h"
#include "reading/prefetch_entries.h"

namespace spgrad {

// Whether columns and values are prefetched: for a row before it is added, or with each register.
enum class Fetched : uint8_t { kNot, kByRow, kByRegister };

// exist[count] has ones in the first `count` lanes of a vector.
template <class Integer, int kMost>
struct Lengths {
  alignas(64) Integer exist[kMost + 1][kMost]{};

  constexpr Lengths() {
    for (int count = 0; count <= kMost; ++count) {
      for (int lane = 0; lane < count; ++lane) exist[count][lane] = -1;
    }
  }
};
template <class Integer, int kMost>
inline constexpr Lengths<Integer, kMost> kLengths;

// How the entries of a row are added, for rows of x of kColumns columns and registers of kBytes.
// Entry e of a row adds to slot e % kSlots; a register holds kEntries slots, and a row has
// kRegisters of them. At the end, the upper half of the slots is added to the lower half, and so
// on. The order is that of the row alone, whichever of the loops below adds it.
template <int kBytes, int kColumns, class scalar_t>
struct Slots {
  static constexpr int kLanes = kBytes / static_cast<int>(sizeof(scalar_t));
  static constexpr int kRowBytes = kColumns * static_cast<int>(sizeof(scalar_t));
  static constexpr int kEntries = kLanes / kColumns;
  static constexpr int kRegisters = kEntries < 4 ? 4 / kEntries : 1;
  static constexpr int kSlots = kEntries * kRegisters;

  using Values = Vector<scalar_t, kLanes>;
  using Row = Vector<scalar_t, kColumns>;
  using Integer = std::conditional_t<sizeof(scalar_t) == 4, int32_t, int64_t>;
  using Cell = std::conditional_t<kRowBytes == 4, uint32_t, uint64_t>;  // a row of x, if it fits

  // The row of x of entry p. Its address takes a shift in place of a multiplication by a.stride.
  template <class index_t>
  SPGRAD_INLINE static const scalar_t* row(const Spmm<index_t, scalar_t>& a, int64_t p) {
    return a.x + static_cast<int64_t>(a.idx[p]) * kColumns;
  }

  // The rows of x of the entries from p on, side by side. kRegular: the processor foresees where
  // rows of A end and which columns are consecutive, so that branches cost little.
  template <bool kRegular, class index_t>
  SPGRAD_INLINE static void load_rows(const Spmm<index_t, scalar_t>& a, int64_t p, int64_t count,
                                      Values& out) {
    if constexpr (kRowBytes <= 8) {
#if SPGRAD_WIDE
      // Four loads take no longer than the test.
      if constexpr (kRegular && sizeof(Values) >= 32 && kEntries >= 8) {
        if (are_consecutive<kEntries>(a.idx + p)) {
          std::memcpy(&out, row(a, p), sizeof(out));
          return;
        }
      }
      if constexpr (sizeof(Values) == 32) return load_first_rows(a, p, kEntries, out);
#endif
      Vector<Cell, kEntries> cells;
      gather<Cell, kEntries>(a.x, a.idx + p, count, cells);
      out = std::bit_cast<Values>(cells);
#if SPGRAD_WIDE
    } else {
      const scalar_t* parts[kEntries];
      for (int e = 0; e < kEntries; ++e) parts[e] = row(a, p + e);
      side_by_side<kRowBytes>(parts, out);
#endif
    }
  }

  // The same for the last `count` entries of a row of A. The rows of stencils and bands have odd
  // lengths, so often just one entry is left.
  template <bool kRegular, class index_t>
  SPGRAD_INLINE static void load_last_rows(const Spmm<index_t, scalar_t>& a, int64_t p,
                                           int64_t count, Values& out) {
#if SPGRAD_WIDE
    if constexpr (kRegular && sizeof(Values) == 64 && kRowBytes <= 8) {
      if (!gathers_fast && count <= kEntries / 4) {
        return load_quarter<Cell>(a.x, a.idx + p, out);
      }
    }
    if constexpr (kRegular && sizeof(Values) == 32 && kRowBytes <= 8) {
      return load_first_rows(a, p, count, out);
    }
#endif
    load_rows<kRegular>(a, p, count, out);
  }

  // The rows of x of the kSlots entries from p on, side by side; one load for each.
  template <class index_t>
  SPGRAD_INLINE static void copy_rows(const Spmm<index_t, scalar_t>& a, int64_t p, Values& out) {
    static_assert(kRegisters == 1);
    if constexpr (kRowBytes <= 8) {
      Vector<Cell, kEntries> cells;
      load_cells<Cell, kEntries>(a.x, a.idx + p, cells);
      out = std::bit_cast<Values>(cells);
    } else {
      load_rows<false>(a, p, kEntries, out);
    }
  }

  // The lanes of the first `count` entries of a register.
  SPGRAD_INLINE static auto exists(int64_t count) {
    using Mask = Vector<Integer, kLanes>;
    constexpr auto numbers = []<int... kLane>(std::integer_sequence<int, kLane...>) {
      return Mask{kLane...};
    };
    return numbers(std::make_integer_sequence<int, kLanes>()) <
           static_cast<Integer>(count * kColumns);
  }

  // Adds the products of the first `count` entries of a register. With kRegisters > 1, `count` may
  // be less than 0 or more than a register has.
  SPGRAD_INLINE static void add_products(const Values& weights, const Values& rows, int64_t count,
                                         Values& sums) {
#if SPGRAD_WIDE
    if constexpr (kBytes == 64 && kRegisters == 1) {
      const uint16_t lanes = first_of(count * kColumns);
      if constexpr (sizeof(scalar_t) == 4) {
        asm("vfmadd231ps %1, %2, %0%{%3%}" : "+v"(sums) : "v"(weights), "v"(rows), "Yk"(lanes));
      } else {
        asm("vfmadd231pd %1, %2, %0%{%3%}" : "+v"(sums) : "v"(weights), "v"(rows), "Yk"(lanes));
      }
      return;
    }
#endif
    const Values more = sums + weights * rows;
    sums = exists(count) ? more : sums;
  }

  // The weights of the kEntries entries of register r, each kColumns times; p is that of slot 0.
  template <class index_t>
  SPGRAD_INLINE static void load_weights(const Spmm<index_t, scalar_t>& a, int64_t p, int r,
                                         Values& out) {
    repeat_each<kColumns, kSlots>(a.val + p, r * kEntries, out);
  }

  // What the slots add up to, in the first kColumns lanes.
  SPGRAD_INLINE static void fold(const Values (&sums)[kRegisters], Row& out) {
    if constexpr (kRegisters == 4) {
      fold_lanes<kLanes>((sums[0] + sums[2]) + (sums[1] + sums[3]), out);
    } else if constexpr (kRegisters == 2) {
      fold_lanes<kLanes>(sums[0] + sums[1], out);
    } else {
      fold_lanes<kLanes>(sums[0], out);
    }
  }

 private:
#if SPGRAD_WIDE
  // The rows of x of the first `count` entries from p on, from 1 to all; the other lanes are 0.
  template <class index_t>
  SPGRAD_INLINE static void load_first_rows(const Spmm<index_t, scalar_t>& a, int64_t p,
                                            int64_t count, Values& out) {
    Vector<Cell, kEntries> cells;
    load_some<Cell, kEntries>(a.x, a.idx + p, count, cells);
    out = std::bit_cast<Values>(cells);
  }
#endif

  template <int kCount, class V>
  SPGRAD_INLINE static void fold_lanes(const V& sums, Row& out) {
    if constexpr (kCount == kColumns) {
      out = sums;
    } else {
      constexpr auto lower = [](int l) { return l; };
      constexpr auto upper = [](int l) { return l + kCount / 2; };
      const Vector<scalar_t, kCount / 2> half =
          shuffle<kCount / 2>(sums, sums, lower) + shuffle<kCount / 2>(sums, sums, upper);
      fold_lanes<kCount / 2>(half, out);
    }
  }
};

// One row by whole registers; the last entries under a mask, so that no branch depends on how many
// they are, unless rows are regular. Reads up to kSlots entries behind the row.
template <int kBytes, int kColumns, bool kRegular, Fetched kFetched, class index_t, class scalar_t,
          class Sums>
SPGRAD_INLINE void add_registers(const Spmm<index_t, scalar_t>& a, int64_t p, int64_t end,
                                 Sums& sums) {
  using S = Slots<kBytes, kColumns, scalar_t>;
  typename S::Values weights, rows;
  // The last entries may fill a register, so that none is added without entries.
  for (; kRegular ? p + S::kSlots <= end : p + S::kSlots < end; p += S::kSlots) {
    if constexpr (kFetched == Fetched::kByRegister) prefetch_register(a, p);
#pragma GCC unroll 4
    for (int r = 0; r < S::kRegisters; ++r) {
      S::template load_rows<kRegular>(a, p + r * S::kEntries, S::kEntries, rows);
      S::load_weights(a, p, r, weights);
      sums[r] += weights * rows;
    }
  }
  if (kRegular && p == end) return;
  if constexpr (kFetched == Fetched::kByRegister && kColumns == 1 && sizeof(scalar_t) == 4) {
    prefetch_register(a, p);
  }
#pragma GCC unroll 4
  for (int r = 0; r < S::kRegisters; ++r) {
    const int64_t count = end - p - r * S::kEntries;
    S::template load_last_rows<kRegular>(a, p + r * S::kEntries, count, rows);
    S::load_weights(a, p, r, weights);
    if constexpr (kBytes == 32 && kColumns == 1) {  // a mask takes less time than a choice
      using Cells = Vector<typename S::Integer, S::kLanes>;
      Cells exist;
      std::memcpy(&exist, kLengths<typename S::Integer, S::kLanes>.exist[count], sizeof(exist));
      rows = std::bit_cast<typename S::Values>(std::bit_cast<Cells>(rows) & exist);
      weights = std::bit_cast<typename S::Values>(std::bit_cast<Cells>(weights) & exist);
      sums[r] += weights * rows;  // 0 changes no sum but -0, which only an underflow leaves
    } else {
      S::add_products(weights, rows, count, sums[r]);
    }
  }
}

// Whether load_rows has code for registers of kBytes: two rows of 16 bytes do not make up for a
// mask.
template <int kBytes, int kColumns, class scalar_t>
inline constexpr bool kHasRegisters = kBytes == 64 || kColumns * sizeof(scalar_t) <= 8;

// One row entry by entry: what the last rows of the view need, behind which there is nothing to
// read.
template <int kBytes, int kColumns, class index_t, class scalar_t, class Row>
SPGRAD_INLINE void add_entries(const Spmm<index_t, scalar_t>& a, int64_t p, int64_t end, Row& out) {
  using S = Slots<kBytes, kColumns, scalar_t>;
  constexpr int kSlots = S::kSlots;
  Row slots[kSlots]{};
  const auto add = [&](int64_t q, int slot) {
    Row row{};
    std::memcpy(&row, S::row(a, q), kColumns * sizeof(scalar_t));
    slots[slot] += a.val[q] * row;
  };
  for (; p + kSlots <= end; p += kSlots) {
#pragma GCC unroll 16
    for (int slot = 0; slot < kSlots; ++slot) add(p + slot, slot);
  }
#pragma GCC unroll 16
  for (int slot = 0; slot < kSlots - 1; ++slot) {
    if (p + slot >= end) break;
    add(p + slot, slot);
  }
#pragma GCC unroll 4
  for (int half = kSlots / 2; half > 0; half /= 2) {
#pragma GCC unroll 8
    for (int slot = 0; slot < half; ++slot) slots[slot] += slots[slot + half];
  }
  out = slots[0];
}

// Where the rows from `first` on end that registers may add: `slots` entries can be read behind
// each. To ask for each row would take up to a tenth of the time.
template <class index_t, class scalar_t>
SPGRAD_INLINE int64_t end_of_readable(const Spmm<index_t, scalar_t>& a, int64_t first, int64_t last,
                                      int64_t slots) {
  while (first < last && a.ptr[last] + slots > a.nse) --last;
  return last;
}

// Rows [first, last). kFetched: columns and values are prefetched; kAhead: rows of x are.
template <int kBytes, int kColumns, bool kRegular = false, Fetched kFetched = Fetched::kNot,
          bool kAhead = false, class index_t, class scalar_t>
SPGRAD_INLINE void spmm_by_registers(const Spmm<index_t, scalar_t> a, int64_t first, int64_t last) {
  using S = Slots<kBytes, kColumns, scalar_t>;
  const Distance ahead = kAhead ? distance_of<scalar_t>(a.traffic.ahead, kColumns) : Distance{};
  typename S::Row row;
  if constexpr (kHasRegisters<kBytes, kColumns, scalar_t>) {
    for (const int64_t stop = end_of_readable(a, first, last, S::kSlots); first < stop; ++first) {
      const int64_t p = a.ptr[first], end = a.ptr[first + 1];
      if constexpr (kFetched == Fetched::kByRow) prefetch_entries(a, p, end);
      if constexpr (kAhead) {
        for (int64_t q = p; q < end; ++q) prefetch_row(a, q, ahead, 0, kColumns);
      }
      typename S::Values sums[S::kRegisters]{};
      add_registers<kBytes, kColumns, kRegular, kFetched>(a, p, end, sums);
      S::fold(sums, row);
      std::memcpy(a.y + first * kColumns, &row, S::kRowBytes);
    }
  }
  // The last rows, or all of them where there is no code for registers.
  for (; first < last; ++first) {
    const int64_t p = a.ptr[first], end = a.ptr[first + 1];
    if constexpr (kFetched == Fetched::kByRow) prefetch_entries(a, p, end);
    if constexpr (kAhead) {
      for (int64_t q = p; q < end; ++q) prefetch_row(a, q, ahead, 0, kColumns);
    }
    add_entries<kBytes, kColumns>(a, p, end, row);
    std::memcpy(a.y + first * kColumns, &row, S::kRowBytes);
  }
}

}  // namespace spgrad
