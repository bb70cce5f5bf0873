// Vectors along a segment, or across its columns.
#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "common/lanes.h"

namespace spgrad {

// The integer type of the same size as F.
template <class F>
using lane_int_t = std::conditional_t<sizeof(F) == 8, int64_t, int32_t>;

// A vector with `value` in every lane.
template <class V, class F>
SPGRAD_INLINE V all(F value) {
  V v;
  for (size_t l = 0; l < sizeof(V) / sizeof(F); ++l) v[l] = value;
  return v;
}

// The first `count` of the kLanes elements at `from`, and `fill` in the other lanes. With `room`,
// all kLanes elements may be read.
template <int kLanes, class F>
SPGRAD_INLINE Vector<F, kLanes> load_part(const F* from, int64_t count, F fill, bool room) {
  using V = Vector<F, kLanes>;
  Vector<lane_int_t<F>, kLanes> lane;
  for (int l = 0; l < kLanes; ++l) lane[l] = l;
  V v = all<V>(fill);
  if (__builtin_expect(room, 1)) {
    std::memcpy(&v, from, sizeof(v));
    return lane < static_cast<lane_int_t<F>>(count) ? v : all<V>(fill);
  }
  F elements[kLanes];
  for (int l = 0; l < kLanes; ++l) elements[l] = l < count ? from[l] : fill;
  std::memcpy(&v, elements, sizeof(v));
  return v;
}

// Stores the first `count` lanes. With `room`, all kLanes elements may be written.
template <int kLanes, class F>
SPGRAD_INLINE void store_part(const Vector<F, kLanes>& v, int64_t count, F* to, bool room) {
  if (__builtin_expect(room, 1)) {
    std::memcpy(to, &v, sizeof(v));
    return;
  }
  F elements[kLanes];
  std::memcpy(elements, &v, sizeof(v));
  for (int l = 0; l < kLanes && l < count; ++l) to[l] = elements[l];
}

// Joins all lanes of v; each lane of the result holds the joined number. With kLast, joins the
// lanes whose distance is a multiple of kLast.
template <int kLanes, int kStep = kLanes / 2, int kLast = 1, class V, class Join>
SPGRAD_INLINE V fold_lanes(const V& v, const Join& join) {
  const V joined = join(v, shuffle<kLanes>(v, v, [](int l) { return l ^ kStep; }));
  if constexpr (kStep == kLast) {
    return joined;
  } else {
    return fold_lanes<kLanes, kStep / 2, kLast>(joined, join);
  }
}

// Calls f(column) for the vectors of kElements columns that cover d columns. The last vector is
// moved back if it would pass the end.
template <int kElements, class F>
SPGRAD_INLINE void for_columns(int64_t d, const F& f) {
  for (int64_t column = 0; column < d; column += kElements) f(std::min(column, d - kElements));
}

// Calls f.operator()<kElements>() with the widest vectors of at most kBytes, and of at least two
// elements and 16 bytes, that d columns fill. Returns false if d columns do not fill any of them.
template <class T, int kBytes, class F>
SPGRAD_INLINE bool with_columns(int64_t d, const F& f) {
  if constexpr (kBytes >= 16 && kFull<T, kBytes> >= 2) {
    if (d < kFull<T, kBytes>) return with_columns<T, kBytes / 2>(d, f);
    f.template operator()<kFull<T, kBytes>>();
    return true;
  } else {
    return false;
  }
}

// Joins f(p) of the entries [begin, end) onto `joined`. Each 64 of them are first joined with each
// other, because the rounding error of a sum grows with the number of its terms.
template <class V, class Join, class F>
SPGRAD_INLINE void join_entries(int64_t begin, int64_t end, V& joined, const Join& join,
                                const F& f) {
  const V none = joined;
  for (int64_t block = begin; block < end; block += 64) {
    V part = none;
    for (int64_t p = block; p < std::min(block + 64, end); ++p) part = join(part, f(p));
    joined = join(joined, part);
  }
}

}  // namespace spgrad
