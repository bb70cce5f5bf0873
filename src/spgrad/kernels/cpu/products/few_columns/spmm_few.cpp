// Sparse times dense of few columns. Contracts are in spmm.h, spmm_narrow.h and spmv.h; a file of
// its own, because it takes long to compile.
#include <algorithm>
#include <cstdint>

#include "common/targets.h"
#include "products/few_columns/spmm_by_length.h"
#include "products/few_columns/spmm_narrow.h"
#include "products/few_columns/spmm_staged.h"
#include "products/few_columns/spmv.h"
#include "products/spmm.h"
#include "reading/machine.h"

namespace spgrad {
namespace {

// At how many of 32 rows holds(ptr) is true, where ptr begins at the row. `group` rows have to
// follow there. Looks at some of them.
template <class index_t, class F>
int64_t rows_of_32(const index_t* ptr, int64_t first, int64_t last, int64_t group, int64_t looks,
                   const F& holds) {
  if (last - first < group) return 0;
  looks = std::min(looks, (last - first + 8 - group) / 8);
  int64_t count = 0;
  for (int64_t look = 0; look < looks; ++look) {
    count += holds(ptr + first + (last - first - group + 1) * look / looks);
  }
  return 32 * count / looks;
}

// How many of 32 rows are as long as the row before.
template <class index_t>
int64_t alike_of_32(const index_t* ptr, int64_t first, int64_t last, int64_t looks) {
  return rows_of_32(ptr, first, last, 2, looks,
                    [](const index_t* at) { return at[2] - at[1] == at[1] - at[0]; });
}

// Of how many of 32 groups of four rows the longest has at most half of the entries.
template <class index_t>
int64_t even_of_32(const index_t* ptr, int64_t first, int64_t last, int64_t looks) {
  return rows_of_32(ptr, first, last, 4, looks,
                    [](const index_t* at) { return 2 * lengths_of<4>(at).most <= at[4] - at[0]; });
}

// At how many of 32 beginnings of rows, or of 32 places anywhere, the next `lanes` columns are
// consecutive: the larger of the two numbers. Looks at some of them.
template <class index_t, class scalar_t>
int64_t runs_of_32(const Spmm<index_t, scalar_t>& a, int64_t first, int64_t last, int64_t looks,
                   int64_t lanes) {
  const int64_t begin = a.ptr[first], count = a.ptr[last] - begin;
  const int64_t end = std::min<int64_t>(a.ptr[last], a.nse - lanes + 1);
  const auto is_run = [&](int64_t p) {
    return p < end && a.idx[p + lanes - 1] - a.idx[p] == lanes - 1;
  };
  int64_t of_rows = 0, anywhere = 0;
  for (int64_t look = 0; look < looks; ++look) {
    of_rows += is_run(a.ptr[first + (last - first) * look / looks]);
    anywhere += is_run(begin + count * look / looks);
  }
  return 32 * std::max(of_rows, anywhere) / looks;
}

// Rows [first, last) of which most are of one length, or begin with consecutive columns.
template <int kBytes, int kColumns, class index_t, class scalar_t>
SPGRAD_INLINE void spmm_regular(const Spmm<index_t, scalar_t>& a, int64_t first, int64_t last) {
  if constexpr (kColumns > 1) {
    spmm_by_registers<kBytes, kColumns, true>(a, first, last);
  } else {
    for (; first + 4 <= last; first += 4) spmv_long_rows<kBytes, true>(a, first, 4);
    if (first < last) spmv_long_rows<kBytes, true>(a, first, last - first);
  }
}

template <int kBytes, int kColumns, class index_t, class scalar_t>
SPGRAD_INLINE void spmm_columns_of(const Spmm<index_t, scalar_t>& a, int64_t first, int64_t last) {
  constexpr int kRow = kColumns * static_cast<int>(sizeof(scalar_t));
  if constexpr (are_few(kColumns, kRow, kBytes)) {
    constexpr int64_t kShort = 16;                  // entries
    constexpr int64_t kMost = 24, kNearlyAll = 27;  // of 32
    const int64_t count = int64_t{a.ptr[last]} - a.ptr[first], rows = last - first;
    const bool are_short = count <= kShort * rows;
    const int64_t looks = are_short ? 64 : 16;  // of which each may miss the caches
    const int64_t alike = alike_of_32(a.ptr, first, last, looks);
    // If the entries of a row are half a register, one column has code without a branch for each
    // row, which wins earlier against code for each length. Where the processor gathers fast, spmv
    // looks at the lengths of some rows at a time. In registers of 16 elements, staged entries take
    // less time than code for each length, unless loads wait for x, or rows have at most four
    // entries.
    const bool half = kColumns == 1 && count <= kHalfRegister<scalar_t> * rows;
    const bool in_registers =
        kColumns == 1 && (gathers_fast || (sizeof(scalar_t) == 4 && a.traffic.staged &&
                                           !a.traffic.scattered && count > 4 * rows));
    if (are_short && alike >= (half ? kNearlyAll : kMost) && !in_registers) {
      return spmm_by_length<kBytes, kColumns>(a, first, last);
    }
    constexpr int64_t kLanes = Slots<kBytes, kColumns, scalar_t>::kEntries;
    const bool long_staged = kScattersLong<kColumns, scalar_t> && a.traffic.scattered;
    const bool regular = alike >= kMost && !(long_staged && a.traffic.staged);
    if (!are_short && (regular || runs_of_32(a, first, last, looks, kLanes) >= kMost)) {
      return spmm_regular<kBytes, kColumns>(a, first, last);
    }
    if constexpr (kRow <= kStagedBytes && Slots<kBytes, kColumns, scalar_t>::kRegisters == 1) {
      // Rows of unlike lengths are staged if they are short, or if loads wait for x.
      constexpr int64_t kUneven = 80;  // bytes of values in a row
      const bool even = even_of_32(a.ptr, first, last, looks) >= kMost;
      const auto bytes = count * static_cast<int64_t>(sizeof(scalar_t));
      if (a.traffic.staged && half) {
        return even ? spmm_staged<kBytes, kColumns, kColumns == 1, true>(a, first, last)
                    : spmm_staged<kBytes, kColumns, kColumns == 1, false>(a, first, last);
      }
      if (a.traffic.staged && even) {
        return spmm_staged<kBytes, kColumns, false, true>(a, first, last);
      }
      if (a.traffic.staged && (long_staged || bytes <= kUneven * rows)) {
        return spmm_staged<kBytes, kColumns, false, false>(a, first, last);
      }
    }
    if constexpr (kColumns == 1) {
      spmv<kBytes>(a, first, last);
    } else {
      spmm_by_registers<kBytes, kColumns>(a, first, last);
    }
  }
}

}  // namespace

template <class scalar_t>
void spmm_few(const Spmm<int32_t, scalar_t>& a, int64_t first, int64_t last) {
  with_vectors([&]<int kBytes>() {
    switch (a.n) {
      case 1:
        return spmm_columns_of<kBytes, 1>(a, first, last);
      case 2:
        return spmm_columns_of<kBytes, 2>(a, first, last);
      case 4:
        return spmm_columns_of<kBytes, 4>(a, first, last);
      default:
        return spmm_columns_of<kBytes, 8>(a, first, last);
    }
  });
}

template void spmm_few(const Spmm<int32_t, float>&, int64_t, int64_t);
template void spmm_few(const Spmm<int32_t, double>&, int64_t, int64_t);

}  // namespace spgrad
