// Sums of products of small dense matrices, of which products with matrices of dense blocks
// consist.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "common/lanes.h"

namespace spgrad {

// A factor W (rows, inner) and a factor X (inner, columns) of one product.
template <class T>
struct Factors {
  const T* w;
  const T* x;
};

// out (rows, columns) = the sum of the `count` products W X; zeros if there are none. W is stored
// row by row, w_step apart, or column by column if `turned`. Rows of X are x_step apart, rows of
// out out_step. Every element of out is written, and out need not be initialised. Each element is a
// sum over the products and the columns of W, whose order depends on the sizes alone. O(count rows
// inner columns) time, no memory.
template <class T>
struct SmallProducts {
  const Factors<T>* factors;
  int64_t count;
  int64_t rows, inner, columns;
  int64_t w_step;
  bool turned;
  int64_t x_step;
  T* out;
  int64_t out_step;
};

// Calls f.operator()<0>(), f.operator()<1>() ... <kCount - 1>(), unrolled: an array that f indexes
// then stays in registers, also within loops around the calls.
template <int kCount, class F>
SPGRAD_INLINE void unrolled(const F& f) {
  [&]<int... i>(std::integer_sequence<int, i...>) __attribute__((always_inline)) {
    (f.template operator()<i>(), ...);
  }(std::make_integer_sequence<int, kCount>());
}
#define SPGRAD_INLINED __attribute__((always_inline))

// The number of vectors of sums that fit in the registers of kBytes besides the factors.
template <int kBytes>
inline constexpr int kSumsHeld = kBytes == 64 ? 16 : 8;

// The elements of one column of W in kRows rows, for one column after the other. Three rows share a
// pointer, and the computation of a pointer is hidden from the compiler. Otherwise the compiler
// would keep the offsets of all rows, for which there are not enough registers, or keep several
// pointers in a vector.
template <int kRows, bool kTurned, class T>
struct Weights {
  static constexpr int kPointers = kTurned ? 1 : (kRows + 2) / 3;
  const T* at[kPointers];
  int64_t step;

  SPGRAD_INLINE Weights(const T* w, int64_t row, int64_t w_step) : step(w_step) {
    unrolled<kPointers>([&]<int i>() SPGRAD_INLINED {
      at[i] = w + (kTurned ? row : (row + 3 * i) * w_step);
      hide(at[i]);
    });
  }
  static SPGRAD_INLINE void hide([[maybe_unused]] const T*& pointer) { asm("" : "+r"(pointer)); }
  template <int kRow>
  SPGRAD_INLINE T of_row() const {
    return kTurned ? at[0][kRow] : at[kRow / 3][kRow % 3 * step];
  }
  SPGRAD_INLINE void next() {
    unrolled<kPointers>([&]<int i>() SPGRAD_INLINED {
      at[i] += kTurned ? step : 1;
      hide(at[i]);
    });
  }
};

// Rows [row, row + kRows) of out, and kParts vectors of columns, the first at `column`. If the last
// vector would pass the end, it is moved back and computes some columns again. A row of X is loaded
// once for all the rows. If there are few sums, several sets of sums take turns, so an addition
// does not wait for the one before.
template <int kElements, int kRows, int kParts, bool kTurned, class T>
SPGRAD_INLINE void small_tile(const SmallProducts<T> a, int64_t row, int64_t column) {
  constexpr int kSets = kRows * kParts >= 8 ? 1 : kRows * kParts >= 4 ? 2 : 4;
  const int64_t x_step = a.x_step, inner = a.inner;
  const int64_t final = std::min<int64_t>((kParts - 1) * kElements, a.columns - kElements - column);
  const auto offset = [&](int part)
                          SPGRAD_INLINED { return part < kParts - 1 ? part * kElements : final; };
  Lanes<T, kElements> sums[kSets][kRows][kParts]{};
  for (int64_t p = 0; p < a.count; ++p) {
    Weights<kRows, kTurned, T> weights(a.factors[p].w, row, a.w_step);
    const T* x = a.factors[p].x + column;
    const auto add = [&]<int kSet>() SPGRAD_INLINED {
      Lanes<T, kElements> lanes[kParts];
      unrolled<kParts>([&]<int kPart>()
                           SPGRAD_INLINED { load<kElements>(x + offset(kPart), lanes[kPart]); });
      unrolled<kRows>([&]<int kRow>() SPGRAD_INLINED {
        const T weight = weights.template of_row<kRow>();
        unrolled<kParts>([&]<int kPart>()
                             SPGRAD_INLINED { sums[kSet][kRow][kPart] += weight * lanes[kPart]; });
      });
      weights.next();
      x += x_step;
    };
    int64_t c = inner;
    for (; c >= kSets; c -= kSets) unrolled<kSets>(add);
    if constexpr (kSets > 1) {
      for (; c > 0; --c) add.template operator()<0>();
    }
  }
  unrolled<kRows>([&]<int kRow>() SPGRAD_INLINED {
    T* const out = a.out + (row + kRow) * a.out_step + column;
    unrolled<kParts>([&]<int kPart>() SPGRAD_INLINED {
      unrolled<kSets - 1>(
          [&]<int kSet>() SPGRAD_INLINED { sums[0][kRow][kPart] += sums[kSet + 1][kRow][kPart]; });
      store<kElements, T>(sums[0][kRow][kPart], out + offset(kPart));
    });
  });
}

// Columns from `column` on, in tiles of kParts vectors while enough columns are left, then of half
// as many.
template <int kElements, int kRows, int kParts, bool kTurned, class T>
SPGRAD_INLINE void small_columns(const SmallProducts<T>& a, int64_t row, int64_t column) {
  for (; a.columns - column > (kParts - 1) * kElements; column += kParts * kElements) {
    small_tile<kElements, kRows, kParts, kTurned>(a, row, column);
  }
  if constexpr (kParts > 1) {
    if (column < a.columns) small_columns<kElements, kRows, kParts / 2, kTurned>(a, row, column);
  }
}

// Rows from `row` on, kRows at a time as long as there are so many, then half as many. The columns
// fill a vector.
template <int kElements, int kRows, int kMost, bool kTurned, class T>
SPGRAD_INLINE void small_rows(const SmallProducts<T>& a, int64_t row) {
  constexpr int kHeld = kSumsHeld<kElements* static_cast<int>(sizeof(T))> / kRows;
  constexpr int kParts = std::min({kHeld, kMost, 4});
  for (; a.rows - row >= kRows; row += kRows) {
    small_columns<kElements, kRows, kParts, kTurned>(a, row, 0);
  }
  if constexpr (kRows > 1) {
    if (row < a.rows) small_rows<kElements, kRows / 2, kMost, kTurned>(a, row);
  }
}

// In vectors of kElements, or of the largest power of two that is not more than the columns.
template <int kElements, int kMost, bool kTurned, class T>
SPGRAD_INLINE void small_products(const SmallProducts<T>& a) {
  if constexpr (kElements > 1) {
    if (a.columns < kElements) return small_products<kElements / 2, 2, kTurned>(a);
  }
  small_rows<kElements, 8, kMost, kTurned>(a, 0);
}

// SmallProducts in registers of kBytes, for float and double; compiled once, in small_products.cpp.
template <int kBytes, class T>
void add_small_products(const SmallProducts<T>& a);

// The same with one column; `swapped` has room for the factors. W stored column by column is
// multiplied only where rows of `out` are contiguous.
template <int kBytes, class T>
void add_to_column(const SmallProducts<T>& a, Factors<T>* swapped);

}  // namespace spgrad
