// The exponential of every lane of a vector.
#pragma once

#include <bit>

#include "reductions/segment_vectors.h"

namespace spgrad {

template <class F>
struct Exponential;
template <>
struct Exponential<float> {
  static constexpr int kDegree = 7, kMantissa = 23, kBias = 127;
  static constexpr float kHigh = 89, kLow = -104;  // above, the result is infinite; below, zero
  static constexpr float kRound = 0x1.8p23f;       // adding and subtracting it rounds to an integer
  static constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
};
template <>
struct Exponential<double> {
  static constexpr int kDegree = 13, kMantissa = 52, kBias = 1023;
  static constexpr double kHigh = 710, kLow = -746;
  static constexpr double kRound = 0x1.8p52;
  static constexpr double kLn2High = 6.93145751953125e-1, kLn2Low = 1.42860682030941723212e-6;
};

// e^x = 2^n e^r with |r| <= ln(2) / 2 and a Taylor polynomial in r, with an error of about one unit
// in the last place. ln(2) is stored in two parts, so r is exact enough (Cody and Waite 1980,
// "Software manual for the elementary functions"). 2^n is the product of two factors, because n can
// exceed the largest exponent.
template <class F, class V>
SPGRAD_INLINE V exp_lanes(const V& argument) {
  using E = Exponential<F>;
  constexpr int kLanes = sizeof(V) / sizeof(F);
  using Int = Vector<lane_int_t<F>, kLanes>;
  const auto zero = argument < E::kLow;  // handled separately: products that underflow are slow
  V x = zero ? V{} : argument;
  x = x > E::kHigh ? all<V>(E::kHigh) : x;
  const V shifted = x * F(1.44269504088896340736) + E::kRound;
  const Int n = std::bit_cast<Int>(shifted) - std::bit_cast<Int>(all<V>(E::kRound));
  const V rounded = shifted - E::kRound;
  const V r = (x - rounded * E::kLn2High) - rounded * E::kLn2Low;
  F factorial = 1;
  for (int k = 2; k <= E::kDegree; ++k) factorial *= k;
  V sum = all<V>(1 / factorial);
#pragma GCC unroll 16
  for (int k = E::kDegree - 1; k >= 2; --k) {
    factorial /= k + 1;
    sum = sum * r + 1 / factorial;
  }
  sum = sum * (r * r) + r + 1;
  const Int half = n >> 1;
  const V factor = std::bit_cast<V>((half + E::kBias) << E::kMantissa);
  const V other = std::bit_cast<V>((n - half + E::kBias) << E::kMantissa);
  return zero ? V{} : sum * factor * other;
}

}  // namespace spgrad
