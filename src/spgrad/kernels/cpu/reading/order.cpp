// Values in the order of a view, rows in cache lines. Contracts are in order.h.
#include "reading/order.h"

#include <cstring>

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

Tensor with_rows_in_lines(const Tensor& x, int64_t entries) {
  constexpr int64_t kLine = 64, kUses = 16;
  const int64_t rows = x.size(0), row = x.size(1) * static_cast<int64_t>(x.element_size());
  const auto* const from = static_cast<const char*>(x.const_data_ptr());
  const bool in_lines = reinterpret_cast<uintptr_t>(from) % kLine == 0;
  if (in_lines || row % (kLine / 2) != 0 || entries < kUses * rows) return x;
  Tensor made = empty(x, {rows, x.size(1)});
  auto* const to = static_cast<char*>(made.mutable_data_ptr());
  parallel_entries(rows, x.size(1), [&](int64_t first, int64_t last) {
    std::memcpy(to + first * row, from + first * row, (last - first) * row);
  });
  return made;
}

}  // namespace spgrad
