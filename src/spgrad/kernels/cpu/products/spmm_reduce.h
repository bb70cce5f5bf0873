// Sparse times dense over other reductions than the sum: y (m, n) from a row view (ptr, idx,
// perm?).
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "common/lanes.h"
#include "common/threads.h"
#include "reading/prefetch.h"
#include "reading/traffic.h"

namespace spgrad {

// The integer type as wide as a lane of T.
template <class T>
using position_t = std::conditional_t<sizeof(lane_t<T>) == 8, int64_t, int32_t>;

// ptr (m + 1), idx (nse), perm (nse) or null, val (nse), x (k, n); y and arg (m, n) are allocated
// and not initialised. y[i, j] is the extreme product of an entry of row i with column j of x, or
// with kPlus the extreme sum, and arg[i, j] the first entry p that has it; a NaN is extreme.
// Columns of a row may be unsorted and repeat. Each element of y is computed on its own, so no
// result depends on the number of threads. O((nse + m) n) time, no memory. 16-bit floats are
// compared as the float32 products they make.
template <class index_t, class scalar_t, bool kPlus = false>
struct SpmmReduce {
  const index_t* ptr;
  const index_t* idx;
  const index_t* perm;
  const scalar_t* val;
  const scalar_t* x;
  scalar_t* y;
  index_t* arg;
  int64_t n;
  int64_t nse;
  bool largest;
  Ahead ahead;     // rows of x that are prefetched
  bool by_blocks;  // see Traffic
  bool streamed;   // y and arg are written past the caches

  SPGRAD_INLINE const scalar_t* row(int64_t p) const {
    return x + static_cast<int64_t>(idx[p]) * n;
  }
  template <int kBytes>
  SPGRAD_INLINE accumulate_t<scalar_t> weight(int64_t p) const {
    return load_one<kBytes>(val[perm == nullptr ? p : static_cast<int64_t>(perm[p])]);
  }
  // What is compared, for an element of x, or for a vector of them.
  template <class W, class X>
  static SPGRAD_INLINE auto joined(const W& weight, const X& of_x) {
    if constexpr (kPlus) {
      return weight + of_x;
    } else {
      return weight * of_x;
    }
  }
};

// `stream` for vectors of integers.
template <int kElements, class T>
SPGRAD_INLINE void stream_bits(const Vector<T, kElements>& from, T* to) {
  using Float = std::conditional_t<sizeof(T) == 8, double, float>;
  Lanes<Float, kElements> bits;
  std::memcpy(&bits, &from, sizeof(bits));
  stream<kElements>(bits, static_cast<Float*>(static_cast<void*>(to)));
}

// A product of two elements, in the type in which products are compared.
template <class T>
using product_t = std::conditional_t<std::is_integral_v<T>, T, accumulate_t<T>>;

// What a row without entries gives.
template <class index_t, class scalar_t, bool kPlus>
SPGRAD_INLINE product_t<scalar_t> of_no_entries(const SpmmReduce<index_t, scalar_t, kPlus>& a) {
  using product = product_t<scalar_t>;
  if constexpr (!kPlus) return product{};
  const product infinity = std::numeric_limits<product>::infinity();
  return a.largest ? -infinity : infinity;
}

// Some columns one by one: for integers, whose products wrap before they are compared, and for the
// remaining columns.
template <int kColumns, int kBytes, class index_t, class scalar_t, bool kPlus>
void reduce_few(const SpmmReduce<index_t, scalar_t, kPlus> a, int64_t i, int64_t column) {
  using product = product_t<scalar_t>;
  product best[kColumns];
  index_t arg[kColumns];
  std::fill_n(best, kColumns, of_no_entries(a));
  std::fill_n(arg, kColumns, index_t{-1});
  const index_t first = a.ptr[i];
  for (index_t p = first; p < a.ptr[i + 1]; ++p) {
    const scalar_t* x = a.row(p) + column;
    const auto weight = a.template weight<kBytes>(p);
    for (int l = 0; l < kColumns; ++l) {
      const auto value = static_cast<product>(a.joined(weight, load_one<kBytes>(x[l])));
      const bool extreme = a.largest ? !(value <= best[l]) : !(value >= best[l]);
      const bool better = (extreme & (best[l] == best[l])) | (p == first);
      best[l] = better ? value : best[l];
      arg[l] = better ? p : arg[l];
    }
  }
  for (int l = 0; l < kColumns; ++l) {
    const int64_t at = i * a.n + column + l;
    a.y[at] = narrow<scalar_t>(best[l]);
    a.arg[at] = arg[l];
  }
}

template <int kBytes, class index_t, class scalar_t, bool kPlus>
void reduce_row(const SpmmReduce<index_t, scalar_t, kPlus>& a, int64_t i) {
  int64_t column = 0;
  for (; column + 8 <= a.n; column += 8) reduce_few<8, kBytes>(a, i, column);
  for (; column < a.n; ++column) reduce_few<1, kBytes>(a, i, column);
}

// The extreme products of a vector of columns, and the positions of their entries in the row.
template <class T, int kElements>
struct Extremes {
  using Positions = Vector<position_t<T>, kElements>;
  Lanes<T, kElements> best;
  Positions position;

  SPGRAD_INLINE void begin(const Lanes<T, kElements>& value) {
    best = value;
    position = Positions{};
  }
  SPGRAD_INLINE void add(const Lanes<T, kElements>& value, position_t<T> at) {
    position = value <= best ? position : at - Positions{};
    best = value <= best ? best : value;
  }
  template <class index_t>
  SPGRAD_INLINE void finish(lane_t<T> sign, index_t first, T* y, index_t* arg,
                            bool streamed) const {
    const auto entry = __builtin_convertvector(position, Vector<index_t, kElements>) + first;
    if constexpr (sizeof(index_t) == sizeof(T)) {
      if (streamed) {
        stream<kElements>(best * sign, y);
        return stream_bits<kElements>(entry, arg);
      }
    }
    store<kElements>(best * sign, y);
    std::memcpy(arg, &entry, sizeof(entry));
  }
};

// Rows [first, last) of kParts vectors of columns of y, the first at `column`. If the last vector
// would pass the end, it is moved back and computes some columns again. Extremes stay in registers
// over a whole row. The smallest product is computed as the largest one of the opposite sign.
// Returns false if the products add up to NaN, as they do if one of them is NaN. The rows then have
// to be computed again, because a NaN is extreme.
template <int kElements, int kParts, class index_t, class scalar_t, bool kPlus>
SPGRAD_INLINE bool reduce_group(const SpmmReduce<index_t, scalar_t, kPlus>& a, int64_t first,
                                int64_t last, int64_t column, Distance ahead) {
  constexpr int kBytes = sizeof(Lanes<scalar_t, kElements>);
  const int64_t final = std::min<int64_t>((kParts - 1) * kElements, a.n - kElements - column);
  const auto offset = [&](int part) { return part < kParts - 1 ? part * kElements : final; };
  const lane_t<scalar_t> sign = a.largest ? 1 : -1;
  Lanes<scalar_t, kElements> sums[kParts]{};
  for (int64_t i = first; i < last; ++i) {
    const int64_t begin = a.ptr[i], end = a.ptr[i + 1];
    if (begin == end || end - begin > INT32_MAX) {
      reduce_row<kBytes>(a, i);  // all columns, again for each block, but such rows are rare
      continue;
    }
    Extremes<scalar_t, kElements> found[kParts];
    const auto product = [&](int64_t p, int part) {
      Lanes<scalar_t, kElements> lanes;
      load<kElements>(a.row(p) + column + offset(part), lanes);
      const auto weight = a.template weight<kBytes>(p);
      const Lanes<scalar_t, kElements> value =
          kPlus ? sign * a.joined(weight, lanes) : a.joined(sign * weight, lanes);
      sums[part] += value;
      return value;
    };
    if (ahead) prefetch_row(a, begin, ahead, column, kParts * kElements);
#pragma GCC unroll 8
    for (int part = 0; part < kParts; ++part) found[part].begin(product(begin, part));
    for (int64_t p = begin + 1; p < end; ++p) {
      if (ahead) prefetch_row(a, p, ahead, column, kParts * kElements);
      const auto position = static_cast<position_t<scalar_t>>(p - begin);
#pragma GCC unroll 8
      for (int part = 0; part < kParts; ++part) found[part].add(product(p, part), position);
    }
    scalar_t* const y = a.y + i * a.n + column;
    index_t* const arg = a.arg + i * a.n + column;
#pragma GCC unroll 8
    for (int part = 0; part < kParts; ++part) {
      found[part].finish(sign, static_cast<index_t>(begin), y + offset(part), arg + offset(part),
                         a.streamed);
    }
  }
  for (int part = 1; part < kParts; ++part) sums[0] += sums[part];
  lane_t<scalar_t> sum[kElements];
  std::memcpy(sum, &sums[0], sizeof(sum));
  bool numbers = true;
  for (int l = 0; l < kElements; ++l) numbers &= sum[l] == sum[l];
  return numbers;
}

// Rows in groups: the loop looks for a NaN among the products once for each group, not in every
// comparison.
template <int kElements, int kParts, class index_t, class scalar_t, bool kPlus>
SPGRAD_INLINE void reduce_columns(const SpmmReduce<index_t, scalar_t, kPlus> a, int64_t first,
                                  int64_t last, int64_t column) {
  constexpr int64_t kGroup = 16;
  constexpr int kBytes = sizeof(Lanes<scalar_t, kElements>);
  const Distance ahead = distance_of<scalar_t>(a.ahead, kParts * kElements);
  for (int64_t i = first; i < last; i += kGroup) {
    const int64_t next = std::min(i + kGroup, last);
    if (reduce_group<kElements, kParts>(a, i, next, column, ahead)) continue;
    for (int64_t j = i; j < next; ++j) reduce_row<kBytes>(a, j);
  }
}

// Columns from `column` on, in blocks of kParts vectors while enough columns are left, then of
// fewer.
template <int kElements, int kParts, class index_t, class scalar_t, bool kPlus>
void reduce_blocks(const SpmmReduce<index_t, scalar_t, kPlus>& a, int64_t first, int64_t last,
                   int64_t column) {
  for (; a.n - column > (kParts - 1) * kElements; column += kParts * kElements) {
    reduce_columns<kElements, kParts>(a, first, last, column);
  }
  if constexpr (kParts > 1) {
    if (column < a.n) reduce_blocks<kElements, kParts / 2>(a, first, last, column);
  }
}

// Fewer columns than a vector of twice as many elements holds.
template <int kElements, int kBytes, class index_t, class scalar_t, bool kPlus>
void reduce_narrow(const SpmmReduce<index_t, scalar_t, kPlus>& a, int64_t first, int64_t last) {
  if (a.n >= kElements) return reduce_blocks<kElements, 2>(a, first, last, 0);
  if constexpr (sizeof(Lanes<scalar_t, kElements>) > 16) {
    return reduce_narrow<kElements / 2, kBytes>(a, first, last);
  }
  for (int64_t i = first; i < last; ++i) reduce_row<kBytes>(a, i);
}

// Rows [first, last) of y and arg: all blocks of columns of some rows, then of the next rows;
// or of all rows.
template <int kBytes, class index_t, class scalar_t, bool kPlus>
SPGRAD_INLINE void reduce_rows(const SpmmReduce<index_t, scalar_t, kPlus>& a, int64_t first,
                               int64_t last) {
  if constexpr (!std::is_integral_v<scalar_t>) {
    constexpr int kElements = kFull<scalar_t, kBytes>;
    constexpr int kParts = kBytes == 64 ? 8 : 4;
    if (a.n >= kElements) {
      const bool whole = a.n <= kParts * kElements || a.by_blocks;
      for (int64_t end; first < last; first = end) {
        end = whole ? last : end_of_batch(a.ptr, first, last, kEntriesAtOnce);
        reduce_blocks<kElements, kParts>(a, first, end, 0);
      }
      return;
    }
    if constexpr (kBytes > 16) return reduce_narrow<kElements / 2, kBytes>(a, first, last);
  }
  for (int64_t i = first; i < last; ++i) reduce_row<kBytes>(a, i);
}

// ptr (m + 1), idx (nse), x (k, n) and y (m, n), allocated and not initialised: y[i, :] is the
// product of the rows of x that row i of the view names. The order of a product depends on its row
// alone. O((nse + m) n) time, no memory.
template <class index_t, class scalar_t>
struct SpmmProd {
  const index_t* ptr;
  const index_t* idx;
  const scalar_t* x;
  scalar_t* y;
  int64_t n;
  int64_t nse;

  SPGRAD_INLINE const scalar_t* row(int64_t p) const {
    return x + static_cast<int64_t>(idx[p]) * n;
  }
};

template <int kElements, int kParts, class index_t, class scalar_t>
SPGRAD_INLINE void prod_columns(const SpmmProd<index_t, scalar_t> a, int64_t first, int64_t last,
                                int64_t column) {
  const int64_t final = std::min<int64_t>((kParts - 1) * kElements, a.n - kElements - column);
  const auto offset = [&](int part) { return part < kParts - 1 ? part * kElements : final; };
  for (int64_t i = first; i < last; ++i) {
    Lanes<scalar_t, kElements> products[kParts];
    for (int part = 0; part < kParts; ++part) products[part] = Lanes<scalar_t, kElements>{} + 1;
    if constexpr (kParts >= 2) prefetch_rows(a, a.ptr[i], column, kParts * kElements);
    for (int64_t p = a.ptr[i]; p < a.ptr[i + 1]; ++p) {
      const scalar_t* row = a.row(p) + column;
#pragma GCC unroll 8
      for (int part = 0; part < kParts; ++part) {
        Lanes<scalar_t, kElements> lanes;
        load<kElements>(row + offset(part), lanes);
        products[part] *= lanes;
      }
    }
    scalar_t* out = a.y + i * a.n + column;
#pragma GCC unroll 8
    for (int part = 0; part < kParts; ++part) store<kElements>(products[part], out + offset(part));
  }
}

template <int kElements, int kParts, class index_t, class scalar_t>
void prod_blocks(const SpmmProd<index_t, scalar_t>& a, int64_t first, int64_t last,
                 int64_t column) {
  for (; a.n - column > (kParts - 1) * kElements; column += kParts * kElements) {
    prod_columns<kElements, kParts>(a, first, last, column);
  }
  if constexpr (kParts > 1) {
    if (column < a.n) prod_blocks<kElements, kParts / 2>(a, first, last, column);
  }
}

// Columns [column, column + kColumns) of one row, without vectors.
template <int kColumns, class index_t, class scalar_t>
void prod_few(const SpmmProd<index_t, scalar_t>& a, int64_t i, int64_t column) {
  accumulate_t<scalar_t> products[kColumns];
  std::fill_n(products, kColumns, accumulate_t<scalar_t>(1));
  for (int64_t p = a.ptr[i]; p < a.ptr[i + 1]; ++p) {
    const scalar_t* row = a.row(p) + column;
    for (int l = 0; l < kColumns; ++l) products[l] = products[l] * widen(row[l]);
  }
  for (int l = 0; l < kColumns; ++l) {
    a.y[i * a.n + column + l] = narrow<scalar_t>(products[l]);
  }
}

// Rows [first, last) of y.
template <int kBytes, class index_t, class scalar_t>
SPGRAD_INLINE void prod_rows(const SpmmProd<index_t, scalar_t>& a, int64_t first, int64_t last) {
  if constexpr (Lane<scalar_t>::count == 1) {
    constexpr int kElements = kFull<scalar_t, kBytes>;
    constexpr int kParts = std::is_integral_v<scalar_t> ? 2 : 8;
    if (a.n >= kElements) return prod_blocks<kElements, kParts>(a, first, last, 0);
  }
  for (int64_t i = first; i < last; ++i) {
    int64_t column = 0;
    for (; column + 4 <= a.n; column += 4) prod_few<4>(a, i, column);
    for (; column < a.n; ++column) prod_few<1>(a, i, column);
  }
}

}  // namespace spgrad
