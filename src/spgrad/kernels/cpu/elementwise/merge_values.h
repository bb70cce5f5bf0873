// The merge of two patterns together with their values.
#pragma once

#include <algorithm>
#include <cstdint>

#include "elementwise/merge.h"

namespace spgrad {

// The results of a chunk of a merge, by the number of the element: its index, and its values in a
// and in b, zero if the operand does not have the element.
template <class index_t, class T>
struct Made {
  index_t* idx;
  T *a, *b;
};

// Reads the numbers of a stretch of the merge while they are in the first-level cache, and moves
// indices and values to the places that they give.
template <bool kUnion, class index_t, class T>
class MoveValues {
 public:
  MoveValues(const Pair<index_t>& pair, const T* val_a, const T* val_b, Made<index_t, T> made)
      : pair_(pair), val_a_(val_a), val_b_(val_b), made_(made) {}

  // Where to write the numbers of at most kEntries entries of a, or of b.
  index_t* of_a(int64_t) { return numbers_a_; }
  index_t* of_b(int64_t) { return numbers_b_; }

  // Entries [p, end_p) of a and [q, end_q) of b became the elements [first, last).
  void numbered(int64_t p, int64_t end_p, int64_t q, int64_t end_q, index_t first, index_t last) {
    if (kUnion) {
      std::fill(made_.a + first, made_.a + last, T{});
      std::fill(made_.b + first, made_.b + last, T{});
    }
    move(pair_.a, p, end_p, numbers_a_, val_a_, made_.a, first, last);
    move(pair_.b, q, end_q, numbers_b_, val_b_, made_.b, first, last);
  }

 private:
  void move(const Ascending<index_t>& operand, int64_t p, int64_t end, const index_t* number,
            const T* val, T* out, index_t first, index_t last) const {
    if (operand.order) {
      move(operand, p, end, number, val, out, first, last,
           [&](int64_t entry) { return int64_t{operand.order[entry]}; });
    } else {
      move(operand, p, end, number, val, out, first, last, [](int64_t entry) { return entry; });
    }
  }

  template <class Order>
  void move(const Ascending<index_t>& operand, int64_t p, int64_t end, const index_t* number,
            const T* val, T* out, index_t first, index_t last, const Order& order) const {
    index_t* const idx = made_.idx;
    if constexpr (kUnion) {
      for (int64_t entry = p; entry < end; ++entry) {
        const index_t element = number[entry - p];
        idx[element] = operand.idx[entry];
        out[element] = val[order(entry)];
      }
    } else {
      // Elements ascend, so the next entry overwrites the numbers that an entry without an element
      // writes.
      index_t element = first;
      for (int64_t entry = p; entry < end && element < last; ++entry) {
        idx[element] = operand.idx[entry];
        out[element] = val[order(entry)];
        element += number[entry - p] >= 0;
      }
    }
  }

  const Pair<index_t>& pair_;
  const T *val_a_, *val_b_;
  Made<index_t, T> made_;
  index_t numbers_a_[Batch<index_t>::kEntries], numbers_b_[Batch<index_t>::kEntries];
};

}  // namespace spgrad
