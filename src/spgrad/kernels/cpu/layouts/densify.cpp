// Writes dense matrices.
#include <algorithm>

#include "common/arguments.h"
#include "common/dispatch.h"
#include "common/threads.h"

namespace spgrad {
namespace {

// ptr (m + 1,), idx (nse,) distinct in each line, perm (nse,) or null, val (nse,) or (nse, d).
// A batch is a block-diagonal matrix: each item has `lines` lines, and the indices of item i begin
// at i * n. Each line is cleared right before its elements are written, so it is still in the cache
// then. out (m, n) or (m, n, d). O(m n d + nse) time.
Tensor densify_op(const Tensor& ptr, const Tensor& idx, const std::optional<Tensor>& perm,
                  const Tensor& val, int64_t lines, int64_t n) {
  check_view(ptr, idx, perm);
  check_columns(val, "val");
  check_size(val, 0, idx.size(0), "val");
  STD_TORCH_CHECK(lines >= 1 && n >= 1, "spgrad: `lines` and `n` are at least 1.");
  const int64_t m = ptr.size(0) - 1, d = num_columns(val);
  Tensor out = val.dim() == 2 ? empty(val, {m, n, d}) : empty(val, {m, n});
  dispatch_index(ptr.scalar_type(), [&]<class index_t>() {
    const index_t *starts = data<index_t>(ptr), *indices = data<index_t>(idx);
    const index_t* order = data<index_t>(perm);
    dispatch_size(val.element_size(), [&]<class T>() {
      const T* const in = data<T>(val);
      T* const made = mutable_data<T>(out);
      parallel_entries(m, n * d, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
          T* const line = made + i * n * d;
          std::fill_n(line, n * d, T{});
          T* const item = line - i / lines * n * d;
          for (int64_t p = starts[i]; p < starts[i + 1]; ++p) {
            const int64_t from = order == nullptr ? p : int64_t{order[p]};
            if (d == 1) {
              item[indices[p]] = in[from];
            } else {
              std::copy_n(in + from * d, d, item + indices[p] * d);
            }
          }
        }
      });
    });
  });
  return out;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) { m.impl("densify", SPGRAD_BOX(&densify_op)); }

}  // namespace spgrad
