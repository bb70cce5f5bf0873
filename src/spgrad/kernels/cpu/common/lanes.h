// Vectors of fixed width, whose elements are converted in registers when they are loaded and
// stored. GCC and Clang lower any width to what the target has.
#pragma once

#include <cstring>
#include <type_traits>
#include <utility>

#include "common/dtypes.h"

namespace spgrad {

template <class T, int kLanes>
struct VectorOf {
  typedef T type __attribute__((vector_size(kLanes * sizeof(T))));
};
template <class T, int kLanes>
using Vector = typename VectorOf<T, kLanes>::type;

// The type of a lane, and the number of lanes of an element: complex numbers take two,
// interleaved.
template <class T>
struct Lane {
  using type = accumulate_t<T>;
  static constexpr int count = 1;
};
template <class T>
struct Lane<Complex<T>> {
  using type = T;
  static constexpr int count = 2;
};
template <class T>
using lane_t = typename Lane<T>::type;

// kElements elements of T, widened.
template <class T, int kElements>
using Lanes = Vector<lane_t<T>, kElements * Lane<T>::count>;

// Elements that fill a register of kBytes.
template <class T, int kBytes>
inline constexpr int kFull = kBytes / (Lane<T>::count * sizeof(lane_t<T>));

// Unsigned 8 or 16 bits widened to 32. GCC converts between vectors of different size by halves;
// the processor converts in one instruction, half floats included. Only AVX code uses eight
// elements or more.
template <int kElements, class T>
SPGRAD_INLINE void load_bits(const T* from, Vector<uint32_t, kElements>& out) {
  using Raw = std::conditional_t<sizeof(T) == 1, uint8_t, uint16_t>;
  Vector<Raw, kElements> raw;
  std::memcpy(&raw, from, sizeof(raw));
#if SPGRAD_WIDE
  if constexpr (kElements >= 8 && sizeof(T) == 1) {
    asm("vpmovzxbd %1, %0" : "=v"(out) : "vm"(raw));
    return;
  } else if constexpr (kElements >= 8) {
    asm("vpmovzxwd %1, %0" : "=v"(out) : "vm"(raw));
    return;
  }
#endif
  out = __builtin_convertvector(raw, Vector<uint32_t, kElements>);
}

template <int kElements>
SPGRAD_INLINE void load_half(const Half* from, Vector<float, kElements>& out) {
#if SPGRAD_WIDE
  if constexpr (kElements >= 8) {
    Vector<uint16_t, kElements> raw;
    std::memcpy(&raw, from, sizeof(raw));
    asm("vcvtph2ps %1, %0" : "=v"(out) : "vm"(raw));
    return;
  }
#endif
  Vector<uint32_t, kElements> bits;
  load_bits<kElements>(from, bits);
  float_from_half(bits, out);
}

// Integers may lose their sign here: the low bits of a sum of products do not depend on it.
template <int kElements, class T>
SPGRAD_INLINE void load(const T* from, Lanes<T, kElements>& out) {
  if constexpr (std::is_same_v<T, Half>) {
    load_half<kElements>(from, out);
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    Vector<uint32_t, kElements> bits;
    load_bits<kElements>(from, bits);
    float_from_bfloat16(bits, out);
  } else if constexpr (sizeof(T) < sizeof(lane_t<T>)) {
    load_bits<kElements>(from, out);
  } else {
    std::memcpy(&out, from, sizeof(out));
  }
}

// One element, by code that may use registers of kBytes.
template <int kBytes, class T>
SPGRAD_INLINE accumulate_t<T> load_one(const T& from) {
#if SPGRAD_WIDE
  if constexpr (std::is_same_v<T, Half> && kBytes >= 32) {
    const Vector<uint32_t, 4> raw{from.bits};
    Vector<float, 4> out;
    asm("vcvtph2ps %1, %0" : "=v"(out) : "v"(raw));
    return out[0];
  }
#endif
  return widen(from);
}

template <int kElements, class T>
SPGRAD_INLINE void store(const Lanes<T, kElements>& from, T* to) {
  if constexpr (sizeof(T) == sizeof(lane_t<T>) * Lane<T>::count) {
    std::memcpy(static_cast<void*>(to), &from, sizeof(from));
  } else if constexpr (std::is_integral_v<T>) {
    const auto raw = __builtin_convertvector(from, Vector<T, kElements>);
    std::memcpy(to, &raw, sizeof(raw));
  } else {
    Vector<uint32_t, kElements> bits;
    if constexpr (std::is_same_v<T, Half>) {
      half_from_float(from, bits);
    } else {
      bfloat16_from_float(from, bits);
    }
    const auto raw = __builtin_convertvector(bits, Vector<uint16_t, kElements>);
    std::memcpy(to, &raw, sizeof(raw));
  }
}

// The lanes of a and b side by side, reordered: lane l of the result is lane pick(l) of the two.
template <int kLanes, class V, class F>
SPGRAD_INLINE auto shuffle(const V& a, const V& b, F) {
  return [&]<int... kLane>(std::integer_sequence<int, kLane...>) {
    return __builtin_shufflevector(a, b, F()(kLane)...);
  }(std::make_integer_sequence<int, kLanes>());
}

// Hides from the compiler how v was computed. GCC 12 does not vectorise a choice that depends on
// two comparisons of 64-byte vectors: it handles one element after the other. If one of the two
// outcomes is hidden, it makes two choices with masks.
template <class V>
SPGRAD_INLINE void opaque([[maybe_unused]] V& v) {
#if SPGRAD_WIDE
  asm("" : "+v"(v));
#endif
}

// Keeps GCC 12 from vectorising the loop that calls this. If the elements of a loop are not
// contiguous, GCC 12 would insert them into vectors one by one, which takes longer than the rest
// of the loop.
SPGRAD_INLINE void one_by_one() { asm volatile("" ::: "memory"); }

// Joins the groups of four lanes in v.
template <class T, int kLanes, class Join>
SPGRAD_INLINE void join_groups(const Vector<T, kLanes>& v, Vector<T, 4>& out, const Join& join) {
  if constexpr (kLanes == 4) {
    out = v;
  } else {
    constexpr auto lower = [](int l) { return l; };
    constexpr auto upper = [](int l) { return l + kLanes / 2; };
    const Vector<T, kLanes / 2> half =
        join(shuffle<kLanes / 2>(v, v, lower), shuffle<kLanes / 2>(v, v, upper));
    join_groups<T, kLanes / 2>(half, out, join);
  }
}

// out[e] = all lanes of v[e] joined, neighbours first. Groups of four lanes are transposed in
// place, then joined: 13 instructions for four sums of sixteen lanes, where summing each vector by
// halves takes 32.
template <class T, int kLanes, class Join>
SPGRAD_INLINE void join_lanes(const Vector<T, kLanes> (&v)[4], Vector<T, 4>& out,
                              const Join& join) {
  if constexpr (kLanes == 2) {
    for (int e = 0; e < 4; ++e) out[e] = join(T(v[e][0]), T(v[e][1]));
  } else {
    // Of each group of four, two lanes of one vector, then two of the other.
    constexpr auto even = [](int l) { return l % 4 / 2 * kLanes + l / 4 * 4 + l % 2 * 2; };
    constexpr auto odd = [](int l) { return l % 4 / 2 * kLanes + l / 4 * 4 + l % 2 * 2 + 1; };
    const auto pairs = [&](const Vector<T, kLanes>& a, const Vector<T, kLanes>& b) {
      return join(shuffle<kLanes>(a, b, even), shuffle<kLanes>(a, b, odd));
    };
    join_groups<T, kLanes>(pairs(pairs(v[0], v[1]), pairs(v[2], v[3])), out, join);
  }
}

struct Add {
  template <class V>
  SPGRAD_INLINE V operator()(const V& a, const V& b) const {
    return a + b;
  }
};

// out[e] = the sum of all lanes of v[e].
template <class T, int kLanes>
SPGRAD_INLINE void sum_lanes(const Vector<T, kLanes> (&v)[4], Vector<T, 4>& out) {
  join_lanes<T, kLanes>(v, out, Add());
}

}  // namespace spgrad
