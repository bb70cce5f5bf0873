// The dtypes that solves and factorisations are defined for.
#pragma once

#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include "common/dtypes.h"
#include "common/memory.h"

namespace spgrad {

// Calls f.operator()<scalar_t>() for float32, float64 and their complex types.
template <class F>
void dispatch_solvable(ScalarType dtype, F&& f) {
  switch (dtype) {
    case ScalarType::Float:
      return f.template operator()<float>();
    case ScalarType::Double:
      return f.template operator()<double>();
    case ScalarType::ComplexFloat:
      return f.template operator()<Complex<float>>();
    case ScalarType::ComplexDouble:
      return f.template operator()<Complex<double>>();
    default:
      STD_TORCH_CHECK(false, "spgrad: solves with values of dtype ", dtype, " are not supported.");
  }
}

}  // namespace spgrad
