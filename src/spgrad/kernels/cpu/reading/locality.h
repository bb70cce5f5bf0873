// How local a pattern is: how many of the rows of x that it gathers a cache still holds.
#pragma once

#include <array>
#include <cstdint>

#include "common/arguments.h"

namespace spgrad {

// The number of different columns among 2^j consecutive entries, on average, for each j up to
// kSizes - 1; the miss ratio of a cache follows from how fast it grows (Xiang, Ding, Luo and Bao
// 2013, "HOTL: a higher order theory of locality").
struct Footprint {
  static constexpr int kSizes = 18;
  std::array<double, kSizes> distinct{};
  int sizes = 0;  // of those that the entries were enough for

  // The share of entries whose row of x is not in a cache that holds `rows` of them.
  double misses(double rows) const;
};

// The footprint of the columns idx, estimated from three stretches of 2^17 entries or fewer, and
// from one in sixteen columns, chosen by a hash (Waldspurger and others 2015, "SHARDS"). Takes some
// 0.1 ms the first time and is kept, for the last patterns, by the address of idx, its length and
// some of its elements. What is kept never changes a result, only how memory is read, so nothing
// has to be told when idx goes.
Footprint footprint_of(const Tensor& idx);

}  // namespace spgrad
