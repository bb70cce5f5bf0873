// Values in the order of a view. Contracts are in order.h.
#include "reading/order.h"

#include "common/arguments.h"
#include "common/dispatch.h"
#include "common/threads.h"

namespace spgrad {

Tensor in_view_order(const Tensor& perm, const Tensor& val) {
  const int64_t nse = val.size(0);
  Tensor made = empty(val, {nse});
  dispatch_index(perm.scalar_type(), [&]<class index_t>() {
    const index_t* const order = data<index_t>(perm);
    dispatch_size(val.element_size(), [&]<class T>() {
      const T* const in = data<T>(val);
      T* const out = mutable_data<T>(made);
      parallel_entries(nse, 1, [&](int64_t first, int64_t last) {
        with_vectors([&]<int kBytes>() {
          copy_in_order<kBytes>(in, order + first, last - first, out + first);
        });
      });
    });
  });
  return made;
}

}  // namespace spgrad
