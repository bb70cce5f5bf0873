// Short lists are sorted by counting, for each element, how many are less: no branch depends on
// them, so none is mispredicted, and a vector of elements counts at a time.
#pragma once

#include "common/lanes.h"

namespace spgrad {

// At most so many elements are sorted by counting.
inline constexpr int64_t kCounted = 64;

// Elements that may be read beyond the end of a list.
inline constexpr int64_t kSlack = 16;

// Writes the elements of `from` (count,), distinct signed integers, to `to` in ascending order,
// which may be `from`. Reads up to kSlack elements beyond the end. O(count^2) time.
template <int kBytes, class T>
SPGRAD_INLINE void sort_by_counting(const T* from, int64_t count, T* to) {
  constexpr int64_t kLanes = kBytes / sizeof(T);
  using Keys = Vector<T, kLanes>;
  T keys[kCounted], places[kCounted];
  for (int64_t start = 0; start < count; start += kLanes) {
    Keys own, less{};
    std::memcpy(&own, from + start, sizeof own);
    for (int64_t i = 0; i < count; ++i) less -= own > from[i];  // true is -1
    opaque(own);  // or GCC 12 copies the keys by `rep movsq`, which takes longer than all the rest
    std::memcpy(keys + start, &own, sizeof own);
    std::memcpy(places + start, &less, sizeof less);
  }
  for (int64_t i = 0; i < count; ++i) to[places[i]] = keys[i];
}

}  // namespace spgrad
