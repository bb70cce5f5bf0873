// Sampled dense times dense: the values of g x^T at the entries of a row view (ptr, idx, perm?).
#pragma once

#include "lanes.h"

namespace spgrad {

// ptr (m + 1), idx (nse), perm (nse) or null, g (m, n) and x (k, n) row by row, out (nse). perm, if
// any, is a bijection. out is allocated and not initialised; every element of the rows asked for is
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
  int64_t fetched = 0;  // bytes of x that are asked for ahead
  int64_t step = n;     // between rows of g

  SPGRAD_INLINE const scalar_t* row(int64_t p) const {
    return x + static_cast<int64_t>(idx[p]) * n;
  }
  SPGRAD_INLINE scalar_t& at(int64_t p) const {
    return out[perm == nullptr ? p : static_cast<int64_t>(perm[p])];
  }
};

// Entries taken together: a vector of g is loaded once for all of them, and their sums are joined
// into one vector.
inline constexpr int kTogether = 4;

// Dot products of one row of g with kTogether rows of x.
template <class T, int kElements>
struct Dots {
  Lanes<T, kElements> totals[kTogether]{};

  SPGRAD_INLINE void add(int e, const Lanes<T, kElements>& g, const Lanes<T, kElements>& x) {
    totals[e] += g * x;
  }
  SPGRAD_INLINE void finish(T (&out)[kTogether]) const {
    Lanes<T, kTogether> sums;
    sum_lanes<lane_t<T>, kElements>(totals, sums);
    store<kTogether>(sums, out);
  }
};

// (a + bi)(c + di): the lanes (ac, bd) differ by the real part, (bc, ad) add up to the imaginary
// one.
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

// A last vector that reaches back over n % kElements columns done before keeps only the lanes that
// are new: zeroed in both factors, because zero times infinity is not zero.
template <int kElements, class scalar_t>
struct Fresh {
  using Values = Lanes<scalar_t, kElements>;
  using Mask = decltype(Values{} == Values{});
  Mask mask;

  SPGRAD_INLINE explicit Fresh(int64_t n) {
    const int64_t stale = (kElements - n % kElements) * Lane<scalar_t>::count;
    for (int l = 0; l < kElements * Lane<scalar_t>::count; ++l) mask[l] = l < stale ? 0 : -1;
  }
  SPGRAD_INLINE void keep(Values& lanes) const {
    lanes = std::bit_cast<Values>(std::bit_cast<Mask>(lanes) & mask);
  }
};

// n >= kElements columns. A group that passes the end of its row repeats the row's last entry.
template <int kElements, class index_t, class scalar_t>
void sddmm_dots(const Sddmm<index_t, scalar_t> a, int64_t first, int64_t last) {
  const int64_t n = a.n, whole = n - n % kElements;
  const Fresh<kElements, scalar_t> fresh(n);
  const int64_t ahead = entries_ahead<scalar_t>(a.fetched, n);
  for (int64_t i = first; i < last; ++i) {
    const scalar_t* g = a.g + i * a.step;
    const int64_t end = a.ptr[i + 1];
    for (int64_t p = a.ptr[i]; p < end; p += kTogether) {
      const scalar_t* rows[kTogether];
      for (int e = 0; e < kTogether; ++e) {
        if (ahead != 0 && p + e < end) prefetch_row(a, p + e, ahead, 0, n);
        rows[e] = a.row(std::min(p + e, end - 1));
      }
      Dots<scalar_t, kElements> dots;
      Lanes<scalar_t, kElements> left, right;
      for (int64_t j = 0; j < whole; j += kElements) {
        load<kElements>(g + j, left);
#pragma GCC unroll 4
        for (int e = 0; e < kTogether; ++e) {
          load<kElements>(rows[e] + j, right);
          dots.add(e, left, right);
        }
      }
      if (whole < n) {
        load<kElements>(g + n - kElements, left);
        fresh.keep(left);
#pragma GCC unroll 4
        for (int e = 0; e < kTogether; ++e) {
          load<kElements>(rows[e] + n - kElements, right);
          fresh.keep(right);
          dots.add(e, left, right);
        }
      }
      scalar_t sums[kTogether];
      dots.finish(sums);
      if (a.perm == nullptr && p + kTogether <= end) {
        std::memcpy(a.out + p, sums, sizeof(sums));
      } else {
        for (int e = 0; e < kTogether && p + e < end; ++e) a.at(p + e) = sums[e];
      }
    }
  }
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

// Fewer columns than fill a vector of twice as many elements.
template <int kElements, class index_t, class scalar_t>
void sddmm_narrow(const Sddmm<index_t, scalar_t>& a, int64_t first, int64_t last) {
  if constexpr (kElements > 2) {
    if (a.n < kElements) return sddmm_narrow<kElements / 2>(a, first, last);
  }
  sddmm_dots<kElements>(a, first, last);
}

// Rows [first, last) of the view.
template <int kBytes, class index_t, class scalar_t>
SPGRAD_INLINE void sddmm_rows(const Sddmm<index_t, scalar_t>& a, int64_t first, int64_t last) {
  constexpr int kElements = kFull<scalar_t, kBytes>;
  if (a.n == 1) return sddmm_outer<kBytes>(a, first, last);
  if constexpr (kElements > 2) {
    if (a.n < kElements) return sddmm_narrow<kElements / 2>(a, first, last);
  }
  sddmm_dots<kElements>(a, first, last);
}

// The same by the widest vectors of this processor, compiled once in matmul.cpp.
template <class index_t, class scalar_t>
void sddmm_lines(const Sddmm<index_t, scalar_t>& a, int64_t first, int64_t last);

}  // namespace spgrad
