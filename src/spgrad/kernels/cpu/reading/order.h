// Values in the order of a view, where it is not the order in which they are stored; rows of a
// dense matrix that begin with cache lines.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "common/memory.h"
#include "reading/gather.h"

namespace spgrad {

// out[p] = in[order[p]] for p < count. With vectors of 64 bytes, gather instructions load the
// elements; if these are in a near cache, this takes half the time of single loads. Otherwise each
// element is prefetched before it is loaded.
template <int kBytes, class index_t, class T>
SPGRAD_INLINE void copy_in_order(const T* in, const index_t* order, int64_t count, T* out) {
  constexpr int64_t kAhead = 32;
  int64_t p = 0;
  if constexpr (kBytes == 64 && sizeof(index_t) == 4 && (sizeof(T) == 4 || sizeof(T) == 8)) {
    using Cell = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;
    constexpr int kLanes = 64 / (sizeof(T) == 4 ? 4 : 8);
    for (; p + kLanes <= count; p += kLanes) {
      Vector<Cell, kLanes> cells;
      gather<Cell, kLanes>(in, order + p, kLanes, cells);
      std::memcpy(static_cast<void*>(out + p), &cells, sizeof(cells));
    }
  }
  for (; p < count; ++p) {
    __builtin_prefetch(in + order[std::min(p + kAhead, count - 1)]);
    out[p] = in[order[p]];
  }
}

// The values (nse,) in the order of a view: val[perm[p]] for each entry p. If a product read the
// values in the order in which they are stored, each value would wait for its own cache line and
// page.
Tensor in_view_order(const Tensor& perm, const Tensor& val);

// x (k, n), or a copy of it, for so many entries that name rows of x. The memory of NumPy begins
// anywhere in a cache line, so that a row of whole lines lies in one more, and each vector of it in
// two. A copy pays where each row is read many times.
Tensor with_rows_in_lines(const Tensor& x, int64_t entries);

}  // namespace spgrad
