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

// Whether the processor can foresee where the short rows of a view end: `share` of 32 of them, or
// more, are as long as the row before. Looks at some of them.
template <class index_t>
bool short_and_alike(const index_t* ptr, int64_t first, int64_t last, int64_t share) {
  constexpr int64_t kShort = 16, kLooks = 64;
  if (last - first < 2 || int64_t{ptr[last]} - ptr[first] > kShort * (last - first)) return false;
  const int64_t looks = std::min(kLooks, (last - first + 6) / 8);
  int64_t alike = 0;
  for (int64_t look = 0; look < looks; ++look) {
    const index_t* const at = ptr + first + (last - first - 1) * look / looks;
    alike += at[2] - at[1] == at[1] - at[0];
  }
  return 32 * alike >= share * looks;
}

template <int kBytes, int kColumns, class index_t, class scalar_t>
SPGRAD_INLINE void spmm_columns_of(const Spmm<index_t, scalar_t>& a, int64_t first, int64_t last) {
  constexpr int kRow = kColumns * static_cast<int>(sizeof(scalar_t));
  if constexpr (are_few(kColumns, kRow, kBytes)) {
    // For one column, spmv looks at the lengths of some rows at a time if the processor gathers
    // fast.
    const bool gathered = kColumns == 1 && gathers_fast;
    // If the entries of a row are half a register, one column has code without a branch for each
    // row, which wins earlier against code for each length.
    const bool half = kColumns == 1 && int64_t{a.ptr[last]} - a.ptr[first] <=
                                           kHalfRegister<scalar_t> * (last - first);
    if (!gathered && short_and_alike(a.ptr, first, last, half ? 27 : 24)) {
      return spmm_by_length<kBytes, kColumns>(a, first, last);
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
