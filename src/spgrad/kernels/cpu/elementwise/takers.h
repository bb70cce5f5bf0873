// Where the elements of a merge go.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "common/dtypes.h"
#include "common/targets.h"
#include "elementwise/branches.h"
#include "elementwise/operand.h"

namespace spgrad {

// What gets the elements of a merge, in their order.
template <bool kUnion, class index_t, class T>
struct Taker {
  // Takes `count` elements after `before` earlier ones; they stay in `made` only during the call.
  virtual void take(int64_t before, int64_t count, Made<const index_t, const T> made) const = 0;

  // Merges lines by branches and takes their elements one by one, after `before` earlier ones.
  // Returns their number. Not inlined: the loop needs most registers.
  virtual int64_t merge(Branches<kUnion, index_t, T>& branches, const Stretch<index_t>& lines,
                        int64_t before) const = 0;

 protected:
  ~Taker() = default;
};

// Copies elements to places from `to` on.
template <bool kUnion, class index_t, class T>
struct CopyTo final : Taker<kUnion, index_t, T> {
  explicit CopyTo(Made<index_t, T> places) : to(places) {}

  void take(int64_t before, int64_t count, Made<const index_t, const T> made) const override {
    std::copy_n(made.idx, count, to.idx + before);
    std::copy_n(made.a, count, to.a + before);
    std::copy_n(made.b, count, to.b + before);
  }

  __attribute__((noinline)) int64_t merge(Branches<kUnion, index_t, T>& branches,
                                          const Stretch<index_t>& lines,
                                          int64_t before) const override {
    const Made<index_t, T> made{to.idx + before, to.a + before, to.b + before};
    const auto write = [=](int64_t place, index_t index, T from_a, T from_b) {
      made.idx[place] = index;
      made.a[place] = from_a;
      made.b[place] = from_b;
    };
    return branches.template merge<false>(lines, before, write);
  }

  Made<index_t, T> to;
};

// a + b, or a - b, of the bits of scalar_t.
template <bool kMinus, class scalar_t, class T>
SPGRAD_INLINE scalar_t sum_of_bits(T a, T b) {
  const auto first = widen(std::bit_cast<scalar_t>(a)), second = widen(std::bit_cast<scalar_t>(b));
  return narrow<scalar_t>(kMinus ? first - second : first + second);
}

template <bool kMinus, class scalar_t, class T>
SPGRAD_CLONES void add_bits(const T* a, const T* b, int64_t count, scalar_t* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = sum_of_bits<kMinus, scalar_t>(a[i], b[i]);
}

// Writes indices and sums, or differences, to places from `idx` and `sum` on.
template <bool kMinus, class index_t, class T, class scalar_t>
struct AddTo final : Taker<true, index_t, T> {
  AddTo(index_t* indices, scalar_t* sums) : idx(indices), sum(sums) {}

  void take(int64_t before, int64_t count, Made<const index_t, const T> made) const override {
    std::copy_n(made.idx, count, idx + before);
    add_bits<kMinus>(made.a, made.b, count, sum + before);
  }

  __attribute__((noinline)) int64_t merge(Branches<true, index_t, T>& branches,
                                          const Stretch<index_t>& lines,
                                          int64_t before) const override {
    index_t* const to = idx + before;
    scalar_t* const sums = sum + before;
    const auto write = [=](int64_t place, index_t index, T from_a, T from_b) {
      to[place] = index;
      sums[place] = sum_of_bits<kMinus, scalar_t>(from_a, from_b);
    };
    return branches.template merge<false>(lines, before, write);
  }

  index_t* idx;
  scalar_t* sum;
};

}  // namespace spgrad
