// The split of rows, entries and ranges over threads.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "common/targets.h"

namespace spgrad {

// The number of multiply-adds below which a second thread costs more time than it saves.
inline constexpr int64_t kSerialWork = 32768;

// First row whose work begins at or after `work`, where the work of row i begins at ptr[i] + i. A
// row counts as much as an entry, so that one thread does not get most of the empty rows.
template <class index_t>
int64_t row_at_work(const index_t* ptr, int64_t rows, int64_t work) {
  int64_t low = 0, high = rows;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (static_cast<int64_t>(ptr[middle]) + middle < work) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// Calls f(first_row, last_row) on ranges that partition [0, rows) into equal shares of entries plus
// rows. A row is never split, so if f computes each row by itself the result does not depend on
// the number of threads. `cost` is the multiply-adds of one entry. f must not throw.
template <class index_t, class F>
void parallel_rows(const index_t* ptr, int64_t rows, int64_t cost, const F& f) {
  const int64_t work = static_cast<int64_t>(ptr[rows]) + rows;
  const int64_t grain = kSerialWork / (cost < 1 ? 1 : cost) + 1;
  if (work <= grain) {
    if (rows > 0) f(int64_t{0}, rows);
    return;
  }
  torch::stable::parallel_for(0, work, grain, [&](int64_t first, int64_t last) {
    const int64_t from = row_at_work(ptr, rows, first);
    const int64_t to = row_at_work(ptr, rows, last);
    if (from < to) f(from, to);
  });
}

// Calls f(first, last) on ranges that partition [0, nse), wherever lines begin and end. `cost` is
// the multiply-adds of one entry. f must not throw.
template <class F>
void parallel_entries(int64_t nse, int64_t cost, const F& f) {
  const int64_t grain = kSerialWork / (cost < 1 ? 1 : cost) + 1;
  if (nse <= grain) {
    if (nse > 0) f(int64_t{0}, nse);
    return;
  }
  torch::stable::parallel_for(0, nse, grain, f);
}

// The first row from i on that is longer than `longest`, else m. Of rows that have no more entries
// together, none is longer; so many are looked at together that they rarely have more. Where these
// would be few, whole blocks are tested without branches, so that the compiler vectorises the
// common case in which there is no such row.
template <class index_t>
SPGRAD_CLONES int64_t next_longer(const index_t* ptr, int64_t i, int64_t m, index_t longest) {
  constexpr int64_t kFew = 16, kBlock = 512;
  const int64_t average = i < m ? (ptr[m] - ptr[i]) / (m - i) : 0;
  const int64_t together = longest / (2 * average + 1);
  const int64_t rows = together < kFew ? kBlock : std::min(together, kBlock);
  while (i < m) {
    const int64_t stop = std::min(i + rows, m);
    if (ptr[stop] - ptr[i] > longest) {
      index_t found = 0;
      for (int64_t j = i; j < stop; ++j) found |= longest - (ptr[j + 1] - ptr[j]);
      for (; found < 0 && i < stop; ++i) {
        if (ptr[i + 1] - ptr[i] > longest) return i;
      }
    }
    i = stop;
  }
  return m;
}

// Calls few(first_row, last_row) in parallel, on ranges of rows of which none has more than
// `longest` entries. Then it calls one(row) on every longer row, so that the caller can split it.
// `cost` is the multiply-adds of an entry.
template <class index_t, class Few, class One>
void for_short_and_long(const index_t* ptr, int64_t m, int64_t longest, int64_t cost,
                        const Few& few, const One& one) {
  std::atomic<bool> found = false;
  parallel_rows(ptr, m, cost, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last;) {
      const int64_t j = next_longer(ptr, i, last, static_cast<index_t>(longest));
      if (i < j) few(i, j);
      if (j < last) found.store(true, std::memory_order_relaxed);
      i = j + 1;
    }
  });
  for (int64_t i = 0; i < m && found; ++i) {
    if (int64_t{ptr[i + 1]} - ptr[i] > longest) one(i);
  }
}

// Where a range of rows ends that begins with row `first`: it has at most `most` entries, or is one
// longer row.
template <class index_t>
SPGRAD_INLINE int64_t end_of_batch(const index_t* ptr, int64_t first, int64_t last, int64_t most) {
  int64_t end = first + 1;
  while (end < last && int64_t{ptr[end + 1]} - ptr[first] <= most) ++end;
  return end;
}

// Calls f(i, j) on consecutive ranges of the rows [first, last), as end_of_batch makes them; with
// `whole`, one range has all rows.
template <class index_t, class F>
SPGRAD_INLINE void for_batches(const index_t* ptr, int64_t first, int64_t last, int64_t most,
                               const F& f, bool whole = false) {
  while (first < last) {
    const int64_t next = whole ? last : end_of_batch(ptr, first, last, most);
    f(first, next);
    first = next;
  }
}

// [0, total) in equal consecutive ranges, for algorithms that need to know which range they work
// on (histograms, prefix sums). There is one range for every thread that has enough to do, and at
// most `limit` ranges. A result must not depend on count().
class Chunks {
 public:
  explicit Chunks(int64_t total, int64_t limit = INT64_MAX) : total_(total) {
    const int64_t threads = torch::stable::get_num_threads();
    count_ = std::max<int64_t>(1, std::min({threads, limit, total / kSerialWork}));
  }

  int64_t total() const { return total_; }
  int64_t count() const { return count_; }
  int64_t begin(int64_t chunk) const {
    return total_ / count_ * chunk + std::min(chunk, total_ % count_);
  }

  // Calls f(chunk, begin, end) for every chunk, in parallel. f must not throw.
  template <class F>
  void for_each(const F& f) const {
    if (count_ == 1) return f(int64_t{0}, int64_t{0}, total_);
    torch::stable::parallel_for(0, count_, 1, [&](int64_t first, int64_t last) {
      for (int64_t chunk = first; chunk < last; ++chunk) f(chunk, begin(chunk), begin(chunk + 1));
    });
  }

 private:
  int64_t total_, count_;
};

}  // namespace spgrad
