// Rows of a sparse product that have few products.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "common/dtypes.h"
#include "common/lanes.h"
#include "common/targets.h"
#include "products/gustavson/rows.h"

namespace spgrad {

// Forms rows from the list of their products. The place of a product is the number of products
// whose columns are less, so products of one column have the same place, and are added up there in
// their order. Nothing is read or written at a column, and no branch depends on one.
template <class index_t, class scalar_t>
class FewProducts {
 public:
  // Every product is compared with every other.
  static constexpr int64_t kMost = 32;

  // Whether a row with so many products, whose columns are in [low, high], can be formed.
  static bool takes(int64_t products, int64_t low, int64_t high) {
    return kReal && products <= kMost && high - low <= INT32_MAX;
  }

  // Forms row i of A @ B, whose columns are at least `low`. Writes columns, in ascending order, and
  // values, and returns their number.
  template <int kBytes>
  SPGRAD_INLINE int64_t form_row(const Matrix<index_t, scalar_t>& a,
                                 const Matrix<index_t, scalar_t>& b, int64_t i, int64_t low,
                                 index_t* columns, scalar_t* values) {
    const int64_t count = list_products(a, b, i, low);
    count_less<kBytes, 1>(count);
    uint64_t found = 0;
    for (int64_t p = 0; p < count; ++p) {
      const int64_t place = place_[p];
      sum_[place] += factor_[p] * value_[p];
      at_[place] = key_[p];
      found |= uint64_t{1} << place;
    }
    int64_t next = 0;
    for (; found != 0; found &= found - 1) {
      const int place = std::countr_zero(found);
      columns[next] = static_cast<index_t>(low + at_[place]);
      values[next++] = narrow<scalar_t>(sum_[place]);
    }
    for (int64_t place = 0; place < count; ++place) sum_[place] = {};
    return next;
  }

 private:
  using sum_t = accumulate_t<scalar_t>;
  // The compiler fuses complex products in another way here than where a known pattern is filled,
  // so their last bits would differ.
  static constexpr bool kReal = Lane<sum_t>::count == 1;
  // 32 bytes of values: stores of 64 bytes mostly cross a cache line.
  static constexpr int64_t kTogether = std::min<int64_t>(8, 32 / sizeof(sum_t));

  // Lists the products of row i: columns, counted from `low`, and both factors. Returns their
  // number. Copies kTogether entries at a time, also some after the end of a row of B, where the
  // next products are written: no branch depends on the length of a short row.
  SPGRAD_INLINE int64_t list_products(const Matrix<index_t, scalar_t>& a,
                                      const Matrix<index_t, scalar_t>& b, int64_t i, int64_t low) {
    const int64_t nse = b.ptr[b.count];
    int64_t next = 0;
    const auto write = [&](int64_t at, int64_t q, sum_t factor) {
      key_[at] = static_cast<int32_t>(b.idx[q] - low);
      value_[at] = b.val[q];
      factor_[at] = factor;
    };
    for (int64_t p = a.ptr[i]; p < a.ptr[i + 1]; ++p) {
      const int64_t begin = b.ptr[a.idx[p]], end = b.ptr[a.idx[p] + 1];
      const sum_t factor = a.val[p];
      int64_t q = begin;
      for (; q < end && q <= nse - kTogether; q += kTogether) {
        for (int64_t l = 0; l < kTogether; ++l) write(next + q - begin + l, q + l, factor);
      }
      for (; q < end; ++q) write(next + q - begin, q, factor);
      next += end - begin;
    }
    return next;
  }

  // Counts, for the products of kVectors registers, how many columns are less.
  template <int kBytes, int kVectors>
  SPGRAD_INLINE void count_less(int64_t count) {
    // 64 bytes take longer: list_products stores fewer at a time, and a load that is wider than the
    // stores before it waits until these reach the cache
    constexpr int kLanes = std::min(kBytes, 32) / sizeof(int32_t);
    if constexpr (kVectors * kLanes < kMost) {
      if (count > kVectors * kLanes) return count_less<kBytes, 2 * kVectors>(count);
    }
    Vector<int32_t, kLanes> own[kVectors], less[kVectors] = {};
    std::memcpy(own, key_, sizeof own);
    for (int64_t p = 0; p < count; ++p) {
      for (int v = 0; v < kVectors; ++v) less[v] -= own[v] > key_[p];  // true is -1
    }
    std::memcpy(place_, less, sizeof less);
  }

  int32_t key_[kMost + kTogether] = {}, place_[kMost], at_[kMost];
  sum_t value_[kMost + kTogether], factor_[kMost + kTogether];
  sum_t sum_[kMost] = {};  // zero between rows
};

}  // namespace spgrad
