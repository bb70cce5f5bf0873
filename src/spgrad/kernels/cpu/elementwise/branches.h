// The merge of lines by branches: the fastest way where a processor predicts them.
#pragma once

#include <cstdint>

#include "common/targets.h"
#include "elementwise/operand.h"

namespace spgrad {

// Merges lines entry by entry, and tells from a sample how often a processor would mispredict a
// branch: where indices follow a rule, as in grids and bands, it seldom does.
template <bool kUnion, class index_t, class T>
class Branches {
 public:
  using Source = Operand<index_t, T>;

  // Merges lines [line, end) into `made`, after `before` earlier elements, and observes the
  // branches if kObserved. Writes to ptr the number of elements up to the end of each line, and
  // returns the number of the new ones.
  template <bool kObserved>
  int64_t merge(const Source& a, const Source& b, Made<index_t, T> made, int64_t line, int64_t end,
                int64_t before, index_t* ptr) {
    const index_t *of_a = a.lines.ptr, *of_b = b.lines.ptr;
    if (kObserved) steps_ = surprises_ = 0;
    int64_t next = 0;
    for (int64_t i = line; i < end; ++i) {
      next = entries<kObserved>(a, b, of_a[i], of_a[i + 1], of_b[i], of_b[i + 1], made, next);
      ptr[i + 1] = static_cast<index_t>(before + next);
    }
    return next;
  }

  // The same for entries [p, end_p) of a and [q, end_q) of b, which are parts of one line.
  template <bool kObserved>
  int64_t merge_part(const Source& a, const Source& b, int64_t p, int64_t end_p, int64_t q,
                     int64_t end_q, Made<index_t, T> made) {
    if (kObserved) steps_ = surprises_ = 0;
    return entries<kObserved>(a, b, p, end_p, q, end_q, made, 0);
  }

  // Whether so few of the branches that were observed last would be mispredicted that no other way
  // is faster.
  bool predictable() const { return steps_ > 0 && surprises_ * 8 <= steps_ * kMost; }

 private:
  // Mispredictions in eight steps. On an AMD EPYC with Zen 4, branches take 0.5 to 0.9 of the time
  // of every other way below this limit, and 0.9 to 1.8 times as long above.
  static constexpr int64_t kMost = 3;
  static constexpr uint32_t kTable = 4096;  // histories

  enum Outcome : uint8_t { kFirst, kSecond, kBoth, kEnd };

  // A processor expects what followed the last time after the same outcomes.
  void expect(uint32_t outcome) {
    ++steps_;
    surprises_ += table_[history_] != static_cast<uint8_t>(outcome);
    table_[history_] = static_cast<uint8_t>(outcome);
    history_ = (history_ << 2 ^ outcome) % kTable;
  }

  // Merges entries [p, end_p) of a line of a and [q, end_q) of b into elements from `next` on, and
  // returns the number after the last.
  template <bool kObserved>
  SPGRAD_INLINE int64_t entries(const Source& a, const Source& b, int64_t p, int64_t end_p,
                                int64_t q, int64_t end_q, Made<index_t, T> made, int64_t next) {
    const index_t *idx_a = a.lines.idx, *idx_b = b.lines.idx;
    const T none = Source::if_present(T{}, false);
    const auto write = [&](index_t index, T from_a, T from_b) {
      made.idx[next] = index;
      made.a[next] = from_a;
      made.b[next++] = from_b;
    };
    while (p < end_p && q < end_q) {
      const index_t of_a = idx_a[p], of_b = idx_b[q];
      if (of_a < of_b) {
        if (kUnion) write(of_a, a.of_entry(p), none);
        ++p;
        if (kObserved) expect(kFirst);
      } else if (of_b < of_a) {
        if (kUnion) write(of_b, none, b.of_entry(q));
        ++q;
        if (kObserved) expect(kSecond);
      } else {
        write(of_a, a.of_entry(p++), b.of_entry(q++));
        if (kObserved) expect(kBoth);
      }
    }
    if (kObserved) expect(kEnd + static_cast<uint32_t>(kUnion ? end_p - p + end_q - q : 0));
    if (kUnion) {
      for (; p < end_p; ++p) write(idx_a[p], a.of_entry(p), none);
      for (; q < end_q; ++q) write(idx_b[q], none, b.of_entry(q));
    }
    return next;
  }

  int64_t steps_ = 0, surprises_ = 0;
  uint32_t history_ = 0;
  uint8_t table_[kTable] = {};
};

}  // namespace spgrad
