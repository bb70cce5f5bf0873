// Dot products of the rows of small matrices: products of a block with one column, and the blocks
// of g x^T that have too few columns to fill a vector.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "common/lanes.h"
#include "products/blocks/small_products.h"

namespace spgrad {

// Rows [row, row + kRows) of SmallProducts with one column and W stored row by row. A vector holds
// consecutive elements of a row of W.
template <int kElements, int kRows, class T>
SPGRAD_INLINE void dot_rows(const SmallProducts<T> a, int64_t row) {
  const int64_t whole = a.inner - a.inner % kElements;
  Lanes<T, kElements> sums[kRows]{};
  T rest[kRows]{};
  for (int64_t p = 0; p < a.count; ++p) {
    const T* const w = a.factors[p].w + row * a.w_step;
    const T* const x = a.factors[p].x;
    for (int64_t c = 0; c < whole; c += kElements) {
      Lanes<T, kElements> lanes, weights;
      load<kElements>(x + c, lanes);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        load<kElements>(w + r * a.w_step + c, weights);
        sums[r] += weights * lanes;
      }
    }
    for (int64_t c = whole; c < a.inner; ++c) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) rest[r] += w[r * a.w_step + c] * x[c];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    T sum = rest[r];
    for (int l = 0; l < kElements; ++l) sum += sums[r][l];
    a.out[(row + r) * a.out_step] = sum;
  }
}

template <int kElements, int kRows, class T>
SPGRAD_INLINE void dots_from(const SmallProducts<T>& a, int64_t row) {
  for (; a.rows - row >= kRows; row += kRows) dot_rows<kElements, kRows>(a, row);
  if constexpr (kRows > 1) {
    if (row < a.rows) dots_from<kElements, kRows / 2>(a, row);
  }
}

template <int kElements, class T>
SPGRAD_INLINE void small_dots(const SmallProducts<T>& a) {
  if constexpr (kElements > 2) {
    if (a.inner < kElements) return small_dots<kElements / 2>(a);
  }
  dots_from<kElements, 8>(a, 0);
}

// Blocks of kSide x kSide elements of g x^T. The rows of an operand are `turned`: a block of kSide
// rows is stored as the first elements of all rows, then the second elements, and so on. A vector
// of kElements then holds several columns of the block; `padded` is the number of columns,
// including zeros at the end.
template <int kElements, int kSide>
struct Square {
  static constexpr int kColumns = kElements / kSide;

  static constexpr int64_t padded(int64_t n) { return (n + kColumns - 1) / kColumns * kColumns; }

  // The turned block of `own` with its rows moved up by 0, 1 ... places: kSide blocks of kSide
  // padded(n) elements, one after the other.
  template <class T>
  static SPGRAD_INLINE void rotate(const T* own, int64_t n, T* out) {
    const int64_t size = kSide * padded(n);
    for (int64_t j = 0; j < size; j += kElements) {
      Lanes<T, kElements> lanes;
      load<kElements>(own + j, lanes);
#pragma GCC unroll 4
      for (int s = 0; s < kSide; ++s) {
        store<kElements>(lanes, out + s * size + j);
        constexpr auto up = [](int l) { return l / kSide * kSide + (l + 1) % kSide; };
        lanes = shuffle<kElements>(lanes, lanes, up);
      }
    }
  }

  // out[a][b], or out[b][a] if kTurned, = the dot product of row a of the block from which
  // `rotated` was made and row b of the turned block `other`. Lane l of sum s belongs to a = (b +
  // s) % kSide and b = l % kSide. Two sets of sums take turns, so an addition does not wait for the
  // one before.
  template <bool kTurned, class T>
  static SPGRAD_INLINE void dots(const T* rotated, const T* other, int64_t n, T* out) {
    const int64_t size = kSide * padded(n);
    Lanes<T, kElements> sums[2][kSide]{};
    const auto add = [&](int64_t j, int set) {
      Lanes<T, kElements> left, right;
      load<kElements>(other + j, right);
#pragma GCC unroll 4
      for (int s = 0; s < kSide; ++s) {
        load<kElements>(rotated + s * size + j, left);
        sums[set][s] += left * right;
      }
    };
    int64_t j = 0;
    for (; j + 2 * kElements <= size; j += 2 * kElements) {
      add(j, 0);
      add(j + kElements, 1);
    }
    if (j < size) add(j, 0);
#pragma GCC unroll 4
    for (int s = 0; s < kSide; ++s) sums[0][s] += sums[1][s];
    T joined[kSide * kSide];
    join<kSide, kColumns, T>(sums[0], joined);
    order<kTurned>(joined, out);
  }

 private:
  // Adds up the columns in the vectors until one column is left, and writes the sums one after the
  // other. A vector holds kGroups columns of one sum, then those of another sum, and so on.
  template <int kVectors, int kGroups, class T>
  static SPGRAD_INLINE void join(const Lanes<T, kElements> (&v)[kVectors], T* out) {
    if constexpr (kGroups == 1) {
#pragma GCC unroll 4
      for (int i = 0; i < kVectors; ++i) store<kElements>(v[i], out + i * kElements);
    } else if constexpr (kVectors > 1) {
      constexpr int kRun = kGroups * kSide, kHalf = kRun / 2;
      constexpr auto low = [](int l) { return l / kHalf * kRun + l % kHalf; };
      constexpr auto high = [](int l) { return l / kHalf * kRun + kHalf + l % kHalf; };
      Lanes<T, kElements> halved[kVectors / 2];
#pragma GCC unroll 2
      for (int i = 0; i < kVectors / 2; ++i) {
        halved[i] = shuffle<kElements>(v[2 * i], v[2 * i + 1], low) +
                    shuffle<kElements>(v[2 * i], v[2 * i + 1], high);
      }
      join<kVectors / 2, kGroups / 2, T>(halved, out);
    } else {
      finish<kElements, kGroups, T>(v[0], out);
    }
  }

  // The same for the one remaining vector of kLanes, which gets shorter.
  template <int kLanes, int kGroups, class T>
  static SPGRAD_INLINE void finish(const Vector<T, kLanes>& v, T* out) {
    if constexpr (kGroups == 1) {
      std::memcpy(out, &v, sizeof(v));
    } else {
      constexpr int kRun = kGroups * kSide, kHalf = kRun / 2;
      constexpr auto low = [](int l) { return l / kHalf * kRun + l % kHalf; };
      constexpr auto high = [](int l) { return l / kHalf * kRun + kHalf + l % kHalf; };
      const Vector<T, kLanes / 2> half =
          shuffle<kLanes / 2>(v, v, low) + shuffle<kLanes / 2>(v, v, high);
      finish<kLanes / 2, kGroups / 2, T>(half, out);
    }
  }

  // Brings the sums into the order of the block.
  template <bool kTurned, class T>
  static SPGRAD_INLINE void order(const T* joined, T* out) {
    constexpr int kSize = kSide * kSide;
    constexpr auto pick = [](int e) {
      const int a = kTurned ? e % kSide : e / kSide, b = kTurned ? e / kSide : e % kSide;
      return (a - b + kSide) % kSide * kSide + b;
    };
    if constexpr (kElements >= kSize) {
      Vector<T, kSize> v;
      std::memcpy(&v, joined, sizeof(v));
      v = shuffle<kSize>(v, v, pick);
      std::memcpy(out, &v, sizeof(v));
    } else if constexpr (2 * kElements == kSize) {
      Vector<T, kElements> v[2];
      std::memcpy(&v, joined, sizeof(v));
      constexpr auto second = [](int e) { return decltype(pick)()(kElements + e); };
      store<kElements>(shuffle<kElements>(v[0], v[1], pick), out);
      store<kElements>(shuffle<kElements>(v[0], v[1], second), out + kElements);
    } else {
#pragma GCC unroll 16
      for (int e = 0; e < kSize; ++e) out[e] = joined[pick(e)];
    }
  }
};

}  // namespace spgrad
