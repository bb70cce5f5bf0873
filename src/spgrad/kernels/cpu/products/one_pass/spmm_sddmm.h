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

// The kTogether entries of one row from p on; if not kWhole, those of them before `end`. For an
// entry that does not exist, x is a row of zeros. A weight of zero would not suffice, because zero
// times infinity is not zero.
template <bool kWhole, bool kPrefetched, class index_t, class scalar_t>
struct Group {
  const scalar_t* rows[kTogether];  // of x, from `column` on
  accumulate_t<scalar_t> weights[kTogether];

  SPGRAD_INLINE Group(const SpmmSddmm<index_t, scalar_t>& a, int64_t p, int64_t end, Distance ahead,
                      int64_t column, int64_t width, const scalar_t* zeros) {
#pragma GCC unroll 4
    for (int e = 0; e < kTogether; ++e) {
      const bool exists = kWhole || p + e < end;
      if (kPrefetched && exists) prefetch_row(a.sums, p + e, ahead, column, width);
      rows[e] = exists ? a.sums.row(p + e) + column : zeros;
      weights[e] = exists ? a.sums.template weight<16>(p + e) : 0;
    }
  }

  // Adds the contribution of these columns to the dot products of the entries; the first columns
  // overwrite the dot products instead.
  SPGRAD_INLINE static void write(const SpmmSddmm<index_t, scalar_t>& a, int64_t p, int64_t end,
                                  int64_t column, const Lanes<scalar_t, kTogether>& sums) {
    scalar_t found[kTogether];
    store<kTogether>(sums, found);
#pragma GCC unroll 4
    for (int e = 0; e < kTogether; ++e) {
      if (!kWhole && p + e >= end) break;
      scalar_t& out = a.dots.at(p + e);
      out = column == 0 ? found[e] : out + found[e];
    }
  }
};

// Adds the products of a group to kVectors vectors of y from `column` on, and computes the dot
// products of its entries. g is the row of g from `column` on, `own` the same in registers.
template <bool kWhole, bool kPrefetched, int kElements, int kVectors, class index_t, class scalar_t>
SPGRAD_INLINE void spmm_sddmm_group(
    const SpmmSddmm<index_t, scalar_t>& a, int64_t p, int64_t end, Distance ahead,
    const scalar_t* g, const Held<kElements, kHeld<kPrefetched, kVectors>, scalar_t>& own,
    int64_t column, Lanes<scalar_t, kElements> (&totals)[kVectors]) {
  constexpr int64_t kWidth = kVectors * kElements;
  static constexpr scalar_t kZeros[kWidth]{};
  using These = Group<kWhole, kPrefetched, index_t, scalar_t>;
  const These group(a, p, end, ahead, column, kWidth, kZeros);
  Dots<scalar_t, kElements> dots;
  if constexpr (kHeld<kPrefetched, kVectors> == 0) {
#pragma GCC unroll 8
    for (int part = 0; part < kVectors; ++part) {
      Lanes<scalar_t, kElements> left, right;
      load<kElements>(g + part * kElements, left);
#pragma GCC unroll 4
      for (int e = 0; e < kTogether; ++e) {
        load<kElements>(group.rows[e] + part * kElements, right);
        dots.add(e, left, right);
        totals[part] += group.weights[e] * right;
      }
    }
  } else {
#pragma GCC unroll 4
    for (int e = 0; e < kTogether; ++e) {
#pragma GCC unroll 8
      for (int part = 0; part < kVectors; ++part) {
        Lanes<scalar_t, kElements> right;
        load<kElements>(group.rows[e] + part * kElements, right);
        dots.add(e, own.parts[part], right);
        totals[part] += group.weights[e] * right;
      }
    }
  }
  Lanes<scalar_t, kTogether> sums;
  dots.join(sums);
  These::write(a, p, end, column, sums);
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

// As spmm_sddmm_group, for any number of vectors, whose sums are in memory. The order of every sum
// is that of spmm_sddmm_columns in blocks of four, two and one vectors.
template <bool kWhole, bool kPrefetched, int kElements, class index_t, class scalar_t>
SPGRAD_INLINE void spmm_sddmm_long_group(const SpmmSddmm<index_t, scalar_t>& a, int64_t p,
                                         int64_t end, Distance ahead, const scalar_t* g,
                                         int64_t vectors, const scalar_t* zeros,
                                         Lanes<scalar_t, kElements>* totals) {
  using These = Group<kWhole, kPrefetched, index_t, scalar_t>;
  const These group(a, p, end, ahead, 0, vectors * kElements, zeros);
  Lanes<scalar_t, kTogether> sums{};
  int64_t part = 0;
  const auto add = [&]<int kVectors>() {
    Dots<scalar_t, kElements> dots;
#pragma GCC unroll 4
    for (int64_t stop = part + kVectors; part < stop; ++part) {
      Lanes<scalar_t, kElements> left, right, total = totals[part];
      load<kElements>(g + part * kElements, left);
#pragma GCC unroll 4
      for (int e = 0; e < kTogether; ++e) {
        load<kElements>(group.rows[e] + part * kElements, right);
        dots.add(e, left, right);
        total += group.weights[e] * right;
      }
      totals[part] = total;
    }
    Lanes<scalar_t, kTogether> found;
    dots.join(found);
    sums = part == kVectors ? found : sums + found;
  };
  while (part + 4 <= vectors) add.template operator()<4>();
  if (part + 2 <= vectors) add.template operator()<2>();
  if (part < vectors) add.template operator()<1>();
  These::write(a, p, end, 0, sums);
}

// Rows [first, last) of at most kMostInCache vectors of columns, for processors that have 16
// registers: the sums of a row are in the first-level cache, because few would fit in
// registers. So a row of x is read to its end, and values and dot products are read or written
// once.
inline constexpr int64_t kMostInCache = 64;
template <bool kPrefetched, int kElements, class index_t, class scalar_t>
SPGRAD_INLINE void spmm_sddmm_in_cache(const SpmmSddmm<index_t, scalar_t> a, int64_t first,
                                       int64_t last, int64_t vectors) {
  static constexpr scalar_t kZeros[kMostInCache * kElements]{};
  const Distance ahead = distance_of<scalar_t>(a.sums.traffic.ahead, vectors * kElements);
  Lanes<scalar_t, kElements> totals[kMostInCache];
  for (int64_t i = first; i < last; ++i) {
    const scalar_t* const g = a.dots.g + i * a.dots.step;
    std::fill_n(totals, vectors, Lanes<scalar_t, kElements>{});
    const int64_t end = a.sums.ptr[i + 1];
    int64_t p = a.sums.ptr[i];
    for (; p + kTogether <= end; p += kTogether) {
      prefetch_values(a, p);
      spmm_sddmm_long_group<true, kPrefetched, kElements>(a, p, end, ahead, g, vectors, kZeros,
                                                          totals);
    }
    if (p < end) {
      prefetch_values(a, p);
      spmm_sddmm_long_group<false, kPrefetched, kElements>(a, p, end, ahead, g, vectors, kZeros,
                                                           totals);
    }
    scalar_t* y = a.sums.y + i * a.sums.n;
    for (int64_t part = 0; part < vectors; ++part) {
      scalar_t* const out = y + part * kElements;
      a.sums.traffic.streamed ? stream<kElements>(totals[part], out)
                              : store<kElements>(totals[part], out);
    }
  }
}

// Rows [first, last) of the view, in blocks of columns whose sums fit in registers together with
// the dot products and a vector of x: all blocks of some rows, then of the next rows; or of all
// rows.
template <int kBytes, class index_t, class scalar_t>
SPGRAD_INLINE void spmm_sddmm_rows(const SpmmSddmm<index_t, scalar_t>& a, int64_t first,
                                   int64_t last) {
  constexpr int kElements = kFull<scalar_t, kBytes>;
  if constexpr (kBytes == 32) {
    const int64_t vectors = a.sums.n / kElements;
    const bool by_blocks = a.sums.traffic.by_blocks && !a.sums.traffic.whole_rows;
    if (vectors > 4 && vectors <= kMostInCache && !by_blocks) {
      return a.sums.traffic.ahead ? spmm_sddmm_in_cache<true, kElements>(a, first, last, vectors)
                                  : spmm_sddmm_in_cache<false, kElements>(a, first, last, vectors);
    }
  }
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
