// Scores that are sums of a number of the row and a number of the column, for several heads, and
// functions that both passes over the scores use.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "common/lanes.h"
#include "common/targets.h"
#include "reading/prefetch.h"
#include "reductions/exponential.h"
#include "reductions/softmax.h"

namespace spgrad {

// The score of an entry that does not count.
template <class F>
inline constexpr F kNoScore = -std::numeric_limits<F>::infinity();

// The number of scores that are computed together. They stay in the second-level cache, together
// with the rows that are gathered for them.
inline constexpr int64_t kScoresAtOnce = 8192;

inline int64_t entries_at_once(int64_t heads) {
  return std::max<int64_t>(kScoresAtOnce / std::max<int64_t>(heads, 1), 64);
}

// After the scores of a range there is room for a vector, so code may read and write whole vectors:
// the numbers after the last entry of a line belong to later lines.
inline constexpr int64_t kSpareScores = 64 / sizeof(float);

// Calls f.operator()<kHeads>() with the number of heads if a vector of kLanes elements holds all
// heads of one or more entries, otherwise with 0.
template <int kLanes, class F>
SPGRAD_INLINE void with_heads(int64_t heads, const F& f) {
  if (heads == kLanes) return f.template operator()<kLanes>();
  if constexpr (kLanes > 1) {
    with_heads<kLanes / 2>(heads, f);
  } else {
    f.template operator()<0>();
  }
}

// s if s > 0, otherwise slope * s; minus infinity stays minus infinity, also with a slope of zero.
// The product is rounded: the backward subtracts from it the largest score, which is rounded too.
template <class V, class F>
SPGRAD_INLINE V leaky(const V& s, F slope) {
  V scaled = s == kNoScore<F> ? s : s * slope;
  if constexpr (std::is_floating_point_v<V> || sizeof(V) >= 16) {
    keep_rounded(scaled);
  } else {  // no register has one or two lanes
    for (size_t i = 0; i < sizeof(V) / sizeof(F); ++i) {
      F lane = scaled[i];
      keep_rounded(lane);
      scaled[i] = lane;
    }
  }
  return s > 0 ? s : scaled;
}

// Joins the lanes of the same head; each of them gets the result.
template <int kLanes, int kHeads, class V, class Join>
SPGRAD_INLINE V join_heads(const V& v, const Join& join) {
  if constexpr (kHeads == kLanes) {
    return v;
  } else {
    return fold_lanes<kLanes, kLanes / 2, kHeads>(v, join);
  }
}

// The first kHeads lanes.
template <int kHeads, class V, class F>
SPGRAD_INLINE void store_heads(const V& v, F* to) {
  std::memcpy(to, &v, kHeads * sizeof(F));
}

// Calls each(head, v) on the heads of an entry: once with head 0 and a vector of all kHeads, or
// once for every head with a number. The type of v is the type that `each` reads and writes; the
// value of v is zero.
template <int kHeads, class F, class Each>
SPGRAD_INLINE void for_heads([[maybe_unused]] int64_t heads, const Each& each) {
  if constexpr (kHeads > 0) {
    each(int64_t{0}, Vector<F, kHeads>{});
  } else {
    for (int64_t head = 0; head < heads; ++head) each(head, F{});
  }
}

// Reads and writes a number, or a vector of them.
template <class V, class F>
SPGRAD_INLINE V read_as(const F* from) {
  V v;
  std::memcpy(&v, from, sizeof(v));
  return v;
}
template <class V, class F>
SPGRAD_INLINE void write_as(const V& v, F* to) {
  std::memcpy(to, &v, sizeof(v));
}

}  // namespace spgrad
