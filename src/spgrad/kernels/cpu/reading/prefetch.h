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

// How far ahead rows of x are prefetched. choose_traffic decides it.
struct Ahead {
  int64_t bytes = 0;   // of rows of x, from an entry to the one whose row is prefetched; 0: none is
  int64_t most = 64;   // entries, if these bytes are more of them
  bool twice = false;  // far ahead into the second-level cache, then into the first-level one

  explicit operator bool() const { return bytes != 0; }
};

// The same in entries of one matrix.
struct Distance {
  int64_t near = 0;  // to the row that is prefetched into the first-level cache
  int64_t far = 0;   // to the row that is prefetched into the second-level cache; 0: none is

  explicit operator bool() const { return near != 0; }
};

// With `width` columns of T in a row of x. Rows that are prefetched twice may come into the
// first-level cache late, because the second-level cache has them.
template <class T>
SPGRAD_INLINE Distance distance_of(Ahead ahead, int64_t width) {
  constexpr int64_t kFar = 16;  // bytes far ahead, as a multiple of those near ahead
  if (!ahead) return {};
  const int64_t row = width * static_cast<int64_t>(sizeof(T)), rows = ahead.bytes / row;
  if (!ahead.twice) return {.near = std::clamp<int64_t>(rows, 8, ahead.most)};
  return {.near = std::clamp<int64_t>(rows, 4, 3 * ahead.most / 8),
          .far = std::clamp<int64_t>(kFar * ahead.bytes / row, 8, ahead.most)};
}

// Prefetches `width` elements from `row` on, into the first-level cache or the second-level one.
template <bool kFar, class T>
SPGRAD_INLINE void prefetch_lines(const T* row, int64_t width) {
  constexpr int64_t kLine = 64 / sizeof(T);
  for (int64_t j = 0; j < width; j += kLine) __builtin_prefetch(row + j, 0, kFar ? 2 : 3);
}

// Prefetches `width` elements from later(entries) on, for so many entries ahead.
template <class Later>
SPGRAD_INLINE void prefetch_ahead(const Later& later, Distance ahead, int64_t width) {
  prefetch_lines<false>(later(ahead.near), width);
  if (ahead.far != 0) prefetch_lines<true>(later(ahead.far), width);
}

// Prefetches columns [column, column + width) of the row of x of the entry that is `ahead` entries
// further on than p.
template <class View>
SPGRAD_INLINE void prefetch_row(const View& a, int64_t p, Distance ahead, int64_t column,
                                int64_t width) {
  const auto later = [&](int64_t entries) {
    return a.row(std::min(p + entries, a.nse - 1)) + column;
  };
  prefetch_ahead(later, ahead, width);
}

// Prefetches columns [column, column + width) of the rows of x that the entries p + 16 to p + 19
// need. It is called once for every row of the matrix. For short rows that is enough, and for long
// rows it costs nothing.
template <class View>
SPGRAD_INLINE void prefetch_rows(const View& a, int64_t p, int64_t column, int64_t width) {
  constexpr int64_t kAhead = 16;
  for (int64_t q = p + kAhead, end = std::min(q + 4, a.nse); q < end; ++q) {
    prefetch_lines<false>(a.row(q) + column, width);
  }
}

}  // namespace spgrad
