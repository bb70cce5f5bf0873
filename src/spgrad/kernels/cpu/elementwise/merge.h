// Parts of the merge of two patterns: lines in ascending order, equal shares of the work for the
// threads, and many short lines merged at a time.
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
  Ascending(const Tensor& ptr_of, const Tensor& idx_of)
      : ptr(data<index_t>(ptr_of)),
        idx(data<index_t>(idx_of)),
        m(ptr_of.size(0) - 1),
        nse(ptr[ptr_of.size(0) - 1]) {
    if (!lines_ascend<true>(ptr, idx, m)) sort();
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

// Merges entries [p, end_p) of a with entries [q, end_q) of b, and numbers the elements of the
// result from `next` on. Writes the element that each entry became; -1 for an entry that is not in
// an intersection. Returns the number after the last. Every step reads both indices, and no branch
// depends on them.
template <bool kUnion, class index_t>
SPGRAD_INLINE index_t merge_stretch(const index_t* a, const index_t* b, int64_t p, int64_t end_p,
                                    int64_t q, int64_t end_q, index_t* to_a, index_t* to_b,
                                    index_t next) {
  while (p < end_p && q < end_q) {
    const index_t of_a = a[p], of_b = b[q];
    const index_t element = kUnion || of_a == of_b ? next : index_t{-1};
    to_a[p] = element;  // written again in the next step if the merge stays at this entry
    to_b[q] = element;
    p += of_a <= of_b;
    q += of_b <= of_a;
    next += kUnion || of_a == of_b;
  }
  for (; p < end_p; ++p) to_a[p] = kUnion ? next++ : index_t{-1};
  for (; q < end_q; ++q) to_b[q] = kUnion ? next++ : index_t{-1};
  return next;
}

// Merges whole lines of an operand with lines of another that has far fewer entries: a search finds
// the place of each of these, and the entries between two places are numbered at a time. Writes the
// numbers of the elements as merge_stretch does, the first of each operand at to_many and to_few,
// and to ptr the numbers at the ends of the lines.
template <bool kUnion, class index_t>
class Insertion {
 public:
  // How many times as many entries the other operand has to have.
  static constexpr int64_t kTimes = 4;

  static index_t merge(const Ascending<index_t>& many, const Ascending<index_t>& few, int64_t line,
                       int64_t end, index_t* to_many, index_t* to_few, index_t next, index_t* ptr) {
    const int64_t origin = many.ptr[line], size = many.ptr[end] - origin;
    const index_t* const idx = many.idx + origin;
    for (int64_t i = line; i < end; ++i) {
      int64_t p = many.ptr[i] - origin;
      const int64_t stop = many.ptr[i + 1] - origin;
      for (int64_t q = few.ptr[i]; q < few.ptr[i + 1]; ++q) {
        const index_t wanted = few.idx[q];
        const int64_t at = p + below(idx + p, stop - p, wanted);
        next = number(to_many, p, at, size, next);
        const bool same = at < stop && idx[at] == wanted;
        if (same) to_many[at] = next;
        to_few[q - few.ptr[line]] = kUnion || same ? next : index_t{-1};
        next += kUnion || same;
        p = at + same;
      }
      ptr[i + 1] = next = number(to_many, p, stop, size, next);
    }
    return next;
  }

 private:
  // The number of the `count` ascending entries that are less than an index.
  static int64_t below(const index_t* idx, int64_t count, index_t wanted) {
    constexpr int64_t kShort = 32;
    if (count > kShort) return std::lower_bound(idx, idx + count, wanted) - idx;
    int64_t found = 0;
    for (int64_t p = 0; p < count; ++p) found += idx[p] < wanted;
    return found;
  }

  // Numbers entries [p, stop) from `next` on, or with -1 in an intersection, and returns the number
  // after the last. A loop over kTogether entries is faster than a loop that stops at `stop`: it
  // also writes some numbers before `size`, which are written again.
  static index_t number(index_t* to, int64_t p, int64_t stop, int64_t size, index_t next) {
    constexpr int64_t kTogether = 8;
    const index_t last = kUnion ? next + static_cast<index_t>(stop - p) : next;
    for (; p < stop && p <= size - kTogether; p += kTogether) {
      for (int64_t l = 0; l < kTogether; ++l) {
        to[p + l] = kUnion ? static_cast<index_t>(next + l) : index_t{-1};
      }
      next += kTogether;
    }
    for (; p < stop; ++p) to[p] = kUnion ? next++ : index_t{-1};
    return last;
  }
};

// Whole lines that are merged as one line. The upper bits of a key hold the number of the line, the
// lower bits the index, so there is no branch at the end of a line that could be mispredicted. Two
// halves are merged at the same time, because every step waits for the result of the step before.
template <class index_t>
class Batch {
 public:
  static constexpr int64_t kEntries = 1024;  // of one operand, at most

  // The end of the whole lines from `line` on, `last` at most, that are merged at a time: `line`
  // itself if this line is too long.
  static int64_t end_of(const Pair<index_t>& pair, int64_t line, int64_t last) {
    const auto fits = [&](int64_t i) {
      return pair.a.ptr[i] - pair.a.ptr[line] <= kEntries &&
             pair.b.ptr[i] - pair.b.ptr[line] <= kEntries;
    };
    last = std::min(line + kLines, last);
    return fits(last) ? last : last_that(line, last, fits);
  }

  // Takes lines from `line` on, up to the `end` that `end_of` found. False if an index is too
  // large.
  bool fill(const Pair<index_t>& pair, int64_t line, int64_t end) {
    const auto work = [&](int64_t i) { return int64_t{pair.a.ptr[i]} + pair.b.ptr[i]; };
    const int64_t half = (work(line) + work(end)) / 2;
    const int64_t middle = last_that(line, end, [&](int64_t i) { return work(i) <= half; });
    return a_.fill(pair.a, line, middle, end) && b_.fill(pair.b, line, middle, end);
  }

  // As merge_stretch, and writes to ptr the numbers at the ends of the lines.
  template <bool kUnion>
  index_t merge(index_t* to_a, index_t* to_b, index_t next, index_t* ptr) {
    Half<kUnion> first{.p = 0, .q = 0, .stop = a_.half + b_.half, .gap = 0, .next = 0};
    Half<kUnion> second{.p = a_.half, .q = b_.half, .stop = a_.size + b_.size, .gap = 1, .next = 0};
    while (first.p + first.q < first.stop && second.p + second.q < second.stop) {
      first.step(a_, b_);
      second.step(a_, b_);
    }
    while (first.p + first.q < first.stop) first.step(a_, b_);
    while (second.p + second.q < second.stop) second.step(a_, b_);
    const index_t base[2] = {next, next + first.next};
    a_.copy(base, to_a);
    b_.copy(base, to_b);
    for (int64_t i = a_.line; i < a_.end; ++i) {
      next = a_.number_after(i, base, next);
      if (kUnion) next = b_.number_after(i, base, next);
      ptr[i + 1] = next;
    }
    return base[1] + second.next;
  }

 private:
  static constexpr int64_t kLines = 1024;
  static constexpr int kShift = 48;

  // The last line of [line, last) with holds(line), which is true up to some line and false after.
  template <class F>
  static int64_t last_that(int64_t line, int64_t last, const F& holds) {
    while (line + 1 < last) {
      const int64_t middle = line + (last - line) / 2;
      (holds(middle) ? line : last) = middle;
    }
    return line;
  }

  // The entries of one operand: their keys, and the number of the element that each entry became,
  // counted in its half. For an entry that became no element: the complement of the number of
  // elements before it. A half may write one number more than it has entries, so the numbers of the
  // second half begin one place later.
  struct Side {
    static constexpr int64_t kTogether = 8;
    int64_t keys[kEntries + kTogether];
    int32_t numbers[kEntries + 2];
    const index_t* ptr;
    int64_t line, end, origin, size, half;

    bool fill(const Ascending<index_t>& operand, int64_t from, int64_t middle, int64_t to) {
      ptr = operand.ptr;
      line = from;
      end = to;
      origin = ptr[line];
      size = ptr[end] - origin;
      half = ptr[middle] - origin;
      const index_t* idx = operand.idx + origin;
      index_t any = 0;
      // A loop over kTogether entries is faster than a loop that stops at the end of the line,
      // although it reads some entries beyond the end.
      const int64_t readable = operand.nse - origin - kTogether;
      for (int64_t i = line, p = 0; i < end; ++i) {
        const int64_t base = (i - line) << kShift, stop = ptr[i + 1] - origin;
        for (; p < stop && p <= readable; p += kTogether) {
          for (int64_t l = 0; l < kTogether; ++l) {
            keys[p + l] = base | idx[p + l];
            any |= idx[p + l];
          }
        }
        for (; p < stop; ++p) {
          keys[p] = base | idx[p];
          any |= idx[p];
        }
        p = stop;
      }
      keys[size] = INT64_MAX;
      return static_cast<int64_t>(any) >> kShift == 0;
    }

    // Writes the element that each entry became, -1 for none; the elements of the halves are
    // numbered from base[0] and base[1] on.
    void copy(const index_t (&base)[2], index_t* to) const {
      const auto element = [](int32_t number, index_t from) {
        return number < 0 ? index_t{-1} : number + from;
      };
      for (int64_t p = 0; p < half; ++p) to[p] = element(numbers[p], base[0]);
      for (int64_t p = half; p < size; ++p) to[p] = element(numbers[p + 1], base[1]);
    }

    // The number of the first element after line i, `next` if there is none.
    SPGRAD_INLINE index_t number_after(int64_t i, const index_t (&base)[2], index_t next) const {
      const int64_t p = ptr[i + 1] - origin - 1;
      if (p < ptr[i] - origin) return next;
      const int32_t number = numbers[p + (p >= half)];
      return std::max<index_t>(next, base[p >= half] + (number < 0 ? ~number : number + 1));
    }
  };

  template <bool kUnion>
  struct Half {
    int64_t p, q;  // the next entries
    int64_t stop;  // p + q at the end
    int64_t gap;   // between an entry and its number
    int32_t next;  // element

    SPGRAD_INLINE void step(Side& a, Side& b) {
      const int64_t of_a = a.keys[p], of_b = b.keys[q];
      const int32_t element = kUnion || of_a == of_b ? next : ~next;
      a.numbers[p + gap] = element;  // written again in the next step if p stays
      b.numbers[q + gap] = element;
      p += of_a <= of_b;
      q += of_b <= of_a;
      next += kUnion || of_a == of_b;
    }
  };

  Side a_, b_;
};

}  // namespace spgrad
