// The one shim between the kernels and torch's stable ABI: element types, dispatch over
// <index_t, scalar_t>, checks, outputs, and the split of rows over threads.
//
// A kernel file includes this header, writes free functions over raw arrays, wraps them in a
// host function over Tensors, and registers that with STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m)
// and SPGRAD_BOX. The schemas stand in Python, beside the references.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include <algorithm>
#include <bit>
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <type_traits>

#include "common/memory.h"

// SPGRAD_CLONES on a function compiles it three times and picks one when the library loads: the
// build needs no -march and runs everywhere. What it calls must be inlined into each copy
// ("flatten" does that; SPGRAD_INLINE says it where it matters). A lambda's body is compiled once,
// for the baseline: keep hot loops out of lambdas that are not inlined.
#if defined(SPGRAD_CLONES)  // a build for tests needs no copies
#elif defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12 && defined(__x86_64__) && \
    defined(__GLIBC__)
#define SPGRAD_CLONES \
  __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4"), flatten))
#else
#define SPGRAD_CLONES
#endif
#define SPGRAD_INLINE inline __attribute__((always_inline))

namespace spgrad {

struct BFloat16 {
  uint16_t bits;
};

struct Half {
  uint16_t bits;
};

// Plain complex arithmetic: std::complex multiplies through a library call that treats infinities
// specially, at ten times the cost.
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

// accumulate_t<T>: what sums of T are formed in. float for 16-bit floats; unsigned for integers,
// because they wrap as torch's do where signed overflow is undefined.
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

// narrow<T>(sum) rounds once, at the end of a sum.
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

// Calls f.operator()<index_t>() for an int32 or int64 dtype: [&]<class index_t>() { ... }.
template <class F>
void dispatch_index(ScalarType dtype, F&& f) {
  switch (dtype) {
    case ScalarType::Int:
      return f.template operator()<int32_t>();
    case ScalarType::Long:
      return f.template operator()<int64_t>();
    default:
      STD_TORCH_CHECK(false, "spgrad: indices are int32 or int64, not ", dtype, ".");
  }
}

// Calls f.operator()<scalar_t>() for every dtype that values may have.
template <class F>
void dispatch_value(ScalarType dtype, F&& f) {
  switch (dtype) {
    case ScalarType::Float:
      return f.template operator()<float>();
    case ScalarType::Double:
      return f.template operator()<double>();
    case ScalarType::BFloat16:
      return f.template operator()<BFloat16>();
    case ScalarType::Half:
      return f.template operator()<Half>();
    case ScalarType::ComplexFloat:
      return f.template operator()<Complex<float>>();
    case ScalarType::ComplexDouble:
      return f.template operator()<Complex<double>>();
    case ScalarType::Char:
      return f.template operator()<int8_t>();
    case ScalarType::Byte:
      return f.template operator()<uint8_t>();
    case ScalarType::Short:
      return f.template operator()<int16_t>();
    case ScalarType::Int:
      return f.template operator()<int32_t>();
    case ScalarType::Long:
      return f.template operator()<int64_t>();
    default:
      STD_TORCH_CHECK(false, "spgrad: values of dtype ", dtype, " are not supported.");
  }
}

struct WordPair {
  uint64_t low, high;
};

// Calls f.operator()<T>() for an integer T of so many bytes, or a pair of them: for kernels that
// only move elements.
template <class F>
void dispatch_size(int64_t bytes, F&& f) {
  switch (bytes) {
    case 1:
      return f.template operator()<uint8_t>();
    case 2:
      return f.template operator()<uint16_t>();
    case 4:
      return f.template operator()<uint32_t>();
    case 8:
      return f.template operator()<uint64_t>();
    case 16:
      return f.template operator()<WordPair>();
    default:
      STD_TORCH_CHECK(false, "spgrad: elements of ", bytes, " bytes are not supported.");
  }
}

// Calls f.operator()<index_t, scalar_t>().
template <class F>
void dispatch(ScalarType index, ScalarType value, F&& f) {
  dispatch_index(index, [&]<class index_t>() {
    dispatch_value(value, [&]<class scalar_t>() { f.template operator()<index_t, scalar_t>(); });
  });
}

// Only what keeps a kernel from reading wild memory; index ranges were validated at construction.
inline void check_tensor(const Tensor& t, int64_t dim, ScalarType dtype, const char* name) {
  STD_TORCH_CHECK(t.dim() == dim, "spgrad: `", name, "` has ", t.dim(), " dimensions, not ", dim,
                  ".");
  STD_TORCH_CHECK(t.scalar_type() == dtype, "spgrad: `", name, "` has dtype ", t.scalar_type(),
                  "; the call needs ", dtype, ".");
  STD_TORCH_CHECK(t.is_contiguous(), "spgrad: `", name, "` is not contiguous.");
}

inline void check_size(const Tensor& t, int64_t dim, int64_t size, const char* name) {
  STD_TORCH_CHECK(t.size(dim) == size, "spgrad: `", name, "` has size ", t.size(dim),
                  " in dimension ", dim, ", not ", size, ".");
}

// A row view (ptr, idx, perm?): one index dtype, perm as long as idx.
inline void check_view(const Tensor& ptr, const Tensor& idx, const std::optional<Tensor>& perm) {
  const ScalarType dtype = ptr.scalar_type();
  check_tensor(ptr, 1, dtype, "ptr");
  STD_TORCH_CHECK(ptr.size(0) >= 1, "spgrad: `ptr` is empty; it has one element more than rows.");
  check_tensor(idx, 1, dtype, "idx");
  if (perm) {
    check_tensor(*perm, 1, dtype, "perm");
    check_size(*perm, 0, idx.size(0), "perm");
  }
}

// Called before the pointers that could not hold `count` are allocated.
inline void check_fits(ScalarType index, int64_t count) {
  STD_TORCH_CHECK(index != ScalarType::Int || count <= std::numeric_limits<int32_t>::max(),
                  "spgrad: ", count, " entries do not fit int32 indices; use int64 indices.");
}

template <class T>
const T* data(const Tensor& t) {
  return static_cast<const T*>(t.const_data_ptr());
}

template <class T>
const T* data(const std::optional<Tensor>& t) {
  return t ? data<T>(*t) : nullptr;
}

template <class T>
T* mutable_data(const Tensor& t) {
  return static_cast<T*>(t.mutable_data_ptr());
}

// Multiply-adds below which a second thread costs more than it saves.
inline constexpr int64_t kSerialWork = 32768;

// First row whose work lies at or after `work`, where row i starts at ptr[i] + i. Counting the rows
// beside the entries keeps empty rows from piling up on one thread.
template <class index_t>
int64_t row_at_work(const index_t* ptr, int64_t rows, int64_t work) {
  int64_t low = 0, high = rows;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (static_cast<int64_t>(ptr[middle]) + middle < work) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// Calls f(first_row, last_row) on ranges that partition [0, rows) into equal shares of entries plus
// rows. A row is never split, so if f computes each row by itself the result does not depend on
// the number of threads. `cost` is the multiply-adds of one entry. f must not throw.
template <class index_t, class F>
void parallel_rows(const index_t* ptr, int64_t rows, int64_t cost, const F& f) {
  const int64_t work = static_cast<int64_t>(ptr[rows]) + rows;
  const int64_t grain = kSerialWork / (cost < 1 ? 1 : cost) + 1;
  if (work <= grain) {
    if (rows > 0) f(int64_t{0}, rows);
    return;
  }
  torch::stable::parallel_for(0, work, grain, [&](int64_t first, int64_t last) {
    const int64_t from = row_at_work(ptr, rows, first);
    const int64_t to = row_at_work(ptr, rows, last);
    if (from < to) f(from, to);
  });
}

// Calls f(first, last) on ranges that partition [0, nse), wherever lines begin and end. `cost` is
// the multiply-adds of one entry. f must not throw.
template <class F>
void parallel_entries(int64_t nse, int64_t cost, const F& f) {
  const int64_t grain = kSerialWork / (cost < 1 ? 1 : cost) + 1;
  if (nse <= grain) {
    if (nse > 0) f(int64_t{0}, nse);
    return;
  }
  torch::stable::parallel_for(0, nse, grain, f);
}

// [0, total) in equal consecutive ranges, for algorithms that need to know which range they work on
// (histograms, prefix sums): one for every thread that has enough to do, and at most `limit`. A
// result must not depend on count().
class Chunks {
 public:
  explicit Chunks(int64_t total, int64_t limit = INT64_MAX) : total_(total) {
    const int64_t threads = torch::stable::get_num_threads();
    count_ = std::max<int64_t>(1, std::min({threads, limit, total / kSerialWork}));
  }

  int64_t count() const { return count_; }
  int64_t begin(int64_t chunk) const {
    return total_ / count_ * chunk + std::min(chunk, total_ % count_);
  }

  // Calls f(chunk, begin, end) for every chunk, in parallel. f must not throw.
  template <class F>
  void for_each(const F& f) const {
    if (count_ == 1) return f(int64_t{0}, int64_t{0}, total_);
    torch::stable::parallel_for(0, count_, 1, [&](int64_t first, int64_t last) {
      for (int64_t c = first; c < last; ++c) f(c, begin(c), begin(c + 1));
    });
  }

 private:
  int64_t total_, count_;
};

}  // namespace spgrad
