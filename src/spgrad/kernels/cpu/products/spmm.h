// Sparse times dense: y (m, n) = A x, with A (m, k) a row view (ptr, idx, perm?) and its values.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "common/lanes.h"
#include "common/threads.h"
#include "reading/prefetch.h"
#include "reading/traffic.h"

namespace spgrad {

// The loops of a product with few columns, in few_columns/. Which one runs never changes a result.
enum class FewWay : uint8_t {
  kUnknown,              // is chosen where the product begins
  kAny,                  // rows of any length
  kFetched,              // the same; columns and values are prefetched
  kAhead,                // the same; rows of x are prefetched
  kByLength,             // short rows, mostly of one length
  kRegular,              // longer rows, mostly of one length or with consecutive columns
  kRegularFetched,       // the same; columns and values are prefetched
  kFetchedAlong,         // rows of any length; each register of entries prefetches a later one
  kRegularFetchedAlong,  // the same, for rows as those of kRegular
  kFourRows,             // longer rows of any length: of one column four rows at a time
  kRowByRow,             // one column: not four rows at a time
  kRowByRowFetched,      // the same; columns and values are prefetched
  kStaged,               // rows of x are copied side by side before they are used
  kStagedEven,           // the same, for rows of similar lengths
  kStagedHalf,           // the same, for rows of at most half a register
  kStagedHalfEven,       // the same, for rows with both properties
};

// ptr (m + 1), idx (nse), perm (nse) or null, val (nse), x (k, n) and y (m, n) row by row. y is
// allocated and not initialised; every element of the rows asked for is written.
// Columns of a row may be unsorted and repeat. The order of a sum depends on its row and on n, but
// not on the number of threads or on how x is read. O((nse + m) n) time, no memory but the tiles.
// The view is read once for every tile. Without tiles, a row of x is read to its end before the
// next rows of y, eight vectors of columns at a time, or before the next row of x.
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
  Traffic traffic{};
  int64_t stride = n;  // between rows of x
  FewWay way = FewWay::kUnknown;

  SPGRAD_INLINE const scalar_t* row(int64_t p) const {
    return x + static_cast<int64_t>(idx[p]) * stride;
  }
  template <int kBytes, bool kInOrder = false>
  SPGRAD_INLINE accumulate_t<scalar_t> weight(int64_t p) const {
    return load_one<kBytes>(val[kInOrder || perm == nullptr ? p : static_cast<int64_t>(perm[p])]);
  }
};

// What the compiler knows about the operands of a loop over entries. With few columns an entry
// takes about six cycles, so a branch for each entry costs a measurable part of the time.
struct Known {
  bool in_order = false;    // perm is null
  bool prefetched = false;  // rows of x are prefetched
  bool by_pairs = false;    // see Traffic
  bool nothing = false;     // neither is known: the loop checks both for each entry

  template <class index_t, class scalar_t>
  SPGRAD_INLINE constexpr bool prefetches(const Spmm<index_t, scalar_t>& a) const {
    return nothing ? bool{a.traffic.ahead} : prefetched;
  }
};
inline constexpr Known kNothing{.nothing = true};
inline constexpr Known kInOrder{.in_order = true};
inline constexpr Known kInOrderPrefetched{.in_order = true, .prefetched = true};
inline constexpr Known kInOrderByPairs{.in_order = true, .prefetched = true, .by_pairs = true};

// A vector of sums of products, with one weight for all lanes.
template <class T, int kElements>
struct Sums {
  Lanes<T, kElements> total{};

  SPGRAD_INLINE void add(accumulate_t<T> weight, const Lanes<T, kElements>& x) {
    total += weight * x;
  }
  SPGRAD_INLINE void join(const Sums& other) { total += other.total; }
  SPGRAD_INLINE void finish(T* out, bool streamed) const {
    streamed ? stream<kElements>(total, out) : store<kElements>(total, out);
  }
};

// Interleaved complex lanes times a complex weight, without a shuffle for each product: the
// products with the real part of the weight have one sum, those with the imaginary part another,
// and the two sums are combined at the end.
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
  SPGRAD_INLINE void finish(Complex<T>* out, bool) const {
    constexpr auto partner = [](int l) { return l ^ 1; };
    Vector<T, 2 * kElements> sign;
    for (int l = 0; l < 2 * kElements; ++l) sign[l] = l % 2 == 0 ? -1 : 1;
    const Vector<T, 2 * kElements> total =
        by_real + sign * shuffle<2 * kElements>(by_imaginary, by_imaginary, partner);
    store<kElements>(total, out);
  }
};

// kParts vectors of columns of y, the first at `column`. If the last vector would pass the end, it
// is moved back and computes some columns again. The sums stay in registers over a whole row. If
// there are enough registers, two sets of sums take turns, so an addition does not wait for the one
// before. A tile has as many sets as the same columns of a wider block.
template <int kElements, int kParts, Known kKnown = kNothing, class index_t, class scalar_t>
SPGRAD_INLINE void spmm_columns(const Spmm<index_t, scalar_t> a, int64_t first, int64_t last,
                                int64_t column) {
  constexpr int kBytes = sizeof(Lanes<scalar_t, kElements>);
  constexpr int kSets = kParts <= 2 || kBytes == 64 ? 2 : 1;
  const int64_t n = a.n;
  const int64_t final = std::min<int64_t>((kParts - 1) * kElements, n - kElements - column);
  const auto offset = [&](int part) { return part < kParts - 1 ? part * kElements : final; };
  Distance ahead = distance_of<scalar_t>(a.traffic.ahead, kParts * kElements);
  const int64_t far = ahead.far;
  if (kKnown.by_pairs) ahead.far = 0;
  for (int64_t i = first; i < last; ++i) {
    Sums<scalar_t, kElements> sums[kSets][kParts];
    const auto add = [&](int64_t p, int set) {
      if (kKnown.prefetches(a)) prefetch_row(a, p, ahead, column, kParts * kElements);
      if (kKnown.by_pairs && column == 0) {
        prefetch_lines<true>(a.row(std::min(p + far, a.nse - 1)), n);
      }
      const scalar_t* row = a.row(p) + column;
      const accumulate_t<scalar_t> weight = a.template weight<kBytes, kKnown.in_order>(p);
#pragma GCC unroll 8
      for (int part = 0; part < kParts; ++part) {
        Lanes<scalar_t, kElements> lanes;
        load<kElements>(row + offset(part), lanes);
        sums[set][part].add(weight, lanes);
      }
    };
    int64_t p = a.ptr[i];
    const int64_t end = a.ptr[i + 1];
    for (; p + kSets <= end; p += kSets) {
#pragma GCC unroll 2
      for (int set = 0; set < kSets; ++set) add(p + set, set);
    }
    if (kSets > 1 && p < end) add(p, 0);
    scalar_t* out = a.y + i * n + column;
#pragma GCC unroll 8
    for (int part = 0; part < kParts; ++part) {
      if (kSets > 1) sums[0][part].join(sums[kSets - 1][part]);
      sums[0][part].finish(out + offset(part), a.traffic.streamed);
    }
  }
}

// Columns from `column` on, in blocks of kParts vectors while enough columns are left, then of
// fewer.
template <int kElements, int kParts, Known kKnown, class index_t, class scalar_t>
void spmm_blocks(const Spmm<index_t, scalar_t>& a, int64_t first, int64_t last, int64_t column) {
  for (; a.n - column > (kParts - 1) * kElements; column += kParts * kElements) {
    spmm_columns<kElements, kParts, kKnown>(a, first, last, column);
  }
  if constexpr (kParts > 1) {
    constexpr int kFewer = kParts == 8 ? 4 : kParts - 1;
    if (column < a.n) spmm_blocks<kElements, kFewer, kKnown>(a, first, last, column);
  }
}

// As spmm_columns, for any number of vectors up to kMostSums, whose sums are in the first-level
// cache: each row of x is read to its end before the next one. The order of every sum is that of
// blocks of four or eight vectors.
inline constexpr int64_t kMostSums = 64;
template <int kElements, class index_t, class scalar_t>
SPGRAD_INLINE void spmm_whole_rows(const Spmm<index_t, scalar_t> a, int64_t first, int64_t last,
                                   int64_t column, int64_t vectors) {
  using Values = Lanes<scalar_t, kElements>;
  constexpr int kBytes = sizeof(Values), kSets = kBytes == 64 ? 2 : 1;
  const int64_t width = vectors * kElements;
  const Distance ahead = distance_of<scalar_t>(a.traffic.ahead, width);
  Values sums[kSets][kMostSums];
  for (int64_t i = first; i < last; ++i) {
    for (auto& set : sums) std::fill_n(set, vectors, Values{});
    const int64_t begin = a.ptr[i], end = a.ptr[i + 1];
    for (int64_t p = begin; p < end; ++p) {
      prefetch_lines<false>(a.row(std::min(p + ahead.near, a.nse - 1)) + column, width);
      const scalar_t* const row = a.row(p) + column;
      const accumulate_t<scalar_t> weight = a.template weight<kBytes, true>(p);
      Values* const set = sums[(p - begin) % kSets];
#pragma GCC unroll 4
      for (int64_t part = 0; part < vectors; ++part) {
        Values lanes;
        load<kElements>(row + part * kElements, lanes);
        set[part] += weight * lanes;
      }
    }
    scalar_t* const out = a.y + i * a.n + column;
    for (int64_t part = 0; part < vectors; ++part) {
      Values total = sums[0][part];
      if (kSets > 1) total += sums[kSets - 1][part];
      a.traffic.streamed ? stream<kElements>(total, out + part * kElements)
                         : store<kElements>(total, out + part * kElements);
    }
  }
}

// Fewer than 2 kElements columns: vectors of the largest power of two that is not more than n.
template <int kElements, Known kKnown, class index_t, class scalar_t>
void spmm_narrow(const Spmm<index_t, scalar_t>& a, int64_t first, int64_t last) {
  if constexpr (kElements > 2) {
    if (a.n < kElements) return spmm_narrow<kElements / 2, kKnown>(a, first, last);
  }
  spmm_blocks<kElements, 2, kKnown>(a, first, last, 0);
}

// One column of a type that has no special kernel. It has one sum: in short rows, adding up several
// sums would take most of the time.
template <int kBytes, class index_t, class scalar_t>
SPGRAD_INLINE void spmv_by_entries(const Spmm<index_t, scalar_t> a, int64_t first, int64_t last) {
  for (int64_t i = first; i < last; ++i) {
    accumulate_t<scalar_t> sum{};
    for (int64_t p = a.ptr[i]; p < a.ptr[i + 1]; ++p) {
      one_by_one();
      sum += a.template weight<kBytes>(p) * load_one<kBytes>(*a.row(p));
    }
    a.y[i] = narrow<scalar_t>(sum);
  }
}

// The number of vectors in the widest block: as many sums as fit in registers, half as many if a
// sum takes two registers. Fewer for integers, to compile less code.
template <class T>
inline constexpr int kWidest = std::is_floating_point_v<T> ? 8
                               : std::is_integral_v<T>     ? 2
                                                           : 4;

// All blocks of columns of some rows of y, then of the next rows; or of all rows.
template <int kElements, Known kKnown, class index_t, class scalar_t>
SPGRAD_INLINE void spmm_matrix(const Spmm<index_t, scalar_t>& a, int64_t first, int64_t last,
                               int64_t column) {
  if constexpr (kElements > 2) {
    if (a.n < kElements) return spmm_narrow<kElements / 2, kKnown>(a, first, last);
  }
  constexpr int kParts = kWidest<scalar_t>;
  const bool by_blocks = a.traffic.by_blocks && !kKnown.by_pairs;
  const bool whole = a.n - column <= kParts * kElements || by_blocks;
  for (int64_t end; first < last; first = end) {
    end = whole ? last : end_of_batch(a.ptr, first, last, kEntriesAtOnce);
    spmm_blocks<kElements, kParts, kKnown>(a, first, end, column);
  }
}

// As spmm_matrix, where each row of x is read to its end before the next one. Columns that do not
// fill four vectors are blocks of their own.
template <int kElements, class index_t, class scalar_t>
SPGRAD_INLINE void spmm_matrix_by_whole_rows(const Spmm<index_t, scalar_t>& a, int64_t first,
                                             int64_t last) {
  for (int64_t end; first < last; first = end) {
    end = end_of_batch(a.ptr, first, last, kEntriesAtOnce);
    int64_t column = 0;
    for (int64_t vectors; (vectors = (a.n - column) / (4 * kElements) * 4) > 0;) {
      vectors = std::min(vectors, kMostSums);
      spmm_whole_rows<kElements>(a, first, end, column, vectors);
      column += vectors * kElements;
    }
    if (column < a.n) spmm_blocks<kElements, 4, kInOrderPrefetched>(a, first, end, column);
  }
}

// Rows [first, last) of y, the columns from `column` on. `column` is 0 if the remaining columns do
// not fill a vector.
template <int kBytes, class index_t, class scalar_t>
SPGRAD_INLINE void spmm_rows(const Spmm<index_t, scalar_t>& a, int64_t first, int64_t last,
                             int64_t column) {
  constexpr int kElements = kFull<scalar_t, kBytes>;
  if (a.n == 0) return;
  if (a.n == 1) return spmv_by_entries<kBytes>(a, first, last);
  if constexpr (std::is_floating_point_v<scalar_t> && kBytes > 16) {
    if (a.perm == nullptr) {
      if (a.traffic.whole_rows) return spmm_matrix_by_whole_rows<kElements>(a, first, last);
      if (a.traffic.by_pairs) {
        return spmm_matrix<kElements, kInOrderByPairs>(a, first, last, column);
      }
      return a.traffic.ahead ? spmm_matrix<kElements, kInOrderPrefetched>(a, first, last, column)
                             : spmm_matrix<kElements, kInOrder>(a, first, last, column);
    }
  }
  spmm_matrix<kElements, kNothing>(a, first, last, column);
}

// Copies columns [column, column + tiles * width) of the rows [first, last) of x into tiles
// (k, width).
template <class scalar_t>
void copy_tiles(const scalar_t* x, int64_t n, int64_t column, int64_t k, int64_t tiles,
                int64_t first, int64_t last, scalar_t* out) {
  constexpr int64_t kWidth = kTileBytes / sizeof(scalar_t), kAhead = 16;
  for (int64_t i = first; i < last; ++i) {
    const scalar_t* const later = x + std::min(i + kAhead, last - 1) * n + column;
    for (int64_t tile = 0; tile < tiles; ++tile) {
      __builtin_prefetch(later + tile * kWidth);
      __builtin_prefetch(later + tile * kWidth + kWidth / 2);
      std::copy_n(x + i * n + column + tile * kWidth, kWidth, out + (tile * k + i) * kWidth);
    }
  }
}

// Rows [first, last) of y, in the columns of one tile of x. Its first column is `column`.
template <int kBytes, class index_t, class scalar_t>
SPGRAD_INLINE void spmm_tile(Spmm<index_t, scalar_t> a, const scalar_t* tile, int64_t first,
                             int64_t last, int64_t column) {
  constexpr int64_t kWidth = kTileBytes / sizeof(scalar_t);
  constexpr int kElements = kFull<scalar_t, kBytes>;
  constexpr int kParts = kWidth / kElements;
  a.stride = kWidth;
  a.x = tile - column;
  a.traffic.ahead ? spmm_columns<kElements, kParts, kInOrderPrefetched>(a, first, last, column)
                  : spmm_columns<kElements, kParts, kInOrder>(a, first, last, column);
}

// Whether the kernels for few columns apply: the rows of x of several entries fill a vector of
// `vector` bytes, at least two rows, or four rows of one column.
constexpr bool are_few(int64_t columns, int64_t row_bytes, int64_t vector) {
  return columns > 0 && (columns & (columns - 1)) == 0 &&
         (columns == 1 ? 4 : 2) * row_bytes <= vector;
}

// The types of the kernels for few columns: float32 and float64 with int32 indices, values in
// storage order.
template <class index_t, class scalar_t>
inline constexpr bool kHasFew =
    std::is_same_v<index_t, int32_t> && std::is_floating_point_v<scalar_t>;

// Rows [first, last) of a product with few columns; compiled in spmm_few.cpp. few_way looks at some
// of the rows; a.way keeps what it chose, so that a product in many parts chooses once.
template <class scalar_t>
FewWay few_way(const Spmm<int32_t, scalar_t>& a, int64_t first, int64_t last);
template <class scalar_t>
void spmm_few(const Spmm<int32_t, scalar_t>& a, int64_t first, int64_t last);

// Whether spmm_few multiplies. It reads values in storage order.
template <class index_t, class scalar_t>
bool is_for_few(const Spmm<index_t, scalar_t>& a) {
  const auto row = a.n * static_cast<int64_t>(sizeof(scalar_t));
  return kHasFew<index_t, scalar_t> && a.perm == nullptr && are_few(a.n, row, vector_bytes());
}

// Chooses the loop for the rows [first, last), where there is a choice.
template <class index_t, class scalar_t>
void choose_few_way(Spmm<index_t, scalar_t>& a, int64_t first, int64_t last) {
  if constexpr (kHasFew<index_t, scalar_t>) {
    if (is_for_few(a)) a.way = few_way(a, first, last);
  }
}

// spmm_rows for the widest vectors of this processor; compiled once, in matmul.cpp.
template <class index_t, class scalar_t>
void spmm_lines(const Spmm<index_t, scalar_t>& a, int64_t first, int64_t last, int64_t column = 0);

}  // namespace spgrad
