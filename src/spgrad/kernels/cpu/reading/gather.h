// Vectors of elements that lie apart.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "common/lanes.h"
#include "reading/machine.h"

namespace spgrad {

#if SPGRAD_WIDE
// Four vectors of 16 bytes side by side in a register of 64 bytes. GCC 12 joins vectors through
// memory, where a load of 64 bytes waits until the four stores are done.
template <class Quarter, class V>
SPGRAD_INLINE void join_quarters(const Quarter (&quarters)[4], V& out) {
  static_assert(sizeof(V) == 64 && sizeof(Quarter) == 16);
  V low, high;
  asm("vinsertf32x4 $1, %2, %t1, %t0" : "=v"(low) : "v"(quarters[0]), "v"(quarters[1]));
  asm("vinsertf32x4 $1, %2, %t1, %t0" : "=v"(high) : "v"(quarters[2]), "v"(quarters[3]));
  asm("vinsertf64x4 $1, %t2, %1, %0" : "=v"(out) : "v"(low), "v"(high));
}

// Two of them in a register of 32 bytes.
template <class Quarter, class V>
SPGRAD_INLINE void join_quarters(const Quarter (&quarters)[2], V& out) {
  static_assert(sizeof(V) == 32 && sizeof(Quarter) == 16);
  asm("vinsertf128 $1, %2, %t1, %0" : "=x"(out) : "x"(quarters[0]), "x"(quarters[1]));
}
#endif

// out[l] = cell at[l] of `from`, by one load for each cell. A cell is four or eight bytes of any
// type.
template <class Cell, int kLanes, class index_t>
SPGRAD_INLINE void load_cells(const void* from, const index_t* at, Vector<Cell, kLanes>& out) {
  struct Bytes {
    char all[sizeof(Cell)];
  };
  const auto cell = [&](int lane) -> const Bytes& {
    return static_cast<const Bytes*>(from)[static_cast<int64_t>(at[lane])];
  };
#if SPGRAD_WIDE
  if constexpr (sizeof(out) == 64) {
    Vector<float, 4> quarters[4];
#pragma GCC unroll 4
    for (int q = 0; q < 4; ++q) {
      if constexpr (sizeof(Cell) == 4) {
        asm("vmovss %1, %0\n\t"
            "vinsertps $0x10, %2, %0, %0\n\t"
            "vinsertps $0x20, %3, %0, %0\n\t"
            "vinsertps $0x30, %4, %0, %0"
            : "=&v"(quarters[q])
            : "m"(cell(4 * q)), "m"(cell(4 * q + 1)), "m"(cell(4 * q + 2)), "m"(cell(4 * q + 3)));
      } else {
        asm("vmovsd %1, %0\n\t"
            "vmovhpd %2, %0, %0"
            : "=&v"(quarters[q])
            : "m"(cell(2 * q)), "m"(cell(2 * q + 1)));
      }
    }
    return join_quarters(quarters, out);
  }
#endif
  const auto value = [&](int lane) { return std::bit_cast<Cell>(cell(lane)); };
  [&]<int... kLane>(std::integer_sequence<int, kLane...>) {
    out = Vector<Cell, kLanes>{value(kLane)...};
  }(std::make_integer_sequence<int, kLanes>());
}

#if SPGRAD_WIDE
// Cells of `from` in 16 bytes: the first `count`, from 1 to all; the others are 0.
template <class Cell, class index_t>
SPGRAD_INLINE void load_some_of_quarter(const void* from, const index_t* at, int64_t count,
                                        Vector<float, 4>& out) {
  struct Bytes {
    char all[sizeof(Cell)];
  };
  const auto cell = [&](int lane) -> const Bytes& {
    return static_cast<const Bytes*>(from)[static_cast<int64_t>(at[lane])];
  };
  if constexpr (sizeof(Cell) == 8) {
    asm("vmovsd %1, %0" : "=x"(out) : "m"(cell(0)));
    if (count > 1) asm("vmovhpd %1, %0, %0" : "+x"(out) : "m"(cell(1)));
  } else {
    asm("vmovss %1, %0" : "=x"(out) : "m"(cell(0)));
    if (count == 1) return;
    asm("vinsertps $0x10, %1, %0, %0" : "+x"(out) : "m"(cell(1)));
    if (count == 2) return;
    asm("vinsertps $0x20, %1, %0, %0" : "+x"(out) : "m"(cell(2)));
    if (count > 3) asm("vinsertps $0x30, %1, %0, %0" : "+x"(out) : "m"(cell(3)));
  }
}

// The first `count` cells in 32 bytes, from 1 to all; the others are 0. For code with registers of
// 32 bytes: the portable code has vectors of this size too, and no register for them.
template <class Cell, int kLanes, class index_t>
SPGRAD_INLINE void load_some(const void* from, const index_t* at, int64_t count,
                             Vector<Cell, kLanes>& out) {
  static_assert(sizeof(out) == 32);
  constexpr int kHalf = kLanes / 2;
  Vector<float, 4> quarters[2]{};
  if (count <= kHalf) {
    load_some_of_quarter<Cell>(from, at, count, quarters[0]);
  } else {
    load_some_of_quarter<Cell>(from, at, kHalf, quarters[0]);
    load_some_of_quarter<Cell>(from, at + kHalf, count - kHalf, quarters[1]);
  }
  join_quarters(quarters, out);
}
#endif

// A mask of the first `count` of at most 16 lanes.
SPGRAD_INLINE uint16_t first_of(int64_t count) {
  return static_cast<uint16_t>((1U << static_cast<unsigned>(count)) - 1U);
}

// out[l] = cell at[l] of `from` for l < count, of 0 to kLanes; the other lanes are zero if the
// processor gathers with a mask, and cell at[l] if it does not. So every index has to be readable
// and valid, whatever `count` is.
template <class Cell, int kLanes, class index_t>
SPGRAD_INLINE void gather(const void* from, const index_t* at, [[maybe_unused]] int64_t count,
                          Vector<Cell, kLanes>& out) {
#if SPGRAD_WIDE
  if constexpr (sizeof(out) == 64 && sizeof(index_t) == 4) {
    if (!gathers_fast) return load_cells<Cell, kLanes>(from, at, out);
    const auto* const bytes = static_cast<const char*>(from);
    Vector<index_t, kLanes> index;
    std::memcpy(&index, at, sizeof(index));
    uint16_t mask = first_of(count);
    out = Vector<Cell, kLanes>{};
    const auto& memory = *reinterpret_cast<const char (*)[]>(bytes);  // of which the asm reads some
    if constexpr (sizeof(Cell) == 4) {
      asm("vgatherdps (%[from],%[index],4), %[out]%{%[mask]%}"
          : [out] "+&v"(out), [mask] "+&Yk"(mask)
          : [from] "r"(bytes), [index] "v"(index), "m"(memory));
    } else {
      asm("vgatherdpd (%[from],%[index],8), %[out]%{%[mask]%}"
          : [out] "+&v"(out), [mask] "+&Yk"(mask)
          : [from] "r"(bytes), [index] "v"(index), "m"(memory));
    }
    return;
  }
#endif
  load_cells<Cell, kLanes>(from, at, out);
}

#if SPGRAD_WIDE
// The first 16 bytes of `out` are the cells `at` of `from`, by one load for each; the others are 0.
// load_cells has the same instructions once more: if it calls this function, GCC 12 spills pointers
// in the loops around it, which take up to a quarter longer.
template <class Cell, class index_t, class V>
SPGRAD_INLINE void load_quarter(const void* from, const index_t* at, V& out) {
  struct Bytes {
    char all[sizeof(Cell)];
  };
  const auto cell = [&](int lane) -> const Bytes& {
    return static_cast<const Bytes*>(from)[static_cast<int64_t>(at[lane])];
  };
  if constexpr (sizeof(Cell) == 4) {
    asm("vmovss %1, %x0\n\t"
        "vinsertps $0x10, %2, %x0, %x0\n\t"
        "vinsertps $0x20, %3, %x0, %x0\n\t"
        "vinsertps $0x30, %4, %x0, %x0"
        : "=&v"(out)
        : "m"(cell(0)), "m"(cell(1)), "m"(cell(2)), "m"(cell(3)));
  } else {
    asm("vmovsd %1, %x0\n\t"
        "vmovhpd %2, %x0, %x0"
        : "=&v"(out)
        : "m"(cell(0)), "m"(cell(1)));
  }
}

// Whether the kLanes indices from `at` on are consecutive, as in the rows of bands and of blocks;
// they may be in any order and repeat. For code with registers of 32 bytes or more.
template <int kLanes, class index_t>
SPGRAD_INLINE bool are_consecutive(const index_t* at) {
  if (at[kLanes - 1] - at[0] != kLanes - 1) return false;
  constexpr auto numbers = []<int... kLane>(std::integer_sequence<int, kLane...>) {
    return Vector<index_t, kLanes>{kLane...};
  }(std::make_integer_sequence<int, kLanes>());
  Vector<index_t, kLanes> index;
  std::memcpy(&index, at, sizeof(index));
  const Vector<index_t, kLanes> differ = (index - index[0]) ^ numbers;
  bool none;
  if constexpr (sizeof(differ) == 64) {
    constexpr int kHalf = kLanes / 2;
    constexpr auto lower = [](int l) { return l; };
    constexpr auto upper = [](int l) { return l + kHalf; };
    const Vector<index_t, kHalf> either =
        shuffle<kHalf>(differ, differ, lower) | shuffle<kHalf>(differ, differ, upper);
    asm("vptest %t1, %t1" : "=@ccz"(none) : "x"(either));
  } else {
    static_assert(sizeof(differ) == 32 || sizeof(differ) == 16);
    asm("vptest %1, %1" : "=@ccz"(none) : "x"(differ));
  }
  return none;
}
#endif

// Lane l of `out` is from[first + l / kTimes]; kCount elements can be read.
template <int kTimes, int kCount, class T, class V>
SPGRAD_INLINE void repeat_each(const T* from, int first, V& out) {
  constexpr int kLanes = sizeof(V) / sizeof(T);
#if SPGRAD_WIDE
  if constexpr (sizeof(V) == 64 && kCount == 4 && kTimes > 1) {
    struct Part {
      T all[kCount];
    };
    if constexpr (sizeof(T) == 4) {
      asm("vbroadcastf32x4 %1, %0" : "=v"(out) : "m"(*reinterpret_cast<const Part*>(from)));
    } else {
      asm("vbroadcastf64x4 %1, %0" : "=v"(out) : "m"(*reinterpret_cast<const Part*>(from)));
    }
    const auto pick = [&]<int... kLane>(std::integer_sequence<int, kLane...>) {
      using Index = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;
      return Vector<Index, kLanes>{kLane / kTimes...} + static_cast<Index>(first);
    };
    out = __builtin_shuffle(out, pick(std::make_integer_sequence<int, kLanes>()));
    return;
  }
#endif
  if constexpr (kTimes == 1) {
    std::memcpy(&out, from + first, sizeof(out));
  } else {
    constexpr auto repeated = [](int l) { return l / kTimes; };
    Vector<T, kLanes / kTimes> some;
    std::memcpy(&some, from + first, sizeof(some));
    out = shuffle<kLanes>(some, some, repeated);
  }
}

#if SPGRAD_WIDE
// Joins four parts of 16 bytes, or two of 32, in a register of 64 bytes. GCC 12 joins vectors
// through memory, which takes ten times as long as these instructions.
template <int kPartBytes, int kParts, class T, class V>
SPGRAD_INLINE void side_by_side(const T* const (&parts)[kParts], V& out) {
  static_assert(sizeof(V) == 64 && kParts * kPartBytes == 64);
  struct Part {
    char bytes[kPartBytes];
  };
  const auto part = [&](int e) { return reinterpret_cast<const Part*>(parts[e]); };
  if constexpr (kParts == 2) {
    asm("vmovups %1, %t0" : "=v"(out) : "m"(*part(0)));
    asm("vinsertf64x4 $1, %1, %0, %0" : "+v"(out) : "m"(*part(1)));
  } else {
    asm("vmovups %1, %x0" : "=v"(out) : "m"(*part(0)));
    asm("vinsertf32x4 $1, %1, %0, %0" : "+v"(out) : "m"(*part(1)));
    asm("vinsertf32x4 $2, %1, %0, %0" : "+v"(out) : "m"(*part(2)));
    asm("vinsertf32x4 $3, %1, %0, %0" : "+v"(out) : "m"(*part(3)));
  }
}
#endif

}  // namespace spgrad
