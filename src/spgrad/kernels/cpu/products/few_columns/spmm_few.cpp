// Sparse times dense of few columns. Contracts are in spmm.h, spmm_narrow.h and spmv.h; a file of
// its own, because it takes long to compile.
#include <algorithm>
#include <cstdint>

#include "common/targets.h"
#include "products/few_columns/spmm_narrow.h"
#include "products/few_columns/spmv.h"
#include "products/spmm.h"

namespace spgrad {
namespace {

// Whether the processor can foresee where the short rows of a view end: most are as long as the row
// before. Looks at some of them.
template <class index_t>
bool short_and_alike(const index_t* ptr, int64_t first, int64_t last) {
  constexpr int64_t kShort = 16, kLooks = 64;
  if (last - first < 2 || int64_t{ptr[last]} - ptr[first] > kShort * (last - first)) return false;
  const int64_t looks = std::min(kLooks, last - first - 1);
  int64_t alike = 0;
  for (int64_t look = 0; look < looks; ++look) {
    const index_t* const at = ptr + first + (last - first - 1) * look / looks;
    alike += at[2] - at[1] == at[1] - at[0];
  }
  return 4 * alike >= 3 * looks;
}

template <int kBytes, int kColumns, class index_t, class scalar_t>
SPGRAD_INLINE void spmm_columns_of(const Spmm<index_t, scalar_t>& a, int64_t first, int64_t last) {
  constexpr int kRow = kColumns * static_cast<int>(sizeof(scalar_t));
  if constexpr (are_few(kColumns, kRow, kBytes)) {
    if constexpr (kColumns == 1) {
      if constexpr (sizeof(scalar_t) == 8) {  // 16 lanes of float32 are faster
        if (short_and_alike(a.ptr, first, last)) return spmv<kBytes, true>(a, first, last);
      }
      spmv<kBytes, false>(a, first, last);
    } else if constexpr (kBytes < 64 && kRow > 8) {  // two rows fill a vector: not worth a mask
      spmm_by_entries<kBytes, kColumns>(a, first, last);
    } else if (short_and_alike(a.ptr, first, last)) {
      spmm_by_entries<kBytes, kColumns>(a, first, last);
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
