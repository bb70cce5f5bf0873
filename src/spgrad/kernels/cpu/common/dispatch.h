// From the dtypes of a call to the types that its kernel is compiled for.
#pragma once

#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include <cstdint>
#include <type_traits>

#include "common/dtypes.h"
#include "common/memory.h"

namespace spgrad {

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

// Calls f.operator()<T>() for an integer T of this size in bytes, or a pair of integers: for
// kernels that only move elements.
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

// The same for every dtype but the complex ones, which have no order.
template <class F>
void dispatch_ordered(ScalarType index, ScalarType value, F&& f) {
  dispatch(index, value, [&]<class index_t, class scalar_t>() {
    if constexpr (std::is_same_v<scalar_t, Complex<float>> ||
                  std::is_same_v<scalar_t, Complex<double>>) {
      STD_TORCH_CHECK(false, "spgrad: values of dtype ", value,
                      " are not supported: complex numbers have no order.");
    } else {
      f.template operator()<index_t, scalar_t>();
    }
  });
}

}  // namespace spgrad
