// The merge of lines with lines of another operand that has far fewer entries.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/targets.h"
#include "elementwise/operand.h"

namespace spgrad {

// A search finds the place of each entry of the operand with few entries, and the entries between
// two places are copied at a time.
template <bool kUnion, class index_t, class T>
class Insertion {
 public:
  using Source = Operand<index_t, T>;

  // Merges lines [line, end) into `made`, in which a stands for `many`, after `before` earlier
  // elements. Writes to ptr the number of elements up to the end of each line, and returns the
  // number of the new ones.
  static int64_t merge(const Source& many, const Source& few, Made<index_t, T> made, int64_t line,
                       int64_t end, int64_t before, index_t* ptr) {
    const index_t* const idx = many.lines.idx;
    const int64_t last = many.lines.ptr[end];
    int64_t next = 0;
    for (int64_t i = line; i < end; ++i) {
      int64_t p = many.lines.ptr[i];
      const int64_t stop = many.lines.ptr[i + 1];
      for (int64_t q = few.lines.ptr[i]; q < few.lines.ptr[i + 1]; ++q) {
        const index_t wanted = few.lines.idx[q];
        const int64_t at = p + below(idx + p, stop - p, wanted);
        const bool same = at < stop && idx[at] == wanted;
        if (kUnion) next = copy(many, p, at, last, made, next);
        if (kUnion || same) {
          made.idx[next] = wanted;
          made.a[next] = same ? many.at(at) : Source::if_present(T{}, false);
          made.b[next++] = few.at(q);
        }
        p = at + same;
      }
      if (kUnion) next = copy(many, p, stop, last, made, next);
      ptr[i + 1] = static_cast<index_t>(before + next);
    }
    return next;
  }

 private:
  static constexpr int64_t kTogether = 8;

  // Copies entries [p, stop), which only `many` has, to the elements from `next` on, and returns
  // the number after the last. A loop over kTogether entries is faster than a loop that stops at
  // `stop`: it also copies some entries before `last`, whose elements are written again.
  static SPGRAD_INLINE int64_t copy(const Source& many, int64_t p, int64_t stop, int64_t last,
                                    Made<index_t, T> made, int64_t next) {
    const int64_t end = next + stop - p;
    const auto element = [&](int64_t entry, int64_t to) {
      made.idx[to] = many.lines.idx[entry];
      made.a[to] = many.at(entry);
      made.b[to] = Source::if_present(T{}, false);
    };
    for (; p < stop && p <= last - kTogether; p += kTogether, next += kTogether) {
      for (int64_t l = 0; l < kTogether; ++l) element(p + l, next + l);
    }
    for (; p < stop; ++p, ++next) element(p, next);
    return end;
  }

  // The number of the `count` ascending entries that are less than an index.
  static int64_t below(const index_t* idx, int64_t count, index_t wanted) {
    constexpr int64_t kShort = 32;
    if (count > kShort) return std::lower_bound(idx, idx + count, wanted) - idx;
    int64_t found = 0;
    for (int64_t p = 0; p < count; ++p) found += idx[p] < wanted;
    return found;
  }
};

}  // namespace spgrad
