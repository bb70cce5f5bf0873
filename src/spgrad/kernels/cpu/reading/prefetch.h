// Memory traffic of the products: rows of x are prefetched, large results are written past the
// caches.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "common/lanes.h"

namespace spgrad {

// Writes a whole register past the caches; `to` is aligned to it. A result that is larger than the
// caches would otherwise be read before it is written, and would drive out the rows of x.
template <int kElements, class T>
SPGRAD_INLINE void stream(const Lanes<T, kElements>& from, T* to) {
#if SPGRAD_WIDE
  if constexpr (std::is_floating_point_v<T> && sizeof(from) >= 32) {
    asm("vmovntps %1, %0" : "=m"(*reinterpret_cast<Lanes<T, kElements>*>(to)) : "v"(from));
    return;
  }
#endif
  store<kElements>(from, to);
}

// Makes the streamed results visible to other threads.
inline void finish_streams() {
#if defined(__x86_64__)
  asm volatile("sfence" ::: "memory");
#endif
}

// The number of entries whose rows of x take `bytes` bytes together, with `width` columns of T in
// a row.
template <class T>
SPGRAD_INLINE int64_t entries_ahead(int64_t bytes, int64_t width) {
  const int64_t row = width * static_cast<int64_t>(sizeof(T));
  return bytes == 0 ? 0 : std::clamp<int64_t>(bytes / row, 8, 64);
}

// Prefetches columns [column, column + width) of the row of x of the entry that is `ahead` entries
// further on than p.
template <class View>
SPGRAD_INLINE void prefetch_row(const View& a, int64_t p, int64_t ahead, int64_t column,
                                int64_t width) {
  constexpr int64_t kLine = 64 / sizeof(*a.x);
  const auto* row = a.row(std::min(p + ahead, a.nse - 1)) + column;
  for (int64_t j = 0; j < width; j += kLine) __builtin_prefetch(row + j);
}

// Prefetches columns [column, column + width) of the rows of x that the entries p + 16 to p + 19
// need. It is called once for every row of the matrix. For short rows that is enough, and for long
// rows it costs nothing.
template <class View>
SPGRAD_INLINE void prefetch_rows(const View& a, int64_t p, int64_t column, int64_t width) {
  constexpr int64_t kAhead = 16, kLine = 64 / sizeof(*a.x);
  for (int64_t q = p + kAhead, end = std::min(q + 4, a.nse); q < end; ++q) {
    const auto* row = a.row(q) + column;
    for (int64_t j = 0; j < width; j += kLine) __builtin_prefetch(row + j);
  }
}

}  // namespace spgrad
