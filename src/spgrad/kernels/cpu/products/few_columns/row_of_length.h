// Short rows of few columns: code for each length, without a loop.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "common/lanes.h"
#include "products/few_columns/spmm_narrow.h"

namespace spgrad {

// Rows of so many entries have code of their own.
inline constexpr int kByLength = 16;

// A row of kLength entries whose values begin at val and whose columns begin at idx. The order of
// its sum is that of Slots: the same bits as by registers.
template <int kBytes, int kColumns, int kLength, class index_t, class scalar_t>
struct RowOf {
  static constexpr int kSlots = Slots<kBytes, kColumns, scalar_t>::kSlots;
  using Row = std::conditional_t<kColumns == 1, scalar_t, Vector<scalar_t, kColumns>>;

  const scalar_t* val;
  const index_t* idx;
  const scalar_t* x;

  SPGRAD_INLINE Row row(int entry) const {
    Row out;
    std::memcpy(&out, x + static_cast<int64_t>(idx[entry]) * kColumns, sizeof(out));
    return out;
  }

  // The products of the entries kSlot, kSlot + kSlots, ...
  template <int kSlot>
  SPGRAD_INLINE Row slot() const {
    Row sum = val[kSlot] * row(kSlot);
    keep_rounded(sum);  // as the other ways do: it is the first product that they add to 0
#pragma GCC unroll 4
    for (int entry = kSlot + kSlots; entry < kLength; entry += kSlots)
      sum += val[entry] * row(entry);
    return sum;
  }

  // The sum of kCount slots, the first of which has an entry. Every second of them is added to
  // every other, as fold does. Of one column these are groups of four, whose slots are added
  // neighbours first, as sum_lanes does.
  template <int kFirst, int kCount, int kStep>
  SPGRAD_INLINE Row slots() const {
    if constexpr (kCount == 1) {
      return slot<kFirst>();
    } else {
      constexpr bool kNeighbours = kColumns == 1 && kCount <= 4;
      constexpr int kHalf = kCount / 2, kGroup = kColumns == 1 ? 4 : 1;
      constexpr int kSecond = kFirst + (kNeighbours ? kHalf : kGroup * kStep);
      constexpr int kApart = kNeighbours ? 1 : 2 * kStep;
      const Row sum = slots<kFirst, kHalf, kApart>();
      if constexpr (kSecond >= kLength) {
        return sum;
      } else {
        return sum + slots<kSecond, kHalf, kApart>();
      }
    }
  }

  SPGRAD_INLINE void sum(scalar_t* y) const {
    Row out{};
    if constexpr (kLength > 0) out += slots<0, kSlots, 1>();  // 0 + -0 is 0, as in the other ways
    std::memcpy(y, &out, sizeof(out));
  }
};

// kRows rows of `length` entries each, which lie one behind the other from val and idx on.
template <int kBytes, int kColumns, int kRows, class index_t, class scalar_t>
SPGRAD_INLINE void rows_of_length(index_t length, const scalar_t* val, const index_t* idx,
                                  const scalar_t* x, scalar_t* y) {
  const auto rows = [&]<int kLength>() {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const RowOf<kBytes, kColumns, kLength, index_t, scalar_t> row{
          .val = val + r * kLength, .idx = idx + r * kLength, .x = x};
      row.sum(y + r * kColumns);
    }
  };
  switch (length) {
    case 0:
      return rows.template operator()<0>();
    case 1:
      return rows.template operator()<1>();
    case 2:
      return rows.template operator()<2>();
    case 3:
      return rows.template operator()<3>();
    case 4:
      return rows.template operator()<4>();
    case 5:
      return rows.template operator()<5>();
    case 6:
      return rows.template operator()<6>();
    case 7:
      return rows.template operator()<7>();
    case 8:
      return rows.template operator()<8>();
    case 9:
      return rows.template operator()<9>();
    case 10:
      return rows.template operator()<10>();
    case 11:
      return rows.template operator()<11>();
    case 12:
      return rows.template operator()<12>();
    case 13:
      return rows.template operator()<13>();
    case 14:
      return rows.template operator()<14>();
    case 15:
      return rows.template operator()<15>();
    default:
      return rows.template operator()<16>();
  }
}

}  // namespace spgrad
