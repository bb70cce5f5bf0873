// Tells whether the operands of a kernel are in order already, by counting descents.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "common/memory.h"
#include "common/targets.h"
#include "common/threads.h"

namespace spgrad {

// The number of positions p in [first, last) with descends(p), where the element at p may not
// follow the element at p - 1. first >= 1. The loop has no branch on the outcomes.
template <class Descends>
SPGRAD_INLINE int64_t count_descents(int64_t first, int64_t last, const Descends& descends) {
  int64_t count = 0;
  for (int64_t p = first; p < last; ++p) count += descends(p);
  return count;
}

// True if no position in the chunks descends. If positions do, O(1) time in most cases: a thread
// leaves a chunk after the first block with a descent.
template <class Descends>
bool ascends(const Chunks& chunks, const Descends& descends) {
  constexpr int64_t kBlock = 1024;
  std::atomic<bool> ascending = true;
  chunks.for_each([&](int64_t, int64_t begin, int64_t end) {
    int64_t found = 0;
    with_vectors([&]<int>() {
      for (int64_t p = std::max<int64_t>(begin, 1); p < end && found == 0; p += kBlock) {
        found = count_descents(p, std::min(p + kBlock, end), descends);
      }
    });
    if (found > 0) ascending.store(false, std::memory_order_relaxed);
  });
  return ascending;
}

// True if the indices of every line ascend, strictly if kDistinct. They may then descend only from
// one line to the next. ptr (m + 1,), idx (ptr[m],). O(m + nse) time.
template <bool kDistinct, class index_t>
bool lines_ascend(const index_t* ptr, const index_t* idx, int64_t m) {
  const auto descends = [idx](int64_t p) {
    return kDistinct ? idx[p] <= idx[p - 1] : idx[p] < idx[p - 1];
  };
  std::atomic<int64_t> within = 0;  // descents that no line begins at
  parallel_entries(ptr[m], 1, [&](int64_t first, int64_t last) {
    with_vectors([&]<int>() {
      within.fetch_add(count_descents(std::max<int64_t>(first, 1), last, descends),
                       std::memory_order_relaxed);
    });
  });
  if (within == 0) return true;
  int64_t begin = 0, end = m;  // the lines that begin at an entry which is not the first one
  while (begin < end && ptr[begin] == 0) ++begin;
  while (begin < end && ptr[end - 1] == ptr[m]) --end;
  parallel_entries(end - begin, 1, [&](int64_t first, int64_t last) {
    int64_t count = 0;
    for (int64_t i = begin + first; i < begin + last; ++i) {  // no branch depends on a length
      count += (ptr[i] < ptr[i + 1]) & descends(ptr[i]);
    }
    within.fetch_sub(count, std::memory_order_relaxed);
  });
  return within == 0;
}

}  // namespace spgrad
