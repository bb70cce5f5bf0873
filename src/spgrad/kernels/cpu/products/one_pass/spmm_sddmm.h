// SpMM and SDDMM over one row view in one pass. Both gather the same rows of x, and these gathers
// take most of their time. Together they are the two gradients of a product, on the view that the
// product did not use.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/memory.h"
#include "common/threads.h"
#include "products/sddmm.h"
#include "products/spmm.h"
#include "reading/order.h"

namespace spgrad {

// Arguments, results and guarantees are those of Spmm and of Sddmm with the same ptr, idx, perm, x
// and n. n is a positive multiple of the number of elements of a vector register. O(nse n) time, no
// memory; x is gathered once.
template <class index_t, class scalar_t>
struct SpmmSddmm {
  Spmm<index_t, scalar_t> sums;
  Sddmm<index_t, scalar_t> dots;
};

// Prefetches the values and results of the group that is kAhead entries after p. If they are
// permuted, each of them is in another cache line.
template <class index_t, class scalar_t>
SPGRAD_INLINE void prefetch_values(const SpmmSddmm<index_t, scalar_t>& a, int64_t p) {
  constexpr int64_t kAhead = 32;
  if (a.sums.perm == nullptr || p + kAhead + kTogether > a.sums.nse) return;
  for (int64_t q = p + kAhead; q < p + kAhead + kTogether; ++q) {
    const auto at = static_cast<int64_t>(a.sums.perm[q]);
    __builtin_prefetch(a.sums.val + at);
    __builtin_prefetch(a.dots.out + at, 1);
  }
}

// The vectors of a row of g that are held in registers, while each row of x is read as a whole.
// Where x is far away, rows of many cache lines are read part by part, and g from memory with them.
template <bool kPrefetched, int kVectors>
inline constexpr int kHeld = kPrefetched && kVectors >= 4 ? 0 : kVectors;

// The kTogether entries of one row from p on; if not kWhole, those of them before `end`. Adds their
// products to kVectors vectors of y from `column` on, and adds the contribution of these columns to
// the dot products of the entries; the first columns overwrite the dot products instead. For an
// entry that does not exist, x is a row of zeros. A weight of zero would not suffice, because zero
// times infinity is not zero. g is the row of g from `column` on, `own` the same in registers.
template <bool kWhole, bool kPrefetched, int kElements, int kVectors, class index_t, class scalar_t>
SPGRAD_INLINE void spmm_sddmm_group(
    const SpmmSddmm<index_t, scalar_t>& a, int64_t p, int64_t end, Distance ahead,
    const scalar_t* g, const Held<kElements, kHeld<kPrefetched, kVectors>, scalar_t>& own,
    int64_t column, Lanes<scalar_t, kElements> (&totals)[kVectors]) {
  constexpr int64_t kWidth = kVectors * kElements;
  static constexpr scalar_t kZeros[kWidth]{};
  const scalar_t* rows[kTogether];
  accumulate_t<scalar_t> weights[kTogether];
#pragma GCC unroll 4
  for (int e = 0; e < kTogether; ++e) {
    const bool exists = kWhole || p + e < end;
    if (kPrefetched && exists) prefetch_row(a.sums, p + e, ahead, column, kWidth);
    rows[e] = exists ? a.sums.row(p + e) + column : kZeros;
    weights[e] = exists ? a.sums.template weight<16>(p + e) : 0;
  }
  Dots<scalar_t, kElements> dots;
  if constexpr (kHeld<kPrefetched, kVectors> == 0) {
#pragma GCC unroll 8
    for (int part = 0; part < kVectors; ++part) {
      Lanes<scalar_t, kElements> left, right;
      load<kElements>(g + part * kElements, left);
#pragma GCC unroll 4
      for (int e = 0; e < kTogether; ++e) {
        load<kElements>(rows[e] + part * kElements, right);
        dots.add(e, left, right);
        totals[part] += weights[e] * right;
      }
    }
  } else {
#pragma GCC unroll 4
    for (int e = 0; e < kTogether; ++e) {
#pragma GCC unroll 8
      for (int part = 0; part < kVectors; ++part) {
        Lanes<scalar_t, kElements> right;
        load<kElements>(rows[e] + part * kElements, right);
        dots.add(e, own.parts[part], right);
        totals[part] += weights[e] * right;
      }
    }
  }
  scalar_t found[kTogether];
  dots.finish(found);
#pragma GCC unroll 4
  for (int e = 0; e < kTogether; ++e) {
    if (!kWhole && p + e >= end) break;
    scalar_t& out = a.dots.at(p + e);
    out = column == 0 ? found[e] : out + found[e];
  }
}

// Columns [column, column + kVectors * kElements) of rows [first, last).
template <bool kPrefetched, int kElements, int kVectors, class index_t, class scalar_t>
SPGRAD_INLINE void spmm_sddmm_columns(const SpmmSddmm<index_t, scalar_t> a, int64_t first,
                                      int64_t last, int64_t column) {
  using Values = Lanes<scalar_t, kElements>;
  const Distance ahead = distance_of<scalar_t>(a.sums.traffic.ahead, kVectors * kElements);
  for (int64_t i = first; i < last; ++i) {
    const scalar_t* const g = a.dots.g + i * a.dots.step + column;
    const Held<kElements, kHeld<kPrefetched, kVectors>, scalar_t> own(g);
    const int64_t end = a.sums.ptr[i + 1];
    Values totals[kVectors]{};
    int64_t p = a.sums.ptr[i];
    for (; p + kTogether <= end; p += kTogether) {
      prefetch_values(a, p);
      spmm_sddmm_group<true, kPrefetched, kElements>(a, p, end, ahead, g, own, column, totals);
    }
    if (p < end) {
      prefetch_values(a, p);
      spmm_sddmm_group<false, kPrefetched, kElements>(a, p, end, ahead, g, own, column, totals);
    }
    scalar_t* y = a.sums.y + i * a.sums.n + column;
#pragma GCC unroll 8
    for (int part = 0; part < kVectors; ++part) {
      scalar_t* const out = y + part * kElements;
      a.sums.traffic.streamed ? stream<kElements>(totals[part], out)
                              : store<kElements>(totals[part], out);
    }
  }
}

template <int kElements, int kVectors, class index_t, class scalar_t>
SPGRAD_INLINE void spmm_sddmm_columns(const SpmmSddmm<index_t, scalar_t>& a, int64_t first,
                                      int64_t last, int64_t column) {
  !a.sums.traffic.ahead ? spmm_sddmm_columns<false, kElements, kVectors>(a, first, last, column)
                        : spmm_sddmm_columns<true, kElements, kVectors>(a, first, last, column);
}

// Rows [first, last) of the view, in blocks of columns whose sums fit in registers together with
// the dot products and a vector of x: all blocks of some rows, then of the next rows; or of all
// rows.
template <int kBytes, class index_t, class scalar_t>
SPGRAD_INLINE void spmm_sddmm_rows(const SpmmSddmm<index_t, scalar_t>& a, int64_t first,
                                   int64_t last) {
  constexpr int kElements = kFull<scalar_t, kBytes>;
  const bool whole = a.sums.n <= (kBytes == 64 ? 8 : 4) * kElements || a.sums.traffic.by_blocks;
  for (int64_t end; first < last; first = end) {
    end = whole ? last : end_of_batch(a.sums.ptr, first, last, kEntriesAtOnce);
    for (int64_t column = 0; column < a.sums.n;) {
      const int64_t vectors = (a.sums.n - column) / kElements;
      if (kBytes == 64 && vectors >= 8) {
        spmm_sddmm_columns<kElements, 8>(a, first, end, column);
        column += 8 * kElements;
      } else if (vectors >= 4) {
        spmm_sddmm_columns<kElements, 4>(a, first, end, column);
        column += 4 * kElements;
      } else if (vectors >= 2) {
        spmm_sddmm_columns<kElements, 2>(a, first, end, column);
        column += 2 * kElements;
      } else {
        spmm_sddmm_columns<kElements, 1>(a, first, end, column);
        column += kElements;
      }
    }
  }
}

// The same for permuted values that do not fit in the cache. The values of some rows are copied
// into the order of the view, and their results copied back, in loops that only copy and prefetch.
// In the loop of products, each value would wait for another cache line and another page.
template <int kBytes, class index_t, class scalar_t>
void spmm_sddmm_batches(const SpmmSddmm<index_t, scalar_t>& a, int64_t first, int64_t last) {
  constexpr int64_t kBatch = 16384, kAhead = 32;
  List<scalar_t> weights, dots;
  SpmmSddmm<index_t, scalar_t> part = a;
  part.sums.perm = part.dots.perm = nullptr;
  for_batches(a.sums.ptr, first, last, kBatch, [&](int64_t from, int64_t to) {
    const int64_t begin = a.sums.ptr[from], count = a.sums.ptr[to] - begin;
    const index_t* const perm = a.sums.perm + begin;
    // at least one: an empty list has no memory, so `begin` cannot be subtracted from its address
    weights.resize(std::max<size_t>(weights.size(), std::max<int64_t>(count, 1)));
    dots.resize(weights.size());
    copy_in_order<kBytes>(a.sums.val, perm, count, weights.data());
    part.sums.val = weights.data() - begin;
    part.dots.out = dots.data() - begin;
    spmm_sddmm_rows<kBytes>(part, from, to);
    for (int64_t p = 0; p < count; ++p) {
      __builtin_prefetch(a.dots.out + perm[std::min(p + kAhead, count - 1)], 1);
      a.dots.out[perm[p]] = dots[p];
    }
  });
}

}  // namespace spgrad
