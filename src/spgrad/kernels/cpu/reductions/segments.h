// What the kernels over the entries of a line share: how lines go to threads and through buffers,
// and vectors that lie along a line.
#pragma once

#include <atomic>
#include <limits>

#include "common/lanes.h"
#include "products/split_rows.h"

namespace spgrad {

// What elements of T are calculated in, one by one.
template <class T>
using calc_t = std::conditional_t<std::is_integral_v<T>, T, accumulate_t<T>>;

// Entry p of line i, ptr[i] <= p < ptr[i + 1], has the `d` values at perm[p], or p. ptr (m + 1),
// perm (nse) or null.
template <class index_t>
struct Lines {
  const index_t *ptr, *perm;
  int64_t m, d;

  SPGRAD_INLINE int64_t place(int64_t p) const {
    return (perm == nullptr ? p : static_cast<int64_t>(perm[p])) * d;
  }
  SPGRAD_INLINE int64_t length(int64_t i) const { return int64_t{ptr[i + 1]} - ptr[i]; }

  // Whether the values of T lie in the order of the view, ready to be calculated with.
  template <class T>
  bool in_place() const {
    return std::is_same_v<T, calc_t<T>> && perm == nullptr && d == 1;
  }
  // Entries that go through a buffer together: their values of all columns stay in the cache.
  int64_t at_once() const { return std::max<int64_t>(kBlock / std::max<int64_t>(d, 1), 64); }

  // The longest line that one thread takes as a whole.
  static constexpr int64_t kBlock = 4096;
};

// A line, or lines, of one column: kBlock elements, and more that may be read and written in vain.
template <class C>
struct Buffer {
  static constexpr int64_t kVain = 5 * 64 / sizeof(float);
  C elements[Lines<int32_t>::kBlock + kVain]{};
};

// Column `column` of entries [begin, end), one after another.
template <class index_t, class T>
SPGRAD_INLINE void gather(const Lines<index_t>& lines, const T* val, int64_t column, int64_t begin,
                          int64_t end, calc_t<T>* out) {
  const int64_t d = lines.d, count = end - begin;
  val += column;
  if (lines.perm == nullptr) {
    for (int64_t e = 0; e < count; ++e) {
      out[e] = static_cast<calc_t<T>>(widen(val[(begin + e) * d]));
    }
    return;
  }
  const index_t* const perm = lines.perm + begin;
  const auto each = [&](const auto& place) {
    for (int64_t e = 0; e < count; ++e) {
      out[e] = static_cast<calc_t<T>>(widen(val[place(perm[e])]));
      one_by_one();
    }
  };
  d == 1 ? each([](int64_t p) { return p; }) : each([d](int64_t p) { return p * d; });
}

template <class index_t, class T>
SPGRAD_INLINE void scatter_column(const Lines<index_t>& lines, const calc_t<T>* from,
                                  int64_t column, int64_t begin, int64_t end, T* out) {
  for (int64_t p = begin; p < end; ++p) {
    out[lines.place(p) + column] = narrow<T>(from[p - begin]);
  }
}

// Calls few(first, last) on ranges of lines of which none is longer than kBlock, in parallel, then
// one(i) on every longer line, for that to be split. `cost` is the multiply-adds of an entry.
template <class index_t, class Few, class One>
void for_lines(const Lines<index_t>& lines, int64_t cost, const Few& few, const One& one) {
  std::atomic<bool> found = false;
  parallel_rows(lines.ptr, lines.m, cost * lines.d, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last;) {
      const int64_t j = next_longer(lines.ptr, i, last, static_cast<index_t>(lines.kBlock));
      if (i < j) few(i, j);
      if (j < last) found.store(true, std::memory_order_relaxed);
      i = j + 1;
    }
  });
  for (int64_t i = 0; i < lines.m && found; ++i) {
    if (lines.length(i) > lines.kBlock) one(i);
  }
}

// Calls f(i, j) on consecutive ranges of the lines [first, last), of at_once() entries or one line;
// on all of them if they are not to go through a buffer.
template <class index_t, class F>
SPGRAD_INLINE void for_batches(const Lines<index_t>& lines, int64_t first, int64_t last,
                               bool buffered, const F& f) {
  const int64_t most = lines.at_once();
  while (first < last) {
    int64_t next = buffered ? first + 1 : last;
    while (next < last && lines.ptr[next + 1] - lines.ptr[first] <= most) ++next;
    f(first, next);
    first = next;
  }
}

// Calls f(block, begin, end) on blocks of the entries of line i, in parallel. They are as long
// however many threads there are. Returns their number.
template <class index_t, class F>
int64_t for_blocks(const Lines<index_t>& lines, int64_t i, const F& f) {
  const int64_t begin = lines.ptr[i], end = lines.ptr[i + 1], size = lines.at_once();
  const int64_t count = (end - begin + size - 1) / size;
  torch::stable::parallel_for(0, count, 1, [&](int64_t first, int64_t last) {
    for (int64_t b = first; b < last; ++b) {
      f(b, begin + b * size, std::min(begin + (b + 1) * size, end));
    }
  });
  return count;
}

// ---- vectors along a line --------------------------------------------------------------------

// The integers as wide as F.
template <class F>
using lane_int_t = std::conditional_t<sizeof(F) == 8, int64_t, int32_t>;

// Every lane is `value`.
template <class V, class F>
SPGRAD_INLINE V all(F value) {
  V v;
  for (size_t l = 0; l < sizeof(V) / sizeof(F); ++l) v[l] = value;
  return v;
}

// The first `count` of the kLanes elements at `from`, the other lanes `fill`. What lies behind them
// is read too if there is `room`.
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

// Joins all lanes of v: each lane of the result is the whole.
template <int kLanes, int kStep = kLanes / 2, class V, class Join>
SPGRAD_INLINE V fold_lanes(const V& v, const Join& join) {
  const V joined = join(v, shuffle<kLanes>(v, v, [](int l) { return l ^ kStep; }));
  if constexpr (kStep == 1) {
    return joined;
  } else {
    return fold_lanes<kLanes, kStep / 2>(joined, join);
  }
}

// Calls f(column) so that vectors of kElements columns cover d, the last moved back.
template <int kElements, class F>
SPGRAD_INLINE void for_columns(int64_t d, const F& f) {
  for (int64_t column = 0; column < d; column += kElements) f(std::min(column, d - kElements));
}

// Joins f(p) of the entries [begin, end) onto `joined`. First among 64 at a time: a sum's error
// grows with the number of its terms.
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

// ---- the exponential -------------------------------------------------------------------------

template <class F>
struct Exponential;
template <>
struct Exponential<float> {
  static constexpr int kDegree = 7, kMantissa = 23, kBias = 127;
  static constexpr float kHigh = 89, kLow = -104;  // beyond them the result is infinite, zero
  static constexpr float kRound = 0x1.8p23f;       // to add and subtract rounds to an integer
  static constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
};
template <>
struct Exponential<double> {
  static constexpr int kDegree = 13, kMantissa = 52, kBias = 1023;
  static constexpr double kHigh = 710, kLow = -746;
  static constexpr double kRound = 0x1.8p52;
  static constexpr double kLn2High = 6.93145751953125e-1, kLn2Low = 1.42860682030941723212e-6;
};

// e^x = 2^n e^r with |r| <= ln(2) / 2 and a Taylor polynomial in r, to about one unit in the last
// place; ln(2) is in two parts, so that r is exact enough (Cody and Waite 1980, "Software manual
// for the elementary functions"). 2^n is in two factors, because n passes the exponents there are.
template <class F, class V>
SPGRAD_INLINE V exp_lanes(const V& argument) {
  using E = Exponential<F>;
  constexpr int kLanes = sizeof(V) / sizeof(F);
  using Int = Vector<lane_int_t<F>, kLanes>;
  const auto zero = argument < E::kLow;  // a product that underflows would be slow
  V x = zero ? V{} : argument;
  x = x > E::kHigh ? all<V>(E::kHigh) : x;
  const V shifted = x * F(1.44269504088896340736) + E::kRound;
  const Int n = std::bit_cast<Int>(shifted) - std::bit_cast<Int>(all<V>(E::kRound));
  const V rounded = shifted - E::kRound;
  const V r = (x - rounded * E::kLn2High) - rounded * E::kLn2Low;
  F factorial = 1;
  for (int k = 2; k <= E::kDegree; ++k) factorial *= k;
  V sum = all<V>(1 / factorial);
#pragma GCC unroll 16
  for (int k = E::kDegree - 1; k >= 2; --k) {
    factorial /= k + 1;
    sum = sum * r + 1 / factorial;
  }
  sum = sum * (r * r) + r + 1;
  const Int half = n >> 1;
  const V factor = std::bit_cast<V>((half + E::kBias) << E::kMantissa);
  const V other = std::bit_cast<V>((n - half + E::kBias) << E::kMantissa);
  return zero ? V{} : sum * factor * other;
}

}  // namespace spgrad
