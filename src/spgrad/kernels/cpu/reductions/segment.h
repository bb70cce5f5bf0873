// Arguments of the kernels over lines.
#pragma once

#include "reductions/segments.h"

namespace spgrad {

// An uninitialised tensor of the shape and dtype of `val`, (nse,) or (nse, d).
inline Tensor like(const Tensor& val) {
  return val.dim() == 2 ? empty(val, {val.size(0), val.size(1)}) : empty(val, {val.size(0)});
}

// An uninitialised tensor of what the m lines of `val` have, (m,) or (m, d).
inline Tensor per_line(const Tensor& ptr, const Tensor& val,
                       std::optional<ScalarType> dtype = std::nullopt) {
  const int64_t m = ptr.size(0) - 1;
  return val.dim() == 2 ? empty(val, {m, val.size(1)}, dtype) : empty(val, {m}, dtype);
}

inline void check_columns(const Tensor& x, const char* name) {
  STD_TORCH_CHECK(x.dim() == 1 || x.dim() == 2, "spgrad: `", name, "` has ", x.dim(),
                  " dimensions, not 1 or 2.");
  check_tensor(x, x.dim(), x.scalar_type(), name);
}

// The lines of `nse` entries.
template <class index_t>
Lines<index_t> checked_lines(const Tensor& ptr, const std::optional<Tensor>& perm, int64_t nse,
                             int64_t d) {
  check_view(ptr, ptr, std::nullopt);
  if (perm) {
    check_tensor(*perm, 1, ptr.scalar_type(), "perm");
    check_size(*perm, 0, nse, "perm");
  }
  const int64_t m = ptr.size(0) - 1, counted = data<index_t>(ptr)[m];
  STD_TORCH_CHECK(counted == nse, "spgrad: `ptr` counts ", counted, " entries, not ", nse, ".");
  return {data<index_t>(ptr), data<index_t>(perm), m, d};
}

// The lines of the entries that have the values `val`, (nse,) or (nse, d).
template <class index_t>
Lines<index_t> checked_lines(const Tensor& ptr, const std::optional<Tensor>& perm,
                             const Tensor& val, const char* name) {
  check_columns(val, name);
  return checked_lines<index_t>(ptr, perm, val.size(0), val.dim() == 2 ? val.size(1) : 1);
}

}  // namespace spgrad
