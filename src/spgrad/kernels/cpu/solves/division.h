// Division of the types that solves are defined for.
#pragma once

#include <cmath>

#include "common/dtypes.h"
#include "common/targets.h"

namespace spgrad {

template <class T>
SPGRAD_INLINE bool is_zero(T value) {
  return value == T{};
}
template <class T>
SPGRAD_INLINE bool is_zero(Complex<T> value) {
  return value.re == 0 && value.im == 0;
}

// Divides many numbers by the same number.
template <class T>
struct Divisor {
  T by;

  explicit Divisor(T divisor) : by(divisor) {}
  SPGRAD_INLINE T operator()(T a) const { return a / by; }
};
// Smith (1962): forms no square that could overflow. Each product is rounded, so a quotient is the
// same in every loop: the compiler would fuse products with sums in some loops and not in others.
template <class T>
struct Divisor<Complex<T>> {
  T ratio, size;
  bool real;  // the real part is the larger one

  explicit Divisor(Complex<T> d) : real(std::abs(d.re) >= std::abs(d.im)) {
    ratio = real ? d.im / d.re : d.re / d.im;
    size = real ? d.re + d.im * ratio : d.im + d.re * ratio;
  }
  SPGRAD_INLINE Complex<T> operator()(Complex<T> a) const {
    T re = a.re * ratio, im = a.im * ratio;
    keep_rounded(re);
    keep_rounded(im);
    if (real) return {(a.re + im) / size, (a.im - re) / size};
    return {(re + a.im) / size, (im - a.re) / size};
  }
};

template <class T>
SPGRAD_INLINE T divide(T a, T by) {
  return Divisor<T>(by)(a);
}

}  // namespace spgrad
