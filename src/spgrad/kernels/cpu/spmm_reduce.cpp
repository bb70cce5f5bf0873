// Host functions of sparse times dense over maxima, minima and products: see spmm_reduce.h.
#include "spmm_reduce.h"

#include <tuple>

namespace spgrad {
namespace {

// ... of any dtype but the complex ones, which have no order.
template <class F>
void dispatch_real(ScalarType index, ScalarType value, F&& f) {
  dispatch(index, value, [&]<class index_t, class scalar_t>() {
    if constexpr (Lane<scalar_t>::count == 1) {
      f.template operator()<index_t, scalar_t>();
    } else {
      STD_TORCH_CHECK(false, "spgrad: values of dtype ", value,
                      " are not supported: complex numbers have no order.");
    }
  });
}

std::tuple<Tensor, Tensor> spmm_reduce_op(const Tensor& ptr, const Tensor& idx,
                                          const std::optional<Tensor>& perm, const Tensor& val,
                                          const Tensor& x, bool largest) {
  const ScalarType dtype = x.scalar_type();
  check_view(ptr, idx, perm);
  check_tensor(x, 2, dtype, "x");
  check_tensor(val, 1, dtype, "val");
  check_size(val, 0, idx.size(0), "val");
  const int64_t m = ptr.size(0) - 1, n = x.size(1);
  Tensor y = empty(x, {m, n}), arg = empty(ptr, {m, n});
  dispatch_real(ptr.scalar_type(), dtype, [&]<class index_t, class scalar_t>() {
    const SpmmReduce<index_t, scalar_t> a{data<index_t>(ptr),
                                          data<index_t>(idx),
                                          data<index_t>(perm),
                                          data<scalar_t>(val),
                                          data<scalar_t>(x),
                                          mutable_data<scalar_t>(y),
                                          mutable_data<index_t>(arg),
                                          n,
                                          idx.size(0),
                                          largest};
    parallel_rows(a.ptr, m, n, [&](int64_t first, int64_t last) {
      with_vectors([&]<int kBytes>() { reduce_rows<kBytes>(a, first, last); });
    });
  });
  return {y, arg};
}

// Products wrap: their low bits are the same for signed and unsigned elements.
Tensor spmm_prod_op(const Tensor& ptr, const Tensor& idx, const Tensor& x) {
  const ScalarType dtype = x.scalar_type();
  check_view(ptr, idx, std::nullopt);
  check_tensor(x, 2, dtype, "x");
  const int64_t m = ptr.size(0) - 1, n = x.size(1);
  Tensor y = empty(x, {m, n});
  dispatch(
      ptr.scalar_type(), dtype == ScalarType::Char ? ScalarType::Byte : dtype,
      [&]<class index_t, class scalar_t>() {
        const SpmmProd<index_t, scalar_t> a{
            data<index_t>(ptr), data<index_t>(idx), data<scalar_t>(x), mutable_data<scalar_t>(y), n,
            idx.size(0)};
        parallel_rows(a.ptr, m, n, [&](int64_t first, int64_t last) {
          with_vectors([&]<int kBytes>() { prod_rows<kBytes>(a, first, last); });
        });
      });
  return y;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) {
  m.impl("spmm_reduce", TORCH_BOX(&spmm_reduce_op));
  m.impl("spmm_prod", TORCH_BOX(&spmm_prod_op));
}

}  // namespace spgrad
