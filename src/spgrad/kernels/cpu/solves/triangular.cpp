// Triangular substitution: host function. The contract and the loops are in triangular.h and
// transposed.h.
#include "solves/triangular.h"

#include <algorithm>
#include <atomic>
#include <tuple>

#include "common/arguments.h"
#include "common/dispatch.h"
#include "common/threads.h"
#include "reading/order.h"
#include "reading/prefetch.h"
#include "reading/traffic.h"
#include "solves/dtypes.h"
#include "solves/transposed.h"

namespace spgrad {
namespace {

// Columns [column, stop); the first row whose diagonal is 0, or -1.
template <class index_t, class scalar_t>
int64_t substitute(const Triangular<index_t, scalar_t>& a, bool transpose, int64_t column,
                   int64_t stop) {
  int64_t failed = -1;
  if (transpose) {
    with_vectors([&]<int kBytes>() { failed = substitute_transposed<kBytes>(a, column, stop); });
  } else {
    with_vectors([&]<int kBytes>() { failed = substitute_columns<kBytes>(a, column, stop); });
  }
  return failed;
}

// Columns over threads. Each copies some into a tile, because rows of x of which a thread reads a
// part would fill its caches as whole rows do. A row of a tile is one cache line, or two where
// enough columns are left for the other threads. Few columns, or little work, are for one thread.
template <class index_t, class scalar_t>
int64_t share_columns(const Triangular<index_t, scalar_t>& a, bool transpose, const Tensor& b) {
  constexpr int64_t kLine = 64 / sizeof(scalar_t);
  const int64_t most = (a.nse + a.m + 1) * a.n / kSerialWork;
  const int64_t threads = std::min<int64_t>(torch::stable::get_num_threads(), most);
  const int64_t width = a.n >= 2 * kLine * threads ? 2 * kLine : kLine;
  const int64_t tiles = (a.n + width - 1) / width;
  const int64_t workers = std::min(threads, tiles);
  if (workers < 2) return substitute(a, transpose, 0, a.n);
  Tensor memory = empty(b, {workers * a.m * width});
  scalar_t* const room = mutable_data<scalar_t>(memory);
  std::atomic<int64_t> failed = -1;  // all find the same
  torch::stable::parallel_for(0, workers, 1, [&](int64_t first, int64_t last) {
    for (int64_t tile = first * tiles / workers; tile < last * tiles / workers; ++tile) {
      const int64_t column = tile * width;
      Triangular<index_t, scalar_t> part = a;
      part.stride = width;
      part.x = room + first * a.m * width - column;
      part.out = a.x;
      part.streamed = a.n % kLine == 0 && reinterpret_cast<uintptr_t>(a.x) % 64 == 0;
      const int64_t found = substitute(part, transpose, column, std::min(column + width, a.n));
      failed.store(found, std::memory_order_relaxed);
    }
    finish_streams();
  });
  return failed;
}

std::tuple<Tensor, Tensor> solve_triangular(const Tensor& ptr, const Tensor& idx,
                                            const std::optional<Tensor>& perm, const Tensor& val,
                                            const Tensor& b, bool upper, bool unit,
                                            bool transpose) {
  check_view(ptr, idx, perm);
  check_tensor(b, 2, b.scalar_type(), "b");
  check_tensor(val, 1, b.scalar_type(), "val");
  check_size(val, 0, idx.size(0), "val");
  const int64_t m = ptr.size(0) - 1;
  check_size(b, 0, m, "b");
  const Tensor ordered = perm ? in_view_order(*perm, val) : val;
  Tensor x = empty(b, {m, b.size(1)}), failed = empty(b, {1}, ScalarType::Long);
  dispatch_index(ptr.scalar_type(), [&]<class index_t>() {
    dispatch_solvable(b.scalar_type(), [&]<class scalar_t>() {
      const Triangular<index_t, scalar_t> a{.ptr = data<index_t>(ptr),
                                            .idx = data<index_t>(idx),
                                            .val = data<scalar_t>(ordered),
                                            .b = data<scalar_t>(b),
                                            .x = mutable_data<scalar_t>(x),
                                            .m = m,
                                            .n = b.size(1),
                                            .nse = idx.size(0),
                                            .upper = upper,
                                            .unit = unit,
                                            .ahead = choose_traffic(idx, b, {}).ahead};
      *mutable_data<int64_t>(failed) = share_columns(a, transpose, b);
    });
  });
  return {x, failed};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) {
  m.impl("solve_triangular", SPGRAD_BOX(&solve_triangular));
}

}  // namespace spgrad
