// Sampled dense times dense: the values of g x^T at the entries of a row view (ptr, idx, perm?).
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "common/lanes.h"
#include "reading/prefetch.h"

namespace spgrad {

// ptr (m + 1), idx (nse), perm (nse) or null, g (m, n) and x (k, n) row by row, out (nse). perm, if
// any, is a bijection. out is allocated and not initialised; every entry of the rows asked for is
// written. Columns of a row may be unsorted and repeat: each entry gets its own full sum.
// The order of a sum depends on n alone, so a result does not depend on the number of threads.
// O(nse n) time, no memory.
template <class index_t, class scalar_t>
struct Sddmm {
  const index_t* ptr;
  const index_t* idx;
  const index_t* perm;
  const scalar_t* g;
  const scalar_t* x;
  scalar_t* out;
  int64_t n;
  int64_t nse;
  Ahead ahead{};     // rows of x that are prefetched
  int64_t step = n;  // between rows of g

  SPGRAD_INLINE const scalar_t* row(int64_t p) const {
    return x + static_cast<int64_t>(idx[p]) * n;
  }
  SPGRAD_INLINE scalar_t& at(int64_t p) const {
    return out[perm == nullptr ? p : static_cast<int64_t>(perm[p])];
  }
};

// The number of entries that are computed together: a vector of g is loaded once for all of them,
// and their sums are combined into one vector.
inline constexpr int kTogether = 4;

// Dot products of one row of g with kTogether rows of x.
template <class T, int kElements>
struct Dots {
  Lanes<T, kElements> totals[kTogether]{};

  SPGRAD_INLINE void add(int e, const Lanes<T, kElements>& g, const Lanes<T, kElements>& x) {
    totals[e] += g * x;
  }
  SPGRAD_INLINE void join(Lanes<T, kTogether>& sums) const {
    sum_lanes<lane_t<T>, kElements>(totals, sums);
  }
  SPGRAD_INLINE void finish(T (&out)[kTogether]) const {
    Lanes<T, kTogether> sums;
    join(sums);
    store<kTogether>(sums, out);
  }
};

// (a + bi)(c + di): the real part is the difference of the lanes (ac, bd), the imaginary part the
// sum of the lanes (bc, ad).
template <class T, int kElements>
struct Dots<Complex<T>, kElements> {
  static constexpr int kLanes = 2 * kElements;
  Vector<T, kLanes> straight[kTogether]{}, crossed[kTogether]{};

  SPGRAD_INLINE void add(int e, const Vector<T, kLanes>& g, const Vector<T, kLanes>& x) {
    constexpr auto partner = [](int l) { return l ^ 1; };
    straight[e] += g * x;
    crossed[e] += shuffle<kLanes>(g, g, partner) * x;
  }
  SPGRAD_INLINE void finish(Complex<T> (&out)[kTogether]) {
    Vector<T, kLanes> sign;
    for (int l = 0; l < kLanes; ++l) sign[l] = l % 2 == 0 ? 1 : -1;
    for (int e = 0; e < kTogether; ++e) straight[e] *= sign;
    Vector<T, kTogether> real, imaginary;
    sum_lanes<T, kLanes>(straight, real);
    sum_lanes<T, kLanes>(crossed, imaginary);
    for (int e = 0; e < kTogether; ++e) out[e] = {real[e], imaginary[e]};
  }
};

// If kElements does not divide n, the last vector overlaps the vector before it. Fresh sets the
// lanes of the columns that are done already to zero, in both factors, because zero times infinity
// is not zero.
template <int kElements, class scalar_t>
struct Fresh {
  using Values = Lanes<scalar_t, kElements>;
  using Mask = decltype(Values{} == Values{});
  Mask mask;

  SPGRAD_INLINE explicit Fresh(int64_t n) {
    const int64_t done = (kElements - n % kElements) * Lane<scalar_t>::count;
    for (int l = 0; l < kElements * Lane<scalar_t>::count; ++l) mask[l] = l < done ? 0 : -1;
  }
  SPGRAD_INLINE void keep(Values& lanes) const {
    lanes = std::bit_cast<Values>(std::bit_cast<Mask>(lanes) & mask);
  }
};

// The dot products of kTogether rows of x with as many rows of g, or with g[0] if kShared. All have
// n >= kElements columns.
template <int kElements, bool kShared, class scalar_t>
SPGRAD_INLINE void dots_of(const scalar_t* const (&g)[kTogether],
                           const scalar_t* const (&x)[kTogether], int64_t n,
                           const Fresh<kElements, scalar_t>& fresh, scalar_t (&out)[kTogether]) {
  Dots<scalar_t, kElements> dots;
  const auto add = [&](int64_t column, const auto& keep) {
    Lanes<scalar_t, kElements> left, right;
#pragma GCC unroll 4
    for (int e = 0; e < kTogether; ++e) {
      if (e == 0 || !kShared) {
        load<kElements>(g[e] + column, left);
        keep(left);
      }
      load<kElements>(x[e] + column, right);
      keep(right);
      dots.add(e, left, right);
    }
  };
  const int64_t whole = n - n % kElements;
  for (int64_t j = 0; j < whole; j += kElements) add(j, [](auto&) {});
  if (whole < n) add(n - kElements, [&](auto& lanes) { fresh.keep(lanes); });
  dots.finish(out);
}

// A row of g in registers, so that rows of x are read as a whole, one after the other. kVectors is
// its number of vectors, or 0 if g is read from memory, a vector for kTogether entries at a time.
template <int kElements, int kVectors, class scalar_t>
struct Held {
  Lanes<scalar_t, kElements> parts[kVectors];

  SPGRAD_INLINE explicit Held(const scalar_t* row) {
#pragma GCC unroll 8
    for (int part = 0; part < kVectors; ++part)
      load<kElements>(row + part * kElements, parts[part]);
  }
};
template <int kElements, class scalar_t>
struct Held<kElements, 0, scalar_t> {
  SPGRAD_INLINE explicit Held(const scalar_t* /*row*/) {}
};

// The dot products of the kTogether entries from p on. If not kWhole, there are fewer entries
// before `end`, and the last entry is computed several times. owner(q) is the row of entry q, and
// `own` that of entry p.
template <int kElements, int kVectors, bool kShared, bool kPrefetched, bool kWhole, class index_t,
          class scalar_t, class Owner>
SPGRAD_INLINE void sddmm_group(const Sddmm<index_t, scalar_t>& a, int64_t p, int64_t end,
                               Distance ahead, const Fresh<kElements, scalar_t>& fresh,
                               const Held<kElements, kVectors, scalar_t>& own, const Owner& owner) {
  const int64_t n = kVectors == 0 ? a.n : kVectors * kElements;
  const scalar_t *g[kTogether], *x[kTogether];
#pragma GCC unroll 4
  for (int e = 0; e < kTogether; ++e) {
    const int64_t q = kWhole ? p + e : std::min(p + e, end - 1);
    if constexpr (kPrefetched) prefetch_row(a, q, ahead, 0, n);
    g[e] = kShared && e > 0 ? g[0] : a.g + static_cast<int64_t>(owner(q)) * a.step;
    x[e] = a.row(q);
  }
  scalar_t sums[kTogether];
  if constexpr (kVectors == 0) {
    dots_of<kElements, kShared>(g, x, n, fresh, sums);
  } else {
    Dots<scalar_t, kElements> dots;
#pragma GCC unroll 4
    for (int e = 0; e < kTogether; ++e) {
#pragma GCC unroll 8
      for (int part = 0; part < kVectors; ++part) {
        Lanes<scalar_t, kElements> left = own.parts[part], right;
        if constexpr (!kShared) load<kElements>(g[e] + part * kElements, left);
        load<kElements>(x[e] + part * kElements, right);
        dots.add(e, left, right);
      }
    }
    dots.finish(sums);
  }
  if (kWhole && a.perm == nullptr) {
    std::memcpy(a.out + p, sums, sizeof(sums));
  } else {
    for (int e = 0; e < kTogether && (kWhole || p + e < end); ++e) a.at(p + e) = sums[e];
  }
}

// The entries [p, end), all of one row if kShared.
template <int kElements, int kVectors, bool kShared, bool kPrefetched, class index_t,
          class scalar_t, class Owner>
SPGRAD_INLINE void sddmm_entries(const Sddmm<index_t, scalar_t>& a, int64_t p, int64_t end,
                                 Distance ahead, const Fresh<kElements, scalar_t>& fresh,
                                 const Owner& owner) {
  if (p == end) return;
  const Held<kElements, kVectors, scalar_t> own(a.g + static_cast<int64_t>(owner(p)) * a.step);
  for (; p + kTogether <= end; p += kTogether) {
    sddmm_group<kElements, kVectors, kShared, kPrefetched, true>(a, p, end, ahead, fresh, own,
                                                                 owner);
  }
  if (p == end) return;
  sddmm_group<kElements, kVectors, kShared, kPrefetched, false>(a, p, end, ahead, fresh, own,
                                                                owner);
}

// Writes the row of each of the entries [begin, end); row i has the first of them. Returns the row
// of entry `end`. Writes kCopies numbers at a time, possibly more than the row has entries, so most
// short rows take one write and no branch.
template <int64_t kCopies, class index_t>
SPGRAD_INLINE int64_t write_rows(const index_t* ptr, int64_t i, int64_t begin, int64_t end,
                                 index_t* out) {
  for (int64_t p = begin; p < end;) {
    const int64_t stop = std::min<int64_t>(ptr[i + 1], end);
    for (; p < stop; p += kCopies) std::fill_n(out + (p - begin), kCopies, static_cast<index_t>(i));
    p = stop;
    i += stop == ptr[i + 1];
  }
  return i;
}

// If rows have at most this many entries on average, groups of entries continue across the ends of
// rows, because a branch there would be mispredicted. Each entry then loads its own row of g.
inline constexpr int64_t kShortRow = 12;

// Rows [first, last) of n >= kElements columns, which are kVectors vectors unless that is 0.
template <int kElements, int kVectors, bool kPrefetched, class index_t, class scalar_t>
SPGRAD_INLINE void sddmm_dots(const Sddmm<index_t, scalar_t>& a, int64_t first, int64_t last) {
  const Fresh<kElements, scalar_t> fresh(a.n);
  const Distance ahead = distance_of<scalar_t>(a.ahead, a.n);
  const int64_t stop = a.ptr[last];
  if (stop - a.ptr[first] > kShortRow * (last - first)) {
    for (int64_t i = first; i < last; ++i) {
      sddmm_entries<kElements, kVectors, true, kPrefetched>(a, a.ptr[i], a.ptr[i + 1], ahead, fresh,
                                                            [i](int64_t) { return i; });
    }
    return;
  }
  constexpr int64_t kBatch = 1024, kCopies = 8;
  index_t owners[kBatch + kCopies];
  int64_t i = first;
  for (int64_t begin = a.ptr[first]; begin < stop; begin += kBatch) {
    const int64_t end = std::min(begin + kBatch, stop);
    i = write_rows<kCopies>(a.ptr, i, begin, end, owners);
    sddmm_entries<kElements, kVectors, false, kPrefetched>(
        a, begin, end, ahead, fresh, [&](int64_t q) { return owners[q - begin]; });
  }
}

template <int kElements, int kVectors, class index_t, class scalar_t>
void sddmm_dots(const Sddmm<index_t, scalar_t> a, int64_t first, int64_t last) {
  !a.ahead ? sddmm_dots<kElements, kVectors, false>(a, first, last)
           : sddmm_dots<kElements, kVectors, true>(a, first, last);
}

// One column.
template <int kBytes, class index_t, class scalar_t>
void sddmm_outer(const Sddmm<index_t, scalar_t> a, int64_t first, int64_t last) {
  for (int64_t i = first; i < last; ++i) {
    const accumulate_t<scalar_t> g = load_one<kBytes>(a.g[i * a.step]);
    for (int64_t p = a.ptr[i], end = a.ptr[i + 1]; p < end; ++p) {
      a.at(p) = narrow<scalar_t>(g * load_one<kBytes>(*a.row(p)));
    }
  }
}

// Fewer columns than a vector of twice as many elements holds.
template <int kElements, class index_t, class scalar_t>
void sddmm_narrow(const Sddmm<index_t, scalar_t>& a, int64_t first, int64_t last) {
  if constexpr (kElements > 2) {
    if (a.n < kElements) return sddmm_narrow<kElements / 2>(a, first, last);
  }
  sddmm_dots<kElements, 0>(a, first, last);
}

// Rows [first, last) of the view.
template <int kBytes, class index_t, class scalar_t>
SPGRAD_INLINE void sddmm_rows(const Sddmm<index_t, scalar_t>& a, int64_t first, int64_t last) {
  constexpr int kElements = kFull<scalar_t, kBytes>;
  if (a.n == 1) return sddmm_outer<kBytes>(a, first, last);
  if constexpr (kElements > 2) {
    if (a.n < kElements) return sddmm_narrow<kElements / 2>(a, first, last);
  }
  // as many vectors as registers hold beside the sums
  if constexpr (std::is_same_v<scalar_t, float> || std::is_same_v<scalar_t, double>) {
    if (a.n == kElements) return sddmm_dots<kElements, 1>(a, first, last);
    if (a.n == 2 * kElements) return sddmm_dots<kElements, 2>(a, first, last);
    if (a.n == 4 * kElements) return sddmm_dots<kElements, 4>(a, first, last);
    if constexpr (kBytes == 64) {
      if (a.n == 8 * kElements) return sddmm_dots<kElements, 8>(a, first, last);
    }
  }
  sddmm_dots<kElements, 0>(a, first, last);
}

// sddmm_rows for the widest vectors of this processor; compiled once, in matmul.cpp.
template <class index_t, class scalar_t>
void sddmm_lines(const Sddmm<index_t, scalar_t>& a, int64_t first, int64_t last);

}  // namespace spgrad
