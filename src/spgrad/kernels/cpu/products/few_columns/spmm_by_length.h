// Sparse times dense of few columns where rows are short and mostly of one length, as in a grid:
// code for each length, without a loop. The processor predicts which comes next.
#pragma once

#include <cstdint>

#include "products/few_columns/row_of_length.h"
#include "products/few_columns/spmm_narrow.h"
#include "products/few_columns/spmv.h"
#include "reading/prefetch_entries.h"

namespace spgrad {

// One row of any length.
template <int kBytes, int kColumns, class index_t, class scalar_t>
SPGRAD_INLINE void spmm_row(const Spmm<index_t, scalar_t>& a, int64_t i) {
  const index_t p = a.ptr[i], length = a.ptr[i + 1] - p;
  if (length <= kByLength) {
    rows_of_length<kBytes, kColumns, 1>(length, a.val + p, a.idx + p, a.x, a.y + i * kColumns);
  } else if constexpr (kColumns == 1) {
    spmv_long_rows<kBytes, false>(a, i, 1);
  } else {
    spmm_by_registers<kBytes, kColumns>(a, i, i + 1);
  }
}

// Rows [first, last); four at a time where these are of one length.
template <int kBytes, int kColumns, class index_t, class scalar_t>
SPGRAD_INLINE void spmm_by_length(const Spmm<index_t, scalar_t> a, int64_t first, int64_t last) {
  for (; first + 4 <= last; first += 4) {
    const index_t* const ptr = a.ptr + first;
    const index_t p = ptr[0], length = ptr[1] - p;
    // Of values of four bytes the processor itself loads enough ahead.
    if (sizeof(scalar_t) == 8 && a.traffic.distant) prefetch_entries(a, p, ptr[4]);
    const bool alike =
        ptr[2] - ptr[1] == length && ptr[3] - ptr[2] == length && ptr[4] - ptr[3] == length;
    if (alike && length <= kByLength) {
      rows_of_length<kBytes, kColumns, 4>(length, a.val + p, a.idx + p, a.x,
                                          a.y + first * kColumns);
    } else {
      for (int r = 0; r < 4; ++r) spmm_row<kBytes, kColumns>(a, first + r);
    }
  }
  for (; first < last; ++first) spmm_row<kBytes, kColumns>(a, first);
}

}  // namespace spgrad
