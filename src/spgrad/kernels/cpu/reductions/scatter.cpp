// Adds up the values that have the same index.
#include <algorithm>
#include <type_traits>

#include "common/arguments.h"
#include "common/dispatch.h"

namespace spgrad {
namespace {

// The type in which long sums of T are formed: double for floats, because the error grows with the
// length.
template <class T>
struct LongSum {
  using type = std::conditional_t<std::is_same_v<accumulate_t<T>, float>, double, accumulate_t<T>>;
};
template <>
struct LongSum<Complex<float>> {
  using type = Complex<double>;
};

template <class To, class From>
SPGRAD_INLINE To as(From value) {
  if constexpr (requires { value.re; }) {
    using Part = decltype(To::re);
    return To(static_cast<Part>(value.re), static_cast<Part>(value.im));
  } else {
    return static_cast<To>(value);
  }
}

// idx (nse,) in any order, val (nse,), sums (n,) all zero: adds every value to the sum of its
// index, in the order of the entries. One thread does this, because several threads could not keep
// that order. O(nse) time.
template <class index_t, class T, class sum_t>
void add_values(const index_t* idx, const T* val, int64_t nse, sum_t* sums) {
  for (int64_t p = 0; p < nse; ++p) sums[idx[p]] += as<sum_t>(widen(val[p]));
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
        for (int64_t j = 0; j < n; ++j) made[j] = narrow<T>(as<accumulate_t<T>>(sums[j]));
      }
    };
    wide ? add.template operator()<typename LongSum<T>::type>()
         : add.template operator()<accumulate_t<T>>();
  });
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) { m.impl("scatter_sum", SPGRAD_BOX(&scatter_sum)); }

}  // namespace spgrad
