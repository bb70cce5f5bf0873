// Sparse times dense for several heads: h matrices on one row view (ptr, idx, perm?), each
// multiplied by its own columns.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "common/lanes.h"
#include "common/threads.h"
#include "products/spmm.h"
#include "reading/prefetch.h"
#include "reading/traffic.h"

namespace spgrad {

// ptr (m + 1), idx (nse), perm (nse) or null, val (nse, heads), x (k, heads * n) and y (m, heads *
// n), all row by row: columns [c n, (c + 1) n) of x and y are those of head c. y is allocated and
// not initialised; every element of the rows asked for is written. Columns of a row may be unsorted
// and repeat. The order of a sum depends on its row and on heads n, but not on the number of
// threads or on how x is read. O((nse + m) heads n) time, no memory. The view is read from memory
// once for all heads.
template <class index_t, class scalar_t>
struct HeadsSpmm {
  const index_t* ptr;
  const index_t* idx;
  const index_t* perm;
  const scalar_t* val;
  const scalar_t* x;
  scalar_t* y;
  int64_t heads;
  int64_t n;
  int64_t nse;
  Traffic traffic{};

  SPGRAD_INLINE int64_t width() const { return heads * n; }
  SPGRAD_INLINE const scalar_t* row(int64_t p) const {
    return x + static_cast<int64_t>(idx[p]) * width();
  }
  SPGRAD_INLINE const scalar_t* weights(int64_t p) const {
    return val + (perm == nullptr ? p : static_cast<int64_t>(perm[p])) * heads;
  }
  // Prefetches the data of the entry `ahead` entries after p: columns [column, column + count) of
  // its row of x, and its values if they are stored in another order.
  SPGRAD_INLINE void prefetch(int64_t p, Distance ahead, int64_t column, int64_t count) const {
    if (ahead) prefetch_row(*this, p, ahead, column, count);
    if (perm != nullptr) __builtin_prefetch(weights(std::min(p + 48, nse - 1)) + column / n);
  }
};

// out[l] = from[at[l]]. `at` counts in words of four bytes, so one instruction works for float and
// double.
template <class T, int kElements>
struct Permutation {
  static constexpr int kWords = kElements * static_cast<int>(sizeof(T)) / 4;
  Vector<int32_t, kWords> words;
  int32_t at[kElements];

  SPGRAD_INLINE void set(int lane, int32_t from) {
    constexpr int kEach = sizeof(T) / 4;
    at[lane] = from;
    for (int word = 0; word < kEach; ++word) words[lane * kEach + word] = from * kEach + word;
  }
  // Whether the processor has an instruction for this.
  static constexpr bool fast() {
#if SPGRAD_WIDE
    return kWords >= 8;
#else
    return false;
#endif
  }
  SPGRAD_INLINE void apply([[maybe_unused]] Vector<T, kElements>& v) const {
#if SPGRAD_WIDE
    asm("vpermd %1, %2, %0" : "=v"(v) : "v"(v), "v"(words));
#endif
  }
};

// The types with vector code here: float32 and float64 with int32 indices. Other types are summed
// in plain loops, which the compiler may vectorise.
template <class index_t, class scalar_t>
inline constexpr bool kHasLanes =
    std::is_same_v<index_t, int32_t> && std::is_floating_point_v<scalar_t>;

// The number of entries of a view that stay in the first-level cache while all heads are computed.
inline constexpr int64_t kViewEntries = 1024;

// How the values of an entry are combined with the columns of a vector.
enum class Meet {
  kOne,     // a vector lies within one head
  kSpread,  // neighbouring columns are of the same head, or of the next
};

// kParts vectors of columns of y, the first at `column`. If the last vector would pass the end, it
// is moved back and computes some columns again. The sums stay in registers over a whole row. Two
// sets of sums take turns, so an addition does not wait for the one before.
template <int kElements, int kParts, Meet kMeet, class index_t, class scalar_t>
SPGRAD_INLINE void heads_columns(const HeadsSpmm<index_t, scalar_t> a, int64_t first, int64_t last,
                                 int64_t column) {
  using Values = Lanes<scalar_t, kElements>;
  constexpr int kSets = 2;
  const int64_t width = a.width();
  const int64_t final = std::min<int64_t>((kParts - 1) * kElements, width - kElements - column);
  const auto offset = [&](int part) { return part < kParts - 1 ? part * kElements : final; };
  const Distance ahead = distance_of<scalar_t>(a.traffic.ahead, kParts * kElements);
  int64_t head[kParts];  // of the first column of each vector
  Permutation<scalar_t, kElements> spread[kMeet == Meet::kSpread ? kParts : 1];
  for (int part = 0; part < kParts; ++part) {
    head[part] = (column + offset(part)) / a.n;
    if constexpr (kMeet == Meet::kSpread) {
      for (int lane = 0; lane < kElements; ++lane) {
        const int64_t own = (column + offset(part) + lane) / a.n;
        spread[part].set(lane, static_cast<int32_t>(own - head[part]));
      }
    }
  }
  const int64_t readable = a.nse * a.heads - kElements;
  const auto weigh = [&](const scalar_t* of_heads, int part, Values& weight) {
    if (spread[0].fast() && of_heads - a.val <= readable) {
      load<kElements>(of_heads, weight);
      return spread[part].apply(weight);
    }
    for (int lane = 0; lane < kElements; ++lane) weight[lane] = of_heads[spread[part].at[lane]];
  };
  for (int64_t i = first; i < last; ++i) {
    Values sums[kSets][kParts]{};
    const auto add = [&](int64_t p, int set) {
      a.prefetch(p, ahead, column, kParts * kElements);
      const scalar_t *const row = a.row(p) + column, *const weights = a.weights(p);
#pragma GCC unroll 8
      for (int part = 0; part < kParts; ++part) {
        Values lanes, weight;
        load<kElements>(row + offset(part), lanes);
        if constexpr (kMeet == Meet::kOne) {
          sums[set][part] += weights[head[part]] * lanes;
        } else {
          weigh(weights + head[part], part, weight);
          sums[set][part] += weight * lanes;
        }
      }
    };
    int64_t p = a.ptr[i], end = a.ptr[i + 1];
    for (; p + kSets <= end; p += kSets) {
#pragma GCC unroll 2
      for (int set = 0; set < kSets; ++set) add(p + set, set);
    }
    if (p < end) add(p, 0);
    scalar_t* const out = a.y + i * width + column;
#pragma GCC unroll 8
    for (int part = 0; part < kParts; ++part) {
      const Values total = sums[0][part] + sums[1][part];
      a.traffic.streamed ? stream<kElements>(total, out + offset(part))
                         : store<kElements>(total, out + offset(part));
    }
  }
}

// Columns from `column` on, in blocks of kParts vectors while enough columns are left, then of
// fewer.
template <int kElements, int kParts, Meet kMeet, class index_t, class scalar_t>
SPGRAD_INLINE void heads_blocks(const HeadsSpmm<index_t, scalar_t>& a, int64_t first, int64_t last,
                                int64_t column) {
  for (; a.width() - column > (kParts - 1) * kElements; column += kParts * kElements) {
    heads_columns<kElements, kParts, kMeet>(a, first, last, column);
  }
  if constexpr (kParts > 1) {
    if (column < a.width()) heads_blocks<kElements, kParts / 2, kMeet>(a, first, last, column);
  }
}

// A half vector that lies within one head is cheaper than a whole vector whose weights are spread.
template <int kElements, int kParts, class index_t, class scalar_t>
SPGRAD_INLINE void heads_meeting(const HeadsSpmm<index_t, scalar_t>& a, int64_t first,
                                 int64_t last) {
  if (a.n % kElements == 0) {
    return heads_blocks<kElements, kParts, Meet::kOne>(a, first, last, 0);
  }
  if constexpr (sizeof(Lanes<scalar_t, kElements>) > 16) {
    if (a.n % (kElements / 2) == 0) {
      return heads_blocks<kElements / 2, kParts, Meet::kOne>(a, first, last, 0);
    }
  }
  constexpr int kFewer = kParts > 1 ? kParts / 2 : 1;
  heads_blocks<kElements, kFewer, Meet::kSpread>(a, first, last, 0);
}

// kCount columns of head `head` of row i, the first at `column`.
template <int kCount, class index_t, class scalar_t>
SPGRAD_INLINE void heads_few(const HeadsSpmm<index_t, scalar_t>& a, int64_t i, int64_t head,
                             int64_t column) {
  accumulate_t<scalar_t> sums[kCount]{};
  for (int64_t p = a.ptr[i]; p < a.ptr[i + 1]; ++p) {
    const accumulate_t<scalar_t> weight = widen(a.weights(p)[head]);
    const scalar_t* const row = a.row(p) + column;
    for (int j = 0; j < kCount; ++j) sums[j] += weight * widen(row[j]);
  }
  scalar_t* const out = a.y + i * a.width() + column;
  for (int j = 0; j < kCount; ++j) out[j] = narrow<scalar_t>(sums[j]);
}

// For types without vector code here, and for rows that are shorter than a vector.
template <class index_t, class scalar_t>
SPGRAD_CLONES void heads_one_by_one(const HeadsSpmm<index_t, scalar_t>& a, int64_t first,
                                    int64_t last) {
  for (int64_t i = first; i < last; ++i) {
    for (int64_t head = 0; head < a.heads; ++head) {
      int64_t column = head * a.n;
      const int64_t end = column + a.n;
      for (; column + 8 <= end; column += 8) heads_few<8>(a, i, head, column);
      for (; column < end; ++column) heads_few<1>(a, i, head, column);
    }
  }
}

// Rows [first, last) of y.
template <int kBytes, class index_t, class scalar_t>
SPGRAD_INLINE void heads_rows(const HeadsSpmm<index_t, scalar_t>& a, int64_t first, int64_t last) {
  if constexpr (kHasLanes<index_t, scalar_t>) {
    constexpr int kElements = kFull<scalar_t, kBytes>;
    // The columns of a block stay in the cache while all rows of a batch are summed. The view stays
    // there while all blocks are summed.
    for (int64_t from = first, to; from < last; from = to) {
      to = end_of_batch(a.ptr, from, last, kViewEntries);
      if (a.width() >= kElements) {
        heads_meeting<kElements, kBytes == 64 ? 8 : 4>(a, from, to);
      } else {
        heads_one_by_one(a, from, to);
      }
    }
  } else {
    heads_one_by_one(a, first, last);
  }
}

}  // namespace spgrad
