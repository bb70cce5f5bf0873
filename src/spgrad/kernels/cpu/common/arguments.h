// Tensor arguments: checks, and pointers to their elements.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/util/Exception.h>

#include <cstdint>
#include <limits>
#include <optional>

#include "common/memory.h"

namespace spgrad {

// These checks keep a kernel from reading outside of its arguments. They do not check indices,
// which were validated when the pattern was constructed.

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

// Checks a row view (ptr, idx, perm?): one index dtype, perm as long as idx.
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

// Checks the operands of a product of a row view with x (k, n), or with x (k,) if it may be a
// vector. Its values are (nse,), or (nse, h) if `value_dims` is 2.
inline void check_spmm(const Tensor& ptr, const Tensor& idx, const std::optional<Tensor>& perm,
                       const Tensor& val, const Tensor& x, int64_t value_dims = 1,
                       bool may_be_vector = false) {
  check_view(ptr, idx, perm);
  check_tensor(x, may_be_vector && x.dim() == 1 ? 1 : 2, x.scalar_type(), "x");
  check_tensor(val, value_dims, x.scalar_type(), "val");
  check_size(val, 0, idx.size(0), "val");
}

// Checks the operands of products of the rows of g (m, n) and x (k, n), one for each entry.
inline void check_sddmm(const Tensor& ptr, const Tensor& idx, const std::optional<Tensor>& perm,
                        const Tensor& g, const Tensor& x) {
  check_view(ptr, idx, perm);
  check_tensor(g, 2, x.scalar_type(), "g");
  check_tensor(x, 2, x.scalar_type(), "x");
  check_size(g, 0, ptr.size(0) - 1, "g");
  check_size(g, 1, x.size(1), "g");
}

// Checks the values of entries, or of segments: (nse,) or (nse, d).
inline void check_columns(const Tensor& val, const char* name) {
  STD_TORCH_CHECK(val.dim() == 1 || val.dim() == 2, "spgrad: `", name, "` has ", val.dim(),
                  " dimensions, not 1 or 2.");
  check_tensor(val, val.dim(), val.scalar_type(), name);
}

// The number d of columns: d for values (nse, d), 1 for values (nse,).
inline int64_t num_columns(const Tensor& val) { return val.dim() == 2 ? val.size(1) : 1; }

// An uninitialised tensor with as many columns as `val`: (count,) or (count, d).
inline Tensor empty_columns(const Tensor& val, int64_t count,
                            std::optional<ScalarType> dtype = std::nullopt) {
  return val.dim() == 2 ? empty(val, {count, val.size(1)}, dtype) : empty(val, {count}, dtype);
}

// Refuses a result of `count` entries if pointers of dtype `index` cannot count them. Call this
// before allocating the result.
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

}  // namespace spgrad
