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

// What some of the rows [first, last) are like, as numbers of 32.
struct RowsOf32 {
  int64_t alike = 0;  // rows as long as the row before
  int64_t same = 0;   // rows that take as many registers of kEntries entries as the row before
  int64_t even = 0;   // groups of four rows of which the longest has at most half of the entries
};
template <int64_t kEntries, class index_t>
RowsOf32 rows_of_32(const index_t* ptr, int64_t first, int64_t last, int64_t looks) {
  looks = std::min(looks, (last - first + 4) / 8);
  if (looks == 0) return {};
  const auto steps = [](index_t count) { return (count + kEntries - 1) / kEntries; };
  const int64_t stride = (last - first - 3) / looks;
  RowsOf32 found;
  const index_t* at = ptr + first;
  for (int64_t look = 0; look < looks; ++look, at += stride) {
    const index_t one = at[1] - at[0], next = at[2] - at[1];
    found.alike += one == next;
    found.same += steps(one) == steps(next);
    found.even += 2 * lengths_of<4>(at).most <= at[4] - at[0];
  }
  return {.alike = 32 * found.alike / looks,
          .same = 32 * found.same / looks,
          .even = 32 * found.even / looks};
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

// Whether spmv is the fastest way for `rows` rows of one length, which have `count` entries
// together: for short rows of float32 and for rows of one entry of float64, while the shared cache
// has their columns and values. Measured with registers of 64 bytes.
template <int kBytes, class index_t, class scalar_t>
bool takes_many_rows(const Spmm<index_t, scalar_t>& a, int64_t count, int64_t rows) {
  constexpr int64_t kMost = sizeof(scalar_t) == 4 ? 16 : 1;
  return kBytes == 64 && a.n == 1 && count <= kMost * rows && a.traffic.cached;
}

// Rows [first, last) of one column of float64, whose columns and values come from memory, one row
// at a time. A loop over four rows has instructions of its own for each of them, and each element
// is one load. For so many instructions that load, an AMD EPYC (Zen 5) no longer loads ahead.
template <int kBytes, class index_t, class scalar_t>
SPGRAD_INLINE void spmv_distant(const Spmm<index_t, scalar_t>& a, int64_t first, int64_t last) {
  if (a.traffic.fetched) {
    for (; first < last; ++first) spmv_long_rows<kBytes, false, true>(a, first, 1);
  } else {
    for (; first < last; ++first) spmv_long_rows<kBytes>(a, first, 1);
  }
}

// Rows [first, last), in the loops for rows of any length. Columns and values are prefetched if the
// rows are long and that pays.
template <int kBytes, int kColumns, class index_t, class scalar_t>
SPGRAD_INLINE void spmm_any(const Spmm<index_t, scalar_t>& a, int64_t first, int64_t last,
                            bool fetched) {
  if constexpr (kColumns > 1) {
    if (fetched) return spmm_by_registers<kBytes, kColumns, false, true>(a, first, last);
    spmm_by_registers<kBytes, kColumns>(a, first, last);
  } else {
    if (!fetched) return spmv<kBytes>(a, first, last);
    for (; first < last; first += 4) {
      spmv_long_rows<kBytes, false, true>(a, first, std::min<int64_t>(4, last - first));
    }
  }
}

template <int kBytes, int kColumns, class index_t, class scalar_t>
SPGRAD_INLINE void spmm_columns_of(const Spmm<index_t, scalar_t>& a, int64_t first, int64_t last) {
  constexpr int kRow = kColumns * static_cast<int>(sizeof(scalar_t));
  if constexpr (are_few(kColumns, kRow, kBytes)) {
    constexpr int64_t kShort = 16;                               // entries of a row
    constexpr int64_t kOften = 20, kMost = 24, kNearlyAll = 27;  // of 32
    const int64_t count = int64_t{a.ptr[last]} - a.ptr[first], rows = last - first;
    const bool are_short = count <= kShort * rows;
    const int64_t looks = are_short ? 64 : 16;  // of which each may miss the caches
    constexpr int64_t kLanes = Slots<kBytes, kColumns, scalar_t>::kEntries;
    const auto [alike, same, even] = rows_of_32<kLanes>(a.ptr, first, last, looks);
    // If the entries of a row are half a register, one column has code without a branch for each
    // row, which wins earlier against code for each length. Where the processor gathers fast, spmv
    // looks at the lengths of some rows at a time. In registers of 16 elements, staged entries take
    // less time than code for each length, unless loads wait for x, or rows have at most four
    // entries.
    const bool half = kColumns == 1 && count <= kHalfRegister<scalar_t> * rows;
    const bool in_registers =
        kColumns == 1 && (gathers_fast || (sizeof(scalar_t) == 4 && a.traffic.staged &&
                                           !a.traffic.scattered && count > 4 * rows));
    if (alike >= kNearlyAll && takes_many_rows<kBytes>(a, count, rows)) {
      return spmm_any<kBytes, kColumns>(a, first, last, false);
    }
    if (are_short && alike >= (half ? kNearlyAll : kMost) && !in_registers) {
      return spmm_by_length<kBytes, kColumns>(a, first, last);
    }
    const bool long_staged = kScattersLong<kColumns, scalar_t> && a.traffic.scattered;
    if constexpr (kColumns == 1 && sizeof(scalar_t) == 8) {
      if (!are_short && a.traffic.distant && !gathers_fast) {
        return spmv_distant<kBytes>(a, first, last);
      }
    }
    const bool regular = alike >= kMost && !(long_staged && a.traffic.staged);
    if (!are_short && !a.traffic.fetched &&
        (regular || runs_of_32(a, first, last, looks, kLanes) >= kMost)) {
      return spmm_regular<kBytes, kColumns>(a, first, last);
    }
    if constexpr (kRow <= kStagedBytes && Slots<kBytes, kColumns, scalar_t>::kRegisters == 1) {
      // Four rows of similar lengths take as many registers as the longest of them. This pays where
      // the processor foresees wrongly how many a row takes, where loads wait for x, and where one
      // register is enough. Rows of unlike lengths are staged if they are short; those whose rows
      // of x have 16 bytes, which registers load as fast, only if loads wait for x.
      constexpr int64_t kUneven = 80;  // bytes of values in a row
      if (a.traffic.staged && half) {
        return even >= kMost ? spmm_staged<kBytes, kColumns, kColumns == 1, true>(a, first, last)
                             : spmm_staged<kBytes, kColumns, kColumns == 1, false>(a, first, last);
      }
      const bool foreseen = 4 * count > 3 * kLanes * rows && same >= kOften;
      if (a.traffic.staged && even >= kMost && (a.traffic.scattered || !foreseen)) {
        return spmm_staged<kBytes, kColumns, false, true>(a, first, last);
      }
      const auto bytes = count * static_cast<int64_t>(sizeof(scalar_t));
      const bool may_be_uneven = kRow < kStagedBytes || a.traffic.scattered;
      if (a.traffic.staged && may_be_uneven && (long_staged || bytes <= kUneven * rows)) {
        return spmm_staged<kBytes, kColumns, false, false>(a, first, last);
      }
    }
    spmm_any<kBytes, kColumns>(a, first, last, !are_short && a.traffic.fetched);
  }
}

// Rows [first, last) of a product with kColumns columns, in the loop that prefetches rows of x if
// these are prefetched.
template <int kBytes, int kColumns, class index_t, class scalar_t>
SPGRAD_INLINE void spmm_ahead(const Spmm<index_t, scalar_t>& a, int64_t first, int64_t last) {
  constexpr int kRow = kColumns * static_cast<int>(sizeof(scalar_t));
  if constexpr (kRow > kStagedBytes && are_few(kColumns, kRow, kBytes)) {
    if (a.traffic.ahead) {
      return spmm_by_registers<kBytes, kColumns, false, false, true>(a, first, last);
    }
  }
  spmm_columns_of<kBytes, kColumns>(a, first, last);
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
        return spmm_ahead<kBytes, 4>(a, first, last);
      default:
        return spmm_ahead<kBytes, 8>(a, first, last);
    }
  });
}

template void spmm_few(const Spmm<int32_t, float>&, int64_t, int64_t);
template void spmm_few(const Spmm<int32_t, double>&, int64_t, int64_t);

}  // namespace spgrad
