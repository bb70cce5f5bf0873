// C -= A B of small dense matrices.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/lanes.h"

namespace spgrad {

// The number of elements of a row that is padded to whole vectors of 64 bytes. The distance of two
// rows is never a multiple of 4096 bytes, because the rows would then share a set of the cache.
template <class scalar_t>
int64_t padded(int64_t size) {
  constexpr int64_t kLine = 64 / sizeof(scalar_t);
  const int64_t lines = (size + kLine - 1) / kLine;
  return (lines + (lines % 64 == 0 ? 1 : 0)) * kLine;
}

// A matrix stored row by row; `stride` is the number of elements from one row to the next.
template <class scalar_t>
struct Rows {
  scalar_t* start;
  int64_t stride;

  SPGRAD_INLINE scalar_t* operator[](int64_t i) const { return start + i * stride; }
  SPGRAD_INLINE Rows at(int64_t i, int64_t j) const { return {(*this)[i] + j, stride}; }
};

// kRows rows and kVectors vectors of C. For complex numbers, the products with the real and with
// the imaginary part of A have separate sums; the second sum is multiplied by i at the end.
template <int kBytes, int kRows, int kVectors, class scalar_t>
SPGRAD_INLINE void subtract_tile(Rows<scalar_t> a, Rows<scalar_t> b, Rows<scalar_t> c,
                                 int64_t count) {
  using T = lane_t<scalar_t>;
  constexpr int kParts = Lane<scalar_t>::count, kElements = kFull<scalar_t, kBytes>;
  using Values = Lanes<scalar_t, kElements>;
  Values sum[kRows][kParts][kVectors] = {};
  for (int64_t p = 0; p < count; ++p) {
    Values values[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) load<kElements>(b[p] + v * kElements, values[v]);
#pragma GCC unroll 4
    for (int i = 0; i < kRows; ++i) {
      T factor[kParts];
      std::memcpy(factor, a[i] + p, sizeof(factor));
#pragma GCC unroll 2
      for (int part = 0; part < kParts; ++part) {
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) sum[i][part][v] += factor[part] * values[v];
      }
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      Values out;
      load<kElements>(c[i] + v * kElements, out);
      out -= sum[i][0][v];
      if constexpr (kParts == 2) {
        constexpr int kLanes = kElements * 2;
        const Values other = sum[i][1][v];
        // i (x + i y) = -y + i x
        const Values turned =
            shuffle<kLanes>(-other, other, [](int l) { return l % 2 * (kLanes - 2) + l + 1; });
        out -= turned;
      }
      store<kElements>(out, c[i] + v * kElements);
    }
  }
}

template <int kBytes, int kRows, class scalar_t>
SPGRAD_INLINE void subtract_rows(Rows<scalar_t> a, Rows<scalar_t> b, Rows<scalar_t> c,
                                 int64_t count, int64_t columns) {
  constexpr int kElements = kFull<scalar_t, kBytes>;
  constexpr int kVectors = Lane<scalar_t>::count == 2 || kBytes < 64 ? 2 : 4;
  int64_t j = 0;
  for (; j + kVectors * kElements <= columns; j += kVectors * kElements) {
    subtract_tile<kBytes, kRows, kVectors>(a, b.at(0, j), c.at(0, j), count);
  }
  for (; j < columns; j += kElements) {
    subtract_tile<kBytes, kRows, 1>(a, b.at(0, j), c.at(0, j), count);
  }
}

// C (rows, columns) -= A (rows, count) B (count, columns). Rows of B and C are padded, and columns
// up to the next whole vector are written; the numbers beyond the columns of B have no meaning.
// Blocks of B of 256 KiB stay in the cache.
template <int kBytes, class scalar_t>
SPGRAD_INLINE void subtract_product(Rows<scalar_t> a, Rows<scalar_t> b, Rows<scalar_t> c,
                                    int64_t rows, int64_t count, int64_t columns) {
  constexpr int64_t kDeep = 128, kWide = 2048 / sizeof(scalar_t);
  for (int64_t j = 0; j < columns; j += kWide) {
    const int64_t wide = std::min(kWide, columns - j);
    for (int64_t p = 0; p < count; p += kDeep) {
      const int64_t deep = std::min(kDeep, count - p);
      const Rows<scalar_t> block = b.at(p, j);
      int64_t i = 0;
      for (; i + 4 <= rows; i += 4) {
        subtract_rows<kBytes, 4>(a.at(i, p), block, c.at(i, j), deep, wide);
      }
      for (; i + 2 <= rows; i += 2) {
        subtract_rows<kBytes, 2>(a.at(i, p), block, c.at(i, j), deep, wide);
      }
      if (i < rows) subtract_rows<kBytes, 1>(a.at(i, p), block, c.at(i, j), deep, wide);
    }
  }
}

}  // namespace spgrad
