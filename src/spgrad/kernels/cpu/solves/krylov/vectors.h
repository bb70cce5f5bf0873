// What the kernels of Krylov methods share: chunks of vectors, sums over them, and scalars.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <type_traits>

#include "common/arguments.h"
#include "common/dtypes.h"
#include "common/targets.h"
#include "common/threads.h"
#include "solves/division.h"
#include "solves/dtypes.h"

namespace spgrad {

// Vectors are (items, m, n), contiguous: n columns side by side. Scalars are (items, n). Sums are
// formed in 64 bits over chunks of rows, then over the chunks of an item in their order. The chunks
// depend on the shape alone, so results do not depend on the number of threads.
constexpr int64_t kChunk = 8192;
constexpr int kLanes = 16;  // the number of sums into which one column is split

template <class T>
struct Wide {
  using type = double;
};
template <class T>
struct Wide<Complex<T>> {
  using type = Complex<double>;
};
template <class T>
using wide_t = typename Wide<T>::type;

SPGRAD_INLINE double wide_product(float a, float b) { return double{a} * b; }
SPGRAD_INLINE double wide_product(double a, double b) { return a * b; }
template <class T>
SPGRAD_INLINE Complex<double> wide_product(Complex<T> a, Complex<T> b) {  // conj(a) b
  return Complex<double>(a.re, -a.im) * Complex<double>(b.re, b.im);
}

SPGRAD_INLINE double wide_square(float a) { return double{a} * a; }
SPGRAD_INLINE double wide_square(double a) { return a * a; }
template <class T>
SPGRAD_INLINE double wide_square(Complex<T> a) {
  return double{a.re} * a.re + double{a.im} * a.im;
}

template <class scalar_t>
scalar_t rounded(double value) {
  return scalar_t(value);
}
template <class scalar_t>
scalar_t rounded(Complex<double> value) {
  if constexpr (std::is_floating_point_v<scalar_t>) {
    return static_cast<scalar_t>(value.re);
  } else {
    using real = decltype(scalar_t{}.re);
    return {static_cast<real>(value.re), static_cast<real>(value.im)};
  }
}

struct VectorShape {
  int64_t items, m, n;
  int64_t columns() const { return items * n; }
  int64_t rows() const { return std::max<int64_t>(1, kChunk / std::max<int64_t>(n, 1)); }
  int64_t chunks() const { return n == 0 ? 0 : (m + rows() - 1) / rows(); }  // of an item
};

inline VectorShape shape_of(const Tensor& a, const char* name) {
  check_tensor(a, 3, a.scalar_type(), name);
  return {.items = a.size(0), .m = a.size(1), .n = a.size(2)};
}

inline void check_alike(const Tensor& b, const Tensor& a, const char* name) {
  check_tensor(b, 3, a.scalar_type(), name);
  for (int64_t d = 0; d < 3; ++d) check_size(b, d, a.size(d), name);
}

inline void check_columns_of(const Tensor& t, const VectorShape& s, ScalarType dtype,
                             const char* name) {
  check_tensor(t, 2, dtype, name);
  check_size(t, 0, s.items, name);
  check_size(t, 1, s.n, name);
}

// Scalars, float64 or complex128.
class Scalars {
 public:
  Scalars(const Tensor& t, const VectorShape& s, const char* name) {
    const bool complex = t.scalar_type() == ScalarType::ComplexDouble;
    check_columns_of(t, s, complex ? ScalarType::ComplexDouble : ScalarType::Double, name);
    if (complex) {
      complex_ = data<Complex<double>>(t);
    } else {
      real_ = data<double>(t);
    }
  }

  bool complex() const { return complex_ != nullptr; }
  Complex<double> operator[](int64_t i) const { return complex_ ? complex_[i] : real_[i]; }
  double real(int64_t i) const { return complex_ ? complex_[i].re : real_[i]; }

 private:
  const double* real_ = nullptr;
  const Complex<double>* complex_ = nullptr;
};

inline const double* reals(const Tensor& t, const VectorShape& s, const char* name) {
  check_columns_of(t, s, ScalarType::Double, name);
  return data<double>(t);
}
inline double* changed_reals(const Tensor& t, const VectorShape& s, const char* name) {
  check_columns_of(t, s, ScalarType::Double, name);
  return mutable_data<double>(t);
}
inline const bool* mask(const Tensor& t, const VectorShape& s, const char* name) {
  check_columns_of(t, s, ScalarType::Bool, name);
  return data<bool>(t);
}
inline bool* changed_mask(const Tensor& t, const VectorShape& s, const char* name) {
  check_columns_of(t, s, ScalarType::Bool, name);
  return mutable_data<bool>(t);
}

// The scalars that a method keeps from step to step, (count, items, n) float64. `load` gives those
// of the column that `state` points to as a struct of as many doubles, `store` writes them back.
inline double* state_of(const Tensor& t, const VectorShape& s, int64_t count) {
  check_tensor(t, 3, ScalarType::Double, "state");
  check_size(t, 0, count, "state");
  check_size(t, 1, s.items, "state");
  check_size(t, 2, s.n, "state");
  return mutable_data<double>(t);
}
template <class Column>
using Doubles = std::array<double, sizeof(Column) / sizeof(double)>;
template <class Column>
Column load(const double* state, int64_t columns) {
  Doubles<Column> all;
  for (double& one : all) {
    one = *state;
    state += columns;
  }
  return std::bit_cast<Column>(all);
}
template <class Column>
void store(const Column& scalars, double* state, int64_t columns) {
  for (const double one : std::bit_cast<Doubles<Column>>(scalars)) {
    *state = one;
    state += columns;
  }
}

// Calls f.operator()<scalar_t>() for a vector x of float32 or float64, of this name.
template <class F>
void dispatch_real(const Tensor& x, const char* name, F&& f) {
  dispatch_solvable(x.scalar_type(), [&]<class scalar_t>() {
    if constexpr (std::is_floating_point_v<scalar_t>) {
      f.template operator()<scalar_t>();
    } else {
      STD_TORCH_CHECK(false, "spgrad: `", name, "` is complex; float32 and float64 are accepted.");
    }
  });
}

// The rounding unit of the numbers in vectors.
template <class T>
double eps_of(T) {
  return std::numeric_limits<T>::epsilon();
}
template <class T>
double eps_of(Complex<T>) {
  return std::numeric_limits<T>::epsilon();
}

// a / b, and 0 where b is 0.
template <class T>
T quotient(T a, T b) {
  return is_zero(b) ? T{} : divide(a, b);
}
inline double inverse(double a) { return a == 0 ? 0 : 1 / a; }

// K factors for each column, in the dtype of the vectors: those of an item are (K, n).
template <int K, class scalar_t>
class Factors {
 public:
  explicit Factors(const VectorShape& s) : n_(s.n), all_(s.columns() * K) {}

  template <class... T>
  void set(int64_t column, T... factors) {
    static_assert(sizeof...(T) == K);
    const int64_t item = column / n_, j = column % n_;
    int64_t k = item * K;
    ((all_[k++ * n_ + j] = rounded<scalar_t>(factors)), ...);
  }
  const scalar_t* of(int64_t item) const { return all_.data() + item * K * n_; }

 private:
  int64_t n_;
  List<scalar_t> all_;
};

// Calls f(i, by) for `count` elements, those of whole rows of n columns. by(k) is the column's
// factor k, of factors (K, n).
template <int K, class scalar_t, class F>
SPGRAD_INLINE void for_elements(int64_t count, int64_t n, const scalar_t* factors, F&& f) {
  if (n > 1) {
    for (int64_t i = 0; i < count; i += n) {
      for (int64_t j = 0; j < n; ++j) f(i + j, [&](int k) { return factors[k * n + j]; });
    }
    return;
  }
  scalar_t one[K];
  for (int k = 0; k < K; ++k) one[k] = factors[k];
  for (int64_t i = 0; i < count; ++i) f(i, [&](int k) { return one[k]; });
}

// Adds up the terms of one column in kLanes sums, which vectors hold: the term of row i in sum
// i % kLanes. Only the last part of a column may have a number of rows that kLanes does not divide.
template <class sum_t>
class LaneSums {
 public:
  template <class F>
  SPGRAD_INLINE void add(int64_t rows, F&& term) {
    int64_t i = 0;
    for (; i + kLanes <= rows; i += kLanes) {
      for (int l = 0; l < kLanes; ++l) lanes_[l] += term(i + l);
    }
    for (int l = 0; i < rows; ++i, ++l) lanes_[l] += term(i);
  }
  SPGRAD_INLINE sum_t total() const {
    sum_t sum{};
    for (int l = 0; l < kLanes; ++l) sum += lanes_[l];
    return sum;
  }

 private:
  sum_t lanes_[kLanes] = {};
};

// As for_elements, and adds up what f returns for each column in `sums` (n,).
template <int K, class scalar_t, class sum_t, class F>
SPGRAD_INLINE void sum_elements(int64_t count, int64_t n, const scalar_t* factors,
                                sum_t* __restrict sums, F&& f) {
  if (n > 1) {
    for (int64_t j = 0; j < n; ++j) sums[j] = sum_t{};
    for (int64_t i = 0; i < count; i += n) {
      for (int64_t j = 0; j < n; ++j) {
        sums[j] += f(i + j, [&](int k) { return factors[k * n + j]; });
      }
    }
    return;
  }
  scalar_t one[K + 1];  // K may be 0
  for (int k = 0; k < K; ++k) one[k] = factors[k];
  const auto by = [&](int k) { return one[k]; };
  LaneSums<sum_t> lanes;
  lanes.add(count, [&](int64_t i) { return f(i, by); });
  sums[0] = lanes.total();
}

// The scalar products of the columns of a and b.
template <class scalar_t>
SPGRAD_CLONES void dot_chunk(const scalar_t* a, const scalar_t* b, int64_t count, int64_t n,
                             wide_t<scalar_t>* sums) {
  const scalar_t* const none = nullptr;
  sum_elements<0>(count, n, none, sums,
                  [&](int64_t i, const auto&) { return wide_product(a[i], b[i]); });
}

// Calls f(start, count, item, chunk) for every chunk, with its elements, its item, and its number
// among all chunks.
template <class F>
void for_chunks(const VectorShape& s, const F& f) {
  const int64_t rows = s.rows(), per_item = s.chunks();
  const int64_t grain = std::max<int64_t>(1, kSerialWork / (rows * std::max<int64_t>(s.n, 1)));
  auto run = [&](int64_t first, int64_t last) {
    for (int64_t chunk = first; chunk < last; ++chunk) {
      const int64_t item = chunk / per_item, from = chunk % per_item * rows;
      const int64_t to = std::min(from + rows, s.m);
      f((item * s.m + from) * s.n, (to - from) * s.n, item, chunk);
    }
  };
  const int64_t chunks = s.items * per_item;
  if (chunks <= grain) return run(0, chunks);
  torch::stable::parallel_for(0, chunks, grain, run);
}

// Calls f(start, count, item, sums) for every chunk, where f writes `each` sums of the chunk, and
// adds up those of each item in `out` (items, each).
template <class T, class F>
void sum_chunks(const VectorShape& s, int64_t each, T* out, const F& f) {
  List<T> partial(s.items * s.chunks() * each);
  for_chunks(s, [&](int64_t start, int64_t count, int64_t item, int64_t chunk) {
    f(start, count, item, partial.data() + chunk * each);
  });
  const T* next = partial.data();
  for (int64_t item = 0; item < s.items; ++item, out += each) {
    for (int64_t j = 0; j < each; ++j) out[j] = T{};
    for (int64_t c = 0; c < s.chunks(); ++c, next += each) {
      for (int64_t j = 0; j < each; ++j) out[j] += next[j];
    }
  }
}

}  // namespace spgrad
