// Substitution with the transpose of a triangle T that is given by rows: x (m, n) with T^T x = b.
// Works column by column (Golub and Van Loan, 2013, section 3.1.3): as soon as an element of x is
// known, its multiples are subtracted from the elements that depend on it. So neither the pattern
// nor the values have to be put into the order of the columns.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "common/lanes.h"
#include "solves/division.h"
#include "solves/triangular.h"

namespace spgrad {

// Divides by an element of the diagonal. It multiplies by the inverse, for which no row has to
// wait; if the inverse is not a normal number, it divides.
template <class T>
struct Pivot {
  T by, inverse;
  bool normal;

  explicit Pivot(T diagonal)
      : by(diagonal), inverse(1 / diagonal), normal(std::isnormal(inverse)) {}
  template <int kElements, class Cells>
  SPGRAD_INLINE void divide(Cells& found) const {
    if (normal) [[likely]] {
      found *= inverse;
    } else {
      found /= by;
    }
  }
};
template <class T>
struct Pivot<Complex<T>> {
  Divisor<Complex<T>> divisor;

  explicit Pivot(Complex<T> diagonal) : divisor(diagonal) {}
  template <int kElements, class Cells>
  SPGRAD_INLINE void divide(Cells& found) const {
    divide_lanes<kElements>(divisor, found);
  }
};

// One column of float32 or float64. The number that the next row needs stays in a register, because
// a row would wait for a store and a load of this number. `now` is the right-hand side of row i
// minus the products with all known elements of x. Where columns are consecutive, a vector of them
// is updated at once. Products are subtracted from an element in the order of the rows, for any
// width of vectors.
template <int kBytes, class index_t, class scalar_t>
SPGRAD_INLINE int64_t substitute_transposed_column(const Triangular<index_t, scalar_t> a) {
  constexpr int kLanes = std::max<int>(kBytes / sizeof(scalar_t), 4);
  using Values = Vector<scalar_t, kLanes>;
  std::copy_n(a.b, a.m, a.x);
  scalar_t* const x = a.x;
  const int64_t step = a.upper ? 1 : -1;
  scalar_t now = a.m == 0 ? scalar_t{} : x[a.upper ? 0 : a.m - 1];
  return for_triangle_rows<true>(a, [&](int64_t i, const TriangleRow<scalar_t>& row) {
    scalar_t own = now;
    Pivot<scalar_t>(row.diagonal).template divide<1>(own);
    x[i] = own;
    const int64_t next = i + step;
    if (next < 0 || next == a.m) return;
    now = x[next];
    int64_t begin = row.begin, end = row.end;
    if (begin == end) return;
    const int64_t nearest = a.upper ? begin : end - 1;
    if (a.idx[nearest] == next) {
      now -= a.val[nearest] * own;
      a.upper ? ++begin : --end;
    }
    const auto take = [&](int64_t p) {
      one_by_one();
      x[a.idx[p]] -= a.val[p] * own;
    };
    const auto take_vector = [&](int64_t p) {
      if (!is_run<kLanes>(a.idx, p)) {
        for (int l = 0; l < kLanes; ++l) take(p + l);
        return;
      }
      Values values, weights;
      std::memcpy(&values, x + a.idx[p], sizeof(values));
      std::memcpy(&weights, a.val + p, sizeof(weights));
      values -= weights * own;
      std::memcpy(x + a.idx[p], &values, sizeof(values));
    };
    if (a.upper) {
      for (; begin + kLanes <= end; begin += kLanes) take_vector(begin);
      for (; begin < end; ++begin) take(begin);
    } else {
      for (; begin + kLanes <= end; end -= kLanes) take_vector(end - kLanes);
      for (; begin < end; --end) take(end - 1);
    }
  });
}

// The columns of a row of x that one vector holds. The vector is multiplied by the weights of the
// entries of the row. One real column is a number, not a vector.
template <class scalar_t, int kElements>
struct Solved {
  using Cells = std::conditional_t<std::is_floating_point_v<scalar_t> && kElements == 1, scalar_t,
                                   Lanes<scalar_t, kElements>>;
  Cells x;

  SPGRAD_INLINE void set(const Cells& found) { x = found; }
  SPGRAD_INLINE void take(scalar_t weight, Cells& from) const { from -= weight * x; }
};
// Interleaved complex lanes: x, and i x.
template <class T, int kElements>
struct Solved<Complex<T>, kElements> {
  using Cells = Lanes<Complex<T>, kElements>;
  Cells x, turned;

  SPGRAD_INLINE void set(const Cells& found) {
    constexpr auto partner = [](int l) { return l ^ 1; };
    Cells sign;
    for (int l = 0; l < 2 * kElements; ++l) sign[l] = l % 2 == 0 ? -1 : 1;
    x = found;
    turned = sign * shuffle<2 * kElements>(found, found, partner);
  }
  SPGRAD_INLINE void take(Complex<T> weight, Cells& from) const {
    from -= weight.re * x;
    from -= weight.im * turned;
  }
};

// kParts vectors of columns, the first at `column`. An element of x is divided after all products
// have been subtracted from it. At the beginning, x holds b.
template <int kElements, int kParts, class index_t, class scalar_t>
SPGRAD_INLINE int64_t substitute_transposed_vectors(const Triangular<index_t, scalar_t> a,
                                                    int64_t column) {
  using Part = Solved<scalar_t, kElements>;
  using Cells = typename Part::Cells;
  constexpr int64_t kWidth = kParts * kElements;
  const int64_t step = a.upper ? 1 : -1;
  const Distance ahead = distance_of<scalar_t>(a.ahead, kWidth);
  return for_triangle_rows<true>(a, [&](int64_t i, const TriangleRow<scalar_t>& entries) {
    Part solved[kParts];
    const Pivot<scalar_t> pivot(entries.diagonal);
    const scalar_t* const own = a.x + i * a.stride + column;
#pragma GCC unroll 8
    for (int part = 0; part < kParts; ++part) {
      Cells found;
      std::memcpy(&found, static_cast<const void*>(own + part * kElements), sizeof(found));
      pivot.template divide<kElements>(found);
      a.template finish<kElements>(found, i, column + part * kElements);
      solved[part].set(found);
    }
    int64_t p = a.upper ? entries.begin : entries.end - 1;
    for (int64_t left = entries.end - entries.begin; left > 0; --left, p += step) {
      if (ahead) a.prefetch(p, step, ahead, column, kWidth);
      scalar_t* const row = a.row(p) + column;
      const scalar_t weight = a.val[p];
#pragma GCC unroll 8
      for (int part = 0; part < kParts; ++part) {
        Cells cells;
        std::memcpy(&cells, static_cast<const void*>(row + part * kElements), sizeof(cells));
        solved[part].take(weight, cells);
        std::memcpy(static_cast<void*>(row + part * kElements), &cells, sizeof(cells));
      }
    }
  });
}

// Columns [column, stop), in blocks of kParts vectors while enough columns are left, then of fewer
// vectors, then of narrower vectors. No two blocks share a column, because each block changes x.
template <int kElements, int kParts, class index_t, class scalar_t>
int64_t substitute_transposed_blocks(const Triangular<index_t, scalar_t>& a, int64_t column,
                                     int64_t stop) {
  int64_t failed = -1;
  for (; stop - column >= kParts * kElements; column += kParts * kElements) {
    failed = substitute_transposed_vectors<kElements, kParts>(a, column);
  }
  if (column == stop) return failed;
  if constexpr (kParts > 1) {
    return substitute_transposed_blocks<kElements, kParts / 2>(a, column, stop);
  } else if constexpr (kElements > 1) {
    return substitute_transposed_blocks<kElements / 2, 1>(a, column, stop);
  }
  return failed;
}

// All rows, of columns [column, stop).
template <int kBytes, class index_t, class scalar_t>
SPGRAD_INLINE int64_t substitute_transposed(const Triangular<index_t, scalar_t>& a, int64_t column,
                                            int64_t stop) {
  if (a.n == 0) {
    return for_triangle_rows<true>(a, [](int64_t, const TriangleRow<scalar_t>&) {});
  }
  if constexpr (std::is_floating_point_v<scalar_t>) {
    if (a.n == 1) return substitute_transposed_column<kBytes>(a);
  }
  for (int64_t i = 0; i < a.m; ++i) {
    std::copy_n(a.b + i * a.n + column, stop - column, a.x + i * a.stride + column);
  }
  return substitute_transposed_blocks<kFull<scalar_t, kBytes>, 4>(a, column, stop);
}

}  // namespace spgrad
