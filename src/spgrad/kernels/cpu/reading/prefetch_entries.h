// Memory traffic of products with few columns: the columns and values of the entries are
// prefetched.
#pragma once

#include <cstdint>

#include "common/lanes.h"

namespace spgrad {

// The address of element p of an array. It may lie behind the end of the array.
template <class T>
SPGRAD_INLINE const void* address(const T* from, int64_t p) {
  const auto offset = static_cast<uintptr_t>(p * static_cast<int64_t>(sizeof(T)));
  return reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(from) + offset);
}

// Columns and values are prefetched so many entries ahead.
inline constexpr int64_t kEntriesAhead = 256;

// Prefetches the columns and values that are kEntriesAhead after the entries [begin, end). Called
// for a few entries at a time, because the processor can wait for a dozen cache lines only. By
// itself the processor loads ahead within a page, and only if few instructions load from memory: in
// loops over four rows, each with instructions of its own, an AMD EPYC (Zen 5) took twice the time.
//
// The rows of x of the entries between, a line each, fill half of a first-level cache of 32 KB. No
// branch depends on where a line of values ends: in rows of unlike lengths the processor would
// foresee it wrongly, which costs more than to prefetch a line twice.
//
// The prefetches stand in this function itself: GCC 12 takes a lambda that does nothing else for
// one without effect, and drops its calls.
template <class View>
SPGRAD_INLINE void prefetch_entries(const View& a, int64_t begin, int64_t end) {
  constexpr int64_t kColumns = 64 / sizeof(*a.idx), kValues = 64 / sizeof(*a.val);
  for (int64_t q = begin; q < end; q += kColumns) {
    __builtin_prefetch(address(a.idx, q + kEntriesAhead));
#pragma GCC unroll 2
    for (int64_t v = 0; v < kColumns; v += kValues) {
      __builtin_prefetch(address(a.val, q + v + kEntriesAhead));
    }
  }
}

// Prefetches those that are kEntriesAhead after entry p, for a register of entries that begins
// there. In a long row, prefetches for all of its entries at once would wait for one another.
template <class View>
SPGRAD_INLINE void prefetch_register(const View& a, int64_t p) {
  __builtin_prefetch(address(a.idx, p + kEntriesAhead));
  __builtin_prefetch(address(a.val, p + kEntriesAhead));
}

}  // namespace spgrad
