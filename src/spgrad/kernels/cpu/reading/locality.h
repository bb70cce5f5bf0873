// How local a pattern is: how many of the rows of x that a product gathers are still in a cache.
#pragma once

#include <array>
#include <cstdint>

#include "common/arguments.h"

namespace spgrad {

// The average number of different columns among 2^j consecutive entries, for each j below kSizes.
// The miss ratio of a cache follows from how fast this number grows, which is the share of entries
// whose column was not among the 2^j entries before (Xiang, Ding, Luo and Bao 2013, "HOTL: a higher
// order theory of locality").
struct Footprint {
  static constexpr int kSizes = 18;
  std::array<double, kSizes> distinct{}, later{};
  int sizes = 0;  // of those that the entries were enough for

  // The share of entries whose row of x is not in a cache that holds `rows` rows.
  double misses(double rows) const;
};

// The footprint of the columns idx, estimated from three stretches of 2^17 entries or fewer, and
// from one in sixteen columns, chosen by a hash (Waldspurger and others 2015, "SHARDS"). The first
// call for an idx takes 0.1 to 0.5 ms. The footprints of the last patterns are kept, under the
// address of idx, its length and some of its elements. A kept footprint changes only how memory is
// read, never a result, so it may stay when idx is freed.
Footprint footprint_of(const Tensor& idx);

// Place `look` of some that are spread over [0, count). A stride would see one kind of rows alone
// in a matrix that repeats itself with that stride, as R-MAT graphs do with powers of two.
inline int64_t spread(int64_t look, int64_t count) {
  constexpr uint64_t kGolden = 2654435769;  // 2^32 over the golden ratio (Weyl, 1916)
  const auto part = static_cast<uint32_t>(static_cast<uint64_t>(look + 1) * kGolden);
  return static_cast<int64_t>(part * (static_cast<double>(count) / 4294967296.0));
}

}  // namespace spgrad
