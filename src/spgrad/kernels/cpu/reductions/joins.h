// How the elements of a segment are joined into one number: sum, product, extremum.
#pragma once

#include <limits>
#include <type_traits>

#include "common/lanes.h"

namespace spgrad {

// Each joins numbers, or vectors of them, starting from kIdentity. An empty segment has the result
// kEmpty. Integers wrap.
struct Sum {
  static constexpr int kIdentity = 0, kEmpty = 0;
  template <class V>
  SPGRAD_INLINE V operator()(const V& a, const V& b) const {
    if constexpr (std::is_integral_v<V>) {
      return static_cast<V>(widen(a) + widen(b));
    } else {
      return a + b;
    }
  }
};

struct Product {
  static constexpr int kIdentity = 1, kEmpty = 1;
  template <class V>
  SPGRAD_INLINE V operator()(const V& a, const V& b) const {
    if constexpr (std::is_integral_v<V>) {
      return static_cast<V>(widen(a) * widen(b));
    } else {
      return a * b;
    }
  }
};

// The larger, or the smaller, of two numbers; a NaN counts as the extreme one.
template <bool kLargest>
struct Extreme {
  static constexpr int kEmpty = 0;
  template <class V>
  SPGRAD_INLINE V operator()(const V& a, const V& b) const {
    if constexpr (std::is_arithmetic_v<V>) {
      return (kLargest ? a > b : a < b) || a != a ? a : b;
    } else {
      V other = kLargest ? (a > b ? a : b) : (a < b ? a : b);  // b, if either is NaN
      opaque(other);
      return a == a ? other : a;
    }
  }
};

template <class Op, class C>
SPGRAD_INLINE C identity() {
  if constexpr (std::is_same_v<Op, Extreme<true>> || std::is_same_v<Op, Extreme<false>>) {
    using Limits = std::numeric_limits<C>;
    constexpr bool kLargest = std::is_same_v<Op, Extreme<true>>;
    if constexpr (Limits::has_infinity) return kLargest ? -Limits::infinity() : Limits::infinity();
    return kLargest ? Limits::lowest() : Limits::max();
  } else {
    return C(Op::kIdentity);
  }
}

}  // namespace spgrad
