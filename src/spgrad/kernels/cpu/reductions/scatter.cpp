// Adds up the values that have the same index.
#include <algorithm>

#include "common/arguments.h"
#include "common/dispatch.h"
#include "reductions/segments.h"

namespace spgrad {
namespace {

// idx (nse,) in any order, val (nse,), sums (n,) all zero: adds every value to the sum of its
// index, in the order of the entries. One thread does this, because several threads could not keep
// that order. O(nse) time.
template <class index_t, class T, class sum_t>
void add_values(const index_t* idx, const T* val, int64_t nse, sum_t* sums) {
  for (int64_t p = 0; p < nse; ++p) sums[idx[p]] += converted<sum_t>(widen(val[p]));
}

// out (n,). With `wide`, floats are added in double. Memory for n sums if these are wider than the
// values.
Tensor scatter_sum(const Tensor& idx, const Tensor& val, int64_t n, bool wide) {
  check_tensor(idx, 1, idx.scalar_type(), "idx");
  check_tensor(val, 1, val.scalar_type(), "val");
  check_size(val, 0, idx.size(0), "val");
  Tensor out = empty(val, {n});
  dispatch(idx.scalar_type(), val.scalar_type(), [&]<class index_t, class T>() {
    const auto* indices = data<index_t>(idx);
    const T* const values = data<T>(val);
    T* const made = mutable_data<T>(out);
    const auto add = [&]<class sum_t>() {
      if constexpr (std::is_same_v<sum_t, T>) {
        std::fill_n(made, n, T{});
        add_values(indices, values, idx.size(0), made);
      } else {
        const auto sums = zeros<sum_t>(n);
        add_values(indices, values, idx.size(0), sums.get());
        for (int64_t j = 0; j < n; ++j) made[j] = narrow<T>(converted<accumulate_t<T>>(sums[j]));
      }
    };
    wide ? add.template operator()<long_sum_t<T>>() : add.template operator()<accumulate_t<T>>();
  });
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) { m.impl("scatter_sum", SPGRAD_BOX(&scatter_sum)); }

}  // namespace spgrad
