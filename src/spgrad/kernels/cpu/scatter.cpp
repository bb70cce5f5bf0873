// Sums of what has the same index.
#include <memory>

#include "dispatch.h"

namespace spgrad {
namespace {

// idx (nse,) in any order, val (nse,), out (n,) all zero: adds every value to the sum of its index,
// in the order of the entries, which threads could not keep. O(nse) time.
template <class index_t, class T, class sum_t>
void add_values(const index_t* idx, const T* val, int64_t nse, sum_t* out) {
  for (int64_t p = 0; p < nse; ++p) out[idx[p]] += widen(val[p]);
}

Tensor scatter_sum(const Tensor& idx, const Tensor& val, int64_t n) {
  check_tensor(idx, 1, idx.scalar_type(), "idx");
  check_tensor(val, 1, val.scalar_type(), "val");
  check_size(val, 0, idx.size(0), "val");
  Tensor out = empty(val, {n});
  dispatch(idx.scalar_type(), val.scalar_type(), [&]<class index_t, class T>() {
    using sum_t = accumulate_t<T>;
    const auto* indices = data<index_t>(idx);
    const T* const values = data<T>(val);
    T* const sums = mutable_data<T>(out);
    if constexpr (std::is_same_v<sum_t, T>) {
      std::fill_n(sums, n, T{});
      add_values(indices, values, idx.size(0), sums);
    } else {
      const auto wide = std::make_unique<sum_t[]>(n);  // zeros
      add_values(indices, values, idx.size(0), wide.get());
      for (int64_t j = 0; j < n; ++j) sums[j] = narrow<T>(wide[j]);
    }
  });
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) { m.impl("scatter_sum", TORCH_BOX(&scatter_sum)); }

}  // namespace spgrad
