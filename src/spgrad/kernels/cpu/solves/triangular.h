// Substitution with a triangle T of a square matrix, row by row: x (m, n) with T x = b.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "common/lanes.h"
#include "products/spmm.h"
#include "reading/gather.h"
#include "reading/prefetch.h"
#include "solves/division.h"

namespace spgrad {

// ptr (m + 1), idx (nse) and val (nse) are the matrix by rows, whose columns are sorted and do not
// repeat; b (m, n) row by row. Entries of the other triangle are not read. x is allocated and not
// initialised. If `out` is null, x (m, n) is the result. Otherwise x is a tile, which has some
// columns, in rows that are `stride` elements apart and are read many times; results are also
// stored to out (m, n). The sum of a row begins with the entries that are farthest from the
// diagonal, because x is known there, and ends with the nearest. Its order depends on the row and
// on whether n is 1, but not on the number of threads or on tiles. O((nse + m) n) time, no memory.
template <class index_t, class scalar_t>
struct Triangular {
  const index_t* ptr;
  const index_t* idx;
  const scalar_t* val;
  const scalar_t* b;
  scalar_t* x;
  int64_t m;
  int64_t n;
  int64_t nse;
  bool upper;     // which triangle
  bool unit;      // the diagonal counts as ones
  Ahead ahead{};  // rows of x that are prefetched
  int64_t stride = n;
  scalar_t* out = nullptr;
  bool streamed = false;  // rows of out are whole cache lines, and are written past the caches

  SPGRAD_INLINE scalar_t* row(int64_t p) const { return x + static_cast<int64_t>(idx[p]) * stride; }

  // Prefetches columns [column, column + width) of the row of x of the entry that is `ahead`
  // entries further on than p, or further back if `step` is -1.
  SPGRAD_INLINE void prefetch(int64_t p, int64_t step, Distance ahead, int64_t column,
                              int64_t width) const {
    const auto later = [&](int64_t entries) {
      return row(std::clamp<int64_t>(p + step * entries, 0, nse - 1)) + column;
    };
    prefetch_ahead(later, ahead, width);
  }

  // Sets x of row i in kElements columns from `column` on.
  template <int kElements, class Cells>
  SPGRAD_INLINE void finish(const Cells& found, int64_t i, int64_t column) const {
    std::memcpy(static_cast<void*>(x + i * stride + column), &found, sizeof(found));
    if (out == nullptr) return;
    scalar_t* const to = out + i * n + column;
    if constexpr (std::is_floating_point_v<scalar_t> && sizeof(found) >= 32) {
      if (streamed) return spgrad::stream<kElements>(found, to);
    }
    std::memcpy(static_cast<void*>(to), &found, sizeof(found));
  }
};

// The entries of one row off the diagonal, and the element on the diagonal: 0 if there is none.
template <class scalar_t>
struct TriangleRow {
  int64_t begin, end;
  scalar_t diagonal;
};

template <class index_t, class scalar_t>
SPGRAD_INLINE TriangleRow<scalar_t> triangle_row(const Triangular<index_t, scalar_t>& a,
                                                 int64_t i) {
  TriangleRow<scalar_t> row{a.ptr[i], a.ptr[i + 1], scalar_t{}};
  const auto own = static_cast<index_t>(i);
  if (row.begin == row.end) return row;
  if (a.upper) {
    if (a.idx[row.begin] < own) [[unlikely]] {
      row.begin = std::lower_bound(a.idx + row.begin, a.idx + row.end, own) - a.idx;
    }
    if (row.begin < row.end && a.idx[row.begin] == own) row.diagonal = a.val[row.begin++];
  } else {
    if (a.idx[row.end - 1] > own) [[unlikely]] {
      row.end = std::upper_bound(a.idx + row.begin, a.idx + row.end, own) - a.idx;
    }
    if (row.begin < row.end && a.idx[row.end - 1] == own) row.diagonal = a.val[--row.end];
  }
  return row;
}

// Calls f(i, row) for the rows in the order of the substitution with T, or with its transpose.
// Returns the first row whose diagonal is 0, or -1.
template <bool kTransposed = false, class index_t, class scalar_t, class F>
SPGRAD_INLINE int64_t for_triangle_rows(const Triangular<index_t, scalar_t>& a, const F& f) {
  const bool back = a.upper != kTransposed;
  int64_t failed = -1;
  for (int64_t at = 0; at < a.m; ++at) {
    const int64_t i = back ? a.m - 1 - at : at;
    TriangleRow<scalar_t> row = triangle_row(a, i);
    if (a.unit) {
      row.diagonal = scalar_t(1);
    } else if (is_zero(row.diagonal)) [[unlikely]] {
      if (back || failed < 0) failed = i;
    }
    f(i, row);
  }
  return failed;
}

// Whether the kLanes entries from p on have consecutive columns, as the entries of a supernode do.
template <int kLanes, class index_t>
SPGRAD_INLINE bool is_run(const index_t* idx, int64_t p) {
  return idx[p + kLanes - 1] - idx[p] == kLanes - 1;
}

// One column of float32 or float64. Only the last entries of the sum of a row wait for the row
// before it. They are added one by one, so that stored elements of x can be forwarded to the loads;
// the other entries are added in vectors, ahead of time. The terms of the sum are multiplied by the
// inverse of the diagonal before the x of the last entry is known, so no row waits for a division.
template <int kBytes, class index_t, class scalar_t>
SPGRAD_INLINE int64_t substitute_column(const Triangular<index_t, scalar_t> a) {
  constexpr int kLanes = std::max<int>(kBytes / sizeof(scalar_t), 4);
  constexpr int64_t kLast = 4;
  using Values = Vector<scalar_t, kLanes>;
  return for_triangle_rows(a, [&](int64_t i, const TriangleRow<scalar_t>& row) {
    const int64_t count = row.end - row.begin;
    const int64_t whole = count > kLast ? (count - kLast) / kLanes * kLanes : 0;
    const int64_t from = a.upper ? row.end - whole : row.begin;
    scalar_t sum = a.b[i];
    if (whole > 0) {
      Values total{};
      for (int64_t p = from; p < from + whole; p += kLanes) {
        using Cell = std::conditional_t<sizeof(scalar_t) == 4, uint32_t, uint64_t>;
        Vector<Cell, kLanes> cells;
        if (is_run<kLanes>(a.idx, p)) {
          std::memcpy(&cells, a.x + a.idx[p], sizeof(cells));
        } else {
          gather<Cell, kLanes>(a.x, a.idx + p, kLanes, cells);
        }
        Values weights;
        std::memcpy(&weights, a.val + p, sizeof(weights));
        total += weights * std::bit_cast<Values>(cells);
      }
      Vector<scalar_t, 4> four;
      join_groups<scalar_t, kLanes>(total, four, Add());
      sum -= (four[0] + four[1]) + (four[2] + four[3]);
    }
    const int64_t step = a.upper ? -1 : 1;
    int64_t p = a.upper ? from - 1 : from + whole;
    int64_t left = count - whole;
    const scalar_t inverse = 1 / row.diagonal;
    if (left == 0 || !std::isnormal(inverse)) [[unlikely]] {
      for (; left > 0; --left, p += step) sum -= a.val[p] * a.x[a.idx[p]];
      a.x[i] = sum / row.diagonal;
      return;
    }
    for (; left > 1; --left, p += step) {
      one_by_one();
      sum -= a.val[p] * a.x[a.idx[p]];
    }
    a.x[i] = sum * inverse - a.val[p] * inverse * a.x[a.idx[p]];
  });
}

// One complex column.
template <class index_t, class T>
int64_t substitute_complex_column(const Triangular<index_t, Complex<T>> a) {
  return for_triangle_rows(a, [&](int64_t i, const TriangleRow<Complex<T>>& row) {
    Complex<T> sum{};
    const int64_t step = a.upper ? -1 : 1;
    int64_t p = a.upper ? row.end - 1 : row.begin;
    for (int64_t left = row.end - row.begin; left > 0; --left, p += step) {
      sum += a.val[p] * a.x[a.idx[p]];
    }
    a.x[i] = Divisor<Complex<T>>(row.diagonal)(a.b[i] - sum);
  });
}

// v / divisor, element by element.
template <int kElements, class scalar_t>
SPGRAD_INLINE void divide_lanes(const Divisor<scalar_t>& divisor, Lanes<scalar_t, kElements>& v) {
  if constexpr (std::is_floating_point_v<scalar_t>) {
    v /= divisor.by;
  } else {
    scalar_t each[kElements];
    std::memcpy(static_cast<void*>(each), &v, sizeof(v));
    for (int e = 0; e < kElements; ++e) each[e] = divisor(each[e]);
    std::memcpy(&v, each, sizeof(v));
  }
}

// kParts vectors of columns, the first at `column`, of columns that end at `stop`. If the last
// vector would pass the end, it is moved back and computes some columns again. Two sets of sums
// take turns, so an addition does not wait for the one before.
template <int kElements, int kParts, class index_t, class scalar_t>
SPGRAD_INLINE int64_t substitute_vectors(const Triangular<index_t, scalar_t> a, int64_t column,
                                         int64_t stop) {
  constexpr int kBytes = sizeof(Lanes<scalar_t, kElements>);
  constexpr int64_t kWidth = kParts * kElements;
  const int64_t final = std::min<int64_t>((kParts - 1) * kElements, stop - kElements - column);
  const auto offset = [&](int part) { return part < kParts - 1 ? part * kElements : final; };
  const int64_t step = a.upper ? -1 : 1;
  const Distance ahead = distance_of<scalar_t>(a.ahead, kWidth);
  return for_triangle_rows(a, [&](int64_t i, const TriangleRow<scalar_t>& entries) {
    Sums<scalar_t, kElements> sums[2][kParts];
    const auto add = [&](int64_t p, int set) {
      if (ahead) a.prefetch(p, step, ahead, column, kWidth);
      const scalar_t* row = a.row(p) + column;
      const scalar_t weight = load_one<kBytes>(a.val[p]);
#pragma GCC unroll 8
      for (int part = 0; part < kParts; ++part) {
        Lanes<scalar_t, kElements> lanes;
        load<kElements>(row + offset(part), lanes);
        sums[set][part].add(weight, lanes);
      }
    };
    const int64_t count = entries.end - entries.begin;
    int64_t p = a.upper ? entries.end - 1 : entries.begin;
    for (int64_t pair = count / 2; pair > 0; --pair, p += 2 * step) {
      add(p, 0);
      add(p + step, 1);
    }
    if (count % 2 != 0) add(p, 0);
    const Divisor<scalar_t> divisor(entries.diagonal);
#pragma GCC unroll 8
    for (int part = 0; part < kParts; ++part) {
      sums[0][part].join(sums[1][part]);
      scalar_t total[kElements];
      sums[0][part].finish(total, false);
      Lanes<scalar_t, kElements> found, sum;
      load<kElements>(a.b + i * a.n + column + offset(part), found);
      load<kElements>(total, sum);
      found -= sum;
      divide_lanes<kElements>(divisor, found);
      a.template finish<kElements>(found, i, column + offset(part));
    }
  });
}

// Columns [column, stop), two or more, in blocks of kParts vectors while enough columns are left,
// then of fewer, then in narrower vectors. The last block of several vectors, or of the narrowest
// one, may end before its last vector does.
template <int kElements, int kParts, class index_t, class scalar_t>
int64_t substitute_blocks(const Triangular<index_t, scalar_t>& a, int64_t column, int64_t stop) {
  constexpr bool kNarrowest = kElements <= 2;
  constexpr int64_t kLeast =
      kParts > 1 || kNarrowest ? (kParts - 1) * kElements + 1 : int64_t{kElements};
  int64_t failed = -1;
  for (; stop - column >= kLeast; column += kParts * kElements) {
    failed = substitute_vectors<kElements, kParts>(a, column, stop);
  }
  if (column >= stop) return failed;
  if constexpr (kParts > 1) {
    failed = substitute_blocks<kElements, kParts / 2>(a, column, stop);
  } else if constexpr (!kNarrowest) {
    failed = substitute_blocks<kElements / 2, 2>(a, column, stop);
  }
  return failed;
}

// All rows, in the columns [column, stop). n is 1, or there are two columns or more.
template <int kBytes, class index_t, class scalar_t>
SPGRAD_INLINE int64_t substitute_columns(const Triangular<index_t, scalar_t>& a, int64_t column,
                                         int64_t stop) {
  if (a.n == 0) {
    return for_triangle_rows(a, [](int64_t, const TriangleRow<scalar_t>&) {});
  }
  if constexpr (std::is_floating_point_v<scalar_t>) {
    if (a.n == 1) return substitute_column<kBytes>(a);
  } else {
    if (a.n == 1) return substitute_complex_column(a);
  }
  constexpr int kElements = kFull<scalar_t, kBytes>;
  constexpr int kParts = !std::is_floating_point_v<scalar_t> ? 2 : kBytes == 64 ? 8 : 4;
  return substitute_blocks<kElements, kParts>(a, column, stop);
}

}  // namespace spgrad
