// The matmul family for dense matrices whose rows are columns of the products: y = x A^T and its
// two derivatives. A layer calls them with one row for each sample.
#include <tuple>

#include "common/arguments.h"
#include "common/lanes.h"
#include "products/rows/matmul.h"
#include "shapes/transpose_dense.h"

namespace spgrad {
namespace {

// The products read and write rows of x^T and y^T, so these kernels transpose their dense operands
// and results, with memory for them. In one kernel this takes no call of its own, as calls take
// most of the time of a small layer.

// The room of a row of x^T for `count` elements. Whole vectors let spmm_sddmm take one pass. A few
// columns have kernels of their own, which take no others.
int64_t room_for(const Tensor& x, int64_t count) {
  const ScalarType dtype = x.scalar_type();
  const bool real = dtype == ScalarType::Float || dtype == ScalarType::Double;
  if (!real || count <= 8) return count;
  const int64_t lanes = vector_bytes() / static_cast<int64_t>(x.element_size());
  return (count + lanes - 1) / lanes * lanes;
}

Tensor columns_of(const Tensor& x, const char* name) {
  check_tensor(x, 2, x.scalar_type(), name);
  return transposed(x, x.size(1), room_for(x, x.size(0)));
}

Tensor row_spmm(const Tensor& ptr, const Tensor& idx, const std::optional<Tensor>& perm,
                const Tensor& val, const Tensor& x) {
  return transposed(spmm(ptr, idx, perm, val, columns_of(x, "x")), x.size(0), ptr.size(0) - 1);
}

void check_rows(const Tensor& g, const Tensor& x) {
  check_tensor(g, 2, x.scalar_type(), "g");
  check_size(g, 0, x.size(0), "g");
}

Tensor row_sddmm(const Tensor& ptr, const Tensor& idx, const std::optional<Tensor>& perm,
                 const Tensor& g, const Tensor& x) {
  const Tensor columns = columns_of(x, "x");
  check_rows(g, x);
  return sddmm(ptr, idx, perm, columns_of(g, "g"), columns);
}

std::tuple<Tensor, Tensor> row_spmm_sddmm(const Tensor& ptr, const Tensor& idx,
                                          const std::optional<Tensor>& perm, const Tensor& val,
                                          const Tensor& g, const Tensor& x) {
  const Tensor columns = columns_of(x, "x");
  check_rows(g, x);
  const auto [y, out] = spmm_sddmm(ptr, idx, perm, val, columns_of(g, "g"), columns);
  return {transposed(y, x.size(0), ptr.size(0) - 1), out};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) {
  m.impl("row_spmm", SPGRAD_BOX(&row_spmm));
  m.impl("row_sddmm", SPGRAD_BOX(&row_sddmm));
  m.impl("row_spmm_sddmm", SPGRAD_BOX(&row_spmm_sddmm));
}

}  // namespace spgrad
