// Counts of the entries of each bucket, for sorts by counting.
#pragma once
#include <algorithm>
#include <cstdint>
#include <utility>

#include "common/memory.h"
#include "common/threads.h"

namespace spgrad {

// The places where each chunk of entries starts to write in each of n buckets, so that a scatter in
// chunk order is stable. Holds count() * n counters; the number of chunks is limited so that these
// are O(nse + n).
template <class index_t>
class Histogram {
  // Entries that are counted together; the counter of one of them, which is prefetched, is that of
  // kAhead entries further on.
  static constexpr int64_t kTogether = 4, kAhead = 32;

 public:
  Histogram(const index_t* bucket, int64_t nse, int64_t n)
      : n_(n), chunks_(nse, nse / (n + 1) + 1), starts_(array<index_t>(chunks_.count() * n)) {
    chunks_.for_each([&](int64_t number, int64_t begin, int64_t end) {
      index_t* count = chunk(number);
      std::fill_n(count, n_, index_t{0});
      int64_t p = begin;
      for (; p + kTogether <= end; p += kTogether) {
        __builtin_prefetch(count + bucket[std::min(p + kAhead, end - 1)], 1);
        for (int64_t i = 0; i < kTogether; ++i) ++count[bucket[p + i]];
      }
      for (; p < end; ++p) ++count[bucket[p]];
    });
  }

  const Chunks& chunks() const { return chunks_; }
  index_t* chunk(int64_t number) { return starts_.get() + number * n_; }

  // Turns counts into starts, and writes the bucket pointers ptr (n + 1,).
  void scan(index_t* ptr) {
    index_t next = 0;
    for (int64_t j = 0; j < n_; ++j) {
      ptr[j] = next;
      for (int64_t number = 0; number < chunks_.count(); ++number) {
        next += std::exchange(chunk(number)[j], next);
      }
    }
    ptr[n_] = next;
  }

 private:
  int64_t n_;
  Chunks chunks_;
  Array<index_t> starts_;
};

}  // namespace spgrad
