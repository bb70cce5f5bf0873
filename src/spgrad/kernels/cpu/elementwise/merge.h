// Parts of the merge of two patterns: lines in ascending order, and equal shares of the work for
// the threads.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "common/arguments.h"
#include "common/memory.h"
#include "common/order.h"
#include "common/sort.h"
#include "common/threads.h"

namespace spgrad {

// A pattern whose lines ascend: the operand itself, or a sorted copy with the old positions of its
// entries.
template <class index_t>
class Ascending {
 public:
  // `ordered` says that the lines ascend; then they are not looked at.
  Ascending(const Tensor& ptr_of, const Tensor& idx_of, bool ordered)
      : ptr(data<index_t>(ptr_of)),
        idx(data<index_t>(idx_of)),
        m(ptr_of.size(0) - 1),
        nse(ptr[ptr_of.size(0) - 1]) {
    if (!ordered && !lines_ascend<true>(ptr, idx, m)) sort();
  }

  const index_t *ptr, *idx;
  const index_t* order = nullptr;  // the position of an entry in the operand; null if unchanged
  int64_t m, nse;

 private:
  // Lines shorter than this are sorted by one thread each, longer ones by all threads.
  static constexpr int64_t kShort = 1 << 16;

  // Sorts every line. O(nse log(longest line)) time, memory for the entries twice.
  void sort() {
    entries_ = array<Wide>(nse);
    scratch_ = array<Wide>(nse);
    sorted_ = array<index_t>(nse);
    order_ = array<index_t>(nse);
    parallel_rows(ptr, m, 32, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        if (ptr[i + 1] - ptr[i] < kShort) sort_line(i, true);
      }
    });
    for (int64_t i = 0; i < m; ++i) {
      if (ptr[i + 1] - ptr[i] >= kShort) sort_line(i, false);
    }
    entries_.reset();
    scratch_.reset();
    idx = sorted_.get();
    order = order_.get();
  }

  void sort_line(int64_t i, bool serial) {
    const int64_t begin = ptr[i], count = ptr[i + 1] - begin;
    Wide *entries = entries_.get() + begin, *scratch = scratch_.get() + begin;
    const Chunks chunks(count, serial ? 1 : INT64_MAX);
    List<uint64_t> bits(chunks.count());
    chunks.for_each([&](int64_t chunk, int64_t first, int64_t last) {
      uint64_t any = 0;
      for (int64_t e = first; e < last; ++e) {
        any |= static_cast<uint64_t>(idx[begin + e]);
      }
      bits[chunk] = any;
    });
    uint64_t any = 0;
    for (const uint64_t of_chunk : bits) any |= of_chunk;
    const auto entry_at = [&](int64_t e) {
      return Wide{static_cast<uint64_t>(idx[begin + e]), begin + e};
    };
    parallel_radix_sort(entry_at, entries, scratch, chunks, 0, std::bit_width(any));
    chunks.for_each([&](int64_t, int64_t first, int64_t last) {
      for (int64_t e = first; e < last; ++e) {
        sorted_[begin + e] = static_cast<index_t>(entries[e].key);
        order_[begin + e] = static_cast<index_t>(entries[e].position);
      }
    });
  }

  Array<Wide> entries_, scratch_;
  Array<index_t> sorted_, order_;
};

// A state of the merge: the merge is in line `line`, before entry p of a and entry q of b.
struct Point {
  int64_t line, p, q;
};

template <class index_t>
struct Pair {
  const Ascending<index_t>&a, &b;

  // The point after `work` steps: each entry takes one step, and the end of each line takes one.
  // The merge passes equal indices together. Odeh, Green, Mwassi, Shmueli and Birk 2012, "Merge
  // path".
  Point at(int64_t work) const {
    if (work == 0) return {0, 0, 0};
    int64_t low = 0, high = a.m;
    while (low < high) {
      const int64_t middle = low + (high - low + 1) / 2;
      if (int64_t{a.ptr[middle]} + b.ptr[middle] + middle <= work) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    if (low == a.m) return {a.m, a.nse, b.nse};
    const index_t *of_a = a.idx + a.ptr[low], *of_b = b.idx + b.ptr[low];
    const int64_t size_a = a.ptr[low + 1] - a.ptr[low], size_b = b.ptr[low + 1] - b.ptr[low];
    const int64_t steps = std::min(work - a.ptr[low] - b.ptr[low] - low, size_a + size_b);
    int64_t p = std::max<int64_t>(0, steps - size_b), limit = std::min(steps, size_a);
    while (p < limit) {
      const int64_t middle = p + (limit - p) / 2;
      if (of_a[middle] < of_b[steps - 1 - middle]) {
        p = middle + 1;
      } else {
        limit = middle;
      }
    }
    const int64_t q = steps - p;
    if (q > 0 && p < size_a && of_a[p] == of_b[q - 1]) ++p;
    return {low, a.ptr[low] + p, b.ptr[low] + q};
  }
};

}  // namespace spgrad
