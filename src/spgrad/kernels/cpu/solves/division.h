// Division of the types that solves are defined for.
#pragma once

#include <cmath>

#include "common/dtypes.h"

namespace spgrad {

template <class T>
SPGRAD_INLINE bool is_zero(T value) {
  return value == T{};
}
template <class T>
SPGRAD_INLINE bool is_zero(Complex<T> value) {
  return value.re == 0 && value.im == 0;
}

// Divides by one number again and again.
template <class T>
struct Divisor {
  T by;

  explicit Divisor(T divisor) : by(divisor) {}
  SPGRAD_INLINE T operator()(T a) const { return a / by; }
};
// Smith (1962): no square that overflows.
template <class T>
struct Divisor<Complex<T>> {
  T ratio, size;
  bool real;  // the real part is the larger one

  explicit Divisor(Complex<T> d) : real(std::abs(d.re) >= std::abs(d.im)) {
    ratio = real ? d.im / d.re : d.re / d.im;
    size = real ? d.re + d.im * ratio : d.im + d.re * ratio;
  }
  SPGRAD_INLINE Complex<T> operator()(Complex<T> a) const {
    if (real) return {(a.re + a.im * ratio) / size, (a.im - a.re * ratio) / size};
    return {(a.re * ratio + a.im) / size, (a.im * ratio - a.re) / size};
  }
};

template <class T>
SPGRAD_INLINE T divide(T a, T by) {
  return Divisor<T>(by)(a);
}

}  // namespace spgrad
