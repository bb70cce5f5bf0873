// The element types of values, and the types in which sums of values are formed.
#pragma once

#include <bit>
#include <concepts>
#include <cstdint>
#include <type_traits>

#include "common/targets.h"

namespace spgrad {

struct BFloat16 {
  uint16_t bits;
};

struct Half {
  uint16_t bits;
};

// Plain complex arithmetic. std::complex multiplies by a library call that treats infinities
// specially and takes ten times as long.
template <class T>
struct Complex {
  T re{}, im{};

  Complex() = default;
  SPGRAD_INLINE Complex(T real, T imag = T()) : re(real), im(imag) {}

  SPGRAD_INLINE Complex& operator+=(Complex b) { return *this = *this + b; }
  SPGRAD_INLINE friend Complex operator+(Complex a, Complex b) {
    return {a.re + b.re, a.im + b.im};
  }
  SPGRAD_INLINE friend Complex operator-(Complex a, Complex b) {
    return {a.re - b.re, a.im - b.im};
  }
  SPGRAD_INLINE friend Complex operator*(Complex a, Complex b) {
    return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
  }
};

// Bit conversions, written without branches for a number (U = uint32_t, F = float) and for vectors
// of them alike. Halves are handled in integers because a subnormal operand would trap into
// microcode; _Float16 would need a new libgcc at run time.

template <class U, class F>
SPGRAD_INLINE void float_from_half(const U& half, F& out) {
  U bits = (half & 0x7fffu) << 13;
  const U exponent = bits & 0x0f800000u;
  bits += 112u << 23;                                          // rebias 15 -> 127
  bits += exponent == 0x0f800000u ? U{} + (112u << 23) : U{};  // infinity, NaN
  const U subnormal = bits + (1u << 23);
  const F scaled = std::bit_cast<F>(subnormal) - 0x1p-14f;
  bits = exponent == 0u ? std::bit_cast<U>(scaled) : bits;
  out = std::bit_cast<F>(bits | ((half & 0x8000u) << 16));
}

template <class U, class F>
SPGRAD_INLINE void half_from_float(const F& value, U& out) {
  const U magnitude = std::bit_cast<U>(value) & 0x7fffffffu;
  const U sign = (std::bit_cast<U>(value) >> 16) & 0x8000u;
  const U odd = (magnitude >> 13) & 1u;
  const U normal = (magnitude - (112u << 23) + 0xfffu + odd) >> 13;  // to nearest, ties to even
  const F shifted = std::bit_cast<F>(magnitude) + 0.5f;              // the adder rounds
  const U subnormal = std::bit_cast<U>(shifted) - 0x3f000000u;
  const U special = magnitude > 0x7f800000u ? U{} + 0x7e00u : U{} + 0x7c00u;
  U bits = magnitude < (113u << 23) ? subnormal : normal;
  bits = magnitude >= (143u << 23) ? special : bits;
  out = bits | sign;
}

template <class U, class F>
SPGRAD_INLINE void float_from_bfloat16(const U& bfloat16, F& out) {
  out = std::bit_cast<F>(bfloat16 << 16);
}

template <class U, class F>
SPGRAD_INLINE void bfloat16_from_float(const F& value, U& out) {
  const U bits = std::bit_cast<U>(value);
  const U rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;  // to nearest, ties to even
  out = (bits & 0x7fffffffu) > 0x7f800000u ? (bits >> 16) | 0x40u : rounded;
}

// accumulate_t<T>: the type that sums of T are formed in. float for 16-bit floats; unsigned for
// integers, which wrap as torch's do, whereas signed overflow is undefined.
template <class T>
struct Accumulate {
  using type = T;
};
template <>
struct Accumulate<BFloat16> {
  using type = float;
};
template <>
struct Accumulate<Half> {
  using type = float;
};
template <std::integral T>
struct Accumulate<T> {
  using type = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
};
template <class T>
using accumulate_t = typename Accumulate<T>::type;

template <class T>
SPGRAD_INLINE accumulate_t<T> widen(T value) {
  return static_cast<accumulate_t<T>>(value);
}
template <>
SPGRAD_INLINE float widen(BFloat16 value) {
  float out;
  float_from_bfloat16(uint32_t{value.bits}, out);
  return out;
}
template <>
SPGRAD_INLINE float widen(Half value) {
  float out;
  float_from_half(uint32_t{value.bits}, out);
  return out;
}

// narrow<T>(sum) converts to T; a sum is rounded only then.
template <class T>
SPGRAD_INLINE T narrow(accumulate_t<T> sum) {
  if constexpr (std::is_same_v<T, BFloat16> || std::is_same_v<T, Half>) {
    uint32_t bits;
    if constexpr (std::is_same_v<T, BFloat16>) {
      bfloat16_from_float(sum, bits);
    } else {
      half_from_float(sum, bits);
    }
    return T{static_cast<uint16_t>(bits)};
  } else {
    return static_cast<T>(sum);
  }
}

}  // namespace spgrad
