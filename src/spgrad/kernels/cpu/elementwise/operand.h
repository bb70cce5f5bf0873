// What a merge reads, and the elements that it makes.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/dispatch.h"
#include "common/targets.h"
#include "elementwise/merge.h"

namespace spgrad {

// `taken`, or zero if all bits of `none` are set: without a branch, which would be mispredicted.
template <class T>
SPGRAD_INLINE T unless(T taken, int64_t none) {
  if constexpr (std::is_integral_v<T>) {
    return taken & static_cast<T>(~none);
  } else {
    return {unless(taken.low, none), unless(taken.high, none)};
  }
}

// An operand of a merge, and what the result keeps of each of its entries: the value, or, if T is a
// signed integer, the number of the entry.
template <class index_t, class T>
struct Operand {
  const Ascending<index_t>& lines;
  const T* val;  // null for numbers

  static constexpr bool kNumbers = std::is_signed_v<T>;

  // What is kept of entry p in ascending order.
  SPGRAD_INLINE T at(int64_t p) const {
    return of_entry(lines.order == nullptr ? p : static_cast<int64_t>(lines.order[p]));
  }

  SPGRAD_INLINE T of_entry(int64_t entry) const {
    if constexpr (kNumbers) {
      return static_cast<T>(entry);
    } else {
      return val[entry];
    }
  }

  // `kept`, or what an element has that the operand does not have: -1 or zero.
  static SPGRAD_INLINE T if_present(T kept, bool present) {
    if constexpr (kNumbers) {
      return kept | static_cast<T>(T{present} - 1);
    } else {
      return unless(kept, int64_t{present} - 1);
    }
  }
};

// Elements of a merge: the index of each, and what is kept of its entries.
template <class index_t, class T>
struct Made {
  index_t* idx;
  T *a, *b;
};

}  // namespace spgrad
