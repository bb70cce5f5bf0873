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

// What some looks at a view say, in shares of 32: rows that are as long as the row before, and rows
// and places anywhere from which on `lanes` columns are consecutive.
struct Looks {
  int64_t alike = 0, runs_of_rows = 0, runs = 0;
};
template <class index_t>
Looks look_at(const index_t* ptr, const index_t* idx, int64_t nse, int64_t first, int64_t last,
              int64_t lanes) {
  constexpr int64_t kLooks = 64;
  Looks found;
  if (last - first < 2) return found;
  const int64_t looks = std::min(kLooks, (last - first + 6) / 8);
  const int64_t begin = ptr[first], end = std::min<int64_t>(ptr[last], nse - lanes + 1);
  const auto is_run = [&](int64_t p) {
    return p < end && idx[p + lanes - 1] - idx[p] == lanes - 1;
  };
  for (int64_t look = 0; look < looks; ++look) {
    const index_t* const at = ptr + first + (last - first - 1) * look / looks;
    found.alike += at[2] - at[1] == at[1] - at[0];
    found.runs_of_rows += is_run(at[0]);
    found.runs += is_run(begin + (ptr[last] - begin) * look / looks);
  }
  found.alike = 32 * found.alike / looks;
  found.runs_of_rows = 32 * found.runs_of_rows / looks;
  found.runs = 32 * found.runs / looks;
  return found;
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
    constexpr int64_t kShort = 16, kMost = 24, kNearlyAll = 27;
    const int64_t count = int64_t{a.ptr[last]} - a.ptr[first], rows = last - first;
    const bool are_short = count <= kShort * rows;
    const Looks found =
        look_at(a.ptr, a.idx, a.nse, first, last, Slots<kBytes, kColumns, scalar_t>::kEntries);
    // If the entries of a row are half a register, one column has code without a branch for each
    // row, which wins earlier against code for each length. Where the processor gathers fast, spmv
    // looks at the lengths of some rows at a time.
    const bool half = kColumns == 1 && count <= kHalfRegister<scalar_t> * rows;
    if (are_short && found.alike >= (half ? kNearlyAll : kMost) &&
        !(kColumns == 1 && gathers_fast)) {
      return spmm_by_length<kBytes, kColumns>(a, first, last);
    }
    if (!are_short && std::max({found.alike, found.runs, found.runs_of_rows}) >= kMost) {
      return spmm_regular<kBytes, kColumns>(a, first, last);
    }
    if constexpr (kRow <= kStagedBytes && Slots<kBytes, kColumns, scalar_t>::kRegisters == 1) {
      if (a.traffic.staged) return spmm_staged<kBytes, kColumns>(a, first, last);
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
