// Sampled dense times dense for several heads: h dot products at each entry of a row view (ptr,
// idx, perm?).
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "common/lanes.h"
#include "products/heads/heads_spmm.h"
#include "products/sddmm.h"
#include "reading/prefetch.h"

namespace spgrad {

// ptr (m + 1), idx (nse), perm (nse) or null, g (m, heads * n) and x (k, heads * n) row by row, out
// (nse, heads). perm, if any, is a bijection. out is allocated and not initialised; every entry of
// the rows asked for is written. Columns of a row may be unsorted and repeat. The order of a sum
// depends on n alone, so a result does not depend on the number of threads.
// O(nse heads n) time, no memory. The view is read once.
template <class index_t, class scalar_t>
struct HeadsSddmm {
  const index_t* ptr;
  const index_t* idx;
  const index_t* perm;
  const scalar_t* g;
  const scalar_t* x;
  scalar_t* out;
  int64_t heads;
  int64_t n;
  int64_t nse;
  Ahead ahead{};             // rows of x that are prefetched
  int64_t step = heads * n;  // between rows of g

  SPGRAD_INLINE const scalar_t* row(int64_t p) const {
    return x + static_cast<int64_t>(idx[p]) * heads * n;
  }
  SPGRAD_INLINE scalar_t* at(int64_t p) const {
    return out + (perm == nullptr ? p : static_cast<int64_t>(perm[p])) * heads;
  }
};

// Dot products of n >= kElements columns, kTogether heads at a time: heads of one entry, and, if
// their number is not a multiple of kTogether, heads of the next entries of the row.
template <int kElements, class index_t, class scalar_t>
SPGRAD_INLINE void heads_dots(const HeadsSddmm<index_t, scalar_t> a, int64_t first, int64_t last) {
  const Fresh<kElements, scalar_t> fresh(a.n);
  const int64_t width = a.heads * a.n;
  const Distance ahead = distance_of<scalar_t>(a.ahead, width);
  for (int64_t i = first; i < last; ++i) {
    const scalar_t* const of_row = a.g + i * a.step;
    const int64_t end = a.ptr[i + 1];
    int64_t p = a.ptr[i], head = 0;
    while (p < end) {
      const scalar_t *g[kTogether], *x[kTogether];
      scalar_t* out[kTogether];
      int count = 0;
      for (int e = 0; e < kTogether; ++e) {
        if (p < end) {
          if (head == 0 && ahead) prefetch_row(a, p, ahead, 0, width);
          g[e] = of_row + head * a.n;
          x[e] = a.row(p) + head * a.n;
          out[e] = a.at(p) + head;
          count = e + 1;
          head = head + 1 == a.heads ? 0 : head + 1;
          p += head == 0;
        } else {
          g[e] = g[e - 1], x[e] = x[e - 1];
        }
      }
      scalar_t sums[kTogether];
      dots_of<kElements, false>(g, x, a.n, fresh, sums);
      for (int e = 0; e < count; ++e) *out[e] = sums[e];
    }
  }
}

// The same for multiples of kTogether heads.
template <int kElements, class index_t, class scalar_t>
SPGRAD_INLINE void heads_dots_of_four(const HeadsSddmm<index_t, scalar_t> a, int64_t first,
                                      int64_t last) {
  const Fresh<kElements, scalar_t> fresh(a.n);
  const int64_t width = a.heads * a.n;
  const Distance ahead = distance_of<scalar_t>(a.ahead, width);
  for (int64_t i = first; i < last; ++i) {
    const scalar_t* const of_row = a.g + i * a.step;
    for (int64_t p = a.ptr[i]; p < a.ptr[i + 1]; ++p) {
      if (ahead) prefetch_row(a, p, ahead, 0, width);
      const scalar_t* const other = a.row(p);
      scalar_t* const out = a.at(p);
      for (int64_t head = 0; head < a.heads; head += kTogether) {
        const scalar_t *g[kTogether], *x[kTogether];
        for (int e = 0; e < kTogether; ++e) {
          g[e] = of_row + (head + e) * a.n;
          x[e] = other + (head + e) * a.n;
        }
        scalar_t sums[kTogether];
        dots_of<kElements, false>(g, x, a.n, fresh, sums);
        std::memcpy(out + head, sums, sizeof(sums));
      }
    }
  }
}

// At least four columns, and fewer than a vector of twice as many elements holds.
template <int kElements, class index_t, class scalar_t>
SPGRAD_INLINE void heads_dots_narrow(const HeadsSddmm<index_t, scalar_t>& a, int64_t first,
                                     int64_t last) {
  if constexpr (kElements > 4) {
    if (a.n < kElements) return heads_dots_narrow<kElements / 2>(a, first, last);
  }
  a.heads % kTogether == 0 ? heads_dots_of_four<kElements>(a, first, last)
                           : heads_dots<kElements>(a, first, last);
}

// For types without vector code here, and for few columns.
template <class index_t, class scalar_t>
SPGRAD_CLONES void heads_dots_one_by_one(const HeadsSddmm<index_t, scalar_t>& a, int64_t first,
                                         int64_t last) {
  for (int64_t i = first; i < last; ++i) {
    const scalar_t* const g = a.g + i * a.step;
    for (int64_t p = a.ptr[i]; p < a.ptr[i + 1]; ++p) {
      const scalar_t* const x = a.row(p);
      scalar_t* const out = a.at(p);
      for (int64_t head = 0; head < a.heads; ++head) {
        accumulate_t<scalar_t> sum{};
        for (int64_t j = head * a.n; j < (head + 1) * a.n; ++j) sum += widen(g[j]) * widen(x[j]);
        out[head] = narrow<scalar_t>(sum);
      }
    }
  }
}

// Rows [first, last) of the view.
template <int kBytes, class index_t, class scalar_t>
SPGRAD_INLINE void heads_sddmm_rows(const HeadsSddmm<index_t, scalar_t>& a, int64_t first,
                                    int64_t last) {
  if constexpr (kHasLanes<index_t, scalar_t>) {
    constexpr int kElements = kFull<scalar_t, kBytes>;
    if (a.n >= std::min(kElements, 4)) return heads_dots_narrow<kElements>(a, first, last);
  }
  heads_dots_one_by_one(a, first, last);
}

}  // namespace spgrad
