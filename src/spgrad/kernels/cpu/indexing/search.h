// Searches in the lines of a pattern, one line after the other.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/targets.h"

namespace spgrad {

// Finds where an index belongs in each of many ascending lines. In grids and bands, and where a
// bound lies before or behind most lines, the place is often the same as in the line before: after
// some such lines, that place is tried first. The branch on the success is then predicted.
template <class index_t>
class LineSearch {
 public:
  // The number of entries in [begin, end) that are less than `bound`.
  SPGRAD_INLINE int64_t below(const index_t* begin, const index_t* end, int64_t bound) {
    const int64_t count = end - begin;
    if (alike_ >= kEnough) {
      const bool first = last_ == 0 || (last_ <= count && begin[last_ - 1] < bound);
      if (first && last_ <= count && (last_ == count || begin[last_] >= bound)) return last_;
      alike_ = 0;
    }
    const int64_t found = search(begin, count, bound);
    alike_ = (alike_ + 1) & -static_cast<int>(found == last_);  // no branch
    last_ = found;
    return found;
  }

 private:
  static constexpr int kEnough = 32;

  // Short lines are counted, long ones searched.
  static int64_t search(const index_t* begin, int64_t count, int64_t bound) {
    constexpr int64_t kShort = 32;
    if (count > kShort) {
      const auto less = [](index_t index, int64_t limit) { return index < limit; };
      return std::lower_bound(begin, begin + count, bound, less) - begin;
    }
    int64_t found = 0;
    for (int64_t p = 0; p < count; ++p) found += begin[p] < bound;
    return found;
  }

  int64_t last_ = 0;
  int alike_ = 0;  // lines in a row with the same answer
};

}  // namespace spgrad
