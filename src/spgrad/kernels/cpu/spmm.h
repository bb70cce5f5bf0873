// Sparse times dense: y (m, n) = A x, with A (m, k) a row view (ptr, idx, perm?) and its values.
#pragma once

#include "lanes.h"

namespace spgrad {

// ptr (m + 1), idx (nse), perm (nse) or null, val (nse), x (k, n) and y (m, n) row by row. y is
// allocated and not initialised; every element of the rows asked for is written.
// Columns of a row may be unsorted and repeat. The order of a sum depends on its row and on n
// alone, so a result does not depend on the number of threads.
// O((nse + m) n) time, no memory. The view is read once for every eight vectors of columns.
template <class index_t, class scalar_t>
struct Spmm {
  const index_t* ptr;
  const index_t* idx;
  const index_t* perm;
  const scalar_t* val;
  const scalar_t* x;
  scalar_t* y;
  int64_t n;
  int64_t nse;

  SPGRAD_INLINE const scalar_t* row(int64_t p) const {
    return x + static_cast<int64_t>(idx[p]) * n;
  }
  SPGRAD_INLINE accumulate_t<scalar_t> weight(int64_t p) const {
    return widen(val[perm == nullptr ? p : static_cast<int64_t>(perm[p])]);
  }
};

// A vector of sums of products, with one weight for all lanes.
template <class T, int kElements>
struct Sums {
  Lanes<T, kElements> total{};

  SPGRAD_INLINE void add(accumulate_t<T> weight, const Lanes<T, kElements>& x) {
    total += weight * x;
  }
  SPGRAD_INLINE void join(const Sums& other) { total += other.total; }
  SPGRAD_INLINE void finish(T* out) const { store<kElements>(total, out); }
};

// Interleaved complex lanes times a complex weight without a shuffle per product: the products with
// its real and its imaginary part are summed apart and joined once.
template <class T, int kElements>
struct Sums<Complex<T>, kElements> {
  Vector<T, 2 * kElements> by_real{}, by_imaginary{};

  SPGRAD_INLINE void add(Complex<T> weight, const Vector<T, 2 * kElements>& x) {
    by_real += weight.re * x;
    by_imaginary += weight.im * x;
  }
  SPGRAD_INLINE void join(const Sums& other) {
    by_real += other.by_real;
    by_imaginary += other.by_imaginary;
  }
  SPGRAD_INLINE void finish(Complex<T>* out) const {
    for (int e = 0; e < kElements; ++e) {
      const int re = 2 * e, im = re + 1;
      out[e] = {by_real[re] - by_imaginary[im], by_real[im] + by_imaginary[re]};
    }
  }
};

// Columns [column, column + kVectors * kElements) of y and, if kTail, its last kElements columns,
// which may overlap them. The sums stay in registers over a whole row; few of them would leave the
// adder waiting for itself, so then two sets take turns.
template <int kElements, int kVectors, bool kTail, class index_t, class scalar_t>
SPGRAD_INLINE void spmm_columns(const Spmm<index_t, scalar_t> a, int64_t first, int64_t last,
                                int64_t column) {
  constexpr int kParts = kVectors + kTail, kSets = kParts <= 2 ? 2 : 1;
  const int64_t n = a.n, tail = n - kElements - column;
  const auto offset = [&](int part) { return part < kVectors ? part * kElements : tail; };
  for (int64_t i = first; i < last; ++i) {
    Sums<scalar_t, kElements> sums[kSets][kParts];
    const auto add = [&](int64_t p, int set) {
      const scalar_t* row = a.row(p) + column;
      const accumulate_t<scalar_t> weight = a.weight(p);
#pragma GCC unroll 16
      for (int part = 0; part < kParts; ++part) {
        Lanes<scalar_t, kElements> lanes;
        load<kElements>(row + offset(part), lanes);
        sums[set][part].add(weight, lanes);
      }
    };
    int64_t p = a.ptr[i];
    const int64_t end = a.ptr[i + 1];
    if constexpr (kVectors >= 2) prefetch_rows(a, p, column, kParts * kElements);
    for (; p + kSets <= end; p += kSets) {
#pragma GCC unroll 2
      for (int set = 0; set < kSets; ++set) add(p + set, set);
    }
    if (kSets > 1 && p < end) add(p, 0);
    scalar_t* out = a.y + i * n + column;
#pragma GCC unroll 16
    for (int part = 0; part < kParts; ++part) {
      if (kSets > 1) sums[0][part].join(sums[kSets - 1][part]);
      sums[0][part].finish(out + offset(part));
    }
  }
}

template <int kElements, int kVectors, class index_t, class scalar_t>
void spmm_block(const Spmm<index_t, scalar_t>& a, int64_t first, int64_t last, int64_t column,
                bool tail) {
  if (tail) {
    spmm_columns<kElements, kVectors, true>(a, first, last, column);
  } else {
    spmm_columns<kElements, kVectors, false>(a, first, last, column);
  }
}

// One column: four sums side by side, to hide the latency of the adder.
template <class index_t, class scalar_t>
void spmv(const Spmm<index_t, scalar_t> a, int64_t first, int64_t last) {
  for (int64_t i = first; i < last; ++i) {
    accumulate_t<scalar_t> sums[4]{};
    int64_t p = a.ptr[i];
    const int64_t end = a.ptr[i + 1];
    for (; p + 4 <= end; p += 4) {
      for (int s = 0; s < 4; ++s) sums[s] += a.weight(p + s) * widen(a.x[a.idx[p + s]]);
    }
    for (; p < end; ++p) sums[0] += a.weight(p) * widen(a.x[a.idx[p]]);
    a.y[i] = narrow<scalar_t>((sums[0] + sums[1]) + (sums[2] + sums[3]));
  }
}

// Fewer columns than fill a vector: the largest power of two, overlapped with itself.
template <int kElements, class index_t, class scalar_t>
void spmm_narrow(const Spmm<index_t, scalar_t>& a, int64_t first, int64_t last) {
  if constexpr (kElements > 2) {
    if (a.n < kElements) return spmm_narrow<kElements / 2>(a, first, last);
  }
  spmm_block<kElements, 1>(a, first, last, 0, a.n > kElements);
}

// Vectors in the widest block: types that are converted, or whose arithmetic is slow, gain nothing
// from wider ones.
template <class T>
inline constexpr int kWidest = std::is_floating_point_v<T>                            ? 8
                               : std::is_same_v<T, Half> || std::is_same_v<T, BFloat16> ? 4
                                                                                        : 1;

// Rows [first, last) of y.
template <int kBytes, class index_t, class scalar_t>
SPGRAD_INLINE void spmm_rows(const Spmm<index_t, scalar_t>& a, int64_t first, int64_t last) {
  constexpr int kElements = kFull<scalar_t, kBytes>;
  constexpr int kMost = kWidest<scalar_t>;
  if (a.n == 1) return spmv(a, first, last);
  if constexpr (kElements > 2) {
    if (a.n > 1 && a.n < kElements) return spmm_narrow<kElements / 2>(a, first, last);
  }
  for (int64_t column = 0; column < a.n;) {
    const auto vectors = static_cast<uint64_t>((a.n - column) / kElements);
    const int64_t block = std::min<int64_t>(std::bit_floor(vectors), kMost);
    const int64_t rest = a.n - column - block * kElements;
    const bool tail = rest > 0 && rest < kElements;
    if constexpr (kMost >= 8) {
      if (block == 8) spmm_block<kElements, 8>(a, first, last, column, tail);
    }
    if constexpr (kMost >= 4) {
      if (block == 4) spmm_block<kElements, 4>(a, first, last, column, tail);
      if (block == 2) spmm_block<kElements, 2>(a, first, last, column, tail);
    }
    if (block == 1) spmm_block<kElements, 1>(a, first, last, column, tail);
    column = tail ? a.n : column + block * kElements;
  }
}

}  // namespace spgrad
