// Memory traffic of products with few columns: the columns and values of the entries are
// prefetched.
#pragma once

#include <cstdint>

#include "common/lanes.h"

namespace spgrad {

// Prefetches the columns and values that are kAhead entries after the entries [begin, end). Called
// for a few entries at a time, because the processor can wait for a dozen cache lines only. By
// itself it loads ahead within a page; where other programs use the memory too, that is not enough.
template <class View>
SPGRAD_INLINE void prefetch_entries(const View& a, int64_t begin, int64_t end) {
  constexpr int64_t kAhead = 1024;
  constexpr int64_t kColumns = 64 / sizeof(*a.idx), kValues = 64 / sizeof(*a.val);
  const auto line = [](const auto* from, int64_t q) {  // may lie behind the end of the array
    const auto offset = static_cast<uintptr_t>((q + kAhead) * static_cast<int64_t>(sizeof(*from)));
    __builtin_prefetch(reinterpret_cast<const char*>(reinterpret_cast<uintptr_t>(from) + offset));
  };
  for (int64_t q = begin; q < end; q += kColumns) {
    line(a.idx, q);
    for (int64_t v = 0; v < kColumns; v += kValues) line(a.val, q + v);
  }
}

}  // namespace spgrad
